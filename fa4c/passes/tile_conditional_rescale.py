"""Rescale accumulators only where the row maximum grew by more than a threshold.

An online softmax multiplies its accumulators by exp2((old maximum - new maximum) * scale_log2) at every key block, though the maximum
settles after a few. Any number can stand in for the maximum as long as sums and exponentials use the same one and nothing overflows. So the
old one stays unless the new one exceeds it by a factor of 2**threshold_log2 in any row of the warp; P is then at most 2**threshold_log2
instead of 1, which f32 and bf16 hold as well and fp16 (65504) easily. At 8 that skips 64 multiplications a thread and block at head dim
128, 13 % of the loop's instructions, in all but the first blocks.

All other readers of the new maximum get the chosen one instead: it must be an offset of exponentials and nothing else.
The vote is over a warp's rows, so that skipping is a uniform branch. Partial row sums are one number a thread and row: multiplying them is
cheaper than branching, they keep their multiplication (by 1 where nothing grew).

Where sums lie in tensor memory the accumulator's map has a vote of its own, on the factors: it is scaled if one of the warp lies between 0
and 1. That is so where the first vote says yes; at 0 nothing was summed yet. Whoever scales needs the factors and nothing else.

Before:  %f = "tile.rescale_factor"(%m0, %m1) {scale_log2 = ...}      %or = "tile.map"(%o0, %f) ({ mulf })
After:   %grew = "tile.map"(%m1, %m0) ({ (m1 - m0) * scale_log2 > 8 })      %vote = "tile.vote_any"(%grew)
         %m = "tile.map"(%m0, %m1, %vote) ({ m1 })                            // m0 where the vote is false
         %f = "tile.rescale_factor"(%m0, %m) {scale_log2 = ...}       %or = "tile.map"(%o0, %f, %vote) ({ mulf })
    or   %less = "tile.map"(%f) ({ f > 0 and f < 1 })    %own = "tile.vote_any"(%less)    %or = "tile.map"(%o0, %f, %own) ({ mulf })
"""

from .. import targets
from ..ir.diagnostics import Diagnostic, op_diagnostic
from ..ir.mlir import arith, i64, ir
from ..ir.tile import MapOp, MmaOp, RescaleFactorOp, VoteAnyOp, tile_type
from ._tile_map import emit_map, operations_in
from .registry import register_pass

_MOST = 15.0  # 2**15 in fp16 leaves one bit below its largest number


@register_pass("tile-conditional-rescale")
def tile_conditional_rescale(module: ir.Module, *, threshold_log2: float = 8.0) -> None:
    if not 0 <= threshold_log2 <= _MOST:
        raise Diagnostic(
            f"threshold-log2={threshold_log2} is out of range",
            why=f"P may grow to 2**threshold_log2, and fp16 ends below 2**16; it is 0 to {_MOST:g}",
            fix="FA-4 uses 8",
        )
    in_tmem = targets.of(module).mma.accumulator == "tmem"
    for factor in [op for op in operations_in(module) if isinstance(op, RescaleFactorOp)]:
        _make_conditional(factor, threshold_log2, in_tmem)


def _make_conditional(factor: RescaleFactorOp, threshold: float, in_tmem: bool) -> None:
    old, new = factor.old, factor.new
    if isinstance(new.owner, ir.Block) or not _stands_before(old, new.owner):
        return  # nothing here makes a new maximum out of the old one
    if _is_voted(new.owner.opview):
        return  # it is conditional already
    if "order" in factor.attributes:
        raise op_diagnostic(
            factor,
            "has its place in a schedule already",
            why="operations without order cannot stand between those with one",
            fix="run tile-conditional-rescale before tile-pipeline",
        )
    readers = [use.owner for use in new.uses]
    with ir.InsertionPoint.after(new.owner), factor.location:
        vote = _vote_on_growth(old, new, factor.scale_log2.value, threshold, in_tmem)
        used = emit_map([old, new], new.type, lambda before, after, row, column: after, cond=vote)
    for reader in readers:
        for number, operand in enumerate(reader.operands):
            if operand == new:
                reader.operands[number] = used
    scaling = [use.owner.opview for use in factor.out.uses if _scales_accumulator(use.owner, factor.out)]
    if scaling and in_tmem:
        with ir.InsertionPoint.after(factor.operation), factor.location:
            vote = _vote_on_factor(factor.out)
    for op in scaling:
        _add_condition(op, vote, vote.owner if in_tmem else factor.operation)


def _is_voted(op) -> bool:
    cond = op.cond if isinstance(op, MapOp) else None
    return cond is not None and not isinstance(cond.owner, ir.Block) and isinstance(cond.owner.opview, VoteAnyOp)


def _stands_before(value, operation) -> bool:
    """Whether a value is there when `operation`, whose result meets it in one operation, runs."""
    if isinstance(value.owner, ir.Block):
        return True
    owner, operation = value.owner.operation, operation.operation
    return owner.block != operation.block or owner.is_before_in_block(operation)


def _vote_on_growth(old, new, scale_log2: float, threshold: float, in_tmem: bool):
    def grew(after, before, row, column):  # false where both are -inf: their difference is NaN
        f32 = ir.F32Type.get()
        growth = arith.mulf(arith.subf(after, before), arith.constant(f32, scale_log2))
        return arith.cmpf(arith.CmpFPredicate.OGT, growth, arith.constant(f32, threshold))

    return _vote([new, old], grew, in_tmem)


def _vote_on_factor(factor):
    def shrinks(value, row, column):
        f32 = ir.F32Type.get()
        some, less = arith.CmpFPredicate.OGT, arith.CmpFPredicate.OLT
        return arith.andi(arith.cmpf(some, value, arith.constant(f32, 0.0)), arith.cmpf(less, value, arith.constant(f32, 1.0)))

    return _vote([factor], shrinks, in_tmem=True)


def _vote(inputs: list, body, in_tmem: bool):
    """Whether `body` holds in any row of a warp: 32 of a lane each, or 16, two to four lanes."""
    flags = tile_type(inputs[0].type.shape, "i1", "reg")
    rows = i64(32) if in_tmem else None
    return VoteAnyOp(x=emit_map(inputs, flags, body), rows=rows, out=flags).out


def _scales_accumulator(operation, factor) -> bool:
    """A map that does nothing but multiply its first input by the factor, for an MMA to add to."""
    op = operation.opview
    if (
        not isinstance(op, MapOp)
        or op.cond is not None
        or len(op.inputs) != 2
        or op.inputs[1] != factor
        or op.inputs[0].type != op.out.type
    ):
        return False
    body = [inner.operation for inner in op.body.blocks[0].operations]
    if len(body) != 2 or body[0].name != "arith.mulf" or set(body[0].operands) != set(list(op.body.blocks[0].arguments)[:2]):
        return False
    return all(isinstance(use.owner.opview, MmaOp) and use.owner.opview.acc == op.out for use in op.out.uses)


def _add_condition(op: MapOp, cond, ready) -> None:
    """The same map with a condition, ahead of what else waits for the running MMA: the wait then stands in a branch of its own.
    `ready`: the operation behind which it can run."""
    carried = isinstance(op.inputs[0].owner, ir.Block)
    with ir.InsertionPoint.after(ready) if carried else ir.InsertionPoint(op), op.location:
        new = MapOp(inputs=list(op.inputs), cond=cond, out=op.out.type)
        for name in op.attributes:
            if name not in new.attributes:
                new.attributes[name] = op.attributes[name]
        op.body.blocks[0].append_to(new.body)
    op.out.replace_all_uses_with(new.out)
    op.operation.erase()
