"""Tell the L2 cache which bytes to keep: loads of block loops, which other CTAs read too, and loads that happen once a tile.

The CTAs of one head read the same K and V; each reads its own Q once. If Q (and what other kernels left) goes first, K and V stay longer.
The hint is a policy operand of the copy and costs nothing else. Whether it gains anything is the cache's business: off unless the
target's data say that a measurement showed a gain.

`repeated` is for loads inside a loop, `once` for those outside: "evict_first", "evict_last", "none", or "target" for what the kernel wishes
for (`l2_repeated`, `l2_once`, which attn-to-tile writes where such a block was measured so), else the target's choice. A priority that a
load already has stays.

Before:  %k = "tile.load"(%K, ...) {buffers = 2 : i64, dims = array<i64: 1, 3>}
After:   %k = "tile.load"(%K, ...) {buffers = 2 : i64, dims = array<i64: 1, 3>, l2 = "evict_last"}

Run before tile-persistent, which puts all loads into a loop. Source: FlashAttention-3 hints so on Hopper.
"""

from typing import Literal

from ..ir.mlir import ir
from ..ir.tile import KernelOp, LoadOp
from ..targets import of as target_of
from ._tile_map import operations_in
from .registry import register_pass

Priority = Literal["target", "none", "evict_first", "evict_last"]


@register_pass("tile-l2-hints")
def tile_l2_hints(module: ir.Module, *, repeated: Priority = "target", once: Priority = "target") -> None:
    target = target_of(module)
    for op in operations_in(module):
        if isinstance(op, KernelOp):
            in_loops = _take_wish(op, "l2_repeated", target.l2_repeated)
            outside = _take_wish(op, "l2_once", target.l2_once)
            _hint_loads(op, in_loops if repeated == "target" else repeated, outside if once == "target" else once)


def _take_wish(kernel, name: str, otherwise: str) -> str:
    """The priority that a kernel's attribute wishes for, which is gone then."""
    wish = getattr(kernel, name)
    if wish is None:
        return otherwise
    del kernel.attributes[name]
    return wish.value


def _hint_loads(kernel, repeated: str, once: str) -> None:
    for op in operations_in(kernel):
        if isinstance(op, LoadOp) and op.l2 is None:
            priority = repeated if op.operation.parent.name == "scf.for" else once
            if priority != "none":
                op.attributes["l2"] = ir.StringAttr.get(priority)
