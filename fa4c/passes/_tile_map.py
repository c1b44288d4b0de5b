"""What several passes do to operations: build a `tile.map`, walk, drop unused scalars."""

from collections.abc import Callable

from ..ir.mlir import ir
from ..ir.tile import MapOp, YieldOp


def emit_map(inputs: list, out, body: Callable, cond=None):
    """A `tile.map` at the insertion point. `body(*elements, row, column)` emits its scalar program and returns the result."""
    op = MapOp(inputs=inputs, cond=cond, out=out)
    index = ir.IndexType.get()
    kinds = [*[value.type.element_type for value in inputs], index, index]
    block = op.body.blocks.append(*kinds, arg_locs=[op.location] * len(kinds))
    with ir.InsertionPoint(block):
        YieldOp(values=[body(*block.arguments)])
    return op.out


def operations_in(operation) -> list:
    """The views of all operations nested in one, in order; a list, so that they may be replaced."""
    found = []
    for region in operation.operation.regions:
        for block in region.blocks:
            for op in block.operations:
                found += [op.operation.opview, *operations_in(op)]
    return found


def erase_unused(block) -> None:
    """Drop scalar operations and sizes that nothing reads, the last ones first."""
    for op in reversed(list(block.operations)):
        operation = op.operation
        is_scalar = operation.name.startswith(("arith.", "math.")) or operation.name == "tile.dim"
        if is_scalar and not any(list(result.uses) for result in operation.results):
            operation.erase()
