"""Rules of `protocol` for tiles in shared memory: who may read a slot, who may write it, and when TMA stores have read it."""

from __future__ import annotations

import math

from ..ir import warp
from ..ir.diagnostics import op_diagnostic
from . import shared_exchange
from .protocol_state import Cell, Store


class SharedRules:
    """Mixed into the machine that runs a kernel without data."""

    def read_slot(self, agent, op, buffer, state):
        """An MMA reads a slot, or None for a buffer that threads wrote."""
        if state is None or warp.is_slot_number(state):
            self._read_written(agent, op, buffer, 0 if state is None else agent.scalars.value(state))
            return None
        return self._check_slot(agent, op, buffer, state)

    def _check_slot(self, agent, op, buffer, state):
        """The slot, which is full and holds what `op` means."""
        place = agent.places[state]
        if not self.holds(agent, place):
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

    def _read_written(self, agent, op, buffer, number: int) -> None:
        """An MMA reads a slot that threads of the role write: all writers whose part it reads must have written it as often as this one."""
        agent.unread.pop((buffer, number), None)
        if not 0 <= number < buffer.type.shape[0]:
            raise op_diagnostic(op, f"reads slot {number} of a buffer that has {buffer.type.shape[0]}", fix="give it more stages")
        own = agent.cells.setdefault((buffer, number), Cell())
        for other in self._sharers(agent, op, buffer):
            theirs = other.cells.get((buffer, number), Cell())
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
        agent.open_group.cells.append((buffer, number))

    def _sharers(self, agent, op, buffer) -> list:
        """The agents whose parts of the buffer this MMA reads."""
        of_role = self.fellows(agent)
        return [agent] if shared_exchange.reads_own_part(op, buffer, len(of_role)) else of_role

    def _write_slot(self, agent, op) -> None:
        """A slot that another role takes over."""
        place = agent.places[op.slot]
        if not self._arrivals(place) and self.slot(place).filled:
            raise op_diagnostic(op, "writes a slot for the second time that nobody ever empties", why="its pipeline has arrivals = 0",
                                fix="set arrivals to the number of warps that take it over")
        if self._arrivals(place) and not place.acquired:
            raise op_diagnostic(op, "writes a slot that was not acquired", why="who takes it over may not be done with its last content",
                                fix="put warp.acquire before it")
        self._check_stage(op, op.buffer, place)
        self.slot(place).buffers, self.slot(place).written = {op.buffer}, op
        self.overwritten.discard((agent.cta, op.buffer))
        agent.handing[op.slot] = "written"

    def check_handed_over(self, agent, op) -> None:
        if agent.places[op.state].pipe in self.program.handed_over and agent.handing.pop(op.state, "") != "synced":
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
        own = agent.cells.setdefault((op.buffer, number), Cell())
        narrow = self.program.exchanged[agent.role].get(op.buffer) == "warpgroup"
        for other in [agent] if narrow else self.fellows(agent):
            theirs = other.cells.get((op.buffer, number), Cell())
            behind = theirs.version < own.version or (theirs.version == own.version and theirs.reads < own.reads)
            busy = theirs.version == own.version and theirs.free_from > self._barriers(agent, op.buffer)
            if own.reads and (behind or busy):
                raise op_diagnostic(
                    op,
                    "overwrites a slot that an MMA may still read",
                    why=f"role {other.name} reads it, and no wait with a barrier behind it says that it is done",
                    fix="put warp.wgmma_wait and then warp.barrier before it, or give the buffer more stages",
                )
        agent.cells[op.buffer, number] = Cell(own.version + 1, visible_from=math.inf, fenced=False)

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
            if any(s.op.buffer == other for a in self.agents if a.cta == agent.cta for g in [a.open_stores, *a.store_groups] for s in g):
                raise op_diagnostic(op, "overwrites bytes of another buffer that a TMA store may still read", why="the two lie over each "
                                    "other, and nothing waited for the store", fix="give one of them bytes of its own")
            for group in [g for a in self.agents if a.cta == agent.cta for g in [*a.in_flight, a.open_group]]:
                if any(b == other for _, b in group.slots):
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
        agent.open_stores.append(Store(op))
        agent.unread.pop((op.buffer, op.slot.value), None)

    def take(self, agent, op) -> None:
        """A copy of what another role handed over."""
        if op.state is None:
            raise op_diagnostic(op, "has no pipe", why="nobody says that its buffer is written", fix="run warp-insert-barriers")
        slot = self._check_slot(agent, op, op.buffer, op.state)
        slot.written = None
        agent.open_stores.append(Store(op, slot))

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


def _stored_slots(stores: list) -> list:
    """(buffer, slot) of what TMA stores read of their own role's buffers."""
    return [(store.op.buffer, store.op.slot.value) for store in stores if isinstance(store.op, warp.TmaStoreOp)]
