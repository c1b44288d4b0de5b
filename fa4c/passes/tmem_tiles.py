"""Tiles in tensor memory of one kernel: which values are one tile, who accesses it, and from when to when each of its contents is needed.

Values formed in each other's place are one tile: an accumulator through loops, MMAs and maps that scale it. Time is the total order in
which a schedule runs operations: what stands before a loop, then steps, in each the operations by `order`, then what stands behind.
Roles keep that order among each other where a dependence says so, which is why a reuse that agrees with it can always be made one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir import tile
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import ir
from ..ir.tile import column_of, space_of
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
    """`op` touches a tile at `time`, for iteration `iteration` of the `run`-th run of a loop; `fresh`: it writes without reading what was
    there.
    """

    op: object
    time: int
    run: int
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


def events(block, iteration: int = 0, *, turns: int = 2, trips: int = _ITERATIONS):
    """(operation, iteration, "run") in schedule order; loops and walks also give themselves, "enter" and "leave".

    A loop that holds another one makes `turns` trips, an innermost one `trips`. In its first and last steps, where an operation of another
    stage runs and this one does not, it gives "skip".
    """
    for op in block.operations:
        name = op.operation.name
        if name == "scf.for":
            yield op, iteration, "enter"
            yield from _loop_events(op, turns, trips)
            yield op, iteration, "leave"
        elif name == "tile.walk":
            for turn in range(3):  # what one tile of the grid leaves, the next one overwrites
                yield from events(op.regions[0].blocks[0], turn, turns=turns, trips=trips)
        elif name != "scf.yield":
            yield op, iteration, "run"


def _loop_events(loop, turns: int, trips: int):
    body = loop.regions[0].blocks[0]
    if any(op.operation.name == "scf.for" for op in body.operations):
        for turn in range(turns):
            yield from events(body, turn, turns=turns, trips=trips)
        return
    slots = body_slots(loop)
    others = [op for op in body.operations if not isinstance(op, tile.Scheduled) and op.operation.name != "scf.yield"]
    last = max((slot.stage for slot in slots), default=0)
    for k in range(trips + last):
        for op in others if k < trips else []:
            yield op, k, "run"
        for slot in slots:
            yield slot.op, k - slot.stage, "run" if 0 <= k - slot.stage < trips else "skip"


def touched(op, of: dict) -> list[tuple]:
    """(tile, whether it is written, whether what was there is read) for each tile that an operation accesses."""
    read = {id(of[v]): of[v] for v in op.operation.operands if v in of}
    written = {id(of[v]): of[v] for v in op.operation.results if v in of}
    return [(t, key in written, key in read) for key, t in {**read, **written}.items()]


class _Clock:
    """Runs the program in schedule order and notes each access."""

    def __init__(self, of):
        self.of, self.time, self.run = of, 0, 0
        self.open: dict = {}  # id of tile -> (tile, accesses of its present content)

    def block(self, block) -> None:
        for op, iteration, what in events(block):
            self.time += 1
            self.run += what == "enter"
            for t, writes, reads in touched(op, self.of) if what == "run" else []:
                fresh = writes and not reads
                if fresh:
                    self._end(t)
                self.open.setdefault(id(t), (t, []))[1].append(Access(op, self.time, self.run, iteration, writes, fresh))

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


def conflict(a, b, target) -> bool:
    """Whether two tiles may not share columns: contents of both are needed at one time, or an MMA may still read one when another MMA
    writes the other, where MMAs need not finish in order.
    """
    if overlap(a, b):
        return True
    return not target.mma.in_order and (_read_late(a, b) or _read_late(b, a))


def _read_late(a, b) -> bool:
    """Whether an MMA may still read `a` when another MMA writes `b`: the last access to a content of `a`, then the first to one of `b`."""
    for accesses in a.accesses:
        last = accesses[-1]
        if isinstance(last.op, tile.MmaOp):
            following = [other[0] for other in b.accesses if other[0].time > last.time]
            if following and isinstance(following[0].op, tile.MmaOp):
                return True
    return False


def share(a: TmemTile, b: TmemTile) -> bool:
    """Whether two placed tiles have columns in common."""
    first, other = column_of(a.kind), column_of(b.kind)
    return first < other + b.words and other < first + a.words


def reuses(tiles: list[TmemTile]) -> dict:
    """For each operation in a loop that writes a tile afresh: who last touched what another tile left in these columns, as in `after`."""
    found: dict = {}
    for t in tiles:
        for other in tiles:
            if other is not t and share(t, other):
                for first, users in overwrites(t, other):
                    wanted = found.setdefault(first.op, {})
                    wanted.update({order: min(before, wanted.get(order, before)) for order, before in users.items()})
    return {op: [n for order in sorted(pairs) for n in (order, pairs[order])] for op, pairs in found.items() if pairs}


def overwrites(t: TmemTile, other: TmemTile):
    """Were `t` and `other` to share columns: (the access in a loop that writes `t` afresh, who last touched `other`), for each time."""
    for accesses in t.accesses:
        before = [a for a in other.accesses if a[-1].time < accesses[0].time]
        if before and accesses[0].fresh and accesses[0].op.operation.parent.name == "scf.for":
            yield accesses[0], _last_users(accesses[0], before[-1])


def _last_users(first: Access, accesses: list[Access]) -> dict[int, int]:
    """order -> iterations before, of those in the same run of a loop that read a content, or wrote it if nobody does."""
    loop = first.op.operation.parent
    users = [a for a in accesses if a.run == first.run and a.op.operation.parent == loop and getattr(a.op, "order", None) is not None]
    return {a.op.order.value: first.iteration - a.iteration for a in users if not a.writes or len(accesses) == 1}


def _owner(t: TmemTile):
    """The operation that the first of its values comes from, None for an argument."""
    owner = t.values[0].owner
    return None if isinstance(owner, ir.Block) else owner.opview


def check(kernel, target) -> None:
    """That tiles which share columns are not needed at one time, and that each reuse within a loop is declared as it is."""
    tiles = find(kernel)
    for number, a in enumerate(tiles):
        end, room = column_of(a.kind) + a.words, target.tmem_columns // block_of(a.kind)
        if end > room:
            raise op_diagnostic(_owner(a) or kernel, f"takes columns {column_of(a.kind)} to {end - 1} of {room} of tensor memory",
                                fix="leave the choice to tile-alias-tmem")
        for b in tiles[:number]:
            if share(a, b) and conflict(a, b, target):
                raise op_diagnostic(
                    _owner(a) or kernel,
                    f"lies in columns {column_of(a.kind)} to {column_of(a.kind) + a.words - 1} of tensor memory, {b.name} in "
                    f"{column_of(b.kind)} to {column_of(b.kind) + b.words - 1}",
                    why="both are needed at one time",
                    fix="give them columns apart, or leave the choice to tile-alias-tmem",
                )
    needed = reuses(tiles)
    for op in {a.op for t in tiles for accesses in t.accesses for a in accesses}:
        declared = list(op.after) if getattr(op, "after", None) is not None else []
        if declared != needed.get(op, []):
            raise op_diagnostic(
                op,
                f"has after = {declared}, but overwrites columns whose last users are {needed.get(op, [])}",
                why="pairs of an order and a number of iterations before, of the operations that used these columns last",
                fix="leave it to tile-alias-tmem",
            )
