"""The rules of `cute_source.py` for tiles that go through shared memory as 8 x 8 matrices of 16 bits: stmatrix, ldmatrix (PTX ISA).

A matrix is 8 rows of one 16-byte chunk; lane l gives the address of row l % 8 of matrix l / 8, and four matrices are one instruction. Of 16-bit
elements a chunk is 8 columns: the four are the quarters of 16 x 16. Of f32 it is half of 8 columns, those of one register of each thread of
a quad: the even ones or the odd ones, so only an `interleaved` buffer is read and written so. Chunk c of a row lies at c ^ (row % 8) for a span
of 128 bytes, every second or fourth row the next one for 64 or 32: no two rows of a matrix share a bank, and the chunks of a span follow from
the first one by an exclusive or each.
"""

from __future__ import annotations

from ..ir import tile, warp
from ..ir.diagnostics import op_diagnostic
from ..ir.tile_base import nested_operations
from ..passes.warp_interleave_columns import whole_groups
from . import parameters
from .source_text import comment

# Products in a loop from which on threads keep addresses of shared memory in registers, and the pipes of a role share their slots and phases.
# ptxas computes what it can again in each iteration, from the thread's number and the CTA's place in its cluster on: of 562 instructions of a
# backward at head dim 128, 64 were for that. A forward's loop has two products, a part of a backward three or four.
KEEP_ADDRESSES = 3
# ... and the descriptors of what they read, two for each: another 49. At (192, 128), of three and four, it is 18 more.
KEEP_DESCRIPTORS = 5


class MatrixRules:
    """Mixed into the emitter of a kernel, as `TileRules`."""

    def most_products(self) -> int:
        """In the body of a loop, where they sum in registers."""
        bodies = [op.regions[0].blocks[0] for op in self.operations() if op.operation.name == "scf.for"]
        counts = [sum(isinstance(op, warp.WgmmaOp) for op in body.operations) for body in bodies]
        return 0 if self.sums_in_tmem else max(counts, default=0)

    def by_matrices(self, op) -> bool:
        """Whether a warp.store_shared is one of `store_matrices`, and not a copy of CuTe's, which computes each address by itself."""
        if warp.bits_of(op.source.type.element_type) == 32:
            return op.buffer.owner.opview.interleaved.value
        _, slabs, _, _ = self._slab(op.buffer)
        return self.keeps and _is_operand(op.buffer) and slabs % self._shares(op.source.type) == 0

    def store_matrices(self, op) -> None:
        self._by_matrices(op, "store_matrices", op.source, op.slot)

    def load_matrices(self, op) -> None:
        self._by_matrices(op, "load_matrices", op.target, op.state)

    def _by_matrices(self, op, helper: str, fragment, slot) -> None:
        span, slabs, rows, stages = self._slab(op.buffer)
        swizzle, columns = op.buffer.owner.opview.swizzle.value, 256 // warp.bits_of(fragment.type.element_type)  # of four matrices
        shares = self._shares(fragment.type)
        part = slabs // shares * rows * swizzle if shares > 1 else self.layout.rows * swizzle
        address = self._declare(("matrix", op.buffer, shares), lambda name: self._first_matrix(name, op.buffer, part), "at")
        words = self.names.fresh("words")
        self.top(comment(op))
        if slot is not None and stages > 1:
            of_slot = self.names.fresh("at")
            self.top(f"{of_slot} = {address} + {self.operand(slot)} * {warp.stage_bytes(op.buffer)}")
            address = of_slot
        self.top(f"{words} = cute.recast_tensor({self.operand(fragment)}, Int32)")
        with self.unrolled("q", fragment.type.shape[1] // shares // columns) as q:
            chunk, slab = f"{q} % {span // columns} * 32", f"{q} // {span // columns} * {rows * swizzle}"
            self.top(f"{helper}({address} ^ {chunk}, {slab}, {words}, 4 * {q})")

    def _first_matrix(self, name: str, buffer, part: int) -> list[str]:
        """Where this lane's row of the first four matrices lies in slot 0; `part`: bytes from one warpgroup's to the next one's."""
        swizzle = buffer.owner.opview.swizzle.value
        row, chunk = ("t // 32 * 16 + t % 16", "t // 16 % 2")
        if warp.bits_of(buffer.type.element_type) == 32:  # registers of a thread: two of a row, then two of the row 8 further
            row, chunk = "t // 32 * 16 + t // 16 % 2 * 8 + t % 8", "t // 8 % 2"
        turn = f"({row}) * {swizzle} // 128 % {swizzle // 16}"
        address = f"({self.operand(buffer)}).toint() + wg * {part} + ({row}) * {swizzle} + ({chunk} ^ {turn}) * 16"
        return [f"{name} = keep({address})" if self.keeps else f"{name} = {address}"]


def check_orders(launches) -> None:
    """All kernels see the columns of a tensor in one order, and the caller sees them as they are."""
    orders = {}  # name of a tensor -> whether its columns are interleaved
    for launch in launches:
        entries = parameters.entries_of(launch)
        for op in nested_operations(launch.kernel.body):
            for tensor, interleaved in _reached(op):
                entry = entries[tensor]
                if interleaved and entry["role"] != "workspace":
                    raise op_diagnostic(op, f"copies interleaved columns of {entry['name']}", why="the caller reads or writes it, in plain order",
                                        fix="remove `interleaved` from its buffer")
                if interleaved and not whole_groups(op):
                    raise op_diagnostic(op, f"copies interleaved columns of {entry['name']} from one on that is not known to begin 8 of them",
                                        why="their order is within each 8", fix="remove `interleaved` from its buffer")
                if orders.setdefault(entry["name"], interleaved) != interleaved:
                    raise op_diagnostic(op, f"takes {entry['name']} in another order than what is before",
                                        why="its columns are interleaved for one of them, and in plain order for the other",
                                        fix="give `interleaved` to all buffers that it is copied to or from, or to none")


def _reached(op) -> list:
    """(tensor in global memory, whether its columns are interleaved) of an operation that moves elements."""
    if isinstance(op, (warp.TmaLoadOp, warp.TmaStoreOp, warp.TmaAddOp, warp.TmaPutOp)):
        return [(op.map.owner.opview.tensor, op.buffer.owner.opview.interleaved.value)]
    if isinstance(op, tile.LoadElementOp):
        return [(op.source, False)]
    return [(op.target, False)] if isinstance(op, (warp.StoreRowsOp, warp.GlobalAddOp)) else []


def _is_operand(buffer) -> bool:
    return any(isinstance(use.owner.opview, warp.WgmmaOp) for use in buffer.uses)
