"""How many registers of a thread the tiles of a software-pipelined loop need at once, for given stages and order.

A version of a tile is alive from the operation that computes it to its last reader, which may be an iteration later; what an MMA reads or
writes is in use until the MMA is complete, that is until the first operation behind it that waits for it or for a later one (they
finish in order), or to the end of the step. Versions that share a place are never alive together, so a place counts once. An elementwise
operation frees its operands as it fills its result. Row vectors, addresses and counters are in `OTHER_REGISTERS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ir import tile
from ..ir.tile import space_of

# beside the tiles: as attn-to-tile counts; 208 of tiles and no more fit a backward at head dim 128 in 240 registers (ptxas serialises
# its MMAs at 224)
OTHER_REGISTERS = 32
# Addresses of what a loop writes to shared memory, and what else overlap costs where all warpgroups meet in each iteration. H200, backward
# with two such tiles: at head dim 96 schedules that need 200 and 184 registers for tiles compile without loss, and are 26 and 12 % slower
# than one without overlap, which needs 176; at 64 one of 176 is 2 to 6 % slower than one of 144.
REGISTERS_A_WRITE = 28


MAP_COLUMNS = 32  # that a map takes of tensor memory, or of column values in shared memory, at a time


# Functions of one instruction; others take several, whose values wait for each other (tanh: a power of 2, a sum, a quotient, a difference).
_OF_ONE_STEP = {"math.exp2", "math.log2", "math.fma", "math.absf", "math.sqrt", "math.rsqrt"}


def has_long_function(op) -> bool:
    """Whether a map has a function of several instructions."""
    names = {inner.operation.name for inner in op.body.blocks[0].operations}
    return any(name.startswith("math.") for name in names - _OF_ONE_STEP)


# of a thread while an element of global memory comes: the number, its address, and the offset that the next one's follows from
REGISTERS_A_LOAD = 5
FEWEST_COLUMNS = 8


def columns_at_a_time(op, registers: int, most: int = MAP_COLUMNS) -> int:
    """Of a map, a row a thread, that has so many registers: half as many where a function has several steps, a quarter where there are two
    results (a soft cap's backward has 8 bytes on the stack with half as many at head dim 128, with all at 96), and fewer where each element
    has numbers of its own in global memory, which need room beside the row of results, and with each what the map reads elsewhere."""
    most = most // 4 if isinstance(op, tile.MapBothOp) else most // 2 if has_long_function(op) else most
    *_, row, column = op.body.blocks[0].arguments
    depends, loads = {row: {row}, column: {column}}, 0
    for inner in op.body.blocks[0].operations:
        found = set().union(*(depends.get(value, ()) for value in inner.operation.operands))
        depends.update((result, found) for result in inner.operation.results)
        loads += isinstance(inner, tile.LoadElementOp) and len(found) == 2
    held = op.out.type.shape[1] * op.out.type.element_type.width // 32 if space_of(op.out.type) == "reg" else 0
    a_column = REGISTERS_A_LOAD * loads + sum(v.type.element_type.width // 32 for v in _elsewhere(op.inputs))
    while loads and most > FEWEST_COLUMNS and most * a_column > registers - OTHER_REGISTERS - held:
        most //= 2
    return most


def _elsewhere(values) -> list:
    return [v for v in values if space_of(v.type) in ("tmem", "smem")]


def registers_passing(op) -> int:
    """Registers that a map holds for a few columns of what it reads and writes elsewhere, a row a thread."""
    if not isinstance(op, tile.MapOp) or op.cond is not None:
        return 0
    return sum(MAP_COLUMNS * v.type.element_type.width // 32 for v in _elsewhere([*op.inputs, *op.operation.results]))


@dataclass(frozen=True)
class Version:
    """What operation `writer` puts into `place`, `registers` a thread; `readers`: (operation, iterations later)."""

    place: object
    registers: int
    writer: int
    readers: tuple[tuple[int, int], ...]
    copied: bool = False  # made at the end of the writer's step


def most_alive(ops: Sequence, edges: Sequence, versions: Sequence[Version], stages: Sequence[int], order: Sequence[int],
               passing: Mapping[int, int] | None = None) -> int:
    """Registers of tiles, where it is most. `order`: the operations as a step issues them; `passing`: what an operation holds by itself."""
    passing = passing or {}
    at = {i: n for n, i in enumerate(order)}
    complete = _completions(ops, edges, stages, at)
    count = len(order)
    alive: dict = {}  # place -> (registers, positions of a step behind which it is alive)
    for v in versions:
        start = stages[v.writer] * count + (count - 1 if v.copied else at[v.writer])
        ends = [(stages[r] + d) * count + complete.get(r, at[r]) for r, d in v.readers if r in at]
        ends.append(stages[v.writer] * count + complete.get(v.writer, at[v.writer]))
        registers, positions = alive.setdefault(v.place, (v.registers, set()))
        positions.update(t % count for t in range(start, min(max(ends), start + count)))
    held = [sum(registers for registers, positions in alive.values() if p in positions) for p in range(count)]
    return max((registers + passing.get(order[p], 0) for p, registers in enumerate(held)), default=0)


def _completions(ops, edges, stages, at) -> dict[int, int]:
    """MMA -> the position behind which it is known to be complete."""
    waits = []  # (position of the waiting operation, position of the MMA)
    for e in edges:
        same_step = e.src in at and e.dst in at and stages[e.dst] + e.distance == stages[e.src]
        if same_step and isinstance(ops[e.src], tile.MmaOp) and e.ordered and not e.from_issue and at[e.dst] > at[e.src]:
            waits.append((at[e.dst], at[e.src]))
    found = {}
    for i in at:
        if isinstance(ops[i], tile.MmaOp):
            found[i] = min((p for p, mma in waits if mma >= at[i]), default=len(at))
    return found
