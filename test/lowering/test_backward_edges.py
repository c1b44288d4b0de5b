"""Edge cases of issue 5 through compiled kernels, forward and backward, in the emulator: no hazard, workspaces and outputs poisoned."""

import pathlib
import sys

import compiled
import pytest

from fa4c.lowering import build

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "runtime"))
from edge_cases import CASES, Edge, blind, run  # noqa: E402


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
    check(case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_edge(case):
    check(case)


def check(case, **more):
    results, rows = run(case, "emulator", **more)
    assert [row for row in rows if not row.ok] == []
    assert case.holds is None or case.holds(results)


# Turns are counted over the CTAs that add to a block of queries: several blocks of keys, of which some add nothing to some.
IN_TURNS = [
    Edge("rows that see no key", 330, 290, options=dict(causal=True), holds=blind(40)),
    Edge("fewer queries than keys", 140, 400, options=dict(causal=True)),
    Edge("narrow window with empty rows", 330, 300, hq=2, options=dict(window=(40, 3))),
    Edge("one query", 1, 300),
]


@pytest.mark.parametrize("case", IN_TURNS, ids=str)
def test_edge_in_turns(case):
    check(case, deterministic=True)
