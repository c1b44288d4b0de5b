"""What it costs to let an operation of a scheduled loop wait for another one: nothing where they are in order anyway, else clocks.

An operation comes after those whose results it reads, after what its own stream ran before it, and after all that these come after. MMAs
of one thread are a stream where they finish in order (`mma.in_order`); copies, which run ahead, are none.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from . import loop_graph, modulo
from .loop_interval import DECISIONS
from .schedule import body_slots
from .streams import COMPUTE, MMA, REDUCE, stream_of

MOST_BEHIND = 2  # iterations that a role waits back for another: so many slots has a link (`handoffs.py`)
_NEVER = float("inf")
_LAST_RESORT = 100_000  # clocks


class ImpliedOrder:
    """Of one `scf.for` with `stage` and `order`."""

    def __init__(self, loop, target):
        self._slots = body_slots(loop)
        self._number = {slot.op: n for n, slot in enumerate(self._slots)}
        count = len(self._slots)
        # [a][b]: a of iteration i is done before b of iteration i + that many runs, and before all later ones
        self._from = [[0 if a == b else _NEVER for b in range(count)] for a in range(count)]
        self._graph_of = loop_graph.build(loop, target)
        ops, edges = loop_graph.data_edges(loop, target)
        self._index = {op: i for i, op in enumerate(ops)}
        self._clocks = self._interval()
        for e in edges:
            self._note(self._number[ops[e.src]], self._number[ops[e.dst]], e.distance)
        for a, b in itertools.permutations(range(count), 2):
            stream = stream_of(self._slots[a].op)
            if stream == stream_of(self._slots[b].op) and (stream in (COMPUTE, REDUCE) or (stream == MMA and target.mma.in_order)):
                self._note(a, b, self._slots[a].stage - self._slots[b].stage + (a > b))
        for k, a, b in itertools.product(range(count), repeat=3):
            self._note(a, b, self._from[a][k] + self._from[k][b])

    def _note(self, a: int, b: int, distance) -> None:
        self._from[a][b] = min(self._from[a][b], distance)

    def cost(self, order: int, iterations: int, op) -> int:
        """Of a wait before `op` for the operation of that order, of so many iterations before: 0 if the one is done anyway when the other
        runs. Else the clocks that it adds to a step, by the model of `tile-pipeline`, and the more besides, up to twice the number of
        operations, the closer they follow each other in the schedule: two waits cost more than one. Roles cannot wait for what lies more
        than `MOST_BEHIND` iterations back, so that such a wait is the last resort.
        """
        count = len(self._slots)
        a, b = next(n for n, slot in enumerate(self._slots) if slot.order == order), self._number[op]
        if self._from[a][b] <= iterations:
            return 0
        if iterations > MOST_BEHIND:
            return _LAST_RESORT
        between = (iterations + self._slots[b].stage - self._slots[a].stage) * count + b - a
        wait = self._graph_of.freed(self._index[self._slots[a].op], self._index[op], iterations)
        return 2 * count - min(between, count) + self._interval(wait) - self._clocks

    def _interval(self, *waits: modulo.Edge) -> int:
        """Clocks of a step that also waits for these; of one that cannot, very many."""
        graph = self._graph_of.graph
        stages = [op.stage.value for op in self._graph_of.ops]
        order = [self._index[slot.op] for slot in self._slots if self._index[slot.op] not in graph.free]
        try:
            return modulo.minimum_ii(replace(graph, edges=(*graph.edges, *waits)), stages, pinned_order=order, limit=DECISIONS).ii
        except modulo.Unschedulable:
            return _LAST_RESORT
