"""Hand-made trees and manifests for the runtime's tests: no compiler takes part."""


def attention_tree(*, mask=None, score=None, captures=(), align="bottom_right", layout="bshd", dtype="bf16", d=64, dv=64, name="sample"):
    """The semantics of attention; `score`: EXPR of the scaled score (default x / sqrt(d)), `mask`: EXPR or None, `captures`: more args."""
    score = score or [["x", 0], ["const", d**-0.5, "f32"], ["mul", 0, 1]]

    def tensor(n, axes, dims, shape):
        return {"name": n, "dtype": dtype, "axes": axes, "dims": dims, "shape": shape, "fill": "normal"}

    args = [
        tensor("q", ["b", "hq"], ["m", "d"], [None, d]),
        tensor("k", ["b", "hkv"], ["n", "d"], [None, d]),
        tensor("v", ["b", "hkv"], ["n", "dv"], [None, dv]),
        *captures,
    ]
    body = [
        {"op": "gemm", "in": ["q", "k"], "out": ["s"], "transpose_b": True, "dtype": "f32"},
        {"op": "map", "in": ["s"], "out": ["t"], "expr": score, "dtype": "f32"},
    ]
    if mask:
        body.append({"op": "mask", "in": ["t"], "out": ["u"], "expr": mask})
    body += [
        {"op": "softmax", "in": ["u" if mask else "t"], "out": ["p", "l"]},
        {"op": "cast", "in": ["p"], "out": ["pc"], "dtype": dtype},
        {"op": "gemm", "in": ["pc", "v"], "out": ["w"], "transpose_b": False, "dtype": "f32"},
        {"op": "cast", "in": ["w"], "out": ["r"], "dtype": dtype},
    ]
    results = [
        {"name": "o", "value": "r", "dtype": dtype, "axes": ["b", "hq"], "dims": ["m", "dv"], "shape": [None, dv]},
        {"name": "lse", "value": "l", "dtype": "f32", "axes": ["b", "hq"], "dims": ["m"], "shape": [None]},
    ]
    return {"schema": 1, "name": name, "align": align, "layout": layout, "args": args, "body": body, "results": results}


CAUSAL = [["index", "j"], ["index", "i"], ["le", 0, 1]]
SLOPES = {"name": "slopes", "dtype": "f32", "axes": ["hq"], "dims": [], "shape": [], "fill": "alibi"}
ALIBI_SCORE = [
    ["x", 0],
    ["const", 0.125, "f32"],
    ["mul", 0, 1],
    ["load", "slopes"],
    ["index", "j"],
    ["index", "i"],
    ["sub", 4, 5],
    ["cast", 6, "f32"],
    ["mul", 3, 7],
    ["add", 2, 8],
]


def tile_map(tensor, dims, box, dtype="bf16"):
    return {"kind": "tensor_map", "tensor": tensor, "dtype": dtype, "dims": [{"dim": x} for x in dims], "box": box, "swizzle": 128}


def manifest(semantics=None, **changes):
    """A manifest of the form that the lowering writes, for `attention_tree()`'s q, k, v, o, lse (and captures as pointers)."""
    semantics = semantics or attention_tree(mask=CAUSAL)
    dtype = semantics["args"][0]["dtype"]
    d, dv = semantics["args"][0]["shape"][1], semantics["args"][2]["shape"][1]
    tensors = [
        {
            "name": "q",
            "role": "input",
            "dtype": dtype,
            "axes": ["b", "hq"],
            "dims": ["m", "d"],
            "shape": [None, d],
            "layout": ["b", "m", "hq", "d"],
        },
        {
            "name": "k",
            "role": "input",
            "dtype": dtype,
            "axes": ["b", "hkv"],
            "dims": ["n", "d"],
            "shape": [None, d],
            "layout": ["b", "n", "hkv", "d"],
        },
        {
            "name": "v",
            "role": "input",
            "dtype": dtype,
            "axes": ["b", "hkv"],
            "dims": ["n", "dv"],
            "shape": [None, dv],
            "layout": ["b", "n", "hkv", "dv"],
        },
        *(
            {
                "name": c["name"],
                "role": "input",
                "dtype": c["dtype"],
                "axes": c["axes"],
                "dims": c["dims"],
                "shape": c["shape"],
                "layout": c["axes"] + c["dims"],
            }
            for c in semantics["args"][3:]
        ),
        {
            "name": "o",
            "role": "output",
            "dtype": dtype,
            "axes": ["b", "hq"],
            "dims": ["m", "dv"],
            "shape": [None, dv],
            "layout": ["b", "m", "hq", "dv"],
        },
        {
            "name": "lse",
            "role": "output",
            "dtype": "f32",
            "axes": ["b", "hq"],
            "dims": ["m"],
            "shape": [None],
            "layout": ["b", "hq", "m"],
            "optional": True,
        },
    ]
    params = [
        tile_map("q", ["d", "m", "hq", "b"], [64, 128, 1, 1], dtype),
        tile_map("k", ["d", "n", "hkv", "b"], [64, 128, 1, 1], dtype),
        tile_map("v", ["dv", "n", "hkv", "b"], [64, 128, 1, 1], dtype),
        tile_map("o", ["dv", "m", "hq", "b"], [64, 128, 1, 1], dtype),
        {"kind": "pointer", "tensor": "lse"},
        {"kind": "scalar", "dtype": "i32", "value": "m"},
        {"kind": "scalar", "dtype": "i32", "value": "n"},
        {"kind": "scalar", "dtype": "i32", "value": ["floordiv", "hq", "hkv"]},
        {"kind": "scalar", "dtype": "f32", "value": 0.125},
        *({"kind": "pointer", "tensor": c["name"]} for c in semantics["args"][3:]),
    ]
    kernel = {
        "entry": "sample_0",
        "ptx": "sample.ptx",
        "cubin": "sample.cubin",
        "block": [384, 1, 1],
        "smem_bytes": 164864,
        "cluster": [1, 1, 1],
        "pdl": False,
        "grid": [["ceildiv", "m", 128], "hq", "b"],
        "registers": 168,
        "stack_bytes": 0,
        "local_bytes": 0,
        "params": params,
    }
    return {
        "schema": 1,
        "name": semantics["name"],
        "fa4c": "0.1.0",
        "dsl": "0",
        "target": "sm_90a",
        "ptx_version": "8.8",
        "direction": "fwd",
        "dtype": dtype,
        "head_dims": {"d": d, "dv": dv},
        "members": {},
        "semantics": semantics,
        "tensors": tensors,
        "workspaces": [],
        "steps": [{"op": "launch", "kernel": "fwd"}],
        "kernels": {"fwd": kernel},
        **changes,
    }


MEMBERS = {"sample.ptx": ".version 8.8\n.target sm_90a\n", "sample.cubin": b"\x7fELF no kernel", "sample.cute.py": "# no source\n"}
