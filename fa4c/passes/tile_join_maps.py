"""Compute a tile together with what it is for, where a thread has no room for both it and what they read beside it.

Where MMAs sum in tensor memory a thread holds whole rows: 128 registers a tile of 128 columns in f32, of 255. A map whose result maps right
behind it read, and nothing else, need not be held: it becomes part of them. So the exponentials of a soft cap's backward are made
between t, which they read, and P (1 - t^2), which takes the place of t, while P itself goes to tensor memory in 16 bits: one map of two
results, `tile.map_both`. Done only where a reader also reads another tile in registers, so that the two would be held side by side.

Before:  %p = "tile.map"(%t, %lse) ({ exp2 ... })     %w = "tile.map"(%t, %p) ({ p (1 - t t) })     %pc = "tile.map"(%p) ({ truncf })
After:   %w, %pc = "tile.map_both"(%t, %lse) ({ %e = exp2 ...   "tile.yield"(%e (1 - t t), truncf %e) })

A target that sums in registers, where a thread has a quarter of a row or less, is left alone. Run behind tile-accumulate-in-tmem.
"""

from __future__ import annotations

from .. import targets
from ..ir import tile
from ..ir.mlir import ir
from ..ir.tile import space_of
from ._attn_to_tile_regions import inlined
from ._tile_map import operations_in
from .registry import register_pass
from .role_loops import captured

_MOST_READERS = 2  # results of one map


@register_pass("tile-join-maps")
def tile_join_maps(module: ir.Module) -> None:
    if targets.of(module).mma.accumulator != "tmem":
        return
    while found := next(filter(None, map(_readers_to_join, operations_in(module))), None):
        _join(*found)


def _readers_to_join(op) -> tuple | None:
    """(a map, the maps that are to take its part, first who holds another tile in registers)"""
    if not _is_joinable(op) or space_of(op.out.type) != "reg" or op.out.type.rank != 2:
        return None
    readers = [use.owner.opview for use in op.out.uses]
    if len(readers) > _MOST_READERS or not all(_can_join(op, reader) for reader in readers):
        return None
    readers = sorted(readers, key=lambda reader: not _held_beside(op, reader))
    return (op, readers) if readers and _held_beside(op, readers[0]) else None


def _is_joinable(op) -> bool:
    return type(op) is tile.MapOp and op.cond is None


def _can_join(op, reader) -> bool:
    """Whether a reader may run where `op` does: it reads nothing that is made later."""
    if not _is_joinable(reader) or reader.operation.block != op.operation.block or reader.out.type.shape != op.out.type.shape:
        return False
    read = [value for value in [*reader.inputs, *captured(reader.body.blocks[0])] if value != op.out]
    inside = [value.owner for value in read if not isinstance(value.owner, ir.Block) and value.owner.operation.block == op.operation.block]
    return all(owner.operation.is_before_in_block(op.operation) for owner in inside)


def _held_beside(op, reader) -> bool:
    """Whether a result in registers takes the place of another tile than what `op` makes."""
    return space_of(reader.out.type) == "reg" and any(value != op.out and value.type == reader.out.type for value in reader.inputs)


def _join(op, readers: list) -> None:
    """The readers' inputs come first, so that a result takes the place of one of them."""
    inputs = list(dict.fromkeys(value for each in [*readers, op] for value in each.inputs if value != op.out))
    results = [reader.out.type for reader in readers]
    with ir.InsertionPoint(op), op.location:
        if len(readers) == 1:
            new = tile.MapOp(inputs=inputs, cond=None, out=results[0])
        else:
            new = tile.MapBothOp(inputs=inputs, cond=None, out=results[0], beside=results[1])
        index = ir.IndexType.get()
        kinds = [*(value.type.element_type for value in inputs), index, index]
        block = new.body.blocks.append(*kinds, arg_locs=[op.location] * len(kinds))
        element = dict(zip(inputs, block.arguments, strict=False))
        with ir.InsertionPoint(block):
            made = _inline(op, element, list(block.arguments)[-2:])
            tile.YieldOp(values=[_inline(reader, {**element, op.out: made}, list(block.arguments)[-2:]) for reader in readers])
    for reader, result in zip(readers, new.operation.results, strict=True):
        reader.out.replace_all_uses_with(result)
        reader.operation.erase()
    op.operation.erase()


def _inline(op, element: dict, indices: list):
    """What a map makes of elements: its result's."""
    block = op.body.blocks[0]
    mapping = dict(zip(block.arguments, [*(element[value] for value in op.inputs), *indices], strict=True))
    return inlined(block, list(list(block.operations)[-1].operation.operands), mapping)[0]
