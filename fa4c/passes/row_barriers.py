"""Which rows of column values (LSE, delta) come with a tile (Q, dO), so that one mbarrier counts the bytes of both.

Waiting for an mbarrier takes a warp about 75 clocks on an H200 even where the bytes are there; a release is one more election and arrival.
A row shares the slots of a tile that is loaded, and first read, wherever the row is, and is there as often; then it is waited for with
the tile, and given back with it.
"""

from __future__ import annotations

from ..ir import warp
from ..ir.tile_base import nested_operations


def companions(rings: dict, roles: list) -> dict:
    """Buffer of rows -> buffer of the tile whose slots it shares. `rings`: buffer -> how it is filled, in the order of the loads.

    Of several tiles the last one that is loaded before the row: an earlier one's copy need not wait for the row's place in the program.
    """
    found, order = {}, list(rings)
    for number, row in enumerate(order):
        if not _is_row(row) or not rings[row].reused:
            continue
        tiles = [t for t in order if not _is_row(t) and _alike(row, rings[row], t, rings[t]) and _same_places(row, t, roles)]
        before = [tile for tile in tiles if order.index(tile) < number]
        if tiles:
            found[row] = before[-1] if before else tiles[0]
    return found


def _is_row(buffer) -> bool:
    return buffer.type.shape[1] == 1


def _alike(row, ring, tile, other) -> bool:
    return (ring.level, ring.ctas, row.type.shape[0]) == (other.level, other.ctas, tile.type.shape[0])


def _same_places(row, tile, roles: list) -> bool:
    """Whether both are loaded once in the same blocks, and the row is read in those blocks in which the tile is read first."""
    loads = [[_blocks(role, buffer, _loads) for buffer in (row, tile)] for role in roles]
    if any(ours != theirs or len(set(ours)) < len(ours) for ours, theirs in loads):
        return False
    reads = [[set(_blocks(role, buffer, _reads_first)) for buffer in (row, tile)] for role in roles]
    if any(ours and asked[0] for (ours, _), asked in zip(reads, loads)):
        return False  # a role that loads for itself would wait for the tile before it has asked for the row
    return all(ours == theirs for ours, theirs in reads) and any(ours for ours, _ in reads)


def _blocks(role, buffer, wanted) -> list:
    return [op.operation.parent for op in nested_operations(role.body) if wanted(op, buffer)]


def _loads(op, buffer) -> bool:
    return isinstance(op, warp.TmaLoadOp) and op.buffer == buffer


def _reads_first(op, buffer) -> bool:
    """Whether it reads the buffer, not steps after another operation that reads the same slot."""
    if isinstance(op, warp.WgmmaOp):
        return buffer in (op.a, op.b) and op.reader.value == 0
    return isinstance(op, (warp.LoadColumnsOp, warp.LoadFragmentOp)) and op.buffer == buffer and op.reader.value == 0
