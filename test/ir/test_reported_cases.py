"""Reports against other libraries, as small inputs at the attn level: what is right follows from the definition of attention.

The same cases run through every lower level; here the meaning itself is pinned.
"""

import numpy as np
import pytest
import torch

from fa4c.frontend.to_mlir import to_mlir
from fa4c.frontend.variant import standard
from fa4c.ir import interpret_attn
from fa4c.ir.context import new_context, parse_module
from fa4c.passes.registry import run_pipeline

CONTEXT = new_context()


def execute(tree: dict, inputs: dict, *, simplify: bool) -> dict:
    module = parse_module(to_mlir(tree), "case.mlir", CONTEXT)
    if simplify:
        run_pipeline(module, "attn-simplify-mask")
    return interpret_attn.run(module.body.operations[0], inputs)


def qkv(b, hq, hkv, m, n, d, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (b, m, hq, d), "k": (b, n, hkv, d), "v": (b, n, hkv, d)}
    return {name: torch.randn(*shape, generator=generator, dtype=torch.float64) * scale for name, shape in shapes.items()}


both = pytest.mark.parametrize("simplify", [False, True])


@both
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("b, m, n", [(1, 64, 0), (1, 0, 64), (0, 64, 64)])
def test_empty_problems(simplify, causal, b, m, n):
    result = execute(standard(causal=causal, d=64), qkv(b, 2, 2, m, n, 64), simplify=simplify)
    assert result["o"].shape == (b, m, 2, 64) and result["lse"].shape == (b, 2, m)
    assert (result["o"] == 0).all() and np.isneginf(result["lse"]).all()


@both
@pytest.mark.parametrize("d", [8, 16, 64])
def test_one_query_one_key(simplify, d):
    inputs = qkv(1, 1, 1, 1, 1, d, scale=3.0)
    result = execute(standard(causal=True, d=d), inputs, simplify=simplify)
    np.testing.assert_array_equal(result["o"], inputs["v"].numpy())


@both
def test_a_right_window_wider_than_the_keys_hides_none(simplify):
    """Sq = 8, Sk = 2, right = 100 under the bottom-right rule: every row sees both keys."""
    inputs = qkv(1, 1, 1, 8, 2, 16)
    wide = execute(standard(window=(None, 100), d=16), inputs, simplify=simplify)
    full = execute(standard(d=16), inputs, simplify=simplify)
    np.testing.assert_array_equal(wide["o"], full["o"])
    narrow = execute(standard(window=(None, 2), d=16), inputs, simplify=simplify)
    assert np.isneginf(narrow["lse"][0, 0]).tolist() == [True] * 4 + [False] * 4  # row i sees j <= i - 6 + 2


@both
def test_a_score_function_that_ignores_the_score_averages_the_values(simplify):
    tree = standard(causal=True, d=64)
    tree["body"][1]["expr"] = [["const", 1.0, "f32"]]
    inputs = qkv(1, 2, 1, 128, 128, 64)
    result = execute(tree, inputs, simplify=simplify)
    means = inputs["v"].cumsum(1) / torch.arange(1, 129, dtype=torch.float64)[None, :, None, None]
    np.testing.assert_allclose(result["o"], means.repeat_interleave(2, 2).numpy(), atol=1e-13)


@both
def test_very_negative_scores_stay_finite(simplify):
    """Logits about -120 in f32: the row sum must not underflow before the maximum is taken out."""
    inputs = qkv(1, 1, 1, 192, 192, 64, scale=0.01)
    inputs["q"][..., 0], inputs["k"][..., 0] = 1.0, -120 * 8.0
    tree = standard(causal=True, d=64)
    module = parse_module(to_mlir(tree), "case.mlir", CONTEXT)
    if simplify:
        run_pipeline(module, "attn-simplify-mask")
    for mode in ("float64", "kernel"):
        result = interpret_attn.run(module.body.operations[0], inputs, mode)
        assert np.isfinite(result["o"]).all() and (result["lse"] < -100).all()


@both
def test_a_window_wider_than_the_sequence_is_full_attention(simplify):
    inputs = qkv(2, 4, 2, 33, 17, 16)
    wide = execute(standard(window=(1000, 1000), d=16), inputs, simplify=simplify)
    full = execute(standard(d=16), inputs, simplify=simplify)
    np.testing.assert_array_equal(wide["o"], full["o"])


@both
def test_equal_and_huge_scores(simplify):
    inputs = qkv(1, 2, 2, 20, 20, 16)
    for factor in (0.0, 1e4):
        scaled = {**inputs, "q": inputs["q"] * factor}
        result = execute(standard(causal=True, d=16), scaled, simplify=simplify)
        assert np.isfinite(result["o"]).all() and np.isfinite(result["lse"]).all()
    equal = execute(standard(d=16), {**inputs, "q": inputs["q"] * 0}, simplify=simplify)
    np.testing.assert_allclose(equal["lse"], np.log(20), atol=1e-14)
