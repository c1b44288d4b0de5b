"""K and V multicast in clusters of two CTAs: the kernel is right on the emulator, and its faults are found before it runs."""

import re

import compiled
import pytest

from fa4c.runtime import check, emulated, inputs

TEXT = (compiled.EXAMPLES / "full.mlir").read_text()
OPTIONS = {"overrides": (("tile-multicast", "ctas", "2"), ("attn-to-tile", "configurations", "64x64x2")), "head_dim": (64, 64)}


@pytest.fixture(scope="module")
def artifact():
    return compiled.load(*compiled.kernel_of_text(TEXT, "full.mlir", **OPTIONS))


def test_each_cta_copies_half_to_both(artifact):
    (kernel,) = artifact.manifest["kernels"].values()
    assert kernel["cluster"] == [2, 1, 1]
    boxes = {p["tensor"]: p["box"][2] for p in kernel["params"] if p["kind"] == "tensor_map"}
    assert boxes == {"q": 64, "k": 32, "v": 32, "o": 64}
    copies = [line for line in artifact.text(".ptx").splitlines() if re.search(r"cp\.async\.bulk\.tensor.*shared::\w+\.global", line)]
    assert sum("multicast::cluster" in line for line in copies) == len(copies) - 1  # all but Q's


@pytest.mark.parametrize(("m", "n", "seed"), [(200, 300, 1), (64, 65, 2), (130, 64, 3)])
def test_the_emulator_agrees_in_any_order(artifact, m, n, seed):
    given = inputs.make_inputs(artifact.semantics, dict(b=1, hq=2, hkv=1, m=m, n=n), seed)
    out = emulated.run(artifact, given, ("o", "lse"), schedule="random", schedule_seed=seed)
    rows = check.check(artifact.semantics, given, out)
    assert all(row.ok for row in rows), rows


@pytest.mark.parametrize(("old", "new", "words"), [
    (r'    "warp.cluster_sync"\(\) : \(\) -> \(\)\n', "", "may end while others of its cluster still write"),
    (r"arrivals = 8 : i64, ctas = 2", "arrivals = 4 : i64, ctas = 2", "arrivals to a slot"),
    (r"arrivals = 8 : i64, ctas = 2", "arrivals = 8 : i64, ctas = 1", "is shared, but its pipeline counts on 1 CTAs"),
    (r"arrivals = 8 : i64, ctas = 2", "arrivals = 8 : i64, ctas = 4", "is filled by 4 CTAs of 2"),
    (r", shared = true\}", "}", "is not shared, but its pipeline counts on 2 CTAs"),
])
def test_faults_are_refused(old, new, words):
    compiled.check_refused(compiled.level("full.mlir", "warp", locations=False, **OPTIONS), old, new, words)
