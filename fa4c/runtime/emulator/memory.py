"""State spaces (PTX ISA chapter 5): addresses, bounds, alignment, loads and stores of 32 lanes at once.

Address map. A shared address is `cluster rank << 24 | offset`, own addresses included, and the first KiB of a window belongs to
the system, as on hardware. Generic addresses: buffers from 1 << 40, shared at 1 << 44, local at 1 << 45, parameters at 1 << 46.
"""

import bisect

import numpy as np

from .errors import EmulatorError
from .hazards import FULL, HOST, NEVER, Shadow

GLOBAL_BASE, SHARED_BASE, LOCAL_BASE, PARAM_BASE = 1 << 40, 1 << 44, 1 << 45, 1 << 46
SHARED_RESERVED = 1024
MEMORY_LIMIT = 4 << 30
_UNSIGNED = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}
_LOG2 = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4, 32: 5}


class Bytes:
    """An array of bytes with views of every access width."""

    def __init__(self, data, name, shadow=None, writable=True):
        self.data, self.name, self.shadow, self.writable = data, name, shadow, writable
        self.views = {s: data[: data.size // s * s].view(t) for s, t in _UNSIGNED.items()}


class Buffer:
    """A launch argument in global memory: a C-contiguous NumPy array, changed in place.

    `poison=True` says that nothing has written it yet: a kernel that reads before writing is reported. What a launch writes
    stays known, so a workspace goes from one launch to the next as one object.
    """

    def __init__(self, array, writable=True, *, name=None, poison=False, dtype=None):
        array = np.asarray(array)
        if not array.flags.c_contiguous:
            raise EmulatorError(f"buffer {name or ''} is not contiguous", why="its bytes are used in place", fix="pass a contiguous copy")
        self.array, self.writable, self.name, self.poison, self.dtype = array, writable, name, poison, dtype or str(array.dtype)
        self.nbytes, self.initialised = array.nbytes, None  # a byte mask after the first launch of a poisoned buffer


class GlobalMemory:
    """All buffers of a launch at fake 64-bit addresses, 512-byte aligned, with gaps between."""

    def __init__(self, hazards):
        self.hazards = hazards
        self.bases, self.items, self.by_id, self.poisoned, self.total = [], [], {}, [], 0
        self.next = GLOBAL_BASE

    def add_buffer(self, buffer, name):
        """Place a launch's buffer, with what earlier launches have written."""
        base = self.add(buffer.array, buffer.name or name, buffer.writable, buffer.poison)
        shadow = self.items[-1].shadow
        if buffer.poison:
            self.poisoned.append((buffer, shadow))
            if shadow is not None and buffer.initialised is not None:
                shadow.w[: buffer.nbytes][buffer.initialised] = HOST
        return base

    def keep_initialised(self):
        """After the launch: remember what is written now. Without hazards nothing was tracked, so all counts as written."""
        for buffer, shadow in self.poisoned:
            if shadow is None:
                buffer.poison = False
            else:
                buffer.initialised = shadow.w[: buffer.nbytes] != NEVER

    def add(self, array, name, writable=True, poison=False):
        data = array.reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)
        self.total += data.size * (9 if self.hazards else 1)
        if self.total > MEMORY_LIMIT:
            shadow = ", with 8 bytes of shadow memory a byte" if self.hazards else ""
            raise EmulatorError(
                f"the buffers up to {name} need {self.total >> 20} MB{shadow}, more than {MEMORY_LIMIT >> 20}",
                fix="launch a smaller problem, or without hazard detection",
            )
        base = self.next
        self.next = (base + data.size + (1 << 20)) & ~0xFFFF
        shadow = Shadow(data.size, name, poison) if self.hazards else None
        mem = Bytes(data, name, shadow, writable)
        mem.base = base
        self.bases.append(base)
        self.items.append(mem)
        return base

    def find(self, lo, hi, line, write):
        """The buffer that holds [lo, hi); an address outside every buffer is an error with the nearest buffer's name."""
        i = bisect.bisect_right(self.bases, lo) - 1
        mem = self.items[i] if i >= 0 else None
        if mem is None or hi > mem.base + mem.data.size:
            near = (
                f"; the nearest buffer below, {mem.name}, has {mem.data.size} bytes and this is {lo - mem.base} bytes in"
                if mem is not None
                else ""
            )
            raise EmulatorError(
                f"global {'store' if write else 'load'} out of bounds: address {lo:#x}..{hi - 1:#x}{near}",
                line=line,
                why="no buffer of the launch holds these bytes",
                fix="check sizes, strides and predicates",
            )
        if write and not mem.writable:
            raise EmulatorError(
                f"store to the read-only buffer {mem.name}", line=line, fix="mark the buffer writable if the kernel should change it"
            )
        return mem


class SharedMemory:
    """The shared windows of one cluster: `size` bytes a CTA in one array."""

    def __init__(self, n_cta, size, hazards, name):
        self.n_cta, self.limit = n_cta, size
        self.window = -(-size // 1024) * 1024
        data = np.zeros(n_cta * self.window, np.uint8)
        self.mem = Bytes(data, name, Shadow(data.size, name, True) if hazards else None)

    def index(self, addresses, span, line, F=None):
        """Byte indices of shared addresses; bounds against each CTA's window."""
        if self.n_cta == 1:
            lo, hi = int(addresses.min()), int(addresses.max()) + span
            if lo >= SHARED_RESERVED and hi <= self.limit:
                return addresses
            off = addresses
        else:
            rank, off = addresses >> 24, addresses & 0xFFFFFF
            if int(off.min()) >= SHARED_RESERVED and int(off.max()) + span <= self.limit and int(rank.max()) < self.n_cta:
                if F is not None:
                    self.check_alive(F, rank, line)
                return rank * self.window + off
        bad = next(
            int(a)
            for a in np.atleast_1d(addresses)
            if not ((a & 0xFFFFFF) >= SHARED_RESERVED and (a & 0xFFFFFF) + span <= self.limit and (a >> 24) < self.n_cta)
        )
        raise EmulatorError(
            f"shared access out of bounds: address {bad:#x}, {span} bytes, "
            f"but the window is {SHARED_RESERVED:#x}..{self.limit - 1:#x} in {self.n_cta} CTAs",
            line=line,
            why=f"the launch has {self.limit - SHARED_RESERVED} bytes of shared memory a CTA",
            fix="check the dynamic shared memory size and the offset",
        )

    def check_alive(self, F, ranks, line):
        """A remote access to a CTA that has exited."""
        own = F.cta.rank
        for r in set(np.atleast_1d(ranks).tolist()) - {own}:
            peer = F.cta.cluster.ctas[r]
            if peer.exited and F.H:
                F.H.report("exited-peer", f"access to the shared memory of CTA rank {r}, which has exited", (line,), (F.agent(),))


def load_lanes(F, m, line, mem, idx, size, n, strong=0):
    """n consecutive elements of `size` bytes for each lane, as unsigned arrays; idx are byte indices."""
    act = m if m is not None else (None if F.mask == FULL else F.marr)
    total = size * n
    sh = _LOG2[size]
    if np.bitwise_or.reduce(idx) & (total - 1):
        _misaligned(F, act, line, idx, total, mem)
    base = idx >> sh
    v = mem.views[size]
    out = [v.take(base)] if n == 1 else [v.take(base + k) for k in range(n)]
    if mem.shadow is not None:
        F.H.generic(F, m, mem.shadow, idx >> _LOG2[total], total, False, line, strong) if total <= 16 else _wide(
            F, m, mem, idx, total, False, line, strong
        )
    return out


def store_lanes(F, m, line, mem, idx, size, data, strong=0, own=None):
    """Store one or more elements for each lane."""
    act = m if m is not None else (None if F.mask == FULL else F.marr)
    n = len(data)
    total = size * n
    if np.bitwise_or.reduce(idx) & (total - 1):
        _misaligned(F, act, line, idx, total, mem)
    if mem.shadow is not None:
        rows = idx >> _LOG2[total]
        _same_instruction(F, act, mem, rows, total, data, line)
        F.H.same_value = lambda: _changes_nothing(mem, idx, size, data, act)
        if total <= 16:
            F.H.generic(F, m, mem.shadow, rows, total, True, line, strong, own=own)
        else:
            _wide(F, m, mem, idx, total, True, line, strong)
        F.H.same_value = None
    base = idx >> _LOG2[size]
    v = mem.views[size]
    if act is not None:
        base = base[act]
        data = [d[act] for d in data]
    for k, d in enumerate(data):
        v[base + k if k else base] = d
    F.launch.effects += 1


def _changes_nothing(mem, idx, size, data, act):
    """Unordered stores of the bytes that are already there: harmless, and released kernels do it."""
    base, v = idx >> _LOG2[size], mem.views[size]
    return all(bool(((v[base + k] == d) | (False if act is None else ~act)).all()) for k, d in enumerate(data))


def _wide(F, m, mem, idx, total, write, line, strong):
    """32-byte accesses as two of 16."""
    for k in range(0, total, 16):
        F.H.generic(F, m, mem.shadow, (idx + k) >> 4, 16, write, line, strong)


def _same_instruction(F, act, mem, rows, total, data, line):
    """Two lanes of one store that write different values to the same bytes."""
    r = rows if act is None else rows[act]
    if r.size < 2:
        return
    if r[0] + r.size - 1 == r[-1] and (np.diff(r) == 1).all():
        return
    order = np.argsort(r, kind="stable")
    same = np.diff(r[order]) == 0
    if same.any():
        for d in data:
            d = d if act is None else d[act]
            if (np.diff(d[order].astype(np.int64))[same] != 0).any():
                F.H.report("race", f"lanes of one store write different values to the same bytes of {mem.name}", (line,), (F.agent(),))
                return


def _misaligned(F, act, line, idx, total, mem):
    bad = next(int(i) for k, i in enumerate(np.atleast_1d(idx)) if i & (total - 1) and (act is None or act[k]))
    raise EmulatorError(
        f"misaligned access to {mem.name}: byte {bad:#x} for {total} bytes",
        line=line,
        why="vector and scalar accesses must be naturally aligned",
        fix="align the address, or use a narrower access",
    )


def _fill(F, m, addr):
    """Addresses with inactive lanes replaced by an active one; None if no lane is active."""
    act = m if m is not None else (None if F.mask == FULL else F.marr)
    if act is None:
        return addr
    k = int(act.argmax())
    if not act[k]:
        return None
    return np.where(act, addr, addr[k])


_ZEROS = {(s, n): [np.zeros(32, _UNSIGNED[s])] * n for s in (1, 2, 4, 8) for n in (1, 2, 4, 8)}


def resolve(F, m, line, space, addr, off, span, write):
    """(memory, byte indices) of an access, or None if no lane takes part."""
    a = addr.astype(np.int64) if off == 0 else addr.astype(np.int64) + off
    a = _fill(F, m, a)
    if a is None:
        return None
    if space == "generic":
        lo = int(a.min())
        if lo >= SHARED_BASE:
            space, base = (
                ("shared", SHARED_BASE) if lo < LOCAL_BASE else ("local", LOCAL_BASE) if lo < PARAM_BASE else ("param", PARAM_BASE)
            )
            a = a - base
            if int(a.max()) >= SHARED_BASE:
                raise EmulatorError("one instruction with generic addresses in several state spaces", line=line, why="this is not modelled")
        else:
            if int(a.max()) >= SHARED_BASE:
                raise EmulatorError("one instruction with generic addresses in several state spaces", line=line, why="this is not modelled")
            space = "global"
    if space == "global":
        lo, hi = int(a.min()), int(a.max()) + span
        mem = F.launch.memory.find(lo, hi, line, write)
        return mem, a - mem.base
    if space == "shared":
        smem = F.cta.cluster.smem
        return smem.mem, smem.index(a, span, line, F)
    if space == "local":
        local = F.warp.local_memory()
        if int(a.min()) < 0 or int(a.max()) + span > local.size:
            raise EmulatorError(
                f"local access out of bounds: offset {int(a.min())}..{int(a.max()) + span - 1} of {local.size} bytes", line=line
            )
        return local.mem, a + local.lane_offsets
    if space in ("param", "const"):
        if space == "const":
            mem = F.launch.memory.find(int(a.min()), int(a.max()) + span, line, write)
            return mem, a - mem.base
        if int(a.min()) < 0 or int(a.max()) + span > F.launch.param_mem.data.size:
            raise EmulatorError("access outside the kernel's parameters", line=line)
        return F.launch.param_mem, a
    raise EmulatorError(f"state space .{space} is not supported", line=line)


def load(F, m, line, space, addr, off, size, n):
    """ld: the elements of every lane."""
    if m is not None and not m.any():
        return _ZEROS[size, n]
    mem, idx = resolve(F, m, line, space, addr, off, size * n, False)
    F.counters.load(space, mem, size * n, F, m)
    return load_lanes(F, m, line, mem, idx, size, n)


def store(F, m, line, space, addr, off, size, *data):
    """st."""
    if m is not None and not m.any():
        return
    mem, idx = resolve(F, m, line, space, addr, off, size * len(data), True)
    F.counters.store(space, mem, size * len(data), F, m)
    smem = F.cta.cluster.smem
    if mem is smem.mem and smem.n_cta > 1:
        far = idx // smem.window != F.cta.rank
        F.counters.add("smem_bytes.dsmem", size * len(data) * int(np.sum(far if m is None else far & m)))
    store_lanes(F, m, line, mem, idx, size, data)


class LocalMemory:
    """`.local` of one warp: the same offset in each lane is a different place."""

    def __init__(self, size):
        self.size = size
        self.mem = Bytes(np.zeros(32 * size, np.uint8), "local memory")
        self.lane_offsets = np.arange(32, dtype=np.int64) * size


def to_generic(a, space):
    """cvta.SPACE.u64: an address of a space as a generic address."""
    base = {"shared": SHARED_BASE, "local": LOCAL_BASE, "param": PARAM_BASE, "global": 0, "const": 0}[space.split("::")[0]]
    return a + np.uint64(base) if base else a


def from_generic(a, space):
    """cvta.to.SPACE.u64."""
    base = {"shared": SHARED_BASE, "local": LOCAL_BASE, "param": PARAM_BASE, "global": 0, "const": 0}[space.split("::")[0]]
    return a - np.uint64(base) if base else a


def is_space(a, space):
    """isspacep."""
    s = space.split("::")[0]
    if s == "global":
        return a < np.uint64(SHARED_BASE)
    lo, hi = {"shared": (SHARED_BASE, LOCAL_BASE), "local": (LOCAL_BASE, PARAM_BASE), "param": (PARAM_BASE, 1 << 47), "const": (0, 0)}[s]
    return (a >= np.uint64(lo)) & (a < np.uint64(hi))
