"""Fold constant factors of the scores into `attn.softmax {scale}`, and into one another.

exp2 of scale * x - maximum is one fused multiply-add and one MUFU instruction, whatever the scale. So a constant that multiplies all scores
last, before masks and softmax, costs nothing as the softmax's scale, but one multiplication a score as a map of its own. Only positive
finite factors fold, since a maximum must stay a maximum and -inf stay -inf; and only where nothing else reads the scores on their way.

Inside any map, x * c1 * c2 becomes x * (c1 * c2), and x / c a multiplication. Products are rounded once, to f32.

Before:  %t = "attn.map"(%s) ({ ... %y = arith.mulf %x, %c : f32   "attn.yield"(%y) ... })      %c = arith.constant 0.0883883461 : f32
         %u = "attn.mask"(%t) ...     %p, %lse = "attn.softmax"(%u) : ...
After:   %u = "attn.mask"(%s) ...     %p, %lse = "attn.softmax"(%u) {scale = 0.0883883461 : f32} : ...
"""

import math

from ..ir.attn_signature import attn_functions
from ..ir.mlir import arith, ir
from ._tile_map import erase_unused
from .registry import register_pass

_MASKS = ("attn.mask", "attn.band_mask")
_SMALLEST_NORMAL, _LARGEST = 2.0**-126, 2.0**127


@register_pass("attn-fold-scale")
def attn_fold_scale(module: ir.Module) -> None:
    for function in attn_functions(module):
        operations = [op.operation for op in function.operation.regions[0].blocks[0].operations]
        for operation in operations:
            if operation.name == "attn.map":
                _merge_factors(operation.regions[0].blocks[0])
        for operation in operations:
            if operation.name == "attn.softmax":
                _fold_into(operation.opview)


def _fold_into(softmax) -> None:
    """Peel factors off the maps that feed a softmax, nearest first, as long as a map is nothing but factors."""
    while True:
        producer = _producer(softmax)
        scale = _peel(producer, softmax.scale.value) if producer is not None else None
        if scale is None:
            return
        softmax.operation.attributes["scale"] = ir.FloatAttr.get(ir.F32Type.get(), scale, loc=softmax.location)
        if not _drop_identity(producer):
            return


def _producer(softmax):
    """The map whose result only masks and then this softmax read, or None."""
    value = softmax.scores
    while len(list(value.uses)) == 1 and not isinstance(value.owner, ir.Block):
        if value.owner.name == "attn.map":
            return value.owner
        if value.owner.name not in _MASKS:
            return None
        value = value.owner.operands[0]
    return None


def _peel(operation, scale: float) -> float | None:
    """Take a positive factor off the end of a map's region; `scale` times it, or None where nothing was done."""
    block = operation.regions[0].blocks[0]
    terminator = list(block.operations)[-1].operation
    base, factor = split_factor(terminator.operands[0])
    if base is None or factor <= 0 or not is_representable(scale * factor):
        return None
    terminator.operands[0] = base
    erase_unused(block)
    return scale * factor


def _drop_identity(operation) -> bool:
    """Remove a map that yields an element as it came."""
    block = operation.regions[0].blocks[0]
    yielded = list(block.operations)[-1].operation.operands[0]
    elements = list(block.arguments)[: len(operation.operands)]
    if yielded not in elements:
        return False
    source = operation.operands[elements.index(yielded)]
    if source.type != operation.results[0].type:
        return False  # a row vector, spread over the columns
    operation.results[0].replace_all_uses_with(source)
    operation.erase()
    return True


def _merge_factors(block) -> None:
    for op in list(block.operations):
        operation = op.operation
        base, factor = split_factor(operation.results[0]) if len(operation.results) else (None, None)
        if base is None:
            continue
        inner, inner_factor = split_factor(base)
        if inner is not None and is_representable(factor * inner_factor):
            base, factor = inner, factor * inner_factor
        elif operation.name != "arith.divf":
            continue
        with ir.InsertionPoint(operation), operation.location:
            product = arith.mulf(base, arith.constant(ir.F32Type.get(), factor))
        operation.results[0].replace_all_uses_with(product)
        operation.erase()
    erase_unused(block)


def split_factor(value):
    """(x, c) where `value` is x times the constant c in f32, else (None, None)."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name not in ("arith.mulf", "arith.divf") or not isinstance(value.type, ir.F32Type):
        return None, None
    left, right = owner.operands
    if owner.name == "arith.divf":
        divisor = _constant(right)
        factor = 1 / divisor if divisor else None
        return (left, factor) if factor is not None and is_representable(factor) else (None, None)
    for base, other in ((left, right), (right, left)):
        factor = _constant(other)
        if factor is not None and is_representable(factor):
            return base, factor
    return None, None


def is_representable(factor: float) -> bool:
    """Whether a factor is a normal f32 number: anything else would not survive being merged."""
    return math.isfinite(factor) and _SMALLEST_NORMAL <= abs(factor) <= _LARGEST


def _constant(value) -> float | None:
    owner = value.owner
    return None if isinstance(owner, ir.Block) or owner.name != "arith.constant" else owner.attributes["value"].value
