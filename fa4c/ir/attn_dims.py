"""Which dimensions and which axes each value of an attn function has.

Types say sizes only, and `?x?` may be queries by keys or keys by queries. Both facts follow from the arguments: a GEMM's result has the
rows' dimension of one operand and the columns' of the other; a value varies over an axis if an operand does, or if its region reads the
batch or head index or a captured tensor with that axis.
"""

from .attn_checks import REGION_OPS, reduced_dim, stray_attribute
from .attn_signature import FunctionFacts
from .diagnostics import op_diagnostic
from .mlir import ir


def infer_dims(func_op, facts: FunctionFacts) -> dict:
    """value -> (dims, axes), tuples of names, for every tensor of the function. Raises `Diagnostic` where dimensions do not fit."""
    block = func_op.operation.regions[0].blocks[0]
    known = {argument: (tensor.dims, tensor.axes) for argument, tensor in zip(block.arguments, facts.args, strict=True)}
    for op in block.operations:
        operation = op.operation
        if operation.name == "func.return":
            _check_results(operation, facts, known)
        elif operation.name in _RULES:
            operands = [known[value] for value in operation.operands]
            dims = _RULES[operation.name](op, [dims for dims, _ in operands])
            axes = union([axes for _, axes in operands] + [_region_axes(operation, known)])
            for result, result_dims in zip(operation.results, dims, strict=True):
                known[result] = (result_dims, axes)
        else:
            _check_scalar(operation)
    return known


def _check_scalar(operation) -> None:
    """Scalars may stand at function level, where canonicalisation puts constants."""
    why = "it holds attn operations, scalar arith and math, and a return"
    if operation.name != "attn.size" and not (operation.name in REGION_OPS and operation.name.startswith(("arith.", "math."))):
        raise op_diagnostic(operation, "cannot stand in an attn function", why=why)
    if any(isinstance(result.type, ir.ShapedType) for result in operation.results):
        raise op_diagnostic(
            operation, f"gives {operation.results[0].type} at function level", why=why, fix='put it into the region of an "attn.map"'
        )
    stray = stray_attribute(operation)
    if stray is not None:
        raise op_diagnostic(operation, f"has no attribute '{stray[0]}'", fix=stray[1])


def _gemm(op, operands):
    a, b = operands
    rows, depth_a = (a[1], a[0]) if op.transpose_a.value else a
    depth_b, columns = (b[1], b[0]) if op.transpose_b.value else b
    if depth_a != depth_b:
        raise op_diagnostic(
            op,
            f"sums over dimension {depth_a} of a but {depth_b} of b",
            why=f"op(a) is {rows} x {depth_a}, op(b) is {depth_b} x {columns}",
            fix="set transpose_a or transpose_b, or correct attn.dims",
        )
    return [(rows, columns)]


def _map(op, operands):
    rank = max(len(dims) for dims in operands)
    space = next(dims for dims in operands if len(dims) == rank)
    for number, dims in enumerate(operands):
        if (dims != space) if len(dims) == rank else not set(dims) <= set(space):
            raise op_diagnostic(
                op,
                f"maps over {' x '.join(space)}, but input {number} has {' x '.join(dims)}",
                why="a vector is spread over a dimension of the space; matrices have it as it is",
            )
    return [space]


def _scatter(op, operands):
    _map(op, operands[1:])
    return [operands[0]]


def _softmax(op, operands):
    return [operands[0], operands[0][:1]]


def _reduce(op, operands):
    dim = reduced_dim(op.operation.opview)
    return [operands[0][:dim] + operands[0][dim + 1 :]]


def _same(op, operands):
    return [operands[0]]


_RULES = {
    "attn.gemm": _gemm,
    "attn.map": _map,
    "attn.scatter": _scatter,
    "attn.mask": _same,
    "attn.band_mask": _same,
    "attn.softmax": _softmax,
    "attn.cast": _same,
    "attn.reduce": _reduce,
}


def union(axes_lists) -> tuple[str, ...]:
    """Axes of a value made from several; a head axis of queries is finer than one of keys."""
    axes = {axis for axes in axes_lists for axis in axes}
    return tuple(a for a in ("b", "hq", "hkv") if a in axes and not (a == "hkv" and "hq" in axes))


def _region_axes(operation, known) -> tuple[str, ...]:
    axes = set()
    indices = {"attn.map": len(operation.operands), "attn.scatter": len(operation.operands) - 1}.get(operation.name, 0)
    for region in operation.regions:
        arguments = region.blocks[0].arguments
        for axis, argument in (("b", arguments[indices]), ("hq", arguments[indices + 1])):
            if any(True for _ in argument.uses):
                axes.add(axis)
        axes.update(axis for load in loads_in(region) for axis in known[load.operands[0]][1])
    return tuple(axes)


def loads_in(region) -> list:
    """All `attn.load` operations in a region, nested ones too."""
    found = []
    for block in region.blocks:
        for op in block.operations:
            if op.operation.name == "attn.load":
                found.append(op.operation)
            for inner in op.operation.regions:
                found += loads_in(inner)
    return found


def _check_results(operation, facts: FunctionFacts, known) -> None:
    for number, (value, result) in enumerate(zip(operation.operands, facts.results, strict=True)):
        dims, axes = known[value]
        if dims != result.dims:
            raise op_diagnostic(
                operation,
                f"returns {' x '.join(dims)} as '{result.name}', which has attn.dims = {list(result.dims)}",
                why=f"result {number} must have the dimensions that its operations give it",
                fix=f"write attn.dims = {list(dims)}",
            )
