"""Bytes of shared memory that a tile kernel asks for, before they have offsets; of loads that take turns, the first one has the buffer."""

from __future__ import annotations

import math

from ..ir import tile, tile_pair
from ._tile_map import operations_in

BARRIER_BYTES = 1024  # room for mbarriers at the start of shared memory; buffers need 1024-byte alignment anyway
PART = 32  # columns of a sum over CTAs that are on their way to memory together: rows of 128 bytes, the widest span of a TMA box
NARROW_PART = 16  # the same where shared memory is short: rows of 64 bytes
PART_COPIES = 2  # of a part: one is written while the other is added


def bytes_of(op) -> int:
    """Of one copy of what an operation keeps in shared memory; rows of column values start at multiples of 128 bytes."""
    if isinstance(op, tile.GlobalAddOp):
        return op.x.type.shape[0] * op.staged.value * 4
    kind = op.out.type
    size = math.prod(kind.shape) * kind.element_type.width // 8
    return size if kind.shape[0] > 1 else -(-size // 128) * 128


def whole(kernel) -> int:
    """All copies of all tiles, none over another, and the barriers."""
    return BARRIER_BYTES + sum(_all_copies(op) for op in operations_in(kernel))


def at_least(kernel) -> int:
    """The same without tiles that only a store reads, as they may lie over others."""
    kept = [op for op in operations_in(kernel) if not (isinstance(op, tile.ToSharedOp) and _only_stored(op))]
    return BARRIER_BYTES + sum(map(_all_copies, kept))


def follows(op) -> bool:
    """Whether a load takes turns in the buffer of one before it."""
    return isinstance(op, tile.LoadOp) and any(o.operation.is_before_in_block(op.operation) for o in op.others_in_turn())


def _all_copies(op) -> int:
    if follows(op):
        return 0
    in_buffers = isinstance(op, (tile.LoadOp, tile.ToSharedOp, tile_pair.ExchangeOp))
    kept = in_buffers or (isinstance(op, tile.GlobalAddOp) and op.staged is not None)
    return op.buffers.value * bytes_of(op) if kept else 0


def _only_stored(op) -> bool:
    return all(isinstance(use.owner.operation.opview, tile.StoreOp) for use in op.out.uses)
