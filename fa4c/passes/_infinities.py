"""Which infinities a scalar program cannot give, overflow aside: what says that exp2(-inf + x) is 0.

A value is described by the set of infinities ("inf", "-inf") that it may be.
"""

import math

from ..ir import scalar
from ..ir.attn_signature import INFINITIES
from ..ir.mlir import ir

ANY = frozenset(INFINITIES)
_NAMES = {math.inf: "inf", -math.inf: "-inf"}
_SWAPPED = {"inf": "-inf", "-inf": "inf"}


def never(value) -> str | None:
    """An infinity that no element of a tensor is."""
    missing = sorted(ANY - _may_be(value))
    return missing[0] if missing else None


def _may_be(value) -> frozenset:
    if isinstance(value.owner, ir.Block) or value.owner.name != "attn.map":
        return ANY
    return of_region(value.owner.regions[0].blocks[0], [_may_be(operand) for operand in value.owner.operands])


def of_region(block, given: list) -> frozenset:
    """What the region's one result may be, given what its first arguments may be."""
    known = dict(zip(block.arguments, given, strict=False))
    operations = [op.operation for op in block.operations]
    for operation in operations[:-1]:
        for result in operation.results:
            known[result] = _of_operation(operation, known)
    return _of(operations[-1].operands[0], known)


def _of(value, known) -> frozenset:
    constant = constant_of(value)
    if constant is not None:
        return frozenset(_NAMES[constant] for _ in [0] if constant in _NAMES)
    return known.get(value, ANY)


def _of_operation(operation, known) -> frozenset:
    operands = list(operation.operands)
    if operation.name == "arith.select":
        return _of_choice(operation, known)
    if operation.name == "arith.negf":
        return _swapped(_of(operands[0], known))
    if operation.name in ("arith.extf", "arith.truncf"):
        return _of(operands[0], known)
    if operation.name == "arith.addf":
        return _of(operands[0], known) | _of(operands[1], known)
    if operation.name == "arith.subf":
        return _of(operands[0], known) | _swapped(_of(operands[1], known))
    if operation.name == "arith.mulf":
        return _of_product(operands, known)
    return ANY


def _of_product(operands, known) -> frozenset:
    for value, other in (operands, operands[::-1]):
        factor = constant_of(value)
        if factor is not None and math.isfinite(factor) and factor != 0:
            return _of(other, known) if factor > 0 else _swapped(_of(other, known))
    return ANY


def _of_choice(operation, known) -> frozenset:
    """`x == c ? a : x` is never c."""
    condition, yes, no = operation.operands
    may = _of(no, known)
    owner = condition.owner
    if not isinstance(owner, ir.Block) and owner.name == "arith.cmpf" and owner.attributes["predicate"].value == 1:  # oeq
        compared = list(owner.operands)
        other = next((value for value in compared if value != no), None)
        if no in compared and other is not None and constant_of(other) in _NAMES:
            may = may - {_NAMES[constant_of(other)]}
    return _of(yes, known) | may


def _swapped(may: frozenset) -> frozenset:
    return frozenset(_SWAPPED[name] for name in may)


def constant_of(value) -> float | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant" or not isinstance(value.type, (ir.F32Type, ir.F64Type)):
        return None
    return float(scalar.apply(owner, [])[0])
