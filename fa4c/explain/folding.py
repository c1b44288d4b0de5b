"""Which instructions of a map the compiler behind folds away, because a fragment that it reads holds one known value, or joins to others.

A peeled first step starts from row maxima of -inf and sums of 0: the factor by which they are rescaled is then a constant, and its
exponential is never executed. Only what `warp.fill` wrote is followed, through copies and maps, as LLVM does in straight-line code.
A product of rows that the next operation adds a row's elements to is the first FMA of that sum.
"""

from __future__ import annotations

from ..ir import scalar, warp
from ..ir.mlir import ir
from ..ir.tile_base import nested_in


class Known:
    """Fragments that hold one value everywhere, while a role's operations are gone through in order."""

    def __init__(self):
        self.values: dict = {}

    def forget_written(self, block) -> None:
        """What a block writes: before a loop's body, behind a branch."""
        for op in nested_in(block):
            self._forget(op)

    def step(self, op) -> set:
        """Note what one operation leaves; of a map, its operations that are folded away."""
        if isinstance(op, warp.FillOp):
            self.values[op.target] = op.value.value
            return set()
        if isinstance(op, warp.CopyOp) and op.source in self.values:
            self.values[op.target] = self.values[op.source]
            return set()
        folded, constant = _fold(op, self.values) if isinstance(op, warp.MapOp) and op.target.type.rank == 1 else (set(), None)
        self._forget(op)
        if constant is not None:
            self.values[op.target] = constant
        return folded | _summed(op)

    def _forget(self, op) -> None:
        for value in op.operation.operands:
            if value in self.values and _writes(op, value):
                del self.values[value]


def _summed(op) -> set:
    """The product that a map of rows ends in, if the operation behind it goes on summing from there."""
    if not isinstance(op, warp.MapOp) or op.target.type.rank != 1:
        return set()
    operations = list(op.operation.block.operations)
    behind = operations[operations.index(op) + 1 :][:1]
    if not any(isinstance(o, warp.ReduceOp) and o.kind.value == "sum" and o.accumulate.value and o.target == op.target for o in behind):
        return set()
    result = list(op.body.blocks[0].operations)[-1].operation.operands[0]
    product = not isinstance(result.owner, ir.Block) and result.owner.name == "arith.mulf" and len(list(result.uses)) == 1
    return {result.owner} if product else set()


def _writes(op, value) -> bool:
    return any(value == written for name in ("target", "acc") if (written := getattr(op, name, None)) is not None)


def _fold(op, known: dict) -> tuple[set, object]:
    """(operations of the region that need not run, the result if it is constant)."""
    block = op.body.blocks[0]
    constant = {a: known[v] for a, v in zip(block.arguments, op.inputs, strict=False) if v in known}
    same: dict = {}  # a select whose condition is constant is the value that it takes
    operations = list(block.operations)
    for inner in operations[:-1]:
        operation = inner.operation
        operands = [same.get(v, v) for v in operation.operands]
        if operation.name == "arith.select" and operands[0] in constant:
            taken = operands[1 if constant[operands[0]] else 2]
            same[operation.results[0]] = taken
            if taken in constant:
                constant[operation.results[0]] = constant[taken]
        elif operation.name.startswith(("arith.", "math.")) and all(v in constant for v in operands):
            (constant[operation.results[0]],) = scalar.apply(operation, [constant[v] for v in operands], scalar.KERNEL)
    result = same.get(operations[-1].operation.operands[0], operations[-1].operation.operands[0])
    if not any(isinstance(v.owner, ir.Block) for v in constant) and not same:
        return set(), None
    live, wanted = set(), [result]
    while wanted:
        value = wanted.pop()
        if value in constant or isinstance(value.owner, ir.Block) or value.owner in live:
            continue
        live.add(value.owner)
        wanted += [same.get(v, v) for v in value.owner.operands]
    return {inner.operation for inner in operations[:-1]} - live, constant.get(result)
