"""Turn e**(c x - v) over m x n into 2**(c' x + v'), v' a vector that is computed once.

The special-function unit computes 2**x, so e**x costs a multiplication by log2(e) first. Where the exponent is a sum, the factor goes into
its terms: into constants that are there already, and into row or column vectors, which become vectors of their own, m or n numbers instead
of m x n. The recomputed P = e**(scale * S - LSE) of a backward is then one fused multiply-add and one exponential a score.

Before:  %p = "attn.map"(%s, %lse) ({ ... %y = arith.mulf %x, %c   %z = arith.subf %y, %l   %e = math.exp %z ... })
After:   %v = "attn.map"(%lse) ({ ... arith.mulf %l, -log2(e) ... })
         %p = "attn.map"(%s, %v) ({ ... %y = arith.mulf %x, c * log2(e)   %z = arith.addf %y, %w   %e = math.exp2 %z ... })

Products of constants are rounded once, to f32. Runs before `attn-outline-kernels`, which then puts the vectors into the preprocess kernel.
"""

import math

from ..ir.attn import MapOp, YieldOp
from ..ir.attn_signature import attn_functions
from ..ir.mlir import arith, ir
from ..ir.mlir import math as math_ops
from ._infinities import constant_of
from ._tile_map import erase_unused
from .registry import register_pass

_LOG2_E = math.log2(math.e)


@register_pass("attn-exp-to-exp2")
def attn_exp_to_exp2(module: ir.Module) -> None:
    for function in attn_functions(module):
        scaled: dict = {}  # (vector, factor) -> the product: of maps that compute one P, each for itself
        for op in list(function.operation.regions[0].blocks[0].operations):
            if isinstance(op, MapOp) and op.out.type.rank == 2:
                _rewrite(op, scaled)


def _rewrite(op, scaled: dict) -> None:
    for inner in list(op.body.blocks[0].operations):
        if inner.operation.name == "math.exp" and isinstance(inner.operation.results[0].type, ir.F32Type):
            _rewrite_exponential(op, inner.operation, scaled)


def _rewrite_exponential(op, exponential, scaled: dict) -> None:
    total = None
    for factor, leaf in _terms(exponential.operands[0], 1.0):
        number = _own_vector(op, leaf)
        with ir.InsertionPoint(exponential), exponential.location:
            if number is not None:
                key = op.inputs[number], factor * _LOG2_E
                if key not in scaled:
                    scaled[key] = _scaled(op, *key)
                op.operation.operands[number] = scaled[key]
                term = leaf
            else:
                term = arith.mulf(leaf, arith.constant(ir.F32Type.get(), factor * _LOG2_E))
            total = term if total is None else arith.addf(total, term)
    with ir.InsertionPoint(exponential), exponential.location:
        power = math_ops.exp2(total)
    exponential.results[0].replace_all_uses_with(power)
    exponential.erase()
    erase_unused(op.body.blocks[0])


def _own_vector(op, leaf) -> int | None:
    """Which input a term is the element of, if that is a vector and nothing else in the region reads it."""
    for number, (argument, value) in enumerate(zip(op.body.blocks[0].arguments, op.inputs, strict=False)):
        if leaf == argument and value.type.rank == 1 and len(list(argument.uses)) == 1:
            return number if isinstance(value.type.element_type, ir.F32Type) else None
    return None


def _terms(value, factor: float) -> list:
    """[(factor, leaf)]: `value` times `factor` as a sum."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return [(factor, value)]
    operands = list(owner.operands)
    if owner.name == "arith.negf":
        return _terms(operands[0], -factor)
    if owner.name in ("arith.addf", "arith.subf"):
        return _terms(operands[0], factor) + _terms(operands[1], factor if owner.name == "arith.addf" else -factor)
    if owner.name == "arith.mulf":
        for other, base in (operands, operands[::-1]):
            constant = constant_of(other)
            if constant is not None and math.isfinite(constant):
                return _terms(base, factor * constant)
    return [(factor, value)]


def _scaled(op, vector, factor: float):
    where = op.location if isinstance(vector.owner, ir.Block) else vector.owner.location
    with ir.InsertionPoint(op), where:
        new = MapOp(inputs=[vector], out=vector.type)
        index = ir.IndexType.get()
        block = new.body.blocks.append(ir.F32Type.get(), index, index, index, arg_locs=[op.location] * 4)
        with ir.InsertionPoint(block):
            YieldOp(values=[arith.mulf(block.arguments[0], arith.constant(ir.F32Type.get(), factor))])
        return new.out
