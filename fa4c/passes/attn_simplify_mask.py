"""Turn a mask into a band: where each query's keys begin and end, and where all of them are seen.

The block loop then runs over the keys that a block of queries can see, and only blocks at the edge of the band apply the predicate: causal
attention does half the work, and no test on the rest of it. Comparisons that are affine in i and j are read, with floor division, minimum,
maximum and absolute value, with sizes, and with values that depend on neither, such as a loaded prefix length; and, or, not, xor and
select of them. A condition that cannot be read (a document number loaded at j) bounds nothing, and what stands beside it still does.

Before:  %u = "attn.mask"(%t) ({ ^bb0(%b, %h, %i, %j): %keep = arith.cmpi sle, %j, %i : index ... }) : ...
After:   %u = "attn.band_mask"(%t) ({ the same }, {
         ^bb0(%b, %h, %i):  %0 = arith.constant 0 : index, %hi = %i + 1
           "attn.yield"(%0, %hi, %0, %hi) : ...                            lo, hi, full_lo, full_hi
         }) : ...

Where keys are the rows (`attn-transpose-recompute` made S^T), the band is that of each key's queries, counted as `%j` counts them.

A mask that is always true disappears. One that is always false has an empty band: all rows empty is a legal result. A mask of which nothing
is known stays `attn.mask`. The predicate is kept whole, so a band that is too wide costs time, never a wrong number.
"""

from ..ir.attn import BandMaskOp, MaskOp, SizeOp, YieldOp
from ..ir.attn_dims import infer_dims
from ..ir.attn_signature import attn_functions, function_facts
from ..ir.mlir import arith, ir
from .mask_bounds import ALL, UNKNOWN, Band, I, J, M, N, Reader, Sum, atom_sum, finite, monotone
from .registry import register_pass


@register_pass("attn-simplify-mask")
def attn_simplify_mask(module: ir.Module) -> None:
    for function in attn_functions(module):
        facts = function_facts(function)
        known = infer_dims(function, facts)
        # Dimensions are looked up before anything is replaced: one mask may read another's result.
        masks = [(op, known[op.scores][0]) for op in function.regions[0].blocks[0].operations if isinstance(op, MaskOp)]
        for op, dims in masks:
            if set(dims) == {"m", "n"}:
                _simplify(op, [_positions(dim, facts.align == "bottom_right") for dim in dims])


def _positions(dim: str, bottom_right: bool) -> tuple[Sum, Sum]:
    """The first position along a dimension and the one behind the last: queries may be counted in key coordinates."""
    start = atom_sum(N) - atom_sum(M) if dim == "m" and bottom_right else Sum(0)
    return start, start + atom_sum(M if dim == "m" else N)


def _simplify(op: MaskOp, positions: list[tuple[Sum, Sum]]) -> None:
    never_negative = [atom for atom, (start, _) in zip((I, J), positions, strict=True) if start == Sum(0)]
    reader = Reader(op.predicate, positions[1], never_negative)
    band = reader.band()
    if band == ALL:
        op.out.replace_all_uses_with(op.scores)
        op.erase()
    elif band != UNKNOWN:
        with op.location:
            _replace(op, _four_bounds(band, *positions), reader.values)


def _four_bounds(band: Band, rows: tuple[Sum, Sum], columns: tuple[Sum, Sum]) -> list[Sum]:
    """lo, hi, full_lo, full_hi, each non-decreasing in i."""
    i_min, i_max = rows[0], rows[1].plus(-1)
    empty = (columns[0], columns[0])
    bounds = [*(band.outer or empty), *(band.inner or empty)]
    from_above = [False, True, True, False]  # widen what may be seen, narrow what surely is
    return [monotone(finite(bound, *columns), upper, i_min, i_max) for bound, upper in zip(bounds, from_above, strict=True)]


def _replace(op: MaskOp, bounds: list[Sum], values: list) -> None:
    new = BandMaskOp(scores=op.scores, out=op.out.type, loc=op.location, ip=ir.InsertionPoint(op))
    index = ir.IndexType.get()
    block = ir.Block.create_at_start(new.bounds, [index] * 3, [op.location] * 3)
    with ir.InsertionPoint(block):
        emitter = _Emitter(op.predicate.blocks[0].arguments, block, values)
        YieldOp(values=[emitter.sum(bound) for bound in bounds], loc=op.location)
    op.predicate.blocks[0].append_to(new.predicate)
    op.out.replace_all_uses_with(new.out)
    op.erase()


class _Emitter:
    """Writes sums as operations of the bounds region, equal parts once."""

    def __init__(self, predicate_arguments, block, values: list):
        self._clones = dict(zip(predicate_arguments, block.arguments, strict=False))  # %b, %h, %i; no bound reads %j
        self._predicate = predicate_arguments[0].owner
        self._i, self._values = block.arguments[2], values
        self._sums: dict = {}
        self._index = ir.IndexType.get()

    def sum(self, expression: Sum):
        if expression not in self._sums:
            self._sums[expression] = self._build(expression)
        return self._sums[expression]

    def _build(self, expression: Sum):
        value = None
        for atom, coefficient in expression.ordered():
            term = self._atom(atom)
            if abs(coefficient) != 1:
                term = arith.muli(term, self._constant(abs(coefficient)))
            if value is None:
                value = term if coefficient > 0 else arith.subi(self._constant(0), term)
            else:
                value = arith.addi(value, term) if coefficient > 0 else arith.subi(value, term)
        if value is None:
            return self._constant(expression.constant)
        if expression.constant:
            amount = self._constant(abs(expression.constant))
            value = arith.addi(value, amount) if expression.constant > 0 else arith.subi(value, amount)
        return value

    def _constant(self, value: int):
        key = ("constant", value)
        if key not in self._sums:
            self._sums[key] = arith.constant(self._index, value)
        return self._sums[key]

    def _atom(self, atom):
        kind = atom[0]
        assert atom != J, "a bound depends on the key that it bounds"
        if atom == I:
            return self._i
        if kind == "value":
            return self._as_index(self._clone(self._values[atom[1]]))
        if atom not in self._sums:
            self._sums[atom] = self._new_atom(kind, atom[1:])
        return self._sums[atom]

    def _new_atom(self, kind: str, parts):
        if kind == "size":
            return SizeOp(dim=ir.StringAttr.get(parts[0]), out=self._index).out
        if kind == "floordiv":
            return arith.floordivsi(self.sum(parts[0]), self._constant(parts[1]))
        if kind == "select":
            return arith.select(self._clone(self._values[parts[0]]), self.sum(parts[1]), self.sum(parts[2]))
        return (arith.maxsi if kind == "max" else arith.minsi)(self.sum(parts[0]), self.sum(parts[1]))

    def _as_index(self, value):
        return value if value.type == self._index else arith.index_cast(self._index, value)

    def _clone(self, value):
        """The value, computed again in the bounds region unless it comes from outside the predicate."""
        if value not in self._clones:
            operation = None if isinstance(value.owner, ir.Block) else value.owner.operation
            if operation is None or operation.block != self._predicate:
                return value
            operands = [self._clone(operand) for operand in operation.operands]
            copy = operation.clone()
            for number, operand in enumerate(operands):
                copy.operands[number] = operand
            self._clones.update(zip(operation.results, copy.operation.results, strict=True))
        return self._clones[value]
