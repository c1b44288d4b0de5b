"""Operations of the `warp` dialect for targets whose MMA accumulates in tensor memory (tcgen05, PTX ISA 9.7.16).

Tensor memory has 128 lanes and `columns` columns of 32 bits. A tile of 128 rows takes one lane a row; a tile of 256 rows is two row blocks,
block b in the b-th half of the columns, so that all tiles of a kernel are laid out alike within their half. An f32 takes a column, two
16-bit elements share one. One thread issues MMAs; compute warpgroup b reads and writes row block b, each thread the lane that is its row.

`link`, `signal` and `await` say which role must have come how far before another goes on; `warp-insert-barriers` turns them into pipes.
"""

from collections.abc import Sequence
from typing import Any

from .base import optional
from .diagnostics import op_error
from .mlir import ext, ir
from .tile import check_yield, column_of, space_of, tile_type
from .tile_base import nested_operations
from .warp_base import (
    BufferOp,
    Operation,
    PipelineOp,
    RoleOp,
    StateOp,
    Warp,
    bits_of,
    cluster_around,
    is_buffer,
    is_fragment,
    is_reader,
    made_by,
)

LANES = 128


class MemoryType(Warp.Type, name="tensor_memory"):
    """The tensor memory that a kernel has allocated."""


class LinkType(Warp.Type, name="order"):
    """That one role goes on only after another has come to a place."""


class TmemAllocOp(Operation, name="tmem_alloc"):
    """Warp `warp` allocates `columns` columns; their address goes to the i32 at byte `word` of shared memory, for who comes after
    `init_barriers`. With `ctas` = 2 both CTAs of a pair do, and get the same columns: the MMAs of the kernel are formed by pairs."""

    columns: ir.IntegerAttr
    word: ir.IntegerAttr
    warp: ir.IntegerAttr
    ctas: Any = optional(ir.IntegerAttr, "1 : i64")
    out: ext.Result[MemoryType]

    def verify_op(self) -> bool:
        if not has_ctas(self):
            return False
        columns = self.columns.value
        if columns not in (32, 64, 128, 256, 512):
            return op_error(self, f"allocates {columns} columns", why="tcgen05.alloc takes a power of two from 32 to 512")
        return self.word.value % 4 == 0 or op_error(self, f"has word = {self.word.value}", why="the address is 4 bytes, 4-byte aligned")


class TmemFreeOp(Operation, name="tmem_free"):
    """The whole CTA, or pair of CTAs, meets, then the warp that allocated `memory` gives it back."""

    memory: ext.Operand[MemoryType]

    def verify_op(self) -> bool:
        return made_by(self, "memory", self.memory, TmemAllocOp)


class TmemOp(Operation, name="tmem"):
    """A tile in `memory`, from the column on that its type names; of 256 rows, at that column of each half."""

    memory: ext.Operand[MemoryType]
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        kind = self.out.type
        if not made_by(self, "memory", self.memory, TmemAllocOp):
            return False
        if space_of(kind) != "tmem" or kind.rank != 2 or kind.shape[0] not in (LANES, 2 * LANES):
            return op_error(self, f"gives {kind}", why="it gives a tile of 128 or 256 rows in #tile.tmem")
        first, width = column_of(kind), words_of(kind)
        room = self.memory.owner.opview.columns.value // (kind.shape[0] // LANES)
        return 0 <= first <= room - width or op_error(
            self,
            f"takes columns {first} to {first + width} of {room}",
            why="each row block has its share of the allocated columns",
            fix="choose a lower column or a narrower tile",
        )


class Tcgen05MmaOp(Operation, name="tcgen05_mma"):
    """Row block `block` of acc (+)= a @ b (b^T with `transpose_b`), by one thread, asynchronously; the first k-step overwrites unless
    `accumulate`.

    `a` is a buffer (a^T with `transpose_a`) or a tile in tensor memory. `a_state`, `b_state` say which slot of a loaded buffer; absent
    until `warp-insert-barriers` has run, and for a buffer that threads write, which has one slot; `reader` as in `warp.wgmma`. MMAs of one
    thread are done in the order of their issue.

    With `ctas` = 2 a thread of the pair's first CTA does so for both CTAs: each has its own rows of acc and a, at the same addresses, and
    in `b` half of the columns, the first CTA the left half. `folded`, a CTA has 64 rows, and the right half of its columns of acc lies
    below the left half (PTX ISA, data path layout B).
    """

    acc: ext.Operand[Any]
    a: ext.Operand[Any]
    b: ext.Operand[Any]
    a_state: ext.Operand[Any] | None
    b_state: ext.Operand[Any] | None
    block: ir.IntegerAttr
    transpose_a: Any = optional(ir.BoolAttr, "false")
    transpose_b: Any = optional(ir.BoolAttr, "false")
    reader: Any = optional(ir.IntegerAttr, "0 : i64")
    ctas: Any = optional(ir.IntegerAttr, "1 : i64")
    folded: Any = optional(ir.BoolAttr, "false")
    accumulate: ir.BoolAttr

    def verify_op(self) -> bool:
        if not is_reader(self, self.a_state, self.b_state) or not is_region(self, "acc", self.acc) or not is_buffer(self, self.b):
            return False
        if not (space_of(self.a.type) == "smem" or is_region(self, "a", self.a)):
            return False
        for name, state in (("a_state", self.a_state), ("b_state", self.b_state)):
            if state is not None and not made_by(self, name, state, StateOp):
                return False
        a, b, acc = (str(v.type.element_type) for v in (self.a, self.b, self.acc))
        if a != b or a not in ("bf16", "f16") or acc != "f32":
            return op_error(self, f"multiplies {a} by {b} into {acc}", why="both are bf16 or both f16, and sums are f32")
        a_shape, b_shape = list(self.a.type.shape)[-2:], list(self.b.type.shape)[-2:]
        if self.transpose_a.value:
            a_shape.reverse()
            if space_of(self.a.type) != "smem":
                return op_error(self, f"reads {self.a.type} across", why="tensor memory is read lane by lane", fix="use a buffer")
        depth_b, columns = reversed(b_shape) if self.transpose_b.value else b_shape
        if not has_ctas(self) or not self._fits_its_memory():
            return False
        columns *= self.ctas.value
        folds = 2 if self.folded.value else 1
        if folds == 2 and (self.ctas.value == 1 or space_of(self.a.type) != "smem"):
            return op_error(self, "is folded", why="that is how 64 rows of a pair's 128 lie, of a in shared memory", fix="remove folded")
        if a_shape[1] != depth_b or list(self.acc.type.shape) != [a_shape[0] * folds, columns // folds]:
            return op_error(self, f"multiplies {a_shape} by {b_shape} into {list(self.acc.type.shape)}", why="the sizes do not fit")
        if columns % 16 or not 16 <= columns <= 256:
            return op_error(self, f"has {columns} columns", why="tcgen05.mma takes 16 to 256 columns, a multiple of 16 (PTX ISA)")
        blocks = a_shape[0] * folds // LANES
        if not 0 <= self.block.value < blocks:
            return op_error(self, f"has block = {self.block.value}", why=f"{a_shape[0]} rows are {blocks} blocks of {LANES}")
        return depth_b % 16 == 0 or op_error(self, f"sums over {depth_b}", why="16-bit tcgen05.mma sums over 16 a step (PTX ISA)")

    def _fits_its_memory(self) -> bool:
        made = self.acc.owner.opview.memory.owner.opview.ctas.value
        return self.ctas.value == made or op_error(
            self, f"is formed by {self.ctas.value} CTAs, but its tensor memory was allocated for MMAs of {made}",
            why="all tcgen05 instructions of a kernel have one cta_group (PTX ISA)", fix="give both the same ctas")


class Tcgen05CommitOp(Operation, name="tcgen05_commit"):
    """Once all MMAs that this thread has issued so far are done, they arrive on the slot's `barrier`: "full" or "empty". With `ctas` = 2 on
    that of both CTAs of the pair."""

    state: ext.Operand[Any]
    barrier: ir.StringAttr
    ctas: Any = optional(ir.IntegerAttr, "1 : i64")

    def verify_op(self) -> bool:
        if not made_by(self, "state", self.state, StateOp) or not has_ctas(self):
            return False
        return self.barrier.value in ("full", "empty") or op_error(
            self, f"has barrier = {self.barrier}", why='a slot has a "full" and an "empty" one'
        )


class TmemLoadOp(Operation, name="tmem_load"):
    """target = source, each warpgroup its row block; complete at the next `tmem_wait {kind = "load"}`."""

    target: ext.Operand[Any]
    source: ext.Operand[Any]

    def verify_op(self) -> bool:
        return is_fragment(self, "target", self.target) and is_region(self, "source", self.source) and _copies(self)


class TmemStoreOp(Operation, name="tmem_store"):
    """target = source, each warpgroup its row block; complete at the next `tmem_wait {kind = "store"}`."""

    target: ext.Operand[Any]
    source: ext.Operand[Any]

    def verify_op(self) -> bool:
        return is_region(self, "target", self.target) and is_fragment(self, "source", self.source) and _copies(self)


class TmemWaitOp(Operation, name="tmem_wait"):
    """Wait until this thread's loads from, or stores to, tensor memory are complete."""

    kind: ir.StringAttr

    def verify_op(self) -> bool:
        return self.kind.value in ("load", "store") or op_error(self, f"has kind = {self.kind}", why='known are "load" and "store"')


class TmemMapOp(Operation, name="tmem_map"):
    """target[i, j] = body(inputs[i, j]..., row i, column j), `columns` columns at a time, so that a wide tile takes few registers.

    Target and inputs of its shape lie in tensor memory or in fragments, row vectors in fragments, rows of column values in fragments or in
    buffers, whose slots `states` name, one for each such input; absent until `warp-insert-barriers` has run. What it reads in tensor memory
    is loaded, and waited for, before it writes; an input may be the target, and the target a buffer of one stage, whose place in a pipe is
    last among `states`, if another role takes it over. `reader` as in `warp.wgmma`.
    """

    target: ext.Operand[Any]
    inputs: Sequence[ext.Operand[Any]]
    states: Sequence[ext.Operand[Any]]
    columns: ir.IntegerAttr
    reader: Any = optional(ir.IntegerAttr, "0 : i64")
    body: ext.Region

    @property
    def slot(self):
        """As in `warp.store_shared`."""
        return self.states[len(self.rows)] if len(self.states) > len(self.rows) else None

    @property
    def buffer(self):
        """The buffer that it writes, if it writes one."""
        return self.target if space_of(self.target.type) == "smem" else None

    @property
    def kind(self):
        """Type of the tile that it makes."""
        kind = self.target.type
        return kind if self.buffer is None else tile_type(list(kind.shape)[1:], kind.element_type, "reg")

    @property
    def rows(self) -> list:
        """The inputs that lie in buffers."""
        return [value for value in self.inputs if space_of(value.type) == "smem"]

    def verify_op(self) -> bool:
        if self.buffer is not None and (not is_buffer(self, self.target) or self.target.type.shape[0] != 1):
            return op_error(self, f"writes {self.target.type}", why="a buffer that it writes has one stage")
        kind, step = self.kind, self.columns.value
        if space_of(kind) not in ("tmem", "reg") or kind.rank != 2:
            return op_error(self, f"writes {kind}", why="its target is a tile in tensor memory, a fragment or a buffer")
        if step < 8 or step % 8:
            return op_error(self, f"has columns = {step}", why="it works on multiples of 8 columns")
        arguments = list(self.body.blocks[0].arguments)
        if len(arguments) != len(self.inputs) + 2:
            return op_error(self, f"has {len(self.inputs)} inputs, but its region takes {len(arguments)} arguments")
        if len(self.states) not in (0, len(self.rows), len(self.rows) + (self.buffer is not None)):
            return op_error(self, f"has {len(self.states)} states for {len(self.rows)} inputs in buffers", why="each has a slot of its own")
        for state in self.states:
            if not made_by(self, "states", state, StateOp):
                return False
        if self.reader.value and not self.rows:
            return op_error(self, f"has reader = {self.reader.value}", why="it reads no buffer", fix="remove reader")
        for number, value in enumerate(self.inputs):
            shape, of = list(kind.shape), list(value.type.shape)
            there = of in (shape, shape[:1], [1, *shape[1:]]) if space_of(value.type) in ("reg", "tmem") else of[1:] == [1, *shape[1:]]
            if not there or space_of(value.type) == "gmem":
                return op_error(self, f"has input {number} of type {value.type} for a target {kind}")
            held = value.type.element_type
            if arguments[number].type != held:
                return op_error(self, f"region argument {number} is {arguments[number].type}, but input {number} holds {held}")
        return check_yield(self, self.body, [kind.element_type, *self._beside()])

    def _beside(self) -> list:
        """Element types of further results."""
        return []


class TmemMapBothOp(TmemMapOp, name="tmem_map_both"):
    """target[i, j], beside[i, j] = body(...): as `warp.tmem_map`, and a second result in a fragment."""

    beside: ext.Operand[Any]

    def verify_op(self) -> bool:
        if space_of(self.beside.type) != "reg" or list(self.beside.type.shape) != list(self.kind.shape):
            return op_error(self, f"has beside of type {self.beside.type} for a target {self.kind}", why="it is a fragment as large")
        return super().verify_op()

    def _beside(self) -> list:
        return [self.beside.type.element_type]


# ----------------------------------------------------------------------------------------------- one value a row, between roles


class RowBoxOp(Operation, name="row_box"):
    """A row vector in shared memory from byte `offset` on, 4 bytes a row, through which one role hands it to another."""

    offset: ir.IntegerAttr
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        kind = self.out.type
        if space_of(kind) != "smem" or kind.rank != 1 or str(kind.element_type) not in ("f32", "i1"):
            return op_error(self, f"gives {kind}", why="it holds an f32, or an i1, for each row")
        return self.offset.value % 4 == 0 or op_error(self, f"has offset {self.offset.value}", why="a row takes 4 bytes")


class PostOp(Operation, name="post"):
    """box = source: each thread its row."""

    box: ext.Operand[Any]
    source: ext.Operand[Any]

    def verify_op(self) -> bool:
        return _is_box(self, self.box) and is_fragment(self, "source", self.source) and _passes(self, self.source)


class FetchOp(Operation, name="fetch"):
    """target = box: each thread its row."""

    box: ext.Operand[Any]
    target: ext.Operand[Any]

    def verify_op(self) -> bool:
        return _is_box(self, self.box) and is_fragment(self, "target", self.target) and _passes(self, self.target)


# ----------------------------------------------------------------------------------------- order between roles, before barriers


class LinkOp(Operation, name="link"):
    """One role awaits as often as another, or each of several, signals, for each of `groups` compute warpgroups apart. The first `ahead`
    awaits do not wait; with two of them two signals may be on their way.
    """

    groups: ir.IntegerAttr
    ahead: ir.IntegerAttr
    out: ext.Result[LinkType]

    def verify_op(self) -> bool:
        return (self.groups.value in (1, 2) and self.ahead.value in (0, 1, 2)) or op_error(
            self, f"has groups = {self.groups.value}, ahead = {self.ahead.value}", why="there are 1 or 2 row blocks, and at most 2 slots"
        )


class SignalOp(Operation, name="signal"):
    """All that this role has done so far, to tensor memory and by MMAs, comes before what follows the await of the same number.

    `group` names a warpgroup's link; absent: the own one's.
    """

    link: ext.Operand[Any]
    group: Any = optional(ir.IntegerAttr)

    def verify_op(self) -> bool:
        return made_by(self, "link", self.link, LinkOp)


class AwaitOp(Operation, name="await"):
    """Wait for the signal of the same number."""

    link: ext.Operand[Any]
    group: Any = optional(ir.IntegerAttr)

    def verify_op(self) -> bool:
        return made_by(self, "link", self.link, LinkOp)


# ------------------------------------------------------------------------------------------------------------------- helpers


def has_ctas(op) -> bool:
    """`op.ctas` is 1, or 2 in a kernel whose CTAs run in pairs."""
    if op.ctas.value not in (1, 2):
        return op_error(op, f"has ctas = {op.ctas.value}", why="one CTA does it, or the two of a pair")
    return op.ctas.value <= cluster_around(op) or op_error(
        op, "is of a pair of CTAs", why="its kernel has no pairs", fix="give the kernel cluster = 2"
    )


def words_of(kind) -> int:
    """32-bit columns that a tile takes in tensor memory."""
    return -(-kind.shape[1] * bits_of(kind.element_type) // 32)


def is_region(op, name, value) -> bool:
    if space_of(value.type) != "tmem":
        return op_error(op, f"needs {name} in #tile.tmem, but it is {value.type}")
    return made_by(op, name, value, TmemOp)


def _is_box(op, value) -> bool:
    return made_by(op, "box", value, RowBoxOp)


def _passes(op, fragment) -> bool:
    box, held = op.box.type, fragment.type
    same = list(box.shape) == list(held.shape) and box.element_type == held.element_type
    return same or op_error(op, f"passes {held} through {box}", why="shape and dtype stay")


def _copies(op) -> bool:
    target, source = op.target.type, op.source.type
    same = list(target.shape) == list(source.shape) and target.element_type == source.element_type
    return same or op_error(op, f"copies {source} to {target}", why="shape and dtype stay")


def issues_mmas(role: RoleOp) -> bool:
    """Whether a role holds tcgen05 MMAs."""
    return any(isinstance(op, Tcgen05MmaOp) for op in nested_operations(role.body))


__all__ = [name for name in dir() if name.endswith("Op")] + ["BufferOp", "PipelineOp", "is_region", "issues_mmas", "words_of"]
