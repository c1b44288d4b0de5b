"""The attn interpreter against attention written directly in float64 torch, over many shapes, and its kernel mode."""

import os

import numpy as np
import pytest
import torch

from fa4c.frontend.to_mlir import to_mlir
from fa4c.frontend.variant import standard
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.interpret_attn import run

CONTEXT = new_context()
HERE = os.path.dirname(__file__)
EXAMPLES = os.path.join(HERE, "..", "..", "examples")


def load(path: str):
    with open(path, encoding="utf-8") as file:
        return parse_module(file.read(), path, CONTEXT)


def execute(module, inputs, dtype="float64"):
    return run(module.body.operations[0], inputs, dtype)


def example(name: str):
    return load(os.path.join(EXAMPLES, name + ".mlir"))


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def attention(q, k, v, *, scale, score=None, keep=None):
    """(b, s, h, d) in float64: output, log-sum-exp. `score(s, b, h, i, j)` and `keep(b, h, i, j)` get index grids, i as the query's row."""
    b, m, hq, _ = q.shape
    n, hkv = k.shape[1:3]
    k, v = (t.repeat_interleave(hq // max(hkv, 1), dim=2) for t in (k, v))
    scores = torch.einsum("bmhd,bnhd->bhmn", q, k) * scale
    grid = torch.meshgrid(torch.arange(b), torch.arange(hq), torch.arange(m), torch.arange(n), indexing="ij")
    if score is not None:
        scores = score(scores, *grid)
    if keep is not None:
        scores = scores.masked_fill(~keep(*grid), -torch.inf)
    lse = torch.logsumexp(scores, dim=-1) if n else torch.full(scores.shape[:-1], -torch.inf, dtype=scores.dtype)
    p = torch.where(torch.isneginf(lse)[..., None], 0.0, torch.exp(scores - lse[..., None]))
    return torch.einsum("bhmn,bnhd->bmhd", p, v), lse


SHAPES = [
    (1, 1, 1, 1, 1),
    (2, 4, 2, 5, 9),
    (1, 2, 2, 9, 5),
    (2, 6, 1, 17, 17),
    (1, 3, 3, 1, 33),
    (2, 2, 1, 33, 1),
    (1, 2, 1, 4, 0),
    (1, 2, 1, 0, 4),
    (0, 2, 1, 3, 3),
]
F32_SCALE = float(np.float32(128**-0.5))


def qkv(b, hq, hkv, m, n, d=128, dv=128):
    return {"q": random(b, m, hq, d, seed=1), "k": random(b, n, hkv, d, seed=2), "v": random(b, n, hkv, dv, seed=3)}


def check(actual, o, lse):
    np.testing.assert_allclose(actual["o"], o.numpy(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(actual["lse"], lse.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["full", "causal", "window", "softcap", "alibi", "gqa", "prefix_lm", "document"])
def test_examples(name, shape):
    b, hq, hkv, m, n = shape
    inputs = qkv(*shape)
    shift = n - m
    slopes, prefix = random(hq, seed=4), torch.tensor([3, 7][:b], dtype=torch.int32)
    doc = (torch.arange(n) // 4).repeat(b, 1).int() + torch.arange(b)[:, None].int()
    score, keep = None, (lambda b, h, i, j: j <= i + shift)
    if name == "full":
        keep = None
    elif name == "window":
        keep = lambda b, h, i, j: (j <= i + shift) & (j >= i + shift - 511)  # noqa: E731
    elif name == "softcap":
        cap = float(np.float32(1 / 30))
        score = lambda s, b, h, i, j: 30 * torch.tanh(s * cap)  # noqa: E731
    elif name == "alibi":
        inputs["slopes"] = slopes
        score = lambda s, b, h, i, j: s + slopes.float().double()[h] * (j - i - shift)  # noqa: E731
        inputs["slopes"] = slopes.float().double()
    elif name == "prefix_lm":
        inputs["prefix"] = prefix
        keep = lambda b, h, i, j: (j < prefix[b]) | (j <= i + shift)  # noqa: E731
    elif name == "document":
        inputs["doc"] = doc

        def keep(b, h, i, j):
            at = i + shift
            of_query = torch.where((at >= 0) & (at < n), doc[b, at.clamp(0, max(n - 1, 0))] if n else torch.zeros_like(at), 0)
            return (of_query == (doc[b, j] if n else 0)) & (j <= at)

    check(execute(example(name), inputs), *attention(**{t: inputs[t] for t in "qkv"}, scale=F32_SCALE, score=score, keep=keep))


@pytest.mark.parametrize("seed", range(30))
def test_random_variants(seed):
    """The standard front end, printed, parsed and executed, over random options and shapes."""
    rng = np.random.default_rng(seed)
    pick = lambda *options: options[rng.integers(len(options))]  # noqa: E731
    hkv, group = pick(1, 2, 3), pick(1, 2, 4)
    b, hq, m, n = pick(1, 2), hkv * group, int(rng.integers(1, 40)), int(rng.integers(1, 40))
    d, dv, layout, align = pick(8, 24, 64), pick(8, 40), pick("bshd", "bhsd"), pick("top_left", "bottom_right")
    causal, softcap, scale = pick(True, False), pick(None, 20.0, 0.5), pick(None, 1.0, 0.3)
    window = pick(None, (3, None), (None, 2), (5, 0), (0, 0), (100, 100))
    tree = standard(causal=causal, align=align, window=window, softcap=softcap, scale=scale, d=d, dv=dv, layout=layout)
    inputs = qkv(b, hq, hkv, m, n, d, dv)
    shift = n - m if align == "bottom_right" else 0
    left, right = window or (None, None)
    f32_scale = float(np.float32(d**-0.5 if scale is None else scale))

    def score(s, b, h, i, j):
        return s if softcap is None else softcap * torch.tanh(s * float(np.float32(1 / softcap)))

    def keep(b, h, i, j):
        visible = torch.ones_like(i, dtype=torch.bool)
        if causal:
            visible &= j <= i + shift
        if left is not None:
            visible &= i + shift - j <= left
        if right is not None:
            visible &= j - (i + shift) <= right
        return visible

    o, lse = attention(**inputs, scale=f32_scale, score=score, keep=keep)
    if layout == "bhsd":
        inputs = {name: t.transpose(1, 2) for name, t in inputs.items()}
        o = o.transpose(1, 2)
    module = parse_module(to_mlir(tree), "variant.mlir", CONTEXT)
    check(execute(module, inputs), o, lse)


@pytest.mark.parametrize("b, hq, hkv, m, n", [(2, 4, 2, 7, 12), (1, 1, 1, 5, 5), (2, 6, 1, 3, 20)])
def test_a_backward_by_hand_matches_autograd(b, hq, hkv, m, n):
    """Row vectors in maps, transposed GEMMs, sums over the group (dk, dv) and over the batch (a captured scalar's gradient)."""
    group = hq // hkv
    q, k, v, do = random(b, hq, m, 16, seed=1), random(b, hkv, n, 16, seed=2), random(b, hkv, n, 24, seed=3), random(b, hq, m, 24, seed=4)
    temperature = random(hq, seed=5)
    leaves = [t.clone().requires_grad_() for t in (q, k, v, temperature)]
    s = leaves[0] @ leaves[1].repeat_interleave(group, 1).transpose(-1, -2) * leaves[3][:, None, None]
    s = s.masked_fill(torch.arange(n)[None] > torch.arange(m)[:, None] + n - m, -torch.inf)
    o = s.softmax(-1) @ leaves[2].repeat_interleave(group, 1)
    (o * do).sum().backward()
    actual = execute(
        load(os.path.join(HERE, "inputs", "attn_every_op.mlir")), {"q": q, "k": k, "v": v, "do": do, "temperature": temperature}
    )
    expected = {"o": o, "lse": s.logsumexp(-1), "row_max": s.amax(-1)}
    keys = s.softmax(-1).sum(-2)
    expected |= {"columns": keys, "collected": keys.reshape(b, hkv, group, n).sum(2)}
    expected |= {f"d{name}": leaf.grad for name, leaf in zip(("q", "k", "v", "temperature"), leaves, strict=True)}
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value.detach().numpy(), rtol=0, atol=1e-11, err_msg=name)


def test_kernel_mode_is_as_far_from_float64_as_bf16_says():
    inputs = {name: t.bfloat16() for name, t in qkv(2, 4, 2, 65, 130).items()}
    exact = execute(example("softcap"), inputs)
    rounded = execute(example("softcap"), inputs, "kernel")
    assert rounded["o"].dtype == np.float32
    np.testing.assert_array_equal(torch.from_numpy(rounded["o"]).bfloat16().float().numpy(), rounded["o"])
    error = np.abs(rounded["o"] - exact["o"])
    assert 1e-5 < error.max() < 2**-7 * np.abs(exact["o"]).max()
    assert 0 < np.abs(rounded["lse"] - exact["lse"]).max() < 1e-5


def test_a_row_without_keys_is_zero_with_lse_minus_infinity():
    for mode in ("float64", "kernel"):
        result = execute(example("causal"), qkv(1, 2, 1, 9, 4), mode)
        assert (result["o"][:, :5] == 0).all() and np.isneginf(result["lse"][:, :, :5]).all()
        assert np.isfinite(result["lse"][:, :, 5:]).all() and not np.isnan(result["o"]).any()


SUMMING = """func.func @f(%x: tensor<?x4xf32> {attn.name = "x", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
                   %y: tensor<?x4xf32> {attn.name = "y", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]})
    -> (tensor<?x4xf32> {attn.name = "bh", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
        tensor<?x4xf32> {attn.name = "kv", attn.axes = ["b", "hkv"], attn.dims = ["m", "d"]},
        tensor<?x4xf32> {attn.name = "h", attn.axes = ["hq"], attn.dims = ["m", "d"]},
        tensor<?x4xf32> {attn.name = "none", attn.axes = [], attn.dims = ["m", "d"]},
        tensor<?x4xf32> {attn.name = "same", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
        tensor<?x4xf32> {attn.name = "wider", attn.axes = ["b", "hq"], attn.dims = ["n", "d"]}) {
  return %x, %x, %x, %x, %y, %y : tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>
}"""


def test_a_result_that_lacks_an_axis_is_the_sum_over_it():
    x, y = random(2, 3, 6, 4), random(2, 5, 2, 4, seed=1)
    actual = execute(parse_module(SUMMING, "sum.mlir", CONTEXT), {"x": x, "y": y})
    expected = {
        "bh": x,
        "kv": x.reshape(2, 3, 2, 3, 4).sum(3),
        "h": x.sum(0).transpose(0, 1),
        "none": x.sum((0, 2)),
        "same": y,
        "wider": y.repeat_interleave(3, 2),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value.numpy(), atol=1e-13, err_msg=name)


INDICES = """func.func @f(%q: tensor<?x4xf32> {attn.name = "q", attn.axes = ["b", "hq"], attn.dims = ["m", "d"]},
                     %k: tensor<?x4xf32> {attn.name = "k", attn.axes = ["b", "hkv"], attn.dims = ["n", "d"]},
                     %table: tensor<?x?xf32> {attn.name = "table", attn.axes = ["hkv"], attn.dims = ["rows", "columns"]})
    -> (tensor<?x?xf32> {attn.name = "code", attn.axes = ["b", "hq"], attn.dims = ["m", "n"]},
        tensor<?x?xf32> {attn.name = "loaded", attn.axes = ["b", "hq"], attn.dims = ["m", "n"]})
    attributes {attn.align = "ALIGN", attn.layout = "bhsd"} {
  %s = "attn.gemm"(%q, %k) {transpose_b = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x?xf32>
  %code = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %ten = arith.constant 10 : index
    %hundred = arith.constant 100 : index
    %b1 = arith.muli %b, %ten : index
    %b2 = arith.addi %b1, %h : index
    %b3 = arith.muli %b2, %hundred : index
    %b4 = arith.addi %b3, %i : index
    %b5 = arith.muli %b4, %hundred : index
    %b6 = arith.addi %b5, %j : index
    %b7 = arith.index_cast %b6 : index to i32
    %r = arith.sitofp %b7 : i32 to f32
    "attn.yield"(%r) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %loaded = "attn.map"(%s) ({
  ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
    %r = "attn.load"(%table, %j, %i) : (tensor<?x?xf32>, index, index) -> f32
    "attn.yield"(%r) : (f32) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %code, %loaded : tensor<?x?xf32>, tensor<?x?xf32>
}"""


@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
def test_indices_and_loads_out_of_range(align):
    b, hq, hkv, m, n = 2, 4, 2, 6, 3
    table = random(hkv, 2, 4)
    inputs = {"q": random(b, hq, m, 4), "k": random(b, hkv, n, 4), "table": table}
    actual = execute(parse_module(INDICES.replace("ALIGN", align), "index.mlir", CONTEXT), inputs)
    shift = n - m if align == "bottom_right" else 0
    for bb, h, i, j in np.ndindex(b, hq, m, n):
        assert actual["code"][bb, h, i, j] == ((bb * 10 + h) * 100 + i + shift) * 100 + j
        inside = 0 <= j < 2 and 0 <= i + shift < 4
        assert actual["loaded"][bb, h, i, j] == (table[h // 2, j, i + shift] if inside else 0)


PACKED = '%cu: tensor<?xi32> {attn.name = "cu_CASE", attn.axes = [], attn.dims = ["batch_plus_1"], attn.cu_seqlens = "CASE"}'


@pytest.mark.parametrize("packed", ["mn", "m", "n"])
@pytest.mark.parametrize("lengths", [([3, 0, 7, 1], [5, 2, 0, 1]), ([76, 34, 146], [1, 1, 1])], ids=str)
def test_packed_lengths(packed, lengths):
    """bugs.md B2 and B22: each batch entry has its own lengths, empty ones too."""
    m_lengths, n_lengths = (np.array(x) for x in lengths)
    if "m" not in packed:
        m_lengths[:] = 4
    if "n" not in packed:
        n_lengths[:] = 6
    with open(os.path.join(EXAMPLES, "causal.mlir"), encoding="utf-8") as file:
        text = file.read()
    extra = "".join(",\n    " + PACKED.replace("CASE", dim).replace("%cu", f"%cu_{dim}") for dim in packed)
    module = parse_module(text.replace('attn.dims = ["n", "dv"]})', 'attn.dims = ["n", "dv"]}' + extra + ")"), "packed.mlir", CONTEXT)
    entries = [qkv(1, 4, 2, int(m), int(n)) for m, n in zip(m_lengths, n_lengths, strict=True)]
    join = {"q": "m", "k": "n", "v": "n"}
    inputs = {
        name: torch.cat([e[name] for e in entries], dim=1)[0] if dim in packed else torch.cat([e[name] for e in entries])
        for name, dim in join.items()
    }
    for dim, counts in (("m", m_lengths), ("n", n_lengths)):
        if dim in packed:
            inputs[f"cu_{dim}"] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    actual = execute(module, inputs)
    for entry, tensors in enumerate(entries):
        m, n = int(m_lengths[entry]), int(n_lengths[entry])
        o, lse = attention(**tensors, scale=F32_SCALE, keep=lambda b, h, i, j, shift=n - m: j <= i + shift)
        start = int(m_lengths[:entry].sum())
        rows = slice(start, start + m)
        np.testing.assert_allclose(actual["o"][rows] if "m" in packed else actual["o"][entry], o[0], atol=1e-12)
        np.testing.assert_allclose(actual["lse"][:, rows] if "m" in packed else actual["lse"][entry], lse[0], atol=1e-12)


def sigmoid_attention() -> str:
    tree = standard(d=8, scale=0.5)
    body = [step for step in tree["body"] if step["op"] != "softmax"]
    body[1]["expr"] = [["x", 0], ["const", 0.5, "f32"], ["mul", 0, 1], ["sigmoid", 2]]
    body[2]["in"] = ["%1"]
    tree["results"] = tree["results"][:1]
    return to_mlir({**tree, "body": body})


def test_no_softmax_is_needed():
    inputs = qkv(1, 2, 1, 5, 6, 8, 8)
    actual = execute(parse_module(sigmoid_attention(), "sigmoid.mlir", CONTEXT), inputs)
    p = torch.sigmoid(torch.einsum("bmhd,bnhd->bhmn", inputs["q"], inputs["k"].repeat_interleave(2, 2)) * 0.5)
    expected = torch.einsum("bhmn,bnhd->bmhd", p, inputs["v"].repeat_interleave(2, 2))
    np.testing.assert_allclose(actual["o"], expected.numpy(), atol=1e-13)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"k": None}, "misses the input 'k'"),
        ({"q": torch.zeros(1, 5, 128)}, "takes 'q' of rank 4, but was given shape"),
        ({"q": torch.zeros(1, 5, 2, 64)}, "takes 'q' with d = 128, but was given 64"),
        ({"v": torch.zeros(1, 7, 1, 128)}, "was given n = 6 in 'k' but n = 7 in 'v'"),
        ({"q": torch.zeros(1, 5, 3, 128), "k": torch.zeros(1, 6, 2, 128), "v": torch.zeros(1, 6, 2, 128)}, "3 query heads and 2 KV heads"),
        ({"q": torch.zeros(2, 5, 2, 128)}, "was given b = 2 in 'q' but b = 1 in 'k'"),
    ],
)
def test_wrong_inputs_are_refused(change, message):
    inputs = qkv(1, 2, 1, 5, 6)
    inputs = {name: value for name, value in {**inputs, **change}.items() if value is not None}
    with pytest.raises(Diagnostic, match=message):
        execute(example("causal"), inputs)


def test_the_speed_is_that_of_numpy():
    import time

    inputs = qkv(2, 4, 2, 512, 512)
    module = example("softcap")
    execute(module, inputs)
    start = time.perf_counter()
    execute(module, inputs)
    assert time.perf_counter() - start < 3
