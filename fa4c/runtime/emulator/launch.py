"""The public entry: launch a kernel's PTX on NumPy buffers."""

import struct
from dataclasses import dataclass

import numpy as np

from .dependent import follow, touched_by
from .errors import EmulatorError
from .memory import MEMORY_LIMIT, Buffer
from .processes import run_split
from .program import load_program
from .report import Report
from .schedule import DEFAULT_RESIDENT, Launch
from .tma import ELEMENT_BYTES, Descriptor, decode_map

_PACK = {
    "u8": "B",
    "s8": "b",
    "i8": "b",
    "bool": "?",
    "u16": "H",
    "s16": "h",
    "i16": "h",
    "u32": "I",
    "s32": "i",
    "i32": "i",
    "u64": "Q",
    "s64": "q",
    "i64": "q",
    "f32": "f",
    "f64": "d",
    "f16": "e",
}


@dataclass
class Scalar:
    """A scalar parameter: `Scalar(3, "i32")`."""

    value: object
    dtype: str


class TensorMap:
    """A tensor map parameter (128 bytes on hardware): everything innermost dimension first.

    `strides_bytes` are those of dimensions 1.. (the innermost is contiguous). `swizzle` is 0, 32, 64 or 128 bytes.
    """

    def __init__(self, buffer, dtype, dims, strides_bytes, box, swizzle=0, element_strides=None, oob_fill="zero", base_offset_bytes=0):
        self.buffer, self.dtype, self.dims, self.strides_bytes, self.box = buffer, dtype, tuple(dims), tuple(strides_bytes), tuple(box)
        self.swizzle, self.element_strides = int(swizzle or 0), tuple(element_strides or (1,) * len(self.dims))
        self.oob_fill, self.base_offset_bytes = oob_fill, base_offset_bytes
        self._check()

    def _check(self):
        """The rules of cuTensorMapEncodeTiled."""
        bad, n = None, len(self.dims)
        if self.dtype not in ELEMENT_BYTES:
            raise EmulatorError(f"tensor map of type {self.dtype}", fix="types: " + ", ".join(ELEMENT_BYTES))
        size = ELEMENT_BYTES[self.dtype]
        strides = self.strides_bytes
        if len(strides) == n:  # the innermost given too
            strides = strides[1:]
        self.strides_bytes = strides
        if not 1 <= n <= 5 or len(self.box) != n or len(strides) != n - 1 or len(self.element_strides) != n:
            bad = f"rank {n} with {len(strides)} strides, {len(self.box)} box sizes and {len(self.element_strides)} element strides"
        elif any(not 1 <= b <= 256 for b in self.box):
            bad = f"box {self.box}: sizes must be 1..256"
        elif self.box[0] * size % 16:
            bad = f"the inner box is {self.box[0] * size} bytes, not a multiple of 16"
        elif self.swizzle and self.box[0] * size > self.swizzle:
            bad = f"the inner box is {self.box[0] * size} bytes, more than the swizzle span {self.swizzle}"
        elif self.swizzle not in (0, 32, 64, 128):
            bad = f"swizzle {self.swizzle}"
        elif any(s % 16 for s in strides) or self.base_offset_bytes % 16:
            bad = f"strides {strides} and offset {self.base_offset_bytes} must be multiples of 16"
        if bad:
            raise EmulatorError(f"tensor map: {bad}", why="cuTensorMapEncodeTiled would refuse it")

    @classmethod
    def from_bytes(cls, raw, buffer, offset=0):
        """The map that 128 raw descriptor bytes describe, over a buffer: the address inside the bytes is replaced."""
        d = decode_map(bytes(raw))
        return cls(buffer, d.dtype, d.dims, d.strides[1:], d.box, d.swizzle, d.element_strides, "nan" if d.oob_nan else "zero", offset)

    def descriptor(self, address):
        """The decoded map, with the tensor at a global address."""
        size = ELEMENT_BYTES[self.dtype]
        return Descriptor(
            address + self.base_offset_bytes,
            self.dtype,
            size,
            self.dims,
            (size, *self.strides_bytes),
            self.box,
            self.element_strides,
            self.swizzle,
            self.oob_fill in ("nan", True),
        )

    @property
    def nbytes(self):
        """Bytes from the first to behind the last element."""
        size = ELEMENT_BYTES[self.dtype]
        return self.base_offset_bytes + sum((d - 1) * s for d, s in zip(self.dims, (size, *self.strides_bytes))) + size


def launch(
    ptx: str,
    entry: str,
    grid,
    block,
    cluster=(1, 1, 1),
    smem: int = 0,
    params=(),
    *,
    schedule="fifo",
    schedule_seed=0,
    hazards=True,
    strict=False,
    resident=None,
    max_steps=None,
    progress=None,
    processes=1,
    after=None,
    file="<ptx>",
) -> Report:
    """Execute one kernel. Buffers change in place; hazards are in the report, a launch that cannot go on raises EmulatorError.

    `after`: the report of the launch before, if this one may start before that has ended (programmatic dependent launch).
    `processes`: how many to use where clusters share no written global memory; results and reports do not depend on it.
    """
    program = load_program(ptx, entry, file)
    grid, block, cluster = _three(grid, "grid"), _three(block, "block"), _three(cluster or (1, 1, 1), "cluster")
    _check_shape(program, grid, block, cluster)
    if schedule not in ("fifo", "random"):
        raise EmulatorError(f"unknown schedule {schedule!r}", fix="use fifo or random")
    run = Launch(program, grid, block, cluster, smem, schedule, schedule_seed, hazards, strict, resident, max_steps, progress)
    run.set_params(pack_params(run, params))
    _check_memory(run, hazards)
    if not isinstance(processes, int) or processes < 1:
        raise EmulatorError(f"{processes} processes", fix="use 1 or more")
    run.place_symbols()
    if after is not None:
        follow(run, after)
    report = None
    if processes > 1 and run.cluster_count() > 1:
        report, why = run_split(run, processes)
        if why:
            run.notes.append(f"ran in one process: {why}")
    if report is None:
        report = run.run()
    run.memory.keep_initialised()
    report.touched = touched_by(run, after)
    return report


def _check_memory(run, hazards):
    """Buffers, their shadow and the CTAs that run at once must fit together."""
    ctas = min(
        run.grid[0] * run.grid[1] * run.grid[2], max(run.resident or DEFAULT_RESIDENT, run.cluster[0] * run.cluster[1] * run.cluster[2])
    )
    warps = -(-run.block[0] * run.block[1] * run.block[2] // 32)
    each = run.smem_limit * (9 if hazards else 1) + warps * len(run.program.kernel.reg_bits) * 256
    need = run.memory.total + ctas * each
    if need > MEMORY_LIMIT:
        raise EmulatorError(
            f"the launch needs about {need >> 20} MB, more than {MEMORY_LIMIT >> 20}",
            file=run.program.file,
            line=run.program.kernel.line,
            why=f"{run.memory.total >> 20} MB of buffers and shadow memory, {ctas} resident CTAs of {each >> 20} MB",
            fix="fewer resident CTAs, a smaller problem, or no hazard detection",
        )


def _three(v, what):
    v = (v,) if isinstance(v, int) else tuple(int(x) for x in v)
    v = v + (1,) * (3 - len(v))
    if len(v) != 3 or any(x < 1 for x in v):
        raise EmulatorError(f"{what} {v}", why="three positive sizes are needed")
    return v


def _check_shape(program, grid, block, cluster):
    k = program.kernel
    threads = block[0] * block[1] * block[2]
    if threads > 1024:
        raise EmulatorError(f"{threads} threads a CTA", file=program.file, line=k.line, why="at most 1024")
    if k.reqntid and tuple((*k.reqntid, 1, 1)[:3]) != block:
        raise EmulatorError(
            f"block {block}, but the kernel says .reqntid {k.reqntid}", file=program.file, line=k.line, fix="launch it with that block"
        )
    if any(g % c for g, c in zip(grid, cluster)) or cluster[0] * cluster[1] * cluster[2] > 16:
        raise EmulatorError(
            f"grid {grid} in clusters of {cluster}",
            file=program.file,
            line=k.line,
            why="each grid size must be a multiple of the cluster's, and a cluster has at most 16 CTAs",
        )


def pack_params(run, params):
    """Parameter bytes in the kernel's layout; buffers and tensor maps get their addresses on the way."""
    program = run.program
    declared = program.kernel.params
    if len(params) != len(declared):
        raise EmulatorError(
            f"{program.kernel.name} takes {len(declared)} parameters, got {len(params)}",
            file=program.file,
            line=program.kernel.line,
            why="declared: " + ", ".join(f"{p.name} ({p.size} bytes)" for p in declared),
        )
    raw = bytearray(program.kernel.param_bytes)
    addresses = {}
    for p, value in zip(declared, params):
        if isinstance(value, TensorMap):
            if p.size != 128:
                raise EmulatorError(f"a tensor map for {p.name}, which has {p.size} bytes", file=program.file, line=program.kernel.line)
            base = _place(run, addresses, value.buffer, p.name)
            if value.nbytes > _array(value.buffer).nbytes:
                raise EmulatorError(
                    f"the tensor map of {p.name} spans {value.nbytes} bytes, its buffer has {_array(value.buffer).nbytes}",
                    file=program.file,
                    line=program.kernel.line,
                    why=f"dims {value.dims}, strides {value.strides_bytes}",
                )
            run.tensor_maps[p.offset] = value.descriptor(base)
            continue
        data = _param_bytes(run, addresses, value, p, program)
        if len(data) != p.size:
            raise EmulatorError(f"{p.name} takes {p.size} bytes, got {len(data)}", file=program.file, line=program.kernel.line)
        raw[p.offset : p.offset + p.size] = data
    return bytes(raw)


def _param_bytes(run, addresses, value, p, program):
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, Scalar):
        if value.dtype == "bf16":
            return struct.pack("<f", float(value.value))[2:]
        if value.dtype not in _PACK:
            raise EmulatorError(f"scalar of type {value.dtype} for {p.name}", fix="types: " + ", ".join(_PACK))
        try:
            return struct.pack("<" + _PACK[value.dtype], value.value)
        except (struct.error, OverflowError) as e:
            raise EmulatorError(f"parameter {p.name}: {value.value!r} is no {value.dtype}", why=str(e)) from None
    if isinstance(value, (list, tuple)):  # a struct: its pieces, each aligned to its own size
        out = b""
        for piece in value:
            data = _param_bytes(run, addresses, piece, p, program)
            align = len(data) if len(data) in (1, 2, 4, 8) else 1
            out += b"\0" * (-len(out) % align) + data
        return out + b"\0" * (p.size - len(out))
    if isinstance(value, Buffer):
        return struct.pack("<Q", _place(run, addresses, value, p.name))
    raise EmulatorError(f"parameter {p.name}: cannot pass a {type(value).__name__}", fix="pass bytes, Scalar, Buffer or TensorMap")


def _array(buffer):
    return buffer.array if isinstance(buffer, Buffer) else np.asarray(buffer)


def _place(run, addresses, buffer, name):
    """The global address of a buffer; the same object gets the same address."""
    buffer = buffer if isinstance(buffer, Buffer) else Buffer(buffer)
    key = id(buffer.array)
    if key not in addresses:
        addresses[key] = run.memory.add_buffer(buffer, name)
    return addresses[key]


__all__ = ["Buffer", "Scalar", "TensorMap", "decode_map", "launch"]
