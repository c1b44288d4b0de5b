"""Grids, clusters, CTAs, warps and fragments (PTX ISA chapter 3, "Programming model").

A warp's lanes run as fragments: sets of lanes at one place in the program. A divergent branch splits a fragment; the two
halves meet again at the branch's post-dominator, through a token that counts the lanes still missing. Each fragment can be
scheduled on its own, so a lane that waits for another lane of its warp makes progress as on hardware since Volta.
"""

import numpy as np

from .counters import Counters
from .errors import EmulatorError
from .hazards import FULL, lane_text, merge_parts
from .memory import SHARED_RESERVED, LocalMemory, SharedMemory
from .parser import Imm, Mem, Not, Reg, Special, Symbol, Vec

RUN, PARKED, DONE = 0, 1, 2
_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)
_MASKS = {}
_DT = {1: np.dtype("?"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}


def mask_array(mask):
    """A lane mask as 32 booleans (cached, read-only)."""
    a = _MASKS.get(mask)
    if a is None:
        if len(_MASKS) > 4096:
            _MASKS.clear()
        a = _MASKS[mask] = (np.uint32(mask) & _BITS) != 0
        a.setflags(write=False)
    return a


def mask_int(a):
    """32 booleans as a lane mask."""
    return int(np.packbits(a, bitorder="little").view("<u4")[0])


class Token:
    """Where the lanes of a divergent branch meet again: a block, the lanes expected and those that have come."""

    __slots__ = ("block", "expected", "arrived", "parent", "parts")

    def __init__(self, block, expected, parent):
        self.block, self.expected, self.parent = block, expected, parent
        self.arrived, self.parts = 0, []


class Frag:
    """Lanes of one warp at one place. `parts` are their clocks; lanes that synchronised share one."""

    __slots__ = (
        "warp",
        "cta",
        "launch",
        "H",
        "mask",
        "marr",
        "block",
        "stack",
        "parts",
        "state",
        "fired",
        "why",
        "timeout",
        "spin",
        "counters",
        "saved",
    )

    def __init__(self, warp, mask, block, stack, parts):
        self.warp, self.cta, self.launch, self.H = warp, warp.cta, warp.cta.launch, warp.cta.launch.hazards
        self.mask, self.marr, self.block, self.stack, self.parts = mask, mask_array(mask), block, stack, parts
        self.state, self.fired, self.why, self.timeout, self.spin, self.saved = RUN, False, "", False, None, None
        self.counters = warp.cta.counters

    mask_array = staticmethod(mask_array)
    mask_int = staticmethod(mask_int)

    @property
    def width(self):
        return self.mask.bit_count()

    def agent(self, mask=None):
        return f"{self.warp.name()} {lane_text(self.mask if mask is None else mask)}"

    # Operands of machine operations (generated blocks read registers directly).
    def get(self, op, size=4):
        """An operand as 32 unsigned values of `size` bytes."""
        if isinstance(op, Reg):
            a = self.warp.R[op.index]
            if a.dtype.itemsize == size:
                return a.view(_DT[size]) if a.dtype.kind != "b" else a
            return a.view(_DT[a.dtype.itemsize]).astype(_DT[size])
        if isinstance(op, Imm):
            return np.full(32, op.value & ((1 << 8 * size) - 1), _DT[size])
        if isinstance(op, Special):
            return self.warp.special(op.name, self).astype(_DT[size])
        if isinstance(op, Symbol):
            return self.cta.symbol(op.name).astype(_DT[size])
        if isinstance(op, Mem):
            return self.address(op).astype(_DT[size])
        if isinstance(op, Vec):
            n = len(op.items)
            return sum((self.get(i, size // n).astype(_DT[size]) << _DT[size].type(8 * size // n * k)) for k, i in enumerate(op.items))
        raise EmulatorError(f"cannot read the operand {op}")

    def pred(self, op):
        """A predicate operand as 32 booleans."""
        if isinstance(op, Not):
            return ~self.pred(op.item)
        if isinstance(op, Imm):
            return np.full(32, op.value != 0)
        return self.warp.R[op.index]

    def put(self, op, values, m):
        """Write 32 values to a register where `m`."""
        if not isinstance(op, Reg):
            return
        R = self.warp.R
        old = R[op.index]
        v = np.asarray(values)
        if old.dtype.kind == "b":
            R[op.index] = np.where(m, v, old)
        else:
            own = _DT[old.dtype.itemsize]
            R[op.index] = np.where(m, v.astype(own) if v.dtype.itemsize != own.itemsize else v.view(own), old.view(own))

    def address(self, mem):
        """The address of a memory operand, per lane, as int64."""
        b = mem.base
        if isinstance(b, Reg):
            a = self.warp.R[b.index]
            a = a.view(_DT[a.dtype.itemsize])
        elif isinstance(b, Imm):
            a = np.full(32, b.value, np.int64)
        elif isinstance(b, Symbol):
            a = self.cta.symbol(b.name)
        else:
            raise EmulatorError(f"cannot read the address {mem}")
        return a.astype(np.int64) + mem.offset

    # Clocks, for code that runs with hazards on or off.
    def release(self, mask):
        return self.H.release(self, mask) if self.H else None

    def acquire(self, mask, clock):
        if self.H:
            self.H.acquire(self, mask, clock)


class Warp:
    def __init__(self, cta, index, lanes):
        self.cta, self.index, self.cluster = cta, index, cta.cluster
        self.alive = self.all_lanes = lanes
        self.lane_slice = slice((cta.rank * cta.n_warps + index) * 32, (cta.rank * cta.n_warps + index) * 32 + 32)
        self.ep = np.ones(32, np.int32)
        self.R = [_ZERO[b] for b in cta.launch.program.kernel.reg_bits]
        self.frags = [
            Frag(self, lanes, 0, None, [(lanes, cta.launch.hazards.start_clock(cta.cluster))] if cta.launch.hazards else [(lanes, None)])
        ]
        self.specials, self.local, self.joins = {}, None, {}
        self.pending_regs, self.pending_inputs, self.wg_groups, self.wg_open = {}, {}, [], []  # wgmma.py
        self.bulk, self.cp_async = {}, {}  # per lane: bulk groups, cp.async groups
        self.tc, self.watch_loads, self.synced = None, False, False  # tcgen05.py
        self.fenced = False  # a wgmma.fence has been executed
        self.max_registers = []  # values of setmaxnreg, in order
        self.inits, self.published = 0, 0  # mbarrier initialisations, and those a fence.mbarrier_init has published
        self.dirty = set() if cta.launch.program.uses_wgmma and cta.launch.hazards else None

    def name(self):
        return f"{self.cta.name()} warp {self.index}"

    def special(self, name, F):
        v = self.specials.get(name)
        if v is None:
            v = self._special(name, F)
        return v

    def _special(self, name, F):
        cta, launch = self.cta, self.cta.launch
        if name == "%activemask":
            return np.full(32, F.mask, np.uint32)
        if name in ("%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"):
            launch.coupled = "the kernel reads a clock"
            return np.full(32, launch.steps, np.uint64 if name in ("%clock64", "%globaltimer") else np.uint32)
        lane = np.arange(32, dtype=np.uint32)
        bx, by, bz = launch.block
        t = lane + np.uint32(32 * self.index)
        xyz = {"x": 0, "y": 1, "z": 2}
        base, _, dim = name.partition(".")
        k = xyz.get(dim, 0)
        const = {
            "%ntid": (bx, by, bz)[k],
            "%ctaid": cta.index[k],
            "%nctaid": launch.grid[k],
            "%warpid": self.index,
            "%nwarpid": cta.n_warps,
            "%smid": cta.linear % launch.sms,
            "%nsmid": launch.sms,
            "%gridid": 1,
            "%cluster_ctarank": cta.rank,
            "%cluster_nctarank": cta.cluster.n,
            "%clusterid": cta.cluster.id3[k],
            "%nclusterid": launch.grid[k] // launch.cluster[k],
            "%cluster_ctaid": cta.index[k] % launch.cluster[k],
            "%cluster_nctaid": launch.cluster[k],
            "%is_explicit_cluster": int(cta.cluster.n > 1),
            "%dynamic_smem_size": launch.dynamic_smem,
            "%total_smem_size": launch.smem_limit - SHARED_RESERVED,
        }
        if base == "%tid":
            v = (t % bx, t // bx % by, t // (bx * by))[k].astype(np.uint32)
        elif base == "%laneid":
            v = lane
        elif base.startswith("%lanemask_"):
            kind = base[10:]
            v = {"eq": _BITS, "lt": _BITS - 1, "le": (_BITS - 1) | _BITS, "gt": ~((_BITS - 1) | _BITS), "ge": ~(_BITS - 1)}[kind].astype(
                np.uint32
            )
        elif base in const:
            v = np.full(32, const[base], np.uint32)
        else:
            raise EmulatorError(f"special register {name} is not supported")
        self.specials[name] = v
        return v

    def local_memory(self):
        if self.local is None:
            self.local = LocalMemory(max(16, self.cta.launch.local_size))
        return self.local


_ZERO = {
    1: np.zeros(32, bool),
    16: np.zeros(32, np.uint16),
    32: np.zeros(32, np.uint32),
    64: np.zeros(32, np.uint64),
    128: np.zeros(32, np.uint64),
}
for _a in _ZERO.values():
    _a.setflags(write=False)


class CTA:
    def __init__(self, cluster, rank, index, linear):
        self.cluster, self.rank, self.index, self.linear, self.launch = cluster, rank, index, linear, cluster.launch
        threads = int(np.prod(self.launch.block))
        self.n_warps = -(-threads // 32)
        self.counters = Counters()
        self.exited = False
        self.named = {}  # named barriers
        self.symbols = {}
        self.warps = []
        self.tmem = None
        self.threads = threads

    def start(self):
        for w in range(self.n_warps):
            n = min(32, self.threads - 32 * w)
            self.warps.append(Warp(self, w, FULL if n == 32 else (1 << n) - 1))

    def name(self):
        return f"CTA {self.index[0]},{self.index[1]},{self.index[2]}"

    def symbol(self, name):
        v = self.symbols.get(name)
        if v is None:
            v = self.symbols[name] = np.full(32, self.launch.symbol_address(name, self), np.uint64)
            v.setflags(write=False)
        return v

    def live_threads(self):
        return sum(w.alive.bit_count() for w in self.warps)


class Cluster:
    def __init__(self, launch, index, id3, n):
        self.launch, self.index, self.id3, self.n = launch, index, id3, n
        threads = int(np.prod(launch.block))
        self.lanes = n * -(-threads // 32) * 32
        self.zero_clock = None
        self.smem = SharedMemory(n, launch.smem_limit, launch.hazards, "shared memory")
        self.mbars = {}
        self.barrier = None
        self.ctas = []


def exit_lanes(F, mask):
    """Lanes end: nobody waits for them any more. Returns fragments that can go on because of it."""
    w = F.warp
    w.alive &= ~mask
    resumed = []
    # Every token that expected them, whichever fragment's stack holds it.
    seen = set()
    for frag in [F, *w.frags]:
        t = frag.stack
        while t is not None and id(t) not in seen:
            seen.add(id(t))
            t.expected &= ~mask
            t = t.parent
    F.launch.effects += 1
    if F.mask == mask:
        t = F.stack
        while t is not None and t.expected == 0:
            t = t.parent
        if t is not None and t.arrived == t.expected:
            new = Frag(w, t.expected, t.block, t.parent, merge_parts([(m & t.expected, c) for m, c in t.parts if m & t.expected]))
            resumed.append(new)
    return resumed
