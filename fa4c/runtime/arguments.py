"""Checks of what a caller of `fa4c.attention` passes: tensors, head dims, dtypes, targets, options."""

from __future__ import annotations

import math

import torch

from .errors import InputError, InputTypeError, NotYetError, nearest
from .execute import check_devices
from .manifest import TARGETS
from .torch_types import name_of


def check_tensors(q, k, v) -> None:
    """q (b, sq, hq, d), k (b, sk, hkv, d), v (b, sk, hkv, dv): strided, one dtype (bf16 or fp16), one device, hkv divides hq. Raises
    `InputTypeError` for what is no such tensor, `InputError` for sizes that do not fit.
    """
    named = {"q": q, "k": k, "v": v}
    for name, t in named.items():
        if not isinstance(t, torch.Tensor):
            raise InputTypeError(f"{name} is {type(t).__name__}, not a torch.Tensor")
        if t.layout != torch.strided:
            raise InputTypeError(f"{name} has the layout {t.layout}", why="kernels read strided memory", fix=f"pass {name}.to_dense()")
        if t.dim() != 4:
            raise InputError(
                f"{name} has {t.dim()} dimensions {tuple(t.shape)}, but needs 4: (batch, length, heads, head dim)", fix=f"reshape {name}"
            )
        check_dtype(name_of(t.dtype), name)
        if t.dtype != q.dtype:
            raise InputTypeError(
                f"{name} is {t.dtype}, but q is {q.dtype}", why="one kernel reads all three", fix=f"convert it: {name}.to({q.dtype})"
            )
    check_devices(list(named), list(named.values()))
    for name, t, axis, other, word in (
        ("k", k, 0, q, "batch entries"),
        ("v", v, 0, q, "batch entries"),
        ("v", v, 1, k, "keys"),
        ("v", v, 2, k, "heads"),
        ("k", k, 3, q, "head dim"),
    ):
        if t.shape[axis] != other.shape[axis]:
            raise InputError(
                f"{name} has {t.shape[axis]} {word}, but {'q' if other is q else 'k'} has {other.shape[axis]}",
                why="q is (b, sq, hq, d), k (b, sk, hkv, d), v (b, sk, hkv, dv)",
                fix="transpose (b, h, s, d) tensors: x.transpose(1, 2)",
            )
    if q.shape[2] and (not k.shape[2] or q.shape[2] % k.shape[2]):
        raise InputError(
            f"{q.shape[2]} query heads are no multiple of {k.shape[2]} KV heads",
            why="each KV head serves hq / hkv query heads",
            fix="give k and v a number of heads that divides q's; tensors are (b, s, h, d)",
        )
    check_head_dims(q.shape[3], v.shape[3])


def check_head_dims(d, dv) -> None:
    """Raises `InputError` unless both are multiples of 8, from 8 to 256."""
    for name, size in (("d", d), ("dv", dv)):
        if not isinstance(size, int) or size % 8 or not 8 <= size <= 256:
            raise InputError(
                f"the head dim {name} = {size} is not supported",
                why="head dims are multiples of 8 (16 bytes) up to 256",
                fix="pad q, k (or v) with zeros to the next multiple of 8",
            )


def check_dtype(dtype: str, name: str = "dtype") -> str:
    """The dtype, "bf16" or "fp16"; raises `InputTypeError` for another one. `name`: whose it is."""
    if dtype not in ("bf16", "fp16"):
        raise InputTypeError(f"{name} is {dtype}, which is not supported", why="the kernels read bf16 and fp16", fix="x.to(torch.bfloat16)")
    return dtype


def check_target(target: str) -> str:
    """The target, raises `InputError` for one that there is not."""
    if target not in TARGETS:
        raise InputError(f"unknown target {target!r}{nearest(target, TARGETS)}", why=f"the targets are {', '.join(TARGETS)}")
    return target


def check_options(causal, align, window, softcap, scale) -> dict:
    """The same five, in the types that a variant's tree is made from; raises `InputError`. Distances of `window` are in tokens."""
    if align not in ("bottom_right", "top_left"):
        raise InputError(f"align is {align!r}{nearest(str(align), ('bottom_right', 'top_left'))}", why="it is 'bottom_right' or 'top_left'")
    if window is not None:
        if (
            not isinstance(window, (tuple, list))
            or len(window) != 2
            or not all(w is None or (isinstance(w, int) and w >= 0) for w in window)
        ):
            raise InputError(
                f"window is {window!r}",
                why="it is (left, right): inclusive distances, None = unlimited",
                fix="for example window=(1024, 0); None instead of -1",
            )
        window = None if tuple(window) == (None, None) else tuple(window)
    if softcap is not None and not is_number(softcap, positive=True):
        raise InputError(
            f"softcap is {softcap!r}", why="scores become softcap * tanh(score / softcap), so it is a positive number, or None"
        )
    if scale is not None and not is_number(scale):
        raise InputError(f"scale is {scale!r}", why="it is a finite number, or None for 1 / sqrt(d)")
    return dict(
        causal=bool(causal),
        align=align,
        window=window,
        softcap=None if softcap is None else float(softcap),
        scale=None if scale is None else float(scale),
    )


def is_number(x, positive=False) -> bool:
    """Whether x is a finite number, and no truth value; greater than 0 with `positive`."""
    return isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x) and (not positive or x > 0)


def refuse_functions(score_mod, mask_mod) -> None:
    """Raises `NotYetError` for a function."""
    for name, function in (("score_mod", score_mod), ("mask_mod", mask_mod)):
        if function is not None:
            raise NotYetError(
                f"{name} is not supported yet",
                why="Python functions are not traced yet",
                fix="use causal, window, softcap, scale; or write the variant as an attn .mlir file and pass variant='file.mlir'",
            )


def refuse_options(options) -> None:
    """Raises `InputError` for an option, as `check_options` returns them, that is not as by default: beside `variant=`."""
    default = dict(causal=False, align="bottom_right", window=None, softcap=None, scale=None)
    for name, value in options.items():
        if value != default[name]:
            raise InputError(
                f"{name}={value!r} and variant= exclude each other",
                why="a variant says all of it: mask, scale and alignment",
                fix=f"write {name} into the variant",
            )
