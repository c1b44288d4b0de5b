"""Columns of tensor memory: right numbers in storage mode, wrong ones for a wrong column, and what the pass says where nothing fits."""

import re

import numpy as np
import pytest
from attn_to_tile_programs import CAUSAL, CONTEXT, attention, make_inputs, run_attn

from fa4c import targets
from fa4c.ir import interpret_tile
from fa4c.ir.context import parse_module, print_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.passes.registry import run_pipeline

TO_TILE = "attn-simplify-mask,attn-fold-scale,attn-to-tile,tile-accumulate-in-tmem,tile-conditional-rescale,tile-pipeline"
OUT = "o0"
SIZES = dict(b=1, hq=2, hkv=1, m=300, n=420)


def tile_level(d: int = 128, pipeline: str = TO_TILE + ",tile-alias-tmem", *, text: str = "") -> str:
    text = text or 'module attributes {fa4c.target = "sm_100a"} {\n' + attention(mask=CAUSAL, d=d, dv=d) + "\n}"
    module = parse_module(text, "test.mlir", CONTEXT)
    run_pipeline(module, pipeline)
    return print_module(module, locations=False)


def columns(text: str) -> dict[str, int]:
    """shape -> first column."""
    return {shape: int(column) for shape, column in reversed(re.findall(r"tensor<(\d+x\d+x\w+), #tile.tmem<(-?\d+)", text))}


def worst(text: str, d: int, sizes=SIZES) -> float:
    """The largest difference of the output in storage mode from the attn level; NaN counts as infinite."""
    attn = attention(mask=CAUSAL, d=d, dv=d)
    inputs = make_inputs(attn, sizes)
    with CONTEXT:
        got = interpret_tile.run(parse_module(text, "test.mlir", CONTEXT), inputs, mode="storage", dtype="float64")
    return float(np.nan_to_num(np.abs(np.asarray(got[OUT]) - np.asarray(run_attn(attn, inputs)[OUT])), nan=np.inf).max())


@pytest.mark.parametrize(("d", "want"), [
    (64, {"256x64xf32": 0, "256x128xf32": 64, "256x128xbf16": 192}),  # room for all
    (96, {"256x96xf32": 128, "256x128xf32": 0, "256x128xbf16": 0}),
    (128, {"256x128xf32": 0, "256x128xbf16": 128}),  # scores, at 128, and O have one shape
])  # fmt: skip
def test_maps_of_the_forward(d, want):
    text = tile_level(d)
    assert columns(text) == want
    assert worst(text, d) < 1e-5


def test_one_row_block_where_two_do_not_fit():
    text = tile_level(256)
    assert "tensor<128x256xf32, #tile.tmem<0" in text and "tensor<256x" not in text.replace("256xbf16", "")
    assert worst(text, 256) < 1e-5


@pytest.mark.parametrize(("shape", "column"), [("256x128xbf16", 0), ("256x128xbf16", 96), ("256x128xbf16", 192)])
def test_a_wrong_column_gives_wrong_numbers(shape, column):
    """P over O, over the end of O, or past P's own: only the last is harmless, for its half of the scores is read by then."""
    text = tile_level(128)
    wrong = re.sub(rf"(tensor<{shape}, #tile.tmem<)\d+", rf"\g<1>{column}", text)
    assert wrong != text
    assert (worst(wrong, 128) < 1e-5) == (column == 192)


def test_a_reuse_is_declared():
    text = tile_level(128)
    assert re.findall(r"after = array<i64: [^>]*>", text) == ["after = array<i64: 1, 1>", "after = array<i64: 4, 0>"]
    assert "after" not in tile_level(64)


@pytest.mark.parametrize(("edit", "message"), [
    (lambda t: t.replace("after = array<i64: 1, 1>, ", ""), r"has after = \[\], but overwrites columns whose last users are \[1, 1\]"),
    (lambda t: t.replace("after = array<i64: 4, 0>", "after = array<i64: 4, 1>"), r"has after = \[4, 1\], but .* \[4, 0\]"),
    (lambda t: re.sub(r"(256x128xbf16, #tile.tmem<)\d+", r"\g<1>0", t), "lies in columns .*both are needed at one time"),
    (lambda t: re.sub(r"(256x128xbf16, #tile.tmem<)\d+", r"\g<1>160", t), ""),
])  # fmt: skip
def test_a_map_is_checked_against_the_schedule(edit, message):
    text = tile_level(128)
    changed = edit(text)
    assert changed != text
    if not message:
        tile_level(pipeline="warp-specialize", text=changed)
        return
    with pytest.raises(Diagnostic) as caught:
        tile_level(pipeline="warp-specialize", text=changed)
    assert re.search(message, caught.value.text(), re.DOTALL)


def test_more_columns_end_all_sharing():
    with targets.override("sm_100a", tmem_columns=1024):
        text = tile_level(128)
    assert "after" not in text
    assert columns(text)["256x128xbf16"] not in (0, columns(text)["256x128xf32"])


def test_too_few_columns_are_refused_with_what_is_alive():
    before = tile_level(128, TO_TILE)
    with targets.override("sm_100a", tmem_columns=448), pytest.raises(Diagnostic) as caught:
        tile_level(pipeline="tile-alias-tmem", text=before)
    said = caught.value.text()
    assert "needs 256 columns of 224 of tensor memory for each of 2 row blocks" in said
    assert re.search(r"alive at one time: \S.* 128 and \S.* 128, 256 columns; \S.* 128 lives across the loop", said), said
    assert "use blocks of 96 columns (attn-to-tile.block-n=96); or use one row block (attn-to-tile.block-m=128)" in said
    for choice in ("block-n=96", "block-m=128"):
        with targets.override("sm_100a", tmem_columns=448):
            tile_level(128, TO_TILE.replace("attn-to-tile", f"attn-to-tile{{{choice}}}") + ",tile-alias-tmem")


def test_without_order_among_mmas_operands_are_not_overwritten():
    """P is read by an MMA; the next scores, by another, may only lie there if MMAs of one thread finish in order."""
    in_order = targets.get("sm_100a").mma
    before = tile_level(128, TO_TILE)
    unordered = type(in_order)(**{**in_order.__dict__, "in_order": False})
    with targets.override("sm_100a", mma=unordered), pytest.raises(Diagnostic) as caught:
        tile_level(pipeline="tile-alias-tmem", text=before)
    assert "needs 320 columns of 256" in caught.value.text()
    with targets.override("sm_100a", mma=unordered, tmem_columns=1024):
        assert "after" not in tile_level(pipeline="tile-alias-tmem", text=before)
