"""`tile-deterministic-reduction`: the same bits in every run, whatever runs when; nobody waits forever."""

import functools
from unittest import mock

import backward_programs
import compiled
import numpy as np
import pytest
import sums
import torch

from fa4c.ir import tile
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.lowering.compile import compile_text
from fa4c.passes._tile_map import operations_in
from fa4c.passes.registry import run_pipeline
from fa4c.runtime import emulated

TO_TILES = ("attn-fold-scale,attn-derive-backward,attn-sink-scale,attn-exp-to-exp2,attn-split-backward{fuse=true},attn-outline-kernels,"
            "attn-transpose-recompute,attn-simplify-mask,attn-to-tile")
TO_WARPS = "tile-pipeline{stages=1},warp-specialize,cse,warp-insert-barriers,warp-check"
ORDERED, PLAIN = f"{TO_TILES},tile-deterministic-reduction,{TO_WARPS}", f"{TO_TILES},{TO_WARPS}"


@functools.cache
def built(example: str, pipeline: str):
    text = (compiled.EXAMPLES / example).read_text()
    return compiled.load(*compiled.kernel_of_text(text, example, direction="bwd", pipeline=pipeline))


@functools.cache
def inputs(m: int, n: int, hq: int = 1):
    generator = torch.Generator().manual_seed(m)

    def normal(rows, heads):
        return torch.randn(1, rows, heads, 128, generator=generator).to(torch.bfloat16)

    return {"q": normal(m, hq), "k": normal(n, 1), "v": normal(n, 1), "o": normal(m, hq), "do": normal(m, hq),
            "lse": torch.randn(1, hq, m, generator=generator) + 4}


def added(example: str, pipeline: str, given: dict, **options) -> np.ndarray:
    """dQ before it is rounded, as bits."""
    seen, parameters = {}, emulated._parameters

    def keep(step, buffers):
        seen.update(buffers)
        return parameters(step, buffers)

    with mock.patch.object(emulated, "_parameters", keep):
        emulated.run_reported(built(example, pipeline), given, ["dq", "dk", "dv"], hazards=False, **options)
    return np.array(seen["dq_sum"].array).view(np.uint32)


@pytest.mark.parametrize("example", ["causal.mlir", "full.mlir"])
def test_the_same_bits_under_any_schedule(example):
    """Four CTAs add to each block of queries; without an order the bits differ between schedules."""
    given = inputs(70, 450)
    runs = [added(example, ORDERED, given, schedule="random", schedule_seed=seed) for seed in range(3)]
    assert all((run == runs[0]).all() for run in runs)
    others = [added(example, PLAIN, given, schedule="random", schedule_seed=seed) for seed in range(3)]
    assert any((run != others[0]).any() for run in others)
    assert np.abs(runs[0].view(np.float32) - others[0].view(np.float32)).max() < 1e-4


@pytest.mark.parametrize("example", ["causal.mlir", "window.mlir"])
def test_one_cta_at_a_time_does_not_wait_forever(example):
    """In the order of their numbers, each finds its turn when it starts; two query heads share the keys."""
    given = inputs(300, 300, 2)
    one = added(example, ORDERED, given, resident=1)
    assert (one == added(example, ORDERED, given, schedule="random", schedule_seed=5)).all()


def test_no_hazards():
    _, reports = emulated.run_reported(built("causal.mlir", ORDERED), inputs(70, 300), ["dq", "dk", "dv"], hazards=True)
    assert [report.hazards for report in reports] == [[]] * 3


# ------------------------------------------------------------------------------------------------------- from registers, by hand


def chained(**options) -> str:
    return backward_programs.chained(**options)


def test_additions_from_registers():
    """The other way to add: all threads, between two barriers of their warpgroup."""
    generator = torch.Generator().manual_seed(3)
    q, k = (torch.randn(rows, 128, generator=generator).to(torch.bfloat16) for rows in (100, 400))
    want = (torch.relu(q.float() @ k.float().T).to(torch.bfloat16).double() @ k.double()).numpy()
    pipeline = f"tile-deterministic-reduction,{TO_WARPS}"
    results = []
    for seed in range(3):
        got, report = sums.emulate(chained(), {"q": q, "k": k}, zeroed=("out",), pipeline=pipeline, hazards=seed == 0, schedule="random",
                                   schedule_seed=seed)
        assert report.hazards == [] and np.abs(got["out"] - want).max() < 1e-3 * np.abs(want).max()
        results.append(got["out"])
    assert all((result == results[0]).all() for result in results)


@pytest.mark.parametrize("mode", ["value", "storage"])
def test_the_interpreter_counts(mode):
    generator = torch.Generator().manual_seed(3)
    q, k = (torch.randn(rows, 128, generator=generator).to(torch.bfloat16) for rows in (100, 300))
    given = {"q": q, "k": k}
    passes = "tile-deterministic-reduction,tile-pipeline"
    got = sums.interpret(chained(), given, zeroed=("out",), mode=mode, passes=passes)
    assert np.abs(got["out"] - sums.interpret(chained(), given, zeroed=("out",))["out"]).max() < 1e-9
    with pytest.raises(Diagnostic, match="waits for 0, but the counters are"):
        sums.interpret(chained(), given, zeroed=("out",), mode=mode, passes=passes, ctas=[(1, 0, 0), (0, 0, 0)][:1] + [(2, 0, 0)], edits=[
            (r'"tile.wait_count"\((%\w+), %\w+(#0)?,', r'"tile.wait_count"(\1, %c0,')])


# ------------------------------------------------------------------------------------------------------------- warp-check, refusals


def warp_text(source: str, pipeline: str) -> str:
    return compile_text(source, "program.mlir", emit="warp", locations=False, pipeline=pipeline)


def said(text: str) -> str:
    with new_context():
        module = parse_module(text, "kernel.mlir")
        with pytest.raises(Diagnostic) as caught:
            run_pipeline(module, "warp-check")
        return str(caught.value)


def test_the_check_finds_a_count_that_comes_too_soon():
    text = warp_text(chained(), f"tile-deterministic-reduction,{TO_WARPS}")
    lines = text.split("\n")
    around = [n for n, line in enumerate(lines) if '"warp.barrier"' in line and 'scope = "warpgroup"' in line]
    messages = {said("\n".join(lines[:n] + lines[n + 1:])).split("\n")[0] for n in around}
    assert any("adds before all threads know that it is their turn" in m for m in messages)
    assert any("counts before what the warpgroup added is there" in m for m in messages)


def test_the_check_finds_a_count_before_the_copy_is_complete():
    text = compile_text((compiled.EXAMPLES / "full.mlir").read_text(), "full.mlir", emit="warp", locations=False, direction="bwd",
                        pipeline=ORDERED)
    assert '"warp.store_wait"() {complete = true' in text
    assert "counts before what the warpgroup added is there" in said(text.replace("{complete = true, ", "{"))


def refused(old: str, new: str) -> str:
    text = chained()
    assert old in text
    with new_context():
        module = parse_module(text.replace(old, new), "program.mlir")
        with pytest.raises(Diagnostic) as caught:
            run_pipeline(module, "tile-deterministic-reduction")
        return str(caught.value)


REFUSED = {
    "several times to one place": ("%out, %m0, %c0)", "%out, %n0, %c0)", "adds to one place in several iterations of a loop"),
    "an unknown walk": ("%m0 = arith.muli %i, %bm : index",
                        "%twice = arith.muli %i, %bm : index\n    %m0 = arith.addi %twice, %bm : index",
                        "walks over blocks in a way that is not known"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    assert REFUSED[case][2] in refused(*REFUSED[case][:2])


# a loop's start, of which the arithmetic does not say that it never falls with x
UNKNOWN = {
    "falls": "%from = arith.subi %blocks, %x : index",
    "jumps": "%two = arith.constant 2 : index\n  %from = arith.remsi %x, %two : index",
    "beyond the end": "%from = arith.muli %x, %bm : index\n  %to = arith.remsi %x, %bm : index\n  %start = arith.muli %from, %to : index",
}


@pytest.mark.parametrize("start", UNKNOWN)
def test_whose_bounds_are_unknown_counts_for_all_blocks(start):
    """Each CTA takes its turn at every block, where it adds nothing too: values as without an order, bits under any schedule the same."""
    first = UNKNOWN[start].split("\n")[-1].split("=")[0].strip()
    text = chained().replace("scf.for %i = %c0 to %blocks", f"{UNKNOWN[start]}\n  scf.for %i = {first} to %blocks")
    generator = torch.Generator().manual_seed(3)
    given = {name: torch.randn(rows, 128, generator=generator).to(torch.bfloat16) for name, rows in (("q", 150), ("k", 400))}
    want = sums.interpret(text, given, zeroed=("out",))["out"]
    passes = "tile-deterministic-reduction,tile-pipeline"
    assert np.abs(sums.interpret(text, given, zeroed=("out",), mode="storage", passes=passes)["out"] - want).max() < 1e-9
    results = []
    for seed in range(2):
        got, report = sums.emulate(text, given, zeroed=("out",), pipeline=f"tile-deterministic-reduction,{TO_WARPS}", hazards=seed == 0,
                                   schedule="random", schedule_seed=seed)
        assert report.hazards == [] and np.abs(got["out"] - want).max() < 1e-2 * max(1, np.abs(want).max())
        results.append(got["out"])
    assert (results[0] == results[1]).all()


# bounds that never fall with x, by STEP blocks for each x: with 1 the grid is turned round, with 2 the loop is
BOUNDS = {
    "from the diagonal on": "%from = arith.muli %x, %step : index\n  %to = arith.addi %blocks, %c0 : index",
    "a band": "%from = arith.muli %x, %step : index\n  %five = arith.constant 5 : index\n  %wide = arith.addi %from, %five : index\n"
              "  %to = arith.minsi %wide, %blocks : index",
    "up to the diagonal": "%one = arith.constant 1 : index\n  %from = arith.constant 0 : index\n  %mine = arith.muli %x, %step : index\n"
                          "  %next = arith.addi %mine, %one : index\n  %to = arith.minsi %next, %blocks : index",
}


def bounded(bounds: str, heads: bool, step: int = 2, from_zero: bool = True) -> str:
    """As attn-to-tile writes a loop over some of the blocks: block = first + index; or block = index from the first one on."""
    loop = (f"%step = arith.constant {step} : index\n  {BOUNDS[bounds]}\n  %length = arith.subi %to, %from : index\n"
            "  %trips = arith.maxsi %length, %c0 : index\n")
    text = chained(heads=heads)
    if not from_zero:
        return text.replace("scf.for %i = %c0 to %blocks", f"{loop}  scf.for %i = %from to %to")
    text = text.replace("scf.for %i = %c0 to %blocks", f"{loop}  scf.for %walk = %c0 to %trips")
    return text.replace("%m0 = arith.muli %i, %bm : index", "%i = arith.addi %from, %walk : index\n    %m0 = arith.muli %i, %bm : index")


@pytest.mark.parametrize(("heads", "step", "from_zero"), [(False, 1, True), (False, 2, True), (True, 2, True), (True, 2, False)])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_turns_follow_from_bounds_that_move(bounds, heads, step, from_zero):
    """Values as without an order. CTAs in the order of their numbers never wait; one whose neighbour is missing does."""
    generator = torch.Generator().manual_seed(3)
    given = {"q": torch.randn(*((3,) if heads else ()), 500, 128, generator=generator), "k": torch.randn(400, 128, generator=generator)}
    given = {name: value.to(torch.bfloat16) for name, value in given.items()}
    text, passes = bounded(bounds, heads, step, from_zero), "tile-deterministic-reduction,tile-pipeline"
    want = sums.interpret(text, given, zeroed=("out",))["out"]
    got = sums.interpret(text, given, zeroed=("out",), mode="storage", passes=passes)["out"]
    assert np.abs(got - want).max() < 1e-9
    with pytest.raises(Diagnostic, match="waits for 1, but the counters are 0"):
        sums.interpret(text, given, zeroed=("out",), passes=passes, ctas=[(1, 0, 0), (2, 0, 0), (3, 0, 0)])


def in_32_bits(value, known: dict) -> np.int32:
    """A scalar as a kernel computes it."""
    if value in known:
        return np.int32(known[value])
    op = value.owner
    if op.name == "arith.constant":
        return np.int32(op.attributes["value"].value)
    rules = {"arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.floordivsi": np.floor_divide,
             "arith.minsi": np.minimum, "arith.cmpi": np.less_equal, "arith.select": np.where}  # fmt: skip
    with np.errstate(over="ignore"):
        return rules[op.name](*(in_32_bits(operand, known) for operand in op.operands))


def test_turns_of_a_bound_that_is_divided_before_it_is_limited():
    """CTA x starts at block min(x // 2, 3). At each block turns are counted from 0 by those that add to it, from the largest x on."""
    own = ("%two = arith.constant 2 : index\n  %three = arith.constant 3 : index\n  %half = arith.floordivsi %x, %two : index\n"
           "  %from = arith.minsi %half, %three : index")
    text, ctas = bounded("from the diagonal on", False).replace("%from = arith.muli %x, %step : index", own), 9
    with new_context():
        module = parse_module(text, "program.mlir")
        run_pipeline(module, "tile-deterministic-reduction")
        found = {type(op): op for op in operations_in(module)}
        index = found[tile.WaitCountOp].operation.block.arguments[0]
        number, size = found[tile.ProgramIdOp].x, list(found[tile.KernelOp].body.blocks[0].arguments)[-1]
        for block in range(5):
            adding = [x for x in reversed(range(ctas)) if min(x // 2, 3) <= block]
            known = [{size: ctas, number: ctas - 1 - x, index: block - min(x // 2, 3)} for x in adding]
            assert [in_32_bits(found[tile.WaitCountOp].count, k) for k in known] == list(range(len(adding)))


def test_a_loop_that_does_more_than_run_another_stays():
    start = "scf.for %h = %c0 to %hs step %c1 {"
    tile = '%idle = "tile.splat"() {value = 0.0 : f32} : () -> tensor<64xf32, #tile.reg>'
    for text, loops in ((bounded("from the diagonal on", True), 3), (bounded("a band", True), 2)):
        for source, found in ((text, loops), (text.replace(start, f"{start}\n  {tile}"), 2)):
            with new_context():
                module = parse_module(source, "program.mlir")
                run_pipeline(module, "tile-deterministic-reduction")
                assert str(module).count("scf.for") == found
