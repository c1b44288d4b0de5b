"""`fa4c.attention` under autograd, on the CPU: by the reference, and by compiled backwards whose kernels the reference stands in for."""

import sys
import types

import pytest
import torch
from runtime_samples import (
    ALIBI_SCORE,
    BACKWARD_MEMBERS,
    CAUSAL,
    MEMBERS,
    SLOPES,
    attention_tree,
    backward_manifest,
    both_manifest,
    manifest,
)

import fa4c
from fa4c import api, torch_ops
from fa4c.problem import Problem
from fa4c.runtime import artifact, counters, execute, gradients
from fa4c.runtime.errors import InputError, NotYetError
from fa4c.training import training


def qkv(b=2, m=20, n=25, hq=4, hkv=2, d=64, dv=64, dtype=torch.bfloat16, grad="qkv"):
    torch.manual_seed(0)
    made = [torch.randn(b, s, h, x, dtype=dtype) for s, h, x in ((m, hq, d), (n, hkv, d), (n, hkv, dv))]
    return [t.requires_grad_(name in grad) for name, t in zip("qkv", made)]


def wanted(q, k, v, given, tree=None, **more):
    """Gradients in float64 of causal attention (or of `tree`)."""
    tree = tree or attention_tree(mask=CAUSAL, d=q.shape[3], dv=v.shape[3])
    return gradients.gradients(tree, {"q": q, "k": k, "v": v, **more}, given)


def close(got, exact):
    torch.testing.assert_close(got.double(), exact, rtol=0.02, atol=0.02)


@pytest.fixture
def compiler(monkeypatch):
    """Compiles nothing: manifests of the sample, whose kernels the reference stands in for. A list of (direction, options) asked for."""
    asked = []

    def compile_text(text, filename, target, direction, dtype, head_dim, **derive):
        asked.append((direction, dict(derive)))
        d, dv = head_dim or (64, 64)
        tree = attention_tree(mask=CAUSAL, dtype=dtype or "bf16", d=d, dv=dv)
        derive.pop("deterministic", None)
        if direction == "bwd":
            return backward_manifest(tree, **derive, target=target), BACKWARD_MEMBERS
        return manifest(tree, target=target), MEMBERS

    monkeypatch.setattr(api, "_compile_text", compile_text)
    monkeypatch.setattr(api, "_calls", api._Calls())
    emulated = types.ModuleType("fa4c.runtime.emulated")
    emulated.run = lambda a, given, names: {n: execute.run_reference(a.semantics, given, names)[n] for n in names}
    emulated.available = lambda: True
    monkeypatch.setitem(sys.modules, "fa4c.runtime.emulated", emulated)
    import fa4c.runtime

    monkeypatch.setattr(fa4c.runtime, "emulated", emulated, raising=False)
    return asked


BACKENDS = ["reference", "emulator"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("used", ["o", "lse", "both"])
def test_gradients_of_both_results(compiler, backend, used):
    """m > n: the first rows see nothing, their LSE is -inf."""
    q, k, v = qkv(m=25, n=20)
    o, lse = fa4c.attention(q, k, v, causal=True, return_lse=True, backend=backend)
    assert o.requires_grad and lse.requires_grad
    given = {"o": torch.randn(o.shape).bfloat16(), "lse": torch.randn(lse.shape)}
    given = given if used == "both" else {used: given[used]}
    results = {"o": o, "lse": lse}
    torch.autograd.backward([results[n] for n in given], list(given.values()))
    for t, exact in zip((q, k, v), wanted(q, k, v, given).values()):
        if used == "lse" and t is v:  # LSE does not depend on V
            assert not t.grad.any()
        assert t.grad.dtype == torch.bfloat16 and t.grad.is_contiguous()
        close(t.grad, exact)
    if backend == "emulator":
        of = {"o": {}, "lse": {"of": ["lse"], "wrt": ["q", "k"]}, "both": {"of": ["o", "lse"]}}[used]
        assert compiler == [("fwd", {}), ("bwd", of)]


def test_lse_does_not_depend_on_v(compiler):
    q, k, v = qkv(grad="v")
    _, lse = fa4c.attention(q, k, v, causal=True, return_lse=True, backend="emulator")
    lse.sum().backward()
    assert v.grad.shape == v.shape and not v.grad.any() and compiler == [("fwd", {})]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("needs", ["q", "k", "v", "qk", "kv", "qv"])
def test_only_what_needs_a_gradient_gets_one(compiler, backend, needs):
    q, k, v = qkv(grad=needs)
    o = fa4c.attention(q, k, v, causal=True, backend=backend)
    do = torch.randn(o.shape).bfloat16()
    o.backward(do)
    exact = wanted(q, k, v, {"o": do})
    for name, t in zip("qkv", (q, k, v)):
        assert (t.grad is not None) == (name in needs)
        if name in needs:
            close(t.grad, exact[name])
    if backend == "emulator":
        assert compiler[1] == ("bwd", {"wrt": list(needs)})


def test_without_grad_nothing_is_kept(compiler):
    q, k, v = qkv()
    with torch.no_grad():
        assert not fa4c.attention(q, k, v, causal=True, backend="emulator").requires_grad
    assert not fa4c.attention(*(t.detach() for t in (q, k, v)), causal=True, backend="emulator").requires_grad
    with torch.inference_mode():
        fa4c.attention(q, k, v, causal=True, backend="emulator")
    o, lse = fa4c.attention(q, k, v, causal=True, return_lse=True, backend="emulator")
    assert o.grad_fn is not None and compiler == [("fwd", {})]


def test_new_shapes_compile_nothing_and_shapes_are_planned_once(compiler):
    for m in (20, 21, 22, 20):
        q, k, v = qkv(m=m)
        for _ in range(2):
            fa4c.attention(q, k, v, causal=True, backend="emulator").sum().backward()
    assert compiler == [("fwd", {}), ("bwd", {})] and counters.stats()["compiles"] == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_head_dims_dtypes_and_one_head(compiler, backend):
    for options in (dict(d=72, dv=40, dtype=torch.float16), dict(hq=3, hkv=1), dict(b=1, m=1, n=1)):
        q, k, v = qkv(**options)
        o = fa4c.attention(q, k, v, causal=True, backend=backend)
        do = torch.randn(o.shape).to(o.dtype)
        o.backward(do)
        tree = attention_tree(mask=CAUSAL, d=q.shape[3], dv=v.shape[3])
        for t, exact in zip((q, k, v), wanted(q, k, v, {"o": do}, tree).values()):
            close(t.grad, exact)


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_of_one_projection_and_odd_gradients(compiler, backend):
    """B8, and dO that is expanded, transposed, a slice of wide rows."""
    whole = torch.randn(2, 20, 3, 4, 64).bfloat16().requires_grad_()
    exact = None
    for make in (
        lambda o: torch.ones((), dtype=o.dtype).expand(o.shape),
        lambda o: torch.ones(o.shape[0], o.shape[2], o.shape[1], o.shape[3], dtype=o.dtype).transpose(1, 2),
        lambda o: torch.ones(*o.shape[:3], 2 * o.shape[3] + 1, dtype=o.dtype)[..., 1 : o.shape[3] + 1],
    ):
        whole.grad = None
        o = fa4c.attention(*whole.unbind(2), causal=True, backend=backend)
        do = make(o)
        assert not do.is_contiguous()
        o.backward(do)
        exact = exact or wanted(*whole.detach().unbind(2), {"o": do})
        close(whole.grad, torch.stack(list(exact.values()), 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_broadcast_keys_get_the_sum(compiler, backend):
    q, k, v = qkv(hkv=4)
    one = torch.randn(2, 25, 1, 64).bfloat16().requires_grad_()
    o = fa4c.attention(q, one.expand(2, 25, 4, 64), v, causal=True, backend=backend)
    o.backward(torch.ones_like(o))
    exact = wanted(q, one.detach().expand(2, 25, 4, 64), v, {"o": torch.ones_like(o)})
    torch.testing.assert_close(one.grad.double(), exact["k"].sum(2, keepdim=True), rtol=0.05, atol=0.05)


def test_captured_tensors_get_gradients():
    tree = attention_tree(score=ALIBI_SCORE, captures=[SLOPES], align="top_left")
    variant = artifact.build(manifest(tree), MEMBERS)
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], requires_grad=True)
    q, k, v = qkv(grad="")
    o = fa4c.attention(q, k, v, variant=variant, captured={"slopes": slopes}, backend="reference")
    assert o.requires_grad
    o.backward(torch.ones_like(o))
    exact = wanted(q, k, v, {"o": torch.ones_like(o)}, tree, slopes=slopes.detach())
    assert slopes.grad.dtype == torch.float32 and q.grad is None
    torch.testing.assert_close(slopes.grad.double(), exact["slopes"], rtol=1e-5, atol=1e-4)


def test_a_bhsd_variant_takes_and_gives_bshd():
    both = [artifact.build(manifest(attention_tree(mask=CAUSAL, layout=layout)), MEMBERS) for layout in ("bshd", "bhsd")]
    both[1].manifest["tensors"][0]["layout"] = ["b", "hq", "m", "d"]
    found = []
    for variant in both:
        q, k, v = qkv()
        o, lse = fa4c.attention(q, k, v, variant=variant, backend="reference", return_lse=True)
        (o.float().square().sum() + lse.exp().sum()).backward()
        found.append([q.grad, k.grad, v.grad, o.detach()])
    for one, two in zip(*found):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6)


# -- float64 -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"score": ALIBI_SCORE, "captures": [SLOPES], "layout": "bhsd"}], ids=["causal", "alibi bhsd"])
def test_gradcheck(options):
    tree = attention_tree(mask=CAUSAL, d=4, dv=3, dtype="f64", **options)
    names = [a["name"] for a in tree["args"]]
    tensors = [torch.randn(1, s, h, x, dtype=torch.float64) for s, h, x in ((4, 2, 4), (5, 1, 4), (5, 1, 3))]
    tensors += [torch.rand(2, dtype=torch.float64)] if "captures" in options else []
    problem = Problem(tree, None, names, "reference", torch.device("cpu"), None)
    trained = training(problem, dict(zip(names, problem.laid_out(tensors))), True, False).attached()
    # results come in the tree's dtypes: LSE must be f64 as well
    tree["results"][1]["dtype"] = "f64"
    assert torch.autograd.gradcheck(trained, [t.requires_grad_() for t in tensors])


# -- refusals ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_differentiation_is_refused_and_the_first_is_right(compiler, backend):
    q, k, v = qkv()
    o = fa4c.attention(q, k, v, causal=True, backend=backend)
    plain = torch.autograd.grad(o.float().sum(), [q, k, v], retain_graph=True)
    found = torch.autograd.grad(o.float().sum(), [q, k, v], create_graph=True)
    for one, two in zip(plain, found):
        assert torch.equal(one, two) and two.requires_grad
    with pytest.raises(NotYetError, match="gradients of fa4c.attention's gradients are not supported") as caught:
        found[0].float().sum().backward()
    assert caught.value.fix


@pytest.mark.parametrize("transform", [torch.func.grad, lambda f: torch.func.vjp(f, qkv()[0])])
def test_a_transform_of_torch_func_is_refused(compiler, transform):
    q, k, v = qkv()
    with pytest.raises(NotYetError, match="inside a transform of torch.func"):
        transform(lambda q: fa4c.attention(q, k, v, causal=True, backend="reference").float().sum())(q)


def test_artifacts(compiler, tmp_path):
    q, k, v = qkv()
    both = artifact.build(*both_manifest())
    both.save(tmp_path / "both.fa4c")
    for variant in (both, str(tmp_path / "both.fa4c")):
        q, k, v = qkv(grad="kv")
        o, lse = fa4c.attention(q, k, v, variant=variant, backend="emulator", return_lse=True)
        o.backward(torch.ones_like(o))
        exact = wanted(q, k, v, {"o": torch.ones_like(o)})
        close(k.grad, exact["k"]), close(v.grad, exact["v"])
        assert q.grad is None
    assert compiler == []
    o, lse = fa4c.attention(q, k, v, variant=both, backend="emulator", return_lse=True)
    with pytest.raises(InputError, match="gradient of lse arrives, but this backward takes none"):
        lse.sum().backward()
    forward = artifact.build(manifest(), MEMBERS)
    o = fa4c.attention(q, k, v, variant=forward, backend="emulator")  # runs; there may never be a backward
    with pytest.raises(InputError, match="an artifact without a backward") as caught:
        o.sum().backward()
    assert "both" in caught.value.fix
    with pytest.raises(InputError, match="a backward alone"):
        fa4c.attention(q, k, v, variant=both.backward, backend="emulator")
    partial = artifact.build(*both_manifest(wrt=("k", "v")))
    o = fa4c.attention(*qkv(), variant=partial, backend="emulator")
    with pytest.raises(InputError, match="q requires grad, but this backward gives no gradient for it"):
        o.sum().backward()


def test_an_artifact_for_o_and_lse_gets_zeros_for_what_does_not_arrive(compiler):
    variant = artifact.build(*both_manifest(of=("o", "lse")))
    for used in ("o", "lse"):
        q, k, v = qkv()
        o, lse = fa4c.attention(q, k, v, variant=variant, backend="emulator", return_lse=True)
        {"o": o, "lse": lse}[used].sum().backward()
        exact = wanted(q, k, v, {used: torch.ones_like({"o": o, "lse": lse}[used])})
        for t, gradient in zip((q, k, v), exact.values()):
            assert t.grad is not None or (used == "lse" and t is v)
            close(t.grad, gradient) if t.grad is not None else None


def test_changed_inputs_are_noticed(compiler):
    q, k, v = qkv()
    o = fa4c.attention(q, k, v, causal=True, backend="emulator")
    with torch.no_grad():
        k.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_deterministic_is_asked_for(compiler):
    q, k, v = qkv()

    def backward(**options):
        fa4c.attention(q, k, v, causal=True, backend="emulator", **options).sum().backward()

    backward(deterministic=True)
    assert compiler == [("fwd", {}), ("bwd", {"deterministic": True})]
    torch.use_deterministic_algorithms(True)
    try:
        backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(compiler) == 2
    backward()
    assert compiler[2:] == [("bwd", {})]
    made = fa4c.compile(attention_tree(mask=CAUSAL), direction="bwd", deterministic=True)
    assert len(compiler) == 3 and made.direction == "bwd"  # the one that `attention` asked for
    made = fa4c.compile(attention_tree(mask=CAUSAL), direction="bwd", of=["o", "lse"], wrt=["v"])
    assert compiler[-1] == ("bwd", {"of": ["o", "lse"], "wrt": ["v"]}) and [t.name for t in made.program.outputs] == ["dv"]
    with pytest.raises(InputError, match="did you mean 'both'"):
        fa4c.compile(attention_tree(), direction="boht")


@pytest.mark.parametrize("globally", [False, True])
def test_deterministic_is_asked_for_in_a_graph(compiler, globally):
    """The operators of torch.compile: by the option, and by torch's switch when the gradient arrives."""
    q, k, v = qkv()
    o = torch_ops.attention(q, k, v, None, False, True, "bottom_right", None, None, None, not globally, None, "emulator", None)
    torch.use_deterministic_algorithms(globally)
    try:
        o.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert compiler == [("fwd", {}), ("bwd", {"deterministic": True})]


def test_checkpointing(compiler):
    from torch.utils.checkpoint import checkpoint

    q, k, v = qkv()
    plain = fa4c.attention(q, k, v, causal=True, backend="emulator")
    exact = torch.autograd.grad(plain.float().square().sum(), [q, k, v])
    for reentrant in (False, True):
        o = checkpoint(lambda *t: fa4c.attention(*t, causal=True, backend="emulator"), q, k, v, use_reentrant=reentrant)
        q.grad = k.grad = v.grad = None
        o.float().square().sum().backward()
        for t, gradient in zip((q, k, v), exact):
            assert torch.equal(t.grad, gradient)
