"""Host-side index arithmetic as the manifest's integer expressions."""

from ..ir import tile
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import ir

_OPS = {
    "arith.addi": "add",
    "arith.subi": "sub",
    "arith.muli": "mul",
    "arith.floordivsi": "floordiv",
    "arith.divsi": "floordiv",
    "arith.ceildivsi": "ceildiv",
    "arith.remsi": "mod",
    "arith.minsi": "min",
    "arith.maxsi": "max",
    "arith.select": "select",
    "arith.andi": "and",
    "arith.ori": "or",
    "tile.pow2_floor": "pow2floor",
}
_PREDICATES = {0: "eq", 1: "ne", 2: "lt", 3: "le", 4: "gt", 5: "ge"}


def index_expression(value, host):
    """The IEXPR (manifest schema) of a scalar of the host region. Sizes are not negative, so division of either rounding is floordiv."""
    op = value.owner
    if isinstance(op, ir.Block):
        raise op_diagnostic(host, "passes a region argument as a scalar", why="only sizes and arithmetic on them are scalars")
    view = op.opview
    operands = [index_expression(v, host) for v in op.operands] if not isinstance(view, tile.DimOp) else []
    if isinstance(view, tile.DimOp):
        if not view.tensor.type.is_dynamic_dim(view.axis.value):
            return view.tensor.type.shape[view.axis.value]
        number = list(host.body.blocks[0].arguments).index(view.tensor)
        return host.tensors[number]["dims"][view.axis.value].value
    if isinstance(view, tile.DeviceOp):
        return view.prop.value
    if op.name == "arith.constant":
        return int(op.attributes["value"].value)
    if op.name == "arith.cmpi" and op.attributes["predicate"].value in _PREDICATES:
        return [_PREDICATES[op.attributes["predicate"].value], *operands]
    if op.name in _OPS:
        return [_OPS[op.name], *operands]
    raise op_diagnostic(
        view,
        "cannot be computed by the launcher",
        why="the manifest's integer expressions have no such operation",
        fix=f"use one of: {', '.join(sorted(_OPS))}",
    )
