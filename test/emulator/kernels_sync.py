"""Barriers between warps, lanes of a warp, an mbarrier pipeline."""

import numpy as np
from kernel_parts import barriers, output, ptx, wait

from fa4c.runtime.emulator import Buffer

# --- named barriers: warp 0 writes, warp 1 reads, in two rounds ----------------------------------------------------------
NAMED = ptx(
    f"""
ld.param.u64 %rd0, [out];
shl.b32 %r4, %r3, 2;
add.u32 %r5, %r1, %r4;
setp.ne.u32 %p0, %r2, 0;
@%p0 bra READ;
add.u32 %r6, %r3, 100;
st.shared.u32 [%r5], %r6; // @write
bar.arrive 1, 64; // @full
bar.sync 2, 64; // @empty
add.u32 %r6, %r3, 200;
st.shared.u32 [%r5], %r6; // @rewrite
bar.arrive 1, 64;
bra END;
READ:
bar.sync 1, 64; // @wait
xor.b32 %r7, %r4, 124;
add.u32 %r7, %r1, %r7;
ld.shared.u32 %r8, [%r7]; // @read
bar.arrive 2, 64; // @free
bar.sync 1, 64; // @wait2
ld.shared.u32 %r9, [%r7]; // @read2
add.u32 %r10, %r8, %r9;
{output("%r10")}
END:
""",
    [".u64 out"],
)


def make_named(tweak):
    out = np.zeros(32, np.uint32)
    return [Buffer(out)], lambda: np.abs(out.astype(int) - (300 + 2 * (31 - np.arange(32)))).max()


# --- one warp exchanges through shared memory ----------------------------------------------------------------------------
WARP = ptx(
    f"""
ld.param.u64 %rd0, [out];
shl.b32 %r4, %r3, 2;
add.u32 %r5, %r1, %r4;
mul.lo.u32 %r6, %r3, 3;
st.shared.u32 [%r5], %r6; // @write
bar.warp.sync 0xffffffff; // @sync
xor.b32 %r7, %r4, 4;
add.u32 %r7, %r1, %r7;
ld.shared.u32 %r8, [%r7]; // @read
{output("%r8")} // @store
""",
    [".u64 out"],
)


def make_warp(tweak):
    out = np.zeros(32, np.uint32)
    return [Buffer(out)], lambda: np.abs(out.astype(int) - 3 * (np.arange(32) ^ 1)).max()


# --- mbarrier pipeline: warp 0 produces 4 items through 2 stages, warp 1 consumes ------------------------------------------
# barriers: full 0, 8; empty 16, 24; data from 128, 128 bytes a stage
MBAR = ptx(
    f"""
ld.param.u64 %rd0, [out];
{barriers("32 // @init", 32, 32, 32)}
bar.sync 0; // @initsync
shl.b32 %r4, %r3, 2;
mov.u32 %r10, 0;
setp.ne.u32 %p1, %r2, 0;
@%p1 bra CONSUME;
PRODUCE:
and.b32 %r11, %r10, 1;
shr.u32 %r12, %r10, 1;
xor.b32 %r12, %r12, 1;
shl.b32 %r13, %r11, 3;
add.u32 %r13, %r13, %r1;
add.u32 %r14, %r13, 16;
{wait("%r14", "%r12")} // @wempty
shl.b32 %r15, %r11, 7;
add.u32 %r15, %r15, %r1;
add.u32 %r15, %r15, %r4;
mad.lo.u32 %r16, %r10, 1000, %r3;
st.shared.u32 [%r15+128], %r16; // @write
mbarrier.arrive.shared.b64 %rd1, [%r13]; // @full
add.u32 %r10, %r10, 1;
setp.lt.u32 %p2, %r10, 4;
@%p2 bra PRODUCE;
bra END;
CONSUME:
mov.u32 %r20, 0;
CONSUME1:
and.b32 %r11, %r10, 1;
shr.u32 %r12, %r10, 1;
shl.b32 %r13, %r11, 3;
add.u32 %r13, %r13, %r1;
{wait("%r13", "%r12")} // @wfull
shl.b32 %r15, %r11, 7;
add.u32 %r15, %r15, %r1;
xor.b32 %r17, %r4, 124;
add.u32 %r15, %r15, %r17;
ld.shared.u32 %r16, [%r15+128]; // @read
add.u32 %r20, %r20, %r16;
mbarrier.arrive.shared.b64 %rd1, [%r13+16]; // @empty
add.u32 %r10, %r10, 1;
setp.lt.u32 %p2, %r10, 4;
@%p2 bra CONSUME1;
{output("%r20")}
END:
""",
    [".u64 out"],
)


def make_mbar(tweak):
    out = np.zeros(32, np.uint32)
    return [Buffer(out)], lambda: np.abs(out.astype(int) - (6000 + 4 * (31 - np.arange(32)))).max()
