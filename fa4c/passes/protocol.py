"""The abstract machine of `warp-check`: roles as agents, stepped side by side over an abstract state, without data.

An agent is a producer warp or one compute warpgroup, of one CTA, or of both where they work in pairs. Scalars are evaluated for sampled
sizes; every operation either changes the state, blocks, or is a finding. Rules (PTX ISA): an mbarrier phase completes when its arrivals
and bytes are in; a wait for parity p returns once
the phase of that parity has completed; wgmma is in flight until a wait_group retires it, and a wgmma.fence orders it behind other
accesses to its registers; writes of threads reach the async proxy by a fence and a barrier; shared memory must stay until the TMA stores
that read it are done, and until all warpgroups' MMAs that read it are known to be.
"""

from __future__ import annotations

import random

from ..ir import warp, warp_tmem
from ..ir.diagnostics import op_diagnostic
from ..ir.tile import space_of
from .protocol_pipes import PIPE_RULES, PipeRules
from .protocol_shared import SharedRules
from .protocol_state import Agent, MmaGroup, Program
from .protocol_tmem import TMEM_RULES, TmemRules, tmem_fragments_touched
from .sampled_scalars import SampledScalars

_SAMPLES = 16
_MAX_STEPS = 20000


def check(kernel) -> None:
    """Run `kernel` for several samples of sizes. Raises Diagnostic for the first finding."""
    rng = random.Random(0)  # fixed: the same kernel gets the same verdict
    program = Program(kernel)
    for sample in range(_SAMPLES):
        _Machine(program, SampledScalars(rng, sample, counted=program.counted, pairs=program.paired)).run()


def _forget(values, known) -> None:
    """What the last iteration computed."""
    for value in values:
        known.pop(value, None)


class _Machine(PipeRules, SharedRules, TmemRules):
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
                self.agents += [Agent(self, role, g, 4 if active >= 4 else active, cta) for g in groups]

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
        for written in [slot.written for slot in self.slots.values() if slot.written is not None]:
            raise op_diagnostic(written, "hands over a buffer that nothing takes", fix="store it with warp.tma_put, or leave the write out")
        for agent in self.agents:
            if agent.in_flight or agent.open_group.accumulators:
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
        self.check_slots()

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
            elif kind is warp.SlotOwnerOp:  # one warp after the other; what they do at the same time, the emulator shows
                warps, agent.warps = agent.warps, 1
                yield from self.walk(agent, body)
                agent.warps = warps
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

    # -- MMAs and fragments

    def wgmma(self, agent, op) -> None:
        reads = []
        for buffer, state in ((op.a, op.a_state), (op.b, op.b_state)):
            if space_of(buffer.type) == "smem" and (slot := self.read_slot(agent, op, buffer, state)) is not None:
                reads.append((slot, buffer))
                self.last_read[agent, buffer] = self.epoch.get(agent, 0)
        a_fragment = {op.a} if space_of(op.a.type) == "reg" else set()
        for group in [*agent.in_flight, agent.open_group]:
            if group.accumulators & a_fragment or op.acc in group.operands:
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
        agent.open_group.accumulators.add(op.acc)
        agent.open_group.operands |= a_fragment
        agent.open_group.slots += reads

    def fence(self, agent, op) -> None:
        agent.fence_seen, agent.unfenced = True, set()

    def _check_defined(self, agent, op, fragments) -> None:
        if not fragments <= agent.defined:
            raise op_diagnostic(
                op, "reads a fragment into which nothing was written", why="registers hold garbage at first", fix="put warp.fill before it"
            )

    def commit(self, agent, op) -> None:
        if not agent.open_group.accumulators:
            raise op_diagnostic(op, "closes a group without MMAs", why="there was no warp.wgmma since the last one", fix="remove it")
        agent.in_flight.append(agent.open_group)
        agent.open_group = MmaGroup()

    def wgmma_wait(self, agent, op) -> None:
        done = max(0, len(agent.in_flight) - op.pending.value)
        read = {cell for group in agent.in_flight[:done] for cell in group.cells}
        agent.in_flight = agent.in_flight[done:]
        for cell in read - {cell for group in [*agent.in_flight, agent.open_group] for cell in group.cells}:
            agent.cells[cell].free_from = self._barriers(agent, cell[0]) + 1

    def touch(self, agent, op) -> None:
        read, written = fragments_touched(op)
        if agent.loading:
            self.touch_fragments(agent, op, read, written)
        for group in [*agent.in_flight, agent.open_group]:
            if group.accumulators & (read | written) or group.operands & written:
                what = "reads or writes an accumulator of" if group.accumulators & (read | written) else "overwrites an operand of"
                raise op_diagnostic(
                    op, f"{what} an MMA in flight", why="its registers are not usable until a wait", fix="put warp.wgmma_wait before it"
                )
        starts_from = written if isinstance(op, warp.ReduceOp) and op.accumulate.value else set()
        self._check_defined(agent, op, read | starts_from)
        agent.defined |= written
        agent.unfenced |= read | written

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

    def sync_warp(self, agent, op) -> None:
        idle = not agent.unsynced and not agent.lanes_wrote and "fenced" not in agent.handing.values() and agent.turn_known_to != "one"
        if idle and agent.role not in self.program.passes_rows:
            raise op_diagnostic(op, "synchronises lanes that did nothing", why="no load into registers, or write, came before it, and no "
                                "wait for a turn", fix="remove it")
        agent.unsynced, agent.lanes_wrote, agent.turn_known_to, agent.passed = [], False, "", False
        agent.handing = {state: "synced" if how == "fenced" else how for state, how in agent.handing.items()}

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
    **PIPE_RULES,
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
    warp.TmaAddOp: _Machine.take,
    warp.TmaPutOp: _Machine.take,
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
