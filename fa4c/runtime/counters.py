"""Counters of what the runtime did beyond launching: copies, plans, modules, compiles. `fa4c.runtime.stats()` reads them.

Launches are not counted: the hot path writes nothing shared.
"""

from __future__ import annotations

import threading
from collections import Counter

_lock = threading.Lock()
_counts: Counter = Counter()


def count(name: str, amount: int = 1) -> None:
    """Add to a counter, from any thread."""
    with _lock:
        _counts[name] += amount


def stats() -> dict[str, int]:
    """A snapshot. Keys appear once they happened.

    `copies` (inputs copied because TMA or the kernel's strides cannot describe them) and `copies.NAME` for each tensor, `plans` (shapes
    planned), `modules` (kernel images loaded), `jit` (of which by PTX JIT), `empty` (size-0 problems answered without a launch),
    `compiles`, `cache_hits` (artifacts from disk), `cache_rebuilt` (corrupt entries replaced).
    """
    with _lock:
        return dict(_counts)


def reset() -> None:
    """All counters to 0, for tests."""
    with _lock:
        _counts.clear()
