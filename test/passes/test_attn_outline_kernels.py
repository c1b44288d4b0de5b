"""attn-outline-kernels: the kernels, run in order, give what the function gave; what goes where."""

import pathlib
import re

import numpy as np
import pytest
from attn_autograd import CONTEXT, function_of, make_inputs
from attn_program import Program, attention

from fa4c.ir import interpret_attn
from fa4c.ir.attn_signature import attn_functions, function_facts
from fa4c.ir.context import parse_module, print_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.semantics import from_function
from fa4c.passes.registry import run_pipeline

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SHAPES = [dict(b=2, hq=4, hkv=2, m=5, n=7), dict(b=1, hq=3, hkv=3, m=9, n=4), dict(b=1, hq=2, hkv=1, m=3, n=1)]
BACKWARD = "attn-fold-scale,attn-derive-backward,attn-sink-scale,attn-transpose-recompute"
PASS = "attn-outline-kernels"


def outlined(text: str, before: str = BACKWARD, options: str = "", after: str = "", shapes=SHAPES, **more) -> dict:
    """name -> facts of the kernels, after their results were compared with those of the function."""
    module, function = function_of(text, before)
    kernels = parse_module(text, "test.mlir", CONTEXT)
    run_pipeline(kernels, ",".join(part for part in (before, PASS + options, after) if part))
    with CONTEXT:
        tree = from_function(function)
        for shape in shapes:
            inputs = {name: x.numpy() for name, x in make_inputs(tree, {**shape, **more}, seed=shape["m"]).items()}
            want, got = interpret_attn.run(function, inputs), interpret_attn.run_module(kernels, inputs)
            assert want.keys() == got.keys()
            for name, value in want.items():
                np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-10 * max(1, np.abs(value).max(initial=0)), err_msg=name)
        facts = [function_facts(kernel) for kernel in attn_functions(kernels)]
    return {fact.name.split("_")[-1]: fact for fact in facts}


def stationary(kernels: dict) -> dict:
    return {name: kernel.stationary for name, kernel in kernels.items()}


def names(tensors) -> list[str]:
    return [t.name for t in tensors]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.mlir")), ids=lambda path: path.stem)
def test_examples(path):
    kernels = outlined(path.read_text(), after="attn-simplify-mask,cse")
    pre, main, post = (kernels[name] for name in ("preprocess", "main", "postprocess"))
    assert names(pre.args) == ["o", "lse", "do"] and names(pre.results) == ["lse_", "delta"]
    corrected = path.stem == "alibi"  # the slopes' gradient needs delta more exactly than O is stored: a sum over scores is added to it
    if corrected:
        rows = kernels["rows"]
        assert names(rows.results) == ["delta_sum"] and rows.stationary == "m"
        assert {"q", "k", "v", "do", "lse_", "delta"} <= set(names(rows.args)) and "o" not in names(rows.args)
    else:
        refine = kernels["refine"]
        assert names(refine.results) == ["delta"] and refine.stationary == "m" and refine.when == ("n", 16)
        assert {"q", "k", "v", "do", "lse_", "delta"} <= set(names(refine.args)) and "o" not in names(refine.args)
    assert len(kernels) == 4 and all(kernel.when is None for name, kernel in kernels.items() if name != "refine")
    assert {t.dtype for t in (*pre.results, *post.args)} == {"f32"}
    delta = "delta_sum" if corrected else "delta"
    assert not {"o", "lse"} & set(names(main.args)) and {"lse_", delta, "do"} <= set(names(main.args))
    assert names(main.results)[:3] == ["dq_sum", "dk", "dv"] and [t.workspace for t in main.results[:3]] == [True, False, False]
    assert main.results[1].axes == ("b", "hkv") and names(post.results) == ["dq"] and main.stationary == "n" and post.stationary == "m"


def test_a_correction_for_some_sizes():
    """The limit is the constant of the text: beyond it the kernel does not run. What is no such choice is a sum for all sizes."""
    text = (EXAMPLES / "causal.mlir").read_text()
    module, _ = function_of(text, BACKWARD)
    derived = print_module(module)
    edited = derived.replace("arith.constant 16 : index", "arith.constant 4 : index")
    kernels = outlined(edited, before="")
    assert edited != derived and kernels["refine"].when == ("n", 4) and "delta" in names(kernels["main"].args)
    edited = re.sub(r"arith.select (%\w+, )(%\w+), (%arg\w+) :", r"arith.select \1\3, \2 :", edited)
    kernels = outlined(edited, before="")
    assert "refine" not in kernels and "delta_sum" in names(kernels["main"].args) and kernels["rows"].when is None


def test_what_one_cta_completes_stays():
    """With as many KV heads as query heads dK and dV are no sums; with queries stationary dQ is none."""
    p = Program()
    p.qkv(kv="b hq")
    P, lse = p.softmax(p.causal(p.scaled(p.scores())))
    p.result("o", p.output(P), cast=True)
    p.result("lse", lse)
    kernels = outlined(p.text())
    assert names(kernels["main"].results) == ["dq_sum", "dk", "dv"] and names(kernels["postprocess"].results) == ["dq"]
    kernels = outlined(p.text(), options="{stationary=m}")
    assert names(kernels["main"].results) == ["dk_sum", "dv_sum", "dq"] and names(kernels["postprocess"].args) == ["dk_sum", "dv_sum"]


def test_nothing_to_split():
    """A forward, whose CTAs own queries; gradients that need no delta and are f32 sums already."""
    text = attention(mask=lambda p, s: p.causal(s)).text()
    module, _ = function_of(text)
    before = str(module)
    run_pipeline(module, PASS + "{stationary=m}")
    assert str(module) == before
    p = Program(dtype="f32")
    p.qkv()
    p.result("o", p.output(p.map([p.scores()], lambda e, x: e.op("sigmoid", x))))
    module, _ = function_of(p.text(), "attn-derive-backward")
    before = str(module)
    run_pipeline(module, PASS)
    assert str(module) == before


def test_before_the_scores_in_the_forward():
    """Normalised queries and norms of keys are computed once; the rest of the forward is one kernel."""
    p = Program()
    p.qkv()
    norms = p.reduce(p.map(["q"], lambda e, x: e.op("mul", x, x)))
    q = p.cast(p.map(["q", norms], lambda e, x, r: e.op("mul", x, e.op("rsqrt", r))))
    P, lse = p.softmax(p.causal(p.scores(q, "k")))
    p.result("o", p.output(P), cast=True)
    p.result("lse", lse)
    kernels = outlined(p.text(), before="", options="{stationary=m}")
    assert list(kernels) == ["preprocess", "main"]
    assert names(kernels["main"].args) == ["k", "v"] + names(kernels["preprocess"].results)
    assert set(outlined(p.text(), before="attn-derive-backward")) == {"preprocess", "refine", "main", "postprocess"}
    assert set(outlined(p.text(), before="attn-derive-backward{refine=0}")) == {"preprocess", "main", "postprocess"}


def test_captured_tensors_and_packed_lengths():
    p = Program()
    p.qkv()
    p.arg("table", "hq", "span", "f32"), p.arg("slope", "", "", "bf16")

    def body(e, x):
        far = e.op("add", e.op("sub", e.index("j"), e.index("i")), e.const(2, "index"))
        return e.op("add", e.op("mul", x, e.cast(e.load("slope"), "f32")), e.load("table", far))

    P, lse = p.softmax(p.causal(p.map([p.scores()], body)))
    p.result("o", p.output(P), cast=True)
    p.result("lse", lse)
    kernels = outlined(p.text(), span=4)
    assert "dslope" in names(kernels["scalar"].results) and "dtable" in names(kernels["main"].results)

    text = attention(mask=lambda p, s: p.causal(s)).text()
    cu = ', %cu: tensor<?xi32> {attn.name = "cu", attn.axes = [], attn.dims = ["batch_plus_1"], attn.cu_seqlens = "m"})\n    -> ('
    text = text.replace(")\n    -> (", cu, 1)
    module, function = function_of(text, BACKWARD)
    kernels = parse_module(text, "test.mlir", CONTEXT)
    run_pipeline(kernels, f"{BACKWARD},{PASS}")
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((9, 4, d)) for name, d in (("q", 8), ("o", 6), ("do", 6))}
    inputs |= {"k": rng.standard_normal((3, 5, 2, 8)), "v": rng.standard_normal((3, 5, 2, 6)), "lse": rng.standard_normal((4, 9))}
    inputs["cu"] = np.array([0, 2, 2, 9], np.int32)
    with CONTEXT:
        want, got = interpret_attn.run(function, inputs), interpret_attn.run_module(kernels, inputs)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, atol=1e-11, err_msg=name)


def test_one_function_at_a_time():
    text = attention().text()
    module = parse_module(text + text.replace("@f(", "@g("), "test.mlir", CONTEXT)
    with pytest.raises(Diagnostic, match="there are 2 attn functions to outline"):
        run_pipeline(module, PASS)


def test_a_workspace_mark_has_no_value():
    text = attention().text().replace('attn.name = "o", ', 'attn.name = "o", attn.workspace = 1, ')
    with pytest.raises(Diagnostic, match="has attn.workspace = 1"):
        run_pipeline(parse_module(text, "test.mlir", CONTEXT), PASS)
    text = attention().text().replace('attn.name = "q", ', 'attn.name = "q", attn.workspace, ')
    with pytest.raises(Diagnostic, match="has no attribute 'attn.workspace' on argument 0"):
        run_pipeline(parse_module(text, "test.mlir", CONTEXT), PASS)
