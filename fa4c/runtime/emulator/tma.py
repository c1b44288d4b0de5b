"""Bulk copies: TMA tiles, plain bulk copies and reductions (PTX ISA chapter 9.7.9.25 to 9.7.9.28).

A tile is read or written 16 bytes at a time; the swizzle exchanges 16-byte pieces by the absolute shared address. Elements
outside the tensor read as zero and are not stored, and the transaction always counts the whole box. Where a box may start is
narrower than that suggests: see `_check_start`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from . import reductions
from .codegen import Unsupported
from .errors import EmulatorError
from .mbarrier import complete_tx, find
from .memory import PARAM_BASE, SHARED_BASE
from .parser import Imm, Vec

SWIZZLE_MASK = {0: 0, 32: 1, 64: 3, 128: 7}
_FORMATS = {
    0: ("u8", 1),
    1: ("u16", 2),
    2: ("u32", 4),
    3: ("s32", 4),
    4: ("u64", 8),
    5: ("s64", 8),
    6: ("f16", 2),
    7: ("f32", 4),
    8: ("f32", 4),
    9: ("f64", 8),
    10: ("bf16", 2),
}
ELEMENT_BYTES = {
    "u8": 1,
    "s8": 1,
    "u16": 2,
    "i16": 2,
    "s16": 2,
    "u32": 4,
    "s32": 4,
    "i32": 4,
    "u64": 8,
    "s64": 8,
    "f16": 2,
    "fp16": 2,
    "bf16": 2,
    "f32": 4,
    "f64": 8,
    "tf32": 4,
}


@dataclass
class Descriptor:
    """A decoded tensor map; dims, strides, box and element strides innermost first, strides[0] the element size."""

    address: int
    dtype: str
    size: int
    dims: tuple
    strides: tuple
    box: tuple
    element_strides: tuple
    swizzle: int
    oob_nan: bool = False

    @property
    def box_counts(self):
        return tuple(-(-b // s) for b, s in zip(self.box, self.element_strides))

    @property
    def box_bytes(self):
        return int(np.prod(self.box_counts)) * self.size


def decode_map(raw: bytes, line=0) -> Descriptor:
    """128 descriptor bytes, by the field table of the drivers of CUDA 12 and 13."""
    if len(raw) != 128:
        raise EmulatorError(f"a tensor map of {len(raw)} bytes", line=line, why="cuTensorMapEncodeTiled writes 128")
    word = lambda at: int.from_bytes(raw[at : at + 4], "little")  # noqa: E731
    flags = word(8)
    rank = (flags >> 4 & 7) + 1
    fmt = flags >> 7 & 15
    if rank > 5 or fmt not in _FORMATS:
        raise EmulatorError(
            f"the 128 bytes are not a tensor map: rank {rank}, format {fmt}",
            line=line,
            fix="pass the bytes that cuTensorMapEncodeTiled wrote",
        )
    dtype, size = _FORMATS[fmt]
    if flags >> 11 & 3:
        raise EmulatorError("interleaved tensor maps are not supported", line=line)
    swizzle = (0, 32, 64, 128)[flags >> 13 & 3]
    high = word(28)
    strides = [size]
    for i in range(4):
        strides.append((word(12 + 4 * i) | (high >> 4 * i & 15) << 32) * 16)
    dims = [word(32 + 4 * i) + 1 for i in range(5)]
    es = int.from_bytes(raw[52:55], "little")
    box = [raw[55 + i] + 1 for i in range(5)]
    return Descriptor(
        int.from_bytes(raw[:8], "little"),
        dtype,
        size,
        tuple(dims[:rank]),
        tuple(strides[:rank]),
        tuple(box[:rank]),
        tuple((es >> 3 * i & 7) + 1 for i in range(rank)),
        swizzle,
        bool(flags >> 15 & 1),
    )


def swizzled(chunks, swizzle):
    """Absolute 16-byte piece numbers after the swizzle: bits 4-6 of the address ^= bits 7-9 (128 B; fewer for 64 and 32)."""
    mask = SWIZZLE_MASK[swizzle]
    return chunks ^ (chunks >> 3 & mask) if mask else chunks


def _descriptor(F, address, line):
    """The tensor map at a generic address: a kernel parameter, or 128 bytes in global memory."""
    launch = F.launch
    if address >= PARAM_BASE:
        off = address - PARAM_BASE
        d = launch.tensor_maps.get(off)
        if d is None:
            raw = launch.params[off : off + 128]
            if len(raw) < 128:
                raise EmulatorError(f"no tensor map at parameter byte {off}", line=line, fix="pass a TensorMap for this parameter")
            d = launch.tensor_maps[off] = decode_map(raw, line)
        return d
    mem = launch.memory.find(address, address + 128, line, False)
    return decode_map(mem.data[address - mem.base : address - mem.base + 128].tobytes(), line)


def _box(d, coords):
    """(slices of the box, shape and start of the source) for the part of a box inside the tensor; None if it is all outside."""
    slices, starts, counts = [], [], []
    for n, es, c, size in zip(d.box_counts, d.element_strides, coords, d.dims):
        lo = max(0, -(c // es) if c < 0 and c % es == 0 else (-c + es - 1) // es if c < 0 else 0)
        hi = min(n, (size - c + es - 1) // es)
        if hi <= lo:
            return None
        slices.append(slice(lo, hi))
        starts.append(c + lo * es)
        counts.append(hi - lo)
    return slices[::-1], starts, counts


def _global_view(launch, d, box, line, write):
    """A view of the valid part of a box in global memory, outermost dimension first, last axis bytes of an element."""
    slices, starts, counts = box
    at = d.address + sum(s * st for s, st in zip(starts, d.strides))
    steps = [st * es for st, es in zip(d.strides, d.element_strides)]
    last = at + sum((n - 1) * s for n, s in zip(counts, steps)) + d.size
    mem = launch.memory.find(at, last, line, write)
    view = as_strided(mem.data[at - mem.base :], tuple(counts[::-1]) + (d.size,), tuple(steps[::-1]) + (1,))
    return mem, view, at - mem.base, counts, steps


def _global_rows(mem, at, counts, steps, size):
    """Rows (of one size that divides everything) of the shadow for a strided region."""
    inner = counts[0] * size if steps[0] == size else size
    unit = 16
    values = [at, inner] + steps[1:]
    while any(v % unit for v in values):
        unit //= 2
    idx = (np.arange(inner // unit) + at // unit) if steps[0] == size else (at + np.arange(counts[0]) * steps[0]) // unit
    for n, s in zip(counts[1:], steps[1:]):
        idx = (np.arange(n)[:, None] * (s // unit) + idx.ravel()[None, :]).ravel()
    return idx, unit


def _smem_chunks(F, cl, address, nbytes, swizzle, line, align=16):
    if address & (align - 1):
        raise EmulatorError(
            f"bulk copy at the unaligned shared address {address:#x}", line=line, why=f"it must be aligned to {align} bytes"
        )
    at = int(cl.smem.index(np.array([address], np.int64), nbytes, line, F)[0])
    return swizzled(np.arange(at >> 4, (at + nbytes) >> 4), swizzle)


def load_tile(F, op, d, coords, dst, bars, line):
    """Run a tile load into each (shared address, barrier address)."""
    box = _box(d, coords)
    data = np.zeros(d.box_counts[::-1] + (d.size,), np.uint8)
    if d.oob_nan:
        data[...] = np.array([0xFF] * d.size, np.uint8)
    if box is not None:
        mem, view, at, counts, steps = _global_view(F.launch, d, box, line, False)
        data[tuple(box[0])] = view
        if mem.shadow is not None:
            rows, unit = _global_rows(mem, at, counts, steps, d.size)
            F.H.async_access(op, mem.shadow, rows, unit, False)
        F.counters.add("global_bytes.tma_load", view.size)
    cl = F.cta.cluster
    for address, bar in zip(dst, bars):
        chunks = _smem_chunks(F, cl, address, d.box_bytes, d.swizzle, line, 128)
        cl.smem.mem.data.reshape(-1, 16)[chunks] = data.reshape(-1, 16)
        if F.H:
            F.H.async_access(op, cl.smem.mem.shadow, chunks, 16, True)
        _signal(F, op, bar, d.box_bytes, line)
        F.counters.add("smem_bytes.tma", d.box_bytes)
        F.counters.add("smem_bytes.filled", d.box_bytes)


def _signal(F, op, bar, nbytes, line):
    b = find(F, bar, line)
    complete_tx(F.launch, b, nbytes, _completion(F, op), line)


def _completion(F, op):
    """What an observer of a completion learns: this operation, nothing of its issuer."""
    if not F.H:
        return None
    return F.H.start_clock(F.cta.cluster).with_bits(op.bits)


_REDUCTIONS = ("add", "min", "max", "and", "or", "xor", "inc", "dec")
_TYPES = {"fp16": "f16"}  # the tensor map's name: the instruction's


def _reduction(old, new, op, t, in_global):
    """op over raw bytes of a type, each result rounded once."""
    t = _TYPES.get(t, t)
    view = reductions.VIEW[t]
    return reductions.function(op, t, in_global)(old.view(view), new.view(view)).view("u1")


def store_tile(F, op, d, coords, src, reduce, line):
    """Run a tile store or reduction."""
    cl = F.cta.cluster
    chunks = _smem_chunks(F, cl, src, d.box_bytes, d.swizzle, line, 128)
    if F.H:
        F.H.async_access(op, cl.smem.mem.shadow, chunks, 16, False)
    data = cl.smem.mem.data.reshape(-1, 16)[chunks].reshape(d.box_counts[::-1] + (d.size,))
    F.counters.add("smem_bytes.tma", d.box_bytes)
    box = _box(d, coords)
    if box is None:
        return
    mem, view, at, counts, steps = _global_view(F.launch, d, box, line, True)
    new = np.ascontiguousarray(data[tuple(box[0])])
    if mem.shadow is not None:
        rows, unit = _global_rows(mem, at, counts, steps, d.size)
        (F.H.async_reduce if reduce else F.H.async_write)(op, mem.shadow, rows, unit)
    if reduce:
        old = np.ascontiguousarray(view)
        view[...] = _reduction(old.reshape(-1), new.reshape(-1), reduce, d.dtype, True).reshape(view.shape)
    else:
        view[...] = new
    F.counters.add("global_bytes.tma_store", new.size)


def _shared(F, mem, lane, parts=()):
    a = int(F.address(mem)[lane])
    return a - SHARED_BASE if a >= SHARED_BASE else a


def op_cp(ins, program):
    """cp.async.*, cp.reduce.async.*."""
    p = ins.parts
    if "prefetch" in p:
        return _tensor_prefetch(ins) if "tensor" in p and not any("im2col" in x or "gather4" in x for x in p) else lambda F, m: True
    if "commit_group" in p:
        return _bulk_commit
    if "wait_group" in p:
        return _bulk_wait(ins)
    reduce = p[1] == "reduce"
    if "tensor" in p:
        if any("im2col" in x for x in p) or any("gather4" in x or "scatter4" in x for x in p):
            raise Unsupported(f"instruction {ins.opcode}")
        return _tensor(ins, reduce)
    return _bulk(ins, reduce)


def _lane_box(F, tensor, lane, rank, line):
    """(address of the tensor map, the map, start of the box innermost first) that one lane names."""
    address = int(F.get(tensor.base, 8)[lane]) + tensor.offset
    coords = [int(F.get(c).view(np.int32)[lane]) for c in tensor.coords]
    d = _descriptor(F, address, line)
    if len(coords) != rank or len(d.dims) != rank:
        raise EmulatorError(
            f"{rank}-d copy with {len(coords)} coordinates and a map of rank {len(d.dims)}",
            line=line,
            why="all three must agree",
            fix="check the tensor map",
        )
    return address, d, coords


def _check_start(d, coords, writes, line):
    """Refuse what ends in an illegal instruction on an H200: a box off the 16-byte grid, a written box that starts below zero.

    Both faults do not depend on how much of the box is inside. Boxes beyond the upper edges, and loads below zero, are fine.
    """
    if coords[0] * d.size % 16:
        raise EmulatorError(
            f"tensor copy at {_start(coords)}: {coords[0]} elements of {d.size} bytes are no multiple of 16 bytes",
            line=line,
            why="the innermost coordinate must lie on a 16-byte boundary: an illegal instruction on hardware",
            fix=f"start at a multiple of {16 // d.size} elements",
        )
    if writes and min(coords) < 0:
        raise EmulatorError(
            f"tensor store or reduction at {_start(coords)}",
            line=line,
            why="a box that is written must not start below zero: an illegal instruction on hardware, which clips at the upper edges only",
            fix="start the box inside the tensor",
        )


def _start(coords):
    """Coordinates as an error prints them."""
    return f"({', '.join(map(str, coords))})"


def _tensor_prefetch(ins):
    """cp.async.bulk.prefetch.tensor: moves nothing here, but its coordinates fault as a load's do."""
    rank = _rank(ins.parts)

    def run(F, m):
        for lane in np.flatnonzero(m).tolist():
            _, d, coords = _lane_box(F, ins.ops[0], lane, rank, ins.line)
            _check_start(d, coords, False, ins.line)
        return True

    return run


def _rank(parts):
    return next(int(x[0]) for x in parts if x in ("1d", "2d", "3d", "4d", "5d"))


def _tensor(ins, reduce):
    p, ops = ins.parts, list(ins.ops)
    rank = _rank(p)
    to_shared = any(x in ("shared::cta", "shared::cluster") for x in p[: p.index("global")]) if "global" in p else False
    multicast = any(x.startswith("multicast") for x in p)
    rop = next((x for x in p if x in _REDUCTIONS), None) if reduce else None
    pair = "cta_group::2" in p

    def run(F, m):
        line = ins.line
        stores = {}
        for lane in np.flatnonzero(m).tolist():
            tensor = ops[1] if to_shared else ops[0]
            address, d, coords = _lane_box(F, tensor, lane, rank, line)
            _check_start(d, coords, not to_shared, line)
            if to_shared:
                dst, bar = _shared(F, ops[0], lane), _shared(F, ops[2], lane)
                dsts, bars = [dst], [bar]
                if multicast:
                    mask = int(F.get(ops[3], 2)[lane])
                    dsts = [(dst & 0xFFFFFF) | r << 24 for r in range(F.cta.cluster.n) if mask >> r & 1]
                    bars = [(bar & 0xFFFFFF) | (r & (~1 if pair else ~0)) << 24 for r in range(F.cta.cluster.n) if mask >> r & 1]
                op = F.launch.new_op(F, "TMA load", line, 1 << lane, lane)
                op.run = lambda o, d=d, c=coords, x=dsts, y=bars: load_tile(F, o, d, c, x, y, line)
                F.launch.issue(op)
            else:
                src = _shared(F, ops[1], lane)
                same = (address, tuple(coords), src)
                if same in stores and not reduce:
                    # All lanes of a warp storing one tile: released kernels do it, the copies are equal.
                    F.warp.bulk.setdefault(lane, ([], []))[0].append(stores[same])
                    F.counters.add("redundant_tma_stores")
                    if F.launch.strict and F.H:
                        F.H.report("redundant-store", "several lanes store the same tile", (line,), (F.agent(),), severity="warning")
                    continue
                op = stores[same] = F.launch.new_op(F, "TMA reduction" if reduce else "TMA store", line, 1 << lane, lane)
                op.run = lambda o, d=d, c=coords, s=src: store_tile(F, o, d, c, s, rop, line)
                F.launch.issue(op)
                F.warp.bulk.setdefault(lane, ([], []))[0].append(op)
        return True

    return run


def _bulk(ins, reduce):
    """cp{.reduce}.async.bulk.DST.SRC.completion [dst], [src], size {, [mbar]}."""
    p, ops = ins.parts, ins.ops
    spaces = [x for x in p if x.split("::")[0] in ("global", "shared") and x in ("global", "shared::cta", "shared::cluster")]
    dst_space, src_space = spaces[0], spaces[1]
    by_group = "bulk_group" in p
    multicast = any(x.startswith("multicast") for x in p)
    t = p[-1] if reduce else None
    rop = next((x for x in p if x in _REDUCTIONS), None) if reduce else None
    if reduce and (rop is None or t not in reductions.VIEW or reductions.function(rop, t, True) is None):
        raise Unsupported(f"instruction {ins.opcode}")
    kind = {("global", False): "bulk load", ("global", True): "bulk load"}.get((src_space, reduce)) or (
        "bulk reduction" if reduce else "bulk store" if dst_space == "global" else "bulk DSMEM copy"
    )

    def run(F, m):
        line = ins.line
        for lane in np.flatnonzero(m).tolist():
            n = int(F.get(ops[2])[lane])
            if n % 16:
                raise EmulatorError(f"bulk copy of {n} bytes", line=line, why="the size must be a multiple of 16")
            dst, src = int(F.address(ops[0])[lane]), int(F.address(ops[1])[lane])
            bar = None if by_group else _shared(F, ops[3], lane)
            dsts, bars = [dst], [bar]
            if multicast:
                mask = int(F.get(ops[4], 2)[lane])
                dsts = [(dst & 0xFFFFFF) | r << 24 for r in range(F.cta.cluster.n) if mask >> r & 1]
                bars = [(bar & 0xFFFFFF) | r << 24 for r in range(F.cta.cluster.n) if mask >> r & 1]
            op = F.launch.new_op(F, kind, line, 1 << lane, lane)
            op.run = lambda o, n=n, x=dsts, s=src, y=bars: _run_bulk(F, o, n, x, dst_space, s, src_space, y, rop, t, line)
            F.launch.issue(op)
            if by_group:
                F.warp.bulk.setdefault(lane, ([], []))[0].append(op)
        return True

    return run


def _side(F, op, address, space, n, line, write, reduce=False):
    """The bytes of one side of a bulk copy, checked against the shadow."""
    if space == "global":
        mem = F.launch.memory.find(address, address + n, line, write)
        at = address - mem.base
        if at % 16:
            raise EmulatorError(f"bulk copy at byte {at:#x} of {mem.name}", line=line, why="it must be aligned to 16 bytes")
        F.counters.add("global_bytes.bulk", n)
    else:
        address = address - SHARED_BASE if address >= SHARED_BASE else address
        if address % 16:
            raise EmulatorError(f"bulk copy at the unaligned shared address {address:#x}", line=line, why="it must be aligned to 16 bytes")
        mem = F.cta.cluster.smem.mem
        at = int(F.cta.cluster.smem.index(np.array([address], np.int64), n, line, F)[0])
        F.counters.add("smem_bytes.dsmem" if space == "shared::cluster" and address >> 24 != F.cta.rank else "smem_bytes.bulk", n)
        F.counters.add("smem_bytes.filled", n if write else 0)
    if mem.shadow is not None:
        rows = np.arange(at >> 4, (at + n) >> 4)
        if reduce:
            F.H.async_reduce(op, mem.shadow, rows, 16)
        elif write:
            F.H.async_write(op, mem.shadow, rows, 16)
        else:
            F.H.async_access(op, mem.shadow, rows, 16, False)
    return mem.data[at : at + n]


def _run_bulk(F, op, n, dsts, dst_space, src, src_space, bars, rop, dtype, line):
    data = _side(F, op, src, src_space, n, line, False).copy()
    for dst, bar in zip(dsts, bars):
        out = _side(F, op, dst, dst_space, n, line, True, rop is not None)
        out[...] = data if rop is None else _reduction(out.copy(), data, rop, dtype, dst_space == "global")
        if bar is not None:
            _signal(F, op, bar, n, line)


def _bulk_commit(F, m):
    """cp.async.bulk.commit_group: per thread."""
    for lane in np.flatnonzero(m).tolist():
        opened, groups = F.warp.bulk.setdefault(lane, ([], []))
        groups.append(list(opened))
        opened.clear()
    return True


def _bulk_wait(ins):
    read_only = "read" in ins.parts
    n = ins.ops[0].value if isinstance(ins.ops[0], Imm) else 0

    def run(F, m):
        lanes = np.flatnonzero(m).tolist()
        for lane in lanes:
            groups = F.warp.bulk.get(lane, ([], []))[1]
            for g in groups[: max(0, len(groups) - n)]:
                if not all(op.done for op in g):
                    F.why = "bulk copies of this thread are not complete"
                    return False
        for lane in lanes:
            groups = F.warp.bulk.get(lane, ([], []))[1]
            bits = 0
            for g in groups[: max(0, len(groups) - n)]:
                for op in g:
                    op.waited = True
                    bits |= op.read_bit if read_only else op.bits
            if F.H:
                F.H.add_bits(F, 1 << lane, bits)
            if not read_only:
                del groups[: max(0, len(groups) - n)]
        return True

    return run


def op_st_async(ins, program):
    """st.async: a remote store that completes on a remote mbarrier."""
    p = ins.parts
    mem, s, bar = ins.ops
    items = s.items if isinstance(s, Vec) else (s,)
    size = {"b32": 4, "u32": 4, "s32": 4, "f32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8}[p[-1]]

    def run(F, m):
        values = [F.get(i, size) for i in items]
        addresses, bars = F.address(mem), F.address(bar)
        for lane in np.flatnonzero(m).tolist():
            op = F.launch.new_op(F, "st.async", ins.line, 1 << lane, lane)
            op.run = lambda o, lane=lane: _run_st_async(
                F, o, int(addresses[lane]), [int(v[lane]) for v in values], size, int(bars[lane]), ins.line
            )
            F.launch.issue(op)
        return True

    return run


def _run_st_async(F, op, address, values, size, bar, line):
    cl = F.cta.cluster
    n = size * len(values)
    at = int(cl.smem.index(np.array([address], np.int64), n, line, F)[0])
    if at % n:
        raise EmulatorError(f"misaligned st.async at {address:#x}", line=line)
    if F.H:
        F.H.async_write(op, cl.smem.mem.shadow, np.array([at // n]), n)
    for k, v in enumerate(values):
        cl.smem.mem.views[size][at // size + k] = v
    F.counters.add("smem_bytes.dsmem", n)
    _signal(F, op, bar, n, line)
