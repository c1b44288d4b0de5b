"""Builds the kernel of one attn function: a CTA's block of rows against blocks of columns.

Keys are visited from the last to the first: with a causal mask the blocks that need masking come first, and a running softmax starts near
its final maximum. Queries are visited in order, head by head where a CTA owns keys that several query heads share.

What each attn operation becomes: in the loop over blocks `_attn_to_tile_block.py`, behind it `_attn_to_tile_epilogue.py`.
"""

import math

from ..ir.mlir import arith, ir, scf
from ._attn_to_tile_block import Block
from ._attn_to_tile_epilogue import Epilogue
from ._attn_to_tile_frame import HI, LO
from ._attn_to_tile_plan import Plan, Score
from ._attn_to_tile_shape import Shape
from ._attn_to_tile_tiles import Statistics, Tiles, splat


class Kernel:
    """Emits into the current insertion point. `row_lanes` threads share a row in registers; `added`: copies in shared memory of what is
    added to memory; the rest as `Tiles` says."""

    def __init__(self, plan: Plan, shape: Shape, padded, row_lanes: int, tensors: dict, workspaces=frozenset(), added=1, alike=1):
        tiles = Tiles(plan, shape, padded, tensors, workspaces, alike)
        self.row_lanes, self.added = row_lanes, added
        self.tiles, self.plan, self.shape, self.frame = tiles, tiles.plan, tiles.shape, tiles.frame
        self.statistics, self.accumulators = tiles.statistics, tiles.accumulators

    def emit(self) -> None:
        if self.plan.has_scores():
            self._emit_blocks()
        Epilogue(self.tiles).emit()

    def _emit_blocks(self) -> None:
        bounds = {p: self.frame.bounds(op) for p, op in enumerate(self.plan.operations) if self._is_bounded(p, op)}
        blocks = self._block_range(bounds)
        self._load_row_tiles()
        self._start_state()
        if self.plan.grouped:
            self._over(self.frame.index(0), self.frame.group, lambda head: self._emit_head(head, bounds, blocks))
        else:
            self._emit_columns(bounds, blocks)
        self.tiles.column0 = None
        self.tiles.forget_row_vectors(but=() if self.plan.grouped else [t.name for t in self.plan.facts.results])

    def _is_bounded(self, position: int, operation) -> bool:
        if operation.name != "attn.band_mask":
            return False
        return any(isinstance(kind, Score) and position in kind.bands for kind in self.plan.kinds.values())

    def _emit_head(self, head, bounds, blocks) -> None:
        self.frame.enter_head(head)
        self._emit_columns(bounds, blocks)

    def _emit_columns(self, bounds, blocks) -> None:
        index, (first, end) = self.frame.index, blocks
        self._load_row_vectors()
        if 0 < self.plan.most_columns() <= self.shape.block_n:
            self._visit(index(0), bounds)
            return
        count = arith.maxsi(end if first == index(0) else arith.subi(end, first), index(0))
        last = arith.subi(end, index(1)) if self.plan.columns == "n" else None

        def block(number):
            place = arith.subi(last, number) if last is not None else number if first == index(0) else arith.addi(first, number)
            self._visit(arith.muli(place, index(self.shape.block_n)), bounds)

        self._over(index(0), count, block)

    def _visit(self, column0, bounds) -> None:
        self.tiles.column0 = column0
        Block(self.tiles, bounds, self.added).emit()

    def _over(self, lower, upper, body) -> None:
        """A loop that carries the accumulators."""
        loop = scf.ForOp(lower, upper, self.frame.index(1), self._state())
        with ir.InsertionPoint(loop.body):
            self._set_state(list(loop.inner_iter_args))
            body(loop.induction_variable)
            scf.YieldOp(self._state())
        self._set_state(list(loop.results))

    def _block_range(self, bounds: dict):
        """(first block, one past the last) over the columns that any accumulation needs."""
        frame = self.frame
        ranges = []
        for bands in dict.fromkeys(self.plan.visible()):
            lo, hi = frame.index(0), frame.size(self.plan.columns)
            for number, position in enumerate(bands):
                own_lo, own_hi = bounds[position][LO], bounds[position][HI]
                lo, hi = (own_lo, own_hi) if number == 0 else (arith.maxsi(lo, own_lo), arith.minsi(hi, own_hi))
            ranges.append((lo, hi))
        lo, hi = ranges[0]
        for other_lo, other_hi in ranges[1:]:
            lo, hi = arith.minsi(lo, other_lo), arith.maxsi(hi, other_hi)
        width = frame.index(self.shape.block_n)
        return lo if lo == frame.index(0) else arith.floordivsi(lo, width), arith.ceildivsi(hi, width)

    def _load_row_tiles(self) -> None:
        for operation in self.plan.operations:
            if operation.name == "attn.gemm" and self.plan.dims_of(operation.results[0]) == self.plan.space:
                with operation.location:
                    self.tiles.row_tile(self.plan.tensors[operation.operands[0]])

    def _load_row_vectors(self) -> None:
        """Vectors along the rows that maps of scores read; again for each head, as they may differ."""
        self.tiles.forget_row_vectors()
        for operation in self.plan.operations:
            if operation.name == "attn.map" and self.plan.score(operation.results[0]) is not None:
                for value in operation.operands:
                    if self._is_row_vector(value):
                        with operation.location:
                            self.tiles.row_vector(self.plan.tensors[value])

    def _is_row_vector(self, value) -> bool:
        return value in self.plan.tensors and self.plan.dims_of(value) == (self.plan.rows,)

    def _start_state(self) -> None:
        rows = self.shape.block_m
        for position, _ in self.plan.sinks:
            operation = self.plan.operations[position]
            with operation.location:
                if operation.name == "attn.softmax":
                    self.statistics[position] = Statistics(splat([rows], -math.inf), self._no_sum(rows))
                elif operation.name == "attn.gemm":
                    self.accumulators[position] = splat([rows, self.tiles.width(operation.results[0])], 0.0)
                elif operation.attributes["kind"].value == "sum":
                    self.accumulators[position] = self._no_sum(rows)
                else:
                    self.accumulators[position] = splat([rows], -math.inf)

    def _no_sum(self, rows: int):
        """Sums of rows are partial, one for each thread that shares a row, until the loop is over."""
        return splat([rows, self.row_lanes] if self.row_lanes > 1 else [rows], 0.0)

    def _state(self) -> list:
        """What goes from one block to the next."""
        state = list(self.accumulators.values())
        for statistics in self.statistics.values():
            state += [statistics.maximum, statistics.sums]
        return state

    def _set_state(self, values: list) -> None:
        for position in self.accumulators:
            self.accumulators[position] = values.pop(0)
        for statistics in self.statistics.values():
            statistics.maximum, statistics.sums = values.pop(0), values.pop(0)
