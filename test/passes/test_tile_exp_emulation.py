"""tile-exp-emulation by execution: nothing but the unit changes."""

import re

import attn_to_tile_programs as programs
import pytest
from attn_to_tile_programs import CAUSAL, attention, function, gemm_qk, map_op, softmax

from fa4c import targets
from fa4c.ir.context import print_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.lowering.compile import compile_text

TO_TILE = "attn-simplify-mask,attn-fold-scale,attn-to-tile{block-m=64 block-n=32}"
SIZES = dict(b=1, hq=2, hkv=1, m=70, n=100)


def text_after(options: str) -> str:
    return print_module(programs.lower(attention(mask=CAUSAL), f"{TO_TILE},tile-exp-emulation{options}"), locations=False)


@pytest.mark.parametrize("share", [1, 2, 16])
def test_same_result(share):
    programs.check_same(attention(mask=CAUSAL), f"{TO_TILE},tile-exp-emulation{{share={share}}}", SIZES)


@pytest.mark.parametrize("share", [1, 16])
def test_in_the_kernels_dtype(share):
    """The emulation's error is below that of bf16 by far."""
    text = attention(mask=CAUSAL)
    inputs = programs.make_inputs(text, SIZES)
    exact = programs.run_tile(text, TO_TILE, inputs, "kernel")
    emulated = programs.run_tile(text, f"{TO_TILE},tile-exp-emulation{{share={share}}}", inputs, "kernel")
    assert programs.difference(exact, emulated) < 2.0**-6


def example_after(name: str, options: str = "") -> str:
    passes = f"attn-simplify-mask,attn-fold-scale,attn-to-tile,tile-exp-emulation{options}"
    return print_module(programs.lower(programs.example(name), passes), locations=False)


def test_the_target_decides_where_nothing_is_said():
    """Plain attention stays on the special-function unit; where that limits the loop, the target's share is taken."""
    assert example_after("causal") == example_after("causal", "{share=0}")
    with targets.override("sm_90a", exp2_emulated=3, mufu=4):
        assert example_after("causal") == example_after("causal", "{share=3}") != example_after("causal", "{share=0}")
    with targets.override("sm_90a", exp2_emulated=3, mufu=4, exp2_emulation_from=1000.0):
        assert example_after("causal") == example_after("causal", "{share=0}")
    assert text_after("{share=3}").count("emulated = 3") == 1  # P; row statistics stay


@pytest.mark.parametrize(("name", "emulated"), [("causal", 0), ("full", 0), ("softcap", 1)])
def test_a_soft_cap_is_emulated_and_plain_attention_is_not(name, emulated):
    assert example_after(name).count("emulated = 4") == emulated


def test_rows_stay_on_the_special_function_unit():
    rows = map_op("e", ["lse"], "\n    %y = math.exp2 %x : f32", shapes=("?",))
    text = function(gemm_qk() + softmax(x="s") + rows, [("e", "tensor<?xf32>", "m")])
    after = print_module(programs.lower(text, f"{TO_TILE},tile-exp-emulation{{share=4}}"), locations=False)
    assert after.count("math.exp2") == after.count("tile.exp2") == 1


@pytest.mark.parametrize("share", [-2, 17])
def test_refuses(share):
    with pytest.raises(Diagnostic, match=f"share={share} is out of range"):
        text_after(f"{{share={share}}}")


def share_on_blackwell(name: str, head_dim: tuple[int, int]) -> int:
    """Of 16 groups, emulated in P; 0 where P stays on the special-function unit."""
    file = programs.EXAMPLES / name
    text = compile_text(file.read_text(), str(file), emit="tile", target="sm_100a", head_dim=head_dim)
    found = [int(n) for n in re.findall(r"emulated = (\d+)", text)]
    assert len(found) <= 1
    return found[0] if found else 0


# MMA / exponentials, in clocks of a 128-row block: 512 / 1032 at 64, 1024 / 1032 at 128, 960 / 776 (96 columns), 1280 / 648 (80 columns)
@pytest.mark.parametrize(("head_dim", "share"), [((64, 64), 6), ((128, 128), 2), ((192, 128), 0), ((256, 256), 0)])
def test_the_model_decides_where_nothing_was_measured(head_dim, share):
    """Head dim 128: least share with 1032 - 64 n <= 0.9 * 1024. At 64 that is out of reach: 1032 - 64 n meets what FMA and ALU then do."""
    assert share_on_blackwell("causal.mlir", head_dim) == share


@pytest.mark.parametrize(("name", "share"), [("full.mlir", 6), ("window.mlir", 6), ("document.mlir", 0)])
def test_a_mask_in_every_block_takes_slots(name, share):
    """Document numbers are compared in every block, 12 operations of the ALU an element; a window's limits in blocks at its edges."""
    assert share_on_blackwell(name, (64, 64)) == share


def test_the_special_function_rate_decides():
    shares = []
    for mufu in (8, 16, 32):  # halved, as it is, as on B300
        with targets.override("sm_100a", mufu=mufu):
            shares.append(share_on_blackwell("causal.mlir", (128, 128)))
    assert shares == [9, 2, 0]


def test_more_special_work_is_emulated_more():
    assert share_on_blackwell("softcap.mlir", (128, 128)) == 16
