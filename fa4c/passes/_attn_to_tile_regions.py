"""The scalar code of attn regions: copied into a tile-level kernel, and what can be said of its result."""

import numpy as np

from ..ir import scalar
from ..ir.mlir import ir

# -- copying ---------------------------------------------------------------------------------------------


def inline(block, mapping: dict, external, *, wanted=None) -> list:
    """Clone a region's operations at the insertion point; returns what its terminator yields (or, of that, the numbers in `wanted`).

    `mapping` (value -> its copy) has the region's arguments and grows. `external(operation, operands)` builds what has another form below
    and returns its results, or None for "copy it as it is". Only operations that the wanted results need are copied.
    """
    results = list(list(block.operations)[-1].operation.operands)
    return inlined(block, results if wanted is None else [results[number] for number in wanted], mapping, external)


def inlined(block, values: list, mapping: dict, external=lambda operation, operands: None) -> list:
    """The same of any values of a region."""
    for operation in _needed([op.operation for op in block.operations][:-1], values):
        clone(operation, mapping, external)
    return [mapping.get(value, value) for value in values]


def clone(operation, mapping: dict, external) -> None:
    """One operation, nested regions too."""
    operands = [mapping.get(value, value) for value in operation.operands]
    results = external(operation, operands)
    if results is None:
        results = _copy(operation, operands, mapping, external)
    mapping.update(zip(operation.results, results, strict=True))


def _copy(operation, operands, mapping: dict, external) -> list:
    if not operation.regions:
        copied = operation.clone()
        for number, operand in enumerate(operands):
            copied.operation.operands[number] = operand
        return list(copied.operation.results)
    attributes = {name: operation.attributes[name] for name in operation.attributes}
    copied = ir.Operation.create(
        operation.name,
        results=[value.type for value in operation.results],
        operands=operands,
        attributes=attributes,
        regions=len(operation.regions),
        loc=operation.location,
    )
    for source, target in zip(operation.regions, copied.regions, strict=True):
        for block in source.blocks:
            new = target.blocks.append(*[a.type for a in block.arguments], arg_locs=[a.location for a in block.arguments])
            inner = {**mapping, **dict(zip(block.arguments, new.arguments, strict=True))}
            with ir.InsertionPoint(new):
                for op in block.operations:
                    clone(op.operation, inner, external)
    return list(copied.results)


def _needed(operations: list, results: list) -> list:
    wanted, kept = set(results), []
    for operation in reversed(operations):
        if any(value in wanted for value in operation.results):
            kept.append(operation)
            wanted.update(_used(operation))
    return kept[::-1]


def _used(operation) -> set:
    """Operands of an operation and of all that is nested in it."""
    used = set(operation.operands)
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                used |= _used(op.operation)
    return used


# -- what a region does ----------------------------------------------------------------------------------


def constant_result(block, known: dict, never: dict | None = None) -> float | None:
    """What a region yields where its arguments are `known`, if that does not depend on anything else; NaN counts as not known.

    `never`: argument -> "inf" or "-inf", which it is not. A product with 0 is 0: the other factor of a masked element is taken as finite.
    """
    return constant_value(block, list(block.operations)[-1].operation.operands[0], known, never)


def constant_value(block, wanted, known: dict, never: dict | None = None) -> float | None:
    """The same of any value of a region."""
    values = {argument: np.float64(value) for argument, value in known.items() if value is not None}
    for op in block.operations:
        operation = op.operation
        if operation.regions or not operation.name.startswith(("arith.", "math.")):
            continue
        operands = [values.get(value, _constant(value)) for value in operation.operands]
        absorbed = _absorbed(operation, operands, never or {})
        if operation.name == "arith.select" and operands[0] is None and operands[1] is not None and operands[1] == operands[2]:
            values[operation.results[0]] = operands[1]
        elif absorbed is not None:
            values[operation.results[0]] = absorbed
        elif all(value is not None for value in operands):
            values[operation.results[0]] = scalar.apply(operation, operands)[0]
    result = values.get(wanted, _constant(wanted))
    return None if result is None or np.isnan(result) else float(result)


def _absorbed(operation, operands: list, never: dict):
    """The result where one operand decides it: 0 in a product, an infinity in a sum or a difference with what never undoes it."""
    if operation.name not in ("arith.mulf", "arith.addf", "arith.subf") or operands.count(None) != 1:
        return None
    at = 0 if operands[1] is None else 1
    known, other = operands[at], operation.operands[1 - at]
    if operation.name == "arith.mulf":
        return known if known == 0 else None
    subtracts = operation.name == "arith.subf"
    undone_by = known if subtracts else -known  # inf - inf is no number, nor is inf + -inf
    if not np.isinf(known) or never.get(other) != ("inf" if undone_by > 0 else "-inf"):
        return None
    return -known if subtracts and at == 1 else known


def is_linear(block, argument) -> bool:
    """Whether a region yields `argument` times something that does not depend on it."""
    linear, dependent = {argument}, {argument}
    for op in block.operations:
        operation = op.operation
        operands = list(operation.operands)
        if operation.name == "attn.yield":
            return operands[0] in linear
        if _used(operation) & dependent:
            dependent.update(operation.results)
            if _keeps_linear(operation, operands, linear, dependent):
                linear.update(operation.results)
    return False


def _keeps_linear(operation, operands, linear, dependent) -> bool:
    flags = [value in linear for value in operands]
    if operation.name in ("arith.addf", "arith.subf", "arith.negf"):
        return all(flags)
    if operation.name == "arith.mulf":
        return flags.count(True) == 1 and operands[flags.index(False)] not in dependent
    if operation.name == "arith.divf":
        return flags[0] and operands[1] not in dependent
    if operation.name == "arith.select":
        return operands[0] not in dependent and all(flag or _is_zero(value) for flag, value in zip(flags[1:], operands[1:], strict=True))
    return False


def _is_zero(value) -> bool:
    constant = _constant(value)
    return constant is not None and constant == 0


def _constant(value):
    owner = value.owner
    return None if isinstance(owner, ir.Block) or owner.name != "arith.constant" else scalar.apply(owner, [])[0]
