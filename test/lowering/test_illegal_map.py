"""One edit of a backward's map of tensor memory, seen three ways: `warp-check` refuses it, the interpreter's storage mode gives wrong
numbers, and the emulator, which executes it without that check, reports a race."""

import re

import compiled
import numpy as np
import pytest
import torch

from fa4c.ir import interpret_tile
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.passes.registry import run_pipeline
from fa4c.runtime import execute
from fa4c.runtime.errors import BackendError

OPTIONS = dict(target="sm_100a", direction="bwd", head_dim=(64, 64))
SIZES = dict(m=300, n=128)


def moved(text: str) -> str:
    """dQ where P lies: it is formed there while dV's MMA of the next block may still have to read P."""
    columns = {kind: re.findall(rf"tensor<{kind}, #tile.tmem<(\d+)", text) for kind in ("128x64xf32", "128x128xbf16")}
    dq = max(columns["128x64xf32"], key=int)
    p = max(columns["128x128xbf16"], key=int)
    assert int(p) != int(dq)
    return re.sub(rf"(128x64xf32, #tile.tmem<){dq}", rf"\g<1>{p}", text)


def inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def made(rows):
        return torch.randn(1, rows, 1, 64, generator=generator).bfloat16()

    given = {"q": made(SIZES["m"]), "k": made(SIZES["n"]), "v": made(SIZES["n"]), "do": made(SIZES["m"])}
    scores = (given["q"][0, :, 0].double() @ given["k"][0, :, 0].double().T) / 8
    o = (scores.softmax(-1) @ given["v"][0, :, 0].double()).bfloat16()
    return given | {"o": o[None, :, None], "lse": scores.logsumexp(-1).float()[None, None]}


def test_storage_mode_gives_wrong_numbers():
    text = compiled.level("full.mlir", "tile", **OPTIONS)
    given = {name: t.double().numpy() for name, t in inputs().items()}
    found = []
    for program in (text, moved(text)):
        with new_context() as context:
            found.append(interpret_tile.run(parse_module(program, "full.mlir", context), given, mode="storage", dtype="kernel"))
    with new_context() as context:
        want = interpret_tile.run(parse_module(text, "full.mlir", context), given, mode="value", dtype="kernel")
    right, wrong = (max(float(np.nan_to_num(np.abs(f[name] - want[name]), nan=np.inf).max()) for name in want) for f in found)
    assert right < 1e-2 < 0.1 < wrong


def test_warp_check_refuses_it():
    text = compiled.level("full.mlir", "warp", **OPTIONS)
    with new_context() as context:
        run_pipeline(parse_module(text, "full.mlir", context), "warp-check")
        with pytest.raises(Diagnostic, match="columns .* of tensor memory") as caught:
            run_pipeline(parse_module(moved(text), "full.mlir", context), "warp-check")
    assert re.match(r"\S+:\d+:\d+: error:", caught.value.text())


def test_the_emulator_reports_a_race():
    text = compiled.level("full.mlir", "warp", **OPTIONS)
    for program, verdict in ((text, ""), (moved(text), "race")):
        kernel = compiled.load(*compiled.kernel_of_text(program, "full.mlir", pipeline="cse"))
        if not verdict:
            execute.execute(kernel, inputs(), backend="emulator")
            continue
        with pytest.raises(BackendError, match="has hazards") as caught:
            execute.execute(kernel, inputs(), backend="emulator")
        assert "error: race: " in str(caught.value) and "tensor memory" in str(caught.value)
