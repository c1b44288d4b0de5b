"""wgmma and tcgen05, fed by TMA, by generic stores and from registers."""

import numpy as np
from kernel_parts import barriers, bf16, f32, map_address, output, ptx, rng, tma_load, wait

from fa4c.runtime.emulator import Buffer, TensorMap


# --- wgmma: O = A B^T (64x64x32) from TMA tiles, then O' = bf16(O) B2 with A in registers -------------------------------------
def _regs(prefix, n, start=0):
    return "{" + ", ".join(f"%{prefix}{start + i}" for i in range(n)) + "}"


def _mma(acc, a, b, p, tail, n=32):
    return f"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {_regs('acc', n, acc)}, {a}, {b}, {p}, 1, 1{tail};"


WGMMA = ptx(
    f"""
ld.param.u64 %rd20, [out];
{barriers(1, 1)}
bar.sync 0;
@%p0 bra ISSUED;
mbarrier.arrive.expect_tx.shared.b64 %rd0, [%r1], 16384;
{map_address("%rd1", "ma")}
{map_address("%rd2", "mb")}
mov.u32 %r4, 0;
{tma_load("%r1+1024", "%rd1", "%r4", "%r4", "%r1")} // @loadA
{tma_load("%r1+9216", "%rd2", "%r4", "%r4", "%r1")} // @loadB
ISSUED:
{wait("%r1", "0")} // @wait
add.u32 %r5, %r1, 1024;
shr.u32 %r5, %r5, 4;
cvt.u64.u32 %rd3, %r5;
or.b64 %rd3, %rd3, 0x4000004000010000; // @desc
add.u64 %rd4, %rd3, 512;
add.u64 %rd5, %rd3, 2;
add.u64 %rd6, %rd4, 2;
mov.pred %p1, 0;
mov.pred %p2, -1;
wgmma.fence.sync.aligned; // @fence
{_mma(0, "%rd3", "%rd4", "%p1", ", 0, 0")} // @mma0
{_mma(0, "%rd5", "%rd6", "%p2", ", 0, 0")} // @mma1
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0; // @mwait
cvt.rn.bf16x2.f32 %r10, %acc1, %acc0; // @use
cvt.rn.bf16x2.f32 %r11, %acc3, %acc2;
cvt.rn.bf16x2.f32 %r12, %acc5, %acc4;
cvt.rn.bf16x2.f32 %r13, %acc7, %acc6;
wgmma.fence.sync.aligned; // @fence2
{_mma(32, "{%r10, %r11, %r12, %r13}", "%rd4", "%p1", ", 1")} // @mmaRS
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0; // @mwait2
bar.sync 0; // @freed
@%p0 bra NOLOAD;
mbarrier.arrive.expect_tx.shared.b64 %rd0, [%r1+8], 8192;
{tma_load("%r1+9216", "%rd2", "%r4", "%r4", "%r1+8")} // @reload
NOLOAD:
{wait("%r1+8", "0")}
mov.u32 %r10, 0; // @clobber
mul.wide.u32 %rd7, %r0, 128;
add.u64 %rd8, %rd20, %rd7;
{chr(10).join(f"st.global.b32 [%rd8+{4 * i}], %acc{32 + i};" for i in range(32))}
""",
    ["ma", "mb", ".u64 out"],
)


def fragment(tile):
    """[128 threads, 32 registers] of an m64n64 accumulator."""
    t = np.arange(128)[:, None]
    r = np.arange(32)[None, :]
    return tile[16 * (t // 32) + t % 32 // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (t % 4) + r % 2]


def make_wgmma(tweak):
    g = rng()
    a, b = bf16(g.standard_normal((64, 64))), bf16(g.standard_normal((64, 64)))
    out = np.zeros((128, 32), np.float32)
    swizzle = (tweak or {}).get("swizzle", 128)
    maps = [TensorMap(Buffer(x), "bf16", (64, 64), (128,), (64 if swizzle == 128 else 32, 64), swizzle) for x in (a, b)]
    o = f32(a)[:, :32].astype(np.float64) @ f32(b)[:, :32].T
    p = f32(bf16(o[:, :16].astype(np.float32)))  # k = 16: columns 0..15 of O against rows 0..15 of B (MN-major: N contiguous)
    want = p.astype(np.float64) @ f32(b)[:16, :]
    return [*maps, Buffer(out)], lambda: float(np.abs(out - fragment(want)).max() > 1e-3 * np.abs(want).max())


# --- generic writes feed wgmma: the proxy fence matters ------------------------------------------------------------------------
PROXY = ptx(
    f"""
ld.param.u64 %rd20, [out];
mov.u32 %r8, 0x3f803f80;
shl.b32 %r4, %r0, 4;
add.u32 %r5, %r1, %r4;
st.shared.v4.b32 [%r5], {{%r8, %r8, %r8, %r8}}; // @fillA
st.shared.v4.b32 [%r5+2048], {{%r8, %r8, %r8, %r8}}; // @fillB
fence.proxy.async.shared::cta; // @fence
bar.sync 0; // @sync
shr.u32 %r6, %r1, 4;
and.b32 %r6, %r6, 0x3fff;
cvt.u64.u32 %rd3, %r6;
or.b64 %rd3, %rd3, 0x0000001000080000;
add.u64 %rd4, %rd3, 128;
mov.pred %p1, 0;
wgmma.fence.sync.aligned;
{_mma(0, "%rd3", "%rd4", "%p1", ", 0, 0")} // @mma
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
{output("%acc5", index="%r0", base="%rd20")}
""",
    [".u64 out"],
)


def make_proxy(tweak):
    out = np.zeros(128, np.float32)
    return [Buffer(out)], lambda: np.abs(out - 16).max()


# --- tcgen05: S = A B^T in tensor memory, P = bf16(S) back to tensor memory, O = P B2 ----------------------------------------------------
# barriers: 0 loads, 8 S done, 16 P stored (128), 24 O done; slot 32; A at 1024, B at 1024 + 16384
# S columns 0..63 (M 128, N 64, K 32), P columns 64..95, O columns 128..191 (K = 16: P's first 16 columns)
TC_IDESC_KK = (1 << 4) | (1 << 7) | (1 << 10) | (64 // 8 << 17) | (128 // 16 << 24)
TC_IDESC_MN = TC_IDESC_KK | 1 << 16
TCGEN = ptx(
    f"""
ld.param.u64 %rd20, [out];
{barriers(1, 1, "128 // @initP", 1, fence=True)}
setp.ne.u32 %p3, %r2, 4;
@%p3 bra ALLOCATED;
add.u32 %r4, %r1, 32;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 256; // @alloc
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned; // @relinquish
ALLOCATED:
bar.sync 0; // @allocsync
ld.shared.b32 %r5, [%r1+32]; // @slot
add.u32 %r6, %r5, 64;
add.u32 %r7, %r5, 128; // @ocol
@%p3 bra SOFTMAX;
elect.sync %r8|%p4, -1;
@!%p4 bra TAIL;
mbarrier.arrive.expect_tx.shared.b64 %rd0, [%r1], 24576;
{map_address("%rd1", "ma")}
{map_address("%rd2", "mb")}
mov.u32 %r9, 0;
{tma_load("%r1+1024", "%rd1", "%r9", "%r9", "%r1")} // @loadA
{tma_load("%r1+17408", "%rd2", "%r9", "%r9", "%r1")} // @loadB
{wait("%r1", "0")} // @wload
add.u32 %r10, %r1, 1024;
shr.u32 %r10, %r10, 4;
cvt.u64.u32 %rd3, %r10;
or.b64 %rd3, %rd3, 0x4000404000010000; // @desc
add.u64 %rd4, %rd3, 1024;
add.u64 %rd5, %rd3, 2;
add.u64 %rd6, %rd4, 2;
mov.u32 %r11, {TC_IDESC_KK};
mov.u32 %r12, {TC_IDESC_MN};
mov.pred %p1, 0; // @noacc
mov.pred %p2, -1;
tcgen05.mma.cta_group::1.kind::f16 [%r5], %rd3, %rd4, %r11, %p1; // @mma0
tcgen05.mma.cta_group::1.kind::f16 [%r5], %rd5, %rd6, %r11, %p2; // @mma1
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+8]; // @commit
{wait("%r1+16", "0")} // @wP
tcgen05.mma.cta_group::1.kind::f16 [%r7], [%r6], %rd4, %r12, %p1; // @mmaTS
tcgen05.mma.cta_group::1.kind::f16 [%r5], %rd3, %rd4, %r11, %p1; // @mmaS2
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+24]; // @commit2
bra TAIL;
SOFTMAX:
shl.b32 %r13, %r2, 21;
add.u32 %r14, %r5, %r13;
{wait("%r1+8", "0")} // @wS
tcgen05.ld.sync.aligned.32x32b.x16.b32 {_regs("acc", 16)}, [%r14]; // @ldS
tcgen05.wait::ld.sync.aligned; // @waitld
{chr(10).join(f"cvt.rn.bf16x2.f32 %acc{32 + i}, %acc{2 * i + 1}, %acc{2 * i}; // @cvt{i}" for i in range(8))}
tcgen05.st.sync.aligned.32x32b.x8.b32 [%r14+64], {_regs("acc", 8, 32)}; // @stP
tcgen05.wait::st.sync.aligned; // @waitst
mbarrier.arrive.shared.b64 %rd9, [%r1+16]; // @arriveP
{wait("%r1+24", "0")} // @wO
tcgen05.ld.sync.aligned.32x32b.x16.b32 {_regs("acc", 16, 64)}, [%r14+128]; // @ldO
tcgen05.wait::ld.sync.aligned; // @waitldO
mul.wide.u32 %rd7, %r0, 64;
add.u64 %rd8, %rd20, %rd7;
{chr(10).join(f"st.global.b32 [%rd8+{4 * i}], %acc{64 + i};" for i in range(16))}
TAIL:
bar.sync 0; // @endsync
@%p3 bra END;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r5, 256; // @dealloc
END:
""",
    ["ma", "mb", ".u64 out"],
    "sm_100a",
)


def make_tcgen(tweak):
    g = rng()
    a, b = bf16(g.standard_normal((128, 64))), bf16(g.standard_normal((64, 64)))
    out = np.zeros((128, 16), np.float32)
    s = f32(a)[:, :32] @ f32(b)[:, :32].T
    p = f32(bf16(s[:, :16]))
    want = (p.astype(np.float64) @ f32(b)[:16, :])[:, :16]
    maps = [TensorMap(Buffer(x), "bf16", (64, x.shape[0]), (128,), (64, x.shape[0]), 128) for x in (a, b)]
    return [*maps, Buffer(out)], lambda: float(np.abs(out - want).max() > 1e-3 * np.abs(want).max())
