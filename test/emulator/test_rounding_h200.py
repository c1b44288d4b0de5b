"""Signs of zeros, NaN and single roundings as an H200 has them: what it gave, and exact fractions."""

import itertools
import struct
from fractions import Fraction

import numpy as np
import pytest
from test_scalar import run3

# instruction: (result bits on the H200, operand bits), the first differences of bench/results/2026-11-29_h200_emulator_agreement.json
H200 = {
    "add.rm.f32 %0,%1,%2": (0x80000000, 0x80000000, 0x0),
    "add.rm.ftz.f32 %0,%1,%2": (0x80000000, 0x80066fac, 0x681064),
    "fma.rm.ftz.f32 %0,%1,%2,%3": (0x80000000, 0x1b3a0, 0x33451, 0x80413c1e),
    "min.f32 %0,%1,%2": (0x80000000, 0x80000000, 0x0),
    "max.ftz.f32 %0,%1,%2": (0x0, 0xa2912, 0x802211ab),
    "fma.rn.bf16x2 %0,%1,%2,%3": (0xbf66eb4b, 0xc127d2b4, 0x3da95810, 0xbd17c144),
    "max.f16x2 %0,%1,%2": (0x42290000, 0x41bc0000, 0x42298000),
    "min.bf16x2 %0,%1,%2": (0xc2708000, 0x437b8000, 0xc2700000),
    "cvt.rn.relu.f16x2.f32 %0,%1,%2": (0x7fff0000, 0x7fc00000, 0xff800000),
    "cvt.rn.relu.bf16x2.f32 %0,%1,%2": (0x7fff0000, 0x7fc00000, 0xff800000),
    "add.rm.f64 %0,%1,%2": (0xc2c51d019a76f180, 0xbfc02f942c6d2558, 0xc2c51d019a76f16f),
    "fma.rn.f64 %0,%1,%2,%3": (0xc0ab11ad6593c133, 0xc255506797a81d30, 0xbeb7e612bf5683ec, 0xc120061a87a440a2),
    "min.f64 %0,%1,%2": (0x8000000000000000, 0x8000000000000000, 0x0),
}
FORMATS = {"f64": (53, -1074, 1023), "f32": (24, -149, 127), "f16": (11, -24, 15), "bf16": (8, -133, 127)}


def code(instruction, wide=False):
    names = "DXYZ" if wide else "dxyz"
    for k, name in enumerate(names):
        instruction = instruction.replace(f"%{k}", f"%{name}")
    return instruction + ";"


def run(instruction, *operands):
    """The results of up to 32 lanes as bits."""
    wide = instruction.split()[0].endswith("f64")
    word, size = (np.uint64, 8) if wide else (np.uint32, 4)
    n = len(operands[0])
    lanes = [np.resize(np.array(v, word), 32) for v in (*operands, *[[0]] * (3 - len(operands)))]
    return [int(v) for v in run3(code(instruction, wide), *lanes, out_bytes=size, width=size)[:n]]


def bits(x, fmt):
    """Bits of a float that the format holds."""
    if fmt == "bf16":
        return struct.unpack("<I", struct.pack("<f", x))[0] >> 16
    f, i = {"f64": ("<d", "<Q"), "f32": ("<f", "<I"), "f16": ("<e", "<H")}[fmt]
    return struct.unpack(i, struct.pack(f, x))[0]


def value(u, fmt):
    """The float that bits stand for."""
    u = int(u)
    if fmt == "bf16":
        return struct.unpack("<f", struct.pack("<I", u << 16))[0]
    f, i = {"f64": ("<d", "<Q"), "f32": ("<f", "<I"), "f16": ("<e", "<H")}[fmt]
    return struct.unpack(f, struct.pack(i, u))[0]


def rounded(x, fmt, mode):
    """Bits of a nonzero fraction rounded once."""
    precision, lowest, top = FORMATS[fmt]
    m = abs(x)
    e = m.numerator.bit_length() - m.denominator.bit_length()
    e -= m < Fraction(2) ** e
    unit = Fraction(2) ** max(e - precision + 1, lowest)
    q, rest = divmod(m, unit)
    up = {"rz": False, "rm": x < 0, "rp": x > 0, "rn": (rest * 2, q & 1) > (unit, 0)}[mode] and rest > 0
    m = (q + up) * unit
    if m >= Fraction(2) ** (top + 1):
        outwards = {"rn": True, "rm": x < 0, "rp": x > 0, "rz": False}[mode]
        m = float("inf") if outwards else (2 - Fraction(2) ** (1 - precision)) * 2**top
    return bits(-float(m) if x < 0 else float(m), fmt)


def exact(a, b, c, fmt, mode):
    """a * b + c of finite floats, as bits."""
    x = Fraction(a) * Fraction(b) + Fraction(c)
    if x:
        return rounded(x, fmt, mode)
    negative = [(np.signbit(a) != np.signbit(b)), bool(np.signbit(c))]
    return bits(-0.0 if all(negative) or (mode == "rm" and any(negative)) else 0.0, fmt)


@pytest.mark.parametrize("instruction", H200)
def test_what_the_h200_gave(instruction):
    wanted, *operands = H200[instruction]
    assert f"{run(instruction, *([v] for v in operands))[0]:#x}" == f"{wanted:#x}"


ZEROS = list(itertools.product((0.0, -0.0), repeat=2))


@pytest.mark.parametrize("modifier", ["", ".NaN"])
@pytest.mark.parametrize("fmt", ["f32", "f64", "f16", "bf16", "f16x2", "bf16x2"])
def test_minimum_and_maximum_of_zeros(fmt, modifier):
    base = fmt.removesuffix("x2")
    pairs = [*ZEROS, (1.0, -0.0), (-0.0, -1.0), (0.0, float("nan")), (float("nan"), -0.0)]
    a, b = ([bits(p[k], base) for p in pairs] for k in (0, 1))
    if modifier == ".NaN" and fmt == "f64":
        pytest.skip("not in PTX")
    for op in ("min", "max"):
        instruction = f"{op}{modifier}.{fmt} %0,%1,%2"
        if fmt in ("f16", "bf16"):
            instruction = f"{{ .reg .b16 e,g; cvt.u16.u32 e, %1; cvt.u16.u32 g, %2; {op}{modifier}.{fmt} e,e,g; cvt.u32.u16 %0, e; }}"
        for shift in (0, 16) if fmt.endswith("x2") else (0,):
            got = run(instruction, [v << shift for v in a], [v << shift for v in b]) if fmt != "f64" else run(instruction, a, b)
            values = [value(v >> shift, base) for v in got]
            sign = [bool(np.signbit(v)) for v in values[:4]]
            assert values[:4] == [0, 0, 0, 0]
            assert sign == ([False, True, True, True] if op == "min" else [False, False, False, True])
            assert values[4:6] == ([0, -1] if op == "min" else [1, 0])
            if modifier:
                assert np.isnan(values[6:]).all()
            else:
                assert values[6:] == [0, 0] and [bool(np.signbit(v)) for v in values[6:]] == [False, True]


@pytest.mark.parametrize("mode", ["rm", "rp", "rz", "rn"])
@pytest.mark.parametrize("fmt", ["f32", "f64"])
def test_signs_of_exact_zeros(fmt, mode):
    pairs = [*ZEROS, (1.5, -1.5), (-1.5, 1.5)]
    a, b = ([bits(p[k], fmt) for p in pairs] for k in (0, 1))
    one = [bits(1.0, fmt)] * len(pairs)
    assert run(f"add.{mode}.{fmt} %0,%1,%2", a, b) == [exact(x, 1.0, y, fmt, mode) for x, y in pairs]
    assert run(f"sub.{mode}.{fmt} %0,%1,%2", a, b) == [exact(x, 1.0, -y, fmt, mode) for x, y in pairs]
    assert run(f"fma.{mode}.{fmt} %0,%1,%2,%3", a, one, b) == [exact(x, 1.0, y, fmt, mode) for x, y in pairs]
    if fmt == "f32":
        # Subnormal operands are zeros of their sign to .ftz.
        tiny = run(f"add.{mode}.ftz.f32 %0,%1,%2", [1, 0x80000001], [0x80000001, 1])
        assert tiny == [0x80000000 if mode == "rm" else 0] * 2


def test_a_product_of_zero_keeps_its_sign():
    a, b = ([bits(p[k], "f32") for p in ZEROS] for k in (0, 1))
    assert run("mul.rm.f32 %0,%1,%2", a, b) == [0, 1 << 31, 1 << 31, 0]
    a, b = ([bits(p[k], "f64") for p in ZEROS] for k in (0, 1))
    assert run("mul.rm.f64 %0,%1,%2", a, b) == [0, 1 << 63, 1 << 63, 0]


def doubles():
    rng = np.random.default_rng(5)
    a, b, c = (rng.standard_normal(32) * 2.0 ** rng.integers(-60, 60, 32) for _ in range(3))
    a[:4], b[:4], c[:4] = [1.7e308, -1.7e308, 5e-324, 1e-200], [1.7e308, 1.7e308, 0.5, -1e-200], [1.7e308, -1.7e308, 5e-324, 5e-324]
    c[4:16] = -(a[4:16] * b[4:16])  # what is left is the rounding error of the product
    b[16], a[16], c[16] = 1 + 2.0**-52, 1 + 2.0**-52, 2.0**-1000
    a[17:20], b[17:20], c[17:20] = 1 + 2.0**-30, 1 + 2.0**-23, [2.0**-200, -(2.0**-200), 0]  # beside a tie
    return [[float(v) for v in x] for x in (a, b, c)]


@pytest.mark.parametrize("mode", ["rn", "rm", "rp", "rz"])
def test_float64_is_rounded_once_and_as_told(mode):
    a, b, c = doubles()
    A, B, C = ([bits(v, "f64") for v in x] for x in (a, b, c))
    assert run(f"fma.{mode}.f64 %0,%1,%2,%3", A, B, C) == [exact(*v, "f64", mode) for v in zip(a, b, c)]
    assert run(f"add.{mode}.f64 %0,%1,%2", A, C) == [exact(x, 1.0, y, "f64", mode) for x, y in zip(a, c)]
    assert run(f"sub.{mode}.f64 %0,%1,%2", A, C) == [exact(x, 1.0, -y, "f64", mode) for x, y in zip(a, c)]
    assert run(f"mul.{mode}.f64 %0,%1,%2", A, B) == [rounded(Fraction(x) * Fraction(y), "f64", mode) for x, y in zip(a, b)]


@pytest.mark.parametrize("mode", ["rn", "rm", "rp", "rz"])
def test_float64_with_infinities_and_nan(mode):
    inf, nan = float("inf"), float("nan")
    a, b, c = [inf, inf, 1e300, inf, nan, 1.0], [1.0, 0.0, 1e300, 2.0, 1.0, 1.0], [1.0, 1.0, -inf, -inf, 1.0, nan]
    got = [value(v, "f64") for v in run(f"fma.{mode}.f64 %0,%1,%2,%3", *([bits(v, "f64") for v in x] for x in (a, b, c)))]
    assert got[0] == inf and got[2] == -inf and np.isnan([got[1], *got[3:]]).all()


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("fmt", ["f16", "bf16"])
def test_fma_of_16_bits_is_rounded_once(fmt, relu):
    # Products between two results (one bit too long), and a third operand too small for float32, or float64, to see beside them.
    ties = [(35, 11), (9, 43)] if fmt == "bf16" else [(3, 683), (7, 293)]
    small = [2.0**-20, 2.0**-120, 2.0**-133] if fmt == "bf16" else [2.0**-14, 2.0**-24]
    rows = [(s * float(x), float(y), t * z) for x, y in ties for z in small for s in (1, -1) for t in (1, -1)]
    rows += [(0.0, -0.0, -0.0), (0.0, 0.0, -0.0), (2.0**14, 1.5, 2.0**14)]
    s = 2.0 ** (FORMATS[fmt][1] // 2)
    rows += [(s, -s / 2, 0.0), (s, s / 4, 0.0)]  # below the smallest subnormal
    rng = np.random.default_rng(3)
    for _ in range(32 * 8 - len(rows)):
        rows.append([value(bits(float(v), fmt) if fmt == "bf16" else bits(float(np.float16(v)), fmt), fmt)
                     for v in rng.standard_normal(3) * 2.0 ** rng.integers(-9, 5, 3)])  # fmt: skip
    for k in range(0, len(rows), 32):
        part = rows[k : k + 32]
        words = [[bits(r[i], fmt) for r in part] for i in range(3)]
        got = run(f"fma.rn{relu}.{fmt}x2 %0,%1,%2,%3", *([v << 16 | w for v, w in zip(x, x[::-1])] for x in words))
        alone = (f"{{ .reg .b16 e,g,h; cvt.u16.u32 e, %1; cvt.u16.u32 g, %2; cvt.u16.u32 h, %3; fma.rn{relu}.{fmt} e,e,g,h; "
                 "cvt.u32.u16 %0, e; }")  # fmt: skip
        wanted = [exact(*r, fmt, "rn") for r in part]
        if relu:
            wanted = [0 if w & 0x8000 else w for w in wanted]
        assert [v >> 16 for v in got] == wanted
        assert [v & 0xFFFF for v in got] == wanted[::-1]
        assert run(alone, *words) == wanted


@pytest.mark.parametrize("fmt", ["f16", "bf16"])
def test_relu_keeps_nan(fmt):
    nan, x = bits(float("nan"), "f32"), bits(-2.0, "f32")
    got = run(f"cvt.rn.relu.{fmt}x2.f32 %0,%1,%2", [nan, x, bits(-0.0, "f32")], [x, nan, bits(1.0, "f32")])
    assert got == [0x7FFF0000, 0x7FFF, bits(1.0, fmt)]
    q, p1 = bits(float("nan"), fmt), bits(1.0, fmt)
    assert run(f"fma.rn.relu.{fmt}x2 %0,%1,%2,%3", [q], [p1], [p1]) == [0x7FFF]
