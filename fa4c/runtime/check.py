"""Whether outputs are within tolerance of the exact result.

For each output and each norm (largest absolute value, Frobenius) apart:

    err <= 2 * err_torch + a      a = 2 * eps * max|ref|   or   a = eps / 4 * ||ref||

`err` is the distance to the float64 reference, `err_torch` that of eager PyTorch in the kernel's dtype, `eps` the output dtype's. The
log-sum-exp instead keeps |err| <= 1e-4 + 1e-6 |ref| for every element. Infinities must sit where the reference has them; NaN never.

Gradients are compared with torch.autograd over the forward, in float64 and in the kernel's dtype. Some are differences that cancel (dQ with
one key is P (dP - delta) = 0), so max|ref| counts as at least what one f32 sum leaves of them: eps(f32) sqrt(d) times the largest factors
(dO, V, K and the scale for dQ). A row also says what the limit is where that floor stands beside `2 eps max|ref|`, not in it: what a kernel
whose terms are rounded like f32 sums may leave (docs/backward.md, "How it is checked").

Where eager's gradient is 0 in every element and the right one is not, its score function has saturated in 16 bits (1 - tanh(-4)^2) and its
error, all of the gradient, says nothing of what rounding does. There err_torch is at least the error of the derived backward as it is
written, in f32 with casts to 16 bits: of a kernel that rounds nothing but the operands of its GEMMs, the O it reads, and f32. So only if
that backward in float64 gives the right gradient: a wrong one would be its own measure. Such a row keeps the limit by eager's error alone
beside its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import gradients, reference
from .errors import InputError
from .torch_types import TORCH


@dataclass(frozen=True)
class Row:
    """One comparison: `err` must not exceed `limit`. `note` says what else is wrong (NaN, infinities). `with_f32` is the limit where f32
    arithmetic may leave of terms that cancel what one sum does, if that is more than `limit`; else 0. `by_eager`: where eager's
    gradient is 0 everywhere and the limit is that of 16-bit operands, the limit by eager's error alone; else 0."""

    tensor: str
    norm: str
    err: float
    limit: float
    ok: bool
    note: str = ""
    with_f32: float = 0.0
    by_eager: float = 0.0

    @property
    def ratio(self) -> float:
        """Error over limit; infinite where only 0 is right."""
        return 0.0 if self.ok and self.err == 0 else self.err / self.limit if self.limit else float("inf")

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "WRONG"
        note = self.note or (f"limit of 16-bit operands; {self.by_eager:.3e} by eager, which gives 0 everywhere" if self.by_eager else "")
        return f"{self.tensor:8s} {self.norm:9s} error {self.err:.3e}  limit {self.limit:.3e}  {verdict}  {note}".rstrip()


def check(
    semantics: dict,
    inputs: dict[str, torch.Tensor],
    outputs: dict[str, torch.Tensor],
    *,
    exact: dict | None = None,
    eager: dict | None = None,
) -> list[Row]:
    """Rows for each output given (some may be left out). `exact`, `eager`: what `expected` gave, if at hand."""
    if exact is None:
        exact, eager = expected(semantics, inputs)
    rows = []
    for result in semantics["results"]:
        name = result["name"]
        if name in outputs:
            compare = compare_lse if result["value"] in lse_values(semantics) else compare_tensor
            rows += compare(name, outputs[name], exact[name], eager[name], torch.finfo(TORCH[result["dtype"]]).eps)
    return rows


def check_gradients(
    forward: dict,
    inputs: dict[str, torch.Tensor],
    given: dict[str, torch.Tensor],
    found: dict[str, torch.Tensor],
    *,
    exact: dict | None = None,
    eager: dict | None = None,
    backward: dict | None = None,
) -> list[Row]:
    """Rows for each gradient of `found` ({argument: gradient}); `given`: {result: gradient that arrived}; `forward`: its semantics;
    `backward`: the semantics of what gave `found`, if at hand (else eager's error alone counts, where it is saturated too).
    """
    if exact is None:
        exact, eager = expected_gradients(forward, inputs, given, found)
    saturated = {name for name in found if backward and exact[name].any() and not eager[name].any()}
    right, rounded = (gradients.derived(forward, backward, inputs, given, saturated, casts=c) if saturated else {} for c in (False, True))
    rows = []
    for argument in forward["args"]:
        name = argument["name"]
        if name in found:
            eps, least = torch.finfo(TORCH[argument["dtype"]]).eps, cancelled(forward, inputs, given, name)
            if name in saturated and not (_agree(right[name], exact[name]) and rounded[name].isfinite().all()):
                del rounded[name]  # the derivation is wrong, or overflows: what it gives says nothing of rounding
            rows += compare_tensor(f"d{name}", found[name], exact[name], eager[name], eps, least, rounded.get(name))
    return rows


def _agree(one, exact) -> bool:
    """Two ways to compute in float64, one with constants in f32, in exponents of up to 2^6 too. Not so where one of them gives NaN."""
    return bool(_max(one.double() - exact) <= 64 * torch.finfo(torch.float32).eps * _max(exact))


def expected_gradients(forward: dict, inputs, given, wrt) -> tuple[dict, dict]:
    """(float64 gradients, those of eager autograd in the kernel's dtype)."""
    return gradients.gradients(forward, inputs, given, wrt), gradients.gradients(forward, inputs, given, wrt, eager=True)


def cancelled(forward: dict, inputs, given, name: str) -> float:
    """What f32 arithmetic may leave in an element of a gradient whose terms cancel."""
    names = {a["name"] for a in forward["args"]}
    gemms = [op for op in forward["body"] if op["op"] == "gemm"]
    scores = [op["in"] for op in gemms if names.issuperset(op["in"])]
    values = {n for op in gemms if not names.issuperset(op["in"]) for n in op["in"] if n in names}

    def largest(tensors) -> float:
        return max((float(_max(t.double())) for t in tensors), default=0.0)

    arriving = largest(given[r["name"]] for r in forward["results"] if given.get(r["name"]) is not None)
    scored = arriving * max(1.0, largest(inputs[n] for n in values))
    if any(name in pair for pair in scores):
        scored *= largest(inputs[n] for pair in scores for n in pair if n != name or pair[0] == pair[1]) * _scale(forward)
    found = arriving if name in values and not any(name in pair for pair in scores) else scored
    depth = max((s for a in forward["args"] for d, s in zip(a["dims"], a["shape"]) if d in ("d", "dv") and s), default=1)
    return torch.finfo(torch.float32).eps * depth**0.5 * found


def _scale(forward: dict) -> float:
    """The constant that scores are multiplied with before the softmax, 1 where there is none."""
    scale, scores = 1.0, None
    for op in forward["body"]:
        if op["op"] == "gemm" and scores is None:
            scores = op["out"][0]
        elif op["op"] in ("map", "mask", "cast") and op["in"][0] == scores:
            scale *= _constant_factor(op.get("expr", []) if op["op"] == "map" else [])
            scores = op["out"][0]
    return scale


def _constant_factor(nodes: list) -> float:
    """The product of the constants that an expression multiplies its x with: 1 / sqrt(d) of cap * tanh(x / (cap sqrt(d)))."""
    factors = []  # of each node; None where x plays no part
    for kind, *operands in nodes:
        if kind == "x":
            factors.append(1.0 if operands[0] == 0 else None)
            continue
        below = [factors[k] for k in operands if kind not in ("const", "load", "index") and isinstance(k, int)]
        found = max((f for f in below if f is not None), default=None)
        if kind in ("mul", "div") and found is not None:
            number, constant = next(((n, nodes[k][1]) for n, k in enumerate(operands) if nodes[k][0] == "const"), (0, 1.0))
            found *= abs(constant) if kind == "mul" else 1 / abs(constant) if number else 1.0
        factors.append(found)
    return factors[-1] if factors and factors[-1] is not None else 1.0


def expected(semantics: dict, inputs: dict[str, torch.Tensor]) -> tuple[dict, dict]:
    """(float64 results, eager results in the kernel's dtype)."""
    return reference.evaluate(semantics, inputs), reference.evaluate(semantics, inputs, eager=True)


def lse_values(semantics: dict) -> set[str]:
    """Values of the tree that are a softmax's log-sum-exp."""
    return {op["out"][1] for op in semantics["body"] if op["op"] == "softmax" and len(op["out"]) > 1}


def compare_tensor(name: str, got, exact, eager, eps: float, least: float = 0.0, rounded=None) -> list[Row]:
    """The rows 'max' and 'frobenius' of one tensor; `least`: what an element of the reference counts as at least; `rounded`: where eager
    is saturated, what 16-bit operands give."""
    count = max(got.numel(), 1)
    note, got, exact, eager = _finite_parts(name, got, exact, eager)
    rows = []
    for norm, size, share, elements in (("max", _max, 2 * eps, 1), ("frobenius", torch.linalg.vector_norm, eps / 4, count)):
        err, floor = float(size(got - exact)), least * elements**0.5
        twice, a, by_eager = 2 * float(size(eager - exact)), share * max(float(size(exact)), floor), 0.0
        if rounded is not None:
            by_eager, twice = twice + a, max(twice, 2 * float(size(rounded.double() - exact)))
        limit, with_f32 = twice + a, twice + floor if floor > a else 0.0
        rows.append(Row(name, norm, err, limit, not note and err <= limit, note, with_f32, by_eager))
    return rows


def compare_lse(name: str, got, exact, eager=None, eps: float = 0.0) -> list[Row]:
    """The row 'lse': the worst element's error, with its limit."""
    note, got, exact, _ = _finite_parts(name, got, exact, exact)
    err, limit = (got - exact).abs().flatten(), (1e-4 + 1e-6 * exact.abs()).flatten()
    if not err.numel():
        return [Row(name, "lse", 0.0, 1e-4, not note, note)]
    worst = int((err / limit).argmax())
    return [Row(name, "lse", float(err[worst]), float(limit[worst]), not note and bool((err <= limit).all()), note)]


def _finite_parts(name, got, exact, eager):
    """A note on NaN and infinities, and the three tensors in float64 with zeros where one of them is no finite number."""
    if tuple(got.shape) != tuple(exact.shape):
        raise InputError(f"the output {name} has the shape {tuple(got.shape)}, the reference {tuple(exact.shape)}")
    got, exact, eager = got.double(), exact.double(), eager.double()
    notes = []
    for nans, where in ((int(torch.isnan(got).sum()), ""), (int(torch.isnan(exact).sum()), " in the reference")):
        if nans:
            notes.append(f"{nans} NaN of {got.numel()}{where}")
    infinite = torch.isinf(exact)
    wrong = int((torch.where(infinite, got != exact, torch.isinf(got)) & ~torch.isnan(got) & ~torch.isnan(exact)).sum())
    if wrong:
        notes.append(f"{wrong} infinities differ")
    keep = got.isfinite() & exact.isfinite() & eager.isfinite()
    zero = torch.zeros((), dtype=torch.float64, device=got.device)
    return "; ".join(notes), torch.where(keep, got, zero), torch.where(keep, exact, zero), torch.where(keep, eager, zero)


def _max(t: torch.Tensor) -> float:
    return t.abs().max() if t.numel() else t.new_zeros(())
