"""Check a kernel's roles against each other: nothing is used before it is ready or overwritten before it was read, and nobody waits forever.

First the static facts: byte ranges, register budgets, warps, byte counts, barrier ids. Then the control flow of all roles is run side by side, without
data, for sizes that give loops of 0 to several iterations, on an abstract machine (`protocol.py`) that knows pipes, MMAs in flight, named barriers
and the async proxy. A finding is a located error that names the operation and the reason.

A kernel without barriers fails:  'warp.wgmma' reads a slot of its buffer that was not waited for
"""

from __future__ import annotations

from .. import targets
from ..ir import warp
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import ir
from . import protocol
from .registry import register_pass


@register_pass("warp-check")
def warp_check(module: ir.Module) -> None:
    target = targets.of(module)
    for op in module.body.operations:
        if isinstance(op, warp.KernelOp):
            _Static(op, target).check()
            protocol.check(op)


class _Static:
    def __init__(self, kernel, target):
        self.kernel, self.target = kernel, target
        self.operations = list(kernel.body.blocks[0].operations)

    def check(self) -> None:
        self._roles()
        self._shared_memory()
        for pipe in self._of(warp.PipelineOp):
            self._pipeline(pipe)

    def _of(self, kind) -> list:
        return [op for op in self.operations if isinstance(op, kind)]

    def _roles(self) -> None:
        roles = self._of(warp.RoleOp)
        owner, registers = {}, 0
        for role in roles:
            for number in role.warps:
                if number in owner:
                    raise op_diagnostic(role, f"claims warp {number}, which role @{owner[number]} has", why="each warp has one role")
                owner[number] = role.sym_name.value
            registers += 32 * len(list(role.warps)) * role.registers.value
        count = self.kernel.threads.value // 32
        if sorted(owner) != list(range(count)):
            raise op_diagnostic(self.kernel, f"has {count} warps, but its roles name {sorted(owner)}", why="every warp needs a role", fix="change threads or a role's warps")
        if registers > self.target.registers:
            raise op_diagnostic(self.kernel, f"gives its roles {registers} registers, but an SM has {self.target.registers}",
                                why="setmaxnreg waits for registers that never come free", fix="lower a role's registers")

    def _shared_memory(self) -> None:
        size = self.kernel.smem_bytes.value
        if size > self.target.smem_bytes:
            raise op_diagnostic(self.kernel, f"has smem_bytes = {size}, but a CTA has {self.target.smem_bytes}", fix="use smaller blocks or fewer stages")
        spans = []
        for op in self._of(warp.PipelineOp):
            spans.append((op.offset.value, op.offset.value + 8 * op.stages.value * (2 if op.arrivals.value else 1), op))
        for op in self._of(warp.BufferOp):
            spans.append((*protocol.byte_range(op.out), op))
        for start, end, op in spans:
            if start < 0 or end > size:
                raise op_diagnostic(op, f"takes bytes {start} to {end}, but the kernel has {size}", why="it lies outside of shared memory",
                                    fix=f"raise smem_bytes to {end} or lower the offset")
        for i, (start, end, op) in enumerate(spans):
            for other_start, other_end, other in spans[:i]:
                both_buffers = isinstance(op, warp.BufferOp) and isinstance(other, warp.BufferOp)
                if start < other_end and other_start < end and not both_buffers:
                    raise op_diagnostic(op, f"takes bytes {start} to {end}, which overlap {other_start} to {other_end} of another {other.operation.name}",
                                        why="mbarriers share no bytes with anything", fix=f"move it to byte {max(other_end, end)}")

    def _pipeline(self, pipe) -> None:
        initialised = {value for op in self._of(warp.InitBarriersOp) for value in op.pipes}
        if pipe.out not in initialised:
            raise op_diagnostic(pipe, "is not initialised", why="its mbarriers hold garbage", fix="name it in warp.init_barriers")
