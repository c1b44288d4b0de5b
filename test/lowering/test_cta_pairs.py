"""Products of CTA pairs: kernels right in the emulator under random schedules, with no hazard; the bytes they read; faults refused."""

import re

import compiled
import numpy as np
import pytest
import torch

from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.mlir import ir
from fa4c.runtime import check, emulated
from fa4c.runtime.inputs import make_inputs

PAIRS = {"target": "sm_100a", "overrides": (("tile-split-2cta", "ctas", "2"),)}
GEMM = "tile/gemm.mlir"


def random(*shape, seed):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.3).to(torch.bfloat16)


def error(got, want) -> float:
    return float(np.abs(got.double().numpy() - want).max() / np.abs(want).max())


def operand_bytes(reports) -> float:
    return sum(report.counters["total"]["smem_bytes.operands"] for report in reports)


def test_gemm_reads_half_of_b():
    a, b = random(300, 104, seed=1), random(136, 104, seed=2)
    want = a.double().numpy() @ b.double().numpy().T
    read = {}
    for options in (PAIRS, {"target": "sm_100a"}):
        made = compiled.loaded(GEMM, **options)
        out, reports = emulated.run_reported(made, {"a": a, "b": b}, ("c",), schedule="random", schedule_seed=3)
        assert error(out["c"], want) < 2**-8 and all(report.ok for report in reports)
        read[len(options)] = operand_bytes(reports)
    # 3 and 4 row blocks (whole pairs) x 2 column blocks x 2 steps: a 128 x 64 and b 128 x 64, or 64 x 64, of 2 bytes
    assert read == {1: 3 * 2 * 2 * 32768, 2: 4 * 2 * 2 * 24576}


@pytest.mark.parametrize("seed", range(3))
def test_two_gemms(seed):
    m, n = [(200, 300), (3, 5), (270, 140)][seed]
    a, b, c = random(m, 64, seed=1), random(n, 64, seed=2), random(n, 128, seed=3)
    p = torch.relu(a.double() @ b.double().T).to(torch.bfloat16).double().numpy()
    made = compiled.loaded("tile/two_gemms.mlir", **PAIRS)
    out = emulated.run(made, {"a": a, "b": b, "c": c}, ("out",), schedule="random", schedule_seed=seed)
    assert error(out["out"], p @ c.double().numpy()) < 2**-7


@pytest.mark.parametrize(("head_dim", "m", "n"), [((128, 128), 300, 200), ((192, 128), 260, 130)])
def test_forward(head_dim, m, n):
    made = compiled.loaded("full.mlir", head_dim=head_dim, **PAIRS)
    given = make_inputs(made.semantics, dict(b=1, hq=1, hkv=1, m=m, n=n), 0)
    rows = check.check(made.semantics, given, emulated.run(made, given, ("o", "lse"), schedule="random", schedule_seed=m))
    assert all(row.ok for row in rows), rows


WARP = compiled.compile_text((compiled.EXAMPLES / GEMM).read_text(), GEMM, emit="warp", locations=False, **PAIRS)


@pytest.mark.parametrize(("old", "new", "words"), [
    (r"tx_bytes = 32768", "tx_bytes = 16384", "overwrites a slot before it was read"),  # one CTA's
    (r"fills = 8 : i64, leader = true, ", "fills = 4 : i64, leader = true, ", "brings 8 arrivals|fills a slot again"),
    (r"fills = 8 : i64, leader = true, ", "fills = 8 : i64, ", "waits forever"),  # each CTA's own barrier
    (r'barrier = "empty", ctas = 2 : i64', 'barrier = "empty"', "is of 1 CTAs, but the kernel's MMAs are of 2"),
    (r"active = 1 : i64, leader = true", "active = 1 : i64", "is issued in both CTAs of a pair"),
    (r"arrivals = 1 : i64, leader = true, offset = 0", "arrivals = 1 : i64, offset = 0", "waits forever"),
    (r"ctas = 2 : i64, warp = 1", "warp = 1", "its tensor memory was allocated for MMAs of 1"),
    (r"cluster = 2 : i64, ", "", "no pairs"),
])
def test_faults_are_refused(old, new, words):
    edited = re.sub(old, new, WARP)
    assert edited != WARP
    with pytest.raises((Diagnostic, ir.MLIRError), match=words):
        compiled.compile_text(edited, "edited.mlir", emit="cute")


def test_a_barrier_of_the_wrong_cta_is_seen_by_the_emulator():
    """warp-check left out: compute warps of the second CTA tell their own MMA role, which does not run, that the sum is 0."""
    edited = WARP.replace("fills = 8 : i64, leader = true, ", "fills = 4 : i64, ")
    made = compiled.load(*compiled.kernel_of_text(edited, "edited.mlir", pipeline="cse", target="sm_100a"))
    _, reports = emulated.run_reported(made, {"a": random(256, 64, seed=1), "b": random(128, 64, seed=2)}, ("c",))
    assert any("race" in report.text() for report in reports)
