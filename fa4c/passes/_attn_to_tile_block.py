"""One block of columns of a kernel of `attn-to-tile`: scores, and what is summed up over them; one rule an attn operation."""

import math

from ..ir.mlir import arith, i64, ir
from ..ir.mlir import math as math_ops
from ..ir.tile import MmaOp, ReduceOp, RescaleFactorOp, ToSharedOp, tile_type
from ._attn_to_tile_frame import FULL_HI, FULL_LO, HI, LO
from ._attn_to_tile_plan import Score, Streamed
from ._attn_to_tile_shape import STREAMED_BUFFERS
from ._attn_to_tile_tiles import Statistics, Tiles, cast, f32, f32_attribute, times
from ._tile_map import emit_map

_LOG2_E = math.log2(math.e)
_SLT, _SGT, _SGE = arith.CmpIPredicate.slt, arith.CmpIPredicate.sgt, arith.CmpIPredicate.sge
_OEQ = arith.CmpFPredicate.OEQ


class Block:
    """The block that starts at `tiles.column0`. `bounds`: (lo, hi, full_lo, full_hi) of band masks by position; `added`: copies in shared
    memory of what is added to memory."""

    def __init__(self, tiles: Tiles, bounds: dict, added: int):
        self.tiles, self.plan, self.shape, self.frame = tiles, tiles.plan, tiles.shape, tiles.frame
        self.values, self.statistics, self.accumulators = tiles.values, tiles.statistics, tiles.accumulators
        self.column0, self.bounds, self.added = tiles.column0, bounds, added
        self._tail = None  # whether the block holds the last column
        self._guarded: dict = {}  # (value, fill) -> the score, with fill in columns past the end
        self._only_rows: set = set()  # values that are 0 for rows past the end

    def emit(self) -> None:
        for position, operation in enumerate(self.plan.operations):
            kinds = [self.plan.kinds.get(value) for value in operation.results]
            in_block = any(isinstance(kind, (Score, Streamed)) for kind in kinds) or position in self.accumulators
            if in_block:
                with operation.location:
                    _RULES[operation.name](self, position, operation.opview)

    def _operand(self, position: int, value):
        """A score as this operation may read it: columns past the end do not disturb."""
        tile, fill = self.values[value], self.plan.guards.get(position)
        if fill is None:
            return tile
        if (value, fill) not in self._guarded:
            self._guarded[value, fill] = self._select_keys(tile, fill)
            if value in self.plan.settled:
                self.values[value] = self._guarded[value, fill]
        return self._guarded[value, fill]

    def _select_keys(self, tile, fill: float):
        """`fill` for columns past the end; only the block that holds the end pays for it."""

        def body(x, row, column):
            limit = arith.subi(self.frame.size(self.plan.columns), self.column0)
            return arith.select(arith.cmpi(_SLT, column, limit), x, f32(fill))

        return emit_map([tile], tile.type, body, cond=self._tail_flag())

    def _tail_flag(self):
        if self._tail is None:
            end = arith.addi(self.column0, self.frame.index(self.shape.block_n))
            self._tail = arith.cmpi(_SGT, end, self.frame.size(self.plan.columns))
        return self._tail

    def _partial_flag(self, position: int):
        """Whether some row of this block sees some column of it not."""
        bounds = self.bounds[position]
        end = arith.addi(self.column0, self.frame.index(self.shape.block_n))
        behind = arith.cmpi(_SGT, end, bounds[FULL_HI])
        if bounds[FULL_LO] == self.frame.index(0):
            return behind
        return arith.ori(arith.cmpi(_SLT, self.column0, bounds[FULL_LO]), behind)

    def gemm(self, position: int, op) -> None:
        kind = self.plan.kinds[op.out]
        if isinstance(kind, Streamed):
            self._stream(position, op)
            return
        if isinstance(kind, Score):
            a, b = self.tiles.row_tile(self.plan.tensors[op.a]), self.tiles.column_tile(self.plan.tensors[op.b])
            self.values[op.out] = MmaOp(a=a, b=b, acc=None, transpose_b=ir.BoolAttr.get(True), out=self.tiles.score_type("f32")).out
            return
        a = self._operand(position, op.a)
        b = self.tiles.column_tile(self.plan.tensors[op.b])
        acc = self._rescaled(position, op.a)
        self.accumulators[position] = MmaOp(a=a, b=b, acc=acc, out=acc.type).out

    def _stream(self, position: int, op) -> None:
        """This block's part of a sum over the rows of all CTAs, by a bulk copy that adds: additions from registers cost three times as
        much on an H200."""
        if op.a not in self._only_rows:
            self.values[op.a] = self.tiles.select_rows(self.values[op.a])  # other readers do not mind
        a = ToSharedOp(x=self.values[op.a], buffers=i64(STREAMED_BUFFERS), out=_in_shared(self.values[op.a].type)).out
        kind = tile_type([self.shape.block_n, self.tiles.width(op.out)], "f32", "reg")
        part = MmaOp(a=a, b=self.tiles.row_tile(self.plan.tensors[op.b]), acc=None, transpose_a=ir.BoolAttr.get(True), out=kind).out
        staged = ToSharedOp(x=part, buffers=i64(self.added) if self.added > 1 else None, out=_in_shared(kind)).out
        self.frame.add(staged, self._result_of(op.out), self.column0)

    def _result_of(self, value):
        """The result that a value is returned as."""
        return self.plan.facts.results[list(self.plan.operations[-1].operands).index(value)]

    def map(self, position: int, op) -> None:
        self.values[op.out] = self.tiles.map_of(op, self.tiles.score_type(op.out.type.element_type))

    def mask(self, position: int, op) -> None:
        scores = self.values[op.scores]

        def body(x, row, column):
            if position in self.bounds and _is_interval(op):
                return arith.select(self._inside_interval(position, op, row, column), x, f32(-math.inf))
            (seen,) = self.frame.inline(op.predicate.blocks[0], self.tiles.indices(op.predicate.blocks[0], 0, row, column))
            there = arith.cmpi(_SLT, arith.addi(self.column0, column), self.frame.size(self.plan.columns))
            return arith.select(arith.andi(seen, there), x, f32(-math.inf))

        cond = self._partial_flag(position) if position in self.bounds else None
        self.values[op.out] = emit_map([scores], scores.type, body, cond=cond)

    def _inside_interval(self, position: int, op, row, column):
        """Whether the row sees the column, by its bounds: limits depend on the row only, so an element costs one comparison a bound."""
        yielded = self.frame.inline(op.bounds.blocks[0], self.tiles.indices(op.bounds.blocks[0], 0, row, column))
        lo, hi = (self.frame.number(self.plan.columns, yielded[which]) for which in (LO, HI))
        limit = arith.subi(arith.minsi(hi, self.frame.size(self.plan.columns)), self.column0)
        seen = arith.cmpi(_SLT, column, limit)
        if self.bounds[position][LO] == self.frame.index(0):
            return seen  # nothing lies before 0
        return arith.andi(seen, arith.cmpi(_SGE, column, arith.subi(lo, self.column0)))

    def softmax(self, position: int, op) -> None:
        """One step of the online softmax; everything relative to the maximum so far, in units of the unscaled input."""
        scores = self._operand(position, op.scores)
        before = self.statistics[position]
        scale_log2 = op.scale.value * _LOG2_E
        maximum = ReduceOp(x=scores, init=before.maximum, kind=ir.StringAttr.get("max"), out=before.maximum.type).out

        def offset(top, row, column):  # a row that sees nothing yet has no maximum to subtract
            none = arith.cmpf(_OEQ, top, f32(-math.inf))
            return arith.mulf(arith.select(none, f32(0.0), top), f32(-scale_log2))

        def exponential(x, shift, row, column):
            return math_ops.exp2(math_ops.fma(x, f32(scale_log2), shift))

        shift = emit_map([maximum], maximum.type, offset)
        factor = RescaleFactorOp(old=before.maximum, new=maximum, scale_log2=f32_attribute(scale_log2), out=maximum.type).out
        p = emit_map([scores, shift], scores.type, exponential)
        kept = emit_map([before.sums, factor], before.sums.type, times)
        sums = ReduceOp(x=p, init=kept, kind=ir.StringAttr.get("sum"), out=kept.type).out
        self.statistics[position] = Statistics(maximum, sums, factor)
        self.values[op.p] = p

    def cast(self, position: int, op) -> None:
        x = self._operand(position, op.x)
        if self._is_summed_over_rows(op.out):
            # here and not after the cast: a branch that selects single 16-bit numbers makes ptxas keep them unpacked around it, three
            # instructions for each pair in every block
            x = self.values[op.x] = self.tiles.select_rows(x)
            self._only_rows.add(op.out)
        self.values[op.out] = cast(x, op.out.type.element_type)

    def _is_summed_over_rows(self, value) -> bool:
        """Whether a GEMM sums over the rows of all CTAs of it."""
        readers = [use.owner for use in value.uses]
        gemms = [reader for reader in readers if reader.name == "attn.gemm" and reader.operands[0] == value]
        return any(isinstance(self.plan.kinds[gemm.results[0]], Streamed) for gemm in gemms)

    def reduce(self, position: int, op) -> None:
        x = self._operand(position, op.x)
        init = self._rescaled(position, op.x)
        self.accumulators[position] = ReduceOp(x=x, init=init, kind=op.kind, out=init.type).out

    def _rescaled(self, position: int, value):
        """The accumulator, relative to the row maximum of this block if it sums probabilities."""
        acc, softmax = self.accumulators[position], self.plan.score(value).softmax
        return acc if softmax is None else emit_map([acc, self.statistics[softmax].factor], acc.type, times)


_RULES = {
    "attn.gemm": Block.gemm,
    "attn.map": Block.map,
    "attn.mask": Block.mask,
    "attn.band_mask": Block.mask,
    "attn.softmax": Block.softmax,
    "attn.cast": Block.cast,
    "attn.reduce": Block.reduce,
}


def _is_interval(op) -> bool:
    """Whether the bounds say it all: what may be seen is what is surely seen."""
    lo, hi, full_lo, full_hi = list(op.bounds.blocks[0].operations)[-1].operation.operands
    return lo == full_lo and hi == full_hi


def _in_shared(kind):
    return tile_type(kind.shape, kind.element_type, "smem")
