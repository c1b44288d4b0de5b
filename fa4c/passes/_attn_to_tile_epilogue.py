"""What a kernel of `attn-to-tile` does behind its loop: finish sums, compute what follows from them, store; one rule an attn operation."""

import math

from ..ir import tile as tile_ops
from ..ir.mlir import arith, ir
from ..ir.mlir import math as math_ops
from ..ir.tile import ReduceOp, ToSharedOp, tile_type
from ._attn_to_tile_plan import Streamed, Total
from ._attn_to_tile_tiles import Statistics, Tiles, Unnormalised, cast, convert, f32
from ._tile_map import emit_map, factors_in_shared

_LOG2_E, _LN_2 = math.log2(math.e), math.log(2)
_SLT, _OEQ = arith.CmpIPredicate.slt, arith.CmpFPredicate.OEQ


class Epilogue:
    """Of a kernel without a loop, all that it does."""

    def __init__(self, tiles: Tiles):
        self.tiles, self.plan, self.shape, self.frame = tiles, tiles.plan, tiles.shape, tiles.frame
        self.values, self.statistics, self.accumulators = tiles.values, tiles.statistics, tiles.accumulators

    def emit(self) -> None:
        for position, operation in enumerate(self.plan.operations[:-1]):
            if any(self.plan.is_final(value) or isinstance(self.plan.kinds.get(value), Total) for value in operation.results):
                with operation.location:
                    _RULES[operation.name](self, position, operation.opview)
        returned = self.plan.operations[-1]
        with returned.location:
            for value, tensor in zip(returned.operands, self.plan.facts.results, strict=True):
                if isinstance(self.plan.kinds[value], Streamed):
                    continue
                if isinstance(self.plan.kinds[value], Total):
                    self.frame.add(self.values[value], tensor)
                    continue
                tile = self.tiles.final(value)
                if tile.type.rank == 2:
                    tile = ToSharedOp(x=tile, out=tile_type(tile.type.shape, tile.type.element_type, "smem")).out
                self.frame.store(tile, tensor)

    def gemm(self, position: int, op) -> None:
        self.values[op.out] = self._normalisable(position, self.accumulators[position])

    def reduce(self, position: int, op) -> None:
        rows = tile_type([self.shape.block_m], "f32", "reg")
        if op.out.type.rank == 0:  # one value a row, which are added up in memory
            self.values[op.out] = self.tiles.select_rows(self.tiles.final(op.x))
            return
        if position not in self.accumulators:
            x = self._whole_columns(op, self.tiles.final(op.x))
            self.values[op.out] = ReduceOp(x=x, init=None, kind=op.kind, out=rows).out
            return
        acc = self.accumulators[position]
        if acc.type.rank == 2:
            acc = ReduceOp(x=acc, init=None, kind=op.kind, out=rows).out
        self.values[op.out] = self._normalisable(position, acc)

    def _whole_columns(self, op, x):
        """Columns that only pad the head dim do not count in a reduction over it."""
        width = op.x.type.get_dim_size(1)
        if x.type.shape[1] == width or (op.kind.value == "sum" and factors_in_shared(x)):  # copies fill what pads a tile with zeros
            return x
        fill = 0.0 if op.kind.value == "sum" else -math.inf
        return emit_map([x], x.type, lambda e, row, column: arith.select(arith.cmpi(_SLT, column, self.frame.index(width)), e, f32(fill)))

    def softmax(self, position: int, op) -> None:
        if not any(True for _ in op.lse.uses):
            return
        statistics = self.statistics[position]
        scale_log2 = op.scale.value * _LOG2_E

        def lse(top, total, row, column):  # -inf + log2(0) = -inf where a row saw nothing
            return arith.mulf(math_ops.fma(top, f32(scale_log2), math_ops.log2(total)), f32(_LN_2))

        self.values[op.lse] = emit_map([statistics.maximum, self._total(statistics)], statistics.maximum.type, lse)

    def map(self, position: int, op) -> None:
        shape = [self.shape.block_m] if op.out.type.rank == 1 else [self.shape.block_m, self.tiles.width(op.out)]
        self.values[op.out] = self.tiles.map_of(op, tile_type(shape, op.out.type.element_type, "reg"))

    def cast(self, position: int, op) -> None:
        value = self.tiles.argument_tile(op.x) if op.x in self.plan.tensors else self.values[op.x]
        if isinstance(value, Unnormalised):  # one map for both
            out = tile_type(value.accumulator.type.shape, op.out.type.element_type, "reg")
            self.values[op.out] = emit_map(
                [value.accumulator, value.inverse],
                out,
                lambda x, inverse, row, column: convert(arith.mulf(x, inverse), op.out.type.element_type),
            )
            return
        alone = len(list(op.x.uses)) == 1 and op.x not in self.plan.tensors
        self.values[op.out] = (alone and _cast_within(value, op.out.type.element_type)) or cast(value, op.out.type.element_type)

    def _normalisable(self, position: int, acc):
        value = next(value for sink, value in self.plan.sinks if sink == position)
        softmax = self.plan.score(value).softmax
        return acc if softmax is None else Unnormalised(acc, self._inverse(self.statistics[softmax]))

    def _total(self, statistics: Statistics):
        if statistics.total is None and statistics.sums.type.rank == 1:
            statistics.total = statistics.sums
        elif statistics.total is None:
            statistics.total = ReduceOp(x=statistics.sums, init=None, kind=ir.StringAttr.get("sum"), out=statistics.maximum.type).out
        return statistics.total

    def _inverse(self, statistics: Statistics):
        def inverse(total, row, column):  # an empty row is 0, not 0 / 0
            return arith.select(arith.cmpf(_OEQ, total, f32(0.0)), f32(0.0), arith.divf(f32(1.0), total))

        if statistics.inverse is None:
            total = self._total(statistics)
            statistics.inverse = emit_map([total], total.type, inverse)
        return statistics.inverse


_RULES = {
    "attn.gemm": Epilogue.gemm,
    "attn.reduce": Epilogue.reduce,
    "attn.softmax": Epilogue.softmax,
    "attn.map": Epilogue.map,
    "attn.cast": Epilogue.cast,
}


def _cast_within(tile, element):
    """The tile, whose map now converts what it computes: without a second tile of wider elements. None where no map computes it."""
    made = getattr(tile.owner, "opview", None)
    if not isinstance(made, tile_ops.MapOp) or made.cond is not None or list(tile.uses):
        return None
    last = list(made.body.blocks[0].operations)[-1]
    with ir.InsertionPoint(last), last.location:
        last.operation.operands[0] = convert(last.operation.operands[0], element)
    tile.set_type(tile_type(tile.type.shape, element, "reg"))
    return tile
