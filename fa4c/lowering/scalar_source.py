"""Scalar operations as Python expressions of the CuTe DSL: one rule for each operation kind.

Index and i32 values are `Int32`, constants plain Python numbers (so that constant arithmetic folds while tracing), i1 is `Boolean`.
"""

from __future__ import annotations

import math

from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import ir

DTYPES = {
    "bf16": "BFloat16",
    "f16": "Float16",
    "f32": "Float32",
    "i32": "Int32",
    "i64": "Int64",
    "index": "Int32",
    "i1": "Boolean",
    "i8": "Int8",
}
MANIFEST_DTYPES = {"bf16": "bf16", "f16": "fp16", "f32": "f32", "i32": "i32", "i64": "i64"}

_LN2, _LOG2E = math.log(2.0), math.log2(math.e)


def dsl_type(kind) -> str:
    return DTYPES[str(kind)]


def _binary(symbol: str):
    return lambda op, a, b: f"{a} {symbol} {b}"


def _call(function: str):
    return lambda op, *args: f"{function}({', '.join(args)})"


def _constant(op):
    value = op.attributes["value"]
    kind = op.results[0].type
    if isinstance(kind, ir.IntegerType) and kind.width == 1:
        return "True" if bool(value.value) else "False"
    if isinstance(value, ir.FloatAttr):
        return float_text(value.value)
    return str(value.value)


def float_text(x: float) -> str:
    if math.isinf(x):
        return "Float32.inf" if x > 0 else "-Float32.inf"
    return "Float32.nan" if math.isnan(x) else repr(x)


def _compare(op, a, b):
    symbols = {
        "eq": "==",
        "ne": "!=",
        "slt": "<",
        "sle": "<=",
        "sgt": ">",
        "sge": ">=",
        "oeq": "==",
        "one": "!=",
        "olt": "<",
        "ole": "<=",
        "ogt": ">",
        "oge": ">=",
        "une": "!=",
    }
    name = _predicate_name(op)
    if name not in symbols:
        raise op_diagnostic(
            op,
            f"compares by '{name}', which has no rule",
            why="only signed and ordered comparisons are lowered",
            fix="use slt, sle, ..., or olt, ole, ...",
        )
    return f"{a} {symbols[name]} {b}"


_CMPI = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
_CMPF = ("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true")


def _predicate_name(op) -> str:
    number = op.attributes["predicate"].value
    return (_CMPI if op.operation.name == "arith.cmpi" else _CMPF)[number]


def _cast(op, x):
    return f"{dsl_type(op.results[0].type)}({x})"


def _index_cast(op, x):
    return x if str(op.operands[0].type) in ("i32", "index") and str(op.results[0].type) in ("i32", "index") else _cast(op, x)


def _select(op, c, a, b):
    return f"select({dsl_type(op.results[0].type)}, {c}, {a}, {b})"


# Division of index values: operands here are sizes and offsets, for which the DSL's floor division is what each rule wants or
# differs only for negative dividends, which truncation handles apart.
RULES = {
    "arith.constant": lambda op: _constant(op),
    "arith.addi": _binary("+"),
    "arith.subi": _binary("-"),
    "arith.muli": _binary("*"),
    "arith.addf": _binary("+"),
    "arith.subf": _binary("-"),
    "arith.mulf": _binary("*"),
    "arith.divf": _binary("/"),
    "arith.negf": lambda op, a: f"-{a}",
    "arith.floordivsi": _binary("//"),
    "arith.ceildivsi": lambda op, a, b: f"-((-{a}) // {b})",
    "arith.divsi": lambda op, a, b: f"truncated_div({a}, {b})",
    "arith.remsi": lambda op, a, b: f"{a} - truncated_div({a}, {b}) * {b}",
    "arith.divui": _binary("//"),
    "arith.remui": _binary("%"),
    "arith.minsi": _call("cutlass.min"),
    "arith.maxsi": _call("cutlass.max"),
    "arith.maximumf": _call("cute.arch.fmax"),
    "arith.minimumf": _call("cute.arch.fmin"),
    "arith.maxnumf": _call("cute.arch.fmax"),
    "arith.minnumf": _call("cute.arch.fmin"),
    "arith.andi": _binary("&"),
    "arith.ori": _binary("|"),
    "arith.xori": _binary("^"),
    "arith.shli": _binary("<<"),
    "arith.shrsi": _binary(">>"),
    "arith.cmpi": _compare,
    "arith.cmpf": _compare,
    "arith.select": _select,
    "arith.extf": _cast,
    "arith.truncf": _cast,
    "arith.sitofp": _cast,
    "arith.fptosi": _cast,
    "arith.extsi": _cast,
    "arith.trunci": _cast,
    "arith.extui": _cast,
    "arith.uitofp": _cast,
    "arith.index_cast": _index_cast,
    "arith.index_castui": _index_cast,
    "math.exp2": lambda op, x: f"cute.math.exp2({x}, fastmath=True)",
    "math.exp": lambda op, x: f"cute.math.exp2({x} * {_LOG2E!r}, fastmath=True)",
    "math.log2": lambda op, x: f"cute.math.log2({x}, fastmath=True)",
    "math.log": lambda op, x: f"cute.math.log2({x}, fastmath=True) * {_LN2!r}",
    "math.tanh": _call("tanh_exp2"),
    "math.sqrt": lambda op, x: f"cute.math.sqrt({x}, fastmath=True)",
    "math.rsqrt": lambda op, x: f"cute.math.rsqrt({x}, fastmath=True)",
    "math.erf": lambda op, x: f"cute.math.erf({x})",
    "math.absf": lambda op, x: f"cute.arch.fmax({x}, -({x}))",
    "math.absi": lambda op, x: f"cutlass.max({x}, -({x}))",
    "math.fma": lambda op, a, b, c: f"{a} * {b} + {c}",
    "math.floor": lambda op, x: f"cute.math.floor({x})",
    "math.powf": lambda op, a, b: f"cute.math.exp2({b} * cute.math.log2({a}, fastmath=True), fastmath=True)",
}


def expression(op, operands: list[str]) -> str:
    """The Python expression of a scalar operation whose operands are these Python names or literals."""
    rule = RULES.get(op.operation.name)
    if rule is None:
        raise op_diagnostic(
            op,
            "has no lowering to CuTe-DSL",
            why="no rule turns it into device code yet",
            fix='write it with other arith and math operations, or as inline PTX: "warp.ptx"',
        )
    return rule(op, *operands)


def is_literal(op) -> bool:
    """Constants are written where they are used."""
    return op.operation.name == "arith.constant"
