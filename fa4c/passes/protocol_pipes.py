"""Pipes in the abstract machine of `warp-check`: slots that one side fills and the other empties."""

from __future__ import annotations

from ..ir import warp
from ..ir.diagnostics import op_diagnostic
from .protocol_state import Place, Slot


class PipeRules:
    """Mixed into the machine."""

    def slot(self, place, cta: int | None = None) -> Slot:
        """The slot of this CTA, or of `cta`: who empties it, and as a rule who fills it."""
        return self.slots.setdefault((place.pipe, place.group, place.stage, place.cta if cta is None else cta), Slot())

    def full(self, place) -> Slot:
        """The slot whose full barrier is meant: of a pipe with `leader` that of the pair's first CTA."""
        return self.slot(place, 0 if place.pipe.owner.opview.leader.value else None)

    def state(self, agent, op) -> None:
        group = agent.group if op.group is None and op.pipe.owner.opview.groups.value > 1 else op.group.value if op.group is not None else 0
        producer = op.phase.value == 1
        seen = {} if producer else dict.fromkeys(range(op.pipe.owner.opview.stages.value), 0)
        agent.places[op.out] = Place(op.pipe, 0, op.phase.value, producer, group, agent.cta, seen)

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
        self.overwritten.discard((agent.cta, op.buffer))
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
        place.seen[place.stage] = slot.filled
        self.learn(agent, slot.full_clock)
        slot.readers.add(agent)
        key = (agent, place.pipe, place.group, place.stage, op.state)
        self.reads[key] = self.reads.get(key, 0) + 1

    def holds(self, agent, place) -> bool:
        """Whether a role knows a slot to be full: it has waited for it, by this state, or by another one that was here before and has not
        given it back."""
        if not place.waited:
            slot, ring = self.full(place), (place.pipe, place.group)
            ahead = [p for p in agent.places.values() if (p.pipe, p.group) == ring and p is not place and not p.producer]
            if slot.filled % 2 != place.phase and agent in slot.readers and any(p.seen[place.stage] == slot.filled for p in ahead):
                place.waited, place.released = True, False
        return place.waited and not place.released

    def release(self, agent, op) -> None:
        place = agent.places[op.state]
        if not self.holds(agent, place):
            raise op_diagnostic(op, "releases a slot that it does not hold", why="there was no wait, or it was released before")
        slot = self.slot(place)
        for group in [*agent.in_flight, agent.open_group]:
            if any(s is slot for s, _ in group.slots):
                raise op_diagnostic(
                    op,
                    "releases a slot that an MMA in flight still reads",
                    why="the producer may overwrite it now",
                    fix="put warp.wgmma_wait before it",
                )
        if any(store.slot is slot for group in [agent.open_stores, *agent.store_groups] for store in group):
            raise op_diagnostic(op, "releases a slot that a copy may still read", why="it is asynchronous",
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
        ring = place.pipe, place.group
        others = [p for p in agent.places.values() if (p.pipe, p.group) == ring and p is not place]  # who reads a slot last releases it
        if not place.producer and self._arrivals(place) and not place.released and not others:
            raise op_diagnostic(
                op, "leaves a slot that it has not released", why="the producer will wait for it forever", fix="put warp.release before it"
            )
        place.stage += 1
        place.acquired = place.waited = place.released = False
        if place.stage == place.pipe.owner.opview.stages.value:
            place.stage, place.phase = 0, 1 - place.phase

    def check_slots(self) -> None:
        """At the end: no slot is half filled, or filled and not read."""
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


PIPE_RULES = {
    warp.StateOp: PipeRules.state,
    warp.AcquireOp: PipeRules.acquire,
    warp.ArmOp: PipeRules.arm,
    warp.TmaLoadOp: PipeRules.tma_load,
    warp.WaitOp: PipeRules.wait,
    warp.ReleaseOp: PipeRules.release,
    warp.AdvanceOp: PipeRules.advance,
}
