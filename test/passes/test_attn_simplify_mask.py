"""attn-simplify-mask: bounds against the predicate for every row and key, and execution before and after."""

import os
import random
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from fa4c.ir import interpret_attn
from fa4c.ir.context import new_context, parse_module, print_module
from fa4c.passes.registry import run_pipeline

CONTEXT = new_context()
SIZES = [(m, n) for m in (1, 2, 5, 13) for n in (0, 1, 4, 13, 22)]

HEAD = """func.func @f(
    %q: tensor<?x4xf32> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
    %k: tensor<?x4xf32> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
    %length: tensor<i32> {attn.name = "length", attn.axes = ["b"], attn.dims = []},
    %doc: tensor<?xi32> {attn.name = "doc", attn.axes = ["b"], attn.dims = ["n"]})
    -> (tensor<?x?xf32> {attn.name = "p", attn.axes = ["b", "hq"], attn.dims = ["m", "n"]})
    attributes {attn.align = "ALIGN"} {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x?xf32>
  %u = "attn.mask"(%s) ({
  ^bb0(%b: index, %h: index, %i: index, %j: index):
"""
TAIL = """    "attn.yield"(%keep) : (i1) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %p, %lse = "attn.softmax"(%u) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?xf32>)
  return %p : tensor<?x?xf32>
}
"""


def parse(predicate: str, align: str = "top_left"):
    return parse_module(HEAD.replace("ALIGN", align) + predicate + TAIL, "mask.mlir", CONTEXT)


def function(module):
    return module.body.operations[0]


def mask_op(module):
    ops = [op for op in function(module).regions[0].blocks[0].operations if op.operation.name in ("attn.mask", "attn.band_mask")]
    return ops[0] if ops else None


def inputs(m: int, n: int, seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    return {
        "q": rng.standard_normal((2, m, 2, 4)),
        "k": rng.standard_normal((2, n, 1, 4)),
        "length": rng.integers(0, 20, 2, dtype=np.int32),
        "doc": np.sort(rng.integers(0, 3, (2, n)), axis=1).astype(np.int32),
    }


def seen_and_bounds(module, values: dict, m: int, n: int):
    """(seen[b, i, j], bounds[4][b, i]) of the band mask, by running its regions alone."""
    function_op, op = function(module), mask_op(module)
    facts = interpret_attn.function_facts(function_op)
    sizes = {"b": 2, "hq": 2, "hkv": 1, "m": m, "n": n, "d": 4}
    grouped = {t.name: interpret_attn._to_grouped(t, values[t.name], facts.layout, (), sizes) for t in facts.args}
    run = interpret_attn._Run(function_op, facts, interpret_attn.infer_dims(function_op, facts), grouped, sizes, "float64")
    indices = run._space_indices(("m", "n"), (m, n))
    (seen,) = run._region(op.predicate, [], indices)
    bounds = run._region(op.bounds, [], indices[:3])
    # Only the first head of each batch entry: no mask here depends on the head.
    seen = np.broadcast_to(seen, (2, 1, 2, m, n))[:, 0, 0]
    return seen, [np.broadcast_to(bound, (2, 1, 2, m, 1))[:, 0, 0, :, 0] for bound in bounds]


def check_bounds(module, sizes=SIZES) -> None:
    """No seen key outside [lo, hi), no unseen key inside [full_lo, full_hi), nothing decreases."""
    for m, n in sizes:
        seen, (lo, hi, full_lo, full_hi) = seen_and_bounds(module, inputs(m, n), m, n)
        j = np.arange(n)
        outside = (j < lo[..., None]) | (j >= hi[..., None])
        assert not (seen & outside).any(), f"m={m} n={n}: a seen key lies outside [lo, hi)"
        inside = (j >= full_lo[..., None]) & (j < full_hi[..., None])
        assert not (~seen & inside).any(), f"m={m} n={n}: an unseen key lies inside [full_lo, full_hi)"
        for name, bound in (("lo", lo), ("hi", hi), ("full_lo", full_lo), ("full_hi", full_hi)):
            assert (np.diff(bound, axis=-1) >= 0).all(), f"m={m} n={n}: {name} decreases: {bound}"
            assert (np.abs(bound) < 2**31).all()


def check_same_result(before, after) -> None:
    for m, n in SIZES:
        values = inputs(m, n, seed=1)
        expected = interpret_attn.run(function(before), values)
        actual = interpret_attn.run(function(after), values)
        np.testing.assert_array_equal(actual["p"], expected["p"], err_msg=f"m={m} n={n}")


def simplified(predicate: str, align: str):
    module = parse(predicate, align)
    run_pipeline(module, "attn-simplify-mask")
    check_same_result(parse(predicate, align), module)
    return module


CAUSAL = "    %keep = arith.cmpi sle, %j, %i : index\n"
LENGTH = '    %l32 = "attn.load"(%length) : (tensor<i32>) -> i32\n    %l = arith.index_cast %l32 : i32 to index\n'


@dataclass(frozen=True)
class Mask:
    text: str
    exact: bool = True  # lo, hi and full_lo, full_hi are the tightest ones, where a row sees anything


MASKS = {
    "causal": Mask(CAUSAL),
    "strictly_causal": Mask("    %keep = arith.cmpi slt, %j, %i : index\n"),
    "causal_from_the_other_side": Mask("    %keep = arith.cmpi sge, %i, %j : index\n"),
    "causal_by_difference": Mask(
        "    %d = arith.subi %i, %j : index\n    %z = arith.constant 0 : index\n    %keep = arith.cmpi sge, %d, %z : index\n"
    ),
    "not_acausal": Mask("    %a = arith.cmpi sgt, %j, %i : index\n    %t = arith.constant true\n    %keep = arith.xori %a, %t : i1\n"),
    "negative_offset": Mask(
        "    %c = arith.constant -3 : index\n    %e = arith.addi %i, %c : index\n    %keep = arith.cmpi sle, %j, %e : index\n"
    ),
    "window": Mask("    %c = arith.constant 3 : index\n    %e = arith.subi %i, %c : index\n    %keep = arith.cmpi sge, %j, %e : index\n"),
    "causal_window": Mask(
        "    %c = arith.constant 3 : index\n    %e = arith.subi %i, %c : index\n    %a = arith.cmpi sge, %j, %e : index\n"
        "    %d = arith.cmpi sle, %j, %i : index\n    %keep = arith.andi %a, %d : i1\n"
    ),
    "window_by_distance": Mask(
        "    %e = arith.subi %i, %j : index\n    %a = math.absi %e : index\n    %c = arith.constant 2 : index\n"
        "    %keep = arith.cmpi sle, %a, %c : index\n"
    ),
    "window_in_i32": Mask(
        "    %i32 = arith.index_cast %i : index to i32\n    %j32 = arith.index_cast %j : index to i32\n    %c = arith.constant 2 : i32\n"
        "    %e = arith.addi %j32, %c : i32\n    %keep = arith.cmpi sge, %e, %i32 : i32\n"
    ),
    "blockwise_causal": Mask(
        "    %c = arith.constant 4 : index\n    %a = arith.floordivsi %i, %c : index\n    %d = arith.floordivsi %j, %c : index\n"
        "    %keep = arith.cmpi sle, %d, %a : index\n"
    ),
    "chunks": Mask(
        "    %c = arith.constant 4 : index\n    %a = arith.floordivsi %i, %c : index\n    %d = arith.divsi %j, %c : index\n"
        "    %keep = arith.cmpi eq, %d, %a : index\n"
    ),
    "every_second_query": Mask(  # j <= 2 i + 1
        "    %c = arith.constant 2 : index\n    %o = arith.constant 1 : index\n    %a = arith.muli %i, %c : index\n"
        "    %e = arith.addi %a, %o : index\n    %keep = arith.cmpi sle, %j, %e : index\n"
    ),
    "scaled_key": Mask(  # 3 j < 2 i + 1
        "    %c = arith.constant 2 : index\n    %o = arith.constant 1 : index\n    %t = arith.constant 3 : index\n"
        "    %a = arith.muli %i, %c : index\n    %e = arith.addi %a, %o : index\n    %k3 = arith.muli %t, %j : index\n"
        "    %keep = arith.cmpi slt, %k3, %e : index\n"
    ),
    "keys_only": Mask("    %c = arith.constant 5 : index\n    %keep = arith.cmpi slt, %j, %c : index\n"),
    "length": Mask(LENGTH + "    %keep = arith.cmpi slt, %j, %l : index\n"),
    "prefix_lm": Mask(
        LENGTH + "    %a = arith.cmpi slt, %j, %l : index\n    %d = arith.cmpi sle, %j, %i : index\n    %keep = arith.ori %a, %d : i1\n"
    ),
    "per_batch_choice": Mask(
        LENGTH + "    %c = arith.constant 7 : index\n    %long = arith.cmpi sgt, %l, %c : index\n    %a = arith.cmpi sle, %j, %i : index\n"
        "    %t = arith.constant true\n    %keep = arith.select %long, %a, %t : i1\n"
    ),
    "per_batch_off": Mask(
        LENGTH + "    %c = arith.constant 7 : index\n    %long = arith.cmpi sgt, %l, %c : index\n    %a = arith.cmpi sle, %j, %i : index\n"
        "    %keep = arith.andi %long, %a : i1\n"
    ),
    "document_causal": Mask(
        '    %x = "attn.load"(%doc, %i) : (tensor<?xi32>, index) -> i32\n    %y = "attn.load"(%doc, %j) : (tensor<?xi32>, index) -> i32\n'
        "    %a = arith.cmpi eq, %x, %y : i32\n    %d = arith.cmpi sle, %j, %i : index\n    %keep = arith.andi %a, %d : i1\n",
        exact=False,
    ),
    "reversed_causal": Mask(  # j < n - i: the bound falls with i
        '    %n = "attn.size"() {dim = "n"} : () -> index\n    %e = arith.subi %n, %i : index\n'
        "    %keep = arith.cmpi slt, %j, %e : index\n",
        exact=False,
    ),
    "reversed_from_below": Mask(
        '    %n = "attn.size"() {dim = "n"} : () -> index\n    %e = arith.subi %n, %i : index\n'
        "    %keep = arith.cmpi sge, %j, %e : index\n",
        exact=False,
    ),
    "other_keys": Mask("    %keep = arith.cmpi ne, %j, %i : index\n", exact=False),
    "sinks_or_window": Mask(
        "    %c = arith.constant 2 : index\n    %e = arith.subi %i, %c : index\n    %a = arith.cmpi sge, %j, %e : index\n"
        "    %d = arith.cmpi sle, %j, %i : index\n    %w = arith.andi %a, %d : i1\n    %sink = arith.cmpi slt, %j, %c : index\n"
        "    %sc = arith.andi %sink, %d : i1\n    %keep = arith.ori %w, %sc : i1\n",
        exact=False,
    ),
    "parity": Mask(
        "    %c = arith.constant 2 : index\n    %a = arith.remsi %j, %c : index\n    %z = arith.constant 0 : index\n"
        "    %d = arith.cmpi eq, %a, %z : index\n    %f = arith.cmpi sle, %j, %i : index\n    %keep = arith.andi %d, %f : i1\n",
        exact=False,
    ),
}


@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
@pytest.mark.parametrize("name", MASKS)
def test_bounds_and_result(name, align):
    module = simplified(MASKS[name].text, align)
    assert mask_op(module).operation.name == "attn.band_mask"
    check_bounds(module)


@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
@pytest.mark.parametrize("name", [name for name, mask in MASKS.items() if mask.exact])
def test_bounds_of_an_interval_are_the_tightest(name, align):
    """Where a row sees a key, its seen keys are [lo, hi) and [full_lo, full_hi) cut to [0, n)."""
    module = simplified(MASKS[name].text, align)
    for m, n in SIZES:
        seen, bounds = seen_and_bounds(module, inputs(m, n), m, n)
        lo, hi, full_lo, full_hi = (np.clip(bound, 0, n) for bound in bounds)
        rows = seen.any(axis=-1)
        if n == 0:
            continue
        first, last = seen.argmax(axis=-1), n - seen[..., ::-1].argmax(axis=-1)
        for bound, true in ((lo, first), (full_lo, first), (hi, last), (full_hi, last)):
            np.testing.assert_array_equal(bound[rows], true[rows], err_msg=f"m={m} n={n}")
        assert (hi[~rows] <= lo[~rows]).all()


def test_unknown_masks_stay():
    module = simplified(
        '    %x = "attn.load"(%doc, %i) : (tensor<?xi32>, index) -> i32\n    %y = "attn.load"(%doc, %j) : (tensor<?xi32>, index) -> i32\n'
        "    %keep = arith.cmpi eq, %x, %y : i32\n",
        "top_left",
    )
    assert mask_op(module).operation.name == "attn.mask"


@pytest.mark.parametrize(
    "predicate",
    [
        "    %keep = arith.constant true\n",
        "    %a = arith.cmpi sle, %j, %i : index\n    %d = arith.cmpi sgt, %j, %i : index\n    %t = arith.constant true\n"
        "    %keep = arith.ori %a, %t : i1\n",
    ],
)
def test_an_always_true_mask_disappears(predicate):
    assert mask_op(simplified(predicate, "top_left")) is None


def test_an_always_false_mask_is_an_empty_band():
    module = simplified("    %keep = arith.constant false\n", "top_left")
    _, bounds = seen_and_bounds(module, inputs(5, 4), 5, 4)
    assert all((bound == 0).all() for bound in bounds)
    assert (interpret_attn.run(function(module), inputs(5, 4))["p"] == 0).all()


def random_predicate(rng: random.Random) -> str:
    """A random condition of what the pass reads, and of what it does not."""
    lines, count = [LENGTH], [0]

    def new(text: str) -> str:
        count[0] += 1
        lines.append(f"    %r{count[0]} = {text}\n")
        return f"%r{count[0]}"

    def integer(depth: int) -> str:
        kind = rng.choice(
            ["i", "j", "l", "constant", "n"] if depth == 0 else ["sum", "difference", "times", "floordiv", "max", "min", "abs", "i", "j"]
        )
        if kind in "ijl":
            return f"%{kind}"
        if kind == "constant":
            return new(f"arith.constant {rng.randint(-6, 9)} : index")
        if kind == "n":
            return new('"attn.size"() {dim = "n"} : () -> index')
        if kind == "times":
            factor = new(f"arith.constant {rng.choice([-2, -1, 2, 3])} : index")
            return new(f"arith.muli {integer(depth - 1)}, {factor} : index")
        if kind == "floordiv":
            divisor = new(f"arith.constant {rng.choice([2, 3, 4])} : index")
            return new(f"arith.floordivsi {integer(depth - 1)}, {divisor} : index")
        if kind == "abs":
            return new(f"math.absi {integer(depth - 1)} : index")
        op = {"sum": "addi", "difference": "subi", "max": "maxsi", "min": "minsi"}[kind]
        return new(f"arith.{op} {integer(depth - 1)}, {integer(depth - 1)} : index")

    def condition(depth: int) -> str:
        kind = rng.choice(["compare"] if depth == 0 else ["and", "or", "xor", "select", "not", "compare", "compare", "same"])
        if kind == "compare":
            predicate = rng.choice(["sle", "slt", "sge", "sgt", "eq", "ne"])
            return new(f"arith.cmpi {predicate}, {integer(rng.randint(0, 2))}, {integer(rng.randint(0, 2))} : index")
        if kind == "not":
            return new(f"arith.xori {condition(depth - 1)}, {new('arith.constant true')} : i1")
        if kind == "select":
            return new(f"arith.select {condition(depth - 1)}, {condition(depth - 1)}, {condition(depth - 1)} : i1")
        if kind == "same":
            return new(f"arith.cmpi {rng.choice(['eq', 'ne'])}, {condition(depth - 1)}, {condition(depth - 1)} : i1")
        return new(f"arith.{kind}i {condition(depth - 1)}, {condition(depth - 1)} : i1")

    last = condition(rng.randint(0, 3))
    return "".join(lines) + f"    %t = arith.constant true\n    %keep = arith.andi {last}, %t : i1\n"


@pytest.mark.parametrize("seed", range(8))
def test_random_conditions(seed):
    rng = random.Random(seed)
    bands = 0
    for _ in range(20):
        predicate, align = random_predicate(rng), rng.choice(["top_left", "bottom_right"])
        before, module = parse(predicate, align), parse(predicate, align)
        run_pipeline(module, "attn-simplify-mask")
        op = mask_op(module)
        try:
            if op is not None and op.operation.name == "attn.band_mask":
                bands += 1
                check_bounds(module, [(1, 0), (5, 4), (4, 13), (13, 5)])
            for m, n in ((5, 4), (4, 13)):
                values = inputs(m, n)
                expected = interpret_attn.run(function(before), values)["p"]
                np.testing.assert_array_equal(interpret_attn.run(function(module), values)["p"], expected)
        except AssertionError as error:
            raise AssertionError(f"{align}\n{predicate}{print_module(module, locations=False)}\n{error}") from None
    assert bands >= 5


@pytest.mark.parametrize("wrong", ["lo + 1", "hi - 1", "full_lo - 1", "full_hi + 1", "falling hi"])
def test_the_check_of_bounds_can_fail(wrong):
    """The bounds of causal & window, one of them off by one or falling."""
    module = simplified(MASKS["causal_window"].text, "top_left")
    text = print_module(module, locations=False)
    yielded = text.split('"attn.yield"(')[-1].split(")")[0].split(", ")
    position = ["lo", "hi", "full_lo", "full_hi"].index(wrong.split()[0]) if wrong != "falling hi" else 1
    lines = {"falling hi": "%w = arith.subi %amount, %i : index"}.get(
        wrong, f"%w = arith.{'addi' if '+' in wrong else 'subi'} {yielded[position]}, %amount : index"
    )
    amount = 100 if wrong == "falling hi" else 1
    old = f'"attn.yield"({", ".join(yielded)})'
    changed = [*yielded[:position], "%w", *yielded[position + 1 :]]
    i = text.split("^bb0(")[-1].split("):")[0].split(", ")[2].split(":")[0]
    new = f'%amount = arith.constant {amount} : index\n{lines.replace("%i", i)}\n"attn.yield"({", ".join(changed)})'
    with pytest.raises(AssertionError):
        check_bounds(parse_module(text.replace(old, new), "wrong.mlir", CONTEXT))


def test_text_depends_on_no_address_and_no_hash_seed():
    """Two loaded lengths and both sizes: sums are sets of terms, whose order must not come from their hashes."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from fa4c.ir.context import parse_module, print_module\n"
        "from fa4c.passes.registry import run_pipeline\n"
        "module = parse_module(sys.stdin.read())\n"
        "run_pipeline(module, 'attn-simplify-mask')\n"
        "print(print_module(module))\n"
    )
    predicate = LENGTH + (
        '    %n = "attn.size"() {dim = "n"} : () -> index\n    %m = "attn.size"() {dim = "m"} : () -> index\n'
        "    %a = arith.addi %l, %n : index\n    %c = arith.subi %a, %m : index\n    %d = arith.muli %b, %h : index\n"
        "    %e = arith.addi %c, %d : index\n    %f = arith.addi %e, %i : index\n    %keep = arith.cmpi sle, %j, %f : index\n"
    )
    text = HEAD.replace("ALIGN", "bottom_right") + predicate + TAIL
    root = os.path.join(os.path.dirname(__file__), "..", "..")
    texts = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, "-c", program, root], input=text, capture_output=True, text=True, env=environment, check=True)
        texts.add(run.stdout)
    assert len(texts) == 1 and "attn.band_mask" in texts.pop()


def test_locations_are_those_of_the_mask():
    module = parse(MASKS["causal_window"].text)
    where = mask_op(module).location
    run_pipeline(module, "attn-simplify-mask")
    op = mask_op(module)
    assert op.location == where
    assert all(inner.location == where for inner in op.bounds.blocks[0].operations)
