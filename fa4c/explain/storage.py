"""What a kernel keeps where: tiles in tensor memory and for how long, buffers in shared memory, registers of its roles."""

from __future__ import annotations

from .. import targets
from ..ir import tile, warp, warp_tmem
from ..ir.tile import column_of
from ..ir.value_names import name_of
from ..lowering.thread_layout import LAYOUTS
from ..passes import tmem_tiles
from ..passes._tile_map import operations_in
from ..passes.shared_room import follows
from . import names
from .names import op_name
from .work import bytes_of, cause_of


def tensor_memory(kernel, target) -> dict | None:
    """The map of a `tile.kernel` or `warp.kernel`; None where it has no tile there.

    `columns`: of a row block, first and last; None before `tile-alias-tmem`. Life spans are known at the tile level only: from the
    operation that writes a content afresh to the last one that needs it, so many `iterations` later; `whole_loop`: none writes it afresh.
    """
    tiles = _tile_level(kernel) if isinstance(kernel, tile.KernelOp) else _warp_level(kernel)
    if not tiles:
        return None
    placed = [t["columns"] for t in tiles if t["columns"] is not None]
    blocks = max(t["row_blocks"] for t in tiles)
    return {"columns": target.tmem_columns, "row_blocks": blocks, "used": blocks * (1 + max((last for _, last in placed), default=-1)),
            "side_by_side": blocks * sum(t["width"] for t in tiles), "tiles": tiles}


def _tile_level(kernel) -> list[dict]:
    return [_tile(t.name, t.kind, t.words) | _life(t) for t in tmem_tiles.find(kernel)]


def _tile(name: str, kind, width: int) -> dict:
    first = column_of(kind)
    return {"name": name, "rows": kind.shape[0], "row_blocks": tmem_tiles.block_of(kind), "width": width, "dtype": str(kind.element_type),
            "columns": [first, first + width - 1] if first >= 0 else None}


def _life(t) -> dict:
    """Of a content in the steady state: the second one that a loop's operation writes afresh, else of the whole loop."""
    fresh = [accesses for accesses in t.accesses if accesses[0].fresh and accesses[0].op.operation.parent.name == "scf.for"]
    if not fresh:
        return {"written_by": _first_writer(t), "last_needed_by": None, "iterations": None, "whole_loop": True}
    accesses = fresh[min(1, len(fresh) - 1)]
    first, last = accesses[0], accesses[-1]
    return {"written_by": _what(first.op), "last_needed_by": _what(last.op), "iterations": last.iteration - first.iteration,
            "whole_loop": False}


def _first_writer(t) -> str | None:
    writers = [a.op for accesses in t.accesses for a in accesses if a.writes]
    return _what(writers[0]) if writers else None


def _what(op) -> str:
    """`mma s`: the kind of an operation and its name."""
    return f"{op.operation.name.split('.')[-1]} {op_name(op)}"


def _warp_level(kernel) -> list[dict]:
    found = {}
    for op in kernel.body.blocks[0].operations:
        if isinstance(op, warp_tmem.TmemOp):
            name = name_of(op.out) or "a tile"
            found[name, str(op.out.type)] = _tile(name, op.out.type, warp_tmem.words_of(op.out.type))
    return list(found.values())


def shared_memory(kernel, target, tensors=()) -> dict:
    """Buffers by offset; at the tile level, where nothing has an offset yet, what loads and MMAs ask for: results find a place later.

    `tensors`: names of the kernel's tensors, where buffers are to be named after them.
    """
    if isinstance(kernel, warp.KernelOp):
        buffers = [{"name": names.of_buffer(op, tensors), "offset": op.offset.value, "stages": op.out.type.shape[0],
                    "bytes": op.out.type.shape[0] * warp.stage_bytes(op.out)}
                   for op in kernel.body.blocks[0].operations if isinstance(op, warp.BufferOp)]
        return {"bytes": kernel.smem_bytes.value, "limit": target.smem_bytes, "buffers": sorted(buffers, key=lambda b: b["offset"])}
    buffers = []
    for op in operations_in(kernel):
        if isinstance(op, tile.LoadOp) or (isinstance(op, tile.ToSharedOp) and cause_of(op) != "smem_results"):
            stages = op.buffers.value
            size = 0 if follows(op) else stages * bytes_of(op.out.type)
            buffers.append({"name": names.of_operation(op, tensors), "offset": None, "bytes": size, "stages": stages})
    return {"bytes": sum(b["bytes"] for b in buffers), "limit": target.smem_bytes, "buffers": buffers}


def registers(kernel, target) -> dict | None:
    """Of the roles of a `warp.kernel`: the limit that each sets, and what its fragments hold; None at the tile level."""
    if not isinstance(kernel, warp.KernelOp):
        return None
    roles = []
    for op in kernel.body.blocks[0].operations:
        if isinstance(op, warp.RoleOp):
            layout, groups = LAYOUTS[op.layout.value], op.active.value // 4
            fragments = [inner.out.type for inner in operations_in(op) if isinstance(inner, warp.FragmentOp)]
            held = sum(-(-layout.elements(kind, groups) * max(16, warp.bits_of(kind.element_type)) // 32) for kind in fragments)
            roles.append({"name": op.sym_name.value, "warps": len(list(op.warps)), "active": op.active.value,
                          "registers": op.registers.value, "fragments": held})
    return {"used": sum(32 * r["warps"] * r["registers"] for r in roles), "limit": target.registers, "threads": kernel.threads.value,
            "roles": roles}


def of_kernels(module) -> list[dict]:
    """Storage of every kernel of a module, in text order."""
    target, found, tensors = targets.of(module), [], names.tensors_of(module)
    for op in module.body.operations:
        if isinstance(op, (tile.KernelOp, warp.KernelOp)):
            found.append({"name": op.sym_name.value, "cluster": op.cluster.value, "tmem": tensor_memory(op, target),
                          "smem": shared_memory(op, target, tensors.get(op.sym_name.value, ())), "registers": registers(op, target)})
    return found


