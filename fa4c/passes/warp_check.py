"""Check a kernel's roles against each other: nothing is used too early or overwritten too soon, and nobody waits forever.

First the static facts: byte ranges, register budgets, warps, byte counts, barrier ids. Then the control flow of all roles is run side by
side, without data, for sizes that give loops of 0 to several iterations, on an abstract machine (`protocol.py`) that knows pipes, MMAs in
flight, named barriers and the async proxy. A finding is a located error that names the operation and the reason.

Without a wait:  'warp.wgmma' reads a slot of its buffer that was not waited for
"""

from __future__ import annotations

from .. import targets
from ..ir import warp, warp_tmem
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import ir
from ..ir.tile import space_of
from ..ir.tile_base import nested_operations
from . import protocol
from .protocol_state import byte_range
from .registry import register_pass
from .warp_specialize import at_launch


@register_pass("warp-check")
def warp_check(module: ir.Module) -> None:
    target = targets.of(module)
    for op in module.body.operations:
        if isinstance(op, warp.KernelOp):
            _Static(op, target).check()
            protocol.check(op)


_ONE_OF_A_WARPGROUP = (warp.TmaStoreOp, warp.StoreCommitOp, warp.StoreWaitOp, warp.WaitCountOp, warp.AddCountOp)
_ONE_THREAD = (
    warp.ArmOp, warp.TmaLoadOp, warp.TmaAddOp, warp.TmaPutOp, warp_tmem.Tcgen05MmaOp, warp_tmem.Tcgen05CommitOp, *_ONE_OF_A_WARPGROUP,
)  # fmt: skip
_ANY_THREADS = (warp.AcquireOp, warp.WaitOp, warp.FenceAsyncOp)
_WARPGROUP = (
    warp.FragmentOp,
    warp.FillOp,
    warp.CopyOp,
    warp.MapOp,
    warp.ReduceOp,
    warp.VoteAnyOp,
    warp.WgmmaOp,
    warp.WgmmaFenceOp,
    warp.WgmmaCommitOp,
    warp.WgmmaWaitOp,
    warp.LoadColumnsOp,
    warp.LoadFragmentOp,
    warp.StoreSharedOp,
    warp.StoreRowsOp,
    warp.GlobalAddOp,
    warp.TmaStoreOp,
    warp.TurnInitOp,
    warp.TurnTakeOp,
    warp.TurnGiveOp,
    warp_tmem.TmemLoadOp,
    warp_tmem.TmemStoreOp,
    warp_tmem.TmemMapOp,
    warp_tmem.TmemWaitOp,
    warp_tmem.PostOp,
    warp_tmem.FetchOp,
)
_QUADS_ONLY = (
    warp.WgmmaOp,
    warp.WgmmaFenceOp,
    warp.WgmmaCommitOp,
    warp.WgmmaWaitOp,
    warp.LoadFragmentOp,
)
_LANES_ONLY = (
    warp_tmem.TmemLoadOp, warp_tmem.TmemStoreOp, warp_tmem.TmemMapOp, warp_tmem.TmemWaitOp, warp_tmem.PostOp, warp_tmem.FetchOp,
)
# What one of several warps cannot do alone: the others would stay at another slot, or it would wait for them.
_ALL_WARPS = (warp.AdvanceOp, warp.StateOp, warp.BarrierOp, warp.WalkOp, warp.SlotOwnerOp)
_NAMED = (warp.BarrierOp, warp.TurnInitOp, warp.TurnTakeOp, warp.TurnGiveOp)


def _registers(kind, warpgroups: int, layout: str) -> int:
    """32-bit registers of a thread for a register tile."""
    if layout != "lanes":
        return warp.registers_held(kind, warpgroups)
    values = 1 if kind.rank == 1 else kind.shape[1]
    return -(-values * max(16, warp.bits_of(kind.element_type)) // 32)


class _Static:
    def __init__(self, kernel, target):
        self.kernel, self.target = kernel, target
        self.operations = list(kernel.body.blocks[0].operations)

    def check(self) -> None:
        self._roles()
        for role in self._of(warp.RoleOp):
            self._role_body(role, role.body.blocks[0], None)
        self._named_barriers()
        self._walks()
        self._shared_memory()
        for pipe in self._of(warp.PipelineOp):
            self._pipeline(pipe)
        self._tensor_memory()

    def _tensor_memory(self) -> None:
        """Allocated before the CTA meets, addressed after that, given back at the end."""
        position = {op: number for number, op in enumerate(self.operations)}
        meeting = max((position[op] for op in self._of(warp.InitBarriersOp)), default=-1)
        memories = self._of(warp_tmem.TmemAllocOp)
        for op in self._of(warp_tmem.LinkOp):
            raise op_diagnostic(op, "is no barrier yet", fix="run warp-insert-barriers")
        for op in memories[1:]:
            raise op_diagnostic(op, "allocates tensor memory for a second time", why="a kernel allocates it once", fix="remove it")
        for op in memories:
            if position[op] > meeting:
                raise op_diagnostic(op, "is not followed by warp.init_barriers", why="that is where the CTA learns the address")
            if op.columns.value > self.target.tmem_columns:
                raise op_diagnostic(op, f"allocates {op.columns.value} columns", why=f"there are {self.target.tmem_columns}")
            if not 0 <= op.warp.value < self.kernel.threads.value // 32:
                raise op_diagnostic(op, f"has warp = {op.warp.value}", why="the kernel has no such warp")
            frees = [other for other in self._of(warp_tmem.TmemFreeOp) if other.memory == op.out]
            if len(frees) != 1 or any(position[role] > position[frees[0]] for role in self._of(warp.RoleOp)):
                raise op_diagnostic(op, "is not given back once, behind all roles", why="the next CTA would wait for it forever",
                                    fix="put warp.tmem_free at the end of the kernel")  # fmt: skip
        for op in self._of(warp_tmem.TmemOp):
            if position[op] < meeting:
                raise op_diagnostic(op, "stands before warp.init_barriers", why="the address is not known there", fix="move it down")

    def _of(self, kind) -> list:
        return [op for op in self.operations if isinstance(op, kind)]

    def _roles(self) -> None:
        roles = self._of(warp.RoleOp)
        owner, limits, registers = {}, {}, 0
        for role in roles:
            for number in role.warps:
                if number in owner:
                    raise op_diagnostic(role, f"claims warp {number}, which role @{owner[number]} has", why="each warp has one role")
                owner[number] = role.sym_name.value
                same = limits.setdefault(number // 4, role.registers.value)
                if same != role.registers.value:
                    raise op_diagnostic(role, f"has {role.registers.value} registers, but its warpgroup {number // 4} has {same}",
                                        why="setmaxnreg is for all warps of a warpgroup", fix="give them one limit")  # fmt: skip
            registers += 32 * len(list(role.warps)) * role.registers.value
        count = self.kernel.threads.value // 32
        if sorted(owner) != list(range(count)):
            raise op_diagnostic(
                self.kernel,
                f"has {count} warps, but its roles name {sorted(owner)}",
                why="every warp needs a role",
                fix="change threads or a role's warps",
            )
        there = at_launch(self.target, self.kernel.threads.value)
        if registers > there * self.kernel.threads.value:
            raise op_diagnostic(
                self.kernel,
                f"gives its roles {registers} registers, but starts with {there * self.kernel.threads.value}, {there} a thread",
                why="setmaxnreg waits for registers that never come free",
                fix="lower a role's registers",
            )

    def _pair(self, role, op) -> None:
        """MMAs of a pair are issued once, and tracked by commits of their own kind."""
        if isinstance(op, warp_tmem.Tcgen05MmaOp) and (op.ctas.value == 2) != role.leader.value:
            what = "is issued in both CTAs of a pair" if op.ctas.value == 2 else "is of one CTA, in a role of the pair's first one"
            raise op_diagnostic(op, what, why="one thread of the first CTA issues the MMAs of a pair",
                                fix="make leader of the role and ctas of the MMA agree")
        made = self._of(warp_tmem.TmemAllocOp)
        if isinstance(op, warp_tmem.Tcgen05CommitOp) and made and op.ctas.value != made[0].ctas.value:
            raise op_diagnostic(op, f"is of {op.ctas.value} CTAs, but the kernel's MMAs are of {made[0].ctas.value}",
                                why="a commit tracks MMAs of its own cta_group (PTX ISA)", fix=f"give it ctas = {made[0].ctas.value}")

    def _role_body(self, role, block, elect, owner=None) -> None:
        """What only one thread may do is in an elect, what takes a whole warp or warpgroup is not, and register tiles fit the role.

        `owner`: the `warp.slot_owner` around the block, of which one warp runs it.
        """
        for op in block.operations:
            self._pair(role, op)
            if isinstance(op, warp.WalkOp) and op.queue is not None and role.active.value > 1:
                raise op_diagnostic(op, f"takes tiles in {role.active.value} warps", why="each would take another one from the queue",
                                    fix="let a role with one active warp take them")
            if owner is not None:
                self._by_one_warp(op)
            if isinstance(op, _ONE_THREAD):
                self._one_thread(role.active.value if owner is None else 1, op, elect)
            elif isinstance(op, warp.Operation) and elect is not None and not isinstance(op, _ANY_THREADS):
                raise op_diagnostic(op, "is done by one thread", why="it takes all threads of a warp", fix="move it out of warp.elect")
            if isinstance(op, _WARPGROUP) or (isinstance(op, warp.BarrierOp) and op.scope.value == "warpgroup"):
                self._warpgroup(role, op)
            if not isinstance(op, warp.MapOp):
                for inner in (inner for region in op.operation.regions for inner in region.blocks):
                    within = op if isinstance(op, warp.ElectOp) else elect
                    self._role_body(role, inner, within, op if isinstance(op, warp.SlotOwnerOp) else owner)

    def _by_one_warp(self, op) -> None:
        if isinstance(op, (*_ALL_WARPS, *_WARPGROUP)) or (isinstance(op, warp.ElectOp) and op.scope.value != "warp"):
            raise op_diagnostic(op, "stands in a warp.slot_owner", why="only the warp that has the slot is there",
                                fix='move it out; an elect there has scope = "warp"')  # fmt: skip

    def _one_thread(self, warps: int, op, elect) -> None:
        if elect is None:
            raise op_diagnostic(op, "is done by all threads", why="one thread must do it", fix="put it into warp.elect")
        threads = {"warp": warps, "warpgroup": warps // 4, "role": 1}[elect.scope.value]
        wanted = max(1, warps // 4) if isinstance(op, _ONE_OF_A_WARPGROUP) else 1
        if threads != wanted:
            raise op_diagnostic(
                op,
                f"is done by {threads} threads",
                why=f"{wanted} must do it, and its warp.elect names one of {'the' if threads == 1 else 'each'} {elect.scope.value}",
                fix="change the scope of the elect, or the active warps of the role",
            )

    def _warpgroup(self, role, op) -> None:
        if role.active.value != len(list(role.warps)):
            raise op_diagnostic(
                op,
                f"works on whole warpgroups, but {role.active.value} warps of its role are active",
                fix="make all warps of the role active",
            )
        if role.layout.value == "lanes":
            self._lanes(role, op)
        else:
            self._quads(role, op)
        operands = dict.fromkeys(v for v in op.operation.operands if space_of(v.type) == "reg")
        groups, layout = role.active.value // 4, role.layout.value
        registers = sum(_registers(value.type, groups, layout) for value in operands)
        if isinstance(op, warp.MapOp):  # element by element: its result may take the place of inputs that nothing reads later
            result = _registers(op.target.type, groups, layout)
            registers = max(registers - (0 if op.target in list(op.inputs) else result), result)
        if registers > role.registers.value:
            raise op_diagnostic(
                op,
                f"works on {registers} registers a thread, but its role has {role.registers.value}",
                fix="raise the role's registers, or use smaller tiles",
            )

    def _quads(self, role, op) -> None:
        parts = isinstance(op, warp.StoreSharedOp) and (op.first is not None or op.exchange.value)
        if parts or isinstance(op, _LANES_ONLY):
            self._wrong_layout(role, op)
        tiles = [v.type for v in [*op.operation.operands, *op.operation.results] if space_of(v.type) == "reg"]
        groups = role.active.value // 4
        # each warpgroup must have rows of its own
        apart = isinstance(op, (warp.StoreRowsOp, warp.ReduceOp, warp.VoteAnyOp, warp.LoadFragmentOp))
        for kind in tiles:
            apart = apart or (isinstance(op, warp.GlobalAddOp) and kind.rank == 1)
            column_values = kind.rank == 2 and kind.shape[0] == 1  # which all rows share
            if kind.shape[0] != 64 * groups and (kind.shape[0] != 64 or apart) and not column_values:
                raise op_diagnostic(
                    op,
                    f"holds {kind.shape[0]} rows in {role.active.value} warps",
                    why="a warpgroup of 4 warps holds 64 rows",
                    fix=f"use tiles of {64 * groups} rows, or another number of warps",
                )
            shares = warp.column_shares(kind, groups)
            if kind.rank == 2 and shares > 1 and kind.shape[1] % (8 * shares):
                raise op_diagnostic(op, f"shares {kind.shape[1]} columns among {groups} warpgroups", why="a quad of lanes holds 8")
        if isinstance(op, warp.TmaStoreOp) or (isinstance(op, warp.StoreSharedOp) and warp.bits_of(op.buffer.type.element_type) == 32):
            kind, swizzle = op.buffer.type, op.buffer.owner.opview.swizzle.value
            span, shares = swizzle * 8 // warp.bits_of(kind.element_type), warp.column_shares(kind, groups, 1)
            if shares > 1 and kind.shape[2] % (span * shares):
                raise op_diagnostic(op, f"shares {kind.shape[2]} columns among {groups} warpgroups", why=f"each has whole spans of {span}",
                                    fix="use a smaller swizzle, or tiles with 64 rows for each warpgroup")

    def _lanes(self, role, op) -> None:
        if isinstance(op, _QUADS_ONLY) or (isinstance(op, warp.GlobalAddOp) and op.source.type.rank == 2):
            self._wrong_layout(role, op)
        if isinstance(op, (warp.StoreSharedOp, warp_tmem.TmemMapOp)) and op.buffer is not None and op.buffer.owner.opview.interleaved.value:
            raise op_diagnostic(op, "writes an interleaved buffer", why="a lane that holds a row writes it in plain order",
                                fix="remove `interleaved` from the buffer, and from all that its tensor goes through")
        rows = warp_tmem.LANES * role.active.value // 4
        for value in [*op.operation.operands, *op.operation.results]:
            column_values = value.type.rank == 2 and value.type.shape[0] == 1 if space_of(value.type) == "reg" else False
            if space_of(value.type) in ("reg", "tmem") and value.type.shape[0] != rows and not column_values:
                raise op_diagnostic(
                    op,
                    f"holds {value.type.shape[0]} rows in {role.active.value} warps",
                    why=f"a warpgroup of 4 warps holds {warp_tmem.LANES} rows, one a lane",
                    fix=f"use tiles of {rows} rows, or another number of warps",
                )

    def _wrong_layout(self, role, op) -> None:
        raise op_diagnostic(
            op,
            f"stands in a role of layout {role.layout}",
            why="wgmma accumulators lie in quads of lanes, tensor memory is read a lane a row",
            fix="change the layout of the role",
        )

    def _named_barriers(self) -> None:
        """No barrier serves two purposes, and none is one that the target does not have."""
        uses: dict[int, tuple] = {}
        for role in self._of(warp.RoleOp):
            for op in nested_operations(role.body):
                if not isinstance(op, _NAMED):
                    continue
                turn = not isinstance(op, warp.BarrierOp)
                groups = max(1, role.active.value // 4)
                count = groups if turn or op.scope.value == "warpgroup" else 1
                purpose = (role.sym_name.value, "turns" if turn else op.scope.value, op.id.value)
                for number in range(op.id.value, op.id.value + count):
                    if number >= self.target.named_barriers:
                        raise op_diagnostic(
                            op, f"takes named barriers {op.id.value} to {op.id.value + count - 1}",
                            why=f"there are {self.target.named_barriers - 1}", fix="use a lower id",
                        )
                    other = uses.setdefault(number, purpose)
                    if other != purpose:
                        raise op_diagnostic(
                            op,
                            f"uses named barrier {number}, which serves role @{other[0]} from id {other[2]} on ({other[1]})",
                            why="arrivals of the two would be counted together",
                            fix="use an id that is free",
                        )

    def _all_walks(self) -> list:
        inside = [op for role in self._of(warp.RoleOp) for op in nested_operations(role.body) if isinstance(op, warp.WalkOp)]
        return [op for op in inside if op.word is not None]

    def _walks(self) -> None:
        """All roles walk through the same tiles, by one number in shared memory that one of them writes."""
        walks = self._all_walks()
        for op in walks[1:]:
            first = walks[0]
            for what, mine, its in (
                ("word", op.word.value, first.word.value),
                ("number of tiles", op.tiles, first.tiles),
                ("pipe", op.state.owner.opview.pipe, first.state.owner.opview.pipe),
            ):
                if mine != its:
                    raise op_diagnostic(op, f"has another {what} than another role's walk", why="all roles walk through the same tiles")
        for op in walks:
            made = op.state.owner.opview.pipe.owner.opview
            if made.tx_bytes.value:
                raise op_diagnostic(
                    made, f"counts {made.tx_bytes.value} bytes for a tile's number", why="no copy brings it", fix="set tx_bytes to 0"
                )

    def _shared_memory(self) -> None:
        size = self.kernel.smem_bytes.value
        if size > self.target.smem_bytes:
            raise op_diagnostic(
                self.kernel, f"has smem_bytes = {size}, but a CTA has {self.target.smem_bytes}", fix="use smaller blocks or fewer stages"
            )
        spans = []
        for op in self._of(warp.PipelineOp):
            spans.append((op.offset.value, op.offset.value + 8 * op.stages.value * op.groups.value * (2 if op.arrivals.value else 1), op))
        for op in self._of(warp.BufferOp):
            spans.append((*byte_range(op.out), op))
        for op in self._of(warp_tmem.TmemAllocOp):
            spans.append((op.word.value, op.word.value + 4, op))
        for op in self._of(warp_tmem.RowBoxOp):
            spans.append((op.offset.value, op.offset.value + 4 * op.out.type.shape[0], op))
        for op in self._all_walks()[:1]:  # the others have the same word
            spans.append((op.word.value, op.word.value + 4, op))
        for start, end, op in spans:
            if start < 0 or end > size:
                raise op_diagnostic(
                    op,
                    f"takes bytes {start} to {end}, but the kernel has {size}",
                    why="it lies outside of shared memory",
                    fix=f"raise smem_bytes to {end} or lower the offset",
                )
        for i, (start, end, op) in enumerate(spans):
            for other_start, other_end, other in spans[:i]:
                both_buffers = isinstance(op, warp.BufferOp) and isinstance(other, warp.BufferOp)
                if start < other_end and other_start < end and not both_buffers:
                    raise op_diagnostic(
                        op,
                        f"takes bytes {start} to {end}, which overlap {other_start} to {other_end} of another {other.operation.name}",
                        why="mbarriers, and row vectors that roles exchange, share no bytes with anything",
                        fix=f"move it to byte {max(other_end, end)}",
                    )

    def _pipeline(self, pipe) -> None:
        if pipe.ctas.value not in (1, self.kernel.cluster.value):
            what = f"is filled by {pipe.ctas.value} CTAs of {self.kernel.cluster.value}"
            raise op_diagnostic(pipe, what, why="one CTA fills a slot, or all of the cluster do")
        if (pipe.ctas.value > 1 or pipe.leader.value) and not self._ends_together():
            raise op_diagnostic(
                self.kernel,
                "may end while others of its cluster still write to its shared memory",
                why="they load tiles for it, and arrive on its barriers",
                fix="end it with warp.cluster_sync",
            )
        self._initialised(pipe)

    def _ends_together(self) -> bool:
        """Whether no CTA of a cluster ends before the others have come to their last operation."""
        last = self.operations[-1]
        frees_of_a_pair = isinstance(last, warp_tmem.TmemFreeOp) and last.memory.owner.opview.ctas.value == 2
        return isinstance(last, warp.ClusterSyncOp) or frees_of_a_pair

    def _initialised(self, pipe) -> None:
        initialised = {value for op in self._of(warp.InitBarriersOp) for value in op.pipes}
        if pipe.out not in initialised:
            raise op_diagnostic(pipe, "is not initialised", why="its mbarriers hold garbage", fix="name it in warp.init_barriers")
