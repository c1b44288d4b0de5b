"""Data of a target that were measured: `NAME_tuned.json` beside its file, written by `fa4c tune --apply`.

    {"schema": 1, "target": "sm_90a", "entries": [
      {"problem": {...},                 what the function asks of the machine: `problem_of` of attn-to-tile
       "configurations": [{"block_m": 128, "block_n": 128, "buffers": 2, "limit": {"size": "n", "most": 2048}}, {...}],
       "source": "H200, driver 580, 2026-11-29: 1.05x of 192x128x2", "measured": {...}}]}

The last configuration has no limit; "l2": [in the loop, outside] may stand in each.
"""

from __future__ import annotations

import functools
import json
import pathlib

from ..ir.diagnostics import Diagnostic

SCHEMA = 1
_FIX = "write it with fa4c tune --apply, or remove it"


def path_of(name: str) -> pathlib.Path:
    """The file of a target's measured shapes, which may be missing."""
    return pathlib.Path(__file__).with_name(f"{name}_tuned.json")


@functools.cache
def entries(name: str) -> tuple[dict, ...]:
    """What was measured for the target; () where nothing was."""
    path = path_of(name)
    return check(json.loads(path.read_text(encoding="utf-8")), path) if path.exists() else ()


def check(data: dict, where) -> tuple[dict, ...]:
    """The entries of a file, or a Diagnostic that says what is wrong with it."""
    if data.get("schema") != SCHEMA:
        raise Diagnostic(f"schema {data.get('schema')!r}, but this fa4c reads {SCHEMA}", where=str(where), fix=_FIX)
    for number, entry in enumerate(data["entries"]):
        problem = _entry_problem(entry)
        if problem:
            raise Diagnostic(f"entry {number} {problem}", where=str(where), fix=_FIX)
    return tuple(data["entries"])


def _entry_problem(entry: dict) -> str:
    missing = next((key for key in ("problem", "configurations", "source") if key not in entry), None)
    if missing:
        return f"lacks '{missing}'"
    for number, configuration in enumerate(entry["configurations"]):
        unknown = sorted(set(configuration) - {"block_m", "block_n", "buffers", "l2", "limit"})
        if unknown or not all(isinstance(configuration.get(key), int) for key in ("block_m", "block_n", "buffers")):
            return f"has a configuration with {'the unknown key ' + unknown[0] if unknown else 'no block shape'}"
        if ("limit" in configuration) == (number == len(entry["configurations"]) - 1):
            return "limits its last configuration, or leaves an earlier one without a limit"
    return "" if entry["configurations"] else "has no configuration"
