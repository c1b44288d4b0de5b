"""What both phases of a kernel of `attn-to-tile` read: tiles and vectors of arguments, values computed so far, maps over them."""

from dataclasses import dataclass

from ..ir import tile as tile_ops
from ..ir.mlir import arith, ir
from ..ir.tile import SplatOp, tile_type
from ._attn_to_tile_frame import Frame
from ._attn_to_tile_plan import Plan
from ._attn_to_tile_shape import Shape
from ._tile_map import emit_map

_SLT, _SGT = arith.CmpIPredicate.slt, arith.CmpIPredicate.sgt


@dataclass
class Statistics:
    """Of one softmax: row maximum (of its unscaled input), partial row sums; `factor` is what sums so far are multiplied by."""

    maximum: object
    sums: object
    factor: object = None
    total: object = None
    inverse: object = None


@dataclass(frozen=True)
class Unnormalised:
    """An accumulator, and a factor for each row that it still lacks."""

    accumulator: object
    inverse: object


class Tiles:
    """Emits into the current insertion point. `padded` rounds a head dim up to what the tensor cores take; `workspaces` are names."""

    def __init__(self, plan: Plan, shape: Shape, padded, tensors: dict, workspaces=frozenset(), alike=1):
        self.plan, self.shape, self.padded, self.workspaces = plan, shape, padded, workspaces
        self.frame = Frame(plan, shape, tensors, alike)
        self.values: dict = {}  # attn value -> tile, or Unnormalised
        self.statistics: dict[int, Statistics] = {}  # of each softmax, by its position
        self.accumulators: dict[int, object] = {}
        self.column0 = None  # where the block of columns starts that is visited
        self._row_tiles: dict = {}  # tensor name -> tile in shared memory
        self._column_tiles: dict = {}  # (tensor name, first column) -> tile in shared memory
        self._row_vectors: dict = {}  # tensor name -> one value a row, in registers

    # -- arguments -------------------------------------------------------------------------------------------

    def row_tile(self, tensor):
        """The tile of an argument with this CTA's rows; loaded once."""
        if tensor.name not in self._row_tiles:
            self._row_tiles[tensor.name] = self.frame.load_tile(
                tensor, self.frame.row0, self.shape.block_m, self.padded(tensor.shape[1]), 1
            )
        return self._row_tiles[tensor.name]

    def column_tile(self, tensor):
        """The tile of an argument with this block's columns as its rows. MMAs that read one tensor share it."""
        key = (tensor.name, self.column0)
        if key not in self._column_tiles:
            columns = self.padded(tensor.shape[1])
            self._column_tiles[key] = self.frame.load_tile(tensor, self.column0, self.shape.block_n, columns, self.shape.buffers)
        return self._column_tiles[key]

    def _column_vector(self, tensor):
        """A value a column, of this block."""
        key = (tensor.name, self.column0)
        if key not in self._column_tiles:
            self._column_tiles[key] = self.frame.load_row(tensor, self.column0, self.shape.block_n, self.shape.buffers)
        return self._column_tiles[key]

    def forget_row_vectors(self, but=()) -> None:
        """Another head may have others; and what is loaded inside of a loop is not there behind it. `but`: what will be written is read
        once, before."""
        self._row_vectors = {name: tile for name, tile in self._row_vectors.items() if name in but}

    def row_vector(self, tensor):
        """A value a row, of this CTA."""
        if tensor.name not in self._row_vectors:
            kind = tile_type([self.shape.block_m], self.frame.tensors[tensor.name].type.element_type, "reg")
            self._row_vectors[tensor.name] = emit_map(
                [], kind, lambda row, column: self.frame.element(tensor, [arith.addi(self.frame.row0, row)])
            )
        return self._row_vectors[tensor.name]

    def argument_tile(self, value):
        """An argument over (rows) or (rows, x), in registers."""
        tensor = self.plan.tensors[value]
        if len(tensor.dims) == 1:
            return self.row_vector(tensor)
        if value not in self.values:
            shared = self.row_tile(tensor)
            self.values[value] = tile_ops.FromSharedOp(x=shared, out=tile_type(shared.type.shape, shared.type.element_type, "reg")).out
        return self.values[value]

    # -- values ----------------------------------------------------------------------------------------------

    def final(self, value):
        """The tile of a value over rows, its factor multiplied in."""
        if value in self.plan.tensors:
            return self.argument_tile(value)
        tile = self.values[value]
        if isinstance(tile, Unnormalised):
            tile = self.values[value] = emit_map([tile.accumulator, tile.inverse], tile.accumulator.type, times)
        return tile

    def select_rows(self, tile):
        """0 for rows past the end; only the last block of rows pays for it."""
        end = arith.addi(self.frame.row0, self.frame.index(self.shape.block_m))
        size = self.frame.size(self.plan.rows)

        def body(x, row, column):
            return arith.select(arith.cmpi(_SLT, row, arith.subi(size, self.frame.row0)), x, zero(x.type))

        return emit_map([tile], tile.type, body, cond=arith.cmpi(_SGT, end, size))

    def score_type(self, element):
        return tile_type([self.shape.block_m, self.shape.block_n], element, "reg")

    def width(self, value) -> int:
        return self.padded(value.type.get_dim_size(1))

    # -- maps ------------------------------------------------------------------------------------------------

    def map_of(self, op, out):
        """A map: tiles are its inputs, scalars and bias matrices are read element by element."""
        block = op.body.blocks[0]
        tiles = [self._map_input(op, value) for value in op.inputs]

        def body(*arguments):
            *elements, row, column = arguments
            found = [elements.pop(0) if tile is not None else self._argument_element(value, row, column)
                     for value, tile in zip(op.inputs, tiles, strict=True)]
            (result,) = self.frame.inline(block, found + self.indices(block, len(found), row, column))
            return result

        return emit_map([tile for tile in tiles if tile is not None], out, body)

    def _map_input(self, op, value):
        """The tile of an input, None for one that is read element by element."""
        if value not in self.plan.tensors:
            return self.values[value] if self.plan.score(value) else self.final(value)
        dims = self.plan.dims_of(value)
        if dims == (self.plan.columns,) and self._is_aligned(value):
            return self._column_vector(self.plan.tensors[value])
        if dims == (self.plan.rows,) or (dims[:1] == (self.plan.rows,) and not self.plan.has_scores()):
            return self.argument_tile(value)
        return None

    def _is_aligned(self, value) -> bool:
        """Whether a vector may be copied in bulk: a workspace, which a kernel before wrote and which is padded."""
        return self.plan.tensors[value].name in self.workspaces

    def _argument_element(self, value, row, column):
        tensor = self.plan.tensors[value]
        rows, columns = self.plan.space
        places = {rows: lambda: arith.addi(self.frame.row0, row), columns: lambda: arith.addi(self.column0, column)}
        return self.frame.element(tensor, [places[dim]() if dim in places else column for dim in tensor.dims])

    def indices(self, block, first: int, row, column) -> list:
        """Arguments %b, %h, and the positions of row and column, of a region; positions that it does not use are not computed."""
        arguments = list(block.arguments)[first:]
        used = [any(True for _ in argument.uses) for argument in arguments]
        indices = [self.frame.b, self.frame.h]
        indices.append(arith.addi(self.frame.position0, row) if used[2] else row)
        if len(arguments) == 4:
            visited = used[3] and self.column0 is not None
            indices.append(self.frame.position(self.plan.columns, arith.addi(self.column0, column)) if visited else column)
        return indices


# -- tiles and scalars -----------------------------------------------------------------------------------


def times(x, factor, row, column):
    return arith.mulf(x, factor)


def cast(tile, element):
    if tile.type.element_type == element:
        return tile
    return emit_map([tile], tile_type(tile.type.shape, element, "reg"), lambda x, row, column: convert(x, element))


def convert(x, element):
    if x.type == element:
        return x
    if element.width > x.type.width:
        return arith.extf(element, x)
    if element.width == x.type.width:  # bf16 and f16
        x = arith.extf(ir.F32Type.get(), x)
    return arith.truncf(element, x)


def zero(element):
    return arith.constant(element, 0.0)


def splat(shape, value: float):
    return SplatOp(value=f32_attribute(value), out=tile_type(shape, "f32", "reg")).out


def f32_attribute(value: float):
    return ir.FloatAttr.get(ir.F32Type.get(), value)


def f32(value: float):
    return arith.constant(ir.F32Type.get(), value)
