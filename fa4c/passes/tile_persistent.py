"""One CTA works on several tiles: the next tile's first copies run under the end of the last tile.

A CTA that does one tile starts with nothing to compute while its first copies are under way, and ends with nothing to copy. At short
sequences these 3 to 4 us are a third of the time. A persistent kernel launches as many CTAs as fit and lets each walk through the tiles:
the load role runs ahead into the next tile as far as its buffers allow, the output is stored while the next tile computes.

Where all tiles are alike, tiles lie `grid` apart (`scf.for`). Where the trip count of the block loop depends on the tile (a causal mask), a
fixed distribution leaves some CTAs with more work than others (H200, head dim 128, causal, 4k: 12 % slower than one CTA a tile), so a
CTA takes the next tile when it is done (`tile.walk`, over a counter in a workspace). The order stays that of the grid, longest first
where `tile-lpt-grid` ran.

If the block loop makes more than `blocks` trips the launcher gives every tile its own CTA, and the walk ends after one. Kernels whose tiles
do not fit shared memory with an output buffer of their own stay as they are.

Before:  "tile.launch"(%x, %y, %z, ...)      kernel: %i, %j, %k = "tile.program_id"() ; body
After:   "tile.launch"(%ctas, %c1, %c1, ..., %tiles, %ctas)      kernel: scf.for %t = %program_id to %tiles step %ctas { body at tile %t }
    or   "tile.launch"(%ctas, %c1, %c1, ..., %queue, ...)        kernel: "tile.walk"(%tiles, %queue) ({ body at tile %t })

Run after tile-pipeline and tile-lpt-grid. Source: CUTLASS's persistent tile schedulers; FlashAttention-3 for causal attention.
"""

from .. import targets
from ..ir import tile
from ..ir.mlir import arith, index_constant, ir, scf
from . import shared_room
from ._tile_map import dim_of, operations_in
from .registry import register_pass
from .workspaces import add_workspace, host_of, tensor_argument


@register_pass("tile-persistent")
def tile_persistent(module: ir.Module, *, blocks: int = 64) -> None:
    target = targets.of(module)
    operations = operations_in(module)
    kernels = {op.sym_name.value: op for op in operations if isinstance(op, tile.KernelOp)}
    for launch in [op for op in operations if isinstance(op, tile.LaunchOp)]:
        kernel = kernels[launch.kernel.value]
        place = next((op for op in kernel.body.blocks[0].operations if isinstance(op, tile.ProgramIdOp)), None)
        loops = [op for op in operations_in(kernel) if op.operation.name == "scf.for"]
        loop = next((inner for inner in loops if any(isinstance(op, tile.LoadOp) for op in operations_in(inner))), None)
        if place is None or loop is None or shared_room.whole(kernel) > target.smem_bytes:
            continue
        if list(loop.operation.operands)[0].owner == place.operation:
            continue  # it walks through tiles already
        alike = not any(_depends_on(bound, place) for inner in loops for bound in list(inner.operation.operands)[:3])
        if not alike and kernel.cluster.value > 1:
            continue  # CTAs of a cluster work on neighbouring tiles, and a queue gives out any
        _walk_tiles(kernel, place, alike)
        _launch_few(launch, kernel, loop, blocks, None if alike else _add_queue(launch))


def _walk_tiles(kernel, place, alike: bool) -> None:
    """Four more scalars (tiles, CTAs, the grid's x and y); everything that follows from the place moves into a loop over tiles."""
    block = kernel.body.blocks[0]
    index = ir.IndexType.get()
    operations = list(block.operations)
    following = operations[next(n for n, op in enumerate(operations) if op.operation == place.operation) + 1 :]
    queue = None if alike else tensor_argument(kernel, _queue_type())
    tiles, ctas, size_x, size_y = (block.add_argument(index, kernel.location) for _ in range(4))
    with ir.InsertionPoint(place), place.location:
        if alike:
            loop = scf.ForOp(tile.ProgramIdOp(x=index, y=index, z=index).x, tiles, ctas)
            body, number = loop.body, loop.induction_variable
        else:
            loop = tile.WalkOp(tiles=tiles, queue=queue)
            body = loop.body.blocks.append(index, arg_locs=[place.location])
            number = body.arguments[0]
    with ir.InsertionPoint(body), place.location:
        above = arith.floordivsi(number, size_x)
        x = arith.subi(number, arith.muli(above, size_x))
        z = arith.floordivsi(above, size_y)
        y = arith.subi(above, arith.muli(z, size_y))
        end = scf.YieldOp([])  # what follows is put before it
    for result, new in zip(place.operation.results, (x, y, z), strict=True):
        result.replace_all_uses_with(new)
    for op in following:
        op.operation.move_before(end.operation)
    if not alike:
        end.operation.erase()
    place.operation.erase()


def _queue_type():
    return tile.tile_type([2], "i32", "gmem")


def _add_queue(launch):
    """A workspace of the host, one a kernel: two counters that start at 0 and are left at 0."""
    return add_workspace(host_of(launch), "queue", ["counters"], _queue_type(), init="zero", lifetime="cached")


def _depends_on(value, place) -> bool:
    if isinstance(value.owner, ir.Block):
        return False
    return value.owner == place.operation or any(_depends_on(operand, place) for operand in value.owner.operands)


def _launch_few(launch, kernel, loop, blocks: int, queue) -> None:
    index = ir.IndexType.get()
    size_x, size_y, size_z = launch.grid
    with ir.InsertionPoint(launch), launch.location:
        tiles = arith.muli(arith.muli(size_x, size_y), size_z)
        sms = tile.DeviceOp(prop=ir.StringAttr.get("num_sms"), out=index).out
        few = arith.minsi(tiles, sms if kernel.cluster.value == 1 else _whole_clusters(sms, kernel.cluster.value))
        length = _longest_trip(launch, kernel, loop)
        short = arith.cmpi(arith.CmpIPredicate.sle, length, index_constant(blocks))
        ctas = arith.select(short, few, tiles)
        one = index_constant(1)
        tensors = [*launch.tensors] if queue is None else [*launch.tensors, queue]
        scalars = [*launch.scalars, tiles, ctas, size_x, size_y]
        tile.LaunchOp(kernel=launch.kernel, grid=[ctas, one, one], tensors=tensors, scalars=scalars)
    launch.operation.erase()


def _whole_clusters(sms, ctas: int):
    """The next multiple down, one cluster at least."""
    count = index_constant(ctas)
    return arith.maxsi(arith.muli(arith.floordivsi(sms, count), count), count)


def _longest_trip(launch, kernel, loop):
    """An upper bound of the loop's trip count, on the host: the rows of the tensors that it loads, over the rows of a tile."""
    arguments = list(kernel.body.blocks[0].arguments)
    longest = None
    for op in operations_in(loop):
        if isinstance(op, tile.LoadOp):
            tensor, rows = launch.tensors[arguments.index(op.source)], list(op.dims)[0]
            along = op.out.type.shape[0 if len(op.dims) == 2 else 1]
            trips = arith.ceildivsi(dim_of(tensor, rows), index_constant(along))
            longest = trips if longest is None else arith.maxsi(longest, trips)
    return longest
