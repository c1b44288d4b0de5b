"""The machine around the instructions: counters, schedules, exits, st.async, speed."""

import time

import numpy as np
import pytest
from emulator_kernels import CASES, ptx, wait
from test_faults import FAULTS
from test_faults import test_fault_is_reported as check_fault

from fa4c.runtime.emulator import Buffer, EmulatorError, launch
from fa4c.runtime.emulator import hazards as hazards_module


@pytest.mark.parametrize("name", ["mbar", "wgmma", "tcgen", "semaphore"])
def test_executed_counts_do_not_depend_on_the_schedule(name):
    def counts(**options):
        total = CASES[name].run(**options)[0].counters["total"]
        return {k: v for k, v in total.items() if k != "try_wait_retries"}

    reference = counts()
    if name == "semaphore":  # its spin loop runs as often as the schedule makes it
        reference = {k: v for k, v in reference.items() if not k.startswith("instructions") and "load" not in k}
    for seed in range(3):
        got = counts(schedule="random", schedule_seed=seed)
        assert {k: got[k] for k in reference} == reference


def test_a_schedule_is_reproducible():
    """Float atomics happen in schedule order: one seed, one result."""
    text = ptx(
        "ld.param.u64 %rd0, [out]; mov.u32 %r4, %ctaid.x; add.u32 %r4, %r4, 1; cvt.rn.f32.u32 %f0, %r4; rcp.rn.f32 %f0, %f0;\n"
        "bar.warp.sync -1; red.global.add.f32 [%rd0], %f0;",
        [".u64 out"],
    )

    def run(**options):
        out = np.zeros(1, np.float32)
        launch(text, "k", 40, 32, (1, 1, 1), 0, [Buffer(out)], **options)
        return out[0]

    assert run() == run()
    results = {seed: run(schedule="random", schedule_seed=seed) for seed in range(4)}
    assert all(run(schedule="random", schedule_seed=seed) == value for seed, value in results.items())
    assert len(set(results.values())) > 1
    np.testing.assert_allclose(list(results.values()), 32 * sum(1 / (i + 1) for i in range(40)), rtol=1e-4)


def test_counters():
    total = CASES["wgmma"].run()[0].counters["total"]
    assert total["mma_flops"] == 3 * 2 * 64 * 64 * 16
    assert total["smem_bytes.tma"] == 3 * 8192 and total["global_bytes.tma_load"] == 3 * 8192
    assert total["global_bytes.store"] == 128 * 128
    # An SS wgmma m64n64k16 reads 64x16 of A and 64x16 of B, 2 bytes each; the RS one only B.
    assert total["smem_bytes.operands"] == 2 * (2048 + 2048) + 2048
    # m64n64k16 at 4096 FLOP a clock is 32 clocks, three of them; 128x64x16 at 8192 the same, four of them.
    assert total["mma_clocks"] == 3 * 32
    assert CASES["tcgen"].run()[0].counters["total"]["mma_clocks"] == 4 * 32
    cta = CASES["cluster"].run()[0].counters["cta"]
    assert set(cta) == {"0,0,0", "1,0,0"} and cta["0,0,0"]["instructions"] == cta["1,0,0"]["instructions"]


def test_exponentials_are_counted_by_themselves():
    text = ptx("mov.u32 %r4, 0;\nL: ex2.approx.f32 %f0, %f0; rcp.approx.f32 %f1, %f0; add.u32 %r4, %r4, 1;\n"
               "setp.lt.u32 %p0, %r4, 5; @%p0 bra L;")  # fmt: skip
    total = launch(text, "k", 1, 64, (1, 1, 1), 0, []).counters["total"]
    assert total["instructions.ex2"] == 2 * 5 and total["instructions.special"] == 2 * 5 * 2
    assert sum(v for k, v in total.items() if k.startswith("instructions.") and k != "instructions.ex2") == total["instructions"]


def test_barrier_for_all_threads_goes_on_when_a_warp_exits():
    """Warp 1 leaves late, while warp 0 waits for all threads."""
    text = ptx("""ld.param.u64 %rd0, [out]; setp.eq.u32 %p0, %r2, 0; @%p0 bra W;
mov.u32 %r4, 0; L: add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 30; @%p1 bra L; bar.arrive 1, 64; ret;
W: bar.sync 0; st.global.u32 [%rd0], 7;""", [".u64 out"])  # fmt: skip
    for options in ({}, {"schedule": "random", "schedule_seed": 1}, {"schedule": "random", "schedule_seed": 2}):
        out = np.zeros(1, np.uint32)
        report = launch(text, "k", 1, 64, (1, 1, 1), 0, [Buffer(out)], **options)
        assert report.ok and out[0] == 7, report.text()


ST_ASYNC = ptx(
    f"""
ld.param.u64 %rd0, [out];
setp.ne.u32 %p0, %r0, 0; @%p0 bra I;
mbarrier.init.shared.b64 [%r1], 1; fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r1], 128;
I: barrier.cluster.arrive; barrier.cluster.wait;
mov.u32 %r4, %cluster_ctarank; xor.b32 %r5, %r4, 1;
shl.b32 %r6, %r0, 2; add.u32 %r7, %r1, %r6; add.u32 %r7, %r7, 64;
mapa.shared::cluster.u32 %r8, %r7, %r5; mapa.shared::cluster.u32 %r9, %r1, %r5;
mad.lo.u32 %r10, %r4, 100, %r0;
st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r8], %r10, [%r9];
{wait("%r1", "0")}
ld.shared.u32 %r11, [%r7];
mad.lo.u32 %r12, %r4, 32, %r0; mul.wide.u32 %rd2, %r12, 4; add.u64 %rd2, %rd0, %rd2; st.global.u32 [%rd2], %r11;
barrier.cluster.arrive; barrier.cluster.wait;
""",
    [".u64 out"],
)


def test_st_async():
    want = np.concatenate([100 + np.arange(32), np.arange(32)])
    for options in ({}, {"schedule": "random", "schedule_seed": 8}):
        out = np.zeros(64, np.uint32)
        report = launch(ST_ASYNC, "k", 2, 32, (2, 1, 1), 1024, [Buffer(out)], **options)
        assert report.ok, report.text()
        np.testing.assert_array_equal(out, want)
    text = ST_ASYNC.replace(wait("%r1", "0"), "")
    report = launch(text, "k", 2, 32, (2, 1, 1), 1024, [Buffer(np.zeros(64, np.uint32))])
    assert "race" in {h.cls for h in report.errors}, report.text()


def test_writable_false_is_kept():
    text = ptx("ld.param.u64 %rd0, [a]; st.global.u32 [%rd0], 1;", [".u64 a"])
    with pytest.raises(EmulatorError, match="read-only"):
        launch(text, "k", 1, 1, (1, 1, 1), 0, [Buffer(np.zeros(1, np.uint32), False)])


@pytest.mark.parametrize("name", ["mbar", "tcgen", "semaphore"])
def test_forgetting_dead_records_changes_no_report(name, monkeypatch):
    monkeypatch.setattr(hazards_module, "COLLECT_EVERY", 1)
    for seed in range(3):
        report, error = CASES[name].run(schedule="random", schedule_seed=seed)
        assert report.ok and not error, report.text()
    for fault in [f for f in FAULTS if FAULTS[f][0] == name]:
        check_fault(fault)


def test_too_much_memory():
    text = ptx("ld.param.u64 %rd0, [a];", [".u64 a"])
    big = np.zeros(700 << 20, np.uint8)  # never touched: pages that do not exist
    with pytest.raises(EmulatorError, match="shadow memory"):
        launch(text, "k", 1, 32, (1, 1, 1), 0, [Buffer(big)])
    assert launch(text, "k", 1, 32, (1, 1, 1), 0, [Buffer(big)], hazards=False).ok
    with pytest.raises(EmulatorError, match="resident CTAs"):
        launch(text, "k", 5000, 32, (1, 1, 1), 220 << 10, [Buffer(np.zeros(1, np.uint8))], resident=5000)


@pytest.mark.parametrize(
    "instruction", ["ld.shared.u32 %r4, [%r1+2];", "st.shared.v4.b32 [%r1+8], {%r4, %r4, %r4, %r4};", "red.shared.add.u32 [%r1+1], 1;"]
)
def test_misaligned_accesses(instruction):
    with pytest.raises(EmulatorError, match="misaligned"):
        launch(ptx(instruction), "k", 1, 32, (1, 1, 1), 1024, [])


def test_speed_of_an_fp32_loop():
    """The target is 100,000 warp instructions a second of one core, 33,000 with hazards; a third of it must hold on any machine."""
    line = "fma.rn.f32 %f2, %f0, %f1, %f2; add.f32 %f3, %f2, %f0; mul.f32 %f4, %f3, %f1; max.f32 %f5, %f4, %f5; add.f32 %f0, %f0, %f1;\n"
    text = ptx(
        f"mov.f32 %f0, 0f3F800000; mov.f32 %f1, 0f3F000000; mov.u32 %r4, 0;\nL: {line * 8}add.u32 %r4, %r4, 1;\n"
        "setp.lt.u32 %p0, %r4, 100; @%p0 bra L; ld.param.u64 %rd0, [out]; st.global.f32 [%rd0], %f5;",
        [".u64 out"],
    )
    for hazards, least in ((False, 33_000), (True, 11_000)):
        start = time.process_time()
        report = launch(text, "k", 1, 128, (1, 1, 1), 0, [Buffer(np.zeros(1, np.float32))], hazards=hazards)
        rate = report.counters["total"]["instructions"] / (time.process_time() - start)
        assert rate > least, rate


def test_a_report_names_the_source_line():
    """`.loc` and `.file` of a compiler with line information end up in the report."""
    text = ptx("""st.shared.u32 [%r1], %r0;
.loc 1 42 7
ld.shared.u32 %r4, [%r1+64];""") + '\n.file 1 "attention.cute.py"\n'  # fmt: skip
    report = launch(text, "k", 1, 1, (1, 1, 1), 1024, [])
    assert "(attention.cute.py:42)" in report.text(), report.text()
