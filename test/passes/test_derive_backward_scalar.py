"""attn-derive-backward: each rule of scalar code against torch.autograd, and the values where care is needed."""

import numpy as np
import pytest
import torch
from attn_autograd import CONTEXT, check, function_of
from attn_program import Program

from fa4c.ir import interpret_attn

SMALL = dict(b=2, hq=4, hkv=2, m=5, n=7)
# the constants of some rules (log 2, 2 / sqrt(pi)) are f32
LOOSE, TIGHT = 3e-7, 1e-11

ROUNDED = ("exp2", "log2", "erf", "sigmoid by exp2", "softplus by log2", "softplus by exp2")


def positive(e, x):
    return e.op("add", e.op("mul", x, x), e.const(0.5, "f32"))


UNARY = {name: (lambda e, x, name=name: e.op(name, x)) for name in ("exp", "exp2", "tanh", "erf", "abs", "neg", "sigmoid")}
UNARY |= {name: (lambda e, x, name=name: e.op(name, positive(e, x))) for name in ("log", "log2", "sqrt", "rsqrt")}
UNARY |= {
    "floor adds nothing": lambda e, x: e.op("add", x, e.op("floor", x)),
    "silu": lambda e, x: e.op("mul", x, e.op("sigmoid", x)),
    "silu as a quotient": lambda e, x: e.op("div", x, e.op("add", e.const(1.0, "f32"), e.op("exp", e.op("neg", x)))),
    "sigmoid by exp2": lambda e, x: e.op("div", e.const(1.0, "f32"), e.op("add", e.op("exp2", x), e.const(1.0, "f32"))),
    "softplus": lambda e, x: e.op("log", e.op("add", e.const(1.0, "f32"), e.op("exp", x))),
    "softplus by log2": lambda e, x: e.op("log2", e.op("add", e.const(1.0, "f32"), e.op("exp", x))),
    "softplus by exp2": lambda e, x: e.op("log", e.op("add", e.const(1.0, "f32"), e.op("exp2", x))),
    "relu": lambda e, x: e.op("max", x, e.const(0.0, "f32")),
    "clamp": lambda e, x: e.op("min", e.op("max", x, e.const(-0.5, "f32")), e.const(0.5, "f32")),
    "square by pow": lambda e, x: e.op("pow", x, e.const(2.0, "f32")),
    "cube": lambda e, x: e.op("pow", x, e.const(3.0, "f32")),
    "pow 1": lambda e, x: e.op("pow", x, e.const(1.0, "f32")),
    "root by pow": lambda e, x: e.op("pow", positive(e, x), e.const(0.5, "f32")),
    "x to the x": lambda e, x: e.op("pow", positive(e, x), x),
    "exponential by pow": lambda e, x: e.op("pow", e.const(2.5, "f32"), x),
    "remainder": lambda e, x: e.op("rem", x, e.const(0.75, "f32")),
    "remainder by x": lambda e, x: e.op("rem", e.const(5.0, "f32"), positive(e, x)),
    "quotient": lambda e, x: e.op("div", e.op("tanh", x), positive(e, x)),
    "by a constant": lambda e, x: e.op("div", x, e.const(3.0, "f32")),
    "constant over": lambda e, x: e.op("div", e.const(3.0, "f32"), positive(e, x)),
    "difference": lambda e, x: e.op("sub", e.op("mul", x, x), e.op("exp", x)),
    "itself minus itself": lambda e, x: e.op("sub", e.op("mul", x, x), x),
    "where": lambda e, x: e.op("select", e.op("gt", x, e.const(0.0, "f32")), e.op("mul", x, x), e.op("neg", x)),
    "index arithmetic": lambda e, x: e.op("mul", x, e.cast(e.op("sub", e.index("i"), e.index("j")), "f32")),
    "through an integer": lambda e, x: e.op("mul", x, e.cast(e.cast(e.op("mul", x, e.const(3.0, "f32")), "i32"), "f32")),
    "through bf16": lambda e, x: e.op("mul", x, e.cast(e.op("tanh", e.cast(x, "bf16")), "f32")),
    "in bf16": lambda e, x: e.cast(e.op("mul", e.cast(x, "bf16"), e.op("exp", e.cast(x, "bf16"))), "f32"),
    "through f64": lambda e, x: e.cast(e.op("tanh", e.op("mul", e.cast(x, "f64"), e.cast(x, "f64"))), "f32"),
    "a constant": lambda e, x: e.const(1.0, "f32"),
    "shared": lambda e, x: e.op("mul", e.op("add", e.op("tanh", x), x), e.op("sub", e.op("tanh", x), e.op("exp", x))),
    "max of two": lambda e, x: e.op("max", e.op("tanh", x), e.op("mul", x, x)),
}


@pytest.mark.parametrize("name", UNARY)
def test_scalar_rule(name):
    p = Program()
    p.qkv()
    p.result("o", p.map([p.scores()], UNARY[name]))
    check(p.text(), SMALL, wrt="qk", tolerance=LOOSE if name in ROUNDED else TIGHT)


BINARY = {
    "mul": lambda e, x, y: e.op("mul", x, y),
    "div": lambda e, x, y: e.op("div", x, positive(e, y)),
    "max": lambda e, x, y: e.op("max", x, y),
    "min": lambda e, x, y: e.op("min", x, y),
    "pow": lambda e, x, y: e.op("pow", positive(e, x), y),
    "rem": lambda e, x, y: e.op("rem", x, positive(e, y)),
    "where": lambda e, x, y: e.op("select", e.op("lt", x, y), e.op("exp", y), e.op("mul", x, y)),
}


@pytest.mark.parametrize("name", BINARY)
def test_scalar_rule_of_two(name):
    p = Program()
    p.qkv()
    s = p.scores()
    p.result("o", p.map([s, p.map([s], lambda e, x: e.op("tanh", x))], BINARY[name]))
    check(p.text(), SMALL, wrt="qk", tolerance=LOOSE)


def one_by_one(body) -> Program:
    """f(q k) for head dim 8, with k chosen such that a score is q's first feature."""
    p = Program()
    p.qkv()
    p.result("o", p.map([p.scores()], body))
    return p


def scores_of(values):
    m = len(values)
    q, k = torch.zeros(1, m, 1, 8, dtype=torch.float64), torch.zeros(1, 1, 1, 8, dtype=torch.float64)
    q[0, :, 0, 0], k[..., 0] = torch.tensor(values, dtype=torch.float64), 1
    return {"q": q, "k": k, "v": torch.zeros(1, 1, 1, 6, dtype=torch.float64)}, dict(b=1, hq=1, hkv=1, m=m, n=1)


@pytest.mark.parametrize(
    "name", ["relu", "clamp", "abs", "square by pow", "cube", "pow 1", "sigmoid", "silu as a quotient", "softplus", "tanh", "where"]
)
def test_ties_zeros_and_large_values(name):
    """At ties and zeros as torch has it, and no NaN where exp overflows."""
    values = [0.0, 0.5, -0.5, 1.0, -800.0, 800.0, 1e5, -1e5]
    inputs, sizes = scores_of(values)
    text = one_by_one(UNARY[name]).text()
    module, function = function_of(text, "attn-derive-backward{wrt=q}")
    ones = torch.ones(1, len(values), 1, 1, dtype=torch.float64)
    with CONTEXT:
        got = interpret_attn.run(function, {**inputs, "do": ones})["dq"][0, :, 0, 0]
    x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    safe = {"sigmoid": torch.sigmoid, "silu as a quotient": torch.nn.functional.silu, "softplus": torch.nn.functional.softplus,
            "relu": lambda x: torch.maximum(x, torch.zeros_like(x)), "abs": torch.abs, "tanh": torch.tanh,
            "clamp": lambda x: torch.minimum(torch.maximum(x, torch.full_like(x, -0.5)), torch.full_like(x, 0.5)),
            "square by pow": lambda x: x**2, "cube": lambda x: x**3, "pow 1": lambda x: x**1,
            "where": lambda x: torch.where(x > 0, x * x, -x)}[name](x)  # fmt: skip
    safe.sum().backward()
    np.testing.assert_allclose(got, x.grad.numpy(), rtol=1e-6, atol=1e-9)


def behind_a_choice(e, x, name):
    """where(x > 0, |log x|, 0), or of the maximum or minimum of log x and a number, which is log x where x = 2."""
    bound = {"abs": [], "max": [e.const(-5.0, "f32")], "min": [e.const(5.0, "f32")]}[name]
    return e.op("select", e.op("gt", x, e.const(0.0, "f32")), e.op(name, e.op("log", x), *bound), e.const(0.0, "f32"))


def test_a_choice_leaves_no_nan_of_the_other_side():
    """where(x > 0, log x, 0) and 1 / x: the side not taken has an infinite derivative or value, and counts for nothing."""
    inputs, sizes = scores_of([0.0, -1.0, 2.0])
    zero = [0.0, 0.0, 0.5]
    for body, want in (
        (lambda e, x: e.op("select", e.op("gt", x, e.const(0.0, "f32")), e.op("log", x), e.const(0.0, "f32")), zero),
        (
            lambda e, x: e.op("select", e.op("le", x, e.const(0.0, "f32")), e.const(1.0, "f32"), e.op("sqrt", e.op("mul", x, x))),
            [0, 0, 1.0],
        ),
        (lambda e, x: e.op("mul", e.const(2.0, "f32"), e.op("select", e.op("gt", x, e.const(0.0, "f32")), e.op("log", x), x)), [2, 2, 1.0]),
        *((lambda e, x, name=name: behind_a_choice(e, x, name), zero) for name in ("abs", "max", "min")),
    ):
        module, function = function_of(one_by_one(body).text(), "attn-derive-backward{wrt=q}")
        with CONTEXT:
            got = interpret_attn.run(function, {**inputs, "do": np.ones((1, 3, 1, 1))})
        np.testing.assert_allclose(got["dq"][0, :, 0, 0], want, rtol=1e-9)
