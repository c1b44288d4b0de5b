"""Where the tiles of a kernel do not fit tensor memory: what is alive at the worst moment, and what would fit, by trying."""

from __future__ import annotations

from ..ir import tile
from ..ir.diagnostics import Diagnostic, op_diagnostic
from ..ir.mlir import ir
from . import columns, loop_graph, tile_pipeline, tmem_tiles
from ._tile_map import operations_in


def needed(tiles, target, words=None) -> int:
    """Columns that tiles take, were they as wide as `words` says."""
    step = target.tmem_step
    conflicts = [{j for j, b in enumerate(tiles) if i != j and tmem_tiles.conflict(a, b, target)} for i, a in enumerate(tiles)]
    widths = [-(-w // step) for w in (words or [t.words for t in tiles])]
    return columns.width_of(widths, columns.place(widths, conflicts)) * step


def refusal(kernel, tiles, target, takes: int, room: int) -> Diagnostic:
    """Says how many columns it takes of how many, whose they are, and what would make them fit."""
    times = [first for t in tiles for first, _ in t.spans]
    at_once = [[t for t in tiles if any(first <= time <= last for first, last in t.spans)] for time in times]
    live = max(at_once, key=lambda alive: sum(t.words for t in alive))
    listed = " and ".join(f"{t.name} {t.words}" for t in live)
    across = [t for t in tiles if len(t.spans) == 1 and t in live]
    kept = " and ".join(f"{t.name} {t.words}" for t in across)
    total = sum(-(-t.words // target.tmem_step) * target.tmem_step for t in live)
    blocks = tmem_tiles.block_of(tiles[0].kind)
    why = f"alive at one time: {listed}, {total} columns" + (f"; {kept} live{'s' * (len(across) == 1)} across the loop" if across else "")
    each = f" for each of {blocks} row blocks" if blocks > 1 else ""
    fits = [words for words in _choices(kernel, tiles, across, target, room) if words]
    return op_diagnostic(kernel, f"needs {takes} columns of {room} of tensor memory{each}", why=why,
                         fix="; or ".join(fits) or "use smaller head dims: no order, block or number of kernels that was tried fits")


def _choices(kernel, tiles, across, target, room: int):
    yield _other_order(kernel, target, room)
    yield _narrower_blocks(tiles, target, room)
    if tmem_tiles.block_of(tiles[0].kind) > 1 and needed(tiles, target) <= target.tmem_columns:
        yield f"use one row block (attn-to-tile.block-m={target.mma.m})"
    yield _pair(tiles, target, room)
    yield _fewer_results(tiles, across, target, room)


def _other_order(kernel, target, room: int) -> str:
    for stages in (0, 1):
        copy = kernel.operation.clone(ir.InsertionPoint(kernel))
        try:
            for op in operations_in(copy.opview):
                for name in ("stage", "order", "after"):
                    if isinstance(op, tile.Scheduled) and name in op.attributes:
                        del op.attributes[name]
            for loop in _loops(copy.opview):
                tile_pipeline.set_schedule(tile_pipeline.plan_loop(loop, target, stages=stages))
            takes = needed(tmem_tiles.find(copy.opview), target)
        except Diagnostic:
            continue
        finally:
            copy.erase()
        if takes <= room:
            given = "{stages=1}" if stages else ""
            return f"leave the order to tile-pipeline{given}, which finds one that takes {takes}"
    return ""


def _loops(kernel) -> list:
    return [loop for loop in loop_graph.pipelined_loops(kernel.operation.parent.opview) if _within(loop, kernel)]


def _within(op, kernel) -> bool:
    operation = op.operation
    while operation is not None and operation != kernel.operation:
        operation = operation.parent
    return operation is not None


def _narrower_blocks(tiles, target, room: int) -> str:
    """Where the loop walks along the columns of products, and none of its own rows."""
    products = [_opview(v) for t in tiles for v in t.values if isinstance(_opview(v), tile.MmaOp)]
    loaded = [op for op in products if op.transpose_b.value and isinstance(_opview(op.b), tile.LoadOp)]
    loaded = [op for op in loaded if op.b.owner.parent.name == "scf.for"]
    if not loaded or any(op.transpose_a.value for op in products):
        return ""
    block = loaded[0].out.type.shape[1]
    along = [t.kind.shape[1] == block and len(t.spans) > 1 for t in tiles]
    for size in range(block - target.mma.n_step, 0, -target.mma.n_step):
        words = [t.words * size // block if scales else t.words for t, scales in zip(tiles, along, strict=True)]
        if needed(tiles, target, words) <= room:
            return f"use blocks of {size} columns (attn-to-tile.block-n={size})"
    return ""


def _pair(tiles, target, room: int) -> str:
    """A product that sums over this CTA's rows sums over those of both CTAs, for half of its own rows each: in half of the columns."""
    halved = [any(isinstance(op := _opview(v), tile.MmaOp) and op.transpose_a.value for v in t.values) for t in tiles]
    words = [t.words // 2 if half else t.words for t, half in zip(tiles, halved, strict=True)]
    if not any(halved) or not target.dsmem_exchange_clk or needed(tiles, target, words) > room:
        return ""
    names = " and ".join(t.name for t, half in zip(tiles, halved, strict=True) if half)
    return f"use pairs of CTAs (tile-split-2cta), which halve the columns of {names}"


def _fewer_results(tiles, across, target, room: int) -> str:
    for t in across if len(across) > 1 else []:
        rest = [other for other in tiles if other is not t]
        if needed(rest, target) <= room:
            return f"form {t.name} in a kernel of its own (attn-split-backward)"
    return ""


def _opview(value):
    return None if isinstance(value.owner, ir.Block) else value.owner.opview
