"""tile-persistent by execution: each tile is done once, by whichever CTA, for grids smaller and larger than the chip."""

import attn_to_tile_programs as programs
import numpy as np
import pytest

from fa4c import targets
from fa4c.ir import interpret_tile
from fa4c.ir.context import parse_module
from fa4c.passes.registry import run_pipeline

BEFORE = "attn-simplify-mask,attn-to-tile{block-m=64 block-n=32}"
SHAPES = [dict(b=1, h=1, m=65, n=33), dict(b=2, h=3, m=150, n=170), dict(b=1, h=2, m=64, n=0), dict(b=1, h=5, m=70, n=40)]


def tile_module(name: str, passes: str):
    text = programs.example(name).replace("x128x", "x16x")
    module = parse_module(text, name, programs.CONTEXT)
    run_pipeline(module, passes)
    return module


def inputs(shape: dict) -> dict:
    rng = np.random.default_rng(0)
    q = rng.standard_normal((shape["b"], shape["m"], shape["h"], 16))
    k, v = (rng.standard_normal((shape["b"], shape["n"], shape["h"], 16)) for _ in range(2))
    return {"q": q, "k": k, "v": v}


@pytest.mark.parametrize("name", ["full", "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("num_sms", [1, 3, 132])
def test_every_tile_is_done_once(name, shape, num_sms):
    with targets.override("sm_90a", num_sms=num_sms):
        given = inputs(shape)
        plain = interpret_tile.run(tile_module(name, BEFORE), given)
        for order in ("tile-persistent", "tile-lpt-grid,tile-persistent"):
            walked = interpret_tile.run(tile_module(name, f"{BEFORE},{order}"), given)
            for tensor, want in plain.items():
                np.testing.assert_array_equal(walked[tensor], want)  # outputs start as NaN: a tile left out would show


def test_a_tile_left_out_would_show():
    with targets.override("sm_90a", num_sms=2):
        module = tile_module("full", f"{BEFORE},tile-persistent")
        result = interpret_tile.run(module, inputs(SHAPES[1]), ctas={(1, 0, 0)})  # one of two CTAs
        assert np.isnan(result["o"]).any()


@pytest.mark.parametrize(("blocks", "ctas"), [(1, 6), (64, 2)])
def test_the_launcher_decides_by_the_trip_count(blocks, ctas):
    with targets.override("sm_90a", num_sms=2):
        module = tile_module("full", f"{BEFORE},tile-persistent{{blocks={blocks}}}")
        given = inputs(dict(b=1, h=2, m=150, n=170))  # 6 tiles of 6 blocks
        everything = interpret_tile.run(module, given, ctas={(x, 0, 0) for x in range(ctas)})
        assert not np.isnan(everything["o"]).any()
        one_less = interpret_tile.run(module, given, ctas={(x, 0, 0) for x in range(ctas - 1)})
        assert np.isnan(one_less["o"]).any()
