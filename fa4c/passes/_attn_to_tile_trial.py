"""What a block shape takes by the model of `tile-pipeline`: the kernel that it makes is built and scheduled, aside, and its step looked at.

For shapes that no formula compares: a wider block with fewer copies of what it loads against a narrower one with more. Which copies are
left out, and how long MMAs wait for the one that is left, comes of the schedule (`shared_savings.py`, `loop_interval.py`).
"""

import math

from ..ir.attn_signature import attn_functions
from ..ir.diagnostics import Diagnostic
from ..ir.mlir import ir
from . import loop_graph, loop_interval, shared_room
from ._attn_to_tile_shape import Shape
from .modulo import Unschedulable
from .registry import run_pipeline

# What makes the step of a loop where MMAs sum in tensor memory: of the pipelines' passes (`pipelines.py`, a test compares) those that form
# it, by their defaults. What a user changes of the others does not change the shape. A forward takes a softmax, a backward none.
TO_SCHEDULE = {
    True: "tile-accumulate-in-tmem,tile-conditional-rescale,tile-exp-emulation,tile-pipeline,tile-alias-tmem",
    False: "tile-row-sum-by-mma,tile-accumulate-in-tmem,tile-join-maps,tile-pipeline,tile-alias-tmem",
}


def clocks_of_a_score(function, target, shape: Shape) -> float:
    """Of `function`'s kernel with this shape; infinite where its tiles do not fit whatever copies are left out."""
    module = _alone(function)
    passes = TO_SCHEDULE[any(op.operation.name == "attn.softmax" for op in function.operation.regions[0].blocks[0].operations)]
    try:
        run_pipeline(module, f"attn-to-tile{{block-m={shape.block_m} block-n={shape.block_n}}},{passes}", verified=True)
        clocks = sum(_interval(loop, target) for loop in loop_graph.pipelined_loops(module))
    except (Diagnostic, Unschedulable):
        return math.inf
    fits = all(shared_room.at_least(op) <= target.smem_bytes for op in module.body.operations if op.operation.name == "tile.kernel")
    return clocks / (shape.block_m * shape.block_n) if fits else math.inf


def _alone(function) -> ir.Module:
    """A copy of the module with this function only."""
    whole = function.operation.parent.opview
    with function.operation.context:
        module = ir.Module.parse(str(whole))
    for original, copy in zip(attn_functions(whole), attn_functions(module), strict=True):
        if original != function:
            copy.operation.erase()
    return module


def _interval(loop, target) -> int:
    graph_of = loop_graph.build(loop, target).with_reuse()
    order = sorted(range(len(graph_of.ops)), key=lambda i: graph_of.ops[i].order.value)
    return loop_interval.interval(graph_of, [op.stage.value for op in graph_of.ops], order, target)
