"""Matrix operands in shared memory: descriptors of wgmma and tcgen05 (PTX ISA 9.7.15.5 and 9.7.16.4) to element indices."""

import functools

import numpy as np

# (bytes of one swizzle row, mask of the XOR) by swizzle span
_SPAN = {0: (16, 0), 32: (32, 1), 64: (64, 3), 128: (128, 7)}


def wgmma_fields(desc):
    """(start, leading, stride, swizzle bytes) of a wgmma descriptor."""
    swizzle = (0, 128, 64, 32)[desc >> 62 & 3]
    return (desc & 0x3FFF) << 4, (desc >> 16 & 0x3FFF) << 4, (desc >> 32 & 0x3FFF) << 4, swizzle


def tcgen05_fields(desc):
    """The same for a tcgen05 descriptor (three swizzle bits); None for layouts that are not modelled."""
    swizzle = {0: 0, 2: 128, 4: 64, 6: 32}.get(desc >> 61 & 7)
    return None if swizzle is None else ((desc & 0x3FFF) << 4, (desc >> 16 & 0x3FFF) << 4, (desc >> 32 & 0x3FFF) << 4, swizzle)


@functools.lru_cache(maxsize=8192)
def element_index(start, leading, stride, swizzle, rows, depth, k_major, first_row=0):
    """(indices of 16-bit elements [rows, depth], 16-byte pieces they cover) in a CTA's shared window.

    K-major: the depth is contiguous; 8 rows of one swizzle span form an atom, atoms follow at `stride`. MN-major: the rows are
    contiguous in a span, spans follow at `leading`, groups of 8 along the depth at `stride`. Without swizzle, 8x8 core
    matrices of 128 bytes, at `stride` along the rows and `leading` along the depth for K-major, the reverse for MN-major.
    """
    r = np.arange(first_row, first_row + rows, dtype=np.int64)[:, None]
    k = np.arange(depth, dtype=np.int64)[None, :]
    span, mask = _SPAN[swizzle]
    if k_major:
        if swizzle:
            a = start + r // 8 * stride + r % 8 * span + 2 * k
        else:
            a = start + r // 8 * stride + k // 8 * leading + r % 8 * 16 + 2 * (k % 8)
    else:
        per = span // 2
        if swizzle:
            a = start + r // per * leading + k // 8 * stride + k % 8 * span + 2 * (r % per)
        else:
            a = start + r // 8 * stride + k // 8 * leading + k % 8 * 16 + 2 * (r % 8)
    a = a ^ (a >> 3 & mask << 4)
    chunks = np.unique(a >> 4)
    index = a >> 1
    index.setflags(write=False)
    chunks.setflags(write=False)
    return index, chunks


def to_float(u2, is_bf16):
    """16-bit elements to float32."""
    if is_bf16:
        return (u2.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return u2.view(np.float16).astype(np.float32)


def product(a, b):
    """a b^T of one MMA in float64, where products are exact; the caller adds the accumulator and rounds once, to float32. So an element
    does not depend on its place in the tile, which decides the order of BLAS's float32 sums; nor does a tensor core's."""
    return a.astype(np.float64) @ b.T.astype(np.float64)
