"""Every example has a backward that reaches the tile level, plain and deterministic, for all head dims; odd ones reach the warp level."""

import pathlib
import sys

import compiled
import pytest

from fa4c.frontend.to_mlir import to_mlir
from fa4c.ir.diagnostics import Diagnostic
from fa4c.lowering.compile import compile_text

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "runtime"))
from runtime_samples import attention_tree  # noqa: E402

EXAMPLES = sorted(path.stem for path in compiled.EXAMPLES.glob("*.mlir"))


@pytest.mark.parametrize("head_dim", [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256), (40, 40)], ids=str)
@pytest.mark.parametrize("example", EXAMPLES)
def test_tile_level(example, head_dim):
    options = dict(direction="bwd", head_dim=head_dim)
    outputs = 4 if example == "alibi" else 3
    assert compiled.level(f"{example}.mlir", "tile", **options).count('role = "output"') == outputs
    text = compiled.level(f"{example}.mlir", "tile", deterministic=True, **options)
    assert text.count('role = "output"') == outputs and text.count("tile.global_add") == text.count("tile.wait_count")


@pytest.mark.parametrize("example", ["causal", "alibi"])
def test_a_sum_in_any_order_is_not_deterministic(example):
    with pytest.raises(Diagnostic, match="'tile.global_add' adds to what other CTAs add to, in any order"):
        compiled.level(f"{example}.mlir", "tile", direction="bwd", deterministic=True, disabled=("tile-deterministic-reduction",))


def test_a_gradient_over_queries_and_keys_is_refused():
    """Of a captured bias (m, n): it would be as large as the scores. Frozen, it is read like any table."""
    text = to_mlir(attention_tree(
        score=[["x", 0], ["index", "i"], ["index", "j"], ["load", "bias", 1, 2], ["add", 0, 3]], align="top_left",
        captures=[dict(name="bias", axes=["b", "hq"], dims=["m", "n"], dtype="f32", shape=[None, None])]))  # fmt: skip
    with pytest.raises(Diagnostic, match="makes the m x n values of the result 'dbias'"):
        compile_text(text, "bias.mlir", direction="bwd", emit="tile")
    frozen = compile_text(text, "bias.mlir", direction="bwd", emit="tile", overrides=[("attn-derive-backward", "wrt", "q,k,v")])
    assert frozen.count('role = "output"') == 3
    # P past the last query is made 0 for dV and dS at once: a thread of sm_100a has no registers for a second P
    options = dict(direction="bwd", target="sm_100a", overrides=[("attn-derive-backward", "wrt", "q,k,v")])
    assert "warp.role" in compile_text(text, "bias.mlir", emit="warp", **options)


@pytest.mark.parametrize("head_dim", [(8, 8), (40, 40), (72, 72), (80, 80), (136, 136), (64, 128), (128, 64)], ids=str)
def test_odd_head_dims(head_dim):
    for deterministic in (False, True):
        assert "warp.kernel" in compiled.level("causal.mlir", "warp", direction="bwd", head_dim=head_dim, deterministic=deterministic)


@pytest.mark.parametrize("of", ["o", "o,lse", "lse"])
@pytest.mark.parametrize("wrt", ["q", "k", "v", "q,k", "q,v", "k,v", "q,k,v"])
def test_parts_of_a_backward(of, wrt):
    """What autograd asks for where some inputs are frozen and some results unused."""
    if of == "lse" and "v" in wrt:
        pytest.skip("LSE does not depend on V: autograd does not ask")
    overrides = tuple(("attn-derive-backward", name, names) for name, names in (("of", of), ("wrt", wrt)))
    for deterministic in (False, True):
        text = compiled.level("causal.mlir", "tile", direction="bwd", head_dim=(64, 64), deterministic=deterministic, overrides=overrides)
        assert text.count('role = "output"') == wrt.count(",") + 1
