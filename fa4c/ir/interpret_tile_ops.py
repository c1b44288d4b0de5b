"""What each operation of the tile dialect computes, on NumPy arrays.

`reader(op, mode)` reads an operation's attributes once and gives `compute(operands, outer) -> results`; `operands` are arrays (whole global
tensors, tiles, scalars), `outer` maps values that a region uses from around it.
"""

from collections.abc import Callable

import numpy as np

from . import scalar
from .diagnostics import op_diagnostic
from .mlir import ir
from .tile import space_of

Compute = Callable[[list, dict], list]


def reader(op, mode: str) -> Compute | None:
    """The function that computes `op`, or None where it is no tile operation with a rule here."""
    make = _READERS.get(op.operation.name)
    return make(op, mode) if make else None


def read_box(source: np.ndarray, coords, dims, shape) -> np.ndarray:
    """The box of `shape` at `coords`, its sides along `dims`; what lies outside of `source` reads 0."""
    out = np.zeros(tuple(shape), source.dtype)
    inside, whole = _clip(source.shape, coords, dims, shape)
    if inside is not None:
        out[inside] = source[whole]
    return out


def write_box(target: np.ndarray, coords, dims, tile: np.ndarray) -> None:
    """Write `tile` to the box at `coords`; what lies outside of `target` is dropped."""
    inside, whole = _clip(target.shape, coords, dims, tile.shape)
    if inside is not None:
        target[whole] = tile[inside]


def _clip(whole_shape, coords, dims, shape):
    """(index into the tile, index into the tensor) of the part of a box that lies inside, or (None, None)."""
    inside, whole = [], []
    extents = dict(zip(dims, shape, strict=True))
    for axis, (start, size) in enumerate(zip(map(int, coords), whole_shape, strict=True)):
        first, last = max(start, 0), min(start + extents.get(axis, 1), size)
        if first >= last:
            return None, None
        if axis in extents:
            inside.append(slice(first - start, last - start))
            whole.append(slice(first, last))
        else:
            whole.append(first)
    return tuple(inside), tuple(whole)


def add_to_box(target: np.ndarray, coords, dims, tile: np.ndarray) -> None:
    """Add `tile` to the box at `coords`; what lies outside of `target` is dropped."""
    inside, whole = _clip(target.shape, coords, dims, tile.shape)
    if inside is not None:
        target[whole] += tile[inside]


def load_element(source: np.ndarray, coords) -> np.ndarray:
    """source[coords], elementwise over arrays of coordinates; 0 out of bounds."""
    if source.ndim == 0:
        return source[()]
    coords = np.broadcast_arrays(*[np.asarray(c) for c in coords])
    valid = np.logical_and.reduce([(c >= 0) & (c < size) for c, size in zip(coords, source.shape, strict=True)])
    if 0 in source.shape:
        return np.zeros(valid.shape, source.dtype)
    return np.where(valid, source[tuple(np.where(valid, c, 0) for c in coords)], source.dtype.type(0))


def scalar_external(operation, operands):
    """The tile operations that may stand in a map's region."""
    if operation.name == "tile.load_element":
        return [load_element(operands[0], operands[1:])]
    if operation.name == "tile.exp2":
        with np.errstate(all="ignore"):
            return [np.exp2(operands[0])]
    return None


# ------------------------------------------------------------------------------------------------------- readers, one an operation


def _splat(op, mode):
    kind = op.out.type
    tile = scalar.round_to(scalar.element_name(kind), np.full(tuple(kind.shape), op.value.value), mode)
    return lambda operands, outer: [tile]


def _dim(op, mode):
    axis = op.axis.value
    return lambda operands, outer: [np.int64(operands[0].shape[axis])]


def _external(op, mode):
    operation = op.operation
    return lambda operands, outer: scalar_external(operation, operands)


def _load(op, mode):
    dims, shape = list(op.dims), list(op.out.type.shape)
    box = shape[-len(dims) :]  # a row of column values is a box of one dimension
    return lambda operands, outer: [read_box(operands[0], operands[1:], dims, box).reshape(shape)]


def _store(op, mode):
    dims = list(op.dims)

    def compute(operands, outer):
        tile, target, *coords = operands
        write_box(target, coords, dims, tile if target.ndim else tile[0])
        return []

    return compute


def _global_add(op, mode):
    dims, folded = list(op.dims), op.folded.value

    def compute(operands, outer):
        tile, target, *coords = operands
        if folded:
            tile = np.concatenate(np.split(tile, 2), axis=1)
        with np.errstate(all="ignore"):
            add_to_box(target, coords, dims, tile if dims else tile.sum(dtype=tile.dtype))
        return []

    return compute


def _wait_count(op, mode):
    def compute(operands, outer):
        counter, count, *coords = operands
        seen = counter[tuple(map(int, coords))]
        if (seen != count).any():
            raise op_diagnostic(op, f"waits for {int(count)}, but the counters are {', '.join(map(str, seen))}",
                                why="CTAs run here one after the other, in the order of their numbers: none behind could change that")
        return []

    return compute


def _add_count(op, mode):
    def compute(operands, outer):
        counter, *coords = operands
        counter[tuple(map(int, coords))] += 1
        return []

    return compute


def _mma(op, mode):
    transpose_a, transpose_b, folded = op.transpose_a.value, op.transpose_b.value, op.folded.value

    def compute(operands, outer):
        a, b, *acc = operands
        with np.errstate(all="ignore"):
            product = (a.T if transpose_a else a) @ (b.T if transpose_b else b)
            if folded:
                product = np.concatenate(np.split(product, 2, axis=1))
            return [acc[0] + product if acc else product]

    return compute


def _map(op, mode):
    block = op.body.blocks[0]
    shape = tuple(op.out.type.shape)
    count, has_cond = len(op.inputs), op.cond is not None
    rows, columns = np.arange(shape[0]), np.int64(0)
    if len(shape) == 2:
        rows, columns = rows[:, None], np.arange(shape[1])[None, :]

    def spread(array):
        return array[:, None] if array.ndim == 1 and len(shape) == 2 else array

    def compute(operands, outer):
        inputs = [spread(array) for array in operands[:count]]
        values = scalar.evaluate(block, [*inputs, rows, columns], outer, mode=mode, external=scalar_external)
        values = [np.broadcast_to(value, shape) for value in values]
        if has_cond:
            return [np.where(spread(np.asarray(operands[count])), values[0], inputs[0])]
        return values

    return compute


def _reduce(op, mode):
    combine = {"max": np.maximum, "sum": np.add}[op.kind.value]
    element = scalar.element_name(op.out.type)
    partial = op.out.type.rank == 2
    quad_column = np.arange(op.x.type.shape[1]) // 2 % 4

    def compute(operands, outer):
        x, *init = operands
        with np.errstate(all="ignore"):
            parts = [x[:, quad_column == c] for c in range(4)] if partial else [x]
            sums = [combine.reduce(part, axis=1, initial=_identity(combine, x.dtype)) for part in parts]
            value = np.stack(sums, axis=1) if partial else sums[0]
            return [scalar.round_to(element, combine(init[0], value) if init else value, mode)]

    return compute


def _identity(combine, dtype):
    if combine is np.add:
        return dtype.type(0)
    return dtype.type(-np.inf) if dtype.kind == "f" else np.iinfo(dtype).min


def _rescale_factor(op, mode):
    element = scalar.element_name(op.out.type)
    scale = op.scale_log2.value

    def compute(operands, outer):
        old, new = operands
        with np.errstate(all="ignore"):
            factor = np.exp2((old - new) * old.dtype.type(scale))
        return [scalar.round_to(element, np.where(np.isneginf(old), 0, factor), mode)]

    return compute


def _vote_any(op, mode):
    rows = op.rows.value
    return lambda operands, outer: [np.repeat(operands[0].reshape(-1, rows).any(axis=1), rows)]


def _as_it_is(op, mode):
    return lambda operands, outer: [operands[0]]


_READERS: dict[str, Callable[[object, str], Compute]] = {
    "tile.splat": _splat,
    "tile.dim": _dim,
    "tile.load_element": _external,
    "tile.exp2": _external,
    "tile.load": _load,
    "tile.store": _store,
    "tile.global_add": _global_add,
    "tile.wait_count": _wait_count,
    "tile.add_count": _add_count,
    "tile.mma": _mma,
    "tile.map": _map,
    "tile.map_both": _map,
    "tile.reduce": _reduce,
    "tile.rescale_factor": _rescale_factor,
    "tile.vote_any": _vote_any,
    "tile.from_shared": _as_it_is,
    "tile.to_shared": _as_it_is,
    "tile.exchange": _as_it_is,  # of what both CTAs brought (`interpret_tile_pair`)
}


def captured(region) -> list:
    """The values that a region's operations use from around it."""
    inside, used = set(), []

    def walk(block):
        inside.update(block.arguments)
        for op in block.operations:
            for value in op.operation.operands:
                if value not in inside and value not in used:
                    used.append(value)
            for nested in op.operation.regions:
                for nested_block in nested.blocks:
                    walk(nested_block)
            inside.update(op.operation.results)

    for block in region.blocks:
        walk(block)
    return used


def is_tile(kind) -> bool:
    """Whether a type is that of a tile in a place of its own: shared or tensor memory, or registers."""
    return isinstance(kind, ir.RankedTensorType) and space_of(kind) in ("smem", "tmem", "reg")
