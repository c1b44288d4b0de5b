"""A second process compiles one kernel: the same bytes as without it, and the same errors, whatever becomes of it."""

import pathlib
import subprocess
import sys
import tempfile
import time

import pytest

from fa4c.ir.diagnostics import Diagnostic
from fa4c.lowering import build, build_helper
from fa4c.lowering.compile import compile_text

FILE = pathlib.Path(__file__).parent / "inputs" / "scale_by_sums.mlir"  # two kernels that compile quickly
SOURCES = {"short": "pass\n", "long": "this is no Python\n"}


@pytest.fixture
def built(monkeypatch):
    """The kernels that this process compiles, in order, into nothing."""
    kernels = []

    def compile_here(source, name, arch):
        kernels.append(name)
        return build.Binary(f"ptx of {name}", b"cubin", "0")

    monkeypatch.setattr(build, "build", compile_here)
    return kernels


def test_two_processes_make_what_one_makes():
    one, two = (compile_text(FILE.read_text(), FILE.name, jobs=jobs) for jobs in (1, 2))
    assert len(one[0]["kernels"]) > 1
    assert one == two


def test_the_helper_compiles_the_kernel_with_the_most_source(built, monkeypatch):
    monkeypatch.setattr(build_helper.Helper, "answer", lambda self: build.Binary("of the helper", b"", "1"))
    with build_helper.Helper() as helper:
        found = build_helper.build_all(SOURCES, "sm_90a", helper)
    assert built == ["short"]
    assert [found[kernel].ptx for kernel in SOURCES] == ["ptx of short", "of the helper"]


def test_what_the_helper_cannot_compile_is_compiled_here(built):
    with build_helper.Helper() as helper:
        found = build_helper.build_all(SOURCES, "sm_90a", helper)
    assert built == ["short", "long"]
    assert list(found) == ["short", "long"]


def test_a_helper_that_dies_is_made_up_for(built, monkeypatch):
    started = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: started([sys.executable, "-c", "raise SystemExit(3)"], **options))
    with build_helper.Helper() as helper:
        helper._process.wait()
        assert len(build_helper.build_all(SOURCES, "sm_90a", helper)) == 2
    assert built == ["short", "long"]


def test_where_no_process_can_be_started_there_is_none(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/python")
    with build_helper.Helper() as helper:
        assert helper is None


def test_it_is_gone_after_an_error():
    with pytest.raises(Diagnostic), build_helper.Helper() as helper:
        raise Diagnostic("no")
    assert helper._process.poll() is not None


def test_ended_while_it_compiles_it_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with build_helper.Helper() as helper:
        helper.ask("import time\ntime.sleep(600)\n", "slow", "sm_90a")
        while not list(tmp_path.rglob("slow.cute.py")):
            assert helper._process.poll() is None
            time.sleep(0.02)
    assert not list(tmp_path.glob("fa4c-*"))  # the DSL keeps a folder of its own
