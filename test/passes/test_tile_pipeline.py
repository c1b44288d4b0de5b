"""`tile-pipeline` on whole programs: which schedule it finds, that it computes the same, and what it refuses."""

import importlib.util
import pathlib
import re

import numpy as np
import pytest

from fa4c import targets
from fa4c.ir import interpret_tile
from fa4c.ir.context import parse_module, print_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.passes import loop_graph, tile_pipeline
from fa4c.passes.registry import run_pipeline

HERE = pathlib.Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples" / "tile"
_spec = importlib.util.spec_from_file_location("tile_pipeline_programs", HERE / "tile_pipeline_programs.py")
programs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(programs)


def scheduled(text: str, options: str = ""):
    module = parse_module(text, "loop.mlir")
    run_pipeline(module, f"tile-pipeline{options}")
    return module


def plans(module, **options):
    found = [tile_pipeline.plan_loop(loop, targets.of(module), **options) for loop in loop_graph.pipelined_loops(module)]
    for plan in found:
        plan.module = module  # the operations live as long as it does
    return found


def kinds(plan) -> list[str]:
    """The step as a list, such as "mma@1" for an MMA of stage 1; maps are told apart by the type they give."""
    names = []
    for _, stage, op in sorted(zip(plan.orders, plan.stages, plan.loop.ops, strict=True), key=lambda entry: entry[0]):
        kind = op.operation.name.removeprefix("tile.")
        if kind == "map":
            kind = f"map {'x'.join(map(str, op.out.type.shape))}x{op.out.type.element_type}"
        names.append(kind + (f"@{stage}" if stage else ""))
    return names


# ------------------------------------------------------------------------------------------------------------------- schedules


def test_attention_gets_the_order_of_fa3():
    """QK of this block, PV of the last, softmax meanwhile; then the cast of P and the rescale of O, which need PV to be done."""
    (plan,) = plans(parse_module(programs.attention(128, 64, 128)))
    assert kinds(plan) == ["load", "mma", "load@1", "mma@1", "map 128x64xf32", "reduce", "rescale_factor", "map 128x64xf32",
                           "map 128x4xf32", "reduce", "map 128x64xbf16", "map 128x128xf32"]
    assert plan.exact


@pytest.mark.parametrize("shape", [(192, 128, 64), (128, 128, 128), (128, 80, 256), (64, 64, 32)])
@pytest.mark.parametrize("conditional", [False, True])
def test_attention_overlaps_at_every_shape(shape, conditional):
    module = parse_module(programs.attention(*shape, conditional=conditional))
    (plan,), (plain,) = plans(module), plans(module, stages=1)
    assert [kind for kind in kinds(plan) if "mma" in kind] == ["mma", "mma@1"]
    assert kinds(plan)[:4] == ["load", "mma", "load@1", "mma@1"]
    assert sum(plan.stages) == 2  # PV and the load of V
    assert plan.ii < plain.ii
    assert set(plain.stages) == {0}


def test_two_gemms_get_the_same_shape_without_a_softmax():
    (plan,) = plans(parse_module((EXAMPLES / "two_gemms.mlir").read_text()))
    assert kinds(plan) == ["load", "mma", "load@1", "mma@1", "map 128x128xbf16"]


def test_a_plain_gemm_has_nothing_to_overlap():
    (plan,) = plans(parse_module((EXAMPLES / "gemm.mlir").read_text()))
    assert kinds(plan) == ["load", "load", "mma"]
    assert plan.ii == 2 * 128 * 128 * 64 // 4096  # the tensor cores never wait


# --------------------------------------------------------------------------------------------------------- the same numbers


@pytest.mark.parametrize("blocks", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("conditional", [False, True])
def test_attention_computes_the_same_after_scheduling(blocks, conditional):
    text = programs.attention(64, 32, 32, conditional=conditional)
    inputs = programs.make_inputs(192, max(32 * blocks - 5, 0), 32)
    before = interpret_tile.run(parse_module(text), inputs, mode="value", dtype="float64")
    after = interpret_tile.run(scheduled(text), inputs, mode="storage", dtype="float64")
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])
    expected = programs.reference(**inputs)
    np.testing.assert_allclose(after["o"], expected[0], atol=1e-6)  # the program's scale is an f32
    np.testing.assert_allclose(after["lse"], expected[1], atol=1e-6)


@pytest.mark.parametrize("n", [0, 100, 256, 300, 640])
def test_two_gemms_compute_the_same_after_scheduling(n):
    text = (EXAMPLES / "two_gemms.mlir").read_text()
    rng = np.random.default_rng(n)
    inputs = {"a": rng.standard_normal((130, 64)), "b": rng.standard_normal((n, 64)), "c": rng.standard_normal((n, 128))}
    before = interpret_tile.run(parse_module(text), inputs, mode="value", dtype="float64")
    after = interpret_tile.run(scheduled(text), inputs, mode="storage", dtype="float64")
    np.testing.assert_array_equal(before["out"], after["out"])


def test_a_wrong_order_would_be_noticed():
    """The check above sees a cast of P that overwrites what PV has not read yet."""
    module = scheduled(programs.attention(64, 32, 32))
    steps = kinds(plans(module)[0])
    pv, cast = steps.index("mma@1"), steps.index("map 64x32xbf16")

    def moved(found) -> str:
        order = int(found[1])
        return f"order = {cast if order == pv else order - (pv < order <= cast)} : i64"

    wrong = re.sub(r"order = (\d+) : i64", moved, print_module(module, locations=False))
    inputs = programs.make_inputs(192, 192, 32)
    expected = interpret_tile.run(module, inputs, mode="value", dtype="float64")
    got = interpret_tile.run(parse_module(wrong), inputs, mode="storage", dtype="float64")
    assert not np.allclose(expected["o"], got["o"])


def test_refuses_nothing_silently():
    with pytest.raises(Diagnostic, match="stages=-1 is no count"):
        scheduled(programs.attention(), "{stages=-1}")
