"""Gradients over the reference evaluation against computations that share no code with it, and the tolerance of gradients."""

import math

import pytest
import torch
from runtime_samples import ALIBI_SCORE, CAUSAL, SLOPES, attention_tree

from fa4c.runtime import check, gradients, reference
from fa4c.runtime.errors import InputError, ManifestError
from fa4c.runtime.inputs import make_inputs

SIZES = [
    dict(b=2, hq=4, hkv=2, m=33, n=33),
    dict(b=1, hq=6, hkv=1, m=7, n=50),
    dict(b=3, hq=2, hkv=2, m=50, n=7),
    dict(b=1, hq=1, hkv=1, m=1, n=1),
]


def arriving(tree, sizes, seed=1):
    generator = torch.Generator().manual_seed(seed)
    dims = {d: s for a in tree["args"] for d, s in zip(a["dims"], a["shape"]) if s}
    shapes = reference.result_shapes(tree, sizes | dims)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def by_torch(inputs, given, keep, scale, bias=None):
    """dq, dk, dv (and of `bias`) by autograd in float64 over written-out attention."""
    leaves = {n: t.double().requires_grad_() for n, t in inputs.items()}
    q, k, v = (leaves[n].transpose(1, 2) for n in "qkv")
    group = q.shape[1] // k.shape[1]
    s = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * scale
    if bias is not None:
        s = s + bias(leaves)
    seen = keep.any(-1, keepdim=True)
    s = s.masked_fill(~keep & seen, float("-inf"))
    o = (s.softmax(-1) * seen) @ v.repeat_interleave(group, 1)
    lse = torch.where(seen[:, 0], torch.logsumexp(s, -1), 0.0)
    loss = (o.transpose(1, 2) * given["o"]).sum()
    if "lse" in given:
        loss = loss + (lse * given["lse"]).sum()
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()))))


def causal(m, n):
    return torch.arange(n)[None] <= torch.arange(m)[:, None] + n - m


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("chunk", [reference.CHUNK, 1])
@pytest.mark.parametrize("with_lse", [False, True])
def test_causal_and_gqa(sizes, chunk, with_lse, monkeypatch):
    """Bottom-right with more queries than keys has rows that see nothing."""
    monkeypatch.setattr(reference, "CHUNK", chunk)
    tree = attention_tree(mask=CAUSAL, d=16, dv=24)
    inputs, given = make_inputs(tree, sizes), arriving(tree, sizes)
    given = given if with_lse else {"o": given["o"]}
    wanted = by_torch(inputs, given, causal(sizes["m"], sizes["n"]), 0.25)
    for name, gradient in gradients.gradients(tree, inputs, given).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=0, atol=1e-12)


def test_a_shared_tensor_collects_from_all_heads_and_batch_entries():
    tree = attention_tree(score=ALIBI_SCORE, captures=[SLOPES], align="top_left", d=16, dv=16)
    inputs, given = make_inputs(tree, SIZES[1]), arriving(tree, SIZES[1])
    distance = torch.arange(50)[None] - torch.arange(7)[:, None]
    wanted = by_torch(inputs, given, torch.ones(7, 50, dtype=torch.bool), 0.125, lambda x: x["slopes"][:, None, None] * distance)
    found = gradients.gradients(tree, inputs, given)
    for name in ("q", "k", "v", "slopes"):
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=1e-11)


def test_bhsd_and_strided_gradients():
    bshd, bhsd = attention_tree(mask=CAUSAL, d=16, dv=8), attention_tree(mask=CAUSAL, d=16, dv=8, layout="bhsd")
    inputs, given = make_inputs(bshd, SIZES[0]), arriving(bshd, SIZES[0])
    one = gradients.gradients(bshd, inputs, given)
    swapped = {n: t.transpose(1, 2) for n, t in inputs.items()}
    two = gradients.gradients(bhsd, swapped, {"o": given["o"].transpose(1, 2), "lse": given["lse"]})
    for name, gradient in one.items():
        torch.testing.assert_close(two[name].transpose(1, 2), gradient, rtol=0, atol=1e-13)
    spread = torch.ones(()).expand(given["o"].shape)
    wanted = gradients.gradients(bshd, inputs, {"o": torch.ones_like(given["o"])})
    for name, gradient in gradients.gradients(bshd, inputs, {"o": spread}).items():
        assert torch.equal(gradient, wanted[name])


@pytest.mark.parametrize("sizes", [dict(b=1, hq=2, hkv=2, m=64, n=0), dict(b=1, hq=2, hkv=2, m=0, n=64), dict(b=0, hq=2, hkv=2, m=8, n=8)])
def test_sizes_of_zero(sizes):
    tree = attention_tree(mask=CAUSAL)
    inputs = make_inputs(tree, sizes)
    for name, gradient in gradients.gradients(tree, inputs, arriving(tree, sizes)).items():
        assert gradient.shape == inputs[name].shape and (gradient == 0).all()


def test_packed_lengths():
    """B2: only the last query of each sequence sees its one key; dQ = dK = 0 and dV is that query's dO."""
    tree = attention_tree(mask=CAUSAL, d=32, dv=32, dtype="fp16")
    for dim in "mn":
        tree["args"].append({"name": f"cu_{dim}", "dtype": "i32", "axes": [], "dims": ["batch_plus_1"], "shape": [None], "cu_seqlens": dim})
    torch.manual_seed(0)
    q, k, v = (torch.randn(s, 1, 32, dtype=torch.float16) * 3 for s in (256, 3, 3))
    offsets = {"cu_m": torch.tensor([0, 76, 110, 256], dtype=torch.int32), "cu_n": torch.tensor([0, 1, 2, 3], dtype=torch.int32)}
    do = torch.randn(256, 1, 32)
    for eager in (False, True):
        found = gradients.gradients(tree, {"q": q, "k": k, "v": v, **offsets}, {"o": do}, eager=eager)
        assert (found["q"] == 0).all() and (found["k"] == 0).all()
        wanted = do[[75, 109, 255]]
        torch.testing.assert_close(found["v"].double(), (wanted.half() if eager else wanted).double())


def test_only_what_is_asked_for_and_the_callers_graph_is_left_alone():
    tree = attention_tree(mask=CAUSAL, d=16, dv=16)
    inputs, given = make_inputs(tree, SIZES[0]), arriving(tree, SIZES[0])
    inputs["q"].requires_grad_()
    with torch.no_grad():
        assert set(gradients.gradients(tree, inputs, given, ["v"])) == {"v"}
    assert inputs["q"].grad is None and not inputs["k"].requires_grad


def test_names_of_gradients():
    def tree(args, results):
        made = [[{"name": n, "dtype": "bf16"} for n in names] for names in (args, results)]
        return {"name": "f", "args": made[0], "results": made[1]}

    forward = tree(["q", "do", "q_"], ["o", "lse"])
    backward = tree(["q", "do", "q_", "o", "lse", "do_", "dlse"], ["dq", "ddo", "dq_"])
    assert gradients.incoming(forward, backward) == {"do_": "o", "dlse": "lse"}
    assert gradients.outgoing(forward, backward) == {"dq": "q", "ddo": "do", "dq_": "q_"}
    assert gradients.saved(forward, backward) == ["o", "lse"]
    with pytest.raises(ManifestError, match="'x' is no gradient of q, do, q_"):
        gradients.outgoing(forward, tree([], ["x"]))
    with pytest.raises(InputError, match="(?s)gradient of lse arrives.*derived for o") as caught:
        gradients.check_given(forward, tree(["q", "o", "do_"], []), {"o": 1, "lse": 2})
    assert "of=o,lse" in caught.value.fix


def test_what_results_depend_on():
    tree = attention_tree(score=ALIBI_SCORE, captures=[SLOPES])
    assert gradients.depended_on(tree, ["o"]) == {"q", "k", "v", "slopes"}
    assert gradients.depended_on(tree, ["lse"]) == {"q", "k", "slopes"}
    constant = attention_tree(score=[["x", 0], ["const", 1.0, "f32"]])  # B20: reads the score and leaves it
    assert gradients.depended_on(constant, ["o"]) == {"v"} and gradients.depended_on(constant, ["lse"]) == set()
    steps = [["x", 0], ["floor", 0], ["const", 0.0, "f32"], ["lt", 0, 2], ["cast", 0, "i32"], ["cast", 4, "f32"], ["select", 3, 1, 5]]
    assert gradients.depended_on(attention_tree(score=steps), ["o"]) == {"v"}


# -- tolerance -----------------------------------------------------------------------------------------------------------------------------


def sample(sizes=SIZES[0], **options):
    tree = attention_tree(mask=CAUSAL, **options)
    inputs = make_inputs(tree, sizes)
    given = {"o": arriving(tree, sizes)["o"].bfloat16()}
    return tree, inputs, given, gradients.gradients(tree, inputs, given)


def test_rounded_exact_gradients_pass_and_small_faults_fail():
    tree, inputs, given, exact = sample()
    found = {name: g.bfloat16() for name, g in exact.items()}
    rows = check.check_gradients(tree, inputs, given, found)
    assert [(r.tensor, r.norm) for r in rows] == [(f"d{n}", norm) for n in "qkv" for norm in ("max", "frobenius")]
    assert all(r.ok for r in rows)
    for name, change in (("q", lambda g: g * 1.02), ("k", lambda g: g.roll(1, 1)), ("v", lambda g: torch.where(g == g.max(), 0, g))):
        wrong = check.check_gradients(tree, inputs, given, {**found, name: change(found[name])})
        assert any(not r.ok for r in wrong if r.tensor == f"d{name}"), name
        assert all(r.ok for r in wrong if r.tensor != f"d{name}")
    found["q"][0, 0, 0, 0] = float("nan")
    assert "1 NaN" in check.check_gradients(tree, inputs, given, {"q": found["q"]})[0].note


def test_what_f32_leaves_of_a_sum_that_cancels():
    """One key: dS = P (dP - delta) is 0. The difference of two f32 sums in two orders is beyond the limit, but told from what is more."""
    tree, inputs, given, exact = sample(dict(b=2, hq=2, hkv=2, m=1, n=1))
    assert (exact["q"] == 0).all()
    do, v, k = given["o"].float(), inputs["v"].float(), inputs["k"].float()
    ds = (do * v).sum(-1, keepdim=True) - (do.flip(-1) * v.flip(-1)).cumsum(-1)[..., -1:]
    dq = (ds * k / 8).bfloat16()
    assert dq.abs().max() > 0
    assert all(r.ok for r in check.check_gradients(tree, inputs, given, {"q": torch.zeros_like(dq)}))
    assert all(not r.ok and r.err <= r.with_f32 for r in check.check_gradients(tree, inputs, given, {"q": dq}))
    assert all(not r.ok and r.err > r.with_f32 for r in check.check_gradients(tree, inputs, given, {"q": dq + 1e-4}))


def test_the_scale_of_scores_counts():
    trees = [attention_tree(score=[["x", 0], ["const", c, "f32"], ["mul", 0, 1]]) for c in (0.125, 0.5)]
    inputs = make_inputs(trees[0], SIZES[0])
    small, large = (check.cancelled(t, inputs, {"o": torch.ones(3)}, "q") for t in trees)
    assert math.isclose(large, 4 * small) and small > 0


def test_the_scale_of_a_soft_cap_is_that_of_its_score():
    """cap tanh(x scale / cap) has the derivative scale (1 - tanh^2): the cap cancels."""
    score = [["x", 0], ["const", 0.125, "f32"], ["mul", 0, 1], ["const", 30.0, "f32"], ["div", 2, 3], ["tanh", 4], ["mul", 5, 3]]
    plain = attention_tree(score=score[:3])
    capped = attention_tree(score=score)
    inputs = make_inputs(plain, SIZES[0])
    one, other = (check.cancelled(t, inputs, {"o": torch.ones(3)}, "q") for t in (plain, capped))
    assert math.isclose(one, other)
    row = check.compare_tensor("dq", torch.ones(2), torch.ones(2), torch.ones(2), 2**-8, least=0.5)[0]
    assert row.with_f32 == 0.5 and row.limit == 2**-7 and check.compare_tensor("dq", *[torch.ones(2)] * 3, 2**-8)[0].with_f32 == 0
    assert check.compare_tensor("dq", *[torch.zeros(2)] * 3, 2**-8, least=0.5)[0].limit == 2**-8
