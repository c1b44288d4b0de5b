"""Let compute warpgroups take turns at issuing MMAs (FlashAttention-3, Shah et al. 2024, section 3.1).

Left alone, all warpgroups wait for the tensor cores together and then compute softmax together. With turns, one issues its MMAs while
another does elementwise work. Only loops that do both get turns: around the MMAs that open an iteration. Warpgroups whose MMAs read each
other's tiles from shared memory take none: the barriers for that keep them in step anyway.

Before:  scf.for { warp.wgmma S; warp.wgmma O; warp.map ... }
After:   warp.turn_init; scf.for { warp.turn_take; warp.wgmma S; warp.wgmma O; warp.turn_give; warp.map ... }

Run after warp-specialize, before warp-insert-barriers. A kernel that has barriers already stays as it is: it took its turns before.
"""

from ..ir import warp
from ..ir.mlir import i64, ir
from .registry import register_pass
from .shared_exchange import exchanged

FIRST_ID = 2  # named barriers 2, 3, ...; 0 is the CTA's, 1 is left to epilogues


@register_pass("warp-ping-pong")
def warp_ping_pong(module: ir.Module) -> None:
    for kernel in module.body.operations:
        if isinstance(kernel, warp.KernelOp) and not warp.has_barriers(kernel):
            for op in kernel.body.blocks[0].operations:
                if isinstance(op, warp.RoleOp) and op.active.value >= 8:
                    _take_turns(op)


def _take_turns(role) -> None:
    block = role.body.blocks[0]
    if "role" in exchanged(role).values():
        return
    if any([_take_turns_in(loop) for loop in _loops(block)]):
        with ir.InsertionPoint.at_block_begin(block):
            warp.TurnInitOp(id=_id(), loc=role.location)


def _loops(block):
    """All loops, nested ones first."""
    for op in block.operations:
        if op.operation.name in ("scf.for", "scf.if", "warp.walk"):
            for region in op.operation.regions:
                for inner in region.blocks:
                    yield from _loops(inner)
        if op.operation.name == "scf.for":
            yield op


def _take_turns_in(loop) -> bool:
    operations = list(loop.regions[0].blocks[0].operations)
    issues = [n for n, op in enumerate(operations) if isinstance(op, warp.WgmmaOp)]
    if not issues or not any(isinstance(op, warp.MapOp) for op in operations):
        return False
    last = issues[0]
    while last + 1 in issues:
        last += 1
    with ir.InsertionPoint(operations[issues[0]]):
        warp.TurnTakeOp(id=_id(), loc=operations[issues[0]].location)
    with ir.InsertionPoint(operations[last + 1]):
        warp.TurnGiveOp(id=_id(), loc=operations[last].location)
    return True


def _id():
    return i64(FIRST_ID)
