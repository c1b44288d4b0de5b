"""The emulator backend: a compiled kernel through the manifest, on CPU tensors. Needs the compiler; a case takes seconds."""

import pathlib

import pytest
import torch

import fa4c
from fa4c.runtime import check, counters, emulated, execute, inputs
from fa4c.runtime.errors import BackendError, InputError

pytest.importorskip("torch_mlir")
pytest.importorskip("cutlass")
EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent / "examples"


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    from _pytest.monkeypatch import MonkeyPatch

    with MonkeyPatch.context() as patch:
        patch.setenv("FA4C_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        return fa4c.compile(EXAMPLES / "causal.mlir", head_dim=64, dtype="bf16")


def test_cpu_tensors_run_by_the_emulator_and_are_right(causal):
    given = inputs.make_inputs(causal.semantics, dict(b=1, hq=2, hkv=1, m=70, n=130))
    out = execute.execute(causal, given)
    rows = check.check(causal.semantics, given, out)
    assert all(r.ok for r in rows) and len(rows) == 3, "\n".join(map(str, rows))
    assert torch.equal(fa4c.attention(given["q"], given["k"], given["v"], variant=causal), out["o"])


def test_strided_views_are_read_in_place_and_others_copied(causal):
    fused = torch.randn(1, 40, 3, 2, 64, dtype=torch.bfloat16)
    q, k, v = fused.unbind(2)
    given = {"q": q, "k": k[:, :, :1].expand(1, 40, 2, 64), "v": v}
    out, _ = emulated.run_reported(causal, given, ("o", "lse"), schedule="random", schedule_seed=3)
    assert all(r.ok for r in check.check(causal.semantics, given, out))
    assert {n for n in counters.stats() if n.startswith("copies.")} == {"copies.k"}


def test_an_unwanted_lse_is_not_written(causal):
    given = inputs.make_inputs(causal.semantics, dict(b=1, hq=1, hkv=1, m=20, n=20))
    out = execute.execute(causal, given, want=["o"])
    assert set(out) == {"o"} and all(r.ok for r in check.check(causal.semantics, given, out))


def test_a_kernel_with_a_hazard_is_an_error(causal):
    """The same kernels (one for short sequences, one for long ones), with a box that loads only half of the K rows they wait for."""
    from fa4c.runtime import artifact

    m = {**causal.manifest, "kernels": {n: dict(k) for n, k in causal.manifest["kernels"].items()}}
    for kernel in m["kernels"].values():
        kernel["params"] = [dict(p) for p in kernel["params"]]
        box = kernel["params"][1]["box"]
        kernel["params"][1]["box"] = [s // 2 if s > 64 else s for s in box]
    broken = artifact.build(m, causal.members)
    given = inputs.make_inputs(causal.semantics, dict(b=1, hq=1, hkv=1, m=20, n=20))
    with pytest.raises(BackendError, match="has hazards") as caught:
        execute.execute(broken, given)
    assert "8192 bytes missing" in caught.value.why


def test_a_launch_that_cannot_start_is_an_error_of_ours(causal):
    from fa4c.runtime import artifact

    m = {**causal.manifest, "kernels": {n: {**k, "block": [32, 1, 1]} for n, k in causal.manifest["kernels"].items()}}
    given = inputs.make_inputs(causal.semantics, dict(b=1, hq=1, hkv=1, m=20, n=20))
    with pytest.raises(BackendError, match="reqntid"):
        execute.execute(artifact.build(m, causal.members), given)


def test_text_that_does_not_verify_is_one_located_error_of_ours():
    with pytest.raises(InputError, match=r"^<string>:2:\d+: error: 'attn.gemm' needs 2 operands, but has 0\n.*why") as caught:
        fa4c.compile('func.func @f() {\n "attn.gemm"() : () -> ()\n return\n}\n')
    assert isinstance(caught.value, ValueError) and "Unable to parse" not in str(caught.value)
