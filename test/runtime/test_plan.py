"""Planning: sizes, parameters, predicates and limits, without a GPU."""

import struct

import pytest
from runtime_samples import MEMBERS, SLOPES, attention_tree, manifest

from fa4c.runtime import artifact
from fa4c.runtime.errors import BackendError, InputError
from fa4c.runtime.layout import contiguous_strides, memory_layout
from fa4c.runtime.plan import Fill, Launch

DEVICE = {"num_sms": 132, "l2_bytes": 50 << 20}


def geometry(b=2, hq=8, hkv=2, m=1000, n=777, d=64, dv=64, **more):
    shapes = {"q": (b, m, hq, d), "k": (b, n, hkv, d), "v": (b, n, hkv, dv), **more}
    return {name: (shape, contiguous_strides(shape)) for name, shape in shapes.items()}


def program(**changes):
    return artifact.build(manifest(**changes), MEMBERS).program


def test_a_launch_has_grid_maps_pointers_and_scalars():
    plan = program().plan(geometry(), ("o", "lse"), DEVICE)
    (launch,) = plan.steps
    assert launch.grid == (8, 8, 2) and plan.output_shapes == {"o": (2, 1000, 8, 64), "lse": (2, 8, 1000)}
    q, k, v, o, lse, m, n, group, scale = launch.params
    assert q.tensor == "q" and q.map.shape == (64, 1000, 8, 2) and k.map.shape == (64, 777, 2, 2) and o.map.box == (64, 128, 1, 1)
    assert lse.tensor == "lse" and len(lse.data) == 8 and len(q.data) == 128
    assert [struct.unpack("<i", p.data)[0] for p in (m, n, group)] == [1000, 777, 4] and struct.unpack("<f", scale.data)[0] == 0.125


def test_an_unwanted_output_gets_the_pointer_0():
    plan = program().plan(geometry(), ("o",), DEVICE)
    lse = plan.steps[0].params[4]
    assert lse.tensor is None and lse.data == bytes(8) and plan.output_shapes.keys() == {"o"}


def test_strides_go_in_64_bits():
    """B10: offsets past 2^31, here through a stride parameter."""
    m = manifest(attention_tree(captures=[{**SLOPES, "dims": ["p"], "shape": [None]}]))
    m["kernels"]["fwd"]["params"].append({"kind": "stride", "tensor": "slopes", "dim": "hq"})
    given = geometry(slopes=(8, 3))
    given["slopes"] = (8, 3), (1 << 33, 1)
    plan = artifact.build(m, MEMBERS).program.plan(given, ("o",), DEVICE)
    assert struct.unpack("<q", plan.steps[0].params[-1].data)[0] == 1 << 33


def test_long_sequences_stay_positive():
    """B11: Sk * (d + dv) * 2 bytes passes 2^31 from Sk = 4194304."""
    for n in (1 << 21, 1 << 22, 1 << 23):
        changed = manifest()
        changed["kernels"]["fwd"]["params"].append({"kind": "scalar", "dtype": "i64", "value": ["mul", "n", ["add", "d", "dv"], 2]})
        plan = artifact.build(changed, MEMBERS).program.plan(geometry(b=1, m=2048, n=n, hq=8, hkv=1), ("o",), DEVICE)
        assert struct.unpack("<q", plan.steps[0].params[-1].data)[0] == n * 256
        assert plan.steps[0].params[1].map.shape[1] == n and struct.unpack("<i", plan.steps[0].params[6].data)[0] == n


def test_a_scalar_that_does_not_fit_is_an_error_not_cut():
    changed = manifest()
    changed["kernels"]["fwd"]["params"].append({"kind": "scalar", "dtype": "i32", "value": ["mul", "n", 1024]})
    with pytest.raises(BackendError, match="4294967296 and does not fit i32"):
        artifact.build(changed, MEMBERS).program.plan(geometry(n=1 << 22), ("o",), DEVICE)


def test_fast_division_constants_use_all_32_bits():
    changed = manifest()
    changed["kernels"]["fwd"]["params"].append({"kind": "scalar", "dtype": "i32", "value": ["sub", 1 << 32, 1]})
    plan = artifact.build(changed, MEMBERS).program.plan(geometry(), ("o",), DEVICE)
    assert plan.steps[0].params[-1].data == b"\xff" * 4


def test_a_grid_past_its_limit_is_an_error():
    with pytest.raises(BackendError, match=r"grid.z = 70000 .*not in 1..65535"):
        program().plan(geometry(b=70000, m=1, n=1), ("o",), DEVICE)


def test_predicates_choose_steps_and_see_alignment():
    two = manifest(
        steps=[
            {"op": "launch", "kernel": "fwd", "when": ["and", ["ge", "m", 512], ["aligned", "q", 16]]},
            {"op": "launch", "kernel": "small", "when": ["not", ["and", ["ge", "m", 512], ["aligned", "q", 16]]]},
        ]
    )
    two["kernels"]["small"] = {**two["kernels"]["fwd"], "grid": [1, 1, 1]}
    p = artifact.build(two, MEMBERS).program
    assert p.alignments == [("q", 16)]
    for m, fine, wanted in ((512, True, "fwd"), (511, True, "small"), (512, False, "small")):
        plan = p.plan(geometry(m=m), ("o",), DEVICE, {("aligned", "q", 16): fine})
        assert [s.kernel for s in plan.steps] == [wanted]


def test_no_step_for_these_sizes_is_an_error():
    p = program(steps=[{"op": "launch", "kernel": "fwd", "when": ["ge", "m", 512]}])
    with pytest.raises(BackendError, match="no step of this artifact is for the sizes"):
        p.plan(geometry(m=5), ("o",), DEVICE)


def test_workspaces_and_fills():
    p = program(
        workspaces=[{"name": "w", "dtype": "f32", "size": ["mul", "b", "hq", "m"], "init": "zero", "lifetime": "cached"}],
        steps=[{"op": "fill", "buffer": "w", "value": 0}, {"op": "fill", "buffer": "lse", "value": 1.5}, {"op": "launch", "kernel": "fwd"}],
    )
    plan = p.plan(geometry(), ("o", "lse"), DEVICE)
    assert (
        plan.workspaces[0].size == 16000
        and plan.steps[0] == Fill("w", 0)
        and plan.steps[1] == Fill("lse", 1.5)
        and isinstance(plan.steps[2], Launch)
    )
    assert [type(s) for s in p.plan(geometry(), ("o",), DEVICE).steps] == [Fill, Launch]


def test_strides_and_descriptors_of_a_workspace_are_those_of_its_padded_rows():
    dims = ["b", "hq", "m"]
    w = {"name": "w", "dtype": "f32", "dims": dims, "shape": [None] * 3, "pad": 4, "size": 1, "init": "none", "lifetime": "call"}
    box = {"kind": "tensor_map", "tensor": "w", "dtype": "f32", "dims": [{"dim": d} for d in dims[::-1]], "box": [64, 1, 1], "swizzle": 0}
    m = manifest(workspaces=[w])
    strides = [{"kind": "stride", "tensor": "w", "dim": d} for d in dims]
    m["kernels"]["fwd"]["params"] = [box, *strides, {"kind": "pointer", "tensor": "w"}]
    plan = artifact.build(m, MEMBERS).program.plan(geometry(m=133), ("o",), DEVICE)
    batch, heads = plan.sizes["b"], plan.sizes["hq"]
    described, *strides, pointer = plan.steps[0].params
    assert described.tensor == pointer.tensor == "w"
    assert described.map.shape == (133, heads, batch)  # the padding is out of bounds
    assert described.map.strides == (136 * 4, heads * 136 * 4)
    assert [struct.unpack("<q", s.data)[0] for s in strides] == [heads * 136, 136, 1]


@pytest.mark.parametrize("sizes", [dict(m=0), dict(n=0), dict(b=0), dict(hq=0, hkv=0)])
def test_a_size_of_zero_plans_nothing(sizes):
    plan = program().plan(geometry(**sizes), ("o",), DEVICE)
    assert plan.empty and not plan.steps


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(k=(2, 777, 2, 32)), "k has d = 32, but this kernel is for d = 64"),
        (dict(v=(2, 776, 2, 64)), "v has n = 776, but k has n = 777"),
        (dict(q=(2, 1000, 64)), r"q has 3 dimensions \(2, 1000, 64\), but needs 4: \(b, m, hq, d\)"),
        (dict(k=(3, 777, 2, 64)), "k has b = 3, but q has b = 2"),
        (dict(q=(2, 1000, 7, 64)), "7 query heads are no multiple of 2"),
        (dict(k=(2, 777, 0, 64), v=(2, 777, 0, 64)), "8 query heads are no multiple of 0"),
    ],
)
def test_wrong_shapes(change, message):
    with pytest.raises(InputError, match=message):
        program().plan(geometry(**change), ("o",), DEVICE)


def test_layout_problems_name_the_tensor_that_is_copied():
    p = artifact.build(manifest(attention_tree(captures=[SLOPES])), MEMBERS).program
    shape = (2, 10, 8, 64)
    assert p.layout_problem("q", shape, contiguous_strides(shape)) is None
    assert p.layout_problem("q", shape, (3 * 5120, 3 * 512, 64, 1)) is None  # a slice of a fused projection is read in place
    assert p.layout_problem("q", shape, (640, 64, 640 * 2, 1)) is None  # (b, h, s, d) seen as (b, s, h, d)
    assert "stride 0" in p.layout_problem("q", shape, (5120, 512, 0, 1))
    assert "inner stride is 8" in p.layout_problem("q", shape, (5120, 512, 1, 8))
    assert "not told strides of hq" in p.layout_problem("slopes", (8,), (2,))
    assert p.layout_problem("slopes", (8,), (1,)) is None and p.layout_problem("slopes", (1,), (2,)) is None


@pytest.mark.parametrize(
    "axes, dims, layout, packed, wanted",
    [
        (["b", "hq"], ["m", "d"], "bshd", (), ["b", "m", "hq", "d"]),
        (["b", "hq"], ["m", "d"], "bhsd", (), ["b", "hq", "m", "d"]),
        (["b", "hq"], ["m"], "bshd", (), ["b", "hq", "m"]),
        (["hq"], [], "bshd", (), ["hq"]),
        (["b"], ["m", "n"], "bshd", (), ["b", "m", "n"]),
        (["hq"], ["m", "n"], "bshd", (), ["hq", "m", "n"]),
        (["b", "hkv"], ["n", "d"], "bshd", ("n",), ["n", "hkv", "d"]),
        (["b", "hq"], ["m"], "bshd", ("m",), ["hq", "m"]),
        (["b", "hq"], ["m", "d"], "bhsd", ("m",), ["hq", "m", "d"]),
    ],
)
def test_memory_layout(axes, dims, layout, packed, wanted):
    assert memory_layout(axes, dims, layout, packed) == wanted
