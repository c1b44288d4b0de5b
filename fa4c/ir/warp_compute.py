"""Operations of the `warp` dialect on register fragments: MMAs, maps, reductions."""

import re
from collections.abc import Sequence
from typing import Any

from .base import optional
from .diagnostics import op_error
from .mlir import ext, ir
from .tile import check_yield, space_of, takes_elements
from .warp_base import (
    Operation,
    StateOp,
    bits_of,
    has_work,
    is_buffer,
    is_fragment,
    is_reader,
    is_slot_number,
    made_by,
)


class FragmentOp(Operation, name="fragment"):
    """Registers for a tile: rows x columns, rows x 4 (one value a lane of a quad), one value a row (the same in all lanes of a quad), or
    1 x columns (one value a column, the same in all lanes that hold the column).
    """

    out: ext.Result[Any]

    def verify_op(self) -> bool:
        return is_fragment(self, "out", self.out, row=True)


class FillOp(Operation, name="fill"):
    """target = value, everywhere."""

    target: ext.Operand[Any]
    value: ir.Attribute

    def verify_op(self) -> bool:
        if not is_fragment(self, "target", self.target):
            return False
        return getattr(self.value, "type", None) == self.target.type.element_type or op_error(
            self, f"has value = {self.value}, but the fragment holds {self.target.type.element_type}"
        )


class CopyOp(Operation, name="copy"):
    """target = source."""

    target: ext.Operand[Any]
    source: ext.Operand[Any]

    def verify_op(self) -> bool:
        if not (is_fragment(self, "target", self.target) and is_fragment(self, "source", self.source)):
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
            if not is_fragment(self, "a fragment", value):
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
        if not is_reader(self, self.a_state, self.b_state):
            return False
        if not is_fragment(self, "acc", self.acc) or not is_buffer(self, self.b):
            return False
        if not (space_of(self.a.type) == "smem" or is_fragment(self, "a", self.a)):
            return False
        for name, state in (("a_state", self.a_state), ("b_state", self.b_state)):
            if state is not None and not is_slot_number(state) and not made_by(self, name, state, StateOp):
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
        if not has_work(self):
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
        if not is_fragment(self, "target", self.target):
            return False
        for number, value in enumerate(self.inputs):
            shape = list(self.target.type.shape)
            if space_of(value.type) != "reg" or list(value.type.shape) not in (shape, shape[:1], [1, *shape[1:]]):
                return op_error(self, f"has input {number} of type {value.type} for a target {self.target.type}")
        return takes_elements(self) and check_yield(self, self.body, [self.target.type.element_type])


class ReduceOp(Operation, name="reduce"):
    """target[i] = kind over the columns of source, and over target's old value with `accumulate`. Into rows x 4: this lane's columns only.
    """

    target: ext.Operand[Any]
    source: ext.Operand[Any]
    kind: ir.StringAttr
    accumulate: ir.BoolAttr

    def verify_op(self) -> bool:
        if not (is_fragment(self, "target", self.target) and is_fragment(self, "source", self.source)):
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
        if not (is_fragment(self, "target", self.target) and is_fragment(self, "source", self.source)):
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
