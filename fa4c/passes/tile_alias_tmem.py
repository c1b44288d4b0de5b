"""Give every tile in tensor memory its columns; tiles that are not needed at one time may share some.

From the schedule's order follow the spans over which each tile's contents are needed: from the operation that writes it to the last that
reads it, around the loop's back edge too; an MMA reads its operand and its accumulator until MMAs behind it have begun, which is enough
where MMAs of one thread finish in order (`mma.in_order`), and until the next iteration where they do not. Where all tiles fit side by
side, none shares. Else those share that make roles wait for least beyond what they wait for anyway, exactly (`columns.py`,
`implied_order.py`); a tile of 256 rows lies in both halves of the columns alike, so the room is half. What does not fit is refused, naming
what is alive at the worst moment and which choice would fit (`tmem_choices.py`).

Each reuse within a loop is written down where it overwrites: `after = array<i64: 3, 1>`, the operation of order 3, of 1 iteration
before, must have been done. Roles learn from it what to wait for. It never changes the order of a schedule.

Before:  %s = "tile.mma"(...) {order = 3, stage = 0} -> tensor<256x128xf32, #tile.tmem<-1>>
         %pc = "tile.map"(...) {order = 16, stage = 0} -> tensor<256x128xbf16, #tile.tmem<-1>>
         %o = "tile.mma"(%pc, ...) {order = 1, stage = 1} -> tensor<256x128xf32, #tile.tmem<-1>>
After:   %s ... {after = array<i64: 1, 1>} -> tensor<256x128xf32, #tile.tmem<128>>      // P of the last iteration lies there
         %pc ... {after = array<i64: 4, 0>} -> tensor<256x128xbf16, #tile.tmem<128>>    // the scores have been read
         %o ... -> tensor<256x128xf32, #tile.tmem<0>>
"""

from __future__ import annotations

import itertools

from .. import targets
from ..ir import tile
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import ir
from ..ir.tile import tile_type
from . import columns, tmem_choices, tmem_tiles
from .implied_order import ImpliedOrder
from .registry import register_pass


@register_pass("tile-alias-tmem")
def tile_alias_tmem(module: ir.Module) -> None:
    target = targets.of(module)
    for op in module.body.operations:
        if isinstance(op, tile.KernelOp):
            _place_kernel(op, target)


def _place_kernel(kernel, target) -> None:
    tiles = tmem_tiles.find(kernel)
    if not tiles:
        return
    conflicts = [{j for j, b in enumerate(tiles) if i != j and tmem_tiles.conflict(a, b, target)} for i, a in enumerate(tiles)]
    room = _room(kernel, tiles, target)
    step = target.tmem_step
    widths = [-(-t.words // step) for t in tiles]
    if sum(widths) * step <= room:
        offsets = [sum(widths[:i]) for i in range(len(widths))]
    else:
        offsets = columns.place_within(room // step, widths, conflicts, _waits(tiles, conflicts, target))
    needed = columns.width_of(widths, offsets) * step
    if needed > room:
        raise tmem_choices.refusal(kernel, tiles, target, needed, room)
    for t, offset in zip(tiles, offsets, strict=True):
        for value in t.values:
            value.set_type(tile_type(value.type.shape, value.type.element_type, f"tmem<{offset * step}>"))
    _write_dependences(tiles)


def _waits(tiles, conflicts, target) -> dict[tuple[int, int], int]:
    """Pair of tiles -> what the waits cost that the loop would not have anyway, were the two to share columns; 0 is left out."""
    implied: dict = {}
    found = {}
    for i, j in itertools.combinations(range(len(tiles)), 2):
        waits = {}
        for a, b in ((i, j), (j, i)) if j not in conflicts[i] else ():
            for first, users in tmem_tiles.overwrites(tiles[a], tiles[b]):
                loop = first.op.operation.parent
                if loop not in implied:
                    implied[loop] = ImpliedOrder(loop, target)
                for order, before in users.items():
                    cost = implied[loop].cost(order, before, first.op)
                    waits[first.op, order] = max(cost, waits.get((first.op, order), 0))
        if sum(waits.values()):
            found[i, j] = sum(waits.values())
    return found


def _room(kernel, tiles, target) -> int:
    """Columns of a row block."""
    blocks = {tmem_tiles.block_of(t.kind) for t in tiles}
    odd = next((t for t in tiles if t.kind.shape[0] % target.mma.m or tmem_tiles.block_of(t.kind) not in (1, 2)), None)
    if odd is not None or len(blocks) > 1:
        shapes = ", ".join(dict.fromkeys("x".join(map(str, t.kind.shape)) for t in tiles))
        why = f"all have {target.mma.m} rows, or all have twice as many"
        raise op_diagnostic(kernel, f"has tiles of {shapes} in tensor memory", why=why, fix="give the tiles one number of rows")
    return target.tmem_columns // blocks.pop()


def _write_dependences(tiles) -> None:
    for op, numbers in tmem_tiles.reuses(tiles).items():
        op.attributes["after"] = ir.DenseI64ArrayAttr.get(numbers)
