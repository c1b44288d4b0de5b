"""16-bit floats, alone and packed (PTX ISA chapters 9.7.4 and 9.7.9): every result is rounded once.

Formats are named as in the ISA: `f16`, `bf16`, and with `x2` for two in a word. Bits go in and out as unsigned integers.
"""

import numpy as np

from .numerics import F2, F4, F8, U2, U4, round_odd

where = np.where
NAN = np.uint32(0x7FFF)
_SMALLEST = {"f16": np.float32(2.0**-14), "bf16": np.float32(2.0**-126)}  # normal number


def bf16_to_f32(u2):
    """bf16 bits (uint16) to float32."""
    return (u2.astype(U4) << np.uint32(16)).view(F4)


def f16_to_f32(u2):
    """f16 bits (uint16) to float32."""
    return u2.view(F2).astype(F4)


def f32_to_bf16(f, mode="rn"):
    """float32 to bf16 bits in the low half of a uint32; `rn` or `rz`."""
    u = f.view(U4)
    if mode == "rz":
        r = u >> np.uint32(16)
    else:
        r = (u + np.uint32(0x7FFF) + ((u >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    nan = f != f
    return where(nan, NAN, r) if nan.any() else r


def f32_to_f16(f, mode="rn"):
    """float32 to f16 bits in the low half of a uint32; `rn` or `rz`."""
    h = f.astype(F2)
    if mode == "rz":
        over = np.abs(h.astype(F4)) > np.abs(f)
        h = where(over, np.nextafter(h, np.float16(0)), h)
    r = h.view(U2).astype(U4)
    nan = f != f
    return where(nan, NAN, r) if nan.any() else r


def widen(bits, fmt):
    """16-bit values to float32."""
    return bf16_to_f32(bits) if fmt.startswith("bf16") else f16_to_f32(bits)


def narrow(f, fmt, mode="rn"):
    """cvt.{rn,rz,rm,rp}.{bf16,f16}.f32, to bits in a uint32."""
    if mode in ("rn", "rz"):
        return (f32_to_bf16 if fmt.startswith("bf16") else f32_to_f16)(f, mode)
    bits = narrow(f, fmt, "rz")
    inexact = widen(bits.astype(U2), fmt) != f
    return where(inexact & (f == f) & (np.signbit(f) == (mode == "rm")), bits + np.uint32(1), bits)


def to_f32_odd(s):
    """float64 to float32 rounded to odd, so that a later rounding to 16 bits is the correct one."""
    r = s.astype(F4)
    r8, u = r.astype(F8), r.view(U4)
    u = where(np.abs(r8) > np.abs(s), u - np.uint32(1), u)
    return where(r8 != s, u | np.uint32(1), u).view(F4)


def pack16(hi, lo):
    """Two 16-bit values in uint32 to one 32-bit word."""
    return (hi << np.uint32(16)) | lo


def halves(u4):
    """(low, high) 16-bit halves of a word as uint16 arrays."""
    return (u4 & np.uint32(0xFFFF)).astype(U2), (u4 >> np.uint32(16)).astype(U2)


def cvt16x2(a, b, fmt, mode="rn"):
    """cvt.{rn,rz,..}.{bf16x2,f16x2}.f32 d, a, b: a is the high half."""
    return pack16(narrow(a, fmt, mode), narrow(b, fmt, mode))


def flush(f, fmt):
    """Subnormals of the 16-bit format to zero of the same sign."""
    return where(np.abs(f) < _SMALLEST[fmt.removesuffix("x2")], np.copysign(np.float32(0), f), f)


def map16s(fn, fmt, *regs, ftz=False, sat=False):
    """A float32 function of 16-bit values, its result rounded to 16 bits, as uint16.

    Sums, products and quotients come out as if rounded once: float32 has more than twice their bits and two to spare. So do
    products below its normal range: 16 bits cannot reach from half a unit of bf16 (2^-134) to below one of float32 (2^-149).
    """
    return _map(fn, fmt, regs, ftz, sat).astype(U2)


def map16(fn, fmt, *words, ftz=False, sat=False):
    """The same for both halves of packed words."""
    low, high = zip(*(halves(w) for w in words))
    return pack16(_map(fn, fmt, high, ftz, sat), _map(fn, fmt, low, ftz, sat))


def _map(fn, fmt, values, ftz, sat):
    values = [widen(v, fmt) for v in values]
    if ftz:
        values = [flush(v, fmt) for v in values]
    return _finish(narrow(np.asarray(fn(*values), F4), fmt), fmt, False, ftz, sat)


def fma16s(fmt, *regs, relu=False, ftz=False, sat=False):
    """fma.rn of 16-bit values, as uint16."""
    return _fma(fmt, regs, relu, ftz, sat).astype(U2)


def fma16(fmt, *words, relu=False, ftz=False, sat=False):
    """fma.rn of packed words."""
    low, high = zip(*(halves(w) for w in words))
    return pack16(_fma(fmt, high, relu, ftz, sat), _fma(fmt, low, relu, ftz, sat))


def _fma(fmt, values, relu, ftz, sat):
    """a * b + c in float64, exact up to rounding to odd, then rounded to 16 bits."""
    values = [widen(v, fmt) for v in values]
    if ftz:
        values = [flush(v, fmt) for v in values]
    a, b, c = (v.astype(F8) for v in values)
    s = np.asarray(round_odd(a * b, c))
    if fmt.startswith("bf16"):
        r = f32_to_bf16(to_f32_odd(s))
    else:
        r = where(s != s, NAN, s.astype(F2).view(U2).astype(U4))
    return _finish(r, fmt, relu, ftz, sat)


def _finish(bits, fmt, relu, ftz, sat):
    """Result bits (uint32) with `.ftz`, `.relu` (a NaN stays one) and `.sat` (a NaN becomes 0)."""
    zero, sign = np.uint32(0), np.uint32(0x8000)
    if ftz:
        exponent = np.uint32(0x7F80 if fmt.startswith("bf16") else 0x7C00)
        bits = where(bits & exponent == 0, bits & sign, bits)
    if relu or sat:
        bits = where(bits & sign != 0, zero, bits)
    if sat:
        one = np.uint32(0x3F80 if fmt.startswith("bf16") else 0x3C00)
        bits = where(bits == NAN, zero, np.minimum(bits, one))
    return bits
