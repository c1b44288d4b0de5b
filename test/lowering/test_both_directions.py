"""What the compiler writes for a backward: the derived function and its forward in the manifest, both directions in one artifact."""

import compiled
import pytest

from fa4c.ir.diagnostics import Diagnostic
from fa4c.lowering.compile import compile_text

OPTIONS = dict(head_dim=(64, 64))


@pytest.fixture(scope="module")
def both():
    return compiled.loaded("causal.mlir", direction="both", **OPTIONS)


def test_one_artifact_holds_both(both):
    assert both.direction == "both" and both.backward.direction == "bwd"
    assert [t.name for t in both.program.outputs] == ["o", "lse"]
    assert {t.name for t in both.backward.program.outputs} == {"dq", "dk", "dv"}
    assert {t.name for t in both.backward.program.inputs} == {"q", "k", "v", "o", "lse", "do"}
    assert set(both.backward.members) < set(both.members)
    alone = compiled.loaded("causal.mlir", direction="bwd", **OPTIONS)
    assert alone.digest == both.backward.digest


def test_semantics_are_the_whole_backward_and_the_forward(both):
    """Whatever kernels it was cut into; the forward is the one before any pass."""
    inner = both.backward
    assert [r["name"] for r in inner.semantics["results"]] == ["dq", "dk", "dv"] and inner.semantics["name"].endswith("_bwd")
    assert sum(op["op"] == "gemm" for op in inner.semantics["body"]) == 5
    assert inner.forward_semantics["args"] == both.semantics["args"] and inner.forward_semantics["results"] == both.semantics["results"]


def test_options_of_the_derivation_reach_the_manifest():
    made = compiled.loaded(
        "causal.mlir", direction="bwd", overrides=(("attn-derive-backward", "of", "o,lse"), ("attn-derive-backward", "wrt", "v")), **OPTIONS
    )
    assert [t.name for t in made.program.outputs] == ["dv"] and [r["name"] for r in made.semantics["results"]] == ["dv"]


@pytest.mark.parametrize("options", [dict(emit="tile"), dict(pipeline="attn-to-tile")])
def test_both_is_an_artifact(options):
    text = (compiled.EXAMPLES / "causal.mlir").read_text()
    with pytest.raises(Diagnostic, match="is of one direction"):
        compile_text(text, direction="both", **options)


def test_a_forward_compiled_as_bwd_with_passes_of_ones_own_names_no_forward():
    """Nothing was derived: the program is what the file says."""
    pipeline = "attn-simplify-mask,attn-fold-scale,attn-to-tile,tile-pipeline,warp-specialize,cse,warp-insert-barriers,warp-check"
    made = compiled.loaded("causal.mlir", direction="bwd", pipeline=pipeline, **OPTIONS)
    assert "forward" not in made.manifest and made.forward_semantics is None


def test_deterministic_kernels_add_in_turn():
    plain, fixed = (compiled.loaded("causal.mlir", direction="bwd", deterministic=d, **OPTIONS) for d in (False, True))
    assert plain.digest != fixed.digest
    for artifact, in_turn in ((plain, False), (fixed, True)):
        (kernel,) = [data.decode() for name, data in artifact.members.items() if name.endswith(".ptx") and "cp.reduce" in data.decode()]
        assert ("ld.acquire.gpu" in kernel and "red.release.gpu" in kernel and "ld.relaxed" not in kernel) == in_turn
        assert any(w["name"] == "dq_sum_turns" and w["init"] == "zero" for w in artifact.manifest["workspaces"]) == in_turn
