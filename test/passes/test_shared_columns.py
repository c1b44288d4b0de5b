"""Which tiles take turns in columns, chosen with the order: against trying every way for every pair of tiles."""

import itertools
import random
from dataclasses import replace

from fa4c.passes import columns, modulo, shared_columns
from fa4c.passes.implied_order import MOST_BEHIND
from fa4c.passes.loop_graph import LoopGraph, Place
from fa4c.passes.modulo import Edge, Graph, Op, Unschedulable
from fa4c.passes.op_costs import Cost


def random_loop(seed: int) -> LoopGraph:
    """Three products into columns of their own, each read by one computation; some products read what was computed before."""
    rng = random.Random(seed)
    ops, costs, edges, places = [], [], [], []
    for n in range(3):
        clocks = rng.randint(2, 6)
        ops += [Op(f"product {n}", "mma", 1, "tensor", clocks), Op(f"reader {n}", "compute", rng.randint(1, 5))]
        costs += [Cost("tensor", clocks, 1, clocks, asynchronous=True), Cost("fp32", ops[-1].issue, ops[-1].issue, ops[-1].issue)]
        edges.append(Edge(2 * n, 2 * n + 1, clocks, 0))
        edges.append(Edge(2 * n + 1, 2 * n, ops[-1].issue, 1))  # one copy
        if n and rng.random() < 0.7:
            source = rng.randrange(n)
            edges.append(Edge(2 * source + 1, 2 * n, ops[2 * source + 1].issue, 0))
        places.append(Place(rng.randint(1, 3), 2 * n, (2 * n, 2 * n + 1)))
    total, widest = sum(p.words for p in places), max(p.words for p in places)
    return LoopGraph(None, [None] * 6, costs, Graph(tuple(ops), tuple(edges)), [], places, rng.randint(widest, total), True)


def solve(graph: Graph, limit: int = 4000):
    return modulo.pipeline(graph, [0, 2, 4], limit=limit)


def of_all(loop: LoopGraph) -> int | None:
    """The least ii over all choices for all pairs: apart, or in turns in one way or the other."""
    pairs = list(itertools.combinations(range(3), 2))
    best = None
    for choice in itertools.product((None, 0, 1), repeat=3):
        ways = [(a, b, way) for (a, b), way in zip(pairs, choice, strict=True) if way is not None]
        turns = [loop.turns(loop.places[a], loop.places[b], way) for a, b, way in ways]
        graph = replace(loop.graph, edges=(*loop.graph.edges, *itertools.chain(*turns)))
        shared = {frozenset((a, b)) for a, b, _ in ways}
        apart = [{b for b in range(3) if b != a and frozenset((a, b)) not in shared} for a in range(3)]
        widths = [p.words for p in loop.places]
        if columns.width_of(widths, columns.place(widths, apart)) > loop.room or not can_wait(turns):
            continue
        try:
            found = solve(graph).ii
        except Unschedulable:
            continue
        best = found if best is None else min(best, found)
    return best


def can_wait(turns) -> bool:
    """No wait for what lies further back."""
    return all(e.distance <= MOST_BEHIND for e in itertools.chain(*turns))


def test_turns_equal_exhaustive_search():
    short, slower = 0, 0
    for seed in range(60):
        loop = random_loop(seed)
        want = of_all(loop)
        found = shared_columns.schedule(loop, lambda graph: modulo.promise(graph, [0, 2, 4]), solve, wait=0)
        if want is None:
            continue
        assert found.ii == want, seed
        short += sum(p.words for p in loop.places) > loop.room
        slower += want > solve(loop.graph).ii
    assert short > 30 and slower > 10  # columns decide, and cost
