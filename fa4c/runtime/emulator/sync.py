"""Barriers and warp-level operations (PTX ISA chapters 9.7.13 "Parallel synchronization" and 9.7.13.15 "mbarrier")."""

import numpy as np

from .atomics import thread_fence
from .codegen import Unsupported
from .errors import EmulatorError
from .hazards import FULL
from .machine import mask_array, mask_int
from .parser import Pair
from .reductions import over_lanes

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
        return _redux_float(ins, op)
    fn = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op]
    view = np.dtype("i4" if t == "s32" else "u4")

    def run(F, m):
        def compute(lanes):
            sel = mask_array(lanes)
            F.put(d, np.full(32, fn.reduce(F.get(a).view(view)[sel]), view), sel)

        return joined(F, _members(F, mem), compute)

    return run


def _redux_float(ins, op):
    """redux.sync.{min,max}{.abs}{.NaN}.f32."""
    d, a, mem = ins.ops
    if op not in ("min", "max"):
        raise Unsupported(f"instruction {ins.opcode}")

    def run(F, m):
        def compute(lanes):
            sel = mask_array(lanes)
            v = F.get(a).view("f4")[sel]
            v = np.abs(v) if "abs" in ins.parts else v
            F.put(d, np.full(32, over_lanes(v, op, "NaN" in ins.parts)), sel)

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

    __slots__ = ("arrived", "expected", "clock", "generation", "waiting", "lines", "results", "red")

    def __init__(self):
        self.generation, self.results = 0, {}
        self.reset()

    def reset(self):
        self.arrived, self.expected, self.clock, self.waiting, self.lines, self.red = 0, None, None, 0, [], None

    def complete(self):
        """All have come: waiters take the result of this generation, the next begins."""
        self.results = {self.generation: (self.clock, self.red), **dict(list(self.results.items())[:7])}
        self.generation += 1
        self.reset()


def _count_exited(cta, b):
    """Without a count the barrier is for all threads of the CTA: warps that have exited do not come."""
    gone = sum(32 for w in cta.warps if not w.alive)
    if b.arrived and b.arrived + gone >= b.expected:
        b.complete()


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
            if b.generation == gen and n_op is None:
                _count_exited(cta, b)
            if b.generation == gen:
                return False
            return _leave(F, b, gen)
        k = int(m.argmax())
        number = int(F.get(a)[k])
        count = int(F.get(n_op)[k]) if n_op is not None else -(-cta.threads // 32) * 32
        if number > 15 or count == 0 or count % 32:
            raise EmulatorError(
                f"barrier {number} with {count} threads",
                line=ins.line,
                why="there are barriers 0..15 and counts are multiples of the warp size",
            )
        b = barriers.setdefault(number, NamedBarrier())
        if b.expected is None:
            b.expected = count
        elif b.expected != count and F.H:
            F.H.report(
                "barrier-count",
                f"barrier {number} is used with {count} and with {b.expected} threads in one phase",
                (ins.line, b.lines[0]),
                (F.agent(), ""),
            )
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
        if b.arrived > b.expected and F.H:
            text = f"{b.arrived} threads arrive at barrier {number}, which expects {b.expected}"
            F.H.report("barrier-count", text, (ins.line,), (F.agent(),))
        if b.arrived >= b.expected:
            b.complete()
        elif n_op is None:
            _count_exited(cta, b)
        done = b.generation > gen
        if kind == "arrive":
            return True
        if done:
            return _leave(F, b, gen)
        F.saved = (F.block, b, gen)
        F.why = f"barrier {number} has {b.arrived} of {b.expected} threads"
        return False

    def _leave(F, b, gen):
        F.saved = None
        clock, counts = b.results[gen]
        F.warp.synced = True
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
                thread_fence(F, lanes, p)
        return True

    return run


def op_trap(ins, program):
    """trap: the kernel gives up, as after a failed assertion."""

    def run(F, m):
        what = f"trap executed by {F.agent(mask_int(m))}"
        raise EmulatorError(what, file=program.file, line=ins.line, why="the kernel stops itself here")

    return run


# --- ends --------------------------------------------------------------------------------------------------------------------
def op_setmaxnreg(ins, program):
    """setmaxnreg: no effect on values; the count must be legal, and under --strict equal in a warpgroup."""
    count = ins.ops[0].value
    if not 24 <= count <= 256 or count % 8:
        raise EmulatorError(
            f"setmaxnreg of {count} registers", file=program.file, line=ins.line, why="the count must be a multiple of 8 from 24 to 256"
        )

    def run(F, m):
        F.warp.max_registers.append((count, ins.line))
        return True

    return run


def _check_registers(cta):
    H = cta.launch.hazards
    for g in range(0, len(cta.warps), 4):
        group = [w.max_registers for w in cta.warps[g : g + 4]]
        for values in zip(*group):
            if len({v for v, _ in values}) > 1:
                text = f"warps {g}..{g + 3} of one warpgroup set {sorted({v for v, _ in values})} registers"
                H.report("setmaxnreg", text, tuple(dict.fromkeys(line for _, line in values)), severity="warning")


def check_cta_end(cta):
    """What a CTA must not leave behind."""
    if cta.launch.strict and cta.launch.hazards:
        _check_registers(cta)
        _check_copies(cta)
    if cta.tmem is not None:
        cta.tmem.check_end(cta)


def _check_copies(cta):
    """Shared memory goes with its CTA: bulk stores must have read their source before the issuing thread ends."""
    for w in cta.warps:
        for lane, (opened, groups) in w.bulk.items():
            op = next((x for g in [*groups, opened] for x in g if not x.waited), None)
            if op is not None:
                text = (
                    f"the {op.kind} of {w.name()} lane {lane} may still read shared memory when the CTA ends: no bulk wait_group covers it"
                )
                cta.launch.hazards.report("exit-before-copy", text, (op.line,), (op.agent(),), severity="warning")
