"""Offsets beyond 2^31 elements (bugs.md B10 and its kind): the bits are those of near ones.

Pages that nothing touches take no memory; without hazards the emulator keeps no shadow of them.
"""

import importlib
import pathlib
import sys

import compiled
import pytest
import torch

from fa4c.frontend.to_mlir import to_mlir
from fa4c.runtime import counters, emulated

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "runtime"))
from runtime_samples import attention_tree  # noqa: E402

ROWS, HEADS = 70, 3


@pytest.fixture(autouse=True)
def room(monkeypatch):
    for name in ("memory", "launch"):
        monkeypatch.setattr(importlib.import_module(f"fa4c.runtime.emulator.{name}"), "MEMORY_LIMIT", 64 << 30)


def normal(**shapes) -> dict:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(*shape, generator=generator).bfloat16() for name, shape in shapes.items()}


def results(artifact, tensors: dict) -> dict:
    given = {t.name: tensors[t.name] for t in artifact.program.inputs}
    return emulated.run_reported(artifact, given, [t.name for t in artifact.program.outputs], hazards=False)[0]


def far_apart(named: dict) -> dict:
    """Views of one buffer whose rows lie 2^25 elements apart: from row 64 on offsets pass 2^31."""
    row, place = 1 << 25, 0
    wide = torch.empty(ROWS * row, dtype=torch.bfloat16)
    found = {}
    for name, t in named.items():
        found[name] = wide.as_strided(t.shape, (ROWS * row, row, t.shape[3], 1), place).copy_(t)
        place += t.shape[2] * t.shape[3]
    return found


def test_rows():
    """Inputs of the forward, and all that the backward reads, dO too, where they lie."""
    both = compiled.loaded("causal.mlir", direction="both", head_dim=(64, 64))
    given = normal(q=(1, ROWS, 2, 64), k=(1, ROWS, 1, 64), v=(1, ROWS, 1, 64), do=(1, ROWS, 2, 64))
    near = results(both, given)
    gradients = results(both.backward, {**given, **near})
    far = far_apart({**given, "o": near["o"]})
    counters.reset()
    found = results(both, far) | results(both.backward, {**far, "lse": near["lse"]})
    assert not counters.stats().get("copies")
    for name, t in {**near, **gradients}.items():
        assert torch.equal(found[name], t), name


def test_a_captured_table():
    """The third head's part of the table begins beyond 2^31."""
    score = [["x", 0], ["index", "j"], ["index", "i"], ["sub", 1, 2], ["const", ROWS, "index"], ["add", 3, 4], ["load", "table", 5],
             ["cast", 6, "f32"], ["add", 0, 7]]  # fmt: skip
    table = dict(name="table", axes=["hq"], dims=["span"], dtype="bf16", shape=[None])
    text = to_mlir(attention_tree(score=score, captures=[table], align="top_left"))
    artifact = compiled.load(*compiled.kernel_of_text(text, "table.mlir"))
    given = normal(table=(HEADS, 2 * ROWS), **dict.fromkeys("qkv", (1, ROWS, HEADS, 64)))
    wide = torch.empty(HEADS, (1 << 30) + 8, dtype=torch.bfloat16)
    wide[:, : 2 * ROWS] = given["table"]
    assert wide.stride(0) * (HEADS - 1) > 1 << 31
    near, far = results(artifact, given), results(artifact, {**given, "table": wide})
    for name, t in near.items():
        assert torch.equal(far[name], t), name
    assert not torch.equal(near[name], results(artifact, {**given, "table": given["table"].flip(0)})[name])
