"""Integer expressions of the manifest: grids, sizes, host-computed scalars, `when` predicates.

An expression is an integer, a symbol, or a list `[op, operand...]`. `compile_expr` checks it once and returns a closure over
an environment (`dict` of symbol -> int), so that planning a new shape walks no tree of text. Python integers: nothing overflows here;
the caller checks the range where a value meets a 32-bit parameter.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from .errors import ManifestError, nearest

Closure = Callable[[dict], int]


def _ceildiv(a: int, b: int) -> int:
    return -(-a // b)


def _pow2floor(a: int) -> int:
    return 1 << (a.bit_length() - 1) if a > 0 else 0


_BINARY = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "ceildiv": _ceildiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
    "lt": lambda a, b: int(a < b),
    "le": lambda a, b: int(a <= b),
    "gt": lambda a, b: int(a > b),
    "ge": lambda a, b: int(a >= b),
    "eq": lambda a, b: int(a == b),
    "ne": lambda a, b: int(a != b),
}
_OPS = (*_BINARY, "pow2floor", "select", "and", "or", "not", "aligned")
_FOLDS = ("add", "mul", "min", "max")  # these take two or more operands


def compile_expr(expr, symbols, tensors=(), where: str = "expression") -> Closure:
    """Check `expr` against the known `symbols` and `tensors` (for `aligned`) and return `f(env) -> int`.

    `aligned` reads `env[("aligned", tensor, bytes)]`, a bool which the planner puts there; `alignments(expr)` lists what is asked.
    Raises `ManifestError` with the path `where` for an unknown op or symbol, or a wrong operand count.
    """
    if isinstance(expr, bool) or not isinstance(expr, (int, str, list)):
        raise ManifestError(
            f"{expr!r} is no integer expression", where=where, why="an expression is an integer, a symbol or [op, operand...]"
        )
    if isinstance(expr, int):
        return lambda env: expr
    if isinstance(expr, str):
        if expr not in symbols:
            raise ManifestError(
                f"unknown symbol {expr!r}{nearest(expr, symbols)}", where=where, why=f"known here: {', '.join(sorted(symbols))}"
            )
        return lambda env: env[expr]
    if not expr or not isinstance(expr[0], str) or expr[0] not in _OPS:
        name = expr[0] if expr else "[]"
        raise ManifestError(f"unknown operation {name!r}{nearest(name, _OPS)}", where=where, why=f"the operations are {', '.join(_OPS)}")
    op, args = expr[0], expr[1:]
    if op == "aligned":
        return _aligned(args, tensors, where)
    inner = [compile_expr(a, symbols, tensors, f"{where}.{op}[{k}]") for k, a in enumerate(args)]
    count = len(inner)
    if op in ("and", "or"):
        _expect(op, count >= 1, "one or more operands", count, where)
        if op == "and":
            return lambda env: int(all(f(env) for f in inner))
        return lambda env: int(any(f(env) for f in inner))
    if op in ("not", "pow2floor"):
        _expect(op, count == 1, "1 operand", count, where)
        (a,) = inner
        return (lambda env: int(not a(env))) if op == "not" else (lambda env: _pow2floor(a(env)))
    if op == "select":
        _expect(op, count == 3, "3 operands (condition, then, else)", count, where)
        c, a, b = inner
        return lambda env: a(env) if c(env) else b(env)
    if op in _FOLDS and count > 2:
        fold, (first, *rest) = _BINARY[op], inner
        return lambda env: _reduce(fold, first(env), rest, env)
    _expect(op, count == 2, "2 operands", count, where)
    a, b = inner
    function = _BINARY[op]
    if op in ("floordiv", "ceildiv", "mod"):
        return lambda env: _divide(function, a(env), b(env), where)
    return lambda env: function(a(env), b(env))


def alignments(expr) -> set[tuple[str, int]]:
    """The (tensor, bytes) pairs that `expr` asks about with `aligned`."""
    if not isinstance(expr, list):
        return set()
    if expr and expr[0] == "aligned":
        return {(expr[1], expr[2])}
    return set().union(*map(alignments, expr)) if expr else set()


def _aligned(args, tensors, where) -> Closure:
    if len(args) != 2 or not isinstance(args[0], str) or not isinstance(args[1], int) or args[1] < 1:
        raise ManifestError(f"aligned takes a tensor's name and a number of bytes, got {args!r}", where=where)
    if args[0] not in tensors:
        raise ManifestError(f"aligned names the unknown tensor {args[0]!r}{nearest(args[0], tensors)}", where=where)
    key = ("aligned", args[0], args[1])
    return lambda env: int(env[key])


def _expect(op, fine, wanted, got, where):
    if not fine:
        raise ManifestError(f"{op} takes {wanted}, got {got}", where=where)


def _reduce(function, value, rest, env):
    for f in rest:
        value = function(value, f(env))
    return value


def _divide(function, a, b, where):
    if b == 0:
        raise ManifestError("division by zero while a launch is planned", where=where, why=f"the divisor of {a} is 0 for these sizes")
    return function(a, b)
