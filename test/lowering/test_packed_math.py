"""Two fp32 operations in one instruction, where the target has them: half the instructions, the same results."""

import re
from collections import Counter

import compiled
import pytest
import torch

from fa4c import targets
from fa4c.runtime import check, execute
from fa4c.runtime.inputs import make_inputs

TARGET = "sm_100a"
SIZES = dict(b=1, hq=1, hkv=1, m=130, n=200)


def build(example: str, packed: int, **options):
    file = compiled.EXAMPLES / example
    with targets.override(TARGET, fp32_packed=packed):
        manifest, members = compiled.kernel_of_text(file.read_text(), str(file), target=TARGET, **options)
    ptx = next(data for name, data in members.items() if name.endswith(".ptx")).decode()
    return compiled.load(manifest, members), ptx


def opcodes(ptx: str) -> Counter:
    return Counter(re.findall(r"^\s+(?:@\S+ )?((?:add|sub|mul|fma)(?:\.rn)?\.f32(?:x2)?)\b", ptx, re.MULTILINE))


def fp32(counts: Counter, packed: bool) -> int:
    return sum(n for name, n in counts.items() if name.endswith("x2") == packed)


@pytest.mark.parametrize("example", ["causal.mlir", "softcap.mlir"])
def test_fma_counts_halve(example):
    """All that a row's 128 scores take (scale and offset, sum, soft cap, emulation), and what scales O, is packed."""
    scalar, packed = (opcodes(build(example, width)[1]) for width in (1, 2))
    assert fp32(scalar, packed=True) == 0
    wide, narrow = fp32(packed, packed=True), fp32(packed, packed=False)
    assert narrow < 40 and wide > 200  # narrow: one value a row
    assert 2 * wide + narrow <= 1.02 * fp32(scalar, packed=False)


@pytest.mark.parametrize("example", ["softcap.mlir", "alibi.mlir"])
def test_the_emulator_executes_them(example):
    kernel, ptx = build(example, 2)
    assert {"fma.rn.f32x2", "add.rn.f32x2", "mul.rn.f32x2"} <= set(opcodes(ptx))
    inputs = make_inputs(kernel.manifest["semantics"], SIZES, 0, "cpu")
    assert all(row.ok for row in check.check(kernel.manifest["semantics"], inputs, execute.execute(kernel, inputs, backend="emulator")))


def test_emulated_pairs_of_masked_scores_are_zero():
    """130 queries, 70 keys, causal from the bottom right: the first 60 rows see nothing; 2**-126 would make them means of V."""
    kernel, ptx = build("causal.mlir", 2, overrides=(("tile-exp-emulation", "share", "16"),))
    assert ptx.count("ex2.approx") < 8  # row statistics
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, length, 1, 128).bfloat16() for length in (130, 70, 70))
    inputs = {"q": q, "k": k, "v": v}
    out = execute.execute(kernel, inputs, backend="emulator")
    assert (out["o"][:, :60] == 0).all() and torch.isneginf(out["lse"][..., :60]).all()
    assert all(row.ok for row in check.check(kernel.manifest["semantics"], inputs, out))
