"""Upstream passes on attn functions: what they leave is still an attn function, with the same values and the same bounds."""

import glob
import os

import numpy as np
import pytest

from fa4c.ir import interpret_attn
from fa4c.ir.context import new_context, parse_module, print_module
from fa4c.ir.semantics import from_function
from fa4c.passes.registry import run_pipeline

CONTEXT = new_context()
ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
FILES = [*sorted(glob.glob(os.path.join(ROOT, "examples", "*.mlir"))), os.path.join(ROOT, "test", "ir", "inputs", "attn_every_op.mlir")]
WINDOW = os.path.join(ROOT, "examples", "window.mlir")
PIPELINES = ["canonicalize,cse", "attn-simplify-mask,canonicalize,cse", "canonicalize,cse,attn-simplify-mask", "sccp,canonicalize"]
SIZES = {"b": 2, "hq": 4, "hkv": 2, "m": 9, "n": 13}


def load(path):
    with open(path, encoding="utf-8") as file:
        return parse_module(file.read(), path, CONTEXT)


def inputs(function) -> dict:
    facts = interpret_attn.function_facts(function)
    rng = np.random.default_rng(0)
    values = {}
    for t in facts.args:
        static = dict(zip(t.dims, t.shape, strict=True))
        shape = [static.get(name) or SIZES[name] for name in interpret_attn.memory_order(t, facts.layout)]
        values[t.name] = np.sort(rng.integers(0, 5, shape), axis=-1).astype(np.int32) if t.dtype == "i32" else rng.standard_normal(shape)
    return values


@pytest.mark.parametrize("path", FILES, ids=os.path.basename)
@pytest.mark.parametrize(
    "pipeline", ["canonicalize,cse", "attn-simplify-mask,canonicalize,cse", "canonicalize,cse,attn-simplify-mask", "sccp,canonicalize"]
)
def test_values_stay_the_same(path, pipeline):
    before, after = load(path), load(path)
    run_pipeline(after, pipeline)
    functions = before.body.operations[0], after.body.operations[0]
    values = inputs(functions[0])
    expected, actual = (interpret_attn.run(function, values) for function in functions)
    assert list(actual) == list(expected)
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-12, atol=1e-13, err_msg=name)
    from_function(functions[1])  # the tree can still be read


def test_constants_that_canonicalisation_hoists_reach_the_tree_and_the_bounds():
    module, plain = load(WINDOW), load(WINDOW)
    run_pipeline(module, "canonicalize,cse")
    function = module.body.operations[0]
    assert function.regions[0].blocks[0].operations[0].operation.name == "arith.constant"
    assert from_function(function) == from_function(plain.body.operations[0])
    run_pipeline(module, "attn-simplify-mask")
    assert '"attn.band_mask"' in print_module(module)
