"""Operations of the `warp` dialect that move data between memory spaces, and order additions to global memory."""

from collections.abc import Sequence
from typing import Any

from .base import optional
from .diagnostics import op_error
from .mlir import ext, ir
from .tile import is_l2_priority, space_of
from .warp_base import (
    Operation,
    StateOp,
    bits_of,
    cluster_around,
    counts_rightly,
    is_buffer,
    is_fragment,
    is_slot_number,
    made_by,
    moves_boxes,
    reads_slot,
)


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
        return moves_boxes(self) and is_l2_priority(self) and (self.state is None or made_by(self, "state", self.state, StateOp))


class LoadColumnsOp(Operation, name="load_columns"):
    """target = the row of column values in buffer[slot]: of each 8 columns, a thread reads the 2 of its accumulator elements.

    `state` is absent until `warp-insert-barriers` has run; `reader` as in `warp.wgmma`.
    """

    buffer: ext.Operand[Any]
    state: ext.Operand[Any] | None
    target: ext.Operand[Any]
    reader: Any = optional(ir.IntegerAttr, "0 : i64")

    def verify_op(self) -> bool:
        if not (reads_slot(self) and is_fragment(self, "target", self.target, row=True)):
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
        if not (reads_slot(self) and is_fragment(self, "target", self.target)):
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
        if not (is_buffer(self, self.buffer) and is_fragment(self, "source", self.source)):
            return False
        if self.slot is not None and not is_slot_number(self.slot) and not made_by(self, "slot", self.slot, StateOp):
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
        if not moves_boxes(self):
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
        if not moves_boxes(self) or not (self.state is None or made_by(self, "state", self.state, StateOp)):
            return False
        return str(self.buffer.type.element_type) == "f32" or op_error(
            self, f"adds {self.buffer.type.element_type}", why="sums over CTAs are f32"
        )


class TmaPutOp(Operation, name="tma_put"):
    """Box of `map`'s tensor at `coords` = buffer[slot], by one thread; rows out of bounds are dropped.

    Another role writes the buffer and hands it over through a pipe. With `group`, what warpgroup `group` of that role wrote: so many rows
    from there on as the box has. `state` is absent until `warp-insert-barriers` has run; then it names the group.
    """

    map: ext.Operand[Any]
    buffer: ext.Operand[Any]
    state: ext.Operand[Any] | None
    coords: Sequence[ext.Operand[Any]]
    group: Any = optional(ir.IntegerAttr)

    @property
    def part(self) -> tuple[int, int]:
        """First row and number of rows."""
        group = self.group if self.state is None else self.state.owner.opview.group
        _, rows, _ = self.buffer.type.shape
        count = next((size for size in list(self.map.owner.opview.box)[:-1] if size > 1), 1)
        return (0, rows) if group is None else (group.value * count, count)

    def verify_op(self) -> bool:
        if not moves_boxes(self) or not (self.state is None or made_by(self, "state", self.state, StateOp)):
            return False
        if self.state is not None and self.group is not None:
            return op_error(self, f"has group = {self.group.value} and a state", why="its state names the group", fix="remove group")
        (first, count), rows = self.part, self.buffer.type.shape[1]
        return 0 <= first <= rows - count or op_error(
            self, f"stores rows {first} to {first + count - 1} of {rows}", why="a group has as many rows as the box", fix="lower group"
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
        return counts_rightly(self)


class AddCountOp(Operation, name="add_count"):
    """One thread of each warpgroup adds 1 to its number in `counter` at `coords`, behind all that the warpgroup is known to have added."""

    counter: ext.Operand[Any]
    coords: Sequence[ext.Operand[Any]]

    def verify_op(self) -> bool:
        return counts_rightly(self)


class StoreWaitOp(Operation, name="store_wait"):
    """Wait until at most `pending` groups of this thread's TMA stores and additions still read shared memory, or with `complete` still
    write."""

    pending: ir.IntegerAttr
    complete: Any = optional(ir.BoolAttr, "false")


class StoreRowsOp(Operation, name="store_rows"):
    """target[coords + row] = source[row], one lane of each quad; rows out of bounds are dropped. Nothing, if the tensor is absent.

    A target without dimensions takes row 0.
    """

    source: ext.Operand[Any]
    target: ext.Operand[Any]
    coords: Sequence[ext.Operand[Any]]

    def verify_op(self) -> bool:
        if not is_fragment(self, "source", self.source) or self.source.type.rank != 1:
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
        if not is_fragment(self, "source", self.source):
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
