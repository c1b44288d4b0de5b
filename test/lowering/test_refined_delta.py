"""Delta where there are few keys: corrected by a kernel of its own, launched for such sizes only."""

import compiled
import pytest
import torch

from fa4c.runtime import artifact as artifacts
from fa4c.runtime import check, execute, inputs

SEED = 11


def backward(target: str = "sm_90a"):
    return compiled.loaded("causal.mlir", target=target, direction="bwd", head_dim=(64, 64))


def worst(artifact) -> float:
    """The largest error of a gradient, relative to its limit: of two keys, of which one dominates in a row."""
    forward = artifact.forward_semantics
    given = inputs.make_inputs(forward, dict(b=1, hq=1, hkv=1, m=8, n=2), seed=SEED)
    stored = {name: x.to(torch.float32 if name == "lse" else torch.bfloat16) for name, x in check.expected(forward, given)[0].items()}
    do = torch.randn(stored["o"].shape, generator=torch.Generator().manual_seed(SEED + 1)).to(torch.bfloat16)
    found = execute.execute(artifact, {**given, **stored, "do": do}, backend="emulator")
    rows = check.check_gradients(forward, given, {"o": do}, {name: found[f"d{name}"] for name in "qkv"})
    return max(row.ratio for row in rows)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_two_keys(target):
    """Without its launch the program is as it was, and misses: what is right of P (dP - delta) is less than the rounding of O."""
    artifact = backward(target)
    steps = [step for step in artifact.manifest["steps"] if step["kernel"] != "causal_bwd_refine"]
    assert len(steps) == len(artifact.manifest["steps"]) - 1
    assert worst(artifact) < 1
    assert worst(artifacts.build({**artifact.manifest, "steps": steps}, artifact.members)) > 5


def test_only_few_keys_launch_it():
    program = backward().program
    for n, more in ((1, 1), (16, 1), (17, 0), (4000, 0)):
        geometry = {t.name: _packed(t, n) for t in program.inputs}
        plan = program.plan(geometry, [t.name for t in program.outputs], {"num_sms": 132, "l2_bytes": 50 << 20})
        kernels = [step.kernel.removeprefix("causal_bwd_") for step in plan.steps]
        assert kernels == ["preprocess", *["refine"] * more, "main", "postprocess"]


def _packed(tensor, n: int):
    """(shape, strides) of an input, for one head and 5 queries."""
    shape = tuple(tensor.static.get(dim, {"m": 5, "n": n}.get(dim, 1)) for dim in tensor.layout)
    strides = tuple(torch.empty(shape, device="meta").stride())
    return shape, strides
