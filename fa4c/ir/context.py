"""Contexts with all dialects loaded, and text in and out of them.

MLIR crashes when two threads load dialects at once, so one process-wide lock guards `new_context`.
"""

import os
import re
import threading

from . import attn, tile, tile_pair, value_names, warp, warp_tmem  # noqa: F401  tile_pair and warp_tmem add operations to `tile`, `warp`
from .diagnostics import Diagnostic
from .mlir import announce_dialect, ir

CONTEXT_LOCK = threading.RLock()
_DIALECTS = {attn.Attn: attn, tile.Tile: tile, warp.Warp: warp}


def new_context() -> ir.Context:
    """A fresh context in which the dialects attn, tile and warp are loaded."""
    with CONTEXT_LOCK:
        context = ir.Context()
        with context, ir.Location.unknown():
            for dialect, module in _DIALECTS.items():
                announce_dialect(dialect.DIALECT_NAMESPACE, module)
                dialect.load()
        return context


def parse_module(text: str, filename: str = "-", context: ir.Context | None = None) -> ir.Module:
    """Parse and verify MLIR text; locations name `filename` as given. Raises `ir.MLIRError`.

    Operations outside any `module` are put into one. `context` defaults to a new one.
    """
    context = context or new_context()
    with context:
        try:
            module = _parse(text, filename, context)
        except ir.MLIRError as error:
            if error.error_diagnostics:
                error.text = text  # of which `from_mlir_error` shows what the parser met
                raise
            raise _without_quotes(text, filename) from error
        value_names.attach(module, text)
    return module


def _without_quotes(text: str, filename: str) -> Diagnostic:
    """Of an operation of ours that stands there like one of arith, MLIR says nothing at all."""
    found = re.search(r"^(?:[^\"\n]*=)?\s*((?:attn|tile|warp)\.\w+)", text, re.MULTILINE)
    if found is None:
        return Diagnostic("this is no MLIR text", where=filename, why="its parser gives up without a word", fix="see examples/causal.mlir")
    at = found.start(1)
    return Diagnostic(
        f"'{found[1]}' stands here without quotes", where=f"{filename}:{text.count(chr(10), 0, at) + 1}:{at - text.rfind(chr(10), 0, at)}",
        why="operations of attn, tile and warp are written in MLIR's generic form",
        fix=f'write "{found[1]}"(operands) {{attributes}} : (types) -> types',
    )


def _parse(text: str, filename: str, context: ir.Context) -> ir.Module:
    if _is_the_text_of(filename, text):
        return ir.Module.parseFile(filename, context)  # knows implicit modules and right columns
    if not re.search(r'^\s*"?(builtin\.)?module\b', text, re.MULTILINE):
        text = "module {" + text + "\n}"
    # `Module.parse` takes no file name, `Operation.parse` gives no `ir.Module`: read once for the names, once for the type.
    operation = ir.Operation.parse(text, source_name=filename, context=context)
    return ir.Module.parse(operation.operation.get_asm(enable_debug_info=True), context)


def _is_the_text_of(filename: str, text: str) -> bool:
    if not os.path.isfile(filename):
        return False
    with open(filename, encoding="utf-8") as file:
        return file.read() == text


def print_module(module, locations: bool = True) -> str:
    """The text of a module (or of its operation) with its source names and its locations, both of which a plain `str` would drop.

    The module is one that verifies, as parsing and each pass leave it: to print it would verify it again, which costs ten times as much.
    """
    text = module.operation.get_asm(enable_debug_info=locations, use_name_loc_as_prefix=True, assume_verified=True)
    return text.rstrip("\n") + "\n"
