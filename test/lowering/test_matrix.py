"""Forward and backward for sm_100a in the emulator: the part of bench/emulator_matrix.py that CI runs, under one schedule; and three named
kernels under twenty, as three others in test_tensor_memory.py."""

import sys

import compiled
import pytest

sys.path.insert(0, str(compiled.ROOT / "bench"))
import emulator_matrix  # noqa: E402
from emulator_matrix import BACKWARD_ONLY, FIFO, SIZES, STACK, TILES, WRITERS, Kernel, matrix, of_ci, run, text_of  # noqa: E402

CI = of_ci()


def loaded(kernel: Kernel):
    name = str(compiled.EXAMPLES / f"{kernel.variant}.mlir")  # as other tests name it, so that the build is theirs too
    return compiled.load(*compiled.kernel_of_text(text_of(kernel.variant), name, **kernel.options))


@pytest.mark.parametrize("kernel", CI, ids=str)
def test_right_without_a_hazard(kernel):
    """And with the counts that the IR says; no more on the stack than may be (bench/local_memory.py says what, and whether in a loop)."""
    artifact = loaded(kernel)
    assert {name: k["stack_bytes"] for name, k in artifact.manifest["kernels"].items() if k["stack_bytes"] > STACK} == {}
    found = run(artifact, kernel.sizes[CI[kernel]], FIFO)
    assert found["ok"], found


COUNTED = [Kernel("fwd", "alibi", (96, 96)), Kernel("bwd", "softcap", (64, 64)), Kernel("bwd", "alibi", (96, 96))]


@pytest.mark.parametrize("kernel", COUNTED, ids=str)
def test_counts_of_whole_tiles(kernel):
    """FP32 operations too: products that join sums or cannot, sums of rows, of warps, and such as go on from a product."""
    assert emulator_matrix.unlike_the_ir_in_whole_tiles(loaded(kernel)) == []


ORDERED = [(Kernel("bwd", "causal", (64, 64), deterministic=True), WRITERS), (Kernel("fwd", "full", (64, 64), ctas=2), TILES)]
ADDING = (Kernel("bwd", "full", (128, 128), ctas=2), WRITERS)


@pytest.mark.parametrize(("kernel", "size"), [*ORDERED, ADDING], ids=str)
def test_under_twenty_schedules(kernel, size):
    """All bits of results and workspaces the same where additions have an order, or there are none; dQ in f32 has four writers."""
    artifact = loaded(kernel)
    found = [run(artifact, kernel.sizes[size], seed) for seed in range(20)]
    assert all(one["ok"] for one in found), found
    different = len({one["bits"] for one in found})
    assert different == 1 if (kernel, size) in ORDERED else different > 1


def test_without_turns_the_bits_differ():
    """What the fixed order is for: the kernel above without it."""
    artifact = loaded(Kernel("bwd", "causal", (64, 64)))
    found = [run(artifact, SIZES[WRITERS], seed) for seed in range(6)]
    assert all(one["ok"] for one in found) and len({one["bits"] for one in found}) > 1


def test_the_part_of_ci_has_every_value_of_every_axis():
    whole = matrix()
    assert set(CI) <= set(whole)
    for axis in ("direction", "variant", "head_dim", "ctas", "deterministic"):
        assert {getattr(k, axis) for k in CI} == {getattr(k, axis) for k in whole}
    assert {(k.direction, k.head_dim) for k in CI} == {(k.direction, k.head_dim) for k in whole}
    sizes = {("fwd", size) for size in SIZES if size not in BACKWARD_ONLY} | {("bwd", size) for size in SIZES}
    assert {(k.direction, size) for k, size in CI.items()} == sizes
