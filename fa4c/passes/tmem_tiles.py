"""Tiles in tensor memory of one kernel: which values are one tile, who accesses it, and from when to when each of its contents is needed.

Values formed in each other's place are one tile: an accumulator through loops, MMAs and maps that scale it. Time is the total order in
which a schedule runs operations: what stands before a loop, then steps, in each the operations by `order`, then what stands behind.
Roles keep that order among each other where a dependence says so, which is why a reuse that agrees with it can always be made one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir import tile
from ..ir.tile import space_of
from ..ir.value_names import name_of
from .schedule import body_slots

_ITERATIONS = 4  # more than any stage distance plus one


@dataclass
class TmemTile:
    """One tile; `values` in program order."""

    values: list
    spans: list = field(default_factory=list)  # (first, last) time of each content: written, last read
    accesses: list = field(default_factory=list)  # of each content, [Access]

    @property
    def kind(self):
        return self.values[0].type

    @property
    def name(self) -> str:
        return next((name for name in map(name_of, self.values) if name), "a tile")

    @property
    def words(self) -> int:
        return words(self.kind)


@dataclass(frozen=True)
class Access:
    """`op` touches a tile at `time`, for iteration `iteration` of its loop; `fresh`: it writes without reading what was there."""

    op: object
    time: int
    iteration: int
    writes: bool
    fresh: bool


def words(kind) -> int:
    """32-bit columns that a tile takes."""
    return -(-kind.shape[1] * kind.element_type.width // 32)


def find(kernel) -> list[TmemTile]:
    """The tiles of a `tile.kernel`, their contents' life spans filled in."""
    of = tiles_by_value(kernel)
    clock = _Clock(of)
    clock.block(kernel.body.blocks[0])
    clock.close()
    return list({id(t): t for t in of.values()}.values())


def tiles_by_value(kernel) -> dict:
    """value in tensor memory -> its tile, spans not yet known."""
    members = _Members(kernel.body.blocks[0])
    tiles = {root: TmemTile(values) for root, values in members.groups().items()}
    return {value: tiles[members.find(value)] for value in members.parent}


def overlap(a: TmemTile, b: TmemTile) -> bool:
    """Whether any contents of two tiles are needed at one time."""
    return any(first <= other_last and other_first <= last for first, last in a.spans for other_first, other_last in b.spans)


class _Members:
    """Union-find over the values in tensor memory."""

    def __init__(self, block):
        self.parent = {}
        self.visit(block)

    def visit(self, block) -> None:
        for op in block.operations:
            for value in op.operation.results:
                self._add(value)
            if op.operation.name == "scf.for":
                body = op.regions[0].blocks[0]
                carried = list(body.arguments)[1:]
                for value in carried:
                    self._add(value)
                self.visit(body)
                yields = list(body.operations)[-1].operation.operands
                for group in zip(carried, list(op.operation.operands)[3:], yields, op.operation.results, strict=True):
                    self._join(*group)
            elif op.operation.name == "tile.walk":
                self.visit(op.regions[0].blocks[0])
            else:
                start = starts_from(op)
                if start is not None:
                    self._join(op.operation.results[0], start)

    def _add(self, value) -> None:
        if space_of(value.type) == "tmem":
            self.parent[value] = value

    def _join(self, first, *others) -> None:
        for other in others:
            if first in self.parent and other in self.parent:
                self.parent[self.find(other)] = self.find(first)

    def find(self, value):
        while self.parent[value] != value:
            value = self.parent[value]
        return value

    def groups(self) -> dict:
        found: dict = {}
        for value in self.parent:
            found.setdefault(self.find(value), []).append(value)
        return found


def starts_from(op):
    """The tile in tensor memory in whose place an operation forms its result there; None if it writes all of it afresh."""
    if isinstance(op, tile.MmaOp):
        return op.acc if space_of(op.out.type) == "tmem" else None
    if isinstance(op, tile.MapOp) and space_of(op.out.type) == "tmem":
        return next((v for v in op.inputs if space_of(v.type) == "tmem" and v.type == op.out.type), None)
    return None


def events(block, iteration: int = 0):
    """(operation, iteration, "run") in schedule order; loops and walks also give themselves, "enter" and "leave"."""
    for op in block.operations:
        name = op.operation.name
        if name == "scf.for":
            yield op, iteration, "enter"
            yield from _loop_events(op)
            yield op, iteration, "leave"
        elif name == "tile.walk":
            for turn in range(2):  # what one tile of the grid leaves, the next one overwrites
                yield from events(op.regions[0].blocks[0], turn)
        elif name != "scf.yield":
            yield op, iteration, "run"


def _loop_events(loop):
    body = loop.regions[0].blocks[0]
    if any(op.operation.name == "scf.for" for op in body.operations):
        for turn in range(2):
            yield from events(body, turn)
        return
    slots = body_slots(loop)
    others = [op for op in body.operations if not isinstance(op, tile.Scheduled) and op.operation.name != "scf.yield"]
    last = max((slot.stage for slot in slots), default=0)
    for k in range(_ITERATIONS + last):
        for op in others if k < _ITERATIONS else []:
            yield op, k, "run"
        for slot in slots:
            if 0 <= k - slot.stage < _ITERATIONS:
                yield slot.op, k - slot.stage, "run"


def touched(op, of: dict) -> list[tuple]:
    """(tile, whether it is written, whether what was there is read) for each tile that an operation accesses."""
    read = {id(of[v]): of[v] for v in op.operation.operands if v in of}
    written = {id(of[v]): of[v] for v in op.operation.results if v in of}
    return [(t, key in written, key in read) for key, t in {**read, **written}.items()]


class _Clock:
    """Runs the program in schedule order and notes each access."""

    def __init__(self, of):
        self.of, self.time = of, 0
        self.open: dict = {}  # id of tile -> (tile, accesses of its present content)

    def block(self, block) -> None:
        for op, iteration, what in events(block):
            self.time += 1
            for t, writes, reads in touched(op, self.of) if what == "run" else []:
                fresh = writes and not reads
                if fresh:
                    self._end(t)
                self.open.setdefault(id(t), (t, []))[1].append(Access(op, self.time, iteration, writes, fresh))

    def _end(self, t) -> None:
        _, accesses = self.open.pop(id(t), (None, []))
        if accesses:
            t.spans.append((accesses[0].time, accesses[-1].time))
            t.accesses.append(accesses)

    def close(self) -> None:
        for t, _ in list(self.open.values()):
            self._end(t)


def block_of(kind) -> int:
    """Row blocks of a tile: 128 lanes each."""
    return max(1, kind.shape[0] // 128)

