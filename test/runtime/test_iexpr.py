"""Integer expressions."""

import random

import pytest

from fa4c.runtime.errors import ManifestError
from fa4c.runtime.iexpr import compile_expr

ENV = {"m": 1000, "n": 77, "hq": 12, "hkv": 4, ("aligned", "q", 16): True, ("aligned", "q", 128): False}
SYMBOLS = {"m", "n", "hq", "hkv"}


def value(expr):
    return compile_expr(expr, SYMBOLS, {"q"})(ENV)


@pytest.mark.parametrize(
    "expr, wanted",
    [
        (7, 7),
        ("m", 1000),
        (["add", "m", "n"], 1077),
        (["add", 1, 2, 3, 4], 10),
        (["sub", "n", "m"], -923),
        (["mul", 2, "m", "hq"], 24000),
        (["floordiv", -7, 2], -4),
        (["ceildiv", "m", 128], 8),
        (["ceildiv", -7, 2], -3),
        (["ceildiv", 1024, 128], 8),
        (["mod", -7, 4], 1),
        (["min", "m", "n", 5], 5),
        (["max", "m", "n"], 1000),
        (["pow2floor", "m"], 512),
        (["pow2floor", 512], 512),
        (["pow2floor", 1], 1),
        (["pow2floor", 0], 0),
        (["select", ["lt", "m", "n"], 1, 2], 2),
        (["lt", 1, 2], 1),
        (["le", 2, 2], 1),
        (["gt", 1, 2], 0),
        (["ge", 1, 2], 0),
        (["eq", "m", 1000], 1),
        (["ne", "m", 1000], 0),
        (["and", 1, 1, 0], 0),
        (["and", 1, 5], 1),
        (["or", 0, 0], 0),
        (["or", 0, 9], 1),
        (["not", 3], 0),
        (["not", 0], 1),
        (["aligned", "q", 16], 1),
        (["aligned", "q", 128], 0),
    ],
)
def test_value(expr, wanted):
    assert value(expr) == wanted


def test_large_values_do_not_wrap():
    assert value(["mul", ["mul", 1 << 40, 1 << 40], "m"]) == 1000 << 80


@pytest.mark.parametrize(
    "expr, message",
    [
        (["powtwo", 1], "unknown operation 'powtwo'"),
        ("q", "unknown symbol 'q'"),
        ([], "unknown operation"),
        (["not", 1, 2], "1 operand, got 2"),
        (["select", 1, 2], "3 operands"),
        (["aligned", "q"], "name and a number"),
        (["aligned", "q", "m"], "name and a number"),
        (1.5, "no integer"),
        (True, "no integer"),
        (None, "no integer"),
        ({"add": 1}, "no integer"),
        (["__import__", "os"], "unknown operation"),
        (["sub", 1, 2, 3], "2 operands, got 3"),
    ],
)
def test_refused(expr, message):
    with pytest.raises(ManifestError, match=message):
        value(expr)


def test_division_by_zero_is_located():
    with pytest.raises(ManifestError, match="here.*division by zero"):
        compile_expr(["ceildiv", "m", ["sub", "n", 77]], SYMBOLS, (), "here")(ENV)


def test_random_trees_equal_a_direct_evaluation():
    """Against Python's own evaluation of the same formula as text."""
    rng = random.Random(0)
    infix = {"add": "+", "sub": "-", "mul": "*", "lt": "<", "ge": ">=", "eq": "==", "floordiv": "//", "mod": "%"}

    def tree(depth):
        if depth == 0 or rng.random() < 0.2:
            leaf = rng.choice(["m", "n", "hq", "hkv", rng.randint(1, 99)])
            return leaf, str(leaf)
        op = rng.choice(list(infix))
        a, x = tree(depth - 1)
        b, y = tree(depth - 1)
        if op in ("floordiv", "mod"):
            b, y = ["max", 1, b], f"max(1, {y})"
        return [op, a, b], f"(({x}) {infix[op]} ({y}))"

    for _ in range(300):
        expr, text = tree(4)
        assert value(expr) == int(eval(text, {}, {k: v for k, v in ENV.items() if isinstance(k, str)})), text
