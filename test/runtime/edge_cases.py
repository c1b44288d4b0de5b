"""Where attention goes wrong elsewhere (issue 5, shared bug reports), forward and backward, for any backend.

`run(case, backend)` gives results and gradients by `fa4c.attention` under autograd, compared with float64; `CASES` lists what is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

import fa4c
from fa4c.frontend.variant import standard
from fa4c.runtime import check

D = 64


@dataclass(frozen=True)
class Edge:
    """`change(q, k, v)` replaces the inputs, `gradient(o)` makes dO, `holds(results)` says what else must be true."""

    name: str
    m: int
    n: int
    b: int = 1
    hq: int = 1
    hkv: int = 1
    options: dict = field(default_factory=dict)
    change: Callable | None = None
    gradient: Callable | None = None
    holds: Callable | None = None
    with_lse: bool = False

    def __str__(self):
        return self.name


def inputs_of(case: Edge):
    generator = torch.Generator().manual_seed(3)
    made = [
        torch.randn(case.b, s, h, D, generator=generator).bfloat16() for s, h in ((case.m, case.hq), (case.n, case.hkv), (case.n, case.hkv))
    ]
    return case.change(*made) if case.change else made


def run(case: Edge, backend: str, **more) -> tuple[dict, list]:
    """(results and gradients by name, rows of the comparison); `more` are options that change no result."""
    q, k, v = (t.requires_grad_() for t in inputs_of(case))
    o, lse = fa4c.attention(q, k, v, **case.options, return_lse=True, backend=backend, **more)
    generator = torch.Generator().manual_seed(4)
    do = case.gradient(o.detach()) if case.gradient else torch.randn(o.shape, generator=generator).bfloat16()
    dlse = torch.randn(lse.shape, generator=generator)
    given = {"o": do, "lse": dlse} if case.with_lse else {"o": do}
    found = torch.autograd.grad([o, lse][: len(given)], [q, k, v], list(given.values()))
    results = {"o": o.detach(), "lse": lse.detach()}
    gradients = dict(zip("qkv", found))
    tree = standard(**case.options, d=D)
    inputs = {n: t.detach() for n, t in zip("qkv", (q, k, v))}
    rows = check.check(tree, inputs, results) + check.check_gradients(tree, inputs, given, gradients)
    return {**results, **{f"d{n}": g for n, g in gradients.items()}, "do": do, **inputs}, rows


# -- inputs --------------------------------------------------------------------------------------------------------------------------------


def far_below(q, k, v):
    """B7: every score is about -120, LSE below -100."""
    q, k = q * 0.05, k * 0.05
    q[..., 0], k[..., 0] = 1, -120 * D**0.5
    return q, k, v


def broadcast(q, k, v):
    return q, k[:, :, :1].expand(-1, -1, q.shape[2], -1), v[:, :, :1].expand(-1, -1, q.shape[2], -1)


def one_entry(q, k, v):
    return q, k[:1].expand(k.shape), v[:1].expand(v.shape)


def one_projection(q, k, v):
    """B8: slices of one tensor (b, s, 3, h, d)."""
    return torch.stack([q, k, v], 2).unbind(2)


def far_rows(o):
    """dO as a view of a much wider tensor (B10; offsets beyond 2^31 are for the GPU suite)."""
    row = 1 << 16
    wide = torch.zeros(o.shape[0] * o.shape[1] * row, dtype=o.dtype)
    do = wide.as_strided(o.shape, (o.shape[1] * row, row, o.shape[3], 1))
    return do.copy_(torch.randn(o.shape, generator=torch.Generator().manual_seed(4)))


# -- what must hold ------------------------------------------------------------------------------------------------------------------------


def blind(rows):
    def holds(r):
        return (
            (r["o"][:, :rows] == 0).all() and (r["lse"][..., :rows] == float("-inf")).all() and (r["dq"][:, :rows] == 0).all()
            and torch.isfinite(r["lse"][..., rows:]).all() and all(torch.isfinite(r[f"d{n}"]).all() for n in "qkv")
        )  # fmt: skip

    return holds


def one_key(r):
    return torch.equal(r["o"], r["v"].expand_as(r["o"])) and r["dq"].abs().max() < 1e-5 and r["dk"].abs().max() < 1e-4


def nothing(*names):
    return lambda r: all((r[n] == 0).all() for n in names)


def uniform(r):
    """All scores equal: each row is the mean of V, and K gets nothing, as Q is 0."""
    return (r["dk"] == 0).all()


CAUSAL = dict(causal=True)
WIDE = dict(window=(5000, 5000))
CASES = [
    Edge("rows that see no key", 90, 20, options=CAUSAL, holds=blind(70)),
    Edge("two blocks that see no key, then one that does", 300, 40, options=CAUSAL, holds=blind(260)),  # B14
    Edge("rows that see no key, LSE in the loss", 90, 20, options=CAUSAL, holds=blind(70), with_lse=True),
    Edge("no keys", 64, 0, hq=2, hkv=2, options=CAUSAL, holds=nothing("o", "dq")),
    Edge("no keys, no mask", 64, 0, hq=2, hkv=2, holds=nothing("o", "dq")),
    Edge("no queries", 0, 64, hq=2, hkv=2, options=CAUSAL, holds=nothing("dk", "dv")),
    Edge("no batch", 8, 8, b=0, hq=2, options=CAUSAL),
    Edge("one query, one key", 1, 1, options=CAUSAL, change=lambda *t: tuple(3 * x for x in t), holds=one_key),
    Edge("one query", 1, 70, hq=2),
    Edge("one key", 70, 1, holds=one_key),
    Edge("127", 127, 127, options=CAUSAL),
    Edge("128", 128, 128, options=CAUSAL),
    Edge("129", 129, 129, options=CAUSAL),
    Edge("64", 64, 64),
    Edge("192", 192, 192, options=CAUSAL),
    Edge("257 x 255", 257, 255),
    Edge("LSE below -100, 64", 64, 64, options=CAUSAL, change=far_below, holds=lambda r: r["lse"].max() < -100),
    Edge("LSE below -100, 192 queries, no mask", 192, 64, change=far_below, holds=lambda r: torch.isfinite(r["dq"]).all()),
    Edge("all scores equal", 100, 70, change=lambda q, k, v: (0 * q, k, v), holds=uniform),
    Edge("very large scores", 70, 100, change=lambda q, k, v: (300 * q, k, v), holds=lambda r: torch.isfinite(r["dk"]).all()),
    Edge("window wider than the sequence", 70, 100, options=WIDE),
    Edge("B17: right window wider than the keys", 8, 2, options=dict(window=(None, 100)), holds=lambda r: torch.isfinite(r["lse"]).all()),
    Edge("narrow window with empty rows", 130, 60, options=dict(window=(3, 2))),
    Edge("more queries than keys", 150, 40),
    Edge("broadcast keys and values", 70, 90, hq=2, hkv=2, change=broadcast),
    Edge("slices of one projection", 70, 70, hq=2, hkv=2, options=CAUSAL, change=one_projection),
    Edge("dO with far rows", 70, 70, options=CAUSAL, gradient=far_rows),
    Edge("expanded dO", 70, 90, gradient=lambda o: torch.ones((), dtype=o.dtype).expand(o.shape)),
    Edge("queries share keys, LSE in the loss", 70, 90, b=2, hq=4, hkv=2, options=CAUSAL, with_lse=True),
    Edge("keys and values of one batch entry", 40, 50, b=2, hq=2, change=one_entry),
]
