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
import subprocess
import sys
import tempfile
from pathlib import Path

from . import build


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
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Helper:
    """`with Helper() as helper:` starts the process, which is gone when the block is left; None where no process can be started."""

    def __enter__(self) -> Helper | None:
        # The caller's own path: it may not have found fa4c where a fresh interpreter would look.
        # Ctrl-C is for the caller, which ends this process; from the first line on, so that importing fa4c prints no traceback either.
        deaf = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)"
        program = f"{deaf}; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        self._process = None
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._folder = tempfile.TemporaryDirectory(prefix="fa4c-")
        return self if self._process is not None else None

    def __exit__(self, *exc) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._folder.cleanup()

    def ask(self, source: str, name: str, arch: str) -> None:
        """Give it one kernel. One at a time."""
        Path(self._folder.name, "source").write_text(source, encoding="utf-8")
        with contextlib.suppress(OSError):  # it is gone, and will not answer
            self._process.stdin.write(json.dumps({"folder": self._folder.name, "name": name, "arch": arch}) + "\n")
            self._process.stdin.flush()

    def answer(self) -> build.Binary | None:
        """What it made of the kernel, waited for; None if nothing."""
        line = self._process.stdout.readline()
        if not line:
            return None
        folder = Path(self._folder.name)
        return build.Binary((folder / "ptx").read_text(encoding="utf-8"), (folder / "cubin").read_bytes(), json.loads(line)["dsl_version"])


def serve() -> None:
    """What the helper runs, until its standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the DSL prints is no answer
    with contextlib.suppress(Exception):  # the caller tries the same, and says what is wrong
        build.import_dsl()
        for line in sys.stdin:
            asked = json.loads(line)
            folder = Path(asked["folder"])
            tempfile.tempdir = str(folder)  # the caller removes it, and what a compilation leaves that it puts an end to
            binary = build.build((folder / "source").read_text(encoding="utf-8"), asked["name"], asked["arch"])
            (folder / "ptx").write_text(binary.ptx, encoding="utf-8")
            (folder / "cubin").write_bytes(binary.cubin)
            answers.write(json.dumps({"dsl_version": binary.dsl_version}) + "\n")
            answers.flush()
