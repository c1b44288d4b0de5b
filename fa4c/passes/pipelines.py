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
    "tile-lpt-grid,tile-persistent",
    "tile to warp": "warp-specialize,cse",
    "warp": "warp-insert-barriers,warp-check",
}

# A scale that is the softmax's own saves a map in its derivative; masks are simplified in the orientation that the block loop has.
SM90A_BACKWARD = {
    "attn": "attn-fold-scale,attn-derive-backward,attn-exp-to-exp2,attn-split-backward,attn-outline-kernels,"
            "attn-transpose-recompute,attn-simplify-mask",
    "attn to tile": "attn-to-tile",
    "tile": "tile-pipeline,tile-lpt-grid,tile-persistent",
    "tile to warp": "warp-specialize,cse",
    "warp": "warp-insert-barriers,warp-check",
}

# Where CTAs add to one dQ they take turns. Gradients of tensors that all CTAs share are refused (`lowering/compile.py`).
SM90A_BACKWARD_DETERMINISTIC = {
    **SM90A_BACKWARD,
    "tile": "tile-deterministic-reduction,tile-pipeline,tile-lpt-grid,tile-persistent",
}

SM100A_BACKWARD = {
    "attn": "attn-fold-scale,attn-derive-backward,attn-exp-to-exp2,attn-split-backward,attn-outline-kernels,"
            "attn-transpose-recompute,attn-simplify-mask",
    "attn to tile": "attn-to-tile",
    "tile": "tile-split-2cta{exchange=true},tile-insert-dsmem-exchange,tile-accumulate-in-tmem,tile-pipeline,tile-alias-tmem,"
            "tile-lpt-grid,tile-persistent",
    "tile to warp": "warp-specialize,cse",
    "warp": "warp-insert-barriers,warp-check",
}

PIPELINES = {
    ("sm_90a", "fwd"): SM90A_FORWARD,
    ("sm_90a", "bwd"): SM90A_BACKWARD,
    ("sm_100a", "fwd"): SM100A_FORWARD,
    ("sm_100a", "bwd"): SM100A_BACKWARD,
}

# Where sums of several CTAs have a fixed order. A target and direction that is not here has no such sum.
DETERMINISTIC = {("sm_90a", "bwd"): SM90A_BACKWARD_DETERMINISTIC}


def pipeline(target: str, direction: str, *, entry: str = "attn", emit: str = "warp", deterministic: bool = False) -> str:
    """The text of the passes from a module of level `entry` to one of level `emit`, both ends included."""
    parts = PIPELINES.get((target, direction))
    if deterministic:
        parts = DETERMINISTIC.get((target, direction), parts)
    if parts is None:
        known = ", ".join(f"{t} {d}" for t, d in PIPELINES)
        raise Diagnostic(f"there is no pipeline for {target}, direction {direction}", why=f"there are: {known}",
                         fix="choose one of them, or write the passes yourself with --pass-pipeline")
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
