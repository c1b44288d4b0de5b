"""Column placement is exact: on random sets of tiles its width equals that of a search over all offsets."""

import itertools
import random

import pytest

from fa4c.passes.columns import place, place_within, width_of


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

    def exists(width: int, offsets: list[int]) -> bool:
        i = len(offsets)
        if i == len(widths):
            return True
        earlier = [*[set()] * i, {j for j in conflicts[i] if j < i}]
        tried = ([*offsets, at] for at in range(width - widths[i] + 1))
        return any(legal(widths, earlier, more) and exists(width, more) for more in tried)

    return next(width for width in itertools.count(max(widths)) if exists(width, []))


def legal(widths, conflicts, offsets) -> bool:
    return all(
        offsets[i] + widths[i] <= offsets[j] or offsets[j] + widths[j] <= offsets[i] for i, others in enumerate(conflicts) for j in others
    )


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_width_equals_brute_force(first):
    for seed in range(first, first + 50):
        widths, conflicts = random_set(seed)
        offsets = place(widths, conflicts)
        assert legal(widths, conflicts, offsets)
        assert width_of(widths, offsets) == least_width(widths, conflicts), seed


def test_the_least_cost_of_sharing_equals_brute_force():
    """Over all offsets that fit, of sets in which every second pair costs something, in room that is a little more than needed."""
    paid = 0
    for seed in range(60):
        widths, conflicts = random_set(seed)
        widths, conflicts = widths[:4], [{j for j in c if j < 4} for c in conflicts[:4]]
        pairs = [(i, j) for i, j in itertools.combinations(range(len(widths)), 2) if j not in conflicts[i]]
        costs = {pair: 1 + n % 3 for n, pair in enumerate(pairs) if n % 2 == 0}
        room = least_width(widths, conflicts) + seed % 2

        def cost(offsets, widths=widths, costs=costs) -> int:
            return sum(c for (i, j), c in costs.items() if offsets[i] < offsets[j] + widths[j] and offsets[j] < offsets[i] + widths[i])

        fitting = [o for o in itertools.product(*[range(room - w + 1) for w in widths]) if legal(widths, conflicts, o)]
        found = place_within(room, widths, conflicts, costs)
        assert found in [list(o) for o in fitting]
        assert cost(found) == min(map(cost, fitting)), seed
        paid += cost(found) > 0
    assert paid
    assert width_of([2, 2], place_within(3, [2, 2], [{1}, {0}], {})) == 4  # no room: the least width, for a message


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
