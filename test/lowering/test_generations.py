"""One input through three generations of pipelines: each right in the emulator, and the clocks move as the passes promise."""

import re

import compiled
import pytest

from fa4c.cli import compile as cli
from fa4c.cli import run_backward
from fa4c.explain import explain
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.passes.pipelines import GENERATIONS, PIPELINES
from fa4c.passes.registry import run_pipeline
from fa4c.runtime import check, emulated, execute
from fa4c.runtime.inputs import make_inputs

CAUSAL = (compiled.EXAMPLES / "causal.mlir").read_text()


@pytest.mark.parametrize("generation", ["fa2", "fa3"])
def test_right_in_the_emulator(generation):
    """fa4 is the standard pipeline of its target, which has tests of its own."""
    kernel = compiled.loaded("causal.mlir", generation=generation)
    inputs = make_inputs(kernel.manifest["semantics"], dict(b=1, hq=2, hkv=1, m=150, n=200), 0, "cpu")
    rows = check.check(kernel.manifest["semantics"], inputs, execute.execute(kernel, inputs, backend="emulator"))
    assert all(row.ok for row in rows), rows
    assert all(entry["local_bytes"] == 0 for entry in kernel.manifest["kernels"].values())


def test_the_backward_of_one_role_is_right():
    """fa3's is the standard one of its target."""
    kernel = compiled.loaded("causal.mlir", generation="fa2", direction="bwd", head_dim=(64, 64))
    program, sizes = run_backward.of_artifact(kernel, "bwd"), dict(b=1, hq=2, hkv=1, m=150, n=200)
    inputs, more = make_inputs(program.semantics, sizes, 0, "cpu"), run_backward.arriving(program, sizes, 0, {}, "cpu")
    more |= run_backward.stored(program, inputs, more, {})
    found, reports = emulated.run_reported(kernel, {**inputs, **more}, ["dq", "dk", "dv"], schedule="random")
    assert all(report.ok for report in reports) and GENERATIONS["fa3"]["sm_90a", "bwd"] == PIPELINES["sm_90a", "bwd"]
    rows = run_backward.check(program, inputs, more, found)
    assert len(rows) == 6 and all(row.ok for row in rows), rows


def test_fa4_is_what_its_target_does_now():
    assert GENERATIONS["fa4"] == {key: parts for key, parts in PIPELINES.items() if key[0] == "sm_100a"}
    assert tuple(GENERATIONS) == cli.GENERATIONS


def test_fa2_has_one_role_both_ways():
    for direction in ("fwd", "bwd"):
        text = compiled.level("causal.mlir", "warp", generation="fa2", direction=direction, head_dim=(64, 64))
        kernel = next(part for part in text.split('"warp.kernel"') if "warp.wgmma" in part)
        assert kernel.count('"warp.role"') == 1 and 'scope = "role"' in kernel


def test_what_bounds_a_step_moves():
    """Clocks between steps, for as many scores: waits, then exponentials that find no time beside the MMAs, then the MMAs."""
    found = {}
    for generation in GENERATIONS:
        (kernel,) = explain(CAUSAL, "causal.mlir", generation=generation, changes=False)["kernels"]
        (found[generation],) = kernel["steps"]
    assert all(step["clocks"]["mma"] == 2048 for step in found.values())  # of fa4 for twice the rows
    assert found["fa2"]["interval"] > 1.8 * found["fa3"]["interval"] > 1.8 * 2048
    assert found["fa3"]["clocks"]["exp"] < 0.6 * 2048  # half of the MMAs' on Hopper, level with them on Blackwell
    assert 0.85 * 2048 < found["fa4"]["clocks"]["exp"] < 2048 and found["fa4"]["bound"] == "mma"
    assert 2048 < found["fa4"]["interval"] < 0.85 * found["fa3"]["interval"]  # and twice the rows


def test_a_missing_acquire_of_one_role_is_refused():
    """Loads of the next block would overwrite what other warps still read."""
    text = compiled.level("causal.mlir", "warp", generation="fa2", head_dim=(64, 64))
    wrong = re.sub(r'\n *"warp.acquire".*', "", text)
    assert wrong != text
    with new_context() as context, pytest.raises(Diagnostic, match="was not acquired"):
        run_pipeline(parse_module(wrong, "wrong.mlir", context), "warp-check")


def test_one_role_cannot_sum_in_tensor_memory():
    with pytest.raises(Diagnostic, match="is to have one role"):
        compiled.level("causal.mlir", "warp", target="sm_100a", overrides=(("warp-specialize", "roles", "one"),))
    with pytest.raises(Diagnostic, match="there is no pipeline of fa4 for sm_90a"):
        compiled.level("causal.mlir", "warp", target="sm_90a", generation="fa4")
