"""Inputs for a variant when the user gives none: sizes from text, contents from `fill`.

Fills: `normal`; `uniform(lo,hi)`; `sorted_ids(n)`, non-decreasing ids in [0, n) along the last dimension (document ids); `alibi`, the
slopes 2^(-8 (h + 1) / heads). `cu_seqlens` arguments get random increasing offsets.
"""

from __future__ import annotations

import re

import torch

from .errors import InputError, nearest
from .layout import check_heads, memory_layout, packed_dims, static_dims
from .torch_types import TORCH

DEFAULT_SIZES = {"b": 1, "hq": 4, "hkv": 2, "m": 256, "n": 256}


def parse_sizes(text: str, semantics: dict | None = None) -> dict[str, int]:
    """`b=2,hq=8,hkv=2,m=1000,n=1000` -> dict; what is left out takes `DEFAULT_SIZES` (m and n follow each other; hkv follows hq).

    Raises `InputError` for text that is no NAME=INTEGER, an unknown name, a negative size, hq no multiple of hkv.
    """
    known = set(DEFAULT_SIZES) | (dims_of(semantics) if semantics else set())
    sizes: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = re.fullmatch(r"(\w+)\s*=\s*(-?\d+)", part)
        if not match:
            raise InputError(f"{part!r} is no NAME=INTEGER", where="--shape", fix="write for example b=2,hq=8,hkv=2,m=1000,n=1000")
        name, value = match[1], int(match[2])
        if name not in known:
            raise InputError(
                f"unknown size {name!r}{nearest(name, known)}", where="--shape", why=f"the sizes here are {', '.join(sorted(known))}"
            )
        if value < 0:
            raise InputError(f"{name} = {value} is negative", where="--shape")
        if name in sizes:
            raise InputError(f"{name} is given twice", where="--shape")
        sizes[name] = value
    return complete_sizes(sizes)


def complete_sizes(sizes: dict[str, int]) -> dict[str, int]:
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


def make_inputs(semantics: dict, sizes: dict[str, int], seed: int = 0, device="cpu") -> dict[str, torch.Tensor]:
    """{argument: contiguous tensor in memory layout}; the same seed and device give the same contents."""
    generator = torch.Generator(device=device).manual_seed(seed)
    packed = packed_dims(semantics["args"])
    sizes = complete_sizes(sizes)
    inputs = {}
    for a in semantics["args"]:
        if a.get("cu_seqlens"):
            inputs[a["name"]] = _offsets(sizes["b"], sizes["b"] * sizes[a["cu_seqlens"]], generator, device)
            continue
        here = {**sizes, **static_dims(a)}
        for dim in packed:
            here[dim] = sizes["b"] * sizes[dim]  # packed sequences lie one after the other
        names = memory_layout(a["axes"], a["dims"], semantics.get("layout", "bshd"), packed)
        for name in names:
            if name not in here:
                raise InputError(f"the size of {name} (of {a['name']}) is not given", where="--shape", fix=f"add {name}=...")
        shape = [here[name] for name in names]
        if a.get("fill") is None and not TORCH[a["dtype"]].is_floating_point:
            raise InputError(
                f"the input {a['name']} ({a['dtype']}) has no fill",
                where="attn.fill",
                why="random integers would mean nothing",
                fix=f'give its data, or write attn.fill = "sorted_ids(4)" on {a["name"]}',
            )
        inputs[a["name"]] = fill(a.get("fill") or "normal", shape, names, TORCH[a["dtype"]], generator, device)
    return inputs


def fill(kind: str, shape, names, dtype: torch.dtype, generator, device) -> torch.Tensor:
    """One tensor; raises `InputError` on an unknown fill or one that does not suit the tensor."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", kind)
    name = match[1] if match else kind
    try:
        numbers = [float(x) for x in match[2].split(",")] if match and match[2] else []
    except ValueError:
        raise InputError(f"the fill {kind!r} has an operand that is no number", where="attn.fill") from None
    if name == "normal" and not numbers:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)
    if name == "uniform" and len(numbers) == 2:
        lo, hi = numbers
        value = torch.rand(shape, generator=generator, device=device, dtype=torch.float32) * (hi - lo) + lo
        return value.to(dtype) if dtype.is_floating_point else value.floor().to(dtype)
    if name == "sorted_ids" and len(numbers) == 1 and numbers[0] >= 1:
        return torch.randint(int(numbers[0]), shape, generator=generator, device=device).sort(-1).values.to(dtype)
    if name == "alibi" and not numbers:
        axis = next((k for k, n in enumerate(names) if n in ("hq", "hkv")), None)
        if axis is None:
            raise InputError(
                "the fill 'alibi' needs a tensor with a head axis",
                where="attn.fill",
                why=f"this one varies over {', '.join(names) or 'nothing'}",
            )
        heads = shape[axis]
        slopes = torch.exp2(-8.0 * torch.arange(1, heads + 1, device=device, dtype=torch.float32) / heads)
        return slopes.reshape([-1 if k == axis else 1 for k in range(len(shape))]).expand(shape).contiguous().to(dtype)
    known = ("normal", "uniform(lo,hi)", "sorted_ids(n)", "alibi")
    raise InputError(
        f"unknown fill {kind!r}{nearest(name, ['normal', 'uniform', 'sorted_ids', 'alibi'])}",
        where="attn.fill",
        why=f"the fills are {', '.join(known)}",
    )


def _offsets(batch: int, total: int, generator, device) -> torch.Tensor:
    """batch + 1 increasing int32 offsets from 0 to `total`, the cuts at random places."""
    cuts = torch.randint(total + 1, (max(batch - 1, 0),), generator=generator, device=device).sort().values
    ends = [torch.zeros(1, device=device, dtype=cuts.dtype), cuts, torch.full((min(batch, 1),), total, device=device, dtype=cuts.dtype)]
    return torch.cat(ends).to(torch.int32)
