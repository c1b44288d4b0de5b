"""Bounds of a mask, symbolically: which keys j can a query i see, which does it surely see?

Integers of the predicate are read as sums `constant + coefficient * atom`, an atom being i, j, a value that depends on neither, or a floor
division, minimum, maximum, absolute value of such sums. A comparison with one atom that depends on j is solved for j. Conditions then
combine: "and" intersects; "or" takes the hull of what may be seen, and one side (or the hull, if both share an end) of what surely is.

What cannot be read may be true or false: it bounds nothing, and is right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# The query index, the key index, and problem sizes as atoms.
I, J = ("i",), ("j",)  # noqa: E741
M, N = ("size", "m"), ("size", "n")
_INTEGERS = ("index", "i32", "i64")
_SLE, _SLT, _SGE, _SGT, _EQ, _NE = 3, 2, 5, 4, 0, 1
_NEGATED = {_EQ: _NE, _NE: _EQ, _SLT: _SGE, _SGE: _SLT, _SLE: _SGT, _SGT: _SLE}


@dataclass(frozen=True)
class Sum:
    """constant + sum of coefficient * atom.

    An atom: ("i",) ("j",) ("size", dim) ("value", v) ("floordiv", Sum, k) ("min" | "max", Sum, Sum) ("select", v, Sum, Sum); v is a
    number that `Reader.values` resolves, so that atoms have an order that no address changes.
    """

    constant: int = 0
    terms: frozenset = field(default_factory=frozenset)  # of (atom, coefficient), no coefficient 0

    def __add__(self, other: Sum) -> Sum:
        terms = dict(self.terms)
        for atom, coefficient in other.terms:
            terms[atom] = terms.get(atom, 0) + coefficient
        return Sum(self.constant + other.constant, frozenset((a, c) for a, c in terms.items() if c))

    def times(self, factor: int) -> Sum:
        return Sum(self.constant * factor, frozenset((a, c * factor) for a, c in self.terms if factor))

    def __sub__(self, other: Sum) -> Sum:
        return self + other.times(-1)

    def ordered(self) -> list:
        """The terms in an order that is the same in every process."""
        return sorted(self.terms, key=lambda term: (term[1] < 0, _key(term[0])))

    def plus(self, constant: int) -> Sum:
        return Sum(self.constant + constant, self.terms)


def _key(part) -> str:
    if isinstance(part, Sum):
        return f"[{part.constant}" + "".join(f"+{c}*{_key(a)}" for a, c in part.ordered()) + "]"
    return f"({' '.join(map(_key, part))})" if isinstance(part, tuple) else f"{part:06d}" if isinstance(part, int) else part


def atom_sum(atom) -> Sum:
    return Sum(0, frozenset(((atom, 1),)))


def depends_on(expression: Sum, atom) -> bool:
    return any(_atom_depends(a, atom) for a, _ in expression.terms)


def _atom_depends(a, atom) -> bool:
    return a == atom or any(isinstance(part, Sum) and depends_on(part, atom) for part in a)


# Bounds: a Sum, or one of these.
NEG, POS = "-inf", "+inf"


@dataclass(frozen=True)
class Band:
    """`outer`: keys outside [lo, hi) are not seen. `inner`: keys inside [lo, hi) are. None is the empty interval."""

    outer: tuple[Any, Any] | None
    inner: tuple[Any, Any] | None


ALL = Band((NEG, POS), (NEG, POS))
NOTHING = Band(None, None)
UNKNOWN = Band((NEG, POS), None)


def both(a: Band, b: Band) -> Band:
    return Band(_intersect(a.outer, b.outer), _intersect(a.inner, b.inner))


def either(a: Band, b: Band) -> Band:
    if a.outer is None or b.outer is None:
        return b if a.outer is None else a
    return Band((minimum(a.outer[0], b.outer[0]), maximum(a.outer[1], b.outer[1])), _inner_of_union(a.inner, b.inner))


def choose(condition, a: Band, b: Band, columns: tuple[Sum, Sum]) -> Band:
    """`a` where `condition`, a value that depends on neither i nor j, holds, else `b`; j lies in [columns[0], columns[1])."""
    if a == b:
        return a
    return Band(_choose_interval(condition, a.outer, b.outer, columns), _choose_interval(condition, a.inner, b.inner, columns))


def _intersect(a, b):
    if a is None or b is None:
        return None
    return maximum(a[0], b[0]), minimum(a[1], b[1])


def _inner_of_union(a, b):
    """An interval inside the union of two, whatever their bounds turn out to be."""
    if a is None or b is None:
        return b if a is None else a
    if a[0] == b[0]:
        return a[0], maximum(a[1], b[1])
    if a[1] == b[1]:
        return minimum(a[0], b[0]), a[1]
    # Both are right; the one that follows the query is the wider in masks such as "the first tokens, or a window".
    return b if _follows_query(b) and not _follows_query(a) else a


def _follows_query(interval) -> bool:
    return any(isinstance(bound, Sum) and depends_on(bound, I) for bound in interval)


def _choose_interval(condition, a, b, columns):
    if a == b:
        return a
    ends, empty = [], (columns[0], columns[0])
    for yes, no in zip(a or empty, b or empty, strict=True):
        yes, no = finite(yes, *columns), finite(no, *columns)
        ends.append(yes if yes == no else atom_sum(("select", condition, yes, no)))
    return tuple(ends)


def finite(bound, first: Sum, end: Sum) -> Sum:
    """Positions are those of [first, end), 0 and n for keys, so these do for the infinities."""
    return {NEG: first, POS: end}.get(bound, bound) if isinstance(bound, str) else bound


def maximum(a, b):
    return _extreme("max", a, b, NEG, POS)


def minimum(a, b):
    return _extreme("min", a, b, POS, NEG)


def _extreme(which: str, a, b, neutral, absorbing):
    if a == b or b == neutral:
        return a
    if a == neutral:
        return b
    if absorbing in (a, b):
        return absorbing
    difference = a - b
    if not difference.terms:
        return a if (difference.constant > 0) == (which == "max") else b
    return atom_sum((which, a, b))


def monotone(expression: Sum, upper: bool, i_min: Sum, i_max: Sum, rising: bool = True) -> Sum:
    """A bound of `expression` from above (or below) that is non-decreasing in i (else non-increasing); i lies in [i_min, i_max]."""
    result = Sum(expression.constant)
    for atom, coefficient in expression.ordered():
        same = coefficient > 0
        bound = _monotone_atom(atom, upper == same, i_min, i_max, rising == same)
        result = result + bound.times(coefficient)
    return result


def _monotone_atom(atom, upper: bool, i_min: Sum, i_max: Sum, rising: bool) -> Sum:
    kind = atom[0]
    if kind == "i":
        return atom_sum(I) if rising else (i_max if upper else i_min)
    if kind == "floordiv":
        return floordiv(monotone(atom[1], upper, i_min, i_max, rising), atom[2])
    if kind in ("min", "max"):
        a, b = (monotone(part, upper, i_min, i_max, rising) for part in atom[1:])
        return maximum(a, b) if kind == "max" else minimum(a, b)
    if kind == "select":
        a, b = (monotone(part, upper, i_min, i_max, rising) for part in atom[2:])
        return a if a == b else atom_sum(("select", atom[1], a, b))
    return atom_sum(atom)  # does not depend on i


def floordiv(expression: Sum, divisor: int) -> Sum:
    if divisor == 1:
        return expression
    if not expression.terms:
        return Sum(expression.constant // divisor)
    return atom_sum(("floordiv", expression, divisor))


def solve(expression: Sum, predicate: int) -> Band:
    """The band of keys for which `expression` <predicate> 0 (an `arith.cmpi` number, signed)."""
    if predicate == _SLT:
        return solve(expression.plus(1), _SLE)
    if predicate == _SGT:
        return solve(expression.plus(-1), _SGE)
    if predicate == _SGE:
        return solve(expression.times(-1), _SLE)
    if predicate == _EQ:
        return both(solve(expression, _SLE), solve(expression, _SGE))
    if predicate == _NE:
        return either(solve(expression, _SLT), solve(expression, _SGT))
    if not expression.terms:
        return ALL if expression.constant <= 0 else NOTHING
    of_key = [(atom, coefficient) for atom, coefficient in expression.terms if _atom_depends(atom, J)]
    if len(of_key) != 1:
        return UNKNOWN  # several atoms with j, or none: then it is a condition on the row, which may hold or not
    atom, coefficient = of_key[0]
    rest = expression - Sum(0, frozenset(of_key))
    if coefficient > 0:  # atom <= -rest / coefficient
        return _at_most(atom, floordiv(rest.times(-1), coefficient))
    return _at_least(atom, floordiv(rest.times(-1), -coefficient).times(-1))  # atom >= ceil(rest / -coefficient)


def _at_most(atom, bound: Sum) -> Band:
    kind = atom[0]
    if kind == "j":
        return Band((NEG, bound.plus(1)), (NEG, bound.plus(1)))
    if kind == "floordiv":  # u // k <= e: u <= k * e + k - 1
        return solve(atom[1] - bound.times(atom[2]).plus(atom[2] - 1), _SLE)
    if kind in ("max", "min"):
        combine = both if kind == "max" else either
        return combine(solve(atom[1] - bound, _SLE), solve(atom[2] - bound, _SLE))
    return UNKNOWN


def _at_least(atom, bound: Sum) -> Band:
    kind = atom[0]
    if kind == "j":
        return Band((bound, POS), (bound, POS))
    if kind == "floordiv":  # u // k >= e: u >= k * e
        return solve(atom[1] - bound.times(atom[2]), _SGE)
    if kind in ("max", "min"):
        combine = either if kind == "max" else both
        return combine(solve(atom[1] - bound, _SGE), solve(atom[2] - bound, _SGE))
    return UNKNOWN


class Reader:
    """Reads a predicate region. `values`: what depends on neither i nor j and is read no further, by its number in atoms.

    `columns`: the first value of j and the one behind its last. `never_negative`: which of I and J are surely not.
    """

    def __init__(self, predicate, columns: tuple[Sum, Sum], never_negative=(J,)):
        self._columns, self._never_negative = columns, [atom_sum(atom) for atom in never_negative]
        block = predicate.blocks[0]
        self._i, self._j = block.arguments[2], block.arguments[3]
        self._yielded = list(block.operations)[-1].operation.operands[0]
        self._depends: dict[Any, bool] = {}
        self.values: list = []

    def band(self) -> Band:
        return self._condition(self._yielded, False)

    def _number(self, value) -> int:
        if value not in self.values:
            self.values.append(value)
        return self.values.index(value)

    def invariant(self, value) -> bool:
        if value not in self._depends:
            self._depends[value] = self._depends_on_position(value)
        return not self._depends[value]

    def _depends_on_position(self, value) -> bool:
        operation = _defining(value)
        if operation is None:
            return value in (self._i, self._j)
        if len(operation.regions):
            return True  # scf.if: not followed
        return not all(self.invariant(operand) for operand in operation.operands)

    def _condition(self, value, negated: bool) -> Band:
        operation = _defining(value)
        name = operation.name if operation is not None else ""
        if name == "arith.constant":
            return NOTHING if bool(operation.attributes["value"].value) == negated else ALL
        if self.invariant(value):
            yes, no = (NOTHING, ALL) if negated else (ALL, NOTHING)
            return choose(self._number(value), yes, no, self._columns)
        operands = list(operation.operands)
        if name in ("arith.andi", "arith.ori"):
            combine = both if (name == "arith.andi") != negated else either
            return combine(self._condition(operands[0], negated), self._condition(operands[1], negated))
        if name == "arith.xori":
            return self._differ(*operands, negated)
        if name == "arith.select":
            return self._select(*operands, negated)
        if name == "arith.cmpi":
            return self._compare(operation, operands, negated)
        return UNKNOWN

    def _differ(self, a, b, negated: bool) -> Band:
        return either(
            both(self._condition(a, False), self._condition(b, not negated)), both(self._condition(a, True), self._condition(b, negated))
        )

    def _select(self, condition, yes, no, negated: bool) -> Band:
        yes, no = self._condition(yes, negated), self._condition(no, negated)
        if self.invariant(condition):
            return choose(self._number(condition), yes, no, self._columns)
        return either(both(self._condition(condition, False), yes), both(self._condition(condition, True), no))

    def _compare(self, operation, operands, negated: bool) -> Band:
        predicate = operation.attributes["predicate"].value
        kind = str(operands[0].type)
        if kind == "i1":
            if predicate not in (_EQ, _NE):
                return UNKNOWN
            return self._differ(*operands, (predicate == _EQ) != negated)
        a, b = self._integer(operands[0]), self._integer(operands[1])
        if a is None or b is None or predicate not in _NEGATED:
            return UNKNOWN
        return solve(a - b, _NEGATED[predicate] if negated else predicate)

    def _integer(self, value) -> Sum | None:
        """The value as a sum of atoms; None if it cannot be read."""
        if value in (self._i, self._j):
            return atom_sum(I if value == self._i else J)
        if str(value.type) not in _INTEGERS:
            return None
        operation = _defining(value)
        name = operation.name if operation is not None else ""
        if name == "arith.constant":
            return Sum(operation.attributes["value"].value)
        if name == "attn.size":
            return atom_sum(("size", operation.attributes["dim"].value))
        rule = self._quotient if name == "arith.divsi" else _INTEGER_RULES.get(name)
        if rule is not None:
            parts = [self._integer(operand) for operand in operation.operands]
            result = rule(*parts) if None not in parts else None
            if result is not None:
                return result
        return atom_sum(("value", self._number(value))) if self.invariant(value) else None

    def _quotient(self, a: Sum, b: Sum) -> Sum | None:
        """Division towards zero is floor division where nothing is negative: a position itself."""
        return _floor_quotient(a, b) if a in self._never_negative or not a.terms and a.constant >= 0 else None


def _defining(value):
    """The operation that a value is a result of; None for a block argument."""
    owner = value.owner
    return owner.operation if hasattr(owner, "operation") else None


def _product(a: Sum, b: Sum) -> Sum | None:
    if not b.terms:
        return a.times(b.constant)
    return b.times(a.constant) if not a.terms else None


def _floor_quotient(a: Sum, b: Sum) -> Sum | None:
    return floordiv(a, b.constant) if not b.terms and b.constant > 0 else None


def _pair(which: str):
    return lambda a, b: maximum(a, b) if which == "max" else minimum(a, b)


_INTEGER_RULES = {
    "arith.addi": Sum.__add__,
    "arith.subi": Sum.__sub__,
    "arith.muli": _product,
    "arith.floordivsi": _floor_quotient,
    "arith.maxsi": _pair("max"),
    "arith.minsi": _pair("min"),
    "math.absi": lambda a: maximum(a, a.times(-1)),
    # positions and lengths fit in 32 bits, so a cast between integers changes nothing
    "arith.index_cast": lambda a: a,
    "arith.extsi": lambda a: a,
    "arith.trunci": lambda a: a,
}
