"""Temporary folders. A process that is killed leaves its folder behind; a later one removes it, a day after."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import stat
import tempfile
import time

_PREFIX = "fa4c-scratch-"
_NAME = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")
_FORGOTTEN = 24 * 3600.0


def folder() -> tempfile.TemporaryDirectory:
    """A new one, removed when it is closed or collected. Raises OSError."""
    _sweep(tempfile.gettempdir())
    return tempfile.TemporaryDirectory(prefix=_PREFIX)


@functools.cache
def _sweep(where: str) -> None:
    """Once a process: folders of this user with our names that nothing was written to for a day."""
    with contextlib.suppress(OSError), os.scandir(where) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                facts = entry.stat(follow_symlinks=False)
                own = not hasattr(os, "getuid") or facts.st_uid == os.getuid()
                if own and stat.S_ISDIR(facts.st_mode) and time.time() - facts.st_mtime > _FORGOTTEN:
                    shutil.rmtree(entry.path, ignore_errors=True)
