"""Who waits for whom at tensor memory: the fewest links that keep the schedule's order, and refusals of what no link can keep."""

import re

import pytest
import tmem_backward as programs
from attn_to_tile_programs import CONTEXT, EXAMPLES
from test_tile_alias_tmem import TO_TILE, tile_level

from fa4c.ir.context import parse_module, print_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.mlir import ir
from fa4c.ir.tile import KernelOp
from fa4c.ir.value_names import name_of
from fa4c.passes import corrections, handoffs
from fa4c.passes.registry import run_pipeline
from fa4c.passes.tmem_roles import role_of


def kinds(link: handoffs.Link) -> tuple:
    """(source, sink, operation before, operation after, ahead)"""
    return link.source, link.sink, link.before.operation.name, link.after.operation.name, link.ahead


def links(text: str, correction: bool = False, describe=kinds) -> list[tuple]:
    """Of each link what `describe` says; with a role that corrects sums."""
    module = parse_module(text, "test.mlir", CONTEXT)
    with CONTEXT, ir.Location.unknown():
        kernel = next(op for op in module.body.operations if isinstance(op, KernelOp))
        extra = corrections.find(kernel) if correction else corrections.Corrections(set(), {}, {})
        return list(map(describe, handoffs.find(kernel, lambda op: role_of(op, extra.operations), extra.boxes.values())))


def of_example(path: str, pipeline: str) -> list[tuple]:
    text = (EXAMPLES / path).read_text().replace("sm_90a", "sm_100a")
    return links(tile_level(pipeline=pipeline, text=text))


FORWARD = [
    ("mma", "compute", "tile.mma", "tile.map", 0),  # scores are there; so the product before them is done
    ("compute", "mma", "tile.map", "tile.mma", 0),  # P is there; so the scores are read and O is scaled
    ("mma", "compute", "scf.for", "tile.map", 0),  # O is there
]


# Where P has columns of its own the next scores are formed before the product that reads P: they wait for the reading of the last ones, and
# O, which is scaled before the product is known to be done by the scores behind it, has a link of its own.
ROOM = [
    ("mma", "compute", "tile.mma", "tile.map", 0),
    ("compute", "mma", "tile.map", "tile.mma", 1),
    ("compute", "mma", "tile.map", "tile.mma", 0),
    ("mma", "compute", "tile.mma", "tile.map", 1),
    ("mma", "compute", "scf.for", "tile.map", 0),
]


@pytest.mark.parametrize(("d", "want"), [(64, ROOM), (96, FORWARD), (128, FORWARD), (256, ROOM)])
def test_links_of_the_forward(d, want):
    assert sorted(links(tile_level(d))) == sorted(want)


# A factor goes from compute to the role that corrects, which tells the MMA role when O is scaled; what was passed on in the last step has
# been taken before the scores of this one are there. At the end, O and what divides it.
CORRECTED = [
    ("mma", "compute", "tile.mma", "tile.map", 0),
    ("compute", "correct", "tile.rescale_factor", "tile.map", 0),
    ("correct", "mma", "tile.map", "tile.mma", 0),
    ("compute", "mma", "tile.map", "tile.mma", 0),
    ("mma", "correct", "scf.for", "tile.map", 0),
    ("compute", "correct", "tile.map", "tile.map", 0),
]


def test_links_of_a_role_that_corrects():
    assert sorted(links(tile_level(128), correction=True)) == sorted(CORRECTED)


# Where the next scores are formed before the product that reads P, compute waits for that product before it hands on the factor, not behind
# its exponentials: so the factor's place is free, and who corrects need not wait for the product.
CORRECTED_WITH_ROOM = [
    *CORRECTED,
    ("compute", "mma", "tile.map", "tile.mma", 1),
    ("mma", "compute", "tile.mma", "tile.rescale_factor", 1),
]


def test_one_wait_stands_for_others():
    assert sorted(links(tile_level(64), correction=True)) == sorted(CORRECTED_WITH_ROOM)


def test_who_waits_for_two_roles_at_one_place_waits_once():
    """P is stored, by compute, and O scaled, by who corrects: one barrier of eight arrivals. One of four is for O's way out."""
    text = tile_level(128)
    module = parse_module(text, "test.mlir", CONTEXT)
    run_pipeline(module, "warp-specialize,warp-insert-barriers,warp-check")
    assert "fills = 8 : i64" in print_module(module) and len(re.findall(r"fills = 4 : i64", print_module(module))) == 3


@pytest.mark.parametrize("d", [64, 128])
def test_the_same_in_a_walk(d):
    text = tile_level(d, TO_TILE + ",tile-alias-tmem,tile-lpt-grid,tile-persistent")
    # where a loop makes no trip nobody waits in it: the MMA role would be a tile ahead of who reads its result
    more = [("compute", "mma", "tile.map", "scf.for", 1)] if "tile.walk" in text else []
    assert sorted(links(text)) == sorted(links(tile_level(d)) + more)


def names(link: handoffs.Link) -> tuple[str, ...]:
    return tuple(name_of(op.operation.results[0]) for op in (link.before, link.after))


def test_a_pair_in_the_order_of_fa4():
    """dQ lies beside P in the columns of the scores (fact sheet 2.3): it waits for the reading of the next scores, which are formed before
    it, and those of two iterations later wait for the reading of dQ.
    """
    module = parse_module(programs.program(d=128, pair=True, schedule=programs.PAIR), "test.mlir", CONTEXT)
    run_pipeline(module, "tile-alias-tmem")
    text = print_module(module)
    found = links(text, describe=lambda link: (*names(link), link.ahead, link.in_step))
    assert sorted(link for link in found if link[-1] or link[-2] > 1) == [("dqr", "s", 2, False), ("p", "dq", 0, True)]
    with pytest.raises(Diagnostic, match="is to come after that of order 13, which the schedule runs later"):
        links(text.replace("after = array<i64: 5, -1>", "after = array<i64: 13, -1>"))


def test_a_gemm_hands_over_its_start_and_its_end():
    assert of_example("tile/gemm.mlir", "tile-accumulate-in-tmem,tile-pipeline,tile-alias-tmem") == [
        ("compute", "mma", "tile.splat", "scf.for", 0),
        ("mma", "compute", "scf.for", "tile.map", 0),
    ]


def test_two_gemms():
    assert sorted(of_example("tile/two_gemms.mlir", "tile-accumulate-in-tmem,tile-pipeline,tile-alias-tmem")) == sorted(ROOM)


def test_a_reuse_that_comes_too_early_is_refused():
    """P may not go over the scores of the next iteration's order."""
    text = tile_level(128)
    wrong = text.replace("after = array<i64: 1, 1>", "after = array<i64: 1, 0>")
    assert wrong != text
    with pytest.raises(Diagnostic, match="is to come after that of order 1, which the schedule runs later"):
        links(wrong)
    with pytest.raises(Diagnostic, match="comes after an operation of order 99, which its loop has not"):
        links(text.replace("after = array<i64: 1, 1>", "after = array<i64: 99, 1>"))


def test_an_edge_through_another_role_needs_no_link_of_its_own():
    """Without the reuse of P's columns the scores still wait for what read the last ones: the same link."""
    text = re.sub(r"after = array<i64: [^>]*>, ", "", tile_level(128))
    assert links(text) == FORWARD


def test_columns_are_needed():
    text = tile_level(128, TO_TILE)
    with pytest.raises(Diagnostic, match="has tiles in tensor memory without columns"):
        run_pipeline(parse_module(text, "test.mlir", CONTEXT), "warp-specialize")
