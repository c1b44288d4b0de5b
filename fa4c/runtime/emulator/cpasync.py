"""cp.async, the non-bulk asynchronous copy (PTX ISA chapter 9.7.9.25.3): groups and mbarrier completion, per thread."""

import numpy as np

from .codegen import Unsupported
from .errors import EmulatorError
from .machine import mask_int
from .mbarrier import arrive, find
from .memory import resolve
from .parser import Imm


def op_cp_async(ins, program):
    p = ins.parts
    if "commit_group" in p:
        return _commit
    if "wait_group" in p:
        return _wait(ins.ops[0].value)
    if "wait_all" in p:
        return _wait_all
    if "mbarrier" in p:
        return _mbarrier(ins)
    return _copy(ins)


def _copy(ins):
    dst, src, n_op, *rest = ins.ops
    if not isinstance(n_op, Imm) or n_op.value not in (4, 8, 16):
        raise Unsupported(f"instruction {ins.opcode}")
    n = n_op.value
    size_op = rest[0] if rest else None

    def run(F, m):
        space, idx = resolve(F, m, ins.line, "shared", F.address(dst), 0, n, True)
        if np.bitwise_or.reduce(idx) & (n - 1):
            raise EmulatorError(f"misaligned cp.async to {space.name}", line=ins.line)
        data = np.zeros((32, n), np.uint8)
        amount = (
            F.get(size_op)
            if size_op is not None and not isinstance(size_op, Imm)
            else np.full(32, size_op.value if size_op is not None else n)
        )
        reading = m & (amount > 0)
        at = source = None
        if reading.any():
            source, at = resolve(F, reading, ins.line, "global", F.address(src), 0, 1, False)
            F.launch.memory.find(
                int(at[reading].min()) + source.base, int((at + amount.astype(np.int64))[reading].max()) + source.base, ins.line, False
            )
        op = F.launch.new_op(F, "cp.async", ins.line, mask_int(m), numbers=32)

        def complete(o):
            if reading.any():
                for lane in np.flatnonzero(reading).tolist():
                    k = int(amount[lane])
                    data[lane, :k] = source.data[at[lane] : at[lane] + k]
                if source.shadow is not None:
                    F.H.async_lanes(o, source.shadow, at // 4, reading, 4, False)
            space.data[: space.data.size // n * n].reshape(-1, n)[idx[m] // n] = data[m]
            if space.shadow is not None:
                F.H.async_lanes(o, space.shadow, idx // n, m, n, True)

        op.run = complete
        F.launch.issue(op)
        for lane in np.flatnonzero(m).tolist():
            F.warp.cp_async.setdefault(lane, ([], []))[0].append(op)
        F.counters.add("global_bytes.cp_async", int(amount[m].sum()))
        F.counters.add("smem_bytes.cp_async", n * int(m.sum()))
        return True

    return run


def _commit(F, m):
    for lane in np.flatnonzero(m).tolist():
        opened, groups = F.warp.cp_async.setdefault(lane, ([], []))
        groups.append(list(opened))
        opened.clear()
    return True


def _wait(n):
    def run(F, m):
        return _await(F, m, lambda state: [op for g in state[1][: max(0, len(state[1]) - n)] for op in g])

    return run


def _wait_all(F, m):
    return _await(F, m, lambda state: [op for g in state[1] for op in g] + state[0])


def _await(F, m, pick):
    lanes = np.flatnonzero(m).tolist()
    chosen = {lane: pick(F.warp.cp_async.get(lane, ([], []))) for lane in lanes}
    if not all(op.done for ops in chosen.values() for op in ops):
        F.why = "cp.async of this thread is not complete"
        return False
    if F.H:
        by_bits = {}
        for lane, ops in chosen.items():
            bits = 0
            for op in ops:
                bits |= op.lane_bits(lane)
            by_bits[bits] = by_bits.get(bits, 0) | 1 << lane
        for bits, mask in by_bits.items():
            F.H.add_bits(F, mask, bits)
    return True


def _mbarrier(ins):
    mem, noinc = ins.ops[0], "noinc" in ins.parts

    def run(F, m):
        for lane in np.flatnonzero(m).tolist():
            opened, groups = F.warp.cp_async.get(lane, ([], []))
            ops = [op for g in groups for op in g] + list(opened)
            b = find(F, int(F.address(mem)[lane]), ins.line)
            if not noinc:
                b.pending += 1
            op = F.launch.new_op(F, "cp.async.mbarrier.arrive", ins.line, 1 << lane, lane)

            def complete(o, b=b, ops=ops, lane=lane):
                if not all(x.done for x in ops):
                    F.launch.pending.append(o)
                    return
                clock = None
                if F.H:
                    bits = 0
                    for x in ops:
                        bits |= x.lane_bits(lane)
                    clock = F.H.start_clock(F.cta.cluster).with_bits(bits)
                arrive(F.launch, b, 1, clock, ins.line)

            op.run = complete
            F.launch.issue(op)
        return True

    return run
