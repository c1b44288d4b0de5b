"""The MLIR bindings, named in one place.

All other modules say `from ..ir.mlir import ir`; only this file knows which wheel carries the upstream bindings
(`torch-mlir`). Importing it costs about 0.3 s, so nothing that must start fast imports it at module level.
"""

import sys

import torch_mlir.dialects
from torch_mlir import ir, rewrite
from torch_mlir.dialects import arith, builtin, ext, func, irdl, math, scf
from torch_mlir.passmanager import PassManager


def announce_dialect(namespace: str, module) -> None:
    """Tell the bindings where a dialect of ours lives.

    They look for a module of that name beside their own dialects each time they meet one of its types or attributes, and remember
    no failure: without this, most of a compile is spent searching the file system.
    """
    sys.modules.setdefault(f"{torch_mlir.dialects.__name__}.{namespace}", module)


def i64(number: int) -> ir.IntegerAttr:
    """The attribute `number : i64`, as dialects of ours count. In the context around."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def index_constant(number: int):
    """The value of a new `arith.constant number : index`, at the insertion point."""
    return arith.constant(ir.IndexType.get(), number)


__all__ = [
    "PassManager", "announce_dialect", "arith", "builtin", "ext", "func", "i64", "index_constant", "ir", "irdl", "math", "rewrite", "scf",
]  # fmt: skip
