"""The part of `warp-insert-barriers` for kernels with tensor memory: links become pipes, slots are given back by commits.

A link is a pipe that nobody empties: a full barrier for each compute warpgroup, which its sources fill (one commit of its MMAs, or one
arrival of each warp) and the sink waits for; a link that is `ahead` starts a phase earlier, and with 2 has two such barriers in turn. What
threads wrote to tensor memory is waited for before they signal, what they load before the next operation. The role that issues MMAs waits
for the slots of its operands and gives each back by a commit behind the last MMA that reads it.

Before:  "warp.tcgen05_mma"(%s, %q, %k); "warp.signal"(%scores) {group = 0}       "warp.await"(%scores); "warp.tmem_load"(%r, %s)
After:   wait; elect { tcgen05_mma; tcgen05_commit {empty}; tcgen05_commit {full} }; advance      wait; advance; tmem_load; tmem_wait
"""

from __future__ import annotations

from ..ir import warp, warp_tmem
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import i64, ir
from ..ir.tile import space_of
from .consumer_barriers import CONTROL, Consumer, operations_of, operations_within, place_type


class Links:
    """The links of a kernel, and the pipes that they become."""

    def __init__(self, kernel, roles):
        self.kernel, self.roles = kernel, roles
        self.links = [op for op in kernel.body.blocks[0].operations if isinstance(op, warp_tmem.LinkOp)]
        self.pipes = {}

    def make_pipes(self, at: int) -> tuple[list, int]:
        """Pipelines here, from byte `at` on; and the first free byte behind them."""
        for op in self.links:
            sources, (sink,) = self._roles_with(op, warp_tmem.SignalOp), self._roles_with(op, warp_tmem.AwaitOp, most=1)
            fills = sum(1 if warp_tmem.issues_mmas(source) else 4 for source in sources)  # a commit, or a lane of each warp of a warpgroup
            leader = sink.leader.value and not any(source.leader.value for source in sources)  # both CTAs' tell the one that issues
            fills *= 2 if leader else 1
            slots = max(1, op.ahead.value)
            self.pipes[op.out] = warp.PipelineOp(
                stages=i64(slots), offset=i64(at), tx_bytes=i64(0), arrivals=i64(0), out=ir.Type.parse("!warp.pipe"), loc=op.location,
                fills=i64(fills) if fills > 1 else None, groups=i64(op.groups.value) if op.groups.value > 1 else None,
                leader=ir.BoolAttr.get(True) if leader else None,
            ).out  # fmt: skip
            at += 8 * slots * op.groups.value
        return list(self.pipes.values()), at

    def _roles_with(self, op, kind, most: int | None = None) -> list:
        """The roles that signal, or await, a link: at least one, and where several signal, none that issues MMAs."""
        found = [r for r in self.roles if any(isinstance(o, kind) and o.link == op.out for o in operations_within(r.body.blocks[0]))]
        does = "signals" if kind is warp_tmem.SignalOp else "awaits"
        if not found or len(found) > (most or len(found)) or (len(found) > 1 and any(map(warp_tmem.issues_mmas, found))):
            raise op_diagnostic(op, f"is a link that {len(found)} roles know as one that {does}", why="roles of threads, or the one that "
                                "issues MMAs, signal; one awaits", fix=f"let one role hold its warp.{does.removesuffix('s')}")
        return found

    def place_tiles(self) -> None:
        """Addresses of tiles are known once tensor memory is allocated and the CTA has met."""
        word = None
        for op in list(self.kernel.body.blocks[0].operations):
            if isinstance(op, warp_tmem.TmemAllocOp):
                word = op.word.value
            elif isinstance(op, warp_tmem.TmemOp):
                op.operation.move_before(self.roles[0].operation)
        last = max((p.offset.value + 8 * p.stages.value * p.groups.value for p in (v.owner.opview for v in self.pipes.values())), default=0)
        if word is not None and last > word:
            raise op_diagnostic(self.kernel, f"needs {last} bytes of mbarriers", why=f"the address of tensor memory lies at byte {word}")

    def guard(self, role) -> None:
        """Signals and awaits of a role become arrivals, commits and waits."""
        states: dict = {}
        block = role.body.blocks[0]
        issues = warp_tmem.issues_mmas(role)
        inside = list(operations_within(block))
        read_here = {o: _writes_tmem(o) and (_loop_signals_first(o) or any(_reads(r, o.target) for r in inside) and not _signals_first(o))
                     for o in inside}
        behind_stores = {_next_signal(op) for op in inside if _writes_tmem(op) and not read_here[op]}
        shared = [op for op in inside if isinstance(op, warp.StoreSharedOp) and op.buffer in self._operands()]
        behind_writes = {op for op in map(_next_signal, shared) if op is not None}
        for op in shared:
            with ir.InsertionPoint.after(op.operation):
                warp.FenceAsyncOp(cluster=ir.BoolAttr.get(True) if op.exchange.value else None, loc=op.location)
        passed_rows = False  # whether lanes have passed on, or taken, rows since they met
        for op in list(operations_within(block)):
            if isinstance(op, warp_tmem.TmemLoadOp):
                with ir.InsertionPoint.after(op.operation):
                    warp_tmem.TmemWaitOp(kind=ir.StringAttr.get("load"), loc=op.location)
            if read_here.get(op):
                with ir.InsertionPoint.after(op.operation):
                    warp_tmem.TmemWaitOp(kind=ir.StringAttr.get("store"), loc=op.location)
            passed_rows = passed_rows or isinstance(op, (warp_tmem.PostOp, warp_tmem.FetchOp))
            if not isinstance(op, (warp_tmem.SignalOp, warp_tmem.AwaitOp)):
                continue
            waits = isinstance(op, warp_tmem.AwaitOp)
            state = self._state(states, block, op, waits)
            with ir.InsertionPoint(op), op.location:
                if waits:
                    warp.WaitOp(state=state)
                    warp.AdvanceOp(state=state)
                elif issues:
                    _commit(op, state, "full", role.leader.value)
                    self._next_slot(op, state)
                else:
                    if op in behind_stores or None in behind_stores:
                        warp_tmem.TmemWaitOp(kind=ir.StringAttr.get("store"))
                    if op in behind_writes or passed_rows:  # one lane arrives for all
                        warp.SyncWarpOp()
                        passed_rows = False
                    warp.ArriveOp(state=state)
                    self._next_slot(op, state)
            op.operation.erase()

    def _next_slot(self, op, state) -> None:
        if self.pipes[op.link].owner.opview.stages.value > 1:
            warp.AdvanceOp(state=state)

    def _operands(self) -> set:
        """Buffers that tcgen05 MMAs read."""
        mmas = [op for role in self.roles for op in operations_within(role.body.blocks[0]) if isinstance(op, warp_tmem.Tcgen05MmaOp)]
        return {value for op in mmas for value in (op.a, op.b)}

    def _state(self, states: dict, block, op, waits: bool):
        key = (op.link, op.group.value if op.group is not None else None, waits)
        if key not in states:
            ahead = op.link.owner.opview.ahead.value
            group = op.group if op.link.owner.opview.groups.value > 1 else None
            with ir.InsertionPoint.at_block_begin(block):
                states[key] = warp.StateOp(
                    pipe=self.pipes[op.link], phase=i64(min(ahead, 1) if waits else 1), group=group, out=place_type(), loc=op.location
                ).out
        return states[key]

    def erase(self) -> None:
        for op in self.links:
            op.operation.erase()


class Issuer(Consumer):
    """Waits and releases of the role that issues MMAs: a slot is given back by a commit behind the last MMA that reads it."""

    def _visit_block(self, block, level: int) -> None:
        operations = list(block.operations)
        reads = [self._keys_within(op, level) for op in operations]
        for number, op in enumerate(operations):
            last = [key for key in reads[number] if not any(key in later for later in reads[number + 1 :])]
            with ir.InsertionPoint(op):
                for key in reads[number]:
                    if key not in self.waited:
                        self.waited.add(key)
                        warp.WaitOp(state=self.states[key], loc=op.location)
            if op.operation.name in CONTROL:
                for region in op.operation.regions:
                    for inner in region.blocks:
                        self._visit_block(inner, level + 1)
                after = operations[number + 1] if number + 1 < len(operations) else None
                with ir.InsertionPoint(after) if after is not None else ir.InsertionPoint(block):
                    self._give_back(last, op)
            elif isinstance(op, warp_tmem.Tcgen05MmaOp):
                self._issue(op, last)

    def _issue(self, op, last: list) -> None:
        state = {buffer: self.states[buffer, reader] for buffer, reader in self._keys(op)}
        with ir.InsertionPoint(op), op.location:
            elect = warp.ElectOp(scope=ir.StringAttr.get("warp"))
            with ir.InsertionPoint(elect.body.blocks.append()):
                warp_tmem.Tcgen05MmaOp(
                    acc=op.acc, a=op.a, b=op.b, a_state=state.get(op.a), b_state=state.get(op.b),
                    block=op.block, transpose_a=op.transpose_a, transpose_b=op.transpose_b, accumulate=op.accumulate,
                    ctas=op.attributes.get("ctas"), folded=op.attributes.get("folded"),
                )  # fmt: skip
            self._give_back(last, op)
        op.operation.erase()

    def _give_back(self, keys: list, op) -> None:
        for key in keys:
            if self.rings[key[0]].reused:
                if key[1] == self.last_reader[key[0]]:
                    _commit(op, self.states[key], "empty", self.role.leader.value)
                warp.AdvanceOp(state=self.states[key], loc=op.location)
                self.waited.discard(key)


def _commit(op, state, barrier: str, pair: bool) -> None:
    """A commit in front of `op`, together with the MMA just before it if there is one: one thread does both. MMAs of a `pair` tell both
    CTAs."""
    with ir.InsertionPoint(_elect_before(op).body.blocks[0]):
        warp_tmem.Tcgen05CommitOp(state=state, barrier=ir.StringAttr.get(barrier), ctas=i64(2) if pair else None, loc=op.location)


def _elect_before(op):
    previous = None
    for other in op.operation.block.operations:
        if other.operation == op.operation:
            break
        previous = other if not isinstance(other, warp.AdvanceOp) else previous
    if isinstance(previous, warp.ElectOp):
        return previous
    elect = warp.ElectOp(scope=ir.StringAttr.get("warp"), loc=op.location)
    elect.body.blocks.append()
    return elect


def _next_signal(op):
    """The first signal behind an operation, in its block or around a `when`."""
    behind = [other for other in op.operation.block.operations if op.operation.is_before_in_block(other.operation)]
    found = next((other for other in behind if isinstance(other, warp_tmem.SignalOp)), None)
    around = op.operation.parent.opview
    return _next_signal(around) if found is None and isinstance(around, warp.WhenOp) else found


def _writes_tmem(op) -> bool:
    return isinstance(op, warp_tmem.TmemStoreOp) or (isinstance(op, warp_tmem.TmemMapOp) and space_of(op.target.type) == "tmem")


def _signals_first(op) -> bool:
    """Whether a signal, which waits for stores, follows before this role reads the tile itself: in the same block, or around a `when`."""
    block = op.operation.block
    for other in block.operations:
        if not op.operation.is_before_in_block(other.operation):
            continue
        if isinstance(other, warp_tmem.SignalOp):
            return True
        if any(_reads(inner, op.target) for inner in [other, *operations_of(other)]):
            return False
    return isinstance(block.owner.opview, warp.WhenOp) and _signals_first(_When(block.owner.opview, op.target))


def _loop_signals_first(op) -> bool:
    """Whether a loop behind a write signals, in front of any signal in the write's own block: the loop may make no trip, or several."""
    for other in op.operation.block.operations:
        if op.operation.is_before_in_block(other.operation):
            if isinstance(other, warp_tmem.SignalOp):
                return False
            if any(isinstance(inner, warp_tmem.SignalOp) for inner in operations_of(other)):
                return True
    return False


class _When:
    """A `when` in place of the write that it holds."""

    def __init__(self, when, target):
        self.operation, self.target = when.operation, target


def _reads(op, region) -> bool:
    if isinstance(op, warp_tmem.TmemLoadOp):
        return op.source == region
    return isinstance(op, warp_tmem.TmemMapOp) and region in list(op.inputs)
