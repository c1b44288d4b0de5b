"""Evaluates EXPR, the elementwise expressions of a semantics tree, with torch.

Two ways to compute. `exact`: every float in one dtype (float64 or float32). `eager`: as a PyTorch user would write it, `x` in the
kernel's dtype, constants as Python numbers, captured tensors in their own dtype, torch's type promotion in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from .errors import ManifestError, nearest
from .torch_types import TORCH

_FLOATS = ("f32", "f64", "bf16", "fp16")


def _tensor(function, plain):
    """A unary function on tensors or, for a constant, on a Python number."""
    return lambda a: function(a) if isinstance(a, torch.Tensor) else plain(a)


def _is_integer(a) -> bool:
    return not a.is_floating_point() if isinstance(a, torch.Tensor) else isinstance(a, int)


def _division(integers, floats):
    """Of integers by zero it gives 0, as in the interpreter of the IR: any number would do, an exception would not."""

    def apply(a, b):
        if not (_is_integer(a) and _is_integer(b)):
            return floats(a, b)
        a, b = _tensors(a, b)
        return torch.where(b == 0, 0, integers(a, torch.where(b == 0, 1, b)))

    return apply


def _floor(a, b):
    return torch.div(*_tensors(a, b), rounding_mode="floor")


def _remainder(a, b):  # the sign of the dividend, as arith.remsi and arith.remf have it
    return torch.fmod(*_tensors(a, b))


def _tensors(a, b):
    device = next((x.device for x in (a, b) if isinstance(x, torch.Tensor)), None)
    return tuple(x if isinstance(x, torch.Tensor) else torch.tensor(x, device=device) for x in (a, b))


def _pair(function):
    """A binary torch function that takes no Python numbers: weak typing as torch's operators have it."""

    def apply(a, b):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return function(a, b)
        if isinstance(a, torch.Tensor):
            return function(a, torch.tensor(b, device=a.device))
        if isinstance(b, torch.Tensor):
            return function(torch.tensor(a, device=b.device), b)
        return function(torch.tensor(a), torch.tensor(b)).item()

    return apply


_UNARY = {
    "neg": lambda a: -a,
    "exp": _tensor(torch.exp, math.exp),
    "exp2": _tensor(torch.exp2, lambda a: 2.0**a),
    "log": _tensor(torch.log, math.log),
    "log2": _tensor(torch.log2, math.log2),
    "tanh": _tensor(torch.tanh, math.tanh),
    "sigmoid": _tensor(torch.sigmoid, lambda a: 1 / (1 + math.exp(-a))),
    "erf": _tensor(torch.erf, math.erf),
    "sqrt": _tensor(torch.sqrt, math.sqrt),
    "rsqrt": _tensor(torch.rsqrt, lambda a: 1 / math.sqrt(a)),
    "abs": abs,
    "floor": _tensor(torch.floor, lambda a: float(math.floor(a))),
    "not": _tensor(torch.logical_not, lambda a: not a),
}
_BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _division(lambda a, b: torch.div(a, b, rounding_mode="trunc"), lambda a, b: a / b),  # arith.divsi cuts towards zero
    "floordiv": _division(_floor, _floor),
    "rem": _division(_remainder, _remainder),
    "max": _pair(torch.maximum),
    "min": _pair(torch.minimum),
    "pow": lambda a, b: a**b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
OPS = ("x", "index", "size", "const", "load", "cast", "select", *_UNARY, *_BINARY)


class Space:
    """Where an expression is evaluated: `indices` {"b","h","i","j": int64 tensors that broadcast to the space}, `sizes` {"m","n": int},
    `captured` {name: tensor with its own dims only}, `exact` dtype or None for eager, `device`."""

    def __init__(self, indices: dict, sizes: dict, captured: Callable, exact: torch.dtype | None, device):
        self.indices, self.sizes, self.captured, self.exact, self.device = indices, sizes, captured, exact, device


def evaluate(expr: list, operands: list, space: Space, where: str):
    """The value of the last node: a tensor that broadcasts to the space, or a Python number. Raises `ManifestError` on a bad node."""
    values: list = []
    for number, node in enumerate(expr):
        try:
            values.append(_node(node, values, operands, space))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise ManifestError(f"node {number} {node!r} cannot be evaluated: {error}", where=where) from error
    return values[-1]


def _node(node, values, operands, space: Space):
    op, *args = node
    if op == "x":
        return operands[args[0]]
    if op == "index":
        return space.indices[args[0]]
    if op == "size":
        return space.sizes[args[0]]
    if op == "const":
        value, dtype = args
        return bool(value) if dtype == "i1" else float(value) if dtype in _FLOATS else int(value)
    if op == "load":
        return _load(args[0], [values[k] for k in args[1:]], space)
    if op == "cast":
        return _cast(values[args[0]], args[1], space)
    given = [values[k] for k in args]
    if op == "select":
        condition, a, b = given
        if not isinstance(condition, torch.Tensor):
            return a if condition else b
        return torch.where(condition, a, b)
    if op in _UNARY:
        return _UNARY[op](*given)
    if op in _BINARY:
        return _BINARY[op](*given)
    raise ValueError(f"unknown operation{nearest(op, OPS)}")


def _cast(value, dtype: str, space: Space):
    if not isinstance(value, torch.Tensor):
        return float(value) if dtype in _FLOATS else bool(value) if dtype == "i1" else int(value)
    if dtype in _FLOATS and space.exact is not None:
        return value.to(space.exact)
    return value.to(TORCH[dtype])


def _load(name: str, indices: list, space: Space):
    """captured[name] at `indices`, one for each of its own dims; 0 where any index is out of range."""
    tensor = space.captured(name)  # (C, own dims...), C = 1 or the chunk of heads
    heads = space.indices["h"]
    inside, clamped = None, []
    for index, size in zip(indices, tensor.shape[1:], strict=True):
        index = index if isinstance(index, torch.Tensor) else torch.tensor(int(index), device=space.device)
        fits = (index >= 0) & (index < size)
        inside = fits if inside is None else inside & fits
        clamped.append(index.clamp(0, max(size - 1, 0)))
    if tensor.numel() == 0:
        return torch.zeros((), dtype=tensor.dtype, device=space.device)
    head = (
        torch.arange(tensor.shape[0], device=space.device).reshape(-1, *[1] * (heads.dim() - 1))
        if tensor.shape[0] > 1
        else torch.zeros([1] * heads.dim(), dtype=torch.int64, device=space.device)
    )
    value = tensor[(head, *clamped)]
    return value if inside is None else torch.where(inside, value, torch.zeros((), dtype=value.dtype, device=space.device))
