"""Several configurations in one artifact: the manifest's `when` picks a kernel, no compiler needed."""

import compiled
import pytest
import torch

from fa4c.runtime import check, execute, inputs

TEXT = (compiled.EXAMPLES / "causal.mlir").read_text()
OPTIONS = {"overrides": (("attn-to-tile", "configurations", "n<=100:64x64x2,m<=70:64x48x2,128x64x2"),), "head_dim": (64, 64)}


@pytest.fixture(scope="module")
def artifact():
    return compiled.load(*compiled.kernel_of_text(TEXT, "causal.mlir", **OPTIONS))


def launched(artifact, m: int, n: int):
    plan = artifact.program.plan(
        {"q": ((1, m, 2, 64), (m * 128, 128, 64, 1)), **{t: ((1, n, 1, 64), (n * 64, 64, 64, 1)) for t in "kv"}},
        ("o", "lse"), {"num_sms": 132, "l2_bytes": 50 << 20})
    return [step.kernel for step in plan.steps], [w.name for w in plan.workspaces]


def test_the_manifest_says_when(artifact):
    steps = artifact.manifest["steps"]
    assert [step["kernel"] for step in steps] == ["causal_fwd_64x64x2", "causal_fwd_64x48x2", "causal_fwd_128x64x2"]
    long = ["gt", "n", 100]
    assert [step["when"] for step in steps] == [["le", "n", 100], ["and", long, ["le", "m", 70]], ["and", long, ["gt", "m", 70]]]


@pytest.mark.parametrize(("m", "n", "kernel"), [
    (300, 100, "causal_fwd_64x64x2"), (1, 1, "causal_fwd_64x64x2"), (70, 101, "causal_fwd_64x48x2"), (71, 101, "causal_fwd_128x64x2"),
])
def test_one_kernel_is_launched_with_its_workspace(artifact, m, n, kernel):
    kernels, workspaces = launched(artifact, m, n)
    assert kernels == [kernel]
    asked = {p["tensor"] for p in artifact.manifest["kernels"][kernel]["params"] if p["kind"] == "pointer"} - {"lse"}
    assert set(workspaces) == asked and len(asked) == 1


@pytest.mark.parametrize(("m", "n"), [(130, 100), (66, 130), (131, 149)])
def test_every_kernel_is_right_on_the_emulator(artifact, m, n):
    given = inputs.make_inputs(artifact.semantics, dict(b=1, hq=2, hkv=1, m=m, n=n))
    shapes = {"o": (1, m, 2, 64), "lse": (1, 2, m)}
    dtypes = {"o": torch.bfloat16, "lse": torch.float32}
    poisoned = {name: torch.full(shape, float("nan"), dtype=dtypes[name]) for name, shape in shapes.items()}
    out = execute.execute(artifact, given, backend="emulator", outputs=poisoned)
    rows = check.check(artifact.semantics, given, out)
    assert all(row.ok for row in rows), rows


def test_an_edit_of_the_limit_reaches_the_manifest():
    tile = compiled.compile_text(TEXT, "causal.mlir", emit="tile", **OPTIONS)
    edited = tile.replace("arith.constant 100 : index", "arith.constant 90 : index")
    assert edited != tile
    manifest, _ = compiled.kernel_of_text(edited, "causal.tile.mlir", disabled=tuple(TILE_PASSES))
    assert manifest["steps"][0]["when"] == ["le", "n", 90]


TILE_PASSES = "tile-conditional-rescale tile-exp-emulation tile-pipeline tile-l2-hints tile-lpt-grid tile-persistent".split()
