"""Compiles a file down to the warp level (or to what it is asked for) and puts together all that can be said of the result."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .. import targets
from ..ir import warp
from ..ir.mlir import ir
from ..lowering.compile import LEVELS, level_of, lowered
from ..passes._tile_map import operations_in
from . import launches as counting
from . import steps as stepping
from . import storage
from .changes import Watch

SCHEMA = 1
# Checks change nothing, and are `fa4c check`'s work.
CHECKS = ("warp-check",)


def explain(text: str, filename: str, *, sizes: Mapping[str, int] | None = None, level: str = "warp", changes: bool = True,
            disabled=(), print_after=None, **options) -> dict:
    """Plain data, as docs/explain.md says. `sizes`: a problem whose executed counts are wanted; `level`: where to stop, "tile" or "warp";
    `changes`: whether to say what each pass did; the rest as in `lowering.compile.lowered`. Raises as that does.
    """
    watch = Watch() if changes else None

    def after(item, module):
        for look in (watch, print_after):
            if look is not None:
                look(item, module)

    with lowered(text, filename, goal=level, disabled=(*disabled, *CHECKS), print_before=watch and watch.start, print_after=after,
                 **options) as result:
        module = result.module
        reached = level_of(module)
        found = {
            "schema": SCHEMA, "file": filename, "target": result.target, "direction": options.get("direction", "fwd"), "level": reached,
            "rates": _rates(targets.get(result.target)), "kernels": _kernels(module, result.levels.get("tile"), filename),
        }
        if watch is not None:
            found["passes"] = watch.passes
        if sizes is not None:
            found |= {"sizes": dict(sizes), "launches": _launches(module, sizes)}
        return found


def _rates(target) -> dict:
    return {"mma_flops": target.mma_flops, "mufu": target.mufu, "fp32": target.fp32, "alu": target.alu,
            "smem_bytes_per_clk": target.smem_bytes_per_clk, "num_sms": target.num_sms, "clock_hz": target.clock_hz}


def _kernels(module, tile_text: str | None, filename: str) -> list[dict]:
    """Steps and storage; schedule and life spans of a kernel at the warp level are those that it had at the tile level."""
    kernels = storage.of_kernels(module)
    found = stepping.steps(module)
    above, waits_for_copies = None, {op.sym_name.value: _one_role(op) for op in module.body.operations if isinstance(op, warp.KernelOp)}
    if tile_text is not None and level_of(module) == LEVELS[-1]:
        above = ir.Module.parse(tile_text, module.context)
    earlier = stepping.steps(above) if above is not None else []
    memory = {k["name"]: k["tmem"] for k in storage.of_kernels(above)} if above is not None else {}
    for kernel in kernels:
        own, of_tile = ([s for s in several if s.kernel == kernel["name"]] for several in (found, earlier))
        for n, step in enumerate(own):
            if n < len(of_tile) and not step.schedule:
                step.schedule, step.interval = of_tile[n].schedule, of_tile[n].interval
                if step.interval is not None and waits_for_copies[kernel["name"]]:
                    step.interval += of_tile[n].copies
            if step.interval is not None:
                step.interval = max(step.interval, math.ceil(step.clocks[step.bound]))
        kernel["steps"] = [_plain(step) for step in own]
        kernel["tmem"] = memory.get(kernel["name"]) or kernel["tmem"]
    return kernels


def _one_role(kernel) -> bool:
    """Whether who multiplies also asks for the tiles, and so waits for them."""
    kinds = [{type(op) for op in operations_in(role)} for role in kernel.body.blocks[0].operations if isinstance(role, warp.RoleOp)]
    return any(warp.TmaLoadOp in found and warp.WgmmaOp in found for found in kinds)


def _plain(step: stepping.Step) -> dict:
    return {"loop": step.loop, "clocks": step.clocks, "bound": step.bound, "bound_clocks": step.clocks[step.bound],
            "interval": step.interval, "counts": _counts(step.counts), "schedule": step.schedule}


def _counts(counts: Mapping) -> dict:
    """By name, without zeros; conversions of pairs count as halves, which hardly ever leaves one."""
    return {key: int(n) if n == int(n) else n for key, n in sorted(counts.items()) if n}


def _launches(module, sizes: Mapping[str, int]) -> list[dict]:
    """Each launch's counts; `clocks`: those of one SM if all SMs had the same share; `seconds`: no launch is faster than its bound."""
    target, found = targets.of(module), []
    for launch in counting.launches(module, sizes):
        clocks = {key: round(number / target.num_sms, 3) for key, number in stepping.clocks_of(launch.counts, target).items()}
        bound = stepping.bound_of(clocks)
        found.append({"kernel": launch.kernel, "grid": list(launch.grid), "counts": _counts(launch.counts),
                      "sometimes": _counts(launch.sometimes), "clocks": clocks, "bound": bound,
                      "seconds": clocks[bound] / target.clock_hz})
    return found
