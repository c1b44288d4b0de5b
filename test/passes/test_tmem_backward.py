"""The backward of five GEMMs, whose tiles leave no column of tensor memory free: the maps that `tile-alias-tmem` finds, what it says of
orders for which there is none, and the orders that `tile-pipeline` finds for which there is one.
"""

import pathlib

import numpy as np
import pytest
import tmem_backward as programs

from fa4c import targets
from fa4c.ir import interpret_tile
from fa4c.ir.context import new_context, parse_module, print_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.tile import MmaOp, tile_type
from fa4c.ir.value_names import name_of
from fa4c.passes import loop_graph, pipelines, tile_pipeline, tmem_tiles
from fa4c.passes.registry import run_pipeline

EXAMPLES = pathlib.Path(__file__).parent.parent.parent / "examples"

# name -> program, and its schedule by the fact sheet
SETS = {
    "64": (dict(d=64), programs.ONE_CTA_64),
    "96": (dict(d=96), programs.ONE_CTA),
    "128": (dict(d=128), programs.ONE_CTA),
    "128 pair": (dict(d=128, pair=True), programs.PAIR),
    "192, 128 pair": (dict(d=192, dv=128, pair=True), programs.PAIR_SERIAL),
}


def placed(kwargs, schedule, pipeline: str = "tile-alias-tmem") -> str:
    with new_context() as context:
        module = parse_module(programs.program(**kwargs, schedule=schedule), "five.mlir", context)
        run_pipeline(module, pipeline)
        return print_module(module)


def columns(text: str) -> dict[str, range]:
    """name -> columns."""
    with new_context() as context:
        module = parse_module(text, "five.mlir", context)
        kernel = next(op for op in module.body.operations if op.operation.name == "tile.kernel")
        return {t.name: range(start, start + t.words) for t in tmem_tiles.find(kernel) for start in [tmem_tiles.column_of(t.kind)]}


def groups(maps: dict[str, range]) -> set[frozenset]:
    """Tiles that lie over each other, directly or through others."""
    found = [{name} for name in maps]
    for name, own in maps.items():
        touching = [g for g in found if any(maps[other].start < own.stop and own.start < maps[other].stop for other in g)]
        found = [g for g in found if g not in touching] + [set().union(*touching)]
        assert name in found[-1]
    return {frozenset(g) for g in found}


def worst(text: str, kwargs) -> float:
    """The largest difference in storage mode from float64; NaN counts as infinite."""
    inputs = programs.inputs(300, 128, kwargs["d"], kwargs.get("dv", 0))
    with new_context() as context:
        got = interpret_tile.run(parse_module(text, "five.mlir", context), inputs, mode="storage", dtype="float64")
    want = programs.reference(**inputs, pair=kwargs.get("pair", False))
    return max(float(np.nan_to_num(np.abs(got[name] - want[name]), nan=np.inf).max()) for name in want)


@pytest.mark.parametrize("name", SETS)
def test_maps_of_the_backward(name):
    kwargs, schedule = SETS[name]
    text = placed(kwargs, schedule)
    assert max(own.stop for own in columns(text).values()) <= 512
    assert worst(text, kwargs) < 1e-12


def test_one_cta_at_128_shares_as_fa4_does():
    """Found from life spans and costs alone: P over the scores; dS, then dQ over dP; dV and dK stay; and dP alone waits for nothing new."""
    maps = columns(placed(*SETS["128"]))
    assert groups(maps) == {frozenset(g) for g in ({"s", "pc"}, {"dp", "dst", "dq"}, {"dv"}, {"dk"})}
    assert maps["s"].start == maps["pc"].start and maps["dp"] == maps["dq"] and maps["dp"].start == maps["dst"].start


def test_what_need_not_wait_does_not():
    """At head dim 64, where 512 columns are 64 short, dS lies over dP, whose last reader it follows anyway; nothing else shares."""
    assert {g for g in groups(columns(placed(*SETS["64"]))) if len(g) > 1} == {frozenset({"dp", "dst"})}


def test_an_order_that_does_not_fit_is_explained():
    with pytest.raises(Diagnostic) as caught:
        placed(dict(d=128), programs.PAIR)  # dP of the next block before dQ of this one, which only a pair's half of dQ leaves room for
    said = caught.value.text()
    assert "needs 576 columns of 512 of tensor memory" in said
    assert "dk 128 and dv 128 and pc 64 and dp 128 and dq 128, 576 columns; dk 128 and dv 128 live across the loop" in said
    assert "leave the order to tile-pipeline, which finds one that takes 512" in said  # as the tests of orders below see
    assert "use pairs of CTAs (tile-split-2cta), which halve the columns of dq" in said  # SETS["128 pair"] has this order
    assert "form dk in a kernel of its own" in said and "attn-to-tile.block" not in said  # dQ has 128 rows whatever the keys' block


def test_what_nothing_makes_fit_is_said():
    with pytest.raises(Diagnostic, match="no order, block or number of kernels that was tried fits"):
        placed(dict(d=256), None, "tile-pipeline,tile-alias-tmem")
    with pytest.raises(Diagnostic, match="form dk in a kernel of its own"):
        placed(dict(d=256), programs.PAIR_SERIAL)  # dV and dQ, one block after the other, have just the room


def test_fewer_columns_are_refused():
    with targets.override("sm_100a", tmem_columns=448), pytest.raises(Diagnostic, match="needs 512 columns of 448") as caught:
        placed(*SETS["128"])
    assert "dk 128 and dv 128 live across the loop" in caught.value.text()


def test_columns_that_do_not_exist_are_refused():
    with pytest.raises(Diagnostic, match="takes columns 480 to 607 of 512"), new_context() as context:
        module = parse_module(with_columns(placed(*SETS["64"]), "s", 480)[0], "five.mlir", context)
        tmem_tiles.check(module.body.operations[1], targets.get("sm_100a"))


@pytest.mark.parametrize(("name", "moved"), [("128", ("s", "pc", "dp", "dst", "dq")), ("128 pair", ("dq", "dst"))])
def test_an_illegal_map_is_refused_and_gives_wrong_numbers(name, moved):
    """A tile of the loop 32 columns to either side: numbers are wrong just where the check against the schedule refuses the map."""
    kwargs, schedule = SETS[name]
    text = placed(kwargs, schedule)
    verdicts = []
    for tile_name, own in ((t, c) for t, c in columns(text).items() if t in moved):
        for start in (own.start - 32, own.start + 32):
            if 0 <= start <= 512 - len(own):
                edited, refused = with_columns(text, tile_name, start)
                verdicts.append(refused)
                assert (worst(edited, kwargs) > 1e-9) == refused, (tile_name, start)
    assert set(verdicts) == {True, False}


def with_columns(text: str, name: str, start: int) -> tuple[str, bool]:
    """The tile of that name at `start`, and whether it lies over what is needed at the same time."""
    with new_context() as context:
        module = parse_module(text, "five.mlir", context)
        kernel = next(op for op in module.body.operations if op.operation.name == "tile.kernel")
        for value in next(t for t in tmem_tiles.find(kernel) if t.name == name).values:
            value.set_type(tile_type(value.type.shape, value.type.element_type, f"tmem<{start}>"))
        try:
            tmem_tiles.check(kernel, targets.get("sm_100a"))
        except Diagnostic as error:
            return print_module(module), "both are needed at one time" in error.text()
        return print_module(module), False


@pytest.mark.parametrize("name", SETS)
def test_more_columns_end_all_sharing(name):
    assert max(len(g) for g in groups(columns(placed(*SETS[name])))) > 1
    with targets.override("sm_100a", tmem_columns=1024):
        assert {len(g) for g in groups(columns(placed(*SETS[name])))} == {1}


# ------------------------------------------------------------------------------------------------------------------------- orders


def plan(kwargs, schedule=None, **changes) -> tuple[int, str]:
    """(initiation interval, the MMAs of a step by name, those of the iteration before with +1)."""
    with new_context() as context, targets.override("sm_100a", **changes):
        module = parse_module(programs.program(**kwargs, schedule=schedule), "five.mlir", context)
        (loop,) = loop_graph.pipelined_loops(module)
        found = tile_pipeline.plan_loop(loop, targets.of(module))
        return found.ii, mmas(found)


def mmas(found) -> str:
    slots = sorted(zip(found.orders, found.stages, found.loop.ops, strict=True), key=lambda slot: slot[0])
    return " ".join(name_of(op.out).removesuffix("1") + "+1" * stage for _, stage, op in slots if isinstance(op, MmaOp))


# The sheet's orders of the MMAs (2.4): what is found is no slower by the model, with columns for everything.
SHEET = {"64": "s dv+1 dk+1 dq+1 dp", "96": "dv+1 s dk+1 dq+1 dp", "128": "dv+1 s dk+1 dq+1 dp", "128 pair": "dv+1 s dk+1 dp dq+1",
         "192, 128 pair": "s dp dk dv dq"}  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_an_order_is_found_that_fits_and_is_no_slower_than_fa4s(name):
    kwargs, whole = SETS[name]
    found, order = plan(kwargs)
    assert found <= min(plan(kwargs, programs.order(SHEET[name]))[0], plan(kwargs, whole)[0]), order
    text = placed(kwargs, None, "tile-pipeline,tile-alias-tmem")
    assert max(own.stop for own in columns(text).values()) <= 512
    assert worst(text, kwargs) < 1e-12


@pytest.mark.parametrize(("clocks", "order"), [
    (0, "dv+1 s dq+1 dk+1 dpc"), (1, "dv+1 s dq+1 dk+1 dpc"), (384, "dv+1 s dk+1 dq+1 dpc"), (3000, "dv+1 s dk+1 dpc dq+1"),
])
def test_the_latency_of_a_pairs_exchange_moves_dq(clocks, order):
    """Half of dS comes from the other CTA: the longer that takes, the later dQ. Last it is FA-4's order, S', dK, dP', dQ, dV'."""
    passes = pipelines.pipeline("sm_100a", "bwd", emit="tile").split(",tile-pipeline")[0]
    pair = passes.replace("tile-split-2cta{exchange=true}", "tile-split-2cta{exchange=true ctas=2}")
    assert pair != passes
    text = (EXAMPLES / "full.mlir").read_text()
    with new_context() as context, targets.override("sm_100a", dsmem_exchange_clk=clocks):
        module = parse_module(f'module attributes {{fa4c.target = "sm_100a"}} {{\n{text}\n}}', "full.mlir", context)
        run_pipeline(module, pair)
        (loop,) = loop_graph.pipelined_loops(module)
        assert mmas(tile_pipeline.plan_loop(loop, targets.of(module))) == order


def test_room_for_all_is_no_slower():
    assert plan(dict(d=128), tmem_columns=1024)[0] < plan(dict(d=128))[0] < plan(dict(d=128), programs.order("s dp dv dk dq"))[0]


def test_an_order_that_cannot_be_is_refused_at_its_operation():
    with pytest.raises(Diagnostic, match=r"five.mlir:\d+:\d+: error: 'tile.mma' is pinned so that the other operations find no place"):
        plan(dict(d=128), programs.order("s dp dk p ds"))  # dK reads dS through the copy in tensor memory, which is not pinned
    with pytest.raises(Diagnostic, match=r"five.mlir:\d+:\d+: error: 'tile.mma' is pinned too early .stage = 0, order = 2.: it must"):
        plan(dict(d=128), programs.order("s dp dv p pc"))
