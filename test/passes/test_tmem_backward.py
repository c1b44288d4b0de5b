"""Columns for the backward of five GEMMs, whose live sets leave none free: the maps that `tile-alias-tmem` finds, and what it says of
orders for which there is none.
"""

import numpy as np
import pytest
import tmem_backward as programs

from fa4c import targets
from fa4c.ir import interpret_tile
from fa4c.ir.context import new_context, parse_module, print_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.tile import tile_type
from fa4c.passes import tmem_tiles
from fa4c.passes.registry import run_pipeline

# name -> program, and its schedule by the fact sheet
SETS = {
    "64": (dict(d=64), programs.ONE_CTA_64),
    "96": (dict(d=96), programs.ONE_CTA),
    "128": (dict(d=128), programs.ONE_CTA),
    "128 pair": (dict(d=128, pair=True), programs.PAIR),
    "192, 128 pair": (dict(d=192, dv=128, pair=True), programs.PAIR_SERIAL),
}


def placed(kwargs, schedule) -> str:
    with new_context() as context:
        module = parse_module(programs.program(**kwargs, schedule=schedule), "five.mlir", context)
        run_pipeline(module, "tile-alias-tmem")
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


def test_a_pair_at_128_puts_dq_beside_p():
    """dQ has 64 columns there: in the scores' block, beside P, where the next product of its own that needs them comes last."""
    maps = columns(placed(*SETS["128 pair"]))
    assert groups(maps) == {frozenset(g) for g in ({"s", "pc", "dq"}, {"dp", "dst"}, {"dv"}, {"dk"})}
    assert set(maps["dq"]) & set(maps["pc"]) == set()


def test_what_need_not_wait_does_not():
    """At head dim 64, where 512 columns are 64 short, dS lies over dP, whose last reader it follows anyway; nothing else shares."""
    assert {g for g in groups(columns(placed(*SETS["64"]))) if len(g) > 1} == {frozenset({"dp", "dst"})}


def test_an_order_that_does_not_fit_is_explained():
    with pytest.raises(Diagnostic) as caught:
        placed(dict(d=128), programs.PAIR)  # dP of the next block before dQ of this one, which only a pair's half of dQ leaves room for
    said = caught.value.text()
    assert "needs 576 columns of 512 of tensor memory" in said
    assert "dk 128 and dv 128 and pc 64 and dp 128 and dq 128, 576 columns; dk 128 and dv 128 live across the loop" in said


def test_fewer_columns_are_refused():
    with targets.override("sm_100a", tmem_columns=448), pytest.raises(Diagnostic, match="needs 512 columns of 448") as caught:
        placed(*SETS["128"])
    assert "dk 128 and dv 128 live across the loop" in caught.value.text()


def test_columns_that_do_not_exist_are_refused():
    with pytest.raises(Diagnostic, match="takes columns 480 to 607 of 512"), new_context() as context:
        module = parse_module(with_columns(placed(*SETS["64"]), "s", 480)[0], "five.mlir", context)
        tmem_tiles.check(module.body.operations[1], targets.get("sm_100a"))


@pytest.mark.parametrize(("name", "moved"), [("128", ("s", "pc", "dp", "dst", "dq")), ("128 pair", ("dq",))])
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
    assert True in verdicts and (False in verdicts or len(moved) == 1)


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


def test_more_columns_end_all_sharing():
    with targets.override("sm_100a", tmem_columns=1024):
        assert {len(g) for g in groups(columns(placed(*SETS["64"])))} == {1}
