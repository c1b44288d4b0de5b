"""Fences and barriers between threads that write a buffer in shared memory and MMAs that read it.

A role's warpgroups write a tile into one slot of a buffer, each its part, and MMAs of all of them read it: dS of the backward, for
dQ = dS K. Two things must hold (PTX ISA, async proxy; wgmma):

- before an MMA reads a slot, every warpgroup's writes to it are done, made visible to the async proxy by a fence of the writing thread, and
  a barrier came after the fence;
- before a slot is written again, every warpgroup knows its MMAs that read it to be complete, and a barrier came after that.

Where a barrier is missing follows from the order of writes, reads, waits and barriers as the role runs: it is run here without data,
for several trip counts of its loops, and at the first operation that something is missing for, that is put before it; then again from
the start, until nothing is missing. What a loop's first iteration lacks because of reads before the loop is put before the loop. So one
barrier an iteration is found to be enough where a slot is written two iterations later, and a second one to be needed with a single slot.
All warpgroups run the same program, so one of them stands for all.
"""

from __future__ import annotations

import itertools
import random

from ..ir import warp
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import i64, ir
from ..ir.tile import space_of
from ..ir.tile_base import nested_in, nested_operations
from .sampled_scalars import SampledScalars

_MOST_TRIPS = 6  # more than slots and stages of a pipelined loop: later iterations repeat
_MIXED = 6  # so many runs with trip counts drawn at random, for loops in loops


def exchanged(role) -> dict:
    """Buffers that a role's threads write and its MMAs read -> "role" if some MMA reads other warpgroups' parts, else "warpgroup"."""
    written = {op.buffer for op in nested_operations(role.body) if isinstance(op, warp.StoreSharedOp)}
    scopes: dict = {}
    for op in nested_operations(role.body):
        if isinstance(op, warp.WgmmaOp):
            for buffer in buffers_read(op):
                if buffer in written:
                    wide = scopes.get(buffer) == "role" or not reads_own_part(op, buffer, role.active.value // 4)
                    scopes[buffer] = "role" if wide else "warpgroup"
    return scopes


def buffers_read(op) -> list:
    """The buffers that an MMA reads."""
    return [value for value in dict.fromkeys((op.a, op.b)) if space_of(value.type) == "smem"]


def reads_own_part(op, buffer, warpgroups: int) -> bool:
    """Whether each warpgroup's MMA reads only the rows of `buffer` that this warpgroup holds, and writes."""
    return warpgroups == 1 or (
        buffer == op.a and buffer != op.b and not op.transpose_a.value and warp.column_shares(op.acc.type, warpgroups) == 1
    )


def order_exchanges(role, take_id) -> None:
    """Insert what is missing; `take_id(op, scope)` gives the named barrier for a scope. Waits of MMAs must be in already."""
    scopes = exchanged(role)
    if not scopes:
        return
    drawn = random.Random(0)
    trips = [itertools.repeat(n) for n in range(1, _MOST_TRIPS + 1)]
    trips += [iter([drawn.randrange(4) for _ in range(1000)]) for _ in range(_MIXED)]
    for counts in [list(itertools.islice(t, 1000)) for t in trips]:
        while (missing := _Run(role, scopes, counts).first_missing()) is not None:
            _insert(*missing, take_id)


def _insert(op, what: list, scope: str, take_id) -> None:
    at = op
    before = _before(op)
    if isinstance(op, warp.WgmmaOp) and isinstance(before, warp.WgmmaFenceOp):
        at = before
    with ir.InsertionPoint(at), op.location:
        for kind, argument in what:
            if kind == "wait":
                warp.WgmmaWaitOp(pending=i64(argument))
            elif kind == "fence":
                warp.FenceAsyncOp()
            else:
                warp.BarrierOp(id=i64(take_id(op, scope)), scope=ir.StringAttr.get(scope))


def _before(op):
    """The operation in front of it in its block, or None."""
    for region in op.operation.parent.regions:
        for block in region.blocks:
            for before, other in itertools.pairwise(block.operations):
                if other.operation == op.operation:
                    return before
    return None


class _Missing(Exception):
    """(operation, what to put before it, scope of a barrier); `read_at`: when a slot was last read that is to be written."""

    def __init__(self, op, what: list, scope: str, read_at: int | None = None):
        super().__init__(op, what, scope)
        self.read_at = read_at


def _in_front_of(loop, entered: int, missing: _Missing) -> _Missing:
    """What a loop's first iteration lacks to write a slot that was read before the loop is put before the loop, not into each iteration."""
    op, what, scope = missing.args
    if missing.read_at is None or missing.read_at >= entered or op.operation.parent != loop.operation:
        return missing
    return _Missing(loop, [("wait", 0) if kind == "wait" else (kind, argument) for kind, argument in what], scope, missing.read_at)


class _Scalars(SampledScalars):
    """Trip counts as given, one after the other; all else as sampled."""

    def __init__(self, counts: list, upper_bounds: set):
        super().__init__(random.Random(0), 0)
        self.counts, self.upper_bounds = iter(counts), upper_bounds

    def _compute(self, v) -> int:
        return next(self.counts) if v in self.upper_bounds else super()._compute(v)


class _Run:
    """One run of a role. A cell is one slot of one buffer."""

    def __init__(self, role, scopes: dict, counts: list):
        self.role, self.scopes = role, scopes
        loops = [op for op in nested_operations(role.body) if op.operation.name == "scf.for"]
        self.scalars = _Scalars(counts, {op.operation.operands[1] for op in loops if not _is_constant(op.operation.operands[1])})
        self.written = {}  # cell -> "written", then "fenced", then (by a barrier) "visible"
        self.in_flight, self.open = [], set()  # cells that groups of MMAs read
        self.read = set()  # cells whose MMAs are complete, but no barrier came since
        self.read_at, self.clock = {}, 0  # cell -> the number of the last MMA that read it

    def first_missing(self):
        try:
            self._block(self.role.body.blocks[0])
        except _Missing as missing:
            return missing.args
        return None

    def _block(self, block) -> None:
        for op in block.operations:
            name = op.operation.name
            if name == "scf.for":
                self._loop(op)
            elif name == "scf.if":
                if self.scalars.value(op.operation.operands[0]):
                    self._block(op.regions[0].blocks[0])
            elif isinstance(op, warp.WalkOp):
                for _ in range(2):
                    self._forget(op.body.blocks[0])
                    self.scalars.known[op.body.blocks[0].arguments[0]] = 0
                    self._block(op.body.blocks[0])
            elif type(op) in _RULES:
                _RULES[type(op)](self, op)

    def _loop(self, op) -> None:
        lower, upper, step = (self.scalars.value(v) for v in list(op.operation.operands)[:3])
        body, entered = op.regions[0].blocks[0], self.clock
        for i in range(lower, upper, max(step, 1)):
            self._forget(body)
            self.scalars.known[body.arguments[0]] = i
            try:
                self._block(body)
            except _Missing as missing:
                raise (_in_front_of(op, entered, missing) if i == lower else missing) from None

    def _forget(self, block) -> None:
        for op in nested_in(block):
            for result in op.operation.results:
                self.scalars.known.pop(result, None)

    def _cell(self, buffer, slot):
        number = 0 if slot is None else self.scalars.value(slot)
        if not 0 <= number < buffer.type.shape[0]:
            raise op_diagnostic(buffer.owner.opview, f"has {buffer.type.shape[0]} slots, but slot {number} is used")
        return buffer, number

    def store_shared(self, op) -> None:
        if op.buffer not in self.scopes:
            return
        cell, needs = self._cell(op.buffer, op.slot), []
        flying = [n for n, cells in enumerate(self.in_flight) if cell in cells]
        if flying:
            needs.append(("wait", len(self.in_flight) - flying[-1] - 1))
        if flying or cell in self.read:
            raise _Missing(op, [*needs, ("barrier", None)], self.scopes[op.buffer], self.read_at[cell])
        self.written[cell] = "written"

    def wgmma(self, op) -> None:
        for buffer, state in ((op.a, op.a_state), (op.b, op.b_state)):
            if buffer not in self.scopes:
                continue
            cell = self._cell(buffer, state)
            if self.written.get(cell) in ("written", "fenced"):
                fence = [("fence", None)] if self.written[cell] == "written" else []
                raise _Missing(op, [*fence, ("barrier", None)], self.scopes[buffer])
            self.open.add(cell)
            self.read_at[cell] = self.clock
        self.clock += 1

    def commit(self, op) -> None:
        self.in_flight.append(self.open)
        self.open = set()

    def wgmma_wait(self, op) -> None:
        done = max(0, len(self.in_flight) - op.pending.value)
        for cells in self.in_flight[:done]:
            self.read |= cells
        self.in_flight = self.in_flight[done:]

    def fence(self, op) -> None:
        self.written = {cell: "fenced" if state == "written" else state for cell, state in self.written.items()}

    def barrier(self, op) -> None:
        for cell, state in self.written.items():
            if state == "fenced" and self._covers(op, cell):
                self.written[cell] = "visible"
        self.read = {cell for cell in self.read if not self._covers(op, cell)}

    def _covers(self, op, cell) -> bool:
        return op.scope.value == "role" or self.scopes[cell[0]] == "warpgroup"


_RULES = {
    warp.StoreSharedOp: _Run.store_shared,
    warp.WgmmaOp: _Run.wgmma,
    warp.WgmmaCommitOp: _Run.commit,
    warp.WgmmaWaitOp: _Run.wgmma_wait,
    warp.FenceAsyncOp: _Run.fence,
    warp.BarrierOp: _Run.barrier,
}


def _is_constant(value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == "arith.constant"
