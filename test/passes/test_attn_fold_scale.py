"""attn-fold-scale by execution, and what it leaves alone."""

import attn_to_tile_programs as programs
import pytest
from attn_to_tile_programs import CAUSAL, SCALED, attention, cast, function, gemm_pv, gemm_qk, map_op, mask_op, softmax

from fa4c.ir.context import print_module

SIZES = dict(b=1, hq=2, hkv=1, m=20, n=30)
PASS = "attn-fold-scale"
LSE = ("lse", "tensor<?xf32>", "m")


def constant(value: str, name: str) -> str:
    return f"\n    %{name} = arith.constant {value} : f32"


def scale_after(text: str) -> float:
    module = programs.lower(text, PASS)
    with programs.CONTEXT:
        (op,) = [op for op in module.body.operations[0].regions[0].blocks[0].operations if op.operation.name == "attn.softmax"]
        return op.scale.value


def count_after(text: str, name: str) -> int:
    return print_module(programs.lower(text, PASS), locations=False).count(name)


SCORES = {
    "a factor": (SCALED, 0.125, 0),
    "on the left": (constant("0.125", "c") + "\n    %y = arith.mulf %c, %x : f32", 0.125, 0),
    "two factors": (SCALED.replace("%y", "%w") + constant("3.0", "e") + "\n    %y = arith.mulf %w, %e : f32", 0.375, 0),
    "a quotient": (constant("8.0", "c") + "\n    %y = arith.divf %x, %c : f32", 0.125, 0),
    "softcap": (
        SCALED.replace("%y", "%w")
        + constant("0.05", "cap")
        + "\n    %z = arith.mulf %w, %cap : f32\n    %t = math.tanh %z : f32"
        + constant("20.0", "e")
        + "\n    %y = arith.mulf %t, %e : f32",
        20.0,
        1,
    ),
    "negative": (constant("-0.125", "c") + "\n    %y = arith.mulf %x, %c : f32", 1.0, 1),
    "zero": (constant("0.0", "c") + "\n    %y = arith.mulf %x, %c : f32", 1.0, 1),
    "infinite": (constant("0x7F800000", "c") + "\n    %y = arith.mulf %x, %c : f32", 1.0, 1),
    "a quotient by zero": (constant("0.0", "c") + "\n    %y = arith.divf %x, %c : f32", 1.0, 1),
    "a sum last": (SCALED.replace("%y", "%w") + "\n    %y = arith.addf %w, %c : f32", 1.0, 1),
    "the square": ("\n    %y = arith.mulf %x, %x : f32", 1.0, 1),
    "divided by x": (constant("8.0", "c") + "\n    %y = arith.divf %c, %x : f32", 1.0, 1),
    "negative twice": (constant("-0.5", "c") + "\n    %w = arith.mulf %x, %c : f32\n    %y = arith.mulf %w, %c : f32", 0.25, 0),
    "too small together": (
        constant("1.0e-30", "c") + "\n    %w = arith.mulf %x, %c : f32" + constant("1.0e-35", "e") + "\n    %y = arith.mulf %w, %e : f32",
        1.0e-35,
        1,
    ),
}


@pytest.mark.parametrize("mask", ["", CAUSAL])
@pytest.mark.parametrize("name", SCORES)
def test_folds(name, mask):
    score, scale, maps = SCORES[name]
    text = attention(score=score, mask=mask)
    assert scale_after(text) == pytest.approx(scale)
    assert count_after(text, '"attn.map"') == maps
    inputs = programs.make_inputs(text, SIZES)
    module = programs.lower(text, f"attn-simplify-mask,{PASS}")
    with programs.CONTEXT:
        got = programs.interpret_attn.run(module.body.operations[0], inputs)
    assert programs.difference(programs.run_attn(text, inputs), got) < 2e-6


def test_an_existing_scale_is_multiplied():
    text = attention().replace('"attn.softmax"(%t)', '"attn.softmax"(%t) {scale = 2.0 : f32}')
    assert scale_after(text) == 0.25


def test_through_several_maps():
    text = function(gemm_qk() + map_op("a", ["s"], SCALED) + mask_op("u", "a", CAUSAL) + map_op("t", ["u"], SCALED) + softmax(x="t"), [LSE])
    assert scale_after(text) == 0.125**2
    assert count_after(text, '"attn.map"') == 0


def test_a_scale_stays_a_normal_number():
    tiny = [constant(value, "c") + "\n    %y = arith.mulf %x, %c : f32" for value in ("1.0e-30", "1.0e-35")]
    text = function(gemm_qk() + map_op("a", ["s"], tiny[0]) + map_op("t", ["a"], tiny[1]) + softmax(x="t"), [LSE])
    assert scale_after(text) == pytest.approx(1e-35)
    assert count_after(text, '"attn.map"') == 1


def test_scores_that_others_read_stay():
    body = (
        gemm_qk()
        + map_op("t", ["s"], SCALED)
        + softmax(x="t")
        + '  %n = "attn.reduce"(%t) {kind = "max"} : (tensor<?x?xf32>) -> tensor<?xf32>\n'
    )
    text = function(body, [LSE, ("n", "tensor<?xf32>", "m")])
    assert scale_after(text) == 1.0 and count_after(text, '"attn.map"') == 1


def test_merges_in_maps_that_feed_no_softmax():
    score = constant("2.0", "c") + "\n    %w = arith.mulf %x, %c : f32\n    %z = arith.divf %w, %c : f32\n    %y = math.tanh %z : f32"
    text = function(gemm_qk() + map_op("p", ["s"], score) + cast("pc", "p") + gemm_pv(), [("o", "tensor<?x16xf32>", "m dv")])
    after = print_module(programs.lower(text, PASS), locations=False)
    assert after.count("arith.mulf") == 1 and "arith.divf" not in after and "1.000000e+00" in after


def test_locations_stay():
    score = constant("8.0", "c") + "\n    %w = arith.divf %x, %c : f32\n    %y = math.tanh %w : f32"
    text = print_module(programs.lower(attention(score=score), PASS))
    line = next(line for line in text.splitlines() if "arith.mulf" in line)
    assert programs.source_line(text, line) == 7
