"""Give additions to global memory a fixed order: the same sums, to the last bit, in every run.

CTAs add to one place in the order in which they get there, and sums of floats depend on it. Here each block of rows of the target gets a
counter; a CTA waits until as many have added as come before it, adds, and counts. Which come before it follows from the bounds of its
loop: block i is added to by the CTAs x with lo(x) <= i < hi(x).

- Bounds that do not depend on x: ascending x. Turn x is x: CTA x follows CTA x - 1 one block behind.
- Bounds of which the arithmetic says that they never fall with x, by two blocks or more for each x: ascending x too, and the loop is walked
  backwards. Under a causal mask all CTAs start at the last block, one behind the other, and end at their diagonals; the longest start
  first. Those that start where they end start one behind the other as well: CTA x ends two blocks before CTA x - 1, and a hop takes one.
  The turn is x - first(i), with first(i) the smallest x with i < hi(x). Where all end at one block, a loop around it, over the heads that
  share the CTA's keys, becomes the inner one: else CTA x, which has fewer blocks, would wait for CTA x - 1 at each head. Where they do not
  (a window), trips differ little, and head by head a block's sum stays in L2 until the next CTA adds.
- The same by less than two blocks (blocks are as wide as the CTA's rows): the CTAs of a wave would start together, and wait for each other.
  Or where the loop carries what is no sum, and so has an order. From the diagonal outwards instead, descending x, as the CTA
  with the largest x gets to block i first: its turn is last(i) - x, with last(i) the largest x with lo(x) <= i.
  The grid is reversed, so that larger x have smaller numbers. Nobody waits; the longest start last.
- Others: turn x is x, and each CTA also counts for the blocks that it does not add to, before its loop and behind it.

Where a pair of CTAs halves a block's rows (tile-insert-dsmem-exchange), each half has a counter of its own, to which one CTA of each pair
adds: turns count pairs, x // 2, and a reversed grid keeps each CTA's place in its pair. The two of a pair make the same trips.

Nobody waits forever, however few CTAs run at once: a CTA only waits for CTAs of smaller number, which start first. Sums of all rows to one
element take no turns: `fixed_order_sums.py` stores them and adds them up.

Before:  "tile.global_add"(%x, %dq, %b, %row, %h, %c0)
After:   "tile.wait_count"(%counter, %turn, %b, %row, %h);  "tile.global_add"(...);  "tile.add_count"(%counter, %b, %row, %h)

Runs behind what makes pairs, before tile-pipeline and what else changes the grid. Source: the deterministic backward of FlashAttention (dQ
semaphores; Dao 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import targets
from ..ir import tile, tile_pair
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import arith, index_constant, ir, scf
from ..ir.tile import space_of
from ._tile_map import dim_of, operations_in
from .cluster_grid import depending_on
from .fixed_order_sums import add_up_behind, place_of
from .loop_nest import can_swap, carries_sums, compute_again, constant, depends, swap, walk_backwards
from .op_costs import warpgroups
from .registry import register_pass
from .workspaces import add_workspace, entry_of, host_of, tensor_argument


@register_pass("tile-deterministic-reduction")
def tile_deterministic_reduction(module: ir.Module) -> None:
    target = targets.of(module)
    operations = operations_in(module)
    for kernel in [op for op in operations if isinstance(op, tile.KernelOp)]:
        adds = [op for op in operations_in(kernel) if isinstance(op, tile.GlobalAddOp)]
        if not adds or any(isinstance(op, tile.WaitCountOp) for op in operations_in(kernel)):
            continue
        launches = [op for op in operations_in(module) if isinstance(op, tile.LaunchOp) and op.kernel.value == kernel.sym_name.value]
        totals, adds = [add for add in adds if add.x.type.rank == 1], [add for add in adds if add.x.type.rank == 2]
        for total in totals:
            add_up_behind(total, kernel, launches)
        ranges = [_range_of(add, kernel) for add in adds]
        descending = [r.order == _DESCENDING for r in ranges]
        if len(set(descending)) > 1:
            raise op_diagnostic(adds[descending.index(not descending[0])], "needs another order of the grid than the first addition",
                                why="a grid runs one way", fix="split the kernel: attn-split-backward")
        if any(descending) and kernel.cluster.value > ranges[0].rows.ctas:
            raise op_diagnostic(adds[0], "needs a grid in reverse, where CTAs run in clusters and each adds whole blocks",
                                why="that would change the places in a cluster", fix="leave out what makes the clusters")
        count = _Arguments(kernel, launches)
        last = count.last_block(ranges[0].place) if any(descending) else None
        for add, found in zip(adds, ranges, strict=True):
            counters = warpgroups(add, target) if space_of(add.x.type) == "reg" else 1  # one warp adds what lies in shared memory
            counter = count.counter(add, counters, found.rows.ctas)
            if found.order == _ANYHOW:
                _count_the_rest(add, found, counter)
            _order(add, found, counter, last)
        _turn(ranges, last)


@dataclass
class _Rows:
    """Block `number` of the target's rows is `size` rows from `first` on; each of `ctas` CTAs adds the part of its `rank`."""

    number: object
    first: object
    size: int | None  # None: not known to be constant
    ctas: int = 1
    rank: object = None  # tile.cta_rank's result


@dataclass
class _Range:
    """Block `rows.number` is added to by the CTAs x with lower(x) <= number < upper(x)."""

    place: object  # tile.program_id
    loop: object  # the scf.for over blocks
    rows: _Rows
    lower: object
    upper: object

    @property
    def order(self) -> str:
        """How turns go; see above."""
        x = self.place.x
        moving = [bound for bound in (self.lower, self.upper) if depends(bound, x)]
        if not moving:
            return _ASCENDING
        if not all(_never_falls(bound, x) for bound in moving):
            return _ANYHOW
        apart = all(_slope(bound, x) * self.rows.ctas >= 2 for bound in moving)
        return _BACKWARDS if apart and carries_sums(self.loop) else _DESCENDING

    def turns(self, x):
        """Whose turn it is counts CTAs, or pairs: the number of the pair of CTA x, below 0 where x is."""
        if self.rows.ctas == 1:
            return x
        return arith.floordivsi(x, index_constant(self.rows.ctas))

    def counted(self, add) -> list:
        """Where the counter of what is added lies: the block's first row, and the CTA's place in its pair."""
        row = list(add.dims)[0]
        coords = [self.rows.first if axis == row else coord for axis, coord in enumerate(list(add.coords)[:-1])]
        return coords if self.rows.ctas == 1 else [*coords, self.rows.rank]


_ASCENDING, _BACKWARDS, _DESCENDING, _ANYHOW = "ascending", "ascending, backwards", "descending", "ascending, and past what is not visited"


def _range_of(add, kernel) -> _Range:
    place = place_of(add, kernel)
    row = list(add.dims)[0]
    rows = _rows_of(add.coords[row], kernel.cluster.value)
    number = rows.number
    loops = _loops_around(add)
    for loop in loops:
        if not any(depends(c, loop.regions[0].blocks[0].arguments[0]) for c in add.coords):
            raise op_diagnostic(add, "adds to one place in several iterations of a loop",
                                why="its coordinates do not depend on the loop's index",
                                fix="sum in registers, and add behind the loop")
    for axis, coord in enumerate(add.coords):
        if axis != row and depends(coord, place.x):
            raise op_diagnostic(add, f"has coordinate {axis} that depends on the CTA's x", why="CTAs of other x add to other places then")
    loop = next((lp for lp in loops if depends(number, lp.regions[0].blocks[0].arguments[0])), None)
    if loop is None:
        raise op_diagnostic(add, "does not walk over blocks of rows", why="its row does not depend on a loop's index")
    found = _Range(place, loop, rows, *_bounds(add, loop, number))
    if rows.ctas > 1 and any(bound in depending_on(kernel, place.x, rows.ctas) for bound in (found.lower, found.upper)):
        raise op_diagnostic(add, "adds part of a block in a loop whose trips differ between the CTAs of a pair",
                            why="turns count pairs: to each half of a block one CTA of a pair adds", fix="run attn-to-tile{alike=2}")
    return found


def _rows_of(row, cluster: int) -> _Rows:
    """number * size, or number * size + rank * (size / cluster), of which each CTA of a cluster adds a part that is its own."""
    if cluster > 1 and _is(row, "arith.addi"):
        for block, part in (row.owner.operands, reversed(list(row.owner.operands))):
            (number, size), (rank, own) = _product(block), _product(part)
            if size is not None and own is not None and own * cluster == size and _is(rank, tile_pair.CtaRankOp.OPERATION_NAME):
                return _Rows(number, block, size, cluster, rank)
    number, size = _product(row)
    return _Rows(number, row, size)


def _product(value):
    """(v, c) of v * c for a constant c; (v, None) of another v."""
    if _is(value, "arith.muli") and constant(value.owner.operands[1]) is not None:
        return value.owner.operands[0], constant(value.owner.operands[1])
    return value, None


def _bounds(add, loop, number):
    """(first block, end) of the blocks that one CTA's loop walks through, in ascending order."""
    start, end, step = list(loop.operation.operands)[:3]
    index = loop.regions[0].blocks[0].arguments[0]
    if constant(step) == 1:
        if number == index:
            return start, _without_floor(end)
        if _is(number, "arith.addi") and index in list(number.owner.operands) and constant(start) == 0:
            first = next((v for v in number.owner.operands if v != index), None)
            length = _without_floor(end)
            if first is not None and _is(length, "arith.subi") and length.owner.operands[1] == first:
                return first, length.owner.operands[0]
    raise op_diagnostic(add, "walks over blocks in a way that is not known",
                        why="known: block = index, or first + index for index from 0 to end - first; its rows from block * size on, or, "
                        "of a pair's two halves, from block * size + tile.cta_rank * size / 2 on")


def _without_floor(value):
    """v of max(v, 0): a loop does nothing from there on either."""
    if _is(value, "arith.maxsi") and constant(value.owner.operands[1]) == 0:
        return value.owner.operands[0]
    return value


def _order(add, found: _Range, counter, last) -> None:
    x, number, coords = found.place.x, found.rows.number, found.counted(add)
    with ir.InsertionPoint(add), add.location:
        turn = found.turns(x)
        if found.order == _BACKWARDS and depends(found.upper, x):
            before = found.turns(_largest(found.upper, number, x))  # the last one whose blocks end before this one, if there is one
            turn = arith.subi(turn, arith.maxsi(arith.addi(before, index_constant(1)), index_constant(0)))
        elif found.order == _DESCENDING:
            behind = arith.minsi(last, _largest(found.lower, number, x)) if depends(found.lower, x) else last
            turn = arith.subi(found.turns(behind), turn)
        tile.WaitCountOp(counter=counter, count=turn, coords=coords)
    with ir.InsertionPoint.after(add), add.location:
        tile.AddCountOp(counter=counter, coords=coords)


def _turn(ranges: list, last) -> None:
    """Turn round the grid, or the loops, each once."""
    if last is not None:
        _reverse(ranges[0].place, last, ranges[0].rows)
    turned = []
    for found in ranges:
        if found.order != _BACKWARDS or any(loop.operation == found.loop.operation for loop in turned):
            continue
        turned.append(found.loop)
        walk_backwards(found.loop)
        around = found.loop.operation.parent
        if not depends(found.upper, found.place.x) and around.name == "scf.for" and can_swap(around.opview, found.loop):
            swap(around.opview, found.loop)


def _reverse(place, last, rows: _Rows) -> None:
    """Block last - x for the CTA of place x: what was computed from x is computed from that. A CTA of a pair keeps its place in it."""
    users = [use.owner for use in place.x.uses]
    behind = last.owner
    if rows.ctas > 1:
        rows.rank.owner.move_after(behind)
        behind = rows.rank.owner
    with ir.InsertionPoint.after(behind), place.location:
        block = arith.subi(last, place.x)
        if rows.ctas > 1:
            swapped = arith.subi(arith.muli(rows.rank, index_constant(2)), index_constant(rows.ctas - 1))
            block = arith.addi(block, swapped)
    for user in users:
        for n, operand in enumerate(user.operation.operands):
            if operand == place.x:
                user.operation.operands[n] = block


def _count_the_rest(add, found: _Range, counter) -> None:
    """For the blocks before the first one of this CTA's loop, and for those behind its last one."""
    one, zero = (_constant_before(found.loop, n) for n in (1, 0))
    size = found.rows.size or add.x.type.shape[0]
    row = list(add.dims)[0]
    with ir.InsertionPoint(found.loop), found.loop.location:
        blocks = arith.ceildivsi(dim_of(add.target, row), index_constant(size))
        first = arith.minsi(found.lower, blocks)
        rest = arith.maxsi(found.lower, found.upper)
        _count_each(add, found, counter, zero, first, one)
    with ir.InsertionPoint.after(found.loop), found.loop.location:
        _count_each(add, found, counter, rest, blocks, one)


def _count_each(add, found: _Range, counter, first, end, one) -> None:
    loop = scf.ForOp(first, end, one)
    with ir.InsertionPoint(loop.body):
        here = {found.rows.number: loop.induction_variable}
        coords = [compute_again(coord, here, within=found.loop.operation) for coord in found.counted(add)]
        tile.WaitCountOp(counter=counter, count=found.turns(found.place.x), coords=coords)
        tile.AddCountOp(counter=counter, coords=coords)
        scf.YieldOp([])


def _constant_before(loop, number: int):
    with ir.InsertionPoint(loop), loop.location:
        return index_constant(number)


# ------------------------------------------------------------------------------------------------------------- solving for x


def _never_falls(bound, x) -> bool:
    """Whether a bound is made of steps that are known not to fall as x grows."""
    if bound == x:
        return True
    operation = bound.owner
    varying = [n for n, v in enumerate(operation.operands) if depends(v, x)] if not isinstance(operation, ir.Block) else []
    if len(varying) != 1 or operation.name not in _INVERSES:
        return False
    at, other = varying[0], operation.operands[1 - varying[0]]
    in_front = at == 0 or operation.name in ("arith.addi", "arith.muli", "arith.maxsi", "arith.minsi")
    grows = operation.name not in ("arith.muli", "arith.floordivsi", "arith.ceildivsi") or (constant(other) or 0) > 0
    return in_front and grows and _never_falls(operation.operands[at], x)


def _slope(bound, x) -> float:
    """By how much a bound that never falls grows with x, where it grows."""
    if bound == x:
        return 1.0
    operands = list(bound.owner.operands)
    varying = next(n for n, v in enumerate(operands) if depends(v, x))
    factor = constant(operands[1 - varying]) or 1
    slope = _slope(operands[varying], x)
    return slope * factor if bound.owner.name == "arith.muli" else slope / factor if "div" in bound.owner.name else slope


def _largest(bound, y, x):
    """The largest x with bound(x) <= y, as a value here, for a bound that never falls; negative where there is none."""
    if bound == x:
        return y
    operands = list(bound.owner.operands)
    varying = next(n for n, v in enumerate(operands) if depends(v, x))
    inner, other = operands[varying], operands[1 - varying]
    limit, never = _INVERSES[bound.owner.name](y, other, _OUT_OF_REACH // _divisor(inner, x))
    result = _largest(inner, limit, x)
    return result if never is None else arith.select(never, index_constant(-1), result)


def _divisor(bound, x) -> int:
    """What x is divided by on its way to a bound that never falls: a limit is multiplied by it on the way back."""
    if bound == x:
        return 1
    operands = list(bound.owner.operands)
    varying = next(n for n, v in enumerate(operands) if depends(v, x))
    return _divisor(operands[varying], x) * (constant(operands[1]) if "div" in bound.owner.name else 1)


def _add(y, c, most):
    return arith.subi(y, c), None


def _sub(y, c, most):
    return arith.addi(y, c), None


def _mul(y, c, most):
    return arith.floordivsi(y, c), None


def _floordiv(y, c, most):
    one = index_constant(1)
    return arith.subi(arith.muli(arith.addi(y, one), c), one), None


def _ceildiv(y, c, most):
    return arith.muli(y, c), None


def _max(y, c, most):
    return y, arith.cmpi(arith.CmpIPredicate.sgt, c, y)


# More rows than a tensor has: one takes at least 32 bytes, and 2**35 bytes are more than a GPU holds. Kernels count in 32 bits: what is
# added to the limit on the way to x is smaller, and what it is multiplied by there it is divided by before
_OUT_OF_REACH = 1 << 30


def _min(y, c, most):
    """min(h, c) <= y where h <= y; where c <= y it holds for all x: the limit is then out of reach."""
    beyond = index_constant(most)
    return arith.select(arith.cmpi(arith.CmpIPredicate.sle, c, y), beyond, y), None


# (y, c, most) -> (limit, never): bound(h, c) <= y where h <= limit; nowhere where `never` holds. `most`: more than h ever is
_INVERSES = {
    "arith.addi": _add, "arith.subi": _sub, "arith.muli": _mul, "arith.floordivsi": _floordiv, "arith.ceildivsi": _ceildiv,
    "arith.maxsi": _max, "arith.minsi": _min,
}


# ------------------------------------------------------------------------------------------------------------------ plumbing


class _Arguments:
    """New arguments of a kernel: one counter for each target, and the number of its last block of x."""

    def __init__(self, kernel, launches):
        self.kernel, self.launches = kernel, launches
        self.counters: dict = {}

    def last_block(self, place):
        size = self.kernel.body.blocks[0].add_argument(ir.IndexType.get(), self.kernel.location)
        for launch in list(self.launches):
            self._relaunch(launch, list(launch.tensors), [*launch.scalars, launch.grid[0]])
        with ir.InsertionPoint.after(place), place.location:
            return arith.subi(size, index_constant(1))

    def counter(self, add, counters: int, ctas: int):
        if add.target not in self.counters:
            kind = add.target.type
            parts = [] if ctas == 1 else [ctas]
            shape = [None if kind.is_dynamic_dim(axis) else kind.shape[axis] for axis in range(kind.rank - 1)]
            counter = tile.tile_type([*shape, *parts, counters], "i32", "gmem")
            number = list(self.kernel.body.blocks[0].arguments).index(add.target)
            for launch in list(self.launches):
                workspace = self._workspace(launch, launch.tensors[number], counter)
                self._relaunch(launch, [*launch.tensors, workspace], list(launch.scalars))
            self.counters[add.target] = tensor_argument(self.kernel, counter)
        return self.counters[add.target]

    def _relaunch(self, launch, tensors: list, scalars: list) -> None:
        with ir.InsertionPoint(launch), launch.location:
            new = tile.LaunchOp(kernel=launch.kernel, grid=list(launch.grid), tensors=tensors, scalars=scalars)
        self.launches[self.launches.index(launch)] = new
        launch.operation.erase()

    def _workspace(self, launch, target, counter):
        host = host_of(launch)
        entry = entry_of(host, target)
        dims = [dim.value for dim in list(entry["dims"])[:-1]]
        parts = ["ctas"] * (counter.rank - len(dims) - 1)
        return add_workspace(host, f"{entry['name'].value}_turns", [*dims, *parts, "warpgroups"], counter, init="zero")


def _loops_around(op) -> list:
    found, parent = [], op.operation.parent
    while parent.name != "tile.kernel":
        if parent.name == "scf.for":
            found.append(parent.opview if hasattr(parent, "opview") else parent)
        parent = parent.parent
    return found


def _is(value, name: str) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == name
