"""Clusters: the MMA of a CTA pair in both shapes, multicast copies and commits."""

import numpy as np
import pytest
from emulator_kernels import bf16, f32, ptx, wait
from test_units import START, TC_CODE, descriptor, place

from fa4c.runtime.emulator import Buffer, TensorMap, launch

rng = np.random.default_rng(9)


def pair_kernel(m, n, da, db, size):
    """Both CTAs load their operands; the leader issues two MMAs and commits to both; each stores its tensor memory."""
    idesc = 1 << 4 | 1 << 7 | 1 << 10 | n // 8 << 17 | m // 16 << 24
    width = n if m == 256 else n // 2
    lds = "\n".join(
        f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{', '.join(f'%acc{i}' for i in range(8))}}}, [%r8+{c}]; tcgen05.wait::ld.sync.aligned;\n"
        + "\n".join(f"st.global.b32 [%rd5+{4 * (c + i)}], %acc{i};" for i in range(8))
        for c in range(0, width, 8)
    )
    return ptx(
        f"""
mov.u32 %r20, %cluster_ctarank;
ld.param.u64 %rd0, [image]; ld.param.u64 %rd1, [out];
mul.wide.u32 %rd9, %r20, {size}; add.u64 %rd0, %rd0, %rd9;
mul.wide.u32 %rd9, %r20, {128 * width * 4}; add.u64 %rd1, %rd1, %rd9;
setp.ne.u32 %p0, %r0, 0; @%p0 bra I;
mbarrier.init.shared.b64 [%r1], 1;
mbarrier.init.shared.b64 [%r1+8], 1;
mbarrier.init.shared.b64 [%r1+16], 2;
fence.mbarrier_init.release.cluster;
I: setp.ne.u32 %p3, %r2, 0;
add.u32 %r5, %r1, 64;
@%p3 bra A;
tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r5], 256;
A: barrier.cluster.arrive; barrier.cluster.wait; // @ready
ld.shared.b32 %r6, [%r5];
shl.b32 %r7, %r2, 21; add.u32 %r8, %r6, %r7;
@%p0 bra J;
mbarrier.arrive.expect_tx.shared.b64 %rd2, [%r1], {size};
add.u32 %r4, %r1, 1024;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%rd0], {size}, [%r1];
{wait("%r1", "0")}
mov.u32 %r21, 0; add.u32 %r22, %r1, 16;
mapa.shared::cluster.u32 %r22, %r22, %r21;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r22]; // @loaded
setp.ne.u32 %p5, %r20, 0; @%p5 bra J;
{wait("%r1+16", "0")} // @both
mov.b64 %rd3, {da}; mov.b64 %rd4, {db}; mov.pred %p1, 0; mov.pred %p2, -1; mov.u32 %r10, {idesc};
tcgen05.mma.cta_group::2.kind::f16 [%r6], %rd3, %rd4, %r10, %p1; // @mma
tcgen05.mma.cta_group::2.kind::f16 [%r6], %rd3, %rd4, %r10, %p2;
mov.u16 %h0, 3;
tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r1+8], %h0; // @commit
J: {wait("%r1+8", "0")} // @done
mul.wide.u32 %rd6, %r0, {4 * width}; add.u64 %rd5, %rd1, %rd6;
{lds}
bar.sync 0;
@%p3 bra E;
tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r6, 256;
E: barrier.cluster.arrive; barrier.cluster.wait;
""",
        [".u64 image", ".u64 out"],
        "sm_100a",
    )


def pair_case(m, n):
    a, b = bf16(rng.standard_normal((m, 16))), bf16(rng.standard_normal((n, 16)))
    size, images = 32768, []
    for r in range(2):
        image = np.zeros(32768, np.uint16)
        la, sa = place(a[m // 2 * r : m // 2 * (r + 1)], 128, True, image, START)
        lb, sb = place(b[n // 2 * r : n // 2 * (r + 1)], 128, True, image, START + 16384)
        images.append(image[START // 2 : START // 2 + size // 2])
    da = descriptor(START, la, sa, TC_CODE[128], 61) | 1 << 46
    db = descriptor(START + 16384, lb, sb, TC_CODE[128], 61) | 1 << 46
    want = 2 * (f32(a).astype(np.float64) @ f32(b).astype(np.float64).T)
    return pair_kernel(m, n, da, db, size), np.stack(images), want, size


@pytest.mark.parametrize("m,n", [(256, 64), (128, 64), (256, 128), (128, 32)])
@pytest.mark.parametrize("options", [{}, {"schedule": "random", "schedule_seed": 5}])
def test_mma_of_a_pair(m, n, options):
    text, images, want, size = pair_case(m, n)
    out = np.zeros((2, 128, n if m == 256 else n // 2), np.float32)
    report = launch(text, "k", 2, 128, (2, 1, 1), size + 1024, [Buffer(images), Buffer(out)], **options)
    assert report.ok, report.text()
    if m == 256:
        got = out.reshape(256, n)
    else:  # CTA r: rows 64r.., the left half of the columns in lanes 0..63, the right half in 64..127
        got = np.concatenate([np.concatenate([x[:64], x[64:]], 1) for x in out])
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    "old,new,cls",
    [
        ("// @both", None, "race"),  # the leader does not wait for its peer's operands
        ("// @done", None, "race"),
        ("mov.u16 %h0, 3;", "mov.u16 %h0, 1;", "deadlock"),
        ("cta_group::2.sync.aligned.b32 %r6, 256;", "cta_group::2.sync.aligned.b32 %r6, 128;", "tmem-dealloc"),
    ],
)
def test_faults_of_a_pair(old, new, cls):
    text, images, want, size = pair_case(256, 64)
    if new is None:
        text = (
            "\n".join("" if old in line else line for line in text.split("\n"))
            if old != "// @done"
            else text.replace(next(line for line in text.split("\n") if old in line), "J:")
        )
    else:
        assert old in text
        text = text.replace(old, new)
    report = launch(text, "k", 2, 128, (2, 1, 1), size + 1024, [Buffer(images), Buffer(np.zeros((2, 128, 64), np.float32))])
    assert cls in {h.cls for h in report.errors}, report.text()


MULTICAST = ptx(
    f"""
ld.param.u64 %rd0, [out];
mov.u32 %r20, %cluster_ctarank;
setp.ne.u32 %p0, %r0, 0; @%p0 bra I;
mbarrier.init.shared.b64 [%r1], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r1], 2048;
I: barrier.cluster.arrive; barrier.cluster.wait;
@%p0 bra J;
mov.b64 %rd2, tm; cvta.param.u64 %rd2, %rd2;
shl.b32 %r4, %r20, 3; mov.u32 %r5, 0; mov.u16 %h0, 3;
shl.b32 %r6, %r20, 10; add.u32 %r6, %r6, %r1;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
  [%r6+1024], [%rd2, {{%r5, %r4}}], [%r1], %h0;
J: {wait("%r1", "0")}
shl.b32 %r7, %r0, 4; add.u32 %r8, %r7, %r1;
ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%r8+1024];
shl.b32 %r9, %r20, 11; add.u32 %r9, %r9, %r7; cvt.u64.u32 %rd3, %r9; add.u64 %rd3, %rd3, %rd0;
st.global.v4.b32 [%rd3], {{%r10, %r11, %r12, %r13}};
barrier.cluster.arrive; barrier.cluster.wait;
""",
    ["tm", ".u64 out"],
)


def test_rank_of_an_address():
    text = ptx(
        """ld.param.u64 %rd0, [out]; mov.u32 %r4, %cluster_ctarank; xor.b32 %r5, %r4, 1;
mapa.shared::cluster.u32 %r6, %r1, %r5; getctarank.shared::cluster.u32 %r7, %r6;
cvt.u64.u32 %rd1, %r6; cvta.shared.u64 %rd1, %rd1; getctarank.u64 %r8, %rd1; shl.b32 %r8, %r8, 4; or.b32 %r7, %r7, %r8;
mul.wide.u32 %rd2, %r4, 4; add.u64 %rd2, %rd0, %rd2; st.global.u32 [%rd2], %r7; barrier.cluster.arrive; barrier.cluster.wait;""",
        [".u64 out"],
    )
    out = np.zeros(2, np.uint32)
    assert launch(text, "k", 2, 1, (2, 1, 1), 64, [Buffer(out)]).ok
    assert out.tolist() == [0x11, 0]


@pytest.mark.parametrize("options", [{}, {"schedule": "random", "schedule_seed": 5}])
def test_multicast(options):
    """Each CTA of the pair loads half a tile into both."""
    tile = rng.integers(0, 1 << 16, (16, 64)).astype(np.uint16)
    out = np.zeros((2, 16, 64), np.uint16)
    report = launch(
        MULTICAST, "k", 2, 128, (2, 1, 1), 4096, [TensorMap(Buffer(tile), "bf16", (64, 16), (128,), (64, 8), 0), Buffer(out)], **options
    )
    assert report.ok, report.text()
    np.testing.assert_array_equal(out[0], tile)
    np.testing.assert_array_equal(out[1], tile)
