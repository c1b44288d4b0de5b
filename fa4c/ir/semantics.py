"""An attn function as the semantics tree of the manifest: plain data that needs no MLIR to be evaluated or hashed.

Values that operations produce are named "%0", "%1", ... in order, so that equal functions give equal trees; arguments keep their
`attn.name`. Locations and SSA names are not part of the tree. `attn.band_mask` is a mask here: its bounds say nothing that the
predicate does not.
"""

from .attn_signature import FunctionFacts, TensorFacts, dtype_name, function_facts, verify_function
from .diagnostics import op_diagnostic
from .expr import FLOATS, ExprBuilder

SCHEMA = 1

_BINARY = {
    "arith.addf": "add",
    "arith.addi": "add",
    "arith.subf": "sub",
    "arith.subi": "sub",
    "arith.mulf": "mul",
    "arith.muli": "mul",
    "arith.divf": "div",
    "arith.divsi": "div",
    "arith.floordivsi": "floordiv",
    "arith.remf": "rem",
    "arith.remsi": "rem",
    "arith.maximumf": "max",
    "arith.maxsi": "max",
    "arith.minimumf": "min",
    "arith.minsi": "min",
    "math.powf": "pow",
    "arith.andi": "and",
    "arith.ori": "or",
    "arith.xori": "xor",
    "arith.select": "select",
}
_UNARY = {"arith.negf": "neg", "math.absf": "abs", "math.absi": "abs"} | {
    f"math.{name}": name for name in ("exp", "exp2", "log", "log2", "tanh", "erf", "sqrt", "rsqrt", "floor")
}
_CASTS = (
    "arith.extf",
    "arith.truncf",
    "arith.sitofp",
    "arith.uitofp",
    "arith.fptosi",
    "arith.index_cast",
    "arith.index_castui",
    "arith.trunci",
    "arith.extsi",
    "arith.extui",
)
_ARITHMETIC = _BINARY | _UNARY
_CMPI = ("eq", "ne", "lt", "le", "gt", "ge")
_CMPF = ("false", "eq", "gt", "ge", "lt", "le", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "ne", "uno", "true")
_INVERSE = {"ugt": "le", "uge": "lt", "ult": "ge", "ule": "gt"}


def from_function(func_op) -> dict:
    """The semantics tree of an attn `func.func`, in canonical form. Raises `Diagnostic` if the function does not verify."""
    verify_function(func_op)
    facts = function_facts(func_op)
    block = func_op.operation.regions[0].blocks[0]
    names = {argument: tensor.name for argument, tensor in zip(block.arguments, facts.args, strict=True)}
    tensors = {t.name: (t.dtype, len(t.dims)) for t in facts.args}
    body, results, produced = [], [], 0
    for op in block.operations:
        operation = op.operation
        if operation.name == "func.return":
            results = [
                {"name": t.name, "value": names[value], **_tensor(t)} for value, t in zip(operation.operands, facts.results, strict=True)
            ]
        elif operation.name in _STEPS:
            inputs = [names[value] for value in operation.operands]
            if operation.name == "attn.softmax" and operation.opview.scale.value != 1.0:  # a map and a softmax, in the tree
                body.append(_scaling(inputs[0], f"%{produced}", operation.opview.scale.value))
                inputs, produced = [f"%{produced}"], produced + 1
            for result in operation.results:
                names[result] = f"%{produced}"
                produced += 1
            step = {
                "op": "mask" if operation.name == "attn.band_mask" else operation.name.removeprefix("attn."),
                "in": inputs,
                "out": [names[result] for result in operation.results],
            }
            body.append(step | _STEPS[operation.name](operation.opview, _Regions(names, tensors)))
        # anything else is a scalar at function level: it appears where a region uses it
    return {
        "schema": SCHEMA,
        "name": facts.name,
        "align": facts.align,
        "layout": facts.layout,
        "args": _arguments(facts),
        "body": body,
        "results": results,
    }


def _scaling(name: str, out: str, scale: float) -> dict:
    builder = ExprBuilder(["f32"], {})
    scaled = builder.op("mul", builder.x(0), builder.const(scale, "f32"))
    return {"op": "map", "in": [name], "out": [out], "expr": builder.build(scaled), "dtype": "f32"}


def _arguments(facts: FunctionFacts) -> list[dict]:
    arguments = []
    for t in facts.args:
        argument = {"name": t.name, **_tensor(t), "fill": t.fill or default_fill(t.dtype)}
        arguments.append(argument | ({"cu_seqlens": t.cu_seqlens} if t.cu_seqlens else {}))
    return arguments


def default_fill(dtype: str) -> str | None:
    """What `run` fills an argument with that carries no `attn.fill`; None: it must be given."""
    return "normal" if dtype in FLOATS else None


def _tensor(t: TensorFacts) -> dict:
    return {"dtype": t.dtype, "axes": list(t.axes), "dims": list(t.dims), "shape": list(t.shape)}


class _Regions:
    """Reads regions as expressions. `names`: tensor value -> name."""

    def __init__(self, names: dict, tensors: dict):
        self._names, self._tensors = names, tensors

    def expression(self, region, elements: int) -> list[list]:
        """The tree of a region that yields one value."""
        (tree,) = self.expressions(region, elements)
        return tree

    def expressions(self, region, elements: int) -> list[list[list]]:
        """The trees of a region whose first `elements` arguments are elements of operands; the rest are b, h, i, j."""
        block = region.blocks[0]
        arguments = list(block.arguments)
        builder = ExprBuilder([dtype_name(a.type) for a in arguments[:elements]], self._tensors)
        known = {a: builder.x(k) for k, a in enumerate(arguments[:elements])}
        known |= {a: builder.index(name) for a, name in zip(arguments[elements:], "bhij", strict=False)}
        return [builder.build(value) for value in self._block(block, builder, known)]

    def _block(self, block, builder: ExprBuilder, known: dict) -> list[int]:
        for op in block.operations:
            operation = op.operation
            if operation.name in ("attn.yield", "scf.yield"):
                return [self._value(value, builder, known) for value in operation.operands]
            self._operation(operation, builder, known)
        return []

    def _value(self, value, builder: ExprBuilder, known: dict) -> int:
        if value not in known:
            self._operation(value.owner, builder, known)  # a scalar of an enclosing level
        return known[value]

    def _operation(self, operation, builder: ExprBuilder, known: dict) -> None:
        operation = operation.operation
        if operation.name == "attn.load":
            indices = [self._value(value, builder, known) for value in list(operation.operands)[1:]]
            known[operation.results[0]] = builder.load(self._names[operation.operands[0]], *indices)
            return
        operands = [self._value(value, builder, known) for value in operation.operands]
        if operation.name == "scf.if":
            branches = [self._block(region.blocks[0], builder, known) if len(region.blocks) else [] for region in operation.regions]
            for result, yes, no in zip(operation.results, *branches, strict=True):
                known[result] = builder.op("select", operands[0], yes, no)
            return
        known[operation.results[0]] = _node(operation, builder, operands)


def _node(operation, builder: ExprBuilder, operands: list[int]) -> int:
    name, dtype = operation.name, dtype_name(operation.results[0].type)
    if name == "arith.constant":
        return builder.const(operation.attributes["value"].value, dtype)
    if name == "attn.size":
        return builder.size(operation.attributes["dim"].value)
    if name in _ARITHMETIC:
        return builder.op(_ARITHMETIC[name], *operands)
    if name in _CASTS:
        if builder.dtype(operands[0]) == "i1" and name in ("arith.sitofp", "arith.extsi", "arith.index_cast"):
            raise op_diagnostic(
                operation,
                "reads an i1 as signed, so that true is -1",
                why="a truth value counts as 1 everywhere else",
                fix={"arith.sitofp": "use arith.uitofp", "arith.extsi": "use arith.extui"}.get(name, "use arith.index_castui"),
            )
        if dtype == "i1":
            raise op_diagnostic(operation, "makes an i1 by truncation", why="the tree has no bits", fix="compare with arith.cmpi")
        if name in ("arith.extui", "arith.uitofp", "arith.index_castui") and builder.dtype(operands[0]) != "i1":
            raise op_diagnostic(
                operation, "reads an integer as unsigned", why="all integers of the tree are signed", fix="use the signed form"
            )
        return builder.cast(operands[0], dtype)
    if name == "arith.cmpi":
        predicate = operation.attributes["predicate"].value
        if predicate >= len(_CMPI):
            raise op_diagnostic(
                operation, "compares without sign", why="all integers of the tree are signed", fix="use slt, sle, sgt or sge"
            )
        return builder.op(_CMPI[predicate], *operands)
    if name == "arith.cmpf":
        return _compare_floats(builder, _CMPF[operation.attributes["predicate"].value], *operands)
    raise op_diagnostic(operation, "has no counterpart in the semantics tree", why="the reference backend could not evaluate it")


def _compare_floats(builder: ExprBuilder, predicate: str, a: int, b: int) -> int:
    if predicate in ("true", "false"):
        return builder.const(predicate == "true", "i1")
    if predicate in _INVERSE:
        return builder.op("not", builder.op(_INVERSE[predicate], a, b))
    if predicate in ("one", "ueq"):
        differs = builder.op("or", builder.op("lt", a, b), builder.op("gt", a, b))
        return differs if predicate == "one" else builder.op("not", differs)
    if predicate in ("uno", "ord"):
        unordered = builder.op("or", builder.op("ne", a, a), builder.op("ne", b, b))
        return unordered if predicate == "uno" else builder.op("not", unordered)
    return builder.op(predicate, a, b)


def _result_dtype(op) -> dict:
    return {"dtype": dtype_name(op.operation.results[0].type.element_type)}


def _gemm(op, regions) -> dict:
    transposes = {"transpose_a": True} if op.transpose_a.value else {}
    return transposes | {"transpose_b": op.transpose_b.value} | _result_dtype(op)


_STEPS = {
    "attn.gemm": _gemm,
    "attn.map": lambda op, regions: {"expr": regions.expression(op.body, len(op.inputs))} | _result_dtype(op),
    "attn.mask": lambda op, regions: {"expr": regions.expression(op.predicate, 0)},
    "attn.band_mask": lambda op, regions: {"expr": regions.expression(op.predicate, 0)},
    "attn.softmax": lambda op, regions: {},
    "attn.cast": lambda op, regions: _result_dtype(op),
    "attn.reduce": lambda op, regions: {"kind": op.kind.value} | ({} if op.dim is None else {"dim": op.dim.value}),
    "attn.scatter": lambda op, regions: {"exprs": regions.expressions(op.body, len(op.inputs))} | _result_dtype(op),
}
