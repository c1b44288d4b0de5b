"""Storage mode: schedules that are right give what value mode gives; a wrong stage, order, buffer count or column does not."""

import numpy as np
import pytest
import tile_programs
from tile_programs import FA3, attention, attention_inputs, attention_reference, bf16, example

from fa4c.ir.context import new_context
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.interpret_tile import run
from fa4c.ir.tile import tile_type
from fa4c.ir.tile_storage import TensorMemory

BLOCKS = [0, 1, 2, 3, 5]


def inputs_of(blocks: int) -> dict[str, np.ndarray]:
    """The last queries see all keys, in so many iterations; earlier ones see fewer."""
    n = max(blocks * 32 - 7, 0)
    return attention_inputs(m=n + 64, n=n, heads=1)


def agrees(module, blocks: int) -> bool:
    """With float64 NumPy; NaN anywhere is no agreement."""
    inputs = inputs_of(blocks)
    got, want = run(module, inputs, mode="storage"), attention_reference(**inputs)
    return all(np.allclose(got[name], want[name], atol=1e-5) for name in want)


# ----------------------------------------------------------------------------------------------------------- attention, right

SOFTMAX = "mask row_max grows vote new_max factor p scale_sum add_sum cast"
LATE_SOFTMAX = SOFTMAX.replace(" ", "+1 ") + "+1"
RIGHT = {
    "FA-3": (FA3, 2, 2),
    "one after the other": (f"load_k load_v qk {SOFTMAX} rescale pv", 1, 1),
    "QK a step ahead, once the scores are read": (f"load_k load_v mask+1 qk {LATE_SOFTMAX[7:]} rescale+1 pv+1", 1, 2),
    "loads a step ahead": (f"load_k load_v qk+1 {LATE_SOFTMAX} rescale+1 pv+1", 2, 2),
    "loads two steps ahead": (f"load_k load_v qk+2 {LATE_SOFTMAX.replace('+1', '+2')} rescale+2 pv+2", 3, 3),
    "V loaded when it is needed": (FA3.replace(" load_v", "").replace("pv+1", "load_v+1 pv+1"), 1, 1),
    "statistics taken a step later, before they are renewed": (
        "load_k load_v qk factor+1 scale_sum+1 add_sum+1 rescale+1 pv+1 mask row_max grows vote new_max p cast", 1, 2),
}


def modules(table: dict) -> dict:
    return {name: attention(schedule, k_buffers=k, v_buffers=v) for name, (schedule, k, v, *_) in table.items()}


RIGHT_MODULES = modules(RIGHT)


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("name", RIGHT)
def test_right_schedules(name, blocks):
    assert agrees(RIGHT_MODULES[name], blocks)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_schedule_computes_the_same_numbers_in_another_order(name):
    for dtype in ("float64", "kernel"):
        in_storage = run(RIGHT_MODULES[name], inputs_of(3), mode="storage", dtype=dtype)
        for output, array in run(RIGHT_MODULES["FA-3"], inputs_of(3), dtype=dtype).items():
            np.testing.assert_array_equal(in_storage[output], array)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("again, more", [("carry on", np.log(2)), ("start anew", 0)])
def test_a_loop_that_runs_again(name, again, more):
    """Carrying on, each key is seen twice: the same O, one more bit in the sum."""
    schedule, k_buffers, v_buffers = RIGHT[name]
    module = attention(schedule, k_buffers=k_buffers, v_buffers=v_buffers, again=again)
    for blocks in (0, 1, 3):
        got, want = run(module, inputs_of(blocks), mode="storage"), attention_reference(**inputs_of(blocks))
        np.testing.assert_allclose(got["o"], want["o"], atol=1e-5)
        np.testing.assert_allclose(got["lse"], want["lse"] + more, atol=1e-5)


def test_kernel_dtypes_are_near_float64():
    inputs = inputs_of(5)
    got, want = run(RIGHT_MODULES["FA-3"], inputs, mode="storage", dtype="kernel"), attention_reference(**inputs)
    assert 0 < np.abs(got["o"] - want["o"]).max() < 2**-6 * np.abs(want["o"]).max()
    np.testing.assert_allclose(got["lse"], want["lse"], atol=1e-4)


def test_without_a_threshold_every_growth_rescales():
    for threshold in (0.0, 1e9):
        got = run(attention(threshold=threshold), inputs_of(3), mode="storage")
        want = attention_reference(**inputs_of(3))
        # With a limit that is never passed but once, from -inf, sums stay relative to the first block's maximum: float64 bears that.
        np.testing.assert_allclose(got["o"], want["o"], atol=1e-5)


# ----------------------------------------------------------------------------------------------------------- attention, wrong

# name -> schedule, buffers of K and V, iterations for which it is right all the same
WRONG = {
    "V has one buffer, and is loaded before the last one is read": (FA3, 2, 1, [0, 1]),
    "K has one buffer, and is loaded before the last one is read": (f"load_k load_v qk+1 {LATE_SOFTMAX} rescale+1 pv+1", 1, 2, [0, 1]),
    "three buffers are one too few for loads three steps ahead": (
        f"load_k load_v qk+3 {LATE_SOFTMAX.replace('+1', '+3')} rescale+3 pv+3", 4, 3, [0, 1, 2, 3]),
    "V is loaded after PV": (FA3.replace(" load_v", "").replace("pv+1", "pv+1 load_v+1"), 2, 2, [0]),
    "PV two steps later finds the next P": (FA3.replace("pv+1", "rescale+2 pv+2").removesuffix(" rescale"), 2, 3, [0, 1]),
    "P is renewed before PV has read it": (f"load_k load_v qk rescale+1 {SOFTMAX} pv+1", 2, 2, [0, 1]),
    "QK renews the scores before they are read": (f"load_k load_v qk {LATE_SOFTMAX} rescale+1 pv+1", 2, 2, [0, 1]),
    "the factor is taken when the row maximum is already renewed": (  # two iterations are right: what is rescaled first is 0
        "load_k load_v qk mask row_max grows vote new_max factor+1 scale_sum+1 add_sum+1 rescale+1 pv+1 p cast", 1, 2, [0, 1, 2]),
}
WRONG_MODULES = modules(WRONG)


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_schedules_give_wrong_numbers(name, blocks):
    assert agrees(WRONG_MODULES[name], blocks) == (blocks in WRONG[name][-1])


@pytest.mark.parametrize("name", WRONG)
def test_value_mode_ignores_the_schedule(name):
    for output, array in run(RIGHT_MODULES["FA-3"], inputs_of(3)).items():
        np.testing.assert_array_equal(run(WRONG_MODULES[name], inputs_of(3))[output], array)


def line_of(text: str) -> int:
    return 1 + tile_programs.ATTENTION.read_text(encoding="utf-8").split(text)[0].count("\n")


@pytest.mark.parametrize("schedule, line, message, harmless", [
    (f"load_k load_v qk {SOFTMAX} rescale pv+1", '%o1 = "tile.map"', "of iteration 0 before it is computed", [0, 1]),
    (FA3.replace("pv+1", "pv+2"), '%o1 = "tile.map"', "of iteration 0 before it is computed", [0, 1]),
    (FA3.replace(" p ", " ").replace("mask", "p mask"), '%p = "tile.map"', "of iteration 0 before it is computed", [0]),
    (FA3.replace("add_sum", "add_sum+1").replace(" p ", " p+1 "), '%pc = "tile.map"', "of iteration 0 before it is computed", [0]),
])
def test_a_register_that_no_instruction_has_computed_is_located(schedule, line, message, harmless):
    module = attention(schedule)
    for blocks in BLOCKS:
        if blocks in harmless:
            assert agrees(module, blocks)
            continue
        with pytest.raises(Diagnostic) as caught:
            agrees(module, blocks)
        assert f"{tile_programs.ATTENTION.name}:{line_of(line)}:" in caught.value.text()
        assert message in caught.value.text()


# ------------------------------------------------------------------------------------------------------------------- plain GEMM


def gemm(stage: int, buffers: int, loads_first: bool):
    schedule = f"%sa %sb %s1+{stage}" if loads_first else f"%s1+{stage} %sa %sb"
    return example("gemm.mlir", ("buffers = 4", f"buffers = {buffers}"), schedule=schedule)


@pytest.mark.parametrize("loads_first", [True, False])
@pytest.mark.parametrize("buffers", [1, 2, 3, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_buffers_needed_by_a_load_that_runs_ahead(stage, buffers, loads_first):
    """A load `stage` steps ahead needs so many buffers, one more where the next load is issued before the MMA."""
    module = gemm(stage, buffers, loads_first)
    enough = stage + 1 if loads_first else max(stage, 1)
    for blocks in (0, 1, 2, 3, 7):
        rng = np.random.default_rng(blocks)
        a, b = bf16(rng, 20, blocks * 64), bf16(rng, 30, blocks * 64)
        right = np.allclose(run(module, {"a": a, "b": b}, mode="storage")["c"], a @ b.T)
        runs_first = stage == 0 and not loads_first  # the MMA comes before its own loads
        assert right == (blocks == 0 or (not runs_first and (buffers >= enough or blocks <= buffers)))


def test_equal_orders_run_in_text_order():
    module = example("gemm.mlir", ("buffers = 4", "order = 3"), ("transpose_b = true", "transpose_b = true, order = 3"))
    rng = np.random.default_rng(0)
    a, b = bf16(rng, 20, 200), bf16(rng, 30, 200)
    np.testing.assert_allclose(run(module, {"a": a, "b": b}, mode="storage")["c"], a @ b.T)


def test_each_cta_starts_with_poisoned_memory():
    """An MMA that runs before its load reads NaN in every CTA, not what the CTA before left behind."""
    rng = np.random.default_rng(0)
    a, b = bf16(rng, 300, 64), bf16(rng, 10, 64)
    assert np.isnan(run(gemm(0, 1, loads_first=False), {"a": a, "b": b}, mode="storage")["c"]).all()


INNER_LOOP = """%q = scf.for %j = %c0 to %c1 step %c1 iter_args(%u = %s) -> (tensor<128x128xf32, #tile.reg>) {
      %w = "tile.mma"(%sa, %sb, %u) {transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 1>}
       : (tensor<128x64xbf16, #tile.smem>,
          tensor<128x64xbf16, #tile.smem>, tensor<128x128xf32, #tile.reg>) -> tensor<128x128xf32, #tile.reg>
      scf.yield %w : tensor<128x128xf32, #tile.reg>
    }
    %s1 = """


@pytest.mark.parametrize("edits, message", [
    ([("transpose_b = true", "transpose_b = true, order = 1")], "error: 'tile.load' has no order"),
    ([("transpose_b = true", "transpose_b = true, stage = 1"), ("%s1 = ", INNER_LOOP)],
     "error: 'scf.for' cannot stand in a loop whose operations have a stage or an order"),
])
def test_schedules_that_make_no_sense_are_refused(edits, message):
    with pytest.raises(Diagnostic) as caught:
        run(example("gemm.mlir", *edits), {"a": np.ones((4, 64)), "b": np.ones((4, 64))}, mode="storage")
    assert message in caught.value.text() and caught.value.text().startswith("gemm.mlir:")


# ------------------------------------------------------------------------------------------------------------------- accumulators

REG = r"tensor<128x128xf32, #tile\.reg>"


@pytest.mark.parametrize("schedule, right", [
    ("%sb %sc %s %p %u1 %h %o1", True), ("%sb %sc %s %p %h %u1 %o1", False), ("%sb %sc %s %p %h %o1 %u1", False),
])
def test_an_accumulator_has_one_place(schedule, right):
    """%h is half of O, and the MMA adds to it; %u1, carried on, is O as it was: both happen in O's place, so %u1 must be read first."""
    kind = "tensor<128x128xf32, #tile.reg>"
    tail = f"{{operandSegmentSizes = array<i32: 1, 0>}} : ({kind}) -> {kind}\n    "
    half = f"""%h = "tile.map"(%o) ({{
    ^bb0(%e: f32, %row: index, %col: index):
      %half = arith.constant 0.5 : f32
      %less = arith.mulf %e, %half : f32
      "tile.yield"(%less) : (f32) -> ()
    }}) {tail}"""
    copy = f"""%u1 = "tile.map"(%o) ({{
    ^bb0(%e: f32, %row: index, %col: index):
      "tile.yield"(%e) : (f32) -> ()
    }}) {tail}"""
    carried = (rf"%o = %zero\) -> \({REG}", f"%o = %zero, %u = %zero) -> ({kind}, {kind}")
    edits = [("%acc = scf.for", "%all, %acc = scf.for"), carried, ("%sc, %o", "%sc, %h"), ("%o1 = ", f"{half}%o1 = "),
             ("scf.yield %o1 : ", f"{copy}scf.yield %o1, %u1 : {kind}, ")]
    module = example("two_gemms.mlir", *edits, schedule=schedule)
    rng = np.random.default_rng(0)
    a, b, c = bf16(rng, 100, 64), bf16(rng, 384, 64), bf16(rng, 384, 128)
    parts = [np.maximum(a @ b[rows].T, 0) @ c[rows] for rows in (slice(0, 128), slice(128, 256))]
    for blocks, want in ((2, parts[0]), (3, parts[0] / 2 + parts[1])):
        inputs = {"a": a, "b": b[: blocks * 128], "c": c[: blocks * 128]}
        assert np.allclose(run(module, inputs)["out"], want)
        assert np.allclose(run(module, inputs, mode="storage")["out"], want) == right
    assert np.allclose(run(module, {"a": a, "b": b[:128], "c": c[:128]}, mode="storage")["out"], 0) == (schedule[-3:] != "%u1")


# ---------------------------------------------------------------------------------------------------------------- tensor memory

TMEM_O = "tensor<128x128xf32, #tile.tmem<{o}>>"


IN_ORDER = "%sb %sc %s %p %o1"
AHEAD = "%sb %sc %s %o1+1 %p"  # QK of the next block before PV of this one


def in_tensor_memory(s: int, p: int, o: int, schedule: str = IN_ORDER):
    """two_gemms.mlir with S, P and O in tensor memory, from these columns on."""
    tmem_s, tmem_p, tmem_o = f"tensor<128x128xf32, #tile.tmem<{s}>>", f"tensor<128x128xbf16, #tile.tmem<{p}>>", TMEM_O.format(o=o)
    start = f"""%start = "tile.map"(%zero) ({{
  ^bb0(%e: f32, %row: index, %col: index):
    "tile.yield"(%e) : (f32) -> ()
  }}) {{operandSegmentSizes = array<i32: 1, 0>}} : (tensor<128x128xf32, #tile.reg>) -> {tmem_o}
  %acc = scf.for"""
    edits = [
        ("%acc = scf.for", start), ("%o = %zero", "%o = %start"), (rf"-> \({REG}\) {{", f"-> ({tmem_o}) {{"),
        (rf"(%s = .*-> ){REG}", rf"\1{tmem_s}"),
        (rf"(?s)(%p = .*?\}}\) \{{.*? : \(){REG}\) -> \S* \S*", rf"\1{tmem_s}) -> {tmem_p}"),
        (rf"(%o1 = .* : \()\S* \S* (.*), {REG}\) -> {REG}", rf"\1{tmem_p}, \2, {tmem_o}) -> {tmem_o}"),
        (rf"scf.yield %o1 : {REG}", f"scf.yield %o1 : {tmem_o}"),
        (rf"(?s)(%r = .*?\}}\) \{{.*? : \(){REG}", rf"\1{tmem_o}"),
    ]
    return example("two_gemms.mlir", *edits, schedule=schedule)


def two_gemms_agree(module, blocks: int) -> bool:
    rng = np.random.default_rng(blocks)
    a, b, c = bf16(rng, 100, 64), bf16(rng, blocks * 128, 64), bf16(rng, blocks * 128, 128)
    out = run(module, {"a": a, "b": b, "c": c}, mode="storage")["out"]
    return np.allclose(out, np.maximum(a @ b.T, 0) @ c)


@pytest.mark.parametrize("s, p, o, schedule, right", [
    (0, 128, 256, IN_ORDER, True),
    (0, 0, 256, IN_ORDER, True),  # P over S, once S is read
    (0, 64, 128, IN_ORDER, True),  # P in the second half of S
    (384, 64, 128, IN_ORDER, True),
    (0, 256, 256, IN_ORDER, False),  # P over O
    (0, 319, 256, IN_ORDER, False),
    (0, 384, 256, IN_ORDER, True),
    (129, 0, 256, IN_ORDER, False),  # the last column of S is the first of O
    (128, 0, 256, IN_ORDER, True),
    (0, 128, 256, AHEAD, True),
    (0, 127, 256, AHEAD, False),  # the next S overwrites P's first column
    (0, 0, 256, AHEAD, False),
])
def test_columns(s, p, o, schedule, right):
    module = in_tensor_memory(s, p, o, schedule)
    for blocks in (0, 1, 2, 3):
        few_enough = 1 if schedule == AHEAD else 0
        assert two_gemms_agree(module, blocks) == (right or blocks <= few_enough)


def test_columns_that_were_never_written_are_poisoned():
    """S is read before the first QK has written it: NaN, not 0."""
    inputs = {"a": np.ones((100, 64)), "b": np.ones((128, 64)), "c": np.ones((128, 128))}
    assert np.isnan(run(in_tensor_memory(0, 128, 256, "%sb %sc %p %s %o1"), inputs, mode="storage")["out"]).all()


def test_value_mode_ignores_columns():
    rng = np.random.default_rng(0)
    a, b, c = bf16(rng, 100, 64), bf16(rng, 300, 64), bf16(rng, 300, 128)
    out = run(in_tensor_memory(0, 256, 256), {"a": a, "b": b, "c": c})["out"]
    np.testing.assert_allclose(out, np.maximum(a @ b.T, 0) @ c)


@pytest.mark.parametrize("s, p, o", [(0, 449, 256), (385, 0, 256)])
def test_columns_that_do_not_exist(s, p, o):
    message = r"two_gemms.mlir:\d+:\d+: error: 'tile.(map|mma)' puts 128 rows into columns \d+ to 513 of tensor memory"
    with pytest.raises(Diagnostic, match=message):
        two_gemms_agree(in_tensor_memory(s, p, o), 1)


# -------------------------------------------------------------------------------------------------------------- shared memory copies


@pytest.mark.parametrize("schedule, right", [
    ("%sb %sc %s %p %ps %o1", True), ("%sb %sc %s %o1+1 %p %ps", True), ("%sb %sc %s %p %ps %o1+1", False),
])
def test_a_tile_put_into_shared_memory_has_one_copy(schedule, right):
    put = """%ps = "tile.to_shared"(%p) {} : (tensor<128x128xbf16, #tile.reg>) -> tensor<128x128xbf16, #tile.smem>
    %o1 = """
    read = (r'(%o1 = "tile.mma"\()%p(.* : \(tensor<128x128xbf16, #tile\.)reg', r"\1%ps\2smem")
    module = example("two_gemms.mlir", ("%o1 = ", put), read, schedule=schedule)
    for blocks in (0, 1, 2, 3):
        assert two_gemms_agree(module, blocks) == (right or blocks <= 1)


def test_values_of_two_halves_are_none():
    """A 16-bit tile written over half of each 32-bit value: no such value is left; whole ones are, behind it."""
    with new_context():
        memory = TensorMemory()
        wide = memory.handle(None, tile_type([8, 16], "f32", "tmem<3>"), np.float64)
        narrow = memory.handle(None, tile_type([8, 3], "bf16", "tmem<5>"), np.float64)
    wide.write(np.arange(128.0).reshape(8, 16))
    narrow.write(np.full((8, 3), 7.0))
    assert (narrow.read(None) == 7).all()
    np.testing.assert_array_equal(np.isnan(wide.read(None)[0]), [False] * 3 + [True] + [False] * 12)
    np.testing.assert_array_equal(wide.read(None)[1, :3], [16, 17, 7])
    np.testing.assert_array_equal(wide.read(None)[:, 4:], np.arange(128.0).reshape(8, 16)[:, 4:])
