"""Pipelines, barriers, fences and waits, from what the roles read and write.

- A buffer that one role fills by TMA and another reads gets a pipeline: full mbarriers that count bytes and, if slots are reused, empty
  ones that count reading warps. Loads acquire, arm and advance; readers wait before the first read of a slot and release it once the last
  MMA that reads it has completed. Where the schedule lets one operation read a slot steps after another (`reader`), each follows the pipe
  with a place of its own, and only the last one releases. A row of column values that is there with a tile shares its slots
  (`row_barriers.py`). Buffers of tiles over the same bytes are filled in turn, and have one pipe: each fill of any of them is its next one.
- An MMA is in flight until a wait retires it. The first operation that touches its accumulator, overwrites its register operand, or
  leaves the loop waits for it, and for no more than that (`pending`).
- A buffer that one role writes and another adds to global memory, or stores there, gets a pipeline too, which threads fill: acquire,
  write, fence, arrive on the one side; wait, add, release once it is read, on the other (`handed_over_barriers.py`).
- Shared memory written by threads and read by a TMA store gets the proxy fence and a barrier of the warpgroup; a buffer that lies over
  another one gets a barrier of all readers first. What MMAs read of it is ordered by `shared_exchange`.

Before:  role load { tma_load K }                         role compute { wgmma S, Q, K;  map S }
After:   role load { acquire; elect { arm; tma_load K }; advance }
         role compute { wait; fence; wgmma; commit;  wgmma_wait; release; advance;  map S }

Run after warp-specialize (and warp-ping-pong). A kernel that has barriers, written by hand or printed by a run before, stays as it is.
Source: PTX ISA, asynchronous copies, mbarrier, wgmma.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import targets
from ..ir import warp, warp_tmem
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import i64, ir
from . import handed_over_barriers
from .consumer_barriers import PLAIN_READS, Consumer, buffers_of_reads, level_of, operations_of, operations_within, place_type
from .protocol_state import byte_range
from .registry import register_pass
from .row_barriers import companions
from .shared_exchange import order_exchanges


@register_pass("warp-insert-barriers")
def warp_insert_barriers(module: ir.Module) -> None:
    target = targets.of(module)
    for op in module.body.operations:
        if isinstance(op, warp.KernelOp) and not warp.has_barriers(op):
            _Kernel(op, target).run()


@dataclass
class _Ring:
    """A buffer filled by TMA, its pipeline, and in how many nested loops (or guards of a loop's prologue and epilogue) it is filled.

    One slot is filled, and read, in one execution of a block at that level; at level 0 only once. `owner`: the buffer whose pipeline it
    shares, its own if that is `buffer`; `first`: of those over the same bytes, which fill the slots in turn, the one loaded first.
    """

    buffer: object
    level: int
    pipe: object = None
    ctas: int = 1  # that fill it together
    owner: object = None
    first: object = None

    @property
    def reused(self) -> bool:
        return self.level > 0


class _Kernel:
    def __init__(self, kernel, target):
        self.kernel, self.target = kernel, target
        self.top = kernel.body.blocks[0]
        self.roles = [op for op in self.top.operations if isinstance(op, warp.RoleOp)]
        self.buffers = [op for op in self.top.operations if isinstance(op, warp.BufferOp)]
        self.ids = {}  # (role, scope) -> its barriers
        self.free_ids = sorted(set(range(1, target.named_barriers)) - _used_ids(self.roles))

    def run(self) -> None:
        from .tmem_barriers import Issuer, Links  # it extends what is here

        self.links = Links(self.kernel, self.roles)
        rings = self._find_rings()
        self.handed = handed_over_barriers.find(self.roles)
        walks = {role: op for role in self.roles for op in role.body.blocks[0].operations if isinstance(op, warp.WalkOp)}
        for row, tile in companions(rings, self.roles).items():
            rings[row].owner = tile
        readers = {role: {b for op in operations_within(role.body.blocks[0]) for b in buffers_of_reads(op)} for role in self.roles}
        self._make_pipelines(rings, readers, walks)
        for role in self.roles:
            _Producer(role, rings).run()
            read = {b: r for b, r in rings.items() if b in readers[role]}
            if any(handed.reader == role for handed in self.handed.values()):
                handed_over_barriers.Taker(role, self.handed).run()
            elif warp_tmem.issues_mmas(role):
                Issuer(self, role, read).run()
            else:
                Consumer(self, role, read).run()
            self.links.guard(role)
            order_exchanges(role, lambda op, scope, role=role: self.barrier_id(role, op, scope))
            _drop_idle_syncs(role)
        self.links.erase()

    def barrier_id(self, role, op, scope: str) -> int:
        """One barrier serves all places of a scope: the same warps meet there, one time after the other."""
        if (role, scope) not in self.ids:
            self.ids[role, scope] = self.take_ids(op, role.active.value // 4 if scope == "warpgroup" else 1)
        return self.ids[role, scope]

    def take_ids(self, op, count: int) -> int:
        """The first of `count` neighbouring named barriers that nothing uses."""
        for first in self.free_ids:
            if all(first + i in self.free_ids for i in range(count)):
                self.free_ids = [i for i in self.free_ids if not first <= i < first + count]
                return first
        raise op_diagnostic(op, f"needs {count} more named barriers", why=f"a CTA has {self.target.named_barriers - 1} "
                            "beside the one of all threads")

    def _find_rings(self) -> dict:
        rings = {}
        for role in self.roles:
            for op in operations_within(role.body.blocks[0]):
                if isinstance(op, warp.TmaLoadOp):
                    level = level_of(op)
                    if op.buffer in rings and (rings[op.buffer].level != level or level == 0):
                        raise op_diagnostic(
                            op,
                            "fills a buffer that another load fills in another loop",
                            why="the slots of a buffer are filled one by one, in one loop",
                        )
                    rings[op.buffer] = _Ring(op.buffer, level, ctas=self.kernel.cluster.value if op.shared.value else 1, owner=op.buffer)
        for buffer, ring in rings.items():
            ring.first = next(other for other in rings if byte_range(other) == byte_range(buffer))
        return rings

    def _make_pipelines(self, rings, readers, walks) -> None:
        at = 0
        room = min(b.offset.value for b in self.buffers) if self.buffers else 0
        pipes = []
        with ir.InsertionPoint(self.roles[0]):
            for ring in rings.values():
                warps = sum(role.active.value for role in self.roles if ring.buffer in readers[role])
                if not warps:
                    raise op_diagnostic(ring.buffer.owner.opview, "is loaded but never read", fix="remove the load")
                if ring.owner != ring.buffer:
                    continue
                if ring.first != ring.buffer:
                    self._share_pipe(ring, rings[ring.first], warps)
                    continue
                stages = ring.buffer.type.shape[0]
                tx_bytes = sum(_bytes(other.buffer) for other in rings.values() if other.owner == ring.buffer)
                arrivals = warps * ring.ctas if ring.reused else 0
                leader = self._read_by_leader(ring, readers)
                tx_bytes *= 2 if leader else 1
                ring.pipe = _pipeline(stages, at, tx_bytes, arrivals, ring.buffer.owner.location, ring.ctas, leader)
                pipes.append(ring.pipe)
                at += 8 * stages * (2 if ring.reused else 1)
            for buffer, handed in self.handed.items():
                stages, arrivals = buffer.type.shape[0], handed.releases
                handed.pipe = _pipeline(stages, at, 0, arrivals, buffer.owner.location, fills=handed.fills, groups=handed.groups)
                pipes.append(handed.pipe)
                at += 8 * stages * handed.groups * (2 if handed.reused else 1)
            if walks:
                followers = sum(role.active.value for role, walk in walks.items() if walk.queue is None)
                pipes.append(_pipeline(1, at, 0, followers, self.kernel.location))
                at += 16
                self._guard_walks(walks, pipes[-1], at)
                at += 4
            linked, at = self.links.make_pipes(-(-at // 8) * 8)
            if at > room:
                raise op_diagnostic(self.kernel, f"needs {at} bytes of mbarriers, but buffers start at byte {room}")
            warp.InitBarriersOp(pipes=[*pipes, *linked], loc=self.kernel.location)
            self.links.place_tiles()
        if any(ring.ctas > 1 for ring in rings.values()):  # until then others write into this CTA's memory and arrive on its barriers
            with ir.InsertionPoint(self.top):
                warp.ClusterSyncOp(loc=self.kernel.location)

    def _share_pipe(self, ring, first, warps: int) -> None:
        """Of buffers that are filled in turn, read by as many warps in the same loop."""
        ring.pipe = first.pipe
        ours, theirs = ((r.level, r.ctas, r.buffer.type.shape[0], _bytes(r.buffer)) for r in (ring, first))
        if ours != theirs or not ring.reused or warps * ring.ctas != ring.pipe.owner.opview.arrivals.value:
            raise op_diagnostic(
                ring.buffer.owner.opview, "lies over another buffer that is loaded, but not in turns with it",
                why="both would be filled and read in one loop, with as many bytes and by as many warps", fix="move it to other bytes",
            )  # fmt: skip

    def _read_by_leader(self, ring, readers) -> bool:
        """Whether the role that issues MMAs for a pair of CTAs reads what is loaded here in both."""
        reading = [role for role in self.roles if ring.buffer in readers[role]]
        leading = [role for role in reading if role.leader.value]
        if leading and (len(reading) > 1 or ring.ctas > 1):
            what = "is read by MMAs of a pair of CTAs and by other roles, or filled for both at once"
            raise op_diagnostic(ring.buffer.owner.opview, what, why="its barriers are those of the pair's first CTA",
                                fix="load the tile a second time for the others")
        return bool(leading)

    def _guard_walks(self, walks, pipe, word: int) -> None:
        """Each role learns of the next tile through one number in shared memory."""
        for role, walk in walks.items():
            with ir.InsertionPoint.at_block_begin(role.body.blocks[0]):
                phase = 0 if walk.queue is None else 1
                state = warp.StateOp(pipe=pipe, phase=i64(phase), out=place_type(), loc=walk.location).out
            with ir.InsertionPoint(walk):
                new = warp.WalkOp(tiles=walk.tiles, queue=walk.queue, state=state, word=i64(word), loc=walk.location)
                walk.body.blocks[0].append_to(new.body)
            walk.operation.erase()


def _pipeline(
    stages: int, offset: int, tx_bytes: int, arrivals: int, loc, ctas: int = 1, leader: bool = False, fills: int = 1, groups: int = 1
):  # fmt: skip
    return warp.PipelineOp(
        stages=i64(stages),
        offset=i64(offset),
        tx_bytes=i64(tx_bytes),
        arrivals=i64(arrivals),
        fills=i64(fills) if fills > 1 else None,
        groups=i64(groups) if groups > 1 else None,
        ctas=i64(ctas) if ctas > 1 else None,
        leader=ir.BoolAttr.get(True) if leader else None,
        out=ir.Type.parse("!warp.pipe"),
        loc=loc,
    ).out


class _Producer:
    """acquire, arm, load, advance around every TMA load of a role."""

    def __init__(self, role, rings):
        self.role, self.rings, self.states = role, rings, {}

    def run(self) -> None:
        loads = [op for op in operations_within(self.role.body.blocks[0]) if isinstance(op, warp.TmaLoadOp)]
        groups: dict = {}  # (block, owner, how many came before it there) -> the loads of one slot
        seen: list = []
        with ir.InsertionPoint.at_block_begin(self.role.body.blocks[0]):
            for op in loads:
                owner = self.rings[op.buffer].owner
                if owner not in self.states and self.rings[owner].first in self.states:
                    self.states[owner] = self.states[self.rings[owner].first]
                if owner not in self.states:
                    self.states[owner] = warp.StateOp(pipe=self.rings[owner].pipe, phase=i64(1), out=place_type(), loc=op.location).out
                place = op.operation.parent, op.buffer
                groups.setdefault((place[0], owner, seen.count(place)), []).append(op)
                seen.append(place)
        for (_, owner, _), group in groups.items():
            self._guard(owner, group)

    def _guard(self, owner, loads: list) -> None:
        """At the place of the last one, where the coordinates of all are known."""
        state, ring = self.states[owner], self.rings[owner]
        with ir.InsertionPoint(loads[-1]), loads[-1].location:
            if ring.reused:
                warp.AcquireOp(state=state)
            elect = warp.ElectOp(scope=ir.StringAttr.get("warp" if self.role.active.value == 1 else "role"))
            with ir.InsertionPoint(elect.body.blocks.append()):
                warp.ArmOp(state=state)
                for op in sorted(loads, key=lambda op: op.buffer != owner):
                    shared = op.shared if op.shared.value else None
                    warp.TmaLoadOp(map=op.map, buffer=op.buffer, state=state, coords=list(op.coords), l2=op.l2, shared=shared,
                                   loc=op.location)
            if ring.reused:
                warp.AdvanceOp(state=state)
        for op in loads:
            op.operation.erase()


def _used_ids(roles) -> set:
    used = set()
    for role in roles:
        for op in operations_within(role.body.blocks[0]):
            if isinstance(op, (warp.TurnInitOp, warp.TurnTakeOp, warp.TurnGiveOp)):
                used |= set(range(op.id.value, op.id.value + role.active.value // 4))
            elif isinstance(op, warp.BarrierOp):
                used |= set(range(op.id.value, op.id.value + (role.active.value // 4 if op.scope.value == "warpgroup" else 1)))
    return used


def _drop_idle_syncs(role) -> None:
    """Lanes that met at a barrier since they last read shared memory need not meet again."""
    for op in list(operations_within(role.body.blocks[0])):
        if isinstance(op, warp.SyncWarpOp) and _met_already(op):
            op.operation.erase()


def _met_already(sync) -> bool:
    met = False
    for op in sync.operation.block.operations:
        if op == sync:
            return met
        inner = [op, *operations_of(op)]
        if isinstance(op, (warp.BarrierOp, warp.SyncWarpOp)):
            met = True
        elif any(_buffers_of_lanes(o) for o in inner):
            met = False
    return met


def _buffers_of_lanes(op) -> bool:
    """Whether each lane reads or writes shared memory for itself."""
    kinds = (*PLAIN_READS, warp.StoreSharedOp, warp_tmem.PostOp, warp_tmem.FetchOp)
    return isinstance(op, kinds) or (isinstance(op, warp_tmem.TmemMapOp) and bool(op.rows))


def _bytes(buffer) -> int:
    """Of one slot."""
    _, rows, columns = buffer.type.shape
    return rows * columns * warp.bits_of(buffer.type.element_type) // 8
