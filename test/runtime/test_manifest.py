"""The manifest's schema: each mistake is refused with its path and what belongs there."""

import copy

import pytest
from runtime_samples import MEMBERS, manifest

from fa4c.runtime import artifact
from fa4c.runtime.errors import ManifestError
from fa4c.runtime.manifest import all_alignments, validate


def good():
    return copy.deepcopy(artifact.build(manifest(), MEMBERS).manifest)


def at(m, path):
    for part in path:
        m = m[part]
    return m


KERNEL = ("kernels", "fwd")
MISTAKES = [
    # path of the container, field, new value (... removes it), what the message says
    ((), "target", "sm_90", "unknown target 'sm_90'.*did you mean 'sm_90a'"),
    ((), "kernels", ..., "field 'kernels' is missing"),
    ((), "tensors", {}, "needs list"),
    (("tensors", 0), "dtype", "bf61", "'bf61' is none of .*did you mean 'bf16'"),
    (("tensors", 0), "layout", ["b", "m", "d"], r"no order of the axes \['b', 'hq'\]"),
    (("tensors", 0), "shape", [64], "1 sizes for the 2 dims"),
    (("tensors", 1), "name", "q", "'q' is used twice"),
    (("steps", 0), "kernel", "fwdd", "'fwdd' is none of fwd.*did you mean 'fwd'"),
    (("steps", 0), "wen", 1, "unknown field 'wen'.*did you mean 'when'"),
    (("steps", 0), "when", ["lt", "m"], "lt takes 2 operands, got 1"),
    (KERNEL, "grid", [1, 1], "three expressions, got 2"),
    (KERNEL, "grid", [["cieldiv", "m", 128], 1, 1], "unknown operation 'cieldiv'.*did you mean 'ceildiv'"),
    (KERNEL, "grid", ["mm", 1, 1], "unknown symbol 'mm'"),
    (KERNEL, "grid", [1.5, 1, 1], "no integer expression"),
    (KERNEL, "block", [384, 1], "three positive integers"),
    (KERNEL, "smem_bytes", "1", "needs int, got '1'"),
    (KERNEL, "cubin", "other.cubin", "'other.cubin', which is no member.*did you mean 'sample.cubin'"),
    ((*KERNEL, "params", 0), "kind", "tensormap", "did you mean 'tensor_map'"),
    ((*KERNEL, "params", 0), "tensor", "x", "'x' is none of"),
    ((*KERNEL, "params", 0), "swizzle", 256, "256 is none of 0, 32, 64, 128"),
    ((*KERNEL, "params", 0), "box", [128, 128, 1, 1], "256 bytes.*above the swizzle span 128"),
    ((*KERNEL, "params", 0), "box", [64, 512, 1, 1], "integers of 1 to 256"),
    ((*KERNEL, "params", 0), "dims", [{"dim": "d"}, {"dim": "m"}], "must list each of the tensor's"),
    ((*KERNEL, "params", 0), "stride", 1, "unknown field 'stride'"),
    ((*KERNEL, "params", 5), "value", 0.5, "0.5 is no integer"),
    ((*KERNEL, "params", 5), "dtype", "i8", "'i8' is none of i32, i64, f32"),
    ((*KERNEL, "params", 5), "value", ["aligned", "z", 16], "unknown tensor 'z'"),
]


WORKSPACE = {
    "name": "w", "dtype": "f32", "axes": ["b"], "dims": ["b", "m"], "shape": [None, None], "pad": 4,
    "size": ["mul", "b", "m", 2], "init": "none", "lifetime": "call",
}  # fmt: skip
WORKSPACE_MAP = {"kind": "tensor_map", "tensor": "w", "dtype": "f32", "dims": [{"dim": "m"}, {"dim": "b"}], "box": [64, 1], "swizzle": 0}
WORKSPACE_MISTAKES = [
    (("workspaces", 0), "pad", 0, "positive number of elements, got 0"),
    (("workspaces", 0), "pad", 2, r"rows of the workspace 'w' are multiples of 8 bytes(.|\n)*pad = 4"),
    (("workspaces", 0), "dims", ["b", "mm"], "'mm' is none of"),
    (("workspaces", 0), "shape", [None], "1 sizes for the 2 dims"),
    (("workspaces", 0), "shape", [None, -1], "null or a positive integer, got -1"),
    (("workspaces", 0), "axes", ["hq"], "are not all among the dims"),
    (("workspaces", 0), "padding", 4, "unknown field 'padding'.*did you mean 'pad'"),
    ((*KERNEL, "params", -1), "dims", [{"dim": "b"}, {"dim": "m"}], r"must be \['m', 'b'\], innermost first"),
    ((*KERNEL, "params", -2), "dim", "n", "'n' is none of b, m"),
]


@pytest.mark.parametrize("path, field, value, message", WORKSPACE_MISTAKES)
def test_a_workspace_with_dimensions(path, field, value, message):
    m = good()
    m["workspaces"] = [copy.deepcopy(WORKSPACE)]
    m["kernels"]["fwd"]["params"] += [{"kind": "stride", "tensor": "w", "dim": "b"}, copy.deepcopy(WORKSPACE_MAP)]
    validate(m)
    at(m, path)[field] = value
    with pytest.raises(ManifestError, match=message):
        validate(m, "x.fa4c")


@pytest.mark.parametrize(
    "path, field, value, message", MISTAKES, ids=[f"{'.'.join(map(str, p))}.{f}-{k}" for k, (p, f, *_) in enumerate(MISTAKES)]
)
def test_mistake_is_located(path, field, value, message):
    m = good()
    if value is ...:
        del at(m, path)[field]
    else:
        at(m, path)[field] = value
    with pytest.raises(ManifestError, match=message) as caught:
        validate(m, "x.fa4c")
    assert str(caught.value).startswith("x.fa4c")


def test_a_good_manifest_passes_and_informing_fields_are_free():
    m = good()
    m["note"] = m["kernels"]["fwd"]["note"] = "anything"
    assert validate(m) is m


def test_a_dropped_field_anywhere_is_refused_or_has_a_default():
    """Every field of a tensor, workspace, step and parameter: without it, a located error, never another kind of exception."""
    defaults = {"optional", "pdl", "registers", "stack_bytes", "local_bytes", "cubin"}
    whole = good()
    whole["workspaces"] = [{"name": "w", "dtype": "f32", "size": "m", "init": "zero", "lifetime": "cached"}]
    places = [("tensors", k) for k in range(5)] + [("workspaces", 0), ("steps", 0), KERNEL] + [(*KERNEL, "params", k) for k in range(9)]
    for path in places:
        for field in list(at(whole, path)):
            m = copy.deepcopy(whole)
            del at(m, path)[field]
            if field in defaults or (path == KERNEL and field == "ptx"):
                validate(m)
            else:
                with pytest.raises(ManifestError):
                    validate(m)


def test_alignments_are_collected_from_everywhere():
    m = good()
    m["steps"][0]["when"] = ["and", ["aligned", "q", 16], ["ge", "m", 64]]
    m["kernels"]["fwd"]["params"][5]["value"] = ["select", ["aligned", "lse", 128], 1, 0]
    assert all_alignments(validate(m)) == [("lse", 128), ("q", 16)]
