"""The expression graph of the derivation: what it simplifies is equal, what is equal is one, and zeros stay zero."""

import math

import numpy as np
import pytest

from fa4c.passes._derive_expr import Scalars
from fa4c.passes._derive_scalar import is_linear_in

LEAVES = "abcd"
CONSTANTS = (0.0, 1.0, -1.0, 0.5, 2.0, -4.0, 3.0, 0.1, -0.3)


RULES = {
    "arith.addf": lambda x, y: x + y,
    "arith.subf": lambda x, y: x - y,
    "arith.mulf": lambda x, y: x * y,
    "arith.divf": lambda x, y: np.float64(x) / y,
    "arith.negf": lambda x: -x,
    "arith.select": lambda c, x, y: x if c else y,
    "arith.cmpf": lambda x, y: x > y,
}


def evaluate(expr, leaves: dict) -> float:
    """The value of an expression over leaves named by their attr."""
    known = {}
    for node in expr.below():
        if node.op in ("elem", "const"):
            known[node] = leaves[node.attr.name] if node.op == "elem" else node.attr
        else:
            with np.errstate(all="ignore"):
                known[node] = RULES[node.op](*[known[operand] for operand in node.operands])
    return known[expr]


class Leaf:
    dtype = "f32"

    def __init__(self, name: str):
        self.name = name


@pytest.mark.parametrize("seed", range(300))
def test_simplified_is_equal(seed):
    """Random sums, products, quotients, negations and choices, built with and without simplification."""
    rng, s = np.random.default_rng(seed), Scalars()
    leaves = {name: float(rng.standard_normal()) for name in LEAVES}
    pool = [(s.elem(Leaf(name)), value) for name, value in leaves.items()]
    pool += [(s.const(c), s.const(c).attr) for c in CONSTANTS]
    for _ in range(25):
        (a, x), (b, y), (c, z) = (pool[rng.integers(len(pool))] for _ in range(3))
        kind = rng.integers(7)
        if kind == 0:
            made = s.add(a, b), x + y
        elif kind == 1:
            made = s.sub(a, b), x - y
        elif kind == 2:
            made = s.mul(a, b), x * y
        elif kind == 3:
            made = s.neg(a), -x
        elif kind == 4 and y:
            made = s.div(a, b), x / y
        elif kind == 5:
            made = s.select(s.compare("ogt", a, b), c, s.const(0.0)), z if x > y else 0.0
        else:
            made = s.select(s.compare("ogt", a, b), s.const(0.0), c), 0.0 if x > y else z
        if math.isfinite(made[1]) and abs(made[1]) < 1e6:
            pool.append(made)
    for expr, value in pool:
        assert evaluate(expr, leaves) == pytest.approx(value, rel=1e-9, abs=1e-9)


def test_equal_expressions_are_one():
    s = Scalars()
    a, b = s.elem(Leaf("a")), s.elem(Leaf("b"))
    assert s.add(a, b) is s.add(a, b) and s.mul(a, s.const(2.0)) is s.mul(s.const(2.0), a)
    assert s.const(0.0) is not s.const(-0.0) and s.const(1.0) is not s.const(1, "index") and s.const(True, "i1") is not s.const(1, "i32")
    assert s.neg(s.neg(a)) is a and s.neg(s.sub(a, b)) is s.sub(b, a) and s.sub(a, s.neg(b)) is s.add(a, b)
    assert s.mul(a, s.const(1.0)) is a and s.add(a, s.const(0.0)) is a and s.power(a, s.const(1.0)) is a
    assert s.mul(s.neg(a), s.const(2.0)) is s.neg(s.mul(a, s.const(2.0))) is s.mul(a, s.const(-2.0))


def test_constants_fold_only_where_f32_holds_the_result():
    s = Scalars()
    a = s.elem(Leaf("a"))
    assert s.mul(s.mul(a, s.const(0.5)), s.const(8.0)) is s.mul(a, s.const(4.0))
    kept = s.mul(s.mul(a, s.const(0.1)), s.const(3.0))
    assert kept.operands[0].op == "arith.mulf"
    assert s.div(a, s.const(4.0)) is s.mul(a, s.const(0.25)) and s.div(a, s.const(3.0)).op == "arith.divf"
    assert s.const(1e39).attr == math.inf and s.const(-1e39).attr == -math.inf and math.isnan(s.const(math.nan).attr)
    assert s.const(0.1).attr == float(np.float32(0.1)) and s.const(0.1, "f64").attr == 0.1


def test_a_zero_of_a_choice_stays_zero():
    """gradient = where(c, g, 0): times infinity, divided by 0, it is still 0 where c does not hold."""
    s = Scalars()
    a, b, g = (s.elem(Leaf(name)) for name in "abg")
    for guarded in (s.select(s.compare("ogt", a, b), g, s.const(0.0)), s.select(s.compare("ogt", b, a), s.const(0.0), g)):
        for made in (s.mul(guarded, a), s.div(guarded, a), s.neg(s.mul(guarded, a)), s.add(s.mul(guarded, a), s.div(guarded, a))):
            assert made.op == "arith.select"
            assert (
                evaluate(
                    made, {"a": -math.inf, "b": 0.0, "g": 1.0} if guarded.operands[2].op == "const" else {"a": 0.0, "b": 1.0, "g": 1.0}
                )
                == 0
            )


def test_what_is_linear():
    s = Scalars()
    x, y = s.elem(Leaf("x")), s.elem(Leaf("y"))
    c, zero = s.compare("ogt", y, s.const(0.0)), s.const(0.0)
    linear = [x, s.mul(x, y), s.mul(y, x), s.div(x, y), s.neg(x), s.select(c, x, zero), s.select(c, s.mul(x, y), x), s.add(s.mul(x, y), x)]
    other = [
        y,
        s.mul(x, x),
        s.add(x, y),
        s.div(y, x),
        s.select(s.compare("ogt", x, zero), x, zero),
        s.select(c, x, y),
        s.unary("math.exp", x),
    ]
    assert all(is_linear_in(expr, x) for expr in linear) and not any(is_linear_in(expr, x) for expr in other)
