"""Disassembly of a cubin, by nvdisasm or cuobjdump: the extra [sass], or a CUDA toolkit on the PATH."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import tempfile

from ..ir.diagnostics import Diagnostic


def disassemble(cubin: bytes) -> str:
    """SASS text. Raises Diagnostic where no disassembler is found or it refuses the file."""
    tool = find_nvdisasm()
    if tool is None:
        raise Diagnostic(
            "SASS needs nvdisasm, which is not here",
            why="neither the extra [sass] nor a CUDA toolkit was found",
            fix="pip install 'fa4c[sass]', or put a toolkit's bin directory on PATH",
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Diagnostic(
            f"{os.path.basename(tool)} refuses the cubin", why=done.stderr.strip(), fix="install a newer one: pip install -U 'fa4c[sass]'"
        )
    return done.stdout


def find_nvdisasm() -> str | None:
    """Beside the installed packages, else on the PATH, else where toolkits install themselves."""
    for root in sys.path:
        for found in sorted(glob.glob(os.path.join(root, "nvidia", "*", "bin", "nvdisasm"))):
            return found
    return shutil.which("nvdisasm") or next(iter(sorted(glob.glob("/usr/local/cuda*/bin/nvdisasm"))), None)
