"""Inputs for a variant when the user gives none: contents from `fill`.

Fills: `normal`; `uniform(lo,hi)`; `sorted_ids(n)`, non-decreasing ids in [0, n) along the last dimension (document ids); `alibi`, the
slopes 2^(-8 (h + 1) / heads). `cu_seqlens` arguments get random increasing offsets.
"""

from __future__ import annotations

import math
import re

import torch

from . import memory
from .errors import InputError, nearest
from .layout import ITEMSIZE, memory_layout, packed_dims, static_dims
from .sizes import complete_sizes
from .torch_types import TORCH


def make_inputs(semantics: dict, sizes: dict[str, int], seed: int = 0, device="cpu", given=()) -> dict[str, torch.Tensor]:
    """{argument: contiguous tensor in memory layout}, but of those `given` that have no fill. The same seed and device give the same."""
    generator = torch.Generator(device=device).manual_seed(seed)
    packed = packed_dims(semantics["args"])
    sizes = complete_sizes(sizes)
    named = {a["name"]: _named_shape(a, sizes, packed, semantics.get("layout", "bshd")) for a in semantics["args"]}
    _check_memory(semantics["args"], named, device)
    inputs = {}
    for a in semantics["args"]:
        if a.get("cu_seqlens"):
            inputs[a["name"]] = _offsets(sizes["b"], sizes["b"] * sizes[a["cu_seqlens"]], generator, device)
            continue
        if a.get("fill") is None and not TORCH[a["dtype"]].is_floating_point:
            if a["name"] in given:
                continue
            raise InputError(
                f"the input {a['name']} ({a['dtype']}) has no fill",
                where="attn.fill",
                why="random integers would mean nothing",
                fix=f'give its data, or write attn.fill = "sorted_ids(4)" on {a["name"]}',
            )
        names, shape = zip(*named[a["name"]].items(), strict=True) if named[a["name"]] else ((), ())
        inputs[a["name"]] = fill(a.get("fill") or "normal", shape, names, TORCH[a["dtype"]], generator, device)
    return inputs


def _named_shape(argument: dict, sizes: dict[str, int], packed: dict, layout: str) -> dict[str, int]:
    """{dimension: size} in memory order."""
    here = {"batch_plus_1": sizes["b"] + 1, **sizes, **static_dims(argument)}
    for dim in packed:
        here[dim] = sizes["b"] * sizes[dim]  # packed sequences lie one after the other
    names = memory_layout(argument["axes"], argument["dims"], layout, packed)
    for name in names:
        if name not in here:
            raise InputError(f"the size of {name} (of {argument['name']}) is not given", where="--shape", fix=f"add {name}=...")
    return {name: here[name] for name in names}


def _check_memory(args: list[dict], named: dict[str, dict], device) -> None:
    """Of all arguments together, and what the largest takes as it is made: random numbers come in 32 bits."""
    elements = {a["name"]: math.prod(named[a["name"]].values()) for a in args}
    largest = max(elements, key=elements.get, default=None)
    needed = sum(elements[a["name"]] * ITEMSIZE[a["dtype"]] for a in args) + 4 * elements.get(largest, 0)
    shape = ", ".join(f"{dim}={size}" for dim, size in named.get(largest, {}).items())
    memory.require(needed, device, f"the inputs, of which {largest} ({shape}) is the largest,")


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
