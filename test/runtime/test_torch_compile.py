"""torch.compile(fullgraph=True) and torch.export over `fa4c.attention`, by the reference backend."""

import pytest
import torch
from runtime_samples import ALIBI_SCORE, CAUSAL, MEMBERS, SLOPES, attention_tree, manifest

import fa4c
from fa4c import torch_ops
from fa4c.runtime import artifact
from fa4c.runtime.errors import InputError, NotYetError


@pytest.fixture(autouse=True)
def reference(monkeypatch):
    monkeypatch.setenv("FA4C_BACKEND", "reference")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def qkv(b=2, m=20, n=25, hq=4, hkv=2, grad=True):
    torch.manual_seed(0)
    return [torch.randn(b, s, h, 64, dtype=torch.bfloat16, requires_grad=grad) for s, h in ((m, hq), (n, hkv), (n, hkv))]


def plain(q, k, v):
    return fa4c.attention(q * 1, k, v, causal=True).float() * 2


def with_lse(q, k, v):
    o, lse = fa4c.attention(q * 1, k, v, window=(3, None), softcap=20.0, return_lse=True, deterministic=True)
    return o.float() * lse.exp().transpose(1, 2).unsqueeze(-1)


def both(function, inputs):
    """Results and gradients of one call."""
    for t in inputs:
        t.grad = None
    out = function(*inputs)
    out.sum().backward()
    return [out.detach(), *(t.grad for t in inputs)]


@pytest.mark.parametrize(("backend", "function"), [("aot_eager", plain), ("aot_eager", with_lse), ("inductor", with_lse)],
                         ids=["aot_eager-plain", "aot_eager-with_lse", "inductor-with_lse"])  # inductor starts a C++ compiler
def test_fullgraph_with_dynamic_shapes(backend, function):
    compiled = torch.compile(function, fullgraph=True, backend=backend, dynamic=True)
    for m in (20, 21, 33):
        inputs = qkv(m=m, n=m + 5)
        for one, two in zip(both(compiled, inputs), both(function, inputs)):
            torch.testing.assert_close(one, two, rtol=0.02, atol=1e-3)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_without_gradients_and_for_some_inputs():
    compiled = torch.compile(plain, fullgraph=True, backend="aot_eager")
    inputs = qkv(grad=False)
    assert torch.equal(compiled(*inputs), plain(*inputs))
    inputs[1].requires_grad_()
    compiled(*inputs).sum().backward()
    assert inputs[1].grad is not None and inputs[0].grad is None
    with torch.no_grad():
        assert not compiled(*qkv()).requires_grad


def test_a_loss_of_lse_alone():
    """V gets zeros."""

    def function(q, k, v):
        return fa4c.attention(q, k, v, causal=True, return_lse=True)[1].exp()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    inputs = qkv(m=20, n=25)
    for one, two in zip(both(compiled, inputs)[1:], both(function, inputs)[1:]):
        assert torch.allclose(one, two, rtol=0.02, atol=1e-3)


def test_an_artifact_and_captured_tensors():
    variant = artifact.build(manifest(attention_tree(score=ALIBI_SCORE, captures=[SLOPES], align="top_left")), MEMBERS)

    def function(q, k, v, slopes):
        return fa4c.attention(q, k, v, variant=variant, captured={"slopes": slopes})

    inputs = [*qkv(), torch.tensor([0.5, 0.25, 0.125, 0.0625], requires_grad=True)]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for one, two in zip(both(compiled, inputs), both(function, inputs)):
        assert torch.equal(one, two)


def test_export():
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return fa4c.attention(q, k, v, causal=True, return_lse=True)

    def loss(module):
        def function(*inputs):
            o, lse = module(*inputs)
            return o.float().square().sum() + lse.exp().sum()

        return function

    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(Model(), tuple(qkv(m=20, n=20)), dynamic_shapes=[{1: length}] * 3, strict=False)
    assert "fa4c.attention" in str(program.graph)
    for one, two in zip(both(loss(program.module()), qkv(m=31, n=31)), both(loss(Model()), qkv(m=31, n=31))):
        assert torch.equal(one, two)


def test_a_second_differentiation_is_refused():
    """Of the operator of a graph, as of an eager call; the first gradient is right."""
    q, k, v = qkv()
    o = torch_ops.attention(q, k, v, None, False, True, "bottom_right", None, None, None, False, None, None, None)
    (found,) = torch.autograd.grad(o.float().sum(), [q], create_graph=True)
    (wanted,) = torch.autograd.grad(fa4c.attention(q, k, v, causal=True).float().sum(), [q])
    assert torch.equal(found, wanted)
    with pytest.raises(NotYetError, match="gradients of fa4c.attention's gradients are not supported"):
        found.float().sum().backward()


@pytest.mark.parametrize("grad", [False, True])
def test_operators_keep_torchs_rules(grad):
    q, k, v = qkv(b=1, m=5, n=6, grad=grad)
    options = ("", True, True, "bottom_right", None, None, None, None, False, None, None, None)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.fa4c.attention.default, (q, k, v, [], *options), test_utils=tests)
    o, lse = torch_ops.attention(q, k, v, None, True, True, "bottom_right", None, None, None, False, None, None, None)
    given = (torch.ones_like(o), torch.ones_like(lse), [True, False, True], o, lse, q, k, v, [], *options)
    with torch.no_grad():
        torch.library.opcheck(
            torch.ops.fa4c.attention_backward.default,
            [t.detach() if isinstance(t, torch.Tensor) else t for t in given],
            test_utils=("test_schema", "test_faketensor"),
        )


def test_errors_keep_their_text():
    q, k, v = qkv()
    with pytest.raises(Exception, match="did you mean 'bottom_right'"):
        torch.compile(lambda *t: fa4c.attention(*t, align="bottom-right"), fullgraph=True, backend="eager")(q, k, v)
    with pytest.raises(InputError, match="not loaded in this process"):
        torch_ops.attention(q, k, v, None, False, False, "top_left", None, None, None, False, "digest:00", None, None)


def test_a_window_without_bounds_is_no_window():
    q, k, v = qkv(grad=False)
    compiled = torch.compile(lambda *t: fa4c.attention(*t, window=(None, None)), fullgraph=True, backend="eager")
    assert torch.equal(compiled(q, k, v), fa4c.attention(q, k, v))


def test_a_causal_mask_of_the_sample_is_what_attention_computes():
    """The sample manifests stand for `causal=True` elsewhere."""
    q, k, v = qkv(grad=False)
    variant = artifact.build(manifest(attention_tree(mask=CAUSAL)), MEMBERS)
    assert torch.equal(fa4c.attention(q, k, v, variant=variant), fa4c.attention(q, k, v, causal=True))
