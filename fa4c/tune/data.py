"""The files of the tuner, read, checked and written: a plan (`prepare`), a result (`measure`), and the data of a target (`apply`).

All are JSON with a schema number and a kind. No MLIR, no torch.
"""

from __future__ import annotations

import json
import pathlib

from ..ir.diagnostics import Diagnostic
from ..runtime.whole_file import write_whole
from ..targets.tuned import SCHEMA as TARGET_SCHEMA

SCHEMA = 1
PLAN, RESULT = "fa4c tune plan", "fa4c tune result"
_NEEDED = {PLAN: ("target", "problems"), RESULT: ("target", "machine", "rows")}


def read_json(path, kind: str) -> dict:
    """The file's contents; raises Diagnostic for a file that cannot be read or is none of this kind."""
    fix = {PLAN: "fa4c tune FILE --prepare DIR writes one", RESULT: "fa4c tune --measure DIR writes one"}[kind]
    try:
        data = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Diagnostic("cannot read this file", where=str(path), why=error.strerror or str(error), fix=fix) from None
    except ValueError as error:
        raise Diagnostic("this file is no JSON", where=str(path), why=str(error), fix=fix) from None
    if not isinstance(data, dict) or data.get("kind") != kind:
        found = data.get("kind") if isinstance(data, dict) else type(data).__name__
        raise Diagnostic(f"this is no {kind}", where=str(path), why=f"its kind is {found!r}", fix=fix)
    if data.get("schema") != SCHEMA:
        raise Diagnostic(f"schema {data.get('schema')!r}, but this fa4c reads {SCHEMA}", where=str(path), fix=fix)
    missing = next((name for name in _NEEDED[kind] if name not in data), None)
    if missing is not None:
        raise Diagnostic(f"the field '{missing}' is missing", where=str(path), fix=fix)
    return data


def write_json(path, data: dict) -> None:
    """Whole or not at all."""
    write_whole(path, (json.dumps(data, indent=1) + "\n").encode())


__all__ = ["PLAN", "RESULT", "SCHEMA", "TARGET_SCHEMA", "read_json", "write_json"]
