"""Warp-level matrix instructions: ldmatrix, stmatrix, movmatrix, mma.sync (PTX ISA chapter 9.7.14)."""

import re

import numpy as np

from .codegen import Unsupported
from .counters import HOPPER_FLOP_PER_CLOCK
from .errors import EmulatorError
from .hazards import FULL
from .memory import resolve
from .operands import product, to_float
from .parser import Vec
from .sync import joined


def _items(op):
    return op.items if isinstance(op, Vec) else (op,)


def _rows(F, ins, mem, count, write):
    """Byte indices of the 8 row addresses of each matrix: [count, 8]."""
    a = F.address(mem)[: 8 * count]
    space = "shared" if any(p.startswith("shared") for p in ins.parts) else "generic"
    full = np.concatenate([a, np.full(32 - a.size, a[0])])
    memory, idx = resolve(F, None, ins.line, space, full, 0, 16, write)
    if np.bitwise_or.reduce(idx) & 15:
        raise EmulatorError(f"{ins.opcode} with a row that is not 16-byte aligned", line=ins.line)
    return memory, idx[: 8 * count] >> 4


def _hazard(F, ins, memory, rows, write):
    """Lane i touches the row whose address it gave: the whole instruction is one access of the warp."""
    if memory.shadow is not None:
        lanes = rows.size
        m = None if lanes == 32 else np.arange(32) < lanes
        full = rows if lanes == 32 else np.concatenate([rows, np.full(32 - lanes, rows[0])])
        F.H.generic(F, m, memory.shadow, full, 16, write, ins.line)


def _check(F, ins):
    if F.warp.alive != FULL:
        raise EmulatorError(f"{ins.opcode} by a part of a warp", line=ins.line, why="all 32 lanes must execute it")


def op_ldmatrix(ins, program):
    p = ins.parts
    count = {"x1": 1, "x2": 2, "x4": 4}[next(x for x in p if x in ("x1", "x2", "x4"))]
    if "m8n8" not in p or p[-1] != "b16":
        raise Unsupported(f"instruction {ins.opcode}")
    trans = "trans" in p
    d, mem = ins.ops

    def run(F, m):
        def compute(lanes):
            _check(F, ins)
            memory, rows = _rows(F, ins, mem, count, False)
            _hazard(F, ins, memory, rows, False)
            data = memory.data.reshape(-1, 16)[rows].view(np.uint16).reshape(count, 8, 8)
            if trans:
                data = data.transpose(0, 2, 1)
            words = np.ascontiguousarray(data).view(np.uint32).reshape(count, 32)
            for dst, v in zip(_items(d), words):
                F.put(dst, v.copy(), np.ones(32, bool))
            F.counters.add("smem_bytes.load", 128 * count)

        return joined(F, FULL, compute)

    return run


def op_stmatrix(ins, program):
    p = ins.parts
    count = {"x1": 1, "x2": 2, "x4": 4}[next(x for x in p if x in ("x1", "x2", "x4"))]
    if "m8n8" not in p or p[-1] != "b16":
        raise Unsupported(f"instruction {ins.opcode}")
    trans = "trans" in p
    mem, s = ins.ops

    def run(F, m):
        def compute(lanes):
            _check(F, ins)
            memory, rows = _rows(F, ins, mem, count, True)
            _hazard(F, ins, memory, rows, True)
            data = np.stack([F.get(i) for i in _items(s)]).view(np.uint16).reshape(count, 8, 8)
            if trans:
                data = data.transpose(0, 2, 1)
            memory.data.reshape(-1, 16)[rows] = np.ascontiguousarray(data).view(np.uint8).reshape(-1, 16)
            F.launch.effects += 1
            F.counters.add("smem_bytes.store", 128 * count)

        return joined(F, FULL, compute)

    return run


def op_movmatrix(ins, program):
    d, a = ins.ops

    def run(F, m):
        def compute(lanes):
            t = np.ascontiguousarray(F.get(a).view(np.uint16).reshape(8, 8).T).view(np.uint32).reshape(32)
            F.put(d, t, np.ones(32, bool))

        return joined(F, FULL, compute)

    return run


def op_mma(ins, program):
    p = ins.parts
    shape = re.fullmatch(r"m16n8k(8|16)", next((x for x in p if x.startswith("m16")), ""))
    types = [x for x in p if x in ("f32", "f16", "bf16", "tf32", "s32", "s8", "u8", "e4m3", "e5m2")]
    if not shape or len(types) != 4 or types[0] != "f32" or types[1] not in ("f16", "bf16"):
        raise Unsupported(f"instruction {ins.opcode}")
    k, bf16 = int(shape.group(1)), types[1] == "bf16"
    d, a, b, c = ins.ops

    def run(F, m):
        def compute(lanes):
            _check(F, ins)
            A = _tile([F.get(r) for r in a.items], bf16).reshape(k // 8, 2, 8, 4, 2).transpose(1, 2, 0, 3, 4).reshape(16, k)
            B = _tile([F.get(r) for r in b.items], bf16).reshape(k // 8, 8, 4, 2).transpose(1, 0, 2, 3).reshape(8, k)
            C = np.stack([F.get(r).view(np.float32) for r in c.items]).reshape(2, 2, 8, 4).transpose(0, 2, 3, 1).reshape(16, 8)
            D = (product(A, B) + C).astype(np.float32)
            out = np.ascontiguousarray(D.reshape(2, 8, 4, 2).transpose(0, 3, 1, 2)).reshape(4, 32)
            for r, v in zip(d.items, out):
                F.put(r, v.copy(), np.ones(32, bool))
            F.counters.add("mma_flops", 2 * 16 * 8 * k)
            F.counters.add("mma_clocks", 2 * 16 * 8 * k / HOPPER_FLOP_PER_CLOCK)

        return joined(F, FULL, compute)

    return run


def _tile(words, bf16):
    w = np.stack(words)
    return to_float(np.stack([w & 0xFFFF, w >> 16], -1).astype(np.uint16), bf16)
