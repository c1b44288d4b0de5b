"""What the emulator counted of launches against what `launches` computes of them from the IR; docs/explain.md says which counts where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .launches import Launch
from .work import WARP

# quantity -> the emulator's counters that add up to it
COUNTERS = {
    "mma": ("mma_flops",), "exp": ("instructions.special",), "fma": ("fma_operations",), "smem_operands": ("smem_bytes.operands",),
    "smem_read": ("smem_bytes.load",), "smem_written": ("smem_bytes.store",), "smem_bulk": ("smem_bytes.tma", "smem_bytes.bulk"),
    "tma": ("smem_bytes.filled",), "dsmem": ("smem_bytes.dsmem",), "atomics": ("atomics",),
    "tmem_read": ("tmem_bytes.load",), "tmem_written": ("tmem_bytes.store",),
}
_OF_LANES = ("exp", "fma")  # of which the emulator counts instructions of warps, `launches` those of lanes
# what shared memory is read and written for, operands of MMAs and copies into it left out: each byte has one cause
_CAUSES = ("smem_ds", "smem_dq", "smem_results", "smem_tiles", "smem_words", "smem_column_bytes")
_MOVED = ("load", "store", "tma", "bulk")


def differences(implied: Sequence[Launch], counted: Sequence[Mapping[str, float]], *, whole: bool = False) -> list[str]:
    """A sentence for each quantity of a launch that is not equal; none is what should be.

    What votes lead to may be executed in part. `whole`: of whole tiles and data that no vote is taken for, where it is not executed at all;
    then FP32 operations are compared too: the compiler behind moves those of a row alone into the branch that stores its result.
    """
    if len(implied) != len(counted):
        return [f"{len(counted)} launches, but the IR has {len(implied)}: {', '.join(launch.kernel for launch in implied)}"]
    found = []
    for launch, counters in zip(implied, counted, strict=True):
        rows = {}  # quantity -> executed, surely implied, perhaps so much more
        for quantity, names in COUNTERS.items():
            if quantity != "fma" or whole:
                executed = sum(counters.get(name, 0) for name in names) * (WARP if quantity in _OF_LANES else 1)
                rows[quantity] = executed, launch.counts[quantity], 0 if whole else launch.sometimes[quantity]
        moved = sum(counters.get(f"smem_bytes.{kind}", 0) for kind in _MOVED) - counters.get("smem_bytes.filled", 0)
        rows["causes"] = moved, sum(launch.counts[cause] for cause in _CAUSES), 0
        found += [f"{launch.kernel}: {quantity} {executed:.0f}, by the IR {sure:.0f}{f' to {sure + more:.0f}' if more else ''}"
                  for quantity, (executed, sure, more) in rows.items() if not sure <= executed <= sure + more]
    return found
