"""Gradients of a variant by torch.autograd over the reference evaluation of its forward: what a derived backward must equal.

Nothing here knows how a backward is derived. `gradients` goes chunk by chunk, as results are sums of what chunks contribute, so that the
scores of one chunk are held at a time. Names: a backward takes a gradient `d<result>` and gives `d<argument>` (`incoming`, `outgoing`).
"""

from __future__ import annotations

import concurrent.futures

import torch

from . import reference
from .errors import InputError, ManifestError
from .reference import Evaluator, sizes_of
from .torch_types import TORCH


def gradients(
    forward: dict,
    inputs: dict[str, torch.Tensor],
    given: dict[str, torch.Tensor],
    wrt=None,
    dtype: torch.dtype = torch.float64,
    *,
    eager: bool = False,
) -> dict[str, torch.Tensor]:
    """{argument: gradient} in memory layout, for the arguments `wrt` (default: all floating ones).

    `forward`: the semantics of the forward; `given`: {result: gradient that arrives}. Computed in `dtype`; `eager=True`: as eager PyTorch
    would under autograd, every value and gradient in the kernel's dtype, each result in its argument's. Rows that see nothing have
    gradient 0.
    """
    if _below_autograd():
        with concurrent.futures.ThreadPoolExecutor(1) as fresh:  # dispatcher state belongs to a thread
            return fresh.submit(gradients, forward, inputs, given, wrt, dtype, eager=eager).result()
    wrt = floating(forward["args"]) if wrt is None else list(wrt)
    leaves = {name: _leaf(tensor, None if eager else dtype, name in wrt) for name, tensor in inputs.items()}
    results = [r for r in forward["results"] if given.get(r["name"]) is not None]
    total = {name: torch.zeros_like(leaves[name], memory_format=torch.contiguous_format) for name in wrt}
    with torch.enable_grad():
        sizes = sizes_of({**forward, "args": [*forward["args"], *results]}, {**inputs, **given})
        evaluator = Evaluator(forward, leaves, dtype, eager, sizes)
        for chunk in evaluator.chunks():
            pairs = [_pair(evaluator, chunk, r, given[r["name"]], None if eager else dtype) for r in results]
            pairs = [(value, gradient) for value, gradient in pairs if value.requires_grad]
            if not pairs:
                continue
            values, arriving = zip(*pairs)
            for name, found in zip(wrt, torch.autograd.grad(values, [leaves[n] for n in wrt], arriving, allow_unused=True)):
                if found is not None:
                    total[name] += found
    return total


def derived(forward: dict, backward: dict, inputs: dict[str, torch.Tensor], given: dict, wrt, *, casts: bool) -> dict[str, torch.Tensor]:
    """{argument: gradient} for `wrt`, of the derived `backward` in float64 or, with `casts`, as both trees are written: in f32, rounded to
    16 bits for GEMMs and for what the backward reads of the forward. Other arguments as in `gradients`.
    """
    dtype = torch.float32 if casts else torch.float64
    results = reference.evaluate(forward, inputs, dtype, casts=casts)
    read = {name: results[name] for name in saved(forward, backward)}
    arriving = {name: given[result] for name, result in incoming(forward, backward).items()}
    found = reference.evaluate(backward, {**inputs, **read, **arriving}, dtype, casts=casts)
    return {argument: found[name] for name, argument in outgoing(forward, backward).items() if argument in wrt}


def _below_autograd() -> bool:
    """Inside an operator of torch.library nothing is recorded, whatever `enable_grad` says."""
    with torch.enable_grad():
        return not (torch.ones((), requires_grad=True) * 1).requires_grad


def _leaf(tensor: torch.Tensor, dtype, wanted: bool) -> torch.Tensor:
    """An input cut off from the caller's graph, in `dtype` (None: its own)."""
    cut = tensor.detach()
    return (cut if dtype is None or not cut.is_floating_point() else cut.to(dtype)).requires_grad_(wanted)


def _pair(evaluator: Evaluator, chunk, result: dict, gradient: torch.Tensor, dtype):
    """A chunk's contribution to a result, and the part of the result's gradient that belongs to it."""
    value, heads = chunk.contribution(result)
    part = evaluator.part(result, gradient.detach(), chunk.b).index_select(0, heads)
    return value, part.to(value.dtype if dtype is None else dtype)


def floating(tensors) -> list[str]:
    """Names of the arguments or results that can have a gradient."""
    return [t["name"] for t in tensors if TORCH[t["dtype"]].is_floating_point]


def depended_on(forward: dict, of) -> set[str]:
    """Arguments that the results `of` are computed from by what has a derivative: the gradient of the others is 0."""
    wanted = {r["value"] for r in forward["results"] if r["name"] in of}
    for op in reversed(forward["body"]):
        if wanted & set(op["out"]):
            exprs = [op["expr"]] if "expr" in op else op.get("exprs", [])
            nodes = [node for expr in exprs for node in _reached(expr)]
            read = {node[1] for node in nodes if node[0] == "x"} if op["op"] == "map" else range(len(op["in"]))
            wanted.update((op["in"][k] for k in read), (node[1] for node in nodes if node[0] == "load"))
    return wanted & {a["name"] for a in forward["args"]}


# Operations whose value does not change where operands change a little, or that have no operands that are nodes.
_CONSTANT = {"x", "const", "index", "size", "floor", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "not"}


def _reached(expr: list) -> list:
    """The nodes of an expression that its value is computed from by what has a derivative."""
    found, stack = set(), [len(expr) - 1]
    while stack:
        number = stack.pop()
        if number not in found:
            found.add(number)
            kind, *operands = expr[number]
            if kind not in _CONSTANT and not (kind == "cast" and not TORCH[operands[1]].is_floating_point):
                stack += {"select": operands[1:], "load": (), "cast": operands[:1]}.get(kind, operands)
    return [expr[number] for number in sorted(found)]


def incoming(forward: dict, backward: dict) -> dict[str, str]:
    """{argument of the backward that is a gradient: the result of the forward it belongs to}."""
    known = {t["name"] for t in (*forward["args"], *forward["results"])}
    names = [r["name"] for r in forward["results"]]
    return {a["name"]: _belongs_to(a["name"], names, backward) for a in backward["args"] if a["name"] not in known}


def outgoing(forward: dict, backward: dict) -> dict[str, str]:
    """{result of the backward: the argument of the forward whose gradient it is}."""
    names = [a["name"] for a in forward["args"]]
    return {r["name"]: _belongs_to(r["name"], names, backward) for r in backward["results"]}


def saved(forward: dict, backward: dict) -> list[str]:
    """Results of the forward that the backward reads (O, LSE)."""
    read = {a["name"] for a in backward["args"]}
    return [r["name"] for r in forward["results"] if r["name"] in read]


def _belongs_to(gradient: str, names, backward: dict) -> str:
    """X of `dX`; the derivation adds `_` where that name was taken."""
    name = gradient.removeprefix("d")
    while name not in names and name.endswith("_"):
        name = name[:-1]
    if name not in names or not gradient.startswith("d"):
        raise ManifestError(
            f"{gradient!r} is no gradient of {', '.join(names)}",
            where=f"semantics of {backward.get('name', '?')}",
            why="gradients are called d<name>",
        )
    return name


def check_given(forward: dict, backward: dict, given: dict) -> None:
    """Refuse gradients that the backward does not take: they would be lost."""
    taken = set(incoming(forward, backward).values())
    for name, gradient in given.items():
        if gradient is not None and name not in taken:
            raise InputError(
                f"the gradient of {name} arrives, but this backward takes none for it",
                where=backward.get("name", "backward"),
                why=f"it was derived for {', '.join(sorted(taken))}",
                fix=f"derive it with attn-derive-backward{{of={','.join([*sorted(taken), name])}}}, or detach {name}",
            )


__all__ = ["check_given", "depended_on", "floating", "gradients", "incoming", "outgoing", "saved"]
