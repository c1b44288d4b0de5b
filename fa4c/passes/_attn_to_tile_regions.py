"""Copies the scalar code of attn regions into a tile-level kernel."""

from ..ir.mlir import ir


def inline(block, mapping: dict, external, *, wanted=None) -> list:
    """Clone a region's operations at the insertion point; returns what its terminator yields (or, of that, the numbers in `wanted`).

    `mapping` (value -> its copy) has the region's arguments and grows. `external(operation, operands)` builds what has another form below, and
    returns its results, or None for "copy it as it is". Only operations that the wanted results need are copied.
    """
    operations = [op.operation for op in block.operations]
    results = list(operations[-1].operands)
    results = results if wanted is None else [results[number] for number in wanted]
    for operation in _needed(operations[:-1], results):
        clone(operation, mapping, external)
    return [mapping.get(value, value) for value in results]


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
    copied = ir.Operation.create(operation.name, results=[value.type for value in operation.results], operands=operands, attributes=attributes,
                                 regions=len(operation.regions), loc=operation.location)
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
