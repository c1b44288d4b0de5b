"""The pipelines: which passes make a kernel, by target and direction. The compiler on one screen.

Each has a part for every level and one for every step down. A file of the tile level starts at `tile`; `--emit tile` ends there.
"""

from __future__ import annotations

from ..ir.diagnostics import Diagnostic

PARTS = ("attn", "attn to tile", "tile", "tile to warp", "warp")

SM90A_FORWARD = {
    "attn": "attn-simplify-mask,attn-fold-scale",
    "attn to tile": "attn-to-tile",
    "tile": "tile-conditional-rescale,tile-exp-emulation,tile-pipeline,tile-l2-hints,tile-multicast,tile-lpt-grid,tile-persistent",
    "tile to warp": "warp-specialize,cse",
    "warp": "warp-ping-pong,warp-insert-barriers,warp-check",
}

# As on Hopper, but sums lie in tensor memory, whose columns are given out once the order of a step is known.
SM100A_FORWARD = {
    "attn": "attn-simplify-mask,attn-fold-scale",
    "attn to tile": "attn-to-tile",
    "tile": "tile-split-2cta,tile-accumulate-in-tmem,tile-conditional-rescale,tile-exp-emulation,tile-pipeline,tile-alias-tmem,"
    "tile-l2-hints,tile-lpt-grid,tile-persistent",
    "tile to warp": "warp-specialize,cse",
    "warp": "warp-insert-barriers,warp-check",
}

# A scale that is the softmax's own saves a map in its derivative; masks are simplified in the orientation that the block loop has.
SM90A_BACKWARD = {
    "attn": "attn-fold-scale,attn-derive-backward,attn-sink-scale,attn-exp-to-exp2,attn-split-backward,attn-outline-kernels,"
            "attn-transpose-recompute,attn-simplify-mask",
    "attn to tile": "attn-to-tile",
    "tile": "tile-row-sum-by-mma,tile-pipeline,tile-l2-hints,tile-lpt-grid,tile-persistent",
    "tile to warp": "warp-specialize,cse",
    "warp": "warp-interleave-columns,warp-insert-barriers,warp-check",
}

# Where CTAs add to one dQ they take turns; sums of all of them to one number are stored and added up by kernels behind.
SM90A_BACKWARD_DETERMINISTIC = {
    **SM90A_BACKWARD,
    "tile": "tile-row-sum-by-mma,tile-deterministic-reduction,tile-pipeline,tile-l2-hints,tile-lpt-grid,"
            "tile-persistent",
}

SM100A_BACKWARD = {
    "attn": "attn-fold-scale,attn-derive-backward,attn-sink-scale,attn-exp-to-exp2,attn-early-factors,attn-split-backward,"
            "attn-outline-kernels,attn-transpose-recompute,attn-simplify-mask",
    "attn to tile": "attn-to-tile",
    "tile": "tile-split-2cta{exchange=true},tile-insert-dsmem-exchange,tile-row-sum-by-mma,tile-accumulate-in-tmem,tile-join-maps,"
            "tile-pipeline,tile-alias-tmem,tile-l2-hints,tile-lpt-grid,tile-persistent",
    "tile to warp": "warp-specialize,cse",
    "warp": "warp-insert-barriers,warp-check",
}

SM100A_BACKWARD_DETERMINISTIC = {
    **SM100A_BACKWARD,
    "tile": "tile-split-2cta{exchange=true},tile-insert-dsmem-exchange,tile-row-sum-by-mma,tile-accumulate-in-tmem,tile-join-maps,"
            "tile-deterministic-reduction,tile-pipeline,tile-alias-tmem,tile-l2-hints,tile-lpt-grid,tile-persistent",
}

PIPELINES = {
    ("sm_90a", "fwd"): SM90A_FORWARD,
    ("sm_90a", "bwd"): SM90A_BACKWARD,
    ("sm_100a", "fwd"): SM100A_FORWARD,
    ("sm_100a", "bwd"): SM100A_BACKWARD,
}

# One input, three generations of kernels, to replay how the bottleneck moved (docs/passes.md). Each is like its namesake in what overlaps
# with what; none is a copy of it.
#   fa2  one role loads, multiplies and computes, one after the other; no operation of a block runs beside another block's
#   fa3  loads in a warp of their own; a block's exponentials under the MMAs of another one; warpgroups in turns
#   fa4  sums in tensor memory, two query tiles in flight, rescaling under a vote, exponentials in part on the FMA units
FA2_FORWARD = {
    **SM90A_FORWARD,
    "tile": "tile-pipeline{stages=1},tile-l2-hints",
    "tile to warp": "warp-specialize{roles=one},cse",
    "warp": "warp-insert-barriers,warp-check",
}
FA2_BACKWARD = {
    **SM90A_BACKWARD,
    "attn to tile": "attn-to-tile{add-buffers=1}",
    "tile": "tile-row-sum-by-mma,tile-pipeline{stages=1},tile-l2-hints",
    "tile to warp": "warp-specialize{roles=one},cse",
}
FA3_FORWARD = {**SM90A_FORWARD, "tile": "tile-pipeline,tile-l2-hints,tile-lpt-grid,tile-persistent"}

GENERATIONS = {
    "fa2": {("sm_90a", "fwd"): FA2_FORWARD, ("sm_90a", "bwd"): FA2_BACKWARD},
    "fa3": {("sm_90a", "fwd"): FA3_FORWARD, ("sm_90a", "bwd"): SM90A_BACKWARD},
    "fa4": {("sm_100a", "fwd"): SM100A_FORWARD, ("sm_100a", "bwd"): SM100A_BACKWARD},
}

# Where sums of several CTAs have a fixed order. A target and direction that is not here has no such sum.
DETERMINISTIC = {("sm_90a", "bwd"): SM90A_BACKWARD_DETERMINISTIC, ("sm_100a", "bwd"): SM100A_BACKWARD_DETERMINISTIC}


def pipeline(target: str, direction: str, *, entry: str = "attn", emit: str = "warp", deterministic: bool = False,
             generation: str | None = None) -> str:
    """The text of the passes from a module of level `entry` to one of level `emit`, both ends included."""
    there = PIPELINES if generation is None else GENERATIONS[generation]
    parts = there.get((target, direction))
    if deterministic and generation is None:
        parts = DETERMINISTIC.get((target, direction), parts)
    if parts is None:
        known = ", ".join(f"{t} {d}" for t, d in there)
        raise Diagnostic(f"there is no pipeline{f' of {generation}' if generation else ''} for {target}, direction {direction}",
                         why=f"there are: {known}", fix="choose one of them, or write the passes yourself with --pass-pipeline")
    first, last = PARTS.index(entry), PARTS.index(emit)
    if first > last:
        raise Diagnostic(f"a file of the {entry} level cannot be brought to the {emit} level", why="passes go down only",
                         fix=f"emit {entry} or something below it")
    wanted = PARTS[first:last + 1]
    missing = next((name for name in wanted if name not in parts), None)
    if missing is not None:
        raise Diagnostic(f"direction {direction} has no passes for '{missing}' yet", why=f"for {target} it reaches: {', '.join(parts)}",
                         fix=f"--emit {list(parts)[-1]}, or write the passes yourself with --pass-pipeline")
    return ",".join(parts[name] for name in wanted if parts[name])


def target_of(generation: str) -> str:
    """A target that has what a generation needs."""
    return next(iter(GENERATIONS[generation]))[0]
