"""The role `reduce`: a warp adds to global memory what compute hands over in shared memory. What `warp-check` finds, what is refused."""

import functools
import pathlib
import re

import pytest

from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.lowering.compile import compile_text
from fa4c.passes.registry import run_pipeline

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
UNORDERED = ("attn-fold-scale,attn-derive-backward,attn-exp-to-exp2,attn-split-backward{fuse=true},attn-outline-kernels,"
             "attn-transpose-recompute,attn-simplify-mask,attn-to-tile")
TO_TILES = f"{UNORDERED},tile-deterministic-reduction,tile-pipeline{{stages=1}}"
TO_WARPS = f"{TO_TILES},warp-specialize,cse,warp-insert-barriers"
TWO_SLOTS = TO_WARPS.replace("tile-pipeline{stages=1}", "tile-pipeline")


@functools.cache
def text_of(pipeline: str, emit: str, d: int = 64) -> str:
    source = (EXAMPLES / "full.mlir").read_text()
    return compile_text(source, "full.mlir", emit=emit, locations=False, direction="bwd", pipeline=pipeline, head_dim=(d, d))


def said(text: str, pipeline: str = "warp-check") -> str:
    with new_context():
        module = parse_module(text, "kernel.mlir")
        with pytest.raises(Diagnostic) as caught:
            run_pipeline(module, pipeline)
        return str(caught.value)


def around(kind: str, before: int, behind: int) -> tuple[list[str], int, int]:
    """The text's lines, and from where to where they surround the first operation of a kind that has a pipe's place."""
    lines = text_of(TO_WARPS, "warp").split("\n")
    at = next(n for n, line in enumerate(lines) if f'"{kind}"' in line and "!warp.place" in line)
    return lines, at - before, at + behind


# (around what, lines before and behind, operation to leave out) -> what is said
MISSING = {
    "acquire": ("warp.store_shared", 1, 0, "warp.acquire", "writes a slot that was not acquired"),
    "fence": ("warp.store_shared", 0, 2, "warp.fence_async", "synchronises lanes that did nothing"),
    "sync": ("warp.store_shared", 0, 3, "warp.sync_warp", "hands a slot over before its warp's writes can be seen"),
    "arrive": ("warp.store_shared", 0, 4, "warp.arrive", "waits forever"),
    "advance": ("warp.store_shared", 0, 5, "warp.advance", "waits forever"),
    "wait": ("warp.tma_add", 2, 0, "warp.wait", "reads a slot of its buffer that was not waited for"),
    "read": ("warp.tma_add", 0, 2, "warp.store_wait", "releases a slot that a copy may still read"),
    "commit": ("warp.tma_add", 0, 1, "warp.store_commit", "releases a slot that a copy may still read"),
    "release": ("warp.tma_add", 0, 5, "warp.release", "leaves a slot that it has not released"),
}


@pytest.mark.parametrize("case", MISSING)
def test_the_check_finds_what_is_missing(case):
    kind, before, behind, what, message = MISSING[case]
    lines, first, end = around(kind, before, behind)
    at = next(n for n in range(first, end + 1) if f'"{what}"' in lines[n])
    assert message in said("\n".join(lines[:at] + lines[at + 1:]))


def test_ds_is_written_in_front_of_dvs_mma():
    """Where registers are short (head dim 64), that MMA runs while all wait for each other's writes."""
    lines, _, at = around("warp.store_shared", 0, 0)
    loop = max(n for n in range(at) if "scf.for" in lines[n])
    indent = lines[at][:lines[at].index('"')]
    kinds = [found[1] for line in lines[loop:at + 1] if (found := re.match(rf'{indent}"warp\.(\w+)"', line))]
    written = kinds.index("store_shared")
    assert [kind for kind in kinds[written:] if kind in ("wgmma", "barrier")] == ["wgmma", "barrier", "wgmma", "wgmma"]


def test_the_check_finds_a_count_before_the_addition_is_complete():
    text = text_of(TO_WARPS, "warp")
    assert '"warp.store_wait"() {complete = true' in text
    assert "counts before what the warpgroup added is there" in said(text.replace("{complete = true, ", "{"))


def test_one_thread_adds():
    lines, first, _ = around("warp.tma_add", 1, 0)
    assert "done by all threads" in said("\n".join(lines[:first] + lines[first + 1:first + 4] + lines[first + 5:]))


ROLE = r'active = (\d+) : i64, registers = (\d+) : i64, sym_name = "(\w+)", warps = array<i64: ([\d, ]+)>'


def test_roles_share_the_first_warpgroup():
    """Where additions have an order, each of the two slots of dQ has a warp: what one waits for does not hold up the other."""
    roles = re.findall(ROLE, text_of(TWO_SLOTS, "warp", 128))
    assert ("1", "24", "load", "0") in roles and ("2", "24", "reduce", "1, 2, 3") in roles
    assert ("1", "24", "reduce", "1, 2, 3") in re.findall(ROLE, text_of(TO_WARPS, "warp"))  # one slot
    unordered = text_of(TWO_SLOTS.replace("tile-deterministic-reduction,", ""), "warp", 128)
    assert ("1", "24", "reduce", "1, 2, 3") in re.findall(ROLE, unordered) and "slot_owner" not in unordered


def test_the_owner_of_a_slot_does_all_but_the_step_to_the_next_one():
    lines = text_of(TWO_SLOTS, "warp", 128).split("\n")
    first = next(n for n, line in enumerate(lines) if "warp.slot_owner" in line)
    indent = lines[first].index('"')
    last = next(n for n in range(first, len(lines)) if lines[n].startswith(" " * indent + "})"))
    state, owned = re.search(r"slot_owner\"\((%\w+)\)", lines[first])[1], "\n".join(lines[first:last])
    order = ["wait_count", "wait", "tma_add", "release", "add_count"]
    assert re.findall(rf"warp\.({'|'.join(order)})\"", owned) == order
    assert "warp.advance" not in owned and f'"warp.advance"({state})' in lines[last + 1]
    pipe = re.search(rf"{state} = \"warp.state\"\((%\w+)\)", "\n".join(lines))[1]
    made = next(line for line in lines if line.strip().startswith(f'{pipe} = "warp.pipeline"'))
    assert "arrivals = 1 :" in made and "stages = 2 :" in made
    alone = "\n".join(lines).replace('active = 2 : i64, registers = 24', 'active = 1 : i64, registers = 24')
    with new_context(), pytest.raises(Exception, match="shares 2 slots among 1 warps"):
        parse_module(alone, "kernel.mlir")
    for wrong in (  # what the other warp would have to do, too
        [*lines[:last], lines[last + 1], lines[last], *lines[last + 2 :]],
        [*lines[: first + 1], '"warp.barrier"() {id = 9 : i64, scope = "role"} : () -> ()', *lines[first + 1 :]],
        [*lines[: first + 1], *lines[first:last], lines[last], *lines[last:]],
        [*lines[:first], *(line.replace('"warp"}', '"role"}') for line in lines[first:last]), *lines[last:]],
    ):
        assert "stands in a warp.slot_owner" in said("\n".join(wrong))


def test_a_warp_alone_is_no_warpgroup():
    """An elect of each warpgroup is for warps 0, 4, ..., which a role of warp 1 does not have."""
    lines, first, end = around("warp.tma_add", 1, 3)
    assert "is done by 0 threads" in said("\n".join([*lines[:end], lines[end].replace('"warp"', '"warpgroup"'), *lines[end + 1 :]]))


def test_it_counts_for_blocks_that_the_loop_leaves_out():
    """A loop that starts at block 1 for every second CTA."""
    text = text_of(UNORDERED, "tile")
    x = re.findall(r"(%\w+):3 = \"tile.program_id\"", text)[1]
    loop = re.findall(r"scf.for %\w+ = %c0 to %\w+ step %c1 iter_args", text)[-1]
    start = f"arith.remsi {x}#0, %c128 : index\n      %odd = arith.minsi %rest, %c1 : index"
    lines = text.split("\n")
    at = next(n for n, line in enumerate(lines) if loop in line)
    lines[at:at + 1] = [f"      %rest = {start}", lines[at].replace("= %c0 to", "= %odd to")]
    with new_context():
        module = parse_module("\n".join(lines), "kernel.mlir")
        run_pipeline(module, "tile-deterministic-reduction,tile-pipeline{stages=1},warp-specialize,cse,warp-insert-barriers,warp-check")
        made = str(module)
    reduce = made[:made.index('sym_name = "reduce"')].rsplit('"warp.role"', 1)[1]
    assert reduce.count('"warp.wait_count"') == reduce.count('"warp.add_count"') == 3 and reduce.count("warp.tma_add") == 1


def test_refuses_a_second_reader():
    text = text_of(TO_TILES, "tile")
    old = re.search(r'"tile.global_add"\((%\w+), .*\n', text)
    tile = old.group(1)
    kind = re.search(r"\((tensor<\d+x64xf32, #tile.smem>)", old.group(0)).group(1)
    more = f'%again = "tile.from_shared"({tile}) : ({kind}) -> {kind.replace("smem", "reg")}\n'
    message = said(text.replace(old.group(0), old.group(0) + more), "warp-specialize")
    assert "reads a tile that a warp of its own adds to global memory" in message
