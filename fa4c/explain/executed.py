"""What the emulator counted of launches against what `launches` computes of them from the IR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .launches import Launch
from .work import WARP

# quantity -> the emulator's counter; of `exp` it counts instructions of warps, `launches` those of lanes
COUNTERS = {"mma": "mma_flops", "smem_operands": "smem_bytes.operands", "smem_read": "smem_bytes.load", "smem_written": "smem_bytes.store",
            "smem_bulk": "smem_bytes.tma", "dsmem": "smem_bytes.dsmem", "atomics": "atomics", "exp": "instructions.special"}


def differences(implied: Sequence[Launch], counted: Sequence[Mapping[str, float]]) -> list[str]:
    """A sentence for each quantity of a launch that is not equal; none is what should be."""
    if len(implied) != len(counted):
        return [f"{len(counted)} launches, but the IR has {len(implied)}: {', '.join(launch.kernel for launch in implied)}"]
    found = []
    for launch, counters in zip(implied, counted):
        for quantity, name in COUNTERS.items():
            executed = counters.get(name, 0) * (WARP if quantity == "exp" else 1)
            if executed != launch.counts[quantity]:
                found.append(f"{launch.kernel}: {quantity} {executed}, by the IR {launch.counts[quantity]}")
    return found
