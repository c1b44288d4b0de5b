"""Barriers and warp-level operations (PTX ISA chapters 9.7.13 "Parallel synchronization" and 9.7.13.15 "mbarrier")."""
import numpy as np

from .codegen import Unsupported
from .errors import EmulatorError
from .hazards import FULL
from .machine import mask_array, mask_int
from .parser import Imm, Mem, Pair, Reg, Sink

U4 = np.dtype("u4")


# --- warp-level operations -----------------------------------------------------------------------------------------------
def joined(F, members, compute):
    """Run `compute(lanes)` once all living lanes of `members` are at this instruction; False while some are missing.

    Lanes of one warp may come in several fragments. The last to come computes for all and the others go on from there.
    """
    w = F.warp
    need = members & w.alive
    if need & ~F.mask == 0:
        if F.H:
            F.H.sync([F], need)
        compute(need)
        return True
    waiting = w.joins.setdefault(F.block, [])
    if F not in waiting:
        waiting.append(F)
    waiting[:] = [f for f in waiting if f.state != 2 and f.block == F.block]
    have = 0
    for f in waiting:
        have |= f.mask
    if need & ~have:
        F.why = f"lanes {need & ~have:#010x} of the warp have not reached this instruction"
        return False
    del w.joins[F.block]
    if F.H:
        F.H.sync(waiting, need)
    compute(need)
    for f in waiting:
        if f is not F:
            f.fired = True
    return True


def _members(F, op):
    if op is None:
        return FULL
    a = F.get(op)
    return int(a[int(F.marr.argmax())])


def op_shfl(ins, program):
    if "sync" not in ins.parts:
        raise Unsupported("shfl without .sync")
    mode = next(p for p in ins.parts if p in ("up", "down", "bfly", "idx"))
    d, a, b, c, mem = ins.ops
    lane = np.arange(32, dtype=np.int64)

    def run(F, m):
        def compute(lanes):
            src, bb, cc = F.get(a), F.get(b).astype(np.int64) & 31, F.get(c).astype(np.int64)
            clamp, seg = cc & 31, (cc >> 8) & 31
            lo = lane & seg
            hi = lo | (clamp & ~seg & 31)
            if mode == "up":
                j = lane - bb
                ok = j >= hi
            elif mode == "down":
                j = lane + bb
                ok = j <= hi
            elif mode == "bfly":
                j = lane ^ bb
                ok = j <= hi
            else:
                j = lo | (bb & ~seg & 31)
                ok = j <= hi
            j = np.where(ok, j, lane)
            sel = mask_array(lanes)
            if not mask_array(lanes)[j[sel]].all() and F.H:
                F.H.report("inactive-lane", "shfl.sync reads a lane that does not take part", (ins.line,), (F.agent(),))
            out = src[j]
            if isinstance(d, Pair):
                F.put(d.first, out, sel)
                F.put(d.second, ok, sel)
            else:
                F.put(d, out, sel)

        return joined(F, _members(F, mem), compute)

    return run


def op_vote(ins, program):
    mode = ins.parts[2]
    d, a, mem = ins.ops

    def run(F, m):
        def compute(lanes):
            sel = mask_array(lanes)
            p = F.pred(a)
            bits = mask_int(p & sel)
            if mode == "ballot":
                F.put(d, np.full(32, bits, U4), sel)
            else:
                v = {"all": bits == lanes, "any": bits != 0, "uni": bits in (0, lanes)}[mode]
                F.put(d, np.full(32, v), sel)

        return joined(F, _members(F, mem), compute)

    return run


def op_match(ins, program):
    mode = ins.parts[1]
    size = 8 if ins.parts[-1] == "b64" else 4
    d, a, mem = ins.ops

    def run(F, m):
        def compute(lanes):
            sel = mask_array(lanes)
            v = F.get(a, size)
            if mode == "any":
                out = np.array([mask_int((v == x) & sel) for x in v], U4)
                F.put(d, out, sel)
            else:
                same = len(set(v[sel].tolist())) == 1
                first = d.first if isinstance(d, Pair) else d
                F.put(first, np.full(32, lanes if same else 0, U4), sel)
                if isinstance(d, Pair):
                    F.put(d.second, np.full(32, same), sel)

        return joined(F, _members(F, mem), compute)

    return run


def op_redux(ins, program):
    op, t = ins.parts[2], ins.parts[-1]
    d, a, mem = ins.ops
    if t == "f32":
        fn = {"min": np.fmin, "max": np.fmax}[op]
        view = np.dtype("f4")
    else:
        fn = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op]
        view = np.dtype("i4" if t == "s32" else "u4")
    absolute = "abs" in ins.parts

    def run(F, m):
        def compute(lanes):
            sel = mask_array(lanes)
            v = F.get(a).view(view)
            v = np.abs(v) if absolute else v
            F.put(d, np.full(32, fn.reduce(v[sel]), view), sel)

        return joined(F, _members(F, mem), compute)

    return run


def op_elect(ins, program):
    d, mem = ins.ops

    def run(F, m):
        def compute(lanes):
            sel = mask_array(lanes)
            first = (lanes & -lanes).bit_length() - 1
            F.put(d.first, np.full(32, first, U4), sel)
            F.put(d.second, np.arange(32) == first, sel)

        return joined(F, _members(F, mem), compute)

    return run


# --- named barriers ----------------------------------------------------------------------------------------------------------
class NamedBarrier:
    """One of the 16 barriers of a CTA in its current phase."""

    __slots__ = ("arrived", "expected", "clock", "generation", "waiting", "lines", "result", "red")

    def __init__(self):
        self.generation, self.result = 0, None
        self.reset()

    def reset(self):
        self.arrived, self.expected, self.clock, self.waiting, self.lines, self.red = 0, None, None, 0, [], None


def op_bar(ins, program):
    """bar / barrier {.cta} .{sync,arrive,red}, bar.warp.sync, barrier.cluster.*."""
    p = [x for x in ins.parts[1:] if x not in ("cta", "aligned")]
    if p[0] == "warp":
        return _warp_sync(ins)
    if p[0] == "cluster":
        return _cluster_barrier(ins, p)
    kind = p[0]
    ops = ins.ops
    red = None
    if kind == "red":
        red, d, a = p[1], ops[0], ops[1]
        pred = ops[-1]
        n_op = ops[2] if len(ops) > 3 else None
    else:
        a, n_op = ops[0], ops[1] if len(ops) > 1 else None

    def run(F, m):
        cta = F.cta
        barriers = cta.named
        if F.saved is not None and F.saved[0] == F.block:
            _, b, gen = F.saved
            if b.generation == gen:
                return False
            return _leave(F, b, gen)
        k = int(m.argmax())
        number = int(F.get(a)[k])
        count = int(F.get(n_op)[k]) if n_op is not None else -(-cta.threads // 32) * 32
        if number > 15 or count == 0 or count % 32:
            raise EmulatorError(f"barrier {number} with {count} threads", line=ins.line, why="there are barriers 0..15 and counts are multiples of the warp size")
        b = barriers.setdefault(number, NamedBarrier())
        if b.expected is None:
            b.expected = count
        elif b.expected != count and F.H:
            F.H.report("barrier-count", f"barrier {number} is used with {count} and with {b.expected} threads in one phase", (ins.line, b.lines[0]), (F.agent(), ""))
        # A whole warp counts as 32 however many of its lanes live; a fragment counts its lanes.
        w = F.warp
        lanes = mask_int(m)
        b.arrived += 32 if lanes == w.alive else lanes.bit_count()
        b.lines.append(ins.line)
        if red:
            v = F.pred(pred) & m
            n = int(v.sum())
            total = b.red or [0, 0]
            b.red = [total[0] + n, total[1] + int(m.sum())]
        F.counters.add("barrier_waits" if kind != "arrive" else "barrier_arrives")
        clock = F.release(lanes)
        if clock is not None:
            b.clock = clock if b.clock is None else b.clock.join(clock)
        F.launch.effects += 1
        gen = b.generation
        if n_op is None and b.arrived < count:
            # Without a count the barrier is for all threads: warps that have exited do not come.
            gone = sum(32 for x in cta.warps if not x.alive)
            if b.arrived + gone >= count:
                b.expected = b.arrived
        if b.arrived > b.expected and F.H:
            F.H.report("barrier-count", f"{b.arrived} threads arrive at barrier {number}, which expects {b.expected}", (ins.line,), (F.agent(),))
        done = b.arrived >= b.expected
        if done:
            b.result = (gen, b.clock, b.red)
            b.generation += 1
            b.reset()
        if kind == "arrive":
            return True
        if done:
            return _leave(F, b, gen)
        F.saved = (F.block, b, gen)
        F.why = f"barrier {number} has {b.arrived} of {b.expected} threads"
        return False

    def _leave(F, b, gen):
        F.saved = None
        g, clock, counts = b.result
        F.acquire(F.mask, clock)
        if red:
            n, total = counts
            if red == "popc":
                F.put(d, np.full(32, n, U4), F.marr)
            else:
                F.put(d, np.full(32, n == total if red == "and" else n > 0), F.marr)
        return True

    return run


def _warp_sync(ins):
    mem = ins.ops[0]
    return lambda F, m: joined(F, _members(F, mem), lambda lanes: None)


class ClusterBarrier:
    __slots__ = ("arrived", "clock", "generation", "result", "lanes", "lines")

    def __init__(self):
        self.arrived, self.clock, self.generation, self.result, self.lanes, self.lines = 0, None, 0, None, {}, []


def _cluster_barrier(ins, p):
    kind, relaxed = p[1], "relaxed" in p

    def run(F, m):
        cl = F.cta.cluster
        b = cl.barrier = cl.barrier or ClusterBarrier()
        w = F.warp
        lanes = mask_int(m)
        if kind == "arrive":
            b.arrived += lanes.bit_count()
            b.lanes[w] = (b.lanes.get(w, (0, 0))[0] | lanes, b.generation)
            w.specials["cluster phase"] = b.generation
            b.lines.append(ins.line)
            c = F.release(lanes) if not relaxed else F.H.start_clock(cl).with_bits(w.published) if F.H else None
            if c is not None:
                b.clock = c if b.clock is None else b.clock.join(c)
            F.launch.effects += 1
            _cluster_done(cl, b)
            return True
        phase = w.specials.get("cluster phase", -1)
        if phase < 0:
            if F.H:
                F.H.report("barrier-count", "barrier.cluster.wait without an arrive before it", (ins.line,), (F.agent(),))
            return True
        _cluster_done(cl, b)
        if b.generation <= phase:
            F.why = f"the cluster barrier has {b.arrived} of {sum(c.live_threads() for c in cl.ctas)} threads"
            return False
        F.acquire(lanes, b.result)
        return True

    return run


def _cluster_done(cl, b):
    if b.arrived and b.arrived >= sum(c.live_threads() for c in cl.ctas):
        b.result, b.clock, b.arrived = b.clock, None, 0
        b.lanes = {}
        b.generation += 1


# --- mbarriers ---------------------------------------------------------------------------------------------------------------
class MBarrier:
    """count, pending arrivals, transaction bytes and phase of one mbarrier; the clocks of what it orders."""

    __slots__ = ("at", "count", "pending", "tx", "phase", "clock", "past", "observed", "line", "missed", "last_lines", "waited")

    def __init__(self, at, count, line):
        self.at, self.count, self.pending, self.tx, self.phase, self.line = at, count, count, 0, 0, line
        self.clock, self.past, self.observed, self.missed, self.last_lines, self.waited = None, {}, True, None, [], False

    def text(self):
        return f"mbarrier at {self.at:#x} (phase {self.phase}, {self.pending} of {self.count} arrivals and {self.tx} bytes missing)"


def find(F, address, line, cluster=None):
    """(MBarrier, key) at a shared address, or an error that says what is there."""
    cl = cluster or F.cta.cluster
    at = int(cl.smem.index(np.array([address], np.int64), 8, line, F)[0])
    b = cl.mbars.get(at)
    if b is None:
        raise EmulatorError(f"no mbarrier at shared address {address:#x}", line=line, why="mbarrier.init has not been executed there", fix="check the address, and that init comes first")
    return b


def _touch(F, m_lanes, at, line, write=False):
    """Accesses to the barrier object must come after its initialisation."""
    if F.H:
        smem = F.cta.cluster.smem.mem
        F.H.generic(F, mask_array(m_lanes) if m_lanes != F.mask else None, smem.shadow, np.full(32, at >> 3, np.int64), 8, write, line, strong=True, what="mbarrier")


def arrive(launch, b, n, clock, line, relaxed=False):
    """n arrivals, with the clock of who arrives."""
    b.pending -= n
    b.last_lines.append(line)
    if clock is not None and not relaxed:
        b.clock = clock if b.clock is None else b.clock.join(clock)
    if b.pending < 0 and launch.hazards:
        launch.hazards.report("mbarrier-overflow", f"more than {b.count} arrivals in one phase of the {b.text()}", (line, b.line))
        b.pending = 0
    launch.effects += 1
    complete(launch, b, line)


def complete_tx(launch, b, nbytes, clock, line):
    """An asynchronous operation has moved nbytes."""
    b.tx -= nbytes
    b.last_lines.append(line)
    if clock is not None:
        b.clock = clock if b.clock is None else b.clock.join(clock)
    launch.effects += 1
    complete(launch, b, line)


def complete(launch, b, line):
    if b.pending or b.tx:
        return
    if not b.observed:
        note = f"the mbarrier at {b.at:#x} completed phase {b.phase - 1} and then phase {b.phase}, and nobody had seen the first"
        if b.waited and launch.hazards:
            launch.hazards.report("missed-phase", note, (line, b.last_lines[0]))
        elif b.missed is None:
            b.missed = (note, line)
    b.past = {b.phase: b.clock, b.phase - 1: b.past.get(b.phase - 1)}
    b.phase += 1
    b.pending, b.clock, b.observed, b.last_lines = b.count, None, False, []


def op_mbarrier(ins, program):
    p = ins.parts
    kind = p[1]
    maker = {"init": _mbar_init, "inval": _mbar_inval, "arrive": _mbar_arrive, "arrive_drop": _mbar_arrive, "expect_tx": _mbar_expect, "complete_tx": _mbar_complete,
             "try_wait": _mbar_wait, "test_wait": _mbar_wait}.get(kind)  # fmt: skip
    if maker is None:
        raise Unsupported(f"instruction {ins.opcode}")
    return maker(ins, program)


def _shared_address(F, op, parts):
    """Shared addresses of a barrier operand; generic addresses are brought to the shared window."""
    a = F.address(op)
    if not any(x.startswith("shared") for x in parts):
        a = a - (1 << 44)
    return a


def _mbar_init(ins, program):
    mem, n = ins.ops

    def run(F, m):
        cl = F.cta.cluster
        a, counts = _shared_address(F, mem, ins.parts), F.get(n)
        first = {}
        for lane in np.flatnonzero(m).tolist():
            first.setdefault((int(a[lane]), int(counts[lane])), lane)  # lanes that initialise one barrier alike count once
        for lane in first.values():
            at = int(cl.smem.index(a[lane:lane + 1], 8, ins.line, F)[0])
            if at & 7:
                raise EmulatorError(f"mbarrier at the unaligned address {at:#x}", line=ins.line, why="an mbarrier is 8 bytes, aligned to 8")
            count = int(counts[lane])
            if not 1 <= count < 1 << 20:
                raise EmulatorError(f"mbarrier.init with count {count}", line=ins.line, why="the count must be 1..2^20-1")
            if F.H:
                _init_record(F, cl, 1 << int(lane), at, ins.line)
            cl.mbars[at] = MBarrier(at, count, ins.line)
        F.launch.effects += 1
        return True

    return run


def _init_record(F, cl, lane, at, line):
    """An initialisation is recorded like an operation that is complete at once: fence.mbarrier_init publishes it alone."""
    op = F.launch.new_op(F, "mbarrier.init", line, lane)
    F.H.async_write(op, cl.smem.mem.shadow, np.array([at >> 3]), 8)
    F.H.add_bits(F, lane, op.bits)
    F.warp.inits |= op.bits


def _mbar_inval(ins, program):
    mem = ins.ops[0]

    def run(F, m):
        a = _shared_address(F, mem, ins.parts)
        for lane in np.flatnonzero(m):
            b = find(F, int(a[lane]), ins.line)
            _touch(F, 1 << int(lane), b.at, ins.line, True)
            del F.cta.cluster.mbars[b.at]
        return True

    return run


def _mbar_arrive(ins, program):
    p = ins.parts
    ops = list(ins.ops)
    state = ops.pop(0) if not isinstance(ops[0], Mem) else None
    mem, n = ops[0], ops[1] if len(ops) > 1 else Imm(1)
    expect, relaxed, drop = "expect_tx" in p, "relaxed" in p, p[1] == "arrive_drop"
    if drop and expect:
        raise Unsupported(f"instruction {ins.opcode}")

    def run(F, m):
        a, values = _shared_address(F, mem, p), F.get(n)
        lanes = np.flatnonzero(m)
        by = {}
        for lane in lanes.tolist():
            by.setdefault(int(a[lane]), []).append(lane)
        phase = 0
        for address, group in by.items():
            b = find(F, address, ins.line)
            mask = sum(1 << x for x in group)
            _touch(F, mask, b.at, ins.line)
            phase = b.phase
            clock = F.release(mask)
            if expect:
                b.tx += int(sum(int(values[x]) for x in group))
                count = len(group)
            else:
                count = int(sum(int(values[x]) for x in group))
            if drop:
                b.count -= count
            arrive(F.launch, b, count, clock, ins.line, relaxed)
        if isinstance(state, Reg):
            F.put(state, np.full(32, phase, np.uint64), m)
        F.counters.add("mbarrier_arrives", len(lanes))
        return True

    return run


def _mbar_expect(ins, program):
    mem, n = ins.ops

    def run(F, m):
        a, values = _shared_address(F, mem, ins.parts), F.get(n)
        for lane in np.flatnonzero(m):
            b = find(F, int(a[lane]), ins.line)
            _touch(F, 1 << int(lane), b.at, ins.line)
            b.tx += int(values[lane])
        F.launch.effects += 1
        return True

    return run


def _mbar_complete(ins, program):
    mem, n = ins.ops

    def run(F, m):
        a, values = _shared_address(F, mem, ins.parts), F.get(n)
        for lane in np.flatnonzero(m):
            b = find(F, int(a[lane]), ins.line)
            complete_tx(F.launch, b, int(values[lane]), None, ins.line)
        return True

    return run


def _mbar_wait(ins, program):
    p = ins.parts
    d, mem, ph = ins.ops[:3]
    parity, test, relaxed = "parity" in p, p[1] == "test_wait", "relaxed" in p
    loop = _is_wait_loop(ins, program)

    def run(F, m):
        a = _shared_address(F, mem, p)
        values = F.get(ph, 4 if parity else 8)
        lanes = np.flatnonzero(m)
        result = np.zeros(32, bool)
        hits = []
        key = None
        groups = {}
        if int(a[lanes].min()) == int(a[lanes].max()) and int(values[lanes].min()) == int(values[lanes].max()):
            groups[int(a[lanes[0]]), int(values[lanes[0]])] = lanes
        else:
            for lane in lanes:
                groups.setdefault((int(a[lane]), int(values[lane])), []).append(lane)
        blocked = None
        for (address, value), group in groups.items():
            b = find(F, address, ins.line)
            done = (b.phase & 1) != (value & 1) if parity else b.phase > value
            b.waited = True
            if b.missed and F.H:
                F.H.report("missed-phase", b.missed[0], (ins.line, b.missed[1]))
            if done:
                result[group] = True
                hits.append((b, group))
            else:
                blocked = b
                key = value
        if blocked is not None:
            F.why = f"try_wait for parity {key & 1} of the {blocked.text()}"
            if loop:
                F.why = "wait" + F.why[8:]
                return False
            if not (test or F.timeout):
                return False
            if test:
                mark = (F.block, F.launch.effects)
                if F.spin == mark:
                    return False
                F.spin = mark
            F.launch.retries += 1
        for b, group in hits:
            mask = F.mask if len(group) == F.width else sum(1 << int(x) for x in group)
            _touch(F, mask, b.at, ins.line)
            b.observed = True
            if not relaxed:
                F.acquire(mask, b.past.get(b.phase - 1))
        F.put(d, result, m)
        F.counters.add("barrier_waits")
        return True

    return run


def _is_wait_loop(ins, program):
    """True for `L: try_wait p; @p bra DONE; bra L;` and `L: try_wait p; @!p bra L;`: the wait can simply block."""
    instrs = program.kernel.instrs
    i = next(k for k, x in enumerate(instrs) if x is ins)
    d = ins.ops[0]
    if i + 1 >= len(instrs) or not isinstance(d, Reg):
        return False
    nxt = instrs[i + 1]
    if nxt.parts[0] != "bra" or nxt.guard is None or nxt.guard.index != d.index:
        return False
    if nxt.guard_neg:
        return nxt.target == i
    return i + 2 < len(instrs) and instrs[i + 2].parts[0] == "bra" and instrs[i + 2].guard is None and instrs[i + 2].target == i


# --- fences ------------------------------------------------------------------------------------------------------------------
def op_fence(ins, program):
    """fence.proxy.async, fence.mbarrier_init, fence.{acq_rel,sc}, membar."""
    p = ins.parts
    proxy = "proxy" in p
    if proxy and not any(x.startswith(("async", "alias", "tensormap")) for x in p):
        raise Unsupported(f"instruction {ins.opcode}")
    is_async = proxy and any(x.startswith("async") for x in p)

    def run(F, m):
        if F.H:
            lanes = mask_int(m)
            if is_async:
                F.H.proxy_fence(F, lanes)
            elif "mbarrier_init" in p:
                F.warp.published |= F.warp.inits
            elif not proxy:
                from .atomics import thread_fence

                thread_fence(F, lanes)
        return True

    return run


# --- ends --------------------------------------------------------------------------------------------------------------------
def check_cta_end(cta):
    """What a CTA must not leave behind."""
    if cta.tmem is not None:
        cta.tmem.check_end(cta)


def check_end(launch):
    """Nothing yet beyond what each CTA checks."""


__all__ = ["op_bar", "Sink"]
