"""Single PTX operations as one CUDA C++ kernel a width: each operation is an inline-assembly statement over registers of raw bits.

`OPERATIONS`: group -> (register width, how results are compared, instructions). `%0` is the result, `%1 %2 %3` the operands.
`BITWISE`: equal bits. `FLOAT`: equal bits, any NaN equal to any NaN (the ISA leaves payloads open). A number: the ISA's relative error.
"""

from __future__ import annotations

import numpy as np

BITWISE, FLOAT = "bitwise", "bitwise, NaN as NaN"

_INTEGER = """add.u32 %0,%1,%2; sub.s32 %0,%1,%2; mul.lo.u32 %0,%1,%2; mul.hi.u32 %0,%1,%2; mul.hi.s32 %0,%1,%2;
mad.lo.s32 %0,%1,%2,%3; mad.hi.u32 %0,%1,%2,%3; div.s32 %0,%1,%2; div.u32 %0,%1,%2; rem.s32 %0,%1,%2; rem.u32 %0,%1,%2;
min.s32 %0,%1,%2; max.u32 %0,%1,%2; abs.s32 %0,%1; neg.s32 %0,%1; and.b32 %0,%1,%2; or.b32 %0,%1,%2; xor.b32 %0,%1,%2;
not.b32 %0,%1; shl.b32 %0,%1,%2; shr.u32 %0,%1,%2; shr.s32 %0,%1,%2; shf.l.wrap.b32 %0,%1,%2,%3; shf.r.wrap.b32 %0,%1,%2,%3;
shf.l.clamp.b32 %0,%1,%2,%3; shf.r.clamp.b32 %0,%1,%2,%3; bfe.u32 %0,%1,%2,%3; bfe.s32 %0,%1,%2,%3; bfi.b32 %0,%1,%2,%3,9;
prmt.b32 %0,%1,%2,%3; lop3.b32 %0,%1,%2,%3,0x96; lop3.b32 %0,%1,%2,%3,0x1b; popc.b32 %0,%1; clz.b32 %0,%1; brev.b32 %0,%1;
bfind.u32 %0,%1; bfind.s32 %0,%1; bfind.shiftamt.u32 %0,%1; mov.b32 %0,%1; slct.s32.s32 %0,%1,%2,%3; cvt.s32.s8 %0,%1;
cvt.u32.u16 %0,%1; cvt.sat.s8.s32 %0,%1; add.sat.s32 %0,%1,%2; set.lt.u32.s32 %0,%1,%2"""
_ROUNDED = """add.rn.f32 %0,%1,%2; add.rm.f32 %0,%1,%2; add.rp.f32 %0,%1,%2; add.rz.f32 %0,%1,%2; sub.rn.f32 %0,%1,%2;
sub.rm.f32 %0,%1,%2; mul.rn.f32 %0,%1,%2; mul.rm.f32 %0,%1,%2; mul.rp.f32 %0,%1,%2; mul.rz.f32 %0,%1,%2; fma.rn.f32 %0,%1,%2,%3;
fma.rm.f32 %0,%1,%2,%3; fma.rp.f32 %0,%1,%2,%3; fma.rz.f32 %0,%1,%2,%3; add.rn.ftz.f32 %0,%1,%2; mul.rn.ftz.f32 %0,%1,%2;
fma.rn.ftz.f32 %0,%1,%2,%3; add.rm.ftz.f32 %0,%1,%2; fma.rm.ftz.f32 %0,%1,%2,%3; add.rn.sat.f32 %0,%1,%2; div.rn.f32 %0,%1,%2;
sqrt.rn.f32 %0,%1; rcp.rn.f32 %0,%1; div.rn.ftz.f32 %0,%1,%2; sqrt.rn.ftz.f32 %0,%1; rcp.rn.ftz.f32 %0,%1; min.f32 %0,%1,%2;
max.f32 %0,%1,%2; max.NaN.f32 %0,%1,%2; max.ftz.f32 %0,%1,%2; abs.f32 %0,%1; neg.f32 %0,%1; copysign.f32 %0,%1,%2;
cvt.rni.f32.f32 %0,%1; cvt.rzi.f32.f32 %0,%1; cvt.rmi.f32.f32 %0,%1; cvt.rpi.f32.f32 %0,%1; fma.rn.f16x2 %0,%1,%2,%3;
add.rn.f16x2 %0,%1,%2; mul.rn.f16x2 %0,%1,%2; fma.rn.bf16x2 %0,%1,%2,%3; add.rn.bf16x2 %0,%1,%2; mul.rn.bf16x2 %0,%1,%2;
max.f16x2 %0,%1,%2; min.bf16x2 %0,%1,%2; div.rm.f32 %0,%1,%2; div.rp.f32 %0,%1,%2; div.rz.f32 %0,%1,%2; div.rm.ftz.f32 %0,%1,%2;
div.rp.ftz.f32 %0,%1,%2; rcp.rm.f32 %0,%1; rcp.rp.f32 %0,%1; rcp.rz.f32 %0,%1; rcp.rp.ftz.f32 %0,%1; sqrt.rm.f32 %0,%1;
sqrt.rp.f32 %0,%1; sqrt.rz.f32 %0,%1; sqrt.rp.ftz.f32 %0,%1; mul.rp.ftz.f32 %0,%1,%2; neg.ftz.f32 %0,%1; abs.ftz.f32 %0,%1;
slct.ftz.b32.f32 %0,%1,%2,%3; set.lt.ftz.u32.f32 %0,%1,%2; min.NaN.f32 %0,%1,%2; mul.sat.f32 %0,%1,%2; fma.rn.sat.f32 %0,%1,%2,%3;
add.ftz.f16x2 %0,%1,%2; mul.ftz.f16x2 %0,%1,%2; add.sat.f16x2 %0,%1,%2; mul.sat.f16x2 %0,%1,%2; fma.rn.ftz.f16x2 %0,%1,%2,%3;
fma.rn.sat.f16x2 %0,%1,%2,%3; fma.rn.relu.f16x2 %0,%1,%2,%3; fma.rn.relu.bf16x2 %0,%1,%2,%3; max.ftz.f16x2 %0,%1,%2;
max.NaN.bf16x2 %0,%1,%2; neg.ftz.f16x2 %0,%1; abs.ftz.f16x2 %0,%1; sub.rn.bf16x2 %0,%1,%2"""
_CONVERT = """cvt.rni.s32.f32 %0,%1; cvt.rzi.s32.f32 %0,%1; cvt.rmi.s32.f32 %0,%1; cvt.rpi.s32.f32 %0,%1; cvt.rzi.u32.f32 %0,%1;
cvt.rni.u32.f32 %0,%1; cvt.rn.f32.s32 %0,%1; cvt.rz.f32.s32 %0,%1; cvt.rm.f32.s32 %0,%1; cvt.rp.f32.u32 %0,%1; cvt.rn.f32.u32 %0,%1;
cvt.rn.f16x2.f32 %0,%1,%2; cvt.rz.f16x2.f32 %0,%1,%2; cvt.rn.bf16x2.f32 %0,%1,%2; cvt.rz.bf16x2.f32 %0,%1,%2;
cvt.rn.relu.f16x2.f32 %0,%1,%2; cvt.rn.relu.bf16x2.f32 %0,%1,%2; cvt.rn.f16.f32 %0,%1; cvt.rz.f16.f32 %0,%1; cvt.rn.bf16.f32 %0,%1;
cvt.rz.bf16.f32 %0,%1; cvt.rn.relu.f16.f32 %0,%1; cvt.rn.relu.bf16.f32 %0,%1; cvt.rz.relu.bf16.f32 %0,%1; cvt.sat.f32.f32 %0,%1;
cvt.rpi.ftz.s32.f32 %0,%1; cvt.rmi.ftz.f32.f32 %0,%1; cvt.rzi.s16.f32 %0,%1; cvt.rni.u16.f32 %0,%1; cvt.rmi.s8.f32 %0,%1;
cvt.rzi.u8.f32 %0,%1"""
_DOUBLE = """add.rn.f64 %0,%1,%2; add.rm.f64 %0,%1,%2; mul.rn.f64 %0,%1,%2; fma.rn.f64 %0,%1,%2,%3; div.rn.f64 %0,%1,%2;
sqrt.rn.f64 %0,%1; rcp.rn.f64 %0,%1; min.f64 %0,%1,%2; max.f64 %0,%1,%2; cvt.rn.f64.s64 %0,%1; cvt.rzi.s64.f64 %0,%1;
cvt.rmi.s64.f64 %0,%1; add.rp.f64 %0,%1,%2; add.rz.f64 %0,%1,%2; mul.rp.f64 %0,%1,%2; fma.rz.f64 %0,%1,%2,%3; div.rm.f64 %0,%1,%2;
div.rp.f64 %0,%1,%2; div.rz.f64 %0,%1,%2; rcp.rm.f64 %0,%1; rcp.rp.f64 %0,%1; rcp.rz.f64 %0,%1; sqrt.rm.f64 %0,%1; sqrt.rp.f64 %0,%1;
sqrt.rz.f64 %0,%1; cvt.rm.f64.s64 %0,%1; cvt.rp.f64.u64 %0,%1; cvt.rpi.u64.f64 %0,%1; cvt.rzi.s32.f64 %0,%1; cvt.rni.u32.f64 %0,%1;
cvt.rzi.s16.f64 %0,%1; cvt.rmi.u16.f64 %0,%1; cvt.rzi.s64.f32 %0,%1; cvt.rmi.u64.f32 %0,%1"""
_LONG = """add.u64 %0,%1,%2; sub.s64 %0,%1,%2; mul.lo.u64 %0,%1,%2; mul.hi.u64 %0,%1,%2; mul.hi.s64 %0,%1,%2;
mad.lo.s64 %0,%1,%2,%3; div.s64 %0,%1,%2; div.u64 %0,%1,%2; rem.s64 %0,%1,%2; rem.u64 %0,%1,%2; min.s64 %0,%1,%2; max.u64 %0,%1,%2;
and.b64 %0,%1,%2; xor.b64 %0,%1,%2; not.b64 %0,%1; brev.b64 %0,%1; abs.s64 %0,%1; neg.s64 %0,%1"""
# instruction: (the ISA's relative error, absolute error); operands in the range for which the ISA states it
APPROXIMATE = {
    "ex2.approx.f32 %0,%1": (2.0**-22, 0.0),
    "ex2.approx.ftz.f32 %0,%1": (2.0**-22, 0.0),
    "lg2.approx.f32 %0,%1": (2.0**-22, 2.0**-22),
    "rcp.approx.f32 %0,%1": (2.0**-23, 0.0),
    "rcp.approx.ftz.f32 %0,%1": (2.0**-23, 0.0),
    "rsqrt.approx.f32 %0,%1": (2.0**-22.9, 0.0),
    "sqrt.approx.f32 %0,%1": (2.0**-22, 0.0),
    "tanh.approx.f32 %0,%1": (2.0**-11, 0.0),
    "sin.approx.f32 %0,%1": (0.0, 2.0**-20.5),
    "cos.approx.f32 %0,%1": (0.0, 2.0**-20.5),
    "div.approx.f32 %0,%1,%2": (2.0**-22, 0.0),
    "div.full.f32 %0,%1,%2": (2.0**-22, 0.0),
}


def _list(text):
    return [s.strip() for s in text.replace("\n", " ").split(";") if s.strip()]


OPERATIONS = {
    "integer32": (32, BITWISE, _list(_INTEGER)),
    "rounded": (32, FLOAT, _list(_ROUNDED)),
    "convert": (32, FLOAT, _list(_CONVERT)),
    "float64": (64, FLOAT, _list(_DOUBLE)),
    "integer64": (64, BITWISE, _list(_LONG)),
    "approximate": (32, "bound", list(APPROXIMATE)),
}


def _statement(width: int, instruction: str) -> str:
    """The instruction with its operands in registers of their types: `%0` and `%1` are `width` bits wide."""
    to, frm = instruction.split()[0].split(".")[-2:]
    if frm in ("s8", "u16"):  # an 8- or 16-bit source is a 16-bit register
        return f"{{ .reg .b16 lo, hi; mov.b32 {{lo, hi}}, %1; {instruction.replace('%1', 'lo')}; }}"
    if (width, frm) == (64, "f32"):  # the upper half: an f64's NaNs and infinities are NaNs of an f32 there
        return f"{{ .reg .b32 lo, hi; mov.b64 {{lo, hi}}, %1; {instruction.replace('%1', 'hi')}; }}"
    if to in ("f16", "bf16", "s8", "u8", "s16", "u16"):  # a result of 8 or 16 bits
        sign = "s" if to[0] == "s" else "u"
        return f"{{ .reg .b16 lo; {instruction.replace('%0', 'lo')}; cvt.{sign}{width}.{sign}16 %0, lo; }}"
    if (width, to) in ((64, "s32"), (64, "u32")):
        return f"{{ .reg .b32 lo; {instruction.replace('%0', 'lo')}; cvt.u64.u32 %0, lo; }}"
    return instruction + ";"


def source(group: str) -> str:
    """CUDA C++ of kernel `group`: out[operation * n + i] = operation(a[i], b[i], c[i])."""
    width, _, instructions = OPERATIONS[group]
    kind, letter = {32: ("unsigned", "r"), 64: ("unsigned long long", "l")}[width]
    lines = [f'extern "C" __global__ void {group}(const {kind}* a, const {kind}* b, const {kind}* c, {kind}* out, int n) {{',
             "  int i = blockIdx.x * blockDim.x + threadIdx.x;", f"  {kind} x = a[i], y = b[i], z = c[i], r;", "  (void)y, (void)z;"]
    for k, instruction in enumerate(instructions):
        text = _statement(width, instruction)
        inputs = [f'"{letter}"({v})' for v, n in zip("xyz", "123") if f"%{n}" in text]
        lines.append(f'  asm volatile("{text}" : "={letter}"(r) : {", ".join(inputs)}); out[{k} * n + i] = r;')
    return "\n".join([*lines, "}", ""])


def _all_pairs(arrays, special):
    """Every pair of special values, a third beside them, from element n // 8 on."""
    m, start = len(special), arrays[0].size // 8
    for k, a in enumerate(arrays):
        a[start : start + m * m] = (np.repeat(special, m), np.tile(special, m), np.roll(np.tile(special, m), 5))[k]


def operands(group: str, n: int, rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three arrays of raw bits: random ones, small ones and special values."""
    if group in ("integer32", "integer64"):
        word = np.uint32 if group == "integer32" else np.uint64
        out = [rng.integers(0, 2**64, n, np.uint64).astype(word) for _ in range(3)]
        for k, a in enumerate(out):
            a[n // 2 : n // 2 + n // 4] &= word(0x3F)
            a[-8:] = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 31, 32, 33], np.uint64).astype(word)[(np.arange(8) * (2 * k + 1)) % 8]
        out[1] |= word(1) * (out[1] == 0)  # nobody divides by zero
        if word is np.uint32:
            out[1][(out[0] == 2**31) & (out[1] == 2**32 - 1)] = 3
        return tuple(out)
    if group == "float64":
        out = [(rng.standard_normal(n) * 10.0 ** rng.integers(-8, 17, n)) for _ in range(3)]
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.5, 3.0, 5e-310, -5e-324, 1.7e308, 2.0**53 + 2]
        for k, a in enumerate(out):
            a[: n // 8] *= 10.0 ** rng.integers(-280, 280, n // 8)
            a[-6:] = np.roll([0.0, -0.0, np.inf, 1.5, -2.5, 5e-310], k)
        _all_pairs(out, np.array(special))
        return tuple(a.view(np.uint64) for a in out)
    if group == "approximate":
        x = rng.uniform(0.01, 3.0, n).astype(np.float32)
        return x.view(np.uint32), rng.uniform(0.01, 100.0, n).astype(np.float32).view(np.uint32), x.view(np.uint32)
    out = [(rng.standard_normal(n) * 2.0 ** rng.integers(-6, 40 if group == "convert" else 7, n)).astype(np.float32) for _ in range(3)]
    for k, a in enumerate(out):
        a[n // 4 : n // 2] = rng.integers(-4096, 4096, n // 4).astype(np.float32) / 8  # ties
        a[n // 2 : n // 2 + n // 8] *= np.float32(1e-38)  # results below the normal range
        a[-12:] = np.roll(np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 3.4e38, 1e-45, -1e-40, 65504, 0.5], np.float32), k)
    # also as two halves of 16 bits: zeros of both signs beside a NaN, subnormals of f16 beside zeros
    words = np.array([0x80000000, 0x00008000, 0x7FC00000, 0xFF800000, 0x7C00FC00, 0x03FF8001, 0x3C000400, 0x00018400, 0x3F80BF80,
                      0x7E003C00, 1, 0xBF800000, 0x40400000, 0x3F000000], np.uint32)  # fmt: skip
    _all_pairs(out, words.view(np.float32))
    return tuple(a.view(np.uint32) for a in out)
