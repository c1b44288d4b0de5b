"""The backward of five GEMMs with sums in tensor memory, from the pipeline to its kernels: schedule, columns, numbers, counts. Fixed
orders of additions: test_matrix.py.
"""

import functools
import re

import compiled
import kernel_checks
import numpy as np
import peer_counts
import pytest

from fa4c import targets
from fa4c.cli import run_backward
from fa4c.ir import interpret_tile
from fa4c.ir.context import new_context, parse_module
from fa4c.passes import tmem_tiles
from fa4c.runtime import emulated
from fa4c.runtime.inputs import make_inputs

TARGET = "sm_100a"
FULL, CAUSAL, GQA, CAP = ("full.mlir", 128), ("causal.mlir", 64), ("gqa.mlir", 96), ("softcap.mlir", 128)


def tile_text(path: str, d: int) -> str:
    return compiled.level(path, "tile", target=TARGET, direction="bwd", head_dim=(d, d))


@functools.cache
def built(path: str, d: int):
    return compiled.loaded(path, target=TARGET, direction="bwd", head_dim=(d, d))


def given(path: str, d: int, sizes: dict) -> tuple:
    """(program, inputs of the forward, what the backward takes besides)."""
    artifact = built(path, d)
    program = run_backward.of_artifact(artifact, None)
    inputs = make_inputs(program.semantics, sizes, 0, "cpu")
    more = run_backward.arriving(program, sizes, 0, {}, "cpu")
    return program, inputs, more | run_backward.stored(program, inputs, {}, {})


# -- schedule and columns ------------------------------------------------------------------------------------------------------------------


def loop_of(text: str):
    """(columns of the tiles in tensor memory by name and dtype, the block loop's MMAs in the order of a step as (name, stage))."""
    with new_context() as context:
        module = parse_module(text, "backward.mlir", context)
        kernels = [op for op in module.body.operations if op.operation.name == "tile.kernel"]
        kernel = next(op for op in kernels if op.sym_name.value.endswith("main"))
        found = [(f"{t.name} {t.kind.element_type}", tmem_tiles.column_of(t.kind), t.words) for t in tmem_tiles.find(kernel)]
        tiles = {name: range(first, first + words) for name, first, words in found}
        mmas = re.findall(r'%(\w+?)(?:_\d+)? = "tile\.mma"[^\n]*order = (\d+) : i64, stage = (\d+)', text)
        return tiles, [(name, int(stage)) for name, _, stage in sorted(mmas, key=lambda mma: int(mma[1]))]


def test_one_cta_at_128_finds_the_order_and_the_map_of_fa4():
    """dV, S of the next block, dK, dQ, dP of the next block: from dV to dV the order of the sheet. P over S; dS and dQ over dP."""
    tiles, order = loop_of(tile_text(*FULL))
    assert order == [("dv", 1), ("s", 0), ("dk", 1), ("dq", 1), ("dpc", 0)]
    shared = {frozenset(n for n in tiles if tiles[n].start < own.stop and own.start < tiles[n].stop) for own in tiles.values()}
    groups = ({"s f32", "pc bf16"}, {"dpc f32", "dk bf16", "dq f32"}, {"dv f32"}, {"dk f32"})
    assert shared == {frozenset(g) for g in groups}
    assert max(own.stop for own in tiles.values()) == 512


@pytest.mark.parametrize("d", [64, 96, 128])
def test_shared_memory_and_columns_suffice(d):
    """All in one CTA: copies of loaded tiles that the schedule does not need are given up where room is short (dO at 128)."""
    text = compiled.level("full.mlir", "warp", target=TARGET, direction="bwd", head_dim=(d, d))
    size = int(re.search(r'smem_bytes = (\d+) : i64, sym_name = "full_bwd_main"', text)[1])
    assert size <= targets.get(TARGET).smem_bytes and text.count('sym_name = "reduce"') == 1


def test_what_does_not_fit_is_split():
    """Head dims (192, 128): dK 192 + dV 128 + two products of 128 are more than 512 columns; with 1024 they fit."""
    def kernels() -> set:
        text = compiled.compile_text((compiled.EXAMPLES / "causal.mlir").read_text(), "causal.mlir", target=TARGET, direction="bwd",
                                     emit="attn", head_dim=(192, 128))
        return set(re.findall(r"@causal_bwd_(\w+)", text))

    assert {"dq", "dk_dv"} < kernels()
    with targets.override(TARGET, tmem_columns=1024):
        assert "main" in kernels()


def test_a_soft_cap_is_one_kernel():
    """A row of tanh beside one of P is more than a thread has: P is made between tanh and its reader, a few columns at a time. At
    (192, 128) columns are short: two kernels, whose CTAs walk through tiles and tell that results are read.
    """
    text = compiled.level("softcap.mlir", "warp", target=TARGET, direction="bwd", head_dim=(128, 128))
    assert set(re.findall(r'sym_name = "softcap_bwd_(\w+)"', text)) == {"preprocess", "refine", "main", "postprocess"}
    assert text.count("warp.tmem_map_both") == 1
    text = compiled.level("softcap.mlir", "warp", target=TARGET, direction="bwd", head_dim=(192, 128))
    assert set(re.findall(r'sym_name = "softcap_bwd_(\w+)"', text)) == {"preprocess", "refine", "dq", "dk_dv"}


# -- storage: what the tile level says is what happens -------------------------------------------------------------------------------------

ARRAYS = {"m": 400, "n": 128, "d": 128}


def interpreted(text: str, mode: str) -> dict:
    rng = np.random.default_rng(0)

    def normal(rows):
        return rng.standard_normal((1, rows, 1, ARRAYS["d"]))

    m, n = ARRAYS["m"], ARRAYS["n"]
    arrays = {"q": normal(m), "k": normal(n), "v": normal(n), "o": normal(m), "do": normal(m), "lse": np.full((1, 1, m), 5.0)}
    with new_context() as context:
        return interpret_tile.run(parse_module(text, "backward.mlir", context), arrays, mode=mode)


def worst(text: str, of=FULL) -> float:
    want, got = interpreted(tile_text(*of), "value"), interpreted(text, "storage")
    return max(float(np.nan_to_num(np.abs(got[name] - want[name]), nan=np.inf).max()) for name in want)


@pytest.mark.parametrize("of", [FULL, CAP], ids=str)
def test_the_schedule_is_right_in_storage(of):
    assert worst(tile_text(*of), of) < 1e-12


def edited(pattern: str, replacement: str) -> str:
    text, count = re.subn(pattern, replacement, tile_text(*FULL))
    assert count
    return text


WRONG = {
    "columns of dP over dV": lambda: edited(r"(128x128xf32, #tile.tmem<)256", r"\g<1>0"),
    "one copy of Q": lambda: edited(r'(%s_\d+ = "tile.load"[^\n]*buffers = )2', r"\g<1>1"),
    "S before dV has read P": lambda: edited(r"order = 0 : i64, stage = 1", "order = 90 : i64, stage = 1"),
    "dQ of this block": lambda: edited(r"(order = \d+ : i64, stage = )1( : i64, transpose_a)", r"\g<1>0\g<2>"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_column_copy_stage_or_order_is_seen(name):
    assert worst(WRONG[name]()) > 1e-3


# -- kernels -------------------------------------------------------------------------------------------------------------------------------

CASES = [(*FULL, dict(b=1, hq=1, hkv=1, m=256, n=129)), (*CAUSAL, dict(b=1, hq=1, hkv=1, m=200, n=257)),
         (*GQA, dict(b=1, hq=4, hkv=2, m=129, n=100))]  # fmt: skip


@pytest.mark.parametrize(("path", "d", "sizes"), CASES, ids=[case[0] for case in CASES])
def test_right_and_without_a_hazard(path, d, sizes):
    program, inputs, more = given(path, d, sizes)
    out, reports = emulated.run_reported(built(path, d), {**inputs, **more}, ["dq", "dk", "dv"], hazards=True, schedule="random")
    assert [report.hazards for report in reports] == [[]] * 3
    rows = run_backward.check(program, inputs, more, out)
    assert len(rows) == 6 and all(row.ok for row in rows), rows


@pytest.mark.parametrize(("path", "d"), [FULL, CAUSAL, GQA], ids=str)
def test_nothing_lies_on_the_stack(path, d):
    assert kernel_checks.local_memory(compiled.ptx(path, target=TARGET, direction="bwd", head_dim=(d, d))) == []
    members = compiled.kernel(path, target=TARGET, direction="bwd", head_dim=(d, d))[1]
    assert [kernel_checks.stack_and_local_bytes(data) for name, data in members.items() if name.endswith(".cubin")] == [[]] * 4


@functools.cache
def counted() -> list[dict]:
    """Counters of the kernel of five GEMMs, 128 keys at head dim 128, for one block of queries and for two."""
    totals = []
    for m in (128, 256):
        _, inputs, more = given(*FULL, dict(b=1, hq=1, hkv=1, m=m, n=128))
        totals.append(emulated.run_reported(built(*FULL), {**inputs, **more}, ["dq", "dk", "dv"], hazards=False)[1][1].counters["total"])
    return totals


def test_a_tile_takes_no_more_of_anything_than_flash_attn_4s():
    assert peer_counts.higher(*counted(), tiles=1, head_dim=128) == {}


def test_counts_of_one_tile_are_those_of_the_sheet():
    """128 keys x 128 queries at head dim 128, by the difference of a block more: clocks at the rates of the target."""
    totals = counted()
    one = {name: totals[1][name] - totals[0].get(name, 0) for name in totals[1]}
    target = targets.get(TARGET)
    tile, width = 128 * 128 * 4, target.smem_bytes_per_clk
    assert one["mma_clocks"] == 2560
    assert one["instructions.ex2"] * 32 / target.mufu == 1024
    assert one["smem_bytes.operands"] / width == 2048
    assert one["smem_bytes.store"] == tile // 2 + tile  # dS, 256 clocks; dQ on its way out, of whose 1024 this is half
    assert one["global_bytes.tma_store"] == tile and one["smem_bytes.tma"] - tile == one["global_bytes.tma_load"]
