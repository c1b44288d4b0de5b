"""Transposed operands, results that warpgroups share by columns, and sums in global memory: on the emulator and by the interpreter.

out[m, c] = sum over k of a[k, m] * b[k, c]; each CTA adds its block of k to the output.
"""

import re

import backward_programs
import compiled
import numpy as np
import pytest
import sums
import torch

from fa4c.ir.diagnostics import Diagnostic
from fa4c.lowering.compile import compile_text


def operands(k: int, rows: int, columns: int):
    generator = torch.Generator().manual_seed(k)
    return {name: torch.randn(k, n, generator=generator).to(torch.bfloat16) for name, n in (("a", rows), ("b", columns))}


CASES = {
    "by columns, over two warpgroups": (150, 64, 128, 128, None),
    "by columns, half of the last dimension outside": (130, 64, 256, 128, 200),
    "by columns, a share partly outside": (30, 64, 128, 128, 104),
    "by columns, a share half a swizzle span wide": (100, 64, 64, 128, None),
    "by columns, a share that is no power of two": (70, 64, 96, 128, None),
    "by rows, over two warpgroups": (60, 128, 64, 128, None),
    "one warpgroup": (70, 64, 128, 64, None),
    "by columns, over three warpgroups": (100, 64, 192, 192, None),
}


@pytest.mark.parametrize("case", CASES)
def test_against_float64(case):
    k, rows, columns, others, width = CASES[case]
    inputs = operands(k, rows, width or columns)
    text = backward_programs.transposed_gemm(rows, columns, 64, others, width=width)
    want = inputs["a"].double().numpy().T @ inputs["b"].double().numpy()
    got, report = sums.emulate(text, inputs, zeroed=("out", "n"), hazards=True)
    assert report.hazards == []
    assert np.abs(got["out"] - want).max() < 1e-5 * np.abs(want).max()
    assert got["n"] == [k]  # rows of the tile beside it, each counted once
    for mode in ("value", "storage"):
        exact = sums.interpret(text, inputs, zeroed=("out", "n"), mode=mode)
        assert np.abs(exact["out"] - want).max() < 1e-12 and exact["n"] == [k]


def test_rows_beyond_the_end_are_dropped():
    """The last rows of the box lie outside of the target: they must change nothing behind it either."""
    inputs = operands(64, 128, 64)
    text = backward_programs.transposed_gemm(128, 64, 64, 128, first_row=100)
    want = np.zeros((128, 64))
    want[100:] = (inputs["a"].double().numpy().T @ inputs["b"].double().numpy())[:28]
    got, report = sums.emulate(text, inputs, zeroed=("out", "n"), hazards=True)
    assert report.hazards == [] and np.abs(got["out"] - want).max() < 1e-4
    assert np.abs(sums.interpret(text, inputs, zeroed=("out", "n"))["out"] - want).max() < 1e-12


def test_one_instruction_for_two_columns():
    """64 x 128 f32 over 256 threads: 16 pairs each, their addresses 32 bytes apart from one of two registers."""
    members = compiled.kernel_of_text(backward_programs.transposed_gemm(), "program.mlir")[1]
    ptx = next(data for name, data in members.items() if name.endswith(".ptx")).decode()
    found = re.findall(r"red\.relaxed\.gpu\.global\.add\.v2\.f32 \[(%rd\d+)\+(\d+)\]", ptx)
    assert sorted(int(offset) for _, offset in found) == sorted(2 * list(range(0, 256, 32)))
    assert len({address for address, _ in found}) == 2
    assert len(re.findall(r"red\.relaxed\.gpu\.global\.add\.f32", ptx)) == 1  # the row vector's sum


def test_columns_of_unknown_alignment_are_added_one_by_one():
    """A target of odd width: pairs are not aligned to 8 bytes in every second row."""
    inputs = operands(64, 64, 128)
    text = backward_programs.transposed_gemm(out_width=101)
    want = (inputs["a"].double().numpy().T @ inputs["b"].double().numpy())[:, :101]
    got, report = sums.emulate(text, inputs, zeroed=("out", "n"), hazards=True)
    assert report.hazards == [] and np.abs(got["out"] - want).max() < 1e-4


def replaced(old: str, new: str) -> str:
    text = backward_programs.transposed_gemm()
    assert old in text
    return text.replace(old, new)


REFUSED = {
    "shares of no whole span": (backward_programs.transposed_gemm(64, 80), "'tile.mma' shares 80 columns among 2 warpgroups"),
    "a row vector that both warpgroups hold": (
        backward_programs.transposed_gemm().replace("tensor<128xf32, #tile.reg>", "tensor<64xf32, #tile.reg>").replace(
            '  "tile.global_add"(%ones', '  %wide = "tile.splat"() {value = 0.0 : f32} : () -> tensor<128xf32, #tile.reg>\n'
            '  "tile.global_add"(%ones'),
        "'warp.global_add' holds 64 rows in 8 warps",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    text, message = REFUSED[case]
    with pytest.raises(Diagnostic) as caught:
        compile_text(text, "program.mlir", emit="warp")
    assert message in str(caught.value)


def test_a_swapped_transpose_is_seen():
    """The comparison notices an A operand read the wrong way: a square block, not transposed."""
    inputs = operands(64, 64, 128)
    got, _ = sums.emulate(replaced("transpose_a = true, ", ""), inputs, zeroed=("out", "n"))
    want = inputs["a"].double().numpy().T @ inputs["b"].double().numpy()
    assert np.abs(got["out"] - want).max() > 1
