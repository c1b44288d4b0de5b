"""Give a product that sums over the axis a CTA pair has split one axis to sum over: the pair exchanges halves of operand A.

In the backward program_id x counts blocks of keys, so of dQ = dS K each CTA of a pair has the keys, and the part of the sum, of its own
block: dS is (M queries, N keys of this CTA). Each CTA keeps half of the queries and sends the other half to its peer, through distributed
shared memory; now each has M / 2 queries and all 2 N keys of the pair, and multiplies by K of all those keys: (M/2, 2N) x (2N, d), a
product of the pair whose operand B is halved along d. Each CTA adds M / 2 rows to dQ, where before both added M: half the bytes written to
shared memory, and half the additions to global memory.

It finds the products that `tile-split-2cta{exchange=true}` left: of one CTA, in a kernel of pairs, operand B loaded from places that lie
one block apart in neighbouring CTAs, operand A computed here, the result added to global memory and used by nothing else. Where a CTA's
half has 64 rows (M = 128), the result is `folded`: its right half lies below the left half, as tensor memory holds it.

Before:  %a = "tile.to_shared"(%ds)        %dq = "tile.mma"(%a, %k) {transpose_a = true}                 -> tensor<128x128>
         "tile.global_add"(%dq, %DQ, %m0, %c0)
After:   %a = "tile.exchange"(%ds) {axis = 1}  %dq = "tile.mma"(%a, %k2) {ctas = 2, folded = true, ...}  -> tensor<128x64>
         "tile.global_add"(%dq, %DQ, m0 + 64 * "tile.cta_rank"(), %c0) {folded = true}

Run behind tile-split-2cta. Source: FlashAttention-4 (arXiv 2603.05451), section 3.2.3; the fold is the PTX ISA's data path layout B.
"""

from __future__ import annotations

from ..ir import tile, tile_pair
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import arith, i64, index_constant, ir
from ..ir.tile import space_of, tile_type
from ..targets import of as target_of
from ._tile_map import operations_in
from .cluster_grid import depending_on, distance
from .registry import register_pass


@register_pass("tile-insert-dsmem-exchange")
def tile_insert_dsmem_exchange(module: ir.Module) -> None:
    target = target_of(module)
    for kernel in [op for op in operations_in(module) if isinstance(op, tile.KernelOp)]:
        products = [op for op in operations_in(kernel) if isinstance(op, tile.MmaOp)]
        if any(op.ctas.value == 2 for op in products):
            for op in [op for op in products if op.ctas.value == 1]:
                _Product(kernel, op, target).exchange()


class _Product:
    """One product over an axis that the pair has split."""

    def __init__(self, kernel, op, target):
        self.kernel, self.op, self.target = kernel, op, target
        operations = operations_in(kernel)
        self.place = next(o for o in operations if isinstance(o, tile.ProgramIdOp))
        self.rank = next(o for o in operations if isinstance(o, tile_pair.CtaRankOp)).out
        self.rows, self.columns = op.out.type.shape
        self.load = self._loaded()
        self.source = self._computed()
        self.stores = self._results()
        self._check_sizes()

    def _loaded(self):
        """The load of operand B: blocks of neighbouring CTAs follow each other along the axis that is summed over, and only along it."""
        op = self.op
        load = None if isinstance(op.b.owner, ir.Block) else op.b.owner.opview
        if not isinstance(load, tile.LoadOp) or load.shared.value:
            raise op_diagnostic(op, "multiplies by a tile that this CTA does not load", why="each CTA loads the part of both")
        moving = depending_on(self.kernel, self.place.x, 2)
        along = list(load.dims)[1 if op.transpose_b.value else 0]
        depth = load.out.type.shape[1 if op.transpose_b.value else 0]
        if distance(load.coords[along], self.place.x) != depth or any(
            c in moving for dim, c in enumerate(load.coords) if dim != along
        ):
            raise op_diagnostic(op, "multiplies by tiles of neighbouring CTAs that do not follow each other",
                                why=f"the pair sums over both: the second one must start {depth} behind the first one",
                                fix="leave out tile-split-2cta")
        return load

    def _computed(self):
        """Operand A in registers."""
        a = self.op.a
        if space_of(a.type) == "reg":
            return a
        owner = None if isinstance(a.owner, ir.Block) else a.owner.opview
        if not isinstance(owner, tile.ToSharedOp):
            raise op_diagnostic(self.op, "multiplies a tile that this CTA did not compute",
                                why="halves of what its threads hold are exchanged")
        return owner.x

    def _results(self) -> list:
        """What takes the result: additions to global memory, and copies to shared memory for such."""
        found, values = [], [self.op.out]
        for value in values:
            for use in value.uses:
                user = use.owner.opview
                adds = isinstance(user, tile.GlobalAddOp) and user.x == value and len(user.dims) == 2
                if not adds and not isinstance(user, tile.ToSharedOp):
                    raise op_diagnostic(user, "takes a sum over keys of which the pair has one half each",
                                        why="rows of the exchanged product are other ones in each CTA; they can be added to global memory",
                                        fix="leave out tile-split-2cta")
                found.append(user)
                values += list(user.operation.results)
        return found

    def _check_sizes(self) -> None:
        half = self.rows // 2
        if half not in (self.target.mma.m, self.target.mma.m // 2) or self.rows % 2:
            possible = f"{self.target.mma.m} or {2 * self.target.mma.m} rows"
            raise op_diagnostic(self.op, f"has {self.rows} rows", why=f"a pair forms {possible} at a time, half of them in each CTA",
                                fix=f"use {possible}")
        if self.columns % (2 * self.target.mma.n_step):
            raise op_diagnostic(self.op, f"has {self.columns} columns", why="each CTA of a pair holds half of them, whole steps of "
                                f"{self.target.mma.n_step}", fix=f"use a multiple of {2 * self.target.mma.n_step} columns")

    def exchange(self) -> None:
        op, half, a_before = self.op, self.rows // 2, self.op.a.owner
        folded = half < self.target.mma.m
        a, b = self._exchanged(), self._both_blocks()
        shape = [2 * half, self.columns // 2] if folded else [half, self.columns]
        for name, value in (("ctas", i64(2)), ("folded", ir.BoolAttr.get(True))):
            if name != "folded" or folded:
                op.attributes[name] = value
        op.operation.operands[0], op.operation.operands[1] = a, b
        op.out.set_type(tile_type(shape, "f32", space_of(op.out.type)))
        for user in self.stores:
            if isinstance(user, tile.ToSharedOp):
                user.out.set_type(tile_type(shape, "f32", "smem"))
            else:
                self._add_half(user, half, folded)
        for before in (self.load.operation, a_before):
            if before.name in ("tile.load", "tile.to_shared") and not list(before.results[0].uses):
                before.erase()

    def _exchanged(self):
        """Half of operand A's rows, of both CTAs."""
        before = self.op.a
        axis = 1 if self.op.transpose_a.value else 0
        shape = list(self.source.type.shape)
        shape[axis], shape[1 - axis] = shape[axis] // 2, 2 * shape[1 - axis]
        written = before.owner.opview if space_of(before.type) == "smem" else None
        with ir.InsertionPoint(written or self.op), (written or self.op).location:
            new = tile_pair.ExchangeOp(
                x=self.source, axis=i64(axis),
                buffers=written.attributes.get("buffers") if written else None,
                out=tile_type(shape, self.source.type.element_type, "smem"),
            )  # fmt: skip
        return new.out

    def _both_blocks(self):
        """Operand B of both CTAs' blocks, this CTA's half of the columns."""
        load, depth_axis = self.load, 1 if self.op.transpose_b.value else 0
        shape = list(load.out.type.shape)
        depth, width = shape[depth_axis], shape[1 - depth_axis] // 2
        shape[depth_axis], shape[1 - depth_axis] = 2 * depth, width
        along, across = (list(load.dims)[axis] for axis in (depth_axis, 1 - depth_axis))
        with ir.InsertionPoint(load), load.location:
            first = arith.subi(load.coords[along], arith.muli(self.rank, index_constant(depth)))
            column = arith.addi(load.coords[across], arith.muli(self.rank, index_constant(width)))
            new = load.operation.clone()
        new.operands[1 + along], new.operands[1 + across] = first, column
        new.results[0].set_type(tile_type(shape, load.out.type.element_type, "smem"))
        return new.results[0]

    def _add_half(self, user, half: int, folded: bool) -> None:
        dim = list(user.dims)[0]
        with ir.InsertionPoint(user), user.location:
            row = arith.addi(user.coords[dim], arith.muli(self.rank, index_constant(half)))
        user.operation.operands[2 + dim] = row
        if folded:
            user.attributes["folded"] = ir.BoolAttr.get(True)
