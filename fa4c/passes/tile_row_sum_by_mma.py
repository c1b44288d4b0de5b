"""Let the tensor cores sum products of two 16-bit tiles over a row.

A backward's delta_i = sum_c dO_ic O_ic is subtracted from dP_ij = sum_c dO_ic V_jc. Where a row sees one key O_i is V_j, and the
difference, which is all that dS consists of there, is 0. In f32 it is 0 only if both sums are rounded alike: in the order of a tensor core,
which nothing else has. dK sums what is left over all rows (3108 of them: 6e-5 where dV was 100). So where the products are those of two
tiles in shared memory, a x b over a row is an element on the diagonal of a b^T, which an MMA sums in the steps of any other MMA over as
many columns. What the MMA adds beyond the diagonal is thrown away: 64 x 64 x d products for 64 x d, 256 clocks at d = 128 where the two
tiles take 1580 clocks to arrive from memory (H200), and no thread reads them element by element.

Products of 16-bit numbers are exact in f32, so only the order of the sum changes. Rows and columns must be whole steps of the target's MMA.

Before:  %x = "tile.from_shared"(%a)    %y = "tile.from_shared"(%b)
         %p = "tile.map"(%x, %y) ({ arith.mulf(extf, extf) })                      %s = "tile.reduce"(%p) {kind = "sum"}
After:   %c = "tile.mma"(%a, %b) {transpose_b = true}
         %p = "tile.map"(%c) ({ arith.select(row == column, %x, 0) })              %s = "tile.reduce"(%p) {kind = "sum"}

Run before tile-pipeline; behind tile-split-2cta, as nothing here is common to two CTAs; before tile-accumulate-in-tmem.
"""

from .. import targets
from ..ir import tile
from ..ir.mlir import arith, ir
from ..ir.tile import tile_type
from ._tile_map import emit_map, factors_in_shared, operations_in
from .registry import register_pass


@register_pass("tile-row-sum-by-mma")
def tile_row_sum_by_mma(module: ir.Module) -> None:
    mma = targets.of(module).mma
    for op in operations_in(module):
        if isinstance(op, tile.ReduceOp) and op.kind.value == "sum" and op.init is None and op.out.type.rank == 1:
            factors = factors_in_shared(op.x)
            if factors and _is_whole_mma(factors[0].type, mma):
                _sum_by_mma(op, *factors)


def _is_whole_mma(kind, mma) -> bool:
    rows, columns = kind.shape
    return rows % mma.m == 0 and rows % mma.n_step == 0 and rows <= mma.n_max and columns % mma.k == 0


def _sum_by_mma(op, a, b) -> None:
    rows = a.type.shape[0]
    square = tile_type([rows, rows], op.x.type.element_type, "reg")
    with ir.InsertionPoint(op), op.location:
        whole = tile.MmaOp(a=a, b=b, acc=None, transpose_b=ir.BoolAttr.get(True), out=square).out
        diagonal = emit_map([whole], square, _where_row_is_column)
    product = op.x.owner
    op.operation.operands[0] = diagonal
    for operation in (product, *[value.owner for value in product.operands]):
        if not list(operation.results[0].uses):
            operation.erase()


def _where_row_is_column(x, row, column):
    same = arith.cmpi(arith.CmpIPredicate.eq, row, column)
    return arith.select(same, x, arith.constant(x.type, 0.0))
