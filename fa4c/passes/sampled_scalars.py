"""Index scalars of a kernel for sampled sizes: what `warp-check` runs control flow with."""

from __future__ import annotations

import math

from ..ir.mlir import ir

_SIZES = (0, 1, 70, 128, 200, 333, 520)
_FEW = (0, 1, 2, 3)  # of a dimension that an outer loop counts through, such as heads: each costs as much as all iterations inside


class SampledScalars:
    """Values of index scalars: sampled where the kernel reads them from outside, memory too; computed elsewhere."""

    def __init__(self, rng, sample, known=None, outside=None, counted=frozenset(), pairs=False, cta=0):
        self.rng, self.sample, self.known = rng, sample, known or {}
        self.pairs, self.cta = pairs, cta  # whether CTAs run in pairs, whose grids are even; which one of the pair this is
        self.counted = counted  # (tensor, axis) of dimensions that are small numbers
        self.outside = {} if outside is None else outside  # sizes, scalars of the launch, this CTA's place: one value for all roles

    def fork(self, cta: int = 0) -> SampledScalars:
        """The same values so far, and the same outside; loops run apart from here on. In CTA `cta` of a pair."""
        known = {v: number for v, number in self.known.items() if not cta}
        return SampledScalars(self.rng, self.sample, known, self.outside, self.counted, self.pairs, cta)

    def value(self, v) -> int:
        if v not in self.known:
            self.known[v] = self._compute(v)
        return self.known[v]

    def _compute(self, v) -> int:
        op = v.owner
        if isinstance(op, ir.Block):
            return self._from_outside(v, (2, 4) if self.pairs else (1, 2, 4))  # a scalar of the launch
        name = op.name
        if name == "tile.dim":
            tensor, axis = op.operands[0], op.attributes["axis"].value
            if not tensor.type.is_dynamic_dim(axis):
                return tensor.type.shape[axis]
            if (tensor, axis) in self.counted:
                return self._from_outside((tensor, axis), _FEW if self.sample else (2,))
            return self._from_outside((tensor, axis), _SIZES if self.sample else (200,))
        if name == "tile.program_id":
            axis = ir.OpResult(v).result_number
            if self.pairs and axis == 0:  # the two of a pair are neighbours along x
                return self._from_outside((name, axis), (0, 2) if self.sample else (0,)) + self.cta
            return self._from_outside((name, axis), (0, 0, 1, 2) if self.sample else (0,))
        if name == "tile.cta_rank":
            return self.cta
        if name == "arith.constant":
            value = op.attributes["value"].value
            return int(value) if math.isfinite(value) else 0  # floats decide nothing here
        if name in ("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.trunci"):
            return self.value(op.operands[0])
        if name == "tile.load_element":
            coordinates = tuple(self.value(coordinate) for coordinate in list(op.operands)[1:])
            return self._from_outside((op.operands[0], coordinates), (0, 1, 100))
        rule = _ARITH.get(name)
        if rule is None or not isinstance(v.type, (ir.IndexType, ir.IntegerType)):
            return self.rng.choice((0, 1, 100))
        return rule(op, *[self.value(o) for o in op.operands])

    def _from_outside(self, key, choices) -> int:
        if key not in self.outside:
            self.outside[key] = self.rng.choice(choices)
        return self.outside[key]


def counted_dims(role) -> set:
    """(tensor, axis) of the dimensions that loops around other loops count through one by one."""
    found = set()
    for loop in _loops(role.body.blocks[0]):
        if any(_loops(loop.regions[0].blocks[0])):
            found |= _dims_behind(loop.operation.operands[1])
    return found


def _loops(block):
    for op in block.operations:
        if op.operation.name == "scf.for":
            yield op
        for region in op.operation.regions:
            for inner in region.blocks:
                yield from _loops(inner)


def _dims_behind(value) -> set:
    """Sizes divided by a constant are counts of blocks: those are few anyway."""
    op = value.owner
    if isinstance(op, ir.Block):
        return set()
    if op.name == "tile.dim":
        return {(op.operands[0], op.attributes["axis"].value)}
    if "div" in op.name and _is_constant(op.operands[1]):
        return set()
    return {dim for operand in op.operands for dim in _dims_behind(operand)}


def _is_constant(value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == "arith.constant"


def _div(a, b):
    return a // b if b else 0


_COMPARE = [lambda a, b: a == b, lambda a, b: a != b, lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b, lambda a, b: a >= b]
_ARITH = {
    "arith.addi": lambda op, a, b: a + b,
    "arith.subi": lambda op, a, b: a - b,
    "arith.muli": lambda op, a, b: a * b,
    "arith.floordivsi": lambda op, a, b: _div(a, b),
    "arith.ceildivsi": lambda op, a, b: -_div(-a, b),
    "arith.divsi": lambda op, a, b: int(a / b) if b else 0,
    "arith.remsi": lambda op, a, b: a - int(a / b) * b if b else 0,
    "arith.remui": lambda op, a, b: a % b if b else 0,
    "arith.minsi": lambda op, a, b: min(a, b),
    "arith.maxsi": lambda op, a, b: max(a, b),
    "arith.andi": lambda op, a, b: a & b,
    "arith.ori": lambda op, a, b: a | b,
    "arith.xori": lambda op, a, b: a ^ b,
    "arith.select": lambda op, c, a, b: a if c else b,
    "arith.cmpi": lambda op, a, b: int(_COMPARE[op.attributes["predicate"].value % 6](a, b)),
}
