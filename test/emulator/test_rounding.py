"""Rounding modes and modifiers (`.rm .rp .rz .ftz .sat .relu`) of every rule that has them, against exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from emulator_kernels import ptx
from test_rounding_h200 import FORMATS, bits, rounded, run, value
from test_scalar import run_lanes

from fa4c.runtime.emulator import Buffer, EmulatorError, half, launch

MODES = ["rn", "rm", "rp", "rz"]
rng = np.random.default_rng(17)
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan]


def samples(fmt, n=32, spread=None):
    """Values of the format over its whole range, subnormals and the largest included."""
    precision, lowest, top = FORMATS[fmt]
    low = lowest if spread is None else -spread
    exponents = rng.integers(low, (top if spread is None else spread) - precision, n)
    mantissas = rng.integers(1, 2**precision, n)
    out = [math.ldexp(int(m), int(e)) * (-1) ** k for k, (m, e) in enumerate(zip(mantissas, exponents))]
    out[:4] = [2.0**lowest, -(2.0**lowest), (2 - 2.0 ** (1 - precision)) * 2.0**top, 1.0]
    return out


def quotient(a, b, fmt, mode):
    """Bits of a / b, None for a NaN."""
    negative = bool(np.signbit(a)) != bool(np.signbit(b))
    if math.isnan(a) or math.isnan(b) or (math.isinf(a) and math.isinf(b)) or (a == 0 and b == 0):
        return None
    if a == 0 or math.isinf(b):
        return bits(-0.0 if negative else 0.0, fmt)
    if b == 0 or math.isinf(a):
        return bits(-math.inf if negative else math.inf, fmt)
    return rounded(Fraction(a) / Fraction(b), fmt, mode)


def same(got, wanted, fmt):
    for g, w in zip(got, wanted, strict=True):
        assert math.isnan(value(g, fmt)) if w is None else g == w, (hex(g), w if w is None else hex(w))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", ["f32", "f64"])
def test_division_and_reciprocal(fmt, mode):
    a, b = samples(fmt), samples(fmt)[::-1]
    near = [(1.0, 3.0), (-1.0, 3.0), (5.0, 7.0), (6.0, 3.0), (2.0 ** FORMATS[fmt][1], 2.0), (-(2.0 ** FORMATS[fmt][1]), 2.0)]
    pairs = [*zip(a, b), *near, *((x, y) for x in SPECIAL for y in (*SPECIAL, 2.0, -3.0)), *((2.0, y) for y in SPECIAL)]
    for k in range(0, len(pairs), 32):
        part = pairs[k : k + 32]
        x, y = ([bits(p[i], fmt) for p in part] for i in (0, 1))
        same(run(f"div.{mode}.{fmt} %0,%1,%2", x, y), [quotient(*p, fmt, mode) for p in part], fmt)
        same(run(f"rcp.{mode}.{fmt} %0,%1", y), [quotient(1.0, p[1], fmt, mode) for p in part], fmt)


def root(x, fmt, mode):
    """Bits of the square root, None for a NaN: an integer root with 200 bits, and something smaller than its unit if it is inexact."""
    if math.isnan(x) or x < 0:
        return None
    if x == 0 or math.isinf(x):
        return bits(x, fmt)
    scale = 2 ** (2 * (200 + abs(math.frexp(x)[1])))
    n = Fraction(x) * scale
    whole = math.isqrt(int(n))
    exact = Fraction(whole) + (0 if whole * whole == n else Fraction(1, 2))
    return rounded(exact / math.isqrt(scale), fmt, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", ["f32", "f64"])
def test_square_root(fmt, mode):
    x = [*(abs(v) for v in samples(fmt)), 2.0, 4.0, 9.0 * 2.0**-20, 3.0, *SPECIAL, -1.0]
    for k in range(0, len(x), 32):
        same(run(f"sqrt.{mode}.{fmt} %0,%1", [bits(v, fmt) for v in x[k : k + 32]]), [root(v, fmt, mode) for v in x[k : k + 32]], fmt)


def flushed(u):
    """float32 bits with subnormals as zeros."""
    return u & 0x80000000 if u & 0x7F800000 == 0 else u


@pytest.mark.parametrize("mode", MODES)
def test_flushing_around_a_division(mode):
    a, b = [1e-40, -1e-40, 1.5e-38, -1.5e-38, 3.0, 1.0], [2.0, 1.0, 2.5, 1.4, -1e-40, 3.0]
    x, y = ([bits(v, "f32") for v in p] for p in (a, b))
    flat = [[value(flushed(u), "f32") for u in p] for p in (x, y)]
    wanted = [quotient(p, q, "f32", mode) for p, q in zip(*flat)]
    assert run(f"div.{mode}.ftz.f32 %0,%1,%2", x, y) == [flushed(w) for w in wanted]
    assert run(f"rcp.{mode}.ftz.f32 %0,%1", y)[4] == bits(-math.inf, "f32")
    assert run(f"sqrt.{mode}.ftz.f32 %0,%1", x)[:2] == [0, 0x80000000]


def test_division_by_what_has_a_subnormal_reciprocal():
    a, b = [bits(v, "f32") for v in (1e38, -1e38, math.inf, 1.0)], [bits(v, "f32") for v in (2.0**127, 2.0**127, 2.0**127, 2.0**126)]
    got = [value(v, "f32") for v in run("div.approx.f32 %0,%1,%2", a, b)]
    assert got[0] == 0 and got[1] == 0 and math.isnan(got[2]) and got[3] == 2.0**-126


def test_approximate_float64_works_on_the_high_half():
    x = [bits(v, "f64") for v in (3.0, 1 + 2.0**-40, -5e-310, 7.0)]
    got = run("rcp.approx.ftz.f64 %0,%1", x)
    assert all(v & 0xFFFFFFFF == 0 for v in got) and got[1] == bits(1.0, "f64") and got[2] == bits(-math.inf, "f64")
    assert abs(value(got[0], "f64") * 3 - 1) < 2.0**-19
    assert abs(value(run("rsqrt.approx.ftz.f64 %0,%1", x)[3], "f64") ** 2 * 7 - 1) < 2.0**-18


# --- 16 bits --------------------------------------------------------------------------------------------------------------
def product(a, b, fmt):
    x = Fraction(a) * Fraction(b)
    return rounded(x, fmt, "rn") if x else bits(-0.0 if bool(np.signbit(a)) != bool(np.signbit(b)) else 0.0, fmt)


@pytest.mark.parametrize("fmt", ["bf16", "f16"])
def test_products_of_16_bits_are_rounded_once(fmt):
    """Also below the smallest normal number."""
    pairs = [(0.0, -1.0), (-0.0, -0.0), (0.0, 0.0)]
    small = samples(fmt, 200, 66 if fmt == "bf16" else 12)
    pairs += [(a, b) for a, b in zip(small, samples(fmt, 200, 66 if fmt == "bf16" else 12)[::-1])]
    for k in range(0, len(pairs), 32):
        part = pairs[k : k + 32]
        x, y = ([bits(p[i], fmt) for p in part] for i in (0, 1))
        wanted = [product(*p, fmt) for p in part]
        got = run(f"mul.rn.{fmt}x2 %0,%1,%2", [v << 16 | w for v, w in zip(x, x[::-1])], [v << 16 | w for v, w in zip(y, y[::-1])])
        assert [v >> 16 for v in got] == wanted and [v & 0xFFFF for v in got] == wanted[::-1]
        alone = f"{{ .reg .b16 e,g; cvt.u16.u32 e, %1; cvt.u16.u32 g, %2; mul.rn.{fmt} e,e,g; cvt.u32.u16 %0, e; }}"
        assert run(alone, x, y) == wanted


def test_every_subnormal_product_of_bf16():
    """All pairs of mantissas at all scales whose product is below the normal numbers, against integers."""
    m = np.arange(128, 256)
    a, b = (v.ravel() for v in np.meshgrid(m, m))
    for scale in range(-152, -141):  # of the product; the unit of bf16 is 2^-133
        x, y = (f32_bits(v.astype(np.float64) * 2.0**e) for v, e in ((a, -80), (b, scale + 80)))
        whole, rest = np.divmod(a * b, 1 << (-133 - scale))
        wanted = whole + (2 * rest + (whole & 1) > 1 << (-133 - scale))
        np.testing.assert_array_equal(half.map16s(lambda p, q: p * q, "bf16", x, y), wanted)


def f32_bits(x):
    """bf16 bits of numbers that bf16 holds."""
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


HALF = {  # instruction of f16x2: (operands as floats, result as floats), low half alone
    "add.ftz.f16x2 %0,%1,%2": [((2.0**-15, 2.0**-15), 0.0), ((-(2.0**-24), 0.0), 0.0), ((1.0, 2.0), 3.0)],
    "mul.ftz.f16x2 %0,%1,%2": [((2.0**-15, 4.0), 0.0), ((-(2.0**-10), 2.0**-5), -0.0), ((1.5, 2.0), 3.0)],
    "add.sat.f16x2 %0,%1,%2": [((0.75, 0.5), 1.0), ((-1.0, 0.5), 0.0), ((math.nan, 1.0), 0.0), ((-0.0, -0.0), 0.0), ((0.25, 0.5), 0.75)],
    "mul.sat.f16x2 %0,%1,%2": [((3.0, 0.5), 1.0), ((-3.0, 0.5), 0.0), ((-0.0, 1.0), 0.0)],
    "fma.rn.sat.f16x2 %0,%1,%2,%3": [((3.0, 0.5, 1.0), 1.0), ((-3.0, 0.5, 1.0), 0.0), ((0.5, 0.5, 0.25), 0.5)],
    "fma.rn.ftz.f16x2 %0,%1,%2,%3": [((2.0**-15, 1.0, 1.0), 1.0), ((2.0**-10, 2.0**-5, 0.0), 0.0), ((1.0, 1.0, 2.0**-15), 1.0)],
    "max.ftz.f16x2 %0,%1,%2": [((2.0**-15, -1.0), 0.0), ((2.0, 1.0), 2.0)],
    "neg.ftz.f16x2 %0,%1": [((2.0**-15,), -0.0), ((2.0,), -2.0)],
    "abs.ftz.f16x2 %0,%1": [((-(2.0**-15),), 0.0), ((-2.0,), 2.0)],
}


@pytest.mark.parametrize("instruction", HALF)
def test_modifiers_of_16_bits(instruction):
    rows = HALF[instruction]
    operands = [[bits(r[0][i], "f16") << 16 | bits(1.0, "f16") for r in rows] for i in range(len(rows[0][0]))]
    assert [v >> 16 for v in run(instruction, *operands)] == [bits(r[1], "f16") for r in rows]


@pytest.mark.parametrize("instruction,rows", [
    ("neg.ftz.f32 %0,%1", [((1e-40,), -0.0), ((2.0,), -2.0)]),
    ("abs.ftz.f32 %0,%1", [((-1e-40,), 0.0), ((-2.0,), 2.0)]),
    ("slct.ftz.b32.f32 %0,%1,%2,%3", [((1.0, 2.0, -1e-40), 1.0), ((1.0, 2.0, -1.0), 2.0)]),
    ("add.sat.f32 %0,%1,%2", [((-0.0, -0.0), 0.0), ((math.nan, 1.0), 0.0), ((0.5, 2.0), 1.0), ((0.25, 0.5), 0.75)]),
    ("cvt.sat.f32.f32 %0,%1", [((-0.0,), 0.0), ((-2.0,), 0.0), ((0.5,), 0.5), ((math.inf,), 1.0)]),
    ("{ .reg .b64 p,q,r; mov.b64 p, {%1,%1}; mov.b64 q, {%2,%2}; add.rn.ftz.f32x2 r,p,q; mov.b64 {%0,_}, r; }",
     [((1e-40, 2.0**-126), 2.0**-126), ((1.0, 2.0), 3.0)]),
])  # fmt: skip
def test_modifiers_of_float32(instruction, rows):
    operands = [[bits(r[0][i], "f32") for r in rows] for i in range(len(rows[0][0]))]
    assert run(instruction, *operands) == [bits(r[1], "f32") for r in rows]


# --- conversions ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", ["f16", "bf16"])
def test_conversion_of_float32_to_16_bits(fmt, mode):
    x = [value(v, "f32") for v in rng.integers(0, 2**32, 200).tolist()]
    x = [v for v in x if math.isfinite(v)] + [float(np.float32(v)) for v in (70000, -70000, 1e-9, -1e-9, 65504, 65519, 65520, 1 / 3)]
    for k in range(0, len(x), 32):
        part = x[k : k + 32]
        got = run(f"{{ .reg .b16 e; cvt.{mode}.{fmt}.f32 e, %1; cvt.u32.u16 %0, e; }}", [bits(v, "f32") for v in part])
        assert got == [rounded(Fraction(v), fmt, mode) if v else bits(v, fmt) for v in part]


@pytest.mark.parametrize("fmt", ["f16", "bf16"])
def test_relu_of_a_conversion(fmt):
    """-0 becomes +0, a NaN the canonical one."""
    x = [bits(v, "f32") for v in (-0.0, -1.0, 2.0, math.nan, 0.0, -math.inf)]
    for mode in ("rn", "rz"):
        got = run(f"{{ .reg .b16 e; cvt.{mode}.relu.{fmt}.f32 e, %1; cvt.u32.u16 %0, e; }}", x)
        assert got == [0, 0, bits(2.0, fmt), 0x7FFF, 0, 0]


@pytest.mark.parametrize("fmt", ["f16", "bf16"])
def test_conversions_to_16_bits_are_rounded_once(fmt):
    """A float64 next to a tie, which a float32 between would make one."""
    step = 2.0 ** (1 - FORMATS[fmt][0])
    x = [1 + step / 2 + 2.0**-40, 1 + step / 2 - 2.0**-40, 1 + 1.5 * step - 2.0**-40]
    got = run3_wide(f"cvt.rn.{fmt}.f64 %s, %X; cvt.u32.u16 %d, %s;", [bits(v, "f64") for v in x])
    assert got == [rounded(Fraction(v), fmt, "rn") for v in x]


def run3_wide(code, x):
    from test_scalar import run3

    lanes = np.resize(np.array(x, np.uint64), 32)
    return [int(v) for v in run3(code, lanes, lanes, lanes, out_bytes=4, width=8)[: len(x)]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["s64", "u64"])
@pytest.mark.parametrize("fmt", ["f32", "f64"])
def test_integers_of_64_bits_to_floats(fmt, kind, mode):
    x = [int(v) for v in rng.integers(0, 2**64, 28, dtype=np.uint64)] + [2**63 - 1, 2**63, 2**53 + 1, 2**64 - 1]
    signed = [v - (1 << 64) if kind == "s64" and v >> 63 else v for v in x]
    wanted = [rounded(Fraction(v), fmt, mode) for v in signed]
    if fmt == "f32":
        assert run3_wide(f"cvt.{mode}.f32.{kind} %d, %X;", x) == wanted
    else:
        from test_scalar import run3

        lanes = np.array(x, np.uint64)
        assert [int(v) for v in run3(f"cvt.{mode}.f64.{kind} %D, %X;", lanes, lanes, lanes, out_bytes=8, width=8)] == wanted


def test_set_combines_with_a_predicate():
    out, _ = run_lanes("setp.lt.u32 %p0, %r0, 20; set.gt.and.u32.u32 %d, %r0, 10, %p0;")
    assert out.tolist() == [0xFFFFFFFF if 10 < i < 20 else 0 for i in range(32)]


# --- redux --------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op,values,wanted", [
    ("min", [0.0, -0.0], -0.0),
    ("max", [-0.0, 0.0], 0.0),
    ("max", [-0.0, -0.0], -0.0),
    ("min", [0.0, 3.0], 0.0),
    ("max.abs", [-0.0, -0.0], 0.0),
    ("max.abs", [-5.0, 3.0], 5.0),
    ("min", [math.nan, 2.0], 2.0),
    ("min.NaN", [math.nan, 2.0], None),
    ("max", [math.nan, math.nan], None),
    ("max", [-math.inf, -3.0], -3.0),
])  # fmt: skip
def test_redux_of_floats(op, values, wanted):
    text = ptx(
        "ld.param.u64 %rd0, [x]; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd0, %rd0, %rd1; ld.global.f32 %f0, [%rd0];\n"
        f"redux.sync.{op}.f32 %f1, %f0, -1; st.global.f32 [%rd0], %f1;", [".u64 x"], "sm_100a")  # fmt: skip
    x = np.resize(np.array(values, np.float32), 32)
    launch(text, "k", 1, 32, (1, 1, 1), 0, [Buffer(x)])
    got = set(x.view(np.uint32).tolist())
    assert got == ({0x7FFFFFFF} if wanted is None else {bits(wanted, "f32")})


# --- what is not heeded is refused ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("line", [
    "min.xorsign.abs.f32 %f0, %f1, %f2;",
    "cvt.rn.satfinite.bf16x2.f32 %r4, %f1, %f2;",
    "fma.rn.oob.bf16x2 %r4, %r5, %r6, %r7;",
    "cvt.pack.sat.s16.s32 %r4, %r5, %r6;",
    "mad.hi.sat.s32 %r4, %r5, %r6, %r7;",
    "add.cc.u32 %r4, %r5, %r6;",
    "mul.sat.u32 %r4, %r5, %r6;",
    "add.strange.f32 %f0, %f1, %f2;",
    "add.rz.bf16x2 %r4, %r5, %r6;",
    "red.global.max.v2.f32 [%rd0], {%f0, %f1};",
    "red.global.add.v8.f32 [%rd0], {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7};",
    "red.global.add.v2.f32 [%rd0], %f0;",
    "red.shared.add.v2.f32 [%r1], {%f0, %f1};",
    "atom.global.and.f32 %f0, [%rd0], %f1;",
    "redux.sync.add.f32 %f0, %f1, -1;",
])  # fmt: skip
def test_modifiers_without_a_rule_are_refused(line):
    with pytest.raises(EmulatorError) as caught:
        launch(ptx(line, target="sm_100a"), "k", 1, 32, (1, 1, 1), 0, [])
    assert line.split()[0] in str(caught.value) and caught.value.line == 17 and "not supported" in str(caught.value)


# The ISA: 0 unless the source is f64 or the result has 64 bits, then the sign bit alone. Small results as an H200 gives them.
NAN_TO_INTEGER = [
    ("rzi.s32.f32", 0), ("rni.u32.f32", 0), ("rzi.s64.f32", 1 << 63), ("rmi.u64.f32", 1 << 63), ("rzi.s64.f64", 1 << 63),
    ("rpi.u64.f64", 1 << 63), ("rzi.s32.f64", 1 << 31), ("rni.u32.f64", 1 << 31),
]  # fmt: skip


@pytest.mark.parametrize("kind,wanted", NAN_TO_INTEGER)
def test_nan_to_an_integer(kind, wanted):
    _, to, frm = kind.split(".")
    nans = np.array([0x7FC00000] * 32, np.uint32) if frm == "f32" else np.array([0x7FF8 << 48] * 32, np.uint64)
    target, source = "%D" if to.endswith("64") else "%d", "%x" if frm == "f32" else "%X"
    from test_scalar import run3

    got = run3(f"cvt.{kind} {target}, {source};", nans, nans, nans, out_bytes=int(to[1:]) // 8, width=nans.itemsize)
    assert {int(v) for v in got} == {wanted}
