"""Tensor memory in the abstract machine of `warp-check`: who may touch which columns when.

Columns remember which tile was written there, so that one is not read of which another one was written over.

Each agent has a clock, and knows how far the others had come at the signals it waited for. An access to columns must know of all earlier
accesses of other agents to them, if one of the two writes. What a commit signals covers all MMAs that its thread issued before; what an
arrival signals, the stores and loads that the thread has waited for (PTX ISA 9.7.16, memory consistency of tcgen05).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..ir import warp, warp_tmem
from ..ir.diagnostics import op_diagnostic
from ..ir.tile import column_of, space_of


@dataclass(frozen=True)
class _Access:
    agent: object
    number: int  # by the agent's own clock
    first: int
    end: int
    block: tuple  # CTA, row block; of a row vector from role to role, that too
    writes: bool


class TmemRules:
    """Mixed into the machine."""

    # -- clocks

    def tick(self, agent) -> int:
        agent.clock[agent] = agent.clock.get(agent, 0) + 1
        return agent.clock[agent]

    def tell(self, agent, known: dict) -> None:
        """`known` learns all that the agent knows now."""
        self.tick(agent)
        for other, number in agent.clock.items():
            known[other] = max(known.get(other, 0), number)

    def learn(self, agent, known: dict) -> None:
        for other, number in known.items():
            agent.clock[other] = max(agent.clock.get(other, 0), number)

    # -- columns

    def columns(self, agent, op, region, number: int, *, reads: bool, writes: bool) -> None:
        """Row block `number` of a tile, of both CTAs where the operation is of a pair."""
        for cta in self.ctas_of(agent, op):
            self._columns(agent, op, region, (cta, number), reads=reads, writes=writes)

    def _columns(self, agent, op, region, block: tuple, *, reads: bool, writes: bool) -> None:
        first = column_of(region.type)
        access = _Access(agent, self.tick(agent), first, first + warp_tmem.words_of(region.type), block, writes)
        self._order(agent, op, access, first)
        held = [self.tmem_content.get((block, column)) for column in range(access.first, access.end)]
        others = [tile for tile in held if tile is None or tile != region]
        if reads and others:
            there = others[0]
            raise op_diagnostic(
                op,
                f"reads columns {access.first} to {access.end - 1} of tensor memory, into which "
                + ("nothing was written" if there is None else "another tile was written"),
                why="what it means is not there" + (f", but part of a {there.type}" if there is not None else ""),
                fix="write the tile first, or give the tiles other columns",
            )
        if writes and not reads and (block, region) in self.tmem_unread:
            raise op_diagnostic(op, "overwrites a tile in tensor memory that nothing has read", why="it was written in vain",
                                fix="read it first, or leave the first write out")  # fmt: skip
        if reads:
            self.tmem_unread.pop((block, region), None)
        if writes:
            self.tmem_unread[block, region] = op
            for column in range(access.first, access.end):
                self.tmem_content[block, column] = region

    def _order(self, agent, op, access, first: int) -> None:
        block, writes = access.block, access.writes
        for past in self.tmem_accesses:
            meets = past.first < access.end and access.first < past.end and past.block == block and (past.writes or writes)
            if meets and past.agent is not agent and agent.clock.get(past.agent, 0) < past.number:
                what = "writes" if past.writes else "reads"
                if len(block) > 2:
                    said = f"touches a row vector while role {past.agent.name} may not be done with it"
                    raise op_diagnostic(op, said, why=f"that role {what} it, and nothing orders the two",
                                        fix="wait for a pipe that is filled after it")
                raise op_diagnostic(
                    op,
                    f"touches columns {max(first, past.first)} to {min(access.end, past.end) - 1} of tensor memory while role "
                    f"{past.agent.name} may not be done with them",
                    why=f"that role {what} them, and nothing orders the two",
                    fix="wait for a pipe that is filled after it, or give the tiles other columns",
                )
        self.tmem_accesses = [p for p in self.tmem_accesses if not (p.agent is agent and p.block == block and _covers(access, p))]
        self.tmem_accesses.append(access)

    # -- operations

    def tcgen05_mma(self, agent, op) -> None:
        for buffer, state in ((op.a, op.a_state), (op.b, op.b_state)):
            if space_of(buffer.type) == "smem":
                if state is None:
                    self._read_operand(agent, op, buffer)
                else:
                    self.read_slot(agent, op, buffer, state)
                self.mma_reads[agent, buffer] = self.tick(agent)
        if space_of(op.a.type) == "tmem":
            self.columns(agent, op, op.a, op.block.value, reads=True, writes=False)
        self.columns(agent, op, op.acc, op.block.value, reads=op.accumulate.value, writes=True)

    def write_operand(self, agent, op) -> None:
        """Threads write a buffer that MMAs may read."""
        self.check_mma_reads(agent, op, op.buffer, "a buffer")
        self.operand_writes.setdefault(op.buffer, {})[agent] = math.inf
        if isinstance(op, warp.StoreSharedOp) and op.exchange.value:
            self.sent.add((agent, op.buffer))
        agent.lanes_wrote = agent.lanes_wrote or op.buffer in self.program.mma_operands

    def fence_operands(self, agent, cluster: bool) -> None:
        """What an agent wrote to its peer's memory too wants a fence of the cluster."""
        for buffer, writes in self.operand_writes.items():
            if writes.get(agent) == math.inf and (cluster or (agent, buffer) not in self.sent):
                writes[agent] = self.tick(agent)

    def _read_operand(self, agent, op, buffer) -> None:
        writes = self.operand_writes.get(buffer)
        if not writes:
            raise op_diagnostic(op, "reads a buffer that nothing was written to", why="no load and no thread fills it",
                                fix="write it first: warp.store_shared")
        for writer, number in writes.items():
            writer.unread.pop((buffer, 0), None)
            if agent.clock.get(writer, 0) < number:
                raise op_diagnostic(op, f"reads a buffer that the writes of role {writer.name} have not reached",
                                    why="writes of threads reach MMAs by a fence and a pipe that is filled behind it",
                                    fix="put warp.fence_async after the write, and wait for a pipe that its role fills after that")

    def check_mma_reads(self, agent, op, buffer, what: str = "bytes of another buffer") -> None:
        """Before bytes of `buffer` are overwritten."""
        for (reader, read), number in self.mma_reads.items():
            if read == buffer and agent.clock.get(reader, 0) < number:
                raise op_diagnostic(op, f"overwrites {what} that may still be read",
                                    why=f"MMAs of role {reader.name} read it, and nothing orders the two",
                                    fix="wait for a pipe that their commit fills")

    def tcgen05_commit(self, agent, op) -> None:
        place = agent.places[op.state]
        if op.barrier.value == "empty":
            self.give_back(agent, op, place, 1, op.ctas.value)
            return
        for cta in range(2) if op.ctas.value == 2 else [agent.cta]:
            self._fill(agent, op, place, 1, cta)

    def arrive(self, agent, op) -> None:
        self.check_handed_over(agent, op)
        if agent.stores:
            raise op_diagnostic(op, "signals before what its role stored to tensor memory is there", why="stores are asynchronous",
                                fix='put warp.tmem_wait {kind = "store"} before it')
        if agent.lanes_wrote:
            raise op_diagnostic(op, "signals before all lanes have written to shared memory", why="one lane arrives for its warp",
                                fix="put warp.sync_warp before it")
        if agent.loading:
            raise op_diagnostic(op, "signals before what its role loads from tensor memory is read", why="loads are asynchronous",
                                fix='put warp.tmem_wait {kind = "load"} before it')
        if agent.passed:
            raise op_diagnostic(op, "signals before all lanes have passed on, or taken, what goes through shared memory",
                                why="one lane arrives for its warp", fix="put warp.sync_warp before it")
        place = agent.places[op.state]
        self._fill(agent, op, place, agent.warps, 0 if place.pipe.owner.opview.leader.value else agent.cta)

    def _fill(self, agent, op, place, arrivals: int, cta: int) -> None:
        """Arrive on the full barrier of the slot in a CTA."""
        slot, pipe = self.slot(place, cta), place.pipe.owner.opview
        if pipe.tx_bytes.value:
            raise op_diagnostic(op, "fills a slot that bytes fill", why=f"its pipeline counts tx_bytes = {pipe.tx_bytes.value}")
        slot.fills += arrivals
        self.tell(agent, slot.full_clock)
        if slot.fills > pipe.fills.value:
            raise op_diagnostic(op, f"brings {slot.fills} arrivals to a slot", why=f"its pipeline counts fills = {pipe.fills.value}")
        if slot.fills == pipe.fills.value:
            slot.fills, slot.filled = 0, slot.filled + 1
            waiting = [(a, p) for a in self.agents if a.cta == cta for p in a.places.values() if self._waits_on(p, place)]
            late = next((a for a, p in waiting if p.seen[place.stage] + 1 < slot.filled), None)
            if late is not None and not pipe.arrivals.value:
                raise op_diagnostic(op, "fills a slot again before it was waited for", why=f"role {late.name} would miss a phase",
                                    fix="wait for that role first")

    def _waits_on(self, other, place) -> bool:
        return other.pipe == place.pipe and other.group == place.group and place.stage in other.seen and other is not place

    # -- row vectors from role to role

    def post(self, agent, op) -> None:
        self.touch_fragments(agent, op, {op.source}, set())
        self._box(agent, op, writes=True)
        self.posted.add((agent.cta, agent.group, op.box))

    def fetch(self, agent, op) -> None:
        if (agent.cta, agent.group, op.box) not in self.posted:
            raise op_diagnostic(op, "takes a row vector that nobody passed on", why="shared memory holds garbage",
                                fix="put warp.post first")
        self._box(agent, op, writes=False)
        self.touch_fragments(agent, op, set(), {op.target})

    def _box(self, agent, op, *, writes: bool) -> None:
        self._order(agent, op, _Access(agent, self.tick(agent), 0, 1, (agent.cta, agent.group, op.box), writes), 0)
        agent.passed = True

    # -- between tensor memory and registers

    def tmem_load(self, agent, op) -> None:
        self._own_stores(agent, op, op.source)
        self.columns(agent, op, op.source, agent.group, reads=True, writes=False)
        agent.loading.add(op.target)
        agent.defined.add(op.target)

    def tmem_store(self, agent, op) -> None:
        self.touch_fragments(agent, op, {op.source}, set())
        self.columns(agent, op, op.target, agent.group, reads=False, writes=True)
        agent.stores.add(op.target)

    def tmem_wait(self, agent, op) -> None:
        (agent.loading if op.kind.value == "load" else agent.stores).clear()

    def tmem_map(self, agent, op) -> None:
        self.touch_fragments(agent, op, *tmem_fragments_touched(op))
        if op.rows and not len(op.states):
            raise op_diagnostic(op, "has no pipe", why="nobody says that its column values have come", fix="run warp-insert-barriers")
        for buffer, state in zip(op.rows, op.states, strict=False):
            agent.unsynced.append(self._check_slot(agent, op, buffer, state))
            self.last_read[agent, buffer] = self.epoch.get(agent, 0)
        for region in op.inputs:
            if space_of(region.type) == "tmem":
                self._own_stores(agent, op, region)
                self.columns(agent, op, region, agent.group, reads=True, writes=False)
        if space_of(op.target.type) == "tmem":
            self.columns(agent, op, op.target, agent.group, reads=op.target in list(op.inputs), writes=True)
            agent.stores.add(op.target)
        if op.buffer is not None:
            self.store_shared(agent, op)

    def _own_stores(self, agent, op, region) -> None:
        first, end = column_of(region.type), column_of(region.type) + warp_tmem.words_of(region.type)
        for stored in agent.stores:
            at = column_of(stored.type)
            if at < end and first < at + warp_tmem.words_of(stored.type):
                raise op_diagnostic(op, "loads what its role stored and did not wait for", why="stores to tensor memory are asynchronous",
                                    fix='put warp.tmem_wait {kind = "store"} before it')

    def touch_fragments(self, agent, op, read: set, written: set) -> None:
        if agent.loading & (read | written):
            raise op_diagnostic(op, "uses a fragment that is being loaded from tensor memory", why="loads are asynchronous",
                                fix='put warp.tmem_wait {kind = "load"} before it')
        self._check_defined(agent, op, read)
        agent.defined |= written


def _covers(new: _Access, old: _Access) -> bool:
    """Whether who is ordered behind the new access is so behind the old one, of the same agent."""
    return new.first <= old.first and old.end <= new.end and (new.writes or not old.writes)


def tmem_fragments_touched(op) -> tuple[set, set]:
    """(fragments read, fragments written) by an operation between registers and tensor memory."""
    if isinstance(op, warp_tmem.TmemMapOp):
        results = [op.target, op.beside] if isinstance(op, warp_tmem.TmemMapBothOp) else [op.target]
        written = {value for value in results if space_of(value.type) == "reg"}
        return {value for value in op.inputs if space_of(value.type) == "reg"}, written
    if isinstance(op, (warp_tmem.TmemLoadOp, warp_tmem.FetchOp)):
        return set(), {op.target}
    if isinstance(op, (warp_tmem.TmemStoreOp, warp_tmem.PostOp)):
        return {op.source}, set()
    return set(), set()


TMEM_RULES = {
    warp_tmem.Tcgen05MmaOp: TmemRules.tcgen05_mma,
    warp_tmem.Tcgen05CommitOp: TmemRules.tcgen05_commit,
    warp_tmem.TmemLoadOp: TmemRules.tmem_load,
    warp_tmem.TmemStoreOp: TmemRules.tmem_store,
    warp_tmem.TmemWaitOp: TmemRules.tmem_wait,
    warp_tmem.TmemMapOp: TmemRules.tmem_map,
    warp_tmem.TmemMapBothOp: TmemRules.tmem_map,
    warp_tmem.PostOp: TmemRules.post,
    warp_tmem.FetchOp: TmemRules.fetch,
}
