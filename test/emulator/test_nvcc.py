"""CUDA C++ compiled by nvcc (nvcc/kernels.cu): what another compiler emits runs too, with right results and no report."""

import pathlib

import numpy as np
import pytest
from emulator_kernels import bf16, f32

from fa4c.runtime.emulator import Buffer, Scalar, TensorMap, launch

PTX = (pathlib.Path(__file__).parent / "nvcc" / "kernels.ptx").read_text()
rng = np.random.default_rng(3)
SCHEDULES = [{}, {"schedule": "random", "schedule_seed": 1}, {"schedule": "random", "schedule_seed": 2}]


def go(entry, grid, block, params, smem=0, cluster=(1, 1, 1), **options):
    report = launch(PTX, entry, grid, block, cluster, smem, params, max_steps=200000, **options)
    assert report.ok, report.text()
    return report


@pytest.mark.parametrize("options", SCHEDULES)
def test_softmax(options):
    x = rng.standard_normal((3, 200)).astype(np.float32) * 3
    out = np.zeros_like(x)
    go("softmax", 4, 128, [Buffer(x), Buffer(out), Scalar(3, "i32"), Scalar(200, "i32")], **options)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=2e-6)


def trunc(a, b):
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


def wrap(x):
    x &= 0xFFFFFFFF
    return x - (1 << 32) if x >> 31 else x


def test_integers():
    x = rng.integers(-(2**31), 2**31, 64).astype(np.int32)
    out = np.zeros(64, np.int32)
    go("integers", 2, 32, [Buffer(x), Buffer(out)])
    for i, v in enumerate(x.tolist()):
        r = 0
        for k in range(1, (i & 7) + 2):
            if (v ^ k) & 1:
                r = wrap(r + trunc(v, k + 2))
            else:
                r = wrap(r - (v - (k + 3) * trunc(v, k + 3)))
            v = wrap((v * 1103515245 + 12345) >> 7)
            u = v & 0xFFFFFFFF
            r = wrap(r ^ (bin(u).count("1") << (k & 15)))
            r = wrap(r + 32 - u.bit_length() + ((u & -u).bit_length()))
        assert out[i] == r, i


@pytest.mark.parametrize("options", SCHEDULES)
def test_pipeline(options):
    x = rng.standard_normal((6, 128)).astype(np.float32)
    out = np.zeros(128, np.float32)
    go("pipeline", 1, 64, [Buffer(x), Buffer(out), Scalar(6, "i32")], **options)
    np.testing.assert_allclose(out, x.astype(np.float64).sum(0), atol=1e-5)


@pytest.mark.parametrize("options", SCHEDULES)
def test_distributed_shared_memory(options):
    x, out, count = rng.standard_normal(256).astype(np.float32), np.zeros(256, np.float32), np.zeros(1, np.int32)
    go("dsmem", 4, 64, [Buffer(x), Buffer(out), Buffer(count)], cluster=(2, 1, 1), **options)
    np.testing.assert_array_equal(out, 2 * x.reshape(2, 2, 64)[:, ::-1, ::-1].reshape(-1))
    assert count[0] == 4


@pytest.mark.parametrize("options", SCHEDULES)
def test_threadfence_reduction(options):
    x, partial, ticket, out = (
        rng.standard_normal(160).astype(np.float32),
        np.zeros(5, np.float32),
        np.zeros(1, np.int32),
        np.zeros(1, np.float32),
    )
    go("last_block", 5, 32, [Buffer(x), Buffer(partial, poison=True), Buffer(ticket), Buffer(out)], **options)
    np.testing.assert_allclose(out[0], x.astype(np.float64).sum(), atol=1e-5)


def test_threadfence_reduction_without_the_fence():
    text = "\n".join(s for s in PTX.split("\n") if "membar" not in s)
    x, partial, ticket, out = (
        rng.standard_normal(160).astype(np.float32),
        np.zeros(5, np.float32),
        np.zeros(1, np.int32),
        np.zeros(1, np.float32),
    )
    report = launch(text, "last_block", 5, 32, (1, 1, 1), 0, [Buffer(x), Buffer(partial, name="partial"), Buffer(ticket), Buffer(out)])
    assert [h for h in report.errors if h.cls == "race" and "partial" in h.message], report.text()


@pytest.mark.parametrize("options", SCHEDULES)
def test_tma(options):
    x = bf16(rng.standard_normal((64, 128)))
    out = np.zeros_like(x)
    maps = [TensorMap(Buffer(a), "bf16", (128, 64), (256,), (64, 32), 0) for a in (x, out)]
    go("tma_double", (2, 2), 128, maps, smem=4096, **options)
    np.testing.assert_array_equal(f32(out), 2 * f32(x))


def test_histogram_with_local_memory():
    x = rng.integers(0, 256, 1000).astype(np.uint8)
    out = np.zeros(257, np.int32)
    go("histogram", 1, 64, [Buffer(x), Buffer(out), Scalar(1000, "i32")])
    np.testing.assert_array_equal(out[:256], np.bincount(x, minlength=256))
    assert out[256] == (x & 1).sum()
