"""What the emulator counts of a launch is what `explain` computes from the IR, exactly. Here on sm_90a, and at a head dim of sm_100a
that bench/emulator_matrix.py lacks; test_matrix.py asks the same of each kernel of sm_100a that it runs."""

import compiled
import pytest
import torch

from fa4c.explain import executed, launches
from fa4c.ir.context import new_context, parse_module
from fa4c.runtime import emulated

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
SIZES = dict(b=1, hq=2, hkv=1, m=150, n=200)
# tiles from a queue and from the grid, exponentials emulated in part, sums over CTAs by bulk additions, in turns too; another head dim
CASES = [
    dict(path="causal.mlir", target="sm_90a", head_dim=(128, 128)),
    dict(path="softcap.mlir", target="sm_90a", head_dim=(128, 128)),
    dict(path="causal.mlir", target="sm_90a", head_dim=(128, 128), direction="bwd"),
    dict(path="causal.mlir", target="sm_90a", head_dim=(64, 64), direction="bwd", deterministic=True),
    dict(path="softcap.mlir", target="sm_100a", head_dim=(80, 80)),
]


def counted(kernel) -> list[dict]:
    """Counters of each launch, on made-up data: nothing that is counted depends on it."""
    heads, given = kernel.manifest["head_dims"], {}
    for number, tensor in enumerate(t for t in kernel.manifest["tensors"] if t["role"] == "input"):
        shape = [SIZES.get(dim) or heads[dim] for dim in tensor["layout"]]
        given[tensor["name"]] = torch.randn(shape, generator=torch.Generator().manual_seed(number)).to(DTYPES[tensor["dtype"]])
    wanted = [t["name"] for t in kernel.manifest["tensors"] if t["role"] == "output"]
    return [report.counters["total"] for report in emulated.run_reported(kernel, given, wanted)[1]]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_executed_counts_are_those_of_the_ir(case):
    with new_context() as context:
        implied = launches.launches(parse_module(compiled.level(emit="warp", **case), case["path"], context), SIZES)
    found = counted(compiled.loaded(**case))
    assert executed.differences(implied, found) == []
    for quantity, (name, *_) in executed.COUNTERS.items():  # each is compared
        before, found[-1][name] = found[-1].get(name, 0), -1e9
        assert any(quantity in line for line in executed.differences(implied, found, whole=quantity == "fma"))
        found[-1][name] = before
    assert executed.differences(implied[1:], found)
