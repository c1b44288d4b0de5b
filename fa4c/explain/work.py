"""What one operation of the tile or warp level makes a CTA's units do, by formulas over its types, its regions and the target.

A `Counter` of quantities. Those that a unit's clocks follow from:

    mma            FLOP of the tensor cores
    exp, fma, alu  operations of the special-function unit, the FP32 lanes, and all other lanes; one for each lane
    smem_operands  bytes that MMAs read from shared memory
    smem_ds        bytes that threads write there for MMAs to read (dS of a backward)
    smem_dq        bytes of sums that threads write there, and that additions to global memory read from there (dQ of a backward)
    smem_results   the same of results that are stored
    smem_columns   one value a column, read by threads: 128 bytes for each load of a warp, as each takes the port for a clock
    smem_column_bytes   what these loads give to all lanes together
    smem_tiles     bytes of tiles that threads read
    smem_words     single words: a tile's number, the address of tensor memory, what roles tell each other of a row
    dsmem          bytes that a CTA sends to its peer
    tma            bytes that copies from global memory write to shared memory
    atomics        additions to global memory by threads
    tmem_read, tmem_written   bytes between tensor memory and registers

and those that the emulator counts apart from their cause: `smem_read` and `smem_written` by threads, `smem_bulk` by TMA either way.
Which cause a tile in shared memory has follows from who reads it, never from its name.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from ..ir import tile, tile_pair, warp, warp_tmem
from ..ir.tile import space_of
from ..ir.tile_base import nested_in
from ..lowering.thread_layout import LAYOUTS
from ..passes import op_costs

WARP = 32  # lanes
PORT = 128  # bytes of shared memory that one load or store of a warp moves at most in a clock


@dataclass(frozen=True)
class Role:
    """The warps that run an operation of the warp level."""

    warps: int
    layout: object  # of `lowering.thread_layout`
    leader: bool = False  # in the first CTA of a pair only

    @classmethod
    def of(cls, op) -> Role:
        """Of a `warp.role`."""
        return cls(op.active.value, LAYOUTS[op.layout.value], op.leader.value)

    @property
    def warpgroups(self) -> int:
        return self.warps // 4

    def lanes(self, kind) -> int:
        """Values of a register tile, in all threads together."""
        return self.layout.elements(kind, self.warpgroups) * WARP * self.warps


def work(op, target, role: Role | None = None, folded=()) -> Counter:
    """Of one run of `op` in one CTA. `role`: whose operation of the warp level it is; None at the tile level and outside of roles.
    `folded`: operations of its region that do not run.
    """
    rule = _TILE.get(type(op))
    if rule is not None:
        return rule(op, target)
    if isinstance(op, (warp.MapOp, warp_tmem.TmemMapOp)):
        return _warp_map(op, target, role, folded)
    if isinstance(op, warp.ReduceOp):
        return _warp_reduce(op, target, role)
    rule = _WARP.get(type(op))
    return Counter() if rule is None else rule(op, role)


def has_rule(kind: type) -> bool:
    """Whether a class of operations is counted."""
    return kind in _TILE or kind in _WARP or kind in (warp.MapOp, warp_tmem.TmemMapOp, warp_tmem.TmemMapBothOp, warp.ReduceOp)


def bytes_of(kind) -> int:
    """Of a tile; of a buffer, of one of its stages."""
    shape = list(kind.shape)[-2:]
    return math.prod(shape) * warp.bits_of(kind.element_type) // 8


# ------------------------------------------------------------------------------------------------------------------ tile level


def _lanes_work(operations: Counter) -> Counter:
    return Counter({"exp": operations["mufu"], "fma": operations["fp32"], "alu": operations["alu"]})


def _elementwise(op, target) -> Counter:
    return _lanes_work(op_costs.unit_work(op, target))


def _mma(op, target) -> Counter:
    m, n = op.out.type.shape
    k = op.a.type.shape[0 if op.transpose_a.value else 1]
    return Counter({"mma": 2 * m * n * k, "smem_operands": op_costs.shared_bytes(op, target)})


def _load(op, target) -> Counter:
    size = bytes_of(op.out.type)
    return Counter({"tma": size, "smem_bulk": size})


def _to_shared(op, target) -> Counter:
    size = bytes_of(op.x.type)
    return Counter({cause_of(op): size, "smem_written": size})


def cause_of(op) -> str:
    """What a `tile.to_shared` is for."""
    kinds = {type(use.owner.opview) for use in op.out.uses}
    if tile.MmaOp in kinds:
        return "smem_ds"
    return "smem_dq" if tile.GlobalAddOp in kinds else "smem_results"


def _exchange(op, target) -> Counter:
    """Half of the tile is written here, half in the memory of the peer, whose half comes here meanwhile."""
    size = bytes_of(op.x.type)
    return Counter({"smem_ds": size, "smem_written": size, "dsmem": size // 2})


def _from_shared(op, target) -> Counter:
    size = bytes_of(op.x.type)
    return Counter({"smem_tiles": size, "smem_read": size})


def _store(op, target) -> Counter:
    if space_of(op.tile.type) != "smem":
        return Counter()
    size = bytes_of(op.tile.type)
    return Counter({"smem_results": size, "smem_bulk": size})


def _global_add(op, target) -> Counter:
    if space_of(op.x.type) == "smem":
        size = bytes_of(op.x.type)
        return Counter({"smem_dq": size, "smem_bulk": size})
    if op.staged is not None:
        size = bytes_of(op.x.type)
        return Counter({"smem_dq": 2 * size, "smem_written": size, "smem_bulk": size})
    if op.x.type.rank == 2:
        return Counter({"atomics": op.x.type.shape[0] * op.x.type.shape[1]})
    return Counter({"atomics": _warps(op, op.x.type, target)})  # one a warp


def _add_count(op, target) -> Counter:
    return Counter({"atomics": op.counter.type.shape[-1]})


def _map(op, target) -> Counter:
    found = _lanes_work(op_costs.map_work(op, target))
    for value in op.inputs:
        if space_of(value.type) == "tmem":
            found["tmem_read"] += bytes_of(value.type)
        elif space_of(value.type) == "smem":
            found += _columns(value.type.shape[1], _warps(op, op.out.type, target), target.mma.accumulator == "tmem")
    for result in op.operation.results:
        if space_of(result.type) == "tmem":
            found["tmem_written"] += bytes_of(result.type)
    return found


def _warps(op, kind, target) -> int:
    """Warps that hold a register tile: one for 32 rows of a tile in tensor memory, else all."""
    return -(-kind.shape[0] // WARP) if target.mma.accumulator == "tmem" else 4 * op_costs.warpgroups(op, target)


def _columns(columns: int, warps: int, whole_rows: bool) -> Counter:
    """A row of column values read by each warp: 8 columns at a time by pairs, or 4 by threads that hold whole rows."""
    loads, each = (columns // 4, 16) if whole_rows else (columns // 8, 8)
    read = warps * loads * each * WARP
    return Counter({"smem_columns": warps * loads * PORT, "smem_column_bytes": read, "smem_read": read})


_TILE = {
    tile.MmaOp: _mma, tile.LoadOp: _load, tile.ToSharedOp: _to_shared, tile_pair.ExchangeOp: _exchange, tile.FromSharedOp: _from_shared,
    tile.StoreOp: _store, tile.GlobalAddOp: _global_add, tile.AddCountOp: _add_count, tile.MapOp: _map,
    tile.MapBothOp: _map, tile.ReduceOp: _elementwise,
    tile.RescaleFactorOp: _elementwise, tile.VoteAnyOp: _elementwise,
}


# ------------------------------------------------------------------------------------------------------------------ warp level


def _tma_load(op, role) -> Counter:
    size = bytes_of(op.buffer.type)
    return Counter({"tma": size, "smem_bulk": size})


def _tma_store(op, role) -> Counter:
    size = bytes_of(op.buffer.type)
    return Counter({"smem_dq" if op.add.value else "smem_results": size, "smem_bulk": size})


def _tma_add(op, role) -> Counter:
    size = bytes_of(op.buffer.type)
    return Counter({"smem_dq": size, "smem_bulk": size})


def _tma_put(op, role) -> Counter:
    size = bytes_of(op.buffer.type) * op.part[1] // op.buffer.type.shape[1]
    return Counter({"smem_results": size, "smem_bulk": size})


def _wgmma(op, role) -> Counter:
    """Each warpgroup reads all of b and its 64 rows of a; where they share 64 rows, its columns of b and all of a."""
    m, n = op.acc.type.shape
    k = op.a.type.shape[-2 if op.transpose_a.value else -1]
    by_columns = warp.column_shares(op.acc.type, role.warpgroups)
    size = bytes_of(op.b.type) * (m // 64) + (bytes_of(op.a.type) * by_columns if space_of(op.a.type) == "smem" else 0)
    return Counter({"mma": 2 * m * n * k, "smem_operands": size})


def _tcgen05_mma(op, role) -> Counter:
    """Of a pair of CTAs what both do: each its own rows, and reading the half of b that it has."""
    folds = 2 if op.folded.value else 1
    rows, n, k = warp_tmem.LANES // folds, op.acc.type.shape[1] * folds, op.a.type.shape[-2 if op.transpose_a.value else -1]
    a = rows * k * warp.bits_of(op.a.type.element_type) // 8 if space_of(op.a.type) == "smem" else 0
    ctas = op.ctas.value
    return Counter({"mma": ctas * 2 * rows * n * k, "smem_operands": ctas * (bytes_of(op.b.type) + a)})


def _store_shared(op, role) -> Counter:
    return _written_buffer(op.buffer) + Counter({"dsmem": bytes_of(op.buffer.type) // 2 if op.exchange.value else 0})


def _written_buffer(buffer) -> Counter:
    readers = [use.owner.opview for use in buffer.uses]
    size = bytes_of(buffer.type)
    if any(isinstance(reader, (warp.WgmmaOp, warp_tmem.Tcgen05MmaOp)) for reader in readers):
        cause = "smem_ds"
    else:
        cause = "smem_dq" if any(_adds(reader) for reader in readers) else "smem_results"
    return Counter({cause: size, "smem_written": size})


def _adds(op) -> bool:
    return isinstance(op, warp.TmaAddOp) or (isinstance(op, warp.TmaStoreOp) and op.add.value)


def _load_fragment(op, role) -> Counter:
    size = bytes_of(op.buffer.type)
    return Counter({"smem_tiles": size, "smem_read": size})


def _load_columns(op, role) -> Counter:
    return _role_columns(op.buffer.type, role)


def _role_columns(buffer, role) -> Counter:
    """A row of column values read by all warps of a role."""
    found = _columns(buffer.shape[2], role.warps, role.layout.whole_rows)
    found["alu"] = found["smem_columns"] // PORT * WARP
    return found


def _warp_global_add(op, role) -> Counter:
    """A row vector is added up in each warp first: of 32 rows in 5 additions, of two for each quad of lanes in 4."""
    if op.source.type.rank == 2:
        return Counter({"atomics": role.lanes(op.source.type)})
    return Counter({"atomics": role.warps, "fma": role.warps * WARP * (5 if role.layout.whole_rows else 4)})


def _warp_add_count(op, role) -> Counter:
    return Counter({"atomics": op.counter.type.shape[-1]})


def _warp_map(op, target, role, folded) -> Counter:
    buffer = op.buffer if isinstance(op, warp_tmem.TmemMapOp) else None
    kind = op.target.type if buffer is None else op.kind
    row = role.lanes(kind) if kind.rank == 1 else role.layout.elements(_row_of(kind), role.warpgroups) * WARP * role.warps
    found = _lanes_work(op_costs.region_work(op.body.blocks[0], list(op.inputs), kind, role.lanes(kind), row, target, folded))
    for value in op.inputs:
        if space_of(value.type) == "tmem":
            found["tmem_read"] += bytes_of(value.type)
        elif space_of(value.type) == "smem":
            found += _role_columns(value.type, role)
    if space_of(kind) == "tmem":
        found["tmem_written"] += bytes_of(kind)
    return found if buffer is None else found + _written_buffer(buffer)


def _row_of(kind):
    """The type of a row vector beside a tile."""
    return tile.tile_type([kind.shape[0]], kind.element_type, "reg")


def _warp_reduce(op, target, role) -> Counter:
    rows = role.lanes(op.target.type) if op.target.type.rank == 1 else 0
    shared = not role.layout.whole_rows
    return _lanes_work(op_costs.reduce_work(op.kind.value, role.lanes(op.source.type), rows, op.accumulate.value, shared, target))


def _warp_vote(op, role) -> Counter:
    return Counter({"alu": role.lanes(op.target.type)})


def _post(op, role) -> Counter:
    size = 4 * op.box.type.shape[0]
    return Counter({"smem_words": size, "smem_written": size})


def _fetch(op, role) -> Counter:
    size = 4 * op.box.type.shape[0]
    return Counter({"smem_words": size, "smem_read": size})


def _tmem_load(op, role) -> Counter:
    return Counter({"tmem_read": bytes_of(op.source.type)})


def _tmem_store(op, role) -> Counter:
    return Counter({"tmem_written": bytes_of(op.target.type)})


def walk_step(op, role) -> Counter:
    """What a role does for each tile that it is given: all lanes read the number; who has the queue takes and writes it."""
    found = Counter({"smem_read": PORT * role.warps, "smem_words": PORT * role.warps})
    return found + Counter({"atomics": 1, "smem_written": 4, "smem_words": 4}) if op.queue is not None else found


def walk_end(op, role) -> Counter:
    """... and once, behind all tiles."""
    return Counter({"atomics": 1}) if op.queue is not None else Counter()


def address_words(op, warps: int) -> Counter:
    """Reading the address of tensor memory: each thread of `op`, a role that uses it, or the warp that frees it."""
    free = isinstance(op, warp_tmem.TmemFreeOp)
    used = free or any(space_of(v.type) == "tmem" for inner in nested_in(op.body.blocks[0]) for v in inner.operation.operands)
    size = PORT * warps if used else 0
    return Counter({"smem_read": size, "smem_words": size})


_WARP = {
    warp.TmaLoadOp: _tma_load, warp.TmaStoreOp: _tma_store, warp.TmaAddOp: _tma_add, warp.TmaPutOp: _tma_put, warp.WgmmaOp: _wgmma,
    warp_tmem.Tcgen05MmaOp: _tcgen05_mma,
    warp.StoreSharedOp: _store_shared, warp.LoadFragmentOp: _load_fragment, warp.LoadColumnsOp: _load_columns,
    warp.GlobalAddOp: _warp_global_add, warp.AddCountOp: _warp_add_count, warp.VoteAnyOp: _warp_vote,
    warp_tmem.TmemLoadOp: _tmem_load, warp_tmem.TmemStoreOp: _tmem_store, warp_tmem.PostOp: _post, warp_tmem.FetchOp: _fetch,
}
