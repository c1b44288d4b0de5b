"""tile-row-sum-by-mma by execution: the sums stay; where a row sees one key dS is exactly 0 in the emulator, and without it is not."""

import pathlib
import sys

import numpy as np
import pytest
import torch

from fa4c.ir import interpret_tile
from fa4c.ir.context import new_context, parse_module, print_module
from fa4c.passes.registry import run_pipeline
from fa4c.runtime import execute, gradients
from fa4c.runtime.inputs import make_inputs

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "lowering"))
import compiled  # noqa: E402
import test_from_shared as sums  # noqa: E402


def rewritten(rows, d, element) -> str:
    with new_context() as context:
        module = parse_module(sums.text(rows, d, element), sums.FILE.name, context)
        run_pipeline(module, "tile-row-sum-by-mma")
        return print_module(module)


@pytest.mark.parametrize("mode", ["value", "storage"])
def test_the_same_sums(mode):
    given = sums.inputs(2, 133, 3, 64, "bf16")
    text = rewritten(128, 64, "bf16")
    assert text.count('"tile.mma"') == 1
    with new_context() as context:
        got = interpret_tile.run(parse_module(text, sums.FILE.name, context), given, mode=mode)
    for name, want in sums.expected(given).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("rows", "d", "element"), [(128, 128, "bf16"), (64, 16, "f16")])
def test_emulated(rows, d, element):
    """What lies beside a row is thrown away, infinities too."""
    artifact = compiled.load(*compiled.kernel_of_text(rewritten(rows, d, element), sums.FILE.name))
    given = sums.inputs(2, rows + 5, 2, d, element)
    given["x"][0, 3, 0, 0] = np.inf
    got, want = execute.execute(artifact, given, backend="emulator"), sums.expected(given)
    assert np.isinf(want["delta"]).sum() == 1
    np.testing.assert_allclose(got["delta"].double().numpy(), want["delta"], rtol=1e-4, atol=1e-4)


def test_f32_stays():
    assert '"tile.mma"' not in rewritten(64, 64, "f32")


def gradients_with_one_key(head_dim: int, target="sm_90a", disabled=()) -> dict:
    """dQ, dK and dV of 70 queries that see one key, by the emulator; O is V, in float64 and so in 16 bits. Delta is not corrected."""
    text = (compiled.EXAMPLES / "full.mlir").read_text()
    options = dict(direction="bwd", head_dim=(head_dim, head_dim), target=target, disabled=disabled,
                   overrides=(("attn-derive-backward", "refine", "0"),))
    artifact = compiled.load(*compiled.kernel_of_text(text, "full.mlir", **options))
    given = make_inputs(artifact.forward_semantics, dict(b=1, hq=2, hkv=1, m=70, n=1), seed=0)
    stored = execute.run_reference(artifact.forward_semantics, given, [r["name"] for r in artifact.forward_semantics["results"]])
    arriving = gradients.incoming(artifact.forward_semantics, artifact.backward.semantics)
    do = {name: torch.randn_like(stored[result]) for name, result in arriving.items()}
    read = {t.name for t in artifact.backward.program.inputs}
    inputs = {name: t for name, t in {**given, **stored, **do}.items() if name in read}
    return execute.execute(artifact.backward, inputs, backend="emulator")


@pytest.mark.parametrize(("head_dim", "target"), [(128, "sm_90a"), (40, "sm_90a"), (64, "sm_100a")])
def test_one_key(head_dim, target):
    """dP - delta cancels to the last bit, as delta is summed in the order of dP; also where the head dim is padded."""
    found = gradients_with_one_key(head_dim, target)
    assert found["dv"].abs().max() > 1
    assert found["dq"].abs().max() == found["dk"].abs().max() == 0


def test_without_it_rounding_is_left_over():
    found = gradients_with_one_key(128, disabled=("tile-row-sum-by-mma",))
    assert 0 < found["dk"].abs().max() < 1e-4
