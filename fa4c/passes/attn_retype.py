"""Give an attn function another 16-bit dtype or other head dims: `--dtype` and `--head-dim`.

One file describes a variant for all dtypes and head dims; kernels are compiled for one of each. Every bf16 or fp16 in the function
becomes `dtype`; every dimension that `attn.dims` names `d` or `dv`, and all that follows from it through the operations, gets the size
of `head-dim` (one number for both, or two: `head-dim=192,128`). The default leaves things as they are.

Constants keep their values, the softmax scale among them: a file that says 1/sqrt(128) says it for head dim 64 too. Whether that is
meant is not for a pass to guess; the Python front end writes the scale that fits.

Before:  %q: tensor<?x128xbf16> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]}
After:   %q: tensor<?x64xf16>   {...}                                                 attn-retype{dtype=fp16 head-dim=64}
"""

from typing import Literal

from ..ir.attn_dims import infer_dims
from ..ir.attn_signature import attn_functions, function_facts
from ..ir.diagnostics import Diagnostic, op_diagnostic
from ..ir.mlir import ir
from .registry import register_pass

_ELEMENT_TYPES = {"bf16": ir.BF16Type, "fp16": ir.F16Type}


@register_pass("attn-retype")
def attn_retype(module: ir.Module, *, dtype: Literal["bf16", "fp16"] | None = None, head_dim: list[int] = ()) -> None:
    if dtype is None and not head_dim:
        return
    if len(head_dim) > 2 or any(size <= 0 for size in head_dim):
        raise Diagnostic(f"head-dim={','.join(map(str, head_dim))} is no head dim", why="it is one positive number, or two: d,dv",
                         fix="for example head-dim=64 or head-dim=192,128")
    functions = attn_functions(module)
    if not functions:
        raise Diagnostic("there is no attn function to re-type", where=module.operation.location,
                         why="dtype and head dims are compiled into all levels below", fix="start from the attn file")
    element = _ELEMENT_TYPES[dtype].get() if dtype else None
    sizes = {"d": head_dim[0], "dv": head_dim[-1]} if head_dim else {}
    for function in functions:
        _retype_function(function, element, sizes)


def _retype_function(function, element, sizes: dict[str, int]) -> None:
    facts = function_facts(function)
    _check_applies(function, facts, element, sizes)
    dims = infer_dims(function, facts)
    block = function.operation.regions[0].blocks[0]
    for value in _values(block):
        names = dims[value][0] if value in dims else ()
        value.set_type(_retyped(value.type, names, element, sizes, value.location))
    for op in _operations(block):
        if element is not None and op.name == "arith.constant" and _is_sixteen_bit(op.attributes["value"].type):
            op.attributes["value"] = ir.FloatAttr.get(element, ir.FloatAttr(op.attributes["value"]).value, loc=op.location)
    returned = [value.type for value in list(block.operations)[-1].operation.operands]
    kind = ir.FunctionType.get([argument.type for argument in block.arguments], returned)
    function.operation.attributes["function_type"] = ir.TypeAttr.get(kind)


def _check_applies(function, facts, element, sizes) -> None:
    tensors = (*facts.args, *facts.results)
    if element is not None and not any(t.dtype in ("bf16", "fp16") for t in facts.args):
        raise op_diagnostic(function, "has no bf16 or fp16 argument to re-type", why="dtype changes 16-bit tensors only",
                            fix="write the arguments as bf16, or leave out dtype")
    if sizes and not any(dim in sizes for t in tensors for dim in t.dims):
        raise op_diagnostic(function, "has no dimension named d or dv", why="head-dim changes the dimensions of those names",
                            fix="name them in attn.dims, or leave out head-dim")


def _retyped(kind, names, element, sizes, where):
    if not isinstance(kind, ir.RankedTensorType):
        return element if element is not None and _is_sixteen_bit(kind) else kind
    shape = [sizes.get(name, size) for name, size in zip(names or [None] * kind.rank, kind.shape, strict=True)]
    inner = element if element is not None and _is_sixteen_bit(kind.element_type) else kind.element_type
    return ir.RankedTensorType.get(shape, inner, loc=where)


def _is_sixteen_bit(kind) -> bool:
    return isinstance(kind, tuple(_ELEMENT_TYPES.values()))


def _operations(block):
    """All operations in a block, those in nested regions too."""
    for op in block.operations:
        yield op.operation
        for region in op.operation.regions:
            for inner in region.blocks:
                yield from _operations(inner)


def _values(block):
    yield from block.arguments
    for op in block.operations:
        yield from op.operation.results
        for region in op.operation.regions:
            for inner in region.blocks:
                yield from _values(inner)
