"""What MLIR's own parser and verifier say, with the reason and the way out that they leave out.

Their words stay, so that they can be looked up; where they would mislead here (flags of MLIR's tools, a list of its forty dialects) a
sentence of ours stands instead. The parser knows one place, that of the token which it did not expect: the reason shows what it met.
"""

from __future__ import annotations

import difflib
import re
import sys
from dataclasses import dataclass

from .diagnostics import nearest

_DIALECTS = ("attn", "tile", "warp", "func", "arith", "math", "scf")
_SHOWN = 30  # characters of the line on each side of the place
_OPERATION = 'write %result = "attn.gemm"(%a, %b) {attribute = value} : (types) -> type'
_DICTIONARY = 'write {name = value, name = value}; a value is a number, true, "text" or ["a", "b"]'
_FUNCTION = "write func.func @name(%argument: type, ...) -> (types) {"

# What a message begins with, and how to mend it.
_FIXES = (
    (r"expected '[()]' to (start|end) operand list|expected SSA operand$|expected ':' followed by operation type", _OPERATION),
    (r"expected '\)' to end region list|expected ('->' in )?function type", _OPERATION),
    (r"expected operation name in quotes|empty operation name", f"{_OPERATION}; operations of arith and math have no quotes"),
    (r"expected '\{' to begin a region", "a region is written ({ ... }); an operand begins with %"),
    (r"expected '=' after SSA name|expected valid ssa identifier|invalid SSA name", "write %a = operation, or %a, %b = operation"),
    (r"expected attribute (name|value)|expected '[{}]' in attribute dictionary", _DICTIONARY),
    (r"expected '\"' in string literal", 'end the text with "'),
    (r"expected ',' or '\]'", "close the list with ]"),
    (r"expected non-function type|expected 'x' in dimension|expected '[<>]' in tensor", "types are f32, index, tensor<?x128xbf16>, ..."),
    (r"expected ':' and type for SSA operand", "write each argument as %name: type"),
    (r"expected ':' after block name", "write ^bb0(%x: f32, %b: index):"),
    (r"expected '[):]'$", "before it a comma may be missing"),
    (r"expected '\('$|custom op 'func.func' expected", _FUNCTION),
    (r"expected integer number of results", "write %a:2 for two results under one name, and nothing behind %a, %b"),
    (r"expected \d+ operand types?|custom op '[^']*' number of operands", "write one type for each operand behind the colon"),
    (r"operation defines \d+ results", "write one name for each result type before the ="),
    (r"redefinition of SSA value", "give one of the two another name"),
    (r"custom op '\w+' is unknown", "a value begins with %, a block with ^; an operation's name has its dialect before a dot"),
    (r"'[\w.]+' op must be the last operation", "move it to the end, or delete what follows"),
)  # fmt: skip


@dataclass(frozen=True)
class Said:
    """`notes`: whether those of MLIR are worth showing."""

    what: str
    why: str = ""
    fix: str = ""
    notes: bool = True


def explained(what: str, text: str, line: int, column: int) -> Said:
    """A message of MLIR on a place of `text`, which is empty where only the message is known."""
    before, behind = _around(text, line, column)
    unknown = _unknown_operation(what, before)
    if unknown is not None:
        return unknown
    if what == "use of undeclared SSA value name":
        return _undeclared(what, text, behind)
    types = re.match(r"use of value '%[^']*' expects different type than prior uses: '(.*)' vs '(.*)'$", what)
    if types:
        return Said(what, "a value has one type, which its operation gives it", f"write {types[2]} here")
    why = _met(before, behind) if text and _is_of_the_parser(what) else ""
    choices = re.search(r"one of the following enum values .*\[([\w, ]+)\]", what)
    if choices:
        return Said(what, why, nearest(re.match(r"\w*", behind)[0], choices[1].split(", ")))
    if text and not behind.strip() and what.startswith("expected"):
        return Said(what, why, "close what is open: each ( [ { needs its end")
    return Said(what, why, next((fix for begin, fix in _FIXES if re.match(begin, what)), ""))


def _is_of_the_parser(what: str) -> bool:
    """Verifiers begin with an operation's name, and say what is wrong with it themselves."""
    return re.match(r"expected |invalid |empty |unexpected |custom op ", what) is not None


def _around(text: str, line: int, column: int) -> tuple[str, str]:
    """The line before a place, and all that stands behind. MLIR counts both from 1, columns in bytes."""
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return "", ""
    data = lines[line - 1].encode()
    before, behind = (part.decode(errors="replace") for part in (data[: column - 1], data[column - 1 :]))
    return before, "\n".join([behind, *lines[line:]])


def _met(before: str, behind: str) -> str:
    before, behind = before.strip(), behind.strip().partition("\n")[0]
    before = before if len(before) <= _SHOWN else f"...{before[-_SHOWN:]}"
    behind = behind if len(behind) <= _SHOWN else f"{behind[:_SHOWN]}..."
    after = f" behind `{before}`" if before else ""
    return f"there stands `{behind}`{after}" if behind else f"the text ends{after}"


def _undeclared(what: str, text: str, behind: str) -> Said:
    name = re.match(r"%[\w$.-]+", behind)
    if name is None:
        return Said(what)
    others = {other for other in re.findall(r"%[\w$.-]+", text) if other != name[0]}
    close = difflib.get_close_matches(name[0], sorted(others), n=1, cutoff=0.5)
    return Said(what, f"no argument and no operation before it makes {name[0]}", f"did you mean {close[0]}?" if close else "make it first")


def _unknown_operation(what: str, before: str) -> Said | None:
    if what.startswith("operation being parsed with an unregistered dialect"):  # found behind the name
        name = re.search(r'"([^"]*)"\s*$', before)
        return _no_dialect(name[1] if name else "")
    found = re.match(r"(?:Dialect `.*' not found for|unregistered operation|custom op) (?:custom op )?'((\w+)\.[^']*)'", what)
    if found is None or re.match(r"custom op '[^']*' (?!is unknown)", what):
        return None
    name, dialect = found.groups()
    if dialect not in _DIALECTS:
        return _no_dialect(name)
    return Said(f"there is no operation '{name}'", f"the dialect {dialect} has none of that name", nearest(name, _operations(dialect)))


def _no_dialect(name: str) -> Said:
    """MLIR's note is the list of all its dialects."""
    dialect = name.partition(".")[0]
    return Said(f"there is no operation '{name}'" if name else "there is no such operation",
                f"the name before an operation's dot is one of {', '.join(_DIALECTS)}", nearest(dialect, _DIALECTS), notes=False)


def _operations(dialect: str) -> set[str]:
    """Names of a dialect's operations; of arith and math those that have a meaning here."""
    from .scalar import KNOWN

    modules = {name.rpartition(".")[2]: module for name, module in sys.modules.items() if re.search(r"\.dialects\.[a-z]\w*$", name)}
    names = {op.OPERATION_NAME for op in vars(modules[dialect]).values() if hasattr(op, "OPERATION_NAME")} if dialect in modules else set()
    return names & KNOWN or names
