"""Writing a file whole or not at all."""

from __future__ import annotations

import errno
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
    handle, temporary = _beside(path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def try_place(path) -> None:
    """Raises the OSError that `write_whole` would, as far as it can be known before there is anything to write."""
    path = pathlib.Path(os.path.realpath(path))
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return
    handle, temporary = _beside(path)
    os.close(handle)
    os.unlink(temporary)


def _beside(path: pathlib.Path) -> tuple[int, str]:
    return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
