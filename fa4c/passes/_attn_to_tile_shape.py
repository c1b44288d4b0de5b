"""Which block shape `attn-to-tile` takes: rows of queries and columns of keys that one CTA works on at a time.

Both sides cost once a block: loading K and V is paid for block_m rows, row statistics and waits for block_n columns. So the shape
minimises 1 / block_m + 1 / block_n among those that fit registers and shared memory; of equals the wider one, with fewer blocks.

A shape may be less by that and fit, but for further copies of what is loaded for each block. `tile-pipeline` leaves out copies where
room is short; its model says whether such a shape is faster (`_attn_to_tile_trial.py`): for a copy that is left out MMAs wait.
"""

import itertools
from dataclasses import dataclass, replace

from ..ir.diagnostics import op_diagnostic
from .register_pressure import OTHER_REGISTERS
from .shared_room import BARRIER_BYTES, NARROW_PART, PART, PART_COPIES

# A 128x128 causal block on the diagonal is half wasted; wider ones waste more than they save: 128x192 is 5 to 17 % slower at head dim 64
# from 4k keys on; 128x176 at 128, with a full mask, is up to 24 % slower and 1 % faster at best (H200, bench/NOTES.md)
_WIDEST = 128
_COLUMN_STEP = 16
_REGISTERS_PER_FURTHER_SOFTMAX = 8  # two rows a thread: maximum, row sum, factor, and room
_BACKWARD_HALVES = 5  # 16-bit units of S and dP, in f32, and what one of them is cast to
_COMPUTE_WARPGROUPS = (1, 2, 3)
_COPYING_WARPGROUPS = 1  # of kernels of one block of columns or none, which memory bandwidth bounds: small CTAs, several on an SM
_ROW_BLOCKS = (1, 2)
_PRODUCER_REGISTERS = 24  # of a thread of the warpgroup that loads, as CUTLASS-style producers have
_DEFAULT_BUFFERS = 2  # one is read while the other is filled
STREAMED_BUFFERS = 2  # copies in shared memory of what an MMA sums over rows
_SMALLEST_BLOCK = 32  # columns of scores that a backward without a sum over CTAs takes
_MOST_ADDED = 2  # copies of a sum's part that is being added to memory: one is written while the other is read


@dataclass(frozen=True)
class Demand:
    """What a function needs, for any block shape. Widths are padded head dims, in 16-bit elements."""

    row_tiles: tuple[int, ...]  # widths of tiles with block_m rows, loaded once
    column_tiles: tuple[int, ...]  # widths of tiles with block_n rows, loaded for each block
    accumulators: tuple[int, ...]  # widths of f32 tiles with block_m rows that live through the loop
    live_halves: int  # 16-bit units of scores alive at once, an f32 counting two
    softmaxes: int
    streamed: tuple[int, ...] = ()  # widths of f32 tiles with block_n rows (in pairs their columns in tensor memory), made of each block
    products: int = 1  # GEMMs that make scores
    column_values: int = 0  # vectors of which maps of scores take one value a column from memory
    ctas: int = 1  # that form a product together: each has half of what it multiplies by, and of a sum over rows half of the rows
    in_pairs: "Demand | None" = None  # what it would be, were two to do so
    most_columns: int = 0  # that there are where the kernel runs (`attn.when`); 0: no limit


@dataclass(frozen=True)
class Shape:
    """A block: rows of the scores, columns of them, and copies in shared memory of what is loaded for each block of columns."""

    block_m: int
    block_n: int
    buffers: int


def choose_shape(op, demand: Demand, target, *, block_m: int = 0, block_n: int = 0, buffers: int = 0, clocks) -> Shape:
    """The cheapest shape that fits; 0 means free. Raises `Diagnostic` at `op`, with the numbers, where nothing does.

    `clocks`: shape -> clocks of a score by the model, infinite where the schedule cannot do with fewer copies. It decides between what is
    cheapest by the formula, and shapes that would be cheaper still, but have no room for all copies.
    """
    _check_options(op, target, block_m, block_n, buffers)
    step, widest = padding_step(target, demand.ctas), min(_WIDEST, target.mma.n_max)
    one_block = is_one_block(demand, target)
    groups = _groups(target) if demand.column_tiles and not one_block else (_COPYING_WARPGROUPS,)
    rows = [block_m] if block_m else [target.mma.m * count for count in groups]
    if one_block:
        whole = padding_step(target, 2 if target.mma.pair_m else 1)  # so that a pair may share it
        widest = -(-demand.most_columns // whole) * whole
    columns = [block_n] if block_n else list(range(step, widest + 1, step))
    if demand.streamed and target.mma.accumulator == "tmem":
        rows, columns = [block_m or target.mma.m], [block_n or target.mma.m]  # see `problem_with`
    copies = buffers or (1 if one_block else _DEFAULT_BUFFERS)
    candidates = [Shape(m, n, copies) for m in rows for n in columns]
    fitting = [shape for shape in candidates if problem_with(demand, target, shape) == ""]
    best = min(fitting, key=_cost, default=None)
    contenders = [best] if fitting else []
    if not buffers and not one_block:
        contenders += [s for s in _short_of_copies(demand, target, candidates) if best is None or _cost(s) < _cost(best)]
    if not contenders:
        smallest = min(candidates, key=lambda s: s.block_m * s.block_n)
        in_pairs = demand.in_pairs is not None and any(problem_with(demand.in_pairs, target, shape) == "" for shape in candidates)
        raise op_diagnostic(
            op,
            f"does not fit with block_m = {smallest.block_m}, block_n = {smallest.block_n}, buffers = {smallest.buffers}",
            why=problem_with(demand, target, smallest),
            fix="choose smaller blocks, fewer buffers, or fewer results in one function"
            + "; or form products in pairs of CTAs (attn-to-tile{alike=2}, tile-split-2cta{ctas=2})" * in_pairs,
        )
    return min(contenders, key=clocks) if len(contenders) > 1 else contenders[0]


def _cost(shape: Shape) -> tuple[float, int]:
    return 1 / shape.block_m + 1 / shape.block_n, -shape.block_n


def _short_of_copies(demand: Demand, target, shapes: list[Shape]) -> list[Shape]:
    """Those that fit with one copy of a tile, but not with all; of as many rows and further copies, the widest. Where MMAs sum in registers
    shapes are measured (`fa4c tune`), with as many copies of all tiles; a pair's halves have room.
    """
    if target.mma.accumulator == "reg" or demand.ctas > 1:
        return []
    widest: dict[tuple[int, int], Shape] = {}
    for shape in sorted(shapes, key=lambda s: s.block_n):
        single = replace(shape, buffers=1)
        if problem_with(demand, target, shape) and not problem_with(demand, target, single):
            room = target.smem_bytes - _smem_beside_tmem(demand, single)
            further = itertools.accumulate(sorted(2 * shape.block_n * width for width in demand.column_tiles))
            widest[shape.block_m, sum(size <= room for size in further)] = shape
    return list(widest.values())


def is_one_block(demand: Demand, target) -> bool:
    """Whether one block takes all columns that there are. Rows are then read once, and memory bandwidth bounds the kernel."""
    return 0 < demand.most_columns <= min(_WIDEST, target.mma.n_max)


def padding_step(target, ctas: int) -> int:
    """Sizes of tiles are multiples of it: whole steps of operand A's depth, and of the columns that each of `ctas` CTAs multiplies by."""
    return target.mma.k if ctas == 1 else max(target.mma.k, ctas * target.mma.n_step)


def _check_options(op, target, block_m, block_n, buffers) -> None:
    most = target.mma.m * max(_groups(target))
    if block_m < 0 or block_m % target.mma.m or block_m > most:
        raise op_diagnostic(
            op,
            f"cannot have block_m = {block_m}",
            why=f"each of 1 to {max(_groups(target))} warpgroups computes {target.mma.m} rows",
            fix=f"take a multiple of {target.mma.m} up to {most}, or 0 to let the pass choose",
        )
    if block_n < 0 or block_n % _COLUMN_STEP or block_n > target.mma.n_max:
        raise op_diagnostic(
            op,
            f"cannot have block_n = {block_n}",
            why=f"P is the next MMA's operand A in steps of {_COLUMN_STEP} columns, and one MMA has at most {target.mma.n_max}",
            fix=f"take a multiple of {_COLUMN_STEP} up to {target.mma.n_max}, or 0 to let the pass choose",
        )
    if buffers < 0:
        raise op_diagnostic(
            op,
            f"cannot have buffers = {buffers}",
            why="it counts the rotating copies of each K and V tile",
            fix="take 1 or more, or 0 to let the pass choose",
        )


def _groups(target) -> tuple[int, ...]:
    """Compute warpgroups: as many as rows of an MMA fit registers, or row blocks tensor memory's halves."""
    return _COMPUTE_WARPGROUPS if target.mma.accumulator == "reg" else _ROW_BLOCKS


def problem_with(demand: Demand, target, shape: Shape) -> str:
    """What does not fit, in numbers; "" if all does."""
    warpgroups = shape.block_m // target.mma.m
    registers, budget = _registers(demand, target, shape), register_budget(target, warpgroups)
    if registers > budget:
        return f"a thread would need about {registers} registers, but {budget} are there with {warpgroups} compute warpgroups"
    columns = warpgroups * _columns(demand, shape, target.tmem_step)
    if target.mma.accumulator == "tmem" and columns > target.tmem_columns:
        return f"it needs {columns} columns of tensor memory, but there are {target.tmem_columns}"
    if demand.streamed and target.mma.accumulator == "tmem" and not shape.block_m == shape.block_n == target.mma.m:
        return f"an MMA that sums over rows has block_n rows, and all tiles of tensor memory have {target.mma.m}"
    if demand.streamed and shape.block_n not in (target.mma.m, target.mma.m * warpgroups):
        return f"an MMA that sums over rows has block_n rows: {target.mma.m}, or {target.mma.m} for each of {warpgroups} warpgroups"
    smem = _smem(demand, shape) if target.mma.accumulator == "reg" else _smem_beside_tmem(demand, shape)
    if smem > target.smem_bytes:
        return f"it needs {smem} bytes of shared memory, but a CTA has {target.smem_bytes}"
    return ""


def copies_of_added(demand: Demand, target, shape: Shape) -> int:
    """Copies in shared memory of each part that is added to memory: as many as fit, up to two; sums in tensor memory go by parts.

    Where one copy leaves room for the results, so that a CTA walks through tiles (`tile-persistent`), and two do not, it is one: a second
    one took 3 % at 4k and 6 % at 1k, head dim 64, full mask (H200).
    """
    if target.mma.accumulator != "reg":
        return 1
    one = 4 * shape.block_n * sum(demand.streamed)
    rows = 4 * shape.buffers * shape.block_n * demand.column_values
    needs = {n: _smem(demand, shape) + rows + (n - 1) * one for n in range(1, _MOST_ADDED + 1)}
    fitting = [n for n, size in needs.items() if size <= target.smem_bytes]
    walking = [n for n in fitting if needs[n] + 2 * shape.block_m * sum(demand.accumulators) <= target.smem_bytes]
    return max(walking or fitting or [1])


def _registers(demand: Demand, target, shape: Shape) -> int:
    """Of a thread: tiles, and `OTHER_REGISTERS` for addresses, loop counters and row statistics, as many as FA-4's 192x128 kernel for head
    dim 64 has of 160 beside its tiles, without a spill.
    """
    threads = 32 * target.warps_per_warpgroup
    scores = -(-target.mma.m * shape.block_n * demand.live_halves // (2 * threads))
    streamed = [width * shape.block_n // (threads * shape.block_m // target.mma.m) for width in demand.streamed]
    in_registers = target.mma.accumulator == "reg"
    accumulators = target.mma.m * sum(demand.accumulators) if in_registers else 0
    if demand.streamed and not in_registers:
        scores -= target.mma.m * shape.block_n // threads  # of two products one is read from tensor memory a few columns at a time
    elif demand.column_values and not in_registers:
        scores += shape.block_n  # a thread has a whole row, and with it all column values
    return (
        max([scores, *streamed])
        + accumulators // threads
        + OTHER_REGISTERS
        + _REGISTERS_PER_FURTHER_SOFTMAX * max(0, demand.softmaxes - 1)
    )


def least_columns(target, streamed) -> int:
    """Columns that a block of scores has at least: the rows of an MMA where a sum over CTAs is made of them (`streamed`), else 32."""
    return target.mma.m if streamed else _SMALLEST_BLOCK


def backward_registers(target, widths, streamed) -> int:
    """Registers of a thread for accumulators of these widths beside the scores of a backward (S and dP in f32, one of them in 16 bits).

    Of as many columns as `least_columns` says.
    """
    columns = least_columns(target, streamed)
    threads = 32 * target.warps_per_warpgroup
    in_tmem = target.mma.accumulator == "tmem" and bool(streamed)  # then one product is read from there a few columns at a time
    scores = -(-target.mma.m * columns * (_BACKWARD_HALVES - 2 * in_tmem) // (2 * threads))
    transient = max([scores, *(target.mma.m * width // (2 * threads) for width in streamed)])
    held = sum(target.mma.m * width // threads for width in widths) if target.mma.accumulator == "reg" else 0
    return held + transient + OTHER_REGISTERS


def backward_columns(target, widths, streamed, ctas: int = 1) -> int:
    """Columns of tensor memory for accumulators of these widths beside the scores of a backward, in blocks of 32 columns or more; of
    as many as an MMA has rows where a sum over CTAs is made of them (`streamed`), which takes the place of one. In pairs (`ctas` = 2) a CTA
    has half of that sum.
    """
    if target.mma.accumulator != "tmem":
        return 0
    if not streamed:
        return sum(widths) + 2 * _SMALLEST_BLOCK
    if ctas == 1:
        return sum(widths) + 2 * max(target.mma.m, *streamed)
    return sum(widths) + max(_score_columns(target.mma.m, 2, ctas), *(width // 2 for width in streamed))


def _score_columns(block_n: int, products: int, ctas: int) -> int:
    """Columns of f32 scores where a sum over CTAs is made of them. Side by side; in a pair, one product may lie over the right half of
    another that has become an operand of 16 bits, and then waits for that. One CTA, whose sum is twice as wide, would have to wait for all
    elementwise work, and reads more of shared memory than its products take: kernels apart are as fast (head dims 192, 128: 4352 clocks
    of shared memory and waits, against 2048 and 2560 clocks of products).
    """
    return block_n * products if ctas == 1 else block_n * (products - 1) + block_n // 2


def register_budget(target, warpgroups: int) -> int:
    """Registers of a compute thread once the producer warpgroup has given up its own."""
    threads = 32 * target.warps_per_warpgroup
    step = target.register_step
    share = (target.registers // threads - _PRODUCER_REGISTERS) // warpgroups
    return min(share // step * step, target.max_registers_per_thread // step * step - step)


def _columns(demand: Demand, shape: Shape, step: int) -> int:
    """Tensor memory of a row block: f32 scores, over which 16-bit operands may lie once they are read, and accumulators."""
    scores = [shape.block_n] * demand.products
    if demand.streamed:
        scores = [_score_columns(shape.block_n, demand.products, demand.ctas)]
    widths = scores + list(demand.accumulators)
    return sum(-(-width // step) * step for width in widths) if step else 0


def _smem(demand: Demand, shape: Shape) -> int:
    """The output tiles reuse the rows' ones or the rotating copies, which are free by then."""
    streamed = 2 * STREAMED_BUFFERS * shape.block_m * shape.block_n * bool(demand.streamed) + 4 * shape.block_n * sum(demand.streamed)
    tiles = 2 * shape.block_m * sum(demand.row_tiles) + 2 * shape.buffers * shape.block_n * sum(demand.column_tiles)
    return tiles + streamed + BARRIER_BYTES


def _smem_beside_tmem(demand: Demand, shape: Shape) -> int:
    """A sum over rows leaves part by part; what it sums has one copy. `tile-pipeline` takes copies of a loaded tile
    that its schedule does not need away where room is short: all but one of the first. In a pair it narrows the parts, and lets tiles of
    one size take turns.
    """
    if not demand.streamed:
        return _smem(demand, shape)
    widths = sorted(demand.column_tiles, reverse=True)
    if demand.ctas == 1:
        copies = [shape.buffers] + [1] * (len(widths) - 1)
        columns = sum(count * width for count, width in zip(copies, widths, strict=False))
    else:
        columns = sum(set(widths))
    streamed = 2 * shape.block_m * shape.block_n + 4 * PART_COPIES * (PART if demand.ctas == 1 else NARROW_PART) * shape.block_n
    return 2 * shape.block_m * sum(demand.row_tiles) + 2 * shape.block_n * columns + streamed + BARRIER_BYTES
