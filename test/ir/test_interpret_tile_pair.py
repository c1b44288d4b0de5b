"""Pairs of CTAs in the interpreter: two CTAs with memory of their own, which meet where they form a product or exchange halves."""

import numpy as np
import pytest
import tile_programs

from fa4c.ir.context import new_context, parse_module, print_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.interpret_tile import run
from fa4c.ir.mlir import ir
from fa4c.passes.registry import run_pipeline

TMEM = "tile-accumulate-in-tmem,tile-pipeline,tile-alias-tmem"
RNG = np.random.default_rng(0)
A, B = tile_programs.bf16(RNG, 300, 104), tile_programs.bf16(RNG, 200, 104)


def gemm(passes: str) -> str:
    text = (tile_programs.EXAMPLES / "gemm.mlir").read_text().replace("sm_90a", "sm_100a")
    module = parse_module(text, "gemm.mlir")
    run_pipeline(module, f"tile-split-2cta{{ctas=2}},{passes}")
    return print_module(module, locations=False)


@pytest.fixture(scope="module")
def scheduled() -> str:
    return gemm(TMEM)


@pytest.mark.parametrize(("passes", "mode"), [("cse", "value"), (TMEM, "storage"), (TMEM + ",tile-persistent", "storage")])
def test_halves_make_the_whole(passes, mode):
    np.testing.assert_allclose(run(parse_module(gemm(passes)), {"a": A, "b": B}, mode=mode)["c"], A @ B.T, atol=1e-12)


@pytest.mark.parametrize("cta", [0, 1])
def test_either_cta_stands_for_its_pair(scheduled, cta):
    c = run(parse_module(scheduled), {"a": A, "b": B}, mode="storage", ctas=[(cta, 0, 0)])["c"]
    np.testing.assert_allclose(c[:256, :128], A[:256] @ B[:128].T, atol=1e-12)
    assert np.isnan(c[256:]).all()


@pytest.mark.parametrize(("old", "new"), [
    ("arith.muli %x_0, %sb : index", "arith.muli %c0, %sb : index"),  # both load the left half
    ("arith.addi %n0, %sb_1 : index", "arith.subi %n0, %sb_1 : index"),  # the second CTA the half before
    ("{buffers = 4 : i64, dims = array<i64: 0, 1>, order = 1", "{buffers = 1 : i64, dims = array<i64: 0, 1>, order = 1"),
    ('"tile.cta_rank"() : () -> index', "arith.addi %x#0, %x#0 : index"),  # of another place in the grid
])
def test_a_wrong_half_gives_wrong_numbers(scheduled, old, new):
    text = scheduled if "buffers" not in old else scheduled.replace("order = 2 : i64, stage = 0", "order = 2 : i64, stage = 1")
    assert old in text, text
    c = run(parse_module(text.replace(old, new)), {"a": A, "b": B}, mode="storage")["c"]
    wrong = ~np.isclose(c, A @ B.T)
    assert wrong.any()


def test_trips_that_differ_are_refused(scheduled):
    """CTA x of a pair does x steps fewer: the other one waits for it."""
    text = scheduled.replace("to %kb step", "to %fewer step")
    text = text.replace("%kb = arith.ceildivsi %k, %c64 : index",
                        "%kb = arith.ceildivsi %k, %c64 : index\n%fewer = arith.subi %kb, %x#0 : index")
    with pytest.raises(Diagnostic, match="waits for the other CTA of the pair, which has ended"):
        run(parse_module(text), {"a": A, "b": B})


EXCHANGE = """
!a = tensor<?x32xf32, #tile.gmem>
!b = tensor<?xSIDExf32, #tile.gmem>
!x = tensor<64x32xf32, #tile.reg>
!e = tensor<ROWSxSIDExf32, #tile.smem>
module {
"tile.host"() ({
^bb0(%a: !a, %b: !b):
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  "tile.launch"(%c2, %c1, %c1, %a, %b) {kernel = @swap, operandSegmentSizes = array<i32: 3, 2, 0>} : (index, index, index, !a, !b) -> ()
}) {sym_name = "host", tensors = [{name = "a", role = "input", dims = ["m", "n"]}, {name = "b", role = "output", dims = ["k", "l"]}]} :
  () -> ()
"tile.kernel"() ({
^bb0(%a: !a, %b: !b):
  %x, %y, %z = "tile.program_id"() : () -> (index, index, index)
  %c0 = arith.constant 0 : index
  %rows = arith.constant 64 : index
  %stored = arith.constant ROWS : index
  %from = arith.muli %x, %rows : index
  %to = arith.muli %x, %stored : index
  %s = "tile.load"(%a, %from, %c0) {dims = array<i64: 0, 1>} : (!a, index, index) -> tensor<64x32xf32, #tile.smem>
  %r = "tile.from_shared"(%s) : (tensor<64x32xf32, #tile.smem>) -> !x
  %e = "tile.exchange"(%r) {axis = AXIS} : (!x) -> !e
  "tile.store"(%e, %b, %to, %c0) {dims = array<i64: 0, 1>} : (!e, !b, index, index) -> ()
}) {sym_name = "swap", cluster = 2} : () -> ()
}
"""


@pytest.mark.parametrize("mode", ["value", "storage"])
@pytest.mark.parametrize("axis", [0, 1])
def test_exchange_gives_each_its_half_of_both(mode, axis):
    a = RNG.standard_normal((128, 32))
    rows, columns = (32, 64) if axis == 0 else (128, 16)
    text = EXCHANGE.replace("ROWS", str(rows)).replace("SIDE", str(columns)).replace("AXIS", str(axis))
    b = run(parse_module(text), {"a": a}, mode=mode, sizes={"k": 2 * rows, "l": columns})["b"]
    first, second = a[:64], a[64:]
    for rank, got in enumerate(np.split(b, 2)):
        if axis == 0:
            np.testing.assert_array_equal(got, np.hstack([np.split(first, 2)[rank], np.split(second, 2)[rank]]))
        else:
            np.testing.assert_array_equal(got, np.vstack([np.split(first, 2, axis=1)[rank], np.split(second, 2, axis=1)[rank]]))


@pytest.mark.parametrize(("old", "new", "words"), [
    ("cluster = 2", "cluster = 1", "exchanges with a peer, but no pairs of CTAs run"),
    ("axis = AXIS", "axis = 2", "along axis 2"),
    ("axis = AXIS", "axis = 1", "makes 128x16xf32 of"),
])
def test_exchanges_that_do_not_fit(old, new, words):
    text = EXCHANGE.replace(old, new, 1).replace("ROWS", "32").replace("SIDE", "64").replace("AXIS", "0")
    with new_context(), pytest.raises(ir.MLIRError, match=words):
        parse_module(text)


@pytest.mark.parametrize(("old", "new", "words"), [
    ("cluster = 2 : i64, ", "", "no CTAs run together|none run together"),
    ("ctas = 2 : i64", "ctas = 3 : i64", "has ctas = 3"),
    ("ctas = 2 : i64, ", "", "computes 128x64xf32"),
])
def test_products_that_do_not_fit(scheduled, old, new, words):
    assert old in scheduled
    with pytest.raises(ir.MLIRError, match=words):
        parse_module(scheduled.replace(old, new))
