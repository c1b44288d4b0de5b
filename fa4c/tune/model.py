"""How long a kernel will take, in clocks: enough to leave out configurations that cannot win.

One block costs its MMAs, or the shared memory they read if that is slower, and its elementwise work, one after the other: on an H200 that
is within 10 % of what this compiler's kernels took (bench/results, head dims 64 to 256; head dim 96 took 15 % more). Two warpgroups
overlap the two in principle, but the tensor cores do not sustain their rate meanwhile. A tile costs a start and an end beside; SMs take
tiles in rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# A warp's instructions in the steady-state loop, for each element of a score that a lane holds: 445 for 64 of them (docs/hopper.md).
_INSTRUCTIONS_AN_ELEMENT = 7
_INSTRUCTIONS_A_SPECIAL = 4  # tanh: two special functions and what is around them
_BLOCK_CLOCKS = 150  # waits, reductions over a quad, scalar work; a guess
_TILE_CLOCKS = 3200  # first copies, last stores: 3.8 us for a CTA of its own, about 2 us less where it walks on (H200)


@dataclass(frozen=True)
class Blocks:
    """A block's rows and columns, and copies of what is loaded for each block: a configuration of the target's data, without MLIR."""

    block_m: int
    block_n: int
    buffers: int


def tile_clocks(problem: dict, target, shape: Blocks, blocks: float) -> float:
    """One CTA's time for one tile that visits so many blocks."""
    return _TILE_CLOCKS + blocks * block_clocks(problem, target, shape)


def block_clocks(problem: dict, target, shape: Blocks) -> float:
    """One block of a tile, all warpgroups of its CTA together. `problem`: as in the target's data."""
    m, n = shape.block_m, shape.block_n
    warpgroups = m / target.mma.m
    tensor = 2 * m * n * sum(problem["column_tiles"]) / target.mma_flops
    read = 2 * (n * sum(problem["column_tiles"]) * warpgroups + m * sum(problem["row_tiles"]))
    elements = m * n
    special = elements * (problem["softmaxes"] + problem["special"]) / target.mufu
    instructions = _INSTRUCTIONS_AN_ELEMENT * problem["softmaxes"] + _INSTRUCTIONS_A_SPECIAL * problem["special"]
    issue = elements * instructions / (32 * target.warps_per_warpgroup)
    return max(tensor, read / target.smem_bytes_per_clk) + max(0.9 * special, issue) + _BLOCK_CLOCKS


def clocks(problem: dict, target, shape: Blocks, sizes: dict) -> float:
    """Of one call. Tiles of unequal length are taken longest first, which ends about half an average tile after the even share."""
    m, n, pairs = sizes["m"], sizes["n"], sizes["b"] * sizes["hq"]
    rows = math.ceil(m / shape.block_m)
    visits = [visited(problem["mask"], shape, row, m, n) for row in range(rows)]
    each = [tile_clocks(problem, target, shape, count) for count in visits]
    total, longest = pairs * sum(each), max(each)
    if min(visits) == max(visits):
        return math.ceil(pairs * rows / target.num_sms) * longest
    return max(longest, total / target.num_sms + total / (pairs * rows) / 2)


def visited(mask: str, shape: Blocks, row: int, m: int, n: int) -> int:
    """Key blocks of one tile. A mask that bounds keys from above or below is taken as causal, one of both sides as a window of 512."""
    last = min(m, (row + 1) * shape.block_m) - 1 + n - m
    first = row * shape.block_m + n - m
    lo, hi = {"all": (0, n), "any": (0, n), "up to a key": (0, last + 1), "from a key on": (first, n)}.get(mask, (first - 511, last + 1))
    lo, hi = max(lo, 0), min(hi, n)
    return max(0, math.ceil(hi / shape.block_n) - lo // shape.block_n)
