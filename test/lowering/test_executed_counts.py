"""What the emulator counts of a launch is what `explain` computes from the kernel's IR, exactly."""

import compiled
import pytest
import torch

from fa4c.explain import launches, work
from fa4c.ir.context import new_context, parse_module
from fa4c.runtime import emulated

# quantity -> the emulator's counter; it counts instructions of warps, `explain` of lanes
COUNTERS = {"mma": "mma_flops", "smem_operands": "smem_bytes.operands", "smem_read": "smem_bytes.load", "smem_written": "smem_bytes.store",
            "smem_bulk": "smem_bytes.tma", "dsmem": "smem_bytes.dsmem", "atomics": "atomics", "exp": "instructions.special"}
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
SIZES = dict(b=1, hq=2, hkv=1, m=150, n=200)
# tiles from a queue and from the grid, exponentials emulated in part, sums over CTAs by bulk additions, pairs of CTAs
CASES = [
    ("sm_90a", "fwd", "causal.mlir", (128, 128), 1),
    ("sm_90a", "bwd", "causal.mlir", (128, 128), 1),
    ("sm_100a", "fwd", "causal.mlir", (128, 128), 1),
    ("sm_100a", "fwd", "softcap.mlir", (80, 80), 1),
    ("sm_100a", "fwd", "full.mlir", (128, 128), 2),
    ("sm_100a", "bwd", "causal.mlir", (128, 128), 1),
    ("sm_100a", "bwd", "causal.mlir", (192, 128), 2),
]
PAIR = (("tile-split-2cta", "ctas", "2"),)
FUSED_PAIR = (("attn-split-backward", "ctas", "2"), ("attn-to-tile", "alike", "2"), *PAIR)


def executed(path: str, **options) -> list[dict]:
    """Counters of each launch, on made-up data: nothing that is counted depends on it."""
    kernel = compiled.loaded(path, **options)
    heads, given = kernel.manifest["head_dims"], {}
    for number, tensor in enumerate(t for t in kernel.manifest["tensors"] if t["role"] == "input"):
        shape = [SIZES.get(dim) or heads[dim] for dim in tensor["layout"]]
        given[tensor["name"]] = torch.randn(shape, generator=torch.Generator().manual_seed(number)).to(DTYPES[tensor["dtype"]])
    wanted = [t["name"] for t in kernel.manifest["tensors"] if t["role"] == "output"]
    return [report.counters["total"] for report in emulated.run_reported(kernel, given, wanted)[1]]


@pytest.mark.parametrize(("target", "direction", "path", "head_dim", "ctas"), CASES, ids=str)
def test_executed_counts_are_those_of_the_ir(target, direction, path, head_dim, ctas):
    options = dict(target=target, direction=direction, head_dim=head_dim)
    options |= dict(overrides=FUSED_PAIR if direction == "bwd" else PAIR) if ctas > 1 else {}
    with new_context() as context:
        implied = launches.launches(parse_module(compiled.level(path, "warp", **options), path, context), SIZES)
    found = executed(path, **options)
    assert len(found) == len(implied)
    for launch, counters in zip(implied, found, strict=True):
        counted = {q: counters.get(name, 0) * (work.WARP if q == "exp" else 1) for q, name in COUNTERS.items()}
        assert {q: launch.counts[q] for q in COUNTERS} == counted, launch.kernel
