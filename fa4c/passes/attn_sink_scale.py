"""Move a constant factor of scores behind the GEMMs that sum over them.

A backward multiplies every dS by the softmax's scale, in the loop over blocks, and then uses it in GEMMs only: dQ = (scale dS) K. A GEMM is
linear, so the factor may as well be that of its result, which has head-dim columns instead of one for each key, and is there once, after
the loop (a sum that several CTAs contribute to is multiplied when it is cast). That saves one of seven instructions of a score.

The constants of a map's last product sink where they make a normal number, and every reader of the map is a GEMM whose result is no score,
or a cast that only such GEMMs read. Between map and GEMM numbers are then rounded without the factor: another exponent, the same relative
error.

Before:  %ds = "attn.map"(%dp, %delta, %p) ({ ... %y = arith.mulf %x, %scale   "attn.yield"(%y) ... })
         %dsc = "attn.cast"(%ds)     %dk = "attn.gemm"(%dsc, %q) {transpose_a = true}
After:   %ds = "attn.map"(%dp, %delta, %p) ({ ... "attn.yield"(%x) ... })
         %dsc = "attn.cast"(%ds)     %g = "attn.gemm"(%dsc, %q) {transpose_a = true}
         %dk = "attn.map"(%g) ({ ... %y = arith.mulf %x, %scale ... })

Run after attn-derive-backward, before attn-outline-kernels.
"""

from ..ir.attn import MapOp, YieldOp
from ..ir.attn_signature import attn_functions
from ..ir.mlir import arith, ir
from ._tile_map import erase_unused
from .attn_fold_scale import is_representable, split_factor
from .registry import register_pass


@register_pass("attn-sink-scale")
def attn_sink_scale(module: ir.Module) -> None:
    for function in attn_functions(module):
        for op in list(function.operation.regions[0].blocks[0].operations):
            if op.operation.name == "attn.map" and _is_score(op.operation.results[0]):
                _sink(op.operation)


def _sink(operation) -> None:
    gemms = _gemms_that_read(operation.results[0])
    block = operation.regions[0].blocks[0]
    terminator = list(block.operations)[-1].operation
    base, factor = _without_constants(terminator.operands[0]) if gemms else (None, 1.0)
    if factor == 1.0 or not is_representable(factor):
        return
    terminator.operands[0] = base
    erase_unused(block)
    for gemm in gemms:
        _multiply(gemm.results[0], factor)


def _without_constants(value) -> tuple:
    """(x, c) where a product is x times its constants c. All of them: between map and GEMM dS is in 16 bits, and of a soft cap's
    cap * (1 - t^2) * (scale / cap) the cap alone would carry dS past fp16's 65504."""
    factor = 1.0
    while True:
        base, constant = split_factor(value)
        if base is None:
            break
        value, factor = base, factor * constant
    owner = value.owner
    if not isinstance(owner, ir.Block) and owner.name == "arith.mulf":
        for number, operand in enumerate(list(owner.operands)):
            if len(list(operand.uses)) == 1:
                owner.operands[number], inner = _without_constants(operand)
                factor *= inner
    return value, factor


def _gemms_that_read(value) -> list:
    """All readers, once for each time they read it; none if some reader is no such GEMM."""
    found = []
    for use in value.uses:
        owner = use.owner
        if owner.name == "attn.cast":
            inner = _gemms_that_read(owner.results[0])
        else:
            inner = [owner] if owner.name == "attn.gemm" and not _is_score(owner.results[0]) else []
        if not inner:
            return []
        found += inner
    return found


def _is_score(value) -> bool:
    """Whether both dimensions are lengths of the problem."""
    return value.type.rank == 2 and all(map(value.type.is_dynamic_dim, range(2)))


def _multiply(value, factor: float) -> None:
    """All readers of `value` read `factor` times it."""
    readers = [(use.owner, use.operand_number) for use in value.uses]
    operation = value.owner
    with ir.InsertionPoint.after(operation), operation.location:
        new = MapOp(inputs=[value], out=value.type)
        index = ir.IndexType.get()
        kinds = [value.type.element_type, index, index, index, index]
        block = new.body.blocks.append(*kinds, arg_locs=[operation.location] * len(kinds))
        with ir.InsertionPoint(block):
            YieldOp(values=[arith.mulf(block.arguments[0], arith.constant(ir.F32Type.get(), factor))])
    for owner, number in readers:
        owner.operands[number] = new.out
