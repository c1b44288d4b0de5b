"""Copies of loaded tiles where shared memory is short, on random sizes and limits, against all numbers of copies there are."""

import itertools
import random
import re

import pytest
import tmem_backward as programs

from fa4c import targets
from fa4c.ir import tile
from fa4c.ir.context import new_context, parse_module
from fa4c.passes import loop_graph, shared_room
from fa4c.passes.registry import run_pipeline


def least_copies(load, readers) -> int:
    """A copy is overwritten so many iterations later: in a step behind the readers', or behind them in that step. (stage, order) each."""
    return next(n for n in itertools.count(1) if all((load[0] + n, load[1]) > reader for reader in readers))


def loads_of(module):
    (loop,) = loop_graph.pipelined_loops(module)
    operations = [op for op in loop.regions[0].blocks[0].operations if isinstance(op, tile.Scheduled)]
    return [(op, [o for o in operations if op.out in list(o.operation.operands)]) for op in operations if isinstance(op, tile.LoadOp)]


def place(op) -> tuple[int, int]:
    return op.stage.value, op.order.value


@pytest.mark.parametrize("seed", range(8))
def test_copies_equal_exhaustive_search(seed):
    """As many as fit: no load could have one more. None has fewer than its schedule needs, and what fits with these is never refused."""
    rng = random.Random(seed)
    d, dv = rng.choice([64, 96, 128]), rng.choice([32, 48, 64])
    schedule = programs.ONE_CTA_64 if seed % 2 else programs.ONE_CTA
    text = programs.program(d=d, dv=dv, schedule=schedule)
    text = re.sub(r'(tile.load.*buffers = )2', lambda load: f"{load[1]}{rng.randint(2, 4)}", text)
    with new_context() as context:
        module = parse_module(text, "five.mlir", context)
        kernel = next(op for op in module.body.operations if op.operation.name == "tile.kernel")
        loads = loads_of(module)
        before = [op.buffers.value for op, _ in loads]
        sizes = [op.out.type.shape[0] * op.out.type.shape[1] * op.out.type.element_type.width // 8 for op, _ in loads]
        others = shared_room.at_least(kernel) - sum(map(int.__mul__, before, sizes))
        needed = [least_copies(place(op), [place(reader) for reader in readers]) for op, readers in loads]

        def room(copies):
            return others + sum(map(int.__mul__, copies, sizes))

        limit = rng.randint(room(needed), room(before))
        with targets.override("sm_100a", smem_bytes=limit):
            run_pipeline(module, "tile-pipeline")
        found = [op.buffers.value for op, _ in loads_of(module)]
    there = [copies for copies in itertools.product(*map(range, needed, [n + 1 for n in before])) if room(copies) <= limit]
    assert tuple(found) in there
    assert not [copies for copies in there if copies != tuple(found) and all(map(int.__ge__, copies, found))]
