"""TMA descriptors: what they can describe, and their 128 bytes.

`problem` tells why a tensor cannot be described (then it is copied), `strides` gives what the descriptor holds, `encode` writes the
bytes in Python by the field table of the hardware format. On a GPU the driver writes them (`cuda.py`); the GPU suite compares the two.
The address is the first 8 bytes, so one encoded template serves every tensor of the same shape and strides.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

ITEMSIZE = {"bf16": 2, "fp16": 2, "f32": 4}
_FORMAT = {"fp16": 6, "f32": 7, "bf16": 10}
_SWIZZLE = {0: 0, 32: 1, 64: 2, 128: 3}
_L2_128B = 2
MAX_STRIDE = 1 << 40  # bytes, exclusive
BASE_ALIGN = 16


@dataclass(frozen=True)
class MapSpec:
    """One descriptor without its address. All innermost first: `shape` in elements, `strides` in bytes (of dims 1..), `box` in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


def problem(shape, strides, itemsize: int, zero_stride: bool = False) -> str | None:
    """Why TMA cannot describe a tensor with these sizes and strides (elements, innermost first), or None if it can. The base is apart.

    Strides of dimensions of size 1 are never followed, so they do not matter. Stride 0 (an expanded tensor) is fine only where the
    driver takes it (`zero_stride`).
    """
    if shape[0] > 1 and strides[0] != 1:
        return f"the inner stride is {strides[0]}, not 1"
    for size, stride in zip(shape[1:], strides[1:]):
        if size <= 1:
            continue
        if stride == 0 and not zero_stride:
            return "a dimension is expanded (stride 0)"
        if stride < 0 or stride * itemsize % 16:
            return f"a stride is {stride * itemsize} bytes, no multiple of 16"
        if stride * itemsize >= MAX_STRIDE:
            return f"a stride is {stride * itemsize} bytes, not below 2^40"
    return None


def spec(param: dict, layout, shape, strides) -> MapSpec:
    """The descriptor of `param` (a manifest's tensor_map) for a tensor with `shape` and `strides` (elements) in the order of `layout`."""
    order = [layout.index(dim["dim"]) for dim in param["dims"]]
    itemsize = ITEMSIZE[param["dtype"]]
    sizes = tuple(shape[k] for k in order)
    packed = _round16(sizes[0] * itemsize)
    steps = []
    for k, size in zip(order[1:], sizes[1:]):
        steps.append(strides[k] * itemsize if size > 1 else packed)  # a size-1 dimension gets a legal stride that nobody follows
        packed = max(packed, steps[-1])
    return MapSpec(param["dtype"], sizes, tuple(steps), tuple(param["box"]), param["swizzle"])


def encode(m: MapSpec, address: int = 0) -> bytes:
    """The 128 bytes. Raises `ValueError` where a field does not fit; bytes 64..127 are zero."""
    rank = len(m.shape)
    if not 1 <= rank <= 5 or address % BASE_ALIGN or any(s % 16 or not 0 <= s < MAX_STRIDE for s in m.strides):
        raise ValueError(f"TMA cannot describe rank {rank}, address {address:#x}, strides {m.strides}")
    if any(not 1 <= s <= 1 << 32 for s in m.shape) or any(not 1 <= b <= 256 for b in m.box):
        raise ValueError(f"TMA cannot describe the sizes {m.shape} or the box {m.box}")
    flags = (rank - 1) << 4 | _FORMAT[m.dtype] << 7 | _SWIZZLE[m.swizzle] << 13 | _L2_128B << 17
    units = [s >> 4 for s in m.strides] + [0] * (5 - rank)
    high = sum((u >> 32 & 15) << 4 * k for k, u in enumerate(units))
    sizes = [s - 1 for s in m.shape] + [0] * (5 - rank)
    box = [b - 1 for b in m.box] + [0] * (5 - rank)
    head = struct.pack("<QI4II5I", address, flags, *(u & 0xFFFFFFFF for u in units), high, *sizes)
    return head + bytes(3) + bytes(box) + b"\0" * (128 - len(head) - 8)


def decode(data: bytes) -> tuple[int, MapSpec]:
    """(address, MapSpec) of a descriptor, by the same table: what an emulator or a test reads back."""
    address, flags, s1, s2, s3, s4, high = struct.unpack_from("<QI4II", data)
    rank = (flags >> 4 & 7) + 1
    units = [low | (high >> 4 * k & 15) << 32 for k, low in enumerate((s1, s2, s3, s4))]
    return address, MapSpec(
        dtype={v: k for k, v in _FORMAT.items()}[flags >> 7 & 15],
        shape=tuple(s + 1 for s in struct.unpack_from("<5I", data, 32)[:rank]),
        strides=tuple(u << 4 for u in units[: rank - 1]),
        box=tuple(b + 1 for b in data[55 : 55 + rank]),
        swizzle={v: k for k, v in _SWIZZLE.items()}[flags >> 13 & 3],
    )


def _round16(n: int) -> int:
    return -(-n // 16) * 16
