"""A second process that compiles kernels: the DSL traces in Python, so threads of one process would take turns.

Importing the DSL and tracing the kernels is most of a compile. A helper imports the DSL while the caller's passes run, then takes the
kernel with the most source; the caller compiles the others meanwhile. Whatever goes wrong in a helper, the caller compiles that kernel
too, so that an error is raised where it always is. Requests and answers are lines of JSON over the helper's standard input and output;
texts travel as files, since a pipe would hold up whoever writes to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from ..ir.diagnostics import Diagnostic
from . import build, scratch

TIME_LIMIT = 900.0  # seconds that are waited for one kernel: the longest known takes about 60 where nothing else runs


def build_all(sources: dict[str, str], arch: str, helper: Helper | None = None) -> dict[str, build.Binary]:
    """`build.build` of each kernel's source, by name. Raises as that does."""
    largest = max(sources, key=lambda kernel: len(sources[kernel]))
    if helper is not None:
        helper.ask(sources[largest], largest, arch)
    found = {kernel: build.build(source, kernel, arch) for kernel, source in sources.items() if helper is None or kernel != largest}
    if helper is not None:
        found[largest] = helper.answer() or build.build(sources[largest], largest, arch)
    return {kernel: found[kernel] for kernel in sources}


def usable_cpus() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Helper:
    """`with Helper() as helper:` starts the process, which is gone when the block is left; None where no process can be started."""

    _folder = _process = None
    _asked = ""  # name of the kernel that it compiles

    def __enter__(self) -> Helper | None:
        # The caller's own path: it may not have found fa4c where a fresh interpreter would look.
        # Ctrl-C is for the caller, which ends this process; from the first line on, so that importing fa4c prints no traceback either.
        deaf = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)"
        with contextlib.suppress(OSError):
            self._folder = scratch.folder()
            start = f"serve({os.getpid()}, {self._folder.name!r})"
            program = f"{deaf}; sys.path[:] = {sys.path!r}; from {__name__} import serve; {start}"
            self._process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self if self._process is not None else None

    def __exit__(self, *exc) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        if self._folder is not None:
            self._folder.cleanup()

    def ask(self, source: str, name: str, arch: str) -> None:
        """Give it one kernel. One at a time."""
        self._asked = name
        try:
            Path(self._folder.name, "source").write_text(source, encoding="utf-8")
            self._process.stdin.write(json.dumps({"name": name, "arch": arch}) + "\n")
            self._process.stdin.flush()
        except OSError:  # it is gone, or there is no room for the source: `answer` is not to wait for it
            self._process.kill()

    def answer(self) -> build.Binary | None:
        """What it made of the kernel, waited for; None if nothing. Raises Diagnostic where that takes too long."""
        folder, line = Path(self._folder.name), self._line()
        with contextlib.suppress(OSError, ValueError):  # of a process that is ended as it writes there may be half an answer
            version = json.loads(line)["dsl_version"]
            return build.Binary((folder / "ptx").read_text(encoding="utf-8"), (folder / "cubin").read_bytes(), version)
        return None


    def _line(self) -> str:
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.append(self._process.stdout.readline()), daemon=True)
        reader.start()
        reader.join(TIME_LIMIT)
        if reader.is_alive():
            self._process.kill()  # which ends the line, too
            reader.join()
            raise Diagnostic(
                f"kernel '{self._asked}' was not compiled within {TIME_LIMIT:g} s",
                why="the kernel DSL's compiler hangs, or this machine is too busy",
                fix="try again; --emit cute writes the kernel's source without that compiler",
            )
        return lines[0] if lines else ""


def serve(caller: int, folder_name: str) -> None:
    """What the helper runs, until its standard input ends, or the process `caller` does."""
    folder = Path(folder_name)
    threading.Thread(target=_end_with, args=(caller, folder), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the DSL prints is no answer
    tempfile.tempdir = str(folder)  # the caller removes it, and what a compilation leaves that it puts an end to
    with contextlib.suppress(Exception):  # the caller tries the same, and says what is wrong
        build.import_dsl()
        for line in sys.stdin:
            asked = json.loads(line)
            binary = build.build((folder / "source").read_text(encoding="utf-8"), asked["name"], asked["arch"])
            (folder / "ptx").write_text(binary.ptx, encoding="utf-8")
            (folder / "cubin").write_bytes(binary.cubin)
            answers.write(json.dumps({"dsl_version": binary.dsl_version}) + "\n")
            answers.flush()


def _end_with(caller: int, folder: Path) -> None:
    """A caller that is killed removes nothing, and no end of the standard input is seen in the middle of a compile."""
    while os.getppid() == caller:
        time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
