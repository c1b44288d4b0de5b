"""The `tile` dialect: the program of one CTA, over tiles in a memory space.

A module at this level holds one `tile.host` (which kernels run, on what grid, with which tensors) and the `tile.kernel`s it launches.
Tiles are builtin tensors whose encoding says where they live: `tensor<128x64xbf16, #tile.smem>`, `#tile.reg`, `#tile.tmem<256>` (first
column), `#tile.gmem` for whole tensors in global memory, whose dimensions are in memory order, the last one contiguous. One-dimensional
register tiles hold one value a row.

Operations on tiles are values (SSA); asynchronous ones (`load`, `mma`) say what, and inside a loop `stage` and `order` say when: in
steady-state step k an operation of stage s works for iteration k - s, and operations run in ascending `order`.
Index arithmetic is upstream `arith`, loops are `scf.for`; both may stand anywhere in a kernel.
"""

import math
from collections.abc import Sequence
from typing import Any

from .base import optional
from .diagnostics import op_error
from .mlir import ext, ir

# Also what only others use, so that the dialect is one module to them.
from .tile_base import (  # noqa: F401
    Operation,
    Scheduled,
    Tile,
    check_box,
    check_coords,
    check_element,
    check_yield,
    cluster_around,
    column_of,
    goes_to_shared,
    has_ctas,
    has_shares,
    in_space,
    is_cluster_size,
    is_l2_priority,
    nested_operations,
    no_stray_attributes,
    schedules_stand_in_loops,
    shape_text,
    space_of,
    takes_elements,
    tile_type,
)
from .tile_host import DeviceOp, DimOp, HostOp, LaunchOp, Pow2FloorOp  # noqa: F401


class KernelOp(Operation, name="kernel", traits=[ir.NoTerminatorTrait, ir.IsIsolatedFromAboveTrait]):
    """The program of one CTA. Region arguments: the tensors, then the scalars, of the launch.

    CTAs whose numbers differ only in `program_id` x modulo `cluster` run together; the grid's x is a multiple of it. `l2_repeated` and
    `l2_once` wish for `l2` of the loads in loops, and of the others: `tile-l2-hints` grants them, and where it does not run nothing does.
    """

    sym_name: ir.StringAttr
    cluster: Any = optional(ir.IntegerAttr, "1 : i64")
    l2_repeated: Any = optional(ir.StringAttr)
    l2_once: Any = optional(ir.StringAttr)
    body: ext.Region

    def verify_op(self) -> bool:
        if not (is_cluster_size(self) and is_l2_priority(self, "l2_repeated") and is_l2_priority(self, "l2_once")):
            return False
        if not len(self.body.blocks[0].operations):
            return op_error(self, "has an empty body", why="a kernel that does nothing writes none of its outputs")
        operations = nested_operations(self.body)
        return no_stray_attributes(operations) and schedules_stand_in_loops(operations)


class ProgramIdOp(Operation, name="program_id", traits=[ext.Pure]):
    """x, y, z = this CTA's place in the grid."""

    x: ext.Result[ir.IndexType]
    y: ext.Result[ir.IndexType]
    z: ext.Result[ir.IndexType]


class WalkOp(Operation, name="walk", traits=[ir.NoTerminatorTrait]):
    """Run the body for a share of the tiles 0 .. tiles - 1: first for tile `program_id` x, then for the next one that no CTA has taken.

    `queue`, a workspace of two i32 that starts at 0, counts the tiles taken beyond the first of each CTA, and the CTAs that have ended; the
    last of these sets both to 0 again.
    """

    tiles: ext.Operand[ir.IndexType]
    queue: ext.Operand[Any]
    body: ext.Region

    def verify_op(self) -> bool:
        arguments = list(self.body.blocks[0].arguments)
        if len(arguments) != 1 or not isinstance(arguments[0].type, ir.IndexType):
            return op_error(self, f"has a body with {len(arguments)} arguments", why="the body takes the tile's number, an index")
        kind = self.queue.type
        queue = space_of(kind) == "gmem" and list(kind.shape) == [2] and str(kind.element_type) == "i32"
        return queue or op_error(self, f"has the queue {kind}", why="it is a tensor<2xi32, #tile.gmem>")


class LoadOp(Scheduled, name="load"):
    """out = a 2-D box of `source` at `coords`, asynchronously, into shared memory; out of bounds reads 0.

    `dims` says which two dimensions of the source the tile's rows and columns run along; the others have extent 1. With one dimension,
    the last one, the tile is a row of column values: 1 x columns, f32, which maps spread over their rows.
    In a loop the tile lives in one of `buffers` rotating copies. `l2` asks the L2 cache to give these bytes up first ("evict_first") or
    last ("evict_last"). With `shared` each CTA of the cluster reads its share of the rows, for all of them: they load the same
    tiles in the same order. Loads of one loop with the same number `turns` have one buffer, which they fill in the order in which they run.
    """

    source: ext.Operand[Any]
    coords: Sequence[ext.Operand[ir.IndexType]]
    dims: ir.DenseI64ArrayAttr
    buffers: Any = optional(ir.IntegerAttr, "1 : i64")
    l2: Any = optional(ir.StringAttr)
    shared: Any = optional(ir.BoolAttr, "false")
    turns: Any = optional(ir.IntegerAttr)
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        return (
            in_space(self, "source", self.source, "gmem")
            and in_space(self, "out", self.out, "smem", rank=2)
            and (self._check_row() if self._is_row() else check_box(self, self.source.type, self.out.type))
            and (self.buffers.value >= 1 or op_error(self, f"needs at least 1 buffer, but has {self.buffers.value}"))
            and is_l2_priority(self)
            and has_shares(self)
            and self._check_turns()
        )

    def others_in_turn(self) -> list:
        """The loads of its loop that fill the same buffer."""
        block = self.operation.block.operations if self.turns is not None else ()
        return [op for op in block if isinstance(op, LoadOp) and op.turns is not None and op.turns.value == self.turns.value and op != self]

    def _check_turns(self) -> bool:
        if self.turns is None:
            return True
        if self.buffers.value > 1 or self.shared.value or self._is_row() or self.operation.parent.name != "scf.for":
            return op_error(self, "takes turns with others, but is a row, is shared, has several buffers or stands in no loop",
                            why="tiles of one loop take turns in one buffer", fix="remove turns")
        others = self.others_in_turn()
        if not others:
            return op_error(self, f"takes turns = {self.turns.value} alone", why="no other load of its loop has that number",
                            fix="remove turns")
        bits = {math.prod(op.out.type.shape) * op.out.type.element_type.width for op in (self, *others)}
        return len(bits) == 1 or op_error(self, f"takes turns with {others[0].out.type}", why="they have one buffer, and with it one size "
                                          "in bytes", fix="remove turns")

    def _is_row(self) -> bool:
        return len(self.dims) == 1 and self.out.type.shape[0] == 1

    def _check_row(self) -> bool:
        out = self.out.type
        if list(self.dims) != [self.source.type.rank - 1]:
            return op_error(
                self,
                f"has dims = {list(self.dims)}",
                why=f"a row runs along the last dimension, {self.source.type.rank - 1}, which is contiguous",
            )
        if str(out.element_type) != "f32" or out.element_type != self.source.type.element_type:
            return op_error(
                self,
                f"loads {out} from {self.source.type} along one dimension",
                why="a row of column values is a tensor<1 x columns x f32, #tile.smem>",
            )
        return len(self.coords) == self.source.type.rank or op_error(
            self, f"needs {self.source.type.rank} coordinates, but has {len(self.coords)}", why=f"the tensor is {self.source.type}"
        )


class FromSharedOp(Scheduled, name="from_shared"):
    """out = x, from shared memory into registers, in the layout of an accumulator."""

    x: ext.Operand[Any]
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        if not (in_space(self, "x", self.x, "smem", rank=2) and in_space(self, "out", self.out, "reg", rank=2)):
            return False
        same = list(self.x.type.shape) == list(self.out.type.shape) and self.x.type.element_type == self.out.type.element_type
        return same or op_error(self, f"copies {self.x.type} to {self.out.type}", why="shape and dtype stay")


class MmaOp(Scheduled, name="mma"):
    """out = acc + a @ b, in f32, asynchronously; a^T with `transpose_a`, b^T with `transpose_b`. Without `acc` the sum starts at 0.

    `b` is in shared memory; `a` in shared memory or registers (then it was computed here, and cannot be transposed).

    With `ctas` = 2 both CTAs of a pair form their products together: each has its own rows, in `a` and the result, and in `b` half of the
    columns that both multiply by, the first CTA the left half. `folded`, the right half of a CTA's result lies below the left half, in as
    many rows again: so tensor memory holds the 64 rows that each CTA has of 128 (PTX ISA, data path layout B).
    """

    a: ext.Operand[Any]
    b: ext.Operand[Any]
    acc: ext.Operand[Any] | None
    transpose_a: Any = optional(ir.BoolAttr, "false")
    transpose_b: Any = optional(ir.BoolAttr, "false")
    ctas: Any = optional(ir.IntegerAttr, "1 : i64")
    folded: Any = optional(ir.BoolAttr, "false")
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        for name, value, spaces in (("a", self.a, ("smem", "reg", "tmem")), ("b", self.b, ("smem",)), ("out", self.out, ("reg", "tmem"))):
            if not in_space(self, name, value, *spaces, rank=2):
                return False
        rows, depth = self.a.type.shape
        depth_b, columns = self.b.type.shape
        if self.transpose_a.value:
            rows, depth = depth, rows
            if space_of(self.a.type) == "reg":
                return op_error(
                    self,
                    "transposes an operand a in registers",
                    why="each thread holds parts of rows, which it would have to trade for columns",
                    fix='put it into shared memory first: "tile.to_shared"',
                )
        if self.transpose_b.value:
            depth_b, columns = columns, depth_b
        if depth != depth_b:
            return op_error(
                self,
                f"needs one contracted size, but a has {depth} and b has {depth_b}",
                why="a @ b sums over a's columns and b's rows (a's rows with transpose_a, b's columns with transpose_b)",
            )
        if self.a.type.element_type != self.b.type.element_type:
            return op_error(self, f"needs one dtype for a and b, but they have {self.a.type.element_type} and {self.b.type.element_type}")
        if not has_ctas(self):
            return False
        columns *= self.ctas.value
        if self.folded.value:
            rows, columns = 2 * rows, columns // 2
        want = f"{rows}x{columns}xf32"
        out = self.out.type
        if list(out.shape) != [rows, columns] or str(out.element_type) != "f32":
            return op_error(self, f"has the result {out}, but computes {want}", fix=f"give it the type tensor<{want}, #tile.reg>")
        if self.acc is not None and self.acc.type != out:
            return op_error(self, f"has acc of type {self.acc.type}, but the result is {out}", why="acc is summed into in place")
        return True


class MapOp(Scheduled, name="map"):
    """out[i, j] = body(x0[i, j], ..., row i, column j): one scalar program an element.

    Row vectors are spread over columns, and a 1 x columns tile in shared memory over rows. Scalars and captured tensors of the
    surrounding program may be used. With `cond`, elements (all, for an i1; rows, for a row vector of i1 that is equal over each warp's
    rows, see `vote_any`) where it is false keep the value of the first input. Inputs and result may lie in tensor memory: they are
    copied from there to registers, or from registers to there.
    """

    inputs: Sequence[ext.Operand[Any]]
    cond: ext.Operand[Any] | None
    out: ext.Result[Any]
    body: ext.Region

    def verify_op(self) -> bool:
        out = self.out.type
        if not in_space(self, "out", self.out, "reg", "tmem"):
            return False
        for number, value in enumerate(self.inputs):
            if not in_space(self, f"input {number}", value, "reg", "smem", "tmem"):
                return False
            shape = list(value.type.shape)
            is_row = space_of(value.type) == "smem" and out.rank == 2 and shape == [1, out.shape[1]]
            if shape != list(out.shape) and shape != list(out.shape)[:1] and not is_row:
                return op_error(
                    self,
                    f"has input {number} of shape {shape_text(shape)}, but the result is {shape_text(out.shape)}",
                    why="inputs have the result's shape, or are row vectors, or 1 x columns in #tile.smem",
                )
        kinds = [value.type.element_type for value in self.operation.results]
        return takes_elements(self) and self._check_cond() and check_yield(self, self.body, kinds)

    def _check_cond(self) -> bool:
        if self.cond is None:
            return True
        kind = self.cond.type
        row_flags = space_of(kind) == "reg" and list(kind.shape) == list(self.out.type.shape)[:1] and str(kind.element_type) == "i1"
        if not (row_flags or str(kind) == "i1"):
            return op_error(self, f"has cond of type {kind}", why="cond is an i1, or one i1 a row")
        if not len(self.inputs) or self.inputs[0].type != self.out.type:
            return op_error(
                self, "has cond, but its first input has not the result's type", why="where cond is false the first input passes through"
            )
        return True


class MapBothOp(MapOp, name="map_both"):
    """out[i, j], beside[i, j] = body(x0[i, j], ..., row i, column j): a map of two results, without `cond`.

    What both are made of is held for a few elements at a time: P of a backward, between scores that turn into a factor of dS in their place
    and P in 16 bits, takes no register tile of its own.
    """

    beside: ext.Result[Any]

    def verify_op(self) -> bool:
        if not in_space(self, "beside", self.beside, "reg", "tmem"):
            return False
        if list(self.beside.type.shape) != list(self.out.type.shape):
            return op_error(self, f"has results of shape {shape_text(self.out.type.shape)} and {shape_text(self.beside.type.shape)}",
                            why="it computes both element by element")
        if self.cond is not None:
            return op_error(self, "has cond", why="where that is false only the first result would be known", fix="use two tile.map")
        return super().verify_op()


class ReduceOp(Scheduled, name="reduce"):
    """out[i] = kind(init[i], x[i, 0], x[i, 1], ...).

    A result of 4 columns is a partial reduction: column c takes the columns j with j // 2 % 4 == c, which is what one lane of a quad
    holds; a reduction of those 4 columns completes it.
    """

    x: ext.Operand[Any]
    init: ext.Operand[Any] | None
    kind: ir.StringAttr
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        if not (in_space(self, "x", self.x, "reg", rank=2) and in_space(self, "out", self.out, "reg")):
            return False
        if self.kind.value not in ("max", "sum"):
            return op_error(self, f"has kind = {self.kind}", why='known kinds are "max" and "sum"')
        rows = self.x.type.shape[0]
        out = self.out.type
        if list(out.shape) not in ([rows], [rows, 4]) or out.element_type != self.x.type.element_type:
            return op_error(self, f"reduces {self.x.type} to {out}", why=f"the result has shape {rows} or, for partial sums, {rows}x4")
        if self.init is not None and self.init.type != out:
            return op_error(self, f"has init of type {self.init.type}, but the result is {out}")
        return True


class SplatOp(Operation, name="splat", traits=[ext.Pure]):
    """out = a tile in registers or tensor memory full of `value`."""

    value: ir.Attribute
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        if not in_space(self, "out", self.out, "reg", "tmem"):
            return False
        if getattr(self.value, "type", None) != self.out.type.element_type:
            return op_error(self, f"has value = {self.value}, but the result holds {self.out.type.element_type}")
        return True


class RescaleFactorOp(Scheduled, name="rescale_factor"):
    """out[i] = exp2((old[i] - new[i]) * scale_log2), 0 where old is -inf: what sums taken relative to `old` shrink by relative to `new`."""

    old: ext.Operand[Any]
    new: ext.Operand[Any]
    scale_log2: ir.FloatAttr
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        for name, value in (("old", self.old), ("new", self.new), ("out", self.out)):
            if not in_space(self, name, value, "reg", rank=1):
                return False
        return self.old.type == self.new.type == self.out.type or op_error(
            self, f"relates {self.old.type}, {self.new.type} and {self.out.type}", why="all three are row vectors of one type"
        )


class VoteAnyOp(Scheduled, name="vote_any"):
    """out[i] = whether x holds in any row of i's group of `rows`, those of one warp: equal over a warp, so that a branch on it does not
    diverge.
    """

    x: ext.Operand[Any]
    rows: Any = optional(ir.IntegerAttr, "16 : i64")
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        if not (in_space(self, "x", self.x, "reg", rank=1) and in_space(self, "out", self.out, "reg", rank=1)):
            return False
        if str(self.x.type.element_type) != "i1" or self.x.type != self.out.type:
            return op_error(self, f"takes {self.x.type} and gives {self.out.type}", why="it takes and gives one i1 a row")
        rows = self.rows.value
        if rows not in (16, 32):
            return op_error(self, f"has rows = {rows}", why="a warp holds 16 rows of a wgmma accumulator, or 32 of a tile in tensor memory")
        return self.x.type.shape[0] % rows == 0 or op_error(self, f"needs a multiple of {rows} rows, but has {self.x.type.shape[0]}")


class ToSharedOp(Scheduled, name="to_shared"):
    """out = x, in shared memory. In a loop the tile lives in one of `buffers` rotating copies."""

    x: ext.Operand[Any]
    buffers: Any = optional(ir.IntegerAttr, "1 : i64")
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        if not goes_to_shared(self):
            return False
        same = list(self.x.type.shape) == list(self.out.type.shape) and self.x.type.element_type == self.out.type.element_type
        return same or op_error(self, f"copies {self.x.type} to {self.out.type}", why="shape and dtype stay")


class StoreOp(Scheduled, name="store"):
    """Write a tile to a box of `target` at `coords`; what lies out of bounds is dropped.

    From shared memory asynchronously, two dimensions; from registers directly, one value a row. Of a row vector, a tensor without
    dimensions takes the first row.
    """

    tile: ext.Operand[Any]
    target: ext.Operand[Any]
    coords: Sequence[ext.Operand[ir.IndexType]]
    dims: ir.DenseI64ArrayAttr

    def verify_op(self) -> bool:
        if not (in_space(self, "tile", self.tile, "smem", "reg") and in_space(self, "target", self.target, "gmem")):
            return False
        rank = 2 if space_of(self.tile.type) == "smem" else 1
        if self.tile.type.rank != rank:
            return op_error(
                self,
                f"stores {self.tile.type}",
                why="2-D tiles are stored from shared memory, row vectors from registers",
                fix='put it there first: "tile.to_shared"' if rank == 1 else "",
            )
        if rank == 1 and not self.target.type.rank and not len(self.dims):
            return check_coords(self, self.target.type) and check_element(self, self.target.type, self.tile.type)
        return check_box(self, self.target.type, self.tile.type)


class GlobalAddOp(Scheduled, name="global_add"):
    """target's box at `coords` += x, element by element, atomically; what lies out of bounds is dropped. f32, from registers, or from
    shared memory asynchronously. With `staged`, from registers through `buffers` copies of that many columns each in shared memory.

    `dims` are the two dimensions of the target that rows and columns run along. A row vector has none: all its rows are added to the
    one element at `coords`. CTAs add in any order, so that the last bits of a sum of three or more differ between runs. `folded`, the lower
    half of the rows of x are the columns behind those of the upper half (see `tile.mma`).
    """

    x: ext.Operand[Any]
    target: ext.Operand[Any]
    coords: Sequence[ext.Operand[ir.IndexType]]
    dims: ir.DenseI64ArrayAttr
    staged: Any = optional(ir.IntegerAttr)
    buffers: Any = optional(ir.IntegerAttr, "1 : i64")
    folded: Any = optional(ir.BoolAttr, "false")

    def verify_op(self) -> bool:
        if self.folded.value and (self.x.type.rank != 2 or self.x.type.shape[0] % 2):
            return op_error(self, f"unfolds {self.x.type}", why="half of its rows are columns", fix="remove folded")
        if not (in_space(self, "x", self.x, "reg", "smem") and in_space(self, "target", self.target, "gmem")):
            return False
        if not self._check_staged():
            return False
        if str(self.x.type.element_type) != "f32":
            return op_error(self, f"adds {self.x.type}", why="sums over CTAs are f32", fix="cast it in a map")
        if self.x.type.rank == 1 and not len(self.dims):
            return check_coords(self, self.target.type) and check_element(self, self.target.type, self.x.type)
        return in_space(self, "x", self.x, "reg", "smem", rank=2) and check_box(self, self.target.type, self.x.type)

    def _check_staged(self) -> bool:
        if self.staged is None:
            return self.buffers.value == 1 or op_error(self, f"has {self.buffers.value} buffers, but is not staged", fix="remove buffers")
        if space_of(self.x.type) != "reg" or self.x.type.rank != 2:
            return op_error(self, f"stages {self.x.type}", why="what goes through shared memory in parts are tiles in registers")
        width, part = self.x.type.shape[1], self.staged.value
        if part <= 0 or part % 8 or width % part:
            return op_error(self, f"stages {part} of {width} columns at a time", why="parts are equal, and whole spans of 32 bytes or more",
                            fix="use a multiple of 8 that divides the columns")
        return 1 <= self.buffers.value <= width // part or op_error(self, f"has {self.buffers.value} buffers for {width // part} parts")


class WaitCountOp(Scheduled, name="wait_count"):
    """Wait until `counter` at `coords` is `count`: that many CTAs have called `add_count` there, and what they added before is complete.

    `counter` holds i32, and has in its last dimension one for each compute warpgroup, which waits and counts on its own where registers are
    added, or a single one where tiles of shared memory are: a warp of its own adds these.
    """

    counter: ext.Operand[Any]
    count: ext.Operand[ir.IndexType]
    coords: Sequence[ext.Operand[ir.IndexType]]

    def verify_op(self) -> bool:
        return _check_counter(self)


class AddCountOp(Scheduled, name="add_count"):
    """`counter` at `coords` += 1, once all that this CTA added to global memory before is complete."""

    counter: ext.Operand[Any]
    coords: Sequence[ext.Operand[ir.IndexType]]

    def verify_op(self) -> bool:
        return _check_counter(self)


def _check_counter(op) -> bool:
    if not in_space(op, "counter", op.counter, "gmem"):
        return False
    kind = op.counter.type
    if str(kind.element_type) != "i32" or not kind.rank or kind.is_dynamic_dim(kind.rank - 1):
        return op_error(op, f"counts in {kind}", why="counters are i32, one for each warpgroup in the last dimension, whose size is fixed")
    return len(op.coords) == kind.rank - 1 or op_error(
        op, f"needs {kind.rank - 1} coordinates, but has {len(op.coords)}", why="one for each dimension but the last"
    )


# ------------------------------------------------------------------------------------------------ scalars in map regions


class LoadElementOp(Operation, name="load_element", traits=[ext.Pure]):
    """out = source[coords], read directly; 0 out of bounds.

    `exclusive`: the kernel also stores the tensor, each element by a thread that has read it. Then nothing is read in place of what is out
    of bounds: another thread may be storing it. f32 only.
    """

    source: ext.Operand[Any]
    coords: Sequence[ext.Operand[ir.IndexType]]
    exclusive: Any = optional(ir.BoolAttr, "false")
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        if not in_space(self, "source", self.source, "gmem"):
            return False
        if len(self.coords) != self.source.type.rank:
            return op_error(self, f"needs {self.source.type.rank} coordinates, but has {len(self.coords)}")
        if self.exclusive.value and str(self.out.type) != "f32":
            return op_error(self, f"is exclusive, of {self.out.type}", why="workspaces that kernels update are f32", fix="remove exclusive")
        return self.out.type == self.source.type.element_type or op_error(
            self, f"gives {self.out.type}, but the tensor holds {self.source.type.element_type}"
        )


class Exp2Op(Operation, name="exp2", traits=[ext.Pure]):
    """out = 2**x: `emulated` of every 16 groups of 8 neighbouring columns by range reduction and a polynomial on the FMA units."""

    x: ext.Operand[ir.F32Type]
    emulated: ir.IntegerAttr
    out: ext.Result[ir.F32Type]

    def verify_op(self) -> bool:
        return 0 <= self.emulated.value <= 16 or op_error(
            self, f"emulates {self.emulated.value} of 16 columns", why="the share is 0 to 16 of 16"
        )


class YieldOp(Operation, name="yield", traits=[ext.Pure, ir.IsTerminatorTrait]):
    """Ends a region with its values."""

    values: Sequence[ext.Operand[Any]]
