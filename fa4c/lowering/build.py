"""CuTe-DSL source -> PTX and cubin, on a machine with no GPU.

Source: the project's sheet "CuTe DSL as a code generator's target", section 2. The DSL is not thread-safe, and reads the kernel's text
through `inspect`, so the source goes to a real file in a temporary directory, under one process-wide lock.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import sys
import threading
from dataclasses import dataclass

from ..ir.diagnostics import Diagnostic
from . import scratch

COMPILE_LOCK = threading.RLock()


@dataclass(frozen=True)
class Binary:
    ptx: str
    cubin: bytes
    dsl_version: str


def build(source: str, name: str, arch: str, *, line_info: bool = False) -> Binary:
    """Compile an emitted file's `host` for `arch` ("sm_90a"); `line_info` puts the lines of the source into the PTX.

    Raises Diagnostic if cutlass-dsl is missing or refuses the code.
    """
    cutlass = import_dsl()
    with COMPILE_LOCK, scratch.folder() as folder:
        path = os.path.join(folder, f"{name}.cute.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(source)
        module = _import(path, f"_fa4c_{name}")
        noise = io.StringIO()
        try:
            with contextlib.redirect_stdout(noise):
                compiled = cutlass.cute.compile(
                    module.host,
                    *module.fake_args(cutlass.cute.runtime.make_fake_compact_tensor, cutlass.cute.runtime.make_fake_stream),
                    no_jit_engine=True,  # nothing runs here
                    options=f"--gpu-arch {arch} --keep-ptx --keep-cubin --dump-dir {folder}" + " --generate-line-info" * line_info,
                )
        finally:
            sys.modules.pop(module.__name__, None)
        return Binary(compiled.__ptx__, compiled.__cubin__, cutlass.__version__)


def import_dsl():
    """The module `cutlass`, which takes the better part of a second to import. Raises Diagnostic if it is missing."""
    try:
        with COMPILE_LOCK:
            import cutlass
            import cutlass.cute.runtime
    except ImportError as error:
        raise Diagnostic(
            "PTX needs nvidia-cutlass-dsl, which cannot be imported",
            why=str(error),
            fix="pip install nvidia-cutlass-dsl (Linux and Windows); all levels up to --emit cute work without it",
        ) from error
    return cutlass


def _import(path: str, name: str):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
