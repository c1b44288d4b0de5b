"""Executes an attn function with NumPy: what the text means, to compare everything below with.

Every value is an array [batch, KV head, query head of its group, *dims]; an axis over which it does not vary has size 1, so that NumPy's
broadcasting does what `attn.axes` says. "float64" mode never rounds; "kernel" mode rounds every value to its type (`scalar.py`), and sums
GEMMs in f32.
"""

from collections.abc import Mapping

import numpy as np

from . import scalar
from .attn_checks import reduced_dim
from .attn_dims import infer_dims
from .attn_signature import FunctionFacts, TensorFacts, attn_functions, function_facts, memory_order, verify_function
from .diagnostics import Diagnostic, op_diagnostic
from .mlir import ir

_HEADS = ("hq", "hkv")


def run(func_op, inputs: Mapping, dtype: str = scalar.FLOAT64) -> dict[str, np.ndarray]:
    """Execute an attn function.

    `inputs`: name -> NumPy array or torch tensor, in memory order (axes and dims as `memory_order` gives them). `dtype` is "float64" or
    "kernel". Returns name -> array in memory order: float64, or in kernel mode float32 that holds values of the result's dtype.
    Raises `Diagnostic` if an input is missing or sizes do not fit.
    """
    if dtype not in (scalar.FLOAT64, scalar.KERNEL):
        raise ValueError(f"dtype is 'float64' or 'kernel', not {dtype!r}")
    verify_function(func_op)
    facts = function_facts(func_op)
    packed = {t.cu_seqlens: t.name for t in facts.args if t.cu_seqlens}
    arrays = {t.name: _as_array(func_op, inputs, t, dtype) for t in facts.args}
    sizes = _problem_sizes(func_op, facts, arrays, tuple(packed))
    grouped = {t.name: _to_grouped(t, arrays[t.name], facts.layout, tuple(packed), sizes) for t in facts.args}
    known = infer_dims(func_op, facts)
    if not packed:
        results = _Run(func_op, facts, known, grouped, sizes, dtype).results()
    else:
        results = _run_packed(func_op, facts, known, grouped, sizes, dtype, packed)
    return {t.name: _from_grouped(t, results[t.name], facts.layout, tuple(packed), sizes) for t in facts.results}


def run_module(module, inputs: Mapping, dtype: str = scalar.FLOAT64) -> dict[str, np.ndarray]:
    """Execute the attn functions of a module in order, those whose `attn.when` holds, workspaces of one handed to the next. Returns all
    results but workspaces."""
    results, workspaces = {}, {}
    for function in attn_functions(module):
        if not _runs(function, {**inputs, **workspaces}, dtype):
            continue
        made = run(function, {**inputs, **workspaces}, dtype)
        for tensor in function_facts(function).results:
            (workspaces if tensor.workspace else results)[tensor.name] = made[tensor.name]
    return results


def _runs(func_op, inputs: Mapping, dtype: str) -> bool:
    facts = function_facts(func_op)
    if facts.when is None:
        return True
    size, most = facts.when
    packed = tuple(t.cu_seqlens for t in facts.args if t.cu_seqlens)
    return _problem_sizes(func_op, facts, {t.name: _as_array(func_op, inputs, t, dtype) for t in facts.args}, packed)[size] <= most


# -- arrays in memory order and back -----------------------------------------------------------------------------------------------------


def _mlir_dtype(name: str) -> str:
    return "f16" if name == "fp16" else name


def _as_array(func_op, inputs: Mapping, tensor: TensorFacts, mode: str) -> np.ndarray:
    if tensor.name not in inputs:
        raise op_diagnostic(func_op, f"misses the input '{tensor.name}'", why=f"given are: {', '.join(inputs) or 'none'}")
    value = inputs[tensor.name]
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    return scalar.round_to(_mlir_dtype(tensor.dtype), value, mode)


def _problem_sizes(func_op, facts: FunctionFacts, arrays: dict, packed: tuple[str, ...]) -> dict[str, int]:
    sizes: dict[str, tuple[int, str]] = {}
    for tensor in facts.args:
        order, shape = memory_order(tensor, facts.layout, packed), arrays[tensor.name].shape
        if len(order) != len(shape):
            raise op_diagnostic(
                func_op,
                f"takes '{tensor.name}' of rank {len(order)}, but was given shape {list(shape)}",
                why=f"in memory it is ({', '.join(order)})",
            )
        static = dict(zip(tensor.dims, tensor.shape, strict=True))
        for name, size in zip(order, shape, strict=True):
            if static.get(name) not in (None, size):
                raise op_diagnostic(func_op, f"takes '{tensor.name}' with {name} = {static[name]}, but was given {size}")
            if name in packed and "b" not in tensor.axes:
                continue  # a table over positions, not one packed over the batch
            before, other = sizes.setdefault(name, (size, tensor.name))
            if before != size:
                raise op_diagnostic(
                    func_op, f"was given {name} = {before} in '{other}' but {name} = {size} in '{tensor.name}'", why="one name is one size"
                )
    found = {name: size for name, (size, _) in sizes.items()}
    if "batch_plus_1" in found:
        found["b"] = found["batch_plus_1"] - 1
    found.setdefault("b", 1)
    found.setdefault("hkv", found.get("hq", 1))
    found.setdefault("hq", found["hkv"])
    if found["hkv"] == 0 and found["hq"] == 0:
        return found
    if found["hkv"] == 0 or found["hq"] % found["hkv"]:
        raise op_diagnostic(
            func_op,
            f"was given {found['hq']} query heads and {found['hkv']} KV heads",
            why="each KV head serves the same number of query heads",
        )
    return found


def _groups(sizes: dict[str, int]) -> int:
    return sizes["hq"] // sizes["hkv"] if sizes["hkv"] else 1


def _to_grouped(tensor: TensorFacts, array: np.ndarray, layout: str, packed: tuple[str, ...], sizes: dict[str, int]) -> np.ndarray:
    order = memory_order(tensor, layout, packed)
    axes = [axis for axis in tensor.axes if axis in order]
    positions = [order.index(axis) for axis in axes] + [order.index(dim) for dim in tensor.dims]  # dims are last, one name each
    array = array.transpose(positions)
    batch = array.shape[0] if "b" in axes else 1
    if "hq" in axes:
        heads = (sizes["hkv"], _groups(sizes))
    else:
        heads = (sizes["hkv"], 1) if "hkv" in axes else (1, 1)
    return array.reshape(batch, *heads, *array.shape[len(axes) :])


def _from_grouped(tensor: TensorFacts, array: np.ndarray, layout: str, packed: tuple[str, ...], sizes: dict[str, int]) -> np.ndarray:
    """Inverse of `_to_grouped`; an axis that the value does not vary over is repeated."""
    order = memory_order(tensor, layout, packed)
    axes = [axis for axis in tensor.axes if axis in order]
    dims = array.shape[3:]
    heads = (sizes["hkv"], _groups(sizes)) if "hq" in axes else ((sizes["hkv"], 1) if "hkv" in axes else (1, 1))
    array = np.broadcast_to(array, (sizes["b"] if "b" in axes else 1, *heads, *dims))
    shape = [sizes[axis] for axis in axes]
    array = array.reshape([*shape, *dims])
    names = [*axes, *tensor.dims]
    return np.ascontiguousarray(array.transpose([names.index(name) for name in order])) if order else array.copy()


# -- execution ---------------------------------------------------------------------------------------------------------------------------


class _Run:
    """One execution over dense arrays. `batch_start` is the number of its first batch entry (packed lengths run one by one)."""

    def __init__(self, func_op, facts: FunctionFacts, known, grouped: dict, sizes: dict[str, int], mode: str, batch_start: int = 0):
        self.facts, self.known, self.sizes, self.mode, self.batch_start = facts, known, sizes, mode, batch_start
        block = func_op.operation.regions[0].blocks[0]
        self.values = {argument: grouped[t.name] for argument, t in zip(block.arguments, facts.args, strict=True)}
        self.return_op, self.space_rank = None, 0
        for op in block.operations:
            operation = op.operation
            if operation.name == "func.return":
                self.return_op = operation
            elif operation.name in _EXECUTE:
                results = _EXECUTE[operation.name](self, operation.opview)
                self.values.update(zip(operation.results, results, strict=True))
            else:
                operands = [self.values[value] for value in operation.operands]
                results = self._external(operation, operands) or scalar.apply(operation, operands, mode)
                self.values.update(zip(operation.results, results, strict=True))

    def results(self) -> dict[str, np.ndarray]:
        """name -> grouped array, summed over the axes that the result lacks."""
        out = {}
        for value, tensor in zip(self.return_op.operands, self.facts.results, strict=True):
            array, axes = self.values[value], self.known[value][1]
            summed = _axes_to_sum(axes, tensor.axes)
            if summed:
                array = self.values[_before_cast(value)]  # the sum is rounded, not its terms
                shape = list(array.shape)
                for position in summed:
                    shape[position] = (self.sizes["b"], self.sizes["hkv"], _groups(self.sizes))[position]
                array = np.broadcast_to(array, shape).sum(axis=summed, keepdims=True)
            out[tensor.name] = self._round(value, array)
        return out

    def _round(self, value, array):
        return scalar.round_to(scalar.element_name(value.type), array, self.mode)

    def _external(self, operation, operands):
        if operation.name == "attn.size":
            return [np.int64(self.sizes.get(operation.attributes["dim"].value, 0))]
        if operation.name == "attn.load":
            loaded = self._load(operands[0], operands[1:])
            missing = 3 + self.space_rank - loaded.ndim  # a scalar of each (batch, head) spreads over the space
            return [loaded.reshape(*loaded.shape, *[1] * missing) if loaded.ndim == 3 and missing > 0 else loaded]
        return None

    def _load(self, tensor, indices):
        rank = max([getattr(index, "ndim", 0) for index in indices] + [3])
        heads = [tensor.shape[k] for k in range(3)]
        where = [np.arange(size).reshape([size if axis == k else 1 for axis in range(rank)]) for k, size in enumerate(heads)]
        inside = np.ones((), dtype=bool)
        for position, index in enumerate(indices):
            size = tensor.shape[3 + position]
            inside = inside & (index >= 0) & (index < size)
            where.append(np.clip(index, 0, max(size - 1, 0)))
        if 0 in tensor.shape[3:]:
            return np.zeros(np.broadcast_shapes(*[np.shape(w) for w in where]), dtype=tensor.dtype)
        loaded = tensor[tuple(where)]
        return np.where(inside, loaded, np.zeros((), dtype=tensor.dtype)) if indices else loaded

    def _space_indices(self, dims: tuple[str, ...], shape) -> list[np.ndarray]:
        """%b, %h and a position for each dimension, shaped to broadcast over [batch, KV head, group, *dims]."""
        rank = self.space_rank = len(dims)
        groups = _groups(self.sizes)
        batch = (self.batch_start + np.arange(self.sizes["b"])).reshape(-1, 1, 1, *[1] * rank)
        head = np.arange(self.sizes["hq"]).reshape(1, self.sizes["hkv"], groups, *[1] * rank)
        positions = []
        for k, (dim, size) in enumerate(zip(dims, shape, strict=True)):
            shift = (
                self.sizes["n"] - self.sizes["m"]
                if dim == "m" and self.facts.align == "bottom_right" and {"m", "n"} <= set(self.sizes)
                else 0
            )
            positions.append((np.arange(size) + shift).reshape(1, 1, 1, *[size if axis == k else 1 for axis in range(rank)]))
        return [batch, head, *positions]

    def _region(self, region, elements, indices):
        arguments = [*elements, *indices]
        return scalar.evaluate(region.blocks[0], arguments, self.values, mode=self.mode, external=self._external)

    def _elements(self, inputs, space):
        """The inputs of a map, shaped to broadcast over [batch, KV head, group, *space], and the sizes of the space."""
        shape = [0] * len(space)
        elements = []
        for value in inputs:
            array, dims = self.values[value], self.known[value][0]
            for dim, size in zip(dims, array.shape[3:], strict=True):
                shape[space.index(dim)] = size
            if len(dims) < len(space):
                at = space.index(dims[0]) if dims else None
                array = array.reshape(*array.shape[:3], *[array.shape[3] if k == at else 1 for k in range(len(space))])
            elements.append(array)
        if len(space) == 2 and space[0] == space[1]:  # one name twice: q @ q^T
            shape[1] = shape[0]
        return elements, shape

    def map(self, op):
        space = self.known[op.out][0]
        elements, shape = self._elements(op.inputs, space)
        (out,) = self._region(op.body, elements, self._space_indices(space, shape))
        return [_spread(out, shape)]

    def scatter(self, op):
        space = max((self.known[value][0] for value in op.inputs), key=len)
        elements, shape = self._elements(op.inputs, space)
        yielded = [_spread(array, shape) for array in self._region(op.body, elements, self._space_indices(space, shape))]
        yielded = np.broadcast_arrays(*yielded)
        sizes = self.values[op.like].shape[3:]
        out = np.zeros((*yielded[0].shape[:3], *sizes), dtype=yielded[0].dtype)
        inside = np.ones(yielded[0].shape, dtype=bool)
        for index, size in zip(yielded[1:], sizes, strict=True):
            inside &= (index >= 0) & (index < size)
        where = np.nonzero(inside)
        np.add.at(out, (*where[:3], *[index[where] for index in yielded[1:]]), yielded[0][where])
        return [self._round(op.out, out)]

    def mask(self, op):
        scores = self.values[op.scores]
        (keep,) = self._region(op.predicate, [], self._space_indices(self.known[op.scores][0], scores.shape[3:]))
        return [np.where(keep, scores, np.array(-np.inf, dtype=scores.dtype))]

    def gemm(self, op):
        a, b = self.values[op.a], self.values[op.b]
        a = a.swapaxes(-1, -2) if op.transpose_a.value else a
        b = b.swapaxes(-1, -2) if op.transpose_b.value else b
        return [self._round(op.out, np.matmul(a, b))]

    def softmax(self, op):
        scores = self.values[op.scores]
        scores = scores * scores.dtype.type(op.scale.value)
        top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
        top_or_0 = np.where(np.isneginf(top), np.zeros((), dtype=scores.dtype), top)
        with np.errstate(all="ignore"):
            exponentials = np.exp(scores - top_or_0)
            total = exponentials.sum(axis=-1, keepdims=True)
            p = np.where(total == 0, np.zeros((), dtype=scores.dtype), exponentials / total)
            lse = (top_or_0 + np.log(total))[..., 0]
        return [self._round(op.p, p), self._round(op.lse, lse)]

    def cast(self, op):
        return [self._round(op.out, self.values[op.x])]

    def reduce(self, op):
        x, axis = self.values[op.x], 3 + reduced_dim(op)
        if op.kind.value == "sum":
            return [self._round(op.out, x.sum(axis=axis))]
        return [np.max(x, axis=axis, initial=-np.inf)]


_EXECUTE = {
    "attn.map": _Run.map,
    "attn.scatter": _Run.scatter,
    "attn.mask": _Run.mask,
    "attn.band_mask": _Run.mask,
    "attn.gemm": _Run.gemm,
    "attn.softmax": _Run.softmax,
    "attn.cast": _Run.cast,
    "attn.reduce": _Run.reduce,
}


def _spread(array, shape) -> np.ndarray:
    """An element result over all of its space, even where the region ignores an index."""
    array = np.asarray(array)
    array = array.reshape([1] * (3 + len(shape) - array.ndim) + list(array.shape))
    return np.broadcast_to(array, (*array.shape[:3], *shape))


def _before_cast(value):
    """What a returned value was cast from."""
    while not isinstance(value.owner, ir.Block) and value.owner.name == "attn.cast":
        value = value.owner.operands[0]
    return value


def _axes_to_sum(value_axes, result_axes) -> tuple[int, ...]:
    """Positions in [batch, KV head, group] to sum over."""
    positions = []
    if "b" in value_axes and "b" not in result_axes:
        positions.append(0)
    if set(_HEADS) & set(value_axes) and not set(_HEADS) & set(result_axes):
        positions.append(1)
    if "hq" in value_axes and "hq" not in result_axes:
        positions.append(2)
    return tuple(positions)


def _run_packed(func_op, facts, known, grouped, sizes, mode, packed: dict[str, str]) -> dict[str, np.ndarray]:
    """One batch entry after the other, each with its own lengths."""
    offsets = {dim: grouped[name].reshape(-1) for dim, name in packed.items()}
    for dim, values in offsets.items():
        if len(values) < 1 or values[0] != 0 or (np.diff(values) < 0).any() or values[-1] != sizes.get(dim, values[-1]):
            raise Diagnostic(
                f"'{packed[dim]}' is {values.tolist()}",
                where=func_op.location,
                why=f"offsets rise from 0 to the packed length {sizes.get(dim)}",
            )
    axes_of = {tensor.name: known[value][1] for tensor, value in zip(facts.results, _return_operands(func_op), strict=True)}
    parts: dict[str, list] = {tensor.name: [] for tensor in facts.results}
    for entry in range(sizes["b"]):
        local_sizes = {**sizes, "b": 1, **{dim: int(values[entry + 1] - values[entry]) for dim, values in offsets.items()}}
        local = {t.name: _entry(t, grouped[t.name], entry, offsets) for t in facts.args}
        for name, array in _Run(func_op, facts, known, local, local_sizes, mode, batch_start=entry).results().items():
            parts[name].append(array)
    return {tensor.name: _join(tensor, parts[tensor.name], axes_of[tensor.name], offsets, sizes) for tensor in facts.results}


def _return_operands(func_op):
    return list(func_op.operation.regions[0].blocks[0].operations)[-1].operation.operands


def _entry(tensor: TensorFacts, array, entry: int, offsets) -> np.ndarray:
    if "b" not in tensor.axes:
        return array
    packed_dims = [dim for dim in tensor.dims if dim in offsets]
    for dim in packed_dims:
        start, stop = int(offsets[dim][entry]), int(offsets[dim][entry + 1])
        array = np.take(array, np.arange(start, stop), axis=3 + tensor.dims.index(dim))
    return array if packed_dims else array[entry : entry + 1]


def _join(tensor: TensorFacts, parts: list, value_axes, offsets, sizes) -> np.ndarray:
    packed_dims = [dim for dim in tensor.dims if dim in offsets]
    if not parts:
        return np.zeros(
            (
                0 if "b" in tensor.axes and not packed_dims else 1,
                1,
                1,
                *[sizes.get(d, s) or 0 for d, s in zip(tensor.dims, tensor.shape, strict=True)],
            )
        )
    if "b" not in tensor.axes:
        return sum(parts[1:], parts[0]) if "b" in value_axes else parts[0]
    return np.concatenate(parts, axis=3 + tensor.dims.index(packed_dims[0]) if packed_dims else 0)
