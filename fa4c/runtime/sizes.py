"""Sizes of a problem from text, without torch: `b=2,hq=8,hkv=2,m=1000,n=1000`."""

from __future__ import annotations

import re

from .errors import InputError, nearest
from .layout import check_heads

DEFAULT_SIZES = {"b": 1, "hq": 4, "hkv": 2, "m": 256, "n": 256}
LARGEST = 2**31 - 1  # positions and sizes are 32-bit integers in kernels


def parse_sizes(text: str, names=()) -> dict[str, int]:
    """Text -> dict; what is left out takes `DEFAULT_SIZES` (m and n follow each other; hkv follows hq).

    `names`: what else may be named, None for anything. Raises `InputError` for text that is no NAME=INTEGER, an unknown name, a negative
    or too large size, hq no multiple of hkv.
    """
    sizes: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = re.fullmatch(r"(\w+)\s*=\s*(-?[0-9]+)", part)
        if not match:
            raise InputError(f"{part!r} is no NAME=INTEGER", where="--shape", fix="write for example b=2,hq=8,hkv=2,m=1000,n=1000")
        name, digits = match[1], match[2]
        known = {*DEFAULT_SIZES, *(names or ())}
        if names is not None and name not in known:
            raise InputError(
                f"unknown size {name!r}{nearest(name, known)}", where="--shape", why=f"the sizes here are {', '.join(sorted(known))}"
            )
        if digits.startswith("-"):
            raise InputError(f"{name} = {digits} is negative", where="--shape")
        if len(digits.lstrip("0")) > 10 or int(digits) > LARGEST:
            raise InputError(
                f"{name} = {digits[:20]}{'...' * (len(digits) > 20)} is too large",
                where="--shape",
                why=f"sizes are 32-bit integers in kernels, at most {LARGEST}",
                fix="choose a smaller one",
            )
        if name in sizes:
            raise InputError(f"{name} is given twice", where="--shape")
        sizes[name] = int(digits)
    return complete_sizes(sizes)


def complete_sizes(sizes: dict[str, int]) -> dict[str, int]:
    """With what is left out: m and n follow each other, so do hq and hkv, others are `DEFAULT_SIZES`. Raises `InputError` where hkv does
    not divide hq.
    """
    full = dict(sizes)
    for name, other in (("m", "n"), ("n", "m"), ("hkv", "hq")):
        if name not in full and other in full:
            full[name] = full[other]
    if "hq" not in full and "hkv" in full:
        full["hq"] = full["hkv"]
    full = {**DEFAULT_SIZES, **full}
    check_heads(full, "--shape")
    return full


def dims_of(semantics: dict) -> set[str]:
    """Names of all axes and dims whose size is free in this variant."""
    found: set = set()
    for a in semantics["args"]:
        found |= set(a["axes"]) | {d for d, s in zip(a["dims"], a["shape"]) if s is None}
    return found - {"batch_plus_1"}
