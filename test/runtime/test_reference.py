"""The reference evaluator against computations that share no code with it."""

import math

import pytest
import torch
import torch.nn.functional as F
from runtime_samples import ALIBI_SCORE, CAUSAL, SLOPES, attention_tree

from fa4c.runtime import reference
from fa4c.runtime.errors import InputError, ManifestError
from fa4c.runtime.inputs import make_inputs

SIZES = [
    dict(b=2, hq=4, hkv=2, m=33, n=33),
    dict(b=1, hq=6, hkv=1, m=7, n=50),
    dict(b=3, hq=2, hkv=2, m=50, n=7),
    dict(b=1, hq=1, hkv=1, m=1, n=1),
]


def sdpa(inputs, bias=None, keep=None, scale=None):
    """torch's own attention in float64, GQA by repetition; empty rows are zero."""
    q, k, v = (inputs[n].double().transpose(1, 2) for n in "qkv")
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    full = torch.zeros(q.shape[0], q.shape[1], q.shape[2], k.shape[2], dtype=torch.float64)
    if bias is not None:
        full = full + bias
    if keep is not None:
        full = full.masked_fill(~keep, float("-inf"))
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=full, scale=scale)
    s = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1])) + full
    return torch.nan_to_num(o).transpose(1, 2), torch.logsumexp(s, -1)


def causal(m, n, align):
    shift = n - m if align == "bottom_right" else 0
    return torch.arange(n)[None] <= torch.arange(m)[:, None] + shift


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("align", ["bottom_right", "top_left"])
@pytest.mark.parametrize("chunk", [reference.CHUNK, 1])
def test_causal_and_gqa_equal_sdpa(sizes, align, chunk, monkeypatch):
    monkeypatch.setattr(reference, "CHUNK", chunk)  # 1: one head at a time
    tree = attention_tree(mask=CAUSAL, align=align, d=16, dv=24)
    inputs = make_inputs(tree, sizes)
    got = reference.evaluate(tree, inputs)
    o, lse = sdpa(inputs, keep=causal(sizes["m"], sizes["n"], align), scale=0.25)
    torch.testing.assert_close(got["o"], o, rtol=0, atol=1e-12)
    torch.testing.assert_close(got["lse"], lse, rtol=0, atol=1e-12)


def test_bhsd_layout_gives_the_same_numbers():
    bshd, bhsd = attention_tree(d=16, dv=8), attention_tree(d=16, dv=8, layout="bhsd")
    inputs = make_inputs(bshd, SIZES[0])
    swapped = {n: t.transpose(1, 2).contiguous() for n, t in inputs.items()}
    torch.testing.assert_close(
        reference.evaluate(bhsd, swapped)["o"].transpose(1, 2), reference.evaluate(bshd, inputs)["o"], rtol=0, atol=1e-13
    )


def test_captured_slopes():
    tree = attention_tree(score=ALIBI_SCORE, captures=[SLOPES], align="top_left")
    inputs = make_inputs(tree, SIZES[1])
    m, n = 7, 50
    bias = inputs["slopes"].double()[:, None, None] * (torch.arange(n)[None] - torch.arange(m)[:, None])
    o, lse = sdpa(inputs, bias=bias, scale=0.125)
    got = reference.evaluate(tree, inputs)
    torch.testing.assert_close(got["o"], o, rtol=0, atol=1e-11)
    torch.testing.assert_close(got["lse"], lse, rtol=0, atol=1e-11)


def test_captured_per_batch_ids_and_out_of_range_loads():
    """A document mask: ids (b, n), read at the key and, two places on, past the end (which reads 0)."""
    ids = {"name": "ids", "dtype": "i32", "axes": ["b"], "dims": ["n"], "shape": [None], "fill": "sorted_ids(3)"}
    mask = [["index", "i"], ["load", "ids", 0], ["index", "j"], ["const", 2, "index"], ["add", 2, 3], ["load", "ids", 4], ["le", 5, 1]]
    tree = attention_tree(mask=mask, captures=[ids], align="top_left", d=16, dv=16)
    inputs = make_inputs(tree, dict(b=3, hq=4, hkv=2, m=20, n=20))
    shifted = F.pad(inputs["ids"], (0, 2))[:, 2:]
    keep = shifted[:, None, None, :] <= inputs["ids"][:, None, :, None]
    torch.testing.assert_close(reference.evaluate(tree, inputs)["o"], sdpa(inputs, keep=keep, scale=0.25)[0], rtol=0, atol=1e-12)


def test_two_dimensional_bias_per_head():
    bias = {"name": "bias", "dtype": "f32", "axes": ["hq"], "dims": ["m", "n"], "shape": [None, None], "fill": "normal"}
    score = [["x", 0], ["const", 0.25, "f32"], ["mul", 0, 1], ["index", "i"], ["index", "j"], ["load", "bias", 3, 4], ["add", 2, 5]]
    tree = attention_tree(score=score, captures=[bias], align="top_left", d=16, dv=16)
    inputs = make_inputs(tree, SIZES[2])
    torch.testing.assert_close(
        reference.evaluate(tree, inputs)["o"], sdpa(inputs, bias=inputs["bias"].double(), scale=0.25)[0], rtol=0, atol=1e-12
    )


def test_packed_lengths_equal_each_sequence_alone():
    """B2: the lengths of a public report; most rows see no key."""
    tree = attention_tree(mask=CAUSAL, d=32, dv=32, dtype="fp16")
    for dim in "mn":
        tree["args"].append({"name": f"cu_{dim}", "dtype": "i32", "axes": [], "dims": ["batch_plus_1"], "shape": [None], "cu_seqlens": dim})
    cu = {"m": [0, 76, 110, 256], "n": [0, 1, 2, 3]}
    torch.manual_seed(0)
    q, k, v = (torch.randn(s, h, 32, dtype=torch.float16) * 3 for s, h in ((256, 2), (3, 1), (3, 1)))
    inputs = {"q": q, "k": k, "v": v, "cu_m": torch.tensor(cu["m"], dtype=torch.int32), "cu_n": torch.tensor(cu["n"], dtype=torch.int32)}
    got = reference.evaluate(tree, inputs)
    assert got["o"].shape == (256, 2, 32) and got["lse"].shape == (2, 256)
    wanted = torch.zeros(256, 2, 32, dtype=torch.float64)
    for row, key in ((75, 0), (109, 1), (255, 2)):
        wanted[row] = v[key].double()
    torch.testing.assert_close(got["o"], wanted)
    assert torch.isfinite(got["lse"]).sum() == 2 * 3 and (got["lse"][torch.isinf(got["lse"])] < 0).all()


@pytest.mark.parametrize("sizes", [dict(b=1, hq=2, hkv=2, m=64, n=0), dict(b=1, hq=2, hkv=2, m=0, n=64), dict(b=0, hq=2, hkv=2, m=8, n=8)])
def test_sizes_of_zero(sizes):
    tree = attention_tree(mask=CAUSAL)
    got = reference.evaluate(tree, make_inputs(tree, sizes))
    assert got["o"].shape == (sizes["b"], sizes["m"], 2, 64) and (got["o"] == 0).all()
    assert got["lse"].shape == (sizes["b"], 2, sizes["m"]) and (got["lse"] == float("-inf")).all()


def test_rows_that_see_no_key_are_zero_also_in_eager():
    tree = attention_tree(mask=CAUSAL)
    inputs = make_inputs(tree, dict(b=1, hq=1, hkv=1, m=9, n=4))
    for got in (reference.evaluate(tree, inputs), reference.evaluate(tree, inputs, eager=True)):
        assert (got["o"][0, :5] == 0).all() and (got["o"][0, 5:] != 0).any() and (got["lse"][0, 0, :5] == float("-inf")).all()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_eager_is_what_eager_pytorch_gives(dtype):
    """Bit for bit: matmul, scale, mask and softmax in the kernel's dtype, as a user would write them."""
    tree = attention_tree(mask=CAUSAL, dtype=dtype, align="top_left")
    inputs = make_inputs(tree, dict(b=1, hq=2, hkv=2, m=40, n=40))
    q, k, v = (inputs[n].transpose(1, 2) for n in "qkv")
    s = (q @ k.transpose(-1, -2)) * 0.125
    o = s.masked_fill(~causal(40, 40, "top_left"), float("-inf")).softmax(-1) @ v
    got = reference.evaluate(tree, inputs, eager=True)["o"]
    assert got.dtype == o.dtype and torch.equal(got, o.transpose(1, 2))


def test_eager_follows_torch_promotion_for_captures():
    """bf16 score + f32 slopes is f32 in torch, and rounded where the score function ends."""
    tree = attention_tree(score=ALIBI_SCORE, captures=[SLOPES], align="top_left")
    inputs = make_inputs(tree, dict(b=1, hq=2, hkv=2, m=16, n=16))
    q, k, v = (inputs[n].transpose(1, 2) for n in "qkv")
    s = (q @ k.transpose(-1, -2)) * 0.125
    distance = (torch.arange(16)[None] - torch.arange(16)[:, None]).float()
    s = (s + inputs["slopes"][:, None, None] * distance).to(q.dtype)
    assert torch.equal(reference.evaluate(tree, inputs, eager=True)["o"], (s.softmax(-1) @ v).transpose(1, 2))


def test_a_result_that_lacks_an_axis_is_the_sum_over_it():
    """dV-like: P^T @ V' summed over the query heads of a group, and over all heads and batches."""
    tree = attention_tree(d=16, dv=16)
    tree["body"].append({"op": "gemm", "in": ["p", "q"], "out": ["g"], "transpose_a": True, "dtype": "f32"})
    tree["results"] = [
        {"name": "per_kv", "value": "g", "dtype": "f32", "axes": ["b", "hkv"], "dims": ["n", "d"], "shape": [None, 16]},
        {"name": "all", "value": "g", "dtype": "f32", "axes": [], "dims": ["n", "d"], "shape": [None, 16]},
    ]
    inputs = make_inputs(tree, dict(b=2, hq=4, hkv=2, m=9, n=11))
    q, k = inputs["q"].double().transpose(1, 2), inputs["k"].double().transpose(1, 2).repeat_interleave(2, 1)
    g = (q @ k.transpose(-1, -2) / 4).softmax(-1).transpose(-1, -2) @ q
    got = reference.evaluate(tree, inputs)
    torch.testing.assert_close(got["per_kv"], g.reshape(2, 2, 2, 11, 16).sum(2).transpose(1, 2), rtol=0, atol=1e-12)
    torch.testing.assert_close(got["all"], g.sum((0, 1)), rtol=0, atol=1e-12)


OPERATIONS = [
    ("neg", lambda x: -x),
    ("exp", torch.exp),
    ("exp2", torch.exp2),
    ("log", torch.log),
    ("log2", torch.log2),
    ("tanh", torch.tanh),
    ("sigmoid", torch.sigmoid),
    ("erf", torch.erf),
    ("sqrt", torch.sqrt),
    ("rsqrt", torch.rsqrt),
    ("abs", torch.abs),
    ("floor", torch.floor),
]


@pytest.mark.parametrize("op, function", OPERATIONS, ids=[o for o, _ in OPERATIONS])
def test_unary_operations(op, function):
    score = [["x", 0], ["abs", 0], ["const", 0.5, "f32"], ["add", 1, 2], [op, 3]]
    assert_score(score, lambda x, i, j: function(x.abs() + 0.5))


@pytest.mark.parametrize(
    "op, function",
    [
        ("floordiv", lambda i, j: torch.div(i - 5, j, rounding_mode="floor")),
        ("rem", lambda i, j: torch.fmod(i - 5, j)),
        ("div", lambda i, j: torch.div(i - 5, j, rounding_mode="trunc")),
        ("max", lambda i, j: torch.maximum(i - 5, j)),
        ("min", lambda i, j: torch.minimum(i - 5, j)),
    ],
)
def test_integer_operations_have_the_signs_of_arith(op, function):
    score = [
        ["index", "i"],
        ["const", 5, "index"],
        ["sub", 0, 1],
        ["index", "j"],
        ["const", 1, "index"],
        ["add", 3, 4],
        [op, 2, 5],
        ["cast", 6, "f32"],
    ]
    assert_score(score, lambda x, i, j: function(i, j + 1).double())


@pytest.mark.parametrize(("op", "rounding"), [("div", "trunc"), ("floordiv", "floor"), ("rem", None)])
def test_integers_divided_by_zero_give_zero(op, rounding):
    """Key 0 divides; torch would raise."""
    def expected(x, i, j):
        safe = torch.where(j == 0, 1, j)
        value = torch.fmod(i, safe) if rounding is None else torch.div(i, safe, rounding_mode=rounding)
        return torch.where(j == 0, 0, value).double()

    assert_score([["index", "i"], ["index", "j"], [op, 0, 1], ["cast", 2, "f32"]], expected)


def test_select_logic_and_sizes():
    score = [
        ["index", "i"],
        ["index", "j"],
        ["lt", 0, 1],
        ["size", "n"],
        ["const", 3, "index"],
        ["sub", 3, 4],
        ["ge", 1, 5],
        ["or", 2, 6],
        ["not", 7],
        ["x", 0],
        ["const", -2.0, "f32"],
        ["select", 8, 9, 10],
    ]
    assert_score(score, lambda x, i, j: torch.where(~((i < j) | (j >= 11 - 3)), x, torch.tensor(-2.0, dtype=torch.float64)))


def assert_score(score, function):
    """A tree whose result is the mapped score itself equals `function(x, i, j)`."""
    tree = attention_tree(d=16, dv=16, align="top_left")
    tree["body"] = [tree["body"][0], {"op": "map", "in": ["s"], "out": ["t"], "expr": score, "dtype": "f32"}]
    tree["results"] = [{"name": "t", "value": "t", "dtype": "f32", "axes": ["b", "hq"], "dims": ["m", "n"], "shape": [None, None]}]
    tree["layout"] = "bhsd"
    inputs = make_inputs(tree, dict(b=1, hq=1, hkv=1, m=9, n=11))
    x = inputs["q"][0, 0].double() @ inputs["k"][0, 0].double().T
    i, j = torch.arange(9)[:, None], torch.arange(11)[None]
    torch.testing.assert_close(reference.evaluate(tree, inputs)["t"][0, 0], function(x, i, j).expand(9, 11), rtol=0, atol=1e-12)


def test_rows_broadcast_in_maps_and_reduce():
    tree = attention_tree(d=16, dv=16, layout="bhsd")
    tree["body"] = [
        tree["body"][0],
        {"op": "reduce", "in": ["s"], "out": ["top"], "kind": "max"},
        {"op": "map", "in": ["s", "top"], "out": ["t"], "expr": [["x", 0], ["x", 1], ["sub", 0, 1]], "dtype": "f32"},
        {"op": "reduce", "in": ["t"], "out": ["r"], "kind": "sum"},
    ]
    tree["results"] = [{"name": "r", "value": "r", "dtype": "f32", "axes": ["b", "hq"], "dims": ["m"], "shape": [None]}]
    inputs = make_inputs(tree, dict(b=1, hq=2, hkv=2, m=9, n=11))
    s = inputs["q"].double() @ inputs["k"].double().transpose(-1, -2)
    torch.testing.assert_close(reference.evaluate(tree, inputs)["r"], (s - s.amax(-1, keepdim=True)).sum(-1), rtol=0, atol=1e-11)


def test_bad_shapes_and_bad_trees_are_located():
    tree = attention_tree()
    inputs = make_inputs(tree, SIZES[0])
    with pytest.raises(InputError, match="v has n = 5, but k has n = 33"):
        reference.evaluate(tree, {**inputs, "v": inputs["v"][:, :5]})
    with pytest.raises(InputError, match="q has d = 32, but this kernel is for d = 64"):
        reference.evaluate(tree, {**inputs, "q": inputs["q"][..., :32]})
    with pytest.raises(InputError, match="4 query heads are no multiple of 3"):
        reference.evaluate(
            tree, {n: t[:, :, :3] if n != "q" else t for n, t in make_inputs(tree, dict(b=1, hq=4, hkv=4, m=5, n=5)).items()}
        )
    with pytest.raises(ManifestError, match=r"body\[1\].*unknown operation.*did you mean 'tanh'"):
        reference.evaluate(attention_tree(score=[["x", 0], ["tahn", 0]]), inputs)
    tree["body"][0]["op"] = "gem"
    with pytest.raises(ManifestError, match=r"body\[0\].*unknown operation 'gem'"):
        reference.evaluate(tree, inputs)
