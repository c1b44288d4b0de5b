"""SSA names of the source, kept as NameLocs: MLIR's parser forgets them, and prints `%0`, `%1`, ... where a reader wrote `%s` and `%lse`.
"""

import re

from .mlir import ir

_RESULTS = re.compile(r"%([A-Za-z_][\w$.-]*)(?::\d+)?(?:\s*,\s*%[\w$.-]+(?::\d+)?)*\s*=\s*$")
_ARGUMENT = re.compile(r"%([A-Za-z_][\w$.-]*)")
_PLACE = re.compile(r'^loc\("((?:[^"\\]|\\.)*)":(\d+):(\d+)\)$')


def attach(module, text: str) -> None:
    """Wrap the locations of operations and block arguments that `text` names. Text that prints its locations has its names in them
    already.
    """
    if re.search(r"\bloc\(", text):
        return
    _attach_in(module.operation, text.split("\n"))


def _attach_in(operation, lines: list[str]) -> None:
    for region in operation.regions:
        for block in region.blocks:
            for argument in block.arguments:
                name = _name_at(argument.location, lines, before=False)
                if name:
                    argument.set_location(ir.Location.name(name, argument.location))
            for op in block.operations:
                if len(op.operation.results):
                    name = _name_at(op.location, lines, before=True)
                    if name:
                        op.operation.location = ir.Location.name(name, op.location)
                _attach_in(op.operation, lines)


def _name_at(location, lines: list[str], before: bool) -> str | None:
    """The name that ends right before this place ("%s = " before an operation), or starts at it (an argument)."""
    found = _PLACE.match(str(location))
    if not found or int(found[2]) > len(lines):
        return None
    line, column = lines[int(found[2]) - 1], int(found[3]) - 1
    match = _RESULTS.search(line[:column]) if before else _ARGUMENT.match(line, column)
    return match[1] if match else None


def name_of(value) -> str | None:
    """The source name of a value, if its location has one."""
    location = value.location if isinstance(value.owner, ir.Block) else value.owner.location
    found = re.match(r'^loc\("((?:[^"\\]|\\.)*)"(?:\(|\)$)', str(location))
    return found[1] if found else None
