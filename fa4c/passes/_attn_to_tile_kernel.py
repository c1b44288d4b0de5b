"""Builds the kernel of one attn function: a CTA's block of rows against blocks of columns.

Keys are visited from the last to the first: with a causal mask the blocks that need masking come first, and a running softmax starts near
its final maximum. Queries are visited in order, head by head where a CTA owns keys that several query heads share.

One rule an attn operation and phase: `_BLOCK` inside the loop over key blocks, `_AFTER` behind it.
"""

import math
from dataclasses import dataclass

from ..ir import tile as tile_ops
from ..ir.mlir import arith, ir, scf
from ..ir.mlir import math as math_ops
from ..ir.tile import MmaOp, ReduceOp, RescaleFactorOp, SplatOp, ToSharedOp, tile_type
from ._attn_to_tile_frame import FULL_HI, FULL_LO, HI, LO, Frame
from ._attn_to_tile_plan import Plan, Score, Streamed, Total
from ._attn_to_tile_shape import STREAMED_BUFFERS, Shape
from ._tile_map import emit_map, factors_in_shared

_LOG2_E, _LN_2 = math.log2(math.e), math.log(2)
_SLT, _SGT, _SGE = arith.CmpIPredicate.slt, arith.CmpIPredicate.sgt, arith.CmpIPredicate.sge
_OEQ = arith.CmpFPredicate.OEQ


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


class Kernel:
    """Emits into the current insertion point. `padded` rounds a head dim up to what the tensor cores take; `row_lanes` threads share a row
    in registers; `workspaces` are names; `added`: copies in shared memory of what is added to memory."""

    def __init__(self, plan: Plan, shape: Shape, padded, row_lanes: int, tensors: dict, workspaces=frozenset(), added=1, alike=1):
        self.plan, self.shape, self.padded, self.row_lanes, self.workspaces, self.added = plan, shape, padded, row_lanes, workspaces, added
        self.frame = Frame(plan, shape, tensors, alike)
        self.values: dict = {}  # attn value -> tile, or Unnormalised
        self.statistics: dict[int, Statistics] = {}
        self.accumulators: dict[int, object] = {}
        self._row_tiles: dict = {}  # tensor name -> tile in shared memory
        self._column_tiles: dict = {}  # (tensor name, first column) -> tile in shared memory
        self._row_vectors: dict = {}  # tensor name -> one value a row, in registers
        self._guarded: dict = {}
        self._only_rows: set = set()  # values of this block that are 0 for rows past the end
        self._column0 = self._tail = None

    def emit(self) -> None:
        if self.plan.has_scores():
            self._emit_blocks()
        self._emit_after()

    # -- the loop --------------------------------------------------------------------------------------------

    def _emit_blocks(self) -> None:
        bounds = {p: self.frame.bounds(op) for p, op in enumerate(self.plan.operations) if self._is_bounded(p, op)}
        blocks = self._block_range(bounds)
        self._load_row_tiles()
        self._start_state()
        if self.plan.grouped:
            self._over("heads", self.frame.index(0), self.frame.group, lambda head: self._emit_head(head, bounds, blocks))
        else:
            self._emit_columns(bounds, blocks)
        self._column0, self._row_vectors = None, {}

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
        count = arith.maxsi(end if first == index(0) else arith.subi(end, first), index(0))
        last = arith.subi(end, index(1)) if self.plan.columns == "n" else None

        def block(number):
            place = arith.subi(last, number) if last is not None else number if first == index(0) else arith.addi(first, number)
            self._column0 = arith.muli(place, index(self.shape.block_n))
            self._tail, self._guarded, self._only_rows = None, {}, set()
            self._emit_block(bounds)

        self._over("blocks", index(0), count, block)

    def _over(self, what: str, lower, upper, body) -> None:
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
                    self._row_tile(self.plan.tensors[operation.operands[0]])

    def _load_row_vectors(self) -> None:
        """Vectors along the rows that maps of scores read; again for each head, as they may differ."""
        self._row_vectors = {}
        for operation in self.plan.operations:
            if operation.name == "attn.map" and self.plan.score(operation.results[0]) is not None:
                for value in operation.operands:
                    if self._is_row_vector(value):
                        with operation.location:
                            self._row_vector(self.plan.tensors[value])

    def _is_row_vector(self, value) -> bool:
        return value in self.plan.tensors and self.plan.dims_of(value) == (self.plan.rows,)

    def _start_state(self) -> None:
        rows = self.shape.block_m
        for position, _ in self.plan.sinks:
            operation = self.plan.operations[position]
            with operation.location:
                if operation.name == "attn.softmax":
                    self.statistics[position] = Statistics(_splat([rows], -math.inf), self._no_sum(rows))
                elif operation.name == "attn.gemm":
                    self.accumulators[position] = _splat([rows, self._width(operation.results[0])], 0.0)
                elif operation.attributes["kind"].value == "sum":
                    self.accumulators[position] = self._no_sum(rows)
                else:
                    self.accumulators[position] = _splat([rows], -math.inf)

    def _no_sum(self, rows: int):
        """Sums of rows are partial, one for each thread that shares a row, until the loop is over."""
        return _splat([rows, self.row_lanes] if self.row_lanes > 1 else [rows], 0.0)

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

    # -- one block of keys -----------------------------------------------------------------------------------

    def _emit_block(self, bounds: dict) -> None:
        self._bounds = bounds
        for position, operation in enumerate(self.plan.operations):
            kinds = [self.plan.kinds.get(value) for value in operation.results]
            in_block = any(isinstance(kind, (Score, Streamed)) for kind in kinds) or position in self.accumulators
            if in_block:
                with operation.location:
                    _BLOCK[operation.name](self, position, operation.opview)

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
            limit = arith.subi(self.frame.size(self.plan.columns), self._column0)
            return arith.select(arith.cmpi(_SLT, column, limit), x, _f32(fill))

        return emit_map([tile], tile.type, body, cond=self._tail_flag())

    def _tail_flag(self):
        if self._tail is None:
            end = arith.addi(self._column0, self.frame.index(self.shape.block_n))
            self._tail = arith.cmpi(_SGT, end, self.frame.size(self.plan.columns))
        return self._tail

    def _select_rows(self, tile):
        """0 for rows past the end; only the last block of rows pays for it."""
        end = arith.addi(self.frame.row0, self.frame.index(self.shape.block_m))
        size = self.frame.size(self.plan.rows)

        def body(x, row, column):
            return arith.select(arith.cmpi(_SLT, row, arith.subi(size, self.frame.row0)), x, _zero(x.type))

        return emit_map([tile], tile.type, body, cond=arith.cmpi(_SGT, end, size))

    def _partial_flag(self, position: int):
        """Whether some row of this block sees some column of it not."""
        bounds = self._bounds[position]
        end = arith.addi(self._column0, self.frame.index(self.shape.block_n))
        behind = arith.cmpi(_SGT, end, bounds[FULL_HI])
        return behind if bounds[FULL_LO] == self.frame.index(0) else arith.ori(arith.cmpi(_SLT, self._column0, bounds[FULL_LO]), behind)

    def block_gemm(self, position: int, op) -> None:
        kind = self.plan.kinds[op.out]
        if isinstance(kind, Streamed):
            self._stream(position, op)
            return
        if isinstance(kind, Score):
            a, b = self._row_tile(self.plan.tensors[op.a]), self._column_tile(self.plan.tensors[op.b])
            self.values[op.out] = MmaOp(a=a, b=b, acc=None, transpose_b=ir.BoolAttr.get(True), out=self._score_type("f32")).out
            return
        a = self._operand(position, op.a)
        b = self._column_tile(self.plan.tensors[op.b])
        acc = self._rescaled(position, op.a)
        self.accumulators[position] = MmaOp(a=a, b=b, acc=acc, out=acc.type).out

    def _stream(self, position: int, op) -> None:
        """This block's part of a sum over the rows of all CTAs, by a bulk copy that adds: additions from registers cost three times as
        much on an H200."""
        if op.a not in self._only_rows:
            self.values[op.a] = self._select_rows(self.values[op.a])  # other readers do not mind
        a = ToSharedOp(x=self.values[op.a], buffers=_i64(STREAMED_BUFFERS), out=_in_shared(self.values[op.a].type)).out
        kind = tile_type([self.shape.block_n, self._width(op.out)], "f32", "reg")
        part = MmaOp(a=a, b=self._row_tile(self.plan.tensors[op.b]), acc=None, transpose_a=ir.BoolAttr.get(True), out=kind).out
        staged = ToSharedOp(x=part, buffers=_i64(self.added) if self.added > 1 else None, out=_in_shared(kind)).out
        self.frame.add(staged, self._result_of(op.out), self._column0)

    def _result_of(self, value):
        """The result that a value is returned as."""
        return self.plan.facts.results[list(self.plan.operations[-1].operands).index(value)]

    def block_map(self, position: int, op) -> None:
        self.values[op.out] = self._map_of(op, self._score_type(op.out.type.element_type))

    def block_mask(self, position: int, op) -> None:
        scores = self.values[op.scores]

        def body(x, row, column):
            if position in self._bounds and _is_interval(op):
                return arith.select(self._inside_interval(position, op, row, column), x, _f32(-math.inf))
            (seen,) = self.frame.inline(op.predicate.blocks[0], self._indices(op.predicate.blocks[0], 0, row, column))
            there = arith.cmpi(_SLT, arith.addi(self._column0, column), self.frame.size(self.plan.columns))
            return arith.select(arith.andi(seen, there), x, _f32(-math.inf))

        cond = self._partial_flag(position) if position in self._bounds else None
        self.values[op.out] = emit_map([scores], scores.type, body, cond=cond)

    def _inside_interval(self, position: int, op, row, column):
        """Whether the row sees the column, by its bounds: limits depend on the row only, so an element costs one comparison a bound."""
        yielded = self.frame.inline(op.bounds.blocks[0], self._indices(op.bounds.blocks[0], 0, row, column))
        lo, hi = (self.frame.number(self.plan.columns, yielded[which]) for which in (LO, HI))
        limit = arith.subi(arith.minsi(hi, self.frame.size(self.plan.columns)), self._column0)
        seen = arith.cmpi(_SLT, column, limit)
        if self._bounds[position][LO] == self.frame.index(0):
            return seen  # nothing lies before 0
        return arith.andi(seen, arith.cmpi(_SGE, column, arith.subi(lo, self._column0)))

    def block_softmax(self, position: int, op) -> None:
        """One step of the online softmax; everything relative to the maximum so far, in units of the unscaled input."""
        scores = self._operand(position, op.scores)
        before = self.statistics[position]
        scale_log2 = op.scale.value * _LOG2_E
        maximum = ReduceOp(x=scores, init=before.maximum, kind=ir.StringAttr.get("max"), out=before.maximum.type).out

        def offset(top, row, column):  # a row that sees nothing yet has no maximum to subtract
            none = arith.cmpf(_OEQ, top, _f32(-math.inf))
            return arith.mulf(arith.select(none, _f32(0.0), top), _f32(-scale_log2))

        def exponential(x, shift, row, column):
            return math_ops.exp2(math_ops.fma(x, _f32(scale_log2), shift))

        shift = emit_map([maximum], maximum.type, offset)
        factor = RescaleFactorOp(old=before.maximum, new=maximum, scale_log2=_f32_attribute(scale_log2), out=maximum.type).out
        p = emit_map([scores, shift], scores.type, exponential)
        kept = emit_map([before.sums, factor], before.sums.type, _times)
        sums = ReduceOp(x=p, init=kept, kind=ir.StringAttr.get("sum"), out=kept.type).out
        self.statistics[position] = Statistics(maximum, sums, factor)
        self.values[op.p] = p

    def block_cast(self, position: int, op) -> None:
        x = self._operand(position, op.x)
        if self._is_summed_over_rows(op.out):
            # here and not after the cast: a branch that selects single 16-bit numbers makes ptxas keep them unpacked around it, three
            # instructions for each pair in every block
            x = self.values[op.x] = self._select_rows(x)
            self._only_rows.add(op.out)
        self.values[op.out] = _cast(x, op.out.type.element_type)

    def _is_summed_over_rows(self, value) -> bool:
        """Whether a GEMM sums over the rows of all CTAs of it."""
        readers = [use.owner for use in value.uses]
        gemms = [reader for reader in readers if reader.name == "attn.gemm" and reader.operands[0] == value]
        return any(isinstance(self.plan.kinds[gemm.results[0]], Streamed) for gemm in gemms)

    def block_reduce(self, position: int, op) -> None:
        x = self._operand(position, op.x)
        init = self._rescaled(position, op.x)
        self.accumulators[position] = ReduceOp(x=x, init=init, kind=op.kind, out=init.type).out

    def _rescaled(self, position: int, value):
        """The accumulator, relative to the row maximum of this block if it sums probabilities."""
        acc, softmax = self.accumulators[position], self.plan.score(value).softmax
        return acc if softmax is None else emit_map([acc, self.statistics[softmax].factor], acc.type, _times)

    # -- after the last block --------------------------------------------------------------------------------

    def _emit_after(self) -> None:
        for position, operation in enumerate(self.plan.operations[:-1]):
            if any(self.plan.is_final(value) or isinstance(self.plan.kinds.get(value), Total) for value in operation.results):
                with operation.location:
                    _AFTER[operation.name](self, position, operation.opview)
        returned = self.plan.operations[-1]
        with returned.location:
            for value, tensor in zip(returned.operands, self.plan.facts.results, strict=True):
                if isinstance(self.plan.kinds[value], Streamed):
                    continue
                if isinstance(self.plan.kinds[value], Total):
                    self.frame.add(self.values[value], tensor)
                    continue
                tile = self._final(value)
                if tile.type.rank == 2:
                    tile = ToSharedOp(x=tile, out=tile_type(tile.type.shape, tile.type.element_type, "smem")).out
                self.frame.store(tile, tensor)

    def after_gemm(self, position: int, op) -> None:
        self.values[op.out] = self._normalisable(position, self.accumulators[position])

    def after_reduce(self, position: int, op) -> None:
        rows = tile_type([self.shape.block_m], "f32", "reg")
        if op.out.type.rank == 0:  # one value a row, which are added up in memory
            self.values[op.out] = self._select_rows(self._final(op.x))
            return
        if position not in self.accumulators:
            x = self._whole_columns(op, self._final(op.x))
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
        return emit_map([x], x.type, lambda e, row, column: arith.select(arith.cmpi(_SLT, column, self.frame.index(width)), e, _f32(fill)))

    def after_softmax(self, position: int, op) -> None:
        if not any(True for _ in op.lse.uses):
            return
        statistics = self.statistics[position]
        scale_log2 = op.scale.value * _LOG2_E

        def lse(top, total, row, column):  # -inf + log2(0) = -inf where a row saw nothing
            return arith.mulf(math_ops.fma(top, _f32(scale_log2), math_ops.log2(total)), _f32(_LN_2))

        self.values[op.lse] = emit_map([statistics.maximum, self._total(statistics)], statistics.maximum.type, lse)

    def after_map(self, position: int, op) -> None:
        shape = [self.shape.block_m] if op.out.type.rank == 1 else [self.shape.block_m, self._width(op.out)]
        self.values[op.out] = self._map_of(op, tile_type(shape, op.out.type.element_type, "reg"))

    def after_cast(self, position: int, op) -> None:
        value = self._argument_tile(op.x) if op.x in self.plan.tensors else self.values[op.x]
        if isinstance(value, Unnormalised):  # one map for both
            out = tile_type(value.accumulator.type.shape, op.out.type.element_type, "reg")
            self.values[op.out] = emit_map(
                [value.accumulator, value.inverse],
                out,
                lambda x, inverse, row, column: _convert(arith.mulf(x, inverse), op.out.type.element_type),
            )
            return
        alone = len(list(op.x.uses)) == 1 and op.x not in self.plan.tensors
        self.values[op.out] = (alone and _cast_within(value, op.out.type.element_type)) or _cast(value, op.out.type.element_type)

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
            return arith.select(arith.cmpf(_OEQ, total, _f32(0.0)), _f32(0.0), arith.divf(_f32(1.0), total))

        if statistics.inverse is None:
            total = self._total(statistics)
            statistics.inverse = emit_map([total], total.type, inverse)
        return statistics.inverse

    def _final(self, value):
        """The tile of a value over rows, its factor multiplied in."""
        if value in self.plan.tensors:
            return self._argument_tile(value)
        tile = self.values[value]
        if isinstance(tile, Unnormalised):
            tile = self.values[value] = emit_map([tile.accumulator, tile.inverse], tile.accumulator.type, _times)
        return tile

    # -- both phases -----------------------------------------------------------------------------------------

    def _row_tile(self, tensor):
        """The tile of an argument with this CTA's rows; loaded once."""
        if tensor.name not in self._row_tiles:
            self._row_tiles[tensor.name] = self.frame.load_tile(
                tensor, self.frame.row0, self.shape.block_m, self.padded(tensor.shape[1]), 1
            )
        return self._row_tiles[tensor.name]

    def _column_tile(self, tensor):
        """The tile of an argument with this block's columns as its rows. MMAs that read one tensor share it."""
        key = (tensor.name, self._column0)
        if key not in self._column_tiles:
            columns = self.padded(tensor.shape[1])
            self._column_tiles[key] = self.frame.load_tile(tensor, self._column0, self.shape.block_n, columns, self.shape.buffers)
        return self._column_tiles[key]

    def _column_vector(self, tensor):
        """A value a column, of this block."""
        key = (tensor.name, self._column0)
        if key not in self._column_tiles:
            self._column_tiles[key] = self.frame.load_row(tensor, self._column0, self.shape.block_n, self.shape.buffers)
        return self._column_tiles[key]

    def _row_vector(self, tensor):
        """A value a row, of this CTA."""
        if tensor.name not in self._row_vectors:
            kind = tile_type([self.shape.block_m], self.frame.tensors[tensor.name].type.element_type, "reg")
            self._row_vectors[tensor.name] = emit_map(
                [], kind, lambda row, column: self.frame.element(tensor, [arith.addi(self.frame.row0, row)])
            )
        return self._row_vectors[tensor.name]

    def _argument_tile(self, value):
        """An argument over (rows) or (rows, x), in registers."""
        tensor = self.plan.tensors[value]
        if len(tensor.dims) == 1:
            return self._row_vector(tensor)
        if value not in self.values:
            shared = self._row_tile(tensor)
            self.values[value] = tile_ops.FromSharedOp(x=shared, out=tile_type(shared.type.shape, shared.type.element_type, "reg")).out
        return self.values[value]

    def _map_of(self, op, out):
        """A map: tiles are its inputs, scalars and bias matrices are read element by element."""
        block = op.body.blocks[0]
        tiles = [self._map_input(op, value) for value in op.inputs]

        def body(*arguments):
            *elements, row, column = arguments
            found = [elements.pop(0) if tile is not None else self._argument_element(value, row, column)
                     for value, tile in zip(op.inputs, tiles, strict=True)]
            (result,) = self.frame.inline(block, found + self._indices(block, len(found), row, column))
            return result

        return emit_map([tile for tile in tiles if tile is not None], out, body)

    def _map_input(self, op, value):
        """The tile of an input, None for one that is read element by element."""
        if value not in self.plan.tensors:
            return self.values[value] if self.plan.score(value) else self._final(value)
        dims = self.plan.dims_of(value)
        if dims == (self.plan.columns,) and self._is_aligned(value):
            return self._column_vector(self.plan.tensors[value])
        if dims == (self.plan.rows,) or (dims[:1] == (self.plan.rows,) and not self.plan.has_scores()):
            return self._argument_tile(value)
        return None

    def _is_aligned(self, value) -> bool:
        """Whether a vector may be copied in bulk: a workspace, which a kernel before wrote and which is padded."""
        return self.plan.tensors[value].name in self.workspaces

    def _argument_element(self, value, row, column):
        tensor = self.plan.tensors[value]
        rows, columns = self.plan.space
        places = {rows: lambda: arith.addi(self.frame.row0, row), columns: lambda: arith.addi(self._column0, column)}
        return self.frame.element(tensor, [places[dim]() if dim in places else column for dim in tensor.dims])

    def _indices(self, block, first: int, row, column) -> list:
        """Arguments %b, %h, and the positions of row and column, of a region; positions that it does not use are not computed."""
        arguments = list(block.arguments)[first:]
        used = [any(True for _ in argument.uses) for argument in arguments]
        indices = [self.frame.b, self.frame.h]
        indices.append(arith.addi(self.frame.position0, row) if used[2] else row)
        if len(arguments) == 4:
            visited = used[3] and self._column0 is not None
            indices.append(self.frame.position(self.plan.columns, arith.addi(self._column0, column)) if visited else column)
        return indices

    def _score_type(self, element):
        return tile_type([self.shape.block_m, self.shape.block_n], element, "reg")

    def _width(self, value) -> int:
        return self.padded(value.type.get_dim_size(1))


_BLOCK = {
    "attn.gemm": Kernel.block_gemm,
    "attn.map": Kernel.block_map,
    "attn.mask": Kernel.block_mask,
    "attn.band_mask": Kernel.block_mask,
    "attn.softmax": Kernel.block_softmax,
    "attn.cast": Kernel.block_cast,
    "attn.reduce": Kernel.block_reduce,
}
_AFTER = {
    "attn.gemm": Kernel.after_gemm,
    "attn.reduce": Kernel.after_reduce,
    "attn.softmax": Kernel.after_softmax,
    "attn.map": Kernel.after_map,
    "attn.cast": Kernel.after_cast,
}


# -- tiles and scalars -----------------------------------------------------------------------------------


def _is_interval(op) -> bool:
    """Whether the bounds say it all: what may be seen is what is surely seen."""
    lo, hi, full_lo, full_hi = list(op.bounds.blocks[0].operations)[-1].operation.operands
    return lo == full_lo and hi == full_hi


def _times(x, factor, row, column):
    return arith.mulf(x, factor)


def _cast(tile, element):
    if tile.type.element_type == element:
        return tile
    return emit_map([tile], tile_type(tile.type.shape, element, "reg"), lambda x, row, column: _convert(x, element))


def _cast_within(tile, element):
    """The tile, whose map now converts what it computes: without a second tile of wider elements. None where no map computes it."""
    made = getattr(tile.owner, "opview", None)
    if not isinstance(made, tile_ops.MapOp) or made.cond is not None or list(tile.uses):
        return None
    last = list(made.body.blocks[0].operations)[-1]
    with ir.InsertionPoint(last), last.location:
        last.operation.operands[0] = _convert(last.operation.operands[0], element)
    tile.set_type(tile_type(tile.type.shape, element, "reg"))
    return tile


def _convert(x, element):
    if x.type == element:
        return x
    if element.width > x.type.width:
        return arith.extf(element, x)
    if element.width == x.type.width:  # bf16 and f16
        x = arith.extf(ir.F32Type.get(), x)
    return arith.truncf(element, x)


def _in_shared(kind):
    return tile_type(kind.shape, kind.element_type, "smem")


def _zero(element):
    return arith.constant(element, 0.0)


def _i64(number: int):
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def _splat(shape, value: float):
    return SplatOp(value=_f32_attribute(value), out=tile_type(shape, "f32", "reg")).out


def _f32_attribute(value: float):
    return ir.FloatAttr.get(ir.F32Type.get(), value)


def _f32(value: float):
    return arith.constant(ir.F32Type.get(), value)
