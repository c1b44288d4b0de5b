"""What passes that let neighbouring CTAs work together have in common: what differs between the CTAs, and a grid of whole clusters."""

from ..ir import tile
from ..ir.mlir import arith, i64, index_constant, ir
from .loop_nest import constant


def depending_on(kernel, x, ctas: int) -> set:
    """Values that differ between the CTAs of a cluster: those computed from x, but for x // ctas, in text order; whatever a loop carries or
    a region yields counts where anything inside does."""
    found = {x}

    def visit(block) -> None:
        for op in block.operations:
            operation = op.operation
            for region in operation.regions:
                for inner in region.blocks:
                    if operation.name == "scf.for" and any(o in found for o in list(operation.operands)[:3]):
                        found.add(inner.arguments[0])
                    visit(inner)
            if any(o in found for o in operation.operands) and not _is_common(operation, x, ctas):
                found.update(operation.results)

    visit(kernel.body.blocks[0])
    return found


def _is_common(operation, x, ctas: int) -> bool:
    """Whether it computes x // n for a multiple n of `ctas`."""
    if operation.name != "arith.floordivsi" or operation.operands[0] != x:
        return False
    divisor = constant(operation.operands[1])
    return divisor is not None and divisor % ctas == 0


def run_together(kernel, launch, ctas: int) -> None:
    """Give the kernel clusters of `ctas` along x, and its launch as many CTAs as make whole clusters."""
    kernel.attributes["cluster"] = i64(ctas)
    x, y, z = launch.grid
    with ir.InsertionPoint(launch), launch.location:
        count = index_constant(ctas)
        grid = [arith.muli(arith.ceildivsi(x, count), count), y, z]
        tile.LaunchOp(kernel=launch.kernel, grid=grid, tensors=list(launch.tensors), scalars=list(launch.scalars))
    launch.operation.erase()


def distance(value, x) -> int | None:
    """By how much a scalar is greater in the next CTA along x; None if that is not a constant number."""
    if value == x:
        return 1
    owner = value.owner
    if isinstance(owner, ir.Block):
        return 0 if isinstance(owner.owner.opview, tile.KernelOp) else None
    if not len(owner.operands):
        return 0
    parts = [distance(operand, x) for operand in owner.operands]
    if all(part == 0 for part in parts):
        return 0
    if None in parts or owner.name not in ("arith.addi", "arith.subi", "arith.muli"):
        return None
    if owner.name == "arith.muli":
        factor = next((constant(o) for o, part in zip(owner.operands, parts, strict=True) if part == 0), None)
        return None if factor is None else factor * sum(parts)
    return parts[0] + parts[1] if owner.name == "arith.addi" else parts[0] - parts[1]
