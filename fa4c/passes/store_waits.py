"""Waits for TMA stores share a barrier that is there anyway.

Before threads write a buffer again that a TMA store reads, the thread that issued the store waits for it, and a barrier of the warpgroup
tells the others. A barrier that all of them meet at earlier in the same block, behind the store, tells them as well: the wait goes in
front of that one, and the second barrier goes. In the backward's loop the barrier behind the writing of dS serves the buffer of dQ.
"""

from __future__ import annotations

from ..ir import warp


def share_barriers(role) -> bool:
    """Whether something was moved; what else relied on the barriers that are gone must be looked at again."""
    return any([_in_block(block) for block in _blocks(role.body.blocks[0])])


def _in_block(block) -> bool:
    moved = False
    operations = list(block.operations)
    for number in range(len(operations) - 2):
        wait, barrier, write = operations[number : number + 3]
        if not (_only_waits(wait) and isinstance(barrier, warp.BarrierOp) and isinstance(write, warp.StoreSharedOp)):
            continue
        earlier = _barrier_before(operations[:number])
        if earlier is not None:
            wait.operation.move_before(earlier.operation)
            barrier.operation.erase()
            moved = True
    return moved


def _only_waits(op) -> bool:
    if not isinstance(op, warp.ElectOp):
        return False
    inner = list(op.body.blocks[0].operations)
    return len(inner) == 1 and isinstance(inner[0], warp.StoreWaitOp) and not inner[0].complete.value


def _barrier_before(operations):
    """The last barrier, with no store behind it."""
    for op in reversed(operations):
        if isinstance(op, warp.BarrierOp):
            return op
        if any(isinstance(inner, warp.TmaStoreOp) for inner in [op, *_nested(op)]):
            return None
    return None


def _nested(op):
    for region in op.operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner
                yield from _nested(inner)


def _blocks(block):
    yield block
    for op in list(block.operations):
        for region in op.operation.regions:
            for inner in region.blocks:
                yield from _blocks(inner)
