"""What an atomic, a reduction in global memory or a bulk reduction does to a value: one function for each operation and type."""

import numpy as np

from . import half as hf
from . import numerics as nx

VIEW = {
    "u32": "u4",
    "s32": "i4",
    "b32": "u4",
    "f32": "f4",
    "u64": "u8",
    "s64": "i8",
    "b64": "u8",
    "f64": "f8",
    "f16x2": "u4",
    "bf16x2": "u4",
    "b16": "u2",
    "f16": "u2",
    "bf16": "u2",
}
_FLOAT = {"add": lambda old, v: old + v, "min": nx.fmin, "max": nx.fmax}
_INTEGER = {
    "add": lambda old, v: old + v,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, v: np.where(old >= v, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, v: np.where((old == 0) | (old > v), v, old - old.dtype.type(1)),
}


def function(op, t, in_global):
    """`f(old, value)` over arrays viewed as `VIEW[t]`, or None where the ISA has no such operation.

    float32 is added in the memory of the GPU (L2) without subnormals: operands and results become zeros of their sign.
    """
    if t.startswith(("f16", "bf16")):
        fn = _FLOAT.get(op)
        each = hf.map16 if t.endswith("x2") else hf.map16s
        return fn and (lambda old, v: each(fn, t, old, v))
    if t in ("f32", "f64"):
        if op == "add" and t == "f32" and in_global:
            return lambda old, v: nx.ftz(nx.ftz(old) + nx.ftz(v))
        return _FLOAT.get(op)
    return _INTEGER.get(op)


def over_lanes(values, op, nan):
    """redux.sync.{min,max}.f32: one float32 of many. -0 < +0; a NaN only if all are, or with `.NaN` if one is."""
    some = np.isnan(values)
    if some.all() or (nan and some.any()):
        return np.uint32(0x7FFFFFFF).view("f4")
    values = values[~some]
    out = values.max() if op == "max" else values.min()
    zeros = values[values == 0]
    if out == 0:
        negative = np.signbit(zeros).all() if op == "max" else np.signbit(zeros).any()
        return np.float32(-0.0 if negative else 0.0)
    return out
