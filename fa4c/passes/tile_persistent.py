"""One CTA works on several tiles: the next tile's first copies run under the end of the last tile.

A CTA that does one tile starts with nothing to compute while its first copies are under way, and ends with nothing to copy. At short
sequences
these 3 to 4 us are a third of the time. A persistent kernel launches as many CTAs as fit and lets each walk through the tiles, `grid`
apart; the load role runs
ahead into the next tile as far as its buffers allow, the output is stored while the next tile computes.

Whether that pays depends on the sizes, so the launcher decides: if the loop makes more than `blocks` trips, every tile gets its own CTA
and the walk ends after
one. Tiles must be alike: where the trip count differs from tile to tile (a causal mask), a fixed distribution leaves some CTAs with more
work than others (H200, head dim
128, causal: 12 % slower at 4k), and the hardware's own scheduler, which hands out a tile when a CTA ends, is better. Such kernels, and
those whose
tiles do not fit shared memory with an output buffer of their own, stay as they are.

Before:  "tile.launch"(%x, %y, %z, ...)      kernel: %i, %j, %k = "tile.program_id"() ; body
After:   "tile.launch"(%ctas, %c1, %c1, ..., %tiles, %ctas)      kernel: scf.for %t = %program_id to %tiles step %ctas { body at tile %t }

Run after tile-pipeline and tile-lpt-grid. Source: CUTLASS's persistent tile schedulers; FlashAttention-3 for causal attention.
"""

from .. import targets
from ..ir import tile
from ..ir.mlir import arith, ir, scf
from ._tile_map import operations_in
from .registry import register_pass


@register_pass("tile-persistent")
def tile_persistent(module: ir.Module, *, blocks: int = 64) -> None:
    target = targets.of(module)
    operations = operations_in(module)
    kernels = {op.sym_name.value: op for op in operations if isinstance(op, tile.KernelOp)}
    for launch in [op for op in operations if isinstance(op, tile.LaunchOp)]:
        kernel = kernels[launch.kernel.value]
        place = next((op for op in kernel.body.blocks[0].operations if isinstance(op, tile.ProgramIdOp)), None)
        loop = next((op for op in kernel.body.blocks[0].operations if op.operation.name == "scf.for"), None)
        if place is None or loop is None or _shared_bytes(kernel) > target.smem_bytes:
            continue
        if not any(_depends_on(bound, place) for bound in list(loop.operation.operands)[:3]):
            _walk_tiles(kernel, place)
            _launch_few(launch, kernel, loop, blocks)


def _shared_bytes(kernel) -> int:
    """Buffers of all tiles, none over another, and a kilobyte of barriers."""
    total = 1024
    for op in operations_in(kernel):
        if isinstance(op, (tile.LoadOp, tile.ToSharedOp)):
            copies = op.buffers.value if isinstance(op, tile.LoadOp) else 1
            rows, columns = op.out.type.shape
            total += copies * rows * columns * op.out.type.element_type.width // 8
    return total


def _walk_tiles(kernel, place) -> None:
    """Two more scalars (tiles, CTAs); everything that follows from the place moves into a loop over tiles."""
    block = kernel.body.blocks[0]
    index = ir.IndexType.get()
    tiles, ctas, size_x, size_y = (block.add_argument(index, kernel.location) for _ in range(4))
    following = []
    for op in list(block.operations):
        if following or op.operation == place.operation:
            following.append(op)
    old = list(place.operation.results)
    with ir.InsertionPoint(place), place.location:
        first = tile.ProgramIdOp(x=index, y=index, z=index).x
        loop = scf.ForOp(first, tiles, ctas)
        with ir.InsertionPoint(loop.body):
            number = loop.induction_variable
            above = arith.floordivsi(number, size_x)
            x = arith.subi(number, arith.muli(above, size_x))
            z = arith.floordivsi(above, size_y)
            y = arith.subi(above, arith.muli(z, size_y))
            end = scf.YieldOp([])
    for result, new in zip(old, (x, y, z), strict=True):
        result.replace_all_uses_with(new)
    for op in following[1:]:
        op.operation.move_before(end.operation)
    place.operation.erase()


def _depends_on(value, place) -> bool:
    if isinstance(value.owner, ir.Block):
        return False
    return value.owner == place.operation or any(_depends_on(operand, place) for operand in value.owner.operands)


def _launch_few(launch, kernel, loop, blocks: int) -> None:
    index = ir.IndexType.get()
    size_x, size_y, size_z = launch.grid
    with ir.InsertionPoint(launch), launch.location:
        tiles = arith.muli(arith.muli(size_x, size_y), size_z)
        sms = tile.DeviceOp(prop=ir.StringAttr.get("num_sms"), out=index).out
        few = arith.minsi(tiles, sms)
        length = _longest_trip(launch, kernel, loop)
        short = arith.cmpi(arith.CmpIPredicate.sle, length, arith.constant(index, blocks))
        ctas = arith.select(short, few, tiles)
        one = arith.constant(index, 1)
        tile.LaunchOp(
            kernel=launch.kernel,
            grid=[ctas, one, one],
            tensors=list(launch.tensors),
            scalars=[*launch.scalars, tiles, ctas, size_x, size_y],
        )
    launch.operation.erase()


def _longest_trip(launch, kernel, loop):
    """An upper bound of the loop's trip count, on the host: the rows of the tensors that it loads, over the rows of a tile."""
    arguments = list(kernel.body.blocks[0].arguments)
    index = ir.IndexType.get()
    longest = None
    for op in operations_in(loop):
        if isinstance(op, tile.LoadOp):
            tensor, rows = launch.tensors[arguments.index(op.source)], list(op.dims)[0]
            axis = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), rows)
            size = tile.DimOp(tensor=tensor, axis=axis, out=index).out
            trips = arith.ceildivsi(size, arith.constant(index, op.out.type.shape[0]))
            longest = trips if longest is None else arith.maxsi(longest, trips)
    return longest
