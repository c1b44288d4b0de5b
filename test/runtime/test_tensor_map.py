"""TMA descriptors in Python: against the field table and bytes written by hand. The GPU suite compares them with the driver's."""

import random

import pytest
from runtime_samples import tile_map

from fa4c.runtime.layout import contiguous_strides
from fa4c.runtime.tensor_map import MapSpec, decode, encode, problem, spec


def test_bytes_of_one_descriptor_by_hand():
    """bf16 (b=2, s=1000, h=8, d=128) seen as D, S, H, B; box 64 x 128; swizzle 128 B. Computed from the table with a pencil."""
    m = MapSpec("bf16", (128, 1000, 8, 2), (2048, 256, 2048000), (64, 128, 1, 1), 128)
    wanted = bytes.fromhex(
        "0000a00000000000"  # address 0xa00000
        "30650400"  # flags: rank-1 = 3 << 4 | bf16 10 << 7 | swizzle 3 << 13 | L2 128B 2 << 17 = 0x46530
        "80000000"
        "10000000"
        "00f40100"
        "00000000"
        "00000000"  # strides / 16: 128, 16, 128000, 0; high bits
        "7f000000"
        "e7030000"
        "07000000"
        "01000000"
        "00000000"  # sizes - 1
        "000000"
        "3f7f000000" + "00" * 4  # element strides - 1; box - 1
    )
    assert encode(m, 0xA00000)[:64] == wanted and len(encode(m)) == 128 and encode(m)[64:] == bytes(64)


def test_each_field_changes_only_its_bytes():
    base = MapSpec("bf16", (128, 1000, 8, 2), (2048, 256, 2048000), (64, 128, 1, 1), 128)
    changes = [
        (dict(dtype="fp16"), {8, 9}),
        (dict(swizzle=64), {9}),
        (dict(swizzle=0), {9}),
        (dict(shape=(128, 1001, 8, 2)), {36}),
        (dict(strides=(2064, 256, 2048000)), {12}),
        (dict(strides=(2048, 272, 2048000)), {16}),
        (dict(box=(64, 64, 1, 1)), {56}),
        (dict(strides=(2048 + (1 << 36), 256, 2048000)), {28}),
        (dict(strides=(2048, 256 + (1 << 37), 2048000)), {28}),
        (dict(strides=(2048, 256, 2048000 + (1 << 36))), {29}),
    ]
    for change, places in changes:
        other = encode(MapSpec(**{**base.__dict__, **change}))
        assert {k for k in range(128) if other[k] != encode(base)[k]} <= places, change
        assert other != encode(base)
    assert encode(base, 1 << 40)[8:] == encode(base)[8:]


def test_decode_inverts_encode():
    rng = random.Random(1)
    for _ in range(300):
        rank = rng.randint(1, 5)
        m = MapSpec(
            rng.choice(["bf16", "fp16", "f32"]),
            tuple(rng.randint(1, 1 << rng.randint(0, 32)) for _ in range(rank)),
            tuple(16 * rng.randint(0, (1 << rng.randint(0, 36)) - 1) for _ in range(rank - 1)),
            tuple(rng.randint(1, 256) for _ in range(rank)),
            rng.choice([0, 32, 64, 128]),
        )
        address = 16 * rng.randint(0, 1 << 50)
        assert decode(encode(m, address)) == (address, m)


@pytest.mark.parametrize(
    "change",
    [
        dict(strides=(2049, 256)),
        dict(strides=(1 << 40, 256)),
        dict(shape=(0, 1, 1)),
        dict(shape=((1 << 32) + 1, 1, 1)),
        dict(box=(257, 1, 1)),
        dict(box=(0, 1, 1)),
    ],
)
def test_what_does_not_fit_is_refused(change):
    good = dict(dtype="bf16", shape=(64, 10, 10), strides=(128, 256), box=(64, 1, 1), swizzle=128)
    encode(MapSpec(**good))
    with pytest.raises(ValueError, match="cannot describe"):
        encode(MapSpec(**{**good, **change}))
    with pytest.raises(ValueError):
        encode(MapSpec(**good), 8)


@pytest.mark.parametrize(
    "shape, strides, reason",
    [
        ((128, 10, 8), (1, 1024, 128), None),
        ((128, 10, 8), (2, 1024, 128), "inner stride is 2"),
        ((128, 10, 8), (1, 1025, 128), "2050 bytes, no multiple of 16"),
        ((128, 10, 8), (1, 1024, 0), "stride 0"),
        ((128, 10, 1), (1, 1024, 0), None),  # never followed
        ((128, 1, 1), (1, 3, 5), None),
        ((1, 10, 8), (7, 1024, 128), None),
        ((128, 10, 8), (1, -1024, 128), "no multiple of 16"),
        ((128, 10, 8), (1, 1 << 39, 128), "not below 2\\^40"),
        ((128, 10, 8), (1, (1 << 39) - 8, 128), None),
    ],
)
def test_problem(shape, strides, reason):
    import re

    got = problem(shape, strides, 2)
    assert got is None if reason is None else re.search(reason, got)


def test_stride_zero_where_the_driver_takes_it():
    assert problem((128, 10, 8), (1, 1024, 0), 2, zero_stride=True) is None


def test_spec_reorders_and_gives_unfollowed_strides_a_legal_value():
    layout = ["b", "m", "hq", "d"]
    got = spec(tile_map("q", ["d", "m", "hq", "b"], [64, 128, 1, 1]), layout, (2, 1000, 8, 128), contiguous_strides((2, 1000, 8, 128)))
    assert got == MapSpec("bf16", (128, 1000, 8, 2), (2048, 256, 2048000), (64, 128, 1, 1), 128)
    got = spec(tile_map("q", ["d", "m", "hq", "b"], [64, 128, 1, 1]), layout, (1, 1, 1, 72), (3, 5, 7, 1))
    assert got.strides == (144, 144, 144)
    encode(got)


def test_wide_views_keep_64_bit_strides():
    """B10: a row stride of 2^21 elements, and strides that pass 2^32 bytes."""
    layout = ["b", "m", "hq", "d"]
    got = spec(tile_map("q", ["d", "m", "hq", "b"], [64, 128, 1, 1]), layout, (2, 410923, 16, 96), (410923 * (1 << 21), 1 << 21, 96, 1))
    assert got.strides == (1 << 22, 192, 410923 << 22) and got.strides[2] > 1 << 40 - 1
    assert problem((96, 410923, 16, 2), (1, 1 << 21, 96, 410923 << 21), 2)  # above 2^40: to be copied
    narrow = MapSpec("bf16", (96, 2050, 16, 2), (1 << 22, 192, 2050 << 22), (64, 128, 1, 1), 128)
    assert decode(encode(narrow))[1].strides[2] == 2050 << 22 > 1 << 32
