"""fa4c.attention and its kin on the CPU: right numbers from the reference backend, clear errors, one compile for many shapes."""

import math
import random
import threading
import time

import pytest
import torch
import torch.nn.functional as F
from runtime_samples import ALIBI_SCORE, CAUSAL, MEMBERS, SLOPES, attention_tree, manifest

import fa4c
from fa4c import api
from fa4c.runtime import artifact, counters, execute
from fa4c.runtime.errors import BackendError, InputError, InputTypeError, NotYetError


def qkv(b=2, m=20, n=20, hq=4, hkv=2, d=64, dv=64, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return [torch.randn(b, s, h, x, dtype=dtype) for s, h, x in ((m, hq, d), (n, hkv, d), (n, hkv, dv))]


def exact(q, k, v, keep=None, scale=None, softcap=None):
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    s = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if keep is not None:
        s = s.masked_fill(~keep, float("-inf"))
    return torch.nan_to_num(s.softmax(-1) @ v).transpose(1, 2), torch.logsumexp(s, -1)


def close(got, wanted):
    torch.testing.assert_close(got.double(), wanted, rtol=0.01, atol=1e-3)


@pytest.mark.parametrize(
    "options, keep, more",
    [
        ({}, None, {}),
        ({"causal": True}, lambda i, j: j <= i, {}),
        ({"causal": True, "align": "top_left"}, lambda i, j: j <= i - 5, {}),
        ({"window": (3, 2)}, lambda i, j: (j >= i - 3) & (j <= i + 2), {}),
        ({"window": (3, None)}, lambda i, j: j >= i - 3, {}),
        ({"window": (4, 0), "causal": True}, lambda i, j: (j <= i) & (j >= i - 4), {}),
        ({"softcap": 1.5}, None, {"softcap": 1.5}),
        ({"scale": 0.3}, None, {"scale": 0.3}),
        ({"window": [None, None]}, None, {}),
    ],
)
def test_attention_by_the_reference_backend(options, keep, more):
    q, k, v = qkv(m=20, n=25)
    i, j = torch.arange(20)[:, None] + 5, torch.arange(25)[None]
    wanted, lse = exact(q, k, v, None if keep is None else keep(i, j), **more)
    o, got_lse = fa4c.attention(q, k, v, **options, return_lse=True, backend="reference")
    assert o.dtype == torch.bfloat16 and got_lse.dtype == torch.float32
    close(o, wanted)
    torch.testing.assert_close(got_lse.double(), lse, rtol=1e-5, atol=1e-5)
    assert torch.equal(fa4c.attention(q, k, v, **options, backend="reference"), o)


def test_b17_a_right_window_larger_than_sk_is_not_cut():
    q, k, v = qkv(b=1, m=8, n=2, hq=1, hkv=1)
    close(fa4c.attention(q, k, v, window=(None, 100), backend="reference"), exact(q, k, v)[0])


def test_torch_sdpa_agrees():
    q, k, v = qkv(hq=4, hkv=4)
    wanted = F.scaled_dot_product_attention(*(t.double().transpose(1, 2) for t in (q, k, v)), is_causal=True).transpose(1, 2)
    close(fa4c.attention(q, k, v, causal=True, backend="reference"), wanted)


def test_strided_views_and_unequal_head_dims():
    fused = torch.randn(2, 20, 3, 4, 72, dtype=torch.float16)
    q, k, v = fused.unbind(2)
    close(fa4c.attention(q, k, v[..., :40], backend="reference"), exact(q, k, v[..., :40])[0])


def test_a_variant_with_a_captured_tensor():
    a = artifact.build(manifest(attention_tree(score=ALIBI_SCORE, captures=[SLOPES], align="top_left")), MEMBERS)
    q, k, v = qkv()
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    got = fa4c.attention(q, k, v, variant=a, captured={"slopes": slopes}, backend="reference")
    s = q.double().transpose(1, 2) @ k.double().transpose(1, 2).repeat_interleave(2, 1).transpose(-1, -2) / 8
    s = s + slopes.double()[:, None, None] * (torch.arange(20)[None] - torch.arange(20)[:, None])
    close(got, (s.softmax(-1) @ v.double().transpose(1, 2).repeat_interleave(2, 1)).transpose(1, 2))
    with pytest.raises(InputError, match="'slopes' is missing"):
        fa4c.attention(q, k, v, variant=a, backend="reference")
    with pytest.raises(InputError, match="no input 'slops'.*did you mean 'slopes'"):
        fa4c.attention(q, k, v, variant=a, captured={"slops": slopes}, backend="reference")
    with pytest.raises(InputTypeError, match="slopes is torch.float64"):
        fa4c.attention(q, k, v, variant=a, captured={"slopes": slopes.double()}, backend="reference")


def t(*shape, dtype=torch.bfloat16, device="cpu"):
    return torch.zeros(shape, dtype=dtype, device=device)


GOOD = dict(q=(2, 20, 4, 64), k=(2, 20, 2, 64), v=(2, 20, 2, 64))
WRONG = [
    (dict(q=[1.0]), {}, InputTypeError, "q is list, not a torch.Tensor"),
    (dict(q=t(2, 20, 64)), {}, InputError, r"q has 3 dimensions \(2, 20, 64\), but needs 4"),
    (dict(v=t(2, 20, 2, 64, dtype=torch.float16)), {}, InputTypeError, r"v is torch.float16, but q is torch.bfloat16"),
    (dict(q=t(2, 20, 4, 64, dtype=torch.float32)), {}, InputTypeError, "q is f32, which is not supported"),
    (dict(k=t(2, 20, 2, 64, device="meta")), {}, InputError, "k is on meta, but q is on cpu"),
    (dict(k=t(1, 20, 2, 64)), {}, InputError, "k has 1 batch entries, but q has 2"),
    (dict(v=t(2, 19, 2, 64)), {}, InputError, "v has 19 keys, but k has 20"),
    (dict(v=t(2, 20, 1, 64)), {}, InputError, "v has 1 heads, but k has 2"),
    (dict(k=t(2, 20, 2, 32)), {}, InputError, "k has 32 head dim, but q has 64"),
    (dict(q=t(2, 20, 3, 64)), {}, InputError, "3 query heads are no multiple of 2 KV heads"),
    (dict(q=t(2, 20, 4, 60), k=t(2, 20, 2, 60)), {}, InputError, "head dim d = 60 is not supported"),
    (dict(q=t(2, 20, 4, 264), k=t(2, 20, 2, 264)), {}, InputError, "head dim d = 264 is not supported"),
    (dict(v=t(2, 20, 2, 4)), {}, InputError, "head dim dv = 4 is not supported"),
    ({}, dict(align="bottom-right"), InputError, "did you mean 'bottom_right'"),
    ({}, dict(window=5), InputError, "window is 5"),
    ({}, dict(window=(-1, 0)), InputError, r"window is \(-1, 0\)"),
    ({}, dict(softcap=0), InputError, "softcap is 0"),
    ({}, dict(softcap=float("inf")), InputError, "softcap is inf"),
    ({}, dict(scale=float("nan")), InputError, "scale is nan"),
    ({}, dict(scale="1"), InputError, "scale is '1'"),
    ({}, dict(score_mod=lambda s, b, h, i, j: s), NotYetError, "score_mod is not supported yet"),
    ({}, dict(mask_mod=lambda b, h, i, j: True), NotYetError, "mask_mod is not supported yet"),
    ({}, dict(backend="cud"), InputError, "did you mean 'cuda'"),
    ({}, dict(backend="cuda"), InputError, "needs CUDA tensors"),
    ({}, dict(backend="emulator", target="sm_91a"), InputError, "unknown target 'sm_91a'"),
    ({}, dict(captured={"x": 1}), InputError, "need a variant"),
    ({}, dict(variant="nothing.mlir"), InputError, "nothing.mlir.*cannot read the variant"),
    ({}, dict(variant=3), InputTypeError, "a variant is int"),
    ({}, dict(variant="func.func @f() {}", causal=True), InputError, "causal=True and variant= exclude each other"),
]


@pytest.mark.parametrize("tensors, options, kind, message", WRONG, ids=[w[3][:40] for w in WRONG])
def test_bad_input(tensors, options, kind, message, monkeypatch):
    monkeypatch.setattr(execute, "emulator_available", lambda: True)
    given = {n: tensors.get(n, t(*s)) for n, s in GOOD.items()}
    backend = {"backend": "emulator"} if "variant" in options else {"backend": "reference"}
    with pytest.raises(kind, match=message) as caught:
        fa4c.attention(**given, **{**backend, **options})
    assert (
        isinstance(caught.value, (ValueError, TypeError, NotImplementedError))
        and caught.value.what
        and str(caught.value).count("error:") == 1
    )


def test_no_gpu_and_no_emulator_says_what_to_do(monkeypatch):
    monkeypatch.setattr(execute, "emulator_available", lambda: False)
    with pytest.raises(BackendError, match="emulator backend is not there") as caught:
        fa4c.attention(*qkv())
    assert "backend='reference'" in caught.value.fix


def test_backend_variable_is_read_in_each_call(monkeypatch):
    monkeypatch.setattr(execute, "emulator_available", lambda: False)
    q, k, v = qkv()
    monkeypatch.setenv("FA4C_BACKEND", "reference")
    fa4c.attention(q, k, v)
    monkeypatch.setenv("FA4C_BACKEND", "emulater")
    with pytest.raises(InputError, match="FA4C_BACKEND is 'emulater'.*did you mean 'emulator'"):
        fa4c.attention(q, k, v)


@pytest.fixture
def fake_compiler(monkeypatch):
    """The compiler replaced by one that counts and writes a manifest; the emulator by the reference."""
    calls = []

    def compile_text(text, filename, target, direction, dtype, head_dim):
        calls.append((filename, target, direction, dtype, head_dim))
        time.sleep(0.02)  # time enough for another thread to begin too
        tree = attention_tree(mask=CAUSAL, dtype=dtype or "bf16", d=(head_dim or (64, 64))[0], dv=(head_dim or (64, 64))[1])
        return manifest(tree, target=target), MEMBERS

    def to_mlir(semantics):
        return "module {}"

    import sys
    import types

    monkeypatch.setattr(api, "_compile_text", compile_text)
    printer = types.ModuleType("fa4c.frontend.to_mlir")
    printer.to_mlir = to_mlir
    monkeypatch.setitem(sys.modules, "fa4c.frontend.to_mlir", printer)
    emulated = types.ModuleType("fa4c.runtime.emulated")
    emulated.run = lambda a, given, wanted: execute.run_reference(a.semantics, given, wanted)
    emulated.available = lambda: True
    monkeypatch.setitem(sys.modules, "fa4c.runtime.emulated", emulated)
    import fa4c.runtime

    monkeypatch.setattr(fa4c.runtime, "emulated", emulated, raising=False)
    return calls


def test_fifty_shapes_compile_once(fake_compiler):
    rng = random.Random(0)
    for _ in range(50):
        group = rng.randint(1, 3)
        q, k, v = qkv(b=rng.randint(1, 3), m=rng.randint(1, 40), n=rng.randint(1, 40), hq=2 * group, hkv=2)
        fa4c.attention(q, k, v, causal=True)
    assert len(fake_compiler) == 1 and counters.stats()["compiles"] == 1
    fa4c.attention(*qkv(d=72), causal=True)
    fa4c.attention(*qkv(dtype=torch.float16), causal=True)
    fa4c.attention(*qkv())
    assert len(fake_compiler) == 4


def test_threads_compile_once(fake_compiler):
    q, k, v = qkv()
    results, threads = [], [threading.Thread(target=lambda: results.append(fa4c.attention(q, k, v, causal=True))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6 and all(torch.equal(r, results[0]) for r in results) and len(fake_compiler) == 1


def test_size_zero_runs_no_kernel(fake_compiler, monkeypatch):
    """B1: no keys, no queries, no batch."""
    from fa4c.runtime import emulated

    monkeypatch.setattr(emulated, "run", lambda *a: pytest.fail("a kernel was launched"))
    o, lse = fa4c.attention(*qkv(m=64, n=0, hq=2), causal=True, return_lse=True)
    assert o.shape == (2, 64, 2, 64) and (o == 0).all() and (lse == float("-inf")).all() and lse.shape == (2, 2, 64)
    assert fa4c.attention(*qkv(m=0, n=64)).shape == (2, 0, 4, 64)
    assert fa4c.attention(*qkv(b=0)).shape == (0, 20, 4, 64)


def test_compile_load_and_save(fake_compiler, tmp_path):
    a = fa4c.compile(attention_tree(mask=CAUSAL), head_dim=64, dtype=torch.float16)
    assert fake_compiler == [("<sample>", "sm_90a", "fwd", "fp16", (64, 64))]
    a.save(tmp_path / "x.fa4c")
    b = fa4c.load(tmp_path / "x.fa4c")
    assert b.manifest == a.manifest and isinstance(b, fa4c.Artifact)
    q, k, v = qkv(dtype=torch.float16)
    assert torch.equal(fa4c.attention(q, k, v, variant=b), fa4c.attention(q, k, v, variant=str(tmp_path / "x.fa4c")))
    (tmp_path / "v.mlir").write_text("func.func @f() {\n}\n")
    fa4c.compile(tmp_path / "v.mlir")
    fa4c.compile("func.func @f() {\n}\n")
    assert len(fake_compiler) == 2 and fake_compiler[1][0] == str(tmp_path / "v.mlir")
    with pytest.raises(InputError, match="head dim d = 12"):
        fa4c.compile(tmp_path / "v.mlir", head_dim=12)
    with pytest.raises(InputTypeError, match="dtype is f32"):
        fa4c.compile(tmp_path / "v.mlir", dtype=torch.float32)


def test_execute_checks_names_and_writes_given_outputs():
    a = artifact.build(manifest(), MEMBERS)
    q, k, v = qkv()
    inputs = {"q": q, "k": k, "v": v}
    out = torch.full((2, 20, 4, 64), float("nan"), dtype=torch.bfloat16)
    got = execute.execute(a, inputs, backend="reference", outputs={"o": out}, want=["o"])
    assert got["o"] is out and torch.isfinite(out).all() and set(got) == {"o"}
    assert set(execute.execute(a, inputs, backend="reference")) == {"o", "lse"}
    with pytest.raises(InputError, match="no output 'oo'"):
        execute.execute(a, inputs, backend="reference", want=["oo"])
    with pytest.raises(InputError, match="input 'v' is missing"):
        execute.execute(a, {"q": q, "k": k}, backend="reference")
    with pytest.raises(InputTypeError, match="k is torch.float16, but this kernel takes torch.bfloat16"):
        execute.execute(a, {**inputs, "k": k.half()}, backend="reference")
    with pytest.raises(InputTypeError, match="layout torch.sparse_coo"):
        execute.execute(a, {**inputs, "k": k.to_sparse()}, backend="reference")


def test_a_bhsd_variant_still_takes_and_gives_bshd():
    bhsd = {"layout": ["b", "hq", "m", "d"]}
    m = manifest(attention_tree(mask=CAUSAL, layout="bhsd"))
    for t_ in m["tensors"]:
        if len(t_["layout"]) == 4:
            t_["layout"] = [t_["layout"][k] for k in (0, 2, 1, 3)]
    assert m["tensors"][0]["layout"] == bhsd["layout"]
    q, k, v = qkv(n=25)
    a, b = artifact.build(m, MEMBERS), artifact.build(manifest(), MEMBERS)
    one, two = (fa4c.attention(q, k, v, variant=x, backend="reference", return_lse=True) for x in (a, b))
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])


def test_an_artifact_without_semantics_says_so():
    a = artifact.build(manifest(semantics=attention_tree()) | {"semantics": {}}, MEMBERS)
    with pytest.raises(InputError, match="says nothing of its semantics"):
        execute.execute(a, dict(zip("qkv", qkv())), backend="reference")
