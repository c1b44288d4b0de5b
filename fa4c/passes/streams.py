"""Who runs a tile operation where one warp issues copies, another MMAs, and warpgroups of threads do the rest.

Threads that add to global memory (dQ of a backward) wait for memory; they are apart from those that compute, so that nobody computing
does. With them go the counts that give such additions an order, and what reads the tiles that they add.
"""

from __future__ import annotations

from ..ir import tile
from ..ir.tile import space_of

LOAD, MMA, COMPUTE, REDUCE = "load", "mma", "compute", "reduce"
STREAMS = (LOAD, MMA, COMPUTE, REDUCE)


def stream_of(op) -> str:
    """One of `STREAMS`, for a scheduled tile operation. MMAs into registers are issued by those who compute."""
    if isinstance(op, tile.LoadOp):
        return LOAD
    if isinstance(op, tile.MmaOp):
        return MMA if space_of(op.out.type) == "tmem" else COMPUTE
    return REDUCE if _reduces(op) else COMPUTE


def _reduces(op) -> bool:
    if isinstance(op, tile.GlobalAddOp):
        return op.staged is not None
    if isinstance(op, (tile.WaitCountOp, tile.AddCountOp)):
        return any(_is_staged(other) for other in op.operation.block.operations)
    users = [use.owner for result in op.operation.results for use in result.uses]
    return isinstance(op, tile.MapOp) and bool(users) and all(_is_staged(user) for user in users)


def _is_staged(op) -> bool:
    view = op.operation.opview
    return isinstance(view, tile.GlobalAddOp) and view.staged is not None
