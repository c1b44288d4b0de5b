"""Keep f32 workspaces in the order in which threads hold their columns: of each 8 columns, the even ones before the odd ones.

Of 8 columns of an accumulator a thread holds two neighbours, so a row goes to shared memory in pieces of 8 bytes, and, as rows 2i and
2i + 1 would hit the same banks of a span of 128 bytes, behind a select for each number. With even and odd columns apart, what four threads
hold of them is 16 bytes; eight such rows are a matrix of stmatrix, which stores four of them. For dQ at head dim 128 that is 8 instructions
an iteration instead of 16 stores, 32 selects and their addresses. Copies move the bytes as they are. So memory that only fa4c's kernels see
may have the other order, if all of them see it.

Before:  %b = "warp.buffer"() {...} : tensor<2x64x128xf32, #tile.smem>
After:   %b = "warp.buffer"() {interleaved = true, ...} : tensor<2x64x128xf32, #tile.smem>

For each workspace of the host, f32, that all its kernels reach through copies of buffers alone, which registers are written to, or read
from; one that is read or added to element by element keeps its order. Run after warp-specialize. Does nothing where a thread holds rows.
"""

from __future__ import annotations

from .. import targets
from ..ir import tile, warp
from ..ir.mlir import ir
from .loop_nest import constant
from .registry import register_pass

COLUMNS = 8  # of a group
_COPIES = (warp.TmaLoadOp, warp.TmaStoreOp, warp.TmaAddOp, warp.TmaPutOp)


@register_pass("warp-interleave-columns")
def warp_interleave_columns(module: ir.Module) -> None:
    if targets.of(module).mma.accumulator != "reg":
        return  # a thread holds whole rows
    kernels = {op.sym_name.value: op for op in module.body.operations if isinstance(op, warp.KernelOp)}
    for host in [op for op in module.body.operations if isinstance(op, tile.HostOp)]:
        for entry, tensor in zip(host.tensors, host.body.blocks[0].arguments, strict=True):
            if entry["role"].value == "workspace":
                for buffer in _buffers(tensor, kernels) or ():
                    buffer.owner.attributes["interleaved"] = ir.BoolAttr.get(True)


def whole_groups(copy) -> bool:
    """Whether a copy between a tensor and a buffer moves whole groups of columns, as far as is known."""
    kind, first = copy.map.owner.opview.tensor.type, constant(copy.coords[-1])
    last = kind.rank - 1
    known = last >= 1 and not kind.is_dynamic_dim(last) and first is not None
    return str(kind.element_type) == "f32" and known and kind.shape[last] % COLUMNS == 0 and first % COLUMNS == 0


def _buffers(tensor, kernels) -> list | None:
    """The buffers through which kernels reach a tensor of the host; None where one goes another way, or a buffer serves something else."""
    found = []
    for use in tensor.uses:
        launch = use.owner.opview
        if isinstance(launch, tile.DimOp):
            continue
        if not isinstance(launch, tile.LaunchOp) or launch.kernel.value not in kernels:
            return None
        block = kernels[launch.kernel.value].body.blocks[0]
        for argument in (a for a, given in zip(block.arguments, launch.tensors, strict=False) if given == tensor):
            buffers = _buffers_in(argument)
            if buffers is None:
                return None
            found += buffers
    return found


def _buffers_in(argument) -> list | None:
    found = []
    for user in [use.owner.opview for use in argument.uses]:
        if isinstance(user, warp.TensorMapOp):
            found += [use.owner.opview.buffer for use in user.out.uses if isinstance(use.owner.opview, _COPIES)]
        elif not isinstance(user, tile.DimOp):
            return None
    return found if all(_only_copied(buffer, argument) for buffer in found) else None


def _only_copied(buffer, tensor) -> bool:
    users = [use.owner.opview for use in buffer.uses]
    copies = [op for op in users if isinstance(op, _COPIES)]
    registers = [op for op in users if isinstance(op, (warp.StoreSharedOp, warp.LoadFragmentOp))]
    return len(copies) + len(registers) == len(users) and all(op.map.owner.opview.tensor == tensor and whole_groups(op) for op in copies)
