"""Modulo scheduling on an abstract graph: when the operations of a loop start so that a new iteration starts every `ii` clocks.

One schedule serves all iterations, each shifted by `ii`, the initiation interval (Rau 1994; Lam 1988). An operation is issued on a
`stream`, which issues in program order and is busy for `issue` clocks. A synchronous operation is then done; an asynchronous one has a
`unit`, which works through what it was given in the order of issue and is busy for `duration` clocks. Edges say what must wait for
what, across iterations too. Streams and units each do one thing at a time.

The solver is exact. Start times obey difference constraints t_b - t_a >= latency - ii * distance, whose smallest `ii` is a maximal cycle
ratio. Two operations of one stream or unit that collide give a choice, "b is K iterations behind a, or less": one more such constraint
on either side. Branching on collisions as they appear finds the smallest `ii` without a grid of clocks, so clocks may be in thousands.

What a loop needs in the end is two small numbers for each operation, its stage and its order: in step k, an operation of stage s
works for iteration k - s, and operations are issued in ascending order. `pipeline` chooses both. Nothing here knows MLIR.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Op:
    """Clocks on the issuing stream and, if asynchronous, on the unit that does the work. `seldom`: it stands under a condition."""

    name: str
    stream: str
    issue: int
    unit: str = ""
    duration: int = 0
    seldom: bool = False

    @property
    def asynchronous(self) -> bool:
        return bool(self.unit)


@dataclass(frozen=True)
class Edge:
    """`dst` of iteration i + distance is issued no earlier than `latency` clocks after `src` of iteration i started.

    It starts when its unit takes it, or with `from_issue`, when it is issued. In stages: `dst` comes at least `steps` steps later; in the
    same step, only behind `src` in order, unless the edge is not `ordered`. An unordered edge says nothing about clocks.
    """

    src: int
    dst: int
    latency: int
    distance: int
    from_issue: bool = False
    steps: int = 0
    ordered: bool = True
    why: str = ""


@dataclass(frozen=True)
class Graph:
    """`free`: operations outside of steps, such as copies by a producer that runs ahead: they have no stage of their own."""

    ops: tuple[Op, ...]
    edges: tuple[Edge, ...]
    free: frozenset[int] = frozenset()

    def stepped(self) -> list[int]:
        return [i for i in range(len(self.ops)) if i not in self.free]

    @functools.cached_property
    def found(self) -> dict:
        """Arguments of a search -> what it gave."""
        return {}

    # What each of some thousand searches on one graph asks for:
    @functools.cached_property
    def times(self) -> _Times:
        return _Times(self)

    @functools.cached_property
    def shared(self) -> dict[tuple[int, int], list[tuple[int, int, int, int]]]:
        """(a, b) -> (time of a, time of b, clocks that a takes, clocks that b takes) of the stream that both use, and of the unit."""
        return {(a, b): _shared(self, a, b) for a, b in itertools.permutations(range(len(self.ops)), 2)}

    @functools.cached_property
    def sharing(self) -> list[list[tuple[int, int, int, int]]]:
        """Those of each two that share something; what costs most if they collide first, as to decide that raises bounds soonest."""
        pairs = [self.shared[pair] for pair in itertools.combinations(range(len(self.ops)), 2)]
        return sorted(filter(None, pairs), key=lambda shared: -max(min(length, other) for _, _, length, other in shared))

    @functools.cached_property
    def busiest(self) -> int:
        """No smaller `ii`: each stream and unit does all its work once in it."""
        load: dict[str, int] = {}
        for op in self.ops:
            load["stream " + op.stream] = load.get("stream " + op.stream, 0) + op.issue
            if op.asynchronous:
                load["unit " + op.unit] = load.get("unit " + op.unit, 0) + op.duration
        return max([1, *load.values()])


@functools.lru_cache(maxsize=64)
def _one(graph: Graph) -> Graph:
    """The same for equal graphs, as loops of many kernels have: what there is to find out about one is found out once."""
    return graph


def _once(search):
    """Keeps with the graph what the search gives."""
    @functools.wraps(search)
    def known(graph: Graph, *args, **options):
        key = repr((search.__name__, args, sorted(options.items())))
        if key not in graph.found:
            try:
                graph.found[key] = search(graph, *args, **options), None
            except Unschedulable as error:
                graph.found[key] = None, error.cycle
        result, cycle = graph.found[key]
        if cycle is not None:
            raise Unschedulable(cycle)
        return copy.copy(result)

    return known


@dataclass
class Schedule:
    """`issue[i]` and `start[i]`: clocks from the beginning of the step with which iteration 0 begins.

    `exact`: no smaller `ii` exists for these stages; `decided`: how many collisions the search had to decide.
    """

    ii: int
    issue: list[int]
    start: list[int]
    exact: bool = True
    decided: int = 0
    stages: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)  # the stepped operations, as a step issues them


class Unschedulable(Exception):
    """No schedule exists; `cycle` names operations that wait for each other in a circle, if that is why."""

    def __init__(self, cycle: Sequence[int] = ()):
        super().__init__("no schedule exists")
        self.cycle = list(cycle)


# ------------------------------------------------------------------------------------------------------------------- stages and order

_FEW, _MANY = 64, 300  # choices of stages: so many are all looked at; more stages than this gives choices are not tried


def pipeline(graph: Graph, movable: Collection[int], *, stages: int = 0, pinned_stage: Mapping[int, int] | None = None,
             pinned_order: Sequence[int] = (), limit: int = 400,
             excess: Callable[[Sequence[int], Sequence[int]], int] = lambda stages, order: 0) -> Schedule:
    """The best (stage, order) with at most `stages` stages; 0: as many as `movable` operations depend on each other in a row.

    Only `movable` operations may be put off to a later step than their operands allow; all others run in the first step that can have
    them. Best is the least `excess(stages, order)`, what the schedule needs beyond what there is; then the smallest `ii`, then the fewest
    groups of adjacent operations of one unit in a step (each group is one turn at the unit), then the lowest stages. If there is much to
    choose from, one more stage is only tried while streams and units have idle clocks left. `pinned_stage` and `pinned_order` (operations
    in the order they must have) are kept. Each search ends after `limit` decisions, all together after ten times as many, with the best
    found so far, then not `exact`.
    """
    graph, pinned_stage = _one(graph), dict(pinned_stage or {})
    highest = stages or max(_depth(graph, movable), 1 + max(pinned_stage.values(), default=0))
    best, failure, seen, left = None, None, set(), 10 * limit
    for depth in [highest] if highest ** len(movable) <= _FEW else range(1, highest + 1):
        if depth ** len(movable) > _MANY and best is not None:
            break
        for (bound, groups, total), assigned in _candidates(graph, movable, depth, pinned_stage, seen):
            fits = best is not None and best[0][0] == 0
            if fits and (0, bound, groups, total, assigned) >= best[0]:
                break
            try:
                found = minimum_ii(graph, assigned, pinned_order=pinned_order, at_most=best[1].ii if fits else None, limit=min(limit, left))
                left -= found.decided
                found.stages, found.order = assigned, step_order(graph, assigned, found, pinned_order=pinned_order, limit=min(limit, left))
                if excess(assigned, found.order) and not pinned_order:
                    found = _leaner(graph, found, min(limit, left), excess)
            except Unschedulable as error:
                failure = failure or error
                continue
            key = (excess(assigned, found.order), found.ii, _groups(graph, found.order), total, assigned)
            if best is None or key < best[0]:
                best = key, found
        if best is not None and best[0][0] == 0 and best[1].ii == graph.busiest:
            break
    if best is None:
        raise failure or Unschedulable(_circle(graph))
    return best[1]


_ORDERS = 120  # of asynchronous operations: so many are looked at


def _leaner(graph: Graph, found: Schedule, limit: int, excess) -> Schedule:
    """As quick, with another order of the asynchronous operations where that lacks less; each order is completed as reads best."""
    best = excess(found.stages, found.order), found
    base = _base(graph, found.stages)

    def possible(following) -> bool:
        more = [c for a, b in following for c in _later(graph.shared[a, b], found.stages[b] - found.stages[a])]
        return _tighten(graph.times, base + more, graph.busiest, at_most=found.ii) is not None

    asynchronous = [i for i in found.order if graph.ops[i].asynchronous]
    never = {pair for pair in itertools.permutations(asynchronous, 2) if not possible([pair])}
    for wanted in itertools.islice(itertools.permutations(asynchronous), _ORDERS):
        following = list(itertools.pairwise(wanted))
        if not never.isdisjoint(following) or not possible(following):
            continue
        with contextlib.suppress(Unschedulable):
            other = minimum_ii(graph, found.stages, pinned_order=wanted, at_most=found.ii, limit=limit)
            other.stages, other.order = found.stages, step_order(graph, found.stages, other, pinned_order=wanted, limit=limit)
            best = min(best, (excess(other.stages, other.order), other), key=lambda entry: entry[0])
        if not best[0]:
            break
    return best[1]


def promise(graph: Graph, movable: Collection[int], *, stages: int = 0, pinned_stage: Mapping[int, int] | None = None,
            pinned_order: Sequence[int] = ()) -> int | None:
    """An `ii` that `pipeline` reaches at least: that of the order that reads best. None if no order does."""
    pinned_stage = dict(pinned_stage or {})
    depth = stages or max(_depth(graph, movable), 1 + max(pinned_stage.values(), default=0))
    found = [_first_guess(graph, assigned, pinned_order, None) for _, assigned in _candidates(graph, movable, depth, pinned_stage, set())]
    return min((guess[0] for guess in found if guess), default=None)


def step_distance(edge: Edge, stages: Sequence[int]) -> int:
    """How many steps `dst` runs after the `src` that it waits for."""
    return stages[edge.dst] + edge.distance - stages[edge.src]


def _depth(graph: Graph, movable: Collection[int]) -> int:
    """The most movable operations on a path within one iteration."""
    level = {}

    def of(i: int) -> int:
        if i not in level:
            level[i] = 0  # a circle within one iteration is found later, with its name
            level[i] = max((of(e.src) for e in graph.edges if e.dst == i and e.distance == 0 and e.ordered), default=0) + (i in movable)
        return level[i]

    return max((of(i) for i in graph.stepped()), default=1)


def _candidates(graph: Graph, movable: Collection[int], depth: int, pinned: Mapping[int, int], seen: set):
    """((lower bounds of ii and of groups, sum of stages), stages) of what is not in `seen`, the most promising first."""
    choices = [i for i in graph.stepped() if i in movable or i in pinned]
    found = []
    for delays in itertools.product(*[(pinned[i],) if i in pinned else range(depth) for i in choices]):
        wanted = dict(zip(choices, delays, strict=True))
        stages = _earliest_stages(graph, wanted, depth)
        if stages is None or tuple(stages) in seen or any(stages[i] != stage for i, stage in wanted.items()):
            continue
        seen.add(tuple(stages))
        if pinned or min(stages[i] for i in graph.stepped()) == 0:
            bound = _tighten(graph.times, _base(graph, stages), graph.busiest)
            if bound is not None:
                found.append(((bound[0], _least_groups(graph, stages), sum(stages)), stages))
    return sorted(found)


def _earliest_stages(graph: Graph, wanted: Mapping[int, int], depth: int) -> list[int] | None:
    """The lowest stages that respect all edges and are at least those wanted; None beyond `depth`."""
    stages = [wanted.get(i, 0) for i in range(len(graph.ops))]
    changed = True
    while changed:
        changed = False
        for e in graph.edges:
            if e.src not in graph.free and e.dst not in graph.free and stages[e.dst] < stages[e.src] - e.distance + e.steps:
                stages[e.dst] = stages[e.src] - e.distance + e.steps
                changed = True
                if stages[e.dst] >= depth:  # also ends circles
                    return None
    return stages if max(stages) < depth else None


def _groups(graph: Graph, order: Sequence[int]) -> int:
    units = [graph.ops[i].unit for i in order]
    return sum(bool(unit) and unit != before for unit, before in zip(units, ["", *units], strict=False))


def _least_groups(graph: Graph, stages: Sequence[int]) -> int:
    """No order has fewer: along a chain of one step, each change to another unit begins a group."""
    before = {i: [e.src for e in graph.edges if e.dst == i and _in_step(graph, e, stages)] for i in graph.stepped()}
    level: dict[int, int] = {}

    def of(i: int) -> int:
        if i not in level:
            level[i] = 0  # ends circles
            unit = graph.ops[i].unit
            level[i] = max([bool(unit), *(of(j) + (bool(unit) and graph.ops[j].unit != unit) for j in before[i])])
        return level[i]

    return max((of(i) for i in graph.stepped()), default=0)


def _in_step(graph: Graph, edge: Edge, stages: Sequence[int]) -> bool:
    """Whether the edge orders two operations of one step."""
    inside = edge.src not in graph.free and edge.dst not in graph.free and edge.src != edge.dst
    return inside and edge.ordered and step_distance(edge, stages) == 0


def _circle(graph: Graph) -> list[int]:
    """Operations that wait for each other within one iteration, if there are such."""
    after = {i: [e.dst for e in graph.edges if e.src == i and e.distance == 0 and e.ordered] for i in range(len(graph.ops))}
    for start in range(len(graph.ops)):
        stack = [(start, [start])]
        seen = set()
        while stack:
            node, path = stack.pop()
            for following in after[node]:
                if following == start:
                    return path
                if following not in seen:
                    seen.add(following)
                    stack.append((following, [*path, following]))
    return []


# -------------------------------------------------------------------------------------------------------------- difference constraints


class _Times:
    """Numbers the unknown times: 0 is the beginning of the first stream's step, then issue and start of each operation, then the
    beginnings of the other streams' steps.
    """

    def __init__(self, graph: Graph):
        n = len(graph.ops)
        self.issue = list(range(1, n + 1))
        self.start = list(self.issue)
        self.count = n + 1
        for i, op in enumerate(graph.ops):
            if op.asynchronous:
                self.start[i] = self.count
                self.count += 1
        streams = dict.fromkeys(graph.ops[i].stream for i in graph.stepped())
        self.step = {stream: self.count + n - 1 if n else 0 for n, stream in enumerate(streams)}
        self.count += max(0, len(streams) - 1)


def _base(graph: Graph, stages: Sequence[int] | None) -> list[tuple[int, int, int, int]]:
    """Constraints (u, v, latency, distance): time v >= time u + latency - ii * distance."""
    times, constraints = graph.times, []
    for e in graph.edges:
        if e.ordered:
            src = times.issue[e.src] if e.from_issue else times.start[e.src]
            constraints.append((src, times.issue[e.dst], e.latency, e.distance))
    for i, op in enumerate(graph.ops):
        if op.asynchronous:
            constraints.append((times.issue[i], times.start[i], op.issue, 0))
        if i in graph.free or stages is None:  # only so that the search ends: nothing useful is that far away
            span = len(graph.ops) + sum(e.distance for e in graph.edges if i in (e.src, e.dst)) + 2
            constraints += [(0, times.issue[i], 0, span if i in graph.free else 0), (times.issue[i], 0, 0, span)]
        else:
            step = times.step[op.stream]
            constraints += [(step, times.issue[i], 0, -stages[i]), (times.issue[i], step, op.issue, stages[i] + 1)]
    return constraints


def _longest(count: int, constraints, ii: int, times: list[int]):
    """Least times that obey the constraints, from `times` upwards; or (None, the constraints of a circle that grows for ever)."""
    weighted = [(u, v, latency - ii * distance) for u, v, latency, distance in constraints]
    times, came_by = list(times), [-1] * count
    while True:
        last = -1
        for number, (u, v, weight) in enumerate(weighted):
            if times[u] + weight > times[v]:
                times[v] = times[u] + weight
                came_by[v] = number
                last = v
        if last < 0:
            return times, None
        # A way back that is longer than all times there are runs round a circle, and only one that grows gets there (Cherkassky and
        # Goldberg 1999). It shows after a few rounds; that none is left to show takes `count` of them.
        for _ in range(count):
            if came_by[last] < 0:
                break
            last = constraints[came_by[last]][0]
        else:
            circle, node = [], last
            while not circle or node != last:
                circle.append(constraints[came_by[node]])
                node = circle[-1][0]
            return None, circle


def _tighten(times: _Times, constraints, ii: int, start: list[int] | None = None, at_most: int | None = None):
    """(smallest ii from `ii` on, times) under the constraints, or None."""
    while at_most is None or ii <= at_most:
        found, circle = _longest(times.count, constraints, ii, start or [0] * times.count)
        if found is not None:
            return ii, found
        latency, distance = sum(c[2] for c in circle), sum(c[3] for c in circle)
        if distance <= 0:
            return None
        ii = -(-latency // distance)  # more than before: the circle grew
        start = None  # times were least for a smaller ii
    return None


# ---------------------------------------------------------------------------------------------------------------------------- ii


@_once
def minimum_ii(graph: Graph, stages: Sequence[int] | None = None, *, pinned_order: Sequence[int] = (), at_most: int | None = None,
               limit: int = 100_000) -> Schedule:
    """The smallest initiation interval, exact unless more than `limit` collisions had to be decided. Without `stages`, any will do."""
    times, constraints = graph.times, _base(graph, stages)
    for a, b in itertools.pairwise(pinned_order):
        constraints += _later(graph.shared[a, b], stages[b] - stages[a])
    root = _tighten(times, constraints, graph.busiest, at_most=at_most)
    if root is None:
        raise Unschedulable(_circle(graph))
    best = _first_guess(graph, stages, pinned_order, at_most) if stages is not None else None
    decided, stack = 0, [(constraints, root)]
    while stack and (decided < limit or best is None) and not (best is not None and best[0] == root[0]):
        constraints, (ii, found) = stack.pop()
        if best is not None and ii >= best[0]:
            continue
        collision = next(((shared, behind) for shared in graph.sharing if (behind := _collision(shared, found, ii)) is not None), None)
        if collision is None:
            best = ii, found
            continue
        decided += 1
        if decided > 10 * limit + 1000:
            raise Unschedulable()  # there may be one, but nothing that a loop body holds is this intricate
        children = []
        for more in (_later(*collision), _sooner(*collision)):
            child = _tighten(times, constraints + more, ii, found, best[0] - 1 if best else at_most)
            if child is not None:
                children.append((child[0], len(children), constraints + more, child))
        for _, _, more, child in sorted(children, key=lambda c: c[:2], reverse=True):
            stack.append((more, child))
    if best is None:
        raise Unschedulable()
    ii, found = best
    exact = ii == root[0] or not any(child[0] < ii for _, child in stack)
    return Schedule(ii, [found[t] - found[0] for t in times.issue], [found[t] - found[0] for t in times.start], exact, decided)


def _first_guess(graph: Graph, stages: Sequence[int], pinned_order: Sequence[int], at_most: int | None):
    """(ii, times) of the order that reads best, as if it cost nothing: often it does not, and bounds the search if it does."""
    search = _OrderSearch(graph, stages, pinned_order)
    order = search.readable()
    return _tighten(search.times, _base(graph, stages) + search.sequence(order), graph.busiest, at_most=at_most) if order else None


def _shared(graph: Graph, a: int, b: int) -> list[tuple[int, int, int, int]]:
    times, one, other = graph.times, graph.ops[a], graph.ops[b]
    shared = [(times.issue[a], times.issue[b], one.issue, other.issue)] if one.stream == other.stream else []
    if one.asynchronous and one.unit == other.unit:
        shared.append((times.start[a], times.start[b], one.duration, other.duration))
    return shared


def _collision(shared, found: list[int], ii: int) -> int | None:
    """K if they are in each other's way: b must be at least K iterations behind a, or at most K - 1."""
    behind = (found[shared[0][1]] - found[shared[0][0]]) // ii
    for a, b, length, other_length in shared:
        gap = found[b] - found[a]
        if gap < behind * ii + length:
            return behind
        if gap > (behind + 1) * ii - other_length:
            return behind + 1
    return None


def _later(shared, behind: int) -> list:
    """Constraints for "b at least `behind` iterations behind a"."""
    return [(a, b, length, -behind) for a, b, length, _ in shared]


def _sooner(shared, behind: int) -> list:
    """Constraints for "b at most `behind` - 1 iterations behind a"."""
    return [(b, a, other_length, behind) for a, b, _, other_length in shared]


# -------------------------------------------------------------------------------------------------------------------------- order


@_once
def step_order(graph: Graph, stages: Sequence[int], found: Schedule, *, pinned_order: Sequence[int] = (), limit: int = 4000) -> list[int]:
    """The stepped operations as a step issues them; of the orders that keep to the `ii` that was found, the one that reads best.

    Asynchronous operations come as early as their operands allow, the one with the most work behind it first. Synchronous ones
    follow in the order of what they wait for: units finish in the order of issue, so what needs an early result goes before what
    needs a late one. Of those that wait for the same, one under a condition goes first: ptxas moves a wait up to the start of its
    basic block, and only one that stands in a branch stays behind the elementwise work that is meant to run under the MMA (seen in SASS).
    Ties keep the order of `graph.ops`. Backtracks where this would miss `ii`; after `limit` steps back, the order of the clocks found.
    """
    search = _OrderSearch(graph, stages, pinned_order, limit)
    order = search.extend([], _base(graph, stages), [0] * search.times.count, found.ii) or search.by_clock(found)
    if len(order) < len(search.before):
        raise Unschedulable()  # what is pinned goes round in a circle with what is not
    return order


class _OrderSearch:
    def __init__(self, graph: Graph, stages: Sequence[int], pinned_order: Sequence[int], limit: int = 0):
        self.graph, self.stages, self.left = graph, stages, limit
        self.times = graph.times
        self.before: dict[int, list[Edge]] = {i: [] for i in graph.stepped()}
        self.after: dict[int, list[Edge]] = {i: [] for i in graph.stepped()}
        self.pinned_before = {b: a for a, b in itertools.pairwise(pinned_order)}
        for e in graph.edges:
            if _in_step(graph, e, stages):
                self.before[e.dst].append(e)
                self.after[e.src].append(e)
        self.heights: dict[int, int] = {}
        self.known: dict[tuple[int, int], list] = {}  # (i, j) -> constraints for "i, then j"

    def readable(self) -> list[int]:
        """The best of all orders, were it not for clocks; empty if there is none."""
        placed: list[int] = []
        while ready := self.ready(placed):
            placed.append(ready[0])
        return placed if len(placed) == len(self.before) else []

    def by_clock(self, found: Schedule) -> list[int]:
        """By the clock of issue within the step; what is issued together, as its edges say."""
        placed: list[int] = []
        while ready := self.ready(placed):
            placed.append(min(ready, key=lambda i: found.issue[i] - self.stages[i] * found.ii))
        return placed

    def extend(self, placed: list[int], constraints, times, ii: int) -> list[int] | None:
        rest = [i for i in self.before if i not in placed]
        if not rest:
            return placed
        for i in self.ready(placed):
            more = [c for j in rest if j != i for c in self.precedes(i, j)]
            found, _ = _longest(self.times.count, constraints + more, ii, times)
            if found is not None:
                result = self.extend([*placed, i], constraints + more, found, ii)
                if result is not None:
                    return result
            self.left -= 1
            if self.left < 0:
                return None
        return None

    def ready(self, placed: list[int]) -> list[int]:
        """What may come next, the best first."""
        ready = [i for i, edges in self.before.items() if i not in placed and all(e.src in placed for e in edges)
                 and self.pinned_before.get(i, -1) in (-1, *placed)]
        known: dict[int, int] = {}
        return sorted(ready, key=lambda i: self.rank(i, placed, known))

    def sequence(self, order: Sequence[int]) -> list:
        return [c for n, i in enumerate(order) for j in order[n + 1 :] for c in self.precedes(i, j)]

    def precedes(self, i: int, j: int) -> list:
        """Constraints for "i, then j" in each step."""
        if (i, j) not in self.known:
            shared, behind = self.graph.shared[i, j], self.stages[j] - self.stages[i]
            self.known[i, j] = _later(shared, behind) + _sooner(shared, behind + 1)
        return self.known[i, j]

    def rank(self, i: int, placed: list[int], known: dict[int, int]):
        if self.graph.ops[i].asynchronous:
            return 0, -self.height(i), False, i
        return 1, self.awaited(i, placed, known), not self.graph.ops[i].seldom, i

    def height(self, i: int) -> int:
        """The longest chain of clocks from here to the end of the step."""
        if i not in self.heights:
            self.heights[i] = 0
            self.heights[i] = max((e.latency + self.height(e.dst) for e in self.after[i]), default=0)
        return self.heights[i]

    def awaited(self, i: int, placed: list[int], known: dict[int, int]) -> int:
        """The position of the last asynchronous operation of this step that must be finished first; -1 without one."""
        if i not in known:
            waits = [-1]
            for e in self.before[i]:
                waits.append(self.awaited(e.src, placed, known))
                if self.graph.ops[e.src].asynchronous and not e.from_issue:
                    waits.append(placed.index(e.src))
            known[i] = max(waits)
        return known[i]
