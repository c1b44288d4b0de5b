"""The IR is the only source of truth: an edit of its text changes the kernel accordingly, or is refused where it stands."""

import re

import compiled
import pytest
import torch

from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.mlir import ir
from fa4c.runtime import check, execute, inputs

WINDOW = (compiled.EXAMPLES / "window.mlir").read_text()


def run(manifest_and_members, **sizes):
    """(inputs, outputs) on the emulator, checked against the variant's own semantics."""
    artifact = compiled.load(*manifest_and_members)
    given = inputs.make_inputs(artifact.semantics, dict(sizes))
    out = execute.execute(artifact, given, backend="emulator")
    assert all(row.ok for row in check.check(artifact.semantics, given, out)), check.check(artifact.semantics, given, out)
    return given, out


# -- attn level ----------------------------------------------------------------------------------------------------------------------------


def test_a_window_size_reaches_the_kernel():
    """511 keys back becomes 40: the number is in the source, and each query sees 41 keys and no more."""
    edited = WINDOW.replace("arith.constant 511", "arith.constant 40")
    source = compiled.compile_text(edited, "window.mlir", emit="cute")
    assert re.search(r"\b40\b", source)
    assert not re.search(r"\b511\b", source)
    given, out = run(compiled.kernel_of_text(edited, "window.mlir", head_dim=(64, 64)), b=1, hq=1, hkv=1, m=150, n=150)
    q, k, v = (given[name][0, :, 0].double() for name in "qkv")
    scores = q @ k.T * 0.0883883461
    rows, columns = torch.arange(150)[:, None], torch.arange(150)[None]
    seen = (columns <= rows) & (columns >= rows - 40)
    want = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ v
    assert (out["o"][0, :, 0].double() - want).abs().max() < 2**-7
    wider = torch.softmax(scores.masked_fill(~((columns <= rows) & (columns >= rows - 41)), -torch.inf), -1) @ v
    assert (out["o"][0, :, 0].double() - wider).abs().max() > 2**-5  # one key more would be seen


def test_an_option_of_a_pass_reaches_the_kernel():
    """Blocks of 64 keys: half the bytes in flight, and still right."""
    options = {"overrides": (("attn-to-tile", "block-n", "64"),), "head_dim": (64, 64)}
    text = (compiled.EXAMPLES / "causal.mlir").read_text()
    narrow, wide = (compiled.compile_text(text, "causal.mlir", emit="warp", **o) for o in (options, {"head_dim": (64, 64)}))
    assert "2x64x64xbf16" in narrow
    assert "2x64x64xbf16" not in wide
    assert narrow.count("tx_bytes = 8192") == 2
    run(compiled.kernel_of_text(text, "causal.mlir", **options), b=1, hq=2, hkv=1, m=70, n=140)


# -- tile level ----------------------------------------------------------------------------------------------------------------------------

GEMM = (compiled.EXAMPLES / "tile" / "gemm.mlir").read_text()


def gemm_error(manifest_and_members, m=200, n=136, k=328) -> float:
    artifact = compiled.load(*manifest_and_members)
    a, b = (torch.randn(rows, k, generator=torch.Generator().manual_seed(seed)).bfloat16() for rows, seed in ((m, 1), (n, 2)))
    got = execute.execute(artifact, {"a": a, "b": b}, backend="emulator")["c"].double()
    want = a.double() @ b.double().T
    return float((got - want).abs().max() / want.abs().max())


@pytest.mark.parametrize("buffers", [1, 2])
def test_the_number_of_buffers_reaches_the_kernel(buffers):
    edited = GEMM.replace("buffers = 4", f"buffers = {buffers}")
    warp = compiled.compile_text(edited, "gemm.mlir", emit="warp", disabled=["tile-pipeline"])
    assert warp.count(f"stages = {buffers} : i64, tx_bytes = 16384") == 2
    assert f"{buffers}x128x64xbf16" in warp
    assert gemm_error(compiled.kernel_of_text(edited, "gemm.mlir", disabled=["tile-pipeline"])) < 2**-8


def test_a_priority_in_l2_reaches_the_copies():
    """Each load has its own policy operand, and a kernel with hints is still right."""
    hinted = GEMM
    for priority in ("evict_first", "evict_last"):
        hinted = hinted.replace("buffers = 4}", f'buffers = 4, l2 = "{priority}"}}', 1)
    made = compiled.kernel_of_text(hinted, "gemm.mlir")
    copies = [line for line in made[1]["gemm.ptx"].decode().splitlines() if "cp.async.bulk.tensor" in line and "shared::cta.global" in line]
    policies = dict(re.findall(r"createpolicy\.fractional\.L2::(\w+)\.b64\s+(%rd\d+), 1", made[1]["gemm.ptx"].decode()))
    assert sorted(policies) == ["evict_first", "evict_last"]
    used = [re.search(r"(%rd\d+);$", line.strip())[1] for line in copies if ".L2::cache_hint" in line]
    assert set(used) == set(policies.values()) and len(used) == len(copies)
    assert gemm_error(made) < 2**-8


def test_the_order_of_the_grid_reaches_the_launch():
    """x and y change places, in the launch and in the kernel."""
    edited = GEMM.replace('"tile.launch"(%gx, %gy,', '"tile.launch"(%gy, %gx,').replace("%x, %y, %z =", "%y, %x, %z =")
    assert edited != GEMM
    options = {"disabled": ["tile-persistent", "tile-lpt-grid"]}
    grids = []
    for text in (GEMM, edited):
        made = compiled.kernel_of_text(text, "gemm.mlir", **options)
        grids.append(next(iter(made[0]["kernels"].values()))["grid"])
        assert gemm_error(made) < 2**-8
    assert grids[0][:2] == grids[1][1::-1] != grids[1][:2]


def test_a_grid_that_does_not_fit_the_kernel_gives_wrong_numbers():
    """Only the launch is edited: nothing elsewhere knows the grid's order."""
    edited = GEMM.replace('"tile.launch"(%gx, %gy,', '"tile.launch"(%gy, %gx,')
    made = compiled.kernel_of_text(edited, "gemm.mlir", disabled=["tile-persistent", "tile-lpt-grid"])
    artifact = compiled.load(*made)
    a, b = torch.ones(300, 64).bfloat16(), torch.ones(104, 64).bfloat16()
    got = execute.execute(artifact, {"a": a, "b": b}, backend="emulator")["c"]
    assert not torch.equal(got, torch.full((300, 104), 64.0).bfloat16())


def test_a_schedule_that_cannot_work_is_refused():
    tile = compiled.level("causal.mlir", "tile")
    late = re.search(r"order = (\d+) : i64, stage = 0 : i64, transpose_b = true", tile)
    for change, message in (
        (tile.replace(late[0], late[0].replace(f"order = {late[1]}", "order = 99")), "needs two copies|before it was computed|read"),
        (tile.replace(late[0], late[0].replace("stage = 0", "stage = -1")), "stage"),
        (tile.replace(late[0], late[0].replace("stage = 0", 'stage = "soon"')), "which is no integer attribute"),
    ):
        with pytest.raises((Diagnostic, ir.MLIRError)) as caught:
            compiled.compile_text(change, "edited.mlir", pipeline="warp-specialize,warp-insert-barriers,warp-check", emit="warp")
        text = caught.value.text() if isinstance(caught.value, Diagnostic) else compiled_error(caught.value)
        assert re.search(message, text), text
        assert re.match(r"^\S+:\d+:\d+: error: ", text), text


def compiled_error(error) -> str:
    from fa4c.ir.diagnostics import from_mlir_error

    return from_mlir_error(error)


@pytest.mark.parametrize(
    ("level", "old", "new", "near"),
    [
        ("tile", "order = ", "ordre = ", "order"),
        ("tile", "buffers = 2", "bufers = 2", "buffers"),
        ("warp", "tx_bytes = ", "tx_byte = ", "tx_bytes"),
        ("warp", "registers = 240", "register = 240", "registers"),
    ],
)
def test_undeclared_attributes_are_refused(level, old, new, near):
    text = compiled.level("causal.mlir", level)
    assert old in text
    with pytest.raises((Diagnostic, ir.MLIRError)) as caught:
        compiled.compile_text(text.replace(old, new, 1), "edited.mlir", emit="cute")
    said = caught.value.text() if isinstance(caught.value, Diagnostic) else compiled_error(caught.value)
    assert re.match(r"^\S+:\d+:\d+: error: ", said), said
    assert f"did you mean '{near}'?" in said


# -- warp level ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "in_source"),
    [
        ("registers = 240", "registers = 232", "setmaxregister_increase(232)"),
        ("offset = 132096", "offset = 133120", "base + 133120"),
        ("tanh.approx.f32 $0, $1;", "ex2.approx.f32 $0, $1;", "ex2.approx.f32 $0, $1;"),
        ("{id = 1, scope", "{id = 5, scope", "barrier_id=5 + wg"),
    ],
)
def test_an_edit_of_the_warp_level_reaches_the_source(old, new, in_source):
    text = (compiled.EXAMPLES / "warp" / "gemm_bias_tanh.mlir").read_text().replace("smem_bytes = 164864", "smem_bytes = 165888")
    assert old in text
    assert in_source not in compiled.compile_text(text, "kernel.mlir", emit="cute")
    assert in_source in compiled.compile_text(text.replace(old, new, 1), "kernel.mlir", emit="cute")
