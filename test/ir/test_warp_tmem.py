"""Verifiers of the operations for tensor memory. The kernel around the wrong operation is examples/warp/gemm_tmem.mlir, or a few lines."""

import pathlib

import pytest

from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import from_mlir_error
from fa4c.ir.mlir import ir

TEXT = (pathlib.Path(__file__).resolve().parent.parent.parent / "examples" / "warp" / "gemm_tmem.mlir").read_text()
ACC, OUT = "tensor<128x128xf32, #tile.tmem<0>>", "tensor<128x128xbf16, #tile.reg>"


def said(text: str) -> str:
    try:
        parse_module(text, "kernel.mlir", new_context())
    except ir.MLIRError as error:
        return from_mlir_error(error)
    return ""


def behind_init(lines: str) -> str:
    """The example with some more lines behind the tile `%acc`."""
    anchor = f'  %acc = "warp.tmem"(%memory) : (!warp.tensor_memory) -> {ACC}\n'
    return TEXT.replace(anchor, anchor + lines)


def test_the_example_verifies():
    assert said(TEXT) == ""


@pytest.mark.parametrize(("old", "new", "message"), [
    ("columns = 128, word = 80", "columns = 96, word = 80", "tcgen05.alloc takes a power of two from 32 to 512"),
    ("word = 80", "word = 81", "the address is 4 bytes, 4-byte aligned"),
    (ACC, "tensor<128x128xf32, #tile.tmem<32>>", "takes columns 32 to 160 of 128"),
    (ACC, "tensor<64x128xf32, #tile.tmem<0>>", "gives tensor<64x128xf32, #tile.tmem<0 : i64>>"),
    (ACC, "tensor<256x128xf32, #tile.tmem<0>>", "takes columns 0 to 128 of 64"),
    ("block = 0", "block = 1", "128 rows are 1 blocks of 128"),
    ('barrier = "full"', 'barrier = "half"', 'a slot has a "full" and an "empty" one'),
    ('kind = "store"', 'kind = "both"', 'known are "load" and "store"'),
    ("columns = 32, operandSegmentSizes = array<i32: 1, 1, 0>}", "columns = 12, operandSegmentSizes = array<i32: 1, 1, 0>}",
     "it works on multiples of 8 columns"),
    ("^bb0(%s: f32, %row", "^bb0(%s: f32, %more: f32, %row", "has 1 inputs, but its region takes 4 arguments"),
    ("fills = 4", "fills = 0", "threads fill a slot, at least one"),
    ("tx_bytes = 32768, arrivals = 1", "tx_bytes = 32768, arrivals = 1, fills = 2", "threads fill a slot, at least one"),
    ("tx_bytes = 0, arrivals = 0}", "tx_bytes = 0, arrivals = 0, groups = 0}", "threads fill a slot, at least one"),
    ('%done = "warp.state"(%sum) {phase = 0}', '%done = "warp.state"(%sum) {phase = 0, group = 0}', "has group = 0"),
    ('layout = "lanes"', 'layout = "rows"', 'known are "quads" and "lanes"'),
    ("array<i64: 1, 2, 3>, active = 1", "array<i64: 1, 2, 3, 4>, active = 1", "or of warps of one warpgroup"),
])  # fmt: skip
def test_refuses(old, new, message):
    changed = TEXT.replace(old, new)
    assert changed != TEXT
    assert message in said(changed)


COPY = '  "warp.tmem_{0}"({1}) : ({2}) -> ()\n'
FRAGMENT = '  %f = "warp.fragment"() : () -> {0}\n'
F32 = "tensor<128x128xf32, #tile.reg>"


@pytest.mark.parametrize(("lines", "message"), [
    (FRAGMENT.format(F32) + COPY.format("load", "%f, %acc", f"{F32}, {ACC}"), ""),
    (FRAGMENT.format(OUT) + COPY.format("load", "%f, %acc", f"{OUT}, {ACC}"), "shape and dtype stay"),
    (FRAGMENT.format(F32) + COPY.format("store", "%f, %acc", f"{F32}, {ACC}"), "needs target in #tile.tmem"),
    (COPY.format("load", "%acc, %acc", f"{ACC}, {ACC}"), "needs target in #tile.reg"),
    ('  %l = "warp.link"() {groups = 3, ahead = 0} : () -> !warp.order\n', "there are 1 or 2 row blocks"),
    ('  %l = "warp.link"() {groups = 2, ahead = 3} : () -> !warp.order\n', "at most 2 slots"),
    ('  %l = "warp.link"() {groups = 2, ahead = 1} : () -> !warp.order\n  "warp.signal"(%l) : (!warp.order) -> ()\n', ""),
])  # fmt: skip
def test_copies_and_links(lines, message):
    assert message in said(behind_init(lines))
    assert message or said(behind_init(lines)) == ""
