"""The scalar evaluator against torch and Python, operation by operation."""

import math

import numpy as np
import pytest
import torch

from fa4c.ir import scalar
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import Diagnostic

CONTEXT = new_context()
FLOATS = np.array([-3.7, -1.0, -0.5, -0.0, 0.0, 0.3, 1.0, 2.5, 7.9, 1e-3])
POSITIVE = np.array([1e-3, 0.2, 1.0, 2.5, 8.0, 123.0])
INTS = np.array([-7, -4, -1, 0, 1, 3, 4, 9])


def evaluate(body: str, arguments: list, types: list[str], result: str, mode: str = "float64"):
    """Run `body`, which reads %0, %1, ... as %a, %b, ... and ends with a value %r."""
    names = ", ".join(f"%{name}: {kind}" for name, kind in zip("abc", types, strict=False))
    text = f"func.func @f({names}) -> {result} {{\n{body}\n  return %r : {result}\n}}"
    module = parse_module(text, "scalar.mlir", CONTEXT)
    (value,) = scalar.evaluate(module.body.operations[0].regions[0].blocks[0], arguments, mode=mode)
    return value


UNARY = {
    "arith.negf": torch.neg,
    "math.exp": torch.exp,
    "math.exp2": torch.exp2,
    "math.tanh": torch.tanh,
    "math.erf": torch.special.erf,
    "math.absf": torch.abs,
    "math.floor": torch.floor,
    "math.log": torch.log,
    "math.log2": torch.log2,
    "math.sqrt": torch.sqrt,
    "math.rsqrt": torch.rsqrt,
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    values = POSITIVE if name in ("math.log", "math.log2", "math.sqrt", "math.rsqrt") else FLOATS
    actual = evaluate(f"  %r = {name} %a : f32", [values], ["f32"], "f32")
    np.testing.assert_allclose(actual, UNARY[name](torch.from_numpy(values)).numpy(), rtol=1e-14)
    assert actual.dtype == np.float64


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("kind, dtype", [("f32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_unary_in_kernel_mode_is_rounded(name, kind, dtype):
    values = torch.from_numpy(POSITIVE if name in ("math.log", "math.log2", "math.sqrt", "math.rsqrt") else FLOATS).to(dtype)
    actual = evaluate(f"  %r = {name} %a : {kind}", [values.float().numpy()], [kind], kind, mode="kernel")
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(torch.from_numpy(actual).to(dtype).float().numpy(), actual)  # holds only values of the type
    expected = UNARY[name](values.double())
    unit = torch.finfo(dtype).eps
    np.testing.assert_allclose(actual, expected.numpy(), rtol=unit if kind != "f32" else 4 * unit)


BINARY = {
    "arith.addf": torch.add,
    "arith.subf": torch.sub,
    "arith.mulf": torch.mul,
    "arith.divf": torch.div,
    "arith.maximumf": torch.maximum,
    "arith.minimumf": torch.minimum,
    "arith.maxnumf": torch.fmax,
    "arith.minnumf": torch.fmin,
    "arith.remf": torch.fmod,
    "math.powf": torch.pow,
}


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    a, b = np.meshgrid(FLOATS, np.array([-2.0, -0.7, 0.5, 3.0, np.nan]))
    actual = evaluate(f"  %r = {name} %a, %b : f64", [a, b], ["f64", "f64"], "f64")
    np.testing.assert_allclose(actual, BINARY[name](torch.from_numpy(a), torch.from_numpy(b)).numpy(), rtol=1e-14)


@pytest.mark.parametrize("kind, dtype", [("bf16", torch.bfloat16), ("f16", torch.float16), ("f32", torch.float32)])
@pytest.mark.parametrize("name", ["arith.addf", "arith.mulf", "arith.divf"])
def test_kernel_mode_rounds_as_torch_does(name, kind, dtype):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(4000, generator=generator).to(dtype) for _ in range(2))
    actual = evaluate(f"  %r = {name} %a, %b : {kind}", [a.float().numpy(), b.float().numpy()], [kind, kind], kind, mode="kernel")
    np.testing.assert_array_equal(actual, BINARY[name](a, b).float().numpy())


def test_rounding_to_bf16_and_f16_is_to_nearest_even():
    bits = np.random.default_rng(0).integers(0, 2**32, 200000, dtype=np.uint32)
    values = np.concatenate([bits.view(np.float32), np.array([np.inf, -np.inf, 3.4e38, -0.0, 1.00390625, 1.01171875], dtype=np.float32)])
    for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        expected = torch.from_numpy(values).to(dtype).float().numpy()
        np.testing.assert_array_equal(scalar.round_to(name, values), expected)


def floor_division(a, b):
    return 0 if b == 0 else a // b


def division(a, b):
    return 0 if b == 0 else int(math.copysign(1, a * b)) * (abs(a) // abs(b)) if a else 0


INTEGER = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": division,
    "arith.floordivsi": floor_division,
    "arith.ceildivsi": lambda a, b: 0 if b == 0 else -(-a // b),
    "arith.remsi": lambda a, b: 0 if b == 0 else a - b * division(a, b),
    "arith.maxsi": max,
    "arith.minsi": min,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
}


@pytest.mark.parametrize("kind", ["i32", "index"])
@pytest.mark.parametrize("name", INTEGER)
def test_integers(name, kind):
    a, b = np.meshgrid(INTS, INTS)
    actual = evaluate(
        f"  %r = {name} %a, %b : {kind}", [scalar.round_to(kind, a), scalar.round_to(kind, b)], [kind, kind], kind, mode="kernel"
    )
    expected = np.vectorize(lambda x, y: INTEGER[name](int(x), int(y)))(a, b)
    np.testing.assert_array_equal(actual, expected)
    assert actual.dtype == (np.int32 if kind == "i32" else np.int64)


def test_i32_wraps_around():
    top = np.array([2**31 - 1], dtype=np.int32)
    assert evaluate("  %r = arith.addi %a, %b : i32", [top, np.array([1], dtype=np.int32)], ["i32", "i32"], "i32")[0] == -(2**31)


SIGNED = {"eq": np.equal, "ne": np.not_equal, "slt": np.less, "sle": np.less_equal, "sgt": np.greater, "sge": np.greater_equal}


@pytest.mark.parametrize("predicate", [*SIGNED, "ult", "ule", "ugt", "uge"])
def test_compare_integers(predicate):
    a, b = (grid.astype(np.int32) for grid in np.meshgrid(INTS, INTS))
    actual = evaluate(f"  %r = arith.cmpi {predicate}, %a, %b : i32", [a, b], ["i32", "i32"], "i1")
    function = SIGNED.get(predicate) or SIGNED["s" + predicate[1:]]
    expected = function(a, b) if predicate in SIGNED else function(a.astype(np.int64) % 2**32, b.astype(np.int64) % 2**32)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("predicate", "false oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno true".split())
def test_compare_floats(predicate):
    values = [-1.0, 0.0, -0.0, 2.0, float("inf"), float("nan")]
    a, b = np.meshgrid(values, values)
    ordered = {
        "eq": lambda x, y: x == y,
        "gt": lambda x, y: x > y,
        "ge": lambda x, y: x >= y,
        "lt": lambda x, y: x < y,
        "le": lambda x, y: x <= y,
        "ne": lambda x, y: x != y,
    }

    def expected(x, y):
        nan = math.isnan(x) or math.isnan(y)
        if predicate in ("true", "false", "ord", "uno"):
            return {"true": True, "false": False, "ord": not nan, "uno": nan}[predicate]
        return (predicate[0] == "u") if nan else ordered[predicate[1:]](x, y)

    actual = evaluate(f"  %r = arith.cmpf {predicate}, %a, %b : f32", [a, b], ["f32", "f32"], "i1")
    np.testing.assert_array_equal(actual, np.vectorize(expected)(a, b))


CASTS = [
    ("arith.extf", "bf16", "f32", [1.5, -2.0], [1.5, -2.0]),
    ("arith.truncf", "f32", "bf16", [1.00390625, 3.0], [1.0, 3.0]),
    ("arith.sitofp", "i32", "f32", [-3, 7], [-3.0, 7.0]),
    ("arith.uitofp", "i1", "f32", [True, False], [1.0, 0.0]),
    ("arith.sitofp", "i1", "f32", [True, False], [-1.0, 0.0]),
    ("arith.fptosi", "f32", "i32", [-1.9, 2.9, np.nan, 1e20], [-1, 2, 0, 2**31 - 1]),
    ("arith.index_cast", "index", "i32", [-5, 2**31 + 1], [-5, -(2**31) + 1]),
    ("arith.index_castui", "i1", "index", [True, False], [1, 0]),
    ("arith.trunci", "i64", "i32", [2**32 + 5, -1], [5, -1]),
    ("arith.trunci", "i32", "i1", [2, 3], [False, True]),
    ("arith.extsi", "i32", "i64", [-5, 6], [-5, 6]),
    ("arith.extui", "i1", "i32", [True, False], [1, 0]),
    ("arith.extsi", "i1", "i32", [True, False], [-1, 0]),
    ("arith.bitcast", "f32", "i32", [1.0, -2.0], [0x3F800000, -0x40000000]),
]


@pytest.mark.parametrize("name, source, target, values, expected", CASTS, ids=[f"{c[0]}_{c[1]}_{c[2]}" for c in CASTS])
def test_casts(name, source, target, values, expected):
    given = scalar.round_to(source, np.array(values), "kernel")
    actual = evaluate(f"  %r = {name} %a : {source} to {target}", [given], [source], target, mode="kernel")
    np.testing.assert_array_equal(actual, np.array(expected))


def test_select_broadcasts():
    condition, yes = np.array([[True], [False]]), np.array([1.0, 2.0, 3.0])
    actual = evaluate("  %r = arith.select %a, %b, %c : f32", [condition, yes, np.float64(9)], ["i1", "f32", "f32"], "f32")
    np.testing.assert_array_equal(actual, [[1, 2, 3], [9, 9, 9]])


def test_if_evaluates_both_sides_and_chooses():
    body = """
  %r = scf.if %a -> f32 {
    %y = math.sqrt %b : f32
    scf.yield %y : f32
  } else {
    %n = arith.negf %b : f32
    scf.yield %n : f32
  }"""
    values = np.array([4.0, -4.0])
    np.testing.assert_array_equal(evaluate(body, [values > 0, values], ["i1", "f32"], "f32"), [2, 4])


def test_constants_keep_the_precision_of_their_type():
    body = "  %c = arith.constant 0.1 : f32\n  %r = arith.addf %a, %c : f32"
    assert evaluate(body, [np.zeros(1)], ["f32"], "f32")[0] == float(np.float32(0.1))
    body = "  %c = arith.constant 0xFF800000 : f32\n  %r = arith.addf %a, %c : f32"
    assert evaluate(body, [np.zeros(1)], ["f32"], "f32")[0] == -np.inf


def test_float64_mode_does_not_round():
    third = np.array([1 / 3])
    assert evaluate("  %r = arith.mulf %a, %a : bf16", [third], ["bf16"], "bf16")[0] == (1 / 3) * (1 / 3)


def test_an_unknown_operation_is_a_diagnostic():
    with pytest.raises(Diagnostic, match="scalar.mlir:2:8: error: 'math.ctpop' cannot be evaluated"):
        evaluate("  %r = math.ctpop %a : i32", [np.array([1], dtype=np.int32)], ["i32"], "i32")


def test_tensors_of_constants():
    body = "  %c = arith.constant dense<[1.0, 2.0]> : tensor<2xf32>\n  %d = arith.constant dense<3.0> : tensor<2xf32>\n"
    body += "  %r = arith.addf %c, %d : tensor<2xf32>"
    np.testing.assert_array_equal(evaluate(body, [], [], "tensor<2xf32>"), [4, 5])
