"""Scheduling a loop whose tiles in tensor memory do not all fit side by side: which of them take turns in the same columns, and when.

Two tiles can share columns if, in every iteration, all that use the one are done before the other is written, and the other way round
(`LoopGraph.turns`). Each such pair is a choice of more edges in the graph. Choices are added as long as tiles that have no turns are wider
together than there is room; pairs that are in turns anyway, by what they read, need none. A placement of parts counts, such as a wide tile
over two narrow ones, since `columns.place` decides what fits. So all sets of turns are found that are enough and hold none too many.

Each set gives a graph. The graphs that promise most, by the order that reads best, are scheduled, and the best schedule is taken. A wait of
one role for another that only the turns ask for counts as `wait` clocks more.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable
from dataclasses import replace

from . import columns
from .implied_order import MOST_BEHIND
from .loop_graph import LoopGraph
from .modulo import Edge, Graph, Schedule, Unschedulable

_SETS = 2000  # sets of turns looked at, complete or not
_SCHEDULES, _FEW_DECISIONS, _DECISIONS = 12, 100, 400  # graphs that are scheduled; collisions decided for each, and for the best one
_WAIT = 75  # clocks of a warp at an mbarrier that is complete, H200
_NEVER = float("inf")


def schedule(
    graph_of: LoopGraph,
    promise: Callable[[Graph], int | None],
    solve: Callable[[Graph, int], Schedule],
    excess: Callable[[list, list], int] = lambda stages, order: 0,
    wait: int = _WAIT,
) -> Schedule:
    """`promise` gives an `ii` that a graph has a schedule of, or None; `solve` the best schedule within so many decisions, or raises
    `Unschedulable`; `excess`, of stages and order, how many registers it lacks: as few as possible, then as few clocks.

    Where no turns fit, the schedule is that of the graph without: what lacks room is named where columns are given out.
    """
    graph = graph_of.graph
    if sum(place.words for place in graph_of.places) <= graph_of.room:
        return solve(graph, _DECISIONS)
    sets = enumerate(_weakest(graph_of) or _weakest(_by_last_use(graph_of)))
    promising = [(promised + wait * turns.waits, n, turns) for n, turns in sets if (promised := promise(turns.graph))]
    found = []
    for _, n, turns in sorted(promising, key=lambda entry: entry[:2])[:_SCHEDULES]:
        with contextlib.suppress(Unschedulable):
            best = solve(turns.graph, _FEW_DECISIONS)
            found.append((excess(best.stages, best.order), best.ii + wait * turns.waits, n, turns.graph))
    return solve(min(found, key=lambda entry: entry[:3])[3] if found else graph, _DECISIONS)


def _by_last_use(graph_of: LoopGraph) -> LoopGraph:
    """With the places that an iteration is done with first before others: scores come before the product that waits for what is made of
    them, whatever the program forms first."""
    return replace(graph_of, places=sorted(graph_of.places, key=lambda place: max(place.users)))


def _weakest(graph_of: LoopGraph) -> list[_Turns]:
    """All complete sets of turns, but for those that ask for all that another asks for."""
    kept: dict[tuple, _Turns] = {}
    for turns in _complete(_Turns(graph_of)):
        asks = tuple(turns.least[e.src][e.dst] for edges in turns.pairs.values() for e in edges)
        if not any(all(map(operator.le, asks, other)) for other in kept):
            kept = {other: of for other, of in kept.items() if not all(map(operator.le, other, asks))}
            kept[asks] = turns
    return list(kept.values())


def _complete(turns: _Turns):
    stack, left = [turns], _SETS
    while stack and left:
        turns, left = stack.pop(), left - 1
        crowd = turns.crowd()
        if crowd:
            stack += reversed([*turns.more(crowd)])
        else:
            yield turns


class _Turns:
    """A graph with some turns in it, and the pairs of places that still may need columns of their own."""

    def __init__(self, graph_of: LoopGraph):
        self.graph_of, self.graph = graph_of, graph_of.graph
        self.widths = [place.words for place in graph_of.places]
        self.waits = 0  # of a role for another, that only turns ask for
        self.apart: frozenset = frozenset()  # turns that are not to be added from here on: another set has them
        self.pairs = {(a, b, behind): self.graph_of.turns(graph_of.places[a], graph_of.places[b], behind)
                      for a, b in itertools.combinations(range(len(self.widths)), 2) for behind in (0, 1)}
        count = len(self.graph.ops)
        # [a][b]: whichever schedule is taken, a of an iteration is done before b of the iteration that many later
        self.least = [[0 if a == b else _NEVER for b in range(count)] for a in range(count)]
        for e in self.graph.edges:
            if e.ordered and e.src != e.dst:
                self._learn(e)
        self._find_conflicts()

    def crowd(self) -> list[int]:
        """Places that need more columns than there are; none if all fit."""
        found = columns.heaviest_clique(self.widths, self.conflicts)
        if sum(self.widths[i] for i in found) > self.graph_of.room:
            return found
        fits = columns.width_of(self.widths, columns.place(self.widths, self.conflicts)) <= self.graph_of.room
        return [] if fits else list(range(len(self.widths)))

    def more(self, crowd: list[int]):
        """With one pair of the crowd in turns, in each way that is possible."""
        tried = self.apart
        for key, edges in self.pairs.items():
            a, b, _ = key
            if a in crowd and b in crowd and b in self.conflicts[a] and key not in tried and all(map(self._can_wait, edges)):
                following = self._with(edges, tried)
                if following is not None:
                    yield following
                tried |= {key}

    def _can_wait(self, e: Edge) -> bool:
        """Not for what lies further back, though other waits may imply that within the loop: where it runs again, an earlier run's last
        iterations are waited for as well, which those do not imply."""
        return e.from_issue or e.distance <= MOST_BEHIND

    def _with(self, edges: list[Edge], apart: frozenset) -> _Turns | None:
        following = object.__new__(_Turns)
        following.graph_of, following.widths, following.pairs, following.apart = self.graph_of, self.widths, self.pairs, apart
        following.graph = replace(self.graph, edges=(*self.graph.edges, *edges))
        following.waits = self.waits + sum(not e.from_issue and self.least[e.src][e.dst] > e.distance for e in edges)
        following.least = [list(row) for row in self.least]
        for e in edges:
            if following.least[e.dst][e.src] + e.distance <= 0:
                return None  # they would wait for each other
            following._learn(e)
        following._find_conflicts()
        return following

    def _learn(self, e: Edge) -> None:
        least, behind = self.least, self.least[e.dst]
        for row in least:
            to = row[e.src] + e.distance
            if to < row[e.dst]:
                for b, further in enumerate(behind):
                    if to + further < row[b]:
                        row[b] = to + further

    def _find_conflicts(self) -> None:
        self.conflicts: list[set[int]] = [set() for _ in self.widths]
        for a, b in itertools.combinations(range(len(self.widths)), 2):
            if not any(all(self.least[e.src][e.dst] <= e.distance for e in self.pairs[a, b, behind]) for behind in (0, 1)):
                self.conflicts[a].add(b)
                self.conflicts[b].add(a)
