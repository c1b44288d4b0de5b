"""Autograd: `attention` with inputs that require grad.

`Training` is the forward and the backwards of one combination of shapes and options, kept by `fa4c/api.py`. A backward is made when the
first gradient arrives, for the results that have one and the inputs that need one: another set of either is another kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from .errors import NotYetError


class Training:
    """`results(tensors)`: all `count` results of the forward as its kernel lays them out; `o`, `lse` (or None): where in them; `swap`: o is
    (b, h, s, d) there.

    `make(of, needs, deterministic)` makes a backward: of = (o has a gradient, lse has one), needs = which inputs need one. A backward takes
    [*inputs, *results, do, dlse] and gives a list, None where no gradient is needed.
    """

    __slots__ = ("results", "count", "o", "lse", "swap", "returns_lse", "deterministic", "make", "made")

    def __init__(self, results: Callable, count: int, o: int, lse, swap: bool, returns_lse: bool, deterministic: bool, make: Callable):
        self.results, self.count, self.o, self.lse, self.swap = results, count, o, lse, swap
        self.returns_lse, self.deterministic, self.make, self.made = returns_lse, deterministic, make, {}

    def attached(self) -> Callable:
        """`call(*tensors)` -> o or (o, lse), attached to the graph. Not for use while `transforms_active()`, where this raises."""
        if transforms_active():
            raise NotYetError(
                "gradients of fa4c.attention inside a transform of torch.func (grad, vjp, vmap) are not supported",
                why="its backward is a kernel that is launched for autograd, not a function that such a transform could trace",
                fix="use torch.autograd.grad outside of transforms, or detach the inputs",
            )
        return functools.partial(_apply, self)

    def arranged(self, o: torch.Tensor, lse: torch.Tensor) -> list:
        """All results as `results` gives them, of which only o and lse are at hand."""
        found = [None] * self.count
        found[self.o] = o.transpose(1, 2) if self.swap else o
        if self.lse is not None:
            found[self.lse] = lse
        return found

    def backward(self, of: tuple[bool, bool], needs: tuple[bool, ...]) -> Callable:
        """What computes gradients `of` (o, lse) for the inputs that need them, made at the first call: from a list of the inputs, all
        results and the gradients that came to a gradient, or None, for each input.
        """
        key = of, needs, self.deterministic or torch.are_deterministic_algorithms_enabled()
        made = self.made.get(key)
        if made is None:
            made = self.made[key] = self.make(*key)
        return made


class Attention(torch.autograd.Function):
    """`_apply(training, *tensors)` -> o or (o, lse), attached to the graph."""

    @staticmethod
    def forward(ctx, training: Training, *tensors):
        results = training.results(tensors)
        ctx.training = training
        ctx.save_for_backward(*tensors, *results)
        ctx.set_materialize_grads(False)  # a result that the loss does not use costs nothing
        o = results[training.o].transpose(1, 2) if training.swap else results[training.o]
        return (o, results[training.lse]) if training.returns_lse else o

    @staticmethod
    def backward(ctx, do, dlse=None):
        needs = ctx.needs_input_grad[1:]
        if do is None and dlse is None:
            return (None,) * (1 + len(needs))
        run = ctx.training.backward((do is not None, dlse is not None), needs)
        saved = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return (None, *run([*saved, do, dlse]))
        with torch.no_grad():  # create_graph=True: first gradients are right, a second differentiation is refused
            found = run([*saved, do, dlse])
        kept = [g for g in found if g is not None]
        refused = iter(_Once.apply(len(kept), *kept, *saved[: len(needs)], do, dlse))
        return (None, *(None if g is None else next(refused) for g in found))


# `Function.apply` but for its Python, an eighth of a call, which serves transforms of torch.func; in these the rest of it fails
try:
    transforms_active = torch._C._are_functorch_transforms_active
    _apply = super(torch.autograd.Function, Attention).apply
except AttributeError:
    transforms_active, _apply = (lambda: False), Attention.apply


class _Once(torch.autograd.Function):
    """`_Once.apply(count, *gradients, *what they depend on)`: the gradients, which cannot be differentiated."""

    @staticmethod
    def forward(ctx, count, *tensors):
        return tuple(t.view_as(t) for t in tensors[:count])

    @staticmethod
    def backward(ctx, *gradients):
        refuse_second(ctx)


def refuse_second(ctx, *gradients):
    """What autograd calls to differentiate a gradient."""
    raise NotYetError(
        "gradients of fa4c.attention's gradients are not supported",
        why="its backward is a kernel that has no backward of its own",
        fix="leave out create_graph=True, or use torch's scaled_dot_product_attention (math backend) for second derivatives",
    )
