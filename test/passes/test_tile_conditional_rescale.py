"""tile-conditional-rescale by execution: the numbers stay, whatever the maximum does, and accumulators are skipped where they may be."""

import attn_to_tile_programs as programs
import numpy as np
import pytest
from attn_to_tile_programs import CAUSAL, STRIPES, attention
from test_attn_to_tile import VARIANTS

from fa4c.ir.context import parse_module, print_module
from fa4c.ir.diagnostics import Diagnostic

TO_TILE = "attn-simplify-mask,attn-fold-scale,attn-to-tile{block-m=64 block-n=32}"
SIZES = dict(b=1, hq=2, hkv=1, m=70, n=170)


def pipeline(threshold: float) -> str:
    return f"{TO_TILE},tile-conditional-rescale{{threshold-log2={threshold}}}"


@pytest.mark.parametrize("threshold", [0, 0.5, 8, 15])
@pytest.mark.parametrize("mask", ["", CAUSAL, STRIPES])
def test_same_result(mask, threshold):
    programs.check_same(attention(mask=mask), pipeline(threshold), SIZES)


@pytest.mark.parametrize("growth", [1.0, 6.0, 60.0, -60.0, 1e4])
def test_same_result_while_the_maximum_grows(growth):
    """Keys are visited from the last to the first; each block's scores exceed the last one's by `growth`, in some rows only."""
    text = attention()
    inputs = programs.make_inputs(text, SIZES)
    blocks = -(np.arange(170) // 32)
    inputs["q"][...] = 0
    inputs["q"][:, ::3, :, 0] = 1
    inputs["k"][..., 0] = 8 * growth * blocks[None, :, None]
    want = programs.run_attn(text, inputs)
    assert programs.difference(want, programs.run_tile(text, pipeline(8), inputs)) < 1e-6 * max(1, np.abs(want["o1"]).max())


@pytest.mark.parametrize("growth", [1.0, 6.0, 60.0, -60.0])
def test_the_factors_say_what_is_scaled_in_tensor_memory(growth):
    """The same with blocks of 128 keys; the accumulator's map has a vote of its own, on the factors."""
    text = attention()
    inputs = programs.make_inputs(text, dict(SIZES, n=600))
    inputs["q"][...] = 0
    inputs["q"][:, ::3, :, 0] = 1
    inputs["k"][..., 0] = 8 * growth * -(np.arange(600) // 128)[None, :, None]
    want = programs.run_attn(text, inputs)
    passes = "attn-simplify-mask,attn-fold-scale,attn-to-tile,tile-accumulate-in-tmem,tile-conditional-rescale"
    module = programs.lower(f'module attributes {{fa4c.target = "sm_100a"}} {{\n{text}\n}}', passes)
    assert print_module(module).count("tile.vote_any") == 2
    with programs.CONTEXT:
        got = programs.interpret_tile.run(module, inputs)
    assert programs.difference(want, got) < 1e-6 * max(1, np.abs(want["o1"]).max())


@pytest.mark.parametrize("name", ["two softmaxes, two bands", "dropout of P", "row sums of P", "lse alone", "output scaled by lse"])
def test_other_variants(name):
    programs.check_same(VARIANTS[name], pipeline(8), SIZES, tolerance=2e-5)


def test_p_may_exceed_1_in_fp16():
    """A maximum that grows by less than the threshold in each block leaves P at up to 2**8."""
    text = attention(dtype="f16", score="")
    inputs = programs.make_inputs(text, SIZES)
    inputs["q"][...] = 0
    inputs["q"][..., 0] = 1
    inputs["k"][..., 0] = np.where(np.arange(170) < 138, 5.0, 0.0)[None, :, None]  # in the second block to be visited, log2(e) * 5 = 7.2
    want = programs.run_attn(text, inputs, "kernel")
    got = programs.run_tile(text, pipeline(8), inputs, "kernel")
    assert programs.difference(want, got) < 2e-3


def test_the_threshold_decides_who_is_rescaled():
    """With the skipped multiplication made wrong, results change exactly if some row's maximum grows enough."""
    text = attention(score="")
    inputs = programs.make_inputs(text, SIZES)
    inputs["q"][...] = 0
    inputs["q"][..., 0] = 1
    inputs["k"][..., 0] = np.where(np.arange(170) < 138, 5.0, 0.0)[None, :, None]
    want = programs.run_attn(text, inputs)
    for threshold, skipped in ((7, False), (8, True)):
        tile = print_module(programs.lower(text, pipeline(threshold)), locations=False)
        spoiled = spoil_accumulator_map(tile)
        with programs.CONTEXT:
            got = programs.interpret_tile.run(parse_module(spoiled, "t.mlir", programs.CONTEXT), inputs)
        assert (programs.difference(want, got) < 1e-5) == skipped


def spoil_accumulator_map(text: str) -> str:
    """Multiply by the factor twice, in the map with a condition and 16 columns: only the first block, whose sums are 0, does not mind."""
    lines = text.splitlines()
    end = next(n for n, line in enumerate(lines) if "array<i32: 2, 1>" in line and line.endswith("tensor<64x16xf32, #tile.reg>"))
    multiply = next(n for n in range(end, 0, -1) if "arith.mulf" in lines[n])
    result, factor = lines[multiply].split()[0], lines[multiply].split()[4]
    lines.insert(multiply + 1, f"      %twice = arith.mulf {result}, {factor} : f32")
    lines[multiply + 2] = lines[multiply + 2].replace(result, "%twice")
    return "\n".join(lines)


@pytest.mark.parametrize("threshold", [-1, 16])
def test_refuses(threshold):
    with pytest.raises(Diagnostic, match="out of range"):
        programs.lower(attention(), pipeline(threshold))


def test_refuses_a_scheduled_loop():
    text = print_module(programs.lower(attention(), f"{TO_TILE},tile-pipeline"))
    with pytest.raises(Diagnostic, match="'tile.rescale_factor' has its place in a schedule already"):
        programs.lower(text, "tile-conditional-rescale")
    programs.lower(attention(), f"{pipeline(8)},tile-pipeline")


def test_an_old_maximum_that_comes_later_is_left_alone():
    text = """!row = tensor<64xf32, #tile.reg>
    module {
      "tile.kernel"() ({
        %s = "tile.splat"() {value = 1.0 : f32} : () -> tensor<64x16xf32, #tile.reg>
        %new = "tile.reduce"(%s) {kind = "max"} : (tensor<64x16xf32, #tile.reg>) -> !row
        %old = "tile.splat"() {value = 0.0 : f32} : () -> !row
        %f = "tile.rescale_factor"(%old, %new) {scale_log2 = 1.0 : f32} : (!row, !row) -> !row
      }) {sym_name = "k"} : () -> ()
    }"""
    assert "vote_any" not in print_module(programs.lower(text, "tile-conditional-rescale"))
