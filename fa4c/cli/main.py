"""The `fa4c` command: picks the sub-command, opens the MLIR context, and turns failures into text and an exit status.

    0  success
    1  a diagnostic: file:line:col: error: ..., note: why: ..., note: fix: ...
    2  wrong usage: an unknown sub-command, flag, pass or option
    130, 143  ended by Ctrl-C, by SIGTERM

Results go to stdout, everything else to stderr. Nothing here imports MLIR or torch before a sub-command needs them.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import re
import signal
import sys
import threading

from ..ir.diagnostics import Diagnostic, UsageError, from_mlir_error, message
from .parser import Parser

# Sub-command -> (module of this package, one line for `fa4c --help`).
COMMANDS = {
    "compile": "compile a variant to a kernel artifact, or stop at a level and print it",
    "opt": "run passes on a .mlir file of any level and print the module",
    "run": "run a variant or an artifact on data, and compare with the reference",
    "emulate": "execute any PTX kernel on the CPU",
    "explain": "what a kernel asks of each unit, where its data lie, what each pass changed",
    "check": "all static checks on a .mlir file of any level, or on an artifact",
    "tune": "find the fastest configurations of a variant on a GPU",
    "passes": "list the passes with their options",
    "targets": "list the targets",
    "doctor": "what is installed here, and what each missing part costs",
    "cache": "show or clear the cache of compiled kernels",
}


# Import name -> (package, what for): parts that may be missing on a machine which only runs, or on a system without wheels.
_PACKAGES = {
    "torch_mlir": ("torch-mlir", "reading and writing IR"),
    "cutlass": ("nvidia-cutlass-dsl", "PTX and cubin (Linux and Windows only; all up to --emit cute works without)"),
    "torch": ("torch", "data and the reference"),
    "cuda": ("cuda-bindings", "the driver API"),
    "numpy": ("numpy", "the interpreters"),
}


# torch raises a plain RuntimeError where the CPU's memory ends.
_ALLOCATOR = re.compile(r"^OutOfMemoryError:|^RuntimeError: .*can't allocate memory")

# A device, a quota or the file system is full.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(argv: list[str] | None = None) -> int:
    _replace_closed_streams()
    try:
        try:
            return _main(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()  # here, where what goes wrong can still be said
    except BrokenPipeError:  # the reader went away (`fa4c opt ... | head`): stop quietly, but the result is not whole
        _drop_output()
        return 1
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _drop_output()
        text = message("the output cannot be written", why=error.strerror, fix="make room, or write it somewhere else")
        return _complain(f"{error.filename or 'fa4c'}: error: {text}", 1)


def _main(argv: list[str]) -> int:
    try:
        args = parse_arguments(argv)
        with _termination_like_interrupt():
            return _run(args)
    except _Terminated:
        return 143
    except KeyboardInterrupt:
        return 130
    except UsageError as error:
        return _complain(error.text(), 2)
    except Diagnostic as error:
        return _complain(error.text(), 1)
    except Exception as error:
        if isinstance(error, OSError) and (isinstance(error, BrokenPipeError) or error.errno in _NO_ROOM):
            raise
        text = _known_failure(error)
        if text is not None:
            return _complain(text, 1)
        _complain(f"fa4c: this is a bug in fa4c, not in your input ({type(error).__name__}); please report it with this text:", 1)
        raise


class _Terminated(KeyboardInterrupt):
    """SIGTERM."""


@contextlib.contextmanager
def _termination_like_interrupt():
    """SIGTERM unwinds the stack, so that temporary folders and second processes go. Not where the caller of `main` has its own way."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(*_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one is not to stop the cleaning up
        raise _Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = Parser(prog="fa4c", description="A compiler for attention: MLIR text in, GPU kernels out.",
                    epilog="`fa4c COMMAND --help` explains one command, with examples.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    chosen = next((word for word in argv if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == chosen:  # the others' arguments are of no interest, and their modules need not be read
            module = _command(name)
            sub.description, sub.epilog = summary, getattr(module, "EXAMPLES", None)
            module.add_arguments(sub)
    args = parser.parse_args(argv)
    if args.command is None and not args.version:
        parser.error("a command is needed: " + ", ".join(COMMANDS))
    return args


def _command(name: str):
    try:
        return importlib.import_module(f"{__package__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__package__}.{name}":
            raise
        sys.exit(_complain(message(f"fa4c: error: '{name}' is not part of this version yet"), 2))


def _run(args: argparse.Namespace) -> int:
    if args.version:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print("fa4c", version("fa4c"))
        except PackageNotFoundError:
            print("fa4c, a checkout that is not installed")
        return 0
    command = _command(args.command)
    needs_mlir = getattr(command, "needs_mlir", None)
    with _context() if needs_mlir is not None and needs_mlir(args) else contextlib.nullcontext():
        return command.run(args) or 0


def _context():
    """The MLIR context, entered; the one place of the command line that opens it."""
    from ..ir.context import new_context

    return new_context()


def _known_failure(error: Exception) -> str | None:
    """The text of a failure that is the input's or the machine's, None for ours."""
    if isinstance(error, ModuleNotFoundError):
        return _missing(error.name or "")
    if isinstance(error, MemoryError) or _ALLOCATOR.search(f"{type(error).__name__}: {error}"):
        return "fa4c: error: " + message("there is not enough memory", why=str(error).split("\n")[0], fix="choose smaller sizes (--shape)")
    if type(error).__name__ == "MLIRError" and hasattr(error, "error_diagnostics"):
        return from_mlir_error(error)
    if all(hasattr(error, name) for name in ("what", "why", "fix")):  # the runtime's own exceptions: it may not import ir
        where = getattr(error, "where", None)
        return f"{where or 'fa4c'}: error: {message(error.what, error.why, error.fix)}"
    return None


def _missing(name: str) -> str | None:
    if name.startswith("fa4c."):
        return "fa4c: error: " + message(f"{name} is not part of this version yet", fix="see the README for what works")
    if name.split(".")[0] not in _PACKAGES:
        return None
    package, purpose = _PACKAGES[name.split(".")[0]]
    return "fa4c: error: " + message(f"the package {package} is not installed", why=f"it is needed for {purpose}",
                                     fix=f"pip install {package}; `fa4c doctor` lists what else is missing")


def _complain(text: str, status: int) -> int:
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr)
    return status


def _replace_closed_streams() -> None:
    """Python has None for a stream that was closed before it started (`fa4c ... >&-`)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def _drop_output() -> None:
    """What could not be written must not be tried again when Python ends, which would print a traceback and change the exit status."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
