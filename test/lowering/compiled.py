"""Compiled kernels for tests.

A build takes seconds and follows from the code alone, so it is kept in a folder by that, for all test processes and for later runs of the
tests.
"""

import ast
import contextlib
import fcntl
import functools
import hashlib
import os
import pathlib
import pickle
import re
import tempfile
from unittest import mock

import pytest

from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.mlir import ir
from fa4c.lowering import build
from fa4c.lowering.compile import compile_text
from fa4c.runtime import artifact

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"
_BUILDS = pathlib.Path(tempfile.gettempdir()) / f"fa4c-test-builds-{os.getuid()}"
_build = build.build  # before any test replaces it


@functools.cache
def level(path, emit: str, *, filename: str | None = None, **options) -> str:
    """The text of an example (a path below examples/, or any file) at a level: "attn", "tile", "warp", "cute"."""
    file = EXAMPLES / path
    return compile_text(file.read_text(), filename or str(file), emit=emit, **options)


def check_refused(text: str, old: str, new: str, words: str) -> None:
    """`text`, of the warp level, with `new` for the pattern `old`: lowering it says `words`."""
    edited = re.sub(old, new, text)
    assert edited != text
    with pytest.raises((Diagnostic, ir.MLIRError), match=words):
        compile_text(edited, "edited.mlir", emit="cute")


@functools.cache
def kernel(path, **options):
    """(manifest, members) of an example."""
    file = EXAMPLES / path
    return kernel_of_text(file.read_text(), str(file), **options)


def kernel_of_text(text: str, filename: str = "-", **options):
    with mock.patch.object(build, "build", kept_build):
        return compile_text(text, filename, **options)


def ptx(path, **options) -> str:
    members = kernel(path, **options)[1]
    return next(data for name, data in members.items() if name.endswith(".ptx")).decode()


def cubin(path, **options) -> bytes:
    members = kernel(path, **options)[1]
    return next(data for name, data in members.items() if name.endswith(".cubin"))


@functools.cache
def loaded(path, **options):
    """The artifact as the runtime sees it: written to a file and read back."""
    return load(*kernel(path, **options))


def load(manifest, members):
    with tempfile.TemporaryDirectory(prefix="fa4c-test-") as folder:
        file = pathlib.Path(folder) / "kernel.fa4c"
        artifact.write(file, manifest, members)
        return artifact.load(file)


def kept_build(source: str, name: str, arch: str) -> build.Binary:
    """`build.build`, or what it returned before for the same code (and the same version of the DSL and of build.py)."""
    from importlib.metadata import version

    key = hashlib.sha256()
    code = ast.dump(ast.parse(source))  # comments name the file that a kernel came from
    for part in (code, name, arch, version("nvidia-cutlass-dsl"), pathlib.Path(build.__file__).read_text()):
        key.update(part.encode() + b"\0")
    _BUILDS.mkdir(mode=0o700, exist_ok=True)
    file = _BUILDS / key.hexdigest()
    with _locked(file.with_suffix(".lock")):
        if not file.exists():
            made = _build(source, name, arch)
            temporary = file.with_suffix(".new")
            temporary.write_bytes(pickle.dumps((made.ptx, bytes(made.cubin), made.dsl_version)))
            temporary.rename(file)
        return build.Binary(*pickle.loads(file.read_bytes()))


@contextlib.contextmanager
def _locked(path):
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
