"""Arithmetic of PTX on arrays of lanes (PTX ISA chapters 9.7.1 to 9.7.9), bit exact where the ISA is.

Every function takes and returns NumPy arrays (or NumPy scalars) and never changes its arguments: registers share arrays.
"""

import numpy as np

U1, U2, U4, U8 = np.dtype("u1"), np.dtype("u2"), np.dtype("u4"), np.dtype("u8")
I1, I2, I4, I8 = np.dtype("i1"), np.dtype("i2"), np.dtype("i4"), np.dtype("i8")
F2, F4, F8, BOOL = np.dtype("f2"), np.dtype("f4"), np.dtype("f8"), np.dtype("?")
TINY = np.float32(2.0**-126)
_TIE, _LOW29 = np.uint64(0x10000000), np.uint64(0x1FFFFFFF)
where = np.where


# --- minimum and maximum ------------------------------------------------------------------------------------
def fmax(a, b):
    """max.{f32,f64} and of widened 16-bit values: the number beside a NaN, +0 of two zeros with different signs."""
    return _max_zero(np.fmax(a, b), a, b)


def maximum(a, b):
    """max.NaN."""
    return _max_zero(np.maximum(a, b), a, b)


def fmin(a, b):
    """min.{f32,f64} and of widened 16-bit values: the number beside a NaN, -0 of two zeros with different signs."""
    return _min_zero(np.fmin(a, b), a, b)


def minimum(a, b):
    """min.NaN."""
    return _min_zero(np.minimum(a, b), a, b)


def _max_zero(r, a, b):
    return r if r.all() else where((a == 0) & (b == 0), a + b, r)


def _min_zero(r, a, b):
    return r if r.all() else where((a == 0) & (b == 0), -(-a - b), r)


# --- float32 ----------------------------------------------------------------------------------------------------
def ftz(f):
    """Subnormals to zero of the same sign."""
    small = np.abs(f) < TINY
    return where(small, np.copysign(np.float32(0), f), f) if small.any() else f


def sat(f):
    """Clamp to [0, 1]; NaN and -0 become +0."""
    return where(f > 0, np.minimum(f, f.dtype.type(1)), f.dtype.type(0))


def relu(f):
    """Negative numbers and -0 become +0, NaN stays."""
    return where(f <= 0, f.dtype.type(0), f)


def two_sum(a, b):
    """(s, e): s is a + b rounded, s + e is a + b (Knuth's TwoSum)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def fma32(a, b, c):
    """fma.rn.f32 with one rounding: the product is exact in float64, the sum is rounded to odd where it would double-round."""
    p = a.astype(F8) * b.astype(F8)
    c = c.astype(F8)
    s = p + c
    bits = s.view(U8) if isinstance(s, np.ndarray) else np.asarray(s).view(U8)
    r = s.astype(F4)
    suspicious = ((bits & _LOW29) == _TIE) | (np.abs(r) < TINY)
    if suspicious.any():
        return round_odd(p, c).astype(F4)
    return r


def round_odd(a, b):
    """a + b in float64 rounded to odd, so that a later rounding to float32 is the correct one."""
    s, e = two_sum(a, b)
    bits = s.view(I8)
    inexact = (e != 0) & np.isfinite(s) & ((bits & 1) == 0)
    # Towards the error's side: the neighbour has an odd last bit.
    step = where((e > 0) == (s > 0), np.int64(1), np.int64(-1))
    return where(inexact, bits + step, bits).view(F8)


# --- approximations ---------------------------------------------------------------------------------------------
def ex2(f):
    """2**x in float32 (approximation error of the host below that documented for ex2.approx: 2 ulp)."""
    return np.exp2(f.astype(F8)).astype(F4)


def div_approx(a, b):
    """div.approx.f32: where the reciprocal would be subnormal, it counts as 0."""
    huge = np.abs(b) > np.float32(2.0**126)
    return where(huge & np.isfinite(b), a * np.copysign(np.float32(0), b), a / b)


def lg2(f):
    return np.log2(f.astype(F8)).astype(F4)


# --- integers -------------------------------------------------------------------------------------------------------
def shl(a, n, bits):
    """Shift left; counts at or above the width give 0."""
    n = np.asarray(n, U8 if bits == 64 else U4)
    t = a.dtype
    return where(n >= bits, t.type(0), a << np.minimum(n, bits - 1).astype(t))


def shr(a, n, bits):
    """Shift right, arithmetic for signed types; counts at or above the width give 0 or the sign."""
    n = np.asarray(n, U4)
    t = a.dtype
    if t.kind == "i":
        return a >> np.minimum(n, bits - 1).astype(t)
    return where(n >= bits, t.type(0), a >> np.minimum(n, bits - 1).astype(t))


def mulhi(a, b):
    """High half of the product, 32 or 64 bits, signedness of the arrays."""
    a, b = np.broadcast_arrays(np.asarray(a), np.asarray(b))
    if a.dtype.itemsize == 4:
        w = U8 if a.dtype.kind == "u" else I8
        return (a.astype(w) * b.astype(w) >> w.type(32)).astype(a.dtype)
    out = [(int(x) * int(y)) >> 64 for x, y in zip(a, b)]
    return np.array([v & 0xFFFFFFFFFFFFFFFF for v in out], U8).view(a.dtype)


def idiv(a, b):
    """Division towards zero; a zero divisor gives all ones (the ISA leaves it undefined)."""
    a, b = np.broadcast_arrays(a, b)
    safe = where(b == 0, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        q = a // safe
    else:
        q = a // safe
        q = q + ((q * safe != a) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return where(b == 0, ~b.dtype.type(0), q)


def irem(a, b):
    """Remainder with the sign of the dividend."""
    return a - idiv(a, b) * b


def bfe(a, pos, length, bits):
    """bfe.{u32,s32,u64,s64}."""
    out = []
    for x, p, n in zip(*np.broadcast_arrays(a, pos, length)):
        p, n, x0 = int(p) & 0xFF, int(n) & 0xFF, int(x)
        signed = a.dtype.kind == "i"
        u = x0 & ((1 << bits) - 1)
        sign = 0
        if signed and n:
            sign = (u >> min(p + n - 1, bits - 1)) & 1
        v = 0
        for i in range(bits):
            src = p + i
            bit = (u >> src) & 1 if i < n and src < bits else sign
            v |= bit << i
        out.append(v - (1 << bits) if signed and v >> (bits - 1) else v)
    return np.array(out, a.dtype)


def bfi(a, b, pos, length, bits):
    """bfi.{b32,b64} d, a, b, pos, len: insert a into b."""
    a, b, pos, length = (np.asarray(v).astype(U8) for v in (a, b, pos, length))
    pos, length = pos & np.uint64(0xFF), length & np.uint64(0xFF)
    ones = where(length >= 64, ~np.uint64(0), (np.uint64(1) << np.minimum(length, np.uint64(63))) - np.uint64(1))
    mask = where(pos >= 64, np.uint64(0), ones << np.minimum(pos, np.uint64(63)))
    val = where(pos >= 64, np.uint64(0), a << np.minimum(pos, np.uint64(63)))
    return ((b & ~mask) | (val & mask)).astype(U4 if bits == 32 else U8)


def prmt(a, b, sel):
    """prmt.b32 in the default mode."""
    a, b, sel = np.broadcast_arrays(np.asarray(a, U4), np.asarray(b, U4), np.asarray(sel, U4))
    source = (b.astype(U8) << np.uint64(32)) | a
    out = np.zeros(a.shape, U4)
    for i in range(4):
        nib = (sel >> np.uint32(4 * i)) & np.uint32(15)
        byte = ((source >> ((nib & np.uint32(7)).astype(U8) * np.uint64(8))) & np.uint64(0xFF)).astype(U4)
        byte = where(nib & np.uint32(8) != 0, where(byte & np.uint32(0x80) != 0, np.uint32(0xFF), np.uint32(0)), byte)
        out = out | (byte << np.uint32(8 * i))
    return out


def lop3(a, b, c, lut):
    """lop3.b32 with an immediate table."""
    out = np.zeros(32, U4)
    for i in range(8):
        if lut >> i & 1:
            out = out | ((a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c))
    return out


def shf(a, b, n, left, wrap):
    """shf.{l,r}.{wrap,clamp}.b32: funnel shift of b:a."""
    n = np.asarray(n, U4)
    n = (n & np.uint32(31)) if wrap else np.minimum(n, np.uint32(32))
    v = (np.asarray(b, U4).astype(U8) << np.uint64(32)) | np.asarray(a, U4)
    n = n.astype(U8)
    if left:
        return ((v << n) >> np.uint64(32)).astype(U4)
    return (v >> n).astype(U4)


def popc(a):
    return np.array([int(v).bit_count() for v in a], U4)


def clz(a):
    bits = a.dtype.itemsize * 8
    return np.array([bits - int(v).bit_length() for v in a], U4)


def brev(a):
    bits = a.dtype.itemsize * 8
    return np.array([int(f"{int(v):0{bits}b}"[::-1], 2) for v in a], a.dtype)


def bfind(a, shiftamt):
    bits = a.dtype.itemsize * 8
    out = []
    for v in a:
        v = int(v)
        v = ~v if v < 0 else v
        p = v.bit_length() - 1
        out.append(0xFFFFFFFF if p < 0 else (bits - 1 - p if shiftamt else p))
    return np.array(out, U4)


# --- conversions ------------------------------------------------------------------------------------------------
_LIMITS = {k: (np.iinfo(k).min, np.iinfo(k).max) for k in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8")}


def float_to_int(f, kind, mode):
    """cvt.{rni,rzi,rmi,rpi}.INT.FLOAT: saturates; NaN gives 0, or the sign bit alone from an f64 or to 64 bits."""
    sign_bit = 1 << (8 * np.dtype(kind).itemsize - 1) if f.dtype == F8 or kind in ("i8", "u8") else 0
    nan = f != f
    f = where(nan, 0.0, f.astype(F8))
    r = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](f)
    lo, hi = _LIMITS[kind]
    out = np.empty(r.shape, kind)
    big, small = r >= float(hi), r <= float(lo)
    mid = ~(big | small)
    out[mid] = r[mid].astype(kind)
    out[big], out[small] = hi, lo
    out[nan] = -sign_bit if kind[0] == "i" else sign_bit
    return out


def int_sat(a, kind):
    """cvt.sat between integer types."""
    lo, hi = _LIMITS[kind]
    return np.array([min(max(int(v), lo), hi) for v in a], kind)


def add_sat_s32(a, b, subtract=False):
    """add.sat.s32 or sub.sat.s32."""
    b = b.astype(I8)
    return np.clip(a.astype(I8) + (-b if subtract else b), -(2**31), 2**31 - 1).astype(I4)
