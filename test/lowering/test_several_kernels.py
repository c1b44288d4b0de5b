"""A module of several kernels: one artifact, launched in order, with a workspace between them whose rows are padded for TMA."""

import pathlib

import compiled
import numpy as np
import pytest
import torch

from fa4c.ir import interpret_tile
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.runtime import artifact as artifacts
from fa4c.runtime import emulated, execute
from fa4c.runtime.errors import BackendError

FILE = pathlib.Path(__file__).parent / "inputs" / "scale_by_sums.mlir"
SIZES = [(2, 133, 141), (1, 1, 8), (3, 258, 129)]  # batch, m, n: no multiples of a block, and m of nothing


@pytest.fixture(scope="module")
def artifact():
    return compiled.load(*compiled.kernel_of_text(FILE.read_text(), FILE.name))


def inputs(batch, m, n):
    generator = torch.Generator().manual_seed(m)
    return {
        name: torch.randn(batch, rows, 64, generator=generator).to(torch.bfloat16) for name, rows in (("a", m), ("b", n))
    }


def expected(given):
    s = np.einsum("bmd,bnd->bmn", *(x.double().numpy() for x in given.values()))
    return s * s.sum(axis=2, keepdims=True)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_interpreter_hands_workspaces_on(sizes):
    given = inputs(*sizes)
    with new_context() as context:
        module = parse_module(FILE.read_text(), FILE.name, context)
        for mode in ("value", "storage"):
            out = interpret_tile.run(module, given, mode=mode)["out"]
            np.testing.assert_allclose(out, expected(given), rtol=1e-12)


@pytest.mark.parametrize("sizes", [(2, 133, 136), (3, 258, 8)])
def test_the_emulator_agrees(artifact, sizes):
    given, want = inputs(*sizes), expected(inputs(*sizes))
    out = execute.execute(artifact, given, backend="emulator")["out"].double().numpy()
    assert np.abs(out - want).max() / np.abs(want).max() < 2**-8


@pytest.mark.parametrize("steps", [[1], [1, 0]])
def test_a_workspace_that_no_kernel_has_written_is_named(artifact, steps):
    """The reader alone, and the kernels in the wrong order; without hazard detection the values are spoilt."""
    broken = artifacts.build({**artifact.manifest, "steps": [artifact.manifest["steps"][k] for k in steps]}, artifact.members)
    with pytest.raises(BackendError) as caught:
        execute.execute(broken, inputs(1, 40, 8), backend="emulator")
    (name,) = (w["name"] for w in artifact.manifest["workspaces"])
    assert f"uninitialised: read of {name} that nothing has written" in caught.value.why
    out, reports = emulated.run_reported(broken, inputs(1, 40, 8), ("out",), hazards=False)
    assert all(r.ok for r in reports) and out["out"].isnan().any()


def test_the_artifact_names_every_kernel_its_members_and_the_padded_size(artifact):
    m = artifact.manifest
    assert [step["kernel"] for step in m["steps"]] == ["sum_rows", "scale"]
    assert {f"{k}.{kind}" for k in m["kernels"] for kind in ("ptx", "cubin", "cute.py")} < set(artifact.members)
    (sums,) = m["workspaces"]
    assert (sums["dims"], sums["shape"], sums["pad"]) == (["b", "m"], [None, None], 4)
    assert sums["size"] == ["mul", "b", ["mul", ["ceildiv", "m", 4], 4]]
    strides = [p for p in m["kernels"]["scale"]["params"] if p["kind"] == "stride"]
    assert strides == [{"kind": "stride", "tensor": "sums", "dim": dim} for dim in ("b", "m")]


def test_each_source_compiles_alone(artifact):
    for name in artifact.manifest["kernels"]:
        binary = compiled.kept_build(artifact.members[f"{name}.cute.py"].decode(), name, "sm_90a")
        assert binary.ptx.encode() == artifact.members[f"{name}.ptx"]


@pytest.mark.parametrize(("emit", "comment"), [("cute", "#"), ("ptx", "//")])
def test_texts_come_one_after_the_other(emit, comment):
    text = compiled.kernel_of_text(FILE.read_text(), FILE.name, emit=emit)
    heads = [line for line in text.splitlines() if line.startswith(f"{comment} ====")]
    assert [line.split()[3] for line in heads] == ["sum_rows", "scale"]


def refused(*edit, message):
    text = FILE.read_text()
    for old, new in edit:
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(Exception, match=message) as error:
        compiled.compile_text(text, FILE.name, emit="cute")
    assert isinstance(error.value, Diagnostic) or type(error.value).__name__ == "MLIRError"


def test_refused():
    refused(("pad = 4", "pad = 0"), message="pad 0 : i64 is no positive number")
    refused(('init = "none"', 'init = "ones"'), message="init .* is none of none, zero")
    refused(('dims = ["b", "m", "n"]}', 'dims = ["b", "m", "n"], pad = 4 : i64}'), message="it has pad, but is an output")
    refused(('axes = ["b"]', 'axes = ["hq"]'), message="its axis 'hq' is none of its dims")
    refused(("kernel = @scale,", "kernel = @sum_rows,"), message="takes")


def test_a_kernel_that_nothing_launches_is_refused():
    text = FILE.read_text()
    line = next(line for line in text.splitlines() if "kernel = @scale," in line)
    with pytest.raises(Diagnostic, match="is never launched"):
        compiled.compile_text(text.replace(line, ""), FILE.name, emit="cute")
