"""What it costs to let an operation of a scheduled loop wait for another one: nothing where they are in order anyway.

An operation comes after those whose results it reads, after what its own stream ran before it, and after all that these come after. MMAs
of one thread are a stream where they finish in order (`mma.in_order`); copies, which run ahead, are none.
"""

from __future__ import annotations

import itertools

from . import loop_graph
from .schedule import body_slots
from .streams import COMPUTE, MMA, REDUCE, stream_of

MOST_BEHIND = 1  # a link between two roles has one slot (`handoffs.py`)
_NEVER = float("inf")


class ImpliedOrder:
    """Of one `scf.for` with `stage` and `order`."""

    def __init__(self, loop, target):
        self._slots = body_slots(loop)
        self._number = {slot.op: n for n, slot in enumerate(self._slots)}
        count = len(self._slots)
        # [a][b]: a of iteration i is done before b of iteration i + that many runs, and before all later ones
        self._from = [[0 if a == b else _NEVER for b in range(count)] for a in range(count)]
        ops, edges = loop_graph.data_edges(loop, target)
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
        runs; else the more, up to twice, the closer they follow each other in the schedule. Two waits cost more than one. Roles cannot wait
        for what lies more than `MOST_BEHIND` iterations back, so that such a wait is the last resort.
        """
        count = len(self._slots)
        a, b = next(n for n, slot in enumerate(self._slots) if slot.order == order), self._number[op]
        if self._from[a][b] <= iterations:
            return 0
        if iterations > MOST_BEHIND:
            return 100 * count
        between = (iterations + self._slots[b].stage - self._slots[a].stage) * count + b - a
        return 2 * count - min(between, count)
