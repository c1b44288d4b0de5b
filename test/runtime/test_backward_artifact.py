"""Artifacts with a backward: what the file may say, both directions in one file, and the reference on the derived tree."""

import copy

import pytest
import torch
from runtime_samples import (
    BACKWARD_MEMBERS,
    CAUSAL,
    MEMBERS,
    SLOPES,
    attention_tree,
    backward_manifest,
    backward_tree,
    both_manifest,
    manifest,
)

from fa4c.runtime import artifact, execute, gradients, reference
from fa4c.runtime.errors import ManifestError
from fa4c.runtime.inputs import make_inputs
from fa4c.runtime.manifest import validate

SIZES = [
    dict(b=2, hq=4, hkv=2, m=13, n=20),
    dict(b=1, hq=3, hkv=1, m=20, n=13),
    dict(b=1, hq=2, hkv=2, m=8, n=0), dict(b=0, hq=2, hkv=2, m=8, n=8)]


@pytest.mark.parametrize("of", [("o",), ("o", "lse"), ("lse",)])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_sample_is_a_right_backward(sizes, of):
    """So that tests that use it mean something; empty rows and sizes of 0 included."""
    forward = attention_tree(mask=CAUSAL, d=16, dv=24)
    tree = backward_tree(forward, of=of)
    inputs = make_inputs(forward, sizes)
    stored = reference.evaluate(forward, inputs)
    given = {name: torch.randn(stored[name].shape, dtype=torch.float64) for name in of}
    wanted = gradients.gradients(forward, inputs, given)
    got = reference.evaluate(tree, {**inputs, **stored, **{f"d{name}": g for name, g in given.items()}})
    for name, gradient in got.items():
        torch.testing.assert_close(gradient, wanted[name[1:]], rtol=0, atol=1e-12)


def test_saved_and_loaded_both_directions(tmp_path):
    whole = artifact.build(*both_manifest())
    whole.save(tmp_path / "both.fa4c")
    read = artifact.load(tmp_path / "both.fa4c")
    assert read.manifest == whole.manifest and read.direction == "both"
    inner = read.backward
    assert inner is read.backward and inner.direction == "bwd" and set(inner.members) == set(BACKWARD_MEMBERS)
    assert [t.name for t in inner.program.inputs] == ["q", "k", "v", "o", "lse", "do"]
    assert [t.name for t in inner.program.outputs] == ["dq", "dk", "dv"] and [t.name for t in read.program.outputs] == ["o", "lse"]
    assert read.forward_semantics == read.semantics == inner.forward_semantics
    inner.save(tmp_path / "bwd.fa4c")
    alone = artifact.load(tmp_path / "bwd.fa4c")
    assert alone.manifest == inner.manifest and alone.backward is alone and alone.digest == inner.digest


def test_one_direction():
    forward = artifact.build(manifest(), MEMBERS)
    assert forward.backward is None and forward.forward_semantics == forward.semantics
    unknown = backward_manifest()
    del unknown["forward"]
    assert artifact.build(unknown, BACKWARD_MEMBERS).forward_semantics is None


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda m: m.update(direction="bwdd"), "direction: error: 'bwdd' is none of fwd, bwd, both"),
        (lambda m: m.update(direction="fwd"), "backward: error: stands in an artifact of direction fwd"),
        (lambda m: m.pop("backward"), "field 'backward' is missing"),
        (lambda m: m["backward"].update(direction="fwd"), "backward.direction: error: is 'fwd', but must be 'bwd'"),
        (lambda m: m["backward"].update(target="sm_100a"), "backward.target: error: is 'sm_100a', but must be 'sm_90a'"),
        (lambda m: m["backward"].update(dtype="fp16"), "backward.dtype"),
        (lambda m: m["backward"].pop("steps"), "backward: error: the field 'steps' is missing"),
        (lambda m: m["backward"]["kernels"]["pre"].update(cubin="x.cubin"), "names 'x.cubin', which is no member"),
        (lambda m: m["backward"]["members"].update({"sample_bwd.ptx": "0" * 64}), "backward.members.sample_bwd.ptx: error: is no member"),
        (lambda m: m.update(forward=3), "forward: error: needs dict"),
    ],
)
def test_schema(change, message):
    m = copy.deepcopy(artifact.build(*both_manifest()).manifest)
    validate(m)
    change(m)
    with pytest.raises(ManifestError, match=message):
        validate(m)


def test_the_reference_backend_runs_a_backward():
    a = artifact.build(backward_manifest(attention_tree(mask=CAUSAL, captures=[SLOPES])), BACKWARD_MEMBERS)
    inputs = make_inputs(a.forward_semantics, SIZES[0])
    stored = execute.run_reference(a.forward_semantics, inputs, ["o", "lse"])
    do = torch.randn(stored["o"].shape).bfloat16()
    got = execute.execute(a, {**inputs, **stored, "do": do}, backend="reference")
    wanted = gradients.gradients(a.forward_semantics, inputs, {"o": do})
    for name in "qkv":
        assert got[f"d{name}"].dtype == torch.bfloat16
        torch.testing.assert_close(got[f"d{name}"].double(), wanted[name], rtol=0.02, atol=0.02)
