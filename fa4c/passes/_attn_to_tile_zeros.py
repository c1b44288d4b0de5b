"""Results that are 0 whatever the arguments are: the host fills them, and no kernel takes them.

A gradient is 0 where no result depends on its argument: dQ and dK of a score function that does not read its score. The derivation returns
a map over the argument that yields the constant 0: over rows for one, over columns for the other, and no kernel's CTAs own blocks of both.
"""

from ..ir import scalar
from ..ir.attn_signature import function_facts, tensor_attributes
from ..ir.mlir import ir
from .attn_outline_kernels import drop_dead, drop_unused


def take_zeros(function) -> set[str]:
    """The names of a function's results that are 0; it no longer returns them, nor takes what only they were made of."""
    facts = function_facts(function)
    block = function.operation.regions[0].blocks[0]
    *operations, returned = [op.operation for op in block.operations]
    results = list(zip(returned.operands, facts.results, strict=True))
    kept = [(value, tensor) for value, tensor in results if tensor.workspace or not _is_zero(value)]
    if len(kept) == len(results):
        return set()
    with ir.InsertionPoint(returned), returned.location:
        ir.Operation.create("func.return", operands=[value for value, _ in kept])
    returned.erase()
    drop_dead(operations)
    arguments = drop_unused(block, list(facts.args))
    kind = ir.FunctionType.get([argument.type for argument in block.arguments], [value.type for value, _ in kept])
    function.operation.attributes["function_type"] = ir.TypeAttr.get(kind)
    function.operation.attributes["arg_attrs"] = ir.ArrayAttr.get([tensor_attributes(t) for t in arguments])
    function.operation.attributes["res_attrs"] = ir.ArrayAttr.get([tensor_attributes(t) for _, t in kept])
    return {t.name for _, t in results} - {t.name for _, t in kept}


def _is_zero(value) -> bool:
    """Whether it is a map that yields the constant 0, or a cast of one."""
    while not isinstance(value.owner, ir.Block) and value.owner.name == "attn.cast":
        value = value.owner.operands[0]
    if isinstance(value.owner, ir.Block) or value.owner.name != "attn.map":
        return False
    constant = list(value.owner.regions[0].blocks[0].operations)[-1].operation.operands[0].owner
    return not isinstance(constant, ir.Block) and constant.name == "arith.constant" and scalar.apply(constant, [])[0] == 0
