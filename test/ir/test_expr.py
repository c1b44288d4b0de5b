"""Expression trees: canonical form, dtypes, the reading of regions, and constants in text."""

import math
import os

import numpy as np
import pytest

from fa4c.frontend.to_mlir import _literal, to_mlir
from fa4c.frontend.variant import standard
from fa4c.ir import scalar
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.expr import ExprBuilder, canonical, dtypes_of, round_constant
from fa4c.ir.semantics import from_function

CONTEXT = new_context()


def test_equal_nodes_are_one_and_dead_ones_go():
    expr = [["x", 0], ["const", 2.0, "f32"], ["exp", 0], ["const", 2.0, "f32"], ["mul", 0, 1], ["mul", 0, 3], ["add", 4, 5]]
    assert canonical(expr, ["f32"]) == [["x", 0], ["const", 2.0, "f32"], ["mul", 0, 1], ["add", 2, 2]]


def test_order_is_that_of_the_walk_from_the_value():
    one = [["x", 0], ["index", "i"], ["index", "j"], ["sub", 2, 1], ["cast", 3, "i32"], ["cast", 4, "f32"], ["add", 0, 5]]
    other = [["index", "j"], ["index", "i"], ["sub", 0, 1], ["cast", 2, "f32"], ["x", 0], ["add", 4, 3]]
    assert canonical(one, ["f32"]) == canonical(other, ["f32"])
    assert canonical(canonical(one, ["f32"]), ["f32"]) == canonical(one, ["f32"])


def test_shorthands_are_written_out():
    ops = [node[0] for node in canonical([["x", 0], ["sigmoid", 0]], ["f32"])]
    assert ops == ["const", "x", "neg", "exp", "add", "div"]
    assert canonical([["index", "i"], ["neg", 0]]) == [["const", 0, "index"], ["index", "i"], ["sub", 0, 1]]
    assert canonical([["x", 0], ["cast", 0, "f32"]], ["f32"]) == [["x", 0]]
    truth = canonical([["x", 0], ["cast", 0, "i1"]], ["f32"])
    assert truth == [["x", 0], ["const", 0.0, "f32"], ["ne", 0, 1]]
    assert canonical([["index", "i"], ["index", "j"], ["lt", 0, 1], ["const", True, "i1"], ["xor", 2, 3]])[-1] == ["not", 2]


def test_constants_that_look_alike_stay_apart():
    builder = ExprBuilder()
    numbers = [
        builder.const(1, "i32"),
        builder.const(1.0, "f32"),
        builder.const(True, "i1"),
        builder.const(0.0, "f32"),
        builder.const(-0.0, "f32"),
    ]
    assert len(set(numbers)) == 5


@pytest.mark.parametrize(
    "expr, message",
    [
        ([["x", 0], ["index", "i"], ["add", 0, 1]], "'add' cannot take operands of dtypes f32, index"),
        ([["x", 0], ["nonsense", 0]], "no operation 'nonsense'"),
        ([["add", 1, 2]], "which does not stand before it"),
        ([["load", "slopes"]], "no tensor 'slopes'"),
        ([["index", "k"]], "no index 'k'"),
        ([["x", 0], ["x", 0], ["select", 0, 0, 1]], "'select' cannot take"),
    ],
)
def test_malformed_trees(expr, message):
    with pytest.raises(ValueError, match=message):
        canonical(expr, ["f32"])


def test_dtypes():
    expr = [["index", "j"], ["cast", 0, "i32"], ["cast", 1, "f32"], ["x", 0], ["lt", 2, 3]]
    assert dtypes_of(expr, ["f32"]) == ["index", "i32", "f32", "f32", "i1"]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "fp16", "f64"])
def test_constants_read_back_as_themselves(dtype):
    rng = np.random.default_rng(0)
    values = [*rng.standard_normal(200) * 10.0 ** rng.integers(-7, 4, 200), 0.0, -0.0, 1.0, 1e-5, math.inf, -math.inf]
    kind = "f16" if dtype == "fp16" else dtype
    for value in (round_constant(v, dtype) for v in values):
        module = parse_module(
            f"func.func @f() {{\n  %c = arith.constant {_literal(value, dtype)} : {kind}\n  return\n}}", "c.mlir", CONTEXT
        )
        back = module.body.operations[0].regions[0].blocks[0].operations[0].operation.attributes["value"].value
        assert back == float(value) and math.copysign(1, back) == math.copysign(1, float(value))
    assert "nan" in round_constant(float("nan"), dtype)


def evaluate(expr, x):
    """A tree in Python, for the functions used below."""
    values = []
    functions = {
        "add": np.add,
        "mul": np.multiply,
        "max": np.maximum,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "eq": np.equal,
        "ne": np.not_equal,
        "or": np.logical_or,
        "not": np.logical_not,
        "select": np.where,
        "and": np.logical_and,
        "abs": np.abs,
    }
    for node in expr:
        if node[0] == "x":
            values.append(x[node[1]])
        elif node[0] == "const":
            values.append(np.float64(node[1]))
        else:
            values.append(functions[node[0]](*[values[n] for n in node[1:]]))
    return values[-1]


def tree_of_map(body: str) -> list:
    text = f"""func.func @f(%a: tensor<?x4xf32> {{attn.name = "a", attn.axes = ["b"], attn.dims = ["m", "d"]}},
                         %c: tensor<?x4xf32> {{attn.name = "c", attn.axes = ["b"], attn.dims = ["m", "d"]}})
      -> (tensor<?x4xf32> {{attn.name = "o", attn.axes = ["b"], attn.dims = ["m", "d"]}}) {{
  %z = arith.constant 0.0 : f32
  %r = "attn.map"(%a, %c) ({{
  ^bb0(%x: f32, %y: f32, %b: index, %h: index, %i: index, %j: index):
{body}
    "attn.yield"(%r) : (f32) -> ()
  }}) : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  return %r : tensor<?x4xf32>
}}""".replace('  %r = "attn.map"', '  %o = "attn.map"').replace("return %r", "return %o")
    module = parse_module(text, "map.mlir", CONTEXT)
    return from_function(module.body.operations[0])["body"][0]["expr"]


@pytest.mark.parametrize("predicate", "oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno".split())
def test_float_comparisons_keep_their_meaning_with_nan(predicate):
    expr = tree_of_map(f"    %k = arith.cmpf {predicate}, %x, %y : f32\n    %r = arith.select %k, %x, %z : f32")
    x, y = np.meshgrid([1.0, 2.0, np.nan], [1.0, 2.0, np.nan])
    module = parse_module(
        f"func.func @f(%x: f32, %y: f32) -> i1 {{\n  %k = arith.cmpf {predicate}, %x, %y : f32\n  return %k : i1\n}}", "c.mlir", CONTEXT
    )
    (expected,) = scalar.evaluate(module.body.operations[0].regions[0].blocks[0], [x, y])
    np.testing.assert_array_equal(evaluate(expr, [x, y]), np.where(expected, x, 0.0))


def test_if_and_values_of_the_enclosing_function():
    expr = tree_of_map(
        "    %k = arith.cmpf ogt, %x, %z : f32\n    %r = scf.if %k -> f32 {\n      %m = arith.mulf %x, %y : f32\n      scf.yield %m : f32\n"
        "    } else {\n      scf.yield %z : f32\n    }"
    )
    x, y = np.array([-1.0, 2.0]), np.array([5.0, 7.0])
    np.testing.assert_array_equal(evaluate(expr, [x, y]), [0, 14])


@pytest.mark.parametrize(
    "body, message",
    [
        ("    %k = arith.cmpf olt, %x, %y : f32\n    %r = arith.sitofp %k : i1 to f32", "true is -1.*\n.*\n.*use arith.uitofp"),
        ("    %k = arith.cmpi ult, %i, %j : index\n    %r = arith.select %k, %x, %z : f32", "compares without sign"),
        ("    %i32 = arith.index_cast %i : index to i32\n    %r = arith.uitofp %i32 : i32 to f32", "reads an integer as unsigned"),
        (
            "    %i32 = arith.index_cast %i : index to i32\n    %t = arith.trunci %i32 : i32 to i1\n    %r = arith.select %t, %x, %z : f32",
            "makes an i1 by truncation",
        ),
    ],
)
def test_what_the_tree_cannot_say_is_refused(body, message):
    with pytest.raises(Diagnostic, match=message):
        tree_of_map(body)


def test_names_of_values_do_not_matter():
    with open(os.path.join(os.path.dirname(__file__), "..", "..", "examples", "alibi.mlir"), encoding="utf-8") as file:
        text = file.read()
    modules = [
        parse_module(t, "a.mlir", CONTEXT)
        for t in (text, text.replace("%bias", "%penalty").replace("%s ", "%score ").replace("(%s)", "(%score)"))
    ]
    trees = [from_function(module.body.operations[0]) for module in modules]
    assert trees[0] == trees[1]
    assert [step["out"] for step in trees[0]["body"]] == [["%0"], ["%1"], ["%2"], ["%3", "%4"], ["%5"], ["%6"], ["%7"]]


def test_argument_names_that_collide_with_those_of_a_region():
    tree = standard(causal=True)
    text = to_mlir(tree).replace('attn.name = "q"', 'attn.name = "x"').replace('attn.name = "k"', 'attn.name = "i"').replace('"v"', '"e1"')
    module = parse_module(text, "a.mlir", CONTEXT)
    renamed = from_function(module.body.operations[0])
    again = parse_module(to_mlir(renamed), "b.mlir", CONTEXT)
    assert from_function(again.body.operations[0]) == renamed
