"""The MLIR bindings, named in one place.

All other modules say `from ..ir.mlir import ir`; only this file knows which wheel carries the upstream bindings
(`torch-mlir`). Importing it costs about 0.3 s, so nothing that must start fast imports it at module level.
"""

from torch_mlir import ir, rewrite
from torch_mlir.dialects import arith, builtin, ext, func, irdl, math, scf
from torch_mlir.passmanager import PassManager

__all__ = ["PassManager", "arith", "builtin", "ext", "func", "ir", "irdl", "math", "rewrite", "scf"]
