"""The clocks between steps of a loop whose schedule stands, waits for copies included.

Several row blocks side by side, as two query tiles of a forward in tensor memory: one warp issues the MMAs of the first block, then those
of the next; each block has compute warps of its own. So each operation but the loads, which serve all blocks, stands in the graph once a
block, with its share of the clocks: a block's compute runs at the rate of the whole SM, as if the others waited for MMAs meanwhile. What
the blocks ask of a unit together bounds the interval from below besides.

A load may run as soon as all blocks have read what lay in its place, `buffers` steps before, and the first block waits for it: with one
copy of a tile, as long as the MMAs between its last reader of a step and its first of the next are shorter than the copy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..ir import tile
from ..ir.tile import space_of
from . import modulo
from .loop_graph import LoopGraph
from .modulo import Graph, Op
from .op_costs import shared_bytes, unit_clocks, unit_work
from .streams import MMA

# Of a search for the least interval. The order is given, so few are open: of 60 steps of six kernels none is shorter with 3000.
DECISIONS = 50


def interval(graph_of: LoopGraph, stages: Sequence[int], order: Sequence[int], target) -> int:
    """`order`: the operations as a step issues them. Raises `Unschedulable` for one that no schedule has."""
    stepped = [i for i in order if i not in graph_of.graph.free]
    blocks = _row_blocks(graph_of, target)
    work = sum((unit_work(op, target) for op in graph_of.ops), Counter())
    shared = sum(shared_bytes(op, target) for op in graph_of.ops) / target.smem_bytes_per_clk
    together = math.ceil(max(shared, *unit_clocks(work, target).values()))
    return max(together, _minimum(graph_of.graph, stages, stepped, blocks))


def _row_blocks(graph_of: LoopGraph, target) -> int:
    """That a step has side by side."""
    rows = [op.out.type.shape[0] for op in graph_of.ops if isinstance(op, tile.MmaOp) and space_of(op.out.type) == "tmem"]
    return max([1, *(-(-n // target.mma.m) for n in rows)])


def _minimum(of_all: Graph, stages: Sequence[int], stepped: Sequence[int], blocks: int) -> int:
    if blocks == 1:
        return modulo.minimum_ii(of_all, stages, pinned_order=stepped, limit=DECISIONS).ii
    graph, place = _split(of_all, blocks)
    issued = [place[i][b] for b in range(blocks) for i in stepped]
    pinned = sorted(issued, key=lambda n: graph.ops[n].stream)  # keeps the order within a stream
    own = {n: stages[i] for i, places in enumerate(place) for n in places}
    return modulo.minimum_ii(graph, [own[n] for n in range(len(graph.ops))], pinned_order=pinned, limit=DECISIONS).ii


def _split(graph: Graph, blocks: int) -> tuple[Graph, list[tuple[int, ...]]]:
    """The graph of all blocks, and the places in it of each operation."""
    ops: list[Op] = []
    place = []
    for i, op in enumerate(graph.ops):
        own = [op] if i in graph.free else [_share_of(op, block, blocks) for block in range(blocks)]
        place.append(tuple(range(len(ops), len(ops) + len(own))))
        ops += own
    edges = []
    for e in graph.edges:
        latency = e.latency if e.src in graph.free or e.from_issue else -(-e.latency // blocks)
        pairs = {(place[e.src][b % len(place[e.src])], place[e.dst][b % len(place[e.dst])]) for b in range(blocks)}
        edges += [replace(e, src=src, dst=dst, latency=latency) for src, dst in sorted(pairs)]
    return Graph(tuple(ops), tuple(edges), frozenset(n for i in graph.free for n in place[i])), place


def _share_of(op: Op, block: int, blocks: int) -> Op:
    stream = op.stream if op.stream == MMA else f"{op.stream} {block}"
    issue = op.issue if op.asynchronous else -(-op.issue // blocks)
    return replace(op, stream=stream, issue=issue, duration=-(-op.duration // blocks))
