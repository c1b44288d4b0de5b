"""attn-to-tile: which shapes it chooses, and what it refuses, where and with which numbers."""

import re

import attn_to_tile_programs as programs
import pytest
from attn_to_tile_programs import CAUSAL, SCALED, argument, attention, cast, function, gemm_pv, gemm_qk, map_op, mask_op, softmax
from test_attn_to_tile import LSE, VARIANTS, O

from fa4c import targets
from fa4c.ir.context import print_module
from fa4c.ir.diagnostics import Diagnostic

# -- shapes ------------------------------------------------------------------------------------------------


def shape_of(text: str, options: str = "") -> tuple[int, int, int]:
    """(block_m, block_n, buffers), read off the first MMA and the first load in the loop."""
    lowered = print_module(programs.lower(text, f"attn-to-tile{options or '{configurations=formula}'}"), locations=False)
    rows, columns = re.search(r'"tile.mma".*-> tensor<(\d+)x(\d+)xf32', lowered).groups()
    buffers = re.search(r"buffers = (\d+)", lowered)
    return int(rows), int(columns), int(buffers[1]) if buffers else 1


@pytest.mark.parametrize(
    "d, dv, expected",
    [
        (8, 8, (192, 128, 2)),
        (64, 64, (192, 128, 2)),
        (96, 96, (128, 128, 2)),
        (128, 128, (128, 128, 2)),
        (192, 128, (128, 128, 2)),
        (192, 192, (128, 112, 2)),
        (256, 256, (128, 80, 2)),
    ],
)
def test_shapes(d, dv, expected):
    assert shape_of(attention(d=d, dv=dv, mask=CAUSAL)) == expected


def test_the_targets_numbers_decide():
    text = attention(d=128, dv=128)
    with targets.override("sm_90a", smem_bytes=100 * 1024):
        assert shape_of(text) == (128, 64, 2)  # Q 32 KiB and twice K and V of 64 x 128: 97 KiB
    with targets.override("sm_90a", registers=32768):
        assert shape_of(text)[0] == 64
    with (
        targets.override("sm_90a", smem_bytes=16 * 1024),
        pytest.raises(Diagnostic, match="it needs 33792 bytes of shared memory, but a CTA has 16384"),
    ):
        shape_of(text)


def test_options_override():
    text = attention(d=64, dv=64)
    assert shape_of(text, "{block-m=64 block-n=48 buffers=3}") == (64, 48, 3)
    assert shape_of(text, "{block-m=128}") == (128, 128, 2)
    assert shape_of(text, "{buffers=1}")[2] == 1


def test_a_second_softmax_takes_its_share():
    assert shape_of(VARIANTS["two softmaxes, one band"]) == (192, 128, 2)
    wide = VARIANTS["two softmaxes, one band"].replace("?x16x", "?x128x")
    assert shape_of(wide) == (128, 96, 2)  # registers for 96; shared memory for two Q, two K and one V would do for more


@pytest.mark.parametrize(
    "options, message",
    [
        ("{block-m=100}", "cannot have block_m = 100"),
        ("{block-m=256}", "cannot have block_m = 256"),
        ("{block-n=20}", "cannot have block_n = 20"),
        ("{block-n=272}", "cannot have block_n = 272"),
        ("{buffers=-1}", "cannot have buffers = -1"),
        (
            "{block-m=128 block-n=256}",
            r"does not fit with block_m = 128, block_n = 256, buffers = 2\n.*about 288 registers, but 240 are there",
        ),
        ("{buffers=40}", r"block_m = 64, block_n = 16, buffers = 40\n.*it needs 345088 bytes of shared memory, but a CTA has 232448"),
    ],
)
def test_refuses_options(options, message):
    with pytest.raises(Diagnostic, match=message):
        shape_of(attention(d=128, dv=128), options)


# -- functions ---------------------------------------------------------------------------------------------

MAX_P = '  %n = "attn.reduce"(%p) {kind = "max"} : (tensor<?x?xf32>) -> tensor<?xf32>\n'
N = ("n", "tensor<?xf32>", "m")
SOFTMAX = gemm_qk() + softmax(x="s")
PV = cast("pc", "p") + gemm_pv()
SOFTMAX_OF_E = function(SOFTMAX, [LSE]).replace('"d"', '"e"').replace('"dv"', '"ev"').replace("tensor<?x16xbf16>", "tensor<?x?xbf16>")
REFUSED = {
    "a function of P": (
        function(SOFTMAX + map_op("t", ["p"], "\n    %y = math.exp %x : f32") + cast("pc", "t") + gemm_pv(), [O]),
        5,
        "'attn.map' is not linear in a probability",
    ),
    "P plus a constant": (
        function(SOFTMAX + map_op("t", ["p"], SCALED.replace("mulf", "addf")) + cast("pc", "t") + gemm_pv(), [O]),
        5,
        "'attn.map' is not linear in a probability",
    ),
    "P squared": (
        function(SOFTMAX + map_op("t", ["p"], "\n    %y = arith.mulf %x, %x : f32") + cast("pc", "t") + gemm_pv(), [O]),
        5,
        "'attn.map' is not linear in a probability",
    ),
    "two probabilities": (
        function(
            SOFTMAX
            + gemm_qk("s2")
            + softmax("p2", "l2", "s2")
            + map_op("t", ["p", "p2"], "\n    %y = arith.subf %xp, %xp2 : f32", shapes=("?x?", "?x?"))
            + cast("pc", "t")
            + gemm_pv(),
            [O],
        ),
        7,
        "'attn.map' combines two probabilities",
    ),
    "a mask of P": (function(SOFTMAX + mask_op("t", "p", CAUSAL) + cast("pc", "t") + gemm_pv(), [O]), 5, "'attn.mask' masks a probability"),
    "softmax of P": (function(SOFTMAX + softmax("p2", "l2", "p"), [("l2", "tensor<?xf32>", "m")]), 5, "'attn.softmax' takes a probability"),
    "maximum of P": (function(SOFTMAX + MAX_P, [N]), 5, "'attn.reduce' takes the maximum of a probability"),
    "scores by a row result": (
        function(
            SOFTMAX
            + map_op("t", ["s", "lse"], "\n    %y = arith.subf %xs, %xlse : f32", shapes=("?x?", "?"))
            + cast("pc", "t")
            + gemm_pv(),
            [O],
        ),
        5,
        "'attn.map' needs input 1 before the last block is done",
    ),
    "P as a result": (function(SOFTMAX, [("p", "tensor<?x?xf32>", "m n")]), 4, "'attn.softmax' makes the m x n values of the result 'o0'"),
    "an argument as a result": (function(SOFTMAX, [("q", "tensor<?x16xbf16>", "m d")]), 5, "'func.return' returns its argument as 'o0'"),
    "a sum over heads": (
        function(SOFTMAX, [LSE]).replace('attn.name = "o0", attn.axes = ["b", "hq"]', 'attn.name = "o0", attn.axes = ["b"]'),
        5,
        "'func.return' sums 'o0' over hq",
    ),
    "dK, a sum over queries": (
        function(
            SOFTMAX
            + cast("pc", "p")
            + '  %o = "attn.gemm"(%pc, %q) {transpose_a = true} : (tensor<?x?xbf16>, tensor<?x16xbf16>) -> tensor<?x16xf32>\n',
            [("o", "tensor<?x16xf32>", "n d")],
        ),
        6,
        "'attn.gemm' sums a probability over its rows",
    ),
    "transposed scores": (
        function(
            gemm_qk("t", "k", "q") + '  %o = "attn.reduce"(%t) {kind = "sum"} : (tensor<?x?xf32>) -> tensor<?xf32>\n',
            [("o", "tensor<?xf32>", "n")],
        ),
        3,
        "'attn.gemm' computes n x m in a way that has no lowering",
    ),
    "a column map": (
        function(
            SOFTMAX
            + map_op("w", ["cb"], "\n    %y = arith.negf %x : f32", shapes=("?",))
            + map_op("t", ["s", "w"], "\n    %y = arith.addf %xs, %xw : f32", shapes=("?x?", "?"))
            + PV,
            [O],
            arguments=(argument("cb", "tensor<?xf32>", "b", "n"),),
        ),
        5,
        "'attn.map' maps over n",
    ),
    "a computed operand": (
        function(
            '  %qc = "attn.cast"(%qf) : (tensor<?x16xf32>) -> tensor<?x16xbf16>\n' + gemm_qk(q="qc") + softmax(x="s"),
            [LSE],
            arguments=(argument("qf", "tensor<?x16xf32>", "b hq", "m d"),),
        ),
        4,
        "'attn.gemm' takes a computed tensor as a",
    ),
    "f32 operands": (function(gemm_qk(dtype="f32") + softmax(x="s"), [LSE], dtype="f32"), 3, "'attn.gemm' multiplies f32 (q)"),
    "head dim 12": (attention(d=12), 3, "'attn.gemm' has head dim 12 (d of q)"),
    "head dim 264": (attention(d=264), 3, "'attn.gemm' has head dim 264 (d of q)"),
    "head dim of V": (attention(dv=100), 12, "'attn.gemm' has head dim 100 (dv of v)"),
    "a dynamic head dim": (SOFTMAX_OF_E, 3, "'attn.gemm' has a of dimensions m x e with sizes [None, None]"),
    "no sum over keys": (
        function(gemm_qk(), [("q", "tensor<?x16xbf16>", "m d")]),
        4,
        "'func.return' returns nothing that was accumulated over the columns",
    ),
    "a sum over all queries in bf16": (
        function(
            map_op("t", ["row"], "\n    %y = arith.negf %x : f32", shapes=("?",))
            + '  %s = "attn.reduce"(%t) {kind = "sum"} : (tensor<?xf32>) -> tensor<f32>\n'
            + '  %c = "attn.cast"(%s) : (tensor<f32>) -> tensor<bf16>\n',
            [("c", "tensor<bf16>", "")],
            arguments=(argument("row", "tensor<?xf32>", "b hq", "m"),),
        ),
        10,
        "'func.return' adds up 'o0' in bf16",
    ),
    "packed lengths": (
        function(
            SOFTMAX,
            [LSE],
            arguments=('%cu: tensor<?xi32> {attn.name = "cu", attn.axes = [], attn.dims = ["batch_plus_1"], attn.cu_seqlens = "n"}',),
        ),
        1,
        "'func.func' packs dimension n with the argument 'cu'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    text, line, message = REFUSED[name]
    with pytest.raises(Diagnostic) as caught:
        programs.lower(text, "attn-to-tile")
    first, *notes = caught.value.text().splitlines()
    assert first.startswith(f"test.mlir:{line}:") and message in first, caught.value.text()
    assert [note.split(":")[1] for note in notes] == [" why", " fix"]


def test_refuses_a_module_without_functions():
    with pytest.raises(Diagnostic, match="there are 0 attn functions"):
        programs.lower("module {\n}\n", "attn-to-tile")


def test_refuses_functions_that_do_not_belong_together():
    with pytest.raises(Diagnostic, match="'func.func' returns 'o0', as @f does"):
        programs.lower("module {\n" + attention() + attention().replace("@f(", "@g(") + "}\n", "attn-to-tile")
