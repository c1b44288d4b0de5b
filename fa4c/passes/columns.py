"""Placing tiles side by side in a row of units so that those alive at one time do not overlap: the least width, exactly.

In some placement of least width every tile lies at 0 or right behind another one (else it could be moved left). Placed in the order of
their offsets, each then lies at the lowest offset that those placed before allow. So a search over orders, each tile as low as it goes,
finds the least width; a bound by what must lie side by side cuts it short. Meant for some ten tiles.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

_TRIES = 300  # sets of pairs that may share, before any placement that fits is good enough


def place(widths: Sequence[int], conflicts: Sequence[set[int]]) -> list[int]:
    """Offsets of least total width; `conflicts[i]` holds the tiles that must not overlap tile i."""
    return _Search(widths, conflicts).run()


def width_of(widths: Sequence[int], offsets: Sequence[int]) -> int:
    return max((o + w for o, w in zip(offsets, widths, strict=True)), default=0)


def place_within(room: int, widths: Sequence[int], conflicts: Sequence[set[int]], costs: Mapping[tuple[int, int], int]) -> list[int]:
    """Offsets within `room` under which pairs of tiles that share units cost least together; those of least width if there is not the room.

    `costs`: pair of tiles -> what it costs if they share units, above 0; all other pairs cost nothing.
    """
    least = place(widths, conflicts)
    if width_of(widths, least) > room:
        return least
    queue: list[tuple[int, tuple]] = [(0, ())]  # best first: cost, and the pairs that may share in spite of it
    seen = {()}
    for _ in range(_TRIES):
        cost, shared = heapq.heappop(queue)
        apart = [{*c} for c in conflicts]
        for i, j in costs.keys() - set(shared):
            apart[i].add(j)
            apart[j].add(i)
        crowd = heaviest_clique(widths, apart)
        if sum(widths[i] for i in crowd) <= room:
            offsets = place(widths, apart)
            if width_of(widths, offsets) <= room:
                return offsets
            crowd = range(len(widths))
        for pair in costs:
            following = tuple(sorted({*shared, pair}))
            if pair not in shared and pair[0] in crowd and pair[1] in crowd and following not in seen:
                seen.add(following)
                heapq.heappush(queue, (cost + costs[pair], following))
    return least


class _Search:
    def __init__(self, widths, conflicts):
        self.widths, self.conflicts = list(widths), [set(c) for c in conflicts]
        self.best: list[int] = []
        self.best_width = sum(widths) + 1
        self.bound = sum(self.widths[i] for i in heaviest_clique(self.widths, self.conflicts))
        self.seen: set = set()

    def run(self) -> list[int]:
        if not self.widths:
            return []
        self._extend({})
        return self.best

    def _extend(self, placed: dict[int, int]) -> None:
        if self.best_width == self.bound:
            return
        width = max((at + self.widths[i] for i, at in placed.items()), default=0)
        if width >= self.best_width:
            return
        if len(placed) == len(self.widths):
            self.best, self.best_width = [placed[i] for i in range(len(self.widths))], width
            return
        key = frozenset(placed.items())
        if key in self.seen:
            return
        self.seen.add(key)
        rest = [i for i in range(len(self.widths)) if i not in placed]
        for i in sorted(rest, key=lambda i: -self.widths[i]):
            self._extend({**placed, i: self._lowest(i, placed)})

    def _lowest(self, i: int, placed: dict[int, int]) -> int:
        at = 0
        for start, end in sorted((placed[j], placed[j] + self.widths[j]) for j in self.conflicts[i] if j in placed):
            if start < at + self.widths[i] and at < end:
                at = end
        return at


def heaviest_clique(widths: Sequence[int], conflicts: Sequence[set[int]]) -> list[int]:
    """The tiles, all in conflict with each other, that take most together: no placement is narrower."""
    best: list[int] = []
    most = 0

    def grow(members: list[int], total: int, candidates: list[int]) -> None:
        nonlocal best, most
        if total > most:
            best, most = members, total
        for position, i in enumerate(candidates):
            if total + sum(widths[j] for j in candidates[position:]) <= most:
                return
            grow([*members, i], total + widths[i], [j for j in candidates[position + 1 :] if j in conflicts[i]])

    grow([], 0, sorted(range(len(widths)), key=lambda i: -widths[i]))
    return best
