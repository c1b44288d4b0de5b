"""Several launches one after the other: the boundary orders everything, workspaces are what was written, and dependent launches overlap."""

import numpy as np
import pytest
from emulator_kernels import ptx, wait
from kernel_parts import barriers

from fa4c.runtime.emulator import Buffer, launch

AT = "ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b]; mul.wide.u32 %rd2, %r0, 4; add.u64 %rd3, %rd0, %rd2; add.u64 %rd4, %rd1, %rd2;\n"
FILL = AT + "{before}st.global.u32 [%rd3], %r0;\n{after}"
COPY = AT + "{first}ld.global.u32 %r4, [%rd3]; add.u32 %r4, %r4, 1; st.global.u32 [%rd4], %r4;\n"
EARLY, WAIT_GRID = "griddepcontrol.launch_dependents;\n", "griddepcontrol.wait;\n"
BULK = f"""{AT}
{barriers(1)}
bar.sync 0;
@%p0 bra LOADED;
FIRST mbarrier.arrive.expect_tx.shared.b64 %rd5, [%r1], 128;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+128], [%rd0], 128, [%r1];
LOADED: {wait("%r1", "0")}
shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r1; ld.shared.u32 %r5, [%r4+128]; add.u32 %r5, %r5, 1; st.global.u32 [%rd4], %r5;
"""


class Chain:
    """Two buffers, and launches that follow one another."""

    def __init__(self, poison=True):
        self.a, self.b = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
        self.buffers = [Buffer(self.a, name="delta", poison=poison), Buffer(self.b, name="result", poison=poison)]
        self.report = None

    def run(self, body, dependent=False, **options):
        text = ptx(body, [".u64 a", ".u64 b"])
        self.report = launch(text, "k", 1, 32, (1, 1, 1), 512, self.buffers, after=self.report if dependent else None, **options)
        return {h.cls for h in self.report.errors}


def test_the_boundary_between_launches_orders_everything():
    chain = Chain()
    assert not chain.run(FILL.format(before="", after=EARLY))
    assert not chain.run(COPY.format(first=""))
    assert chain.b[:32].tolist() == list(range(1, 33))
    assert not chain.run(BULK.replace("FIRST", ""))  # also for the asynchronous proxy


def test_a_workspace_is_uninitialised_where_no_launch_has_written():
    chain = Chain()
    assert not chain.run(FILL.format(before="setp.lt.u32 %p1, %r0, 20; @!%p1 ret;\n", after=""))
    assert chain.run(COPY.format(first="")) == {"uninitialised"}
    assert "delta that nothing has written, at byte 0x50" in chain.report.text()
    chain = Chain()
    assert not chain.run(FILL.format(before="setp.lt.u32 %p1, %r0, 20; @!%p1 ret;\n", after=""))
    assert not chain.run(COPY.format(first="setp.lt.u32 %p1, %r0, 20; @!%p1 ret;\n"))


@pytest.mark.parametrize("second", [COPY.replace("{first}", "FIRST"), BULK])
@pytest.mark.parametrize("early,waits,dependent,found", [
    (EARLY, "", True, {"race"}),
    (EARLY, WAIT_GRID, True, set()),
    ("", "", True, set()),  # nothing lets the second start early
    (EARLY, "", False, set()),  # the second is an ordinary launch
])  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"schedule": "random", "schedule_seed": 2}])
def test_a_dependent_launch_has_to_wait(second, early, waits, dependent, found, options):
    chain = Chain()
    assert not chain.run(FILL.format(before=early, after=""))
    assert chain.run(second.replace("FIRST", waits), dependent, **options) == found, chain.report.text()
    assert not found or "griddepcontrol.wait" in chain.report.text() and "the launch before, k" in chain.report.text()
    assert chain.b[:32].tolist() == list(range(1, 33))


def test_the_wait_of_one_thread_reaches_others_through_a_barrier():
    some = "setp.eq.u32 %p1, %r0, 0; @%p1 griddepcontrol.wait;\n"
    for sync, found in (("bar.sync 0;\n", set()), ("", {"race"})):
        chain = Chain()
        assert not chain.run(FILL.format(before=EARLY, after=""))
        assert chain.run(COPY.format(first=some + sync), True) == found, chain.report.text()


def test_writing_what_the_launch_before_may_still_read():
    chain = Chain(poison=False)
    assert not chain.run(COPY.format(first=EARLY))
    assert chain.run(FILL.format(before="", after=""), True) == {"race"}
    assert "write after read" in chain.report.text()
    chain = Chain(poison=False)
    assert not chain.run(COPY.format(first=EARLY))
    assert not chain.run(FILL.format(before=WAIT_GRID, after=""), True)


def test_a_launch_that_does_not_wait_passes_the_one_before_on():
    """The third waits for the second, which may have ended before the first."""
    idle = "mov.u32 %r4, 0;\n"
    for second, found in ((idle, {"race"}), (WAIT_GRID, set())):
        chain = Chain()
        assert not chain.run(FILL.format(before=EARLY, after=""))
        assert not chain.run(second + EARLY, True)
        assert chain.run(COPY.format(first=""), True) == found, chain.report.text()


def test_a_dependent_launch_runs_in_one_process():
    chain = Chain()
    assert not chain.run(FILL.format(before=EARLY, after=""))
    text = ptx(COPY.format(first=WAIT_GRID), [".u64 a", ".u64 b"])
    report = launch(text, "k", 2, 16, (1, 1, 1), 0, chain.buffers, after=chain.report, processes=2)
    assert any("the launch before may still be running" in n for n in report.notes)
