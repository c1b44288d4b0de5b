"""Small hand-written kernels, each correctly synchronised: what the seeded faults mutate and the random schedules repeat.

A line may carry a marker, `// @name`; a fault names the lines of its expected report by marker.
"""

import numpy as np

from fa4c.runtime.emulator import Buffer, Scalar, TensorMap, launch

HEADER = """.version 8.8
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 sm[];
.visible .entry k({params})
{{
.reg .pred %p<16>;
.reg .b16 %h<16>;
.reg .b32 %r<64>;
.reg .b32 %acc<128>;
.reg .b64 %rd<32>;
.reg .f32 %f<16>;
mov.u32 %r0, %tid.x;
mov.u32 %r1, sm;
shr.u32 %r2, %r0, 5;
and.b32 %r3, %r0, 31;
"""
WAIT = "{{ .reg .pred q; L: mbarrier.try_wait.parity.shared.b64 q, [{0}], {1}; @q bra D; bra L; D: }}"


def ptx(body, params=(), target="sm_90a"):
    """A kernel `k` around a body; params are declarations such as '.u64 out' or a name alone for a tensor map."""
    decls = ", ".join(f".param {p}" if p.startswith(".") else f".param .align 64 .b8 {p}[128]" for p in params)
    return HEADER.format(target=target, params=decls) + body.strip() + "\nret;\n}\n"


def bf16(x):
    """float32 to bf16 bits."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def f32(u):
    """bf16 bits to float32."""
    return (u.astype(np.uint32) << 16).view(np.float32)


def line_of(text, marker):
    """The line that carries `// @marker`."""
    hits = [i + 1 for i, s in enumerate(text.split("\n")) if s.rstrip().endswith(f"// @{marker}")]
    assert len(hits) == 1, (marker, hits)
    return hits[0]


class Case:
    """One kernel with its launch and the values it must give."""

    def __init__(self, name, text, grid, block, smem, make, cluster=(1, 1, 1)):
        self.name, self.text, self.grid, self.block, self.smem, self.make, self.cluster = name, text, grid, block, smem, make, cluster

    def run(self, text=None, **options):
        """(report, largest error); `make` gives fresh parameters and a function that computes the error."""
        params, error = self.make(options.pop("tweak", None))
        report = launch(
            text or self.text, "k", self.grid, self.block, self.cluster, options.pop("smem", self.smem), params, max_steps=20000, **options
        )
        return report, error()


def rng():
    return np.random.default_rng(7)


def wait(address, parity):
    return WAIT.format(address, parity)


# --- named barriers: warp 0 writes, warp 1 reads, in two rounds ----------------------------------------------------------
NAMED = ptx(
    """
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
mul.wide.u32 %rd1, %r3, 4;
add.u64 %rd2, %rd0, %rd1;
st.global.u32 [%rd2], %r10;
END:
""",
    [".u64 out"],
)


def make_named(tweak):
    out = np.zeros(32, np.uint32)
    return [Buffer(out)], lambda: np.abs(out.astype(int) - (300 + 2 * (31 - np.arange(32)))).max()


# --- one warp exchanges through shared memory ----------------------------------------------------------------------------
WARP = ptx(
    """
ld.param.u64 %rd0, [out];
shl.b32 %r4, %r3, 2;
add.u32 %r5, %r1, %r4;
mul.lo.u32 %r6, %r3, 3;
st.shared.u32 [%r5], %r6; // @write
bar.warp.sync 0xffffffff; // @sync
xor.b32 %r7, %r4, 4;
add.u32 %r7, %r1, %r7;
ld.shared.u32 %r8, [%r7]; // @read
mul.wide.u32 %rd1, %r3, 4;
add.u64 %rd2, %rd0, %rd1;
st.global.u32 [%rd2], %r8; // @store
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
setp.ne.u32 %p0, %r0, 0;
@%p0 bra INITED;
mbarrier.init.shared.b64 [%r1], 32; // @init
mbarrier.init.shared.b64 [%r1+8], 32;
mbarrier.init.shared.b64 [%r1+16], 32;
mbarrier.init.shared.b64 [%r1+24], 32;
INITED:
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
mul.wide.u32 %rd1, %r3, 4;
add.u64 %rd2, %rd0, %rd1;
st.global.u32 [%rd2], %r20;
END:
""",
    [".u64 out"],
)


def make_mbar(tweak):
    out = np.zeros(32, np.uint32)
    return [Buffer(out)], lambda: np.abs(out.astype(int) - (6000 + 4 * (31 - np.arange(32)))).max()


# --- TMA: load a 64x64 bf16 tile (128-byte swizzle), negate in place, store it twice ---------------------------------------
TMA = ptx(
    f"""
setp.ne.u32 %p0, %r0, 0;
@%p0 bra INITED;
mbarrier.init.shared.b64 [%r1], 1;
fence.mbarrier_init.release.cluster;
INITED:
bar.sync 0; // @initsync
@%p0 bra ISSUED;
mbarrier.arrive.expect_tx.shared.b64 %rd0, [%r1], 8192; // @expect
mov.b64 %rd1, src;
cvta.param.u64 %rd1, %rd1;
mov.u32 %r4, 0;
mov.u32 %r5, 64;
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1+1024], [%rd1, {{%r4, %r5}}], [%r1]; // @load
ISSUED:
{wait("%r1", "0")} // @wait
shl.b32 %r6, %r0, 6;
add.u32 %r6, %r6, %r1;
ld.shared.v4.b32 {{%r8, %r9, %r10, %r11}}, [%r6+1024]; // @read
xor.b32 %r8, %r8, 0x80008000;
xor.b32 %r9, %r9, 0x80008000;
xor.b32 %r10, %r10, 0x80008000;
xor.b32 %r11, %r11, 0x80008000;
st.shared.v4.b32 [%r6+1024], {{%r8, %r9, %r10, %r11}}; // @write
fence.proxy.async.shared::cta; // @fence
bar.sync 0; // @sync
@%p0 bra STORED;
mov.b64 %rd2, dst;
cvta.param.u64 %rd2, %rd2;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd2, {{%r4, %r4}}], [%r1+1024]; // @store
cp.async.bulk.commit_group; // @commit
cp.async.bulk.wait_group.read 0; // @drain
STORED:
bar.sync 0;
st.shared.v4.b32 [%r6+1024], {{%r8, %r8, %r8, %r8}}; // @reuse
""",
    ["src", "dst"],
)


def make_tma(tweak):
    tweak = tweak or {}
    src = bf16(rng().standard_normal((128, 64)))
    dst = np.zeros((64, 64), np.uint16)
    box = tweak.get("box", (64, 64))
    maps = [
        TensorMap(Buffer(src, name="src"), "bf16", (64, 128), (128,), box, tweak.get("swizzle", 128)),
        TensorMap(Buffer(dst, name="dst"), "bf16", (64, 64), (128,), (64, 64), 128),
    ]
    want = src[64:].copy()
    # Each thread negates the first 16 bytes of 64: pieces 0, 4, 8, ... in physical order.
    flat = want.reshape(64, 8, 8)
    for r in range(64):
        for piece in (0, 4):
            flat[r, piece ^ (r % 8)] ^= 0x8000
    return maps, lambda: int((dst != want).sum())


# --- bulk copies: load 512 bytes, add 1, reduce into global memory, read the sum back ---------------------------------------
BULK = ptx(
    f"""
ld.param.u64 %rd0, [src];
ld.param.u64 %rd1, [acc];
ld.param.u64 %rd2, [out];
setp.ne.u32 %p0, %r0, 0;
@%p0 bra INITED;
mbarrier.init.shared.b64 [%r1], 1;
INITED:
bar.sync 0;
@%p0 bra ISSUED;
mbarrier.arrive.expect_tx.shared.b64 %rd3, [%r1], 512; // @expect
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+128], [%rd0], 512, [%r1]; // @load
ISSUED:
{wait("%r1", "0")} // @wait
shl.b32 %r4, %r0, 2;
add.u32 %r5, %r1, %r4;
ld.shared.f32 %f0, [%r5+128]; // @read
add.f32 %f0, %f0, 0f3F800000;
st.shared.f32 [%r5+128], %f0; // @write
fence.proxy.async.shared::cta; // @fence
bar.sync 0; // @sync
@%p0 bra END;
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r1+128], 512; // @reduce
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0; // @drain
ld.global.f32 %f1, [%rd1+4]; // @readback
st.global.f32 [%rd2], %f1;
END:
""",
    [".u64 src", ".u64 acc", ".u64 out"],
)


def make_bulk(tweak):
    src = rng().standard_normal(128).astype(np.float32)
    acc, out = np.full(128, 2, np.float32), np.zeros(1, np.float32)
    poison = bool(tweak and tweak.get("poison"))
    return [Buffer(src), Buffer(acc, poison=poison, name="acc"), Buffer(out)], lambda: float(
        np.abs(acc - (src + 3)).max() > 1e-6 or out[0] != acc[1]
    )


# --- wgmma: O = A B^T (64x64x32) from TMA tiles, then O' = bf16(O) B2 with A in registers -------------------------------------
def _regs(prefix, n, start=0):
    return "{" + ", ".join(f"%{prefix}{start + i}" for i in range(n)) + "}"


def _mma(acc, a, b, p, tail, n=32):
    return f"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {_regs('acc', n, acc)}, {a}, {b}, {p}, 1, 1{tail};"


WGMMA = ptx(
    f"""
ld.param.u64 %rd20, [out];
setp.ne.u32 %p0, %r0, 0;
@%p0 bra INITED;
mbarrier.init.shared.b64 [%r1], 1;
mbarrier.init.shared.b64 [%r1+8], 1;
INITED:
bar.sync 0;
@%p0 bra ISSUED;
mbarrier.arrive.expect_tx.shared.b64 %rd0, [%r1], 16384;
mov.b64 %rd1, ma;
cvta.param.u64 %rd1, %rd1;
mov.b64 %rd2, mb;
cvta.param.u64 %rd2, %rd2;
mov.u32 %r4, 0;
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1+1024], [%rd1, {{%r4, %r4}}], [%r1]; // @loadA
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1+9216], [%rd2, {{%r4, %r4}}], [%r1]; // @loadB
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
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1+9216], [%rd2, {{%r4, %r4}}], [%r1+8]; // @reload
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
mul.wide.u32 %rd7, %r0, 4;
add.u64 %rd8, %rd20, %rd7;
st.global.b32 [%rd8], %acc5;
""",
    [".u64 out"],
)


def make_proxy(tweak):
    out = np.zeros(128, np.float32)
    return [Buffer(out)], lambda: np.abs(out - 16).max()


# --- a cluster of two exchanges by remote stores and a remote mbarrier ------------------------------------------------------------
CLUSTER = ptx(
    f"""
ld.param.u64 %rd0, [out];
setp.ne.u32 %p0, %r0, 0;
@%p0 bra INITED;
mbarrier.init.shared.b64 [%r1], 32;
fence.mbarrier_init.release.cluster; // @initfence
INITED:
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
mul.wide.u32 %rd1, %r12, 4;
add.u64 %rd2, %rd0, %rd1;
st.global.u32 [%rd2], %r11;
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
setp.ne.u32 %p0, %r0, 0;
@%p0 bra INITED;
mbarrier.init.shared.b64 [%r1], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared.b64 %rd3, [%r1], 128; // @expect
INITED:
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
mul.wide.u32 %rd1, %r12, 4;
add.u64 %rd2, %rd0, %rd1;
st.global.u32 [%rd2], %r11;
barrier.cluster.arrive; // @endarrive
barrier.cluster.wait; // @endwait
""",
    [".u64 out"],
)

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


# --- cp.async in two groups ---------------------------------------------------------------------------------------------------------
CPASYNC = ptx(
    """
ld.param.u64 %rd0, [src];
ld.param.u64 %rd1, [out];
shl.b32 %r4, %r0, 4;
cvt.u64.u32 %rd2, %r4;
add.u64 %rd3, %rd0, %rd2;
add.u32 %r5, %r1, %r4;
cp.async.cg.shared.global [%r5], [%rd3], 16; // @copy0
cp.async.commit_group; // @commit0
cp.async.cg.shared.global [%r5+1024], [%rd3+1024], 16; // @copy1
cp.async.commit_group;
cp.async.wait_group 1; // @wait1
bar.sync 0; // @sync1
xor.b32 %r6, %r4, 512; // the other warp's
add.u32 %r7, %r1, %r6;
ld.shared.u32 %r8, [%r7]; // @read0
cp.async.wait_group 0; // @wait0
bar.sync 0; // @sync0
ld.shared.u32 %r9, [%r7+1024]; // @read1
add.u32 %r8, %r8, %r9;
mul.wide.u32 %rd4, %r0, 4;
add.u64 %rd5, %rd1, %rd4;
st.global.u32 [%rd5], %r8;
""",
    [".u64 src", ".u64 out"],
)


def make_cpasync(tweak):
    src, out = np.arange(512, dtype=np.uint32), np.zeros(64, np.uint32)
    i = np.arange(64) ^ 32
    return [Buffer(src), Buffer(out)], lambda: np.abs(out.astype(int) - (8 * i + 256)).max()


# --- tcgen05: S = A B^T in tensor memory, P = bf16(S) back to tensor memory, O = P B2 ----------------------------------------------------
# barriers: 0 loads, 8 S done, 16 P stored (128), 24 O done; slot 32; A at 1024, B at 1024 + 16384
# S columns 0..63 (M 128, N 64, K 32), P columns 64..95, O columns 128..191 (K = 16: P's first 16 columns)
TC_IDESC_KK = (1 << 4) | (1 << 7) | (1 << 10) | (64 // 8 << 17) | (128 // 16 << 24)
TC_IDESC_MN = TC_IDESC_KK | 1 << 16
TCGEN = ptx(
    f"""
ld.param.u64 %rd20, [out];
setp.ne.u32 %p0, %r0, 0;
@%p0 bra INITED;
mbarrier.init.shared.b64 [%r1], 1;
mbarrier.init.shared.b64 [%r1+8], 1;
mbarrier.init.shared.b64 [%r1+16], 128; // @initP
mbarrier.init.shared.b64 [%r1+24], 1;
fence.mbarrier_init.release.cluster;
INITED:
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
mov.b64 %rd1, ma;
cvta.param.u64 %rd1, %rd1;
mov.b64 %rd2, mb;
cvta.param.u64 %rd2, %rd2;
mov.u32 %r9, 0;
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1+1024], [%rd1, {{%r9, %r9}}], [%r1]; // @loadA
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1+17408], [%rd2, {{%r9, %r9}}], [%r1]; // @loadB
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


CASES = {
    c.name: c
    for c in [
        Case("named", NAMED, 1, 64, 1024, make_named),
        Case("warp", WARP, 1, 32, 1024, make_warp),
        Case("mbar", MBAR, 1, 64, 1024, make_mbar),
        Case("tma", TMA, 1, 128, 16384, make_tma),
        Case("bulk", BULK, 1, 128, 1024, make_bulk),
        Case("wgmma", WGMMA, 1, 128, 1024 + 16384, make_wgmma),
        Case("proxy", PROXY, 1, 128, 8192, make_proxy),
        Case("cluster", CLUSTER, 2, 32, 1024, make_cluster, (2, 1, 1)),
        Case("dsmem", DSMEM, 2, 32, 1024, make_cluster, (2, 1, 1)),
        Case("semaphore", SEMAPHORE, 3, 64, 0, make_semaphore),
        Case("cpasync", CPASYNC, 1, 64, 2048, make_cpasync),
        Case("tcgen", TCGEN, 1, 160, 1024 + 24576, make_tcgen),
        Case("atomic", ATOMIC, 2, 32, 0, make_atomic),
    ]
}
