"""Two CTAs of a cluster in each other's shared memory."""

import numpy as np
from kernel_parts import barriers, output, ptx, wait

from fa4c.runtime.emulator import Buffer

# --- a cluster of two exchanges by remote stores and a remote mbarrier ------------------------------------------------------------
CLUSTER = ptx(
    f"""
ld.param.u64 %rd0, [out];
{barriers(32, fence="// @initfence")}
barrier.cluster.arrive; // @carrive
barrier.cluster.wait; // @cwait
mov.u32 %r4, %cluster_ctarank;
xor.b32 %r5, %r4, 1; // @peer
shl.b32 %r6, %r0, 2;
add.u32 %r7, %r1, %r6;
mapa.shared::cluster.u32 %r8, %r7, %r5;
mapa.shared::cluster.u32 %r9, %r1, %r5;
mad.lo.u32 %r10, %r4, 100, %r0;
st.shared::cluster.u32 [%r8+64], %r10; // @write
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r9]; // @arrive
{wait("%r1", "0")} // @wait
ld.shared.u32 %r11, [%r7+64]; // @read
mad.lo.u32 %r12, %r4, 32, %r0;
{output("%r11", index="%r12")}
barrier.cluster.arrive; // @endarrive
barrier.cluster.wait; // @endwait
""",
    [".u64 out"],
)


def make_cluster(tweak):
    out = np.zeros(64, np.uint32)
    want = np.concatenate([100 + np.arange(32), np.arange(32)])
    return [Buffer(out)], lambda: np.abs(out.astype(int) - want).max()


# --- bulk copy to the peer's shared memory ---------------------------------------------------------------------------------------
DSMEM = ptx(
    f"""
ld.param.u64 %rd0, [out];
{barriers(1, fence=True, then="mbarrier.arrive.expect_tx.shared.b64 %rd3, [%r1], 128; // @expect")}
barrier.cluster.arrive;
barrier.cluster.wait;
mov.u32 %r4, %cluster_ctarank;
xor.b32 %r5, %r4, 1;
shl.b32 %r6, %r0, 2;
add.u32 %r7, %r1, %r6;
mad.lo.u32 %r10, %r4, 100, %r0;
st.shared.u32 [%r7+128], %r10; // @write
fence.proxy.async.shared::cta; // @fence
bar.sync 0; // @sync
@%p0 bra COPIED;
add.u32 %r8, %r1, 256;
mapa.shared::cluster.u32 %r8, %r8, %r5;
mapa.shared::cluster.u32 %r9, %r1, %r5;
add.u32 %r11, %r1, 128;
cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r8], [%r11], 128, [%r9]; // @copy
COPIED:
{wait("%r1", "0")} // @wait
ld.shared.u32 %r11, [%r7+256]; // @read
mad.lo.u32 %r12, %r4, 32, %r0;
{output("%r11", index="%r12")}
barrier.cluster.arrive; // @endarrive
barrier.cluster.wait; // @endwait
""",
    [".u64 out"],
)
