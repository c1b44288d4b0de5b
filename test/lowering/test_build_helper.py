"""A second process compiles one kernel: the same bytes as without it, and the same errors, whatever becomes of it."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from fa4c.ir.diagnostics import Diagnostic
from fa4c.lowering import build, build_helper, scratch
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


def test_a_compiler_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(build_helper, "TIME_LIMIT", 0.2)
    with build_helper.Helper() as helper, pytest.raises(Diagnostic, match="kernel 'slow' was not compiled within 0.2 s"):
        helper.ask("import time\ntime.sleep(600)\n", "slow", "sm_90a")
        helper.answer()
    assert helper._process.poll() is not None


def test_folders_of_killed_processes_go_a_day_later(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old, young, others = tmp_path / "fa4c-scratch-abcd_123", tmp_path / "fa4c-scratch-abcd_456", tmp_path / "fa4c-scratch-of-mine"
    for folder in (old, young, others):
        folder.mkdir()
    for folder in (old, others):
        os.utime(folder, (1e9, 1e9))
    (tmp_path / "fa4c-scratch-abcd_789").symlink_to(others)
    with scratch.folder() as own:
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {young.name, others.name, "fa4c-scratch-abcd_789", pathlib.Path(own).name}
    assert not pathlib.Path(own).exists()


def test_ended_while_it_compiles_it_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with build_helper.Helper() as helper:
        helper.ask("import time\ntime.sleep(600)\n", "slow", "sm_90a")
        while not list(tmp_path.rglob("slow.cute.py")):
            assert helper._process.poll() is None
            time.sleep(0.02)
    assert not list(tmp_path.glob("fa4c-*"))  # the DSL keeps a folder of its own


def test_without_room_for_the_source_it_is_compiled_here(built, monkeypatch):
    def no_room(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_text", no_room)
    with build_helper.Helper() as helper:
        assert len(build_helper.build_all(SOURCES, "sm_90a", helper)) == 2
    assert built == ["short", "long"]


def test_without_a_folder_there_is_no_process(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/no/folder")
    with build_helper.Helper() as helper:
        assert helper is None


# The second process is a busy one: it says its id in a file, and never answers.
CALLER = """
import os, pathlib, sys, time
from fa4c.cli import compile as command, main
from fa4c.lowering import build_helper

BUSY = f"import os, pathlib; pathlib.Path({sys.argv[1]!r}).write_text(str(os.getpid()))\\nwhile True: pass"

def compile_file(*_):
    with build_helper.Helper() as helper:
        helper.ask(BUSY, "slow", "sm_90a")
        helper.answer()

command.compile_file = compile_file
sys.exit(main.main(["compile", "no.mlir", "--emit", "ptx"]))
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_it_does_not_outlive_a_caller_that_is_ended(tmp_path, sent):
    folders, said = tmp_path / "tmp", tmp_path / "id"
    folders.mkdir()
    caller = subprocess.Popen([sys.executable, "-c", CALLER, said], env={**os.environ, "TMPDIR": str(folders)}, stderr=subprocess.PIPE)
    try:
        while not (said.exists() and said.read_text()):
            assert caller.poll() is None
            time.sleep(0.05)
        caller.send_signal(sent)
        caller.communicate(timeout=10)  # until nobody holds the other end of stderr any more
    except subprocess.TimeoutExpired:
        os.kill(int(said.read_text()), signal.SIGKILL)
        raise
    finally:
        caller.kill()
    assert caller.wait() == (143 if sent == signal.SIGTERM else -sent)
    assert not list(folders.glob("fa4c-*"))
