"""Operations of the `tile` dialect for CTAs that work together: their place in the cluster, and tiles that a pair exchanges.

Two CTAs whose numbers differ in the last bit of their place in the cluster are a pair. They form products together (`tile.mma` with
`ctas = 2`), and reach each other's shared memory only by the operations here.
"""

from typing import Any

from .base import optional
from .diagnostics import op_error
from .mlir import ext, ir
from .tile import Operation, Scheduled, cluster_around, goes_to_shared


class CtaRankOp(Operation, name="cta_rank", traits=[ext.Pure]):
    """out = this CTA's number in its cluster, 0 to `cluster` - 1."""

    out: ext.Result[ir.IndexType]

    def verify_op(self) -> bool:
        return cluster_around(self) != 1 or op_error(
            self, "asks for a place in a cluster, but no CTAs run together", fix="give its tile.kernel a cluster"
        )


class ExchangeOp(Scheduled, name="exchange"):
    """out = this CTA's half of x along `axis`, of both CTAs of the pair: what the first one holds comes before what the second one holds,
    along the other axis.

    CTA r of the pair keeps half r of its tile and sends the other half to its peer, through distributed shared memory. A tile of dS that
    holds all queries and this CTA's keys becomes half of the queries and the keys of both. In a loop the result lives in one of `buffers`
    rotating copies.
    """

    x: ext.Operand[Any]
    axis: ir.IntegerAttr
    buffers: Any = optional(ir.IntegerAttr, "1 : i64")
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        if not goes_to_shared(self):
            return False
        axis, shape = self.axis.value, list(self.x.type.shape)
        if axis not in (0, 1) or shape[axis] % 2:
            return op_error(self, f"halves {self.x.type} along axis {axis}", why="it splits rows (0) or columns (1), an even number")
        shape[axis], shape[1 - axis] = shape[axis] // 2, 2 * shape[1 - axis]
        if list(self.out.type.shape) != shape or self.out.type.element_type != self.x.type.element_type:
            return op_error(self, f"gives {self.out.type}, but makes {shape[0]}x{shape[1]}x{self.x.type.element_type} of {self.x.type}")
        return cluster_around(self) == 2 or op_error(
            self, "exchanges with a peer, but no pairs of CTAs run", fix="give its tile.kernel cluster = 2"
        )


def pairs(op) -> bool:
    """Whether an operation is done by both CTAs of a pair together."""
    return isinstance(op, ExchangeOp) or (op.operation.name == "tile.mma" and op.ctas.value == 2)
