"""Faults put into complete warp-level kernels, one at a time, and what `warp-check` says of them."""

import functools
import pathlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from fa4c.ir.context import new_context, parse_module, print_module
from fa4c.ir.diagnostics import Diagnostic, from_mlir_error
from fa4c.ir.mlir import ir
from fa4c.lowering.compile import compile_text
from fa4c.passes.registry import run_pipeline

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent / "examples"


@functools.cache
def complete(example: str, **options) -> str:
    """The text of an example's complete warp level, with locations."""
    path = EXAMPLES / example
    return compile_text(path.read_text(), f"examples/{example}", emit="warp", **options)


@dataclass(frozen=True)
class Fault:
    name: str
    apply: Callable  # of the module's operations, by name
    message: str  # a regular expression


class Operations:
    """The operations of a module, found by name and place."""

    def __init__(self, module):
        self.module = module  # keeps them alive
        self.everything = list(_walk(module.operation))

    def all(self, name: str, *, inside: str | None = None, role: str | None = None) -> list:
        """`warp.NAME` operations in order; `inside` names the parent, "loop" or "guard" or "role" or "elect"; `role` the role."""
        parents = {"loop": "scf.for", "guard": "scf.if", "role": "warp.role", "elect": "warp.elect", "kernel": "warp.kernel"}
        return [
            op
            for op in self.everything
            if op.name == f"warp.{name}"
            and (inside is None or op.parent.name == parents[inside])
            and (role is None or _role_of(op) == role)
        ]

    def __getitem__(self, name: str):
        return self.all(name)[0]


def _walk(operation):
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                yield op.operation
                yield from _walk(op.operation)


def _role_of(op) -> str | None:
    while op.name != "warp.role":
        op = op.parent
        if op is None or op.name == "builtin.module":
            return None
        op = op.operation
    return op.attributes["sym_name"].value


def verdict(text: str, change: Callable | None = None) -> str:
    """What `warp-check` says of a kernel that `change(Operations)` altered; "" if it finds nothing."""
    with new_context() as context, ir.Location.unknown():
        module = parse_module(text, "kernel.mlir", context)
        if change is not None:
            change(Operations(module))
        try:
            altered = ir.Module.parse(
                module.operation.get_asm(print_generic_op_form=True, assume_verified=True, enable_debug_info=True), context
            )
            run_pipeline(altered, "warp-check")
            assert print_module(altered) == print_module(ir.Module.parse(print_module(altered), context))
        except Diagnostic as error:
            return error.text()
        except ir.MLIRError as error:
            return from_mlir_error(error)
    return ""


def is_located(text: str) -> bool:
    return re.match(r"^\S+:\d+:\d+: error: '[\w.]+' ", text) is not None


def number(n: int):
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), n)


def set_number(op, name: str, n: int) -> None:
    assert op.attributes[name].value != n, "the fault must change something"
    op.attributes[name] = number(n)


def set_text(op, name: str, text: str) -> None:
    assert op.attributes[name].value != text
    op.attributes[name] = ir.StringAttr.get(text)
