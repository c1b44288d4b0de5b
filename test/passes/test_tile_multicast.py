"""tile-multicast by execution: CTAs of a cluster that each load a share of the rows compute what CTAs on their own do."""

import attn_to_tile_programs as programs
import numpy as np
import pytest

from fa4c.ir import interpret_tile
from fa4c.ir.context import parse_module, print_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.mlir import ir
from fa4c.passes.registry import run_pipeline

BEFORE = "attn-simplify-mask,attn-to-tile{block-m=64 block-n=32}"
SHAPES = [dict(b=1, h=1, m=65, n=33), dict(b=2, h=3, m=150, n=170), dict(b=1, h=2, m=64, n=0)]


def tile_module(name: str, passes: str):
    module = parse_module(programs.example(name).replace("x128x", "x16x"), name, programs.CONTEXT)
    run_pipeline(module, passes)
    return module


def text_of(passes: str) -> str:
    return print_module(tile_module("full", f"{BEFORE},{passes}"), locations=False)


def inputs(shape: dict) -> dict:
    rng = np.random.default_rng(0)
    q = rng.standard_normal((shape["b"], shape["m"], shape["h"], 16))
    k, v = (rng.standard_normal((shape["b"], shape["n"], shape["h"], 16)) for _ in range(2))
    return {"q": q, "k": k, "v": v}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("ctas", [2, 4])
def test_shares_add_up_to_the_tile(shape, ctas):
    given = inputs(shape)
    plain = interpret_tile.run(tile_module("full", BEFORE), given)
    for rest, mode in [("", "value"), (",tile-pipeline", "storage"), (",tile-persistent", "value")]:
        shared = interpret_tile.run(tile_module("full", f"{BEFORE},tile-multicast{{ctas={ctas}}}{rest}"), given, mode=mode)
        for tensor, want in plain.items():
            np.testing.assert_allclose(shared[tensor], want, rtol=1e-12, atol=1e-12)


def test_a_kernel_whose_loop_depends_on_its_rows_stays_as_it_is():
    before, after = (print_module(tile_module("causal", BEFORE + rest)) for rest in ("", ",tile-multicast{ctas=2}"))
    assert before == after


def test_a_share_that_is_no_part_of_the_tile_gives_wrong_numbers():
    """Q differs between the CTAs: were it shared, half of its rows would be the neighbour's."""
    text = text_of("tile-multicast{ctas=2}")
    q = next(line for line in text.splitlines() if '"tile.load"' in line)
    wrong = text.replace(q, q.replace("{dims", "{shared = true, dims"))
    assert wrong != text
    given = inputs(SHAPES[1])
    right, other = (interpret_tile.run(parse_module(source, "edited", programs.CONTEXT), given)["o"] for source in (text, wrong))
    assert np.abs(right - other).max() > 0.01


def test_different_numbers_of_loads_are_refused():
    """CTA x visits x blocks fewer: the cluster would wait forever."""
    text = text_of("tile-multicast{ctas=2}")
    loop = next(line for line in text.splitlines() if "scf.for" in line)
    count = loop.split(" to ")[1].split(" ")[0]
    place = next(line for line in text.splitlines() if "tile.program_id" in line).split(":")[0].strip()
    wrong = text.replace(loop, f"%fewer = arith.subi {count}, {place}#0 : index\n{loop.replace(f'to {count} ', 'to %fewer ')}")
    with pytest.raises(Diagnostic, match="shared loads in the CTAs of a cluster"):
        interpret_tile.run(parse_module(wrong, "edited", programs.CONTEXT), inputs(SHAPES[1]))


def test_half_a_cluster_is_refused():
    text = text_of("tile-multicast{ctas=2}")
    wrong = text.replace("cluster = 2", "cluster = 4")
    with pytest.raises(Diagnostic, match="runs 2 CTAs in clusters of 4"):
        interpret_tile.run(parse_module(wrong, "edited", programs.CONTEXT), inputs(SHAPES[0]))


@pytest.mark.parametrize(("old", "new", "words"), [
    ("cluster = 2", "cluster = 3", "has cluster = 3"),
    ("cluster = 2", "cluster = 8", "shares tensor<32x16xbf16"),
    ("cluster = 2 : i64, ", "", "is shared, but no CTAs run together"),
])
def test_attributes_that_do_not_fit(old, new, words):
    text = text_of("tile-multicast{ctas=2}")
    assert old in text
    with pytest.raises(ir.MLIRError, match=words):
        parse_module(text.replace(old, new), "edited", programs.CONTEXT)


@pytest.mark.parametrize("ctas", [3, 16])
def test_sizes_that_are_no_cluster(ctas):
    with pytest.raises(Diagnostic, match=f"ctas={ctas} is no size of a cluster"):
        tile_module("full", f"{BEFORE},tile-multicast{{ctas={ctas}}}")
