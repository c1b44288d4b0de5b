"""A row of column values (1 x columns, by TMA) spread over the rows of a map, and a buffer that operations of two pipeline stages read.

Program: inputs/row_of_column_values.mlir. Its loop reads a block of A for S^T in stage 0 and, a step later, for the output in stage 1.
"""

import pathlib
import re

import compiled
import numpy as np
import pytest
import torch

from fa4c.ir import interpret_tile
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import Diagnostic, from_mlir_error
from fa4c.ir.mlir import ir
from fa4c.ir.tile import LoadOp
from fa4c.passes._tile_map import operations_in
from fa4c.passes.pipelines import pipeline
from fa4c.passes.registry import run_pipeline
from fa4c.runtime import execute

FILE = pathlib.Path(__file__).parent / "inputs" / "row_of_column_values.mlir"
TILE_PASSES = pipeline("sm_90a", "fwd", entry="tile", emit="tile")


def inputs(batch, m, n):
    generator = torch.Generator().manual_seed(m)
    return {name: torch.randn(batch, rows, 64, generator=generator).to(torch.bfloat16) for name, rows in (("a", m), ("b", n))}


def expected(given):
    a, b = (x.double().numpy() for x in given.values())
    s = np.einsum("bmd,bnd->bmn", a, b)
    return np.einsum("bmn,bmd->bnd", s - s.sum(axis=2, keepdims=True), a)


@pytest.fixture(scope="module")
def artifact():
    return compiled.load(*compiled.kernel_of_text(FILE.read_text(), FILE.name))


@pytest.mark.parametrize("passes", ["", TILE_PASSES])
@pytest.mark.parametrize("mode", ["value", "storage"])
def test_interpreted(mode, passes):
    """Before and after the tile passes; m = 133 ends within a block and within four of the padded values."""
    given = inputs(2, 133, 141)
    with new_context() as context:
        module = parse_module(FILE.read_text(), FILE.name, context)
        if passes:
            run_pipeline(module, passes)
        np.testing.assert_allclose(interpret_tile.run(module, given, mode=mode)["out"], expected(given), rtol=1e-9, atol=1e-9)


def test_a_load_before_the_last_read_of_its_only_buffer_gives_wrong_numbers_in_storage_mode():
    given = inputs(1, 260, 130)
    with new_context() as context:
        module = parse_module(FILE.read_text(), FILE.name, context)
        run_pipeline(module, TILE_PASSES)
        load = next(op for op in operations_in(module) if isinstance(op, LoadOp) and op.out.type.shape[0] == 64)
        load.attributes["buffers"], load.attributes["order"] = (ir.Attribute.parse(f"{n} : i64") for n in (1, -1))
        got = interpret_tile.run(module, given, mode="storage")["out"]
    assert not np.allclose(got, expected(given), rtol=1e-3)


@pytest.mark.parametrize("sizes", [(2, 133, 141), (1, 1, 8), (2, 300, 130), (1, 64, 7)])
def test_emulated(artifact, sizes):
    given = inputs(*sizes)
    out, want = execute.execute(artifact, given, backend="emulator")["out"].double().numpy(), expected(given)
    assert np.abs(out - want).max() / np.abs(want).max() < 2**-7


def test_columns_are_read_by_8_byte_loads_into_registers(artifact):
    lines = [line.strip() for line in artifact.members["subtract.ptx"].decode().splitlines()]
    pairs = [line for line in lines if re.match(r"ld\.shared\.v2\.[bf]32", line)]
    assert len(pairs) == 2 * 8  # 64 columns, 8 a load of a quad; in the prologue and in the loop
    kernel = artifact.manifest["kernels"]["subtract"]
    assert kernel["stack_bytes"] == kernel["local_bytes"] == 0


def test_each_step_reads_them_once_and_leaves_the_slot_behind_the_map_and_the_last_lane():
    """They share the slot of a tile (`row_barriers.py`), which its last reader gives back: see the test of two stages below."""
    text = compiled.compile_text(FILE.read_text(), FILE.name, emit="warp", locations=False)
    kernel = text[text.index('"warp.kernel"', text.index('sym_name = "sum_rows"')) :]
    loads = [m.start() for m in re.finditer('"warp.load_columns"', kernel)]
    assert len(loads) == 2  # prologue, loop
    for at in loads:
        place = re.search(r"%\S+, (%\S+),", kernel[at:])[1]  # in the pipe of the column values
        following = re.findall(r'"(warp\.(?:map|sync_warp|load_columns))"|"(warp\.(?:release|advance))"\(' + place, kernel[at + 1 :])[:3]
        assert ["".join(names) for names in following] == ["warp.map", "warp.sync_warp", "warp.advance"]
    assert kernel.count("tensor<2x1x64xf32") and 'offset = 50176 : i64, swizzle = 0 : i64' in kernel


def test_two_maps_in_a_step_share_a_read():
    again = FILE.read_text()
    first = again.index('%t = "tile.map"(%s, %sum)')
    second = again.index('%p = "tile.map"(%t)')
    twice = again[:second] + again[first:second].replace("%t =", "%t2 =").replace("(%s, %sum)", "(%t, %sum)") + again[second:].replace(
        '"tile.map"(%t)', '"tile.map"(%t2)'
    )
    text = compiled.compile_text(twice, FILE.name, emit="warp", locations=False)
    assert text.count('"warp.load_columns"') == 2


def test_readers_of_two_stages_have_a_place_each_and_the_later_one_releases():
    text = compiled.compile_text(FILE.read_text(), FILE.name, emit="warp", locations=False)
    compute = text[text.index('sym_name = "sum_rows"') :].split('"warp.role"')[2]
    places = re.findall(r'(%\w+) = "warp.state"\((%sa\w*)\)', compute)
    assert len(places) == 2 and places[0][1] == places[1][1]
    (first, _), (last, _) = places
    assert f'"warp.advance"({first})' in compute and f'"warp.release"({first})' not in compute
    assert compute.count(f'"warp.release"({last})') == compute.count(f'"warp.advance"({last})') == 2


def refused(*edits, message, text=None, emit="cute"):
    text = text or FILE.read_text()
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    with pytest.raises((Diagnostic, ir.MLIRError)) as caught:
        compiled.compile_text(text, FILE.name, emit=emit)
    error = caught.value
    assert re.search(message, error.text() if isinstance(error, Diagnostic) else from_mlir_error(error)), error


def test_refused_at_the_tile_level():
    load = '"tile.load"(%sums, %z, %m0) {dims = array<i64: 1>'
    refused((load, '"tile.load"(%sums, %m0, %z) {dims = array<i64: 0>'), message="a row runs along the last dimension, 1")
    refused((load, load.replace(", %m0", "")), ("(!w, index, index) -> !l", "(!w, index) -> !l"), message="needs 2 coordinates, but has 1")
    refused(("1x64xf32, #tile.smem", "1x32xf32, #tile.smem"), message="input 1 of shape 1x32, but the result is 128x64")
    refused(("1x64xf32, #tile.smem", "2x64xf32, #tile.smem"), message="the tile has rank 2")
    refused(("pad = 4", "pad = 2"), message="rows are multiples of 8 bytes")


def test_refused_at_the_warp_level():
    warp = compiled.compile_text(FILE.read_text(), FILE.name, emit="warp", locations=False)
    refused(('"warp.sync_warp"() : () -> ()', ""), message="releases a slot that other lanes may still read", text=warp)
    refused(("offset = 50176 : i64, swizzle = 0", "offset = 50240 : i64, swizzle = 0"), message="multiples of 128 bytes", text=warp)
    refused(("offset = 33792 : i64, swizzle = 128", "offset = 33792 : i64, swizzle = 0"), message="only a row of f32", text=warp)
    line = next(line for line in warp.splitlines() if '"warp.load_columns"' in line)
    state = line.split(", ")[1]
    refused((f'"warp.wait"({state}) : (!warp.place) -> ()', ""), message="was not waited for", text=warp)
    refused((line.strip(), ""), message="reads a fragment into which nothing was written|synchronises lanes", text=warp)


def test_readers_are_numbered_from_0():
    specialized = compiled.compile_text(
        FILE.read_text(), FILE.name, emit="warp", locations=False, pipeline=f"{TILE_PASSES},warp-specialize,cse"
    )
    assert specialized.count("reader = 1") == 2  # loop, epilogue
    with new_context() as context:
        module = parse_module(specialized.replace("reader = 1", "reader = 2"), FILE.name, context)
        with pytest.raises(Diagnostic, match="has reader = 2, but no operation has reader = 1"):
            run_pipeline(module, "warp-insert-barriers")
    warp = compiled.compile_text(FILE.read_text(), FILE.name, emit="warp", locations=False)
    refused(("accumulate = true", "reader = 1, accumulate = true"), message="has reader = 1 and a state", text=warp)
