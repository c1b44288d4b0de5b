"""Tiles that one role writes to shared memory and another one brings to global memory, asynchronously (`warp-specialize`).

Additions go to the role `reduce`, with the waiting for their turns; stores to the role `epilogue`: who computes goes on while the copy
engine reads what it left, and only comes back to it when the buffer is wanted again.
"""

from __future__ import annotations

from ..ir import tile
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import ir
from ..ir.tile import space_of

EPILOGUE = "epilogue"


def is_reduce(op) -> bool:
    """Additions from shared memory, and waiting and counting for these."""
    add = _ordered_addition(op) if isinstance(op, (tile.WaitCountOp, tile.AddCountOp)) else op
    return isinstance(add, tile.GlobalAddOp) and space_of(add.x.type) == "smem"


def _ordered_addition(op):
    """The next addition behind a wait, the last one before a count; where a loop only counts, one that its counter orders elsewhere."""
    found = _addition_beside(op)
    counting = [use.owner.opview for use in op.counter.uses] if found is None else []
    return next((add for add in map(_addition_beside, counting) if add is not None), found)


def _addition_beside(op):
    before, behind = [], []
    for other in op.operation.block.operations:
        if isinstance(other, tile.GlobalAddOp):
            (before if other.operation.is_before_in_block(op.operation) else behind).append(other)
    return next(iter(behind if isinstance(op, tile.WaitCountOp) else reversed(before)), None)


def additions(operations) -> list:
    """What the role `reduce` adds: tiles that compute made, and that nothing else reads."""
    found = [op for op in operations if isinstance(op, tile.GlobalAddOp) and is_reduce(op)]
    for add in found:
        if not isinstance(add.x.owner.opview, tile.ToSharedOp):
            raise op_diagnostic(add, f"adds a tile that '{add.x.owner.name}' made", why="the order of two asynchronous copies is not "
                                "known", fix="read it into registers and write it back")
        others = [op for op in operations if add.x in list(op.operation.operands) and op != add]
        if others:
            raise op_diagnostic(others[0], "reads a tile that a warp of its own adds to global memory", why="that warp gives its "
                                "buffer back alone", fix='make another "tile.to_shared" of it')
    return found


def stores(operations) -> list:
    """What a role `epilogue` can store: tiles that threads wrote in the same block, and that only stores there read."""
    return [op for op in operations if isinstance(op, tile.StoreOp) and space_of(op.tile.type) == "smem" and _only_stored(op)]


def _only_stored(store) -> bool:
    made = store.tile.owner
    if isinstance(made, ir.Block):
        return False
    users = [use.owner for use in store.tile.uses]
    beside = all(user.operation.block == made.operation.block and isinstance(user.opview, tile.StoreOp) for user in users)
    return isinstance(made.opview, tile.ToSharedOp) and beside
