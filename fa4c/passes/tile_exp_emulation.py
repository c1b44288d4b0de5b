"""Compute a share of the exponentials on the FMA units instead of the special-function unit.

ex2 runs at 16 a clock and SM, FMA at 128: where exponentials limit a kernel, a share of them is faster as range reduction and a polynomial
(about 8 instructions). `share` counts of 16 groups of 8 neighbouring columns, so that all threads do the same. -1 decides loop by loop,
where the special-function unit is busy for longer than the target's factor (`exp2_emulation_from`) times the tensor cores: a soft cap
triples its work, a small head dim halves the tensor cores'. Then it takes the share that was measured for the target (`exp2_emulated`), or,
where none was, that of the model: the least share with which no unit (special-function, FMA, ALU, issue slots) is busy for longer than
that; if there is none, the share that keeps the busiest of them the least busy. Work is that of a block in the midst of the loop: a mask
that is applied in every block (document numbers) counts, and takes the slots of emulated exponentials; one for the blocks at an edge
(causal, windows) does not. Small tiles, such as row statistics, are left alone.

Before:  %p = math.exp2 %x : f32                            (in a tile.map over 128x128)
After:   %p = "tile.exp2"(%x) {emulated = 2 : i64} : (f32) -> f32

Source: Shah et al. 2026 (FlashAttention-4), section 3.1.2.
"""

import math
from collections import Counter

from ..ir.diagnostics import Diagnostic
from ..ir.mlir import arith, i64, ir
from ..ir.tile import Exp2Op, LoadOp, MapOp, MmaOp
from ..targets import of as target_of
from ._tile_map import operations_in
from .loop_graph import pipelined_loops
from .op_costs import cost, emulated_share, emulation_work, map_work, row_elements, unit_clocks, unit_work
from .registry import register_pass

_GROUP = 16
# Instructions of a warp and step that belong to no element: waits, signals, addresses, accesses to tensor memory. By the SASS of sm_100a at
# head dim 64: 62 in a warp that computes, 38 in one that corrects.
_BESIDE = 100


@register_pass("tile-exp-emulation")
def tile_exp_emulation(module: ir.Module, *, share: int = -1) -> None:
    if not -1 <= share <= _GROUP:
        raise Diagnostic(
            f"share={share} is out of range",
            why=f"it counts exponentials of {_GROUP} neighbouring columns",
            fix=f"give 0 to {_GROUP}, or -1 to leave it to the target",
        )
    target = target_of(module)
    for loop in pipelined_loops(module):
        chosen = share if share >= 0 else share_of(loop, target)
        for operation, _ in _exponentials(loop) if chosen else []:
            _emulate(operation, chosen)


def share_of(loop, target) -> int:
    """How many of 16 groups of exponentials of a loop the target wants on its FMA units."""
    operations = list(loop.regions[0].blocks[0].operations)
    work = sum((_work(op, operations, target) for op in operations), Counter())
    limit = target.exp2_emulation_from * sum(cost(op, target).clocks for op in operations if isinstance(op, MmaOp))
    if unit_clocks(work, target)["mufu"] <= limit:
        return 0
    if target.exp2_emulated is not None:
        return target.exp2_emulated
    return min(range(_GROUP + 1), key=lambda share: (max(limit, _busiest(work, _exponentials(loop), share, target)), share))


def _work(op, operations: list, target) -> Counter:
    """Of one operation in a block in the midst of the loop."""
    if isinstance(op, MapOp) and op.cond is not None:
        starts = {coordinate for load in operations if isinstance(load, LoadOp) for coordinate in load.coords}
        if _always_holds(op.cond, starts):
            return map_work(op, target)
    return unit_work(op, target)


def _always_holds(condition, starts: set) -> bool:
    """Whether a condition holds in every block, as its comparison of the block's last column with a limit that no column is below does.
    `starts`: where tiles are loaded from, which are no negative numbers."""
    if _is(condition, "arith.ori"):
        return any(_always_holds(operand, starts) for operand in condition.owner.operands)
    if not _is(condition, "arith.cmpi") or condition.owner.attributes["predicate"].value != arith.CmpIPredicate.sgt:
        return False
    end, limit = condition.owner.operands
    return _at_least(end, starts) > _at_most(limit)


def _at_least(value, starts: set) -> float:
    if value in starts:
        return 0
    if _is(value, "arith.addi"):
        return sum(_at_least(operand, starts) for operand in value.owner.operands)
    return _constant(value, -math.inf)


def _at_most(value) -> float:
    if _is(value, "arith.minsi"):
        return min(map(_at_most, value.owner.operands))
    return _constant(value, math.inf)


def _constant(value, otherwise: float) -> float:
    return value.owner.attributes["value"].value if _is(value, "arith.constant") else otherwise


def _is(value, name: str) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == name


def _busiest(work: Counter, exponentials: list, share: int, target) -> float:
    """Clocks of the busiest unit, were that share of the exponentials emulated."""
    changed = Counter(work)
    for _, kind in exponentials:
        elements = kind.shape[0] * kind.shape[1]
        for unit, count in emulation_work(emulated_share(share, kind.shape[1])).items():
            changed[unit] += (count - (unit == "mufu")) * elements
    changed["beside"] = _BESIDE * max((row_elements(kind, target) for _, kind in exponentials), default=0)
    return max(unit_clocks(changed, target).values())


def _exponentials(loop) -> list:
    """(exponential, type of the tile that its map makes) of the wide maps of a loop."""
    maps = [op for op in operations_in(loop) if isinstance(op, MapOp) and _is_wide(op.out.type)]
    return [
        (inner.operation, op.out.type)
        for op in maps
        for inner in operations_in(op)
        if inner.operation.name == "math.exp2" and isinstance(inner.operation.results[0].type, ir.F32Type)
    ]


def _is_wide(kind) -> bool:
    return kind.rank == 2 and kind.shape[1] % _GROUP == 0


def _emulate(operation, share: int) -> None:
    with ir.InsertionPoint(operation), operation.location:
        emulated = Exp2Op(
            x=operation.operands[0], emulated=i64(share), out=operation.results[0].type
        )
    operation.results[0].replace_all_uses_with(emulated.out)
    operation.erase()
