"""Which role must wait for which, so that accesses of several roles to tiles that they share keep the schedule's order.

The roles run at their own pace. Two accesses of different roles to the same columns, one of them a write, are in order if the later one's
role has waited, directly or through others, for something the earlier one's role did after it. A `Link` is one such wait: role `source`
signals each time it has come past `before`, role `sink` waits each time before `after`; `ahead` waits at the start do not. With two of
these a link has two slots. An operation that waits for one of a later iteration, in the same step, has a link `in_step`; what the next
run of a loop waits for has a link from the loop to itself, where it makes a trip. MMAs of one thread are done in the order of issue, so a
signal behind one covers all earlier ones.

The program is run symbolically in schedule order, with a clock of what each role knows of the others; each access that nothing orders yet
adds a link from the latest such access of the other role, until none is left. A link whose signals might overtake their waits gets a link
back. Tiles in shared memory that threads write and MMAs read, of one copy, are ordered likewise, and row vectors that go from role to
role through shared memory (`corrections.Box`). Within one tile, and across tiles where `after` says that one overwrites another,
dependences are the program's; a reuse of columns that the text does not declare stays unordered, and shows as a race.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from dataclasses import dataclass

from ..ir import tile, tile_pair
from ..ir.diagnostics import Diagnostic, op_diagnostic
from . import tmem_tiles
from ._tile_map import operations_in
from .corrections import Box
from .implied_order import MOST_BEHIND
from .schedule import body_slots

_MOST_LINKS = 40  # that are looked for: the fused backward in pairs with two roles for sums, the most so far, takes 11
_MOST_SLOTS = MOST_BEHIND  # of a link


@dataclass(frozen=True)
class Link:
    """Role `sink` does `after` of an iteration when role `source` has done `before` of `ahead` iterations earlier."""

    source: str
    sink: str
    before: object  # operation or loop of the source's program
    after: object  # operation or loop of the sink's
    ahead: int
    in_step: bool = False  # the sink waits at the place of `after` in those steps in which `before` runs, whether `after` does or not

    @property
    def slots(self) -> int:
        return max(1, self.ahead)

    @property
    def between_runs(self) -> bool:
        """Of one loop, where it makes a trip."""
        return self.before == self.after


def find(kernel, role_of, boxes=()) -> list[Link]:
    """The links of a `tile.kernel` whose tiles have columns; `role_of(op)` names the role that runs an operation."""
    program, links = _Program(kernel, role_of, boxes), []
    while True:
        missing = _missing(program, links)
        if missing is None:
            return _waiting_earlier(program, _without_needless(program, links))
        if missing in links or len(links) > _MOST_LINKS:
            raise op_diagnostic(missing.after, f"cannot be ordered behind '{missing.before.operation.name}' of role {missing.source}",
                                why="its schedule runs it before", fix="change stage and order, or the columns that both use")
        links.append(missing)


def _without_needless(program: _Program, links: list[Link]) -> list[Link]:
    """Links found early may have become needless by later ones."""
    for link in list(links):
        rest = [other for other in links if other != link]
        if _missing(program, rest) is None:
            links = rest
    return links


def _waiting_earlier(program: _Program, links: list[Link]) -> list[Link]:
    """One wait moved up in its role may stand for others: what is handed on behind it is then known to come after what was waited for. It
    is moved to where the role waits or signals anyway, and only if two links become needless: a wait costs some 75 clocks of a warp (H200),
    one that comes too early what is left of the operation."""
    for link in list(links):
        if link not in links or link.in_step or link.between_runs or not isinstance(link.after, tile.Scheduled):
            continue
        if isinstance(link.after, tile.MmaOp):  # whoever issues MMAs would hold up those in between
            continue
        for place in _places_before(link, links):
            moved = [dataclasses.replace(other, after=place) if other == link else other for other in links]
            if _suffices(program, moved) and len(fewer := _without_needless(program, moved)) <= len(links) - 2:
                links = fewer
                break
    return links


def _suffices(program: _Program, links: list[Link]) -> bool:
    """Whether links keep the order, and none waits for what the schedule runs later."""
    try:
        return _missing(program, links) is None
    except Diagnostic:
        return False


def _places_before(link: Link, links: list[Link]) -> list:
    """Operations of the sink, in its loop and stage, at which it waits or signals before the link's; the latest first."""
    own = [other.after for other in links if other.sink == link.sink] + [other.before for other in links if other.source == link.sink]
    beside = [op for op in dict.fromkeys([*own, link.after]) if isinstance(op, tile.Scheduled) and op.order is not None]
    inside = [op for op in beside if op.operation.block == link.after.operation.block and op.stage.value == link.after.stage.value]
    return sorted((op for op in inside if link.after in inside and op.order.value < link.after.order.value), key=lambda op: -op.order.value)


# Trips of loops that hold loops, and of innermost ones: where a loop makes none, nobody waits in it.
_SCENARIOS = ((2, 4), (2, 0), (0, 4), (2, 1))


def _missing(program: _Program, links: list[Link]) -> Link | None:
    """A link that is needed beside `links`, None if there are enough."""
    runs = (_Run(program, links).missing(trips, events) for trips, events in program.scenarios)
    return next((link for link in runs if link is not None), None)


@dataclass
class _Done:
    """An access in the past: by which role, as its how manieth event, of which instance of which operation."""

    role: str
    number: int
    op: object
    instance: int
    writes: bool


@dataclass(frozen=True, eq=False)
class _SharedTile:
    """A tile in shared memory."""

    value: object


def _written_operands(kernel) -> dict:
    """Tiles in shared memory that threads write and MMAs read."""
    read = {v for op in operations_in(kernel) if isinstance(op, tile.MmaOp) for v in (op.a, op.b)}
    written = [op.out for op in operations_in(kernel) if isinstance(op, (tile.ToSharedOp, tile_pair.ExchangeOp))]
    return {value: _SharedTile(value) for value in written if value in read}


class _Program:
    """What all runs of one kernel have in common, read off the operations once: it runs some forty times."""

    def __init__(self, kernel, role_of, boxes):
        block = kernel.body.blocks[0]
        self.of = {**tmem_tiles.tiles_by_value(kernel), **_written_operands(kernel)}
        self.role_of = functools.cache(role_of)
        self.accesses = functools.cache(self._accesses)
        tiles = {id(t): t for t in self.of.values() if not isinstance(t, _SharedTile)}
        self._sharing = {key: [o for o in tiles.values() if o is not t and tmem_tiles.share(t, o)] for key, t in tiles.items()}
        self._boxed = defaultdict(list)  # operation -> (box, whether it is written, whether it is read)
        for box in boxes:
            for op in [box.writer, *box.readers]:
                self._boxed[op].append((box, op == box.writer, op != box.writer))
        self.scenarios = [(trips, self._events(block, turns, trips)) for turns, trips in _SCENARIOS]

    def _events(self, block, turns: int, trips: int) -> list[tuple]:
        """What happens to tiles and boxes, and where loops begin and end: links lie between these, and what else runs changes nothing."""
        events = tmem_tiles.events(block, turns=turns, trips=trips)
        return [event for event in events if event[2] in ("enter", "leave") or self.accesses(event[0])]

    def _accesses(self, op) -> list[tuple]:
        """(tile or box, whether it is written, whether what was there is read)"""
        return [*tmem_tiles.touched(op, self.of), *self._boxed[op]]

    def sharing(self, t) -> list:
        """The other tiles in columns of one."""
        return self._sharing.get(id(t), [])


class _Run:
    def __init__(self, program: _Program, links: list[Link]):
        self.program = program
        self.waits, self.signalled = defaultdict(list), defaultdict(list)  # operation -> links that wait before it, that it signals
        for link in links:
            self.waits[link.after].append(link)
            self.signalled[link.before].append(link)
        self.known: dict = defaultdict(lambda: defaultdict(int))  # role -> role -> events of it that are known to be over
        self.count: dict = defaultdict(int)  # role -> events so far
        self.instances: dict = defaultdict(int)  # operation -> so far
        self.signals: dict = defaultdict(list)  # link -> what the source knew
        self.awaited: dict = defaultdict(list)  # link -> the sink's event number of each wait
        self.history: dict = defaultdict(list)  # id of tile -> [_Done] since its last fresh write, and what that had to respect
        self.declared: dict = {}

    def missing(self, trips: int, events) -> Link | None:
        self.trips = trips
        for op, iteration, what in events:
            found = self._step(op, iteration, what)
            if found is not None:
                return found
        return None

    def _step(self, op, iteration: int, what: str) -> Link | None:
        for link in self.waits.get(op, ()) if what != "leave" else ():
            if self._waits(link, iteration, what):
                self._wait(link)
        found = None
        if what == "run":
            found = self._access(op, iteration, self.instances[op])
            self.instances[op] += 1
        if found is None and what in ("run", "leave"):
            links = [link for link in self.signalled.get(op, ()) if self.trips or not link.between_runs]
            found = next(filter(None, map(self._signal, links)), None)
        return found

    # -- waits and signals

    def _waits(self, link: Link, iteration: int, what: str) -> bool:
        if not link.in_step:
            return what != "skip" and (self.trips > 0 or not link.between_runs)
        return 0 <= iteration + link.after.stage.value - link.before.stage.value < self.trips

    def _wait(self, link: Link) -> None:
        self._tick(link.sink)
        signal = len(self.awaited[link]) - link.ahead
        self.awaited[link].append(self.count[link.sink])
        if signal < 0:
            return
        if signal >= len(self.signals[link]):
            raise op_diagnostic(link.after, f"waits for '{link.before.operation.name}', which the schedule runs later",
                                why="the two use the same columns of tensor memory", fix="change stage and order of one of them")
        known = self.known[link.sink]
        for role, number in self.signals[link][signal].items():
            known[role] = max(known[role], number)

    def _signal(self, link: Link) -> Link | None:
        self._tick(link.source)
        self.signals[link].append({**self.known[link.source], link.source: self.count[link.source]})
        number = len(self.signals[link]) - 1 - link.slots + link.ahead  # the wait that took the signal whose slot this one takes
        if number < link.ahead:
            return None
        taken = self.awaited[link][number] if number < len(self.awaited[link]) else self.count[link.sink] + 1
        if self.known[link.source][link.sink] >= taken:
            return None
        behind = link.after.stage.value - link.before.stage.value if link.in_step else 0
        return Link(link.sink, link.source, link.after, link.before, link.slots - link.ahead + behind)

    def _tick(self, role: str) -> None:
        self.count[role] += 1
        self.known[role][role] = self.count[role]

    # -- accesses

    def _access(self, op, iteration: int, instance: int) -> Link | None:
        accesses = self.program.accesses(op)
        if not accesses:
            return None
        role = self.program.role_of(op)
        self._tick(role)
        unordered = []
        for t, writes, reads in accesses:
            for past in self._must_follow(op, iteration, t, writes, reads):
                if past.role != role and past.number > self.known[role][past.role]:
                    unordered.append(past)
        if unordered:
            return self._link(max(unordered, key=lambda past: past.number), role, op, instance)
        for t, writes, _ in accesses:
            done = _Done(role, self.count[role], op, instance, writes)
            self.history[id(t)] = [done] if writes else [*self.history[id(t)], done]
            self.declared[op, iteration] = done
        return None

    def _must_follow(self, op, iteration: int, t, writes: bool, reads: bool) -> list[_Done]:
        found = [past for past in self.history[id(t)] if writes or past.writes]
        if writes and not reads and not isinstance(t, Box):
            found += self._declared_reuse(op, iteration)
            if op.operation.parent.name != "scf.for" or not self._in_one_loop(op, t):
                found += [past for other in self.program.sharing(t) for past in self.history[id(other)]]
        return found

    def _declared_reuse(self, op, iteration: int) -> list[_Done]:
        numbers = list(op.after) if getattr(op, "after", None) is not None else []
        found = []
        for order, distance in zip(numbers[::2], numbers[1::2], strict=True):
            first = next((o for o in op.operation.parent.regions[0].blocks[0].operations
                          if "order" in o.attributes and o.attributes["order"].value == order), None)
            if first is None:
                raise op_diagnostic(op, f"comes after an operation of order {order}, which its loop has not", fix="remove it from after")
            if iteration - distance >= self.trips:
                continue  # there is no such iteration
            if iteration < distance:  # what an earlier run of the loop left there
                found += [past for t, _, _ in self.program.accesses(op) for o in self.program.sharing(t) for past in self.history[id(o)]]
                continue
            done = self.declared.get((first, iteration - distance))
            if done is None:
                raise op_diagnostic(op, f"is to come after that of order {order}, which the schedule runs later",
                                    why="the two use the same columns of tensor memory", fix="change stage and order of one of them")
            found.append(done)
        return found

    def _in_one_loop(self, op, t) -> bool:
        """Whether all that shares columns with this tile is in the loop of `op`, where `after` says what is reused."""
        return all(past.op.operation.parent == op.operation.parent for other in self.program.sharing(t) for past in self.history[id(other)])

    def _link(self, past: _Done, role: str, op, instance: int) -> Link:
        """Between the two operations, or the loops around them that stand in one block."""
        before, after = _siblings(past.op, op)
        if before != past.op or after != op:
            return Link(past.role, role, before, after, 0 if _comes_before(before, after) else 1)
        ahead = instance - past.instance
        distance = _steps_between(before, after)
        if distance is not None and ahead == -after.stage.value + before.stage.value < 0:
            return Link(past.role, role, before, after, 0, in_step=True)
        if distance is not None and ahead > 0 and ahead < distance:  # of an earlier run of the loop
            loop = _parent(op)
            return Link(past.role, role, loop, loop, 1)
        if ahead not in range(_MOST_SLOTS + 1):
            raise op_diagnostic(op, f"waits for '{past.op.operation.name}' of {ahead} iterations before",
                                why=f"links have at most {_MOST_SLOTS} slots")
        return Link(past.role, role, before, after, ahead)


def _steps_between(before, after) -> int | None:
    """Of how many iterations before `before` must be to run earlier than `after`, where both are scheduled in one loop."""
    loop = after.operation.parent
    places = {slot.op: (slot.stage, n) for n, slot in enumerate(body_slots(loop))} if loop.name == "scf.for" else {}
    if before not in places or after not in places:
        return None
    (stage, place), (other_stage, other_place) = places[before], places[after]
    return stage - other_stage + (place >= other_place)


def _siblings(a, b):
    """The two, or what holds them, in their innermost common block."""
    chain = {}
    at = a
    while at is not None and at.operation.name != "builtin.module":
        chain[at.operation.block] = at
        at = _parent(at)
    at = b
    while at.operation.block not in chain:
        at = _parent(at)
    return chain[at.operation.block], at


def _parent(op):
    return op.operation.parent.opview if op.operation.parent is not None else None


def _comes_before(a, b) -> bool:
    return a.operation != b.operation and a.operation.is_before_in_block(b.operation)
