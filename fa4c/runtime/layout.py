"""Names of a tensor's dimensions in memory, and the sizes they take in a call.

A tensor of the manifest says which problem axes it varies over (`axes`: b, hq, hkv) and its own dimensions (`dims`: m, n, d, dv or a
private name). In memory it is (axes..., dims...), but a 2-D one with a batch and a head axis follows the function's layout: `bshd` puts
the first dimension between batch and head, `bhsd` does not. A dimension packed by `cu_seqlens` has no batch axis in memory: its
sequences lie one after the other.
"""

from __future__ import annotations

from .errors import InputError

AXES = ("b", "hq", "hkv")
ITEMSIZE = {"bf16": 2, "fp16": 2, "f32": 4, "f64": 8, "i32": 4, "i64": 8, "i1": 1}


def memory_layout(axes, dims, layout: str = "bshd", packed=()) -> list[str]:
    """Dimension names in memory order, e.g. (["b","hq"], ["m","d"], "bshd") -> ["b","m","hq","d"]; `packed`: dims with cu_seqlens."""
    axes, dims, batched = list(axes), list(dims), "b" in axes
    if any(dim in packed for dim in dims):
        axes = [a for a in axes if a != "b"]
    head = next((a for a in axes if a != "b"), None)
    if len(dims) == 2 and head and batched and layout == "bshd":
        return [a for a in axes if a == "b"] + [dims[0], head, dims[1]]
    return axes + dims


def packed_dims(args) -> dict[str, str]:
    """{dim: name of its cu_seqlens argument} of a semantics' `args`."""
    return {a["cu_seqlens"]: a["name"] for a in args if a.get("cu_seqlens")}


def static_dims(tensor: dict) -> dict[str, int]:
    """{dim name: size} for the dims whose size the type fixes."""
    return {dim: size for dim, size in zip(tensor["dims"], tensor["shape"]) if size is not None}


def bind_sizes(specs, shapes: dict[str, tuple], where: str = "fa4c") -> dict[str, int]:
    """Sizes of all dimensions, from the inputs' shapes.

    `specs`: (name, layout names, {dim: static size}) of each tensor; `shapes`: {name: shape}. Raises `InputError` on a wrong rank, a
    static size that differs, two tensors that disagree, or hq no multiple of hkv.
    """
    sizes: dict[str, int] = {}
    owner: dict[str, str] = {}
    for name, layout, static in specs:
        shape = shapes[name]
        if len(shape) != len(layout):
            raise InputError(
                f"{name} has {len(shape)} dimensions {tuple(shape)}, but needs {len(layout)}: ({', '.join(layout)})",
                where=where,
                fix=f"pass {name} in the layout ({', '.join(layout)})",
            )
        for dim, size in zip(layout, shape):
            if dim in static and size != static[dim]:
                raise InputError(
                    f"{name} has {dim} = {size}, but this kernel is for {dim} = {static[dim]}",
                    where=where,
                    why=f"{dim} is static: it is part of the compiled kernel",
                    fix=f"compile the variant for {dim} = {size}",
                )
            if sizes.setdefault(dim, size) != size:
                raise InputError(
                    f"{name} has {dim} = {size}, but {owner[dim]} has {dim} = {sizes[dim]}",
                    where=where,
                    why=f"both vary over {dim}",
                    fix=f"give {name} and {owner[dim]} the same size in dimension {layout.index(dim)}",
                )
            owner.setdefault(dim, name)
    check_heads(sizes, where)
    return sizes


def check_heads(sizes: dict[str, int], where: str = "fa4c") -> None:
    """Raises `InputError` where hkv does not divide hq."""
    hq, hkv = sizes.get("hq"), sizes.get("hkv")
    if hq and hkv is not None and (hkv == 0 or hq % hkv):
        raise InputError(
            f"{hq} query heads are no multiple of {hkv} KV heads",
            where=where,
            why="each KV head serves hq / hkv query heads",
            fix="change the number of heads so that hkv divides hq",
        )


def contiguous_strides(shape) -> tuple[int, ...]:
    """Strides in elements of a packed row-major tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
