"""The clocks of a step against closed forms, at odd tiles too, after an edit of the text, and on perturbed targets."""

import pathlib
from fractions import Fraction as F

import pytest

from fa4c import targets
from fa4c.explain import explain, launches, work
from fa4c.ir import tile, tile_pair, warp, warp_tmem
from fa4c.lowering.compile import compile_text
from fa4c.passes import op_costs

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent / "examples"
FULL = (EXAMPLES / "full.mlir").read_text()


def explained(text: str = FULL, *, kernel: str = "", **options) -> dict:
    """The one step, or that of a kernel; clocks by name."""
    found = explain(text, "full.mlir", changes=False, **options)
    steps = [step for k in found["kernels"] if kernel in k["name"] for step in k["steps"]]
    (step,) = steps
    return step["clocks"]


def blocks(block_m: int, block_n: int, emulated: int | None = None) -> list[tuple[str, str, str]]:
    """`emulated`: of 16 exponentials, in a forward."""
    found = [("attn-to-tile", "block-m", str(block_m)), ("attn-to-tile", "block-n", str(block_n))]
    return found + ([("tile-exp-emulation", "share", str(emulated))] if emulated is not None else [])


def forward(m: int, n: int, d: int, target) -> dict:
    """Two GEMMs of 2 m n d; Q from shared memory once a step, K and V once for each row block; P never."""
    row_blocks = F(m, target.mma.m)
    lanes = 1 if target.mma.accumulator == "tmem" else 4  # lanes that hold a row's factor
    return {
        "mma": F(4 * m * n * d, target.mma_flops),
        "exp": F(m * n + m * lanes, target.mufu),
        "smem_operands": F(2 * (m * d + 2 * n * d * row_blocks), target.smem_bytes_per_clk),
        "smem_ds": 0, "smem_dq": 0, "dsmem": 0, "atomics": 0,
        "tma": F(2 * 2 * n * d, target.smem_bytes_per_clk),
    }


@pytest.mark.parametrize(("target", "m", "n", "d"), [
    ("sm_90a", 64, 192, 80), ("sm_90a", 128, 128, 128), ("sm_90a", 192, 96, 112),
    ("sm_100a", 128, 128, 80), ("sm_100a", 256, 96, 112), ("sm_100a", 128, 128, 128), ("sm_100a", 256, 128, 128),
])
@pytest.mark.parametrize("level", ["tile", "warp"])
def test_forward(target, m, n, d, level):
    clocks = explained(target=target, head_dim=(d, d), overrides=blocks(m, n, 0), level=level)
    want = forward(m, n, d, targets.get(target))
    assert {name: clocks[name] for name in want} == pytest.approx({name: float(x) for name, x in want.items()}, abs=1e-3)


def test_forward_figures_of_the_sheet():
    """1024 / 768 / 1024 clocks for 128 x 128 at head dim 128 (and a 128th of the exponentials for the factors of the rows)."""
    clocks = explained(target="sm_100a", overrides=blocks(128, 128, 0))
    assert (clocks["mma"], clocks["smem"], clocks["exp"]) == (1024, 768, 1024 + 8)
    for sixteenths, exp in ((2, 896), (3, 832), (4, 768)):  # B 1.2
        assert explained(target="sm_100a", overrides=blocks(128, 128, sixteenths))["exp"] == exp + 8
    step = explained(target="sm_100a")  # by default 256 queries, and 2 of 16 emulated
    assert (step["mma"] / 2, step["smem"] / 2, step["exp"] / 2) == (1024, 768, 896 + 8)


def test_groups_of_emulated_exponentials_are_counted():
    """96 columns are 12 groups of 8: the first 4 of 16 groups are 4 of these 12."""
    assert explained(target="sm_100a", overrides=blocks(256, 96, 4))["exp"] == 256 * 64 / 16 + 16


@pytest.mark.parametrize(("m", "n", "d"), [(64, 128, 96), (64, 128, 128)])
def test_backward_through_shared_memory(m, n, d):
    """Keys stay, 64 queries at a time. Five GEMMs; K, V once a step as operand A, Q and dO twice for each 64 keys as B; dQ has dS^T for
    each warpgroup and K. dS is written once, dQ written and read."""
    t = targets.get("sm_90a")
    clocks = explained(kernel="main", target="sm_90a", direction="bwd", head_dim=(d, d), overrides=blocks(n, m))
    groups, port = F(n, 64), t.smem_bytes_per_clk
    want = {
        "mma": F(10 * m * n * d, t.mma_flops), "exp": F(m * n, t.mufu),
        "smem_operands": F(2 * (2 * n * d + 4 * m * d * groups + m * n * groups + n * d), port),
        "smem_ds": F(2 * m * n, port), "smem_dq": F(8 * m * d, port), "tma": F(2 * 2 * m * d + 2 * 4 * m, port),
    }
    assert {name: clocks[name] for name in want} == pytest.approx({name: float(x) for name, x in want.items()}, abs=1e-3)


@pytest.mark.parametrize(("m", "n", "d"), [(64, 96, 80), (128, 64, 112)])
def test_backward_of_queries(m, n, d):
    """Queries stay: three GEMMs; Q and dO once a step, K twice and V once for each 64 queries; dS never leaves the registers."""
    t = targets.get("sm_90a")
    clocks = explained(kernel="dq", target="sm_90a", direction="bwd", head_dim=(d, d), overrides=blocks(m, n))
    want = {
        "mma": F(6 * m * n * d, t.mma_flops), "exp": F(m * n, t.mufu),
        "smem_operands": F(2 * (2 * m * d + 3 * n * d * F(m, 64)), t.smem_bytes_per_clk), "smem_ds": 0, "smem_dq": 0,
        "tma": F(2 * 2 * n * d, t.smem_bytes_per_clk),
    }
    assert {name: clocks[name] for name in want} == pytest.approx({name: float(x) for name, x in want.items()}, abs=1e-3)


@pytest.mark.parametrize(("m", "n", "d"), [(128, 128, 128), (128, 128, 96), (128, 128, 64)])
def test_backward_in_tensor_memory(m, n, d):
    """128 keys stay. Five GEMMs whose operands are K, Q; V, dO; dO; Q; dS, K in shared memory: 4 m d + 3 n d + m n elements (B 1.3)."""
    t = targets.get("sm_100a")
    clocks = explained(kernel="main", target="sm_100a", direction="bwd", head_dim=(d, d), overrides=blocks(n, m))
    port, column_loads = t.smem_bytes_per_clk, 2 * F(m, 4) * F(n, 32)  # LSE and delta, by all warps of n rows
    want = {
        "mma": F(10 * m * n * d, t.mma_flops), "exp": F(m * n, t.mufu), "smem_operands": F(2 * (4 * m * d + 3 * n * d + m * n), port),
        "smem_ds": F(2 * m * n, port), "smem_dq": F(8 * m * d, port), "smem_columns": column_loads,
        "tma": F(2 * 2 * m * d + 2 * 4 * m, port),
    }
    assert {name: clocks[name] for name in want} == pytest.approx({name: float(x) for name, x in want.items()}, abs=1e-3)


def test_backward_figures_of_the_sheet():
    """2560 / 1024 / 2048 / 256 / 1024 clocks for 128 x 128 at head dim 128 (B 1.3, table 3 of the paper); by default too."""
    for overrides in (blocks(128, 128), []):
        clocks = explained(kernel="main", target="sm_100a", direction="bwd", overrides=overrides)
        assert [clocks[name] for name in ("mma", "exp", "smem_operands", "smem_ds", "smem_dq")] == [2560, 1024, 2048, 256, 1024]


def test_backward_figures_of_a_pair():
    """Operands 1536, dS 256, dQ 512, exchange 256 of at most 384 clocks (B 1.4)."""
    pairs = [("tile-split-2cta", "ctas", "2")]
    for level, more in (("tile", blocks(128, 128)), ("warp", [])):
        clocks = explained(kernel="main", target="sm_100a", direction="bwd", overrides=[*more, *pairs], level=level)
        found = [clocks[name] for name in ("mma", "exp", "smem_operands", "smem_ds", "smem_dq", "dsmem")]
        assert found == [2560, 1024, 1536, 256, 512, 256]


def test_an_edit_of_the_text_counts():
    """96 columns of scores instead of 128, by hand: no table knows them."""
    text = compile_text(FULL, "full.mlir", target="sm_100a", head_dim=(64, 64), overrides=blocks(256, 128, 0), emit="tile")
    assert explained(text, pipeline="cse", level="tile")["mma"] == 4 * 256 * 128 * 64 / 8192
    edited = text.replace("256x128x", "256x96x").replace("128x64xbf16, #tile.smem", "96x64xbf16, #tile.smem")
    clocks = explained(edited, pipeline="cse", level="tile")
    want = forward(256, 96, 64, targets.get("sm_100a"))
    assert {name: clocks[name] for name in want} == pytest.approx({name: float(x) for name, x in want.items()}, abs=1e-3)


def test_the_targets_numbers_are_read():
    """Halved, each doubles the clocks of its unit."""
    text = compile_text(FULL, "full.mlir", target="sm_100a", overrides=blocks(256, 128, 0), emit="tile")
    options = dict(target="sm_100a", level="tile", pipeline="cse")
    before = explained(text, **options)
    units = {"mma_flops": "mma", "mufu": "exp", "smem_bytes_per_clk": "smem_operands", "fp32": "fma", "alu": "alu"}
    for number, unit in units.items():
        with targets.override("sm_100a", **{number: getattr(targets.get("sm_100a"), number) // 2}):
            assert explained(text, **options)[unit] == pytest.approx(2 * before[unit])
    with targets.override("sm_100a", fp32_packed=1):  # one each, where two share one
        assert explained(text, **options)["issue"] == pytest.approx(before["issue"] + before["fma"] / 2, abs=1e-2)


def test_half_the_bandwidth_of_shared_memory_makes_pairs():
    """1536 clocks of operands are below 2048 of MMAs, 3072 are above: then CTAs form their products in pairs, and read 2048."""
    options = dict(target="sm_100a", level="tile", changes=False, overrides=[*blocks(256, 128, 0), ("tile-split-2cta", "ctas", "0")])
    (kernel,) = explain(FULL, "full.mlir", **options)["kernels"]
    assert (kernel["cluster"], kernel["steps"][0]["clocks"]["smem"]) == (1, 1536)
    with targets.override("sm_100a", smem_bytes_per_clk=64):
        (kernel,) = explain(FULL, "full.mlir", **options)["kernels"]
    assert (kernel["cluster"], kernel["steps"][0]["clocks"]["smem"]) == (2, 2048)


@pytest.mark.parametrize("mufu", [4, 16, 64])
@pytest.mark.parametrize(("d", "n", "waits", "single"), [
    ((128, 128), 128, True, False), ((192, 128), 96, True, False), ((192, 128), 128, True, True), ((64, 64), 128, False, False),
])
def test_interval_of_two_row_blocks(d, n, waits, single, mufu):
    """MMAs of both blocks one after the other; a block's compute; and where P lies over the scores, scores, compute up to P, product
    with V, one after the other; where V has a `single` copy, all MMAs, and the wait for it under the last scores; all units bound it.
    What is longest moves with the rate of special functions."""
    with targets.override("sm_100a", mufu=mufu):
        found = explain(FULL, "full.mlir", target="sm_100a", head_dim=d, level="tile", changes=False, overrides=blocks(256, n, 2))
    (step,) = (step for kernel in found["kernels"] for step in kernel["steps"])
    rows = [row for row in step["schedule"] if row["op"] != "tile.load"]
    mmas, compute = ([-(-row["clocks"] // 2) for row in rows if (row["op"] == "tile.mma") == is_mma] for is_mma in (True, False))
    issue = n // 16  # of P V: an instruction for each 16 keys
    names = [row["name"] for row in rows if row["op"] != "tile.mma"]
    chain = sum(mmas) + issue + sum(compute[:names.index("pc") + 1])
    copy = next(row["clocks"] for row in step["schedule"] if row["op"] == "tile.load" and row["name"] == "v for o") + op_costs.COPY_LATENCY
    arrival = (2 * mmas[0] + mmas[1] + issue + 1 + copy) if single else 0  # O, S, O, and then V's copy instead of S
    assert [row["name"] for row in rows if row["op"] == "tile.mma"] == (["o", "s"] if waits else ["s", "o"])
    assert step["interval"] == max(2 * sum(mmas), sum(compute), step["clocks"][step["bound"]], chain if waits else 0, arrival)
    if n == 128:
        longest = {4: step["clocks"]["exp"], 16: arrival or (chain if waits else step["clocks"]["exp"]), 64: arrival or 2 * sum(mmas)}
        assert step["interval"] == longest[mufu]


def test_twice_the_columns_end_sharing():
    options = dict(target="sm_100a", level="tile", changes=False, overrides=blocks(256, 128, 0))
    (kernel,) = explain(FULL, "full.mlir", **options)["kernels"]
    assert kernel["tmem"]["used"] == 512 < kernel["tmem"]["side_by_side"] == 640
    with targets.override("sm_100a", tmem_columns=1024):
        (kernel,) = explain(FULL, "full.mlir", **options)["kernels"]
    assert kernel["tmem"]["used"] == kernel["tmem"]["side_by_side"] == 640


def test_what_passes_changed():
    found = explain(FULL, "full.mlir", target="sm_100a", level="tile", overrides=blocks(256, 128, 0))
    passes = {entry["pass"].partition("{")[0]: entry for entry in found["passes"]}
    assert passes["tile-conditional-rescale"]["facts"]["full_fwd: fma"] == [776, 524]  # 256 x 128 FMULs less
    assert passes["tile-pipeline"]["facts"]["full_fwd: order"] == [None, "o' s"]
    assert passes["tile-alias-tmem"]["facts"]["full_fwd: columns used"] == [0, 512]
    assert passes["tile-exp-emulation"] == {"pass": "tile-exp-emulation{share=0}", "changed": False}
    (kernel,) = found["kernels"]
    (scores,) = [t for t in kernel["tmem"]["tiles"] if t["name"] == "s"]
    assert scores["columns"] == [128, 255] and scores["written_by"] == "mma s" and not scores["whole_loop"]
    assert [row["name"] for row in kernel["steps"][0]["schedule"] if row["op"] == "tile.mma"] == ["o", "s"]


# Operations that no unit of the model works at: scalars, storage, barriers, moves between registers, and those that hold others.
NO_WORK = set("""
tile.host tile.dim tile.device tile.pow2_floor tile.launch tile.kernel tile.program_id tile.walk tile.splat tile.wait_count
tile.load_element tile.exp2 tile.yield tile.cta_rank
warp.kernel warp.tensor_map warp.buffer warp.pipeline warp.init_barriers warp.cluster_sync warp.role warp.walk warp.state warp.acquire
warp.arm warp.wait warp.release warp.advance warp.elect warp.barrier warp.turn_init warp.turn_take warp.turn_give warp.fence_async
warp.sync_warp warp.store_commit warp.wait_count warp.store_wait warp.store_rows warp.fragment warp.fill warp.copy warp.wgmma_fence
warp.wgmma_commit warp.wgmma_wait warp.when warp.ptx warp.tmem_alloc warp.tmem_free warp.tmem warp.tcgen05_commit warp.arrive warp.tmem_wait
warp.row_box warp.link warp.signal warp.await warp.slot_owner""".split())


def test_trips_at_once_are_trips_one_by_one(monkeypatch):
    """Masks, sums in global memory and ends that depend on the trip: what a launch executes, however many trips are looked at together."""
    text, found = (EXAMPLES / "window.mlir").read_text(), []
    for at_once in (1, 1000, launches._AT_ONCE):
        monkeypatch.setattr(launches, "_AT_ONCE", at_once)
        given = dict(changes=False, sizes=dict(b=2, hq=4, hkv=2, m=700, n=901))
        found.append([explain(text, "window.mlir", direction=way, **given)["launches"] for way in ("fwd", "bwd")])
    assert found[0] == found[1] == found[2]


def test_every_operation_is_counted_or_named():
    """A new operation needs a rule in `work.py`, or a place in the list above."""
    kinds = {kind for module in (tile, tile_pair, warp, warp_tmem) for name, kind in vars(module).items()
             if name.endswith("Op") and hasattr(kind, "OPERATION_NAME")}
    assert {kind.OPERATION_NAME for kind in kinds if not work.has_rule(kind)} == NO_WORK
