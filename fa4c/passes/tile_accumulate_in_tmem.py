"""Put the results of MMAs into tensor memory, where the target's tensor cores sum.

On Hopper an MMA's accumulator is a register tile, and operand A may come from registers. tcgen05 (PTX ISA 9.7.16) sums in tensor memory,
and takes A from there or from shared memory: registers are free for elementwise work, but each hand-over is a copy. So accumulators move
to tensor memory, and the 16-bit tiles computed here for operand A, together with the loop arguments that carry them and the maps that
scale them in place; what else reads a result reads a copy in registers. A result that one map alone reads, after the loop as a rule, is
read by it directly, a few columns at a time. Where the tiles lie is open until `tile-alias-tmem`: column -1.

An MMA whose operand A comes to lie there is put right behind it: the sooner it is issued, the sooner its columns are free. What other CTAs
add to too (dQ) is read by threads of its own and added through a few columns of shared memory; the tile that an MMA reads across (dS) has
one copy, as one thread issues all MMAs and the accesses to it alternate.

A target that sums in registers is left alone.

Before:  %s = "tile.mma"(%q, %k) ... -> tensor<256x128xf32, #tile.reg>       %pc = "tile.map"(%p) ... -> tensor<256x128xbf16, #tile.reg>
After:   %s = "tile.mma"(%q, %k) ... -> tensor<256x128xf32, #tile.tmem<-1>> %pc = "tile.map"(%p) ... -> tensor<256x128xbf16, #tile.tmem<-1>>
         %r = "tile.map"(%s) ({ x }) ... -> tensor<256x128xf32, #tile.reg>   // the softmax reads this one
"""

from __future__ import annotations

from .. import targets
from ..ir import tile, tile_pair
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import i64, ir
from ..ir.tile import space_of, tile_type
from ._tile_map import emit_map, operations_in
from .registry import register_pass
from .shared_room import PART, PART_COPIES

_SPANS = (PART, PART // 2, PART // 4)  # f32 columns of 128, 64, 32 bytes: what one TMA box takes of a row


@register_pass("tile-accumulate-in-tmem")
def tile_accumulate_in_tmem(module: ir.Module) -> None:
    if targets.of(module).mma.accumulator != "tmem":
        return
    operations = operations_in(module)
    products = [op for op in operations if isinstance(op, tile.MmaOp) and space_of(op.out.type) == "reg"]
    accumulators: dict = {}  # an ordered set: all values that an accumulator goes through
    for op in products:
        _follow(op.out, accumulators)
    for value in accumulators:
        value.set_type(_in_tmem(value.type))
    for value in accumulators:
        _give_readers_a_copy(value, accumulators)
    for op in products:
        if space_of(op.a.type) == "reg":
            _move_operand(op)
            _put_behind(op)
        elif isinstance(op.a.owner.opview, (tile.ToSharedOp, tile_pair.ExchangeOp)):
            op.a.owner.attributes["buffers"] = i64(1)
    for op in operations:
        if isinstance(op, tile.GlobalAddOp) and isinstance(getattr(op.x.owner, "opview", None), tile.ToSharedOp):
            _stage(op)


def _in_tmem(kind):
    return tile_type(kind.shape, kind.element_type, "tmem<-1>")


def _follow(value, found: dict) -> None:
    """Everything that is the same accumulator as `value`: what it starts from, what it becomes, in loops and by scaling in place."""
    if value in found or space_of(value.type) != "reg":
        return
    found[value] = None
    owner = value.owner
    if isinstance(owner, ir.Block):
        loop = owner.owner
        number = list(owner.arguments).index(value) - 1
        _follow(loop.operands[3 + number], found)
        _follow(list(owner.operations)[-1].operation.operands[number], found)
        _follow(loop.results[number], found)
    elif owner.name == "scf.for":
        number = list(owner.results).index(value)
        _follow(list(owner.regions[0].blocks[0].arguments)[1 + number], found)
    elif owner.name == "tile.mma" and owner.opview.acc is not None:
        _follow(owner.opview.acc, found)
    elif owner.name == "tile.map" and len(owner.opview.inputs) and owner.opview.inputs[0].type == value.type:
        _follow(owner.opview.inputs[0], found)
    elif owner.name not in ("tile.mma", "tile.splat"):
        raise op_diagnostic(owner.opview, "makes the start of an accumulator", why="one starts from a splat, or from another's result",
                            fix="start the sum at 0 and add this to its result")


def _stays(use, accumulators) -> bool:
    """Whether a user takes the accumulator as one."""
    owner = use.owner
    if owner.name == "scf.yield" or owner.name == "scf.for":
        return True
    if owner.name == "tile.mma":
        return owner.opview.acc is not None and use.operand_number == list(owner.operands).index(owner.opview.acc)
    return owner.name == "tile.map" and owner.results[0] in accumulators and use.operand_number == 0


def _give_readers_a_copy(value, accumulators) -> None:
    readers = [use for use in value.uses if not _stays(use, accumulators)]
    if not readers or (len(readers) == 1 and _reads_directly(readers[0].owner.opview, value)):
        return
    owner = value.owner
    with (
        (ir.InsertionPoint.at_block_begin(owner) if isinstance(owner, ir.Block) else ir.InsertionPoint.after(owner)),
        (readers[0].owner if isinstance(owner, ir.Block) else owner).location,
    ):
        copy = emit_map([value], tile_type(value.type.shape, value.type.element_type, "reg"), lambda x, row, column: x)
    for use in readers:
        use.owner.operands[use.operand_number] = copy


def _reads_directly(op, value) -> bool:
    """A map to registers, of as many values and no wider ones: it may take a few columns at a time."""
    if not isinstance(op, tile.MapOp) or op.cond is not None or space_of(op.out.type) != "reg" or op.out.type.rank != 2:
        return False
    if any(isinstance(use.owner.opview, tile.MmaOp) and use.owner.opview.a == op.out for use in op.out.uses):
        return False  # becomes operand A, over part of what it reads
    return sum(v == value for v in op.inputs) == 1


def _move_operand(op) -> None:
    """Operand A, computed in registers, to tensor memory: by the map that computes it, if that is all it is for."""
    a = op.a
    owner = a.owner
    only_here = not isinstance(owner, ir.Block) and owner.name == "tile.map" and len(list(a.uses)) == 1 and owner.opview.cond is None
    if only_here:
        a.set_type(_in_tmem(a.type))
        return
    at = ir.InsertionPoint(op) if isinstance(owner, ir.Block) or owner.parent != op.operation.parent else ir.InsertionPoint.after(owner)
    with at, op.location:
        copy = emit_map([a], _in_tmem(a.type), lambda x, row, column: x)
    for number, operand in enumerate(op.operation.operands):
        if operand == a:
            op.operation.operands[number] = copy


def _put_behind(op) -> None:
    """Move an MMA up to where its last operand is computed; what reads its result stands further down."""
    block = list(op.operation.block.operations)
    position = {other.operation: n for n, other in enumerate(block)}
    first = max(position.get(v.owner, -1) if not isinstance(v.owner, ir.Block) else -1 for v in op.operation.operands)
    if first >= 0 and first + 1 < position[op.operation]:
        op.operation.move_after(block[first].operation)


def _stage(add) -> None:
    """Add what an MMA summed from registers, through columns of shared memory as wide as a TMA box."""
    copy = add.x.owner.opview
    if space_of(copy.x.type) != "reg" or len(list(copy.out.uses)) != 1:
        return
    width = copy.x.type.shape[1]
    part = next(span for span in _SPANS if width % span == 0)
    copies = i64(min(PART_COPIES, width // part))
    with ir.InsertionPoint(add), add.location:
        tile.GlobalAddOp(
            x=copy.x, target=add.target, coords=list(add.coords), dims=add.dims, staged=i64(part), buffers=copies,
            folded=add.attributes.get("folded"),
        )  # fmt: skip
    add.operation.erase()
    copy.operation.erase()
