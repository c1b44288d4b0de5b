"""wgmma (PTX ISA chapter 9.7.15): asynchronous warpgroup MMAs with A in shared memory or registers.

Each warp of the warpgroup computes its own 16 rows. An MMA runs as late as the ISA allows, at the wait that needs it; until
then its accumulator registers are poisoned, and so are the registers of an A operand against being overwritten.
"""

import re

import numpy as np

from .cfg import defs_uses
from .codegen import Unsupported
from .counters import HOPPER_FLOP_PER_CLOCK
from .errors import EmulatorError
from .hazards import FULL
from .operands import element_index, product, to_float, wgmma_fields
from .parser import Imm, Vec


class Mma:
    """One issued wgmma of one warp."""

    __slots__ = ("op", "regs", "n", "a_regs", "a_index", "b_index", "accumulate", "sign_a", "sign_b", "bf16", "line", "base", "a_names")


def op_wgmma(ins, program):
    kind = ins.parts[1]
    if kind == "fence":
        return _fence
    if kind == "commit_group":
        return _commit
    if kind == "wait_group":
        n = ins.ops[0].value
        return lambda F, m: _wait(F, n)
    if kind != "mma_async":
        raise Unsupported(f"instruction {ins.opcode}")
    return _mma(ins)


def _mma(ins):
    p = ins.parts
    shape = re.fullmatch(r"m64n(\d+)k16", next((x for x in p if x.startswith("m64")), ""))
    types = [x for x in p if x in ("f32", "f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "s32")]
    if "sp" in p or not shape or types[0] != "f32" or len(types) != 3 or types[1] not in ("f16", "bf16"):
        raise Unsupported(f"instruction {ins.opcode}")
    n, bf16 = int(shape.group(1)), types[1] == "bf16"
    d, a, b, scale_d, *rest = ins.ops
    regs = tuple(r.index for r in d.items)
    if len(regs) != n // 2:
        raise EmulatorError(f"{ins.opcode} with {len(regs)} accumulator registers", line=ins.line, why=f"m64n{n} has {n // 2} a thread")
    from_regs = isinstance(a, Vec)
    a_regs = tuple(r.index for r in a.items) if from_regs else ()
    values = [x.value if isinstance(x, Imm) else 1 for x in rest] + [0, 0]
    sign_a, sign_b = values[0], values[1]
    if from_regs:
        trans_a, trans_b = 0, values[2]
    else:
        trans_a, trans_b = values[2], values[3]

    def run(F, m):
        w = F.warp
        if F.mask != FULL or not m.all():
            raise EmulatorError("wgmma by a part of a warp", line=ins.line, why="all threads of the warpgroup must execute it together")
        _check_fence(F, ins, regs, a_regs)
        pending = w.pending_regs
        for r in a_regs:
            if r in pending:
                _poisoned(F, ins, r, pending[r])
                _flush(F)
                break
        for r in regs:
            if r in w.pending_inputs:
                _poisoned(F, ins, r, w.pending_inputs[r], "overwrites operand A of")
                _flush(F)
                break
        x = Mma()
        x.op = F.launch.new_op(F, "wgmma", ins.line, F.mask) if F.H else None
        x.regs, x.n, x.bf16, x.line, x.sign_a, x.sign_b = regs, n, bf16, ins.line, sign_a, sign_b
        x.accumulate = bool(F.pred(scale_d)[0])
        x.base = F.cta.rank * F.cta.cluster.smem.window
        x.a_regs, x.a_index, x.a_names = None, None, a_regs
        quarter = w.index % 4
        if from_regs:
            x.a_regs = [F.get(r) for r in a.items]
        else:
            x.a_index = _index(F, int(F.get(a, 8)[0]), 16, not trans_a, quarter * 16, ins.line)
        x.b_index = _index(F, int(F.get(b, 8)[0]), n, not trans_b, 0, ins.line)
        w.wg_open.append(x)
        for r in regs:
            pending[r] = x
        for r in a_regs:
            w.pending_inputs[r] = x
        F.counters.add("mma_flops", 2 * 16 * n * 16)
        F.counters.add("mma_clocks", 2 * 16 * n * 16 / HOPPER_FLOP_PER_CLOCK)
        F.counters.add("smem_bytes.operands", n * 32 // 4 + (0 if from_regs else 16 * 32))
        return True

    return run


def _index(F, desc, rows, k_major, first, line):
    start, leading, stride, swizzle = wgmma_fields(desc)
    index, chunks = element_index(start, leading, stride, swizzle, rows, 16, k_major, first)
    smem = F.cta.cluster.smem
    lo, hi = int(chunks[0]) * 16, int(chunks[-1]) * 16 + 16
    if lo < 1024 or hi > smem.limit:
        raise EmulatorError(
            f"wgmma operand out of bounds: shared bytes {lo:#x}..{hi - 1:#x} of a window that ends at {smem.limit:#x}",
            line=line,
            why=f"descriptor {desc:#018x}: start {start:#x}, leading {leading}, stride {stride}, swizzle {swizzle}",
            fix="check start address, leading and stride offsets",
        )
    return index, chunks


def _check_fence(F, ins, regs, a_regs):
    """Registers written by other instructions since the last wgmma.fence must not be used by a wgmma."""
    w = F.warp
    if not F.H:
        return
    if not w.fenced:
        F.H.report("wgmma-fence", "the first wgmma of a warp has no wgmma.fence before it", (ins.line,), (F.agent(),))
        w.fenced = True
    if not w.dirty:
        return
    written = set().union(*(b.defs for b in w.dirty))
    bad = [r for r in (*regs, *a_regs) if r in written and r not in w.pending_regs]
    if bad:
        k = F.launch.program.kernel
        block = next(b for b in w.dirty if bad[0] in b.defs)
        line = next(k.instrs[i].line for i in range(block.first, block.last) if bad[0] in _defs(k.instrs[i]))
        F.H.report(
            "wgmma-fence",
            f"register {k.reg_names[bad[0]]} is written and then used by wgmma without a wgmma.fence between",
            (ins.line, line),
            (F.agent(), F.agent()),
        )
        w.dirty.clear()


def _defs(ins):
    return defs_uses(ins)[0]


def _poisoned(F, ins, r, mma, how="uses the result of"):
    if F.H:
        name = F.launch.program.kernel.reg_names[r]
        F.H.report(
            "wgmma-pending",
            f"register {name}: this instruction {how} a wgmma that wgmma.wait_group has not waited for",
            (ins.line, mma.line),
            (F.agent(), F.agent()),
        )


def check_block(F, code):
    """Before a block runs: it must not touch registers of wgmma operations in flight."""
    w, b = F.warp, code.block
    base = code.instr.parts[0]
    if base == "wgmma":
        return
    pending, inputs = w.pending_regs, w.pending_inputs
    if b.upward.isdisjoint(pending) and b.defs.isdisjoint(pending) and b.defs.isdisjoint(inputs):
        return
    k = F.launch.program.kernel
    for i in range(b.first, b.last):
        defs, uses = defs_uses(k.instrs[i])
        bad = next((r for r in (*uses, *defs) if r in pending), None)
        if bad is not None:
            _poisoned(F, k.instrs[i], bad, pending[bad])
            break
        bad = next((r for r in defs if r in inputs), None)
        if bad is not None:
            _poisoned(F, k.instrs[i], bad, inputs[bad], "overwrites operand A of")
            break
    _flush(F)


def _fence(F, m):
    if F.warp.dirty is not None:
        F.warp.dirty.clear()
    F.warp.fenced = True
    return True


def _commit(F, m):
    w = F.warp
    w.wg_groups.append(w.wg_open)
    w.wg_open = []
    return True


def _wait(F, n):
    w = F.warp
    ready = w.wg_groups[: max(0, len(w.wg_groups) - n)]
    if ready:
        del w.wg_groups[: len(ready)]
        _execute(F, [x for g in ready for x in g])
        still = [x for g in w.wg_groups for x in g] + w.wg_open
        w.pending_regs = {r: x for x in still for r in x.regs}
        w.pending_inputs = {}
        for x in still:
            # Registers of A are known by the instruction; keep those of operations still in flight.
            for r in x.a_names:
                w.pending_inputs[r] = x
    return True


def _flush(F):
    """After a report: run everything, so that the rest of the kernel has values."""
    w = F.warp
    _execute(F, [x for g in w.wg_groups for x in g] + w.wg_open)
    w.wg_groups, w.wg_open, w.pending_regs, w.pending_inputs = [], [], {}, {}


def _a_fragment(regs, bf16):
    """16x16 operand A from the four registers of 32 lanes."""
    words = np.stack(regs)  # [4, 32]
    halves = np.stack([words & 0xFFFF, words >> 16], -1).astype(np.uint16)  # [4, 32, 2]
    f = to_float(halves, bf16).reshape(2, 2, 8, 4, 2)  # [k half, row half, g, q, pair]
    return f.transpose(1, 2, 0, 3, 4).reshape(16, 16)


def _execute(F, mmas):
    """Run MMAs in order; an accumulator stays a dense tile as long as consecutive MMAs share it."""
    w = F.warp
    u2 = F.cta.cluster.smem.mem.views[2]
    shadow = F.cta.cluster.smem.mem.shadow
    bits, regs, tile = 0, None, None
    for x in mmas:
        if x.regs != regs:
            if tile is not None:
                _scatter(w, regs, tile)
            regs, tile = x.regs, None
        off = x.base >> 1
        b = to_float(u2.take(x.b_index[0] + off if off else x.b_index[0]), x.bf16)
        a = (
            _a_fragment(x.a_regs, x.bf16)
            if x.a_regs is not None
            else to_float(u2.take(x.a_index[0] + off if off else x.a_index[0]), x.bf16)
        )
        if x.sign_a * x.sign_b < 0:
            a = -a
        total = product(a, b)
        if x.accumulate:
            total += _gather(w, regs) if tile is None else tile
        tile = total.astype(np.float32)
        if shadow is not None:
            base = x.base >> 4
            F.H.async_access(x.op, shadow, x.b_index[1] + base, 16, False)
            if x.a_index is not None:
                F.H.async_access(x.op, shadow, x.a_index[1] + base, 16, False)
            bits |= x.op.bits
    if tile is not None:
        _scatter(w, regs, tile)
    if F.H:
        F.H.add_bits(F, F.mask, bits)


def _gather(w, regs):
    """The accumulator registers as a [16, N] tile."""
    R = w.R
    t = np.stack([R[r].view(np.float32) for r in regs])  # [N/2, 32]
    return t.reshape(-1, 2, 2, 8, 4).transpose(1, 3, 0, 4, 2).reshape(16, -1)


def _scatter(w, regs, tile):
    n8 = tile.shape[1] // 8
    t = np.ascontiguousarray(tile.reshape(2, 8, n8, 4, 2).transpose(2, 0, 4, 1, 3)).reshape(-1, 32)
    R = w.R
    for r, row in zip(regs, t):
        R[r] = row
