"""The abstract machine of `warp-check`: roles as agents, stepped side by side over an abstract state, without data.

An agent is a producer warp or one compute warpgroup, of one CTA, or of both where they work in pairs. Scalars are evaluated for sampled
sizes; every operation either changes the state, blocks, or is a finding. Rules (PTX ISA): an mbarrier phase completes when its arrivals
and bytes are in; a wait for parity p returns once
the phase of that parity has completed; wgmma is in flight until a wait_group retires it, and a wgmma.fence orders it behind other
accesses to its registers; writes of threads reach the async proxy by a fence and a barrier; shared memory must stay until the TMA stores
that read it are done, and until all warpgroups' MMAs that read it are known to be.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from ..ir import warp, warp_tmem
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import ir
from ..ir.tile import space_of
from . import shared_exchange
from .protocol_tmem import TMEM_RULES, TmemRules, tmem_fragments_touched
from .sampled_scalars import SampledScalars, counted_dims

_SAMPLES = 16
_MAX_STEPS = 20000


def check(kernel) -> None:
    """Run `kernel` for several samples of sizes. Raises Diagnostic for the first finding."""
    rng = random.Random(0)  # fixed: the same kernel gets the same verdict
    program = _Program(kernel)
    for sample in range(_SAMPLES):
        _Machine(program, SampledScalars(rng, sample, counted=program.counted, pairs=program.paired)).run()


def byte_range(buffer) -> tuple[int, int]:
    """First byte and end of a `warp.buffer` value."""
    start = buffer.owner.opview.offset.value
    return start, start + buffer.type.shape[0] * warp.stage_bytes(buffer)


class _Program:
    """The kernel's operations as plain Python data, read once."""

    def __init__(self, kernel):
        self.kernel = kernel
        operations = list(kernel.body.blocks[0].operations)
        self.roles = [op for op in operations if isinstance(op, warp.RoleOp)]
        # drawn before the roles part, so that all of them see the same sizes
        self.shared_scalars = [a for a in kernel.body.blocks[0].arguments if isinstance(a.type, ir.IndexType)]
        self.shared_scalars += [r for op in operations if not isinstance(op, _STORAGE) for r in op.operation.results]
        self.buffers = [op.out for op in operations if isinstance(op, warp.BufferOp)]
        self.overlapping = {a: [b for b in self.buffers if b != a and _overlap(byte_range(a), byte_range(b))] for a in self.buffers}
        self._values = {}
        self.exchanged = {role: shared_exchange.exchanged(role) for role in self.roles}
        self.mma_operands = {v for role in self.roles for op in shared_exchange._walk(role.body.blocks[0])
                             if isinstance(op, warp_tmem.Tcgen05MmaOp) for v in (op.a, op.b)}
        self.counted = {dim for role in self.roles for dim in counted_dims(role)}
        # where a loop makes no trip, nothing was passed on behind it
        self.passes_rows = {r for r in self.roles if any(isinstance(op, (warp_tmem.PostOp, warp_tmem.FetchOp)) for op in _operations(r))}
        self.bodies = {role: _tree(role.body.blocks[0]) for role in self.roles}
        self.paired = any(role.leader.value for role in self.roles) or any(
            op.leader.value for op in operations if isinstance(op, warp.PipelineOp)
        )

    def values_in(self, op) -> list:
        """Values that the body of a loop computes."""
        if op not in self._values:
            self._values[op] = _values_in(op.operation.regions[0].blocks[0])
        return self._values[op]


_STORAGE = (warp.BufferOp, warp.PipelineOp, warp.TensorMapOp, warp_tmem.TmemAllocOp, warp_tmem.TmemOp, warp_tmem.RowBoxOp)


def _operations(op):
    for region in op.operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner
                yield from _operations(inner)


def _overlap(a, b) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _tree(block) -> list:
    """[(operation, type, body or None)], maps' regions left out."""
    nodes = []
    for op in block.operations:
        nested = op.operation.name in ("scf.for", "scf.if") or isinstance(op, (warp.ElectOp, warp.WhenOp, warp.WalkOp))
        nodes.append((op, type(op), _tree(op.operation.regions[0].blocks[0]) if nested else None))
    return nodes


@dataclass
class _Slot:
    """One stage of a pipe. Phases count completions: `filled` of the full barrier, `emptied` of the empty one."""

    filled: int = 0
    armed: bool = False
    bytes_in: int = 0
    emptied: int = 0
    arrivals: int = 0
    fills: int = 0  # arrivals at the full barrier, where no bytes are counted
    full_clock: dict = field(default_factory=dict)  # what those who filled it, or emptied it, knew
    empty_clock: dict = field(default_factory=dict)
    buffers: set = field(default_factory=set)  # what its bytes went to
    readers: set = field(default_factory=set)  # agents that waited for it and did not release it yet


@dataclass
class _Cell:
    """One slot of a buffer, as one agent wrote and read it."""

    version: int = 0  # how often it was written
    visible_from: float = 0  # the role's barrier from which on the last write may be read; inf until it is fenced
    fenced: bool = True
    reads: int = 0  # MMAs that read this version
    free_from: int = 0  # the role's barrier from which on the last read is known to be complete


@dataclass(frozen=True)
class _Store:
    """A TMA store or addition under way."""

    op: object
    slot: _Slot | None = None  # that it reads, of a buffer that was handed over

    @property
    def adds(self) -> bool:
        return isinstance(self.op, warp.TmaAddOp) or self.op.add.value


@dataclass
class _Place:
    """A state operand: slot, parity, and what its agent did with the slot."""

    pipe: object
    stage: int
    phase: int
    producer: bool
    group: int = 0
    cta: int = 0
    seen: int = -1  # phases of its slots that it waited for; -1: it never waits
    acquired: bool = False
    waited: bool = False
    released: bool = False


def _forget(values, known) -> None:
    """What the last iteration computed."""
    for value in values:
        known.pop(value, None)


def _values_in(block) -> list:
    """Results of all operations of a block, nested ones too; `arith` ones are the only ones that scalars are computed from."""
    found = []
    for op in block.operations:
        found += op.operation.results
        for region in op.operation.regions:
            for inner in region.blocks:
                found += _values_in(inner)
    return found


class _Agent:
    def __init__(self, machine, role, group, warps, cta):
        self.machine, self.role, self.group, self.warps, self.cta = machine, role, group, warps, cta
        self.scalars = machine.scalars.fork(cta)
        self.places = {}
        self.in_flight = []  # groups: (written fragments, read fragments, [(slot, buffer)], [(buffer, slot)])
        self.open_group = [set(), set(), [], []]
        self.turn_known_to, self.adding = "", False  # who knows that a count has come; whether threads' additions may be under way
        self.incomplete = []  # TMA stores that are not known to be complete
        self.cells = {}  # (buffer, slot) -> _Cell, of buffers that MMAs read and this role's threads write
        self.group_barriers = 0
        self.fenced, self.synced = set(), set()  # buffers written here: after the proxy fence, after the barrier
        self.handing = {}  # place in a pipe -> how far its slot is on the way to another role: "written", "fenced", "synced"
        self.wrote, self.unread = set(), {}  # buffers written here, and by which operation if nothing read them since
        self.fence_seen, self.unfenced = False, set()  # fragments accessed since the last wgmma.fence
        self.defined = set()  # fragments with a value
        self.unsynced = []  # slots that the lanes of its warps read, each for itself
        self.lanes_wrote = False  # an operand of an MMA, each for itself
        self.has_turn = False
        self.open_stores, self.store_groups, self.drained = (
            [],
            [],
            set(),
        )  # TMA stores; drained: waited for by one thread, not yet known to all
        self.clock = {}  # agent -> how far it is known to have come
        self.passed = False  # whether lanes passed on, or took, row vectors since they met
        self.loading, self.stores = set(), set()  # fragments, tiles in tensor memory: asynchronous copies not waited for
        self.blocked_on = None
        self.steps = machine.walk(self, machine.program.bodies[role])
        self.name = role.sym_name.value + (f", warpgroup {group}" if warps == 4 else "") + (f", CTA {cta}" if cta else "")


class _Machine(TmemRules):
    def __init__(self, program, scalars):
        self.program, self.scalars = program, scalars
        self.slots, self.barriers, self.epoch = {}, {}, {}
        self.reads = {}  # (agent, pipe, group, stage, state) -> waits
        self.tmem_accesses, self.tmem_content, self.tmem_unread = [], {}, {}
        self.posted = set()  # (CTA, row block, row vector) that went from role to role
        self.mma_reads = {}  # (agent, buffer) -> number of the last tcgen05 MMA that reads it
        self.operand_writes = {}  # buffer that tcgen05 MMAs read -> {agent: its clock at the fence behind its last write, inf before it}
        self.sent = set()  # (agent, buffer) of what was written to the peer's memory too
        self.last_read, self.overwritten = {}, set()
        for value in program.shared_scalars:
            scalars.value(value)
        self.tiles = [scalars.rng.randrange(6) for _ in range(scalars.rng.randrange(4))]  # what a warp.walk of this CTA gets
        self.agents = []
        for cta in range(2 if program.paired else 1):
            for role in program.roles:
                active = 0 if cta and role.leader.value else role.active.value
                groups = range(active // 4) if active >= 4 else [0] if active else []
                self.agents += [_Agent(self, role, g, 4 if active >= 4 else active, cta) for g in groups]

    def run(self) -> None:
        running = list(self.agents)
        for _ in range(_MAX_STEPS):
            progress = False
            for agent in list(running):
                while True:
                    try:
                        agent.blocked_on = next(agent.steps)
                    except StopIteration:
                        running.remove(agent)
                        progress = True
                        break
                    if agent.blocked_on is not None:
                        break
                    progress = True
            if not running:
                return self._check_end()
            if not progress:
                self._deadlock(running)
        raise op_diagnostic(self.program.kernel, f"did not end in {_MAX_STEPS} steps", why="a loop runs very long for small sizes")

    def _deadlock(self, running) -> None:
        waiting = "; ".join(f"role {a.name} at {a.blocked_on.operation.name}" for a in running)
        raise op_diagnostic(
            running[0].blocked_on,
            "waits forever",
            why=f"no role can go on: {waiting}",
            fix="every wait needs an arrival: compare the roles' loops, arrivals and phases",
        )

    def _check_end(self) -> None:
        for written in self.tmem_unread.values():
            raise op_diagnostic(written, "writes a tile in tensor memory that nothing reads", fix="read it, or leave the write out")
        for agent in self.agents:
            if agent.in_flight or agent.open_group[2] or agent.open_group[0]:
                raise op_diagnostic(
                    agent.role,
                    "ends with MMAs in flight",
                    why="their results were never waited for",
                    fix="add warp.wgmma_wait {pending = 0}",
                )
            if agent.open_stores or agent.store_groups:
                raise op_diagnostic(
                    (agent.open_stores or agent.store_groups[0])[0].op,
                    "may still read shared memory when its role ends",
                    why="the CTA's memory is given away while TMA copies from it",
                    fix="put warp.store_commit and warp.store_wait {pending = 0} after it",
                )
            for written in agent.unread.values():
                raise op_diagnostic(written, "writes a buffer that nothing reads", fix="store it with warp.tma_store, or remove it")
            if agent.has_turn:
                raise op_diagnostic(agent.role, "ends with a turn that it never gave on", fix="put warp.turn_give after the MMAs")
        for (pipe, group, stage, cta), slot in self.slots.items():
            if slot.armed or slot.bytes_in:
                raise op_diagnostic(
                    pipe.owner.opview,
                    f"ends with slot {stage} half filled",
                    why="bytes that were announced never came, or came unannounced",
                )
            waits = sum(
                1 for a in self.agents for p in a.places.values() if p.pipe == pipe and p.group == group and p.cta == cta and not p.producer
            )
            if slot.filled and waits and slot.filled > self._consumed(pipe, group, stage, cta):
                raise op_diagnostic(
                    pipe.owner.opview, f"ends with slot {stage} filled but never read", why="one role loads more often than the other reads"
                )

    def _consumed(self, pipe, group, stage, cta) -> int:
        counts = (count for (a, p, g, s, _), count in self.reads.items() if (p, g, s, a.cta) == (pipe, group, stage, cta))
        return max(counts, default=0)

    # -- control flow

    def walk(self, agent, nodes):
        """Yields an operation while it blocks, None after each step."""
        for op, kind, body in nodes:
            name = op.operation.name
            if name == "scf.for":
                lower, upper, step = (agent.scalars.value(v) for v in list(op.operation.operands)[:3])
                induction = op.operation.regions[0].blocks[0].arguments[0]
                if step <= 0:
                    raise op_diagnostic(op, f"has a step of {step}", why="it would never end", fix="count upwards, by a step of at least 1")
                for i in range(lower, upper, step):
                    _forget(self.program.values_in(op), agent.scalars.known)
                    agent.scalars.known[induction] = i
                    yield from self.walk(agent, body)
            elif name == "scf.if":
                if agent.scalars.value(op.operation.operands[0]):
                    yield from self.walk(agent, body)
            elif kind is warp.WalkOp:
                yield from self.walk_tiles(agent, op, body)
            elif kind is warp.ElectOp:
                if agent.group == 0 or op.scope.value != "role":
                    yield from self.walk(agent, body)
            elif kind is warp.WhenOp:
                if agent.scalars.rng.random() < 0.5:  # what it decides on is data
                    yield from self.walk(agent, body)
            elif kind in _RULES:
                yield from _RULES[kind](self, agent, op) or ()
                yield None

    def walk_tiles(self, agent, op, body):
        """The same tiles for all roles; who takes one passes its number on once the last one was read by all."""
        if op.state is None:
            raise op_diagnostic(op, "has no pipe", why="the roles would not learn of the next tile", fix="run warp-insert-barriers")
        block, place = op.body.blocks[0], agent.places[op.state]
        slot = self.slot(place)
        for number in self.tiles:
            _forget(self.program.values_in(op), agent.scalars.known)
            agent.scalars.known[block.arguments[0]] = number
            yield from self.walk(agent, body)
            if op.queue is not None:
                while slot.emptied % 2 == place.phase:
                    yield op
                slot.filled += 1
            else:
                while slot.filled % 2 == place.phase:
                    yield op
                key = (agent, place.pipe, place.group, place.stage, op.state)
                self.reads[key] = self.reads.get(key, 0) + 1
                slot.arrivals += agent.warps
                if slot.arrivals == self._arrivals(place):
                    slot.arrivals, slot.emptied = 0, slot.emptied + 1
            place.phase = 1 - place.phase

    # -- pipes

    def slot(self, place, cta: int | None = None) -> _Slot:
        """The slot of this CTA, or of `cta`: who empties it, and as a rule who fills it."""
        return self.slots.setdefault((place.pipe, place.group, place.stage, place.cta if cta is None else cta), _Slot())

    def full(self, place) -> _Slot:
        """The slot whose full barrier is meant: of a pipe with `leader` that of the pair's first CTA."""
        return self.slot(place, 0 if place.pipe.owner.opview.leader.value else None)

    def state(self, agent, op) -> None:
        group = agent.group if op.group is None and op.pipe.owner.opview.groups.value > 1 else op.group.value if op.group is not None else 0
        producer = op.phase.value == 1
        agent.places[op.out] = _Place(op.pipe, 0, op.phase.value, producer, group, agent.cta, seen=-1 if producer else 0)

    def acquire(self, agent, op):
        place = agent.places[op.state]
        if not self._arrivals(place):
            raise op_diagnostic(
                op,
                "acquires a slot that nobody ever empties",
                why="its pipeline has arrivals = 0",
                fix="set arrivals to the number of reading warps",
            )
        while self.slot(place).emptied % 2 == place.phase:  # a fresh mbarrier answers true for parity 1
            yield op
        place.acquired = True
        self.learn(agent, self.slot(place).empty_clock)

    def _arrivals(self, place) -> int:
        return place.pipe.owner.opview.arrivals.value

    def arm(self, agent, op) -> None:
        place, slot = agent.places[op.state], self.full(agent.places[op.state])
        if self._arrivals(place) and not place.acquired:
            raise op_diagnostic(
                op,
                "fills a slot that was not acquired",
                why="readers of its last content may not be done",
                fix="put warp.acquire before it",
            )
        if place.pipe.owner.opview.leader.value and agent.cta:
            return  # the first CTA counts the bytes of both
        if slot.armed:
            raise op_diagnostic(op, "arms a slot twice", why="the phase before has not completed")
        slot.armed = True
        self.tell(agent, slot.full_clock)
        self._complete_fill(place)

    def tma_load(self, agent, op) -> None:
        if op.state is None:
            raise op_diagnostic(op, "has no pipe", why="nobody learns when its bytes have come", fix="run warp-insert-barriers")
        place = agent.places[op.state]
        slot = self.full(place)
        if op.shared.value != (place.pipe.owner.opview.ctas.value > 1):
            raise op_diagnostic(
                op,
                f"is {'shared' if op.shared.value else 'not shared'}, but its pipeline counts on {place.pipe.owner.opview.ctas.value} CTAs",
                why="a slot is filled by all CTAs of the cluster, each a share, or by its own alone",
                fix="make shared and the pipeline's ctas agree",
            )
        if slot.readers:
            raise op_diagnostic(
                op,
                "overwrites a slot that is still being read",
                why=f"role {next(iter(slot.readers)).name} has not released it",
                fix="acquire the slot first; release it after the last read",
            )
        if slot.filled and self._arrivals(place) == 0:
            raise op_diagnostic(op, "fills a slot for the second time that nobody ever empties", why="its pipeline has arrivals = 0")
        self._check_overwrite(agent, op, op.buffer)
        self._check_stage(op, op.buffer, place)
        emptied = self.slot(place).emptied
        if slot.filled > emptied and self._arrivals(place):
            raise op_diagnostic(
                op,
                "overwrites a slot before it was read",
                why=f"it was filled {slot.filled} times and emptied {emptied} times",
                fix="acquire the slot first, from phase 1 on",
            )
        slot.buffers = slot.buffers | {op.buffer} if slot.bytes_in else {op.buffer}
        slot.bytes_in += op.buffer.type.shape[1] * op.buffer.type.shape[2] * warp.bits_of(op.buffer.type.element_type) // 8
        self._complete_fill(place)
        if slot.bytes_in > place.pipe.owner.opview.tx_bytes.value:
            raise op_diagnostic(
                op,
                f"brings {slot.bytes_in} bytes into a slot",
                why=f"its pipeline counts tx_bytes = {place.pipe.owner.opview.tx_bytes.value}",
            )

    def _check_stage(self, op, buffer, place) -> None:
        if place.stage >= buffer.type.shape[0]:
            raise op_diagnostic(
                op,
                f"goes to stage {place.stage} of a buffer that has {buffer.type.shape[0]}",
                why=f"its pipeline has {place.pipe.owner.opview.stages.value} stages",
                fix="give both the same number of stages",
            )

    def _complete_fill(self, place) -> None:
        slot = self.full(place)
        if slot.armed and slot.bytes_in == place.pipe.owner.opview.tx_bytes.value:
            slot.armed, slot.bytes_in, slot.filled = False, 0, slot.filled + 1
            slot.arrivals = 0

    def wait(self, agent, op):
        place = agent.places[op.state]
        if place.waited:
            raise op_diagnostic(
                op, "waits for a slot twice", why="the role has not advanced", fix="release and advance after the last read"
            )
        if agent.cta and place.pipe.owner.opview.leader.value:
            raise op_diagnostic(op, "waits in both CTAs of a pair", why="the full barriers of its pipeline are those of the first CTA",
                                fix="let a role with leader = true wait")
        slot = self.full(place)
        while slot.filled % 2 == place.phase:
            yield op
        place.waited, place.released = True, False
        place.seen = slot.filled
        self.learn(agent, slot.full_clock)
        slot.readers.add(agent)
        key = (agent, place.pipe, place.group, place.stage, op.state)
        self.reads[key] = self.reads.get(key, 0) + 1

    def release(self, agent, op) -> None:
        place = agent.places[op.state]
        if not place.waited or place.released:
            raise op_diagnostic(op, "releases a slot that it does not hold", why="there was no wait, or it was released before")
        slot = self.slot(place)
        for _, _, reads, _ in [*agent.in_flight, agent.open_group]:
            if any(s is slot for s, _ in reads):
                raise op_diagnostic(
                    op,
                    "releases a slot that an MMA in flight still reads",
                    why="the producer may overwrite it now",
                    fix="put warp.wgmma_wait before it",
                )
        if any(store.slot is slot for group in [agent.open_stores, *agent.store_groups] for store in group):
            raise op_diagnostic(op, "releases a slot that an addition may still read", why="it is asynchronous",
                                fix="put warp.store_commit and warp.store_wait {pending = 0} before it")
        if any(s is slot for s in agent.unsynced):
            raise op_diagnostic(
                op,
                "releases a slot that other lanes may still read",
                why="one lane arrives for its warp, and nothing says that the others are done",
                fix="put warp.sync_warp before it",
            )
        self._arrive_empty(agent, op, place, agent.warps)

    def give_back(self, agent, op, place, arrivals: int, ctas: int) -> None:
        """By a commit: once all MMAs before it are done. Of one CTA, or of both of the pair."""
        if not place.waited or place.released:
            raise op_diagnostic(op, "releases a slot that it does not hold", why="there was no wait, or it was released before")
        if place.pipe.owner.opview.ctas.value > 1:
            raise op_diagnostic(op, "releases a slot of several CTAs", why="a commit arrives on the barriers of its own CTA only",
                                fix="leave out tile-multicast")
        for cta in range(2) if ctas == 2 else [agent.cta]:
            self._arrive_empty(agent, op, place, arrivals, cta)

    def _arrive_empty(self, agent, op, place, arrivals: int, cta: int | None = None) -> None:
        slot = self.slot(place, cta)
        self.tell(agent, slot.empty_clock)
        place.released = True
        self.full(place).readers.discard(agent)
        slot.arrivals += arrivals * place.pipe.owner.opview.ctas.value  # the other CTAs do what this one does
        if slot.arrivals == self._arrivals(place):
            slot.arrivals, slot.emptied = 0, slot.emptied + 1
        elif slot.arrivals > self._arrivals(place):
            raise op_diagnostic(
                op, f"brings {slot.arrivals} arrivals to a slot", why=f"its pipeline counts arrivals = {self._arrivals(place)}"
            )

    def advance(self, agent, op) -> None:
        place = agent.places[op.state]
        others = [p for p in agent.places.values() if p.pipe == place.pipe and p is not place]  # who reads a slot last releases it
        if not place.producer and self._arrivals(place) and not place.released and not others:
            raise op_diagnostic(
                op, "leaves a slot that it has not released", why="the producer will wait for it forever", fix="put warp.release before it"
            )
        place.stage += 1
        place.acquired = place.waited = place.released = False
        if place.stage == place.pipe.owner.opview.stages.value:
            place.stage, place.phase = 0, 1 - place.phase

    # -- MMAs and fragments

    def wgmma(self, agent, op) -> None:
        reads = []
        for buffer, state in ((op.a, op.a_state), (op.b, op.b_state)):
            if space_of(buffer.type) == "smem" and (slot := self.read_slot(agent, op, buffer, state)) is not None:
                reads.append((slot, buffer))
                self.last_read[agent, buffer] = self.epoch.get(agent, 0)
        a_fragment = {op.a} if space_of(op.a.type) == "reg" else set()
        for written, read, *_ in [*agent.in_flight, agent.open_group]:
            if written & a_fragment or op.acc in read:
                raise op_diagnostic(
                    op,
                    "uses registers of an MMA in flight",
                    why="it reads an accumulator, or overwrites an operand, that is not complete",
                    fix="put warp.wgmma_wait before it",
                )
        self._check_defined(agent, op, a_fragment | ({op.acc} if op.accumulate.value else set()))
        if not agent.fence_seen or agent.unfenced & (a_fragment | {op.acc}):
            raise op_diagnostic(
                op,
                "may run before earlier accesses to its registers",
                why="nothing orders it behind them",
                fix="put warp.wgmma_fence before it",
            )
        agent.defined.add(op.acc)
        agent.open_group[0].add(op.acc)
        agent.open_group[1] |= a_fragment
        agent.open_group[2] += reads

    def read_slot(self, agent, op, buffer, state):
        """An MMA reads a slot, or None for a buffer that threads wrote."""
        if state is None or warp.is_slot_number(state):
            self._read_written(agent, op, buffer, 0 if state is None else agent.scalars.value(state))
            return None
        return self._check_slot(agent, op, buffer, state)

    def _check_slot(self, agent, op, buffer, state):
        """The slot, which is full and holds what `op` means."""
        place = agent.places[state]
        if not place.waited or place.released:
            raise op_diagnostic(
                op,
                "reads a slot of its buffer that was not waited for",
                why="who fills it may still be writing it",
                fix="put warp.wait before it, and warp.release after",
            )
        self._check_stage(op, buffer, place)
        if buffer not in self.full(place).buffers:
            raise op_diagnostic(
                op,
                "reads a buffer by the state of another one",
                why="what its pipeline has filled is a different buffer",
                fix="name the state of the pipeline that the buffer goes through",
            )
        if any((cta, buffer) in self.overwritten for cta in self.ctas_of(agent, op)):
            raise op_diagnostic(op, "reads a buffer that was overwritten", why="another buffer over the same bytes was written before")
        return self.full(place)

    def plain_read(self, agent, op) -> None:
        """Threads read a slot into registers."""
        if op.state is None:
            raise op_diagnostic(op, "has no pipe", why="nobody says that its bytes have come", fix="run warp-insert-barriers")
        agent.unsynced.append(self._check_slot(agent, op, op.buffer, op.state))
        self.last_read[agent, op.buffer] = self.epoch.get(agent, 0)
        self.touch(agent, op)

    def sync_warp(self, agent, op) -> None:
        idle = not agent.unsynced and not agent.lanes_wrote and "fenced" not in agent.handing.values() and agent.turn_known_to != "one"
        if idle and agent.role not in self.program.passes_rows:
            raise op_diagnostic(op, "synchronises lanes that did nothing", why="no load into registers, or write, came before it, and no "
                                "wait for a turn", fix="remove it")
        agent.unsynced, agent.lanes_wrote, agent.turn_known_to, agent.passed = [], False, "", False
        agent.handing = {state: "synced" if how == "fenced" else how for state, how in agent.handing.items()}

    def _read_written(self, agent, op, buffer, number: int) -> None:
        """An MMA reads a slot that threads of the role write: all writers whose part it reads must have written it as often as this one."""
        agent.unread.pop((buffer, number), None)
        if not 0 <= number < buffer.type.shape[0]:
            raise op_diagnostic(op, f"reads slot {number} of a buffer that has {buffer.type.shape[0]}", fix="give it more stages")
        own = agent.cells.setdefault((buffer, number), _Cell())
        for other in self._sharers(agent, op, buffer):
            theirs = other.cells.get((buffer, number), _Cell())
            if not theirs.version or theirs.version != own.version or self._barriers(agent, buffer) < theirs.visible_from:
                raise op_diagnostic(
                    op,
                    "reads a buffer that "
                    + ("its warpgroup's writes have" if other is agent else f"the writes of role {other.name} have")
                    + " not reached",
                    why="writes of threads reach wgmma by a fence and a barrier",
                    fix="put warp.fence_async and warp.barrier after the write",
                )
        own.reads += 1
        own.free_from = math.inf
        agent.open_group[3].append((buffer, number))

    def _sharers(self, agent, op, buffer) -> list:
        """The agents whose parts of the buffer this MMA reads."""
        of_role = self.fellows(agent)
        return [agent] if shared_exchange.reads_own_part(op, buffer, len(of_role)) else of_role

    def fellows(self, agent) -> list:
        """The agents of its role, in its CTA."""
        return [a for a in self.agents if a.role == agent.role and a.cta == agent.cta]

    def ctas_of(self, agent, op):
        """In which CTAs' memories an operation reads and writes."""
        return range(2) if isinstance(op, warp_tmem.Tcgen05MmaOp) and op.ctas.value == 2 else [agent.cta]

    def _barriers(self, agent, buffer) -> int:
        """How many barriers of those that matter for the buffer the agent has passed."""
        narrow = self.program.exchanged[agent.role].get(buffer) == "warpgroup"
        return agent.group_barriers if narrow else self.epoch.get(agent, 0)

    def fence(self, agent, op) -> None:
        agent.fence_seen, agent.unfenced = True, set()

    def _check_defined(self, agent, op, fragments) -> None:
        if not fragments <= agent.defined:
            raise op_diagnostic(
                op, "reads a fragment into which nothing was written", why="registers hold garbage at first", fix="put warp.fill before it"
            )

    def commit(self, agent, op) -> None:
        if not agent.open_group[0]:
            raise op_diagnostic(op, "closes a group without MMAs", why="there was no warp.wgmma since the last one", fix="remove it")
        agent.in_flight.append(tuple(agent.open_group))
        agent.open_group = [set(), set(), [], []]

    def wgmma_wait(self, agent, op) -> None:
        done = max(0, len(agent.in_flight) - op.pending.value)
        read = {cell for group in agent.in_flight[:done] for cell in group[3]}
        agent.in_flight = agent.in_flight[done:]
        for cell in read - {cell for group in [*agent.in_flight, agent.open_group] for cell in group[3]}:
            agent.cells[cell].free_from = self._barriers(agent, cell[0]) + 1

    def touch(self, agent, op) -> None:
        read, written = fragments_touched(op)
        if agent.loading:
            self.touch_fragments(agent, op, read, written)
        for acc, operand, *_ in [*agent.in_flight, agent.open_group]:
            if acc & (read | written) or operand & written:
                what = "reads or writes an accumulator of" if acc & (read | written) else "overwrites an operand of"
                raise op_diagnostic(
                    op, f"{what} an MMA in flight", why="its registers are not usable until a wait", fix="put warp.wgmma_wait before it"
                )
        starts_from = written if isinstance(op, warp.ReduceOp) and op.accumulate.value else set()
        self._check_defined(agent, op, read | starts_from)
        agent.defined |= written
        agent.unfenced |= read | written

    # -- shared memory of threads

    def _write_slot(self, agent, op) -> None:
        """A slot that another role takes over."""
        place = agent.places[op.slot]
        if not place.acquired:
            raise op_diagnostic(op, "writes a slot that was not acquired", why="who takes it over may not be done with its last content",
                                fix="put warp.acquire before it")
        self._check_stage(op, op.buffer, place)
        self.slot(place).buffers = {op.buffer}
        agent.handing[op.slot] = "written"

    def check_handed_over(self, agent, op) -> None:
        if self._arrivals(agent.places[op.state]) and agent.handing.pop(op.state, "") != "synced":
            raise op_diagnostic(op, "hands a slot over before its warp's writes can be seen", why="the lanes' writes reach TMA by a fence "
                                "of each, and one lane arrives for its warp", fix="put warp.fence_async and then warp.sync_warp before it")

    def store_shared(self, agent, op) -> None:
        self.touch(agent, op)
        self._check_overwrite(agent, op, op.buffer)
        if op.slot is not None and not warp.is_slot_number(op.slot):
            self._write_slot(agent, op)
            return
        number = 0 if op.slot is None else agent.scalars.value(op.slot)
        stored = _stored_slots([store for group in [agent.open_stores, *agent.store_groups] for store in group])
        if (op.buffer, number) in [*agent.drained, *stored]:
            raise op_diagnostic(
                op,
                "overwrites a buffer that a TMA store may still read",
                why="the store was not waited for, or only one thread knows",
                fix="put warp.store_wait and then warp.barrier before it",
            )
        agent.wrote.add(op.buffer)
        agent.fenced.discard(op.buffer)
        agent.synced.discard(op.buffer)
        self.write_operand(agent, op)
        self._write_cell(agent, op, number)

    def _write_cell(self, agent, op, number: int) -> None:
        """All MMAs that read what the slot held must be known to be complete, those of other warpgroups too."""
        if not 0 <= number < op.buffer.type.shape[0]:
            raise op_diagnostic(op, f"writes slot {number} of a buffer that has {op.buffer.type.shape[0]}", fix="give it more stages")
        agent.unread[op.buffer, number] = op
        own = agent.cells.setdefault((op.buffer, number), _Cell())
        narrow = self.program.exchanged[agent.role].get(op.buffer) == "warpgroup"
        for other in [agent] if narrow else self.fellows(agent):
            theirs = other.cells.get((op.buffer, number), _Cell())
            behind = theirs.version < own.version or (theirs.version == own.version and theirs.reads < own.reads)
            busy = theirs.version == own.version and theirs.free_from > self._barriers(agent, op.buffer)
            if own.reads and (behind or busy):
                raise op_diagnostic(
                    op,
                    "overwrites a slot that an MMA may still read",
                    why=f"role {other.name} reads it, and no wait with a barrier behind it says that it is done",
                    fix="put warp.wgmma_wait and then warp.barrier before it, or give the buffer more stages",
                )
        agent.cells[op.buffer, number] = _Cell(own.version + 1, visible_from=math.inf, fenced=False)

    def _check_overwrite(self, agent, op, buffer) -> None:
        for other in self.program.overlapping[buffer]:
            for reader in [a for a in self.agents if a.cta == agent.cta]:
                read_at = self.last_read.get((reader, other))
                if read_at is not None and read_at >= self.epoch.get(reader, 0):
                    raise op_diagnostic(
                        op,
                        "overwrites bytes of another buffer that may still be read",
                        why=f"role {reader.name} read it, and no barrier of the role came after",
                        fix='put warp.barrier {scope = "role"} before it',
                    )
            self.check_mma_reads(agent, op, other)
            for _, _, reads, _ in [g for a in self.agents if a.cta == agent.cta for g in [*a.in_flight, a.open_group]]:
                if any(b == other for _, b in reads):
                    raise op_diagnostic(op, "overwrites bytes of another buffer that an MMA in flight reads")
            self.overwritten.add((agent.cta, other))

    def fence_async(self, agent, op) -> None:
        agent.fenced |= agent.wrote
        self.fence_operands(agent, op.cluster.value)
        agent.handing = {state: "fenced" if how == "written" else how for state, how in agent.handing.items()}
        for (buffer, _), cell in agent.cells.items():
            if not cell.fenced:
                cell.fenced, cell.visible_from = True, self._barriers(agent, buffer) + 1

    def tma_store(self, agent, op) -> None:
        if op.buffer not in agent.synced:
            raise op_diagnostic(
                op,
                "stores a buffer that its warpgroup's writes have not reached",
                why="writes of threads reach TMA by a fence and a barrier",
                fix="put warp.fence_async and warp.barrier before it",
            )
        agent.open_stores.append(_Store(op))
        agent.unread.pop((op.buffer, op.slot.value), None)

    def tma_add(self, agent, op) -> None:
        if op.state is None:
            raise op_diagnostic(op, "has no pipe", why="nobody says that its buffer is written", fix="run warp-insert-barriers")
        agent.open_stores.append(_Store(op, self._check_slot(agent, op, op.buffer, op.state)))

    # -- additions in turn

    def global_add(self, agent, op) -> None:
        self.touch(agent, op)
        if agent.turn_known_to == "one":
            raise op_diagnostic(
                op, "adds before all threads know that it is their turn", why="one thread waited for it", fix="put warp.barrier before it"
            )
        agent.adding = True

    def wait_count(self, agent, op) -> None:
        agent.turn_known_to = "one"

    def add_count(self, agent, op) -> None:
        if agent.adding or any(store.adds for store in [*agent.open_stores, *agent.incomplete]):
            raise op_diagnostic(
                op,
                "counts before what the warpgroup added is there",
                why="threads' additions are known by a barrier, those of TMA stores by a wait for their completion",
                fix="put warp.barrier, or warp.store_wait {complete = true}, before it",
            )

    def store_commit(self, agent, op) -> None:
        if not agent.open_stores:
            raise op_diagnostic(op, "closes a group without stores", why="there was no warp.tma_store since the last one", fix="remove it")
        agent.store_groups.append(agent.open_stores)
        agent.incomplete += agent.open_stores
        agent.open_stores = []

    def store_wait(self, agent, op) -> None:
        done = max(0, len(agent.store_groups) - op.pending.value)
        agent.drained |= set(_stored_slots([store for group in agent.store_groups[:done] for store in group]))
        agent.store_groups = agent.store_groups[done:]
        if op.complete.value:
            agent.incomplete = [store for group in agent.store_groups for store in group]

    # -- named barriers

    def barrier(self, agent, op):
        per_group = op.scope.value == "warpgroup"
        key = (op.id.value + agent.group, "group", agent.cta) if per_group else (op.id.value, "role", agent.cta)
        need = 1 if per_group else len(self.fellows(agent))
        yield from self._meet(agent, op, key, need)
        agent.synced |= agent.fenced
        agent.group_barriers += 1
        agent.turn_known_to, agent.adding = "", False
        agent.drained, agent.unsynced, agent.lanes_wrote, agent.passed = set(), [], False, False

    def _meet(self, agent, op, key, need):
        waiting = self.barriers.setdefault(key, [0, 0])  # arrivals of this generation, generation
        generation = waiting[1]
        self._arrive(waiting, need)
        if waiting[1] != generation and key[1] == "role":  # complete: all have passed the reads before it
            for other in self.fellows(agent):
                self.epoch[other] = self.epoch.get(other, 0) + 1
        while waiting[1] == generation:
            yield op

    def _arrive(self, waiting, need) -> None:
        waiting[0] += 1
        if waiting[0] == need:
            waiting[0], waiting[1] = 0, waiting[1] + 1

    def turn_init(self, agent, op) -> None:
        if agent.group == 0:
            self._arrive(self.barriers.setdefault((op.id.value, "turn"), [0, 0]), 2)

    def turn_take(self, agent, op):
        if agent.has_turn:
            raise op_diagnostic(op, "takes a turn that its warpgroup has", why="it did not give it on", fix="put warp.turn_give before it")
        agent.has_turn = True
        yield from self._meet(agent, op, (op.id.value + agent.group, "turn"), 2)

    def turn_give(self, agent, op) -> None:
        if not agent.has_turn:
            raise op_diagnostic(
                op, "gives a turn that its warpgroup does not have", why="it did not take it", fix="put warp.turn_take before it"
            )
        agent.has_turn = False
        groups = len(self.fellows(agent))
        self._arrive(self.barriers.setdefault((op.id.value + (agent.group + 1) % groups, "turn"), [0, 0]), 2)


def _stored_slots(stores: list) -> list:
    """(buffer, slot) of what TMA stores read of their own role's buffers."""
    return [(store.op.buffer, store.op.slot.value) for store in stores if isinstance(store.op, warp.TmaStoreOp)]


def fragments_touched(op) -> tuple[set, set]:
    """(fragments read, fragments written) by an operation on registers."""
    if isinstance(op, warp.MapOp):
        return set(op.inputs), {op.target}
    if isinstance(op, (warp.ReduceOp, warp.VoteAnyOp, warp.CopyOp)):
        return {op.source}, {op.target}
    if isinstance(op, (warp.FillOp, warp.LoadColumnsOp, warp.LoadFragmentOp)):
        return set(), {op.target}
    if isinstance(op, (warp.StoreRowsOp, warp.StoreSharedOp, warp.GlobalAddOp)):
        return {op.source}, set()
    return tmem_fragments_touched(op)


_RULES = {
    warp.StateOp: _Machine.state,
    warp.AcquireOp: _Machine.acquire,
    warp.ArmOp: _Machine.arm,
    warp.TmaLoadOp: _Machine.tma_load,
    warp.WaitOp: _Machine.wait,
    warp.ReleaseOp: _Machine.release,
    warp.AdvanceOp: _Machine.advance,
    warp.WgmmaOp: _Machine.wgmma,
    warp.WgmmaCommitOp: _Machine.commit,
    warp.WgmmaWaitOp: _Machine.wgmma_wait,
    warp.MapOp: _Machine.touch,
    warp.ReduceOp: _Machine.touch,
    warp.VoteAnyOp: _Machine.touch,
    warp.CopyOp: _Machine.touch,
    warp.FillOp: _Machine.touch,
    warp.StoreRowsOp: _Machine.touch,
    warp.GlobalAddOp: _Machine.global_add,
    warp.WaitCountOp: _Machine.wait_count,
    warp.AddCountOp: _Machine.add_count,
    warp.StoreSharedOp: _Machine.store_shared,
    warp.FenceAsyncOp: _Machine.fence_async,
    warp.TmaStoreOp: _Machine.tma_store,
    warp.TmaAddOp: _Machine.tma_add,
    warp.ArriveOp: _Machine.arrive,
    warp.StoreCommitOp: _Machine.store_commit,
    warp.StoreWaitOp: _Machine.store_wait,
    warp.LoadColumnsOp: _Machine.plain_read,
    warp.LoadFragmentOp: _Machine.plain_read,
    warp.SyncWarpOp: _Machine.sync_warp,
    warp.WgmmaFenceOp: _Machine.fence,
    warp.BarrierOp: _Machine.barrier,
    warp.TurnInitOp: _Machine.turn_init,
    warp.TurnTakeOp: _Machine.turn_take,
    warp.TurnGiveOp: _Machine.turn_give,
    **TMEM_RULES,
}
