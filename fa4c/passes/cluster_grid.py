"""What passes that let neighbouring CTAs work together have in common: what differs between the CTAs, and a grid of whole clusters."""

from ..ir import tile
from ..ir.mlir import arith, ir


def depending_on(kernel, x) -> set:
    """Values computed from x, in text order; whatever a loop carries or a region yields counts where anything inside does."""
    found = {x}

    def visit(block) -> None:
        for op in block.operations:
            operation = op.operation
            for region in operation.regions:
                for inner in region.blocks:
                    if operation.name == "scf.for" and any(o in found for o in list(operation.operands)[:3]):
                        found.add(inner.arguments[0])
                    visit(inner)
            if any(o in found for o in operation.operands):
                found.update(operation.results)

    visit(kernel.body.blocks[0])
    return found


def run_together(kernel, launch, ctas: int) -> None:
    """Give the kernel clusters of `ctas` along x, and its launch as many CTAs as make whole clusters."""
    kernel.attributes["cluster"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), ctas)
    x, y, z = launch.grid
    with ir.InsertionPoint(launch), launch.location:
        count = arith.constant(ir.IndexType.get(), ctas)
        grid = [arith.muli(arith.ceildivsi(x, count), count), y, z]
        tile.LaunchOp(kernel=launch.kernel, grid=grid, tensors=list(launch.tensors), scalars=list(launch.scalars))
    launch.operation.erase()
