"""Several processes: the same values, reports and counters as one, or one process and a note that says why."""

import json

import numpy as np
import pytest
from emulator_kernels import bf16, ptx
from test_nvcc import PTX as NVCC

from fa4c.runtime.emulator import Buffer, EmulatorError, Scalar, TensorMap, launch, schedule

# Each CTA turns 64 words round through shared memory, %ctaid.x + 1 times over; the barrier can be left out.
TURN = ptx(
    """
ld.param.u64 %rd0, [x];
ld.param.u64 %rd1, [out];
mov.u32 %r4, %ctaid.x;
shl.b32 %r5, %r4, 6;
add.u32 %r5, %r5, %r0;
mul.wide.u32 %rd2, %r5, 4;
add.u64 %rd3, %rd0, %rd2;
add.u64 %rd4, %rd1, %rd2;
ld.global.u32 %r6, [%rd3];
shl.b32 %r7, %r0, 2;
add.u32 %r7, %r1, %r7;
mov.u32 %r8, 0;
AGAIN:
add.u32 %r6, %r6, 1;
add.u32 %r8, %r8, 1;
setp.le.u32 %p0, %r8, %r4;
@%p0 bra AGAIN;
st.shared.u32 [%r7], %r6;
bar.sync 0;
xor.b32 %r9, %r7, 252;
ld.shared.u32 %r10, [%r9];
st.global.u32 [%rd4], %r10;
EXTRA
""",
    [".u64 x", ".u64 out"],
)
PLAIN = TURN.replace("EXTRA", "")
RACE = PLAIN.replace("bar.sync 0;", "")
LATE_RACE = PLAIN.replace("bar.sync 0;", "setp.lt.u32 %p1, %r4, 2;\n@%p1 bar.sync 0;")  # CTAs 0 and 1 are right
# The last CTA comes to its race first: CTA k passes 7 - k barriers before.
LAST_FIRST = RACE.replace(
    "AGAIN:", "mov.u32 %r20, %r4;\nWAIT: bar.sync 0;\nadd.u32 %r20, %r20, 1;\nsetp.lt.u32 %p3, %r20, 7;\n@%p3 bra WAIT;\nAGAIN:"
)


def turn(text, processes, **options):
    """(report, output) of seven CTAs."""
    x, out = np.arange(448, dtype=np.uint32), np.zeros(448, np.uint32)
    report = launch(text, "k", 7, 64, (1, 1, 1), 256, [Buffer(x, name="x"), Buffer(out, name="out")], processes=processes, **options)
    return report, out


@pytest.fixture
def only_children(monkeypatch):
    """The process of the test may not execute anything itself."""

    def refuse(self):
        raise AssertionError("the launch ran in one process")

    monkeypatch.setattr(schedule.Launch, "run", refuse)


@pytest.mark.parametrize("text", [PLAIN, RACE, LATE_RACE, LAST_FIRST], ids=["right", "race", "race from CTA 2 on", "last CTA first"])
@pytest.mark.parametrize("processes", [2, 3, 20])
def test_any_number_gives_the_same(text, processes, request):
    one, values = turn(text, 1)
    assert one.ok == (text is PLAIN)
    request.getfixturevalue("only_children")
    report, out = turn(text, processes)
    np.testing.assert_array_equal(out, values)
    assert json.dumps(report.as_dict()) == json.dumps(one.as_dict())
    assert report.text() == one.text()
    if text is PLAIN:
        k = np.arange(7)[:, None]
        np.testing.assert_array_equal(out.reshape(7, 64), k * 64 + np.arange(64)[::-1] + k + 1)


def test_a_report_names_the_first_cluster_that_has_it():
    """With one resident CTA as with sixteen, and in processes whose first CTA is another one."""
    for text, first in ((LATE_RACE, 2), (LAST_FIRST, 0)):
        texts = {turn(text, 1, resident=1)[0].text(), turn(text, 1)[0].text(), turn(text, 2)[0].text()}
        assert len(texts) == 1 and f"CTA {first},0,0" in texts.pop()


@pytest.mark.parametrize("processes", [2, 3])
def test_nvcc_kernels(processes, only_children, monkeypatch):
    x = np.random.default_rng(1).standard_normal((3, 200)).astype(np.float32)
    tile = bf16(np.random.default_rng(2).standard_normal((64, 128)))

    def softmax(n):
        out = np.zeros_like(x)
        return out, launch(NVCC, "softmax", 4, 128, params=[Buffer(x), Buffer(out), Scalar(3, "i32"), Scalar(200, "i32")], processes=n)

    def tma(n):
        out = np.zeros_like(tile)
        maps = [TensorMap(Buffer(a), "bf16", (128, 64), (256,), (64, 32), 0) for a in (tile, out)]
        return out, launch(NVCC, "tma_double", (2, 2), 128, smem=4096, params=maps, processes=n)

    several = [kernel(processes) for kernel in (softmax, tma)]
    monkeypatch.undo()
    for (values, report), (out, one) in zip(several, (softmax(1), tma(1))):
        np.testing.assert_array_equal(values, out)
        assert report.ok and report.as_dict() == one.as_dict()


def test_written_bytes_stay_known():
    """A poisoned buffer that several processes fill is initialised for the next launch, and only where they wrote."""
    x, middle, out = np.arange(448, dtype=np.uint32), Buffer(np.zeros(512, np.uint32), poison=True, name="middle"), np.zeros(512, np.uint32)
    assert launch(PLAIN, "k", 7, 64, smem=256, params=[Buffer(x), middle], processes=2).notes == []
    assert launch(PLAIN, "k", 7, 64, smem=256, params=[middle, Buffer(out)], processes=2).ok
    report = launch(PLAIN, "k", 8, 64, smem=256, params=[middle, Buffer(out)], processes=2)
    assert [h.cls for h in report.errors] == ["uninitialised"]


COUPLED = {
    "atomics on global memory": "red.global.add.u32 [%rd4], 1;",
    # the neighbour's output
    "share bytes of out": "xor.b32 %r5, %r5, 64;\nmul.wide.u32 %rd2, %r5, 4;\nadd.u64 %rd4, %rd1, %rd2;\n"
    "setp.lt.u32 %p2, %r4, 6;\n@%p2 ld.global.u32 %r11, [%rd4];",
    "share bytes of out that one": "st.global.u32 [%rd1], %r4;",
    "share bytes of x": "setp.eq.u32 %p2, %r4, 6;\n@%p2 st.global.u32 [%rd0], %r4;",
    "a clock": "mov.u32 %r11, %clock;\nadd.u32 %r12, %r11, 1;",
}


@pytest.mark.parametrize("why", COUPLED)
@pytest.mark.parametrize("processes", [2, 3])
def test_coupled_clusters_run_in_one_process(why, processes):
    text = TURN.replace("EXTRA", COUPLED[why])
    one, values = turn(text, 1)
    report, out = turn(text, processes)
    assert len(report.notes) == 1 and "ran in one process: " in report.notes[0] and why.removesuffix(" that one") in report.notes[0]
    np.testing.assert_array_equal(out, values)
    assert report.as_dict() | {"notes": []} == one.as_dict()


@pytest.mark.parametrize("options, why", [({"hazards": False}, "hazard detection"), ({"schedule": "random"}, "random schedule")])
def test_options_that_need_one_process(options, why):
    report, _ = turn(PLAIN, 2, **options)
    assert why in report.notes[0]


def test_an_error_is_the_one_of_a_single_process():
    text = PLAIN.replace("[%rd4], %r10", "[%rd4+64], %r10")
    messages = []
    for processes in (1, 2):
        with pytest.raises(EmulatorError) as e:
            turn(text, processes)
        messages.append(e.value.text())
    assert messages[0] == messages[1]
    with pytest.raises(EmulatorError, match="0 processes"):
        turn(PLAIN, 0)
