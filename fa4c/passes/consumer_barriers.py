"""Waits, fences, barriers and releases of a role that computes (`warp-insert-barriers`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir import warp, warp_tmem
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import i64, ir
from ..ir.tile import space_of
from .live_fragments import pressure, registers
from .protocol import fragments_touched
from .protocol_state import byte_range
from .shared_exchange import buffers_read

PLAIN_READS = (warp.LoadColumnsOp, warp.LoadFragmentOp)
CONTROL = ("scf.for", "scf.if", "warp.walk")


@dataclass
class _Group:
    """MMAs in flight: the fragments and slots they touch, and the rings whose slot they are the last to read."""

    writes: set
    reads: set
    slots: set = field(default_factory=set)  # (buffer, reader)
    releases: list = field(default_factory=list)
    covers_work: bool = False  # elementwise work was put between its issue and here


class Consumer:
    """Waits, fences and releases of a role that computes."""

    def __init__(self, kernel, role, rings):
        self.kernel, self.role, self.rings = kernel, role, rings
        self.states, self.last_reader = {}, {}  # (buffer, reader) -> place in the pipe; buffer -> its last reader
        self.waited, self.in_flight = set(), []
        self.written = set()  # buffers that this role's threads wrote
        self.owed = {}  # fragment of column values -> what is to be released behind the operation that reads it
        self.reread = set()  # fragments that were read since they were written
        self.computed = set()  # ... and that threads have written since an MMA used them last
        self.before_loop = set()  # of these, those written before a wait of this role for its own readers
        self.filled = set()  # fragments that hold the constant they were filled with, no loop between: LLVM knows that too
        self.before_branch = set()  # of these, those filled before the scf.if around
        self.left_behind = set()  # fragments that were written in this block, before a branch: the compiler behind moves casts past it
        self.recent = set()  # fragments that were written in this block, since the last branch
        self.pressure = None  # registers that fragments take, in the loop's body under way
        self.unsynced = set()  # buffers that lanes read themselves: they may not all be done
        self.adds_from_registers = any(isinstance(op, warp.GlobalAddOp) for op in operations_within(role.body.blocks[0]))
        self.tma_stored = {op.buffer for op in operations_within(role.body.blocks[0]) if isinstance(op, warp.TmaStoreOp)}
        self.stored = False  # whether TMA stores of this role may be under way
        self.stores_since = {op: _stores_since(op) for op in operations_within(role.body.blocks[0]) if _writes_buffer(op)}

    def run(self) -> None:
        block = self.role.body.blocks[0]
        with ir.InsertionPoint.at_block_begin(block):
            for buffer, ring in self.rings.items():
                if ring.owner != buffer:
                    continue
                for reader in range(self._count_readers(buffer)):
                    if (ring.first, reader) in self.states:
                        self.states[buffer, reader] = self.states[ring.first, reader]
                        continue
                    state = warp.StateOp(pipe=ring.pipe, phase=i64(0), out=place_type(), loc=self.role.location).out
                    self.states[buffer, reader] = state
                self.last_reader[buffer] = reader
            self.outgoing = {  # buffers that another role adds -> place in the pipe
                buffer: warp.StateOp(pipe=one.pipe, phase=i64(1), out=place_type(), loc=self.role.location).out
                for buffer, one in self.kernel.handed.items() if one.writer == self.role
            }
        self._visit_block(block, 0)
        with ir.InsertionPoint(block):
            if self.stored:
                self._wait_for_stores(self.role.location)

    def _count_readers(self, buffer) -> int:
        found = {key[1]: op for op in operations_within(self.role.body.blocks[0]) for key in self._keys(op) if key[0] == buffer}
        for number in range(len(found)):
            if number not in found:
                op = found[max(found)]
                raise op_diagnostic(
                    op,
                    f"has reader = {max(found)}, but no operation has reader = {number}",
                    why="those that read a slot at different steps are numbered from 0 on, the first one first",
                    fix=f"set reader = {number} : i64",
                )
        return len(found)

    def _keys(self, op) -> list:
        """(owner of the slot, reader) for each ring that `op` reads. Only where the ring is filled once a step do its readers differ."""
        buffers = [self.rings[b].owner for b in buffers_of_reads(op) if b in self.rings]
        return [(b, op.reader.value if self.rings[b].level == level_of(op) else 0) for b in buffers]

    def _keys_within(self, op, level: int) -> list:
        """Those of `op` and what it holds, of rings that are filled once at this level."""
        found = [key for inner in [op, *operations_of(op)] for key in self._keys(inner)]
        return [key for key in dict.fromkeys(found) if self.rings[key[0]].level == level]

    def _visit_block(self, block, level: int) -> None:
        """Slots filled once in this block are waited for before the first operation that reads them, and released after the last."""
        self.left_behind, self.recent = set(), set()
        own = pressure(block, self.role.active.value // 4) if _holds_quads(self.role) and block.owner.name == "scf.for" else None
        if own is not None:
            self._before_guards(block, own)
        operations = list(block.operations)
        reads = [self._keys_within(op, level) for op in operations]
        for number, op in enumerate(operations):
            self.pressure = own
            if op.operation.name == "scf.yield":
                with ir.InsertionPoint(op):
                    self._retire(len(self.in_flight), op.location)
                return
            last = [b for b in reads[number] if not any(b in later for later in reads[number + 1 :])]
            before = operations[number - 1] if number and isinstance(operations[number - 1], warp.TurnTakeOp) else op
            with ir.InsertionPoint(before):
                for key in reads[number]:
                    _, reader = key
                    if key not in self.waited and reader == 0:  # a later one reads what this one has waited for, steps before
                        self.waited.add(key)
                        warp.WaitOp(state=self.states[key], loc=op.location)
                        self._branch()
            after = operations[number + 1] if number + 1 < len(operations) else None
            nested = op.operation.name in CONTROL
            touched = _reads_within(op)
            self._visit(op, level, last)
            if self.owed:
                with ir.InsertionPoint(after) if after is not None else ir.InsertionPoint(block):
                    self._pay(touched, after.location if after is not None else self.role.location)
            if nested and last:  # nothing is in flight behind it
                with ir.InsertionPoint(after) if after is not None else ir.InsertionPoint(block):
                    self._release(last, after.location if after is not None else self.role.location)
        with ir.InsertionPoint(block):
            self._retire(len(self.in_flight), self.role.location)

    def _visit(self, op, level: int, last: list) -> None:
        name = op.operation.name
        if name in CONTROL:
            with ir.InsertionPoint(op):
                self._retire(len(self.in_flight), op.location)
            for region in op.operation.regions:
                for block in region.blocks:
                    self.filled = self.filled if name == "scf.if" else set()
                    self.before_branch = set(self.filled)
                    self._visit_block(block, level + 1)
            self.before_branch = set()
        elif isinstance(op, warp.WhenOp):
            self._when(op)
        elif isinstance(op, warp.WgmmaOp):
            self._wgmma(op, last)
        elif isinstance(op, warp.AcquireOp):
            self.before_loop |= self.computed
        elif isinstance(op, PLAIN_READS):
            self._plain_read(op, last)
        elif isinstance(op, warp_tmem.TmemMapOp) and op.rows:
            self._map_rows(op, last)
        elif isinstance(op, warp.StoreSharedOp):
            self._touch(op, reads={op.source}, writes=set())
            self._store_shared(op)
        elif isinstance(op, warp_tmem.TmemMapOp) and op.buffer is not None:
            self._touch(op, *fragments_touched(op))
            self._store_shared(op)
        elif isinstance(op, warp.TmaStoreOp):
            self._tma_store(op)
        elif isinstance(op, warp.WaitCountOp):
            self._wait_count(op)
        elif isinstance(op, warp.AddCountOp):
            self._add_count(op)
        else:
            self._touch(op, *fragments_touched(op))

    def _when(self, op) -> None:
        """A body that may not run: what it waited for may still be in flight after it.

        ptxas moves a wait up to the start of its basic block (seen in SASS). Where elementwise work is meant to run under the MMA, the
        wait stands inside of the branch, after that work's block; before the branch it would rise above the work. Elsewhere it stands
        before the branch: a wait in a branch for an MMA that was just issued makes ptxas serialise all MMAs (C7514).
        """
        if space_of(op.cond.type) == "reg":
            self._touch(op, reads={op.cond}, writes=set())
        body = [(inner, *fragments_touched(inner)) for inner in op.body.blocks[0].operations]
        fresh = self._last_conflict(lambda g: not g.covers_work and any(_clash(g, reads, writes) for _, reads, writes in body))
        with ir.InsertionPoint(op):
            self._retire(fresh + 1, op.location)
        before = list(self.in_flight)
        for inner, reads, writes in body:
            self.computed |= writes
            self.filled -= writes
            last = self._last_conflict(lambda g, r=reads, w=writes: _clash(g, r, w))
            if last >= 0:
                with ir.InsertionPoint(inner):
                    warp.WgmmaWaitOp(pending=i64(len(self.in_flight) - last - 1), loc=inner.location)
                self.in_flight = self.in_flight[last + 1 :]
        self.in_flight = before
        self._branch()
        self._cover()

    def _cover(self) -> None:
        for group in self.in_flight:
            group.covers_work = True

    def _wgmma(self, op, last: list) -> None:
        a_fragment = {op.a} if space_of(op.a.type) == "reg" else set()
        self._conflict(op, lambda g: bool(g.writes & a_fragment or op.acc in g.reads))
        keys = dict(self._keys(op))
        state = {buffer: self.states[buffer, reader] for buffer, reader in keys.items()}
        with ir.InsertionPoint(op), op.location:
            overwritten = set() if op.accumulate.value else {op.acc}
            # LLVM computes values no earlier than in the block that uses them, which would be behind the fence
            kept = (a_fragment | overwritten) & self.reread | (a_fragment | {op.acc}) & self.before_loop | a_fragment & self.left_behind
            kept |= {op.acc} & (self.before_branch | self.left_behind) - overwritten
            warp.WgmmaFenceOp(fragments=[f for f in dict.fromkeys([op.a, op.acc]) if f in kept])
            warp.WgmmaOp(
                acc=op.acc,
                a=op.a,
                b=op.b,
                a_state=state.get(op.a, op.a_state),
                b_state=state.get(op.b, op.b_state),
                transpose_a=op.transpose_a,
                transpose_b=op.transpose_b,
                accumulate=op.accumulate,
            )
            warp.WgmmaCommitOp()
        for used in (self.computed, self.before_loop, self.filled):
            used.difference_update(a_fragment | {op.acc})
        for written in (self.before_branch, self.left_behind, self.recent):
            written.discard(op.acc)  # what an MMA in flight sums into must not be moved for the next one
        self.in_flight.append(_Group({op.acc}, a_fragment, set(keys.items()), last))
        op.operation.erase()

    def _before_guards(self, block, own) -> None:
        """Column values of a map go in front of the guarded work before it, a mask, which waits for an MMA, if registers allow."""
        guards, operands = [], set()  # of MMAs before them, which may be in flight
        for op in list(block.operations):
            if isinstance(op, warp.WgmmaOp):
                operands |= {op.a} if space_of(op.a.type) == "reg" else set()
            if isinstance(op, warp.LoadColumnsOp) and guards:
                guarded = {f for guard in guards for inner in operations_of(guard) for part in fragments_touched(inner) for f in part}
                held = own.before[guards[0]] | operands | {op.target}
                if op.target not in guarded and registers(held, self.role.active.value // 4) <= own.most:
                    op.operation.move_before(guards[0].operation)
            else:
                guards = [*guards, op] if isinstance(op, warp.WhenOp) else []

    def _plain_read(self, op, last: list) -> None:
        """Threads read a slot into registers: it is free behind that, unless an MMA in flight reads it too."""
        reads, writes = self._touched_next(op)
        self._conflict(op, lambda g: _clash(g, reads, writes | {op.target}))
        if op.buffer not in self.rings:
            raise op_diagnostic(
                op, "reads a buffer that no TMA load fills", why="nothing would say that its content is there", fix="add a warp.tma_load"
            )
        (key,) = self._keys(op)
        self.unsynced.add(key[0])
        reading = [group for group in self.in_flight if group.slots & set(last)]
        with ir.InsertionPoint(op), op.location:
            type(op)(buffer=op.buffer, state=self.states[key], target=op.target)
            if reading and isinstance(op, warp.LoadColumnsOp):
                reading[-1].releases = [*reading[-1].releases, *last]  # MMAs finish in order: all have read the slot then
            elif last and isinstance(op, warp.LoadColumnsOp):
                self.owed[op.target] = last
            elif last:
                self._retire(self._last_conflict(lambda g: bool(g.slots & set(last))) + 1, op.location)
                self._release(last, op.location)
        op.operation.erase()

    def _map_rows(self, op, last: list) -> None:
        """A map reads column values from their slots itself, which are free behind it."""
        self.unsynced |= set(op.rows)
        states = [self.states[key] for value in op.rows for key in self._keys(op) if key[0] == value]
        with ir.InsertionPoint(op), op.location:
            _with_states(op, states)
            self._release(last, op.location)
        op.operation.erase()

    def _touched_next(self, op) -> tuple[set, set]:
        """What the operation behind column values reads and writes: it waits for MMAs before they are loaded, not after.

        Else they would take registers while MMAs are in flight: where those are scarcest, ptxas serialises the MMAs then. Where it has more
        elsewhere in the loop, nothing: they come under the MMAs.
        """
        operations = list(op.operation.block.operations)
        behind = operations[operations.index(op) + 1 :]
        reader = next((o for o in behind if not isinstance(o, warp.LoadColumnsOp)), None)
        if not isinstance(op, warp.LoadColumnsOp) or not isinstance(reader, warp.MapOp):
            return set(), set()
        if self.pressure is not None:
            in_flight = {f for group in self.in_flight for f in group.reads | group.writes}
            held = self.pressure.before[op] | in_flight | {op.target}
            if registers(held, self.role.active.value // 4) <= self.pressure.most:
                return set(), set()
        return fragments_touched(reader)

    def _pay(self, reads: set, loc) -> None:
        """Give back the slots of column values behind the operation that needs them: they may be loaded as late as there, which saves
        registers."""
        for fragment in [fragment for fragment in self.owed if fragment in reads]:
            self._release(self.owed.pop(fragment), loc)

    def _touch(self, op, reads: set, writes: set) -> None:
        self._conflict(op, lambda g: _clash(g, reads, writes))
        if reads or writes:
            self._cover()
        self.reread = (self.reread | reads) - writes
        self.computed |= writes
        self.filled = self.filled | writes if isinstance(op, warp.FillOp) else self.filled - writes
        self.recent |= writes
        self.left_behind -= writes

    def _branch(self) -> None:
        self.left_behind |= self.recent
        self.recent = set()

    def _conflict(self, op, conflicts) -> None:
        with ir.InsertionPoint(op):
            self._retire(self._last_conflict(conflicts) + 1, op.location)

    def _last_conflict(self, conflicts) -> int:
        return max((n for n, group in enumerate(self.in_flight) if conflicts(group)), default=-1)

    def _retire(self, count: int, loc) -> None:
        """Wait here until the oldest `count` groups are complete, and release what they were the last to read."""
        if not count:
            return
        done, self.in_flight = self.in_flight[:count], self.in_flight[count:]
        warp.WgmmaWaitOp(pending=i64(len(self.in_flight)), loc=loc)
        for group in done:
            self._release(group.releases, loc)

    def _release(self, keys, loc) -> None:
        """A reader leaves its slots; the last one gives them back."""
        self._branch()
        given = [key for key in keys if self.rings[key[0]].reused and key[1] == self.last_reader[key[0]]]
        if any(buffer in self.unsynced for buffer, _ in keys):  # also where another reader gives it back, which may be in another block
            warp.SyncWarpOp(loc=loc)
            self.unsynced.clear()
        for key in keys:
            if self.rings[key[0]].reused:
                if key in given:
                    warp.ReleaseOp(state=self.states[key], loc=loc)
                warp.AdvanceOp(state=self.states[key], loc=loc)
                self.waited.discard(key)

    def _store_shared(self, op) -> None:
        with ir.InsertionPoint(op), op.location:
            if any(_overlap(op.buffer, other) for other in self.rings):
                self._retire(len(self.in_flight), op.location)
                warp.BarrierOp(id=i64(self.kernel.barrier_id(self.role, op, "role")), scope=ir.StringAttr.get("role"))
        if op.buffer in self.outgoing:
            self._hand_over(op)
            return
        self.written.add(op.buffer)
        with ir.InsertionPoint(op), op.location:
            if level_of(op) and op.buffer in self.tma_stored:  # the last iteration's store may still read the buffer
                self._wait_for_stores(op.location, pending=self.stores_since[op])
                self._warpgroup_barrier(op)

    def _hand_over(self, op) -> None:
        """Written, fenced, and signalled by one lane of each warp."""
        state, reused = self.outgoing[op.buffer], self.kernel.handed[op.buffer].reused
        with ir.InsertionPoint(op), op.location:
            if reused:
                warp.AcquireOp(state=state)
            if isinstance(op, warp.StoreSharedOp):
                warp.StoreSharedOp(buffer=op.buffer, source=op.source, slot=state)
            else:
                _with_states(op, [state])
            warp.FenceAsyncOp()
            warp.SyncWarpOp()
            warp.ArriveOp(state=state)
            if reused:
                warp.AdvanceOp(state=state)
        self.unsynced.clear()
        op.operation.erase()

    def _wait_for_stores(self, loc, pending: int = 0) -> None:
        elect = warp.ElectOp(scope=ir.StringAttr.get("warpgroup"), loc=loc)
        with ir.InsertionPoint(elect.body.blocks.append()):
            warp.StoreWaitOp(pending=i64(pending), loc=loc)

    def _warpgroup_barrier(self, op) -> None:
        warp.BarrierOp(id=i64(self.kernel.barrier_id(self.role, op, "warpgroup")), scope=ir.StringAttr.get("warpgroup"))

    def _wait_count(self, op) -> None:
        """One thread waits: the one that issues the TMA stores behind it, or a barrier tells the others, who add from registers."""
        with ir.InsertionPoint(op), op.location:
            elect = warp.ElectOp(scope=ir.StringAttr.get("warpgroup"))
            with ir.InsertionPoint(elect.body.blocks.append()):
                warp.WaitCountOp(counter=op.counter, count=op.count, coords=list(op.coords))
            if self.adds_from_registers:
                self._warpgroup_barrier(op)
        op.operation.erase()

    def _add_count(self, op) -> None:
        """All that the warpgroup added is complete: its TMA stores, by the thread that counts; its registers' additions, by a barrier."""
        with ir.InsertionPoint(op), op.location:
            if self.adds_from_registers:
                self._warpgroup_barrier(op)
            elect = warp.ElectOp(scope=ir.StringAttr.get("warpgroup"))
            with ir.InsertionPoint(elect.body.blocks.append()):
                if self.tma_stored:
                    warp.StoreWaitOp(pending=i64(0), complete=ir.BoolAttr.get(True))
                warp.AddCountOp(counter=op.counter, coords=list(op.coords))
        op.operation.erase()

    def _tma_store(self, op) -> None:
        if op.buffer not in self.written:
            raise op_diagnostic(
                op,
                "stores a buffer that its role did not write",
                why="the order of two asynchronous copies is not known here",
                fix="read the tile into registers and write it back",
            )
        self.stored = True
        with ir.InsertionPoint(op), op.location:
            warp.FenceAsyncOp()
            self._warpgroup_barrier(op)
            elect = warp.ElectOp(scope=ir.StringAttr.get("warpgroup"))
            with ir.InsertionPoint(elect.body.blocks.append()):
                add, slot = op.attributes.get("add"), op.attributes.get("slot")
                fold = op.attributes.get("fold")
                warp.TmaStoreOp(map=op.map, buffer=op.buffer, coords=list(op.coords), row=op.row, add=add, slot=slot, fold=fold)
                warp.StoreCommitOp()
        op.operation.erase()


def _writes_buffer(op) -> bool:
    return isinstance(op, warp.StoreSharedOp) or (isinstance(op, warp_tmem.TmemMapOp) and op.buffer is not None)


def _stores_since(op) -> int:
    """How many TMA stores of a buffer come between the one that reads the slot that `op` writes and `op`, where its block repeats."""
    before, behind, passed = [], [], False
    for other in op.operation.block.operations:
        passed = passed or other.operation == op.operation
        if isinstance(other, warp.TmaStoreOp) and other.buffer == op.buffer:
            (behind if passed else before).append(other.slot.value)
    if not behind:
        return 0
    return [*reversed(before), *reversed(behind)].index(behind[0])  # what is written here is what is stored next


def _reads_within(op) -> set:
    """Fragments that an operation reads, or what it guards."""
    inner = list(op.body.blocks[0].operations) if isinstance(op, warp.WhenOp) else [op]
    return {fragment for o in inner for fragment in fragments_touched(o)[0]}


def _clash(group: _Group, reads: set, writes: set) -> bool:
    """Whether an operation on registers must wait for a group of MMAs: it touches a result, or overwrites an operand."""
    return bool(group.writes & (reads | writes) or group.reads & writes)


def buffers_of_reads(op) -> list:
    if isinstance(op, warp_tmem.Tcgen05MmaOp):
        return [value for value in dict.fromkeys((op.a, op.b)) if space_of(value.type) == "smem"]
    if isinstance(op, warp.WgmmaOp):
        return buffers_read(op)
    if isinstance(op, warp_tmem.TmemMapOp):
        return op.rows
    return [op.buffer] if isinstance(op, PLAIN_READS) else []


def _with_states(op, states: list) -> None:
    """The same map, which knows the slots that it reads and writes."""
    more = {"beside": op.beside} if isinstance(op, warp_tmem.TmemMapBothOp) else {}
    new = type(op)(target=op.target, inputs=list(op.inputs), states=states, columns=op.columns, **more)
    op.body.blocks[0].append_to(new.body)


def level_of(op) -> int:
    """How many loops and guards enclose an operation of a role."""
    level, parent = 0, op.operation.parent
    while parent.name != "warp.role":
        level += parent.name in CONTROL
        parent = parent.parent
    return level


def _overlap(a, b) -> bool:
    (a0, a1), (b0, b1) = byte_range(a), byte_range(b)
    return a0 < b1 and b0 < a1


def operations_within(block) -> list:
    found = []
    for op in block.operations:
        found.append(op)
        found += operations_of(op)
    return found


def operations_of(op) -> list:
    if op.operation.name in CONTROL or isinstance(op, (warp.ElectOp, warp.SlotOwnerOp, warp.WhenOp)):
        return [inner for region in op.operation.regions for block in region.blocks for inner in operations_within(block)]
    return []


def place_type():
    return ir.Type.parse("!warp.place")


def _holds_quads(role) -> bool:
    return role.layout.value == "quads"
