"""Sums to which a CTA of a pair adds half of a block's rows, in a fixed order: turns of pairs, a chain for each half; wrong ones fail."""

import functools
import re

import compiled
import numpy as np
import pytest
import torch

from fa4c.ir import interpret_tile
from fa4c.ir.context import new_context, parse_module, print_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.passes.registry import run_pipeline
from fa4c.runtime import emulated

TEXT = (compiled.ROOT / "test" / "passes" / "inputs" / "sum_over_rows.mlir").read_text()
PAIR = "tile-split-2cta{ctas=2 exchange=true},tile-insert-dsmem-exchange"
TMEM = "tile-accumulate-in-tmem,tile-pipeline,tile-alias-tmem"
ORDERED = f"{PAIR},tile-deterministic-reduction,{TMEM}"

# of pair number x // 2, by STEP blocks for each pair: with 2 the loop is walked backwards, with 1 the grid is turned round
BOUNDS = {
    "from the diagonal on": "%from = arith.muli %pair, %step : index\n  %to = arith.addi %blocks, %c0 : index",
    "a band": "%from = arith.muli %pair, %step : index\n  %three = arith.constant 3 : index\n  %wide = arith.addi %from, %three : index\n"
              "  %to = arith.minsi %wide, %blocks : index",
    "up to the diagonal": "%from = arith.constant 0 : index\n  %mine = arith.muli %pair, %step : index\n"
                          "  %next = arith.addi %mine, %c1 : index\n  %to = arith.minsi %next, %blocks : index",
    "jumping": "%from = arith.remsi %pair, %step : index\n  %to = arith.addi %blocks, %c0 : index",
}


def bounded(bounds: str, step: int) -> str:
    """The pair's loop over some of the blocks, as attn-to-tile{alike=2} writes it: block = first + index."""
    loop = (f"%two = arith.constant 2 : index\n  %step = arith.constant {step} : index\n  %pair = arith.floordivsi %x, %two : index\n"
            f"  {BOUNDS[bounds]}\n  %length = arith.subi %to, %from : index\n  %trips = arith.maxsi %length, %c0 : index\n"
            "  %sum = scf.for %walk = %c0 to %trips")
    text = TEXT.replace("%sum = scf.for %i = %c0 to %blocks", loop)
    return text.replace("%m0 = arith.muli %i,", "%i = arith.addi %from, %walk : index\n    %m0 = arith.muli %i,")


def after(passes: str, text: str = TEXT) -> str:
    with new_context():
        module = parse_module(text, "sum_over_rows.mlir")
        run_pipeline(module, passes)
        return print_module(module, locations=False)


def interpreted(text: str, given: dict, **options) -> dict:
    with new_context():
        return interpret_tile.run(parse_module(text, "program.mlir"), given, **options)


@functools.cache
def inputs(m: int, n: int) -> dict:
    generator = torch.Generator().manual_seed(m)
    return {name: torch.randn(rows, 64, generator=generator).to(torch.bfloat16) for name, rows in (("q", m), ("k", n))}


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_turns_count_pairs(bounds, step):
    """Values as without an order; pairs in the order of their numbers do not wait, one whose neighbour is missing does. The rows
    end within the first half of a block."""
    given = {name: value.double().numpy() for name, value in inputs(685, 700).items()}
    text = bounded(bounds, step)
    want, found = interpreted(text, given), after(ORDERED, text)
    got = interpreted(found, given, mode="storage")
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-12, atol=1e-9)
    with pytest.raises(Diagnostic, match="waits for 1, but the counters are 0"):
        interpreted(found, given, ctas=[(2, 0, 0), (4, 0, 0)])


WRONG = {
    "turns of CTAs": (r'"tile.wait_count"\((%\w+), %\w+,', r'"tile.wait_count"(\1, %x#0,', "waits for 1, but"),
    "one chain for both halves": (r'("tile.\w+_count"\(.*), %\w+\)', r"\1, %c0)", r"waits for 1, but the counters are 2"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_turns_are_seen(wrong):
    old, new, words = WRONG[wrong]
    edited, found = re.subn(old, new, after(ORDERED))
    assert found
    with pytest.raises(Diagnostic, match=words):
        interpreted(edited, {name: value.double().numpy() for name, value in inputs(200, 600).items()})


def test_bounds_that_differ_within_a_pair_are_refused():
    paired = after(PAIR, bounded("from the diagonal on", 1))
    edited = paired.replace("arith.floordivsi %x#0, %two", "arith.floordivsi %x#0, %c1")
    with pytest.raises(Diagnostic, match="trips differ between the CTAs of a pair"):
        after("tile-deterministic-reduction", edited)


def test_whole_blocks_of_clusters_on_a_reversed_grid_are_refused():
    """A reversed grid would exchange the places of a pair, which halves operands by them."""
    edited, found = re.subn(r'("tile.global_add"\(%\w+, %\w+, )%\w+,', r"\1%m0,", after(PAIR, bounded("up to the diagonal", 1)))
    assert found
    with pytest.raises(Diagnostic, match="needs a grid in reverse, where CTAs run in clusters"):
        after("tile-deterministic-reduction", edited)


def bits(passes: str, given: dict, seeds: int) -> list:
    """dQ of runs under so many random schedules, of a loop from the first block to the pair's diagonal, walked on a reversed grid."""
    text = after(passes, bounded("up to the diagonal", 1))
    made = compiled.load(*compiled.kernel_of_text(text, "program.mlir", pipeline="warp-specialize,cse,warp-insert-barriers,warp-check"))
    found = []
    for seed in range(seeds):
        out, reports = emulated.run_reported(made, given, ["dq", "dk"], hazards=seed == 0, schedule="random", schedule_seed=seed)
        assert all(report.ok for report in reports), [report.text() for report in reports]
        found.append(out["dq"].numpy())
    return found


def test_the_same_bits_under_any_schedule():
    """Four pairs add to the first block of queries; without turns the bits differ."""
    given = inputs(140, 900)
    ordered, plain = bits(ORDERED, given, 4), bits(f"{PAIR},{TMEM}", given, 4)
    assert all((run.view(np.uint32) == ordered[0].view(np.uint32)).all() for run in ordered)
    assert any((run.view(np.uint32) != plain[0].view(np.uint32)).any() for run in plain)
    assert np.abs(ordered[0] - plain[0]).max() < 1e-4 * np.abs(plain[0]).max()
