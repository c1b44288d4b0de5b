"""Located diagnostics, in one form: what, where, why, how to fix.

Two ways to say the same thing. A verifier, called by MLIR from inside C++, returns `op_error(...)`. A pass, a reader or
the command line raises `Diagnostic(...)`. Both end up as

    file:line:col: error: what
    note: why: ...
    note: fix: ...

The bindings cannot attach notes to a diagnostic, so the notes travel inside the message text, one a line. A wrong command
line (an unknown pass or option) is no fault of the file and raises `UsageError`, which has the same notes and exit status 2.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable


class Diagnostic(Exception):
    """A user's mistake, with its place, its reason and a way out. Exit status 1, never a traceback."""

    def __init__(self, what: str, *, where: object = None, why: str = "", fix: str = ""):
        self.what, self.where, self.why, self.fix = what, where, why, fix
        super().__init__(self.text())

    def text(self) -> str:
        return f"{format_where(self.where)}: error: {message(self.what, self.why, self.fix)}"


class Diagnostics(Diagnostic):
    """Several at once, already in text form: what a pass reported through MLIR before it gave up."""

    def __init__(self, text: str):
        self._text = text
        super().__init__(text)

    def text(self) -> str:
        return self._text


class UsageError(Exception):
    """A wrong command line: unknown pass, unknown option, a value of the wrong kind. Exit status 2."""

    def __init__(self, what: str, *, why: str = "", fix: str = ""):
        self.what, self.why, self.fix = what, why, fix
        super().__init__(self.text())

    def text(self) -> str:
        return f"fa4c: error: {message(self.what, self.why, self.fix)}"


def message(what: str, why: str = "", fix: str = "") -> str:
    lines = [what]
    if why:
        lines.append(f"note: why: {why}")
    if fix:
        lines.append(f"note: fix: {fix}")
    return "\n".join(lines)


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?`, or the whole list where nothing is near: the text of a `fix` note."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return "use one of: " + ", ".join(known) if known else ""


def op_error(op, what: str, *, why: str = "", fix: str = "") -> bool:
    """Report a verifier's complaint about `op`, named in the text, and return False ("did not verify")."""
    op.location.emit_error(message(f"'{op.operation.name}' {what}", why, fix))
    return False


def op_diagnostic(op, what: str, *, why: str = "", fix: str = "") -> Diagnostic:
    """The same for a pass: `raise op_diagnostic(op, ...)`."""
    return Diagnostic(f"'{op.operation.name}' {what}", where=op.location, why=why, fix=fix)


def format_where(where: object) -> str:
    """`file:line:col` of a location, a path, or text; names (NameLoc) resolve to what they wrap."""
    if where is None:
        return "fa4c"
    text = str(where)
    found = re.search(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)', text)
    if found:
        line, column = (max(1, int(number)) for number in found.groups()[1:])  # 0:0 is a module that nobody wrote: the file
        return f"{found[1]}:{line}:{column}"
    if text.startswith("loc("):
        return "<unknown>"
    return text


def format_mlir(diagnostic, severity: str = "error", text: str = "") -> str:
    """One MLIR diagnostic with its notes; `text`: what was parsed, if any. MLIR's own "see current operation" note is left out: it is the
    op in generic form with all that is nested in it, often hundreds of lines, and the location says the same."""
    from .mlir_errors import explained

    place = format_where(diagnostic.location)
    found = re.search(r":(\d+):(\d+)$", place)
    said = explained(diagnostic.message, text, *(map(int, found.groups()) if found else (0, 0)))
    lines = [f"{place}: {severity}: {message(said.what, said.why, said.fix)}"]
    for note in diagnostic.notes if said.notes else ():
        if not note.message.startswith("see current operation"):
            where = format_where(note.location)
            lines.append(f"note: {note.message}" if where == place else f"note: {where}: {note.message}")
    return "\n".join(lines)


def from_mlir_error(error) -> str:
    """The text of an `ir.MLIRError`: its diagnostics one by one, each in the contract's form. `parse_module` puts the text on it."""
    text = getattr(error, "text", "")
    return "\n".join(format_mlir(d, text=text) for d in error.error_diagnostics) or f"fa4c: error: {error}"


class Collector:
    """Within `with Collector(context) as reports:`, takes in what is reported through MLIR.

    Errors end up in `reports.errors` as text, since a pass may emit one and then return as if nothing were wrong. Warnings
    and remarks go to `say`.
    """

    def __init__(self, context, say: Callable[[str], object] | None = None):
        self.errors: list[str] = []
        self._context, self._say = context, say

    def __enter__(self) -> Collector:
        self._handler = self._context.attach_diagnostic_handler(self._take)
        return self

    def __exit__(self, *exc) -> None:
        self._handler.detach()

    def _take(self, diagnostic) -> bool:
        severity = str(diagnostic.severity).rsplit(".", 1)[-1].lower()
        text = format_mlir(diagnostic, severity)
        if severity == "error":
            self.errors.append(text)
        elif self._say is not None:
            self._say(text)
        return True
