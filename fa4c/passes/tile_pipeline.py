"""Software-pipeline block loops: give every tile operation of a loop with MMAs its `stage` and `order`.

An MMA and the elementwise work that needs its result, one after the other, leave the tensor cores idle half of the time. If the loop
issues the MMA of the next block first, both run at once. Which operation is put off to the next step, and in which order a step issues
them, is found by modulo scheduling (Rau 1994; Lam 1988; the solver is `modulo.py`) from three things: the data flow of the loop, also
around its back edge; the clocks each operation takes, by closed formulas over tile shapes, region contents and the target's
throughputs (`op_costs.py`); and storage (`loop_graph.py`).

Storage: a register tile has one copy, a tile in shared memory has `buffers`. An operation that overwrites a value comes after the last
reader of the iteration before; results are formed in place where they can be, as an accumulator is. Where the tiles in tensor memory do
not all fit side by side, some take turns in the same columns; which, is chosen with the order (`shared_columns.py`). Where shared memory is
short, the schedule says what can be saved there (`shared_savings.py`).

Only MMAs are put off, additions to global memory, and what needs their results: to put off other work would keep more tiles alive and
free no unit. For attention this gives the order of FA-3 (Shah et al. 2024, section 3.2): S = QK of this block, O += PV of the last block,
softmax of this block meanwhile, then what has to wait for PV.

Before:  %s = "tile.mma"(%q, %k) {...}
         %p = "tile.map"(%s) ({...}) {...}
         %o1 = "tile.mma"(%p, %v, %o) {...}
After:   %s = "tile.mma"(%q, %k) {order = 1 : i64, stage = 0 : i64, ...}
         %p = "tile.map"(%s) ({...}) {order = 4 : i64, stage = 0 : i64, ...}
         %o1 = "tile.mma"(%p, %v, %o) {order = 3 : i64, stage = 1 : i64, ...}

A schedule whose tiles need more registers than a thread has is taken only if none needs fewer: ptxas would spill, or serialise the MMAs.
Where even the best one does, MMAs with an operand in registers wait for the elementwise work.

Options: `stages`, at most so many (1: no overlap between iterations; 0: chosen); `buffers`, so many for every load of such loops (0: as
the loads say). A `stage` that an operation already has is kept, and so is an `order` relative to those of other operations, or refused
naming what it would break. Runs after all passes that add or change operations of the loop.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from .. import targets
from ..ir import tile
from ..ir.diagnostics import Diagnostic, op_diagnostic
from ..ir.mlir import i64, ir
from ..ir.tile import space_of
from . import loop_graph, modulo, shared_columns, shared_savings
from ._attn_to_tile_shape import register_budget
from .loop_graph import LoopGraph
from .op_costs import warpgroups
from .register_pressure import OTHER_REGISTERS, REGISTERS_A_WRITE, most_alive, registers_passing
from .registry import register_pass
from .streams import COMPUTE, MMA, stream_of


@register_pass("tile-pipeline")
def tile_pipeline(module: ir.Module, *, stages: int = 0, buffers: int = 0) -> None:
    for name, value in (("stages", stages), ("buffers", buffers)):
        if value < 0:
            raise Diagnostic(f"{name}={value} is no count", fix=f"give a positive number, or {name}=0 to leave it open")
    target = targets.of(module)
    for loop in loop_graph.pipelined_loops(module):
        if buffers:
            for op in loop.regions[0].blocks[0].operations:
                if isinstance(op, tile.LoadOp):
                    op.attributes["buffers"] = i64(buffers)
        plan = plan_loop(loop, target, stages=stages)
        set_schedule(plan)
        if not buffers:
            shared_savings.make_room(plan.loop, list(zip(plan.stages, plan.orders, strict=True)), target)


@dataclass
class LoopPlan:
    """What was decided for one loop: stage and order of each of `loop.ops`, and the clocks between iterations."""

    loop: LoopGraph
    ii: int
    stages: list[int]
    orders: list[int]
    exact: bool


def set_schedule(plan: LoopPlan) -> None:
    for op, stage, order in zip(plan.loop.ops, plan.stages, plan.orders, strict=True):
        op.attributes["stage"], op.attributes["order"] = i64(stage), i64(order)


def plan_loop(loop, target, *, stages: int = 0) -> LoopPlan:
    """The schedule of one `scf.for`; changes nothing."""
    graph_of = loop_graph.build(loop, target)
    pins = _Pins(graph_of)
    if stages != 1:
        _put_off(graph_of, pins)
    movable = _movable(graph_of)
    asked = dict(stages=stages, pinned_stage=pins.steps(pins.stages), pinned_order=pins.steps(pins.order))
    excess = _register_excess(graph_of, target)
    try:
        found = shared_columns.schedule(
            graph_of,
            lambda g: modulo.promise(g, movable, **asked),
            lambda g, limit: modulo.pipeline(g, movable, excess=excess, limit=limit, **asked),
            excess,
        )
    except modulo.Unschedulable as error:
        raise _refusal(graph_of, pins, stages, error) from None
    if _short_of_registers(graph_of, found, target):
        found = _later_mmas(graph_of, lambda g: modulo.pipeline(g, movable, excess=excess, **asked), found)
    places = _with_loads(graph_of, found, pins)
    _check_buffers(graph_of, places)
    return LoopPlan(graph_of, found.ii, *map(list, zip(*places, strict=True)), exact=found.exact)


def _movable(graph_of: LoopGraph) -> list[int]:
    return [i for i in graph_of.graph.stepped() if isinstance(graph_of.ops[i], (tile.MmaOp, tile.GlobalAddOp))]


def _alive(graph_of: LoopGraph, found: modulo.Schedule) -> int:
    return most_alive(graph_of.ops, graph_of.graph.edges, graph_of.versions, found.stages, found.order)


def _short_of_registers(graph_of: LoopGraph, found: modulo.Schedule, target) -> bool:
    """Whether no thread has as many as the tiles and all else need: ptxas would serialise the MMAs."""
    if target.mma.accumulator != "reg":
        return False
    return _alive(graph_of, found) > register_budget(target, warpgroups(graph_of.ops[0], target)) - OTHER_REGISTERS


def _later_mmas(graph_of: LoopGraph, solve, found: modulo.Schedule) -> modulo.Schedule:
    """The best schedule in which an MMA whose operand lies in registers comes after all elementwise work that does not wait for it.

    Its operand, a cast of what was computed, is made when nothing else needs what it is made from, and takes its place. Kept where that
    needs fewer registers. ptxas 13.0, backward at head dim 64 in blocks of 128 x 128: with dV = P^T dO before the cast of dS it
    serialises all MMAs, behind it none. What another MMA reads from shared memory is written before it too, and that MMA comes behind:
    the tensor cores work while all threads wait for each other's writes.
    """
    graph = graph_of.graph
    late = [i for i in graph.stepped() if isinstance(graph_of.ops[i], tile.MmaOp) and space_of(graph_of.ops[i].a.type) == "reg"]
    work = [i for i in graph.stepped() if isinstance(graph_of.ops[i], tile.MapOp)]
    casts = [i for m in late for i in work if _readers(graph_of, i) == [m]]
    first = [(e, m) for m in late for e in work] + [(e, c) for c in casts for e in work if _share_input(graph_of.ops[e], graph_of.ops[c])]
    for t in graph.stepped():
        if isinstance(graph_of.ops[t], tile.ToSharedOp) and any(graph_of.ops[w].out == graph_of.ops[t].x for w in work):
            others = [m for m in late if graph_of.ops[m].a != graph_of.ops[t].x]
            first += [pair for m in others for pair in ((t, m), *((m, r) for r in _readers(graph_of, t)))]
    more = [modulo.Edge(a, b, graph.ops[a].issue, 0, why="registers are short: {src} comes first") for a, b in first
            if a != b and a not in _behind(graph, b)]
    try:
        other = solve(replace(graph, edges=(*graph.edges, *more)))
    except modulo.Unschedulable:
        return found
    return other if _alive(graph_of, other) < _alive(graph_of, found) else found


def _readers(graph_of: LoopGraph, i: int) -> list[int]:
    return [j for j, op in enumerate(graph_of.ops) if graph_of.ops[i].out in list(op.operation.operands)]


def _share_input(one, other) -> bool:
    return any(value in list(other.inputs) for value in one.inputs)


def _behind(graph: modulo.Graph, first: int) -> set[int]:
    """What waits for an operation in the same iteration."""
    reached, stack = set(), [first]
    while stack:
        i = stack.pop()
        for e in graph.edges:
            if e.src == i and e.distance == 0 and e.ordered and e.dst not in reached:
                reached.add(e.dst)
                stack.append(e.dst)
    return reached


def _put_off(graph_of: LoopGraph, pins: _Pins) -> None:
    """MMAs that a warp of their own issues, and that wait for what others compute in the same iteration, belong to the next step.

    Otherwise that warp would stand still in the middle of a step, and with it the MMAs of the other row block.
    """
    graph = graph_of.graph
    mmas = [i for i, op in enumerate(graph.ops) if op.stream == MMA]
    waiting = {e.dst for e in graph.edges if e.dst in mmas and graph.ops[e.src].stream == COMPUTE and e.distance == 0 and e.ordered}
    for i in mmas:
        pins.stages.setdefault(i, int(i in waiting))


def _register_excess(graph_of: LoopGraph, target):
    """(stages, order) -> how many registers of a thread the loop's tiles need beyond those of a compute warpgroup."""
    if target.mma.accumulator != "reg":
        return _row_excess(graph_of, target)
    writes = sum(isinstance(op, tile.ToSharedOp) for op in graph_of.ops)
    budget = register_budget(target, warpgroups(graph_of.ops[0], target)) - OTHER_REGISTERS - REGISTERS_A_WRITE * writes

    def excess(stages, order) -> int:
        return max(0, most_alive(graph_of.ops, graph_of.graph.edges, graph_of.versions, stages, order) - budget)

    return excess


def _row_excess(graph_of: LoopGraph, target):
    """The same where a thread holds whole rows: what a map takes of tensor memory, or of column values, is held beside them."""
    computed = [v for v in graph_of.versions if stream_of(graph_of.ops[v.writer]) == COMPUTE]
    passing = {i: registers_passing(op) for i, op in enumerate(graph_of.ops)}
    budget = register_budget(target, 1) - OTHER_REGISTERS

    def excess(stages, order) -> int:
        return max(0, most_alive(graph_of.ops, graph_of.graph.edges, computed, stages, order, passing) - budget)

    return excess


def _with_loads(graph_of: LoopGraph, found: modulo.Schedule, pins: _Pins) -> list[tuple[int, int]]:
    """(stage, order) of every operation: each load goes before the first operation of a step that needs it, or where it is pinned."""
    graph, step, stages = graph_of.graph, list(found.order), list(found.stages)
    loads = sorted(graph.free, key=lambda i: (i not in pins.order, pins.order.index(i) if i in pins.order else i))
    for i in loads:
        readers = [e.dst for e in graph.edges if e.src == i and e.dst not in graph.free]
        stages[i] = pins.stages.get(i, min((stages[r] for r in readers), default=0))
        place = min((step.index(r) for r in readers if stages[r] == stages[i]), default=0)
        if i in pins.order:
            at = pins.order.index(i)
            place = max([place, *(step.index(j) + 1 for j in pins.order[:at] if j in step)])
            place = min([place, *(step.index(j) for j in pins.order[at + 1 :] if j in step)])
        step.insert(place, i)
    places = [(stages[i], step.index(i)) for i in range(len(graph.ops))]
    for e in graph.edges:
        between = modulo.step_distance(e, stages)
        if e.src in graph.free and (between < 0 or (between == 0 and places[e.src][1] > places[e.dst][1])):
            raise _pin_breaks(graph_of, e)
    return places


def _check_buffers(graph_of: LoopGraph, places: list[tuple[int, int]]) -> None:
    """A load may overwrite what was read `buffers` iterations before, no sooner; what the loop writes itself obeys that as any edge."""
    for e in graph_of.graph.edges:
        if e.dst in graph_of.graph.free and e.src not in graph_of.graph.free:
            op, stage, reader_stage = graph_of.ops[e.dst], places[e.dst][0], places[e.src][0]
            needed = shared_savings.copies_between(places[e.dst], places[e.src])
            if op.buffers.value < needed:
                raise op_diagnostic(op, f"has {op.buffers.value} of the {needed} buffers that its schedule needs",
                                    why=f"{graph_of.name(e.src)} reads the tile {reader_stage - stage} steps after it is loaded",
                                    fix=f"write buffers = {needed}, or tile-pipeline{{buffers={needed}}}")


class _Pins:
    """What the text already says: `stages` of operations, and `order`, the operations that have one, in that order."""

    def __init__(self, graph_of: LoopGraph):
        self._graph_of = graph_of
        ops = graph_of.ops
        self.stages = {i: op.stage.value for i, op in enumerate(ops) if "stage" in op.attributes}
        orders = {i: op.order.value for i, op in enumerate(ops) if "order" in op.attributes}
        self.order = sorted(orders, key=orders.get)
        for a, b in itertools.pairwise(self.order):
            if orders[a] == orders[b]:
                raise op_diagnostic(ops[b], f"has order = {orders[b]}, as has {graph_of.name(a)}",
                                    why="a step runs one operation after the other", fix="give each an order of its own")
        for e in graph_of.graph.edges:
            if e.dst not in graph_of.graph.free and self._breaks(e):
                raise _pin_breaks(graph_of, e)

    def steps(self, of):
        """The part that is not about loads."""
        free = self._graph_of.graph.free
        return {i: stage for i, stage in of.items() if i not in free} if isinstance(of, dict) else [i for i in of if i not in free]

    def _breaks(self, e: modulo.Edge) -> bool:
        if e.src not in self.stages or e.dst not in self.stages:
            return False
        between = self.stages[e.dst] + e.distance - self.stages[e.src]
        if between == 0 and e.ordered and e.src in self.order and e.dst in self.order:
            return self.order.index(e.src) >= self.order.index(e.dst)
        return between < e.steps


def _pin_breaks(graph_of: LoopGraph, e: modulo.Edge) -> Diagnostic:
    fix = "change its stage or order, or that of the other, or remove both for a schedule to be found"
    src, dst = graph_of.ops[e.src], graph_of.ops[e.dst]
    if _pinned_at(dst):
        return op_diagnostic(dst, f"is pinned too early ({_pinned_at(dst)}): it must run after {graph_of.name(e.src)}",
                             why=graph_of.reason(e), fix=fix)
    return op_diagnostic(src, f"is pinned too late ({_pinned_at(src)}): {graph_of.name(e.dst)} must run after it",
                         why=graph_of.reason(e), fix=fix)


def _pinned_at(op) -> str:
    return ", ".join(f"{name} = {op.attributes[name].value}" for name in ("stage", "order") if name in op.attributes)


def _refusal(graph_of: LoopGraph, pins: _Pins, stages: int, error: modulo.Unschedulable) -> Diagnostic:
    names = [graph_of.name(i) for i in error.cycle]
    pinned = sorted({*pins.stages, *pins.order})
    if pinned:
        listed = ", ".join(graph_of.name(i) for i in pinned)
        return op_diagnostic(graph_of.ops[pinned[0]], "is pinned so that the other operations find no place",
                             why=f"pinned are: {listed}" + (f"; at most {stages} stages are allowed" if stages else ""),
                             fix="remove `stage` and `order` from some of them")
    return op_diagnostic(graph_of.loop, "cannot be pipelined: no schedule exists",
                         why=f"these wait for each other within one iteration: {' -> '.join(names)}" if names else "")
