"""`fa4c.attention` under autograd with compiled kernels, executed by the emulator: which backward is compiled, where its gradients go."""

import compiled
import pytest
import torch

import fa4c
from fa4c import api, torch_ops
from fa4c.frontend.variant import standard
from fa4c.lowering import build
from fa4c.runtime import cache, check

D = 64


@pytest.fixture(autouse=True)
def kept(monkeypatch, tmp_path_factory):
    """Kernels are built once for all tests."""
    monkeypatch.setattr(build, "build", compiled.kept_build)
    monkeypatch.setenv("FA4C_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


def qkv(grad="qkv", dtype=torch.bfloat16):
    torch.manual_seed(0)
    made = [torch.randn(1, s, h, D, dtype=dtype) for s, h in ((70, 2), (100, 1), (100, 1))]
    return [t.requires_grad_(name in grad) for name, t in zip("qkv", made)]


def right(tensors, given, tree=None, **more) -> bool:
    """Whether the gradients in `tensors` are within tolerance."""
    tree = tree or standard(causal=True, d=D, dtype="bf16" if tensors[0].dtype == torch.bfloat16 else "fp16")
    inputs = {n: t.detach() for n, t in zip("qkv", tensors)} | {n: t.detach() for n, t in more.items()}
    found = {n: t.grad for n, t in {**dict(zip("qkv", tensors)), **more}.items() if t.grad is not None}
    rows = check.check_gradients(tree, inputs, given, found)
    assert len(rows) == 2 * len(found) and found
    return all(row.ok for row in rows)


@pytest.mark.parametrize("needs", ["q", "v", "kv"])
def test_a_part_of_the_inputs(needs):
    tensors = qkv(needs)
    o = fa4c.attention(*tensors, causal=True, backend="emulator")
    do = torch.randn(o.shape).bfloat16()
    o.backward(do)
    assert [t.grad is not None for t in tensors] == [n in needs for n in "qkv"] and right(tensors, {"o": do})


def test_lse_alone():
    """Three GEMMs, no V."""
    tensors = qkv("qk")
    _, lse = fa4c.attention(*tensors, causal=True, return_lse=True, backend="emulator")
    dlse = torch.randn(lse.shape)
    lse.backward(dlse)
    assert right(tensors, {"lse": dlse})


def test_fp16():
    tensors = qkv(dtype=torch.float16)
    o = fa4c.attention(*tensors, causal=True, backend="emulator")
    o.backward(torch.ones_like(o))
    assert right(tensors, {"o": torch.ones_like(o)})


def test_captured_slopes_and_a_file():
    """The slopes' gradient is a sum over all of a head, in f32."""
    variant = str(compiled.EXAMPLES / "alibi.mlir")
    tensors, slopes = qkv(), torch.tensor([0.5, 0.125], requires_grad=True)
    o = fa4c.attention(*tensors, variant=variant, captured={"slopes": slopes}, backend="emulator")
    do = torch.randn(o.shape).bfloat16()
    o.backward(do)
    tree = fa4c.compile(variant, head_dim=D, dtype=torch.bfloat16).semantics
    assert slopes.grad.dtype == torch.float32 and right(tensors, {"o": do}, tree, slopes=slopes)


def test_an_artifact_of_both_directions():
    tensors = qkv()
    both = fa4c.compile(compiled.EXAMPLES / "softcap.mlir", head_dim=D, direction="both")
    o = fa4c.attention(*tensors, variant=both, backend="emulator")
    o.sum().backward()
    assert right(tensors, {"o": torch.ones_like(o)}, both.semantics)


def test_operators_run_kernels_too(monkeypatch):
    monkeypatch.setenv("FA4C_BACKEND", "emulator")
    eager, graph = qkv(), qkv()
    fa4c.attention(*eager, causal=True).sum().backward()
    torch_ops.attention(*graph, None, False, True, "bottom_right", None, None, None, False, None, None, None).sum().backward()
    for one, two in zip(eager, graph):
        assert torch.equal(one.grad, two.grad)


def test_a_second_process_needs_no_compiler(monkeypatch):
    """What the cache holds is found by the keys of the same calls."""
    tensors = qkv()
    fa4c.attention(*tensors, causal=True, backend="emulator").sum().backward()
    cache.forget()
    monkeypatch.setattr(build, "build", lambda *a: pytest.fail("compiled again"))
    monkeypatch.setattr(api, "_calls", api._Calls())
    tensors = qkv()
    o = fa4c.attention(*tensors, causal=True, backend="emulator")
    o.backward(torch.ones_like(o))
    assert right(tensors, {"o": torch.ones_like(o)})
