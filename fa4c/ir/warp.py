"""The `warp` dialect: who does what, when, and what it waits for.

A `warp.kernel` is imperative. Register fragments and shared-memory buffers are storage that operations write into, so that each line is
one line (or loop) of CuTe-DSL. A fragment's type is the tile of the whole CTA; the compute warpgroups hold 64 consecutive rows each, in
the layout of a wgmma accumulator (PTX ISA, wgmma register fragments). Where the tile has 64 rows, but the role several warpgroups, each
holds all rows and its share of neighbouring columns. Scalars stay SSA: `arith` on index, `scf.for` and `scf.if` for control.

Top level of a kernel: tensor maps, buffers, pipelines, `init_barriers`, then one `warp.role` for each group of warps.
"""

import re
from collections.abc import Sequence
from typing import Any

from .base import make_operation_base, optional
from .diagnostics import op_error
from .mlir import ext, ir
from .tile import check_yield, is_cluster_size, is_l2_priority, no_stray_attributes, space_of


class Warp(ext.Dialect, name="warp"):
    """Roles, barriers, issue order and byte offsets: nothing is left open."""


class MapType(Warp.Type, name="descriptor"):
    """A TMA descriptor."""


class PipeType(Warp.Type, name="pipe"):
    """A ring of full (and empty) mbarriers that guards a buffer."""


class StateType(Warp.Type, name="place"):
    """A role's place in a pipe: slot and phase, advanced in place."""


Operation = make_operation_base(Warp)


# ----------------------------------------------------------------------------------------------------- kernel and roles


class KernelOp(Operation, name="kernel", traits=[ir.NoTerminatorTrait, ir.IsIsolatedFromAboveTrait]):
    """One CTA: `threads` threads and `smem_bytes` of dynamic shared memory. Arguments and `cluster` as in `tile.kernel`."""

    sym_name: ir.StringAttr
    threads: ir.IntegerAttr
    smem_bytes: ir.IntegerAttr
    cluster: Any = optional(ir.IntegerAttr, "1 : i64")
    body: ext.Region

    def verify_op(self) -> bool:
        if not _has_work(self) or not no_stray_attributes(self.body):
            return False
        if not is_cluster_size(self):
            return False
        threads = self.threads.value
        return (threads % 32 == 0 and 32 <= threads <= 1024) or op_error(
            self, f"has {threads} threads", why="a CTA has 32 to 1024 threads, whole warps"
        )


class TensorMapOp(Operation, name="tensor_map", traits=[ext.Pure]):
    """A TMA descriptor of `tensor` that moves boxes of `box` elements (memory order), smem side swizzled over `swizzle` bytes."""

    tensor: ext.Operand[Any]
    box: ir.DenseI64ArrayAttr
    swizzle: ir.IntegerAttr
    out: ext.Result[MapType]

    def verify_op(self) -> bool:
        if space_of(self.tensor.type) != "gmem":
            return op_error(self, f"needs a tensor in #tile.gmem, but has {self.tensor.type}")
        if not _has_known_elements(self, self.tensor.type):
            return False
        box = list(self.box)
        if len(box) != self.tensor.type.rank or not 1 <= len(box) <= 5:
            return op_error(
                self, f"has a box of rank {len(box)} for {self.tensor.type}", why="TMA moves boxes of the tensor's rank, 1 to 5"
            )
        if not all(1 <= size <= 256 for size in box):
            return op_error(self, f"has box = {box}", why="a box has 1 to 256 elements in each dimension (PTX ISA, tensor copies)")
        if self.swizzle.value not in (0, 32, 64, 128):
            return op_error(self, f"has swizzle = {self.swizzle.value}", why="swizzles span 0, 32, 64 or 128 bytes")
        span = box[-1] * bits_of(self.tensor.type.element_type) // 8
        if self.swizzle.value and span != self.swizzle.value:
            return op_error(
                self,
                f"has boxes {span} bytes wide under a swizzle of {self.swizzle.value} bytes",
                why="one box covers one swizzle span",
                fix=f"make box[{len(box) - 1}] {self.swizzle.value * 8 // bits_of(self.tensor.type.element_type)}",
            )
        return True


class BufferOp(Operation, name="buffer"):
    """`stages` x rows x columns in shared memory from byte `offset` on; columns split into slabs one `swizzle` span wide.

    With swizzle 0 it holds one row, of f32; each stage starts at a multiple of 128 bytes, as TMA wants.
    """

    offset: ir.IntegerAttr
    swizzle: ir.IntegerAttr
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        kind = self.out.type
        if space_of(kind) != "smem" or kind.rank != 3:
            return op_error(self, f"gives {kind}", why="a buffer is a tensor<stages x rows x columns, #tile.smem>")
        if not _has_known_elements(self, kind):
            return False
        if self.swizzle.value == 0:
            return self._check_row(kind)
        if self.swizzle.value not in (32, 64, 128):
            return op_error(
                self,
                f"has swizzle = {self.swizzle.value}",
                why="buffers are swizzled over 32, 64 or 128 bytes; only a row of column values is not (0)",
            )
        if self.offset.value % (8 * self.swizzle.value):
            return op_error(
                self,
                f"has offset {self.offset.value}",
                why=f"a {self.swizzle.value}-byte swizzle repeats every {8 * self.swizzle.value} bytes",
                fix=f"use a multiple of {8 * self.swizzle.value}",
            )
        width = kind.shape[2] * bits_of(kind.element_type) // 8
        return width % self.swizzle.value == 0 or op_error(
            self, f"has rows of {width} bytes under a swizzle of {self.swizzle.value}", why="rows are whole swizzle spans"
        )


    def _check_row(self, kind) -> bool:
        if kind.shape[1] != 1 or str(kind.element_type) != "f32":
            return op_error(self, f"gives {kind} without a swizzle", why="only a row of f32 needs none", fix="set swizzle = 128 : i64")
        return self.offset.value % ROW_ALIGNMENT == 0 or op_error(
            self, f"has offset {self.offset.value}", why=f"TMA writes to multiples of {ROW_ALIGNMENT} bytes (PTX ISA, tensor copies)"
        )


class PipelineOp(Operation, name="pipeline"):
    """`stages` full mbarriers from byte `offset` on, then, if `arrivals` is not 0, as many empty ones that take `arrivals` arrivals each.

    A full barrier completes when `tx_bytes` have arrived; with 0, when `fills` threads (or MMAs' commits) have. With `groups` there are
    so many times the barriers: each compute warpgroup has a ring of its own. With `ctas` above 1
    the slots of all CTAs of the cluster are filled together, and a release arrives on the empty barriers of all of them.

    With `leader` the full barriers are those of the pair's first CTA, which alone waits for them: copies and arrivals of both CTAs go
    there, and `tx_bytes`, which it announces, and `fills` count those of both. The empty ones are each CTA's own.
    """

    stages: ir.IntegerAttr
    offset: ir.IntegerAttr
    tx_bytes: ir.IntegerAttr
    arrivals: ir.IntegerAttr
    fills: Any = optional(ir.IntegerAttr, "1 : i64")
    groups: Any = optional(ir.IntegerAttr, "1 : i64")
    ctas: Any = optional(ir.IntegerAttr, "1 : i64")
    leader: Any = optional(ir.BoolAttr, "false")
    out: ext.Result[PipeType]

    def verify_op(self) -> bool:
        if self.stages.value < 1:
            return op_error(self, f"has {self.stages.value} stages", why="a pipeline has at least one")
        if self.offset.value % 8:
            return op_error(self, f"has offset {self.offset.value}", why="mbarriers are 8 bytes, 8-byte aligned")
        if self.leader.value and (self.ctas.value > 1 or cluster_around(self) == 1):
            return op_error(self, "has its full barriers in the first CTA of a pair", why="its kernel has no pairs, or each CTA fills all",
                            fix="give the kernel cluster = 2, and the pipeline no ctas")
        if self.fills.value < 1 or self.groups.value < 1 or (self.fills.value > 1 and self.tx_bytes.value):
            return op_error(
                self,
                f"has fills = {self.fills.value}, groups = {self.groups.value}, tx_bytes = {self.tx_bytes.value}",
                why="threads fill a slot, at least one, or the bytes of copies that one thread has announced",
            )
        return 0 <= self.tx_bytes.value < 1 << 20 or op_error(
            self, f"has tx_bytes = {self.tx_bytes.value}", why="an mbarrier counts up to 2**20 - 1 bytes"
        )


class InitBarriersOp(Operation, name="init_barriers"):
    """One thread initialises all mbarriers of `pipes`; the whole CTA, or cluster, waits for it."""

    pipes: Sequence[ext.Operand[Any]]

    def verify_op(self) -> bool:
        return all(_made_by(self, f"pipe {n}", pipe, PipelineOp) for n, pipe in enumerate(self.pipes))


class ClusterSyncOp(Operation, name="cluster_sync"):
    """All threads of the cluster wait for each other."""


class RoleOp(Operation, name="role", traits=[ir.NoTerminatorTrait]):
    """What `warps` (consecutive) do. They set their register limit to `registers`; only the first `active` of them run the body.

    `layout` says which part of a register tile a thread holds: "quads", that of a wgmma accumulator, 64 rows a warpgroup, four lanes to
    a row; "lanes", one row a thread, 128 rows a warpgroup, as tensor memory is read. With `leader` only the first CTA of a pair runs it.
    """

    sym_name: ir.StringAttr
    warps: ir.DenseI64ArrayAttr
    active: ir.IntegerAttr
    registers: ir.IntegerAttr
    layout: Any = optional(ir.StringAttr, '"quads"')
    leader: Any = optional(ir.BoolAttr, "false")
    body: ext.Region

    def verify_op(self) -> bool:
        if self.leader.value and cluster_around(self) == 1:
            return op_error(self, "is of the first CTA of a pair", why="its kernel has no pairs", fix="give the kernel cluster = 2")
        warps = list(self.warps)
        whole = bool(warps) and warps[0] % 4 == 0 and len(warps) % 4 == 0
        within = bool(warps) and warps[0] // 4 == warps[-1] // 4
        if not warps or warps != list(range(warps[0], warps[0] + len(warps))) or not (whole or within):
            return op_error(
                self,
                f"has warps = {warps}",
                why="a role is made of whole warpgroups, 4 consecutive warps each from a multiple of 4 on, or of warps of one warpgroup",
            )
        if self.layout.value not in ("quads", "lanes"):
            return op_error(self, f"has layout = {self.layout}", why='known are "quads" and "lanes"')
        if not 1 <= self.active.value <= len(warps):
            return op_error(self, f"has {self.active.value} active warps of {len(warps)}")
        registers = self.registers.value
        return (registers % 8 == 0 and 24 <= registers <= 256) or op_error(
            self, f"has registers = {registers}", why="setmaxnreg takes multiples of 8 from 24 to 256 (PTX ISA)"
        )


# ------------------------------------------------------------------------------------------------------ pipes and barriers


class WalkOp(Operation, name="walk", traits=[ir.NoTerminatorTrait]):
    """A role's part of `tile.walk`: its body for each tile of this CTA, the same ones for all roles.

    The role that has the `queue` takes the next tile and passes its number on, through the i32 at byte `word` of shared memory guarded by
    the pipe of `state`; the others follow. `state` is absent until `warp-insert-barriers` has run.
    """

    tiles: ext.Operand[Any]
    queue: ext.Operand[Any] | None
    state: ext.Operand[Any] | None
    word: Any = optional(ir.IntegerAttr)
    body: ext.Region

    def verify_op(self) -> bool:
        arguments = list(self.body.blocks[0].arguments)
        if len(arguments) != 1 or not isinstance(arguments[0].type, ir.IndexType):
            return op_error(self, f"has a body with {len(arguments)} arguments", why="the body takes the tile's number, an index")
        if (self.state is None) != (self.word is None):
            return op_error(self, "has only one of state and word", why="the number lies at `word` and is guarded by the pipe of `state`")
        return self.word is None or self.word.value % 4 == 0 or op_error(self, f"has word = {self.word.value}", why="it is a 4-byte number")


class StateOp(Operation, name="state"):
    """A role's state in a pipe, at slot 0. `phase` is the parity its first wait expects: 0 for consumers, 1 for producers.

    Of a pipe with `groups`, `group` names the ring; absent, each warpgroup's own.
    """

    pipe: ext.Operand[Any]
    phase: ir.IntegerAttr
    group: Any = optional(ir.IntegerAttr)
    out: ext.Result[StateType]

    def verify_op(self) -> bool:
        if not _made_by(self, "pipe", self.pipe, PipelineOp):
            return False
        groups = self.pipe.owner.opview.groups.value
        if self.group is not None and (groups == 1 or not 0 <= self.group.value < groups):
            return op_error(self, f"has group = {self.group.value}", why=f"its pipe has {groups} rings")
        return self.phase.value in (0, 1) or op_error(self, f"has phase = {self.phase.value}", why="a parity is 0 or 1")


class AcquireOp(Operation, name="acquire"):
    """Wait until the slot is empty."""

    state: ext.Operand[Any]

    def verify_op(self) -> bool:
        return _made_by(self, "state", self.state, StateOp)


class ArmOp(Operation, name="arm"):
    """Tell the slot's full barrier how many bytes will come. One thread, before its copies. Of a pipe with `leader`, the pair's first CTA.
    """

    state: ext.Operand[Any]

    def verify_op(self) -> bool:
        return _made_by(self, "state", self.state, StateOp)


class WaitOp(Operation, name="wait"):
    """Wait until the slot is full."""

    state: ext.Operand[Any]

    def verify_op(self) -> bool:
        return _made_by(self, "state", self.state, StateOp)


class ReleaseOp(Operation, name="release"):
    """One lane of each warp arrives on the slot's empty barrier; for all lanes only behind a `sync_warp`, if they read it themselves."""

    state: ext.Operand[Any]

    def verify_op(self) -> bool:
        return _made_by(self, "state", self.state, StateOp)


class ArriveOp(Operation, name="arrive"):
    """One lane of each warp arrives on the slot's full barrier, of a pipe with `leader` on that of the pair's first CTA; for all lanes only
    behind a `sync_warp`, if they wrote what it guards."""

    state: ext.Operand[Any]

    def verify_op(self) -> bool:
        return _made_by(self, "state", self.state, StateOp)


class AdvanceOp(Operation, name="advance"):
    """Go to the next slot, and to the other phase after the last one."""

    state: ext.Operand[Any]

    def verify_op(self) -> bool:
        return _made_by(self, "state", self.state, StateOp)


class ElectOp(Operation, name="elect", traits=[ir.NoTerminatorTrait]):
    """One thread runs the body: of each warp (`scope` "warp"), of each warpgroup ("warpgroup"), or of the role's first warp ("role")."""

    scope: ir.StringAttr
    body: ext.Region

    def verify_op(self) -> bool:
        if not _has_work(self):
            return False
        return self.scope.value in ("warp", "warpgroup", "role") or op_error(
            self, f"has scope = {self.scope}", why='known are "warp", "warpgroup" and "role"'
        )


class BarrierOp(Operation, name="barrier"):
    """Named barrier `id`: of each warpgroup apart (ids id, id + 1, ...; `scope` "warpgroup"), or of all warps of the role ("role")."""

    id: ir.IntegerAttr
    scope: ir.StringAttr

    def verify_op(self) -> bool:
        if self.scope.value not in ("warpgroup", "role"):
            return op_error(self, f"has scope = {self.scope}", why='known are "warpgroup" and "role"')
        return _barrier_id(self)


class TurnInitOp(Operation, name="turn_init"):
    """The first warpgroup may go first: it arrives for the others on its own turn barrier."""

    id: ir.IntegerAttr

    def verify_op(self) -> bool:
        return _barrier_id(self)


class TurnTakeOp(Operation, name="turn_take"):
    """Ping-pong: wait for this warpgroup's turn to issue MMAs (named barriers id, id + 1, ...: one a warpgroup)."""

    id: ir.IntegerAttr

    def verify_op(self) -> bool:
        return _barrier_id(self)


class TurnGiveOp(Operation, name="turn_give"):
    """Ping-pong: it is the next warpgroup's turn."""

    id: ir.IntegerAttr

    def verify_op(self) -> bool:
        return _barrier_id(self)


class FenceAsyncOp(Operation, name="fence_async"):
    """This thread's writes to shared memory become visible to the async proxy (TMA, MMAs); with `cluster` those to its peer's too."""

    cluster: Any = optional(ir.BoolAttr, "false")


# ------------------------------------------------------------------------------------------------------------ data movement


class TmaLoadOp(Operation, name="tma_load"):
    """buffer[slot] = box of `map`'s tensor at `coords` (memory order), by one thread; completes on the slot's full barrier.

    `state` is absent until `warp-insert-barriers` has run. `l2` and `shared` as in `tile.load`.
    """

    map: ext.Operand[Any]
    buffer: ext.Operand[Any]
    state: ext.Operand[Any] | None
    coords: Sequence[ext.Operand[Any]]
    l2: Any = optional(ir.StringAttr)
    shared: Any = optional(ir.BoolAttr, "false")

    def verify_op(self) -> bool:
        return _moves_boxes(self) and is_l2_priority(self) and (self.state is None or _made_by(self, "state", self.state, StateOp))


class LoadColumnsOp(Operation, name="load_columns"):
    """target = the row of column values in buffer[slot]: of each 8 columns, a thread reads the 2 of its accumulator elements.

    `state` is absent until `warp-insert-barriers` has run; `reader` as in `warp.wgmma`.
    """

    buffer: ext.Operand[Any]
    state: ext.Operand[Any] | None
    target: ext.Operand[Any]
    reader: Any = optional(ir.IntegerAttr, "0 : i64")

    def verify_op(self) -> bool:
        if not (_reads_slot(self) and _is_fragment(self, "target", self.target, row=True)):
            return False
        return self.target.type.shape[0] == 1 or op_error(self, f"loads columns into {self.target.type}", why="it loads one row")


class LoadFragmentOp(Operation, name="load_fragment"):
    """target = buffer[slot], each warpgroup its rows: two neighbouring elements a load.

    `state` is absent until `warp-insert-barriers` has run; `reader` as in `warp.wgmma`.
    """

    buffer: ext.Operand[Any]
    state: ext.Operand[Any] | None
    target: ext.Operand[Any]
    reader: Any = optional(ir.IntegerAttr, "0 : i64")

    def verify_op(self) -> bool:
        if not (_reads_slot(self) and _is_fragment(self, "target", self.target)):
            return False
        return bits_of(self.target.type.element_type) in (16, 32) or op_error(
            self, f"loads elements of {self.target.type.element_type}", why="two neighbours are 4 or 8 bytes"
        )


class SyncWarpOp(Operation, name="sync_warp"):
    """What the lanes of a warp did before this, reads of shared memory too, comes before what any of them does after it."""


class StoreSharedOp(Operation, name="store_shared"):
    """buffer[slot] = fragment, 16-bit elements by stmatrix, f32 by pairs; each warpgroup what it holds. With `first`, as many columns of
    the fragment from that one on as the buffer has. With `exchange` what a pair of CTAs does in `tile.exchange` along columns: of each row,
    half goes to this CTA's buffer, half to the peer's, into its rows of the two.

    `slot`: its number, an index; the place in a pipe, for a buffer that another role takes over (absent until `warp-insert-barriers`
    has run); else buffer[0].
    """

    buffer: ext.Operand[Any]
    source: ext.Operand[Any]
    slot: ext.Operand[Any] | None
    first: Any = optional(ir.IntegerAttr)
    exchange: Any = optional(ir.BoolAttr, "false")

    def verify_op(self) -> bool:
        buffer, source = self.buffer.type, self.source.type
        if not (_is_buffer(self, self.buffer) and _is_fragment(self, "source", self.source)):
            return False
        if self.slot is not None and not is_slot_number(self.slot) and not _made_by(self, "slot", self.slot, StateOp):
            return False
        rows, columns = list(buffer.shape)[1:]
        if self.exchange.value:
            if cluster_around(self) != 2 or self.first is not None:
                return op_error(self, "exchanges with a peer", why="its kernel has no pairs, or it takes a part", fix="set cluster = 2")
            rows, columns = rows // 2, 2 * columns
        first = self.first.value if self.first is not None else 0
        whole = columns == source.shape[1] if self.first is None else 0 <= first <= source.shape[1] - columns
        if rows != source.shape[0] or buffer.element_type != source.element_type or not whole:
            return op_error(self, f"copies {source} into {buffer}", why="rows, columns and dtype stay; `first` takes a part")
        return bits_of(source.element_type) in (16, 32) or op_error(
            self, f"stores {source.element_type}", why="two neighbours are 4 or 8 bytes"
        )


class TmaStoreOp(Operation, name="tma_store"):
    """Box of `map`'s tensor at `coords` = buffer[slot], or += it with `add`, each warpgroup what it holds, by one thread of it; rows
    out of bounds are dropped. `row` names the coordinate that runs along rows. With `fold` the lower half of a warpgroup's rows lies beside
    the upper half, that many columns further."""

    map: ext.Operand[Any]
    buffer: ext.Operand[Any]
    coords: Sequence[ext.Operand[Any]]
    row: ir.IntegerAttr
    add: Any = optional(ir.BoolAttr, "false")
    slot: Any = optional(ir.IntegerAttr, "0 : i64")
    fold: Any = optional(ir.IntegerAttr)

    def verify_op(self) -> bool:
        if not _moves_boxes(self):
            return False
        if self.fold is not None and self.fold.value < self.buffer.type.shape[2]:
            return op_error(self, f"has fold = {self.fold.value}", why=f"the halves of its rows would overlap in {self.buffer.type}")
        if not 0 <= self.slot.value < self.buffer.type.shape[0]:
            return op_error(self, f"has slot = {self.slot.value}", why=f"its buffer has {self.buffer.type.shape[0]}")
        if self.add.value and str(self.buffer.type.element_type) != "f32":
            return op_error(self, f"adds {self.buffer.type.element_type}", why="sums over CTAs are f32")
        return 0 <= self.row.value < len(self.coords) or op_error(self, f"has row = {self.row.value}, but {len(self.coords)} coordinates")


class TmaAddOp(Operation, name="tma_add"):
    """Box of `map`'s tensor at `coords` += buffer[slot], f32, by one thread; rows out of bounds are dropped.

    Another role writes the buffer and hands it over through a pipe. `state` is absent until `warp-insert-barriers` has run.
    """

    map: ext.Operand[Any]
    buffer: ext.Operand[Any]
    state: ext.Operand[Any] | None
    coords: Sequence[ext.Operand[Any]]

    def verify_op(self) -> bool:
        if not _moves_boxes(self) or not (self.state is None or _made_by(self, "state", self.state, StateOp)):
            return False
        return str(self.buffer.type.element_type) == "f32" or op_error(
            self, f"adds {self.buffer.type.element_type}", why="sums over CTAs are f32"
        )


class StoreCommitOp(Operation, name="store_commit"):
    """Close a group of TMA stores and additions."""


class WaitCountOp(Operation, name="wait_count"):
    """One thread of each warpgroup waits until its number in `counter` at `coords` is `count`; the last dimension is the warpgroup, of
    size 1 in a role without warpgroups."""

    counter: ext.Operand[Any]
    count: ext.Operand[Any]
    coords: Sequence[ext.Operand[Any]]

    def verify_op(self) -> bool:
        return _counts(self)


class AddCountOp(Operation, name="add_count"):
    """One thread of each warpgroup adds 1 to its number in `counter` at `coords`, behind all that the warpgroup is known to have added."""

    counter: ext.Operand[Any]
    coords: Sequence[ext.Operand[Any]]

    def verify_op(self) -> bool:
        return _counts(self)


class StoreWaitOp(Operation, name="store_wait"):
    """Wait until at most `pending` groups of this thread's TMA stores and additions still read shared memory, or with `complete` still
    write."""

    pending: ir.IntegerAttr
    complete: Any = optional(ir.BoolAttr, "false")


class StoreRowsOp(Operation, name="store_rows"):
    """target[coords + row] = source[row], one lane of each quad; rows out of bounds are dropped. Nothing, if the tensor is absent."""

    source: ext.Operand[Any]
    target: ext.Operand[Any]
    coords: Sequence[ext.Operand[Any]]

    def verify_op(self) -> bool:
        if not _is_fragment(self, "source", self.source) or self.source.type.rank != 1:
            return op_error(self, f"stores {self.source.type}", why="it stores a row vector")
        target = self.target.type
        if space_of(target) != "gmem":
            return op_error(self, f"needs a target in #tile.gmem, but has {target}")
        if len(self.coords) != target.rank:
            return op_error(self, f"has {len(self.coords)} coordinates for {target}", why="one for each dimension, that of the rows last")
        return target.element_type == self.source.type.element_type or op_error(
            self, f"stores {self.source.type.element_type} into a tensor of {target.element_type}", why="stores do not convert"
        )


class GlobalAddOp(Operation, name="global_add"):
    """target's box at `coords` += source, element by element, atomically: each thread what it holds; what is out of bounds is dropped.

    `dims`: the dimensions that rows and columns run along. `vector`: 2, if each thread's pairs of neighbouring columns lie at multiples
    of 8 bytes and inside or outside together; else 1. A row vector (no dims) is added up over each warp's rows first, to one element.
    """

    source: ext.Operand[Any]
    target: ext.Operand[Any]
    coords: Sequence[ext.Operand[Any]]
    dims: ir.DenseI64ArrayAttr
    vector: ir.IntegerAttr

    def verify_op(self) -> bool:
        if not _is_fragment(self, "source", self.source):
            return False
        source, target = self.source.type, self.target.type
        if space_of(target) != "gmem":
            return op_error(self, f"needs a target in #tile.gmem, but has {target}")
        if len(self.coords) != target.rank:
            return op_error(self, f"has {len(self.coords)} coordinates for {target}", why="one for each dimension")
        if str(source.element_type) != "f32" or str(target.element_type) != "f32":
            return op_error(self, f"adds {source.element_type} to {target.element_type}", why="both are f32")
        dims = list(self.dims)
        right = dims == [] if source.rank == 1 else len(dims) == 2 and 0 <= dims[0] < dims[1] == target.rank - 1
        if not right:
            return op_error(self, f"has dims = {dims} for {source}", why="rows and the last dimension; none for a row vector")
        return self.vector.value in (1, 2) or op_error(self, f"has vector = {self.vector.value}", why="a thread holds pairs of columns")


# ------------------------------------------------------------------------------------------------------------------ compute


class FragmentOp(Operation, name="fragment"):
    """Registers for a tile: rows x columns, rows x 4 (one value a lane of a quad), one value a row (the same in all lanes of a quad), or
    1 x columns (one value a column, the same in all lanes that hold the column).
    """

    out: ext.Result[Any]

    def verify_op(self) -> bool:
        return _is_fragment(self, "out", self.out, row=True)


class FillOp(Operation, name="fill"):
    """target = value, everywhere."""

    target: ext.Operand[Any]
    value: ir.Attribute

    def verify_op(self) -> bool:
        if not _is_fragment(self, "target", self.target):
            return False
        return getattr(self.value, "type", None) == self.target.type.element_type or op_error(
            self, f"has value = {self.value}, but the fragment holds {self.target.type.element_type}"
        )


class CopyOp(Operation, name="copy"):
    """target = source."""

    target: ext.Operand[Any]
    source: ext.Operand[Any]

    def verify_op(self) -> bool:
        if not (_is_fragment(self, "target", self.target) and _is_fragment(self, "source", self.source)):
            return False
        return self.target.type == self.source.type or op_error(self, f"copies {self.source.type} to {self.target.type}")


class WgmmaFenceOp(Operation, name="wgmma_fence"):
    """Register writes before come before the reads of the next wgmma.

    `fragments`: those that others read too, or of 16-bit elements that were written before a branch of this block. The compiler behind may
    pack a pair of 16-bit elements into a register again for each reader, and puts off the reading of an f32 element, whose copy it then
    makes for the wgmma that overwrites it; both behind this fence. Naming them here keeps their registers.
    """

    fragments: Sequence[ext.Operand[Any]]

    def verify_op(self) -> bool:
        for value in self.fragments:
            if not _is_fragment(self, "a fragment", value):
                return False
            if value.type.rank != 2 or bits_of(value.type.element_type) not in (16, 32):
                return op_error(self, f"keeps {value.type}", why="an MMA reads and writes tiles of 16-bit and f32 elements")
        return True


class WgmmaOp(Operation, name="wgmma"):
    """acc (+)= a @ b (a^T with `transpose_a`, b^T with `transpose_b`), issued asynchronously, each warpgroup what it holds of acc; the
    first k-step overwrites unless `accumulate`.

    `a_state`, `b_state` say which slot of a buffer: the place in a pipe for one that TMA fills (absent until `warp-insert-barriers` has
    run), the number, an index, for one that the role's threads wrote (absent: 0). Absent for fragments. Before barriers are inserted,
    `reader` counts the operations that read the slots of a buffer at different steps: 0 reads a slot first, the last one gives it back.
    """

    acc: ext.Operand[Any]
    a: ext.Operand[Any]
    b: ext.Operand[Any]
    a_state: ext.Operand[Any] | None
    b_state: ext.Operand[Any] | None
    transpose_a: Any = optional(ir.BoolAttr, "false")
    transpose_b: Any = optional(ir.BoolAttr, "false")
    accumulate: ir.BoolAttr
    reader: Any = optional(ir.IntegerAttr, "0 : i64")

    def verify_op(self) -> bool:
        if not _is_reader(self, self.a_state, self.b_state):
            return False
        if not _is_fragment(self, "acc", self.acc) or not _is_buffer(self, self.b):
            return False
        if not (space_of(self.a.type) == "smem" or _is_fragment(self, "a", self.a)):
            return False
        for name, state in (("a_state", self.a_state), ("b_state", self.b_state)):
            if state is not None and not is_slot_number(state) and not _made_by(self, name, state, StateOp):
                return False
        if self.a_state is not None and space_of(self.a.type) == "reg":
            return op_error(self, "has a_state for an operand in registers", why="a fragment has no slots", fix="remove it")
        a, b, acc = (str(v.type.element_type) for v in (self.a, self.b, self.acc))
        if a != b or a not in ("bf16", "f16") or acc != "f32":
            return op_error(self, f"multiplies {a} by {b} into {acc}", why="both are bf16 or both f16, and sums are f32")
        a_shape, b_shape = list(self.a.type.shape)[-2:], list(self.b.type.shape)[-2:]
        rows, depth_a = reversed(a_shape) if self.transpose_a.value else a_shape
        depth_b, columns = reversed(b_shape) if self.transpose_b.value else b_shape
        if depth_a != depth_b or list(self.acc.type.shape) != [rows, columns]:
            return op_error(self, f"multiplies {a_shape} by {b_shape} into {list(self.acc.type.shape)}", why="the sizes do not fit")
        if self.transpose_a.value and space_of(self.a.type) == "reg":
            return op_error(self, "transposes an operand in registers", why="wgmma takes those by rows (PTX ISA)")
        if columns % 8 or not 8 <= columns <= 256:
            return op_error(self, f"has {columns} columns", why="wgmma takes 8 to 256 columns, a multiple of 8 (PTX ISA)")
        return depth_b % 16 == 0 or op_error(self, f"sums over {depth_b}", why="16-bit wgmma sums over 16 a step (PTX ISA)")


class WgmmaCommitOp(Operation, name="wgmma_commit"):
    """Close a group of wgmmas."""


class WgmmaWaitOp(Operation, name="wgmma_wait"):
    """Wait until at most `pending` groups are in flight."""

    pending: ir.IntegerAttr

    def verify_op(self) -> bool:
        return 0 <= self.pending.value <= 7 or op_error(self, f"has pending = {self.pending.value}", why="wait_group takes 0 to 7")


class WhenOp(Operation, name="when", traits=[ir.NoTerminatorTrait]):
    """Run the body if `cond` holds: a scalar, or a row vector that is equal over each warp's rows (what `vote_any` gives)."""

    cond: ext.Operand[Any]
    body: ext.Region

    def verify_op(self) -> bool:
        if not _has_work(self):
            return False
        kind = self.cond.type
        row_flags = space_of(kind) == "reg" and kind.rank == 1 and str(kind.element_type) == "i1"
        return row_flags or str(kind) == "i1" or op_error(self, f"has cond of type {kind}", why="cond is an i1, or one i1 a row")


class MapOp(Operation, name="map"):
    """target[i, j] = body(inputs[i, j]..., row i, column j), for the elements this thread holds; an input of one value a row or a column
    is spread.
    """

    target: ext.Operand[Any]
    inputs: Sequence[ext.Operand[Any]]
    body: ext.Region

    def verify_op(self) -> bool:
        if not _is_fragment(self, "target", self.target):
            return False
        arguments = list(self.body.blocks[0].arguments)
        if len(arguments) != len(self.inputs) + 2:
            return op_error(
                self,
                f"has {len(self.inputs)} inputs, but its region takes {len(arguments)} arguments",
                why="the region takes one element of each input, then row and column as index",
            )
        for number, value in enumerate(self.inputs):
            shape = list(self.target.type.shape)
            if space_of(value.type) != "reg" or list(value.type.shape) not in (shape, shape[:1], [1, *shape[1:]]):
                return op_error(self, f"has input {number} of type {value.type} for a target {self.target.type}")
            if arguments[number].type != value.type.element_type:
                return op_error(
                    self, f"region argument {number} is {arguments[number].type}, but input {number} holds {value.type.element_type}"
                )
        for argument in arguments[-2:]:
            if not isinstance(argument.type, ir.IndexType):
                return op_error(self, f"region arguments for row and column are index, but one is {argument.type}")
        return check_yield(self, self.body, [self.target.type.element_type])


class ReduceOp(Operation, name="reduce"):
    """target[i] = kind over the columns of source, and over target's old value with `accumulate`. Into rows x 4: this lane's columns only.
    """

    target: ext.Operand[Any]
    source: ext.Operand[Any]
    kind: ir.StringAttr
    accumulate: ir.BoolAttr

    def verify_op(self) -> bool:
        if not (_is_fragment(self, "target", self.target) and _is_fragment(self, "source", self.source)):
            return False
        if self.kind.value not in ("max", "sum"):
            return op_error(self, f"has kind = {self.kind}", why='known kinds are "max" and "sum"')
        rows = self.source.type.shape[0]
        if self.source.type.rank != 2 or self.source.type.element_type != self.target.type.element_type:
            return op_error(self, f"reduces {self.source.type} into {self.target.type}", why="it reduces columns, and the dtype stays")
        return list(self.target.type.shape) in ([rows], [rows, 4]) or op_error(self, f"reduces {self.source.type} into {self.target.type}")


class VoteAnyOp(Operation, name="vote_any"):
    """target[i] = whether source holds in any row of this warp."""

    target: ext.Operand[Any]
    source: ext.Operand[Any]

    def verify_op(self) -> bool:
        if not (_is_fragment(self, "target", self.target) and _is_fragment(self, "source", self.source)):
            return False
        flags = self.source.type.rank == 1 and str(self.source.type.element_type) == "i1"
        return (flags and self.target.type == self.source.type) or op_error(
            self, f"votes {self.source.type} into {self.target.type}", why="it takes and gives one i1 a row"
        )


class PtxOp(Operation, name="ptx", traits=[ext.Pure]):
    """out = inline PTX on scalars, in a map's region: `asm` with $0 for the result and $1, $2, ... for the operands."""

    inputs: Sequence[ext.Operand[Any]]
    asm: ir.StringAttr
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        text = self.asm.value
        if '"' in text or "\n" in text or "\\" in text:
            return op_error(
                self,
                f"has asm = {self.asm}",
                why="the text is put into a string of the emitted source",
                fix="write one line without quotes and backslashes",
            )
        named, wanted = set(re.findall(r"\$\d+", text)), {f"${n}" for n in range(len(self.inputs) + 1)}
        if wanted - named:
            return op_error(self, f"has asm without {min(wanted - named)}", why="$0 is the result, $1... are the operands")
        return named == wanted or op_error(
            self, f"has asm with {min(named - wanted)}, but {len(self.inputs)} inputs", why="$0 is the result, $1... are the operands"
        )


# ------------------------------------------------------------------------------------------------------------------ helpers


def cluster_around(op) -> int:
    """How many CTAs run together in the kernel of an operation; 2 while it is under construction."""
    operation = op.operation.parent
    while operation is not None and operation.name != "warp.kernel":
        operation = operation.parent
    return operation.opview.cluster.value if operation is not None else 2


def is_slot_number(state) -> bool:
    """Whether a slot is named by its number, not by a place in a pipe."""
    return isinstance(state.type, ir.IndexType)


def column_shares(kind, warpgroups: int, rows: int = 0) -> int:
    """Into how many shares of columns a role's warpgroups split a tile: 1 where each has 64 rows of its own. `rows`: their dimension."""
    return warpgroups if kind.shape[rows] == 64 else 1


def values_held(kind, warpgroups: int) -> int:
    """Elements of a register tile in one thread."""
    if kind.rank == 2 and kind.shape[0] == 1:  # one value a column
        return kind.shape[1] // 4
    return 2 if kind.rank == 1 or kind.shape[1] == 4 else kind.shape[1] // 2 // column_shares(kind, warpgroups)


def registers_held(kind, warpgroups: int) -> int:
    """32-bit registers of one thread for a register tile."""
    return -(-values_held(kind, warpgroups) * max(16, bits_of(kind.element_type)) // 32)


def has_barriers(kernel) -> bool:
    """Whether a `warp.kernel` is complete: barriers, waits and turns are in it, and passes that insert such leave it alone."""
    return any(isinstance(op, InitBarriersOp) for op in kernel.body.blocks[0].operations)


ROW_ALIGNMENT = 128  # bytes: where TMA may write without a swizzle


def stage_bytes(buffer) -> int:
    """The distance of two stages of a `warp.buffer` value, in bytes."""
    _, rows, columns = buffer.type.shape
    size = rows * columns * bits_of(buffer.type.element_type) // 8
    return size if buffer.owner.opview.swizzle.value else -(-size // ROW_ALIGNMENT) * ROW_ALIGNMENT


def bits_of(kind) -> int:
    """Width of an element type in bits."""
    return _BITS[str(kind)]


_BITS = {"f32": 32, "i32": 32, "bf16": 16, "f16": 16, "i1": 1, "f64": 64, "i64": 64, "index": 32, "i8": 8}


def _has_known_elements(op, kind) -> bool:
    return str(kind.element_type) in _BITS or op_error(
        op, f"holds elements of type {kind.element_type}", why=f"known are {', '.join(_BITS)}"
    )


def _made_by(op, name, value, kind) -> bool:
    """Descriptors, buffers, pipes and states are looked up where they are made."""
    maker = value.owner
    return (not isinstance(maker, ir.Block) and isinstance(maker.opview, kind)) or op_error(
        op, f"needs {name} made by '{kind.OPERATION_NAME}', but it is {_description(value)}"
    )


def _description(value) -> str:
    return f"an argument of type {value.type}" if isinstance(value.owner, ir.Block) else f"made by '{value.owner.name}'"


def _moves_boxes(op) -> bool:
    """Descriptor, buffer and coordinates of a TMA copy fit together."""
    if not (_made_by(op, "map", op.map, TensorMapOp) and _is_buffer(op, op.buffer)):
        return False
    tensor, buffer = op.map.owner.opview.tensor.type, op.buffer.type
    if len(op.coords) != tensor.rank:
        return op_error(op, f"has {len(op.coords)} coordinates for {tensor}", why="one for each dimension, in memory order")
    if tensor.element_type != buffer.element_type:
        return op_error(op, f"moves {tensor.element_type} from or to a buffer of {buffer.element_type}", why="copies do not convert")
    spans = op.map.owner.opview.swizzle.value, op.buffer.owner.opview.swizzle.value
    return spans[0] == spans[1] or op_error(
        op, f"has a descriptor of swizzle {spans[0]} and a buffer of swizzle {spans[1]}", why="both order the same bytes"
    )


def _has_work(op) -> bool:
    return len(op.body.blocks[0].operations) > 0 or op_error(op, "has an empty body", why="it does nothing", fix="remove it")


def _counts(op) -> bool:
    kind = op.counter.type
    right = space_of(kind) == "gmem" and str(kind.element_type) == "i32" and kind.rank and not kind.is_dynamic_dim(kind.rank - 1)
    if not right:
        return op_error(op, f"counts in {kind}", why="counters are i32 in #tile.gmem, one for each warpgroup in the last dimension")
    return len(op.coords) == kind.rank - 1 or op_error(op, f"has {len(op.coords)} coordinates for {kind}", why="one for each but the last")


def _barrier_id(op) -> bool:
    return 1 <= op.id.value <= 15 or op_error(op, f"has id = {op.id.value}", why="named barriers are 1 to 15; 0 is the whole CTA's")


def _is_reader(op, *states) -> bool:
    """`reader` is a number, and says nothing that a state says."""
    if op.reader.value < 0:
        return op_error(op, f"has reader = {op.reader.value}", why="readers are numbered from 0 on")
    placed = any(state is not None and not is_slot_number(state) for state in states)
    return op.reader.value == 0 or not placed or op_error(
        op, f"has reader = {op.reader.value} and a state", why="its state is its own place in the pipe", fix="remove reader"
    )


def _reads_slot(op) -> bool:
    """Buffer and target of a load into registers fit together."""
    if not _is_reader(op, op.state):
        return False
    if not _is_buffer(op, op.buffer) or not (op.state is None or _made_by(op, "state", op.state, StateOp)):
        return False
    buffer, target = op.buffer.type, op.target.type
    same = space_of(target) == "reg" and list(buffer.shape)[1:] == list(target.shape) and buffer.element_type == target.element_type
    return same or op_error(op, f"copies {buffer} into {target}", why="rows, columns and dtype stay")


def _is_buffer(op, value) -> bool:
    kind = value.type
    if space_of(kind) != "smem" or kind.rank != 3:
        return op_error(op, f"needs a buffer, but has {kind}", why="it works on a 'warp.buffer'")
    return _made_by(op, "buffer", value, BufferOp)


def _is_fragment(op, name, value, row=False) -> bool:
    """`row`: it may also hold one value a column."""
    kind = value.type
    if space_of(kind) != "reg" or kind.rank not in (1, 2):
        return op_error(op, f"needs {name} in #tile.reg, but it is {kind}")
    if row and kind.rank == 2 and kind.shape[0] == 1:
        return (kind.shape[1] % 8 == 0 and kind.shape[1] >= 8 and str(kind.element_type) == "f32") or op_error(
            op, f"has {name} of type {kind}", why="one value a column is f32, and a quad of lanes holds 8 columns at a time"
        )
    if kind.shape[0] % 64 or kind.shape[0] < 64:
        return op_error(op, f"has {name} of {kind.shape[0]} rows", why="a warpgroup holds 64 rows")
    if kind.rank == 2 and kind.shape[1] != 4 and (kind.shape[1] % 8 or kind.shape[1] < 8):
        return op_error(op, f"has {name} of {kind.shape[1]} columns", why="a quad of lanes holds 8 columns at a time, or 4 partial values")
    return _has_known_elements(op, kind)
