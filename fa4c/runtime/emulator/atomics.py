"""atom, red, strong loads and stores, thread fences (PTX ISA chapters 8 and 9.7.13.5 to 9.7.13.6).

Release and acquire through global memory: each location that a release writes keeps the clocks it publishes, each with its
scope; a fence before a relaxed write, or after a relaxed read, does the same. Float additions happen in schedule order, lane 0
first; the elements of a vector are atomic each for itself.
"""

import numpy as np

from . import reductions
from .codegen import Unsupported
from .errors import EmulatorError
from .hazards import SCOPES, includes
from .machine import mask_int
from .memory import load_lanes, resolve, store_lanes
from .parser import STRONG, TYPE_BYTES, Mem, Sink, Vec, space_of

_OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
FLAG_LANES = 4
_LEVELS = ("L2::cache_hint", "L1::no_allocate", "noftz")


def scope_of(parts):
    """The rank of an instruction's scope: atomics have the GPU's if none is written, volatile accesses the system's."""
    return next((SCOPES[p] for p in parts if p in SCOPES), SCOPES["sys"] if "volatile" in parts or "mmio" in parts else SCOPES["gpu"])


class Atomic:
    """A decoded atom or red: `lanes` sources of `n` elements of type `t`."""

    def __init__(self, ins):
        p, ops = ins.parts, list(ins.ops)
        self.line, self.opcode, self.t = ins.line, ins.opcode, next((x for x in p if x in reductions.VIEW), None)
        self.dest = None if p[0] == "red" else ops.pop(0)
        self.mem, self.sources = ops[0], ops[1:3]
        self.op = next((x for x in p[1:] if x in _OPERATIONS), None)
        vector = next((int(x[1:]) for x in p if x in ("v2", "v4", "v8")), 1)
        self.n = len(self.sources[0].items) if isinstance(self.sources[0], Vec) else 1
        self._check(p, vector)
        self.size, self.space, self.view = TYPE_BYTES[self.t], space_of(p), np.dtype(reductions.VIEW[self.t])
        self.shift = self.size.bit_length() - 1
        self.release, self.acquire, self.scope = bool({"release", "acq_rel"} & set(p)), bool({"acquire", "acq_rel"} & set(p)), scope_of(p)
        self.functions = {g: reductions.function(self.op, self.t, g) for g in (False, True)}
        if self.op not in ("exch", "cas") and self.functions[True] is None:
            raise Unsupported(f"instruction {ins.opcode}")

    def _check(self, p, vector):
        """Refuse what this rule does not heed; a vector has the ISA's length, type and space."""
        known = {*STRONG, *SCOPES, *_OPERATIONS, *_LEVELS, *reductions.VIEW, "v2", "v4", "v8"}
        unknown = [x for x in p[1:] if x not in known and x.split("::")[0] not in ("global", "shared")]
        if unknown or self.t is None or self.op is None or not isinstance(self.mem, Mem):
            raise Unsupported(f"instruction {self.opcode}")
        if vector != self.n:
            raise Unsupported(f"{self.n} sources for {vector} elements")
        if self.n > 1:
            longest = {"f32": 4, "f16x2": 4, "bf16x2": 4, "f16": 8, "bf16": 8}.get(self.t, 1)
            adds_only = self.t == "f32" and self.op != "add"
            if self.n > longest or adds_only or self.op not in ("add", "min", "max") or space_of(p) == "shared":
                raise Unsupported(f"instruction {self.opcode}")

    def values(self, F):
        """The first source, an array of 32 lanes for each element."""
        s = self.sources[0]
        return [F.get(v, self.size) for v in (s.items if isinstance(s, Vec) else (s,))]

    def give(self, F, old, m):
        """The old values to the destination; a vector's go to its elements."""
        d = self.dest
        if d is None or isinstance(d, Sink):
            return
        for dest, v in zip(d.items if isinstance(d, Vec) else (d,), old):
            F.put(dest, v.view(f"u{self.size}"), m)


def op_atom(ins, program):
    """atom / red {.sem}{.scope}{.space}.op{.vec}.type."""
    if "async" in ins.parts:
        raise Unsupported(f"instruction {ins.opcode}")
    a = Atomic(ins)

    def run(F, m):
        memory, idx = resolve(F, m, a.line, a.space, F.address(a.mem), 0, a.size * a.n, True)
        total = a.size * a.n
        if np.bitwise_or.reduce(idx) & (total - 1):
            raise EmulatorError(
                f"misaligned atomic on {memory.name}", line=a.line, why=f"{a.size * a.n} bytes must be aligned to {a.size * a.n}"
            )
        shared = memory is F.cta.cluster.smem.mem
        if shared and a.n > 1:
            raise EmulatorError(f"a vector atomic on {memory.name}", line=a.line, why="the ISA has them for global memory alone")
        lanes, values = np.flatnonzero(m), a.values(F)
        if a.op == "cas" and _spins(F, a, memory, idx, lanes, values[0]):
            return False
        own = _own_numbers(F, m)
        if memory.shadow is not None:
            part, updates = m if not m.all() else None, a.op != "exch"
            F.H.generic(F, part, memory.shadow, idx // total, total, True, a.line, a.scope, reads=updates, own=own)
        array = memory.views[a.size].view(a.view)
        at = idx >> a.shift
        rounds = _rounds(at, lanes)
        old = [_apply(F, a, array, at + k if k else at, rounds, values[k], not shared) for k in range(a.n)]
        if a.op != "cas" or (old[0].view(f"u{a.size}") == values[0])[lanes].any():
            F.launch.effects += 1
        _order(F, mask_int(m), memory, idx, a.scope, a.release, a.acquire, rmw=True, own=own)
        a.give(F, old, m)
        F.counters.add("atomics", len(lanes) * a.n)
        if not shared:
            F.launch.coupled = "atomics on global memory"
        F.counters.add("smem_bytes.atomic" if shared else "global_bytes.atomic", len(lanes) * a.n * a.size)
        return True

    return run


def _apply(F, a, array, at, rounds, values, in_global):
    """One element of each lane: `array[at[lane]]` changes, lower lanes first. Returns what was there."""
    old, v = np.zeros(32, array.dtype), values.view(array.dtype)
    second = F.get(a.sources[1], a.size).view(array.dtype) if a.op == "cas" else None
    fn = a.functions[in_global]
    for group in rounds:
        before = array[at[group]]
        if a.op == "cas":
            same = before.view(f"u{a.size}") == v[group].view(f"u{a.size}")
            after = np.where(same, second[group], before)
        else:
            after = v[group] if a.op == "exch" else fn(before, v[group])
        old[group] = before
        array[at[group]] = after
    return old


def _rounds(at, lanes):
    """Lanes in groups without a common address; a lane comes after the lower ones that share its address."""
    places = at[lanes]
    if (places[1:] > places[:-1]).all():
        return [lanes if lanes.size < 32 else slice(None)]
    rest, groups = lanes, []
    while rest.size:
        _, first = np.unique(at[rest], return_index=True)
        groups.append(rest[np.sort(first)])
        rest = np.delete(rest, first)
    return groups


def _spins(F, a, memory, idx, lanes, expected):
    """True if no compare-and-swap of these lanes would succeed, and nothing has changed since the last one that failed."""
    now = memory.views[a.size][idx[lanes] // a.size]
    if not (now != expected[lanes]).all():
        return False
    mark = (F.block, F.launch.effects)
    if F.spin == mark:
        F.launch.coupled = "a loop polls memory"
        F.why = "atom.cas that keeps failing"
        return True
    F.spin = mark
    return False


def op_strong_ld(ins, program):
    """ld.{acquire,relaxed,volatile}: orders, and parks where it would spin."""
    p, (d, mem) = ins.parts, ins.ops[:2]
    size, space, scope = TYPE_BYTES[p[-1]], space_of(p), scope_of(p)
    dests = d.items if isinstance(d, Vec) else (d,)
    acquire = "acquire" in p

    def run(F, m):
        memory, idx = resolve(F, m, ins.line, space, F.address(mem), 0, size * len(dests), False)
        lane = int(m.argmax())
        now = memory.views[size][idx // size][m].tobytes()
        mark = (F.block, F.launch.effects, now)
        if F.spin == mark:
            F.launch.coupled = "a loop polls memory"
            F.why = f"a loop reads the same value from {memory.name} at byte {int(idx[lane]):#x} again and again"
            return False
        F.spin = mark
        F.counters.load(space, memory, size * len(dests), F, m)
        out = load_lanes(F, m if not m.all() else None, ins.line, memory, idx, size, len(dests), strong=scope)
        for k, dst in enumerate(dests):
            v = out[k]
            if p[-1][0] == "s" and size < 4:
                v = v.view(f"i{size}").astype(np.int32)
            F.put(dst, v, m)
        _order(F, mask_int(m), memory, idx, scope, False, acquire, rmw=False, read_only=True)
        return True

    return run


def op_strong_st(ins, program):
    """st.{release,relaxed,volatile}; st.async is in tma.py."""
    p = ins.parts
    mem, s = ins.ops[:2]
    size, space, scope = TYPE_BYTES[p[-1]], space_of(p), scope_of(p)
    items = s.items if isinstance(s, Vec) else (s,)
    release = "release" in p

    def run(F, m):
        memory, idx = resolve(F, m, ins.line, space, F.address(mem), 0, size * len(items), True)
        F.counters.store(space, memory, size * len(items), F, m)
        own, data = _own_numbers(F, m), [F.get(i, size) for i in items]
        store_lanes(F, m if not m.all() else None, ins.line, memory, idx, size, data, strong=scope, own=own)
        _order(F, mask_int(m), memory, idx, scope, release, False, rmw=False, own=own)
        return True

    return run


# --- clocks at locations --------------------------------------------------------------------------------------------------
def _own_numbers(F, m):
    """Numbers for the lanes of a strong write that a fence before it makes a release: what it publishes includes itself.

    Of few lanes: a flag or a counter. Whole warps add to data, whose place nobody acquires from, and numbers are not free.
    """
    if not F.H or not F.warp.specials.get("fence") or m.sum() > FLAG_LANES:
        return None
    lanes = np.flatnonzero(m).tolist()
    first = F.launch.next_op
    F.launch.next_op += len(lanes)
    return {lane: first + k for k, lane in enumerate(lanes)}


def _order(F, mask, memory, idx, scope, release, acquire, rmw, read_only=False, own=None):
    """Publish and learn clocks at the locations of a strong access.

    `sync_clocks`: of each location (memory, byte) what was published there, {(scope, CTA): clock}; values are never changed.
    """
    if not F.H:
        return
    published, special = F.launch.sync_clocks, F.warp.specials
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        key = (id(memory), int(idx[lane]))
        known = published.get(key)
        if known is not None and (rmw or read_only):
            if acquire:
                _learn(F, lane, known, scope)
            else:
                special.setdefault("seen", {}).setdefault(lane, {})[key] = known, scope
        if read_only:
            continue
        given = (F.release(1 << lane), scope) if release else special.get("fence", {}).get(lane)
        if given is not None:
            clock, reach = given[0], (min(given[1], scope), F.cta)
            if own is not None:
                clock = clock.with_bits(1 << 2 * own[lane])
            old = known.get(reach) if rmw and known else None
            published[key] = {**(known if rmw and known else {}), reach: clock if old is None else old.join(clock)}
        elif not rmw:
            published.pop(key, None)


def _learn(F, lane, published, scope):
    """A lane acquires what was published by those whose scope reaches it, if its own scope reaches them."""
    for (reach, cta), clock in published.items():
        if includes(min(reach, scope), cta, F.cta):
            F.acquire(1 << lane, clock)


def thread_fence(F, mask, parts):
    """fence.{acq_rel,sc}, membar: earlier relaxed reads acquire now, later relaxed writes release what is known now."""
    scope = next((SCOPES[p] for p in parts if p in SCOPES), SCOPES["gpu"])  # membar.gl
    seen = F.warp.specials.get("seen", {})
    for lane in [x for x in seen if mask >> x & 1]:
        for published, read in seen.pop(lane).values():
            _learn(F, lane, published, min(read, scope))
    fences = F.warp.specials.setdefault("fence", {})
    for lane in range(32):
        if mask >> lane & 1:  # each lane publishes what it knows itself, so that other lanes' accesses stay unordered
            fences[lane] = F.release(1 << lane), scope
