"""Compute a share of the exponentials on the FMA units instead of the special-function unit.

ex2 runs at 16 a clock and SM, FMA at 128: where exponentials limit a kernel, a share of them is faster as range reduction and a polynomial
(about 8 instructions). `share` counts of 16 groups of 8 neighbouring columns, so that all threads do the same; -1 takes the target's number
for loops in which the special-function unit needs longer than the tensor cores (a soft cap triples its work), by a factor that is the
target's too, and 0 for others. Small tiles, such as row statistics, are left alone.

Before:  %p = math.exp2 %x : f32                            (in a tile.map over 128x128)
After:   %p = "tile.exp2"(%x) {emulated = 2 : i64} : (f32) -> f32
"""

from ..ir.diagnostics import Diagnostic
from ..ir.mlir import ir
from ..ir.tile import Exp2Op, MapOp, MmaOp
from ..targets import of as target_of
from ._tile_map import operations_in
from .loop_graph import pipelined_loops
from .op_costs import cost, map_work
from .registry import register_pass

_GROUP = 16


@register_pass("tile-exp-emulation")
def tile_exp_emulation(module: ir.Module, *, share: int = -1) -> None:
    if not -1 <= share <= _GROUP:
        raise Diagnostic(
            f"share={share} is out of range",
            why=f"it counts exponentials of {_GROUP} neighbouring columns",
            fix=f"give 0 to {_GROUP}, or -1 for the target's",
        )
    target = target_of(module)
    for loop in pipelined_loops(module):
        chosen = share if share >= 0 else target.exp2_emulated if _limited_by_exponentials(loop, target) else 0
        for op in operations_in(loop) if chosen else []:
            if isinstance(op, MapOp) and _is_wide(op.out.type):
                for inner in operations_in(op):
                    if inner.operation.name == "math.exp2" and isinstance(inner.operation.results[0].type, ir.F32Type):
                        _emulate(inner.operation, chosen)


def _limited_by_exponentials(loop, target) -> bool:
    operations = list(loop.regions[0].blocks[0].operations)
    special = sum(map_work(op, target)["mufu"] for op in operations if isinstance(op, MapOp)) / target.mufu
    tensor = sum(cost(op, target).clocks for op in operations if isinstance(op, MmaOp))
    return special > target.exp2_emulation_from * tensor


def _is_wide(kind) -> bool:
    return kind.rank == 2 and kind.shape[1] % _GROUP == 0


def _emulate(operation, share: int) -> None:
    with ir.InsertionPoint(operation), operation.location:
        emulated = Exp2Op(
            x=operation.operands[0], emulated=ir.IntegerAttr.get(ir.IntegerType.get_signless(64), share), out=operation.results[0].type
        )
    operation.results[0].replace_all_uses_with(emulated.out)
    operation.erase()
