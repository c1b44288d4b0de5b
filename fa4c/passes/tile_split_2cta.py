"""Pairs of CTAs form their products together: 256 rows, of which each CTA has 128, times one operand B of which each has half.

A tensor core reads operand B from shared memory once for 128 rows. Two CTAs whose tiles are neighbours multiply by the same B; as a
pair (`tcgen05.mma.cta_group::2`, PTX ISA 9.7.16) each loads and reads half of B's columns, and the tensor cores trade the halves. That
halves the shared memory that B takes, and the bytes read for it; per SM the multiplications stay. At M = N = d = 128 the four products of
the backward whose rows are split read 1024 clocks of operands instead of 1536.

It applies to a kernel all of whose products can be split, since a kernel's MMAs are all of single CTAs or all of pairs: B is loaded, at
the same place, in the same loop trips, by the two CTAs whose `program_id` x differ in the last bit; its columns are whole steps for both.
The pair's row blocks come in twos: one past the end loads zeros and stores nothing.

A product that sums over the axis along which x moves (dQ = dS K, where x counts blocks of keys) has another B in each CTA. It is refused,
unless `exchange` says that `tile-insert-dsmem-exchange` follows, which gives both CTAs one axis to sum over.

`ctas`: 2 for pairs, 1 for none, 0 where by the target's numbers shared memory and not the tensor cores bounds a block loop.

Before:  %b = "tile.load"(%B, %n0, %k0) ... -> tensor<128x64>          %s = "tile.mma"(%a, %b) {transpose_b = true} ... -> tensor<128x128>
After:   %n1 = n0 + 64 * "tile.cta_rank"()    "tile.kernel" {cluster = 2}, on a grid whose x is even
         %b = "tile.load"(%B, %n1, %k0) ... -> tensor<64x64>           %s = "tile.mma"(%a, %b) {ctas = 2, transpose_b = true} ...

Run first at the tile level. Source: FlashAttention-4 (arXiv 2603.05451), section 3.2.3.
"""

from ..ir import tile, tile_pair
from ..ir.diagnostics import Diagnostic, op_diagnostic
from ..ir.mlir import arith, i64, index_constant, ir
from ..targets import of as target_of
from . import op_costs
from ._tile_map import operations_in
from .cluster_grid import depending_on, run_together
from .registry import register_pass


@register_pass("tile-split-2cta")
def tile_split_2cta(module: ir.Module, *, ctas: int = 1, exchange: bool = False) -> None:
    target = target_of(module)
    if ctas not in (0, 1, 2):
        raise Diagnostic(f"ctas={ctas} is no number of CTAs that form a product", why="one does, or the two of a pair",
                         fix="give 1 or 2, or 0 to let the target's numbers decide")
    operations = operations_in(module)
    kernels = {op.sym_name.value: op for op in operations if isinstance(op, tile.KernelOp)}
    for launch in [op for op in operations if isinstance(op, tile.LaunchOp)] if ctas != 1 else []:
        kernel = kernels[launch.kernel.value]
        if not any(isinstance(op, tile.MmaOp) for op in operations_in(kernel)):
            continue
        pair = _Kernel(kernel, target, exchange)
        refusal = pair.refusal()
        if refusal is None and (ctas == 2 or _pays(kernel, target)):
            pair.split()
            run_together(kernel, launch, 2)
        elif refusal is not None and ctas == 2:
            raise refusal


def _pays(kernel, target) -> bool:
    """Whether a block loop reads and writes shared memory for longer than its products take."""
    loops = [op for op in operations_in(kernel) if op.operation.name == "scf.for"]
    for loop in loops:
        body = [op for op in loop.regions[0].blocks[0].operations if isinstance(op, tile.Scheduled)]
        products = sum(op_costs.product_clocks(op, target) for op in body if isinstance(op, tile.MmaOp))
        if sum(op_costs.shared_bytes(op, target) for op in body) / target.smem_bytes_per_clk > products > 0:
            return True
    return False


class _Kernel:
    """One kernel on its way to pairs."""

    def __init__(self, kernel, target, exchange: bool):
        self.kernel, self.target, self.exchange = kernel, target, exchange
        self.operations = operations_in(kernel)
        self.place = next((op for op in kernel.body.blocks[0].operations if isinstance(op, tile.ProgramIdOp)), None)
        self.moving = depending_on(kernel, self.place.x, 2) if self.place is not None else set()
        self.left = []  # products for the exchange
        self.split_products = []

    def refusal(self) -> Diagnostic | None:
        """Why the kernel's CTAs cannot form their products in pairs; None if they can."""
        if not self.target.mma.pair_m:
            return op_diagnostic(self.kernel, "cannot run in pairs of CTAs", why="this target's MMA is formed by one CTA",
                                 fix="leave out tile-split-2cta")
        if self.place is None or self.kernel.cluster.value > 1 or any(isinstance(op, tile.WalkOp) for op in self.operations):
            return op_diagnostic(self.kernel, "cannot run in pairs of CTAs", why="pairs are neighbours along program_id x of a kernel "
                                 "that has no clusters yet and does not take its tiles from a queue", fix="run tile-split-2cta first")
        for op in self.operations:
            found = self._refusal_of(op) if isinstance(op, tile.MmaOp) else None
            if found is not None:
                return found
        if not self.split_products:
            return op_diagnostic(self.kernel, "has no product that a pair could form", why="all of them sum over what the pair would split")
        return None

    def _refusal_of(self, op) -> Diagnostic | None:
        rows, columns = op.out.type.shape
        load = None if isinstance(op.b.owner, ir.Block) else op.b.owner.opview
        if any(bound in self.moving for loop in _loops_around(op) for bound in list(loop.operands)[:3]):
            return op_diagnostic(op, "stands in a loop whose trips differ between neighbouring CTAs", why="the two of a pair form every "
                                 "product together", fix="run attn-to-tile{alike=2}, or leave out tile-split-2cta")
        if not isinstance(load, tile.LoadOp) or load.shared.value:
            return op_diagnostic(op, "multiplies by a tile that is not loaded by each CTA", why="each CTA of a pair loads half of it")
        if self._sums_over_split_axis(op, load):
            if self.exchange:
                self.left.append(op)
                return None
            return op_diagnostic(op, "sums over an axis that the pair splits", why="the axis along which program_id x moves: each CTA has "
                                 "another part of it, so the two do not multiply by one b",
                                 fix="give tile-split-2cta exchange=true and run tile-insert-dsmem-exchange behind it")
        if any(c in self.moving for c in load.coords):
            return op_diagnostic(op, "multiplies by a tile that differs between neighbouring CTAs", why="a pair multiplies by one b, of "
                                 "which each CTA has half", fix="leave out tile-split-2cta")
        if rows % (self.target.mma.pair_m // 2):
            return op_diagnostic(op, f"has {rows} rows", why=f"a pair forms {self.target.mma.pair_m} rows at a time, half of them in "
                                 "each CTA", fix=f"use a multiple of {self.target.mma.pair_m // 2} rows")
        if columns % (2 * self.target.mma.n_step):
            return op_diagnostic(op, f"has {columns} columns", why="each CTA of a pair holds half of them, whole steps of "
                                 f"{self.target.mma.n_step}", fix=f"use a multiple of {2 * self.target.mma.n_step} columns: "
                                 "attn-to-tile{alike=2} chooses such blocks")
        self.split_products.append(op)
        return None

    def _sums_over_split_axis(self, op, load) -> bool:
        """Whether the coordinate of b along the axis that is summed over moves with x."""
        return load.coords[list(load.dims)[1 if op.transpose_b.value else 0]] in self.moving

    def split(self) -> None:
        with ir.InsertionPoint.after(self.place.operation), self.place.location:
            rank = tile_pair.CtaRankOp(out=ir.IndexType.get()).out
        halves: dict = {}  # (load, axis) -> this CTA's half of its tile
        for op in self.split_products:
            load, axis = op.b.owner.opview, 0 if op.transpose_b.value else 1
            if (load, axis) not in halves:
                halves[load, axis] = _half(load, axis, rank)
            op.operation.operands[1] = halves[load, axis]
            op.attributes["ctas"] = i64(2)
        for load in {load for load, _ in halves}:
            if not list(load.out.uses):
                load.operation.erase()


def _half(load, axis: int, rank):
    """A load of this CTA's half, along `axis` of the tile."""
    shape = list(load.out.type.shape)
    shape[axis] //= 2
    dim = list(load.dims)[axis]
    with ir.InsertionPoint(load), load.location:
        offset = arith.muli(rank, index_constant(shape[axis]))
        start = arith.addi(load.coords[dim], offset)
        new = load.operation.clone()
    new.operands[1 + dim] = start
    new.results[0].set_type(tile.tile_type(shape, load.out.type.element_type, "smem"))
    return new.results[0]


def _loops_around(op):
    parent = op.operation.parent
    while parent.name != "tile.kernel":
        if parent.name == "scf.for":
            yield parent
        parent = parent.parent
