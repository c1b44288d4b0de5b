"""What a loop may save of shared memory once its schedule is known, until its kernel's tiles fit.

First further copies of loaded tiles that the schedule does not need: where one less is enough, the one that costs the fewest clocks between
steps (`loop_interval.py`), else one of the widest. Then parts of sums on their way to global memory become narrower. Last, loaded tiles of
one size take turns in one buffer, the widest first (`turns`): what reads the one is issued before the other is loaded, and behind that
waits for it. A copy then no longer runs ahead of the loop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from ..ir import tile
from ..ir.mlir import i64
from . import loop_interval, shared_room
from .loop_graph import LoopGraph
from .modulo import Unschedulable


def make_room(graph_of: LoopGraph, places: Sequence[tuple[int, int]], target) -> None:
    """`places`: stage and order of each operation."""
    kernel = graph_of.loop.operation.parent
    while kernel.name != "tile.kernel":
        kernel = kernel.parent

    def lacking() -> int:
        return shared_room.at_least(kernel) - target.smem_bytes

    ops, needed = graph_of.ops, _needed_buffers(graph_of, places)
    widest_first = sorted(needed, key=lambda i: -shared_room.bytes_of(ops[i]))
    while lacking() > 0 and (further := [i for i in widest_first if ops[i].buffers.value > needed[i]]):
        enough = [i for i in further if shared_room.bytes_of(ops[i]) >= lacking()]
        i = min(enough, key=lambda i: _interval_with_less(graph_of, i, places, target)) if len(enough) > 1 else further[0]
        _set(ops[i], "buffers", ops[i].buffers.value - 1)
    for op in ops:
        staged = isinstance(op, tile.GlobalAddOp) and op.staged is not None and op.staged.value > shared_room.NARROW_PART
        if lacking() > 0 and staged and op.x.type.shape[1] % shared_room.NARROW_PART == 0:
            _set(op, "staged", shared_room.NARROW_PART)
    number = 0
    for a, b in itertools.combinations(widest_first, 2):
        if lacking() > 0 and _can_take_turns(graph_of, places, needed, a, b, target):
            _set(ops[a], "turns", number)
            _set(ops[b], "turns", number)
            number += 1


def copies_between(load: tuple[int, int], reader: tuple[int, int]) -> int:
    """Copies of a tile so that a load may run as early as its (stage, order) says, beside a reader of that stage and order."""
    return reader[0] - load[0] + (load[1] < reader[1])


def _needed_buffers(graph_of: LoopGraph, places) -> dict[int, int]:
    """load -> copies that its schedule needs."""
    needed = dict.fromkeys(graph_of.graph.free, 1)
    for e in graph_of.graph.edges:
        if e.dst in needed and e.src not in needed:
            needed[e.dst] = max(needed[e.dst], copies_between(places[e.dst], places[e.src]))
    return needed


def _interval_with_less(graph_of: LoopGraph, load: int, places, target) -> float:
    """Clocks between steps with one copy less of a loaded tile, and so many of the others as they have by now."""
    free = graph_of.graph.free
    copies = {i: graph_of.ops[i].buffers.value - (i == load) for i in free}
    edges = [replace(e, distance=copies[e.dst]) if e.dst in free and e.src not in free else e for e in graph_of.graph.edges]
    fewer = replace(graph_of, graph=replace(graph_of.graph, edges=tuple(edges)))
    stages, orders = zip(*places, strict=True)
    try:
        return loop_interval.interval(fewer, stages, sorted(range(len(orders)), key=orders.__getitem__), target)
    except Unschedulable:
        return math.inf


def _can_take_turns(graph_of: LoopGraph, places, needed, a: int, b: int, target) -> bool:
    """Whether two loads bring as many bytes, each for a role that issues MMAs, and a step has read the one before it loads the other."""
    spans = []
    for i in (a, b):
        op, readers = graph_of.ops[i], [r for r, other in enumerate(graph_of.ops) if graph_of.ops[i].out in list(other.operation.operands)]
        alone = all(isinstance(graph_of.ops[r], tile.MmaOp) and graph_of.ops[r].out.type.shape[0] <= target.mma.m for r in readers)
        if target.mma.accumulator != "tmem" or op.turns is not None or needed[i] > 1 or not alone or op.out.type.shape[0] == 1:
            return False
        if any(places[r][0] != places[i][0] for r in readers):
            return False
        spans.append((places[i][1], max(places[r][1] for r in readers)))
    if shared_room.bytes_of(graph_of.ops[a]) != shared_room.bytes_of(graph_of.ops[b]):
        return False
    return spans[0][1] < spans[1][0] or spans[1][1] < spans[0][0]


def _set(op, name: str, value: int) -> None:
    op.attributes[name] = i64(value)
