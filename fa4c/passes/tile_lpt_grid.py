"""Start the longest tiles first, in groups of heads whose keys and values fit the L2 cache.

Under a causal mask the last queries see the most keys, and the first keys are seen by the most queries. If their CTAs start first, the
short ones fill the gaps at the end (longest processing time first). And CTAs that run at the same time should read the same K and V: so
`section` heads at a time, section being the largest power of two of which all that the loop reads, and adds to, fits L2; all their row
blocks, then the next section. Inside a section the heads run fastest, then the row blocks from the longest to the shortest.

It applies where a kernel has a loop whose trip count grows or falls with `program_id` x, which is found by following the arithmetic from
one to the other; where CTAs wait for those of smaller x (`tile.wait_count`) only if x ascends then. And it applies where a loop of as
many trips for all x adds to global memory: x ascends, but with the heads of a section running fastest, fewer CTAs of one head add to the
same rows, or wait for each other, at a time (H200, head dim 128, full, 4k, in turns: 445 TFLOP/s without it, 510 with it). Other kernels
stay as they are.

The grid becomes one-dimensional, and the kernel divides its number back into (row block, head, batch entry). The section is
computed on the host in 64 bits: keys times head dims times bytes exceed 32 bits from 2**21 keys on. A section never counts more heads than
there are, so all numbers in the kernel stay below the size of the grid.

Before:  "tile.launch"(%row_blocks, %heads, %batch, ...)       %x, %y, %z = "tile.program_id"()
After:   "tile.launch"(%all, %c1, %c1, ..., %row_blocks, %heads, %pairs, %section)
         %id, %_, %_ = "tile.program_id"()    %s = arith.floordivsi %id, (section * row blocks)    ...
"""

from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import arith, index_constant, ir
from ..ir.tile import DeviceOp, DimOp, GlobalAddOp, KernelOp, LaunchOp, LoadOp, Pow2FloorOp, ProgramIdOp, WaitCountOp
from ._tile_map import dim_of, operations_in
from .loop_nest import constant
from .registry import register_pass

_CONSTANT, _GROWS, _FALLS = "constant", "grows", "falls"  # with program_id x; None: not known
_OPPOSITE = {_CONSTANT: _CONSTANT, _GROWS: _FALLS, _FALLS: _GROWS}


@register_pass("tile-lpt-grid")
def tile_lpt_grid(module: ir.Module) -> None:
    operations = operations_in(module)
    kernels = {op.sym_name.value: op for op in operations if isinstance(op, KernelOp)}
    for launch in [op for op in operations if isinstance(op, LaunchOp)]:
        kernel = kernels.get(launch.kernel.value)
        if kernel is None:
            raise op_diagnostic(
                launch,
                f"launches {launch.kernel}, which is not in the module",
                why="its tiles cannot be ordered",
                fix="name a tile.kernel of this module",
            )
        place = next((op for op in operations_in(kernel) if isinstance(op, ProgramIdOp)), None)
        if place is None or kernel.cluster.value > 1:
            continue  # CTAs of a cluster are neighbours along x; heads would come between them
        loop, trend = _loop_to_order(kernel, place)
        if loop is not None:
            _rewrite_kernel(kernel, place, trend)
            _rewrite_launch(launch, kernel, loop)


# -- does the trip count grow with x? --------------------------------------------------------------------


def _loop_to_order(kernel, place):
    """A block loop, and how its trip count is taken to change with x: x ascends if it falls."""
    loop, trend = _uneven_loop(kernel, place)
    if loop is not None:
        ascending = trend == _FALLS or not any(isinstance(op, WaitCountOp) for op in operations_in(kernel))
        return (loop, trend) if ascending else (None, None)
    if not any(list(result.uses) for result in (place.y, place.z)):
        return None, None  # one head, or a grid that runs through them already
    adding = (op for op in operations_in(kernel) if op.operation.name == "scf.for" and _adds(op))
    return next(adding, None), _FALLS


def _adds(loop) -> bool:
    return any(isinstance(op, GlobalAddOp) for op in operations_in(loop))


def _uneven_loop(kernel, place):
    """The first loop whose trip count grows or falls with x, and which of both; or (None, None)."""
    for op in operations_in(kernel):
        if op.operation.name == "scf.for":
            lower, upper, step = list(op.operation.operands)[:3]
            trend = _sum(_trend(upper, place), _negated(_trend(lower, place)))
            if trend in (_GROWS, _FALLS) and constant(step) is not None:
                return op, trend
    return None, None


def _trend(value, place) -> str | None:
    """How a scalar changes with x."""
    if isinstance(value.owner, ir.Block):
        return _CONSTANT if isinstance(value.owner.owner.opview, KernelOp) else None
    operation = value.owner
    if operation == place.operation:
        return _GROWS if value == place.x else _CONSTANT
    if operation.regions:
        return None
    trends = [_trend(operand, place) for operand in operation.operands]
    if all(trend == _CONSTANT for trend in trends):
        return _CONSTANT
    rule = _TRENDS.get(operation.name)
    return rule(operation, *trends) if rule is not None else None


def _negated(trend):
    return _OPPOSITE.get(trend)


def _sum(a, b):
    """The trend of a sum, and of any function that grows with both."""
    if a is None or b is None or {a, b} == {_GROWS, _FALLS}:
        return None
    return b if a == _CONSTANT else a


def _product(operation, a, b):
    """x * c and c * x for c >= 0."""
    for trend, factor, value in ((a, b, operation.operands[1]), (b, a, operation.operands[0])):
        if factor == _CONSTANT and _never_negative(value):
            return trend
    return None


def _quotient(operation, a, b):
    """x / c for a constant c > 0."""
    divisor = constant(operation.operands[1])
    return a if divisor is not None and divisor > 0 else None


def _never_negative(value) -> bool:
    """Constants, sizes, and quotients of those."""
    if (constant(value) or 0) > 0 or (not isinstance(value.owner, ir.Block) and isinstance(value.owner.opview, DimOp)):
        return True
    quotient = not isinstance(value.owner, ir.Block) and value.owner.name == "arith.floordivsi"
    return quotient and all(_never_negative(operand) for operand in value.owner.operands)


_TRENDS = {
    "arith.addi": lambda op, a, b: _sum(a, b),
    "arith.subi": lambda op, a, b: _sum(a, _negated(b)),
    "arith.maxsi": lambda op, a, b: _sum(a, b),
    "arith.minsi": lambda op, a, b: _sum(a, b),
    "arith.index_cast": lambda op, a: a,
    "arith.select": lambda op, condition, a, b: _sum(a, b) if condition == _CONSTANT else None,
    "arith.muli": _product,
    "arith.divsi": _quotient,
    "arith.floordivsi": _quotient,
    "arith.ceildivsi": _quotient,
}


# -- kernel: number -> place -----------------------------------------------------------------------------


def _rewrite_kernel(kernel, place, trend: str) -> None:
    """Four more scalars (row blocks, heads, heads times batch entries, section), and the CTA's number divided by them."""
    index = ir.IndexType.get()
    blocks, heads, pairs, section = (kernel.body.blocks[0].add_argument(index, kernel.location) for _ in range(4))
    old = list(place.operation.results)
    with ir.InsertionPoint(place), place.location:
        number = ProgramIdOp(x=index, y=index, z=index).x
        whole_section = arith.muli(section, blocks)
        which, rest = _divide(number, whole_section)
        first = arith.muli(which, section)
        width = arith.minsi(section, arith.subi(pairs, first))  # the last section may be smaller
        step, offset = _divide(rest, width)
        row_block = step if trend == _FALLS else arith.subi(arith.subi(blocks, index_constant(1)), step)
        batch, head = _divide(arith.addi(first, offset), heads)
    for result, new in zip(old, (row_block, head, batch), strict=True):
        result.replace_all_uses_with(new)
    place.operation.erase()


def _divide(a, b):
    quotient = arith.floordivsi(a, b)
    return quotient, arith.subi(a, arith.muli(quotient, b))


# -- host: section and grid ------------------------------------------------------------------------------


def _rewrite_launch(launch, kernel, loop) -> None:
    index = ir.IndexType.get()
    blocks, heads, batch = launch.grid
    with ir.InsertionPoint(launch), launch.location:
        one = index_constant(1)
        pairs = arith.muli(heads, batch)
        l2 = DeviceOp(prop=ir.StringAttr.get("l2_bytes"), out=index).out
        fitting = arith.floordivsi(l2, arith.maxsi(_bytes_of_a_head(launch, kernel, loop), one))
        section = arith.minsi(Pow2FloorOp(x=arith.maxsi(fitting, one), out=index).out, arith.maxsi(pairs, one))
        LaunchOp(
            kernel=launch.kernel,
            grid=[arith.muli(blocks, pairs), one, one],
            tensors=list(launch.tensors),
            scalars=[*launch.scalars, blocks, heads, pairs, section],
        )
    launch.operation.erase()


def _bytes_of_a_head(launch, kernel, loop):
    """What the loop loads, and adds to, of one head: all rows of each tensor, times the bytes of one."""
    arguments = list(kernel.body.blocks[0].arguments)
    moved = {op: op.source if isinstance(op, LoadOp) else op.target for op in operations_in(loop) if isinstance(op, (LoadOp, GlobalAddOp))}
    tensors = dict.fromkeys((launch.tensors[arguments.index(tensor)], *op.dims) for op, tensor in moved.items())  # in the text's order
    total = None
    for tensor, *dims in tensors:
        product = index_constant(tensor.type.element_type.width // 8)
        for axis in reversed(dims):
            product = arith.muli(_size(tensor, axis), product)
        total = product if total is None else arith.addi(total, product)
    return index_constant(0) if total is None else total


def _size(tensor, axis: int):
    if tensor.type.is_dynamic_dim(axis):
        return dim_of(tensor, axis)
    return index_constant(tensor.type.get_dim_size(axis))
