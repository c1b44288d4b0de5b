"""What goes to a role that corrects sums in tensor memory: work that needs no scores, where a loop holds some."""

import re

import pytest
from attn_to_tile_programs import CONTEXT, EXAMPLES

from fa4c import targets
from fa4c.ir.context import parse_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.mlir import ir
from fa4c.ir.tile import KernelOp, Scheduled
from fa4c.lowering.compile import compile_text
from fa4c.passes import corrections, op_costs
from fa4c.passes.loop_graph import pipelined_loops
from fa4c.passes.tmem_roles import role_of

TARGET = "sm_100a"


def level(emit: str, example: str = "causal.mlir", **options) -> str:
    return compile_text((EXAMPLES / example).read_text(), example, emit=emit, target=TARGET, locations=False, **options)


def roles(text: str) -> dict[str, tuple[int, int]]:
    """role -> (warps, registers)"""
    found = re.findall(r'registers = (\d+) : i64, sym_name = "(\w+)", warps = array<i64: ([\d, ]+)>', text)
    return {name: (len(warps.split(",")), int(registers)) for registers, name, warps in found}


def test_roles_and_registers():
    with_it, without = (level("warp", overrides=(("warp-specialize", "correction", choice),)) for choice in ("yes", "no"))
    assert roles(with_it) == {"load": (1, 32), "mma": (1, 32), "epilogue": (2, 32), "compute": (8, 176), "correct": (8, 48)}
    assert roles(without) == {"load": (1, 56), "mma": (1, 56), "epilogue": (2, 56), "compute": (8, 224)}
    assert roles(level("warp")) == roles(with_it)
    assert with_it.count('"warp.post"') == with_it.count('"warp.fetch"') == 2  # the factor, and what divides O
    votes = {name: with_it[with_it.index(f'sym_name = "{before}"') : with_it.index(f'sym_name = "{name}"')].count('"warp.vote_any"')
             for before, name in (("epilogue", "compute"), ("compute", "correct"))}
    assert votes == {"compute": 1, "correct": 1}  # on growth, on factors
    compute = with_it[with_it.index('sym_name = "epilogue"') : with_it.index('sym_name = "compute"')]
    assert not re.search(r'"warp.tmem_map"\(%o', compute)  # O is not its own


@pytest.mark.parametrize("kind", ["bwd", "gemm"])
def test_nothing_to_correct(kind):
    """A loop that scales no sum: no such role."""
    text = level("warp", direction="bwd") if kind == "bwd" else level("warp", "tile/gemm.mlir")
    assert "correct" not in roles(text)


def clocks_by_role(loop, target, role_of) -> dict[str, int]:
    """Clocks of one iteration, by the role that runs it, for all rows of a CTA, where every maximum has grown: what a role that corrects
    takes off the others' way."""
    clocks: dict[str, int] = {}
    for op in loop.regions[0].blocks[0].operations:
        if isinstance(op, Scheduled):
            clocks[role_of(op)] = clocks.get(role_of(op), 0) + op_costs.cost(op, target, whole=True).clocks
    return clocks


def test_the_compute_role_is_relieved_of_the_scaling():
    """One step of head dim 128, 256 rows: a multiplication for each of 256 x 128 sums, at 128 a clock; which rows shrink (two comparisons,
    and both) and the vote, at 64."""
    module = parse_module(level("tile"), "test.mlir", CONTEXT)
    with CONTEXT, ir.Location.unknown():
        kernel = next(op for op in module.body.operations if isinstance(op, KernelOp))
        found, (loop,), target = corrections.find(kernel), pipelined_loops(module), targets.get(TARGET)
        alone = clocks_by_role(loop, target, role_of)
        together = clocks_by_role(loop, target, lambda op: role_of(op, found.operations))
    assert together["correct"] == 256 * 128 // 128 + 4 * 256 // 64
    assert {**alone, "compute": alone["compute"] - together["correct"]} == {k: v for k, v in together.items() if k != "correct"}


def test_no_room_for_what_it_must_know():
    """(192, 128) takes 222,208 bytes in blocks of 96 keys; two row vectors of 256 rows want 2048 more."""
    with targets.override(TARGET, smem_bytes=222208 + 1024):
        assert "correct" not in roles(level("warp", head_dim=(192, 128)))
        with pytest.raises(Diagnostic, match="needs 224256 bytes of shared memory"):
            level("warp", head_dim=(192, 128), overrides=(("warp-specialize", "correction", "yes"),))

