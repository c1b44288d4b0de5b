"""Products of CTA pairs: kernels right in the emulator under random schedules, with no hazard; the bytes they read; faults refused."""

import functools
import re

import compiled
import numpy as np
import peer_counts
import pytest
import torch

from fa4c import targets
from fa4c.explain import launches
from fa4c.ir import interpret_tile
from fa4c.ir.context import new_context, parse_module
from fa4c.runtime import check, emulated
from fa4c.runtime.inputs import make_inputs

PAIRS = {"target": "sm_100a", "overrides": (("tile-split-2cta", "ctas", "2"),)}
GEMM = "tile/gemm.mlir"


def random(*shape, seed):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.3).to(torch.bfloat16)


def error(got, want) -> float:
    return float(np.abs(got.double().numpy() - want).max() / np.abs(want).max())


def operand_bytes(reports) -> float:
    return sum(report.counters["total"]["smem_bytes.operands"] for report in reports)


def test_gemm_reads_half_of_b():
    a, b = random(300, 104, seed=1), random(136, 104, seed=2)
    want = a.double().numpy() @ b.double().numpy().T
    read = {}
    for options in (PAIRS, {"target": "sm_100a"}):
        made = compiled.loaded(GEMM, **options)
        out, reports = emulated.run_reported(made, {"a": a, "b": b}, ("c",), schedule="random", schedule_seed=3)
        assert error(out["c"], want) < 2**-8 and all(report.ok for report in reports)
        read[len(options)] = operand_bytes(reports)
    # 3 and 4 row blocks (whole pairs) x 2 column blocks x 2 steps: a 128 x 64 and b 128 x 64, or 64 x 64, of 2 bytes
    assert read == {1: 3 * 2 * 2 * 32768, 2: 4 * 2 * 2 * 24576}


@pytest.mark.parametrize("seed", range(3))
def test_two_gemms(seed):
    m, n = [(200, 300), (3, 5), (270, 140)][seed]
    a, b, c = random(m, 64, seed=1), random(n, 64, seed=2), random(n, 128, seed=3)
    p = torch.relu(a.double() @ b.double().T).to(torch.bfloat16).double().numpy()
    made = compiled.loaded("tile/two_gemms.mlir", **PAIRS)
    out = emulated.run(made, {"a": a, "b": b, "c": c}, ("out",), schedule="random", schedule_seed=seed)
    assert error(out["out"], p @ c.double().numpy()) < 2**-7


def test_forward():
    made = compiled.loaded("full.mlir", **PAIRS)
    given = make_inputs(made.semantics, dict(b=1, hq=1, hkv=1, m=260, n=130), 0)
    rows = check.check(made.semantics, given, emulated.run(made, given, ("o", "lse"), schedule="random", schedule_seed=7))
    assert all(row.ok for row in rows), rows


BACKWARD = {"direction": "bwd", **PAIRS}


def backward_inputs(m: int, n: int, d: int, dv: int, heads: int = 1) -> dict:
    """So many heads of queries, one of keys."""
    shapes = {"q": (m, heads, d), "k": (n, 1, d), "v": (n, 1, dv), "o": (m, heads, dv), "do": (m, heads, dv)}
    given = {name: random(1, *shape, seed=number) for number, (name, shape) in enumerate(shapes.items())}
    return {**given, "lse": random(1, heads, m, seed=9).float() + 5}


def gradients(given: dict, causal: bool) -> dict:
    """In float64; o and the log-sum-exp are what the caller says, not those of q, k and v."""
    k, v = (given[name][0, :, 0].double().numpy() for name in ("k", "v"))
    scale = 128**-0.5  # what the examples say, whatever the head dim
    found = {"dq": [], "dk": [], "dv": []}
    for head in range(given["q"].shape[2]):
        q, o, do = (given[name][0, :, head].double().numpy() for name in ("q", "o", "do"))
        p = np.exp(scale * q @ k.T - given["lse"][0, head].double().numpy()[:, None])
        if causal:
            rows, columns = np.indices(p.shape)
            p = np.where(columns <= rows + len(k) - len(q), p, 0)
        ds = p * (do @ v.T - (do * o).sum(1, keepdims=True)) * scale
        for name, value in {"dq": ds @ k, "dk": ds.T @ q, "dv": p.T @ do}.items():
            found[name].append(value)
    return {"dq": np.stack(found["dq"], 1)[None], **{name: sum(found[name])[None, :, None] for name in ("dk", "dv")}}


def backward(made, m: int, n: int, seed: int, d: int = 128, dv: int = 0, causal: bool = False, heads: int = 1) -> list:
    given = backward_inputs(m, n, d, dv or d, heads)
    want = gradients(given, causal)
    got, reports = emulated.run_reported(made, given, tuple(want), schedule="random", schedule_seed=seed)
    assert all(report.ok for report in reports)
    for name in want:
        assert error(got[name], want[name]) < 2**-6, name
    return reports


@functools.cache
def counted(m: int) -> dict:
    """Counters of the kernel of five GEMMs: so many queries, 256 keys."""
    reports = backward(compiled.loaded("full.mlir", **BACKWARD), m, 256, seed=1)
    return next(report for report in reports if "main" in report.entry).counters["total"]


def test_a_tile_takes_no_more_of_anything_than_in_flash_attn_4s_pair():
    """Nor in what goes to the other CTA: half of dS, once, 128 clocks of 128 bytes (the paper: at most 384)."""
    assert peer_counts.higher(counted(128), counted(256), tiles=2, head_dim=128, options=PAIRS["overrides"]) == {}
    assert counted(256)["smem_bytes.dsmem"] - counted(128)["smem_bytes.dsmem"] == 2 * 128 * 128


def test_the_backward_reads_and_adds_what_the_model_says():
    """Clocks of 128 bytes for 128 keys x 128 queries: four whole operands, dS and K of dQ among them, four halves; half of dQ's rows."""
    total = counted(256)
    names = {"operands": "smem_bytes.operands", "written": "smem_bytes.store", "added": "global_bytes.tma_store"}
    epilogue = 2 * 256 / 2  # dK and dV of 256 clocks each, for two steps
    clocks = {name: total[key] / (2 * 2 * 128) for name, key in names.items()}
    assert clocks == {"operands": 4 * 256 + 4 * 128, "written": 256 + 256 + epilogue, "added": 256 + epilogue}


@pytest.mark.parametrize(("m", "n", "seed"), [(130, 257, 1), (5, 19, 2)])  # of fewer keys delta is corrected, to what o is not here
def test_backward_in_any_order(m, n, seed):
    backward(compiled.loaded("full.mlir", **BACKWARD), m, n, seed)


@functools.cache
def long_exchange() -> str:
    """The warp level where an exchange takes long: FA-4's order, dQ behind the next dP, in the columns of the scores."""
    with targets.override("sm_100a", dsmem_exchange_clk=3000):
        return compiled.compile_text((compiled.EXAMPLES / "full.mlir").read_text(), "full.mlir", emit="warp", **BACKWARD)


def test_the_order_of_fa4():
    """Waits two iterations back, for what the same step runs for the next one, and for the loop over the other head of queries."""
    made = compiled.load(*compiled.kernel_of_text(long_exchange(), "full.mlir", pipeline="cse", target="sm_100a"))
    found, wanted = (backward(kernels, 300, 130, seed=4, heads=2) for kernels in (compiled.loaded("full.mlir", **BACKWARD), made))
    fewer, more = (next(r for r in reports if "main" in r.entry).counters["total"] for reports in (found, wanted))
    same = ("mma_clocks", "instructions.ex2", "smem_bytes.operands", "smem_bytes.store", "global_bytes.tma_store")
    assert all(fewer[name] == more[name] for name in same)
    assert fewer["barrier_waits"] < more["barrier_waits"]  # the order that is found instead


def test_a_link_of_two_slots_needs_both():
    compiled.check_refused(long_exchange(), "stages = 2 : i64, tx_bytes = 0", "stages = 1 : i64, tx_bytes = 0", "waits forever")


def test_causal():
    """Both CTAs of a pair visit the blocks that either of them needs; what one does not see is masked."""
    options = {**BACKWARD, "overrides": (*PAIRS["overrides"], ("attn-to-tile", "alike", "2")), "head_dim": (64, 64)}
    backward(compiled.loaded("causal.mlir", **options), 150, 290, seed=5, d=64, causal=True)


WIDE = {**BACKWARD, "head_dim": (192, 128), "overrides": (
    ("attn-split-backward", "ctas", "2"), ("attn-to-tile", "alike", "2"), *PAIRS["overrides"])}  # fmt: skip


def test_the_fused_backward_of_head_dims_192_and_128():
    """It fits in pairs only: tiles of 800 columns in 512, Q's and dO's halves in turns."""
    made = compiled.loaded("causal.mlir", **WIDE)
    backward(made, 130, 290, seed=6, d=192, dv=128, causal=True)
    assert made.manifest["kernels"]["causal_bwd_main"]["stack_bytes"] == 0


def test_loops_find_addresses_and_places_where_they_use_them():
    """The peer's chunks follow from its address by a twist each; roles that issue find each head's blocks from the CTA's place again."""
    ptx, text = (compiled.kernel("causal.mlir", **WIDE)[1][f"causal_bwd_main.{kind}"] for kind in ("ptx", "cute.py"))
    peers = re.findall(rb"mapa.shared::cluster.u32 (%r\d+), %r\d+, [01];", ptx)
    twisted = dict(re.findall(rb"xor.b32\s+(%r\d+), (%r\d+), \d+;", ptx))
    sent = re.findall(rb"st.shared::cluster.v4.b32 \[(%r\d+)\]", ptx)
    assert len(sent) == 2 * 64 // 8 and {twisted.get(address, address) for address in sent} <= set(peers)
    roles = dict(re.findall(rb"# role (\w+)\n(.*?)(?=# role|$)", text, flags=re.DOTALL))
    assert {name for name, role in roles.items() if b"hold(bid_x)" in role} == {b"load", b"mma"}


def test_tiles_that_take_turns_in_one_buffer():
    """In storage mode of the interpreter: right as scheduled, wrong where Q's columns come before the scores have read its rows."""
    text = compiled.level("full.mlir", "tile", locations=False, **WIDE)
    given = {name: value.double().numpy() for name, value in backward_inputs(200, 256, 192, 128).items()}

    def gradients_of(program: str, mode: str) -> dict:
        with new_context() as context:
            return interpret_tile.run(parse_module(program, "full.mlir", context), given, mode=mode)

    turns = [line for line in text.splitlines() if "turns = 0" in line]
    (first, _), (_, late) = sorted((int(re.search(r"order = (\d+)", line)[1]), line) for line in turns)
    wrong = text.replace(late, re.sub(r"order = \d+", f"order = {first}", late))
    want, right, spoiled = gradients_of(text, "value"), gradients_of(text, "storage"), gradients_of(wrong, "storage")
    worst = [max(np.abs(got[name] - want[name]).max() for name in want) for got in (right, spoiled)]
    assert worst[0] < 1e-9 and not worst[1] < 1e-3, worst


def test_its_clocks_are_those_of_the_model():
    """Of 128 bytes, for 128 keys x 128 queries (fact sheet 1.5): K 384 and half of Q 192, V 256 and half of dO 128, halves of dO 128 and Q
    192, dS 256 and K 384."""
    with new_context() as context:
        found = launches.launches(parse_module(compiled.level("causal.mlir", "warp", **WIDE), "causal.mlir", context),
                                  dict(b=1, hq=1, hkv=1, m=256, n=256))  # fmt: skip
    counts, steps = next(launch.counts for launch in found if "main" in launch.kernel), 2 * 2
    assert counts["mma"] / steps / 8192 == 3328 and counts["smem_operands"] / steps / 128 == 1920
    assert counts["dsmem"] / steps / 128 == 128
    results = (384 + 256) / 2  # dK and dV of a CTA, which makes two steps
    assert counts["smem_written"] / steps / 128 == 256 + 384 + results


def warp_level(example: str) -> str:
    return compiled.level(example, "warp", locations=False, **(PAIRS if example == GEMM else BACKWARD))


@pytest.mark.parametrize(("example", "old", "new", "words"), [
    ("full.mlir", r"warp.fence_async\"\(\) {cluster = true}", "warp.fence_async\"()", "the writes of role compute.* have not reached"),
    ("full.mlir", r"exchange = true", "exchange = false", "rows, columns and dtype stay"),
    ("full.mlir", r", folded = true", "", "the sizes do not fit"),
    ("full.mlir", r"fold = 64 : i64, ", "", "moves boxes of"),
    (GEMM, r"tx_bytes = 32768", "tx_bytes = 16384", "overwrites a slot before it was read"),  # one CTA's
    (GEMM, r"fills = 8 : i64, leader = true, ", "fills = 4 : i64, leader = true, ", "brings 8 arrivals|fills a slot again"),
    (GEMM, r"fills = 8 : i64, leader = true, ", "fills = 8 : i64, ", "waits forever"),  # each CTA's own barrier
    (GEMM, r'barrier = "empty", ctas = 2 : i64', 'barrier = "empty"', "is of 1 CTAs, but the kernel's MMAs are of 2"),
    (GEMM, r"active = 1 : i64, leader = true", "active = 1 : i64", "is issued in both CTAs of a pair"),
    (GEMM, r"arrivals = 1 : i64, leader = true, offset = 0", "arrivals = 1 : i64, offset = 0", "waits forever"),
    (GEMM, r"ctas = 2 : i64, warp = 1", "warp = 1", "its tensor memory was allocated for MMAs of 1"),
    (GEMM, r"cluster = 2 : i64, ", "", "no pairs"),
])
def test_faults_are_refused(example, old, new, words):
    compiled.check_refused(warp_level(example), old, new, words)


def test_a_barrier_of_the_wrong_cta_is_seen_by_the_emulator():
    """warp-check left out: compute warps of the second CTA tell their own MMA role, which does not run, that the sum is 0."""
    edited = warp_level(GEMM).replace("fills = 8 : i64, leader = true, ", "fills = 4 : i64, ")
    made = compiled.load(*compiled.kernel_of_text(edited, "edited.mlir", pipeline="cse", target="sm_100a"))
    _, reports = emulated.run_reported(made, {"a": random(256, 64, seed=1), "b": random(128, 64, seed=2)}, ("c",))
    assert any("race" in report.text() for report in reports)
