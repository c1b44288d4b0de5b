"""CTAs that meet in global memory: semaphores, atomics."""

import numpy as np
from kernel_parts import ptx

from fa4c.runtime.emulator import Buffer, Scalar

# --- CTAs add in order, by acquire and release through global memory ----------------------------------------------------------------
SEMAPHORE = ptx(
    """
ld.param.u64 %rd0, [out];
ld.param.u64 %rd1, [sem];
mov.u32 %r4, %ctaid.x;
setp.ne.u32 %p0, %r0, 0;
@%p0 bra READY;
SPIN:
ld.global.acquire.gpu.b32 %r5, [%rd1]; // @acquire
setp.ne.u32 %p1, %r5, %r4;
@%p1 bra SPIN;
READY:
bar.sync 0; // @enter
mul.wide.u32 %rd2, %r0, 4;
add.u64 %rd3, %rd0, %rd2;
ld.global.u32 %r6, [%rd3]; // @load
mad.lo.u32 %r6, %r6, 3, %r4;
st.global.u32 [%rd3], %r6; // @store
bar.sync 0; // @leave
@%p0 bra END;
red.release.gpu.global.add.u32 [%rd1], 1; // @release
END:
""",
    [".u64 out", ".u64 sem"],
)


def make_semaphore(tweak):
    out, sem = np.ones(64, np.uint32), np.zeros(1, np.uint32)
    want = 1
    for i in range(3):
        want = want * 3 + i
    return [Buffer(out, name="out"), Buffer(sem, name="sem")], lambda: np.abs(out.astype(int) - want).max()


# --- two CTAs reduce into one counter ----------------------------------------------------------------------------------------------------
ATOMIC = ptx(
    """
ld.param.u64 %rd0, [out];
ld.param.u32 %r4, [n];
and.b32 %r5, %r0, 3;
mul.wide.u32 %rd1, %r5, 4;
add.u64 %rd2, %rd0, %rd1;
red.global.add.u32 [%rd2], %r4; // @red
""",
    [".u64 out", ".u32 n"],
)


def make_atomic(tweak):
    out = np.zeros(4, np.uint32)
    return [Buffer(out), Scalar(5, "u32")], lambda: np.abs(out.astype(int) - 2 * 8 * 5).max()
