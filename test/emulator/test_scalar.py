"""Each scalar instruction class against an independent computation: Python integers, fractions and float64."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from emulator_kernels import ptx

from fa4c.runtime.emulator import Buffer, EmulatorError, launch

M32, M64 = 0xFFFFFFFF, (1 << 64) - 1
rng = np.random.default_rng(11)
EDGES = [0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0x80000001, M32, 0x3F800000, 0x12345678, 0xFF00FF00]
A = np.array((EDGES + rng.integers(0, 1 << 32, 32 - len(EDGES)).tolist()), np.uint32)
B = np.array((EDGES[::-1] + rng.integers(0, 1 << 32, 32 - len(EDGES)).tolist()), np.uint32)
C = rng.integers(0, 1 << 32, 32, dtype=np.uint32)
FLOATS = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, 1e-40, -1e-39, 3.4e38, np.inf, -np.inf, np.nan, 1 + 2**-23, 2.0**-126, 0.1]
    + rng.standard_normal(18).tolist(),
    np.float32,
)
FB = np.array(FLOATS[::-1])
FC = (rng.standard_normal(32) * 2.0 ** rng.integers(-20, 20, 32)).astype(np.float32)


def run3(code, a, b, c, out_bytes=4, width=4):
    """Run `code` with a, b, c in %x, %y, %z (and %X.. for 64 bits); the result is in %d (or %D)."""
    store = "st.global.b32 [%rd10], %d;" if out_bytes == 4 else "st.global.b64 [%rd10], %D;"
    loads = "\n".join(f"ld.param.u64 %rd{i}, [p{i}];" for i in range(4))
    body = (
        f"""
.reg .b32 %x; .reg .b32 %y; .reg .b32 %z; .reg .b32 %d; .reg .b64 %X; .reg .b64 %Y; .reg .b64 %Z;
.reg .b64 %D; .reg .b16 %s; .reg .b16 %t; .reg .pred %p; .reg .pred %q;
{loads}
mul.wide.u32 %rd4, %r0, {width};
mul.wide.u32 %rd5, %r0, {out_bytes};
add.u64 %rd0, %rd0, %rd4; add.u64 %rd1, %rd1, %rd4; add.u64 %rd2, %rd2, %rd4; add.u64 %rd10, %rd3, %rd5;
"""
        + (
            "ld.global.b32 %x, [%rd0]; ld.global.b32 %y, [%rd1]; ld.global.b32 %z, [%rd2];"
            if width == 4
            else "ld.global.b64 %X, [%rd0]; ld.global.b64 %Y, [%rd1]; ld.global.b64 %Z, [%rd2];"
        )
        + f"\n{code}\n{store}"
    )
    out = np.zeros(32, np.uint32 if out_bytes == 4 else np.uint64)
    arrays = [np.ascontiguousarray(v).view(np.uint32 if width == 4 else np.uint64).copy() for v in (a, b, c)]
    launch(ptx(body, [f".u64 p{i}" for i in range(4)]), "k", 1, 32, (1, 1, 1), 0, [*map(Buffer, arrays), Buffer(out)])
    return out


def s32(x):
    x = int(x) & M32
    return x - (1 << 32) if x >> 31 else x


def trunc_div(a, b):
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


def shf_r(a, b, n, wrap):
    n = n & 31 if wrap else min(n, 32)
    return ((b << 32 | a) >> n) & M32


def lop(a, b, c, lut):
    return sum(((lut >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1))) & 1) << i for i in range(32))


def prmt(a, b, s):
    data = (b << 32 | a).to_bytes(8, "little")
    out = 0
    for i in range(4):
        nib = s >> 4 * i & 15
        v = data[nib & 7]
        out |= ((255 if v & 128 else 0) if nib & 8 else v) << 8 * i
    return out


INTEGER = {
    "add.u32 %d, %x, %y;": lambda a, b, c: a + b,
    "sub.s32 %d, %x, %y;": lambda a, b, c: a - b,
    "mul.lo.s32 %d, %x, %y;": lambda a, b, c: a * b,
    "mul.hi.u32 %d, %x, %y;": lambda a, b, c: a * b >> 32,
    "mul.hi.s32 %d, %x, %y;": lambda a, b, c: s32(a) * s32(b) >> 32,
    "mad.lo.u32 %d, %x, %y, %z;": lambda a, b, c: a * b + c,
    "mad.hi.u32 %d, %x, %y, %z;": lambda a, b, c: (a * b >> 32) + c,
    "and.b32 %d, %x, %y;": lambda a, b, c: a & b,
    "or.b32 %d, %x, %y;": lambda a, b, c: a | b,
    "xor.b32 %d, %x, %y;": lambda a, b, c: a ^ b,
    "not.b32 %d, %x;": lambda a, b, c: ~a,
    "neg.s32 %d, %x;": lambda a, b, c: -a,
    "abs.s32 %d, %x;": lambda a, b, c: abs(s32(a)),
    "shl.b32 %d, %x, %y;": lambda a, b, c: a << b if b < 32 else 0,
    "shr.u32 %d, %x, %y;": lambda a, b, c: a >> b if b < 32 else 0,
    "shr.s32 %d, %x, %y;": lambda a, b, c: s32(a) >> min(b, 31),
    "shl.b32 %d, %x, 40;": lambda a, b, c: 0,
    "shr.s32 %d, %x, 7;": lambda a, b, c: s32(a) >> 7,
    "min.s32 %d, %x, %y;": lambda a, b, c: min(s32(a), s32(b)),
    "min.relu.s32 %d, %x, %y;": lambda a, b, c: max(0, min(s32(a), s32(b))),
    "max.u32 %d, %x, %y;": lambda a, b, c: max(a, b),
    "div.u32 %d, %x, 7;": lambda a, b, c: a // 7,
    "div.s32 %d, %x, -7;": lambda a, b, c: trunc_div(s32(a), -7),
    "rem.s32 %d, %x, 10;": lambda a, b, c: s32(a) - 10 * trunc_div(s32(a), 10),
    "popc.b32 %d, %x;": lambda a, b, c: bin(a).count("1"),
    "clz.b32 %d, %x;": lambda a, b, c: 32 - a.bit_length(),
    "brev.b32 %d, %x;": lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    "bfind.u32 %d, %x;": lambda a, b, c: a.bit_length() - 1,
    "bfe.u32 %d, %x, 5, 9;": lambda a, b, c: a >> 5 & 511,
    "bfe.s32 %d, %x, 28, 9;": lambda a, b, c: s32(a) >> 28,
    "bfi.b32 %d, %x, %y, 4, 8;": lambda a, b, c: (b & ~0xFF0) | (a & 255) << 4,
    "lop3.b32 %d, %x, %y, %z, 0x96;": lambda a, b, c: lop(a, b, c, 0x96),
    "lop3.b32 %d, %x, %y, %z, 0xca;": lambda a, b, c: lop(a, b, c, 0xCA),
    "lop3.or.b32 %d|%p, %x, %y, %z, 0x80, 0; selp.b32 %d, %d, 7, %p;": lambda a, b, c: lop(a, b, c, 0x80) or 7,
    "mul24.lo.s32 %d, %x, %y;": lambda a, b, c: (((a & 0xFFFFFF) ^ 0x800000) - 0x800000) * (((b & 0xFFFFFF) ^ 0x800000) - 0x800000),
    "mul24.lo.u32 %d, %x, %y;": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "prmt.b32 %d, %x, %y, %z;": prmt,
    "shf.r.wrap.b32 %d, %x, %y, %z;": lambda a, b, c: shf_r(a, b, c, True),
    "shf.r.clamp.b32 %d, %x, %y, %z;": lambda a, b, c: shf_r(a, b, c, False),
    "shf.l.wrap.b32 %d, %x, %y, %z;": lambda a, b, c: (b << 32 | a) << (c & 31) >> 32,
    "setp.lt.s32 %p, %x, %y; selp.b32 %d, %x, %z, %p;": lambda a, b, c: a if s32(a) < s32(b) else c,
    "setp.hi.u32 %p, %x, %y; selp.b32 %d, 1, 0, %p;": lambda a, b, c: int(a > b),
    "setp.ge.u32 %p, %x, %y; setp.eq.and.b32 %q, %z, %z, %p; selp.b32 %d, 5, 6, %q;": lambda a, b, c: 5 if a >= b else 6,
    "setp.lt.u32 %p|%q, %x, %y; selp.b32 %d, 1, 0, %q;": lambda a, b, c: int(not a < b),
    "cvt.u16.u32 %s, %x; cvt.u32.u16 %d, %s;": lambda a, b, c: a & 0xFFFF,
    "cvt.s8.s32 %s, %x; cvt.s32.s16 %d, %s;": lambda a, b, c: (a & 0xFF) - 256 if a & 0x80 else a & 0xFF,
    "cvt.sat.u8.s32 %s, %x; cvt.u32.u16 %d, %s;": lambda a, b, c: min(max(s32(a), 0), 255),
    "mov.b32 {%s, %t}, %x; mov.b32 %d, {%t, %s};": lambda a, b, c: a >> 16 | a << 16,
    "mov.b64 %X, {%x, %y}; mov.b64 {%d, _}, %X;": lambda a, b, c: a,
    "mov.b32 {%s, %t}, %x; mul.wide.s16 %d, %s, %t;": lambda a, b, c: (((a & 0xFFFF) ^ 0x8000) - 0x8000) * (((a >> 16) ^ 0x8000) - 0x8000),
    "add.sat.s32 %d, %x, %y;": lambda a, b, c: min(max(s32(a) + s32(b), -(2**31)), 2**31 - 1),
    "@!%p1 mov.b32 %d, %x; setp.ne.b32 %p, %x, 0; @%p mov.b32 %d, %y;": lambda a, b, c: b if a else a,
}


@pytest.mark.parametrize("code", INTEGER)
def test_integer(code):
    got = run3(code, A, B, C)
    for x, a, b, c in zip(got.tolist(), A.tolist(), B.tolist(), C.tolist()):
        assert x == INTEGER[code](a, b, c) & M32, (hex(a), hex(b), hex(c))


WIDE = {
    "add.s64 %D, %X, %Y;": lambda a, b, c: a + b,
    "sub.u64 %D, %X, %Y;": lambda a, b, c: a - b,
    "mul.lo.u64 %D, %X, %Y;": lambda a, b, c: a * b,
    "mul.hi.u64 %D, %X, %Y;": lambda a, b, c: a * b >> 64,
    "mad.lo.s64 %D, %X, %Y, %Z;": lambda a, b, c: a * b + c,
    "shl.b64 %D, %X, 17;": lambda a, b, c: a << 17,
    "shr.s64 %D, %X, 17;": lambda a, b, c: (a - (1 << 64) if a >> 63 else a) >> 17,
    "and.b64 %D, %X, %Y; or.b64 %D, %D, %Z; not.b64 %D, %D;": lambda a, b, c: ~(a & b | c),
    "cvt.u32.u64 %d, %X; cvt.s64.s32 %D, %d;": lambda a, b, c: s32(a),
    "mov.b64 {%x, %y}, %X; mul.wide.u32 %D, %x, %y;": lambda a, b, c: (a & M32) * (a >> 32),
    "mov.b64 {%x, %y}, %X; mad.wide.s32 %D, %x, %y, %Z;": lambda a, b, c: s32(a) * s32(a >> 32) + c,
    "max.s64 %D, %X, %Y;": lambda a, b, c: max(a - (a >> 63 << 64), b - (b >> 63 << 64)),
}


@pytest.mark.parametrize("code", WIDE)
def test_64_bits(code):
    a, b, c = (rng.integers(0, 1 << 64, 32, dtype=np.uint64) for _ in range(3))
    got = run3(code, a, b, c, 8, 8)
    for x, p, q, r in zip(got.tolist(), a.tolist(), b.tolist(), c.tolist()):
        assert x == WIDE[code](p, q, r) & M64


# --- float32, exactly ----------------------------------------------------------------------------------------------------
def exact(x):
    return Fraction(float(x))


def round_f32(value, mode="rn"):
    """A Fraction to float32 bits, by comparing neighbours: independent of any double rounding."""
    if value == 0:
        return 0.0
    f = np.float32(float(value)) if abs(value) < 2**128 else np.float32(math.copysign(np.inf, value))
    best = [f, np.nextafter(f, np.float32(np.inf)), np.nextafter(f, np.float32(-np.inf))]
    best = [x for x in best if np.isfinite(x)]
    below, above = max((x for x in best if exact(x) <= value), default=None), min((x for x in best if exact(x) >= value), default=None)
    if mode == "rm":
        return below
    if mode == "rp":
        return above
    if mode == "rz":
        return below if value > 0 else above
    if below is None or above is None or below == above:
        return below if above is None else above
    dl, dh = value - exact(below), exact(above) - value
    if dl != dh:
        return below if dl < dh else above
    return below if not np.float32(below).view(np.uint32) & 1 else above


FINITE = (rng.standard_normal(32) * 2.0 ** rng.integers(-30, 30, 32)).astype(np.float32)
FINITE2 = (rng.standard_normal(32) * 2.0 ** rng.integers(-30, 30, 32)).astype(np.float32)
SMALL = (rng.standard_normal(32) * 2.0 ** rng.integers(-90, -50, 32)).astype(np.float32)
# 1 + 2^-23 times itself ends in a tie that a double rounding gets wrong, with a tiny addend of either sign.
TIE = np.full(32, 1 + 2.0**-12, np.float32)
TIE_C = np.array([2.0**-80, -(2.0**-80)] * 16, np.float32)
EXACT = {
    "add.f32 %d, %x, %y;": lambda a, b, c: (a + b, "rn"),
    "sub.rn.f32 %d, %x, %y;": lambda a, b, c: (a - b, "rn"),
    "mul.f32 %d, %x, %y;": lambda a, b, c: (a * b, "rn"),
    "fma.rn.f32 %d, %x, %y, %z;": lambda a, b, c: (a * b + c, "rn"),
    "add.rm.f32 %d, %x, %y;": lambda a, b, c: (a + b, "rm"),
    "add.rp.f32 %d, %x, %y;": lambda a, b, c: (a + b, "rp"),
    "add.rz.f32 %d, %x, %y;": lambda a, b, c: (a + b, "rz"),
    "fma.rm.f32 %d, %x, %y, %z;": lambda a, b, c: (a * b + c, "rm"),
    "mul.rz.f32 %d, %x, %y;": lambda a, b, c: (a * b, "rz"),
    "div.rn.f32 %d, %x, %y;": lambda a, b, c: (a / b, "rn"),
    "mov.b64 %X, {%x, %y}; mov.b64 %Y, {%y, %z}; mov.b64 %Z, {%z, %x}; fma.rn.f32x2 %D, %X, %Y, %Z; mov.b64 {%d, _}, %D;": lambda a, b, c: (
        a * b + c,
        "rn",
    ),
    "mov.b64 %X, {%y, %x}; mov.b64 %Y, {%z, %y}; add.rm.f32x2 %D, %X, %Y; mov.b64 {_, %d}, %D;": lambda a, b, c: (a + b, "rm"),
    "mov.b64 %X, {%x, %y}; mov.b64 %Y, {%y, %z}; mul.rn.f32x2 %D, %X, %Y; mov.b64 {_, %d}, %D;": lambda a, b, c: (b * c, "rn"),
}


@pytest.mark.parametrize("code", EXACT)
@pytest.mark.parametrize("operands", ["normal", "subnormal", "tie"])
def test_float_is_correctly_rounded(code, operands):
    a, b, c = {"normal": (FINITE, FINITE2, FC), "subnormal": (SMALL, SMALL[::-1], SMALL * np.float32(2.0**-70)), "tie": (TIE, TIE, TIE_C)}[
        operands
    ]
    got = run3(code, a, b, c).view(np.float32)
    for x, p, q, r in zip(got, a, b, c):
        value, mode = EXACT[code](exact(p), exact(q), exact(r))
        assert x == round_f32(value, mode), (p, q, r, mode)


def test_minimum_and_maximum_ignore_nan():
    got = run3("max.f32 %d, %x, %y;", FLOATS, FB, FC).view(np.float32)
    np.testing.assert_array_equal(got, np.fmax(FLOATS, FB))
    got = run3("min.NaN.f32 %d, %x, %y;", FLOATS, FB, FC).view(np.float32)
    np.testing.assert_array_equal(got, np.minimum(FLOATS, FB))
    got = run3("neg.f32 %d, %x;", FLOATS, FB, FC)
    np.testing.assert_array_equal(got, FLOATS.view(np.uint32) ^ np.uint32(0x80000000))


@pytest.mark.parametrize(
    "cmp,fn",
    [
        ("lt", lambda a, b: a < b),
        ("ne", lambda a, b: a == a and b == b and a != b),
        ("neu", lambda a, b: a != b),
        ("geu", lambda a, b: not a < b),
        ("equ", lambda a, b: not (a < b or a > b)),
        ("num", lambda a, b: a == a and b == b),
        ("nan", lambda a, b: a != a or b != b),
    ],
)
def test_float_comparisons(cmp, fn):
    got = run3(f"setp.{cmp}.f32 %p, %x, %y; selp.b32 %d, 1, 0, %p;", FLOATS, FB, FC)
    assert got.tolist() == [int(fn(float(a), float(b))) for a, b in zip(FLOATS, FB)]


@pytest.mark.parametrize(
    "op,fn,bound",
    [
        ("ex2.approx.ftz.f32", lambda x: 2.0**x, 2**-22),
        ("lg2.approx.f32", lambda x: math.log2(abs(x)), 2**-21),
        ("rcp.approx.ftz.f32", lambda x: 1 / x, 2**-22),
        ("tanh.approx.f32", math.tanh, 2**-10.9),
        ("rsqrt.approx.f32", lambda x: abs(x) ** -0.5, 2**-22),
        ("sqrt.rn.f32", lambda x: abs(x) ** 0.5, 2**-23),
    ],
)
def test_approximations_within_the_documented_error(op, fn, bound):
    x = np.clip(FINITE, -60, 60)
    x = np.abs(x) if op[0] in "lrs" and not op.startswith("rcp") else x
    got = run3(f"{op} %d, %x;", x, x, x).view(np.float32)
    for g, v in zip(got.tolist(), x.tolist()):
        want = fn(v)
        assert abs(g - want) <= bound * max(abs(want), 1 if op.startswith(("lg2", "tanh")) else 0) + 2**-126


def test_flush_to_zero():
    x = np.full(32, 1e-40, np.float32)
    assert (run3("add.ftz.f32 %d, %x, %y;", x, x, x) == 0).all()
    assert (run3("add.f32 %d, %x, %y;", x, x, x) != 0).all()
    assert (run3("ex2.approx.ftz.f32 %d, %x;", np.full(32, -130, np.float32), x, x) == 0).all()


def bf16_rn(x):
    """Nearest even by exact comparison of neighbours."""
    u = struct.unpack("<I", struct.pack("<f", x))[0]
    lo, hi = u & 0xFFFF0000, (u & 0xFFFF0000) + 0x10000
    rest = u & 0xFFFF
    return (hi if rest > 0x8000 or rest == 0x8000 and lo & 0x10000 else lo) >> 16


def test_conversions_to_16_bits():
    a, b = FINITE, FINITE2
    got = run3("cvt.rn.bf16x2.f32 %d, %x, %y;", a, b, b)
    assert got.tolist() == [bf16_rn(float(x)) << 16 | bf16_rn(float(y)) for x, y in zip(a, b)]
    got = run3("cvt.rn.bf16.f32 %s, %x; cvt.f32.bf16 %d, %s;", a, b, b)
    assert got.tolist() == [bf16_rn(float(x)) << 16 for x in a]
    h = np.clip(a, -60000, 60000)
    got = run3("cvt.rn.f16.f32 %s, %x; cvt.f32.f16 %d, %s;", h, b, b).view(np.float32)
    np.testing.assert_array_equal(got, h.astype(np.float16).astype(np.float32))


def test_conversions_between_integers_and_floats():
    got = run3("cvt.rn.f32.s32 %d, %x;", A, B, C).view(np.float32)
    assert got.tolist() == [float(round_f32(Fraction(s32(x)))) for x in A.tolist()]
    got = run3("cvt.rzi.s32.f32 %d, %x;", FLOATS, B, C).view(np.int32)
    want = [
        0 if v != v else max(-(2**31), min(2**31 - 1, int(v) if math.isfinite(v) else (2**31 - 1 if v > 0 else -(2**31))))
        for v in FLOATS.tolist()
    ]
    assert got.tolist() == want
    got = run3("cvt.rni.f32.f32 %d, %x;", FC, B, C).view(np.float32)
    np.testing.assert_array_equal(got, np.rint(FC))


def test_packed_bf16_arithmetic():
    from emulator_kernels import bf16, f32

    a, b, c = (bf16(rng.standard_normal(64)) for _ in range(3))
    words = [np.ascontiguousarray(v).view(np.uint32) for v in (a, b, c)]
    got = run3("fma.rn.bf16x2 %d, %x, %y, %z;", *words).view(np.uint16)
    want = [bf16_rn(float(round_f32(exact(x) * exact(y) + exact(z)))) for x, y, z in zip(f32(a), f32(b), f32(c))]
    assert np.abs(got.astype(int) - want).max() <= 1  # the reference rounds twice
    got = run3("add.rn.bf16x2 %d, %x, %y;", *words).view(np.uint16)
    np.testing.assert_array_equal(got, bf16(f32(a) + f32(b)))


def test_mixed_precision():
    from emulator_kernels import bf16, f32

    x, y = bf16(FINITE), bf16(FINITE2)
    wide = [v.astype(np.uint32) for v in (x, y)]
    got = run3("cvt.u16.u32 %s, %x; cvt.u16.u32 %t, %y; fma.rn.f32.bf16 %d, %s, %t, %z;", *wide, FC).view(np.float32)
    assert got.tolist() == [float(round_f32(exact(a) * exact(b) + exact(c))) for a, b, c in zip(f32(x), f32(y), FC)]
    got = run3("cvt.u16.u32 %s, %x; add.f32.bf16 %d, %s, %z;", *wide, FC).view(np.float32)
    assert got.tolist() == [float(round_f32(exact(a) + exact(c))) for a, c in zip(f32(x), FC)]


# --- control flow and warp operations ------------------------------------------------------------------------------------------
def run_lanes(body, n=32, block=32, params=()):
    """The value that each thread leaves in %d."""
    out = np.zeros(block, np.uint32)
    text = ptx(
        f".reg .b32 %d; ld.param.u64 %rd0, [out]; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd0, %rd1; "
        f"mov.u32 %d, 0;\n{body}\nst.global.u32 [%rd1], %d;",
        [".u64 out"],
    )
    report = launch(text, "k", 1, block, (1, 1, 1), 1024, [Buffer(out)], max_steps=20000)
    return out, report


def test_comparisons_of_halves():
    """Low halves to the first predicate, high ones to the second; -0 equals 0, a NaN nothing."""
    values = np.array([0.0, -0.0, 1.0, -2.0, np.nan, np.inf, 2.0**-16, 0.5], np.float16)
    words = [int(a) << 16 | int(b) for a in values.view(np.uint16) for b in values.view(np.uint16)]
    for cmp, fn in (("lt", np.less), ("eq", np.equal), ("geu", lambda x, y: ~(x < y))):
        for k in range(0, 64, 32):
            x, y = np.array(words[k : k + 32], np.uint32), np.array(words[::-1][k : k + 32], np.uint32)
            code = "selp.b32 %d, 1, 0, %p; selp.b32 %x, 2, 0, %q; or.b32 %d, %d, %x;"
            got = run3(f"setp.{cmp}.f16x2 %p|%q, %x, %y; {code}", x, y, y)
            low, high = ([(v >> s).astype(np.uint16).view(np.float16) for v in (x, y)] for s in (0, 16))
            np.testing.assert_array_equal(got, fn(*low) + 2 * fn(*high))


def test_trap_is_an_error():
    with pytest.raises(EmulatorError, match="trap executed by CTA 0,0,0 warp 0 lane 3") as caught:
        run_lanes("setp.eq.u32 %p0, %r0, 3;\n@%p0 trap;")
    assert caught.value.line == 19
    run_lanes("setp.eq.u32 %p0, %r0, 33;\n@%p0 trap;")


def test_divergence_and_loops():
    out, _ = run_lanes(
        "mov.u32 %r4, 0;\nL: add.u32 %r4, %r4, 1; add.u32 %d, %d, %r4; setp.lt.u32 %p0, %r4, %r0; "
        "@%p0 bra L;\nand.b32 %r5, %r0, 1; setp.eq.u32 %p1, %r5, 0; @%p1 bra E; add.u32 %d, %d, 1000; "
        "bra M;\nE: add.u32 %d, %d, 2000;\nM: add.u32 %d, %d, 1;"
    )
    want = [sum(range(1, max(1, i) + 1)) + (1000 if i & 1 else 2000) + 1 for i in range(32)]
    assert out.tolist() == want


def test_lanes_that_wait_for_each_other():
    """Lane 1 releases what lane 0 spins on: needs independent progress of diverged lanes."""
    out, report = run_lanes("""
        setp.gt.u32 %p0, %r0, 1; @%p0 bra END;
        setp.eq.u32 %p1, %r0, 0; @%p1 bra SPIN;
        st.release.cta.shared.u32 [%r1], 7; bra END;
        SPIN: ld.acquire.cta.shared.u32 %d, [%r1]; setp.ne.u32 %p2, %d, 7; @%p2 bra SPIN;
        END:""")
    assert out.tolist() == [7] + [0] * 31


def test_early_exit():
    out, _ = run_lanes("setp.lt.u32 %p0, %r0, 10; @%p0 ret; vote.sync.ballot.b32 %d, 1, 0xffffffff;")
    assert out.tolist() == [0] * 10 + [0xFFFFFC00] * 22


WARP = {
    "shfl.sync.idx.b32 %d, %r0, 5, 31, -1;": lambda i: 5,
    "shfl.sync.bfly.b32 %d, %r0, 3, 31, -1;": lambda i: i ^ 3,
    "shfl.sync.up.b32 %d, %r0, 4, 0, -1;": lambda i: i - 4 if i >= 4 else i,
    "shfl.sync.down.b32 %d, %r0, 4, 31, -1;": lambda i: i + 4 if i < 28 else i,
    "shfl.sync.idx.b32 %d, %r0, 1, 0x181f, -1;": lambda i: (i & 24) | 1,
    "shfl.sync.down.b32 %r4|%p0, %r0, 2, 0x1c1f, -1; selp.b32 %d, %r4, 99, %p0;": lambda i: i + 2 if i % 4 < 2 else 99,
    "setp.gt.u32 %p0, %r0, 7; vote.sync.ballot.b32 %d, %p0, -1;": lambda i: 0xFFFFFF00,
    "setp.gt.u32 %p0, %r0, 7; vote.sync.any.pred %p1, %p0, -1; vote.sync.all.pred %p2, %p0, -1; "
    "selp.b32 %r4, 1, 0, %p1; selp.b32 %r5, 2, 0, %p2; or.b32 %d, %r4, %r5;": lambda i: 1,
    "redux.sync.add.u32 %d, %r0, -1;": lambda i: 496,
    "redux.sync.max.s32 %d, %r0, -1;": lambda i: 31,
    "redux.sync.xor.b32 %d, %r0, 0xffffffff;": lambda i: 0,
    "shr.u32 %r4, %r0, 3; match.any.sync.b32 %d, %r4, -1;": lambda i: 255 << (i & 24),
    "elect.sync %r4|%p0, -1; selp.b32 %d, 1, 0, %p0;": lambda i: int(i == 0),
    "mov.u32 %r4, %lanemask_lt; popc.b32 %d, %r4;": lambda i: i,
    "activemask.b32 %d;": lambda i: 0xFFFFFFFF,
}


@pytest.mark.parametrize("code", WARP)
def test_warp_operations(code):
    out, _ = run_lanes(code)
    assert out.tolist() == [WARP[code](i) for i in range(32)]


def test_named_barrier_reduction():
    out, _ = run_lanes(
        "setp.gt.u32 %p0, %r0, 40; bar.red.popc.u32 %d, 0, %p0; bar.red.and.pred %p1, 1, 64, %p0; "
        "selp.b32 %r4, 1000, 0, %p1; add.u32 %d, %d, %r4;",
        block=64,
    )
    assert out.tolist() == [23] * 64


@pytest.mark.parametrize(
    "code,want",
    [
        ("atom.shared.add.u32 %d, [%r1], 1;", sorted(range(32))),
        ("atom.shared.exch.b32 %d, [%r1], %r0;", sorted([0] + list(range(31)))),
        ("atom.shared.max.u32 %d, [%r1], %r0;", None),
        ("atom.shared.cas.b32 %d, [%r1], %r0, 99;", [0] + [99] * 31),
    ],
)
def test_atomics(code, want):
    out, _ = run_lanes("setp.ne.u32 %p5, %r0, 0; @!%p5 st.shared.u32 [%r1], 0; bar.warp.sync -1;" + code)
    if want is not None:
        assert sorted(out.tolist()) == want


def test_local_memory_is_private():
    out, _ = run_lanes(
        ".local .align 4 .b8 depot[64]; mov.u64 %rd5, depot; cvta.local.u64 %rd6, %rd5; st.local.u32 [%rd5+4], %r0; ld.u32 %d, [%rd6+4];"
    )
    assert out.tolist() == list(range(32))


def test_special_registers():
    out, _ = run_lanes(
        "mov.u32 %r4, %ntid.x; mov.u32 %r5, %nctaid.x; mov.u32 %r6, %warpid; mov.u32 %r7, %laneid; "
        "mad.lo.u32 %d, %r4, 100, %r5; mad.lo.u32 %d, %d, 10, %r6; mad.lo.u32 %d, %d, 100, %r7;",
        block=64,
    )
    assert out.tolist() == [((64 * 100 + 1) * 10 + i // 32) * 100 + i % 32 for i in range(64)]
