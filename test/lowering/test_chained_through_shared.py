"""Two GEMMs of a loop chained through shared memory, the result summed in global memory: barriers, buffers, stages, numbers."""

import functools
import re

import backward_programs
import numpy as np
import pytest
import sums
import torch

from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.lowering.compile import compile_text
from fa4c.passes.registry import run_pipeline


def operands(m: int, n: int, depth: int = 128, heads: int = 0):
    generator = torch.Generator().manual_seed(m + n)
    q = torch.randn(*([heads] if heads else []), m, depth, generator=generator).to(torch.bfloat16)
    return {"q": q, "k": torch.randn(n, depth, generator=generator).to(torch.bfloat16)}


def wanted(q, k) -> np.ndarray:
    p = torch.relu(q.float() @ k.float().T).to(torch.bfloat16).double()  # the program rounds here
    return (p @ k.double()).numpy()


def error(got, want) -> float:
    return float(np.abs(got["out"] - want).max() / np.abs(want).max())


CASES = {
    "two buffers": ({}, 150, 200, 0),
    "one buffer": ({"buffers": 1}, 300, 70, 0),
    "by rows": ({"block_m": 128, "depth": 64}, 300, 130, 0),
    "a single row": ({}, 1, 129, 0),
    "a loop around it, of odd length inside": ({"heads": True}, 70, 100, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_on_the_emulator(case):
    options, m, n, heads = CASES[case]
    inputs = operands(m, n, options.get("depth", 128), heads)
    got, report = sums.emulate(backward_programs.chained(**options), inputs, zeroed=("out",), hazards=True)
    assert report.hazards == []
    assert error(got, wanted(**inputs)) < 1e-3


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", ["value", "storage"])
def test_by_the_interpreter(case, mode):
    options, m, n, heads = CASES[case]
    inputs = operands(m, n, options.get("depth", 128), heads)
    got = sums.interpret(backward_programs.chained(**options), inputs, zeroed=("out",), mode=mode, passes="tile-pipeline", dtype="kernel")
    assert error(got, wanted(**inputs)) < 1e-3


# S of block k; what block k - 2 adds; D of block k - 1; P of block k
AHEAD = {"s": "stage = 0, order = 1", "add": "stage = 2, order = 2", "d": "stage = 1, order = 3", "p": "stage = 0, order = 4",
         "sp": "stage = 0, order = 5"}
WRONG = {
    "too few buffers: the tile is written again before it is read": ({**AHEAD, "d": "stage = 1, order = 6"}, 1),
    "added after the next product has overwritten it": ({**AHEAD, "add": "stage = 2, order = 4"}, 2),
    "added twice a step later": ({**AHEAD, "add": "stage = 0, order = 0"}, 2),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_order_or_buffer_count_gives_wrong_numbers(case):
    """In storage mode of the interpreter; the same program is right by value."""
    pins, buffers = WRONG[case]
    text = backward_programs.chained(pins=pins, buffers=buffers).replace("buffers = 2} : (tensor<?x128xbf16", 'buffers = 3, stage = 0, '
                                                                           'order = 0} : (tensor<?x128xbf16')
    inputs = operands(300, 100)
    assert error(sums.interpret(text, inputs, zeroed=("out",), dtype="kernel"), wanted(**inputs)) < 1e-3
    try:
        got = sums.interpret(text, inputs, zeroed=("out",), mode="storage", dtype="kernel")
    except Diagnostic as refused:
        assert "before it is computed" in str(refused)
    else:
        assert not error(got, wanted(**inputs)) < 0.1


def test_the_schedule_puts_the_second_product_off():
    """S of a block is issued before the product of the block before, and before what was put off further is added."""
    text = compile_text(backward_programs.chained(), "program.mlir", emit="tile", locations=False)
    places = {name: tuple(map(int, re.search(rf'{pattern}.*?order = (\d+) : i64, stage = (\d+)', text, re.DOTALL).groups()))
              for name, pattern in (("s", '%s = "tile.mma"'), ("d", '%d = "tile.mma"'), ("add", '"tile.global_add"'))}
    assert {name: stage for name, (_, stage) in places.items()} == {"s": 0, "d": 1, "add": 2}
    assert places["s"][0] < places["add"][0] < places["d"][0]


# ------------------------------------------------------------------------------------------------------------------ barriers


@functools.cache
def warp_text(**options) -> str:
    return compile_text(backward_programs.chained(**options), "program.mlir", emit="warp", locations=False)


def loop_of(text: str) -> str:
    """The steady state of the compute role's innermost loop."""
    role = text[text.index('"warp.role"() ({', text.index('"warp.role"() ({') + 1):]
    return re.findall(r"scf\.for (?:(?!scf\.for).)*?\n        }\n", role, re.DOTALL)[-1]


def barriers(text: str) -> list[str]:
    return re.findall(r'"warp\.(store_shared|barrier|fence_async|wgmma|wgmma_wait)"', text)


def test_two_slots_need_one_barrier_an_iteration():
    """It lies between the writes and the product; the one of the iteration between keeps a slot's readers and its next writers apart."""
    assert barriers(loop_of(warp_text())) == ["wgmma", "fence_async", "barrier", "wgmma", "wgmma_wait", "store_shared", "wgmma_wait"]


def test_one_slot_needs_a_second_barrier():
    """And a wait for the product before it: its result is not needed yet, but its operand is overwritten."""
    assert barriers(loop_of(warp_text(buffers=1))) == [
        "wgmma", "fence_async", "barrier", "wgmma", "wgmma_wait", "wgmma_wait", "barrier", "store_shared", "wgmma_wait"]


def test_rows_that_only_their_own_warpgroup_reads_need_a_barrier_of_the_warpgroup():
    """p k instead of p^T k: each warpgroup's operand are the rows that it wrote."""
    text = backward_programs.chained(block_m=128, depth=128).replace("{transpose_a = true, ", "{").replace(
        '"tile.global_add"(%d, %out, %m0, %c0)', '"tile.global_add"(%d, %out, %n0, %c0)')
    text = compile_text(text, "program.mlir", emit="warp", locations=False)
    assert 'scope = "role"' not in text and 'scope = "warpgroup"' in loop_of(text)
    inputs = operands(200, 200)
    got, report = sums.emulate(text, inputs, zeroed=("out",), hazards=True, pipeline="cse")
    padded = {name: torch.nn.functional.pad(x, (0, 0, 0, 56)).view(2, 128, 128) for name, x in inputs.items()}
    p = torch.einsum("xnd,imd->xinm", padded["k"].float(), padded["q"].float()).relu().to(torch.bfloat16).double()
    want = torch.einsum("xinm,xmd->xnd", p, padded["k"].double()).reshape(256, 128)[:200].numpy()
    assert report.hazards == [] and error(got, want) < 1e-3


def test_turns_are_not_taken():
    assert "warp.turn" not in warp_text()


def check(text: str) -> str:
    with new_context():
        module = parse_module(text, "kernel.mlir")
        with pytest.raises(Diagnostic) as caught:
            run_pipeline(module, "warp-check")
        return str(caught.value)


SYNCHRONISES = re.compile(r'"warp\.(fence_async"\(\) : |barrier"\(\) \{id = \d+ : i64, scope = "role")')


@pytest.mark.parametrize("options", [{}, {"buffers": 1}], ids=["two slots", "one slot"])
def test_the_check_misses_nothing_that_is_taken_away(options):
    lines = warp_text(**options).split("\n")
    found = [n for n, line in enumerate(lines) if SYNCHRONISES.search(line)]
    assert len(found) >= 7
    for n in found:
        said = check("\n".join(lines[:n] + lines[n + 1:]))
        assert "have not reached" in said or "that an MMA may still read" in said


def test_the_check_finds_too_few_slots():
    """All slot numbers 0: what two slots made right with one barrier is wrong with one."""
    text = re.sub(r"(arith\.remui %\w+, )%\w+", r"\1%one", warp_text())
    role = text.rindex('"warp.role"() ({\n') + len('"warp.role"() ({\n')
    text = text[:role] + "      %one = arith.constant 1 : index\n" + text[role:]
    assert "overwrites a slot that an MMA may still read" in check(text)


def test_the_check_finds_a_slot_that_does_not_exist():
    text = warp_text().replace("tensor<2x128x64xbf16, #tile.smem>", "tensor<1x128x64xbf16, #tile.smem>")
    assert "slot 1 of a buffer that has 1" in check(text)


@pytest.mark.parametrize("what", ["fence", "barrier"])
def test_the_emulator_sees_what_is_taken_away(what):
    text = warp_text()
    loop = loop_of(text)
    pattern = r'\n *"warp\.fence_async"\(\) : [^\n]*' if what == "fence" else r'\n *"warp\.barrier"[^\n]*'
    broken = text.replace(loop, re.sub(pattern, "", loop))
    assert broken != text
    _, report = sums.emulate(broken, operands(330, 100), zeroed=("out",), hazards=True, pipeline="cse")
    assert {hazard.cls for hazard in report.hazards} >= ({"proxy-race"} if what == "fence" else {"race"})


def test_the_emulator_sees_too_few_slots():
    """The barrier before the only slot is written again is missing."""
    text = warp_text(buffers=1)
    loop = loop_of(text)
    broken = text.replace(loop, re.sub(r'\n *"warp\.barrier"[^\n]*(\n *"warp\.store_shared")', r"\1", loop))
    assert broken != text
    _, report = sums.emulate(broken, operands(330, 100), zeroed=("out",), hazards=True, pipeline="cse")
    assert any("write after read" in hazard.message for hazard in report.hazards)
