"""Give additions to global memory a fixed order: the same sums, to the last bit, in every run.

CTAs add to one place in the order in which they get there, and sums of floats depend on it. Here each block of rows of the target gets a
counter; a CTA waits until as many have added as come before it, adds, and counts. Which come before it follows from the bounds of its
loop: block i is added to by the CTAs x with lo(x) <= i < hi(x).

- Bounds that do not depend on x: ascending x. Turn x is x.
- Bounds of which the arithmetic says that they never fall with x: from the diagonal outwards, descending x, as the CTA with the largest x
  gets to block i first. Its turn is last(i) - x, with last(i) the largest x with lo(x) <= i. The grid is reversed, so that larger x have
  smaller numbers.
- Others: ascending x, and each CTA also counts for the blocks that it does not add to, before its loop and behind it.

Nobody waits forever, however few CTAs run at once: a CTA only waits for CTAs of smaller number, which start first.

Before:  "tile.global_add"(%x, %dq, %b, %row, %h, %c0)
After:   "tile.wait_count"(%counter, %turn, %b, %row, %h);  "tile.global_add"(...);  "tile.add_count"(%counter, %b, %row, %h)

Runs before tile-pipeline and whatever changes the grid. Source: the deterministic backward
of FlashAttention (dQ semaphores; Dao 2023), order from the diagonal outwards as in its causal schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import targets
from ..ir import tile
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import arith, ir, scf
from ..ir.tile import space_of
from ._tile_map import operations_in
from .op_costs import warpgroups
from .registry import register_pass


@register_pass("tile-deterministic-reduction")
def tile_deterministic_reduction(module: ir.Module) -> None:
    target = targets.of(module)
    operations = operations_in(module)
    for kernel in [op for op in operations if isinstance(op, tile.KernelOp)]:
        adds = [op for op in operations_in(kernel) if isinstance(op, tile.GlobalAddOp)]
        if not adds or any(isinstance(op, tile.WaitCountOp) for op in operations_in(kernel)):
            continue
        launches = [op for op in operations_in(module) if isinstance(op, tile.LaunchOp) and op.kernel.value == kernel.sym_name.value]
        ranges = [_range_of(add, kernel) for add in adds]
        backwards = [r.moves and r.known for r in ranges]
        anyhow = [r.moves and not r.known for r in ranges]
        if len(set(backwards)) > 1:
            raise op_diagnostic(adds[backwards.index(not backwards[0])], "needs another order of the grid than the kernel's first addition",
                                why="a grid runs one way", fix="split the kernel: attn-split-backward")
        count = _Arguments(kernel, launches)
        last = count.last_block(ranges[0].place)
        if backwards[0]:
            _reverse(ranges[0].place, last)
        for add, found, unknown in zip(adds, ranges, anyhow, strict=True):
            counters = warpgroups(add, target) if space_of(add.x.type) == "reg" else 1  # one warp adds what lies in shared memory
            counter = count.counter(add, counters)
            if unknown:
                _count_the_rest(add, found, counter)
            _order(add, found, counter, last)


@dataclass
class _Range:
    """Block `number` of the target's rows is added to by the CTAs x with lower(x) <= number < upper(x)."""

    place: object  # tile.program_id
    loop: object
    number: object
    lower: object
    upper: object

    @property
    def moves(self) -> bool:
        """Whether the bounds depend on x."""
        return _depends(self.lower, self.place.x) or _depends(self.upper, self.place.x)

    @property
    def known(self) -> bool:
        """Whether both are known not to fall as x grows."""
        return all(not _depends(bound, self.place.x) or _never_falls(bound, self.place.x) for bound in (self.lower, self.upper))


def _range_of(add, kernel) -> _Range:
    place = next((op for op in operations_in(kernel) if isinstance(op, tile.ProgramIdOp)), None)
    if add.x.type.rank == 1:
        raise op_diagnostic(add, "adds all rows to one element", why="only blocks of rows have an order so far",
                            fix="derive without that gradient (--set attn-derive-backward.wrt=q,k,v), or leave out --deterministic")
    if place is None:
        raise op_diagnostic(add, "is not made for blocks of a grid", why="the kernel does not ask for its place")
    row = list(add.dims)[0]
    number = _factor(add.coords[row])
    loops = _loops_around(add)
    for loop in loops:
        if not any(_depends(c, loop.regions[0].blocks[0].arguments[0]) for c in add.coords):
            raise op_diagnostic(add, "adds to one place in several iterations of a loop",
                                why="its coordinates do not depend on the loop's index",
                                fix="sum in registers, and add behind the loop")
    for axis, coord in enumerate(add.coords):
        if axis != row and _depends(coord, place.x):
            raise op_diagnostic(add, f"has coordinate {axis} that depends on the CTA's x", why="CTAs of other x add to other places then")
    loop = next((lp for lp in loops if _depends(number, lp.regions[0].blocks[0].arguments[0])), None)
    if loop is None:
        raise op_diagnostic(add, "does not walk over blocks of rows", why="its row does not depend on a loop's index")
    return _Range(place, loop, number, *_bounds(add, loop, number))


def _factor(row):
    """The number of the block: what is multiplied by a constant to give the row."""
    if _is(row, "arith.muli") and _constant(row.owner.operands[1]) is not None:
        return row.owner.operands[0]
    return row


def _bounds(add, loop, number):
    """(first block, end) of the blocks that one CTA's loop walks through, in ascending order."""
    start, end, step = list(loop.operation.operands)[:3]
    index = loop.regions[0].blocks[0].arguments[0]
    if _constant(step) == 1:
        if number == index:
            return start, _without_floor(end)
        if _is(number, "arith.addi") and index in list(number.owner.operands) and _constant(start) == 0:
            first = next((v for v in number.owner.operands if v != index), None)
            length = _without_floor(end)
            if first is not None and _is(length, "arith.subi") and length.owner.operands[1] == first:
                return first, length.owner.operands[0]
    raise op_diagnostic(add, "walks over blocks in a way that is not known",
                        why="known: block = index, or first + index for index from 0 to end - first")


def _without_floor(value):
    """v of max(v, 0): a loop does nothing from there on either."""
    if _is(value, "arith.maxsi") and _constant(value.owner.operands[1]) == 0:
        return value.owner.operands[0]
    return value


def _order(add, found: _Range, counter, last) -> None:
    with ir.InsertionPoint(add), add.location:
        block = _block(found.place, last)
        if block is None:
            turn = found.place.x
        else:
            known = _depends(found.lower, found.place.x)
            turn = arith.subi(arith.minsi(last, _largest(found.lower, found.number, found.place.x)) if known else last, block)
        tile.WaitCountOp(counter=counter, count=turn, coords=list(add.coords)[:-1])
    block = _block_after(add)
    with block, add.location:
        tile.AddCountOp(counter=counter, coords=list(add.coords)[:-1])


def _count_the_rest(add, found: _Range, counter) -> None:
    """For the blocks before the first one of this CTA's loop, and for those behind its last one."""
    index, one, zero = ir.IndexType.get(), *(_constant_before(found.loop, n) for n in (1, 0))
    row = list(add.dims)[0]
    with ir.InsertionPoint(found.loop), found.loop.location:
        axis = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), row)
        rows = tile.DimOp(tensor=add.target, axis=axis, out=index).out
        blocks = arith.ceildivsi(rows, arith.constant(index, add.x.type.shape[0]))
        first = arith.minsi(found.lower, blocks)
        rest = arith.maxsi(found.lower, found.upper)
        _count_each(add, found, counter, zero, first, one)
    with _block_after(found.loop), found.loop.location:
        _count_each(add, found, counter, rest, blocks, one)


def _count_each(add, found: _Range, counter, first, end, one) -> None:
    loop = scf.ForOp(first, end, one)
    with ir.InsertionPoint(loop.body):
        here = {found.number: loop.induction_variable}
        coords = [_again(coord, found.loop, here) for coord in list(add.coords)[:-1]]
        tile.WaitCountOp(counter=counter, count=found.place.x, coords=coords)
        tile.AddCountOp(counter=counter, coords=coords)
        scf.YieldOp([])


def _again(value, loop, here: dict):
    """A scalar computed once more, outside of the loop that it was computed in."""
    if value not in here:
        if isinstance(value.owner, ir.Block) or value.owner.parent != loop.operation:
            return value
        operands = [_again(operand, loop, here) for operand in value.owner.operands]
        new = value.owner.clone()
        for n, operand in enumerate(operands):
            new.operands[n] = operand
        here[value] = new.results[0]
    return here[value]


def _constant_before(loop, number: int):
    with ir.InsertionPoint(loop), loop.location:
        return arith.constant(ir.IndexType.get(), number)


def _block_after(add):
    operations = [op for region in add.operation.parent.regions for block in region.blocks for op in block.operations]
    at = next(n for n, op in enumerate(operations) if op.operation == add.operation)
    if at + 1 < len(operations):
        return ir.InsertionPoint(operations[at + 1])
    return ir.InsertionPoint(add.operation.parent.regions[0].blocks[0])


def _reverse(place, last) -> None:
    """Block last - x for the CTA of place x: what was computed from x is computed from that."""
    users = [use.owner for use in place.x.uses]
    with ir.InsertionPoint(_next(last.owner)), place.location:
        block = arith.subi(last, place.x)
    for user in users:
        for n, operand in enumerate(user.operation.operands):
            if operand == place.x:
                user.operation.operands[n] = block


def _block(place, last):
    """The block that the reversed grid gives this CTA; None if it is not reversed."""
    return next((use.owner.results[0] for use in place.x.uses if use.owner.name == "arith.subi" and use.owner.operands[0] == last), None)


def _next(operation):
    operations = list(operation.parent.regions[0].blocks[0].operations)
    return operations[next(n for n, op in enumerate(operations) if op.operation == operation) + 1]


# ------------------------------------------------------------------------------------------------------------- solving for x


def _never_falls(bound, x) -> bool:
    """Whether a bound is made of steps that are known not to fall as x grows."""
    if bound == x:
        return True
    operation = bound.owner
    varying = [n for n, v in enumerate(operation.operands) if _depends(v, x)] if not isinstance(operation, ir.Block) else []
    if len(varying) != 1 or operation.name not in _INVERSES:
        return False
    at, other = varying[0], operation.operands[1 - varying[0]]
    in_front = at == 0 or operation.name in ("arith.addi", "arith.muli", "arith.maxsi", "arith.minsi")
    grows = operation.name not in ("arith.muli", "arith.floordivsi", "arith.ceildivsi") or (_constant(other) or 0) > 0
    return in_front and grows and _never_falls(operation.operands[at], x)


def _largest(bound, y, x):
    """The largest x with bound(x) <= y, as a value here, for a bound that never falls; -1 where there is none. On a reversed grid x is what
    was computed from the CTA's place."""
    if bound == x or (_is(bound, "arith.subi") and bound.owner.operands[1] == x):
        return y
    operands = list(bound.owner.operands)
    varying = next(n for n, v in enumerate(operands) if _depends(v, x))
    limit, never = _INVERSES[bound.owner.name](y, operands[1 - varying])
    result = _largest(operands[varying], limit, x)
    return result if never is None else arith.select(never, arith.constant(ir.IndexType.get(), -1), result)


def _add(y, c):
    return arith.subi(y, c), None


def _sub(y, c):
    return arith.addi(y, c), None


def _mul(y, c):
    return arith.floordivsi(y, c), None


def _floordiv(y, c):
    one = arith.constant(ir.IndexType.get(), 1)
    return arith.subi(arith.muli(arith.addi(y, one), c), one), None


def _ceildiv(y, c):
    return arith.muli(y, c), None


def _max(y, c):
    return y, arith.cmpi(arith.CmpIPredicate.sgt, c, y)


def _min(y, c):
    """min(h, c) <= y where h <= y; where c <= y it holds for all x: the limit is then out of reach."""
    most = arith.constant(ir.IndexType.get(), 1 << 30)
    return arith.select(arith.cmpi(arith.CmpIPredicate.sle, c, y), most, y), None


# bound(h) <= y where h <= limit; -1 where `never` holds
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
        block = self.kernel.body.blocks[0]
        size = block.add_argument(ir.IndexType.get(), self.kernel.location)
        for launch in self.launches:
            self._relaunch(launch, list(launch.tensors), [*launch.scalars, launch.grid[0]])
        with ir.InsertionPoint(_next(place.operation)), place.location:
            return arith.subi(size, arith.constant(ir.IndexType.get(), 1))

    def counter(self, add, counters: int):
        if add.target not in self.counters:
            kind = add.target.type
            shape = [None if kind.is_dynamic_dim(axis) else kind.shape[axis] for axis in range(kind.rank - 1)] + [counters]
            counter = tile.tile_type(shape, "i32", "gmem")
            number = list(self.kernel.body.blocks[0].arguments).index(add.target)
            for launch in list(self.launches):
                workspace = self._workspace(launch, launch.tensors[number], counter)
                self._relaunch(launch, [*launch.tensors, workspace], list(launch.scalars))
            argument = _tensor_argument(self.kernel.body.blocks[0], counter, self.kernel.location)
            self.counters[add.target] = argument
        return self.counters[add.target]

    def _relaunch(self, launch, tensors: list, scalars: list) -> None:
        with ir.InsertionPoint(launch), launch.location:
            new = tile.LaunchOp(kernel=launch.kernel, grid=list(launch.grid), tensors=tensors, scalars=scalars)
        self.launches[self.launches.index(launch)] = new
        launch.operation.erase()

    def _workspace(self, launch, target, counter):
        host = launch.operation.parent
        while host.name != "tile.host":
            host = host.parent
        host = host.opview if hasattr(host, "opview") else host
        arguments = list(host.body.blocks[0].arguments)
        entry = host.tensors[arguments.index(target)]
        taken = {e["name"].value for e in host.tensors}
        base = f"{entry['name'].value}_turns"
        name = next(n for n in (base, *(f"{base}_{k}" for k in range(2, len(taken) + 3))) if n not in taken)
        dims = ", ".join(str(dim) for dim in list(entry["dims"])[:-1])
        text = f'{{name = "{name}", role = "workspace", dims = [{dims}, "warpgroups"], init = "zero", lifetime = "call"}}'
        host.attributes["tensors"] = ir.ArrayAttr.get([*host.tensors, ir.Attribute.parse(text)])
        return host.body.blocks[0].add_argument(counter, host.location)


def _tensor_argument(block, kind, location):
    """A new argument behind the tensors; the scalars behind it are made anew, since arguments can only be added at the end."""
    scalars = [a for a in block.arguments if space_of(a.type) != "gmem"]
    first = len(block.arguments) - len(scalars)
    block.add_argument(kind, location)
    for scalar in scalars:
        scalar.replace_all_uses_with(block.add_argument(scalar.type, location))
    for _ in scalars:
        block.erase_argument(first)
    return block.arguments[first]


def _loops_around(op) -> list:
    found, parent = [], op.operation.parent
    while parent.name != "tile.kernel":
        if parent.name == "scf.for":
            found.append(parent.opview if hasattr(parent, "opview") else parent)
        parent = parent.parent
    return found


def _depends(value, on) -> bool:
    if value == on:
        return True
    return not isinstance(value.owner, ir.Block) and any(_depends(operand, on) for operand in value.owner.operands)


def _is(value, name: str) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == name


def _constant(value):
    return value.owner.attributes["value"].value if _is(value, "arith.constant") else None
