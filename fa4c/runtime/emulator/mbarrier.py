"""mbarriers: arrivals, transaction bytes, phases, waits (PTX ISA chapter 9.7.13.15)."""

import numpy as np

from .codegen import Unsupported
from .errors import EmulatorError
from .hazards import GPU
from .machine import mask_array
from .parser import Imm, Mem, Reg


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
        raise EmulatorError(
            f"no mbarrier at shared address {address:#x}",
            line=line,
            why="mbarrier.init has not been executed there",
            fix="check the address, and that init comes first",
        )
    return b


def _touch(F, m_lanes, at, line, write=False):
    """Accesses to the barrier object must come after its initialisation."""
    if F.H:
        smem = F.cta.cluster.smem.mem
        F.H.generic(
            F,
            mask_array(m_lanes) if m_lanes != F.mask else None,
            smem.shadow,
            np.full(32, at >> 3, np.int64),
            8,
            write,
            line,
            strong=GPU,
            what="mbarrier",
        )


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
    maker = {
        "init": _mbar_init,
        "inval": _mbar_inval,
        "arrive": _mbar_arrive,
        "arrive_drop": _mbar_arrive,
        "expect_tx": _mbar_expect,
        "complete_tx": _mbar_complete,
        "try_wait": _mbar_wait,
        "test_wait": _mbar_wait,
    }.get(kind)
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
            at = int(cl.smem.index(a[lane : lane + 1], 8, ins.line, F)[0])
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
            F.launch.coupled = "a wait on an mbarrier is tried again"
        for b, group in hits:
            mask = F.mask if len(group) == F.width else sum(1 << int(x) for x in group)
            _touch(F, mask, b.at, ins.line)
            b.observed = True
            F.warp.synced = True
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
