"""What `protocol` reads of a kernel, and the state that it keeps: slots of pipes, slots that threads write, agents."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir import warp, warp_tmem
from ..ir.mlir import ir
from ..ir.tile_base import nested_operations
from . import shared_exchange
from .sampled_scalars import counted_dims


def byte_range(buffer) -> tuple[int, int]:
    """First byte and end of a `warp.buffer` value."""
    start = buffer.owner.opview.offset.value
    return start, start + buffer.type.shape[0] * warp.stage_bytes(buffer)


class Program:
    """The kernel's operations as plain Python data, read once."""

    def __init__(self, kernel):
        self.kernel = kernel
        operations = list(kernel.body.blocks[0].operations)
        self.roles = [op for op in operations if isinstance(op, warp.RoleOp)]
        # drawn before the roles part, so that all of them see the same sizes
        self.shared_scalars = [a for a in kernel.body.blocks[0].arguments if isinstance(a.type, ir.IndexType)]
        self.shared_scalars += [r for op in operations if not isinstance(op, _STORAGE) for r in op.operation.results]
        self.buffers = [op.out for op in operations if isinstance(op, warp.BufferOp)]
        self.overlapping = {a: [b for b in self.buffers if b != a and _overlap(byte_range(a), byte_range(b))] for a in self.buffers}
        self._values = {}
        self.exchanged = {role: shared_exchange.exchanged(role) for role in self.roles}
        self.mma_operands = {v for role in self.roles for op in nested_operations(role.body)
                             if isinstance(op, warp_tmem.Tcgen05MmaOp) for v in (op.a, op.b)}
        self.handed_over = {op.slot.owner.opview.pipe for role in self.roles for op in nested_operations(role.body)
                            if isinstance(op, (warp.StoreSharedOp, warp_tmem.TmemMapOp)) and _is_place(op.slot)}
        self.counted = {dim for role in self.roles for dim in counted_dims(role)}
        # where a loop makes no trip, nothing was passed on behind it
        passing = (warp_tmem.PostOp, warp_tmem.FetchOp)
        self.passes_rows = {role for role in self.roles if any(isinstance(op, passing) for op in nested_operations(role.body))}
        self.bodies = {role: _tree(role.body.blocks[0]) for role in self.roles}
        self.paired = any(role.leader.value for role in self.roles) or any(
            op.leader.value for op in operations if isinstance(op, warp.PipelineOp)
        )

    def values_in(self, op) -> list:
        """Values that the body of a loop computes."""
        if op not in self._values:
            self._values[op] = _values_in(op.operation.regions[0].blocks[0])
        return self._values[op]


_STORAGE = (warp.BufferOp, warp.PipelineOp, warp.TensorMapOp, warp_tmem.TmemAllocOp, warp_tmem.TmemOp, warp_tmem.RowBoxOp)


def _is_place(slot) -> bool:
    return slot is not None and not warp.is_slot_number(slot)


def _overlap(a, b) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _tree(block) -> list:
    """[(operation, type, body or None)], maps' regions left out."""
    nodes = []
    for op in block.operations:
        nested = op.operation.name in ("scf.for", "scf.if") or isinstance(op, (warp.ElectOp, warp.SlotOwnerOp, warp.WhenOp, warp.WalkOp))
        nodes.append((op, type(op), _tree(op.operation.regions[0].blocks[0]) if nested else None))
    return nodes


@dataclass
class Slot:
    """One stage of a pipe. Phases count completions: `filled` of the full barrier, `emptied` of the empty one."""

    filled: int = 0
    armed: bool = False
    bytes_in: int = 0
    emptied: int = 0
    arrivals: int = 0
    fills: int = 0  # arrivals at the full barrier, where no bytes are counted
    full_clock: dict = field(default_factory=dict)  # what those who filled it, or emptied it, knew
    empty_clock: dict = field(default_factory=dict)
    buffers: set = field(default_factory=set)  # what its bytes went to
    written: object = None  # the write of threads that no copy has read yet
    readers: set = field(default_factory=set)  # agents that waited for it and did not release it yet


@dataclass
class Cell:
    """One slot of a buffer, as one agent wrote and read it."""

    version: int = 0  # how often it was written
    visible_from: float = 0  # the role's barrier from which on the last write may be read; inf until it is fenced
    fenced: bool = True
    reads: int = 0  # MMAs that read this version
    free_from: int = 0  # the role's barrier from which on the last read is known to be complete


@dataclass(frozen=True)
class Store:
    """A TMA store or addition under way."""

    op: object
    slot: Slot | None = None  # that it reads, of a buffer that was handed over

    @property
    def adds(self) -> bool:
        return isinstance(self.op, warp.TmaAddOp) or (isinstance(self.op, warp.TmaStoreOp) and self.op.add.value)


@dataclass
class Place:
    """A state operand: slot, parity, and what its agent did with the slot."""

    pipe: object
    stage: int
    phase: int
    producer: bool
    group: int = 0
    cta: int = 0
    seen: dict = field(default_factory=dict)  # stage -> phases of that slot that it waited for; none if it never waits
    acquired: bool = False
    waited: bool = False
    released: bool = False


def _values_in(block) -> list:
    """Results of all operations of a block, nested ones too; `arith` ones are the only ones that scalars are computed from."""
    found = []
    for op in block.operations:
        found += op.operation.results
        for region in op.operation.regions:
            for inner in region.blocks:
                found += _values_in(inner)
    return found


@dataclass
class MmaGroup:
    """MMAs between two commits, and what they use until a wait says that they are complete."""

    accumulators: set = field(default_factory=set)  # fragments
    operands: set = field(default_factory=set)  # fragments
    slots: list = field(default_factory=list)  # (slot of a pipe, buffer) that they read
    cells: list = field(default_factory=list)  # (buffer, number) that they read, of what this role's threads write


class Agent:
    """A warp of a role, or a warpgroup, that runs the role's program in one CTA."""

    def __init__(self, machine, role, group, warps, cta):
        self.machine, self.role, self.group, self.warps, self.cta = machine, role, group, warps, cta
        self.scalars = machine.scalars.fork(cta)
        self.places = {}
        self.in_flight, self.open_group = [], MmaGroup()
        self.turn_known_to, self.adding = "", False  # who knows that a count has come; whether threads' additions may be under way
        self.incomplete = []  # TMA stores that are not known to be complete
        self.cells = {}  # (buffer, slot) -> Cell, of buffers that MMAs read and this role's threads write
        self.group_barriers = 0
        self.fenced, self.synced = set(), set()  # buffers written here: after the proxy fence, after the barrier
        self.handing = {}  # place in a pipe -> how far its slot is on the way to another role: "written", "fenced", "synced"
        self.wrote, self.unread = set(), {}  # buffers written here, and by which operation if nothing read them since
        self.fence_seen, self.unfenced = False, set()  # fragments accessed since the last wgmma.fence
        self.defined = set()  # fragments with a value
        self.unsynced = []  # slots that the lanes of its warps read, each for itself
        self.lanes_wrote = False  # an operand of an MMA, each for itself
        self.has_turn = False
        self.open_stores, self.store_groups, self.drained = [], [], set()  # TMA stores; drained: waited for by one thread, not known to all
        self.clock = {}  # agent -> how far it is known to have come
        self.passed = False  # whether lanes passed on, or took, row vectors since they met
        self.loading, self.stores = set(), set()  # fragments, tiles in tensor memory: asynchronous copies not waited for
        self.blocked_on = None
        self.steps = machine.walk(self, machine.program.bodies[role])
        self.name = role.sym_name.value + (f", warpgroup {group}" if warps == 4 else "") + (f", CTA {cta}" if cta else "")
