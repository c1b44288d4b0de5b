"""Waits as late as they may be, barriers where bytes are used twice, and what `warp-insert-barriers` refuses.

The program is that of warp_insert_barriers.mlir; a case changes a line of it.
"""

import pathlib
import re

import pytest
from warp_faults import is_located

from fa4c import targets
from fa4c.ir.context import new_context, parse_module, print_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.mlir import ir
from fa4c.passes.registry import run_pipeline

PROGRAM = (pathlib.Path(__file__).parent / "warp_insert_barriers.mlir").read_text()
ACC = "tensor<128x128xf32, #tile.reg>"
STORE = '    "warp.store_shared"(%sc, %out)'


def barriers(text: str, passes: str = "warp-insert-barriers,warp-check") -> list[str]:
    """The compute role's operations by name, with what says which: after the pass."""
    with new_context() as context, ir.Location.unknown():
        module = parse_module(text, "program.mlir", context)
        run_pipeline(module, passes)
        printed = print_module(module, locations=False)
    return re.findall(r'"warp\.(\w+)"', printed[printed.index('"warp.role"', printed.index('"warp.role"') + 1) :])


def wgmma(acc: str) -> str:
    return (
        f'      "warp.wgmma"({acc}, %sa, %sb) {{accumulate = false, transpose_b = true, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>}} : '  # noqa: E501
        f"({ACC}, tensor<1x128x64xbf16, #tile.smem>, tensor<2x128x64xbf16, #tile.smem>) -> ()\n"
    )


def half(target: str) -> str:
    return f"""      "warp.map"({target}, {target}) ({{
      ^bb0(%x: f32, %row: index, %col: index):
        "tile.yield"(%x) : (f32) -> ()
      }}) : ({ACC}, {ACC}) -> ()
"""


def in_the_loop(*lines: str) -> str:
    """The program with another loop body, and a second accumulator."""
    old = re.search(r'      "warp.wgmma"\(%acc.*\n', PROGRAM)[0]
    text = PROGRAM.replace(old, "".join(lines))
    return text.replace('    %out = "warp.fragment"', f'    %acc2 = "warp.fragment"() : () -> {ACC}\n    %out = "warp.fragment"')


def loop_of(names: list[str]) -> list[str]:
    """From the wait for B to the advance."""
    start = names.index("wait", names.index("wait") + 1)
    return names[start : names.index("store_shared")]


def test_the_first_reader_waits_for_its_mma_only():
    names = loop_of(barriers(in_the_loop(wgmma("%acc"), wgmma("%acc2"), half("%acc"), half("%acc2"))))
    assert names == [
        "wait", "wgmma_fence", "wgmma", "wgmma_commit", "wgmma_fence", "wgmma", "wgmma_commit",
        "wgmma_wait", "map", "wgmma_wait", "release", "advance", "map", "map",
    ]  # fmt: skip


def pendings(text: str) -> list[int]:
    with new_context() as context, ir.Location.unknown():
        module = parse_module(text, "program.mlir", context)
        run_pipeline(module, "warp-insert-barriers")
        return [int(n) for n in re.findall(r'"warp.wgmma_wait"\(\) \{pending = (\d+)', print_module(module, locations=False))]


def test_what_may_stay_in_flight_does():
    assert pendings(in_the_loop(wgmma("%acc"), wgmma("%acc2"), half("%acc"), half("%acc2"))) == [1, 0]
    assert pendings(in_the_loop(wgmma("%acc"), wgmma("%acc2"), half("%acc2"), half("%acc"))) == [0]
    assert pendings(in_the_loop(wgmma("%acc"), half("%acc"), wgmma("%acc2"), half("%acc2"))) == [0, 0]


def test_a_buffer_over_another_gets_a_barrier_of_the_role():
    """C where A and B were: each warpgroup must be done with them before one writes."""
    apart, over = barriers(PROGRAM), barriers(PROGRAM.replace("offset = 50176", "offset = 1024"))
    assert over.count("barrier") == apart.count("barrier") + 1
    assert over.index("barrier") < over.index("store_shared") < apart.index("barrier")


def test_a_kernel_without_that_barrier_would_be_refused():
    text = PROGRAM.replace("offset = 50176", "offset = 1024")
    with new_context() as context, ir.Location.unknown():
        module = parse_module(text, "program.mlir", context)
        run_pipeline(module, "warp-insert-barriers")
        printed = print_module(module)
        line = re.search(r'      "warp.barrier"\(\) \{id = \d+ : i64, scope = "role"\}.*\n', printed)[0]
        with pytest.raises(Diagnostic, match="overwrites bytes of another buffer"):
            run_pipeline(parse_module(printed.replace(line, ""), "program.mlir", context), "warp-check")


USE_ALL_IDS = "".join(f'    "warp.barrier"() {{id = {n}, scope = "role"}} : () -> ()\n' for n in range(1, 16))
FROM_BYTE_0 = PROGRAM.replace('%sa = "warp.buffer"() {offset = 1024', '%sa = "warp.buffer"() {offset = 0')
NEVER_WRITTEN = re.sub(r'    "warp.store_shared".*\n', "", PROGRAM)
REFUSED = {
    "a buffer that its role did not write": (NEVER_WRITTEN, "'warp.tma_store' stores a buffer that its role did not write"),
    "no room for mbarriers": (FROM_BYTE_0, "bytes of mbarriers, but buffers start at byte 0"),
    "over a buffer that is loaded once": (
        PROGRAM.replace("2x128x64", "1x128x64").replace("offset = 17408", "offset = 1024"),
        "lies over another buffer that is loaded, but not in turns",
    ),
    "no named barrier left": (PROGRAM.replace(STORE, USE_ALL_IDS + STORE), "needs 2 more named barriers"),
}


def test_as_many_named_barriers_as_the_target_has():
    with targets.override("sm_90a", named_barriers=2), pytest.raises(Diagnostic, match="needs 2 more named barriers") as caught:
        barriers(PROGRAM)
    assert "a CTA has 1 beside" in caught.value.text()


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    text, message = REFUSED[name]
    with pytest.raises(Diagnostic) as caught:
        barriers(text)
    assert is_located(caught.value.text())
    assert message in caught.value.text()


FILL = f'      "warp.fill"(%acc) {{value = 0.0 : f32}} : ({ACC}) -> ()\n'
UNDER_A_CONDITION = "      %yes = arith.constant true\n      scf.if %yes {\n"


@pytest.mark.parametrize(("lines", "behind", "kept"), [
    (FILL + UNDER_A_CONDITION, "      }\n", "%acc"),  # LLVM copies a constant where it is used
    (FILL.replace("%acc", "%acc2") + UNDER_A_CONDITION, "      }\n", ""),
    (half("%acc"), "", "%acc"),  # the wait for B, a loop, stands between: LLVM moves what the MMA alone uses behind it
], ids=["a constant", "of another", "a product"])
def test_a_sum_is_made_before_the_fence_where_a_branch_stands_between(lines, behind, kept):
    """Both were seen in PTX: of a dQ beside a recomputed O, and of one that a softmax inside of a backward rescales."""
    adds = wgmma("%acc").replace("accumulate = false", "accumulate = true")
    with new_context() as context, ir.Location.unknown():
        module = parse_module(in_the_loop(lines, adds, adds, behind), "program.mlir", context)
        run_pipeline(module, "warp-insert-barriers")
        printed = print_module(module, locations=False)
    assert re.findall(r'"warp.wgmma_fence"\((.*?)\)', printed) == [kept, ""]  # the first sum may be in flight at the second
