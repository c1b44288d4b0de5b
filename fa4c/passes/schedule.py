"""Reading a software pipeline out of `stage` and `order`: shared by the passes and interpreters that execute one.

In steady-state step k an operation of stage s works for iteration k - s; within a step operations run in ascending `order`, ties in
text order. Only `tile` operations with effects or tiles are scheduled; scalar arithmetic is recomputed where it is needed.
"""

from dataclasses import dataclass

from ..ir.mlir import ir
from ..ir.tile import Scheduled


@dataclass(frozen=True)
class Slot:
    """One operation of a loop body and when it runs."""

    op: object
    stage: int
    order: int


def body_slots(for_op, keep=lambda op: True) -> list[Slot]:
    """The scheduled operations of a loop's body that `keep` accepts, in the order of a steady-state step."""
    slots = []
    for position, op in enumerate(for_op.regions[0].blocks[0].operations):
        if isinstance(op, Scheduled) and keep(op):
            order = op.order.value if op.order is not None else position
            slots.append(Slot(op, op.stage.value, order))
    return sorted(slots, key=lambda slot: slot.order)


def is_scalar_op(op) -> bool:
    """Whether the operation computes scalars from scalars (or reads one element), so that it may be recomputed anywhere."""
    if op.operation.name == "scf.yield" or len(op.operation.regions):
        return False
    results = list(op.operation.results)
    return bool(results) and not any(isinstance(r.type, ir.RankedTensorType) for r in results)
