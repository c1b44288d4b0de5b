"""The standard variants of attention as semantics trees, built without MLIR so that a cache key costs no import.

`to_mlir.py` prints them; `ir/semantics.py` reads the same tree back.
"""

import math

from ..ir.expr import ExprBuilder

_DTYPES = ("bf16", "fp16")


def standard(
    *,
    causal: bool = False,
    align: str = "bottom_right",
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    dtype: str = "bf16",
    d: int = 128,
    dv: int | None = None,
    layout: str = "bshd",
) -> dict:
    """softmax(mask(softcap * tanh(scale * q k^T / softcap))) v, each part where asked, and the log-sum-exp.

    `window = (left, right)`: inclusive distances, None unlimited; with `causal` the right distance is at most 0. `scale` defaults to
    1 / sqrt(d). q is (b, m, hq, d), k (b, n, hkv, d), v (b, n, hkv, dv), o (b, m, hq, dv) in `dtype` ("bf16" or "fp16") under "bshd",
    (b, heads, length, d) under "bhsd"; lse is f32 (b, hq, m). Raises `ValueError` for values that no variant has.
    """
    dv = d if dv is None else dv
    _check(align, layout, window, softcap, dtype, d, dv)
    left, right = window if window is not None else (None, None)
    if causal:
        right = 0 if right is None else min(right, 0)
    if not (causal or window is not None and (left, right) != (None, None)):
        align = "top_left"  # nothing depends on it: one cache entry for both
    arguments = [
        _tensor("q", dtype, ["b", "hq"], ["m", "d"], [None, d]) | {"fill": "normal"},
        _tensor("k", dtype, ["b", "hkv"], ["n", "d"], [None, d]) | {"fill": "normal"},
        _tensor("v", dtype, ["b", "hkv"], ["n", "dv"], [None, dv]) | {"fill": "normal"},
    ]
    body = _Body()
    value = body.step("gemm", ["q", "k"], transpose_b=True, dtype="f32")
    score = _score(1 / math.sqrt(d) if scale is None else scale, softcap)
    if score is not None:
        value = body.step("map", [value], expr=score, dtype="f32")
    keep = _mask(left, right)
    if keep is not None:
        value = body.step("mask", [value], expr=keep)
    p, lse = body.step("softmax", [value], results=2)
    p = body.step("cast", [p], dtype=dtype)
    o = body.step("gemm", [p, "v"], transpose_b=False, dtype="f32")
    o = body.step("cast", [o], dtype=dtype)
    results = [
        {"name": "o", "value": o, **_tensor(None, dtype, ["b", "hq"], ["m", "dv"], [None, dv])},
        {"name": "lse", "value": lse, **_tensor(None, "f32", ["b", "hq"], ["m"], [None])},
    ]
    return {
        "schema": 1,
        "name": _name(causal, left, right, softcap),
        "align": align,
        "layout": layout,
        "args": arguments,
        "body": body.steps,
        "results": results,
    }


def _check(align, layout, window, softcap, dtype, d, dv) -> None:
    if align not in ("top_left", "bottom_right"):
        raise ValueError(f"align is 'top_left' or 'bottom_right', not {align!r}")
    if layout not in ("bshd", "bhsd"):
        raise ValueError(f"layout is 'bshd' or 'bhsd', not {layout!r}")
    if dtype not in _DTYPES:
        raise ValueError(f"dtype is one of {', '.join(_DTYPES)}, not {dtype!r}")
    if d <= 0 or dv <= 0:
        raise ValueError(f"head dims are positive, not {d} and {dv}")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap is positive, not {softcap}")
    if window is not None and len(window) != 2:
        raise ValueError(f"window is (left, right), not {window!r}")


class _Body:
    def __init__(self):
        self.steps: list[dict] = []
        self._count = 0

    def step(self, op: str, inputs: list[str], results: int = 1, **attributes):
        out = [f"%{self._count + k}" for k in range(results)]
        self._count += results
        self.steps.append({"op": op, "in": inputs, "out": out, **attributes})
        return out[0] if results == 1 else out


def _tensor(name, dtype, axes, dims, shape) -> dict:
    return ({} if name is None else {"name": name}) | {"dtype": dtype, "axes": axes, "dims": dims, "shape": shape}


def _score(scale: float, softcap: float | None) -> list | None:
    e = ExprBuilder(["f32"])
    value = e.x()
    if scale != 1:
        value = e.op("mul", value, e.const(scale, "f32"))
    if softcap is not None:
        capped = e.op("tanh", e.op("mul", value, e.const(1 / softcap, "f32")))
        value = e.op("mul", capped, e.const(softcap, "f32"))
    return None if value == e.x() else e.build(value)


def _mask(left: int | None, right: int | None) -> list | None:
    e = ExprBuilder()
    i, j = e.index("i"), e.index("j")
    parts = []
    if left is not None:
        parts.append(e.op("ge", j, e.op("sub", i, e.const(left, "index")) if left else i))
    if right is not None:
        parts.append(e.op("le", j, e.op("add", i, e.const(right, "index")) if right else i))
    if not parts:
        return None
    return e.build(parts[0] if len(parts) == 1 else e.op("and", *parts))


def _name(causal: bool, left: int | None, right: int | None, softcap: float | None) -> str:
    windowed = left is not None or (right is not None and not (causal and right == 0))
    parts = [name for name, wanted in (("causal", causal), ("window", windowed), ("softcap", softcap is not None)) if wanted]
    return "_".join(parts) or "full"
