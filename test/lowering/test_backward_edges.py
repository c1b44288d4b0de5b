"""Edge cases of issue 5 through compiled kernels, forward and backward, in the emulator: no hazard, workspaces and outputs poisoned."""

import pathlib
import sys

import compiled
import pytest

from fa4c.lowering import build

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "runtime"))
from edge_cases import CASES, run  # noqa: E402


@pytest.fixture(autouse=True)
def kept(monkeypatch, tmp_path_factory):
    """Kernels are built once for all tests."""
    monkeypatch.setattr(build, "build", compiled.kept_build)
    monkeypatch.setenv("FA4C_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


# All of them are right on sm_100a too (FA4C_TARGET=sm_100a); a sample of them here.
ON_SM100A = CASES[::5]


@pytest.mark.parametrize("case", ON_SM100A, ids=str)
def test_edge_with_sums_in_tensor_memory(case, monkeypatch):
    monkeypatch.setenv("FA4C_TARGET", "sm_100a")
    test_edge(case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_edge(case):
    results, rows = run(case, "emulator")
    assert [row for row in rows if not row.ok] == []
    assert case.holds is None or case.holds(results)
