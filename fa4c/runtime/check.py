"""Whether outputs are within tolerance of the exact result.

For each output and each norm (largest absolute value, Frobenius) apart:

    err <= 2 * err_torch + a      a = 2 * eps * max|ref|   or   a = eps / 4 * ||ref||

`err` is the distance to the float64 reference, `err_torch` that of eager PyTorch in the kernel's dtype, `eps` the output dtype's. The
log-sum-exp instead keeps |err| <= 1e-4 + 1e-6 |ref| for every element. Infinities must sit where the reference has them; NaN never.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import reference
from .errors import InputError
from .torch_types import TORCH


@dataclass(frozen=True)
class Row:
    """One comparison: `err` must not exceed `limit`. `note` says what else is wrong (NaN, infinities)."""

    tensor: str
    norm: str
    err: float
    limit: float
    ok: bool
    note: str = ""

    @property
    def ratio(self) -> float:
        return 0.0 if self.ok and self.err == 0 else self.err / self.limit if self.limit else float("inf")

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "WRONG"
        return f"{self.tensor:8s} {self.norm:9s} error {self.err:.3e}  limit {self.limit:.3e}  {verdict}  {self.note}".rstrip()


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


def expected(semantics: dict, inputs: dict[str, torch.Tensor]) -> tuple[dict, dict]:
    """(float64 results, eager results in the kernel's dtype)."""
    return reference.evaluate(semantics, inputs), reference.evaluate(semantics, inputs, eager=True)


def lse_values(semantics: dict) -> set[str]:
    return {op["out"][1] for op in semantics["body"] if op["op"] == "softmax" and len(op["out"]) > 1}


def compare_tensor(name: str, got, exact, eager, eps: float) -> list[Row]:
    """The rows 'max' and 'frobenius' of one tensor."""
    note, got, exact, eager = _finite_parts(name, got, exact, eager)
    rows = []
    for norm, size, floor in (("max", _max, 2 * eps), ("frobenius", torch.linalg.vector_norm, eps / 4)):
        err = float(size(got - exact))
        limit = 2 * float(size(eager - exact)) + floor * float(size(exact))
        rows.append(Row(name, norm, err, limit, not note and err <= limit, note))
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
    """A note on NaN and infinities, and the three tensors in float64 with zeros where the reference is infinite."""
    if tuple(got.shape) != tuple(exact.shape):
        raise InputError(f"the output {name} has the shape {tuple(got.shape)}, the reference {tuple(exact.shape)}")
    got, exact, eager = got.double(), exact.double(), eager.double()
    notes = []
    nans = int(torch.isnan(got).sum())
    if nans:
        notes.append(f"{nans} NaN of {got.numel()}")
    infinite = torch.isinf(exact)
    wrong = int((torch.where(infinite, got != exact, torch.isinf(got)) & ~torch.isnan(got)).sum())
    if wrong:
        notes.append(f"{wrong} infinities differ")
    keep = ~(infinite | torch.isinf(got) | torch.isinf(eager) | torch.isnan(eager))
    zero = torch.zeros((), dtype=torch.float64, device=got.device)
    return "; ".join(notes), torch.where(keep, got, zero), torch.where(keep, exact, zero), torch.where(keep, eager, zero)


def _max(t: torch.Tensor) -> float:
    return t.abs().max() if t.numel() else t.new_zeros(())
