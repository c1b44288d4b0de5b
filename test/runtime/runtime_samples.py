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


# -- a backward ----------------------------------------------------------------------------------------------------------------------------


def backward_tree(forward, *, wrt=("q", "k", "v"), of=("o",)):
    """What is derived from `attention_tree` with the default score: gradients of `of` (o, lse), for `wrt`."""
    q, k, v = forward["args"][:3]
    o, lse = forward["results"]
    dtype, masks = q["dtype"], [op for op in forward["body"] if op["op"] == "mask"]
    args = [{**t, "fill": "normal"} for t in (q, k, v, *forward["args"][3:])]
    args += [{n: t[n] for n in ("name", "dtype", "axes", "dims", "shape")} | {"fill": "normal"} for t in (o, lse)]
    args += [{**args[-2 if name == "o" else -1], "name": f"d{name}"} for name in of]

    def step(op, inputs, out, **more):
        return {"op": op, "in": inputs, "out": [out], "dtype": "f32", **more}

    scale = forward["body"][1]["expr"]
    infinite = [["const", float("-inf"), "f32"], ["const", float("inf"), "f32"]]
    flipped = [["x", 0], *infinite, ["eq", 0, 1], ["select", 3, 2, 0]]  # rows that see nothing get P = exp(x - inf) = 0
    shift = [["x", 0], ["x", 1], ["sub", 0, 1]]
    body = [
        step("gemm", ["q", "k"], "s", transpose_b=True),
        step("map", ["s"], "t", expr=scale),
        *({**op, "in": ["t"], "out": ["u"]} for op in masks),
        step("map", ["lse"], "l", expr=flipped),
        step("map", ["u" if masks else "t", "l"], "p", expr=[*shift, ["exp", 2]]),
        step("cast", ["p"], "pc", dtype=dtype),
    ]
    ds = "nothing"
    if "o" in of:
        body += [
            step("gemm", ["do", "v"], "dp", transpose_b=True),
            step("map", ["do", "o"], "products", expr=[["x", 0], ["cast", 0, "f32"], ["x", 1], ["cast", 2, "f32"], ["mul", 1, 3]]),
            step("reduce", ["products"], "delta", kind="sum"),
            step("map", ["p", "dp", "delta"], "ds0", expr=[["x", 0], ["x", 1], ["x", 2], ["sub", 1, 2], ["mul", 0, 3]]),
            step("gemm", ["pc", "do"], "dv_sum", transpose_a=True),
        ]
        ds = "ds0"
    else:
        body.append(step("map", ["v"], "dv_sum", expr=[["const", 0.0, "f32"]]))
    if "lse" in of:
        product = [["x", 0], ["x", 1], ["mul", 0, 1]]
        body.append(step("map", ["p", "dlse"], "ds1", expr=product))
        if ds == "ds0":
            body.append(step("map", ["ds0", "ds1"], "ds2", expr=[["x", 0], ["x", 1], ["add", 0, 1]]))
        ds = "ds2" if ds == "ds0" else "ds1"
    body += [
        step("map", [ds], "ds_scaled", expr=scale),
        step("cast", ["ds_scaled"], "dsc", dtype=dtype),
        step("gemm", ["dsc", "k"], "dq_sum"),
        step("gemm", ["dsc", "q"], "dk_sum", transpose_a=True),
    ]
    body += [step("cast", [f"d{n}_sum"], f"d{n}_cast", dtype=dtype) for n in "qkv"]
    results = [
        {**{n: t[n] for n in ("dtype", "axes", "dims", "shape")}, "name": f"d{t['name']}", "value": f"d{t['name']}_cast"}
        for t in (q, k, v)
        if t["name"] in wrt
    ]
    return {**forward, "name": forward["name"] + "_bwd", "args": args, "body": body, "results": results}


def backward_manifest(forward=None, *, wrt=("q", "k", "v"), of=("o",), **changes):
    """A manifest for `backward_tree`: a kernel that makes delta (a padded workspace), and one that makes all gradients."""
    forward = forward or attention_tree(mask=CAUSAL)
    tree = backward_tree(forward, wrt=wrt, of=of)
    layouts = {2: lambda t: ["b", t["dims"][0], t["axes"][-1], t["dims"][1]], 1: lambda t: t["axes"] + t["dims"]}
    tensors = []
    for role, group in (("input", tree["args"]), ("output", tree["results"])):
        for t in group:
            layout = layouts.get(len(t["dims"]), lambda t: t["axes"] + t["dims"])(t)
            tensors.append({n: t[n] for n in ("name", "dtype", "axes", "dims", "shape")} | {"role": role, "layout": layout})
    mapped = [t for t in tensors if len(t["layout"]) == 4]
    dtype = forward["args"][0]["dtype"]
    delta = {
        "name": "delta", "dtype": "f32", "axes": ["b", "hq"], "dims": ["b", "hq", "m"], "shape": [None] * 3, "pad": 4,
        "size": ["mul", "b", "hq", ["mul", ["ceildiv", "m", 4], 4]], "init": "none", "lifetime": "call",
    }  # fmt: skip
    kernel = {
        "entry": "pre_0", "ptx": "sample_bwd.ptx", "cubin": "sample_bwd.cubin", "block": [128, 1, 1], "smem_bytes": 0, "cluster": [1, 1, 1],
        "pdl": False, "grid": [["ceildiv", "m", 128], "hq", "b"], "registers": 64, "stack_bytes": 0, "local_bytes": 0,
    }  # fmt: skip
    maps = {t["name"]: tile_map(t["name"], [t["layout"][i] for i in (3, 1, 2, 0)], [64, 64, 1, 1], dtype) for t in mapped}
    first = [*(maps[n] for n in ("o", "do") if n in maps), {"kind": "pointer", "tensor": "lse"}, {"kind": "pointer", "tensor": "delta"}]
    second = [*maps.values(), {"kind": "pointer", "tensor": "delta"}, {"kind": "scalar", "dtype": "i32", "value": "n"}]
    second += [{"kind": "pointer", "tensor": t["name"]} for t in tensors if t["name"] == "dlse" or len(t["layout"]) < 3]
    return {
        "schema": 1, "name": tree["name"], "fa4c": "0.1.0", "dsl": "0", "target": "sm_90a", "ptx_version": "8.8", "direction": "bwd",
        "dtype": dtype, "head_dims": {"d": forward["args"][0]["shape"][1], "dv": forward["args"][2]["shape"][1]}, "members": {},
        "semantics": tree, "forward": forward, "tensors": tensors, "workspaces": [delta],
        "steps": [{"op": "launch", "kernel": "pre"}, {"op": "launch", "kernel": "main"}],
        "kernels": {"pre": {**kernel, "params": first}, "main": {**kernel, "entry": "main_0", "params": second}},
        **changes,
    }  # fmt: skip


BACKWARD_MEMBERS = {name.replace("sample", "sample_bwd"): data for name, data in MEMBERS.items()}


def both_manifest(forward=None, **options):
    """(manifest, members) of both directions, put together as the compiler does."""
    backward = backward_manifest(forward, **options)
    inner = {**backward, "members": dict.fromkeys(BACKWARD_MEMBERS, "")}
    return {**manifest(forward), "direction": "both", "backward": inner}, {**MEMBERS, **BACKWARD_MEMBERS}
