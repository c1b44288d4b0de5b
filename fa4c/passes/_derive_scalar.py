"""Derivatives of scalar code: the gradient at an expression becomes gradients at its leaves.

One rule an operation; integers, comparisons and conditions have no derivative. Ties of a maximum share the gradient, as in torch. Where a
choice (`arith.select`) leaves a value out, its gradient is zero even if its own derivative is infinite there (`Scalars.mul`).
"""

import math

from ._derive_expr import Expr, Scalars, gradient_kind


def leaf_gradients(s: Scalars, expr: Expr, gradient: Expr, wanted) -> dict[Expr, Expr]:
    """leaf -> d(expr) / d(leaf) * gradient, for the leaves (elements and loads) for which `wanted(leaf)`.

    Gradients are f32, those of f64 values f64.
    """
    order = expr.below()
    active = set()
    for node in order:
        is_leaf = node.op in ("elem", "load")
        if node.is_float() and (wanted(node) if is_leaf else any(operand in active for operand in node.operands)):
            active.add(node)
    gradients = {expr: gradient} if expr in active else {}
    for node in reversed(order):
        if node not in gradients or node.op in ("elem", "load"):
            continue
        s.loc = node.loc
        for operand, part in _parts(s, node, gradients[node]):
            if operand in active and part is not None:
                part = s.convert(part, gradient_kind(operand.kind))
                gradients[operand] = s.add(gradients[operand], part) if operand in gradients else part
    return {node: gradients[node] for node in order if node.op in ("elem", "load") and node in gradients}


def is_linear_in(expr: Expr, leaf: Expr) -> bool:
    """Whether `expr` is `leaf` times something that does not depend on it."""
    depends = {leaf}
    factor = {leaf}  # nodes that are the leaf times something
    for node in expr.below():
        operands = node.operands
        if node is leaf or not any(operand in depends for operand in operands):
            continue
        depends.add(node)
        linear = [operand in factor for operand in operands]
        free = [operand not in depends for operand in operands]
        zero = [operand.op == "const" and operand.attr == 0 for operand in operands]
        if (
            (node.op == "arith.mulf" and (linear[0] and free[1] or linear[1] and free[0]))
            or (node.op == "arith.divf" and linear[0] and free[1])
            or (node.op in ("arith.negf", "arith.extf", "arith.truncf") and linear[0])
            or (node.op in ("arith.addf", "arith.subf") and all(linear))
            or (node.op == "arith.select" and free[0] and all(ok or nothing for ok, nothing in zip(linear[1:], zero[1:])))
        ):
            factor.add(node)
    return expr in factor


def _parts(s: Scalars, node: Expr, gradient: Expr) -> list:
    """(operand, its gradient) pairs."""
    bounded = _one_plus_exponential(node.operands[-1]) if node.op in ("arith.divf", "math.log", "math.log2") else None
    if bounded is not None:
        return _RULES_BOUNDED[node.op](s, node, gradient, *bounded)
    rule = _RULES.get(node.op)
    return list(zip(node.operands, rule(s, node, gradient))) if rule is not None else []


def _one_plus_exponential(expr: Expr):
    """(z, factor) where `expr` is 1 + exp(z) (factor 1) or 1 + exp2(z) (factor log 2), else None."""
    if expr.op == "arith.addf":
        for one, power in (expr.operands, expr.operands[::-1]):
            if one.constant() == 1.0 and power.op in ("math.exp", "math.exp2"):
                return power.operands[0], 1.0 if power.op == "math.exp" else math.log(2)
    return None


# 1 + exp(z) overflows long before a sigmoid or a softplus made of it means anything but 0 or z. Going through exp, the gradient would be
# infinity times zero; exp(z) / (1 + exp(z)) = 1 - 1 / (1 + exp(z)) is right everywhere.


def _share(s: Scalars, below: Expr) -> Expr:
    return s.sub(s.const(1.0, below.kind), s.div(s.const(1.0, below.kind), below))


def _divide_bounded(s, node, gradient, z, factor):
    above, below, y = s.wide(node.operands[0]), s.wide(node.operands[1]), s.wide(node)
    at_z = s.mul(s.mul(s.mul(gradient, y), _share(s, below)), s.const(-factor, gradient.kind))
    if node.operands[0].constant() == 1.0:
        at_z = s.mul(s.mul(s.mul(gradient, y), s.sub(s.const(1.0, above.kind), y)), s.const(-factor, gradient.kind))
    return [(node.operands[0], s.div(gradient, below)), (z, at_z)]


def _log_bounded(s, node, gradient, z, factor):
    if node.op == "math.log2":
        factor /= math.log(2)
    return [(z, s.mul(s.mul(gradient, _share(s, s.wide(node.operands[0]))), s.const(factor, gradient.kind)))]


_RULES_BOUNDED = {"arith.divf": _divide_bounded, "math.log": _log_bounded, "math.log2": _log_bounded}


# -- one rule an operation: gradients of its operands, None where there is none ------------------------------------------------------------


def _add(s, node, g):
    return g, g


def _subtract(s, node, g):
    return g, s.neg(g)


def _multiply(s, node, g):
    a, b = (s.wide(operand) for operand in node.operands)
    return s.mul(g, b), s.mul(g, a)


def _divide(s, node, g):
    quotient = s.div(g, s.wide(node.operands[1]))
    return quotient, s.neg(s.mul(quotient, s.wide(node)))


def _negate(s, node, g):
    return (s.neg(g),)


def _choose(s: Scalars, gradient: Expr, choice) -> Expr:
    """choice(gradient); where the gradient itself is a choice between something and zero, it stays outermost, as `Scalars.mul` wants."""
    return s.through_guard(lambda x: _choose(s, x, choice), gradient) or choice(gradient)


def _extreme(first: str, second: str):
    def rule(s, node, g):
        a, b = node.operands

        def toward(predicate: str):
            def choice(g):
                half = s.select(s.compare("oeq", a, b), s.mul(g, s.const(0.5, g.kind)), s.const(0.0, g.kind))
                return s.select(s.compare(predicate, a, b), g, half)

            return _choose(s, g, choice)

        return toward(first), toward(second)

    return rule


def _remainder(s, node, g):
    a, b = (s.wide(operand) for operand in node.operands)
    ratio = s.div(a, b)
    down, up = s.unary("math.floor", ratio), s.neg(s.unary("math.floor", s.neg(ratio)))
    whole = s.select(s.compare("olt", ratio, s.const(0.0, ratio.kind)), up, down)
    return g, s.neg(s.mul(g, whole))


def _exp(s, node, g):
    return (s.mul(g, s.wide(node)),)


def _exp2(s, node, g):
    return (s.mul(s.mul(g, s.wide(node)), s.const(math.log(2), g.kind)),)


def _log(s, node, g):
    return (s.div(g, s.wide(node.operands[0])),)


def _log2(s, node, g):
    return (s.div(s.mul(g, s.const(1 / math.log(2), g.kind)), s.wide(node.operands[0])),)


def _tanh(s, node, g):
    y = s.wide(node)
    return (s.mul(g, s.sub(s.const(1.0, y.kind), s.mul(y, y))),)


def _erf(s, node, g):
    x = s.wide(node.operands[0])
    bell = s.unary("math.exp", s.neg(s.mul(x, x)))
    return (s.mul(s.mul(g, bell), s.const(2 / math.sqrt(math.pi), g.kind)),)


def _sqrt(s, node, g):
    return (s.div(s.mul(g, s.const(0.5, g.kind)), s.wide(node)),)


def _rsqrt(s, node, g):
    y = s.wide(node)
    return (s.mul(s.mul(g, s.mul(y, s.mul(y, y))), s.const(-0.5, g.kind)),)


def _absolute(s, node, g):
    x = node.operands[0]
    zero, nothing = s.const(0.0, x.kind), s.const(0.0, g.kind)

    def choice(g):
        return s.select(s.compare("ogt", x, zero), g, s.select(s.compare("olt", x, zero), s.neg(g), nothing))

    return (_choose(s, g, choice),)


def _power(s, node, g):
    a, b = (s.wide(operand) for operand in node.operands)
    zero = s.const(0.0, g.kind)
    base = s.mul(s.mul(g, b), s.power(a, s.sub(b, s.const(1.0, b.kind))))
    if b.op != "const":
        base = s.select(s.compare("oeq", b, zero), zero, base)
    of_nothing = s.compare("oeq", a, zero)  # 0 ** b stays 0 however b moves
    exponent = s.select(of_nothing, zero, s.mul(s.mul(g, s.wide(node)), s.unary("math.log", a)))
    return base, exponent


def _select(s, node, g):
    condition, zero = node.operands[0], s.const(0.0, g.kind)
    return None, s.select(condition, g, zero), s.select(condition, zero, g)


def _convert(s, node, g):
    return (g,)


_RULES = {
    "arith.addf": _add,
    "arith.subf": _subtract,
    "arith.mulf": _multiply,
    "arith.divf": _divide,
    "arith.negf": _negate,
    "arith.maximumf": _extreme("ogt", "olt"),
    "arith.minimumf": _extreme("olt", "ogt"),
    "arith.remf": _remainder,
    "math.exp": _exp,
    "math.exp2": _exp2,
    "math.log": _log,
    "math.log2": _log2,
    "math.tanh": _tanh,
    "math.erf": _erf,
    "math.sqrt": _sqrt,
    "math.rsqrt": _rsqrt,
    "math.absf": _absolute,
    "math.powf": _power,
    "arith.select": _select,
    "arith.extf": _convert,
    "arith.truncf": _convert,
}
