"""attn-derive-backward on random compositions of operations, against torch.autograd; transposed too."""

import numpy as np
import pytest
from attn_autograd import CONTEXT, check, function_of
from attn_program import Program

from fa4c.frontend.to_mlir import to_mlir
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.semantics import from_function

COUNT = 80
AXES = ["", "b", "hq", "hkv", "b hq", "b hkv"]


class Composer:
    """Draws a program: a pool of values for each kind of dimensions, from which operations take and to which they give."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.p = Program(
            align=self.pick("top_left", "bottom_right"), layout=self.pick("bshd", "bhsd"), dtype=self.pick("bf16", "fp16", "f32")
        )
        p = self.p
        p.qkv(kv=self.pick("b hkv", "b hkv", "b", "hkv", "b hq"), q=self.pick("b hq", "b hq", "b", "hkv"))
        p.arg("sizes", "b hq", "m n")
        p.arg("table", self.pick(*AXES), "span", "f32"), p.arg("slope", self.pick(*AXES), "", "f32")
        p.arg("row", self.pick(*AXES), "m", "f32"), p.arg("column", self.pick(*AXES), "n"), p.arg("bias", self.pick(*AXES), "m n", "f32")
        self.floats = [a["name"] for a in p.tree["args"] if a["name"] != "sizes"]
        self.pools = {"m d": ["q"], "n d": ["k"], "n dv": ["v"], "m n": [], "m": ["row"], "n": ["column"], "m dv": [], "": []}
        self.lse: list[str] = []
        self.give(p.gemm("q", "k", tb=True))
        for _ in range(int(self.rng.integers(3, 9))):
            self.pick(
                *[self.mapped] * 4,
                self.softmax,
                self.softmax,
                self.output,
                self.output,
                self.reduced,
                self.scores_again,
                self.inputs_mapped,
            )()
        if not self.pools["m dv"]:
            self.output()
        self.results()

    def pick(self, *options):
        return options[self.rng.integers(len(options))]

    def take(self, kind: str):
        return self.pick(*self.pools[kind]) if self.pools[kind] else None

    def give(self, value: str) -> str:
        self.pools[" ".join(self.p.dims[value])].append(value)
        return value

    def function(self, e, *xs):
        """A bounded smooth function of some elements, perhaps with a captured tensor."""
        value = xs[0]
        for x in xs[1:]:
            value = e.op(self.pick("add", "sub", "mul", "max"), value, e.op("tanh", x))
        for _ in range(int(self.rng.integers(1, 4))):
            c = e.const(self.pick(0.5, -0.75, 1.25), "f32")
            value = self.pick(
                lambda v=value, c=c: e.op("mul", v, c),
                lambda v=value, c=c: e.op("add", v, c),
                lambda v=value: e.op("tanh", v),
                lambda v=value: e.op("sigmoid", v),
                lambda v=value: e.op("exp", e.op("tanh", v)),
                lambda v=value: e.op("erf", v),
                lambda v=value: e.op("mul", v, e.op("sigmoid", v)),
                lambda v=value, c=c: e.op("div", v, e.op("add", e.const(2.0, "f32"), e.op("mul", v, v))),
                lambda v=value: e.op("add", v, e.load("slope")),
                lambda v=value: e.op("mul", v, e.op("tanh", e.load("slope"))),
                lambda v=value: e.op("select", e.op("gt", v, e.const(0.1, "f32")), v, e.op("mul", v, e.const(0.25, "f32"))),
            )()
        return value

    def mapped(self) -> None:
        inputs = [self.take("m n")]
        for kind in ("m n", "m", "n"):
            other = self.take(kind)
            if other is not None and self.rng.random() < 0.4:
                inputs.append(other)
        with_table, with_bias = self.rng.random() < 0.3, self.rng.random() < 0.2

        def body(e, *xs):
            value = self.function(e, *xs)
            if with_table:
                far = e.op("add", e.op("sub", e.index("j"), e.index("i")), e.const(2, "index"))
                value = e.op("add", value, e.load("table", self.pick(far, e.index("j"), e.index("h"))))
            if with_bias:
                value = e.op("mul", value, e.load("bias", e.index("i"), e.index("j")))
            return value

        self.give(self.p.map(inputs, body))

    def softmax(self) -> None:
        scores = self.take("m n")
        if self.rng.random() < 0.6:
            scores = self.p.causal(scores)
        P, lse = self.p.softmax(scores)
        self.give(P)
        self.lse.append(lse)

    def output(self) -> None:
        P, other = self.p.cast(self.take("m n")), self.pick("n d", "n dv", "m d")
        values = self.p.cast(self.take(other)) if self.p.dtypes[self.pools[other][0]] != self.p.dtype else self.take(other)
        if self.p.dtypes[values] != self.p.dtype:
            values = self.p.cast(values)
        self.give(self.p.gemm(P, values, ta=other.startswith("m")))

    def scores_again(self) -> None:
        q, k = self.take("m d"), self.take("n d")
        q, k = (x if self.p.dtypes[x] == self.p.dtype else self.p.cast(x) for x in (q, k))
        self.give(self.p.gemm(q, k, tb=True))

    def inputs_mapped(self) -> None:
        kind, vector = self.pick(("m d", "m"), ("n d", "n"), ("n dv", "n"))
        self.give(self.p.map([self.take(kind), self.take(vector)], self.function))

    def reduced(self) -> None:
        x = self.give(self.p.reduce(self.take("m n"), self.pick("sum", "sum", "max"), self.pick(None, 0)))
        if self.rng.random() < 0.3:
            self.give(self.p.reduce(self.p.map([x], self.function)))

    def results(self) -> None:
        made = [name for pool in self.pools.values() for name in pool if name.startswith("%")]
        chosen = list(dict.fromkeys([self.pools["m dv"][-1] if self.pools["m dv"] else made[-1], self.pick(*made), self.pick(*made)]))
        for number, value in enumerate(chosen):
            stored = self.rng.random() < 0.5 and self.p.dims[value]
            self.p.result(f"o{number}", value, axes=self.pick("b hq", "b hq", "b hq", *AXES), cast=bool(stored))
        for number, value in enumerate(self.lse):
            if self.rng.random() < 0.7:
                self.p.result(f"lse{number}", value, axes=self.pick("b hq", "b hq", "hq", ""))


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_composition(seed):
    composer = Composer(seed)
    rng, names = composer.rng, [r["name"] for r in composer.p.tree["results"]]
    tested = 0
    for k in range(3):
        sizes = dict(b=int(rng.integers(1, 3)), hkv=int(rng.integers(1, 3)), m=int(rng.integers(1, 7)), n=int(rng.integers(1, 7)), span=4)
        sizes["hq"] = sizes["hkv"] * int(rng.integers(1, 4))
        of = [name for name in names if rng.random() < 0.7] or names
        wrt = [name for name in composer.floats if rng.random() < 0.6] or composer.floats
        try:
            check(
                composer.p.text(), sizes, of=of, wrt=wrt, seed=seed + k, tolerance=1e-6, then=",attn-transpose-recompute" if k == 2 else ""
            )
            tested += 1
        except Diagnostic as error:
            assert "has nothing to differentiate" in error.text(), error.text()
    assert tested


@pytest.mark.parametrize("then", ["", ",attn-transpose-recompute"])
@pytest.mark.parametrize("name", ["plain", "softcap", "column"])
def test_the_backward_of_a_backward(name, then):
    """A derived function is an attn function: the same pass derives it, with O, LSE and dO as arguments like any other."""
    p = Program()
    p.qkv()
    p.arg("column", "b hkv", "n", "f32")
    s = p.scaled(p.scores())
    if name == "softcap":
        s = p.map([s], lambda e, x: e.op("mul", e.op("tanh", x), e.const(3.0, "f32")))
    if name == "column":
        s = p.map([s, "column"], lambda e, x, y: e.op("add", x, y))
    P, lse = p.softmax(p.causal(s))
    p.result("o", p.output(P), cast=True)
    p.result("lse", lse)
    wrt = ["q", "k", "v"] + (["column"] if name == "column" else [])
    module, function = function_of(p.text(), f"attn-derive-backward{{wrt={','.join(wrt)} of=o,lse}}{then}")
    with CONTEXT:
        text = to_mlir(renamed(from_function(function), {"do": "go", "dlse": "glse"} | {f"d{name}": f"g{name}" for name in wrt}))
    for sizes in (dict(b=2, hq=4, hkv=2, m=3, n=5), dict(b=1, hq=2, hkv=2, m=5, n=5)):
        check(text, sizes, wrt=["q", "k", "v", "o", "lse", "go"], tolerance=1e-9)


def renamed(tree, names: dict):
    """The tree with tensors called otherwise, so that no gradient needs a name that is taken."""
    if isinstance(tree, dict):
        return {key: renamed(value, names) for key, value in tree.items()}
    return [renamed(part, names) for part in tree] if isinstance(tree, list) else names.get(tree, tree) if isinstance(tree, str) else tree
