"""The comparison of emulator and H200 (test/gpu/emulator_agreement) can fail, and its single operations are what their text says."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "gpu" / "emulator_agreement"
sys.path.insert(0, str(FOLDER))

import operations  # noqa: E402
import run_agreement  # noqa: E402


def compare(got, wanted, how, **options):
    return run_agreement.compare(np.array(got), np.array(wanted), how, **options)["ok"]


def test_bits_must_be_equal():
    assert compare(np.uint32([1, 2]), np.uint32([1, 2]), operations.BITWISE)
    assert not compare(np.uint32([1, 2]), np.uint32([1, 3]), operations.BITWISE)
    assert not compare(np.float32([0.0]), np.float32([-0.0]), operations.FLOAT)


def test_nan_payloads_count_only_bitwise():
    one, other = np.uint32([0x7FFFFFFF]), np.uint32([0x7FC00000])
    assert compare(one, other, operations.FLOAT) and not compare(one, other, operations.BITWISE)
    assert not compare(one, np.uint32([0x7F800000]), operations.FLOAT)  # infinity is no NaN
    halves = np.uint32([0x7FFF3C00]), np.uint32([0x7E003C00])
    assert compare(*halves, operations.FLOAT, dtype="halves")
    assert not compare(halves[0], np.uint32([0x7E003C01]), operations.FLOAT, dtype="halves")


NEIGHBOURS = [("float32", np.float32(1), np.float32(1.01)), ("bfloat16", np.int16(0x3F80), np.int16(0x3F81))]


@pytest.mark.parametrize("dtype, one, step", NEIGHBOURS)
def test_bounds(dtype, one, step):
    assert compare([step], [one], "bound", bound=0.0101, dtype=dtype)
    assert not compare([step], [one], "bound", bound=0.0051, dtype=dtype)
    assert not compare(np.float32([np.nan]), np.float32([1]), "bound", bound=1.0)


def test_a_machine_without_gpu_is_an_error(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    (tmp_path / "cases.json").write_text(json.dumps([{"name": "x"}]))
    command = [sys.executable, FOLDER / "run_agreement.py", tmp_path, "--out", tmp_path / "r.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "run_agreement: error: " in done.stderr


@pytest.mark.parametrize("group", operations.OPERATIONS)
def test_operations_use_all_their_operands(group):
    text = operations.source(group)
    for k, instruction in enumerate(operations.OPERATIONS[group][2]):
        line = next(s for s in text.split("\n") if f"out[{k} * n + i]" in s)
        assert instruction.split()[0] in line
        assert [f"({v})" in line for v in "xyz"] == [f"%{n}" in instruction for n in "123"]
