"""What each GPU can do, as numbers: one declarative file a target.

Passes, the scheduler and the emitter read these numbers and nothing else about the hardware; no code compares a target's name.
`get(name)` gives the description, `of(module)` that of the target a module is meant for (`fa4c.target`), and tests change one
number with `override("sm_90a", mufu=32)`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
from dataclasses import dataclass

from ..ir.diagnostics import Diagnostic, nearest

NAMES = ("sm_90a", "sm_100a", "sm_80")
DEFAULT = "sm_90a"


@dataclass(frozen=True)
class Mma:
    """One shape family of the tensor cores' instruction; sizes in elements of a 16-bit type."""

    m: int  # rows of one instruction (one warpgroup, or one CTA)
    n_step: int
    n_max: int
    k: int
    accumulator: str  # "reg" or "tmem"
    pair_m: int = 0  # rows of one instruction of a pair of CTAs, half of them in each; 0: there are no pairs
    in_order: bool = True  # MMAs issued by one thread finish in issue order, whatever their accumulators

    @property
    def lanes_a_row(self) -> int:
        """Among how many threads a row of a tile in registers is shared: the quads of an accumulator there; one reads tensor memory."""
        return 4 if self.accumulator == "reg" else 1


@dataclass(frozen=True)
class Target:
    """Sizes in elements, bytes where the name says so; throughputs in results of one SM and clock. Where each number
    is from: the target's file.
    """

    name: str
    description: str
    runs_on: str
    status: str  # "ready", or "planned": then `refusal` says why
    compute_capability: tuple[int, int]
    passes: tuple[str, ...]  # passes of the tile level that mean something here; attn and warp passes are for all targets

    # capacities, per SM unless said
    smem_bytes: int  # the most that one CTA gets
    registers: int  # 32-bit
    max_registers_per_thread: int
    register_step: int  # setmaxnreg counts in these
    max_threads_per_cta: int
    warps_per_warpgroup: int
    named_barriers: int  # of a CTA, that of all its threads among them
    tmem_columns: int  # 0: there is no tensor memory
    tmem_step: int  # tiles there start at multiples of so many columns
    max_cluster: int
    dtypes: tuple[str, ...]  # of MMA operands
    max_head_dim: int
    head_dim_step: int  # head dims are multiples of it; padded to `mma.k` inside
    mma: Mma

    # throughputs, per SM and clock
    mma_flops: int  # dense, 16-bit operands
    mufu: int  # ex2, rcp, tanh
    fp32: int  # FMA lanes
    alu: int  # min/max, compare, select, convert, integer
    smem_bytes_per_clk: int
    dsmem_exchange_clk: int  # one 128x64 16-bit half tile to the peer CTA; 0: no pair exchange here

    # whole chip
    num_sms: int
    l2_bytes: int
    clock_hz: float

    fp32_packed: int = 1  # additions, multiplications or FMAs of one instruction; 2: there is .f32x2
    max_inputs: int = 2  # of one fp32 maximum; 3: max.f32 takes three
    swizzle_bytes: tuple[int, ...] = (128, 64, 32)
    exp2_emulated: int | None = 0  # of 16 exponentials, where the special-function unit limits a loop, as measured; None: by the model
    exp2_emulation_from: float = 1.25  # ... by this factor over the tensor cores
    stores_apart: bool = False  # a warp of its own issues the stores of what threads wrote to shared memory (`warp-specialize`)
    multicast: int = 1  # CTAs that load common tiles together (`tile-multicast`); more than 1 only where measured
    l2_repeated: str = "none"  # which priority in L2 the loads of block loops ask for (`tile-l2-hints`); not "none" only where measured
    l2_once: str = "none"  # ... and loads that happen once a tile
    tuned: tuple[dict, ...] = ()  # block shapes measured on such a GPU, and where: NAME_tuned.json, written by `fa4c tune`
    refusal: str = ""


_overridden: dict[str, Target] = {}


def describe(name: str, where=None) -> Target:
    """The description of any known target, planned ones too; `where`: what names it."""
    if name not in NAMES:
        why = f"known targets are: {', '.join(NAMES)}"
        raise Diagnostic(f"there is no target '{name}'", where=where, why=why, fix=nearest(name, NAMES))
    return _overridden.get(name) or _loaded(name)


@functools.cache
def _loaded(name: str) -> Target:
    from .tuned import entries

    return dataclasses.replace(importlib.import_module(f".{name}", __name__).TARGET, tuned=entries(name))


def get(name: str, where=None) -> Target:
    """The description of a target that can be compiled for; a planned one is refused with its reason."""
    target = describe(name, where)
    if target.status != "ready":
        ready = ", ".join(other for other in NAMES if describe(other).status == "ready")
        raise Diagnostic(f"target '{name}' is planned", where=where, why=target.refusal, fix=f"compile for: {ready}")
    return target


def of(module) -> Target:
    """The target of an `ir.Module`: its attribute `fa4c.target`, or sm_90a where it has none."""
    attributes = module.operation.attributes
    return get(attributes["fa4c.target"].value if "fa4c.target" in attributes else DEFAULT, module.operation.location)


@contextlib.contextmanager
def override(name: str, **changes):
    """For tests: `name` with some numbers changed, within the `with` block and in this process only."""
    before = _overridden.get(name)
    _overridden[name] = dataclasses.replace(describe(name), **changes)
    try:
        yield _overridden[name]
    finally:
        if before is None:
            del _overridden[name]
        else:
            _overridden[name] = before
