"""Two changes of a loop nest that keep what is computed: walk a loop backwards, and take the loop around it in; what a scalar depends on.

The changes act on `scf.for` in steps of 1, `swap` on loops from 0; the carried values stay as they are.
"""

from __future__ import annotations

from ..ir import tile
from ..ir.mlir import arith, index_constant, ir, scf


def walk_backwards(loop) -> None:
    """The loop visits the same indices from the last to the first."""
    start, end = list(loop.operation.operands)[:2]
    index = loop.induction_variable
    users = [use.owner for use in index.uses]
    with ir.InsertionPoint.at_block_begin(loop.body), loop.location:
        last = arith.subi(end, index_constant(1))
        backwards = arith.subi(last if constant(start) == 0 else arith.addi(start, last), index)
    _replace(index, backwards, users)


def carries_sums(loop) -> bool:
    """Whether all that goes from one iteration to the next is summed up by MMAs or reductions, so that any order of iterations will do."""
    arguments, results = list(loop.body.arguments)[1:], list(list(loop.body.operations)[-1].operation.operands)
    for argument, result in zip(arguments, results, strict=True):
        adding = [use.owner.opview for use in argument.uses]
        if len(adding) != 1 or result.owner != adding[0].operation or not _sums_from(adding[0], argument):
            return False
    return True


def _sums_from(op, value) -> bool:
    if isinstance(op, tile.MmaOp):
        return op.acc == value
    return isinstance(op, tile.ReduceOp) and op.kind.value == "sum" and op.init == value


def can_swap(outer, inner) -> bool:
    """Whether `outer` does nothing but run `inner`, each time as often, over the same carried values."""
    body = list(outer.body.operations)
    if not _counts_from_zero(outer) or not _counts_from_zero(inner) or len(body) < 2 or body[-2].operation != inner.operation:
        return False
    carried = list(inner.operation.operands)[3:]
    return (
        all(_is_scalar(op) for op in body[:-2])
        and carried == list(outer.body.arguments)[1:]
        and list(body[-1].operation.operands) == list(inner.operation.results)
        and not depends(list(inner.operation.operands)[1], outer.induction_variable)
    )


def swap(outer, inner) -> None:
    """`for i { for h { body } }` where `for h { for i { body } }` stood, unless `outer` makes one trip: then nothing changes.

    A third loop goes around both, and i is the sum of its index and that of `inner`: one of them makes all trips, the other one. A single h
    costs nothing so (H200, head dim 128, hq = hkv: one loop over both, and a division, took 2 to 4 % of a backward). Needs `can_swap`.
    """
    trips, own = list(outer.operation.operands)[1], list(inner.operation.operands)[1]
    for op in list(outer.body.operations)[:-2]:
        if not any(depends(v, outer.induction_variable) for v in op.operation.results):
            op.operation.move_before(outer.operation)
    carried = list(outer.operation.operands)[3:]
    with ir.InsertionPoint(outer), outer.location:
        alone = arith.cmpi(arith.CmpIPredicate.eq, trips, index_constant(1))
        inner.operation.operands[1] = arith.select(alone, own, index_constant(1))
        around = scf.ForOp(index_constant(0), arith.select(alone, index_constant(1), own), index_constant(1), carried)
    for result, new in zip(outer.operation.results, around.operation.results, strict=True):
        result.replace_all_uses_with(new)
    with ir.InsertionPoint(around.body), outer.location:
        end = scf.YieldOp(list(outer.operation.results))
    outer.operation.move_before(end.operation)
    for n, value in enumerate(around.inner_iter_args):
        outer.operation.operands[3 + n] = value
    users = [use.owner for use in inner.induction_variable.uses]
    with ir.InsertionPoint.at_block_begin(inner.body), inner.location:
        index = arith.addi(around.induction_variable, inner.induction_variable)
    _replace(inner.induction_variable, index, users)


def depends(value, on) -> bool:
    """Whether a scalar is computed from another one."""
    if value == on:
        return True
    return not isinstance(value.owner, ir.Block) and any(depends(operand, on) for operand in value.owner.operands)


def compute_again(value, known: dict, within=None):
    """A scalar computed once more, at the insertion point. `known`: what stands for a value there; it learns what is made. With an
    operation `within`, only what is computed directly in it is computed again: other values stay.
    """
    if value not in known:
        if within is not None and (isinstance(value.owner, ir.Block) or value.owner.parent != within):
            return value
        operands = [compute_again(operand, known, within) for operand in value.owner.operands]
        new = value.owner.clone()
        for n, operand in enumerate(operands):
            new.operands[n] = operand
        known[value] = new.results[0]
    return known[value]


def constant(value) -> int | None:
    """The number of an `arith.constant`, None for other values."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) or owner.name != "arith.constant" else owner.attributes["value"].value


def _counts_from_zero(loop) -> bool:
    start, _, step = list(loop.operation.operands)[:3]
    return constant(start) == 0 and constant(step) == 1


def _is_scalar(op) -> bool:
    """Index arithmetic and sizes, which may stand anywhere behind their operands."""
    name = op.operation.name
    return name == "tile.dim" or (name.startswith("arith.") and all(isinstance(r.type, (ir.IndexType, ir.IntegerType)) for r in op.results))


def _replace(old, new, users: list) -> None:
    for user in users:
        for n, operand in enumerate(user.operation.operands):
            if operand == old:
                user.operation.operands[n] = new
