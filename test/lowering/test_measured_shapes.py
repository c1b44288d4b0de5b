"""Every block shape of the shipped data (`fa4c/targets/sm_90a_tuned.json`) computes the right thing, at sizes that fill no block."""

import compiled
import pytest
import torch

from fa4c import targets
from fa4c.runtime import check, execute, inputs

HINTED = "{block_m}x{block_n}x{buffers}:l2={l2[0]}/{l2[1]}"


def kernels():
    """(example, head dims, configuration as attn-to-tile's option), of each entry and each of its kernels."""
    for entry in targets.get("sm_90a").tuned:
        name, dims = entry["variants"][0].split(" d=")
        d, *dv = map(int, dims.split(","))
        for configuration in entry["configurations"]:
            text = HINTED.format(**{"l2": ("none", "none"), **configuration})
            yield pytest.param(name, (d, *(dv or [d])), text, id=f"{name} {dims} {text}")


def test_there_are_data():
    assert len(list(kernels())) >= 9


@pytest.mark.parametrize(("name", "head_dim", "configuration"), list(kernels()))
def test_a_measured_shape_is_right(name, head_dim, configuration):
    text = (compiled.EXAMPLES / f"{name}.mlir").read_text()
    options = {"head_dim": head_dim, "overrides": (("attn-to-tile", "configurations", configuration),)}
    artifact = compiled.load(*compiled.kernel_of_text(text, f"{name}.mlir", **options))
    m, n = 197, 211
    given = inputs.make_inputs(artifact.semantics, dict(b=1, hq=2, hkv=1, m=m, n=n))
    poisoned = {"o": torch.full((1, m, 2, head_dim[1]), float("nan"), dtype=torch.bfloat16), "lse": torch.full((1, 2, m), float("nan"))}
    out = execute.execute(artifact, given, backend="emulator", outputs=poisoned)
    rows = check.check(artifact.semantics, given, out)
    assert all(row.ok for row in rows), rows
