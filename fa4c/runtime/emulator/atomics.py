"""atom, red, strong loads and stores, thread fences (PTX ISA chapters 8 and 9.7.13.5 to 9.7.13.6).

Release and acquire through global memory: each location that a release writes keeps the clock it publishes; a fence before
a relaxed write, or after a relaxed read, does the same. Float additions happen in schedule order, lane 0 first.
"""

import numpy as np

from .codegen import Unsupported
from .errors import EmulatorError
from .machine import mask_int
from .memory import load_lanes, resolve, store_lanes
from .numerics import map16, map16s
from .parser import TYPE_BYTES, Mem, Sink, Vec

STRONG = ("acquire", "release", "relaxed", "volatile", "mmio", "acq_rel")
_VIEW = {
    "u32": "u4",
    "s32": "i4",
    "b32": "u4",
    "f32": "f4",
    "u64": "u8",
    "s64": "i8",
    "b64": "u8",
    "f64": "f8",
    "f16x2": "u4",
    "bf16x2": "u4",
    "b16": "u2",
    "f16": "u2",
    "bf16": "u2",
}


def _space(parts):
    for p in parts[1:]:
        s = p.split("::")[0]
        if s in ("global", "shared", "local", "param", "const"):
            return s
    return "generic"


def _function(op, t):
    if t in ("f16x2", "bf16x2"):
        fn = {"add": lambda x, y: x + y, "min": np.fmin, "max": np.fmax}[op]
        return lambda old, v: map16(fn, t, old, v)
    if t in ("f16", "bf16"):
        fn = {"add": lambda x, y: x + y, "min": np.fmin, "max": np.fmax}[op]
        return lambda old, v: map16s(fn, t, old, v)
    return {
        "add": lambda old, v: old + v,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "exch": lambda old, v: v,
        "inc": lambda old, v: np.where(old >= v, old.dtype.type(0), old + old.dtype.type(1)),
        "dec": lambda old, v: np.where((old == 0) | (old > v), v, old - old.dtype.type(1)),
    }[op]


def op_atom(ins, program):
    """atom / red {.sem}{.scope}{.space}.op{.vec}.type."""
    p = ins.parts
    if "async" in p:
        raise Unsupported(f"instruction {ins.opcode}")
    is_red = p[0] == "red"
    ops = list(ins.ops)
    d = None if is_red else ops.pop(0)
    mem, *src = ops
    t = p[-1]
    if t not in _VIEW or not isinstance(mem, Mem):
        raise Unsupported(f"instruction {ins.opcode}")
    op = next((x for x in p[1:] if x in ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")), None)
    if op is None:
        raise Unsupported(f"instruction {ins.opcode}")
    size, space = TYPE_BYTES[t], _space(p)
    n = len(src[0].items) if isinstance(src[0], Vec) else 1
    fn = None if op == "cas" else _function(op, t)
    release = "release" in p or "acq_rel" in p
    acquire = "acquire" in p or "acq_rel" in p
    view = np.dtype(_VIEW[t])

    def run(F, m):
        values = [F.get(v, size) for v in (src[0].items if n > 1 else src[:1])]
        memory, idx = resolve(F, m, ins.line, space, F.address(mem), 0, size * n, True)
        if np.bitwise_or.reduce(idx) & (size * n - 1):
            raise EmulatorError(f"misaligned atomic on {memory.name}", line=ins.line, why=f"{size * n} bytes must be aligned to {size * n}")
        array = memory.views[size].view(view)
        lanes = np.flatnonzero(m)
        if op == "cas":
            new = F.get(src[1], size)
            old_now = array[idx[lanes] // size].view(np.dtype(f"u{size}"))
            if (old_now != values[0][lanes]).all():
                mark = (F.block, F.launch.effects)
                if F.spin == mark:
                    F.launch.coupled = "a loop polls memory"
                    F.why = "atom.cas that keeps failing"
                    return False
                F.spin = mark
        if memory.shadow is not None:
            rows = idx // size
            for k in range(n):
                F.H.generic(F, m if not m.all() else None, memory.shadow, rows + k, size, True, ins.line, strong=True)
        old = np.zeros(32, view)
        changed = False
        for k in range(n):
            v = values[k].view(view)
            for lane in lanes:
                at = int(idx[lane]) // size + k
                before = array[at : at + 1].copy()
                if op == "cas":
                    after = new.view(view)[lane : lane + 1] if before.view(np.dtype(f"u{size}"))[0] == values[0][lane] else before
                else:
                    after = fn(before, v[lane : lane + 1])
                old[lane] = before[0]
                changed = changed or after[0] != before[0]
                array[at] = after[0]
        if changed or op != "cas":
            F.launch.effects += 1
        mask = mask_int(m)
        _order(F, mask, memory, idx, release, acquire, rmw=True)
        if d is not None and not isinstance(d, Sink):
            F.put(d, old.view(np.dtype(f"u{size}")), m)
        F.counters.add("atomics", len(lanes) * n)
        if memory is F.cta.cluster.smem.mem:
            F.counters.add("smem_bytes.atomic", len(lanes) * n * size)
        else:
            F.launch.coupled = "atomics on global memory"
            F.counters.add("global_bytes.atomic", len(lanes) * n * size)
        return True

    return run


def op_strong_ld(ins, program):
    """ld.{acquire,relaxed,volatile}: orders, and parks where it would spin."""
    p, (d, mem) = ins.parts, ins.ops[:2]
    size, space = TYPE_BYTES[p[-1]], _space(p)
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
        out = load_lanes(F, m if not m.all() else None, ins.line, memory, idx, size, len(dests), strong=True)
        for k, dst in enumerate(dests):
            v = out[k]
            if p[-1][0] == "s" and size < 4:
                v = v.view(f"i{size}").astype(np.int32)
            F.put(dst, v, m)
        _order(F, mask_int(m), memory, idx, False, acquire, rmw=False, read_only=True)
        return True

    return run


def op_strong_st(ins, program):
    """st.{release,relaxed,volatile}; st.async is in tma.py."""
    p = ins.parts
    mem, s = ins.ops[:2]
    size, space = TYPE_BYTES[p[-1]], _space(p)
    items = s.items if isinstance(s, Vec) else (s,)
    release = "release" in p

    def run(F, m):
        memory, idx = resolve(F, m, ins.line, space, F.address(mem), 0, size * len(items), True)
        F.counters.store(space, memory, size * len(items), F, m)
        _order(F, mask_int(m), memory, idx, release, False, rmw=False)
        store_lanes(F, m if not m.all() else None, ins.line, memory, idx, size, [F.get(i, size) for i in items], strong=True)
        return True

    return run


def _order(F, mask, memory, idx, release, acquire, rmw, read_only=False):
    """Publish and learn clocks at the locations of a strong access."""
    if not F.H:
        return
    clocks = F.launch.sync_clocks
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        key = (id(memory), int(idx[lane]))
        known = clocks.get(key)
        if known is not None and (rmw or read_only):
            if acquire:
                F.acquire(1 << lane, known)
            else:
                F.warp.specials.setdefault("seen", {})[lane] = known
        if read_only:
            continue
        if release:
            c = F.release(1 << lane)
            clocks[key] = known.join(c) if rmw and known is not None else c
        else:
            c = F.warp.specials.get("fence", {}).get(lane)
            if c is not None:
                clocks[key] = known.join(c) if rmw and known is not None else c
            elif not rmw:
                clocks.pop(key, None)


def thread_fence(F, mask):
    """fence.{acq_rel,sc}: earlier relaxed reads acquire now, later relaxed writes release what is known now."""
    seen = F.warp.specials.get("seen", {})
    for lane in [x for x in seen if mask >> x & 1]:
        F.acquire(1 << lane, seen.pop(lane))
    fences = F.warp.specials.setdefault("fence", {})
    if mask == F.mask or mask.bit_count() > 1:
        # Each lane publishes what it knows itself, so that other lanes' accesses stay unordered.
        for lane in range(32):
            if mask >> lane & 1:
                fences[lane] = F.release(1 << lane)
    else:
        fences[mask.bit_length() - 1] = F.release(mask)
