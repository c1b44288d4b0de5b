"""Asynchronous and matrix units against float64 and NumPy: every descriptor layout, swizzle, rank and shape in use."""

import re
import struct

import numpy as np
import pytest
from emulator_kernels import bf16, f32, fragment, ptx, wait

from fa4c.runtime.emulator import Buffer, EmulatorError, Scalar, TensorMap, launch

rng = np.random.default_rng(5)
SPAN_CODE = {128: 1, 64: 2, 32: 3, 0: 0}
TC_CODE = {128: 2, 64: 4, 32: 6, 0: 0}
START = 1024 * 2  # byte address of an operand inside the shared window, after 1 KiB of barriers


def encode(value, is_bf16):
    return bf16(value) if is_bf16 else value.astype(np.float16).view(np.uint16)


def decode(bits, is_bf16):
    return f32(bits) if is_bf16 else bits.view(np.float16).astype(np.float32)


def place(tile, swizzle, k_major, image, start):
    """Write a [rows, depth] tile into an image of the shared window element by element, by the text of the ISA.

    Returns (leading, stride) bytes. Independent of operands.py: loops, and the swizzle as the exchange of 16-byte pieces by row.
    """
    rows, depth = tile.shape
    if k_major:
        span = swizzle or 16
        per = span // 2
        slabs = -(-depth // per)
        stride = 8 * span
        leading = rows * span
        for r in range(rows):
            for k in range(depth):
                slab, inner = divmod(k, per)
                a = slab * leading + (r // 8) * stride + (r % 8) * span + inner * 2
                image[_swizzle(start + a, swizzle) // 2] = tile[r, k]
        assert slabs == 1 or swizzle == 0
    else:
        span = swizzle or 16
        per = span // 2
        group = 8 * span  # 8 values of k
        leading, stride = (group * (depth // 8), group) if swizzle else (group, group * (depth // 8))
        for r in range(rows):
            for k in range(depth):
                slab, inner = divmod(r, per)
                a = slab * group * (depth // 8) + (k // 8) * group + (k % 8) * span + inner * 2
                image[_swizzle(start + a, swizzle) // 2] = tile[r, k]
    return leading, stride


def _swizzle(address, swizzle):
    if not swizzle:
        return address
    row = address // 128 % (swizzle // 16)  # which 128-byte line of the pattern
    piece, rest = address // 16 % 8, address % 16
    width = swizzle // 16
    return address // 128 * 128 + ((piece // width * width) + (piece % width ^ row)) * 16 + rest


def descriptor(start, leading, stride, code, bits):
    return (start >> 4) | (leading >> 4) << 16 | (stride >> 4) << 32 | code << bits


LOAD_IMAGE = f"""
setp.ne.u32 %p0, %r0, 0;
@%p0 bra I;
mbarrier.init.shared.b64 [%r1], 1;
mbarrier.init.shared.b64 [%r1+8], 1;
fence.mbarrier_init.release.cluster;
I: bar.sync 0;
ld.param.u64 %rd0, [image];
ld.param.u64 %rd1, [out];
@%p0 bra J;
mbarrier.arrive.expect_tx.shared.b64 %rd2, [%r1], SIZE;
add.u32 %r4, %r1, 1024;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%rd0], SIZE, [%r1];
J: {wait("%r1", "0")}
"""
WGMMA_CASES = [
    (n, sa, ka, sb, kb, b16)
    for n, sa, ka, sb, kb, b16 in [
        (64, 128, True, 128, True, True),
        (128, 128, True, 128, False, True),
        (8, 64, True, 64, True, True),
        (64, 32, True, 32, True, False),
        (64, 0, True, 0, True, True),
        (64, 128, False, 128, False, True),
        (64, 64, False, 64, False, True),
        (32, 32, False, 32, False, False),
        (64, 0, False, 0, False, True),
        (256, 128, True, 128, True, False),
        (24, 64, True, 0, False, True),
    ]
]


@pytest.mark.parametrize("n,sa,ka,sb,kb,is_bf16", WGMMA_CASES)
def test_wgmma_layouts(n, sa, ka, sb, kb, is_bf16):
    a, b = (encode(rng.standard_normal(s).astype(np.float32), is_bf16) for s in ((64, 16), (n, 16)))
    image = np.zeros(32768, np.uint16)
    la, ta = place(a, sa, ka, image, START)
    lb, tb = place(b, sb, kb, image, START + 8192)
    da, db = descriptor(START, la, ta, SPAN_CODE[sa], 62), descriptor(START + 8192, lb, tb, SPAN_CODE[sb], 62)
    size = 40960
    t = "bf16" if is_bf16 else "f16"
    regs = ", ".join(f"%acc{i}" for i in range(n // 2))
    stores = "\n".join(f"st.global.b32 [%rd5+{4 * i}], %acc{i};" for i in range(n // 2))
    text = ptx(
        LOAD_IMAGE.replace("SIZE", str(size))
        + f"""
mov.b64 %rd3, {da}; mov.b64 %rd4, {db}; mov.pred %p1, 0; mov.pred %p2, -1;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{t}.{t} {{{regs}}}, %rd3, %rd4, %p1, 1, 1, {int(not ka)}, {int(not kb)};
wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{t}.{t} {{{regs}}}, %rd3, %rd4, %p2, -1, 1, {int(not ka)}, {int(not kb)};
wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{t}.{t} {{{regs}}}, %rd3, %rd4, %p2, 1, 1, {int(not ka)}, {int(not kb)};
wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
mul.wide.u32 %rd6, %r0, {2 * n}; add.u64 %rd5, %rd1, %rd6;
{stores}""",
        [".u64 image", ".u64 out"],
    )
    out = np.zeros((128, n // 2), np.float32)
    # The image starts at the first byte behind the barriers: window byte 2048.
    report = launch(text, "k", 1, 128, (1, 1, 1), size + 1024, [Buffer(image[START // 2 :].copy()), Buffer(out)])
    assert report.ok, report.text()
    want = decode(a, is_bf16).astype(np.float64) @ decode(b, is_bf16).astype(np.float64).T
    tile = np.zeros((64, n))
    th, r = np.arange(128)[:, None], np.arange(n // 2)[None, :]
    tile[16 * (th // 32) + th % 32 // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (th % 4) + r % 2] = out
    np.testing.assert_allclose(tile, want, atol=16 * 2**-23 * 40, rtol=1e-5)
    assert fragment(np.zeros((64, 64))).shape == (128, 32)


TC_CASES = [  # M, N, A from tensor memory, swizzle and majors
    (128, 64, False, 128, True, 128, True),
    (128, 128, False, 128, False, 128, False),
    (128, 16, False, 64, True, 64, False),
    (128, 256, False, 128, True, 128, False),
    (64, 64, False, 128, True, 128, True),
    (128, 64, True, 0, True, 128, False),
    (128, 32, False, 32, True, 32, True),
    (128, 32, False, 0, True, 0, False),
    (128, 96, True, 0, True, 64, False),
]


@pytest.mark.parametrize("m,n,ts,sa,ka,sb,kb", TC_CASES)
def test_tcgen05_layouts(m, n, ts, sa, ka, sb, kb):
    a, b = (bf16(rng.standard_normal(s)) for s in ((m, 16), (n, 16)))
    image = np.zeros(32768, np.uint16)
    la, ta = (0, 0) if ts else place(a, sa, ka, image, START)
    lb, tb = place(b, sb, kb, image, START + 16384)
    da, db = descriptor(START, la, ta, TC_CODE[sa], 61) | 1 << 46, descriptor(START + 16384, lb, tb, TC_CODE[sb], 61) | 1 << 46
    idesc = 1 << 4 | 1 << 7 | 1 << 10 | (0 if ka or ts else 1) << 15 | (not kb) << 16 | n // 8 << 17 | m // 16 << 24
    size = 40960
    words = np.ascontiguousarray(a).view(np.uint32)  # [m, 8]
    a_words = "ld.param.u64 %rd9, [aw]; mul.wide.u32 %rd10, %r0, 32; add.u64 %rd9, %rd9, %rd10;" + "".join(
        f"ld.global.b32 %acc{i}, [%rd9+{4 * i}];" for i in range(8)
    )
    a_words += "tcgen05.st.sync.aligned.32x32b.x8.b32 [%r8+256], {%acc0, %acc1, %acc2, %acc3, %acc4, %acc5, %acc6, %acc7};"
    a_words += "tcgen05.wait::st.sync.aligned;"
    lds = "\n".join(
        f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{', '.join(f'%acc{i}' for i in range(8))}}}, [%r8+{c}]; tcgen05.wait::ld.sync.aligned;\n"
        + "\n".join(f"st.global.b32 [%rd5+{4 * (c + i)}], %acc{i};" for i in range(8))
        for c in range(0, n, 8)
    )
    text = ptx(
        LOAD_IMAGE.replace("SIZE", str(size))
        + f"""
setp.ne.u32 %p3, %r2, 0;
add.u32 %r5, %r1, 64;
@%p3 bra A;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], 512;
A: bar.sync 0;
ld.shared.b32 %r6, [%r5];
shl.b32 %r7, %r2, 21;
add.u32 %r8, %r6, %r7;
{a_words if ts else ""}
bar.sync 0;
@%p3 bra S;
elect.sync %r9|%p4, -1;
@!%p4 bra S;
mov.b64 %rd3, {da}; mov.b64 %rd4, {db}; mov.pred %p1, 0; mov.pred %p2, -1; mov.u32 %r10, {idesc}; add.u32 %r11, %r6, 256;
tcgen05.mma.cta_group::1.kind::f16 [%r6], {"[%r11]" if ts else "%rd3"}, %rd4, %r10, %p1;
tcgen05.mma.cta_group::1.kind::f16 [%r6], {"[%r11]" if ts else "%rd3"}, %rd4, %r10, %p2;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+8];
S: {wait("%r1+8", "0")}
mul.wide.u32 %rd6, %r0, {4 * n}; add.u64 %rd5, %rd1, %rd6;
{lds}
bar.sync 0;
@%p3 bra E;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r6, 512;
E:""",
        [".u64 image", ".u64 out", ".u64 aw"],
        "sm_100a",
    )
    out = np.zeros((128, n), np.float32)
    if m == 64:  # rows 16..31 of each quarter hold nothing: reading them is reported, which is right, so check values only
        report = launch(
            text, "k", 1, 128, (1, 1, 1), size + 1024, [Buffer(image[START // 2 :].copy()), Buffer(out), Buffer(words)], hazards=False
        )
        out = out.reshape(4, 32, n)[:, :16].reshape(64, n)
    else:
        report = launch(text, "k", 1, 128, (1, 1, 1), size + 1024, [Buffer(image[START // 2 :].copy()), Buffer(out), Buffer(words)])
    assert report.ok, report.text()
    want = 2 * (f32(a).astype(np.float64) @ f32(b).astype(np.float64).T)
    np.testing.assert_allclose(out, want, atol=1e-4, rtol=1e-5)


# --- TMA ---------------------------------------------------------------------------------------------------------------
def tma_kernel(rank, nbytes, store=False, reduce=None):
    coords = ", ".join(f"%r{10 + i}" for i in range(rank))
    moves = "\n".join(f"ld.param.u32 %r{10 + i}, [c{i}];" for i in range(rank))
    copy = f"""mbarrier.arrive.expect_tx.shared.b64 %rd3, [%r1], {nbytes};
cp.async.bulk.tensor.{rank}d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1+1024], [%rd2, {{{coords}}}], [%r1];"""
    out = f"""{wait("%r1", "0")}
mov.u32 %r4, %r0;
L: shl.b32 %r5, %r4, 2; add.u32 %r6, %r1, %r5; ld.shared.b32 %r7, [%r6+1024];
cvt.u64.u32 %rd4, %r5; add.u64 %rd5, %rd1, %rd4; st.global.b32 [%rd5], %r7;
add.u32 %r4, %r4, 32; setp.lt.u32 %p1, %r4, {nbytes // 4}; @%p1 bra L;"""
    if store:
        op = (
            f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{reduce}.tile.bulk_group"
            if reduce
            else f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
        )
        copy, out = (
            "",
            f"""mov.u32 %r4, %r0;
L: shl.b32 %r5, %r4, 2; add.u32 %r6, %r1, %r5; cvt.u64.u32 %rd4, %r5; add.u64 %rd5, %rd1, %rd4;
ld.global.b32 %r7, [%rd5]; st.shared.b32 [%r6+1024], %r7;
add.u32 %r4, %r4, 32; setp.lt.u32 %p1, %r4, {nbytes // 4}; @%p1 bra L;
fence.proxy.async.shared::cta; bar.warp.sync -1; @%p0 bra E;
{op} [%rd2, {{{coords}}}], [%r1+1024]; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; E:""",
        )
    return ptx(
        f"""{moves}
ld.param.u64 %rd1, [out];
mov.b64 %rd2, tm; cvta.param.u64 %rd2, %rd2;
setp.ne.u32 %p0, %r0, 0; @%p0 bra I;
mbarrier.init.shared.b64 [%r1], 1;
{copy}
I: bar.warp.sync -1;
{out}""",
        ["tm", ".u64 out", *(f".u32 c{i}" for i in range(rank))],
    )


def pieces_out(tile_bytes, swizzle):
    """A dense box to its bytes in shared memory, 16-byte piece by piece."""
    dense = tile_bytes.reshape(-1, 16)
    out = np.zeros_like(dense)
    for i in range(len(dense)):
        out[_swizzle(i * 16, swizzle) // 16] = dense[i]
    return out


TMA_CASES = [  # dtype, dims, box, coordinates, swizzle
    ("bf16", (64, 40), (64, 16), (0, 8), 128),
    ("bf16", (64, 40), (32, 16), (32, 30), 64),
    ("f32", (40, 9), (8, 4), (36, -2), 32),
    ("bf16", (128,), (64,), (96,), 0),
    ("u8", (64, 8), (32, 8), (-16, 0), 0),
    ("bf16", (64, 6, 5), (64, 4, 2), (0, 4, 4), 128),
    ("bf16", (32, 3, 4, 2), (32, 2, 2, 2), (0, -1, 3, 1), 64),
    ("f32", (16, 2, 3, 2, 2), (8, 2, 1, 2, 1), (8, 0, 2, 1, 1), 0),
]


@pytest.mark.parametrize("dtype,dims,box,coords,swizzle", TMA_CASES)
@pytest.mark.parametrize("store", [False, True])
def test_tma_tiles(dtype, dims, box, coords, swizzle, store):
    np_type = {"bf16": np.uint16, "f32": np.float32, "u8": np.uint8}[dtype]
    tensor = rng.integers(1, 200, dims[::-1]).astype(np_type)
    coords = [abs(c) for c in coords] if store else coords  # a stored box must not start below zero: the next test
    item = tensor.itemsize
    strides = [item * int(np.prod(dims[:i])) for i in range(1, len(dims))]
    nbytes = item * int(np.prod(box))
    m = TensorMap(Buffer(tensor), dtype, dims, strides, box, swizzle)
    params = [Scalar(c, "i32") for c in coords]
    inside = [(i, tuple(c + x for c, x in zip(coords, i))) for i in np.ndindex(*box)]
    inside = [(i, at) for i, at in inside if all(0 <= x < d for x, d in zip(at, dims))]
    if not store:
        out = np.zeros(nbytes, np.uint8)
        report = launch(tma_kernel(len(dims), nbytes), "k", 1, 32, (1, 1, 1), 1024 + nbytes, [m, Buffer(out.view(np.uint32)), *params])
        dense = np.zeros(box[::-1], np_type)
        for i, at in inside:
            dense[i[::-1]] = tensor[at[::-1]]
        np.testing.assert_array_equal(out.reshape(-1, 16), pieces_out(dense.view(np.uint8).ravel() if dense.ndim > 0 else dense, swizzle))
    else:
        dense = rng.integers(1, 200, box[::-1]).astype(np_type)
        image = pieces_out(np.ascontiguousarray(dense).reshape(-1).view(np.uint8), swizzle).reshape(-1)
        want = tensor.copy()
        for i, at in inside:
            want[at[::-1]] = dense[i[::-1]]
        report = launch(
            tma_kernel(len(dims), nbytes, True), "k", 1, 32, (1, 1, 1), 1024 + nbytes, [m, Buffer(image.view(np.uint32)), *params]
        )
        np.testing.assert_array_equal(tensor, want)
    assert report.ok, report.text()


def prefetch_kernel(rank):
    """The load's kernel up to its copy, with a prefetch instead."""
    before, copy, _ = re.split(r"^(cp\.async.*)$", tma_kernel(rank, 1024), flags=re.M)
    coords = re.search("{.*}", copy)[0]
    return f"{before}cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile [%rd2, {coords}];\nI: ret;\n}}\n"


TMA_STARTS = {"load": tma_kernel(2, 1024), "store": tma_kernel(2, 1024, True), "reduction": tma_kernel(2, 1024, True, "add"),
              "prefetch": prefetch_kernel(2)}  # fmt: skip
READS, WRITES = ("load", "prefetch"), ("store", "reduction")


@pytest.mark.parametrize(
    "kinds,dtype,coords,what",
    [  # as measured on an H200: what is refused here ends in an illegal instruction there, the rest is well
        (READS + WRITES, "f32", (4, 3), ""),
        (READS + WRITES, "f32", (60, 30), ""),
        (READS + WRITES, "f32", (64, 99), ""),
        (READS + WRITES, "f32", (2, 3), "no multiple of 16 bytes"),
        (READS + WRITES, "f32", (65, 3), "no multiple of 16 bytes"),
        (READS + WRITES, "bf16", (4, 3), "no multiple of 16 bytes"),
        (READS + WRITES, "bf16", (8, 3), ""),
        (READS, "f32", (-4, -3), ""),
        (WRITES, "f32", (-4, 3), "tensor store or reduction at \\(-4, 3\\)"),
        (WRITES, "f32", (4, -1), "tensor store or reduction at \\(4, -1\\)"),
        (WRITES, "f32", (-16, 3), "tensor store or reduction"),
        (READS, "f32", (-2, 3), "no multiple of 16 bytes"),
    ],
)
def test_where_a_tma_box_may_start(kinds, dtype, coords, what):
    item = {"f32": 4, "bf16": 2}[dtype]
    box = (16, 1024 // 16 // item)
    for kind in kinds:
        tensor = np.zeros((32, 64), np.float32 if item == 4 else np.uint16)
        params = [TensorMap(Buffer(tensor), dtype, (64, 32), (64 * item,), box, 0), Buffer(np.zeros(256, np.uint32))]
        args = TMA_STARTS[kind], "k", 1, 32, (1, 1, 1), 2048, [*params, *(Scalar(c, "i32") for c in coords)]
        if what:
            with pytest.raises(EmulatorError, match=what) as e:
                launch(*args)
            assert "cp." in args[0].splitlines()[e.value.line - 1], kind
        else:
            assert launch(*args).ok, kind


def test_tma_reduction():
    tensor = np.ones((4, 8), np.float32)
    tile = np.arange(32, dtype=np.float32)
    m = TensorMap(Buffer(tensor), "f32", (8, 4), (32,), (8, 4), 0)
    report = launch(tma_kernel(2, 128, True, "add"), "k", 1, 32, (1, 1, 1), 2048, [m, Buffer(tile), Scalar(0, "i32"), Scalar(3, "i32")])
    want = np.ones((4, 8), np.float32)
    want[3] += tile[:8]
    np.testing.assert_array_equal(tensor, want)
    assert report.ok


def raw_map(address, dtype_code, dims, strides, box, swizzle_code):
    """128 descriptor bytes, by the published field table."""
    dims, box = list(dims) + [1] * (5 - len(dims)), list(box) + [1] * (5 - len(box))
    strides = list(strides) + [0] * (4 - len(strides))
    flags = (len([d for d in dims if d > 1]) - 1) << 4 | dtype_code << 7 | swizzle_code << 13 | 2 << 17
    head = (
        struct.pack("<QI4I", address, flags, *(s >> 4 for s in strides))
        + struct.pack("<I", 0)
        + struct.pack("<5I", *(d - 1 for d in dims))
        + bytes(3)
        + bytes(b - 1 for b in box)
    )
    return head.ljust(128, b"\0")


def test_raw_descriptor_bytes():
    tensor = rng.integers(1, 200, (40, 64)).astype(np.uint16)
    m = TensorMap.from_bytes(raw_map(0x7F0012340000, 10, (64, 40), (128,), (64, 16), 3), Buffer(tensor))
    assert (m.dtype, m.dims, m.box, m.swizzle, tuple(m.strides_bytes)) == ("bf16", (64, 40), (64, 16), 128, (128,))
    out = np.zeros(2048, np.uint8)
    launch(tma_kernel(2, 2048), "k", 1, 32, (1, 1, 1), 4096, [m, Buffer(out.view(np.uint32)), Scalar(0, "i32"), Scalar(8, "i32")])
    np.testing.assert_array_equal(out.reshape(-1, 16), pieces_out(np.ascontiguousarray(tensor[8:24]).view(np.uint8).ravel(), 128))


@pytest.mark.parametrize(
    "change,what",
    [
        ({"box": (64, 257)}, "256"),
        ({"box": (4, 16)}, "multiple of 16"),
        ({"strides_bytes": (120,)}, "multiples of 16"),
        ({"swizzle": 64}, "swizzle span"),
        ({"dims": (64, 40, 2)}, "rank"),
    ],
)
def test_bad_tensor_maps_are_refused(change, what):
    args = {"dtype": "bf16", "dims": (64, 40), "strides_bytes": (128,), "box": (64, 16), "swizzle": 128} | change
    with pytest.raises(EmulatorError, match=what):
        TensorMap(Buffer(np.zeros((40, 64), np.uint16)), **args)


def test_map_larger_than_its_buffer():
    m = TensorMap(Buffer(np.zeros((40, 64), np.uint16)), "bf16", (64, 41), (128,), (64, 16), 128)
    with pytest.raises(EmulatorError, match="spans"):
        launch(tma_kernel(2, 2048), "k", 1, 32, (1, 1, 1), 4096, [m, Buffer(np.zeros(512, np.uint32)), Scalar(0, "i32"), Scalar(8, "i32")])


# --- warp-level matrices ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix_and_stmatrix(trans):
    data = rng.integers(0, 1 << 16, (32, 8)).astype(np.uint16)
    out = np.zeros((32, 8), np.uint16)
    text = ptx(
        f"""
ld.param.u64 %rd0, [src]; ld.param.u64 %rd1, [out];
mul.wide.u32 %rd2, %r0, 16; add.u64 %rd3, %rd0, %rd2; add.u64 %rd4, %rd1, %rd2;
ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd3];
shl.b32 %r8, %r0, 4; add.u32 %r8, %r8, %r1;
st.shared.v4.b32 [%r8], {{%r4, %r5, %r6, %r7}};
bar.warp.sync -1;
ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r8];
stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r8+512], {{%r10, %r11, %r12, %r13}};
bar.warp.sync -1;
ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r8+512];
st.global.v4.b32 [%rd4], {{%r4, %r5, %r6, %r7}};""",
        [".u64 src", ".u64 out"],
    )
    report = launch(text, "k", 1, 32, (1, 1, 1), 1024, [Buffer(data), Buffer(out)])
    want = data.reshape(4, 8, 8).transpose(0, 2, 1).reshape(32, 8) if trans else data
    np.testing.assert_array_equal(out, want)
    assert report.ok, report.text()


@pytest.mark.parametrize("k,t", [(16, "bf16"), (8, "bf16"), (16, "f16")])
def test_mma_sync(k, t):
    is_bf16 = t == "bf16"
    a, b, c = (
        encode(rng.standard_normal((16, k)).astype(np.float32), is_bf16),
        encode(rng.standard_normal((8, k)).astype(np.float32), is_bf16),
        rng.standard_normal((16, 8)).astype(np.float32),
    )
    na, nb = k // 4, k // 8
    lane = np.arange(32)
    g, q = lane // 4, lane % 4
    A = np.zeros((32, na), np.uint32)
    for r in range(na):
        row, col = g + 8 * (r % 2), 2 * q + 8 * (r // 2)
        A[:, r] = a[row, col].astype(np.uint32) | a[row, col + 1].astype(np.uint32) << 16
    B = np.zeros((32, nb), np.uint32)
    for r in range(nb):
        B[:, r] = b[g, 2 * q + 8 * r].astype(np.uint32) | b[g, 2 * q + 8 * r + 1].astype(np.uint32) << 16
    C = np.stack([c[g + 8 * (r // 2), 2 * q + r % 2] for r in range(4)], 1)
    out = np.zeros((32, 4), np.float32)
    lists = {
        n: "{" + ", ".join(f"%acc{s + i}" for i in range(m)) + "}" for n, s, m in (("a", 0, na), ("b", 10, nb), ("c", 20, 4), ("d", 30, 4))
    }
    loads = "".join(
        f"ld.global.b32 %acc{s + i}, [%rd{r}+{4 * i}];\n" for s, r, m in ((0, 10, na), (10, 11, nb), (20, 12, 4)) for i in range(m)
    )
    text = ptx(
        "".join(f"ld.param.u64 %rd{i}, [p{i}];" for i in range(4))
        + f"mul.wide.u32 %rd4, %r0, {4 * na}; mul.wide.u32 %rd5, %r0, {4 * nb}; mul.wide.u32 %rd6, %r0, 16;"
        "add.u64 %rd10, %rd0, %rd4; add.u64 %rd11, %rd1, %rd5; add.u64 %rd12, %rd2, %rd6; add.u64 %rd13, %rd3, %rd6;\n"
        + loads
        + f"mma.sync.aligned.m16n8k{k}.row.col.f32.{t}.{t}.f32 {lists['d']}, {lists['a']}, {lists['b']}, {lists['c']};\n"
        + "".join(f"st.global.b32 [%rd13+{4 * i}], %acc{30 + i};\n" for i in range(4)),
        [f".u64 p{i}" for i in range(4)],
    )
    launch(text, "k", 1, 32, (1, 1, 1), 0, [Buffer(A), Buffer(B), Buffer(np.ascontiguousarray(C)), Buffer(out)])
    want = decode(a, is_bf16).astype(np.float64) @ decode(b, is_bf16).astype(np.float64).T + c
    for r in range(4):
        np.testing.assert_allclose(out[:, r], want[g + 8 * (r // 2), 2 * q + r % 2], rtol=1e-5, atol=1e-5)


def test_a_workspace_keeps_what_earlier_launches_wrote():
    write = ptx("ld.param.u64 %rd0, [w]; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd0, %rd1; st.global.u32 [%rd1], %r0;", [".u64 w"])
    read = ptx(
        "ld.param.u64 %rd0, [w]; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd0, %rd1; ld.global.u32 %r4, [%rd1+OFF]; "
        "st.global.u32 [%rd1], %r4;",
        [".u64 w"],
    )
    w = Buffer(np.zeros(64, np.uint32), name="w", poison=True)
    assert launch(write, "k", 1, 32, (1, 1, 1), 0, [w]).ok
    assert launch(read.replace("OFF", "0"), "k", 1, 32, (1, 1, 1), 0, [w]).ok
    report = launch(read.replace("OFF", "64"), "k", 1, 32, (1, 1, 1), 0, [w])
    assert [h.cls for h in report.hazards if h.cls == "uninitialised"], report.text()
