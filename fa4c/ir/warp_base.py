"""The `warp` dialect's kernels and roles, pipes and barriers, and what several of its operations check."""

from collections.abc import Sequence
from typing import Any

from .base import make_operation_base, optional
from .diagnostics import op_error
from .mlir import ext, ir
from .tile import is_cluster_size, nested_operations, no_stray_attributes, space_of


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
        if not has_work(self) or not no_stray_attributes(nested_operations(self.body)):
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
        if not has_known_elements(self, self.tensor.type):
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
    `interleaved`: of each 8 columns, f32, the even ones lie before the odd ones, as in the tensor that copies bring it from or take it to.
    """

    offset: ir.IntegerAttr
    swizzle: ir.IntegerAttr
    interleaved: Any = optional(ir.BoolAttr, "false")
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        kind = self.out.type
        if space_of(kind) != "smem" or kind.rank != 3:
            return op_error(self, f"gives {kind}", why="a buffer is a tensor<stages x rows x columns, #tile.smem>")
        if not has_known_elements(self, kind):
            return False
        if self.interleaved.value and (str(kind.element_type) != "f32" or self.swizzle.value == 0):
            return op_error(self, f"is interleaved, but gives {kind}", why="only f32 under a swizzle is", fix="remove interleaved")
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
        return all(made_by(self, f"pipe {n}", pipe, PipelineOp) for n, pipe in enumerate(self.pipes))


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
        if not made_by(self, "pipe", self.pipe, PipelineOp):
            return False
        groups = self.pipe.owner.opview.groups.value
        if self.group is not None and (groups == 1 or not 0 <= self.group.value < groups):
            return op_error(self, f"has group = {self.group.value}", why=f"its pipe has {groups} rings")
        return self.phase.value in (0, 1) or op_error(self, f"has phase = {self.phase.value}", why="a parity is 0 or 1")


class AcquireOp(Operation, name="acquire"):
    """Wait until the slot is empty."""

    state: ext.Operand[Any]

    def verify_op(self) -> bool:
        return made_by(self, "state", self.state, StateOp)


class ArmOp(Operation, name="arm"):
    """Tell the slot's full barrier how many bytes will come. One thread, before its copies. Of a pipe with `leader`, the pair's first CTA.
    """

    state: ext.Operand[Any]

    def verify_op(self) -> bool:
        return made_by(self, "state", self.state, StateOp)


class WaitOp(Operation, name="wait"):
    """Wait until the slot is full."""

    state: ext.Operand[Any]

    def verify_op(self) -> bool:
        return made_by(self, "state", self.state, StateOp)


class ReleaseOp(Operation, name="release"):
    """One lane of each warp arrives on the slot's empty barrier; for all lanes only behind a `sync_warp`, if they read it themselves."""

    state: ext.Operand[Any]

    def verify_op(self) -> bool:
        return made_by(self, "state", self.state, StateOp)


class ArriveOp(Operation, name="arrive"):
    """One lane of each warp arrives on the slot's full barrier, of a pipe with `leader` on that of the pair's first CTA; for all lanes only
    behind a `sync_warp`, if they wrote what it guards."""

    state: ext.Operand[Any]

    def verify_op(self) -> bool:
        return made_by(self, "state", self.state, StateOp)


class AdvanceOp(Operation, name="advance"):
    """Go to the next slot, and to the other phase after the last one."""

    state: ext.Operand[Any]

    def verify_op(self) -> bool:
        return made_by(self, "state", self.state, StateOp)


class ElectOp(Operation, name="elect", traits=[ir.NoTerminatorTrait]):
    """One thread runs the body: of each warp (`scope` "warp"), of each warpgroup ("warpgroup"), or of the role's first warp ("role")."""

    scope: ir.StringAttr
    body: ext.Region

    def verify_op(self) -> bool:
        if not has_work(self):
            return False
        return self.scope.value in ("warp", "warpgroup", "role") or op_error(
            self, f"has scope = {self.scope}", why='known are "warp", "warpgroup" and "role"'
        )


class SlotOwnerOp(Operation, name="slot_owner", traits=[ir.NoTerminatorTrait]):
    """The role's active warps share the slots of the pipe of `state`, each has one: the body runs in the warp whose number among them is
    the slot's. So what one slot waits for does not hold up the next one."""

    state: ext.Operand[Any]
    body: ext.Region

    def verify_op(self) -> bool:
        if not has_work(self) or not made_by(self, "state", self.state, StateOp):
            return False
        role, stages = _role_around(self), self.state.owner.opview.pipe.owner.opview.stages.value
        return role is None or role.active.value == stages or op_error(
            self, f"shares {stages} slots among {role.active.value} warps", why="each has one of its own", fix=f"make active = {stages}"
        )


class BarrierOp(Operation, name="barrier"):
    """Named barrier `id`: of each warpgroup apart (ids id, id + 1, ...; `scope` "warpgroup"), or of all warps of the role ("role")."""

    id: ir.IntegerAttr
    scope: ir.StringAttr

    def verify_op(self) -> bool:
        if self.scope.value not in ("warpgroup", "role"):
            return op_error(self, f"has scope = {self.scope}", why='known are "warpgroup" and "role"')
        return is_barrier_id(self)


class TurnInitOp(Operation, name="turn_init"):
    """The first warpgroup may go first: it arrives for the others on its own turn barrier."""

    id: ir.IntegerAttr

    def verify_op(self) -> bool:
        return is_barrier_id(self)


class TurnTakeOp(Operation, name="turn_take"):
    """Ping-pong: wait for this warpgroup's turn to issue MMAs (named barriers id, id + 1, ...: one a warpgroup)."""

    id: ir.IntegerAttr

    def verify_op(self) -> bool:
        return is_barrier_id(self)


class TurnGiveOp(Operation, name="turn_give"):
    """Ping-pong: it is the next warpgroup's turn."""

    id: ir.IntegerAttr

    def verify_op(self) -> bool:
        return is_barrier_id(self)


class FenceAsyncOp(Operation, name="fence_async"):
    """This thread's writes to shared memory become visible to the async proxy (TMA, MMAs); with `cluster` those to its peer's too."""

    cluster: Any = optional(ir.BoolAttr, "false")


def _role_around(op):
    """The role of an operation; None while it is under construction."""
    operation = op.operation.parent
    while operation is not None and operation.name != "warp.role":
        operation = operation.parent
    return None if operation is None else operation.opview


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


def has_known_elements(op, kind) -> bool:
    return str(kind.element_type) in _BITS or op_error(
        op, f"holds elements of type {kind.element_type}", why=f"known are {', '.join(_BITS)}"
    )


def made_by(op, name, value, kind) -> bool:
    """Descriptors, buffers, pipes and states are looked up where they are made."""
    maker = value.owner
    return (not isinstance(maker, ir.Block) and isinstance(maker.opview, kind)) or op_error(
        op, f"needs {name} made by '{kind.OPERATION_NAME}', but it is {description_of(value)}"
    )


def description_of(value) -> str:
    return f"an argument of type {value.type}" if isinstance(value.owner, ir.Block) else f"made by '{value.owner.name}'"


def moves_boxes(op) -> bool:
    """Descriptor, buffer and coordinates of a TMA copy fit together."""
    if not (made_by(op, "map", op.map, TensorMapOp) and is_buffer(op, op.buffer)):
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


def has_work(op) -> bool:
    return len(op.body.blocks[0].operations) > 0 or op_error(op, "has an empty body", why="it does nothing", fix="remove it")


def counts_rightly(op) -> bool:
    kind = op.counter.type
    right = space_of(kind) == "gmem" and str(kind.element_type) == "i32" and kind.rank and not kind.is_dynamic_dim(kind.rank - 1)
    if not right:
        return op_error(op, f"counts in {kind}", why="counters are i32 in #tile.gmem, one for each warpgroup in the last dimension")
    return len(op.coords) == kind.rank - 1 or op_error(op, f"has {len(op.coords)} coordinates for {kind}", why="one for each but the last")


def is_barrier_id(op) -> bool:
    return 1 <= op.id.value <= 15 or op_error(op, f"has id = {op.id.value}", why="named barriers are 1 to 15; 0 is the whole CTA's")


def is_reader(op, *states) -> bool:
    """`reader` is a number, and says nothing that a state says."""
    if op.reader.value < 0:
        return op_error(op, f"has reader = {op.reader.value}", why="readers are numbered from 0 on")
    placed = any(state is not None and not is_slot_number(state) for state in states)
    return op.reader.value == 0 or not placed or op_error(
        op, f"has reader = {op.reader.value} and a state", why="its state is its own place in the pipe", fix="remove reader"
    )


def reads_slot(op) -> bool:
    """Buffer and target of a load into registers fit together."""
    if not is_reader(op, op.state):
        return False
    if not is_buffer(op, op.buffer) or not (op.state is None or made_by(op, "state", op.state, StateOp)):
        return False
    buffer, target = op.buffer.type, op.target.type
    same = space_of(target) == "reg" and list(buffer.shape)[1:] == list(target.shape) and buffer.element_type == target.element_type
    return same or op_error(op, f"copies {buffer} into {target}", why="rows, columns and dtype stay")


def is_buffer(op, value) -> bool:
    kind = value.type
    if space_of(kind) != "smem" or kind.rank != 3:
        return op_error(op, f"needs a buffer, but has {kind}", why="it works on a 'warp.buffer'")
    return made_by(op, "buffer", value, BufferOp)


def is_fragment(op, name, value, row=False) -> bool:
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
    return has_known_elements(op, kind)
