"""Host time of a call in turn with a fixed piece of pure Python, so that a record shows whether the machine was slow meanwhile."""

from __future__ import annotations

import statistics
import time

import torch
from cases import DEVICE

WARM, BLOCKS, CALLS = 100, 40, 50


def measure(call) -> dict[str, float]:
    """Microseconds: `us`, the median of all 2000 calls of known shapes, the queue never full; `us_least`, the least median of a block of
    50; `python_us` and `python_us_least`, the same of `pure_python`, whose blocks lie between those of the calls."""
    for _ in range(WARM):
        call()
    calls, python = [], []
    for _ in range(BLOCKS):
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        python.append(_times(pure_python))
        calls.append(_times(call))
    return {**_medians("us", calls), **_medians("python_us", python)}


def pure_python() -> dict:
    """Some 10 us of the interpreter alone: small tuples, a table, integers."""
    table = {}
    for k in range(128):
        table[k & 31] = (k, k * k)
    return table


def _times(call) -> list[float]:
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def _medians(name: str, blocks: list[list[float]]) -> dict[str, float]:
    everything = statistics.median(t for block in blocks for t in block)
    return {name: round(everything, 2), f"{name}_least": round(min(map(statistics.median, blocks)), 2)}
