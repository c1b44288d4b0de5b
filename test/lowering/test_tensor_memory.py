"""Kernels with tensor memory, compiled for sm_100a and executed by the emulator: right against float64, no hazard, no local memory."""

import re

import compiled
import kernel_checks
import numpy as np
import pytest
import torch

from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.mlir import ir
from fa4c.runtime import check, emulated, execute
from fa4c.runtime.errors import BackendError
from fa4c.runtime.inputs import make_inputs

TARGET = "sm_100a"
GEMM, TWO_GEMMS, HAND_MADE = "tile/gemm.mlir", "tile/two_gemms.mlir", "warp/gemm_tmem.mlir"


def run(path, inputs: dict, out: str) -> np.ndarray:
    return execute.execute(compiled.loaded(path, target=TARGET), inputs, backend="emulator")[out].double().numpy()


def random(*shape, seed, dtype=torch.bfloat16, scale=0.3):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def error(got, want) -> float:
    assert got.shape == want.shape
    return float(np.abs(got - want).max() / np.abs(want).max())


# -- not attention -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n", "k"), [(200, 136, 104), (1, 8, 8)])
def test_hand_made_gemm(m, n, k):
    a, b, bias = random(m, k, seed=1), random(n, k, seed=2), random(n, seed=3, dtype=torch.float32)
    want = np.tanh(a.double().numpy() @ b.double().numpy().T + bias.double().numpy())
    assert error(run(HAND_MADE, {"a": a, "b": b, "bias": bias}, "c"), want) < 2**-7


@pytest.mark.parametrize(("m", "n", "k"), [(200, 136, 104), (130, 264, 328)])
def test_gemm(m, n, k):
    a, b = random(m, k, seed=1), random(n, k, seed=2)
    assert error(run(GEMM, {"a": a, "b": b}, "c"), a.double().numpy() @ b.double().numpy().T) < 2**-8


@pytest.mark.parametrize(("m", "n"), [(200, 300), (3, 5)])
def test_two_gemms(m, n):
    a, b, c = random(m, 64, seed=1), random(n, 64, seed=2), random(n, 128, seed=3)
    p = torch.relu(a.double() @ b.double().T).to(torch.bfloat16).double().numpy()
    assert error(run(TWO_GEMMS, {"a": a, "b": b, "c": c}, "out"), p @ c.double().numpy()) < 2**-7


# -- attention -----------------------------------------------------------------------------------------------------------------------------

# example, head dims, sizes: what the kernels of test_matrix.py do not have
CASES = [
    ("causal.mlir", (128, 128), dict(b=1, hq=1, hkv=1, m=200, n=90)),  # the first rows see no key
    ("softcap.mlir", (80, 80), dict(b=1, hq=1, hkv=1, m=77, n=150)),
    ("gqa.mlir", (128, 128), dict(b=2, hq=4, hkv=2, m=1, n=1)),
]


def artifact(path, head_dim):
    return compiled.loaded(path, target=TARGET, head_dim=head_dim)


@pytest.mark.parametrize(("path", "head_dim", "sizes"), CASES, ids=lambda value: str(value).replace(" ", ""))
def test_attention(path, head_dim, sizes):
    kernel = artifact(path, head_dim)
    inputs = make_inputs(kernel.manifest["semantics"], sizes, 0, "cpu")
    out = execute.execute(kernel, inputs, backend="emulator")
    rows = check.check(kernel.manifest["semantics"], inputs, out)
    assert all(row.ok for row in rows), rows


# A tile a CTA, tiles in a walk, P beside scores and over them, one row block: loops of several steps, row maxima that grow.
NAMED = [
    ("causal.mlir", (128, 128), dict(b=1, hq=1, hkv=1, m=130, n=300)),
    ("full.mlir", (64, 64), dict(b=1, hq=1, hkv=1, m=130, n=300)),
    ("causal.mlir", (256, 256), dict(b=1, hq=1, hkv=1, m=60, n=290)),
]


@pytest.mark.parametrize(("path", "head_dim", "sizes"), NAMED, ids=lambda value: str(value).replace(" ", ""))
def test_random_schedules(path, head_dim, sizes):
    """20 of them: no hazard, and the same bits."""
    kernel = artifact(path, head_dim)
    inputs = make_inputs(kernel.manifest["semantics"], sizes, 0, "cpu")
    inputs["k"] = inputs["k"] * torch.linspace(1, 8, sizes["n"])[None, :, None, None].to(inputs["k"].dtype)
    want = emulated.run(kernel, inputs, ("o", "lse"))
    assert all(row.ok for row in check.check(kernel.manifest["semantics"], inputs, want))
    for seed in range(20):
        got, reports = emulated.run_reported(kernel, inputs, ("o", "lse"), schedule="random", schedule_seed=seed)
        assert all(report.ok for report in reports), seed
        assert all(torch.equal(got[name], want[name]) for name in want), seed


def test_tiles_that_a_cta_stores_one_after_the_other(monkeypatch):
    """O is stored while the next tile is computed: three tiles of one CTA."""
    monkeypatch.setitem(emulated.DEVICES[TARGET], "num_sms", 1)
    kernel = artifact("full.mlir", (64, 64))
    inputs = make_inputs(kernel.manifest["semantics"], dict(b=1, hq=1, hkv=1, m=600, n=100), 0, "cpu")
    for seed in range(2):
        out, reports = emulated.run_reported(kernel, inputs, ("o", "lse"), schedule="random", schedule_seed=seed)
        assert all(report.ok for report in reports) and all(row.ok for row in check.check(kernel.manifest["semantics"], inputs, out))


def test_an_edit_gives_the_result_two_places(monkeypatch):
    """Then a tile may be written while the last one is read: its pipe has two slots."""
    monkeypatch.setitem(emulated.DEVICES[TARGET], "num_sms", 1)
    text = (compiled.EXAMPLES / GEMM).read_text()
    edited = re.sub(r'("tile.to_shared"\(%\w+\))', r"\1 {buffers = 2}", text)
    assert re.search(r'"warp.pipeline"\(\) \{arrivals = 1 : i64, fills = 4 : i64, offset = \d+ : i64, stages = 2',
                     compiled.compile_text(edited, GEMM, emit="warp", target=TARGET))
    a, b = random(500, 72, seed=1), random(136, 72, seed=2)
    kernel = compiled.load(*compiled.kernel_of_text(edited, GEMM, target=TARGET))
    out, reports = emulated.run_reported(kernel, {"a": a, "b": b}, ("c",), schedule="random", schedule_seed=0)
    assert all(report.ok for report in reports)
    assert error(out["c"].double().numpy(), a.double().numpy() @ b.double().numpy().T) < 2**-8


BUILT = [("causal.mlir", (128, 128)), ("full.mlir", (64, 64)), ("full.mlir", (96, 96)), ("window.mlir", (96, 96)),
         ("causal.mlir", (192, 128)), ("causal.mlir", (256, 256))]  # all built for other tests too


@pytest.mark.parametrize(("path", "head_dim"), BUILT, ids=str)
def test_no_local_memory(path, head_dim):
    ptx = compiled.ptx(path, target=TARGET, head_dim=head_dim)
    assert kernel_checks.local_memory(ptx) == []


@pytest.mark.parametrize(("path", "head_dim"), BUILT, ids=str)
def test_registers_suffice(path, head_dim):
    assert kernel_checks.stack_and_local_bytes(compiled.cubin(path, target=TARGET, head_dim=head_dim)) == []


def test_a_step_of_an_operand_takes_one_addition():
    """Eight steps of S = Q K, two operands each, and of P V: addresses are in the low word of a descriptor, the high one is a constant."""
    loop = compiled.ptx("full.mlir", target=TARGET, head_dim=(64, 64))
    assert loop.count("tcgen05.mma.") > 0 and "or.b64" not in loop and "cvt.u64.u32" not in loop


def test_two_query_tiles_are_in_flight():
    """One warp issues: O += P V and the next scores of one row block, then of the other; scores of head dim 128 share columns with P."""
    source = compiled.level("causal.mlir", "cute", target=TARGET)
    loop = source[source.index("role mma") :]
    loop = loop[loop.index("in cutlass.range(") : loop.index("role compute")]
    at = [m.start() for m in re.finditer(r"tmem_at\(tO, Float32\)|tmem_at\(tS, Float32\)|tmem_at\(t[OS] \+ 1 \* 256, Float32\)", loop)][:4]
    assert [loop[i + 8 : i + 10] + ("1" if "256" in loop[i : i + 22] else "0") for i in at] == ["tO0", "tS0", "tO1", "tS1"]


def test_a_factor_that_nothing_orders_is_a_race():
    """The role that corrects sums does not wait for the factor: refused by warp-check; without it, a race in the emulator."""
    text = compiled.level("causal.mlir", "warp", target=TARGET)
    wrong = re.sub(r'\n *"warp.wait"[^\n]*\n *"warp.advance"[^\n]*(\n *"warp.fetch")', r"\1", text, count=1)
    assert wrong != text
    with pytest.raises((Diagnostic, ir.MLIRError), match="takes a row vector that nobody passed on|touches a row vector"):
        compiled.compile_text(wrong, "wrong.mlir", pipeline="warp-check", emit="warp")
    kernel = compiled.load(*compiled.kernel_of_text(wrong, "wrong.mlir", pipeline="cse"))
    inputs = make_inputs(artifact("causal.mlir", (128, 128)).manifest["semantics"], dict(b=1, hq=1, hkv=1, m=100, n=300), 0, "cpu")
    with pytest.raises(BackendError, match="race|read before"):
        execute.execute(kernel, inputs, backend="emulator")


def test_a_wrong_column_is_seen_by_the_emulator():
    """P over O: refused by warp-check; without it, an MMA's operand lies in its own accumulator."""
    text = compiled.level("causal.mlir", "warp", target=TARGET)
    wrong = re.sub(r"(256x128xbf16, #tile.tmem<)\d+", r"\g<1>0", text)
    assert wrong != text
    kernel = compiled.load(*compiled.kernel_of_text(wrong, "wrong.mlir", pipeline="cse"))
    inputs = make_inputs(artifact("causal.mlir", (128, 128)).manifest["semantics"], dict(b=1, hq=1, hkv=1, m=100, n=300), 0, "cpu")
    with pytest.raises(BackendError, match="overlaps operand A"):
        execute.execute(kernel, inputs, backend="emulator")


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize("example", sorted(path.name for path in compiled.EXAMPLES.glob("*.mlir")))
def test_every_example_reaches_the_warp_level(example, direction):
    """All passes, `warp-check` last, both ways."""
    text = compiled.level(example, "warp", target=TARGET, direction=direction)
    assert "warp.tcgen05_mma" in text and "warp.wgmma" not in text


def test_sums_in_registers_are_refused():
    """Where the pass that moves them to tensor memory was left out."""
    with pytest.raises(Diagnostic, match="sums in registers"):
        compiled.level("causal.mlir", "warp", target=TARGET, disabled=("tile-accumulate-in-tmem",))
