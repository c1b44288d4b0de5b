"""What the attn dialect refuses: place, reason and way out, one case a rule."""

import os

import pytest

from fa4c.ir.attn_signature import verify_module
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import Diagnostic, from_mlir_error
from fa4c.ir.mlir import ir

CONTEXT = new_context()
with open(os.path.join(os.path.dirname(__file__), "inputs", "attn_every_op.mlir"), encoding="utf-8") as file:
    EVERY_OP = file.read()
with open(os.path.join(os.path.dirname(__file__), "..", "..", "examples", "document.mlir"), encoding="utf-8") as file:
    DOCUMENT = file.read()


def report(text: str) -> str:
    """The diagnostics of a text, "" if it is right."""
    try:
        module = parse_module(text, "bad.mlir", CONTEXT)
        with CONTEXT:
            verify_module(module)
    except ir.MLIRError as error:
        return from_mlir_error(error)
    except Diagnostic as error:
        return error.text()
    return ""


def changed(text: str, *replacements: tuple[str, str]) -> str:
    for old, new in replacements:
        assert old in text, f"the test's own text lacks {old!r}"
        text = text.replace(old, new, 1)
    return text


def test_the_texts_are_right_as_they_are():
    assert report(EVERY_OP) == report(DOCUMENT) == ""


def extra(line: str) -> tuple[str, str]:
    """One more operation before the return."""
    return "  return", f"  {line}\n  return"


CASES = {
    "gemm: contracted sizes": (
        EVERY_OP,
        [extra('%bad = "attn.gemm"(%p, %v) {transpose_b = true} : (tensor<?x?xf32>, tensor<?x24xf32>) -> tensor<?x?xf32>')],
        [
            "'attn.gemm' needs one contracted size, but a has ? and b has 24",
            "note: why: op(a) is ?x? and op(b) is 24x?",
            "note: fix: set transpose_a",
        ],
    ),
    "gemm: dtypes": (
        DOCUMENT,
        [('"attn.gemm"(%pc, %v) : (tensor<?x?xbf16>', '"attn.gemm"(%p, %v) : (tensor<?x?xf32>')],
        ["needs one dtype for both operands, but a has f32 and b has bf16", '"attn.cast"'],
    ),
    "function: a condition that is none": (
        DOCUMENT,
        [('attributes {attn.align = "bottom_right"}', 'attributes {attn.align = "bottom_right", attn.when = "n < 16"}')],
        ['has attn.when = "n < 16"', "a function runs where one of b, hq, hkv, m, n is at most a number", 'attn.when = "n <= 16"'],
    ),
    "function: may not run, but returns something new": (
        DOCUMENT,
        [('attributes {attn.align = "bottom_right"}', 'attributes {attn.align = "bottom_right", attn.when = "n <= 16"}')],
        ["returns 'o', and may not run at all", "a result is what an argument of the same name, dtype, axes and dimensions was"],
    ),
    "gemm: result dtype": (
        DOCUMENT,
        [extra('%bad = "attn.gemm"(%pc, %v) : (tensor<?x?xbf16>, tensor<?x128xbf16>) -> tensor<?x128xbf16>')],
        ["has out of dtype bf16", "it takes f32"],
    ),
    "gemm: misspelled attribute": (
        DOCUMENT,
        [("transpose_b", "transposeb")],
        ["has no attribute 'transposeb'", "did you mean 'transpose_b'?"],
    ),
    "gemm: attribute of the wrong kind": (
        DOCUMENT,
        [("transpose_b = true", 'transpose_b = "yes"')],
        ['has transpose_b = "yes", which is no bool attribute'],
    ),
    "map: shapes": (
        EVERY_OP,
        [
            ('"attn.map"(%o, %do)', '"attn.map"(%o, %q)'),
            (
                "tensor<?x24xf32>, tensor<?x24xf32>) -> tensor<?x24xf32>\n  %delta",
                "tensor<?x24xf32>, tensor<?x16xf32>) -> tensor<?x24xf32>\n  %delta",
            ),
        ],
        ["maps over ?x24, but input 1 is tensor<?x16xf32>"],
    ),
    "map: region arguments": (
        DOCUMENT,
        [("^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index)", "^bb0(%x: f32, %b: index, %h: index, %i: index)")],
        [
            "'attn.map' has a region with arguments (f32, index, index, index)",
            "it takes (element of input 0: f32, b: index, h: index, i: index, j: index)",
        ],
    ),
    "map: yields the wrong type": (
        DOCUMENT,
        [('"attn.yield"(%y) : (f32)', '"attn.yield"(%j) : (index)')],
        ["has a region that yields (index)", "it must yield (f32)"],
    ),
    "region: another dialect's operation": (
        DOCUMENT,
        [("%y = arith.mulf %x, %c : f32", "%y = math.sin %x : f32")],
        ["bad.mlir:15:10: error: 'math.sin' cannot stand in a region of 'attn.map'", "regions hold math.absf, math.absi, math.erf, "],
    ),
    "region: an operation with a signed form": (
        DOCUMENT,
        [("arith.mulf %x, %c", "arith.maxnumf %x, %c")],
        ["note: fix: use arith.maximumf"],
    ),
    "region: misspelled upstream attribute": (
        DOCUMENT,
        [("%y = arith.mulf %x, %c : f32", '%y = "arith.mulf"(%x, %c) {fastmaths = 1} : (f32, f32) -> f32')],
        ["'arith.mulf' has no attribute 'fastmaths'", "did you mean 'fastmath'?"],
    ),
    "region: no yield": (DOCUMENT, [('    "attn.yield"(%y) : (f32) -> ()\n', "")], ['does not end in "attn.yield"']),
    "mask: predicate yields no truth value": (
        DOCUMENT,
        [('"attn.yield"(%keep) : (i1)', '"attn.yield"(%doc_i) : (i32)')],
        ["yields (i32)", "it must yield (i1)"],
    ),
    "mask: shape": (
        DOCUMENT,
        [
            extra(
                '%bad = "attn.mask"(%t) ({\n  ^bb0(%b: index, %h: index, %i: index, %j: index):\n    %keep = arith.constant true\n'
                '    "attn.yield"(%keep) : (i1) -> ()\n  }) : (tensor<?x?xf32>) -> tensor<?x7xf32>'
            )
        ],
        ["'attn.mask' has out of shape ?x7, but it must be ?x?"],
    ),
    "band_mask: bounds": (
        EVERY_OP,
        [('"attn.yield"(%zero, %hi, %zero, %hi) : (index, index, index, index)', '"attn.yield"(%zero, %hi) : (index, index)')],
        ["'attn.band_mask' has a region that yields (index, index)", "it must yield (index, index, index, index)"],
    ),
    "softmax: lse": (
        EVERY_OP,
        [extra('%b1, %b2 = "attn.softmax"(%w) : (tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<7xf32>)')],
        ["'attn.softmax' has lse of shape 7, but it must be ?", "one log-sum-exp a row"],
    ),
    "softmax: rank": (
        EVERY_OP,
        [
            ('"attn.softmax"(%w) : (tensor<?x?xf32>)', '"attn.softmax"(%delta0) : (tensor<?xf32>)'),
            ("  %p, %lse", '  %delta0 = "attn.reduce"(%w) {kind = "sum"} : (tensor<?x?xf32>) -> tensor<?xf32>\n  %p, %lse'),
        ],
        ["has scores of rank 1", "batch and heads are named in attn.axes"],
    ),
    "softmax: scale": (DOCUMENT, [('"attn.softmax"(%u)', '"attn.softmax"(%u) {scale = -1.0 : f32}')], ["'attn.softmax' has scale = -1.0"]),
    "cast: shape": (
        DOCUMENT,
        [extra('%bad = "attn.cast"(%o) : (tensor<?x128xf32>) -> tensor<?x?xbf16>')],
        ["'attn.cast' has out of shape ?x?, but it must be ?x128"],
    ),
    "reduce: kind": (EVERY_OP, [('kind = "max"', 'kind = "mean"')], ['has kind = "mean"', 'it is one of "sum", "max"']),
    "reduce: no kind": (EVERY_OP, [(' {kind = "max"}', "")], ["'attn.reduce' lacks the attribute 'kind'"]),
    "reduce: shape": (
        EVERY_OP,
        [extra('%bad = "attn.reduce"(%w) {kind = "max"} : (tensor<?x?xf32>) -> tensor<f32>')],
        ["has out of shape a scalar, but it must be ?"],
    ),
    "reduce: dim": (EVERY_OP, [("dim = 0", "dim = 2")], ["has dim = 2, but x has 2 dimensions", "write dim = 1"]),
    "reduce: dim is no string": (EVERY_OP, [("dim = 0", 'dim = "m"')], ["which is no integer attribute"]),
    "scatter: indices": (
        EVERY_OP,
        [('"attn.yield"(%x, %j) : (f32, index)', '"attn.yield"(%x) : (f32)')],
        ["'attn.scatter' has a region that yields (f32)", "it must yield (f32, index)"],
    ),
    "scatter: shape": (
        EVERY_OP,
        [
            extra(
                '%bad = "attn.scatter"(%delta, %again) ({\n  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):\n'
                '    "attn.yield"(%x, %j) : (f32, index) -> ()\n  }) : (tensor<?xf32>, tensor<?x?xf32>) -> tensor<7xf32>'
            )
        ],
        ["'attn.scatter' has out of shape 7, but it must be ?", "the shape of 'like'"],
    ),  # fmt: skip
    "scatter: inputs": (
        EVERY_OP,
        [
            extra(
                '%bad = "attn.scatter"(%delta) ({\n  ^bb0(%b: index, %h: index, %i: index):\n'
                '    "attn.yield"(%i) : (index) -> ()\n  }) : (tensor<?xf32>) -> tensor<?xf32>'
            )
        ],
        ["'attn.scatter' needs at least 1 operand, but has 0"],
    ),  # fmt: skip
    "map: no position of a scalar": (
        EVERY_OP,
        [("^bb0(%x: f32, %b: index, %h: index):", "^bb0(%x: f32, %b: index, %h: index, %i: index):")],
        ["it takes (element of input 0: f32, b: index, h: index)"],
    ),
    "load: indices": (
        DOCUMENT,
        [('"attn.load"(%doc, %i) : (tensor<?xi32>, index)', '"attn.load"(%doc) : (tensor<?xi32>)')],
        ["'attn.load' reads tensor<?xi32> with 0 indices", "take no index"],
    ),
    "load: index type": (
        DOCUMENT,
        [('"attn.load"(%doc, %j) : (tensor<?xi32>, index)', '"attn.load"(%doc, %doc_i) : (tensor<?xi32>, i32)')],
        ["has index 0 of type i32", "arith.index_cast"],
    ),
    "load: computed tensor": (
        DOCUMENT,
        [
            (
                '    %doc_i = "attn.load"(%doc, %i) : (tensor<?xi32>, index) -> i32',
                '    %f = "attn.load"(%s, %i, %j) : (tensor<?x?xf32>, index, index) -> f32\n'
                '    %doc_i = "attn.load"(%doc, %i) : (tensor<?xi32>, index) -> i32',
            )
        ],
        ["'attn.load' reads a computed tensor", "as an operand"],
    ),
    "load: element type": (
        EVERY_OP,
        [("(tensor<f32>) -> f32\n    %y = arith.mulf %x, %c", "(tensor<f32>) -> i32\n    %y = arith.addf %x, %x")],
        ["gives i32, but the tensor's elements are f32"],
    ),
    "size: dim": (EVERY_OP, [('dim = "n"', 'dim = "d"')], ['has dim = "d"', 'it is one of "m", "n"']),
    "yield: outside": (EVERY_OP, [("\n  return", '\n  "attn.yield"() : () -> ()\n  return')], ["'attn.yield'"]),
    "no operand": (
        DOCUMENT,
        [('"attn.gemm"(%pc, %v) : (tensor<?x?xbf16>, tensor<?x128xbf16>)', '"attn.gemm"(%pc) : (tensor<?x?xbf16>)')],
        ["'attn.gemm' needs 2 operands, but has 1", "its operands are: a, b"],
    ),
    "encoding": (
        DOCUMENT,
        [
            ("-> tensor<?x128xf32>\n  %r", '-> tensor<?x128xf32, "smem">\n  %r'),
            ("(%o) : (tensor<?x128xf32>)", '(%o) : (tensor<?x128xf32, "smem">)'),
        ],
        ["has out with an encoding", "at the tile level"],
    ),
    # -- the signature
    "signature: misspelled attribute": (
        DOCUMENT,
        [('attn.axes = ["b", "hkv"]', 'attn.axs = ["b", "hkv"]')],
        ["'func.func' has no attribute 'attn.axs' on argument 1", "did you mean 'attn.axes'?"],
    ),
    "signature: no name": (DOCUMENT, [('attn.name = "v", ', "")], ["lacks 'attn.name' on argument 2", 'add attn.name = "q"']),
    "signature: no dims": (DOCUMENT, [(', attn.dims = ["m"]', "")], ["lacks 'attn.dims' on result 1"]),
    "signature: unknown function attribute": (
        DOCUMENT,
        [("attn.align", "attn.aling")],
        ["'func.func' has no attribute 'attn.aling'", "did you mean 'attn.align'?"],
    ),
    "signature: align": (DOCUMENT, [('"bottom_right"', '"bottom"')], ['has attn.align = "bottom"', "it is one of top_left, bottom_right"]),
    "signature: layout": (EVERY_OP, [('attn.layout = "bhsd"', 'attn.layout = "bsdh"')], ['has attn.layout = "bsdh"']),
    "signature: axes order": (DOCUMENT, [('["b", "hkv"]', '["hkv", "b"]')], ["has attn.axes = ['hkv', 'b'] on argument 1"]),
    "signature: axes of both kinds": (DOCUMENT, [('["b", "hkv"]', '["hq", "hkv"]')], ["has attn.axes = ['hq', 'hkv']"]),
    "signature: axes are no list": (
        DOCUMENT,
        [('attn.axes = ["b", "hkv"]', 'attn.axes = "b"')],
        ['has attn.axes = "b" on argument 1', "a list of strings"],
    ),
    "signature: rank": (
        DOCUMENT,
        [('attn.dims = ["n"]', 'attn.dims = ["b", "n"]')],
        ["has 2 attn.dims on argument 3, but its type tensor<?xi32> has rank 1"],
    ),
    "signature: axis as a dimension": (DOCUMENT, [('attn.dims = ["n"]', 'attn.dims = ["b"]')], ["names a dimension 'b' on argument 3"]),
    "signature: static length": (
        DOCUMENT,
        [("%doc: tensor<?xi32> {", '%more: tensor<64xi32> {attn.name = "more", attn.axes = [], attn.dims = ["n"]}, %doc: tensor<?xi32> {')],
        ["has the static size 64 for dimension n"],
    ),
    "signature: dynamic head dim": (
        EVERY_OP,
        [
            (
                'tensor<?xf32> {attn.name = "row_max", attn.axes = ["b", "hq"], attn.dims = ["m"]}',
                'tensor<?xf32> {attn.name = "row_max", attn.axes = ["b", "hq"], attn.dims = ["d"]}',
            )
        ],
        ["has no size for dimension d on result 6"],
    ),
    "signature: two sizes of one name": (
        EVERY_OP,
        [("%do: tensor", '%more: tensor<16xf32> {attn.name = "more", attn.axes = [], attn.dims = ["dv"]},\n    %do: tensor')],
        ["has dimension dv of size 16 in 'more' but 24 in 'v'"],
    ),
    "signature: two tensors of one name": (DOCUMENT, [('attn.name = "v"', 'attn.name = "k"')], ["has two tensors named 'k'"]),
    "signature: name": (DOCUMENT, [('attn.name = "v"', 'attn.name = "2v"')], ['has attn.name = "2v"', "an identifier"]),
    "signature: fill": (DOCUMENT, [('"sorted_ids(4)"', '"sorted(4)"')], ['has attn.fill = "sorted(4)"', "sorted_ids(n)"]),
    "signature: fill of two numbers": (EVERY_OP, [('"uniform(0.5,2)"', '"uniform(0.5)"')], ['has attn.fill = "uniform(0.5)"']),
    "signature: dims of a result": (
        DOCUMENT,
        [
            (
                'attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]',
                'attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["n"]',
            )
        ],
        ["'func.return' returns m as 'lse', which has attn.dims = ['n']"],
    ),
    "signature: dims of a gemm": (
        DOCUMENT,
        [
            (
                'attn.name = "v", attn.axes = ["b", "hkv"], attn.dims = ["n", "dv"]',
                'attn.name = "v", attn.axes = ["b", "hkv"], attn.dims = ["p", "dv"]',
            )
        ],
        ["'attn.gemm' sums over dimension n of a but p of b"],
    ),
    "signature: tensor operation at function level": (
        DOCUMENT,
        [("  %pc = ", "  %pp = arith.addf %p, %p : tensor<?x?xf32>\n  %pc = ")],
        ["'arith.addf' gives tensor<?x?xf32> at function level"],
    ),
    "signature: another operation at function level": (
        DOCUMENT,
        [("  %pc = ", "  %pp = math.sin %cc : f32\n  %pc = "), ("  %s = ", "  %cc = arith.constant 1.0 : f32\n  %s = ")],
        ["'math.sin' cannot stand in an attn function"],
    ),
    "signature: packed twice": (
        DOCUMENT,
        [
            (
                "%doc: tensor<?xi32> {",
                '%cu: tensor<?xi32> {attn.name = "cu", attn.axes = [], attn.dims = ["batch_plus_1"], attn.cu_seqlens = "m"},\n'
                '    %cv: tensor<?xi32> {attn.name = "cv", attn.axes = [], attn.dims = ["batch_plus_1"], attn.cu_seqlens = "m"},\n'
                "    %doc: tensor<?xi32> {",
            )
        ],
        ["packs dimension m twice"],
    ),
    "signature: packed lengths of another shape": (
        DOCUMENT,
        [('attn.fill = "sorted_ids(4)"', 'attn.cu_seqlens = "n"')],
        ["has packed lengths in 'doc'", 'attn.dims = ["batch_plus_1"]'],
    ),
    "signature: packs what": (DOCUMENT, [('attn.fill = "sorted_ids(4)"', 'attn.cu_seqlens = "d"')], ['has attn.cu_seqlens = "d"']),
    "signature: type": (DOCUMENT, [("%doc: tensor<?xi32> {", "%xx: f32, %doc: tensor<?xi32> {")], ["has argument 3 of type f32"]),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case):
    text, replacements, expected = CASES[case]
    reported = report(changed(text, *replacements))
    assert reported.startswith("bad.mlir:") and ": error: '" in reported.split("\n")[0], reported
    for fragment in expected:
        assert fragment in reported, reported


def test_a_vector_over_keys_may_be_spread_over_queries():
    columns = '  %columns = "attn.reduce"(%dv) {kind = "sum"} : (tensor<?x24xf32>) -> tensor<?xf32>\n  %dt = '
    assert report(changed(EVERY_OP, ("(%again, %dp, %delta)", "(%again, %dp, %columns)"), ("  %dt = ", columns))) == ""


def test_a_vector_of_another_space_is_refused():
    other = '  %other = "attn.map"(%k) ({\n  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):\n'
    other += '    "attn.yield"(%x) : (f32) -> ()\n  })'
    other += " : (tensor<?x16xf32>) -> tensor<?x16xf32>\n"
    other += '  %keys = "attn.reduce"(%other) {kind = "sum"} : (tensor<?x16xf32>) -> tensor<?xf32>\n  %odo = '
    text = changed(EVERY_OP, ("  %odo = ", other), ('"attn.map"(%o, %do)', '"attn.map"(%o, %do, %keys)'))
    text = changed(
        text,
        (
            "^bb0(%x: f32, %y: f32, %b: index, %h: index, %i: index, %c: index)",
            "^bb0(%x: f32, %y: f32, %w2: f32, %b: index, %h: index, %i: index, %c: index)",
        ),
        (
            "(tensor<?x24xf32>, tensor<?x24xf32>) -> tensor<?x24xf32>",
            "(tensor<?x24xf32>, tensor<?x24xf32>, tensor<?xf32>) -> tensor<?x24xf32>",
        ),
    )
    assert "'attn.map' maps over m x dv, but input 2 has n" in report(text)


def test_the_whole_text_of_one():
    text = changed(
        DOCUMENT, extra('%bad = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x128xbf16>, tensor<?x128xbf16>) -> tensor<?x3xf32>')
    )
    assert report(text) == (
        "bad.mlir:31:10: error: 'attn.gemm' has out of shape ?x3, but it must be ?x?\n"
        "note: why: its rows are those of op(a), its columns those of op(b)\n"
        "note: fix: give it the type tensor<?x?xf32>"
    )


def test_a_function_without_a_body_is_refused():
    declaration = 'func.func private @f(tensor<?x8xbf16> {attn.name = "q", attn.axes = ["b"], attn.dims = ["m", "d"]})'
    assert "'func.func' has 0 blocks" in report(declaration)


def test_other_functions_are_left_alone():
    assert report("func.func @f(%x: f32) -> f32 {\n  return %x : f32\n}") == ""
