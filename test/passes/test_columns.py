"""Column placement is exact: on random sets of tiles its width equals that of a search over all offsets."""

import itertools
import random

import pytest

from fa4c.passes.columns import place, width_of


def random_set(seed: int) -> tuple[list[int], list[set[int]]]:
    """Life spans on a small time axis, some tiles with two of them (as around a loop's back edge), and widths."""
    rng = random.Random(seed)
    count = rng.randint(1, 6)
    widths = [rng.randint(1, 4) for _ in range(count)]
    spans = []
    for _ in range(count):
        own = []
        for _ in range(rng.choice((1, 1, 2))):
            first = rng.randint(0, 9)
            own.append((first, first + rng.randint(0, 4)))
        spans.append(own)
    meet = [[any(a <= d and c <= b for a, b in x for c, d in y) for y in spans] for x in spans]
    return widths, [{j for j in range(count) if j != i and meet[i][j]} for i in range(count)]


def least_width(widths, conflicts) -> int:
    """By trying every offset of every tile, width after width."""
    for width in range(max(widths), sum(widths) + 1):
        ranges = [range(width - w + 1) for w in widths]
        if any(legal(widths, conflicts, offsets) for offsets in itertools.product(*ranges)):
            return width
    raise AssertionError("side by side all fit")


def legal(widths, conflicts, offsets) -> bool:
    return all(
        offsets[i] + widths[i] <= offsets[j] or offsets[j] + widths[j] <= offsets[i] for i in range(len(widths)) for j in conflicts[i]
    )


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_width_equals_brute_force(first):
    for seed in range(first, first + 50):
        widths, conflicts = random_set(seed)
        offsets = place(widths, conflicts)
        assert legal(widths, conflicts, offsets)
        assert width_of(widths, offsets) == least_width(widths, conflicts), seed


def test_first_fit_would_not_do():
    """A set on which placing the widest first, as low as it goes, needs more: the search is needed."""
    found = 0
    for seed in range(300):
        widths, conflicts = random_set(seed)
        placed: dict = {}
        for i in sorted(range(len(widths)), key=lambda i: -widths[i]):
            there = [(placed[j], placed[j] + widths[j]) for j in conflicts[i] if j in placed]
            spots = sorted({0, *(end for _, end in there)})
            placed[i] = next(at for at in spots if all(at + widths[i] <= first or end <= at for first, end in there))
        found += width_of(widths, [placed[i] for i in range(len(widths))]) > width_of(widths, place(widths, conflicts))
    assert found > 0


def test_no_tiles():
    assert place([], []) == []
