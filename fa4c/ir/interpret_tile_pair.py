"""Runs the two CTAs of a pair side by side: each with memory of its own, meeting where an operation takes something of both.

Neither sees the other's memory otherwise. What one brings to the n-th meeting is what its memory holds then, so a half that is loaded from
a wrong place, or overwritten too soon, gives wrong numbers in both.
"""

from collections.abc import Iterator

import numpy as np

from .diagnostics import op_diagnostic


class Pair:
    """Two CTAs; `side(rank)` is what one of them knows of it."""

    def __init__(self):
        self._brought = ([], [])  # what waits for CTA 0, and for CTA 1
        self._ended = [False, False]

    def side(self, rank: int) -> "Side":
        return Side(self, rank)

    def run(self, first: Iterator, second: Iterator) -> None:
        """Both to their ends, an operation each in turn."""
        running = {0: first, 1: second}
        while running:
            for rank, steps in list(running.items()):
                try:
                    next(steps)
                except StopIteration:
                    del running[rank]
                    self._ended[rank] = True

    def meet(self, rank: int, op, operands: list) -> Iterator:
        """What the peer brings to the same meeting."""
        self._brought[1 - rank].append((op, operands))
        while not self._brought[rank]:
            if self._ended[1 - rank]:
                raise op_diagnostic(op, "waits for the other CTA of the pair, which has ended",
                                    why="both do the same operations together, equally often",
                                    fix="let no loop bound differ within a pair")
            yield
        other, theirs = self._brought[rank].pop(0)
        if other != op:
            raise op_diagnostic(op, f"meets '{other.operation.name}' of the other CTA of the pair", why="both do the same in one order")
        return theirs


class Side:
    def __init__(self, pair: Pair, rank: int):
        self._pair, self.rank = pair, rank

    def operands(self, op, own: list) -> Iterator:
        """The operands of an operation of both CTAs as this one computes with them."""
        theirs = yield from self._pair.meet(self.rank, op, own)
        first, second = (own, theirs) if self.rank == 0 else (theirs, own)
        return _COMBINE[op.operation.name](op, self.rank, first, second)


def _mma(op, rank: int, first: list, second: list) -> list:
    """This CTA's rows of a, and the columns of b that both have."""
    a, _, *acc = (first, second)[rank]
    return [a, np.concatenate([first[1], second[1]], axis=0 if op.transpose_b.value else 1), *acc]


def _exchange(op, rank: int, first: list, second: list) -> list:
    axis = op.axis.value
    halves = [np.split(operands[0], 2, axis=axis)[rank] for operands in (first, second)]
    return [np.concatenate(halves, axis=1 - axis)]


_COMBINE = {"tile.mma": _mma, "tile.exchange": _exchange}
