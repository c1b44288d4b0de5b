"""The dependence graph of a block loop: which tile operation waits for which, through data and through storage, in which iteration.

Data: an operation waits for what its operands are computed from, this iteration's or, through the loop's carried arguments, an earlier
one's. Scalars are recomputed where they are needed and are no operations here; tiles that they lead to count.

Storage: each register tile has one place, which each iteration writes again; a tile in shared memory has `buffers`. Some results take
over the place of an operand: an MMA its accumulator's, a map that of its first operand of the same type, a reduction that of its initial
value, if nobody reads that operand later in the program. So an online softmax turns S into P without a second tile of that size. A carried
argument shares the place of the value that becomes it, if its readers come before that place is written; else the value is copied
aside at the end of the step that computes it. Program order is always a legal schedule.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, replace

from ..ir import tile, tile_pair, warp
from ..ir.diagnostics import op_diagnostic
from ..ir.tile import Scheduled, space_of
from ._tile_map import operations_in
from .modulo import Edge, Graph, Op
from .op_costs import Cost, cost, warpgroups
from .register_pressure import Version
from .streams import stream_of

_WRITES = (tile.StoreOp, tile.GlobalAddOp)
_IN_BUFFERS = (tile.LoadOp, tile.ToSharedOp, tile_pair.ExchangeOp)


def pipelined_loops(module) -> list:
    """The `scf.for`s of tile kernels that hold MMAs and no such loop."""
    found = []

    def visit(block) -> bool:
        holds = False
        for op in block.operations:
            inner = any([visit(b) for region in op.operation.regions for b in region.blocks]) if len(op.operation.regions) else False
            if op.operation.name == "scf.for" and not inner and any(isinstance(o, tile.MmaOp) for o in op.regions[0].blocks[0].operations):
                found.append(op)
                inner = True
            holds = holds or inner
        return holds

    for op in module.body.operations:
        if isinstance(op, tile.KernelOp):
            visit(op.body.blocks[0])
    return found


@dataclass(frozen=True)
class Place:
    """Columns of tensor memory that hold one tile: who writes it first in an iteration, and who uses it."""

    words: int
    writer: int
    users: tuple[int, ...]


@dataclass
class LoopGraph:
    """`ops[i]` is operation i of `graph`, in program order. Loads are free, as they run ahead, except of what the loop stores."""

    loop: object
    ops: list
    costs: list[Cost]
    graph: Graph
    versions: list[Version]  # of its register tiles
    places: list[Place]  # in tensor memory, of what each iteration forms anew
    room: int  # columns of tensor memory for them, those of accumulators left out
    in_order: bool  # MMAs finish in the order of issue

    def turns(self, a: Place, b: Place, behind: int) -> list[Edge]:
        """For two places to share columns: b of each iteration comes between a of `behind` iterations later and the a that follows."""
        edges = [self.freed(user, b.writer, -behind) for user in a.users] + [self.freed(user, a.writer, 1 + behind) for user in b.users]
        return [e for e in edges if e.src != e.dst]

    def with_reuse(self) -> LoopGraph:
        """With the waits that `after` declares, for columns that an operation overwrites; for loops whose schedule stands already."""
        of_order = {op.order.value: i for i, op in enumerate(self.ops) if op.order is not None}
        edges = []
        for writer, op in enumerate(self.ops):
            numbers = list(op.after) if getattr(op, "after", None) is not None else []
            edges += [self.freed(of_order[order], writer, distance) for order, distance in zip(numbers[::2], numbers[1::2], strict=True)
                      if order in of_order]
        return replace(self, graph=replace(self.graph, edges=(*self.graph.edges, *(e for e in edges if e.src != e.dst))))

    def freed(self, user: int, writer: int, distance: int) -> Edge:
        return _before(self.ops, self.costs, self.in_order, user, writer, distance, "it overwrites columns that {src} uses")

    def name(self, i: int) -> str:
        """For diagnostics."""
        return _name(self.ops[i])

    def reason(self, edge: Edge) -> str:
        return edge.why.format(src=self.name(edge.src), dst=self.name(edge.dst))


def build(loop, target) -> LoopGraph:
    """Of the `scf.for` of a tile kernel. Its operations need no stage or order yet."""
    body = _Body(loop)
    costs = [cost(op, target) for op in body.ops]
    graph_ops = [_graph_op(op, c) for op, c in zip(body.ops, costs, strict=True)]
    storage = _Storage(body, costs, target)
    edges = [*_data_edges(body, costs, target), *_effect_edges(body, costs), *_count_edges(body, costs), *storage.edges()]
    stored = [op.target for op in body.ops if isinstance(op, _WRITES)]
    free = frozenset(i for i, op in enumerate(body.ops) if isinstance(op, tile.LoadOp) and op.source not in stored)
    groups = warpgroups(body.ops[0], target)
    graph = Graph(tuple(graph_ops), _strongest(edges), free)
    return LoopGraph(loop, body.ops, costs, graph, storage.versions(groups), *storage.columns(), target.mma.in_order)


def data_edges(loop, target) -> tuple[list, list[Edge]]:
    """(operations, edges of the data alone), for loops whose schedule stands already."""
    body = _Body(loop)
    return body.ops, _data_edges(body, [cost(op, target) for op in body.ops], target)


def _strongest(edges: list[Edge]) -> tuple[Edge, ...]:
    """Without edges that another says more strongly: data before storage."""
    kept: dict = {}
    for e in edges:
        key = (e.src, e.dst, e.distance, e.steps, e.ordered, e.from_issue)
        if key not in kept or kept[key].latency < e.latency:
            kept[key] = e
    return tuple(kept.values())


def _graph_op(op, c: Cost) -> Op:
    seldom = isinstance(op, tile.MapOp) and op.cond is not None
    unit, duration = (c.unit, c.clocks) if c.asynchronous else ("", 0)
    return Op(op.operation.name, stream_of(op), c.issue, unit, duration, seldom)


def _name(op) -> str:
    """As the text has it. Slow: MLIR numbers the whole module for it."""
    results = list(op.operation.results)
    return f"{results[0].get_name()} ({op.operation.name})" if results else op.operation.name


# --------------------------------------------------------------------------------------------------------------------------- reading


class _Body:
    """The loop's tile operations and who reads whose result."""

    def __init__(self, loop):
        block = loop.regions[0].blocks[0]
        self.loop = loop
        self.arguments = list(block.arguments)[1:]
        operations = list(block.operations)
        self.yields = list(operations[-1].operation.operands)
        self.ops = [op for op in operations if isinstance(op, Scheduled)]
        self.index = {result: i for i, op in enumerate(self.ops) for result in op.operation.results}
        self.carried = {argument: yielded for argument, yielded in zip(self.arguments, self.yields, strict=True)}
        self.inside = {result for op in operations for result in op.operation.results}
        for op in operations:
            if not isinstance(op, Scheduled):
                _check_unscheduled(op)
        # value -> readers of it as it is named, without going round the loop
        self.readers: dict = defaultdict(list)
        for i, op in enumerate(self.ops):
            for value in dict.fromkeys(_reads(op)):
                self.readers[value].append(i)

    def sources(self, value, distance: int = 0, seen: frozenset = frozenset()) -> set[tuple[int, int]]:
        """(operation, distance) of the tile operations that `value` is computed from."""
        if value in self.index:
            return {(self.index[value], distance)}
        if value in self.carried:
            return set() if value in seen else self.sources(self.carried[value], distance + 1, seen | {value})
        if value not in self.inside:
            return set()
        return {found for operand in _reads(value.owner.opview) for found in self.sources(operand, distance, seen)}


def _reads(op) -> list:
    """Operands, and what the regions of `op` take from outside of them."""
    found = list(op.operation.operands)
    for region in op.operation.regions:
        for block in region.blocks:
            own = set(block.arguments)
            for inner in block.operations:
                found += [value for value in _reads(inner) if value not in own]
                own.update(inner.operation.results)
    return found


def _check_unscheduled(op) -> None:
    name = op.operation.name
    if any(isinstance(inner, Scheduled) for inner in operations_in(op)):
        raise op_diagnostic(op, "holds tile operations within a loop to be pipelined", why="they have no place in a step of their own",
                            fix="give the operations a `cond`, or move them out of the loop")
    tiles = [v for v in [*op.operation.operands, *op.operation.results] if space_of(v.type) in ("reg", "smem", "tmem")]
    if tiles and name not in ("scf.yield", "tile.splat"):
        raise op_diagnostic(op, "computes with tiles, but has no place in a schedule", fix="use a tile operation")


# ----------------------------------------------------------------------------------------------------------------------- data, effects


def _data_edges(body: _Body, costs: list[Cost], target) -> list[Edge]:
    edges = []
    for i, op in enumerate(body.ops):
        for value in dict.fromkeys(_reads(op)):
            for source, distance in sorted(body.sources(value)):
                why = "it reads {src}" + (f" of {distance} iteration{'s' * (distance > 1)} before" if distance else "")
                if _chains(body.ops[source], op, value, target):
                    edges.append(Edge(source, i, costs[source].issue, distance, from_issue=True, why=why))
                else:
                    edges.append(Edge(source, i, costs[source].latency, distance, why=why))
    return edges


def _chains(first, second, value, target) -> bool:
    """MMAs into one accumulator need not wait for each other's end where the unit finishes in order."""
    return target.mma.in_order and isinstance(first, tile.MmaOp) and isinstance(second, tile.MmaOp) and value == second.acc


def _effect_edges(body: _Body, costs: list[Cost]) -> list[Edge]:
    """Stores and additions keep their order among each other and with loads of the same tensor."""
    edges = []
    touched = [(i, op.target if isinstance(op, _WRITES) else op.source, isinstance(op, _WRITES))
               for i, op in enumerate(body.ops) if isinstance(op, (*_WRITES, tile.LoadOp))]
    for a, tensor, writes in touched:
        for b, other, also_writes in touched:
            if tensor == other and (writes or also_writes) and a != b:
                edges.append(Edge(a, b, costs[a].latency, 0 if a < b else 1, why="both access one tensor"))
    return edges


def _count_edges(body: _Body, costs: list[Cost]) -> list[Edge]:
    """Waiting for a count, adding, counting keep their order; one waits no earlier than what is to be added is there."""
    edges = []
    kinds = (tile.GlobalAddOp, tile.WaitCountOp, tile.AddCountOp)
    chain = [i for i, op in enumerate(body.ops) if isinstance(op, kinds)]
    if not any(isinstance(body.ops[i], tile.WaitCountOp) for i in chain):
        return edges
    edges += [Edge(a, b, costs[a].latency, 0, why="additions have an order") for a, b in itertools.pairwise(chain)]
    edges.append(Edge(chain[-1], chain[0], costs[chain[-1]].latency, 1, why="additions have an order"))
    for wait in (i for i in chain if isinstance(body.ops[i], tile.WaitCountOp)):
        add = next((i for i in chain if i > wait and isinstance(body.ops[i], tile.GlobalAddOp)), None)
        if add is not None:
            edges.append(Edge(add, wait, 0, 0, ordered=False, why="others wait for it while it waits"))
            for source, distance in sorted(body.sources(body.ops[add].x)):
                edges.append(Edge(source, wait, costs[source].latency, distance, why="it waits for the addition of {src}"))
    return edges


# --------------------------------------------------------------------------------------------------------------------------- storage


class _Storage:
    """Which values share a place, and the edges that keep a place from being overwritten too early."""

    def __init__(self, body: _Body, costs: list[Cost], target):
        self.body, self.costs, self.target = body, costs, target
        self.place = {value: value for value in [*body.index, *body.arguments]}
        for i, op in enumerate(body.ops):
            taken = self._taken_over(i, op)
            if taken is not None:
                self.place[op.operation.results[0]] = self._find(taken)
        self.copied = [argument for argument in body.arguments if not self._join_carried(argument)]

    def edges(self) -> list[Edge]:
        edges = []
        for value, i in self.body.index.items():
            if isinstance(self.body.ops[i], _IN_BUFFERS):
                edges += self._buffer_edges(value, i)
        for place in dict.fromkeys(self._find(value) for value in self.body.index):
            if not isinstance(getattr(place.owner, "opview", None), _IN_BUFFERS):
                edges += self._place_edges(place)
        for argument in self.copied:
            edges += self._copy_edges(argument)
        return [e for e in edges if e.src != e.dst]

    # -- who shares

    def _find(self, value):
        while self.place[value] != value:
            value = self.place[value]
        return value

    def _taken_over(self, i: int, op):
        """The operand in whose place the result is formed."""
        if isinstance(op, tile.MmaOp):
            if op.acc is None or op.acc not in self.place:
                return None
            late = [r for r in self.body.readers[op.acc] if r > i]
            if late or op.acc in self.body.yields:
                reader = self.body.ops[late[0]] if late else self.body.loop
                raise op_diagnostic(op, f"sums into {op.acc.get_name()} in place, but {_name(reader)} still needs the value before", why=
                                    "an accumulator has one copy", fix="read the accumulator before the MMA")
            return op.acc
        if isinstance(op, tile.ReduceOp):
            wanted = [op.init] if op.init is not None else []
        elif isinstance(op, tile.MapOp):
            wanted = [value for value in op.inputs if value.type == op.out.type][:1]
        else:
            wanted = []
        for value in wanted:
            is_place = value in self.place and space_of(value.type) in ("reg", "tmem") and value not in self.body.yields
            if is_place and all(r <= i for r in self.body.readers[value]):
                return value
        return None

    def _join_carried(self, argument) -> bool:
        """Whether a carried argument and the value that becomes it are one place."""
        value = self.body.carried[argument]
        if space_of(argument.type) is None or value not in self.body.index or value not in self.place:
            return True
        if self._find(value) == self._find(argument):
            return True
        writers = self._writers(self._find(value))
        readers = [i for v in self.place if self._find(v) == self._find(argument) for i in self.body.readers[v]]
        if self._find(argument) == argument and not self._writers(argument) and all(i <= writers[0] for i in readers):
            self.place[argument] = self._find(value)
            return True
        return False

    def _writers(self, place) -> list[int]:
        return sorted(i for value, i in self.body.index.items() if self._find(value) == place)

    def versions(self, groups: int) -> list[Version]:
        """What is held in registers, with all who read it: also as the next iteration's carried argument."""
        found = []
        for value, i in self.body.index.items():
            if space_of(value.type) != "reg" or value.type.rank != 2:
                continue
            size = self._registers(value.type, groups)
            readers = [(r, 0) for r in self.body.readers[value]]
            for argument, yielded in self.body.carried.items():
                later = [(r, 1) for r in self.body.readers[argument]] if yielded == value else []
                if argument in self.copied and later:
                    found.append(Version(self._find(argument), size, i, tuple(later), copied=True))
                else:
                    readers += later
            found.append(Version(self._find(value), size, i, tuple(readers)))
        return found

    def columns(self) -> tuple[list[Place], int]:
        """The places in tensor memory that each iteration fills anew, and how many columns there are beside all others."""
        first = next((value for value in self.body.index if space_of(value.type) == "tmem"), None)
        if first is not None and not self.target.tmem_columns:
            raise op_diagnostic(first.owner, f"makes {first.type}", why=f"{self.target.name} has no tensor memory",
                                fix="compile for a target that has, or use tiles in #tile.reg")
        found, room = [], _columns_there([*self.body.index, *self.body.arguments], self.target)
        for place in dict.fromkeys(self._find(value) for value in self.place if space_of(value.type) == "tmem"):
            values = [value for value in self.place if self._find(value) == place]
            if any(value in self.body.carried or value in self.body.yields for value in values):
                room -= self._words(place)
            else:
                users = {i for value in values for i in (*self.body.readers[value], self.body.index[value])}
                found.append(Place(self._words(place), min(self.body.index[value] for value in values), tuple(sorted(users))))
        return found, room

    def _words(self, value) -> int:
        """32-bit columns of tensor memory that a tile takes, up to where the next one may start."""
        step = self.target.tmem_step
        return -(-value.type.shape[1] * value.type.element_type.width // (32 * step)) * step

    def _registers(self, kind, groups: int) -> int:
        """Of a thread, for a tile; beside tensor memory it holds a whole row."""
        if self.target.mma.accumulator == "reg":
            return warp.registers_held(kind, groups)
        return -(-kind.shape[1] * max(16, warp.bits_of(kind.element_type)) // 32)

    # -- edges

    def _buffer_edges(self, value, i: int) -> list[Edge]:
        buffers = self.body.ops[i].buffers.value
        return [Edge(r, i, self.costs[r].latency, buffers, why=f"{{dst}} has {buffers} buffers") for r in self.body.readers[value]]

    def _place_edges(self, place) -> list[Edge]:
        """The readers of each version come before the next writer; writers keep their order."""
        writers = self._writers(place)
        edges = []
        for value in self.place:
            if self._find(value) != place:
                continue
            if value in self.body.index:
                at = writers.index(self.body.index[value])
                following, distance = (writers[at + 1], 0) if at + 1 < len(writers) else (writers[0], 1)
                edges.append(self._before(self.body.index[value], following, distance, "writes"))
            else:  # a carried argument holds the last version of the iteration before
                following, distance = writers[0], 0
            for reader in self.body.readers[value]:
                if reader != following:
                    edges.append(self._before(reader, following, distance, "reads"))
        return edges

    def _before(self, first: int, second: int, distance: int, does: str) -> Edge:
        why = f"it overwrites what {{src}} {does}" + (" in the iteration before" if distance else "")
        return _before(self.body.ops, self.costs, self.target.mma.in_order, first, second, distance, why)

    def _copy_edges(self, argument) -> list[Edge]:
        """The copy is made at the end of the step that computes the value: readers run in later steps, but before the next copy."""
        value = self.body.carried[argument]
        writer = self.body.index.get(value)
        if writer is None:
            return []
        edges = []
        places = [v for v in self.place if self._find(v) == self._find(argument)]
        for reader in dict.fromkeys(r for v in places for r in self.body.readers[v]):
            why = "the next iteration reads a copy of {}, made at the end of a step"
            edges.append(Edge(writer, reader, 0, 1, steps=1, ordered=False, why=why.format("{src}")))
            edges.append(Edge(reader, writer, 0, 0, ordered=False, why=why.format("{dst}")))
        return edges


def _before(ops, costs: list[Cost], in_order: bool, first: int, second: int, distance: int, why: str) -> Edge:
    """`first` is done with some storage before `second` writes there."""
    if in_order and isinstance(ops[first], tile.MmaOp) and isinstance(ops[second], tile.MmaOp):
        return Edge(first, second, costs[first].issue, distance, from_issue=True, why=why)
    return Edge(first, second, costs[first].latency, distance, why=why)


def _columns_there(values, target) -> int:
    """Columns of tensor memory for a row block."""
    rows = max((v.type.shape[0] for v in values if space_of(v.type) == "tmem"), default=target.mma.m)
    return target.tmem_columns // max(1, rows // target.mma.m)
