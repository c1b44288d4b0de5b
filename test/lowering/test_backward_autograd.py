"""`fa4c.attention` under autograd with compiled kernels, executed by the emulator: which backward is compiled, where its gradients go."""

import pathlib
import sys

import compiled
import pytest
import torch

import fa4c
from fa4c import api, torch_ops
from fa4c.frontend.to_mlir import to_mlir
from fa4c.frontend.variant import standard
from fa4c.ir.diagnostics import Diagnostic
from fa4c.lowering import build
from fa4c.runtime import cache, check, execute, inputs
from fa4c.runtime.errors import InputError

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "runtime"))
from runtime_samples import attention_tree  # noqa: E402

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


@pytest.mark.parametrize("target, length, table", [("sm_90a", 192, 256), ("sm_100a", 64, 64)])
def test_a_learned_temperature_and_a_mask_tensor(target, length, table):
    """bugs.md B19: a captured scalar with a gradient. B5: a mask tensor larger than the tensors, loss = sum(o exp(LSE)). B7: a mask tensor,
    S % 128 == 64, every score about -120."""
    loads = [["load", "c"], ["mul", 2, 3]], [["load", "visible", 0, 1], ["const", 0, "i32"], ["ne", 2, 3]]
    captures = [dict(name="c", axes=[], dims=[], dtype="f32", shape=[])]
    captures += [dict(name="visible", axes=[], dims=["rows", "columns"], dtype="i32", shape=[None, None])]
    scaled, places = [["x", 0], ["const", 0.125, "f32"], ["mul", 0, 1]], [["index", "i"], ["index", "j"]]
    tree = attention_tree(score=scaled + loads[0], mask=places + loads[1], align="top_left", captures=captures)
    captured = {"c": torch.tensor(0.7), "visible": torch.ones(table, table, dtype=torch.int32).tril()}
    sizes = dict(b=1, hq=2, hkv=2, m=length, n=length, rows=table, columns=table)
    given = inputs.make_inputs(tree, sizes, seed=1, given=captured) | captured
    if length == 64:
        given["q"].mul_(0.05)[..., 0], given["k"].mul_(0.05)[..., 0] = 1, -120 * 8 / 0.7
    leaves = {n: t.requires_grad_(t.is_floating_point()) for n, t in given.items()}
    q, k, v = (leaves[n] for n in "qkv")
    captured = {n: leaves[n] for n in captured}
    o, lse = fa4c.attention(q, k, v, variant=to_mlir(tree), captured=captured, return_lse=True, backend="emulator", target=target)
    assert length == 192 or lse.max() < -110
    weight = torch.exp(lse.detach())
    do = torch.randn(o.shape).bfloat16() if length == 64 else weight.transpose(1, 2)[..., None].expand(o.shape).bfloat16()
    dlse = (do.float() * o.detach().float()).sum(-1).transpose(1, 2)
    torch.autograd.backward((o, lse), (do, dlse))
    found, given = {n: leaves[n].grad for n in ("q", "k", "v", "c")}, {n: t.detach() for n, t in given.items()}
    exact, eager = check.expected_gradients(tree, given, {"o": do, "lse": dlse}, found)
    assert all(row.ok for row in check.check_gradients(tree, given, {"o": do, "lse": dlse}, found, exact=exact, eager=eager))
    assert abs(found["c"] - exact["c"]) < 1e-4 * abs(exact["c"])  # eager's, in bf16, is a tenth off


def test_an_artifact_is_asked_for_a_fixed_order():
    """It is not compiled again: one whose sums have no order is refused, by the argument and by torch's switch."""
    plain, ordered = (compiled.loaded("causal.mlir", direction="both", head_dim=(D, D), deterministic=d) for d in (False, True))
    assert plain.backward.adds_in_any_order and not ordered.backward.adds_in_any_order
    fa4c.attention(*qkv(), variant=ordered, deterministic=True, backend="emulator").sum().backward()
    with pytest.raises(InputError, match="adds in any order"):
        fa4c.attention(*qkv(), variant=plain, deterministic=True, backend="emulator").sum().backward()
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(InputError, match="adds in any order"):
            fa4c.attention(*qkv(), variant=plain, backend="emulator").sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_saturated_soft_cap_in_fp16():
    """Scores near -147 under a cap of 30: 1 - tanh(-4.9)^2 is 2e-4, and fp16 operands show it where tanh near -1 is rounded like 2."""
    both = compiled.loaded("softcap.mlir", direction="both", head_dim=(192, 128), dtype="fp16")
    forward, backward = both.forward_semantics, both.backward.semantics
    given = {n: t * 0.05 for n, t in inputs.make_inputs(forward, dict(b=1, hq=2, hkv=2, m=64, n=64), seed=4).items()}
    given["q"][..., 0], given["k"][..., 0], given["v"] = 1, -120 * 192**0.5, given["v"] * 20
    stored = execute.execute(both, given, backend="emulator", want=["o", "lse"])
    do = torch.randn(stored["o"].shape, generator=torch.Generator().manual_seed(5)).half()
    read = [t.name for t in both.backward.program.inputs]
    found = execute.execute(both.backward, {n: t for n, t in {**given, **stored, "do": do}.items() if n in read}, backend="emulator")
    rows = check.check_gradients(forward, given, {"o": do}, {n[1:]: g for n, g in found.items()}, backward=backward)
    assert all(row.ok for row in rows) and sum(row.by_eager > 0 for row in rows) == 4, "\n".join(map(str, rows))


# Scores without Q and K: an example, what its score function yields, and what instead.
ALONE = {"constant": ("full.mlir", "(%y) : (f32)", "(%c) : (f32)"), "bias": ("alibi.mlir", "(%biased) : (f32)", "(%bias) : (f32)")}


def alone(name: str) -> str:
    file, before, after = ALONE[name]
    text = (compiled.EXAMPLES / file).read_text()
    assert text.count(before) == 1
    return text.replace(before, after)


@pytest.mark.parametrize("name, target, deterministic", [("bias", "sm_90a", False), ("constant", "sm_100a", True)])
def test_gradients_that_are_zero_are_filled_by_the_host(name, target, deterministic):
    """The score reads neither Q nor K. Outputs start poisoned."""
    made = compiled.kernel_of_text(alone(name), target=target, direction="bwd", deterministic=deterministic, head_dim=(D, D))
    backward = compiled.load(*made)
    assert {"dq", "dk"} <= {s["buffer"] for s in backward.manifest["steps"] if s["op"] == "fill"}
    assert not {"dq", "dk"} & {p.get("tensor") for kernel in backward.manifest["kernels"].values() for p in kernel["params"]}
    tree = backward.forward_semantics
    given = inputs.make_inputs(tree, dict(b=2, hq=2, hkv=1, m=70, n=100), seed=0)
    stored = {n: x.to(torch.float32 if n == "lse" else torch.bfloat16) for n, x in check.expected(tree, given)[0].items()}
    do = torch.randn(stored["o"].shape).bfloat16()
    taken = {t.name for t in backward.program.inputs}
    passed = {n: t for n, t in {**given, **stored, "do": do}.items() if n in taken}
    found = {n[1:]: g for n, g in execute.execute(backward, passed, backend="emulator").items()}
    assert set(found) == set(given) and all(row.ok for row in check.check_gradients(tree, given, {"o": do}, found))
    for n in "qk":
        assert found[n].shape == given[n].shape and found[n].dtype == torch.bfloat16 and not found[n].any()


def test_a_score_that_reads_no_score():
    """Only what is not 0 is compiled; nothing is, where all gradients wanted are 0."""
    tensors = qkv()
    do = torch.randn(tensors[0].shape).bfloat16()
    fa4c.attention(*tensors, variant=alone("constant"), backend="emulator").backward(do)
    tree = fa4c.compile(alone("constant"), head_dim=D, dtype=torch.bfloat16).semantics
    assert not tensors[0].grad.any() and not tensors[1].grad.any() and right(tensors, {"o": do}, tree)
    tensors = qkv("qk")
    fa4c.attention(*tensors, variant=alone("constant"), backend="emulator").backward(do)
    assert all(t.grad.shape == t.shape and t.grad.dtype == t.dtype and not t.grad.any() for t in tensors[:2])
    with pytest.raises(Diagnostic, match="returns nothing but 0: dq, dk"):
        fa4c.compile(alone("constant"), direction="bwd", wrt=["q", "k"])


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
