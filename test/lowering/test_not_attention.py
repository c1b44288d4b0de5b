"""Files that are not attention go through the same passes and emitter and are right.

Two GEMM programs at the tile level, and one with bias and tanh at the warp level.

Executed on the emulator, against float64; it also reports any hazard of the kernel. Sizes are no multiple of a block in any dimension.
"""

import compiled
import numpy as np
import pytest
import torch

from fa4c.ir.context import new_context, parse_module, print_module
from fa4c.passes.registry import run_pipeline
from fa4c.runtime import execute

GEMM, TWO_GEMMS, BIAS_TANH = "tile/gemm.mlir", "tile/two_gemms.mlir", "warp/gemm_bias_tanh.mlir"


def run(path, inputs: dict, out: str) -> np.ndarray:
    return execute.execute(compiled.loaded(path), inputs, backend="emulator")[out].double().numpy()


def random(*shape, seed, dtype=torch.bfloat16, scale=1.0):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def error(got, want) -> float:
    """The largest difference, relative to the largest value."""
    assert got.shape == want.shape
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize(("m", "n", "k"), [(200, 136, 104), (1, 8, 8), (130, 264, 328)])
def test_gemm(m, n, k):
    a, b = random(m, k, seed=1), random(n, k, seed=2)
    want = a.double().numpy() @ b.double().numpy().T
    assert error(run(GEMM, {"a": a, "b": b}, "c"), want) < 2**-8


@pytest.mark.parametrize(("m", "n"), [(200, 300), (3, 5), (140, 128)])
def test_two_gemms(m, n):
    a, b, c = random(m, 64, seed=1), random(n, 64, seed=2), random(n, 128, seed=3)
    p = torch.relu(a.double() @ b.double().T).to(torch.bfloat16).double().numpy()  # the program rounds here
    assert error(run(TWO_GEMMS, {"a": a, "b": b, "c": c}, "out"), p @ c.double().numpy()) < 2**-7


@pytest.mark.parametrize(("m", "n", "k"), [(200, 136, 104), (1, 8, 8), (70, 200, 328)])
def test_gemm_bias_tanh(m, n, k):
    a, b, bias = random(m, k, seed=1, scale=0.3), random(n, k, seed=2, scale=0.3), random(n, seed=3, dtype=torch.float32)
    want = np.tanh(a.double().numpy() @ b.double().numpy().T + bias.double().numpy())
    got = run(BIAS_TANH, {"a": a, "b": b, "bias": bias}, "c")
    assert error(got, want) < 2**-7
    without_bias = np.tanh(a.double().numpy() @ b.double().numpy().T)
    assert error(got, without_bias) > 2**-4  # the comparison sees the bias


def test_passes_leave_a_complete_warp_kernel_alone():
    with new_context():
        module = parse_module((compiled.EXAMPLES / BIAS_TANH).read_text(), BIAS_TANH)
        before = print_module(module)
        run_pipeline(module, "warp-ping-pong,warp-insert-barriers,warp-check")
        assert print_module(module) == before


@pytest.mark.parametrize("path", ["causal.mlir", "softcap.mlir", GEMM, TWO_GEMMS])
def test_a_printed_warp_level_is_an_input(path):
    """`--emit warp` gives a file from which the same code is made."""
    text = compiled.level(path, "warp")
    assert compiled.compile_text(text, "printed.mlir", emit="cute") == compiled.level(path, "cute")


def test_inline_ptx_reaches_the_kernel():
    assert compiled.ptx(BIAS_TANH).count("tanh.approx.f32") == 64  # 128 columns x 64 rows over 128 threads
