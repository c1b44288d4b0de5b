"""`attention` as operators of torch.library, for torch.compile(fullgraph=True) and torch.export: what a graph holds instead of our Python.

Eager calls do not come here, since a dispatcher's call costs more than the launch. Options are arguments of the operator; an artifact is
named by its digest, and is found again among the artifacts that live in this process.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .runtime.artifact import Artifact, by_digest
from .runtime.autograd import refuse_second
from .runtime.errors import InputError, NotYetError

_DIGEST = "digest:"


def attention(q, k, v, captured, return_lse, causal, align, window, softcap, scale, deterministic, variant, backend, target):
    """What `fa4c.attention` is while torch.compile traces it."""
    left, right = (None, None) if window is None else window
    names = "" if captured is None else ",".join(captured.keys())
    tensors = [] if captured is None else list(captured.values())
    if isinstance(variant, Artifact):
        variant = _DIGEST + variant.digest
    o, lse = torch.ops.fa4c.attention(
        q, k, v, tensors, names, return_lse, bool(causal), align, left, right, softcap, scale, bool(deterministic), variant, backend, target
    )
    return (o, lse) if return_lse else o


_OPTIONS = (
    "str names, bool return_lse, bool causal, str align, int? left, int? right, float? softcap, float? scale, "
    "bool deterministic, str? variant, str? backend, str? target"
)
_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor[] captured"
_forward = torch.library.custom_op(
    "fa4c::attention", lambda *a: _run_forward(*a), mutates_args=(), schema=f"({_INPUTS}, {_OPTIONS}) -> (Tensor, Tensor)"
)
_backward = torch.library.custom_op(
    "fa4c::attention_backward",
    lambda *a: _run_backward(*a),
    mutates_args=(),
    schema=f"(Tensor? do, Tensor? dlse, bool[] needs, Tensor o, Tensor lse, {_INPUTS}, {_OPTIONS}) -> Tensor[]",
)


def _run_forward(q, k, v, captured, names, return_lse, *options) -> tuple[Tensor, Tensor]:
    training = _training(q, k, v, captured, names, *options)
    results = training.results((q, k, v, *captured))
    o = results[training.o].transpose(1, 2) if training.swap else results[training.o]
    if o.dtype != q.dtype or o.shape != (*q.shape[:3], v.shape[3]):
        raise NotYetError(
            f"the output is {o.dtype} {tuple(o.shape)}, which torch.compile was not told",
            why="a graph takes it for a tensor of q's dtype and (b, sq, hq, dv)",
            fix="call fa4c.attention outside of torch.compile (torch.compiler.disable)",
        )
    return o.contiguous(), _lse_of(training, results, q)


def _lse_of(training, results, q) -> Tensor:
    """A variant without LSE gives an empty one, which nothing reads."""
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32) if training.lse is None else results[training.lse]


def _run_backward(do, dlse, needs, o, lse, q, k, v, captured, names, return_lse, *options) -> list[Tensor]:
    training = _training(q, k, v, captured, names, *options)
    results = training.arranged(o, lse)
    run = training.backward((do is not None, dlse is not None), tuple(needs))
    found = run([q, k, v, *captured, *results, do, dlse])
    return [g.contiguous() for g, needed in zip(found, needs) if needed]


def _training(q, k, v, captured, names, causal, align, left, right, softcap, scale, deterministic, variant, backend, target):
    from . import api

    return api.training_of(
        q,
        k,
        v,
        captured=dict(zip(names.split(","), captured)) if names else None,
        causal=causal,
        align=align,
        window=None if left is None and right is None else (left, right),
        softcap=softcap,
        scale=scale,
        deterministic=deterministic,
        variant=_variant(variant),
        backend=backend,
        target=target,
    )


def _variant(text: str | None):
    if text is None or not text.startswith(_DIGEST):
        return text
    found = by_digest(text.removeprefix(_DIGEST))
    if found is None:
        raise InputError(
            "the artifact of this graph is not loaded in this process",
            why="a graph names an artifact by its digest",
            fix="load it first, with fa4c.load(...), and keep it; or pass the variant's path",
        )
    return found


@_forward.register_fake
def _(q, k, v, *_):
    b, m, heads = q.shape[:3]
    return q.new_empty(b, m, heads, v.shape[3]), q.new_empty(b, heads, m, dtype=torch.float32)


@_backward.register_fake
def _(do, dlse, needs, o, lse, q, k, v, captured, *_):
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t, needed in zip((q, k, v, *captured), needs) if needed]


def _keep(ctx, inputs, output) -> None:
    q, k, v, captured, *options = inputs
    o, lse = output
    ctx.save_for_backward(q, k, v, *captured, o, lse)
    ctx.options = options
    if not options[1]:
        ctx.mark_non_differentiable(lse)


def _differentiate(ctx, do, dlse):
    *inputs, o, lse = ctx.saved_tensors
    q_needs, k_needs, v_needs, captured_need = ctx.needs_input_grad[:4]
    needs = [q_needs, k_needs, v_needs, *(captured_need or ())]
    return_lse = ctx.options[1]
    if do is None and dlse is None:
        gradients = {}
    else:
        given = dlse if return_lse else None
        found = iter(torch.ops.fa4c.attention_backward(do, given, needs, o, lse, *inputs[:3], inputs[3:], *ctx.options))
        gradients = {k: next(found) for k, needed in enumerate(needs) if needed}
    q, k, v, *captured = [gradients.get(position) for position in range(len(needs))]
    return (q, k, v, captured, *[None] * len(ctx.options))


_forward.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(refuse_second)
