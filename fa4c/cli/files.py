"""Reading inputs and writing results, with the contract's errors for whatever goes wrong with a file."""

from __future__ import annotations

import os
import sys

from ..ir.diagnostics import Diagnostic, UsageError
from ..runtime import whole_file

STDIN = "-"


def read_bytes(path: str) -> bytes:
    if path == STDIN:
        return sys.stdin.buffer.read()
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise _file_error("read", path, error) from None


def read_text(path: str) -> str:
    """An IR file's text. `-` is standard input."""
    data = read_bytes(path)
    if data[:4] == b"PK\x03\x04":
        raise Diagnostic("this is an artifact, not MLIR text", where=display_name(path), why="it is a zip file",
                         fix="use `fa4c run` or `fa4c check` on it; its .mlir members hold the IR of each level")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Diagnostic("this is no MLIR text", where=display_name(path), why=f"byte {error.start} is no UTF-8",
                         fix="give a .mlir file of the attn, tile or warp level") from None
    if "\0" in text:
        raise Diagnostic("this is no MLIR text", where=display_name(path), why="it has a zero byte",
                         fix="give a .mlir file of the attn, tile or warp level")
    return text


def read_module(path: str):
    """The module in a file, parsed and verified in the context that `main` opened."""
    from ..ir.context import parse_module
    from ..ir.mlir import ir

    return parse_module(read_text(path), display_name(path), ir.Context.current)


def is_artifact(path: str) -> bool:
    """By content, or by name where the content cannot tell (a truncated or empty file)."""
    if path == STDIN:
        return False
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PK\x03\x04" or path.endswith(".fa4c")
    except OSError as error:
        raise _file_error("read", path, error) from None


def write_whole(path: str, data: str | bytes) -> None:
    """All of the file or nothing (a device or a pipe is written to)."""
    try:
        whole_file.write_whole(path, data.encode() if isinstance(data, str) else data)
    except OSError as error:
        raise _file_error("write", path, error) from None


def check_writable(path: str) -> None:
    """Before long work: whether its result will find a place."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise Diagnostic("cannot write this file", where=path, why=f"there is no folder {folder}", fix="make it, or choose another -o")
    if not path:
        raise UsageError("-o names no file", fix="write -o FILE")
    if os.path.isdir(path):
        raise Diagnostic("cannot write this file", where=path, why="it is a folder", fix="choose another -o")
    try:
        whole_file.try_place(path)
    except OSError as error:
        why = f"no file can be made in {folder}: {error.strerror}"
        raise Diagnostic("cannot write this file", where=path, why=why, fix="choose another -o") from None


def make_folder(path: str) -> None:
    """A folder that files can be written to; it may be there."""
    try:
        os.makedirs(path, exist_ok=True)
        whole_file.try_place(os.path.join(path, "file"))
    except OSError as error:
        raise _file_error("write to", path, error) from None


def display_name(path: str) -> str:
    return "<stdin>" if path == STDIN else path or "''"


def progress(text: str) -> None:
    """One line on stderr during long work, for a person at a terminal only."""
    if sys.stderr.isatty():
        print(f"fa4c: {text}", file=sys.stderr)


def _file_error(verb: str, path: str, error: OSError) -> Diagnostic:
    fixes = {"FileNotFoundError": "check the path", "IsADirectoryError": "name a file", "PermissionError": "check the file's permissions"}
    return Diagnostic(f"cannot {verb} this file", where=display_name(path), why=error.strerror or str(error),
                      fix=fixes.get(type(error).__name__, ""))
