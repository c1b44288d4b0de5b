"""Which fragments hold something that is read later, at each operation of a block: how many registers of a thread are taken there.

An MMA under way holds its operand and its result besides, which whoever asks knows. The end of a loop's body leads to its begin.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import warp
from ..ir.tile import space_of
from .protocol import fragments_touched


@dataclass(frozen=True)
class Pressure:
    """`before`: operation -> fragments that are read at it or later; `most`: registers that the block's tiles take at once, at least, but
    for column values, which may be loaded a few at a time."""

    before: dict
    most: int


def pressure(block, warpgroups: int) -> Pressure:
    operations = [(op, *_touched(op)) for op in block.operations]
    live, before, most = set(), {}, 0
    for _ in range(2):  # what the begin of the body reads is alive at its end
        for op, reads, writes in reversed(operations):
            behind = live
            live = (behind - writes) | reads
            before[op] = live
            most = max(most, *(registers(filter(_is_tile, held), warpgroups) for held in (live, behind | writes)))
    return Pressure(before, most)


def registers(fragments, warpgroups: int) -> int:
    return sum(warp.registers_held(f.type, warpgroups) for f in fragments)


def _is_tile(fragment) -> bool:
    return not (fragment.type.rank == 2 and fragment.type.shape[0] == 1)


def _touched(op) -> tuple[set, set]:
    """(fragments whose content is read, fragments that are written whatever they held)"""
    if isinstance(op, warp.WgmmaOp):
        operand = {op.a} if space_of(op.a.type) == "reg" else set()
        return operand | ({op.acc} if op.accumulate.value else set()), {op.acc}
    regions = [inner for region in op.operation.regions for block in region.blocks for inner in block.operations]
    if not isinstance(op, warp.MapOp) and regions:  # what happens there may not happen: it kills nothing
        return {f for inner in regions for part in _touched(inner) for f in part}, set()
    return fragments_touched(op)
