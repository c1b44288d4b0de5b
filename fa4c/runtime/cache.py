"""The disk cache of artifacts, and its keys, computed without MLIR.

A key is the hash of the canonical semantics (names of the function and of intermediate values ignored), target, direction, dtype, head
dims and the compiler's version. Lengths, heads and batch are run-time arguments and no part of it. The DSL's version stands in the file
name beside the key: a machine without the DSL takes any, so a folder filled on one machine serves another. Several processes may share
the folder: a file lock lets one of them compile while the others wait, and files appear whole by a rename.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import re
import sys
import threading
import warnings

from . import artifact as artifact_module
from . import counters
from .errors import ArtifactError

_compile_lock = threading.Lock()  # the DSL's compiler is not thread-safe: one at a time in a process
_memory: dict[str, artifact_module.Artifact] = {}


def directory() -> pathlib.Path:
    """FA4C_CACHE_DIR, else XDG_CACHE_HOME/fa4c, else ~/.cache/fa4c."""
    chosen = os.environ.get("FA4C_CACHE_DIR")
    if chosen:
        return pathlib.Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(base) if base else pathlib.Path.home() / ".cache") / "fa4c"


def canonical(semantics: dict) -> dict:
    """The tree without what does not change a kernel: the function's name, fills, and the names of intermediate values (numbered in order).

    Names of arguments and results stay: callers pass tensors by them.
    """
    names = {a["name"]: a["name"] for a in semantics["args"]}

    def value(name):
        return names.setdefault(name, f"%{len(names)}")

    body = [{**op, "in": [value(n) for n in op["in"]], "out": [value(n) for n in op["out"]]} for op in semantics["body"]]
    args = [{k: v for k, v in a.items() if k not in ("fill", "loc")} for a in semantics["args"]]
    results = [{**{k: v for k, v in r.items() if k != "loc"}, "value": value(r["value"])} for r in semantics["results"]]
    rest = {k: v for k, v in semantics.items() if k not in ("name", "args", "body", "results", "loc")}
    return {**rest, "args": args, "body": [{k: v for k, v in op.items() if k != "loc"} for op in body], "results": results}


def key_of(semantics: dict, *, target: str, direction: str, dtype: str, head_dim: tuple[int, int], derive: dict | None = None) -> str:
    """`derive`: what a backward is derived for (of, wrt, deterministic), each only where it is not the default."""
    return _digest("semantics", canonical(semantics), target, direction, dtype, list(head_dim), *([derive] if derive else []))


def key_of_text(
    text: str, *, target: str, direction: str, dtype: str | None, head_dim: tuple[int, int] | None, derive: dict | None = None
) -> str:
    """The key of MLIR text: comment lines and white space do not count."""
    lines = (line.strip() for line in text.splitlines())
    plain = "\n".join(re.sub(r"\s+", " ", line) for line in lines if line and not line.startswith("//"))
    return _digest("text", plain, target, direction, dtype, list(head_dim) if head_dim else None, *([derive] if derive else []))


def _digest(*parts) -> str:
    return hashlib.sha256(json.dumps([compiler_version(), *parts], sort_keys=True).encode()).hexdigest()[:40]


@functools.cache
def compiler_version() -> str:
    """fa4c's version and a hash of the compiler's sources, so that an edited pass never meets an old kernel."""
    root = pathlib.Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for folder in ("frontend", "ir", "lowering", "passes", "targets"):
        for source in sorted(path for kind in ("*.py", "*.json") for path in (root / folder).rglob(kind)):  # measured data count too
            digest.update(source.relative_to(root).as_posix().encode() + b"\0" + source.read_bytes())
    from .. import __version__

    return f"{__version__}+{digest.hexdigest()[:12]}"


@functools.cache
def dsl_version() -> str | None:
    """The installed nvidia-cutlass-dsl's version, from its metadata (it is not imported), or None."""
    import importlib.metadata

    try:
        return importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        return None


def find(key: str) -> artifact_module.Artifact | None:
    """The artifact under `key` from memory or disk. A corrupt file is reported by a warning and removed."""
    found = _memory.get(key)
    if found is not None:
        return found
    for path in _candidates(key):
        try:
            found = artifact_module.load(path)
        except ArtifactError as error:
            if path.exists():
                _warn(f"the cache entry {path.name} is corrupt and is rebuilt ({error.what})")
                counters.count("cache_rebuilt")
                path.unlink(missing_ok=True)
            continue
        counters.count("cache_hits")
        return _memory.setdefault(key, found)
    return None


def get_or_build(key: str, build) -> artifact_module.Artifact:
    """The artifact under `key`; `build() -> (manifest, members)` runs at most once for all processes that share the folder."""
    found = find(key)
    if found is not None:
        return found
    with _compile_lock, _file_lock(key):
        found = find(key)  # another thread or process may have built it while we waited
        if found is not None:
            return found
        counters.count("compiles")
        made = artifact_module.build(*build())
        path = directory() / f"{key}-{dsl_version() or 'none'}.fa4c"
        try:
            made.save(path)
        except (ArtifactError, OSError) as error:
            _warn(f"the cache folder cannot be written, so this kernel is compiled again next time ({error})")
        return _memory.setdefault(key, made)


def _warn(text: str) -> None:
    """A warning that names the line of the caller, outside of fa4c."""
    package, frame, level = str(pathlib.Path(__file__).resolve().parent.parent) + os.sep, sys._getframe(), 1
    while frame.f_back is not None and os.path.realpath(frame.f_code.co_filename).startswith(package):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"fa4c: {text}", stacklevel=level)


def _candidates(key: str) -> list[pathlib.Path]:
    version = dsl_version()
    if version:
        path = directory() / f"{key}-{version}.fa4c"
        return [path] if path.exists() else []
    return sorted(directory().glob(f"{key}-*.fa4c"), reverse=True)


@contextlib.contextmanager
def _file_lock(key: str):
    """One process at a time for `key`. Without file locks (or a folder to write) processes may compile twice; renames keep that right."""
    try:
        import fcntl

        directory().mkdir(parents=True, exist_ok=True)
        file = (directory() / f"{key}.lock").open("w")
    except (ImportError, OSError):
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file unlocks it


def entries() -> list[dict]:
    """For `fa4c cache list`: name, target, dtype, head_dims, bytes, path of each entry; `error` for one that cannot be read."""
    found = []
    for path in sorted(directory().glob("*.fa4c")):
        entry = {"path": str(path), "bytes": path.stat().st_size}
        try:
            m = artifact_module.load(path).manifest
            entry |= {k: m.get(k) for k in ("name", "target", "direction", "dtype", "head_dims", "dsl")}
        except ArtifactError as error:
            entry["error"] = error.what
        found.append(entry)
    return found


def size() -> int:
    """Bytes of all entries."""
    return sum(path.stat().st_size for path in directory().glob("*.fa4c"))


def clear() -> int:
    """Remove all entries (and their locks); returns how many. Loaded artifacts are forgotten too."""
    _memory.clear()
    count = 0
    for path in directory().glob("*.fa4c"):
        path.unlink(missing_ok=True)
        count += 1
    for path in (*directory().glob("*.lock"), *directory().glob(".*.fa4c.*.tmp")):
        path.unlink(missing_ok=True)
    return count


def forget() -> None:
    """Drop the artifacts held in memory (tests)."""
    _memory.clear()
