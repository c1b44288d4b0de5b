"""Located diagnostics, in one form: what, where, why, how to fix.

Two ways to say the same thing. A verifier, called by MLIR from inside C++, returns `op_error(...)`. A pass, a reader or
the command line raises `Diagnostic(...)`. Both end up as

    file:line:col: error: what
    note: why: ...
    note: fix: ...

The bindings cannot attach notes to a diagnostic, so the notes travel inside the message text, one a line.
"""

from __future__ import annotations

import re


class Diagnostic(Exception):
    """A user's mistake, with its place, its reason and a way out. Exit status 1, never a traceback."""

    def __init__(self, what: str, *, where: object = None, why: str = "", fix: str = ""):
        self.what, self.where, self.why, self.fix = what, where, why, fix
        super().__init__(self.text())

    def text(self) -> str:
        return f"{format_where(self.where)}: error: {message(self.what, self.why, self.fix)}"


def message(what: str, why: str = "", fix: str = "") -> str:
    lines = [what]
    if why:
        lines.append(f"note: why: {why}")
    if fix:
        lines.append(f"note: fix: {fix}")
    return "\n".join(lines)


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
        return f"{found[1]}:{found[2]}:{found[3]}"
    if text.startswith("loc("):
        return "<unknown>"
    return text


def from_mlir_error(error) -> str:
    """The text of an `ir.MLIRError`: its diagnostics one by one, each in the contract's form."""
    lines = []
    for diagnostic in error.error_diagnostics:
        lines.append(f"{format_where(diagnostic.location)}: error: {diagnostic.message}")
        lines += [f"note: {note.message}" for note in diagnostic.notes]
    return "\n".join(lines) or f"error: {error}"
