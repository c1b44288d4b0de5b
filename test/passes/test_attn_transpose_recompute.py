"""attn-transpose-recompute: same gradients, fewer transposed left operands; masks of the transposed space get bounds on the queries."""

import pathlib
import re

import numpy as np
import pytest
from attn_autograd import CONTEXT, check, function_of, make_inputs, tree_of
from attn_program import Program, attention

from fa4c.ir import interpret_attn
from fa4c.ir.attn_signature import attn_functions
from fa4c.ir.context import parse_module
from fa4c.passes.registry import run_pipeline

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SHAPES = [
    dict(b=2, hq=4, hkv=2, m=5, n=7),
    dict(b=1, hq=3, hkv=3, m=9, n=4),
    dict(b=1, hq=2, hkv=2, m=1, n=1),
    dict(b=1, hq=2, hkv=1, m=5, n=0),
]
THEN = ",attn-transpose-recompute"


def transposed_operands(text: str) -> int:
    return text.count("transpose_a = true")


@pytest.mark.parametrize("then", [THEN, THEN + ",attn-simplify-mask", ",attn-simplify-mask" + THEN + ",attn-simplify-mask,cse"])
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.mlir")), ids=lambda path: path.stem)
def test_examples(path, then):
    for shape in SHAPES:
        text = check(path.read_text(), shape, of=["o", "lse"], then=then)
    assert text.count('"attn.gemm"') == 5 and transposed_operands(text) == 1
    assert transposed_operands(check(path.read_text(), SHAPES[0])) == 2
    dq = re.search(r'"attn.gemm"\((%\S+), %arg1\) \{transpose_a = true\}', text)
    dk = re.search(r'"attn.gemm"\((%\S+), %arg0\) :', text)
    assert dq and dk and dq[1] == dk[1]


def test_only_where_it_pays():
    text = attention(mask=lambda p, s: p.causal(s)).text()
    for wrt, before, after in (("q", 0, 0), ("k", 1, 0), ("v", 1, 0), ("qk", 1, 1), ("qv", 1, 1), ("kv", 2, 0)):
        assert transposed_operands(check(text, SHAPES[0], wrt=list(wrt))) == before
        assert transposed_operands(check(text, SHAPES[0], wrt=list(wrt), then=THEN)) == after
    kept = check(text, SHAPES[0], wrt=["q"]) == check(text, SHAPES[0], wrt=["q"], then=THEN)
    assert kept  # a tie changes nothing


def test_captured_tensors_and_vectors():
    """Row and column vectors, sums over either dimension, collected tables."""
    p = Program()
    p.qkv()
    p.arg("column", "b hkv", "n"), p.arg("row", "hq", "m", "f32"), p.arg("table", "hq", "span", "f32"), p.arg("slope", "", "", "f32")

    def body(e, x, column, row):
        far = e.op("add", e.op("sub", e.index("j"), e.index("i")), e.const(3, "index"))
        return e.op("add", e.op("mul", e.op("tanh", e.op("add", x, column)), row), e.op("mul", e.load("table", far), e.load("slope")))

    P, lse = p.softmax(p.causal(p.map([p.scores(), "column", "row"], body)))
    p.result("o", p.output(P), cast=True)
    p.result("lse", lse)
    for shape in SHAPES:
        text = check(p.text(), {**shape, "span": 6}, then=THEN)
    assert transposed_operands(text) == 1 and "attn.scatter" in text and "dim = 0" in text


def test_what_keeps_its_orientation():
    """A softmax that must be recomputed, scores as an argument or as a result: nothing that shares elementwise work with them turns."""
    p = Program()
    p.qkv()
    P, lse = p.softmax(p.scaled(p.scores()))
    p.result("o", p.output(P), cast=True)  # LSE is not returned
    assert transposed_operands(check(p.text(), SHAPES[0], then=THEN)) == 2

    p = Program()
    p.qkv()
    p.arg("bias", "b", "m n", "f32")
    P, lse = p.softmax(p.map([p.scores(), "bias"], lambda e, x, y: e.op("add", x, y)))
    p.result("o", p.output(P), cast=True)
    p.result("lse", lse)
    assert transposed_operands(check(p.text(), SHAPES[0], then=THEN)) == 2


def test_independent_scores_turn_by_themselves():
    """dP alone would not pay; scores that no P meets are a group of their own."""
    p = Program()
    p.qkv()
    p.arg("w", "b hkv", "n dv")
    first = p.map([p.scores()], lambda e, x: e.op("tanh", x))
    p.result("o", p.output(first), cast=True)
    p.result("sums", p.reduce(p.map([p.gemm("q", "k", tb=True)], lambda e, x: e.op("sigmoid", x)), "sum"))
    text = check(p.text(), SHAPES[0], then=THEN)
    assert transposed_operands(text) < transposed_operands(check(p.text(), SHAPES[0]))


# -- masks whose rows are keys -------------------------------------------------------------------------------------------------------------

PREDICATES = {
    "causal": "%keep = arith.cmpi sle, %i, %j : index",
    "window": "%c = arith.constant 3 : index\n%f = arith.subi %j, %c : index\n%a = arith.cmpi sge, %i, %f : index\n"
    "%e = arith.cmpi sle, %i, %j : index\n%keep = arith.andi %a, %e : i1",
    "acausal": "%keep = arith.cmpi sgt, %i, %j : index",
    "prefix": '%l = "attn.load"(%length) : (tensor<i32>) -> i32\n%x = arith.index_cast %l : i32 to index\n'
    "%a = arith.cmpi slt, %i, %x : index\n%e = arith.cmpi sle, %i, %j : index\n%keep = arith.ori %a, %e : i1",
    "length": '%l = "attn.load"(%length) : (tensor<i32>) -> i32\n%x = arith.index_cast %l : i32 to index\n'
    "%a = arith.cmpi slt, %j, %x : index\n%e = arith.cmpi sle, %i, %j : index\n%keep = arith.andi %a, %e : i1",
    "blocks": "%c = arith.constant 4 : index\n%a = arith.floordivsi %i, %c : index\n%e = arith.floordivsi %j, %c : index\n"
    "%keep = arith.cmpi sle, %a, %e : index",
    "blocks towards zero": "%c = arith.constant 4 : index\n%a = arith.divsi %i, %c : index\n%e = arith.divsi %j, %c : index\n"
    "%keep = arith.cmpi sle, %a, %e : index",
    "by batch entry": "%z = arith.constant 0 : index\n%a = arith.cmpi eq, %b, %z : index\n%e = arith.cmpi sle, %i, %j : index\n"
    "%f = arith.cmpi sge, %i, %j : index\n%keep = arith.select %a, %e, %f : i1",
    "all or causal": "%z = arith.constant 0 : index\n%a = arith.cmpi eq, %b, %z : index\n%e = arith.cmpi sle, %i, %j : index\n"
    "%keep = arith.ori %a, %e : i1",
    "never": "%keep = arith.constant false",
}  # fmt: skip
TRANSPOSED = """func.func @f(%q: tensor<?x4xf32> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x4xf32> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
    %length: tensor<i32> {attn.name = "length", attn.axes = ["b"], attn.dims = []})
    -> (tensor<?x?xf32> {attn.name = "u", attn.axes = ["b", "hq"], attn.dims = ["n", "m"]}) attributes {attn.align = "ALIGN"} {
  %s = "attn.gemm"(%k, %q) {transpose_b = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x?xf32>
  %u = "attn.mask"(%s) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    PREDICATE
    "attn.yield"(%keep) : (i1) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %u : tensor<?x?xf32>
}
"""
EXACT = ("causal", "window", "acausal", "blocks")


@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
@pytest.mark.parametrize("name", PREDICATES)
def test_bounds_on_the_queries_of_a_key(name, align):
    """No seen query outside [lo, hi), no unseen one inside [full_lo, full_hi); nothing decreases from key to key."""
    module = parse_module(TRANSPOSED.replace("ALIGN", align).replace("PREDICATE", PREDICATES[name]), "mask.mlir", CONTEXT)
    run_pipeline(module, "attn-simplify-mask")
    with CONTEXT:
        (function,) = attn_functions(module)
        op = list(function.regions[0].blocks[0].operations)[1]
    if name == "blocks towards zero" and align == "bottom_right":
        assert op.operation.name == "attn.mask"  # a query position may be negative there, and division then rounds up
        return
    assert op.operation.name == "attn.band_mask"
    for m in (1, 2, 5, 13):
        for n in (0, 1, 4, 13, 22):
            seen, (lo, hi, full_lo, full_hi), shift = _seen_and_bounds(function, op, m, n)
            j = np.arange(m) + shift
            assert not (seen & ((j < lo[..., None]) | (j >= hi[..., None]))).any(), (m, n)
            assert not (~seen & (j >= full_lo[..., None]) & (j < full_hi[..., None])).any(), (m, n)
            for bound in (lo, hi, full_lo, full_hi):
                assert (np.diff(bound, axis=-1) >= 0).all(), (m, n)
            if name in EXACT:
                inside = (j >= lo[..., None]) & (j < hi[..., None])
                assert (inside == seen).all(), (m, n)


def _seen_and_bounds(function, op, m, n):
    rng = np.random.default_rng(0)
    values = {"q": rng.standard_normal((2, m, 2, 4)), "k": rng.standard_normal((2, n, 1, 4)), "length": np.array([3, 9], dtype=np.int32)}
    with CONTEXT:
        facts = interpret_attn.function_facts(function)
        sizes = {"b": 2, "hq": 2, "hkv": 1, "m": m, "n": n, "d": 4}
        grouped = {t.name: interpret_attn._to_grouped(t, values[t.name], facts.layout, (), sizes) for t in facts.args}
        run = interpret_attn._Run(function, facts, interpret_attn.infer_dims(function, facts), grouped, sizes, "float64")
        indices = run._space_indices(("n", "m"), (n, m))
        (seen,) = run._region(op.predicate, [], indices)
        bounds = run._region(op.bounds, [], indices[:3])
    seen = np.broadcast_to(seen, (2, 1, 2, n, m))[:, 0, 0]
    shift = n - m if facts.align == "bottom_right" else 0
    return seen, [np.broadcast_to(bound, (2, 1, 2, n, 1))[:, 0, 0, :, 0] for bound in bounds], shift


def test_the_pipeline_of_the_backward_bounds_the_queries():
    """What `--direction bwd` runs, not cut into kernels: each key of causal attention starts at its own query."""
    path = EXAMPLES / "causal.mlir"
    tree = tree_of(path.read_text())
    from fa4c.passes.pipelines import pipeline

    passes = pipeline("sm_90a", "bwd", emit="attn")
    assert ",attn-outline-kernels," in passes
    module, function = function_of(path.read_text(), passes.replace(",attn-outline-kernels,", ","))
    text = str(module)
    assert text.count("attn.band_mask") == 1 and text.count('"attn.gemm"') == 5 and transposed_operands(text) == 1
    inputs = make_inputs(tree, SHAPES[0])
    forward_module, forward = function_of(path.read_text())
    plain_module, plain = function_of(path.read_text(), "attn-derive-backward")
    with CONTEXT:
        stored = interpret_attn.run(forward, inputs)
        given = {**inputs, **stored, "do": np.cos(np.arange(stored["o"].size)).reshape(stored["o"].shape)}
        want, got = interpret_attn.run(plain, given), interpret_attn.run(function, given)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, atol=3e-6, rtol=0)
