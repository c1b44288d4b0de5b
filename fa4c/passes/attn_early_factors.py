"""Multiply the factors of dS that are there first: one value over the scores waits for dP, not several.

dS = P (dP - delta) (1 - t^2) of a soft cap t reads t and P, made of S, and dP. Until dP has come both are held, 256 of a thread's 255
registers where it has a row of 128 scores. P (1 - t^2) is one value, and can take the place of t: as many multiplications, and as exact.

Factors of a map's product go into a map of their own where they come from the same GEMMs, read two values over the scores or more, and
other factors come from other GEMMs. The GEMM that they do not need moves down to its first reader. Where a mask hides elements of what one
factor reads, and another one is 0 there (P), the masked value is read, so that it is held once: a factor that is infinite there is
limited to finite numbers, which 0 makes 0; where it is not known what it is, the product is chosen to be 0 where that other factor is.

Before:  %u = "attn.mask"(%t)     %p = "attn.map"(%u, %lse)     %dp = "attn.gemm"(%do, %v)
         %ds = "attn.map"(%t, %dp, %delta, %p) ({ p (dp - delta) (1 - t t) })
After:   %u = "attn.mask"(%t)     %p = "attn.map"(%u, %lse)     %w = "attn.map"(%u, %p) ({ p max(1 - u u, -3.4e38) })
         %dp = "attn.gemm"(%do, %v)     %ds = "attn.map"(%dp, %delta, %w) ({ (dp - delta) w })

Run before attn-split-backward, which counts what is held, and behind attn-sink-scale, which takes constant factors out.
"""

from __future__ import annotations

import functools
import math

from ..ir.attn import MapOp, YieldOp
from ..ir.attn_signature import attn_functions
from ..ir.mlir import arith, ir
from ._attn_to_tile_regions import constant_result, constant_value, inlined
from ._infinities import never
from .registry import register_pass

_MASKS = ("attn.mask", "attn.band_mask")
_LARGEST = float.fromhex("0x1.fffffep+127")  # of f32


@register_pass("attn-early-factors", counts_on=("tile-join-maps",))  # P and P (1 - t^2) fit as one map of two results
def attn_early_factors(module: ir.Module) -> None:
    for function in attn_functions(module):
        for op in list(function.operation.regions[0].blocks[0].operations):
            if isinstance(op, MapOp) and _is_score(op.out) and isinstance(op.out.type.element_type, ir.F32Type) and _is_flat(op):
                _group(op)


def _is_flat(op) -> bool:
    return not any(len(inner.operation.regions) for inner in op.body.blocks[0].operations)


def _group(op) -> None:
    """Of a map's factors the first ones that are made of the same GEMMs, read several values over m x n, and wait for others."""
    factors = _factors(list(op.body.blocks[0].operations)[-1].operation.operands[0])
    made_of = {factor: frozenset().union(*(_gemms(value) for value in _scores_read(op, factor))) for factor in factors}
    for gemms in dict.fromkeys(made_of.values()):
        early = [factor for factor in factors if made_of[factor] == gemms]
        read = list(dict.fromkeys(value for factor in early for value in _scores_read(op, factor)))
        if gemms and len(early) > 1 and len(read) > 1 and len(early) < len(factors):
            _multiply_early(op, early, [factor for factor in factors if factor not in early], read)
            return


def _factors(value) -> list:
    """What a region's value is the product of, with no other reader on the way."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.mulf" or len(list(value.uses)) != 1:
        return [value]
    return [factor for operand in owner.operands for factor in _factors(operand)]


def _arguments(op, value) -> list:
    """Numbers of the arguments of a map's region that a value is made of; none for what is captured."""
    block = op.body.blocks[0]
    if isinstance(value.owner, ir.Block):
        return [value.arg_number] if value.owner == block else []
    if value.owner.operation.block != block:
        return []
    return sorted({number for operand in value.owner.operands for number in _arguments(op, operand)})


def _scores_read(op, value) -> list:
    inputs = list(op.inputs)
    return [inputs[n] for n in _arguments(op, value) if n < len(inputs) and _is_score(inputs[n])]


def _is_score(value) -> bool:
    return value.type.rank == 2 and all(map(value.type.is_dynamic_dim, range(2)))


def _gemms(value) -> frozenset:
    """The GEMMs over m x n that a value over m x n is made of element by element."""
    if isinstance(value.owner, ir.Block) or not _is_score(value):
        return frozenset()
    if value.owner.name == "attn.gemm":
        return frozenset([value])
    return frozenset().union(*map(_gemms, value.owner.operands))


def _multiply_early(op, early: list, late: list, read: list) -> None:
    """`early`, made of the values `read` over m x n, become a map behind what they read; that times `late` replaces `op`."""
    block = op.body.blocks[0]
    masked, zero = _masked(op, early, read)
    if zero is not None:  # first: limits of two factors would be infinite before 0 meets them
        early = [zero, *(factor for factor in early if factor != zero)]
    inputs = [masked.get(value, value) for value in op.inputs]
    where_hidden = [_where_hidden(op, factor, masked) for factor in early]

    def early_product(mapping):
        values = inlined(block, early, mapping)
        if None not in where_hidden:
            return _product(list(map(_limited, values, where_hidden)))
        product, nothing = _product(values), arith.constant(ir.F32Type.get(), 0.0)
        return arith.select(arith.cmpf(arith.CmpFPredicate.OEQ, mapping[zero], nothing), nothing, product)

    first, rest = _read_by(op, early), _read_by(op, late)
    made = [inputs[n].owner for n in first if not isinstance(inputs[n].owner, ir.Block)]
    with ir.InsertionPoint.after(max(made, key=_position)), op.location:
        new = _map(op, first, [inputs[n] for n in first], early_product)
    with ir.InsertionPoint(op), op.location:
        late_inputs = [op.inputs[n] for n in rest]
        whole = _map(op, rest, [*late_inputs, new], lambda mapping, product: _product([*inlined(block, late, mapping), product]))
    op.out.replace_all_uses_with(whole)
    op.operation.erase()
    for gemm in frozenset().union(*map(_gemms, late_inputs)) - _gemms(new):
        gemm.owner.operation.move_before(min((use.owner for use in gemm.uses), key=_position).operation)


def _where_hidden(op, factor, masked: dict) -> float | None:
    """What a factor is where masks hide what it reads, None if that is not known; 0, which is finite, if it reads nothing masked."""
    block = op.body.blocks[0]
    hidden = {argument: -math.inf for argument, value in zip(block.arguments, op.inputs, strict=False) if value in masked}
    reads = {list(block.arguments)[n] for n in _arguments(op, factor)}
    return constant_value(block, factor, hidden) if reads.intersection(hidden) else 0.0


def _product(values: list):
    return functools.reduce(arith.mulf, values)


def _limited(value, where_hidden: float):
    """A factor that is infinite where masks hide, as a finite number: the product with 0 is 0."""
    if not math.isinf(where_hidden):
        return value
    bound = arith.constant(ir.F32Type.get(), math.copysign(_LARGEST, where_hidden))
    return arith.maximumf(value, bound) if where_hidden < 0 else arith.minimumf(value, bound)


def _position(operation) -> int:
    return [op.operation for op in operation.operation.block.operations].index(operation.operation)


def _read_by(op, values) -> list[int]:
    """Inputs of a map that values of its region are made of."""
    return sorted({n for value in values for n in _arguments(op, value) if n < len(op.inputs)})


def _map(op, numbers: list, inputs: list, body):
    """A map over the space of `op`, of its inputs `numbers` or what stands for them, and further ones. `body(mapping, *elements)` makes the
    region: `mapping` says what arguments of the region of `op` have become, `elements` are of the further inputs."""
    arguments = list(op.body.blocks[0].arguments)
    indices = arguments[len(op.inputs) :]
    new = MapOp(inputs=inputs, out=op.out.type)
    kinds = [*(value.type.element_type for value in inputs), *(index.type for index in indices)]
    own = list(new.body.blocks.append(*kinds, arg_locs=[op.location] * len(kinds)).arguments)
    mapping = dict(zip([*(arguments[n] for n in numbers), *indices], [*own[: len(numbers)], *own[len(inputs) :]], strict=True))
    with ir.InsertionPoint(new.body.blocks[0]):
        YieldOp(values=[body(mapping, *own[len(numbers) : len(inputs)])])
    return new.out


def _masked(op, early: list, read: list) -> tuple[dict, object]:
    """(value that a factor reads -> the same behind masks, the factor that is 0 where they hide); nothing where no factor is."""
    inputs = list(op.inputs)
    for factor in early:
        zero = inputs[factor.arg_number] if isinstance(factor.owner, ir.Block) and factor.arg_number < len(inputs) else None
        if zero is None or isinstance(zero.owner, ir.Block) or zero.owner.name != "attn.map":
            continue
        block = zero.owner.regions[0].blocks[0]
        never_is = {argument: never(value) for argument, value in zip(block.arguments, zero.owner.operands, strict=False)}
        for argument, hidden in zip(block.arguments, zero.owner.operands, strict=False):
            source = _behind_masks(hidden)
            if source != hidden and source in read and constant_result(block, {argument: -math.inf}, never_is) == 0:
                return {source: hidden}, factor
    return {}, None


def _behind_masks(value):
    """What masks make a value of."""
    while not isinstance(value.owner, ir.Block) and value.owner.name in _MASKS:
        value = value.owner.operands[0]
    return value
