"""Gradients of captured tensors: scalars, rows, columns, tables at computed indices; sums over the axes that they lack."""

import numpy as np
import pytest
import torch
from attn_autograd import CONTEXT, check, expected, function_of, make_inputs, tree_of
from attn_program import Program, attention

from fa4c.frontend.to_mlir import to_mlir
from fa4c.ir import interpret_attn
from fa4c.ir.semantics import from_function

SHAPES = [dict(b=2, hq=4, hkv=2, m=5, n=7), dict(b=2, hq=6, hkv=1, m=8, n=3), dict(b=1, hq=1, hkv=1, m=1, n=1)]
AXES = ["", "b", "hq", "hkv", "b hq", "b hkv"]
TIGHT = 1e-11


def with_table(axes: str, dims: str, body, *, align="bottom_right", dtype="f32", wrap=lambda p, s: p.causal(s)) -> str:
    p = Program(align=align)
    p.qkv()
    p.arg("table", axes, dims, dtype)
    s = wrap(p, p.map([p.scores()], body))
    P, lse = p.softmax(s)
    p.result("o", p.output(P), cast=True)
    p.result("lse", lse)
    return p.text()


def plus(*indices):
    """score + table[indices]; an index is made by a function of the builder."""
    return lambda e, x: e.op("add", x, e.cast(e.load("table", *[index(e) for index in indices]), "f32"))


def i(e):
    return e.index("i")


def j(e):
    return e.index("j")


def distance(e):
    return e.op("add", e.op("sub", e.index("j"), e.index("i")), e.const(3, "index"))


def block(e):
    return e.op("div", e.index("j"), e.const(2, "index"))


LOADS = {
    "scalar": ("", (), plus()),
    "factor": ("", (), lambda e, x: e.op("mul", x, e.load("table"))),
    "row": ("m", (), plus(i)),
    "column": ("n", (), plus(j)),
    "matrix": ("m n", (), plus(i, j)),
    "transposed": ("n m", (), plus(j, i)),
    "row twice": ("m", (), lambda e, x: e.op("mul", e.op("add", x, e.load("table", i(e))), e.load("table", block(e)))),
    "relative": ("span", (), plus(distance)),
    "blocks": ("span", (), plus(block)),
    "two computed": ("span m", (), plus(distance, i)),
    "one for each batch entry": ("span", (), lambda e, x: e.op("mul", x, e.load("table", e.index("b")))),
    "one for each head": (
        "span",
        (),
        lambda e, x: e.op("add", x, e.op("mul", e.load("table", e.index("h")), e.load("table", distance(e)))),
    ),
}


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("name", LOADS)
def test_tables(name, axes):
    dims, _, body = LOADS[name]
    for align in ("top_left", "bottom_right"):
        for shape in SHAPES:
            text = check(with_table(axes, dims, body, align=align), {**shape, "span": 5}, tolerance=TIGHT)
    exact = name in ("scalar", "factor", "column")
    assert ("attn.scatter" in text) != exact, text
    if name == "row":  # rows are counted from 0 here, so the index is the position
        assert "attn.scatter" not in check(with_table(axes, dims, body, align="top_left"), {**SHAPES[0], "span": 5}, tolerance=TIGHT)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "f32", "f64"])
def test_dtypes_of_a_table(dtype):
    for name in ("scalar", "column", "relative"):
        text = check(with_table("hq", LOADS[name][0], LOADS[name][2], dtype=dtype), {**SHAPES[0], "span": 5}, tolerance=TIGHT)
        element = dtype.replace("fp16", "f16")
        assert (f"tensor<{element}>" if name == "scalar" else f'x{element}> {{attn.axes = ["hq"]') in text, name


def test_a_table_read_by_a_table():
    """Positions that are loaded themselves (document numbers) have no derivative; the table they point into has."""
    p = Program()
    p.qkv()
    p.arg("doc", "b", "n", "i32")
    p.arg("table", "hq", "span", "f32")
    s = p.map([p.scores()], lambda e, x: e.op("add", x, e.load("table", e.cast(e.load("doc", e.index("j")), "index"))))
    P, lse = p.softmax(s)
    p.result("o", p.output(P), cast=True)
    p.result("lse", lse)
    for shape in SHAPES:
        assert "attn.scatter" in check(p.text(), {**shape, "span": 3}, tolerance=TIGHT)


def test_a_table_that_the_score_does_not_add_to():
    """bugs.md B20: the score is replaced; dQ = dK = 0, and the table that replaces it has a gradient."""
    constant = check(attention(score=lambda p, s: p.map([s], lambda e, x: e.const(1.0, "f32"))).text(), SHAPES[0], tolerance=TIGHT)
    assert constant.count('"attn.gemm"') == 2  # S, for its shape, and dV
    check(with_table("hq", "span", lambda e, x: e.load("table", distance(e))), {**SHAPES[0], "span": 5}, tolerance=TIGHT)


def test_a_learned_temperature():
    """bugs.md B19: dc = sum of dS' * S over rows and keys, dQ and dK with the factor c."""
    for axes in ("", "hq"):
        check(with_table(axes, "", LOADS["factor"][2], wrap=lambda p, s: s), dict(b=1, hq=2, hkv=2, m=128, n=128), tolerance=TIGHT)


def test_captured_operands_of_maps():
    """The same as operands: a row of gates, a column of biases, an affine matrix, a scalar."""
    p = Program()
    p.qkv()
    p.arg("row", "hq", "m", "f32"), p.arg("column", "b hkv", "n"), p.arg("bias", "b", "m n", "f32"), p.arg("scalar", "", "", "f32")

    def body(e, x, row, column, bias, scalar):
        return e.op("add", e.op("mul", e.op("tanh", e.op("mul", x, row)), column), e.op("mul", bias, scalar))

    P, lse = p.softmax(p.map([p.scores(), "row", "column", "bias", "scalar"], body))
    p.result("o", p.output(P), cast=True)
    p.result("lse", lse)
    for shape in SHAPES:
        assert "attn.scatter" not in check(p.text(), shape, tolerance=TIGHT, of=["o", "lse"])


# -- sums over axes: a gradient must count as often as the value was used ------------------------------------------------------------------


@pytest.mark.parametrize("result_axes", AXES)
@pytest.mark.parametrize("kv", ["", "b", "hkv", "b hkv", "hq", "b hq"])
def test_results_and_keys_that_lack_axes(kv, result_axes):
    p = Program()
    p.qkv(kv=kv)
    p.arg("bias", "", "", "f32")
    s = p.map([p.scores()], lambda e, x: e.op("tanh", e.op("add", x, e.load("bias"))))
    P, lse = p.softmax(s)
    p.result("o", p.output(P), axes=result_axes, cast=True)
    p.result("lse", lse, axes=result_axes)
    for shape in SHAPES[:2]:
        check(p.text(), shape, tolerance=TIGHT, of=["o", "lse"])


LINEAR = {
    "sum with a table": lambda e, x: e.op("add", x, e.load("table")),
    "head index": lambda e, x: e.op("add", x, e.op("mul", e.load("table"), e.cast(e.index("h"), "f32"))),
    "constant in x": lambda e, x: e.op("mul", e.load("table"), e.const(2.0, "f32")),
    "only where the head is even": lambda e, x: e.op(
        "select", e.op("eq", e.op("rem", e.index("h"), e.const(2, "index")), e.const(0, "index")), e.load("table"), x
    ),
    "batch index": lambda e, x: e.op("add", e.op("mul", e.cast(e.index("b"), "f32"), x), e.load("table")),
}


@pytest.mark.parametrize("result_axes", ["", "b", "hkv"])
@pytest.mark.parametrize("table_axes", ["", "b", "hkv", "hq"])
@pytest.mark.parametrize("name", LINEAR)
def test_a_gradient_that_depends_on_nothing_counts_for_each_head(name, table_axes, result_axes):
    """The incoming gradient varies over nothing, the derivative neither, but the value was used for each head and batch entry."""
    for q_axes, kv in (("b hq", "b hkv"), ("b hkv", "b hkv"), ("b", "b"), ("", "")):
        p = Program()
        p.qkv(kv=kv, q=q_axes)
        p.arg("table", table_axes, "", "f32")
        p.arg("sizes", "b hq", "m n")  # says how many heads there are
        p.result("total", p.reduce(p.reduce(p.map([p.scaled(p.scores())], LINEAR[name]))), axes=result_axes)
        for shape in SHAPES[:2]:
            check(p.text(), shape, tolerance=TIGHT, wrt=["q", "k", "table"])


def test_a_gradient_counts_for_each_head_of_the_other_operand():
    """The sum of scores of all heads and of none, twice mapped: what reaches the second counts for each head, through both maps."""
    p = Program()
    p.qkv(q="b", kv="b")
    p.arg("q2", "b hq", "m d"), p.arg("k2", "b hkv", "n d"), p.arg("column", "hkv", "n")
    by_position = p.map(["column"], lambda e, x: e.op("mul", x, e.cast(e.index("i"), "f32")))  # %i is the key here
    both = p.map([p.scaled(p.scores()), p.scores("q2", "k2"), by_position], lambda e, x, y, c: e.op("add", x, e.op("add", y, c)))
    p.result("total", p.reduce(p.reduce(both)), axes="")
    p.result("o", p.output(p.map([both, by_position], lambda e, x, c: e.op("mul", e.op("tanh", x), c))), cast=True)
    for shape in SHAPES:
        for of in (["total"], ["o"], ["total", "o"]):
            check(p.text(), shape, of=of, wrt=["q", "k", "q2", "k2", "column"], tolerance=TIGHT)


@pytest.mark.parametrize("x_axes", ["", "b", "hkv", "b hkv"])
def test_terms_of_one_gradient_with_different_axes(x_axes):
    """x is used with every axis and with few: each term is summed over its own."""
    p = Program()
    p.arg("q", "b hq", "m d"), p.arg("x", x_axes, "n d"), p.arg("w", "b", "n d"), p.arg("u", "hkv", "n d")
    square = p.reduce(p.map(["x"], lambda e, x: e.op("mul", x, x)))
    p.result("own", square, axes=x_axes)
    p.result("summed", p.map(["x"], lambda e, x: e.op("tanh", x)), axes="")
    p.result("with_w", p.map(["x", "w"], lambda e, x, w: e.op("mul", x, w)), axes="b")
    p.result("with_u", p.map(["x", "u"], lambda e, x, u: e.op("mul", x, u)), axes="hkv")
    P, lse = p.softmax(p.map([p.scores("q", "x"), square], lambda e, s, r: e.op("sub", s, r)))
    p.result("o", p.output(P, "x"), cast=True)
    p.result("lse", lse, axes="b")
    for shape in SHAPES:
        for of in (["own", "summed", "with_w", "with_u", "o", "lse"], ["own", "o"], ["with_w", "with_u"], ["summed", "with_u", "lse"]):
            check(p.text(), shape, of=of, wrt=["x"], tolerance=TIGHT)


def test_softmax_shared_by_heads():
    """P varies over the batch only, V and the outputs over heads: dP, delta and dLSE have different axes."""
    p = Program()
    p.arg("sizes", "b hq", "m n")
    p.arg("q", "b", "m d"), p.arg("k", "b", "n d"), p.arg("v", "b hkv", "n dv"), p.arg("w", "b", "n dv"), p.arg("u", "b hq", "n dv")
    P, lse = p.softmax(p.scores())
    for name, axes in (("v", "b hkv"), ("w", "b"), ("u", "b hq")):
        p.result(f"o_{name}", p.output(P, name), axes=axes, cast=True)
    p.result("lse", lse, axes="b")
    for shape in SHAPES:
        for of in (["o_v", "o_w", "o_u", "lse"], ["o_v", "lse"], ["o_w", "lse"], ["o_u", "lse"], ["o_v", "o_w"], ["o_v", "o_u"]):
            check(p.text(), shape, of=of, wrt=["q", "k", "v", "w", "u"], tolerance=TIGHT)


@pytest.mark.parametrize("axes", ["b hq", "b hkv", "hq", ""])
def test_a_result_with_other_axes_than_its_value_is_not_read_back(axes):
    """LSE and O vary over the batch; what is returned is a copy for each head, or a sum. Read as LSE, a copy would count for each head."""
    p = Program()
    p.arg("sizes", "b hq", "m n")
    p.arg("q", "b", "m d"), p.arg("k", "b", "n d"), p.arg("v", "b", "n dv")
    P, lse = p.softmax(p.scores())
    p.result("o", p.output(P), axes=axes, cast=True)
    p.result("lse", lse, axes=axes)
    for shape in SHAPES:
        text = check(p.text(), shape, of=["o", "lse"], wrt=["q", "k", "v"], tolerance=TIGHT)
    assert text.count("attn.softmax") == 1 and 'attn.name = "lse"' not in text


def test_the_maximum_of_what_is_recomputed():
    """A stored maximum may differ from the recomputed values by a rounding error, and then no value would be the maximum."""
    for kind in (None, 0):
        p = Program()
        p.qkv()
        P, lse = p.softmax(p.causal(p.scaled(p.scores())))
        p.result("top", p.reduce(P, "max", kind))
        p.result("lse", lse)
        for shape in SHAPES:
            text = check(p.text(), shape, of=["top"], tolerance=TIGHT)
        assert 'attn.name = "top"' not in text


# -- packed lengths ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", ["mn", "m", "n"])
def test_packed_lengths(packed):
    """Each batch entry by itself, against the dense backward of that entry: bugs.md B2 and B22, entries without queries or keys."""
    lengths = {"m": [3, 0, 7, 1, 2], "n": [5, 2, 4, 1, 0]}
    for dim in "mn":
        lengths[dim] = lengths[dim] if dim in packed else [4] * 5
    made = []
    for dense in (True, False):
        p = Program()
        p.qkv()
        p.arg("slope", "hq", "", "f32"), p.arg("bias", "b", "", "f32")
        for dim in packed if not dense else "":
            p.arg(f"cu_{dim}", "", "batch_plus_1", "i32", cu_seqlens=dim)

        def body(e, x):
            return e.op(
                "add", e.op("mul", x, e.load("slope")), e.op("mul", e.load("bias"), e.cast(e.op("sub", e.index("i"), e.index("j")), "f32"))
            )

        P, lse = p.softmax(p.causal(p.map([p.scores()], body)))
        p.result("o", p.output(P), cast=True)
        p.result("lse", lse)
        made.append(p.text())
    tree = tree_of(made[0])
    rng = np.random.default_rng(0)
    slope, want, entries = rng.standard_normal(4), [], []
    for m, n in zip(lengths["m"], lengths["n"]):
        sizes = dict(b=1, hq=4, hkv=2, m=m, n=n)
        inputs = {name: x.numpy() for name, x in make_inputs(tree, sizes, m + 10 * n).items()} | {"slope": slope}
        gradients = {"do": rng.standard_normal((1, m, 4, 6)), "dlse": rng.standard_normal((1, 4, m))}
        as_torch = {name: torch.from_numpy(np.asarray(x)) for name, x in {**inputs, **gradients}.items()}
        stored, grads = expected(
            tree, sizes, {k: as_torch[k] for k in inputs}, ["q", "k", "v", "slope", "bias"], {"o": as_torch["do"], "lse": as_torch["dlse"]}
        )
        entries.append({**inputs, **{k: x.numpy() for k, x in stored.items()}, **gradients})
        want.append({k: x.numpy() for k, x in grads.items()})
    position = {"q": 1, "k": 1, "v": 1, "o": 1, "lse": 2, "do": 1, "dlse": 2, "bias": 0}
    length_of = {"k": "n", "v": "n", "bias": ""}

    def join(name, parts):
        if length_of.get(name, "m") and length_of.get(name, "m") in packed:
            return np.concatenate(parts, axis=position[name])[0]
        return np.concatenate(parts)

    inputs = {name: join(name, [e[name] for e in entries]) for name in position} | {"slope": slope}
    inputs |= {f"cu_{dim}": np.cumsum([0, *lengths[dim]]).astype(np.int32) for dim in packed}
    module, function = function_of(made[1], "attn-derive-backward{of=o,lse}")
    with CONTEXT:
        got = interpret_attn.run(function, inputs)
    for name in ("q", "k", "v", "bias"):
        np.testing.assert_allclose(got[f"d{name}"], join(name, [w[f"d{name}"] for w in want]), atol=1e-11, err_msg=name)
    np.testing.assert_allclose(got["dslope"], sum(w["dslope"] for w in want), atol=1e-11)


@pytest.mark.parametrize("then", ["", ",attn-transpose-recompute,attn-simplify-mask"])
def test_the_tree_of_a_backward_is_printed_and_read_back(then):
    """Scatters, sums over the first dimension, vectors and scalars in maps: the same tree, the same numbers."""
    p = Program()
    p.qkv()
    p.arg("table", "hq", "span", "f32"), p.arg("column", "hkv", "n"), p.arg("slope", "", "", "f32")

    def body(e, x, column, slope):
        return e.op("add", e.op("mul", e.op("add", x, column), slope), e.load("table", distance(e)))

    P, lse = p.softmax(p.causal(p.map([p.scores(), "column", "slope"], body)))
    p.result("o", p.output(P), cast=True)
    p.result("lse", lse)
    module, function = function_of(p.text(), "attn-derive-backward" + then)
    with CONTEXT:
        tree = from_function(function)
    assert {"scatter", "reduce", "map"} <= {step["op"] for step in tree["body"]}
    again_module, again = function_of(to_mlir(tree))
    with CONTEXT:
        assert from_function(again) == tree
        inputs = {name: x.numpy() for name, x in make_inputs(tree, {**SHAPES[0], "span": 5}).items()}
        first, second = interpret_attn.run(function, inputs), interpret_attn.run(again, inputs)
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value)
