"""Pairs of CTAs load K and V once for both: each reads half of the rows, and the copy engine writes them to the shared memory of both.

The CTAs of one head read the same K and V blocks. Where two neighbours (row blocks 2 i and 2 i + 1) visit them in the same order, one
read of L2 serves both, which halves the bytes that SMs ask of it: at head dim 128 and blocks of 128 x 128 an H200's SMs ask for 3 kB a
clock, and L2 gives little more. The price is that the two wait for each other: a slot is refilled when both have read it.

It applies to loads of a block loop whose coordinates and trip count do not depend on `program_id` x; a causal mask's do, so such kernels
stay as they are. Row blocks come in whole clusters: one past the end loads zeros and stores nothing. `ctas` = 0 takes the target's
number, 1 leaves all as it is.

Before:  "tile.kernel" ... scf.for ... %k = "tile.load"(%K, ...) {buffers = 2 : i64, ...}
After:   "tile.kernel" {cluster = 2 : i64} on a grid whose x is even
           scf.for ... %k = "tile.load"(%K, ...) {buffers = 2 : i64, shared = true, ...}

Run before tile-persistent, which makes all places depend on x. Source: FlashAttention-3 for head dims from 128 on; PTX ISA,
multicast::cluster.
"""

from ..ir import tile
from ..ir.diagnostics import Diagnostic
from ..ir.mlir import ir
from ..targets import of as target_of
from ._tile_map import operations_in
from .cluster_grid import depending_on, run_together
from .registry import register_pass


@register_pass("tile-multicast")
def tile_multicast(module: ir.Module, *, ctas: int = 0) -> None:
    target = target_of(module)
    if ctas not in (0, 1, 2, 4, 8) or ctas > target.max_cluster:
        raise Diagnostic(f"ctas={ctas} is no size of a cluster", why=f"clusters have 1, 2, 4 or 8 CTAs here, at most {target.max_cluster}",
                         fix="give one of these, or 0 for the target's")
    ctas = ctas or target.multicast
    operations = operations_in(module)
    kernels = {op.sym_name.value: op for op in operations if isinstance(op, tile.KernelOp)}
    for launch in [op for op in operations if isinstance(op, tile.LaunchOp)] if ctas > 1 else []:
        kernel = kernels[launch.kernel.value]
        loads = _common_loads(kernel, ctas)
        if loads and kernel.cluster.value == 1:
            for op in loads:
                op.attributes["shared"] = ir.BoolAttr.get(True)
            run_together(kernel, launch, ctas)


def _common_loads(kernel, ctas: int) -> list:
    """Loads of block loops that do the same in CTAs that differ in x only."""
    place = next((op for op in kernel.body.blocks[0].operations if isinstance(op, tile.ProgramIdOp)), None)
    if place is None or any(isinstance(op, tile.WalkOp) for op in operations_in(kernel)):
        return []
    moving = depending_on(kernel, place.x, ctas)
    found = []
    for loop in [op for op in kernel.body.blocks[0].operations if op.operation.name == "scf.for"]:
        if not any(bound in moving for bound in list(loop.operation.operands)[:3]):
            for op in loop.regions[0].blocks[0].operations:
                if isinstance(op, tile.LoadOp) and not any(c in moving for c in op.coords) and _shares(op.out.type, ctas):
                    found.append(op)
    return found


def _shares(kind, ctas: int) -> bool:
    return kind.rank == 2 and kind.shape[0] > 1 and kind.shape[0] % (8 * ctas) == 0
