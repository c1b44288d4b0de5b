"""Every example has a backward that reaches the tile level, plain and deterministic, for all head dims; odd ones reach the warp level."""

import compiled
import pytest

from fa4c.ir.diagnostics import Diagnostic

EXAMPLES = sorted(path.stem for path in compiled.EXAMPLES.glob("*.mlir"))


@pytest.mark.parametrize("head_dim", [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256), (40, 40)], ids=str)
@pytest.mark.parametrize("example", EXAMPLES)
def test_tile_level(example, head_dim):
    options = dict(direction="bwd", head_dim=head_dim)
    assert compiled.level(f"{example}.mlir", "tile", **options).count('role = "output"') == (4 if example == "alibi" else 3)
    wrt = (("attn-derive-backward", "wrt", "q,k,v"),)
    text = compiled.level(f"{example}.mlir", "tile", deterministic=True, overrides=wrt, **options)
    assert text.count('role = "output"') == 3 and "tile.global_add" not in text


def test_a_sum_in_any_order_is_not_deterministic():
    """The gradient of ALiBi's slopes is added up by all CTAs of a head."""
    with pytest.raises(Diagnostic, match="'tile.global_add' adds to what other CTAs add to") as caught:
        compiled.level("alibi.mlir", "tile", direction="bwd", deterministic=True)
    assert "wrt=q,k,v" in caught.value.fix


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
