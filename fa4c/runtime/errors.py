"""What the runtime raises: one form of message (what, why, fix), and classes that ordinary `except` clauses catch.

`fa4c/ir/diagnostics.py` says the same for the compiler; the runtime stands alone, so it has its own small copy of the form:

    where: error: what
    note: why: ...
    note: fix: ...
"""

from __future__ import annotations


class RuntimeDiagnostic(Exception):
    """A mistake of the user or a limit of the machine. `what`, `where`, `why`, `fix` are attributes, `text()` the message."""

    def __init__(self, what: str, *, where: object = None, why: str = "", fix: str = ""):
        self.what, self.where, self.why, self.fix = what, where, why, fix
        super().__init__(self.text())

    def text(self) -> str:
        lines = [f"{self.where or 'fa4c'}: error: {self.what}"]
        if self.why:
            lines.append(f"note: why: {self.why}")
        if self.fix:
            lines.append(f"note: fix: {self.fix}")
        return "\n".join(lines)


class InputError(RuntimeDiagnostic, ValueError):
    """An argument has a wrong value: a shape, a layout, a device, an option."""


class InputTypeError(RuntimeDiagnostic, TypeError):
    """An argument has a wrong type or dtype."""


class ArtifactError(RuntimeDiagnostic, ValueError):
    """A file is no artifact, or is truncated, altered or of another schema."""


class ManifestError(ArtifactError):
    """The manifest breaks its schema; `where` is the path inside it, such as `causal.fa4c: kernels.fwd.params[2]`."""


class BackendError(RuntimeDiagnostic, RuntimeError):
    """The machine cannot run it: no GPU, another GPU, a driver's refusal, a backend that is not there."""


class NotYetError(RuntimeDiagnostic, NotImplementedError):
    """Planned, not built: the message says what works today."""


def nearest(name: str, known) -> str:
    """` (did you mean 'x'?)` or nothing."""
    import difflib

    close = difflib.get_close_matches(str(name), [str(k) for k in known], n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
