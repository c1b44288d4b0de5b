"""Operand and result lists whose elements differ in type.

IRDL gives all values of a variadic group one constraint variable, so they must all have the type of the first. A group declared with
`Any` (`Sequence[ext.Operand[Any]]`) is therefore told to IRDL as many optional values, each with a variable of its own. That needs segment
sizes; they are put on the operation when its verifier starts and taken off when its regions are verified, so that text never shows them.
"""

from typing import Any

from .mlir import ext, ir, irdl

# More values than that in one group are refused.
MAX_GROUP = 48
SEGMENTS = {"operand": "operandSegmentSizes", "result": "resultSegmentSizes"}


def is_expanded(field) -> bool:
    return field.variadicity == ext.Variadicity.variadic and field.constraint is Any


def emit_operation(cls) -> None:
    """`ext`'s own emission, with expanded groups."""
    lowering = ext.ConstraintLoweringContext()
    operands, attributes, results, regions = ext.partition_fields(cls._fields)
    op = irdl.operation_(cls._op_name)
    with ir.InsertionPoint(op.body):
        for fields, declare in ((operands, irdl.operands_), (results, irdl.results_)):
            if fields:
                slots = [slot for field in fields for slot in _slots(field)]
                declare([lowering.lower(kind) for _, _, kind in slots], [name for name, _, _ in slots], [how for _, how, _ in slots])
        if attributes:
            irdl.attributes_([lowering.lower(a.constraint) for a in attributes], [a.name for a in attributes])
        if regions:
            irdl.regions_([irdl.region([]) for _ in regions], [r.name for r in regions])


def _slots(field) -> list:
    if not is_expanded(field):
        return [(field.name, field.variadicity, field.constraint)]
    return [(f"{field.name}_{number}", ext.Variadicity.optional, Any) for number in range(MAX_GROUP)]


def expand(op) -> None:
    """Put on the segment sizes that IRDL wants. The operation's own ones, and its counts, are already checked."""
    if not op._expanded:
        return
    for what, fields, values in _lists(op):
        if any(is_expanded(field) for field in fields):
            sizes = group_sizes(op, fields, len(values), SEGMENTS[what])
            expanded = []
            for field, size in zip(fields, sizes, strict=True):
                expanded += [1] * size + [0] * (MAX_GROUP - size) if is_expanded(field) else [size]
            op.attributes[SEGMENTS[what]] = ir.DenseI32ArrayAttr.get(expanded)


def collapse(op) -> None:
    """Take them off again: back to one size a group, or to none where the count says it."""
    if not op._expanded:
        return
    for what, fields, _ in _lists(op):
        name = SEGMENTS[what]
        if name not in op.attributes or not any(is_expanded(field) for field in fields):
            continue
        attribute = op.attributes[name]
        sizes = list(attribute) if isinstance(attribute, ir.DenseI32ArrayAttr) else []
        if len(sizes) != sum(len(_slots(field)) for field in fields):
            continue  # the operation's own
        if sum(field.variadicity != ext.Variadicity.single for field in fields) == 1:
            del op.attributes[name]
            continue
        groups, start = [], 0
        for field in fields:
            length = len(_slots(field))
            groups.append(sum(sizes[start : start + length]))
            start += length
        op.attributes[name] = ir.DenseI32ArrayAttr.get(groups)


def group_sizes(op, fields, count: int, segment_name: str) -> list[int]:
    """How many values each field has."""
    if segment_name in op.attributes:
        return list(op.attributes[segment_name])
    return [1 if field.variadicity == ext.Variadicity.single else count - len(fields) + 1 for field in fields]


def _lists(op):
    operands, _, results, _ = op._parts
    return (("operand", operands, op.operation.operands), ("result", results, op.operation.results))
