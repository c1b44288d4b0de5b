"""`--print-ir-after-all`: what each pass changed, on stderr.

A pass that rewrites more than half of the module, and the first one of a run, shows all of it. Of others the lines are shown that they put
in (`+`) and took out (`-`), with a few around them; of one that changes nothing, that. Numbers of values (`%12`, `%arg3`, `%s_4`) do not
count, as one operation more shifts those of all behind it. The whole text of a level is what `--emit` and `opt` give.
"""

from __future__ import annotations

import difflib
import re
import sys

from ..ir.context import print_module

_AROUND = 2  # lines shown before and behind a change
_NUMBER = re.compile(r"%(?:arg)?\d+(?:#\d+)?|(?<=\w)_\d+\b")


class Changes:
    """Called after each pass with its text and the module."""

    def __init__(self):
        self._before: list[str] = []

    def __call__(self, item: str, module) -> None:
        after = print_module(module, locations=False).splitlines()
        print("\n".join([*_shown(item, self._before, after), ""]), file=sys.stderr)
        self._before = after


def _shown(item: str, before: list[str], after: list[str]) -> list[str]:
    head = f"// -----// IR after {item} //----- //"
    if before == after:
        return [f"{head} nothing changed"]
    old, new = ([_NUMBER.sub("%", line) for line in lines] for lines in (before, after))
    if old == new:  # operands alone
        old, new = before, after
    groups = list(difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(_AROUND))
    gone = sum(i2 - i1 for group in groups for kind, i1, i2, _, _ in group if kind != "equal")
    come = sum(j2 - j1 for group in groups for kind, _, _, j1, j2 in group if kind != "equal")
    if 2 * come > len(after) or not before:
        return [f"{head} all {len(after)} lines", *after]
    found = [f"{head} {come} lines of {len(after)} come, {gone} go"]
    for group in groups:
        found.append(f"@@ line {group[0][3] + 1}{_inside(after, group[0][3])}")
        for kind, i1, i2, j1, j2 in group:
            found += ["  " + line for line in after[j1:j2]] if kind == "equal" else []
            found += ["- " + line for line in before[i1:i2]] if kind != "equal" else []
            found += ["+ " + line for line in after[j1:j2]] if kind != "equal" else []
    return found


def _inside(lines: list[str], at: int) -> str:
    """The function or kernel around a line: a function is named where it begins, a kernel or host where it ends."""
    for line in lines[at:]:
        ends = re.match(r'  }.*sym_name = "(\w+)"', line)
        if ends:
            return f", {ends[1]}"
        if line == "  }":
            break
    begins = next((re.match(r"  func\.func @(\w+)", line) for line in reversed(lines[:at + 1]) if line.startswith("  func.func")), None)
    return f", {begins[1]}" if begins else ""
