"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import pathlib
import stat
import tempfile


def write_whole(path, data: bytes) -> None:
    """All of `path` or nothing: a temporary file beside it, then a rename. A link is followed; a device or a pipe is written to, since a
    rename would put a file in its place. Raises OSError."""
    path = pathlib.Path(os.path.realpath(path))
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        path.write_bytes(data)
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
