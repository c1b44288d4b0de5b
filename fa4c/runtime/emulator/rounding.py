"""Directed rounding (`.rm .rp .rz`) and single roundings of float64: exact up to the one rounding that the instruction names.

Of a float32 result the exact value is not needed, only on which side of it the nearest float32 lies.
"""

import math
from fractions import Fraction

import numpy as np

from .numerics import F4, F8, I8, U8, two_sum

where = np.where


# --- float32 ----------------------------------------------------------------------------------------------------
def fma32_directed(a, b, c, mode):
    """fma.{rm,rp,rz}.f32."""
    return _sum_directed(a.astype(F8) * b.astype(F8), np.asarray(c, F4).astype(F8), mode)


def add32_directed(a, b, mode):
    """add.{rm,rp,rz}.f32."""
    return _sum_directed(np.asarray(a, F4).astype(F8), np.asarray(b, F4).astype(F8), mode)


def mul32_directed(a, b, mode):
    """mul.{rm,rp,rz}.f32."""
    p = a.astype(F8) * b.astype(F8)
    return _directed(p, np.zeros_like(p), mode)


def _sum_directed(a, b, mode):
    s, e = two_sum(a, b)
    r = _directed(s, e, mode)
    if mode != "rm":
        return r
    # An exact zero is -0, but for the sum of two +0.
    return where((s == 0) & (np.signbit(a) | np.signbit(b)), np.float32(-0.0), r)


def _directed(s, e, mode):
    """The float64 pair s + e to float32."""
    r = s.astype(F4)
    r8, finite = r.astype(F8), np.isfinite(s)
    return _step(r, finite & ((r8 > s) | ((r8 == s) & (e < 0))), finite & ((r8 < s) | ((r8 == s) & (e > 0))), mode)


def _step(r, above, below, mode):
    """From the nearest float32 (`above` or `below` the exact value) to the one that the mode asks for."""
    if mode == "rz":
        above, below = above & (r > 0), below & (r < 0)
    if mode in ("rm", "rz"):
        r = where(above, np.nextafter(r, np.float32(-np.inf)), r)
    return where(below, np.nextafter(r, np.float32(np.inf)), r) if mode in ("rp", "rz") else r


def float_to_float32(x, mode):
    """cvt.{rm,rp,rz}.f32.f64."""
    return _directed(x, np.zeros_like(x), mode)


def int_to_float32(x, mode):
    """cvt.{rm,rp,rz}.f32.INT: 64 bits as a sum of two float64."""
    x = x.astype(U8 if x.dtype.kind == "u" else I8)
    high, low = x >> x.dtype.type(32), x & x.dtype.type(0xFFFFFFFF)
    return _directed(*two_sum(high.astype(F8) * 2.0**32, low.astype(F8)), mode)


def int_to_float64(x, mode):
    """cvt.{rm,rp,rz}.f64.INT."""
    pairs = [(float(int(v)), int(v)) for v in x]
    return np.array([_step64(r, int(r) > v, int(r) < v, mode) for r, v in pairs], F8)


def div32(a, b, mode):
    """div.{rm,rp,rz}.f32: the nearest quotient times b is exact in float64, so comparing it with a tells the side."""
    a, b = np.asarray(a, F4), np.asarray(b, F4)
    r = np.asarray(a / b)
    a8, b8 = a.astype(F8), b.astype(F8)
    side = (r.astype(F8) * b8 - a8) * np.sign(b8)
    exact = ~(np.isfinite(a8) & np.isfinite(b8) & (b8 != 0))
    return _step(r, (side > 0) & ~exact, (side < 0) & ~exact, mode)


def rcp32(a, mode):
    """rcp.{rm,rp,rz}.f32."""
    return div32(np.float32(1), a, mode)


def sqrt32(a, mode):
    """sqrt.{rm,rp,rz}.f32: the square of the nearest root is exact in float64."""
    r = np.sqrt(a)
    side = where(np.isfinite(r), r.astype(F8) ** 2 - a.astype(F8), 0)
    return _step(r, side > 0, side < 0, mode)


# --- float64 ----------------------------------------------------------------------------------------------------
def fma64(a, b, c, mode="rn"):
    """fma.{rn,rm,rp,rz}.f64, exact in Python integers up to the one rounding."""
    a, b, c = np.broadcast_arrays(a, b, c)
    return np.array([_fma64_one(*v, mode) for v in zip(a.tolist(), b.tolist(), c.tolist())], F8)


def add64_directed(a, b, mode):
    """add.{rm,rp,rz}.f64."""
    return fma64(a, np.float64(1), b, mode)


def mul64_directed(a, b, mode):
    """mul.{rm,rp,rz}.f64."""
    return fma64(a, b, where(np.signbit(a) != np.signbit(b), -0.0, 0.0), mode)


def _fma64_one(a, b, c, mode):
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    (an, ad), (bn, bd), (cn, cd) = (v.as_integer_ratio() for v in (a, b, c))
    n, d = an * bn * cd + cn * ad * bd, ad * bd * cd
    if n == 0:
        negative = math.copysign(1, a) * math.copysign(1, b) < 0, math.copysign(1, c) < 0
        return -0.0 if all(negative) or (mode == "rm" and any(negative)) else 0.0
    return _ratio(n, d, mode)


def div64(a, b, mode):
    """div.{rm,rp,rz}.f64."""
    a, b = np.broadcast_arrays(a, b)
    return np.array([_div64_one(*v, mode) for v in zip(a, b)], F8)


def rcp64(a, mode):
    """rcp.{rm,rp,rz}.f64."""
    return div64(np.float64(1), a, mode)


def sqrt64(a, mode):
    """sqrt.{rm,rp,rz}.f64."""
    return np.array([_sqrt64_one(float(v), mode) for v in a], F8)


def _div64_one(a, b, mode):
    if not (np.isfinite(a) and np.isfinite(b)) or a == 0 or b == 0:
        return a / b  # exact: NumPy's zero, infinity or NaN
    (an, ad), (bn, bd) = float(a).as_integer_ratio(), float(b).as_integer_ratio()
    n, d = an * bd, ad * bn
    return _ratio(*((n, d) if d > 0 else (-n, -d)), mode)


def _sqrt64_one(a, mode):
    if not 0 < a < math.inf:
        return a if a == 0 or a == math.inf else math.nan
    r = math.sqrt(a)
    side = Fraction(r) ** 2 - Fraction(a)
    return _step64(r, side > 0, side < 0, mode)


def _ratio(n, d, mode):
    """n / d of integers, d > 0 and n not 0, rounded once."""
    try:
        r = n / d
    except OverflowError:
        r = math.inf if n > 0 else -math.inf
    rn, rd = r.as_integer_ratio() if math.isfinite(r) else ((1 if n > 0 else -1) << 2200, 1)
    side = rn * d - n * rd  # of the rounded from the exact value
    return _step64(r, side > 0, side < 0, mode)


def _step64(r, above, below, mode):
    """As `_step`, of one float64; `rn` stays."""
    if mode == "rz":
        above, below = above and r > 0, below and r < 0
    if above and mode in ("rm", "rz"):
        return math.nextafter(r, -math.inf)
    return math.nextafter(r, math.inf) if below and mode in ("rp", "rz") else r


def high_half64(fn, a):
    """{rcp,rsqrt}.approx.ftz.f64: the low 32 bits of operand and result count as zero, and so do subnormals."""

    def cut(x):
        x = (x.view(U8) & np.uint64(0xFFFFFFFF00000000)).view(F8)
        return where(np.abs(x) < 2.0**-1022, np.copysign(0.0, x), x)

    return cut(fn(cut(a)))
