"""The part of `warp-insert-barriers` for buffers that one role writes and another one brings to global memory.

Such a buffer has a pipe that threads fill. The writer's side, `Consumer._hand_over`: acquire, write, fence, meet, arrive, advance. Where it
is written once, there is nothing to acquire or release. Where it is stored in parts, each warpgroup of the writer has a ring of its own.

Before:  "warp.tma_put"(%map, %o) {group = 0}                "warp.tma_put"(%map, %o) {group = 1}
After:   wait; elect { tma_put; store_commit }               wait; elect { tma_put; store_commit; store_wait {pending = 1} }
                                                             release; advance; elect { store_wait {pending = 0} }; release; advance
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir import warp, warp_tmem
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import i64, ir
from .consumer_barriers import CONTROL, level_of, operations_within, place_type

TAKES = (warp.TmaAddOp, warp.TmaPutOp)


@dataclass
class HandedOver:
    """A buffer that the threads of one role write and another role takes, and its pipeline."""

    writer: object
    reader: object
    reused: bool
    takes: list = field(default_factory=list)
    pipe: object = None
    shared: bool = False  # the reader's warps share its slots

    @property
    def groups(self) -> int:
        """Parts that are handed over one by one."""
        return len({_group_of(op) for op in self.takes})

    @property
    def releases(self) -> int:
        """Warps that give a slot back."""
        return (1 if self.shared else self.reader.active.value) if self.reused else 0

    @property
    def fills(self) -> int:
        """Warps that fill a part."""
        return self.writer.active.value // self.groups


def find(roles) -> dict:
    """Buffer -> who writes it and who takes it."""
    found: dict = {}
    for role in roles:
        for op in operations_within(role.body.blocks[0]):
            if isinstance(op, TAKES):
                one = found.get(op.buffer) or _handed_over(op, role, roles)
                if one.takes and not _stored_together([op, *one.takes]):
                    raise op_diagnostic(op, "takes a buffer that is taken elsewhere too", why="it is given back once, by one role",
                                        fix="give it a buffer of its own")
                found[op.buffer] = one
                one.takes.append(op)
    for one in found.values():
        _check_groups(one)
    for role in roles:
        _share_slots(role, [one for one in found.values() if one.reader == role])
    return found


def _share_slots(role, handed: list) -> None:
    """Where a role waits for turns, each slot gets a warp, as far as there are any: for one to see its turn, to add, to know that the
    addition is complete and to count takes some 2 us, as long as the threads that fill a slot take."""
    steps = [op for op in operations_within(role.body.blocks[0]) if isinstance(op, (warp.WaitCountOp, *TAKES, warp.AddCountOp))]
    order, blocks = (warp.WaitCountOp, TAKES, warp.AddCountOp), {op.operation.block for op in steps}
    if len(steps) != 3 or not all(isinstance(op, kind) for op, kind in zip(steps, order, strict=True)):
        return
    if len(blocks) != 1 or any(op.operation.name in CONTROL for op in blocks.pop().operations):
        return
    stages, warps = steps[1].buffer.type.shape[0], len(list(role.warps))
    handed[0].shared = handed[0].reused and 1 < stages <= warps
    if handed[0].shared:
        role.attributes["active"] = i64(stages)


def _handed_over(op, role, roles) -> HandedOver:
    writing = {r: [o for o in operations_within(r.body.blocks[0]) if _writes(o, op.buffer)] for r in roles}
    writers = [r for r, writes in writing.items() if writes]
    if len(writers) != 1 or writers[0] == role:
        what = f"{len(writers)} roles write" if len(writers) != 1 else "its own role writes"
        raise op_diagnostic(op, f"takes a buffer that {what}", why="one role writes it, another one takes it, once for each time",
                            fix="give it a buffer of its own, and a role")
    return HandedOver(writers[0], role, any(level_of(o) for o in [op, *writing[writers[0]]]))


def _check_groups(one: HandedOver) -> None:
    groups, warpgroups = {_group_of(op) for op in one.takes}, one.writer.active.value // 4
    if groups not in ({None}, set(range(warpgroups))):
        raise op_diagnostic(one.takes[0], f"takes parts {sorted(groups, key=str)} of a buffer that {warpgroups} warpgroups write",
                            why="each has written a part of it", fix="take one part of each of them, or the whole")


def _stored_together(takes: list) -> bool:
    return all(isinstance(op, warp.TmaPutOp) for op in takes) and len({op.operation.block for op in takes}) == 1


def _group_of(op) -> int | None:
    return op.attributes["group"].value if "group" in op.attributes else None


def _writes(op, buffer) -> bool:
    return isinstance(op, (warp.StoreSharedOp, warp_tmem.TmemMapOp)) and op.buffer is not None and op.buffer == buffer


class Taker:
    """A role that takes what others hand over: wait for it, copy, give the slot back as soon as it is read.

    One thread waits for turns, and counts once its additions are complete. The others wait for it there: lanes that wait at an mbarrier
    meanwhile could hold it up. Where the role's warps share slots, that is done by the one that has the slot.
    """

    def __init__(self, role, handed):
        self.role, self.states, self.handed = role, {}, handed
        with ir.InsertionPoint.at_block_begin(role.body.blocks[0]):
            for buffer, one in handed.items():
                for group in dict.fromkeys(map(_group_of, one.takes)) if one.reader == role else ():
                    number = None if group is None else i64(group)
                    self.states[buffer, group] = warp.StateOp(
                        pipe=one.pipe, phase=i64(0), group=number, out=place_type(), loc=buffer.owner.location
                    ).out

    def run(self) -> None:
        self._visit(self.role.body.blocks[0])
        for buffer, one in self.handed.items():
            if one.reader == self.role and one.shared:
                self._give_to_owner(self.states[buffer, None])

    def _give_to_owner(self, state) -> None:
        """From the wait for the turn on to the count, all but the step to the next slot is done by the warp that has the slot."""
        counts = [op for op in operations_within(self.role.body.blocks[0]) if isinstance(op, (warp.WaitCountOp, warp.AddCountOp))]
        first, last = (op.operation.parent for op in counts)  # the elects
        operations = [op.operation for op in first.block.operations]
        with ir.InsertionPoint(first), counts[0].location:
            owner = warp.SlotOwnerOp(state=state)
        body = owner.body.blocks.append()
        for op in operations[operations.index(first) : operations.index(last) + 1]:
            if not isinstance(op.opview, warp.Operation):
                op.move_before(owner.operation)  # a scalar
            elif not isinstance(op.opview, warp.AdvanceOp):
                body.append(op)

    def _visit(self, block) -> None:
        run: list = []
        for op in list(block.operations):
            counts = isinstance(op, (warp.WaitCountOp, warp.AddCountOp))
            if isinstance(op, TAKES):
                run.append(op)
            elif counts or op.operation.name in CONTROL:
                self._take(run)
                run = []
                if counts:
                    self._count(op)
                for inner in (b for region in op.operation.regions for b in region.blocks) if not counts else ():
                    self._visit(inner)
        self._take(run)

    def _take(self, run: list) -> None:
        """Copies that follow each other: each once its part is there, and all under way before one is waited for."""
        places = [self.states[op.buffer, _group_of(op)] for op in run]
        behind = {state: places[::-1].index(state) for state in places}  # copies behind the last one that reads it
        first, *others = sorted(behind, key=lambda state: -behind[state]) or [None]
        for n, (op, state) in enumerate(zip(run, places, strict=True)):
            reused, last = self.handed[op.buffer].reused, n == len(run) - 1
            with ir.InsertionPoint(op), op.location:
                if state not in places[:n]:
                    warp.WaitOp(state=state)
                with _by_one("warp"):
                    type(op)(map=op.map, buffer=op.buffer, state=state, coords=list(op.coords))
                    if last or reused:  # what is given back is waited for copy by copy
                        warp.StoreCommitOp()
                    if last:
                        warp.StoreWaitOp(pending=i64(behind[first] if reused else 0))
                if last and reused:
                    self._give_back(first)
                    for other in others:
                        with _by_one("warp"):
                            warp.StoreWaitOp(pending=i64(behind[other]))
                        self._give_back(other)
            op.operation.erase()

    def _give_back(self, state) -> None:
        warp.ReleaseOp(state=state)
        warp.AdvanceOp(state=state)

    def _count(self, op) -> None:
        with ir.InsertionPoint(op), op.location:
            with _by_one("warp"):
                if isinstance(op, warp.WaitCountOp):
                    warp.WaitCountOp(counter=op.counter, count=op.count, coords=list(op.coords))
                else:
                    warp.StoreWaitOp(pending=i64(0), complete=ir.BoolAttr.get(True))
                    warp.AddCountOp(counter=op.counter, coords=list(op.coords))
            if isinstance(op, warp.WaitCountOp):
                warp.SyncWarpOp()
        op.operation.erase()


def _by_one(scope: str):
    """The insertion point within a new `warp.elect`."""
    return ir.InsertionPoint(warp.ElectOp(scope=ir.StringAttr.get(scope)).body.blocks.append())
