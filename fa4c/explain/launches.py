"""What a launch of a problem executes: the host's scalars, then each kernel's control flow, for all CTAs at once.

Scalars are NumPy arrays with one entry for each CTA, so that a loop's trip count may differ between CTAs; tiles are not computed. Only
scalars that control flow needs are evaluated, and a loop is gone through trip by trip only where something inside depends on the trip.
What depends on data (a rescaling under a vote) is counted apart, as `sometimes`: the counts are what surely runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from .. import targets
from ..ir import scalar, tile, tile_pair, warp, warp_tmem
from ..ir.diagnostics import nearest, op_diagnostic
from ..ir.mlir import ir
from ..ir.tile import space_of
from . import work as rules
from .folding import Known

_AT_ONCE = 1 << 18  # trips of CTAs, in an array that a core's cache holds
_MOST_TRIPS = 1 << 28  # five seconds or so
_MOST_CTAS = 1 << 22  # about a gigabyte


@dataclass
class Launch:
    """One launch. `counts` over all CTAs; `sometimes`: at most, if every vote were taken."""

    kernel: str
    grid: tuple[int, int, int]
    counts: Counter = field(default_factory=Counter)
    sometimes: Counter = field(default_factory=Counter)


def launches(module, sizes: Mapping[str, int]) -> list[Launch]:
    """Of a module of the tile or warp level, for problem sizes by name (b, hq, hkv, m, n, and whatever else its tensors have).

    Raises Diagnostic where a size is missing, or where control flow depends on data.
    """
    operations = list(module.body.operations)
    host = next((op for op in operations if isinstance(op, tile.HostOp)), None)
    if host is None:
        raise op_diagnostic(module.operation, "has no tile.host", why="it says which kernels run, on what grids", fix="leave out --shape")
    kernels = {op.sym_name.value: op for op in operations if isinstance(op, (tile.KernelOp, warp.KernelOp))}
    target, found = targets.of(module), []
    env = dict(zip(host.body.blocks[0].arguments, _shapes(host, sizes), strict=True))
    _run_host(host.body.blocks[0], env, target, kernels, found)
    return found


# ------------------------------------------------------------------------------------------------------------------------ host


_ALWAYS = ("b", "hq", "hkv", "m", "n")  # sizes that any problem may name, whether these tensors have them or not


def _shapes(host, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    known = {dim.value for entry in host.tensors for dim in entry["dims"]}
    stray = next((name for name in sizes if name not in known and name not in _ALWAYS), None)
    if stray is not None:
        raise op_diagnostic(host, f"has no size {stray}", why=f"its tensors have: {', '.join(sorted(known))}", fix=nearest(stray, known))
    shapes = []
    for argument, entry in zip(host.body.blocks[0].arguments, host.tensors, strict=True):
        kind, shape = argument.type, []
        for axis, dim in enumerate(entry["dims"]):
            if kind.is_dynamic_dim(axis) and dim.value not in sizes:
                raise op_diagnostic(host, f"has the tensor '{entry['name'].value}' of unknown size {dim.value}",
                                    why=f"given are: {', '.join(f'{name}={size}' for name, size in sizes.items())}",
                                    fix=f"add {dim.value}=SIZE to --shape")
            shape.append(sizes[dim.value] if kind.is_dynamic_dim(axis) else kind.shape[axis])
        shapes.append(tuple(shape))
    return shapes


def _run_host(block, env: dict, target, kernels: dict, found: list) -> None:
    for op in block.operations:
        operation = op.operation
        if isinstance(op, tile.LaunchOp):
            given = [env[v] for v in [*op.tensors, *op.scalars]]
            found.append(_run_kernel(kernels[op.kernel.value], [int(env[v]) for v in op.grid], given, target))
        elif operation.name == "scf.if":
            taken = 0 if env[operation.operands[0]] else 1
            if taken < len(operation.regions) and len(operation.regions[taken].blocks):
                _run_host(operation.regions[taken].blocks[0], env, target, kernels, found)
        else:
            env.update(zip(operation.results, _host_values(op, env, target), strict=True))


def _host_values(op, env: dict, target) -> list:
    if isinstance(op, tile.DimOp):
        return [np.int64(env[op.tensor][op.axis.value])]
    if isinstance(op, tile.DeviceOp):
        return [np.int64(getattr(target, op.prop.value))]
    if isinstance(op, tile.Pow2FloorOp):
        return [np.int64(1 << max(int(env[op.x]), 1).bit_length() - 1)]
    return scalar.apply(op, [env[v] for v in op.operation.operands], scalar.KERNEL) if len(op.operation.results) else []


# ---------------------------------------------------------------------------------------------------------------------- kernel


def _run_kernel(kernel, grid: list[int], given: list, target) -> Launch:
    launch = Launch(kernel.sym_name.value, tuple(grid))
    block = kernel.body.blocks[0]
    ctas = _count_of(kernel, math.prod(grid), "CTAs")
    run = _Run(block, target, launch, grid, kernel.cluster.value)
    if ctas:
        run.block(block, dict(zip(block.arguments, given, strict=True)), np.ones(ctas, np.int64), None)
    return launch


def _count_of(op, count: int, what: str) -> int:
    if count > _MOST_CTAS:
        raise op_diagnostic(op, f"has {count:,} {what}", why=f"each is looked at, up to {_MOST_CTAS:,}",
                            fix="choose smaller sizes (--shape); what one batch entry executes, each does")
    return count


class _Run:
    """Goes through a kernel once for all CTAs."""

    def __init__(self, block, target, launch: Launch, grid: list[int], cluster: int):
        self.target, self.launch = target, launch
        self.places = np.indices(grid[::-1]).reshape(3, -1)[::-1]  # x, y and z of each CTA
        self.ranks = self.places[0] % cluster
        self.needed = _needed(block)
        self.surely = True
        self.known = Known()

    def block(self, block, env: dict, times: np.ndarray, role) -> None:
        """`times`: how often each CTA runs the block."""
        for op in block.operations:
            name = op.operation.name
            if name == "scf.for":
                self._loop(op, env, times, role)
            elif name == "scf.if":
                self._branch(op, env, times, role)
            elif isinstance(op, (tile.WalkOp, warp.WalkOp)):
                self._walk(op, env, times, role)
            elif isinstance(op, warp.RoleOp):
                self.known = Known()
                runs = times * (self.ranks == 0) if op.leader.value else times
                self._add(rules.address_words(op, op.active.value), int(runs.sum()))
                self.block(op.body.blocks[0], env, runs, rules.Role.of(op))
            elif isinstance(op, warp_tmem.TmemFreeOp):
                self._add(rules.address_words(op, 1), int(times.sum()))
            elif isinstance(op, warp.ElectOp):
                self.block(op.body.blocks[0], env, times, role)
            elif isinstance(op, warp.SlotOwnerOp):
                self.block(op.body.blocks[0], env, times, replace(role, warps=1))
            elif isinstance(op, warp.WhenOp):
                self._when(op, env, times, role)
            elif any(result in self.needed for result in op.operation.results):
                env.update(zip(op.operation.results, self._values(op, env), strict=True))
            else:
                self._count(op, env, times, role)

    def _values(self, op, env: dict) -> list:
        if isinstance(op, tile.ProgramIdOp):
            return list(self.places)
        if isinstance(op, tile_pair.CtaRankOp):
            return [self.ranks]
        if isinstance(op, tile.DimOp):
            return [np.int64(env[op.tensor][op.axis.value])]
        if isinstance(op, tile.LoadElementOp):
            raise op_diagnostic(op, "decides what runs", why="what it reads is known on the device only", fix="leave out --shape")
        return scalar.apply(op, [env[v] for v in op.operation.operands], scalar.KERNEL)

    def _branch(self, op, env, times, role) -> None:
        taken = np.asarray(env[op.operation.operands[0]]).astype(np.int64)
        for region, share in zip(op.operation.regions, (taken, 1 - taken), strict=False):
            if len(region.blocks):
                self._guarded(region.blocks[0], env, times * share, role)

    def _when(self, op, env, times, role) -> None:
        if space_of(op.cond.type) is None:
            self._guarded(op.body.blocks[0], env, times * np.asarray(env[op.cond]).astype(np.int64), role)
            return
        before, self.surely = self.surely, False
        self._guarded(op.body.blocks[0], env, times, role)
        self.surely = before

    def _guarded(self, block, env, times, role) -> None:
        before = self.known.values.copy()
        self.block(block, env, times, role)
        self.known.values = before
        self.known.forget_written(block)

    def _loop(self, op, env, times, role) -> None:
        lower, upper, step = (np.asarray(env[v]) for v in list(op.operation.operands)[:3])
        body = op.regions[0].blocks[0]
        self.known.forget_written(body)
        index, *carried = body.arguments
        trips = np.maximum(-((lower - upper) // step), 0)
        if not self._depends(body, [index, *carried]):
            self.block(body, env, times * trips, role)
            return
        if not any(v in self.needed for v in carried) and not any(isinstance(op, _OF_A_CTA) for op in _operations(body)):
            self._trips_at_once(body, env, (lower, step, trips), times, role)
            return
        env.update(zip(carried, [env.get(v) for v in list(op.operation.operands)[3:]], strict=True))
        yields = list(list(body.operations)[-1].operation.operands)
        for k in range(int(trips.max(initial=0))):
            env[index] = lower + k * step
            self.block(body, env, times * (trips > k), role)
            later = [np.where(trips > k, env[new], env[old]) if old in self.needed else None
                     for old, new in zip(carried, yields, strict=True)]
            env.update(zip(carried, later, strict=True))
        env.update(zip(op.operation.results, [env[v] for v in carried], strict=True))

    def _trips_at_once(self, body, env, bounds, times, role) -> None:
        """Many trips, of the CTAs that differ in something that the body uses, in one go: arrays get an axis of trips in front."""
        inside = _defined(body)
        used = {v for op in _operations(body) for v in op.operation.operands if v in self.needed and v not in inside}
        outer = {v: np.asarray(env[v]) for v in used}
        columns = np.stack([np.broadcast_to(x, times.shape).ravel() for x in (*bounds, *outer.values())])
        columns, group = np.unique(columns, axis=1, return_inverse=True)
        lower, step, trips, *values = columns
        weights = np.zeros(len(trips), np.int64)
        np.add.at(weights, group.ravel(), times.ravel())
        inner = {**env, **{v: x.astype(outer[v].dtype) for v, x in zip(outer, values, strict=True)}}
        most, at_once, known = int(trips.max(initial=0)), max(1, _AT_ONCE // max(1, len(trips))), self.known.values
        if most * len(trips) > _MOST_TRIPS:
            raise op_diagnostic(body.owner, f"makes up to {most:,} trips in {len(trips):,} CTAs that differ", why="each trip is looked at, "
                                "since what runs in it depends on its number", fix="choose smaller lengths (--shape)")
        for first in range(0, most, at_once):
            k = np.arange(first, min(first + at_once, most))[:, None]
            self.known.values = known.copy()
            inner[body.arguments[0]] = lower + k * step
            self.block(body, inner, weights * (trips > k), role)

    def _depends(self, body, on: list) -> bool:
        """Whether control flow inside uses what changes from trip to trip."""
        changing = {v for v in on if v in self.needed}
        return bool(changing) and _uses_any(body, changing)

    def _walk(self, op, env, times, role) -> None:
        """Each tile once, whichever CTA takes it; so what is inside may not depend on the CTA."""
        tiles = _count_of(op, int(np.max(env[op.tiles], initial=0)), "tiles")
        inner = {v: x if np.ndim(x) == 0 else x[0] if isinstance(x, np.ndarray) else x for v, x in env.items()}
        inner[op.body.blocks[0].arguments[0]] = np.arange(tiles)
        self.block(op.body.blocks[0], inner, np.ones(tiles, np.int64), role)
        if isinstance(op, warp.WalkOp):
            self._add(rules.walk_step(op, role), tiles)
            self._add(rules.walk_end(op, role), int(times.sum()))
        else:
            self._add(Counter({"atomics": 1}), tiles + int(times.sum()))

    def _count(self, op, env, times, role) -> None:
        found = rules.work(op, self.target, role, self.known.step(op) if role is not None else ())
        if not found:
            return
        if found["atomics"] and isinstance(op, (tile.GlobalAddOp, warp.GlobalAddOp)):
            self._add(Counter({"atomics": 1}), int((times * _inside(op, env, found.pop("atomics"))).sum()))
            self._add(found, int(times.sum()))
            return
        cond = getattr(op, "cond", None) if isinstance(op, tile.MapOp) else None
        if cond is not None and space_of(cond.type) is None:
            times = times * np.asarray(env[cond]).astype(np.int64)
        self._add(found, int(times.sum()), surely=cond is None or space_of(cond.type) is None)

    def _add(self, found: Counter, times: int, surely: bool = True) -> None:
        total = self.launch.counts if self.surely and surely else self.launch.sometimes
        for key, number in found.items():
            total[key] += number * times


def _inside(op, env, whole: int) -> np.ndarray:
    """Elements of an addition to global memory that lie in the tensor; of a row vector's sum the ones that are added if its place does."""
    source = op.x if isinstance(op, tile.GlobalAddOp) else op.source
    shape, coords, dims = env[op.target], [np.asarray(env[v]) for v in op.coords], list(op.dims)
    if not dims:
        return whole * math.prod((c >= 0) & (c < size) for c, size in zip(coords, shape, strict=True))
    count = 1
    for axis, extent in zip(dims, source.type.shape, strict=True):
        first = np.maximum(coords[axis], 0)
        count = count * np.maximum(np.minimum(coords[axis] + extent, shape[axis]) - first, 0)
    return count


# ------------------------------------------------------------------------------------------------- what control flow depends on


def _control_operands(op) -> list:
    """Scalars that decide how often something runs, or how much of it."""
    operation = op.operation
    if operation.name in ("scf.for", "scf.if"):
        return [v for v in operation.operands if not isinstance(v.type, ir.RankedTensorType)]
    if isinstance(op, (tile.WalkOp, warp.WalkOp)):
        return [op.tiles]
    if isinstance(op, (tile.GlobalAddOp, warp.GlobalAddOp)):
        return list(op.coords)
    if isinstance(op, (warp.WhenOp, tile.MapOp)):
        return [op.cond] if op.cond is not None and space_of(op.cond.type) is None else []
    return []


def _operations(block):
    for op in block.operations:
        yield op
        if not isinstance(op, (tile.MapOp, warp.MapOp, warp_tmem.TmemMapOp)):
            for region in op.operation.regions:
                for inner in region.blocks:
                    yield from _operations(inner)


# What has one value for each CTA in whatever block it stands.
_OF_A_CTA = (tile.ProgramIdOp, tile_pair.CtaRankOp, tile.WalkOp, warp.WalkOp, warp.RoleOp)


def _defined(block) -> set:
    """Values that a block and those nested in it define."""
    found = set(block.arguments)
    for op in block.operations:
        found.update(op.operation.results)
        for region in op.operation.regions:
            for inner in region.blocks:
                found |= _defined(inner)
    return found


def _needed(block) -> set:
    """Values that control flow depends on, through whatever."""
    found: set = set()
    wanted = [v for op in _operations(block) for v in _control_operands(op)]
    while wanted:
        value = wanted.pop()
        if value in found or isinstance(value.type, ir.RankedTensorType):
            continue
        found.add(value)
        owner = value.owner
        if isinstance(owner, ir.Block):
            loop = owner.owner
            if loop.name == "scf.for" and value in list(owner.arguments)[1:]:
                place = list(owner.arguments).index(value)
                wanted += [loop.operands[place + 2], list(owner.operations)[-1].operation.operands[place - 1]]
        elif owner.name == "scf.for":
            place = list(owner.results).index(value)
            wanted += [owner.operands[place + 3], list(owner.regions[0].blocks[0].arguments)[place + 1]]
            wanted += list(owner.operands)[:3]
        else:
            wanted += list(owner.operands)
    return found


def _uses_any(body, changing: set) -> bool:
    """Whether control flow in a loop's body uses one of these values, or what is computed from them there."""
    changing = set(changing)
    for op in _operations(body):
        if any(v in changing for v in _control_operands(op)):
            return True
        if any(v in changing for v in op.operation.operands):
            changing.update(op.operation.results)
    return False
