"""TMA tiles, bulk copies and cp.async."""

import numpy as np
from kernel_parts import barriers, bf16, map_address, output, ptx, rng, tma_load, wait

from fa4c.runtime.emulator import Buffer, TensorMap

# --- TMA: load a 64x64 bf16 tile (128-byte swizzle), negate in place, store it twice ---------------------------------------
TMA = ptx(
    f"""
{barriers(1, fence=True)}
bar.sync 0; // @initsync
@%p0 bra ISSUED;
mbarrier.arrive.expect_tx.shared.b64 %rd0, [%r1], 8192; // @expect
{map_address("%rd1", "src")}
mov.u32 %r4, 0;
mov.u32 %r5, 64;
{tma_load("%r1+1024", "%rd1", "%r4", "%r5", "%r1")} // @load
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
{map_address("%rd2", "dst")}
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
{barriers(1)}
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


# --- cp.async in two groups ---------------------------------------------------------------------------------------------------------
CPASYNC = ptx(
    f"""
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
{output("%r8", index="%r0", base="%rd1")}
""",
    [".u64 src", ".u64 out"],
)


def make_cpasync(tweak):
    src, out = np.arange(512, dtype=np.uint32), np.zeros(64, np.uint32)
    i = np.arange(64) ^ 32
    return [Buffer(src), Buffer(out)], lambda: np.abs(out.astype(int) - (8 * i + 256)).max()
