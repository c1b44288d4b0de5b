"""What a role of its own does for the compute warpgroups: operations on accumulators in tensor memory that take one value a row besides.

An online softmax scales its accumulator where a maximum has grown, and divides it at the end. Neither needs the scores: a warpgroup beside
the compute ones does it, so that those go on to their exponentials. What it needs of them, one value a row, goes through shared memory
(`Box`); what only the role needs and follows from such values it computes itself, and votes of a warp are taken again, from what was voted
on. The role pays only for work within a loop; the operations behind the loop, with the store of what they make, go along.

Source: Shah et al. 2026 (FlashAttention-4), section 3.1.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir import tile
from ..ir.mlir import ir
from ..ir.tile import space_of
from . import tmem_tiles
from ._tile_map import operations_in

BOX_BYTES = 4  # a row


@dataclass(frozen=True, eq=False)
class Box:
    """A row vector on its way from the role that computes it to one that needs it; `readers`: operations before which it is fetched."""

    value: object
    readers: list = field(default_factory=list)

    @property
    def writer(self):
        return self.value.owner.opview


@dataclass
class Corrections:
    """`operations` of the role, `boxes` by value, and by the map that makes it the tile in shared memory that a result goes to directly."""

    operations: set
    boxes: dict
    written: dict


def find(kernel) -> Corrections | None:
    """Of a `tile.kernel` whose MMAs sum into tensor memory; None where its loops hold no such operation."""
    of = tmem_tiles.tiles_by_value(kernel)
    sums = {id(of[op.out]) for op in operations_in(kernel) if isinstance(op, tile.MmaOp) and op.acc is not None}
    found = Corrections(set(), {}, {})
    for op in operations_in(kernel):
        touches = any(id(of[v]) in sums for v in [*op.operation.operands, *op.operation.results] if v in of)
        if touches and isinstance(op, (tile.MapOp, tile.SplatOp)):
            _add(found, op)
    _take_along(found)
    for box in found.boxes.values():
        box.readers[:] = _first_of_each_stage(box.readers)
    return found if any(isinstance(op, tile.MapOp) and _runs_beside_mmas(op) for op in found.operations) else None


def _runs_beside_mmas(op) -> bool:
    return op.operation.parent.name == "scf.for" and any(isinstance(other, tile.MmaOp) for other in op.operation.block.operations)


def source_of(value):
    """The value that crosses: itself, or what a vote was taken on."""
    owner = value.owner
    return owner.opview.x if not isinstance(owner, ir.Block) and isinstance(owner.opview, tile.VoteAnyOp) else value


def _add(found: Corrections, op) -> None:
    rows = [v for v in op.operation.operands if space_of(v.type) == "reg"]
    if any(space_of(v.type) == "smem" for v in op.operation.operands) or not all(_crosses(op, v) for v in rows):
        return
    stored = []
    if space_of(op.operation.results[0].type) != "tmem":
        stored = _stored(op)
        if not stored:
            return
        found.written[op] = stored[0].out
    found.operations.update([op, *stored])
    for value in dict.fromkeys(map(source_of, rows)):
        found.boxes.setdefault(value, Box(value)).readers.append(op)


def _take_along(found: Corrections) -> None:
    """Maps of row vectors, and the votes taken on them, go to the role where nobody else needs them and all they read crosses anyway."""
    for value, box in list(found.boxes.items()):
        made = value.owner.opview
        votes = [use.owner.opview for use in value.uses if use.owner.opview not in found.operations]
        users = [use.owner.opview for vote in votes for use in vote.operation.results[0].uses]
        small = isinstance(made, tile.MapOp) and made.cond is None and all(v in found.boxes and v != value for v in made.inputs)
        alone = all(isinstance(vote, tile.VoteAnyOp) for vote in votes) and all(user in found.operations for user in users)
        if small and alone and len({_stage(op) for op in [made, *votes, *box.readers]}) == 1:
            found.operations.update([made, *votes])
            del found.boxes[value]
            for operand in made.inputs:
                found.boxes[operand].readers.append(made)


def _first_of_each_stage(readers: list) -> list:
    """One fetch serves all of an iteration; readers in a later stage run in the midst of the next one."""
    firsts: dict = {}
    for op in sorted(readers, key=lambda op: op.order.value if op.order is not None else 0):
        firsts.setdefault(_stage(op), op)
    return list(firsts.values())


def _stage(op) -> int:
    return op.stage.value


def _crosses(op, value) -> bool:
    """Whether a value of a row each is computed in the block where the operation needs it."""
    source = source_of(value)
    made_here = not isinstance(source.owner, ir.Block) and source.owner.parent == op.operation.parent and source.owner.name != "scf.for"
    return made_here and source.type.rank == 1 and source.owner.operation.block == op.operation.block


def _stored(op) -> list:
    """What brings a map's result to shared memory and stores it from there; none if anything else is done with it."""
    users = [use.owner.opview for use in op.out.uses]
    if len(users) != 1 or not isinstance(users[0], tile.ToSharedOp) or users[0].buffers.value > 1 or op.cond is not None:
        return []
    stores = [use.owner.opview for use in users[0].out.uses]
    return [users[0], *stores] if stores and all(isinstance(store, tile.StoreOp) for store in stores) else []
