"""The runtime: artifacts, their execution by the cuda, emulator and reference backends, and the disk cache. No MLIR, no kernel DSL."""

from .counters import stats

__all__ = ["stats"]
