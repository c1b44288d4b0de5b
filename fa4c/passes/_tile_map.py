"""What several passes do to operations: build a `tile.map`, ask for a size, walk, drop unused scalars, see what a product is made of."""

from collections.abc import Callable

from ..ir.mlir import i64, ir
from ..ir.tile import DimOp, FromSharedOp, MapOp, YieldOp
from ..ir.tile_base import nested_operations


def emit_map(inputs: list, out, body: Callable, cond=None):
    """A `tile.map` at the insertion point. `body(*elements, row, column)` emits its scalar program and returns the result."""
    op = MapOp(inputs=inputs, cond=cond, out=out)
    index = ir.IndexType.get()
    kinds = [*[value.type.element_type for value in inputs], index, index]
    block = op.body.blocks.append(*kinds, arg_locs=[op.location] * len(kinds))
    with ir.InsertionPoint(block):
        YieldOp(values=[body(*block.arguments)])
    return op.out


def dim_of(tensor, axis: int):
    """The size of a tensor's dimension, an index, at the insertion point."""
    return DimOp(tensor=tensor, axis=i64(axis), out=ir.IndexType.get()).out


def operations_in(operation) -> list:
    """The views of all operations nested in one, in order; a list, so that they may be replaced."""
    return [op for region in operation.operation.regions for op in nested_operations(region)]


def erase_unused(block) -> None:
    """Drop scalar operations and sizes that nothing reads, the last ones first."""
    for op in reversed(list(block.operations)):
        operation = op.operation
        is_scalar = operation.name.startswith(("arith.", "math.")) or operation.name == "tile.dim"
        if is_scalar and not any(list(result.uses) for result in operation.results):
            operation.erase()


def factors_in_shared(x) -> list:
    """The two tiles in shared memory of which x is the product, element by element; [] where it is something else."""
    owner = x.owner
    if isinstance(owner, ir.Block) or owner.name != "tile.map" or owner.opview.cond is not None or len(owner.opview.inputs) != 2:
        return []
    product = list(owner.regions[0].blocks[0].operations)[-1].operation.operands[0].owner
    read = [] if isinstance(product, ir.Block) or product.name != "arith.mulf" else [_widened(v) for v in product.operands]
    if sorted(read) != [0, 1]:
        return []
    sources = [getattr(value.owner, "opview", None) for value in owner.opview.inputs]
    return [op.x for op in sources] if all(isinstance(op, FromSharedOp) for op in sources) else []


def _widened(value) -> int:
    """The number of the region's argument that a scalar is, made f32 from 16 bits; -1 where it is something else."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.extf" or owner.operands[0].type.width != 16:
        return -1
    argument = owner.operands[0]
    return argument.arg_number if isinstance(argument.owner, ir.Block) else -1
