"""What each pass changed: operations by kind, and the facts of the kernels (clocks of a step, order, columns, shared memory, roles)."""

from __future__ import annotations

from collections import Counter

from .. import targets
from ..ir import tile, warp
from ..ir.context import print_module
from ..ir.diagnostics import Diagnostic
from ..passes._tile_map import operations_in
from ..passes.schedule import body_slots
from . import steps, storage
from .names import op_name


class Watch:
    """Told the module before the first pass, and each pass's text with the module behind it; `passes` collects what each changed."""

    def __init__(self):
        self.passes: list[dict] = []

    def start(self, module) -> None:
        self._text, self._operations, self._facts = _text(module), _histogram(module), _facts(module)

    def __call__(self, item: str, module) -> None:
        text = _text(module)
        if text == self._text:
            self.passes.append({"pass": item, "changed": False})
            return
        operations, facts = _histogram(module), _facts(module)
        self.passes.append({
            "pass": item, "changed": True,
            "added": dict(sorted((operations - self._operations).items())),
            "removed": dict(sorted((self._operations - operations).items())),
            "facts": _differences(self._facts, facts),
        })
        self._text, self._operations, self._facts = text, operations, facts


def _text(module) -> str:
    return print_module(module, locations=False)


def _histogram(module) -> Counter:
    return Counter(op.operation.name for op in operations_in(module))


def _facts(module) -> dict:
    """name -> value, of all that a reader may want to see change."""
    facts = {}
    try:
        for step in steps.steps(module, schedule=False):
            facts |= {f"{step.kernel}: {key}": clocks for key, clocks in step.clocks.items() if clocks and key in steps.QUANTITIES}
            facts[f"{step.kernel}: bound"] = f"{step.bound} {step.clocks[step.bound]:g}"
        for op in module.body.operations:
            if isinstance(op, (tile.KernelOp, warp.KernelOp)):
                facts |= _of_kernel(op, module)
    except Diagnostic:  # a module between two passes need not make sense to all formulas
        return facts
    return facts


def _of_kernel(op, module) -> dict:
    name, target, facts = op.sym_name.value, targets.of(module), {}
    memory = storage.tensor_memory(op, target) if isinstance(op, warp.KernelOp) or _in_tmem(op) else None
    if memory is not None:
        facts[f"{name}: columns used"] = memory["used"]
        for t in memory["tiles"]:
            facts[f"{name}: columns of {t['name']}"] = "{}-{}".format(*t["columns"]) if t["columns"] else f"any {t['width']}"
    facts[f"{name}: shared memory"] = storage.shared_memory(op, target)["bytes"]
    if op.cluster.value > 1:
        facts[f"{name}: cluster"] = op.cluster.value
    if isinstance(op, tile.KernelOp):
        for loop in operations_in(op):
            if loop.operation.name == "scf.for":
                slots = body_slots(loop)
                if any("stage" in slot.op.attributes for slot in slots):
                    facts[f"{name}: order"] = " ".join(op_name(s.op) + "'" * s.stage for s in slots if isinstance(s.op, tile.MmaOp))
        if any(isinstance(inner, tile.WalkOp) for inner in operations_in(op)):
            facts[f"{name}: walks"] = True
    else:
        roles = storage.registers(op, target)["roles"]
        facts[f"{name}: roles"] = ", ".join(f"{r['name']} {r['active']}x{r['registers']}" for r in roles)
    return facts


def _in_tmem(kernel) -> bool:
    return any(tile.space_of(r.type) == "tmem" for op in operations_in(kernel) for r in op.operation.results)


def _differences(before: dict, after: dict) -> dict:
    """fact -> [before, after]; None where it was not there. Facts that the level behind has no place for are not told."""
    return {name: [before.get(name), value] for name, value in after.items() if before.get(name) != value}
