"""`tile-pipeline` on whole programs: which schedule it finds, that it computes the same, and what it refuses."""

import importlib.util
import pathlib
import re

import numpy as np
import pytest

from fa4c import targets
from fa4c.ir import interpret_tile
from fa4c.ir.context import parse_module, print_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.passes import loop_graph, tile_pipeline
from fa4c.passes.registry import run_pipeline

HERE = pathlib.Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples" / "tile"
_spec = importlib.util.spec_from_file_location("tile_pipeline_programs", HERE / "tile_pipeline_programs.py")
programs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(programs)


def scheduled(text: str, options: str = ""):
    module = parse_module(text, "loop.mlir")
    run_pipeline(module, f"tile-pipeline{options}")
    return module


def plans(module, **options):
    found = [tile_pipeline.plan_loop(loop, targets.of(module), **options) for loop in loop_graph.pipelined_loops(module)]
    for plan in found:
        plan.module = module  # the operations live as long as it does
    return found


def kinds(plan) -> list[str]:
    """The step as a list, such as "mma@1" for an MMA of stage 1; maps are told apart by the type they give."""
    names = []
    for _, stage, op in sorted(zip(plan.orders, plan.stages, plan.loop.ops, strict=True), key=lambda entry: entry[0]):
        kind = op.operation.name.removeprefix("tile.")
        if kind == "map":
            kind = f"map {'x'.join(map(str, op.out.type.shape))}x{op.out.type.element_type}"
        names.append(kind + (f"@{stage}" if stage else ""))
    return names


# ------------------------------------------------------------------------------------------------------------------- schedules


def test_attention_gets_the_order_of_fa3():
    """QK of this block, PV of the last, softmax meanwhile; then the cast of P and the rescale of O, which need PV to be done."""
    (plan,) = plans(parse_module(programs.attention(128, 64, 128)))
    assert kinds(plan) == ["load", "mma", "load@1", "mma@1", "map 128x64xf32", "reduce", "rescale_factor", "map 128x64xf32",
                           "map 128x4xf32", "reduce", "map 128x64xbf16", "map 128x128xf32"]
    assert plan.exact


@pytest.mark.parametrize("shape", [(192, 128, 64), (128, 128, 128), (128, 80, 256), (64, 64, 32)])
@pytest.mark.parametrize("conditional", [False, True])
def test_attention_overlaps_at_every_shape(shape, conditional):
    module = parse_module(programs.attention(*shape, conditional=conditional))
    (plan,), (plain,) = plans(module), plans(module, stages=1)
    assert [kind for kind in kinds(plan) if "mma" in kind] == ["mma", "mma@1"]
    assert kinds(plan)[:4] == ["load", "mma", "load@1", "mma@1"]
    assert sum(plan.stages) == 2  # PV and the load of V
    assert plan.ii < plain.ii
    assert set(plain.stages) == {0}


def test_two_gemms_get_the_same_shape_without_a_softmax():
    (plan,) = plans(parse_module((EXAMPLES / "two_gemms.mlir").read_text()))
    assert kinds(plan) == ["load", "mma", "load@1", "mma@1", "map 128x128xbf16"]


def test_a_plain_gemm_has_nothing_to_overlap():
    (plan,) = plans(parse_module((EXAMPLES / "gemm.mlir").read_text()))
    assert kinds(plan) == ["load", "load", "mma"]
    assert plan.ii == 2 * 128 * 128 * 64 // 4096  # the tensor cores never wait


# --------------------------------------------------------------------------------------------------------- the same numbers


@pytest.mark.parametrize("blocks", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("conditional", [False, True])
def test_attention_computes_the_same_after_scheduling(blocks, conditional):
    text = programs.attention(64, 32, 32, conditional=conditional)
    inputs = programs.make_inputs(192, max(32 * blocks - 5, 0), 32)
    before = interpret_tile.run(parse_module(text), inputs, mode="value", dtype="float64")
    after = interpret_tile.run(scheduled(text), inputs, mode="storage", dtype="float64")
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])
    expected = programs.reference(**inputs)
    np.testing.assert_allclose(after["o"], expected[0], atol=1e-6)  # the program's scale is an f32
    np.testing.assert_allclose(after["lse"], expected[1], atol=1e-6)


@pytest.mark.parametrize("n", [0, 100, 256, 300, 640])
def test_two_gemms_compute_the_same_after_scheduling(n):
    text = (EXAMPLES / "two_gemms.mlir").read_text()
    rng = np.random.default_rng(n)
    inputs = {"a": rng.standard_normal((130, 64)), "b": rng.standard_normal((n, 64)), "c": rng.standard_normal((n, 128))}
    before = interpret_tile.run(parse_module(text), inputs, mode="value", dtype="float64")
    after = interpret_tile.run(scheduled(text), inputs, mode="storage", dtype="float64")
    np.testing.assert_array_equal(before["out"], after["out"])


def test_a_wrong_order_would_be_noticed():
    """The check above sees a cast of P that overwrites what PV has not read yet."""
    module = scheduled(programs.attention(64, 32, 32))
    steps = kinds(plans(module)[0])
    pv, cast = steps.index("mma@1"), steps.index("map 64x32xbf16")

    def moved(found) -> str:
        order = int(found[1])
        return f"order = {cast if order == pv else order - (pv < order <= cast)} : i64"

    wrong = re.sub(r"order = (\d+) : i64", moved, print_module(module, locations=False))
    inputs = programs.make_inputs(192, 192, 32)
    expected = interpret_tile.run(module, inputs, mode="value", dtype="float64")
    got = interpret_tile.run(parse_module(wrong), inputs, mode="storage", dtype="float64")
    assert not np.allclose(expected["o"], got["o"])


def test_five_mmas_compute_the_same_after_scheduling():
    """Reads of one load in two stages, shared memory written by the loop, a store in it."""
    text = programs.five_mmas(64, 64, 64)
    module = scheduled(text)
    assert "stage = 1" in str(module)
    rng = np.random.default_rng(0)
    for blocks in (0, 1, 2, 3, 5):
        shapes = {"q": (64 * blocks, 64), "do": (64 * blocks, 64), "k": (64, 64), "v": (64, 64), "kt": (64, 64)}
        inputs = {name: rng.standard_normal(shape) / 8 for name, shape in shapes.items()}
        before = interpret_tile.run(parse_module(text), inputs, mode="value", dtype="float64")
        after = interpret_tile.run(module, inputs, mode="storage", dtype="float64")
        for name in before:
            np.testing.assert_array_equal(before[name], after[name])


FROM_ATTN = "attn-simplify-mask,attn-to-tile{configurations=formula},tile-conditional-rescale,tile-exp-emulation"


@pytest.mark.parametrize("name", ["full", "causal", "window", "softcap", "alibi", "gqa", "prefix_lm", "document"])
def test_examples_compute_the_same_after_scheduling(name):
    """Every variant gets QK, PV of the last block, and then the rest; one CTA of each, over three blocks, is executed."""
    path = EXAMPLES.parent / f"{name}.mlir"
    module = parse_module(path.read_text(), str(path))
    run_pipeline(module, FROM_ATTN)
    (plan,) = plans(module)
    assert kinds(plan)[:4] == ["load", "mma", "load@1", "mma@1"]
    assert sum(plan.stages) == 2
    assert plan.ii < plans(module, stages=1)[0].ii
    inputs = example_inputs(module, m=200, n=300)
    before = interpret_tile.run(module, inputs, mode="value", dtype="kernel", ctas={(1, 0, 0)})
    run_pipeline(module, "tile-pipeline")
    after = interpret_tile.run(module, inputs, mode="storage", dtype="kernel", ctas={(1, 0, 0)})
    for key in before:
        np.testing.assert_array_equal(before[key], after[key])
        assert np.isfinite(after[key]).any()


def example_inputs(module, **sizes) -> dict:
    """Random inputs by the names and types of the host function; one batch entry, few heads; ids ascend."""
    host = next(op for op in module.body.operations if op.operation.name == "tile.host")
    rng = np.random.default_rng(0)
    sizes = {"b": 1, "hq": 2, "hkv": 1, **sizes}
    inputs = {}
    for entry, argument in zip(host.tensors, host.body.blocks[0].arguments, strict=True):
        if entry["role"].value == "input":
            kind = argument.type
            shape = [sizes[dim.value] if kind.is_dynamic_dim(axis) else kind.shape[axis] for axis, dim in enumerate(entry["dims"])]
            floating = "f" in str(kind.element_type)
            inputs[entry["name"].value] = rng.standard_normal(shape) if floating else np.sort(rng.integers(0, 3, shape), axis=-1)
    return inputs


# --------------------------------------------------------------------------------------------------------- one copy of each value


def overwritten(loop, iterations: int = 4) -> list[str]:
    """What goes wrong when the schedule runs with one copy of each tile and `buffers` of each load: another reading of the rules.

    A carried argument is read from the place of the value that becomes it; a row vector or partial sum, also from a copy that is made
    at the end of a step.
    """
    block = loop.regions[0].blocks[0]
    ops = sorted((op for op in block.operations if hasattr(op, "stage")), key=lambda op: op.order.value)
    yielded = dict(zip(list(block.arguments)[1:], list(block.operations)[-1].operation.operands, strict=True))
    buffers = {op.operation.results[0]: op.buffers.value if op.operation.name == "tile.load" else 1 for op in ops if op.operation.results}
    held, copied, problems = {}, {}, []
    for k in range(iterations + max(op.stage.value for op in ops)):
        ran = set()
        for op in ops:
            i = k - op.stage.value
            if not 0 <= i < iterations:
                continue
            for value in op.operation.operands:
                if value in yielded:
                    small = value.type.rank == 1 or value.type.shape[1] == 4
                    fine = i == 0 or held.get(yielded[value]) == {i - 1} or (small and copied.get(value) == i - 1)
                    found = held.get(yielded[value])
                elif value in buffers:
                    found = held.get(value) if buffers[value] == 1 else held.get((value, i % buffers[value]))
                    fine = found == {i}
                else:
                    continue
                if not fine:
                    problems.append(f"step {k}: {op.operation.name} of iteration {i} finds {found} in {value.get_name()}")
            for result in op.operation.results:
                held[result if buffers[result] == 1 else (result, i % buffers[result])] = {i}
                ran.add((result, i))
            if op.operation.name == "tile.mma" and op.acc is not None:
                held.pop(op.acc, None)  # summed into
        copied.update({argument: i for argument, value in yielded.items() for result, i in ran if value == result})
    return problems


PROGRAMS = {
    "attention": programs.attention(64, 64, 64), "conditional": programs.attention(128, 96, 64, conditional=True),
    "two_gemms": (EXAMPLES / "two_gemms.mlir").read_text(), "gemm": (EXAMPLES / "gemm.mlir").read_text(),
    "five_mmas": programs.five_mmas(),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("options", ["", "{stages=1}"])
def test_one_copy_of_each_value_is_enough(name, options):
    module = scheduled(PROGRAMS[name], options)
    for loop in loop_graph.pipelined_loops(module):
        assert overwritten(loop) == []


@pytest.mark.parametrize("name", ["attention", "two_gemms", "five_mmas"])
def test_most_other_orders_need_more_copies(name):
    """The check above is no formality: of all swaps of neighbours that depend on each other, none passes it."""
    module = scheduled(PROGRAMS[name])
    (loop,) = loop_graph.pipelined_loops(module)
    graph = loop_graph.build(loop, targets.of(module)).graph
    ops = [op for op in loop.regions[0].blocks[0].operations if hasattr(op, "stage")]
    step = sorted(range(len(ops)), key=lambda i: ops[i].order.value)
    swapped = 0
    for a, b in zip(step, step[1:], strict=False):
        between = [ops[b].stage.value + e.distance - ops[a].stage.value for e in graph.edges if (e.src, e.dst) == (a, b) and e.ordered]
        if 0 in between and not any(e.from_issue for e in graph.edges if (e.src, e.dst) == (a, b)):
            ops[a].attributes["order"], ops[b].attributes["order"] = ops[b].order, ops[a].order
            assert overwritten(loop), f"{ops[a]} {ops[b]}"
            ops[a].attributes["order"], ops[b].attributes["order"] = ops[b].order, ops[a].order
            swapped += 1
    assert swapped >= 2


def recurrence(late: bool) -> str:
    """out = the last of O_i = f(S_i + O_i-1) @ C_i: the carried tile is not summed into. `late`: it is read again behind the second MMA."""
    text = PROGRAMS["two_gemms"]
    kind = "tensor<128x128xf32, #tile.reg>"
    add = f"""({{
    ^bb0(%e: f32, %w: f32, %row: index, %col: index):
      %t = arith.addf %e, %w : f32
      "tile.yield"(%t) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 2, 0>}} : ({kind}, {kind}) -> {kind}"""
    text = text.replace('%p = "tile.map"(%s)', f'%h = "tile.map"(%s, %o) {add}\n    %p = "tile.map"(%h)')
    mma = re.search(r'%o1 = "tile.mma".*', text)[0]
    fresh = mma.replace(f", {kind})", ")").replace("%sc, %o)", "%sc)").replace("1, 1, 1", "1, 1, 0")
    again = f'\n    %o2 = "tile.map"(%o1, %o) {add}'
    text = text.replace(mma, fresh + (again if late else ""))
    return text.replace("scf.yield %o1", "scf.yield %o2") if late else text


@pytest.mark.parametrize("late, copies", [(False, 0), (True, 1)])
def test_carried_tiles_are_copied_only_if_they_must_be(late, copies):
    module = parse_module(recurrence(late))
    (loop,) = loop_graph.pipelined_loops(module)
    edges = loop_graph.build(loop, targets.of(module)).graph.edges
    assert bool([e for e in edges if e.steps]) == bool(copies)
    rng = np.random.default_rng(0)
    inputs = {"a": rng.standard_normal((128, 64)) / 8, "b": rng.standard_normal((500, 64)) / 8, "c": rng.standard_normal((500, 128)) / 8}
    before = interpret_tile.run(module, inputs, mode="value", dtype="float64")
    run_pipeline(module, "tile-pipeline")
    after = interpret_tile.run(module, inputs, mode="storage", dtype="float64")
    np.testing.assert_array_equal(before["out"], after["out"])


# -------------------------------------------------------------------------------------------------------------- decisions


def test_stages_and_order_follow_from_the_numbers_of_the_target():
    """What fills the tensor cores during this block's exponentials depends on how long these take, and on what registers can hold."""
    names = "q s do dp p pc dv ds dsc sds dq dk dqc sdq store".split()
    module = parse_module(programs.five_mmas())

    def step(**changes):
        with targets.override("sm_90a", **changes):
            (plan,) = plans(module)
        mmas = [i for i in sorted(range(15), key=plan.orders.__getitem__) if names[i] in ("s", "dp", "dv", "dq", "dk")]
        return plan.ii, " ".join(names[i] + "'" * plan.stages[i] for i in mmas)

    room = {"registers": 2 * 65536, "max_registers_per_thread": 512}
    assert step(**room) == (2560, "s dq' dk' dp dv")  # five MMAs of 512 clocks, never waiting
    assert step(**room, mufu=4) == (3081, "s dv' dq' dk' dp")  # four times as long: dV too is put off
    assert step(**room, mma_flops=8192) == (2048, "dq' s dp dk' dv")
    assert step() == (2628, "s dp dv dq dk")  # 240 registers a thread hold one block at a time


def test_durations_follow_from_the_numbers_of_the_target():
    module = parse_module(programs.attention())

    def clocks(**changes):
        with targets.override("sm_90a", **changes):
            (plan,) = plans(module)
        return plan.ii, [cost.clocks for cost in plan.loop.costs]

    names = ["load", "load", "qk", "mask", "max", "factor", "p", "sums", "sum", "cast", "rescale", "pv"]
    ii, plain = clocks()
    assert dict(zip(names, plain, strict=True)) == {
        "load": 32768 // 128, "qk": 2 * 128**3 // 4096, "mask": 1, "max": 128 * 128 // 64 + 4 * 4 * 128 // 64, "factor": 4 * 128 // 16,
        "p": 128 * 128 // 16, "sums": 4, "sum": 128, "cast": 128, "rescale": 128, "pv": 1024}
    slower, quarter = clocks(mufu=4)
    assert dict(zip(names, quarter, strict=True)) == {**dict(zip(names, plain, strict=True)), "p": 4096, "factor": 128}
    assert slower == ii + 3 * 1024 + 96  # the exponentials, and what scales O, are on the critical circle
    _, faster = clocks(mma_flops=8 * 4096)
    assert (faster[2], faster[-1]) == (768, 512)  # the operands come out of shared memory no faster than before
    _, narrow = clocks(smem_bytes_per_clk=64)
    assert (narrow[0], narrow[2], narrow[-1]) == (512, 1536, 1024)


def test_emulated_exponentials_leave_the_mufu():
    for emulated, clocks in ((0, 1024), (4, 768)):
        (plan,) = plans(parse_module(programs.attention(emulated=emulated)))
        assert (plan.loop.costs[6].unit, plan.loop.costs[6].clocks) == ("mufu", clocks)


def test_mmas_that_finish_out_of_order_wait_for_each_other():
    import dataclasses

    module = parse_module(PROGRAMS["gemm"])
    mma = dataclasses.replace(targets.get("sm_90a").mma, in_order=False)
    with targets.override("sm_90a", mma=mma):
        assert plans(module)[0].ii == 512 + 4  # the next is issued when the accumulator is complete


# --------------------------------------------------------------------------------------------------------- options, pins, refusals


def test_stages_and_buffers_are_options():
    assert "stage = 1" not in str(scheduled(programs.attention(), "{stages=1}"))
    module = scheduled(programs.attention(), "{buffers=3}")
    assert str(module).count("buffers = 3") == 2  # the loads of the loop; Q is loaded once
    assert print_module(scheduled(print_module(module))) == print_module(module)


def test_a_pinned_schedule_is_kept():
    """PV issued before QK: slower, but right, and so kept."""
    text = programs.attention(pins={"pv": "stage = 1, order = 0", "qk": "stage = 0, order = 1"})
    (plan,) = plans(parse_module(text))
    assert [kind for kind in kinds(plan) if kind != "load" and kind != "load@1"][:2] == ["mma@1", "mma"]
    (rescale_late,) = plans(parse_module(programs.attention(pins={"rescale": "stage = 1"})))
    assert kinds(rescale_late)[:5] == ["load", "mma", "map 128x128xf32@1", "load@1", "mma@1"]  # O is rescaled while QK runs
    (free,) = plans(parse_module(programs.attention()))
    assert rescale_late.ii == free.ii - 128


def test_pinned_loads_keep_their_place():
    pins = {"load_v": "stage = 1, order = 0", "qk": "order = 1", "pv": "stage = 1"}
    (early,) = plans(parse_module(programs.attention(pins=pins)))
    assert kinds(early)[:4] == ["load@1", "load", "mma", "mma@1"]
    pins = {"qk": "stage = 0, order = 0", "row_max": "order = 1", "load_v": "order = 2", "pv": "stage = 1, order = 3"}
    (late,) = plans(parse_module(programs.attention(pins=pins)))
    assert kinds(late)[:6] == ["load", "mma", "map 128x128xf32", "reduce", "load@1", "mma@1"]
    pins = {"qk": "stage = 0, order = 0", "load_v": "order = 1", "p": "order = 2", "pv": "stage = 0, order = 3"}
    (between,) = plans(parse_module(programs.attention(pins=pins)))
    assert kinds(between)[:4] == ["load", "mma", "map 128x128xf32", "reduce"]  # the load of V comes as late as it may
    assert kinds(between)[5:7] == ["load", "map 128x128xf32"]
    (ahead,) = plans(parse_module(programs.attention(pins={"load_v": "stage = 0", "pv": "stage = 1"})))
    assert kinds(ahead)[:4] == ["load", "load", "mma", "mma@1"]  # two steps at once: that is what the buffers are for


@pytest.mark.parametrize("reader", ['%dqc = "tile.map"(%dqa)', '%p = "tile.map"(%s)'])
def test_what_is_stored_and_loaded_again_keeps_its_order(reader):
    """dQ is read where it is written: a block after the block before was stored, and before this one is."""
    text = programs.five_mmas()
    source = reader[reader.index("(") + 1 : -1]
    kind = "tensor<128x64xf32, #tile.reg>"
    text = text.replace(reader, f"""%old = "tile.load"(%dq, %c0, %m0) {{dims = array<i64: 0, 1>}}
      : (tensor<?x?xbf16, #tile.gmem>, index, index) -> tensor<128x64xbf16, #tile.smem>
    %sum = "tile.map"({source}, %old) ({{
    ^bb0(%e: f32, %w: bf16, %r: index, %c: index):
      %u = arith.extf %w : bf16 to f32
      %y = arith.addf %e, %u : f32
      "tile.yield"(%y) : (f32) -> ()
    }}) {{operandSegmentSizes = array<i32: 2, 0>}} : ({kind}, tensor<128x64xbf16, #tile.smem>) -> {kind}
    {reader.replace(source, "%sum")}""")
    (plan,) = plans(parse_module(text))
    loop = plan.loop
    (store,) = [i for i, op in enumerate(loop.ops) if op.operation.name == "tile.store"]
    (load,) = [i for i, op in enumerate(loop.ops) if op.operation.name == "tile.load" and op.source == loop.ops[store].target]
    places = list(zip(plan.stages, plan.orders, strict=True))
    assert places[load] < places[store] < (places[load][0] + 1, places[load][1])
    assert load not in loop.graph.free  # it cannot run ahead


@pytest.mark.parametrize("pins, line, message", [
    ({"qk": "stage = 0, order = 0", "pv": "stage = 1, order = 7", "cast": "stage = 0, order = 3"}, "cast", "is pinned too early"),
    ({"p": "order = 1, stage = 0", "row_max": "order = 2, stage = 0"}, "p", "is pinned too early"),
    ({"p": "order = 1", "row_max": "order = 1"}, "p", "has order = 1, as has"),
    ({"load_v": "stage = 2", "pv": "stage = 1"}, "pv", "is pinned too early"),
    ({"load_v": "stage = 3"}, "load_v", "is pinned too late .stage = 3.: %.* must run after it"),
])
def test_wrong_pins_are_refused_at_their_operation(pins, line, message):
    text = programs.attention(pins=pins)
    with pytest.raises(Diagnostic, match=message) as error:
        scheduled(text)
    found = int(re.match(r"loop.mlir:(\d+):", str(error.value))[1])
    start = {"cast": "%pc =", "p": "%p =", "pv": "%o2 =", "load_v": "%sv ="}[line]
    assert text.split("\n")[found - 1].strip().startswith(start)


def test_pins_that_leave_no_place_are_refused():
    with pytest.raises(Diagnostic, match="find no place") as error:
        scheduled(programs.attention(pins={"pv": "stage = 1"}), "{stages=1}")
    assert "at most 1 stages" in str(error.value)


def test_too_few_buffers_are_refused_with_the_number_needed():
    text = programs.attention(buffers=1, pins={"load_v": "stage = 0", "pv": "stage = 1"})
    with pytest.raises(Diagnostic, match="has 1 of the 2 buffers") as error:
        scheduled(text)
    assert "buffers=2" in str(error.value)
    scheduled(text, "{buffers=2}")


def test_what_is_not_pinned_makes_do_with_the_buffers_there_are():
    module = scheduled(programs.five_mmas(buffers=1))
    (loop,) = loop_graph.pipelined_loops(module)
    assert overwritten(loop) == []
    (one,), (two,) = plans(parse_module(programs.five_mmas(buffers=1))), plans(parse_module(programs.five_mmas(buffers=2)))
    assert one.ii > two.ii


def test_an_accumulator_that_is_read_later_is_refused():
    text = programs.attention().replace("scf.yield %o2, %mn", """%again = "tile.map"(%o1) ({
    ^bb0(%e: f32, %r: index, %c: index):
      "tile.yield"(%e) : (f32) -> ()
    }) {operandSegmentSizes = array<i32: 1, 0>} : (tensor<128x128xf32, #tile.reg>) -> tensor<128x128xf32, #tile.reg>
    scf.yield %again, %mn""")
    with pytest.raises(Diagnostic, match="sums into .* in place"):
        scheduled(text)


def test_tile_operations_under_a_branch_are_refused():
    text = programs.attention()
    at = text.index('    %f = "tile.rescale_factor"')
    end = text.index("\n", at)
    row = "tensor<128xf32, #tile.reg>"
    inside = text[at:end].replace("%f =", "%f0 =")
    text = f"""{text[:at]}    %f = scf.if %boundary -> ({row}) {{
  {inside}
      scf.yield %f0 : {row}
    }} else {{
      scf.yield %mn : {row}
    }}{text[end:]}"""
    with pytest.raises(Diagnostic, match="'scf.if' holds tile operations"):
        scheduled(text)


@pytest.mark.parametrize("option", ["stages", "buffers"])
def test_negative_options_are_refused(option):
    with pytest.raises(Diagnostic, match=f"{option}=-1 is no count"):
        scheduled(programs.attention(), f"{{{option}=-1}}")
