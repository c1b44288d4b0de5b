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


class Group:
    """What is declared of an operation's operands, or of its results (`what`: "operand", "result")."""

    def __init__(self, what: str, fields):
        self.what, self.fields, self.segments = what, fields, SEGMENTS[what]
        several = [field for field in fields if field.variadicity != ext.Variadicity.single]
        self.needed, self.more = len(fields) - len(several), bool(several)
        self.inferred = len(several) == 1  # its size follows from the count, without segment sizes
        self.expanded = any(map(is_expanded, fields))
        self.slots = [MAX_GROUP if is_expanded(field) else 1 for field in fields]

    def names(self) -> str:
        return ", ".join(field.name for field in self.fields) or "none"

    def values(self, op):
        return op.operation.operands if self.what == "operand" else op.operation.results

    def sizes(self, op) -> list[int]:
        """How many values each field has."""
        if self.segments in op.attributes:
            return list(op.attributes[self.segments])
        rest = len(self.values(op)) - self.needed
        return [1 if field.variadicity == ext.Variadicity.single else rest for field in self.fields]


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
    for group in op._expanded:
        expanded = []
        for slots, size in zip(group.slots, group.sizes(op), strict=True):
            expanded += [1] * size + [0] * (slots - size) if slots > 1 else [size]
        op.attributes[group.segments] = ir.DenseI32ArrayAttr.get(expanded)


def collapse(op) -> None:
    """Take them off again: back to one size a group, or to none where the count says it."""
    for group in op._expanded:
        if group.segments not in op.attributes:
            continue
        attribute = op.attributes[group.segments]
        if not isinstance(attribute, ir.DenseI32ArrayAttr) or len(attribute) != sum(group.slots):
            continue  # the operation's own
        if group.inferred:
            del op.attributes[group.segments]
            continue
        sizes, sums, start = list(attribute), [], 0
        for slots in group.slots:
            sums.append(sum(sizes[start : start + slots]))
            start += slots
        op.attributes[group.segments] = ir.DenseI32ArrayAttr.get(sums)
