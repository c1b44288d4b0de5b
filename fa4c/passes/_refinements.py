"""Vectors that are corrected for some lengths only: `select(n <= most, exact, base)`, `base` another vector.

`attn-derive-backward` makes delta such a value. The correction is computed by a kernel of its own, which is not launched for other lengths;
so nothing else of a program depends on it.
"""

from dataclasses import dataclass

from ..ir.mlir import arith, ir


@dataclass(frozen=True)
class Refinement:
    """`value` is `base` where `size` is above `most`, and nothing but `value` is made of `base`."""

    value: object
    base: object
    size: str
    most: int


def refinements(operations: list) -> list[Refinement]:
    """Of the operations of an attn function, in order."""
    found = [refined for operation in operations if operation.name == "attn.map" for refined in [_refinement(operation)] if refined]
    elsewhere = needed(operations, {refined.value for refined in found})
    return [refined for refined in found if refined.base not in elsewhere]


def needed(operations: list, without=()) -> set:
    """The values that results are made of; `without` are not followed."""
    found, stack = set(), list(operations[-1].operands)
    while stack:
        value = stack.pop()
        if value in found or value in without:
            continue
        found.add(value)
        if not isinstance(value.owner, ir.Block):
            stack += value.owner.operands
    return found


def _refinement(operation) -> Refinement | None:
    block = operation.regions[0].blocks[0]
    choice = list(block.operations)[-1].operation.operands[0].owner
    if isinstance(choice, ir.Block) or choice.name != "arith.select":
        return None
    limit, argument = _limit(choice.operands[0]), choice.operands[2]
    if limit is None or not isinstance(argument.owner, ir.Block) or argument.arg_number >= len(operation.operands):
        return None
    base, value = operation.operands[argument.arg_number], operation.results[0]
    if isinstance(base.owner, ir.Block) or base.type != value.type:
        return None
    return Refinement(value, base, *limit)


def _limit(condition) -> tuple[str, int] | None:
    """(size, most) of `size <= most`, a length that values over queries and keys have."""
    owner = condition.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.cmpi" or owner.opview.predicate.value != arith.CmpIPredicate.sle:
        return None
    size, most = (operand.owner for operand in owner.operands)
    if any(isinstance(made, ir.Block) for made in (size, most)) or (size.name, most.name) != ("attn.size", "arith.constant"):
        return None
    found = size.attributes["dim"].value, most.attributes["value"].value
    return found if found[0] in ("m", "n") and found[1] >= 0 else None
