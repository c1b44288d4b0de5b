"""tile-lpt-grid: every tile exactly once, the longest first, heads in sections; and where it does nothing."""

import pathlib

import attn_to_tile_programs as programs
import numpy as np
import pytest
from attn_to_tile_programs import CAUSAL, STRIPES, WINDOW, attention

from fa4c import targets
from fa4c.ir import scalar, tile
from fa4c.ir.context import print_module
from fa4c.lowering.index_expr import index_expression
from fa4c.runtime.iexpr import compile_expr

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
TO_TILE = "attn-simplify-mask,attn-to-tile{block-m=64 block-n=32}"
LPT = f"{TO_TILE},tile-lpt-grid"
SYMBOLS = ("b", "hq", "hkv", "m", "n", "l2_bytes", "num_sms")


def ops_of(module, kind):
    found = []

    def walk(operation):
        for region in operation.regions:
            for block in region.blocks:
                for op in block.operations:
                    found.append(op.operation.opview)
                    walk(op.operation)

    walk(module.operation)
    return [op for op in found if isinstance(op, kind)]


def launch_numbers(module, sizes: dict) -> tuple[list[int], list[int]]:
    """The grid and the scalars that the launcher computes, from the manifest's expressions: exact integers."""
    host, launch = ops_of(module, tile.HostOp)[0], ops_of(module, tile.LaunchOp)[0]
    numbers = [compile_expr(index_expression(v, host), SYMBOLS)(sizes) for v in (*launch.grid, *launch.scalars)]
    return numbers[:3], numbers[3:]


def places(module, sizes: dict):
    """(row block, head, batch entry) of every CTA: the kernel's arithmetic on all of x at once, each number checked to fit 32 bits."""
    grid, scalars = launch_numbers(module, sizes)
    kernel = ops_of(module, tile.KernelOp)[0]
    block = kernel.body.blocks[0]
    values = dict(zip(list(block.arguments)[-len(scalars) :], map(np.int64, scalars), strict=True))
    for op in block.operations:
        operation = op.operation
        if isinstance(op, tile.ProgramIdOp):
            values.update(zip(operation.results, (np.arange(grid[0]), np.int64(0), np.int64(0)), strict=True))
        elif isinstance(op, tile.LoadOp):
            b, row0, h, _ = (np.broadcast_to(values[v], grid[0]) for v in op.coords)
            return np.stack([row0 // 64, h, b], axis=1)
        elif isinstance(op, tile.DimOp):
            values[op.out] = np.int64(1)  # sizes: the place does not depend on them
        elif operation.name.startswith("arith."):
            values[operation.results[0]] = scalar.apply(operation, [values[v] for v in operation.operands])[0]
            assert (np.abs(values[operation.results[0]]) < 2**31).all(), operation
    raise AssertionError("the kernel loads nothing")


@pytest.fixture(scope="module")
def causal():
    return programs.lower(attention(mask=CAUSAL, d=64, dv=64), LPT)


@pytest.mark.parametrize("b, heads", [(1, 1), (1, 3), (2, 4), (3, 5), (1, 17), (4, 8)])
@pytest.mark.parametrize("blocks", [1, 2, 7])
@pytest.mark.parametrize("section", [1, 2, 4, 8, 64])
def test_every_tile_once_the_longest_first(causal, b, heads, blocks, section):
    n = 100
    sizes = dict(b=b, hq=heads, hkv=heads, m=64 * blocks, n=n, l2_bytes=section * n * (64 + 64) * 2 + 5)
    grid, scalars = launch_numbers(causal, sizes)
    assert grid == [blocks * heads * b, 1, 1]
    assert scalars == [blocks, heads, heads * b, min(section, heads * b)]
    found = places(causal, sizes)
    assert sorted(map(tuple, found)) == [(x, h, z) for x in range(blocks) for h in range(heads) for z in range(b)]
    pairs = found[:, 2] * heads + found[:, 1]
    for first in range(0, heads * b, scalars[3]):  # section by section, row blocks falling, heads fastest
        width = min(scalars[3], heads * b - first)
        part = slice(first * blocks, (first + width) * blocks)
        assert (pairs[part] == np.tile(np.arange(first, first + width), blocks)).all()
        assert (found[part, 0] == np.repeat(np.arange(blocks)[::-1], width)).all()


@pytest.mark.parametrize("n, section", [(1024, 64), (4096, 16), (16384, 4), (2**17, 1), (2**21, 1), (2**22, 1), (2**23, 1), (0, 16)])
def test_sections_of_long_sequences(n, section):
    """bugs.md B11: n * (d + dv) * bytes passes 2**31 at 2**22 keys. The section is a power of two and never 0."""
    module = programs.lower(attention(mask=CAUSAL, d=128, dv=128), LPT)
    sizes = dict(b=2, hq=64 if n else 8, hkv=8, m=2048, n=n, l2_bytes=50 * 2**20)
    assert launch_numbers(module, sizes)[1][3] == section
    found = places(module, sizes)
    assert len(set(map(tuple, found))) == len(found) == 2048 // 64 * sizes["hq"] * 2


def test_same_result_and_the_target_decides_the_section():
    text = attention(mask=CAUSAL)
    sizes = dict(b=2, hq=3, hkv=1, m=150, n=100)
    programs.check_same(text, LPT, sizes)
    for l2_bytes in (1, 100 * 64 * 2 + 1, 100 * 64 * 4 + 1):  # sections of 1, 2 and 4 of 6
        with targets.override("sm_90a", l2_bytes=l2_bytes):
            programs.check_same(text, LPT, sizes)


@pytest.mark.parametrize("mask", ["", STRIPES, WINDOW])
def test_kernels_whose_tiles_do_not_grow_stay_as_they_are(mask):
    text = attention(mask=mask)
    assert print_module(programs.lower(text, TO_TILE)) == print_module(programs.lower(text, LPT))


def test_it_follows_the_arithmetic_not_the_name():
    """The same program with the rows counted backwards: its tiles shrink with x, so it is left alone."""
    text = print_module(programs.lower(attention(mask=CAUSAL), f"{TO_TILE},cse"), locations=False)
    place = next(line for line in text.splitlines() if "tile.program_id" in line)
    result = place.split(":")[0].strip()
    reversed_x = f"{place}\n    %minus = arith.constant -1 : index\n    %rx = arith.muli {result}#0, %minus : index"
    head, tail = text.split(place)
    backwards = head + reversed_x + tail.replace(f"{result}#0", "%rx")
    assert "arith.muli" in programs_print(text, "tile-lpt-grid") and "l2_bytes" in programs_print(text, "tile-lpt-grid")
    assert "l2_bytes" not in programs_print(backwards, "tile-lpt-grid")


def programs_print(text: str, pipeline: str) -> str:
    return print_module(programs.lower(text, pipeline), locations=False)


def test_twice_is_once():
    text = attention(mask=CAUSAL)
    assert programs_print(text, LPT) == programs_print(text, f"{LPT},tile-lpt-grid")


BACKWARD = ("attn-fold-scale,attn-derive-backward,attn-exp-to-exp2,attn-split-backward,attn-outline-kernels,attn-transpose-recompute,"
            "attn-simplify-mask,attn-to-tile")


IN_TURN = ",tile-deterministic-reduction"


@pytest.mark.parametrize("mask, head_dim, in_turn, sections", [
    ("full", 128, "", True), ("full", 128, IN_TURN, True), ("causal", 128, "", True), ("causal", 128, IN_TURN, True),
    ("causal", 64, IN_TURN, False),
])  # fmt: skip
def test_loops_that_add_run_through_heads(mask, head_dim, in_turn, sections):
    """Of as many trips for all x: in sections, x ascending, dQ counted in what L2 should hold. Uneven ones that wait for smaller x must
    have the longest first; those from the diagonal outwards, at 64, have not."""
    text = (EXAMPLES / f"{mask}.mlir").read_text()
    before = programs_print(text, f"attn-retype{{head-dim={head_dim}}},{BACKWARD}{in_turn}")
    after = programs_print(before, "tile-lpt-grid")
    assert ("tile.pow2_floor" in after) == sections and (after == before) == (not sections)
    assert programs_print(after, "tile-lpt-grid") == after
    if mask == "full":
        section = after[:after.index("tile.pow2_floor")]
        assert section.count("arith.addi") == 4  # Q, dO, LSE, delta, and dQ: five tensors
