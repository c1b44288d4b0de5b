"""Lines of Python under construction: indentation, names, comments."""

import contextlib
import keyword
import re

from ..ir.diagnostics import format_where


class Lines:
    """Text with a current indentation."""

    def __init__(self, indent: int = 0):
        self.lines, self.indent = [], indent

    def __call__(self, text: str = "") -> None:
        self.lines.append("    " * self.indent + text if text else "")

    @contextlib.contextmanager
    def block(self, head: str):
        """`head`, then an indented body; a body without lines becomes `pass`."""
        self(head)
        self.indent += 1
        before = len(self.lines)
        yield
        if not any(line.strip() and not line.lstrip().startswith("#") for line in self.lines[before:]):
            self("pass")
        self.indent -= 1

    def extend(self, other: "Lines") -> None:
        self.lines.extend("    " * self.indent + line if line else "" for line in other.lines)

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


class Names:
    """Unique Python names, readable ones first come, first served."""

    def __init__(self, taken=()):
        self.taken = set(taken)

    def fresh(self, hint: str) -> str:
        base = re.sub(r"\W", "_", hint) or "v"
        if base[0].isdigit() or keyword.iskeyword(base):
            base = f"v_{base}"
        name, number = base, 1
        while name in self.taken:
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name


def comment(op) -> str:
    """`warp.map  causal.mlir:12:8`: the phase's operation and where it comes from."""
    where = format_where(op.location)
    return f"# {op.operation.name}" + ("" if where == "<unknown>" else f"  {where}")
