"""The clocks that one step of a block loop costs each unit of an SM, and which unit bounds it.

A step is one trip of an innermost loop with MMAs: one tile of queries against one tile of keys, of all row blocks of the CTA. At the tile
level it is read off the loop's body, at the warp level off the loops of the roles together. What runs seldom (a mask in boundary blocks, a
rescaling under a vote) is no part of it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

from .. import targets
from ..ir import tile, warp
from ..ir.diagnostics import format_where
from ..passes import loop_graph, loop_interval, modulo, op_costs
from . import names
from . import work as rules

# unit -> the quantities that it works through one after the other. Copies fill shared memory through a port of their own in this model,
# as in FA-4's; `issue` is the slots that instructions of all lanes take, of which packed ones need half.
UNITS = {
    "mma": ("mma",),
    "exp": ("exp",),
    "fma": ("fma",),
    "alu": ("alu",),
    "issue": ("exp", "fma", "alu"),
    "smem": ("smem_operands", "smem_ds", "smem_dq", "smem_columns", "smem_tiles", "smem_results", "dsmem"),
    "tma": ("tma",),
    "atomics": ("atomics",),
}
QUANTITIES = tuple(dict.fromkeys(quantity for parts in UNITS.values() for quantity in parts))


@dataclass
class Step:
    """One block loop. `clocks` by quantity, and by unit where that is a sum; `bound`: the unit that needs most."""

    kernel: str
    loop: str  # where it stands in the file; empty for one that a pass made
    counts: Counter
    clocks: dict[str, float]
    bound: str
    schedule: list[dict] = field(default_factory=list)
    interval: int | None = None  # clocks between iterations by the model of tile-pipeline, with its waits; None: not scheduled, or unknown
    copies: int = 0  # clocks from issue to arrival of the loop's copies, one after the other


def clocks_of(counts: Counter, target) -> dict[str, float]:
    """Clocks of one SM by quantity and by unit."""
    rate = {
        "mma": target.mma_flops, "exp": target.mufu, "fma": target.fp32, "alu": target.alu,
        "atomics": target.smem_bytes_per_clk / 4,  # f32 each, as stores from registers
        "dsmem": target.smem_bytes_per_clk / 2,  # read to be sent, and what arrives written
    }
    quantities = {name: counts[name] / rate.get(name, target.smem_bytes_per_clk) for name in QUANTITIES}
    totals = {unit: sum(quantities[q] for q in parts) for unit, parts in UNITS.items()}
    totals["issue"] = op_costs.unit_clocks({"mufu": counts["exp"], "fp32": counts["fma"], "alu": counts["alu"]}, target)["issue"]
    return {name: round(clocks, 3) for name, clocks in {**quantities, **totals}.items()}


def bound_of(clocks: dict[str, float]) -> str:
    return max(UNITS, key=lambda unit: clocks[unit])


def steps(module, schedule: bool = True) -> list[Step]:
    """Of all kernels, in text order; the schedule, of loops at the tile level, on request."""
    target, tensors = targets.of(module), names.tensors_of(module) if schedule else {}
    found = [_tile_step(loop, target, schedule, tensors) for loop in loop_graph.pipelined_loops(module)]
    for op in module.body.operations:
        if isinstance(op, warp.KernelOp):
            found += _warp_steps(op, target)
    return found


# ------------------------------------------------------------------------------------------------------------------ tile level


def _tile_step(loop, target, schedule: bool, tensors: dict) -> Step:
    counts: Counter = Counter()
    operations = [op for op in loop.regions[0].blocks[0].operations if isinstance(op, tile.Scheduled)]
    for op in operations:
        if getattr(op, "cond", None) is None:
            counts.update(rules.work(op, target))
    kernel = _kernel_of(loop)
    of_kernel = tensors.get(kernel.sym_name.value, [])
    return _step(kernel, loop, counts, target, *(_schedule(loop, operations, target, of_kernel) if schedule else ()))


def _step(kernel, loop, counts: Counter, target, schedule=(), interval=None, copies=0) -> Step:
    clocks = clocks_of(counts, target)
    bound = bound_of(clocks)
    if interval is not None:
        interval = max(interval, math.ceil(clocks[bound]))
    place = "" if loop.location == kernel.location else format_where(loop.location)  # one that a pass made has the whole function's
    return Step(kernel.sym_name.value, place, counts, clocks, bound, list(schedule), interval, copies)


def _schedule(loop, operations, target, tensors) -> tuple[list[dict], int | None, int]:
    """What `tile-pipeline` wrote, in the order of a step; the clocks between iterations that its model gives for that, or for the order of
    the text; and those of copies that are waited for one by one.
    """
    graph_of = loop_graph.build(loop, target).with_reuse()
    order = sorted(range(len(graph_of.ops)), key=lambda i: graph_of.ops[i].order.value if graph_of.ops[i].order is not None else i)
    rows = []
    for i in order:
        op, cost = graph_of.ops[i], graph_of.costs[i]
        rows.append({"name": names.of_operation(op, tensors), "op": op.operation.name, "stage": op.stage.value,
                     "order": op.order.value if op.order is not None else None, "unit": cost.unit, "clocks": cost.clocks,
                     "seldom": graph_of.graph.ops[i].seldom})
    copies = sum(cost.latency for op, cost in zip(graph_of.ops, graph_of.costs, strict=True) if isinstance(op, tile.LoadOp))
    stages = [op.stage.value for op in graph_of.ops]
    try:
        interval = loop_interval.interval(graph_of, stages, order, target)
    except modulo.Unschedulable:
        interval = None  # an order by hand that this model refuses
    return rows if any("stage" in op.attributes for op in operations) else [], interval, copies


def _kernel_of(op):
    while op.operation.name not in ("tile.kernel", "warp.kernel"):
        op = op.operation.parent
    return op.opview


# ------------------------------------------------------------------------------------------------------------------ warp level


def _warp_steps(kernel, target) -> list[Step]:
    """The n-th innermost loop of each role belongs to the n-th block loop. Who only stores tiles has no block loop, but may have one over
    tiles."""
    counts: list[Counter] = []
    places = []
    roles = [op for op in kernel.body.blocks[0].operations if isinstance(op, warp.RoleOp)]
    deepest = max(map(_depth, roles), default=0)
    for op in roles:
        if _depth(op) == deepest:
            role = rules.Role.of(op)
            for number, loop in enumerate(_innermost_loops(op.body.blocks[0])):
                if number == len(counts):
                    counts.append(Counter())
                    places.append(loop)
                work = _body_work(loop.regions[0].blocks[0], target, role)
                share = kernel.cluster.value if role.leader else 1  # what the first CTA of a pair issues, both do
                counts[number].update({key: n // share for key, n in work.items()})
    return [_step(kernel, place, found, target) for place, found in zip(places, counts, strict=True) if found["mma"]]


def _depth(op) -> int:
    """How many loops lie in each other in an operation."""
    inner = [_depth(other) for region in op.operation.regions for block in region.blocks for other in block.operations]
    return max(inner, default=0) + (op.operation.name in ("scf.for", "warp.walk"))


def _innermost_loops(block) -> list:
    found = []
    for op in block.operations:
        inner = [loop for region in op.operation.regions for b in region.blocks for loop in _innermost_loops(b)]
        found += inner if inner or op.operation.name != "scf.for" else [op]
    return found


def _body_work(block, target, role) -> Counter:
    counts: Counter = Counter()
    for op in block.operations:
        if isinstance(op, warp.ElectOp):
            counts.update(_body_work(op.body.blocks[0], target, role))
        elif isinstance(op, warp.SlotOwnerOp):
            counts.update(_body_work(op.body.blocks[0], target, replace(role, warps=1)))
        elif not isinstance(op, warp.WhenOp):
            counts.update(rules.work(op, target, role))
    return counts


