"""Recompute S, P, dP and dS as their transposes where more GEMMs can then take them as operand A as they are.

The left operand of an MMA may come from registers (sm_90a) or TMEM (sm_100a), but only in its natural layout: rows of A are rows of the
accumulator. dV = P^T dO and dK = dS^T Q contract the queries, dQ = dS K the keys. So if scores are made as S^T = K Q^T, two of the three
take what the registers hold, and dS alone goes through shared memory, for dQ. Nothing else changes: elementwise work has its positions
swapped, row vectors become column vectors, sums change their dimension.

Before:  %s = "attn.gemm"(%q, %k) {transpose_b = true}    %p = "attn.map"(%s, %lse) ({ ^bb0(%x, %l, %b, %h, %i, %j): ... })
         %dv = "attn.gemm"(%p, %do) {transpose_a = true}   %dq = "attn.gemm"(%ds, %k)
After:   %s = "attn.gemm"(%k, %q) {transpose_b = true}    %p = "attn.map"(%s, %lse) ({ ^bb0(%x, %l, %b, %h, %j, %i): ... })
         %dv = "attn.gemm"(%p, %do)                        %dq = "attn.gemm"(%ds, %k) {transpose_a = true}

Values that share elementwise work are transposed together or not at all. A softmax, an argument or a result over m x n keeps its
orientation and that of all it shares work with. A band mask becomes a mask again: `attn-simplify-mask` comes after this pass and bounds
it anew.
"""

from ..ir.attn import MaskOp
from ..ir.attn_dims import infer_dims
from ..ir.attn_signature import attn_functions, function_facts
from ..ir.mlir import i64, ir
from .registry import register_pass

_ELEMENTWISE = ("attn.map", "attn.mask", "attn.band_mask", "attn.cast", "attn.scatter")
_SCORES = (("m", "n"), ("n", "m"))


@register_pass("attn-transpose-recompute")
def attn_transpose_recompute(module: ir.Module) -> None:
    for function in attn_functions(module):
        block = function.operation.regions[0].blocks[0]
        operations = [op.operation for op in block.operations]
        known = infer_dims(function, function_facts(function))
        scores = _Groups(value for value in known if known[value][0] in _SCORES)
        _join(scores, operations, known)
        for group in scores.groups():
            if not group & _fixed(block, operations) and _transposed_after(group, operations) < _transposed_before(group, operations):
                _transpose(group, operations)


class _Groups:
    """Values that keep one orientation among them."""

    def __init__(self, values):
        self._group = {value: {value} for value in values}

    def join(self, values) -> None:
        values = [value for value in values if value in self._group]
        together = set().union(*[self._group[value] for value in values])
        for value in together:
            self._group[value] = together

    def groups(self) -> list[set]:
        found: list[set] = []
        for group in self._group.values():
            if not any(group is other for other in found):
                found.append(group)
        return found


def _join(scores: _Groups, operations, known) -> None:
    for operation in operations:
        if operation.name in _ELEMENTWISE:
            out = operation.results[0]
            rest = [out] if operation.name != "attn.scatter" else []
            operands = list(operation.operands)[1 if operation.name == "attn.scatter" else 0 :]
            scores.join([value for value in operands + rest if known[value][0] in _SCORES])


def _fixed(block, operations) -> set:
    """Values whose orientation others rely on."""
    fixed = set(block.arguments)
    for operation in operations:
        if operation.name in ("attn.softmax", "func.return"):
            fixed.update([*operation.operands, *operation.results])
        if operation.name == "attn.scatter":
            fixed.update([operation.operands[0], operation.results[0]])
    return fixed


def _gemms_from(group: set, operations) -> list:
    return [op.opview for op in operations if op.name == "attn.gemm" and op.operands[0] in group]


def _transposed_before(group: set, operations) -> int:
    return sum(op.transpose_a.value for op in _gemms_from(group, operations))


def _transposed_after(group: set, operations) -> int:
    return sum(not op.transpose_a.value for op in _gemms_from(group, operations))


def _transpose(group: set, operations) -> None:
    for operation in operations:
        if operation.name == "attn.gemm":
            _turn_gemm(operation.opview, group)
        elif operation.name == "attn.reduce" and operation.operands[0] in group:
            _turn_reduce(operation.opview)
        elif operation.name in _ELEMENTWISE and any(value in group for value in (*operation.operands, *operation.results)):
            _turn_region(operation)


def _turn_gemm(op, group: set) -> None:
    """Read transposed operands the other way; (A B)^T = B^T A^T."""
    ta, tb = op.transpose_a.value != (op.a in group), op.transpose_b.value != (op.b in group)
    if op.out in group:
        op.operation.operands[0], op.operation.operands[1] = op.b, op.a
        ta, tb = not tb, not ta
    for name, on in (("transpose_a", ta), ("transpose_b", tb)):
        if on:
            op.attributes[name] = ir.BoolAttr.get(True)
        elif name in op.attributes:
            del op.attributes[name]


def _turn_reduce(op) -> None:
    if op.dim is not None and op.dim.value == 0:
        del op.attributes["dim"]
    else:
        op.attributes["dim"] = i64(0)


def _turn_region(operation) -> None:
    if operation.name == "attn.cast":
        return
    block = operation.regions[0].blocks[0]
    first, second = list(block.arguments)[-2:]
    kinds = [argument.type for argument in block.arguments]
    locations = [argument.location for argument in block.arguments]
    # Positions are the last two arguments. Two new ones in the other order take over, then the old ones go.
    new_second, new_first = (block.add_argument(kind, where) for kind, where in zip(kinds[-2:], locations[-2:]))
    first.replace_all_uses_with(new_first)
    second.replace_all_uses_with(new_second)
    for _ in range(2):
        block.erase_argument(len(kinds) - 2)
    if operation.name == "attn.band_mask":
        _without_bounds(operation.opview)


def _without_bounds(op) -> None:
    new = MaskOp(scores=op.scores, out=op.out.type, loc=op.location, ip=ir.InsertionPoint(op))
    op.predicate.blocks[0].append_to(new.predicate)
    op.out.replace_all_uses_with(new.out)
    op.erase()
