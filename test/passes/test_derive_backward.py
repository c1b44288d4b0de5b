"""attn-derive-backward against torch.autograd in float64: every rule, the variants of attention, and the counts that make it fast."""

import pathlib
import re

import numpy as np
import pytest
import torch
from attn_autograd import CONTEXT, check, expected, function_of, make_inputs, tree_of
from attn_program import Program, attention

from fa4c.ir import interpret_attn
from fa4c.ir.diagnostics import Diagnostic
from fa4c.passes.registry import run_pipeline

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SMALL = dict(b=2, hq=4, hkv=2, m=5, n=7)
SHAPES = [SMALL, dict(b=1, hq=3, hkv=3, m=9, n=4), dict(b=2, hq=6, hkv=1, m=1, n=1), dict(b=1, hq=2, hkv=2, m=17, n=17)]
EMPTY = [dict(b=1, hq=2, hkv=1, m=5, n=0), dict(b=1, hq=2, hkv=1, m=0, n=5), dict(b=0, hq=2, hkv=1, m=3, n=3)]
# the constants of these rules (log 2, 2 / sqrt(pi)) are f32
LOOSE, TIGHT = 3e-7, 1e-11


def count(text: str, name: str = '"attn.gemm"') -> int:
    return text.count(name)


# -- examples ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES + EMPTY, ids=str)
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.mlir")), ids=lambda path: path.stem)
def test_examples(path, shape):
    text = check(path.read_text(), shape)
    assert count(text) == 5 and count(text, '"attn.softmax"') == 0
    assert count(check(path.read_text(), shape, of=["o", "lse"])) == 5
    assert count(check(path.read_text(), shape, of=["lse"], wrt=["q", "k"])) == 3


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.mlir")), ids=lambda path: path.stem)
def test_examples_after_other_passes(path):
    """Band masks and the scale of a softmax are differentiated too."""
    tree = tree_of(path.read_text())
    inputs = make_inputs(tree, SMALL)
    results = []
    for pipeline in (
        "attn-derive-backward",
        "attn-simplify-mask,attn-fold-scale,attn-derive-backward",
        "attn-derive-backward,attn-simplify-mask,attn-fold-scale,cse",
    ):
        module, function = function_of(path.read_text(), pipeline)
        forward_module, forward = function_of(path.read_text())
        with CONTEXT:
            stored = interpret_attn.run(forward, inputs)
            results.append(
                interpret_attn.run(function, {**inputs, **stored, "do": np.cos(np.arange(stored["o"].size)).reshape(stored["o"].shape)})
            )
        assert count(str(module)) == 5
    for other in results[1:]:
        for name, value in results[0].items():
            np.testing.assert_allclose(other[name], value, atol=3e-6, rtol=0, err_msg=name)


@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_alignments_and_layouts(align, layout):
    for shape in SHAPES:
        check(attention(mask=lambda p, s: p.causal(s), align=align, layout=layout).text(), shape, tolerance=TIGHT, of=["o", "lse"])


# -- variants ------------------------------------------------------------------------------------------------------------------------------


def sigmoid_attention(p: Program):
    s = p.causal(p.scaled(p.scores()))
    p.result("o", p.output(p.map([s], lambda e, x: e.op("sigmoid", x))), cast=True)


def retention(p: Program):
    def decay(e, x):
        far = e.cast(e.op("sub", e.index("i"), e.index("j")), "f32")
        kept = e.op("le", e.index("j"), e.index("i"))
        return e.op("select", kept, e.op("mul", x, e.op("exp2", e.op("mul", far, e.const(-0.25, "f32")))), e.const(0.0, "f32"))

    p.result("o", p.output(p.map([p.scores()], decay)), cast=True)


def differential(p: Program):
    p.arg("q2", "b hq", "m d"), p.arg("k2", "b hkv", "n d"), p.arg("weight", "hq", "", "f32")
    first, lse = p.softmax(p.causal(p.scaled(p.scores())))
    second, lse2 = p.softmax(p.causal(p.scaled(p.scores("q2", "k2"))))
    both = p.map([first, second], lambda e, x, y: e.op("sub", x, e.op("mul", e.load("weight"), y)))
    p.result("o", p.output(both), cast=True)
    p.result("lse", lse)
    p.result("lse2", lse2)


def differential_outputs(p: Program):
    p.arg("q2", "b hq", "m d"), p.arg("k2", "b hkv", "n d")
    first, lse = p.softmax(p.scaled(p.scores()))
    second, lse2 = p.softmax(p.scaled(p.scores("q2", "k2")))
    o1, o2 = p.output(first), p.output(second)
    p.result("o", p.map([o1, o2], lambda e, x, y: e.op("sub", x, e.op("mul", e.const(0.3, "f32"), y))), cast=True)


def keys_as_values(p: Program):
    P, lse = p.softmax(p.causal(p.scaled(p.scores())))
    p.result("o", p.output(P, "k"), cast=True)
    p.result("lse", lse)


def identity(p: Program):
    p.result("o", p.output(p.scores()), cast=True)


def squared_after_softmax(p: Program):
    P, lse = p.softmax(p.causal(p.scaled(p.scores())))
    p.result("o", p.output(p.map([P], lambda e, x: e.op("mul", x, x))), cast=True)
    p.result("lse", lse)


def dropout(p: Program):
    def drop(e, x):
        odd = e.op(
            "eq",
            e.op("rem", e.op("add", e.index("i"), e.op("mul", e.index("j"), e.const(3, "index"))), e.const(4, "index")),
            e.const(0, "index"),
        )
        return e.op("select", odd, e.const(0.0, "f32"), e.op("mul", x, e.const(1.25, "f32")))

    P, lse = p.softmax(p.causal(p.scaled(p.scores())))
    p.result("o", p.output(p.map([P], drop)), cast=True)
    p.result("lse", lse)


def gated(p: Program):
    p.arg("gate", "b hq", "m dv")
    P, lse = p.softmax(p.causal(p.scaled(p.scores())))
    o = p.output(P)
    p.result("plain", o, cast=True)
    p.result("o", p.map([o, "gate"], lambda e, x, g: e.op("mul", x, e.op("sigmoid", g))), cast=True)
    p.result("lse", lse)


def distances(p: Program):
    """-|q - k|^2 / 2: row and column vectors of the score space, one of them over KV heads only."""
    qq = p.reduce(p.map(["q"], lambda e, x: e.op("mul", x, x)))
    kk = p.reduce(p.map(["k"], lambda e, x: e.op("mul", x, x)))
    half = lambda e, s, a, b: e.op("sub", s, e.op("mul", e.const(0.5, "f32"), e.op("add", a, b)))  # noqa: E731
    P, lse = p.softmax(p.map([p.scores(), qq, kk], half))
    p.result("o", p.output(P), cast=True)
    p.result("lse", lse)


def normalised(p: Program):
    """The row maximum and the row sum by hand, no softmax operation."""
    s = p.scaled(p.scores())
    top = p.reduce(s, "max")
    e_s = p.map([s, top], lambda e, x, t: e.op("exp", e.op("sub", x, t)))
    total = p.reduce(e_s)
    p.result("o", p.map([p.output(e_s), total], lambda e, x, t: e.op("div", x, t)), cast=True)


def column_statistics(p: Program):
    """A softmax over queries: sums over the first dimension, used as a column vector."""
    e_s = p.map([p.scaled(p.scores())], lambda e, x: e.op("exp", x))
    total, top = p.reduce(e_s, "sum", 0), p.reduce(e_s, "max", 0)
    p.result("o", p.output(p.map([e_s, total, top], lambda e, x, t, u: e.op("div", e.op("mul", x, u), t))), cast=True)


def to_a_scalar(p: Program):
    rows = p.reduce(p.map([p.scores()], lambda e, x: e.op("tanh", x)))
    total = p.reduce(p.map([rows], lambda e, x: e.op("mul", x, x)))
    p.result("loss", total)
    p.result("again", total, axes="")
    p.result("rows", rows)


def self_scores(p: Program):
    s = p.gemm("q", "q", tb=True)
    rows = p.reduce(s)
    p.result("o", p.reduce(p.map([s, rows], lambda e, x, r: e.op("mul", e.op("tanh", x), r))))


def transposed_gemms(p: Program):
    st = p.gemm("k", "q", tb=True)
    t = p.map([st], lambda e, x: e.op("tanh", x))
    p.result("o", p.gemm(p.cast(t), "v", ta=True), cast=True)
    vt = p.gemm("v", p.cast(t), ta=True)
    p.result("vt", vt)
    p.result("both", p.gemm("v", p.cast(p.map([p.scores()], lambda e, x: e.op("sigmoid", x))), ta=True, tb=True))


def probabilities_on_the_right(p: Program):
    """W @ P contracts the queries: its rows say nothing of the row sums of P * dP."""
    p.arg("w", "b hq", "dv m")
    P, lse = p.softmax(p.causal(p.scaled(p.scores())))
    p.result("o", p.gemm("w", p.cast(P)), cast=True)
    p.result("lse", lse)


def scores_returned(p: Program):
    P, lse = p.softmax(p.causal(p.scaled(p.scores())))
    p.result("p", P)
    p.result("o", p.output(P), cast=True)
    p.result("lse", lse)


def f32_results(p: Program):
    P, lse = p.softmax(p.scaled(p.scores()))
    p.result("o", p.output(P))
    p.result("lse", lse)


def lse_of_the_lse(p: Program):
    P, lse = p.softmax(p.scaled(p.scores()))
    o = p.output(P)
    p.result("o", p.map([o, lse], lambda e, x, t: e.op("mul", x, e.op("tanh", t))), cast=True)
    p.result("lse", lse)


def two_masks_one_mapped(p: Program):
    near = p.mask(p.causal(p.scores()), lambda e, i, j: e.op("ge", j, e.op("sub", i, e.const(2, "index"))))
    p.result("o", p.output(p.map([near], lambda e, x: e.op("sigmoid", x))), cast=True)


VARIANTS = [
    sigmoid_attention, retention, differential, differential_outputs, keys_as_values, identity, squared_after_softmax, dropout, gated,
    distances, normalised, column_statistics, to_a_scalar, self_scores, transposed_gemms, scores_returned, f32_results, lse_of_the_lse,
    two_masks_one_mapped, probabilities_on_the_right,
]  # fmt: skip
VARIANTS = {f.__name__: f for f in VARIANTS}
FIVE = "sigmoid_attention retention keys_as_values identity squared_after_softmax dropout gated distances f32_results"
GEMMS = {"differential": 8} | dict.fromkeys(FIVE.split(), 5)


@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name, align):
    p = Program(align=align)
    p.qkv()
    VARIANTS[name](p)
    for shape in SHAPES + (EMPTY[:1] if name not in ("normalised", "column_statistics") else []):
        text = check(p.text(), shape, options="of=" + ",".join(r["name"] for r in p.tree["results"]), tolerance=LOOSE)
    assert count(text) == GEMMS.get(name, count(text)), text
    text = check(p.text(), SMALL, tolerance=LOOSE)
    assert count(text) == GEMMS.get(name, count(text)), text


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_factor_behind_the_mask(shape):
    """-inf * c has no derivative in c, but a masked score's gradient is 0 and stays so. As if the mask came last."""
    made = []
    for first in (True, False):
        p = Program()
        p.qkv()
        p.arg("temperature", "hq", "", "f32")
        s = p.causal(p.scores()) if first else p.scores()
        s = p.map([s], lambda e, x: e.op("mul", x, e.op("abs", e.load("temperature"))))
        P, lse = p.softmax(s if first else p.causal(s))
        p.result("o", p.output(P), cast=True)
        p.result("lse", lse)
        made.append(p.text())
    tree = tree_of(made[1])
    inputs = make_inputs(tree, shape)
    gradients = {"do": torch.from_numpy(np.random.default_rng(0).standard_normal((shape["b"], shape["m"], shape["hq"], 6)))}
    stored, want = expected(tree, shape, inputs, ["q", "k", "v", "temperature"], {"o": gradients["do"]})
    for text in made:
        module, function = function_of(text, "attn-derive-backward")
        with CONTEXT:
            got = interpret_attn.run(function, {**inputs, **stored, **gradients})
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value.numpy(), atol=1e-11, err_msg=name)


def test_masked_scores_as_results():
    """What comes in for a masked score goes nowhere, through one mask and through two, beside a softmax and without."""
    p = Program()
    p.qkv()
    s = p.causal(p.scaled(p.scores()))
    near = p.mask(s, lambda e, i, j: e.op("ge", j, e.op("sub", i, e.const(2, "index"))))
    p.result("once", s)
    p.result("twice", near)
    p.result("lse", p.softmax(near)[1])
    for shape in SHAPES:
        for of in (["once"], ["twice"], ["once", "twice", "lse"], ["lse", "once"]):
            check(p.text(), shape, of=of, wrt=["q", "k"], tolerance=TIGHT)


@pytest.mark.parametrize(
    "name", ["f32_results", "dropout", "keys_as_values", "gated", "lse_of_the_lse", "squared_after_softmax", "differential"]
)
def test_where_delta_comes_from(name):
    """From stored outputs, by rows of the head dim, if P went into them times a factor at most; else from P * dP, by rows of keys."""
    p = Program()
    p.qkv()
    VARIANTS[name](p)
    over_keys = []
    for refine in (0, 16):
        module, _ = function_of(p.text(), f"attn-derive-backward{{of=o refine={refine}}}")
        over_keys.append(re.search(r'"attn.reduce".* : \(tensor<\?x\?xf32>\)', str(module)) is not None)
    assert over_keys == [name in ("lse_of_the_lse", "squared_after_softmax", "differential"), True]
    assert ("arith.constant 16 : index" in str(module)) == (not over_keys[0])  # corrected for so few keys


def test_two_masks_in_a_row():
    """The second keeps what the first masks, and its result is given away with a gradient for all."""
    p = Program()
    p.qkv()
    near = p.mask(p.causal(p.scores()), lambda e, i, j: e.op("ge", j, e.op("sub", i, e.const(2, "index"))))
    p.result("o", near)
    for shape in SHAPES:
        check(p.text(), shape, wrt=["q", "k"], tolerance=TIGHT)


@pytest.mark.parametrize("dim", [None, 0])
def test_equal_maxima_share(dim):
    """Keys and queries that occur twice: as in torch, each of the largest gets its part."""
    p = Program()
    p.qkv()
    p.result("top", p.reduce(p.scores(), "max", dim))
    inputs = make_inputs(tree_of(p.text()), SMALL)
    inputs["k"][:, 3:6], inputs["q"][:, 2:4] = inputs["k"][:, :3].clone(), inputs["q"][:, :2].clone()
    check(p.text(), SMALL, inputs=inputs, wrt=["q", "k"], tolerance=TIGHT)


@pytest.mark.parametrize(
    "score, name, maps",
    [
        (lambda e, x: e.op("mul", e.op("tanh", x), e.const(3.0, "f32")), "math.tanh", 1),  # 1 - y * y wants nothing but the tanh
        (lambda e, x: e.op("exp", e.op("mul", x, x)), "math.exp", 2),  # the score is needed beside exp(x * x)
        (lambda e, x: e.op("mul", x, e.op("sigmoid", x)), "math.exp", 2),
    ],
)
def test_costly_parts_are_computed_once_where_they_replace_the_score(score, name, maps):
    p = Program()
    p.qkv()
    p.result("o", p.output(p.map([p.scores()], score)), cast=True)
    text = check(p.text(), SMALL)
    assert len([line for line in text.split('"attn.map"') if name in line]) == maps


REFUSED = sorted(EXAMPLES.glob("*.mlir")) + list(VARIANTS)


@pytest.mark.parametrize("then", ["", ",attn-transpose-recompute,attn-simplify-mask"])
@pytest.mark.parametrize("which", REFUSED, ids=lambda which: getattr(which, "stem", which))
def test_the_tile_level_refuses_with_a_place(which, then):
    """Not cut into kernels (attn-outline-kernels), none is taken, and none ends in anything but a diagnostic at a line of the forward."""
    if isinstance(which, str):
        p = Program()
        p.qkv()
        VARIANTS[which](p)
        text = p.text()
    else:
        text = which.read_text()
    module, _ = function_of(text, "attn-derive-backward" + then)
    with pytest.raises(Diagnostic) as refused:
        run_pipeline(module, "attn-to-tile")
    assert refused.value.text().startswith("test.mlir:"), refused.value.text()


def test_of_two_outputs_one_unused():
    p = Program()
    p.qkv()
    p.arg("w", "b hkv", "n dv")
    P, lse = p.softmax(p.scaled(p.scores()))
    p.result("o", p.output(P), cast=True)
    p.result("other", p.output(P, "w"), cast=True)
    p.result("lse", lse)
    assert count(check(p.text(), SMALL, tolerance=TIGHT)) == 7
    text = check(p.text(), SMALL, of=["o"], tolerance=TIGHT)
    assert count(text) == 5 and "dother" not in text and '"other"' not in text


def test_only_what_is_asked_for():
    text = attention(mask=lambda p, s: p.causal(s)).text()
    for wrt, gemms in ((["v"], 2), (["q"], 3), (["k"], 3), (["q", "v"], 4), (["q", "k", "v"], 5)):
        assert count(check(text, SMALL, wrt=wrt, tolerance=TIGHT)) == gemms
    assert "attn.reduce" not in check(text, SMALL, wrt=["v"])  # no delta
    assert 'attn.name = "o"' not in check(text, SMALL, wrt=["v"])
