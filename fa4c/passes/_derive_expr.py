"""Scalar code as a graph of expressions, equal ones once: what `attn-derive-backward` reads regions into and writes them from.

An element of a tensor is a leaf that names the tensor itself, so code of several maps can be put together without renaming. Sharing and
removal of dead code come for free; `Scalars` simplifies while it builds, exactly: a constant is folded only where f32 holds the result.
"""

import math
import struct
from dataclasses import dataclass

from ..ir.attn import LoadOp, SizeOp
from ..ir.mlir import ir

_CMPF = {"oeq": 1, "ogt": 2, "oge": 3, "olt": 4, "ole": 5}
_CMPI = {"eq": 0, "sle": 3, "sge": 5}
# What MLIR adds to operations that do not say it.
_DEFAULTS = (("fastmath", "#arith.fastmath<none>"), ("overflowFlags", "#arith.overflow<none>"))
_F32_OVERFLOWS = 2.0**128 - 2.0**103  # what rounds to infinity
_FLOATS = {"bf16": 16, "f16": 16, "f32": 32, "f64": 64}


@dataclass(frozen=True, eq=False)
class Expr:
    """`op`: "elem" (attr: tensor), "index" (attr: "b", "h", 0 or 1), "load" (attr: tensor), "size", "const", or an MLIR operation's name.

    `number` grows from operands to users. Equal expressions of one `Scalars` are one object.
    """

    op: str
    operands: tuple
    attr: object
    kind: str
    loc: object
    number: int

    def is_float(self) -> bool:
        return self.kind in _FLOATS

    def constant(self):
        return self.attr if self.op == "const" else None

    def below(self) -> list:
        """This expression and all that it is made of, operands first."""
        found, stack = {}, [self]
        while stack:
            expr = stack.pop()
            if expr not in found:
                found[expr] = True
                stack += expr.operands
        return sorted(found, key=lambda expr: expr.number)


class Scalars:
    """Builds expressions. `loc` is what new ones get as their location."""

    def __init__(self):
        self.loc = None
        self._known: dict = {}

    def make(self, op: str, operands=(), attr=None, kind: str = "f32") -> Expr:
        key = (op, operands, repr(attr) if op == "const" else attr, kind)
        if key not in self._known:
            self._known[key] = Expr(op, tuple(operands), attr, kind, self.loc, len(self._known))
        return self._known[key]

    # -- leaves

    def elem(self, tensor) -> Expr:
        return self.make("elem", (), tensor, tensor.dtype)

    def index(self, which) -> Expr:
        return self.make("index", (), which, "index")

    def const(self, value, kind: str = "f32") -> Expr:
        return self.make("const", (), _rounded(float(value), kind) if kind in _FLOATS else value, kind)

    def size(self, dim: str) -> Expr:
        return self.make("size", (), dim, "index")

    def load(self, tensor, *indices) -> Expr:
        return self.make("load", indices, tensor, tensor.dtype)

    # -- arithmetic on f32 and f64, as derivatives need it

    def add(self, a: Expr, b: Expr) -> Expr:
        if is_zero(a) or is_zero(b):
            return b if is_zero(a) else a
        guard = _same_guard(a, b)
        if guard is not None:
            condition, yes_a, yes_b, positive = guard
            return self._guarded(condition, self.add(yes_a, yes_b), positive)
        if b.op == "arith.negf":
            return self.sub(a, b.operands[0])
        if a.op == "arith.negf":
            return self.sub(b, a.operands[0])
        return self._folded("arith.addf", a, b, lambda x, y: x + y)

    def sub(self, a: Expr, b: Expr) -> Expr:
        if is_zero(b):
            return a
        if is_zero(a):
            return self.neg(b)
        if b.op == "arith.negf":
            return self.add(a, b.operands[0])
        return self._folded("arith.subf", a, b, lambda x, y: x - y)

    def neg(self, a: Expr) -> Expr:
        if a.op == "arith.negf":
            return a.operands[0]
        if a.op == "const":
            return self.const(-a.attr, a.kind)
        if a.op == "arith.subf":
            return self.sub(a.operands[1], a.operands[0])
        if a.op == "arith.mulf" and a.operands[1].op == "const":
            return self.mul(a.operands[0], self.neg(a.operands[1]))
        return self.through_guard(self.neg, a) or self.make("arith.negf", (a,), (), a.kind)

    def mul(self, a: Expr, b: Expr) -> Expr:
        """`a` is a gradient: where it is a choice between something and zero, the zero stays zero whatever `b` is there."""
        guarded = self.through_guard(lambda x: self.mul(x, b), a)
        if guarded is not None:
            return guarded
        if a.op == "const" and b.op != "const":
            a, b = b, a
        if is_zero(a) or is_zero(b):
            return self.const(0.0, a.kind)
        if b.op == "const" and b.attr == 1.0:
            return a
        if b.op == "const" and b.attr == -1.0:
            return self.neg(a)
        if a.op == "arith.negf":
            return self.neg(self.mul(a.operands[0], b))
        if b.op == "arith.negf":
            return self.neg(self.mul(a, b.operands[0]))
        if a.op == "arith.mulf" and a.operands[1].op == "const" and b.op == "const":
            product = self.const(a.operands[1].attr * b.attr, a.kind)
            if product.attr == a.operands[1].attr * b.attr:
                return self.mul(a.operands[0], product)
        return self._folded("arith.mulf", a, b, lambda x, y: x * y)

    def div(self, a: Expr, b: Expr) -> Expr:
        guarded = self.through_guard(lambda x: self.div(x, b), a)
        if guarded is not None:
            return guarded
        if b.op == "const" and b.attr not in (0.0,):
            inverse = self.const(1 / b.attr, b.kind)
            if inverse.attr * b.attr == 1.0:  # a power of two
                return self.mul(a, inverse)
        return self.make("arith.divf", (a, b), (), a.kind)

    def unary(self, name: str, a: Expr) -> Expr:
        return self.make(name, (a,), (), a.kind)

    def power(self, a: Expr, b: Expr) -> Expr:
        if b.op == "const" and b.attr in (0.0, 1.0):
            return self.const(1.0, a.kind) if b.attr == 0.0 else a
        return self.make("math.powf", (a, b), (), a.kind)

    def compare(self, predicate: str, a: Expr, b: Expr) -> Expr:
        name, table = ("arith.cmpf", _CMPF) if a.is_float() else ("arith.cmpi", _CMPI)
        return self.make(name, (a, b), (("predicate", f"{table[predicate]} : i64"),), "i1")

    def select(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        if a is b:
            return a
        if condition.op == "const":
            return a if condition.attr else b
        return self.make("arith.select", (condition, a, b), (), a.kind)

    def convert(self, a: Expr, kind: str) -> Expr:
        """A float in another float type."""
        if a.kind == kind:
            return a
        if a.op == "const":
            return self.const(a.attr, kind)
        wider = _FLOATS[kind] > _FLOATS[a.kind]
        return self.make("arith.extf" if wider else "arith.truncf", (a,), (), kind)

    def wide(self, a: Expr) -> Expr:
        """In the type that gradients have: f32, but f64 of an f64."""
        return self.convert(a, gradient_kind(a.kind))

    def substitute(self, expr: Expr, replacements: dict) -> Expr:
        """`expr` with expressions replaced, outermost first."""
        done = dict(replacements)
        for node in expr.below():
            if node not in done:
                operands = tuple(done[operand] for operand in node.operands)
                same = all(a is b for a, b in zip(operands, node.operands))
                saved, self.loc = self.loc, node.loc
                done[node] = node if same else self.make(node.op, operands, node.attr, node.kind)
                self.loc = saved
        return done[expr]

    def _folded(self, name: str, a: Expr, b: Expr, function) -> Expr:
        if a.op == b.op == "const":
            value = function(a.attr, b.attr)
            if self.const(value, a.kind).attr == value:
                return self.const(value, a.kind)
        return self.make(name, (a, b), (), a.kind)

    def through_guard(self, function, a: Expr) -> Expr | None:
        """Of a choice between something and zero, that choice between `function` of it and zero; None of anything else."""
        guard = _guard(a)
        return None if guard is None else self._guarded(guard[0], function(guard[1]), guard[2])

    def _guarded(self, condition: Expr, value: Expr, positive: bool) -> Expr:
        zero = self.const(0.0, value.kind)
        return self.select(condition, value, zero) if positive else self.select(condition, zero, value)


def gradient_kind(kind: str) -> str:
    return "f64" if kind == "f64" else "f32"


def is_zero(expr: Expr) -> bool:
    return expr.op == "const" and expr.is_float() and expr.attr == 0.0


def _guard(expr: Expr):
    """(condition, value, whether the value is where the condition holds) of a choice between a value and zero."""
    if expr.op != "arith.select" or not expr.is_float():
        return None
    condition, yes, no = expr.operands
    if is_zero(no) or is_zero(yes):
        return (condition, yes, True) if is_zero(no) else (condition, no, False)
    return None


def _same_guard(a: Expr, b: Expr):
    first, second = _guard(a), _guard(b)
    if first is None or second is None or first[0] is not second[0] or first[2] != second[2]:
        return None
    return first[0], first[1], second[1], first[2]


def _rounded(value: float, kind: str) -> float:
    if kind != "f32" or not math.isfinite(value):
        return value
    if abs(value) >= _F32_OVERFLOWS:
        return math.copysign(math.inf, value)
    return struct.unpack("f", struct.pack("f", value))[0]


# -- regions in, regions out ---------------------------------------------------------------------------------------------------------------


class Reader:
    """Reads regions. `tensors`: SSA value -> tensor, for what `attn.load` reads."""

    def __init__(self, scalars: Scalars, tensors):
        self._scalars, self._tensors = scalars, tensors

    def region(self, region, elements: list[Expr], indices: int = 2) -> list[Expr]:
        """What a region yields, for these elements as its first arguments, then b, h and `indices` positions."""
        block = region.blocks[0]
        given = elements + [self._scalars.index(which) for which in ("b", "h", 0, 1)[: 2 + indices]]
        return self._block(block, dict(zip(block.arguments, given, strict=True)))

    def _block(self, block, known: dict) -> list[Expr]:
        for op in block.operations:
            operation = op.operation
            if operation.name in ("attn.yield", "scf.yield"):
                return [self._value(value, known) for value in operation.operands]
            self._operation(operation, known)
        return []

    def _value(self, value, known: dict) -> Expr:
        if value not in known:
            self._operation(value.owner.operation, known)  # a scalar of the function
        return known[value]

    def _operation(self, operation, known: dict) -> None:
        make, name = self._scalars.make, operation.name
        self._scalars.loc = operation.location
        if name == "attn.load":
            indices = tuple(self._value(value, known) for value in list(operation.operands)[1:])
            known[operation.results[0]] = self._scalars.load(self._tensors(operation.operands[0]), *indices)
            return
        if name == "attn.size":
            known[operation.results[0]] = self._scalars.size(operation.attributes["dim"].value)
            return
        kinds = [str(result.type) for result in operation.results]
        if name == "arith.constant":
            value = operation.attributes["value"].value
            known[operation.results[0]] = make("const", (), bool(value) if kinds[0] == "i1" else value, kinds[0])
            return
        operands = tuple(self._value(value, known) for value in operation.operands)
        if name == "scf.if":
            branches = [self._block(region.blocks[0], dict(known)) if len(region.blocks) else [] for region in operation.regions]
            self._scalars.loc = operation.location
            for result, yes, no in zip(operation.results, *branches, strict=True):
                known[result] = make("arith.select", (operands[0], yes, no), (), yes.kind)
            return
        attributes = tuple((key, str(operation.attributes[key])) for key in operation.attributes)
        attributes = tuple(attribute for attribute in attributes if attribute not in _DEFAULTS)
        known[operation.results[0]] = make(name, operands, attributes, kinds[0])


class Writer:
    """Writes expressions as operations of one region's block. `values`: leaf -> SSA value; `tensor_value`: tensor -> SSA value."""

    def __init__(self, values: dict, tensor_value):
        self._values, self._tensor_value = dict(values), tensor_value

    def write(self, expr: Expr):
        """At the current insertion point, all that is not there yet."""
        for node in expr.below():
            if node not in self._values:
                with node.loc or ir.Location.unknown():
                    self._values[node] = self._operation(node)
        return self._values[expr]

    def _operation(self, node: Expr):
        kind = ir.Type.parse(node.kind)
        operands = [self._values[operand] for operand in node.operands]
        if node.op == "size":
            return SizeOp(dim=ir.StringAttr.get(node.attr), out=kind).out
        if node.op == "load":
            return LoadOp(tensor=self._tensor_value(node.attr), indices=operands, out=kind).out
        attributes = {"value": _constant(node, kind)} if node.op == "const" else {k: ir.Attribute.parse(text) for k, text in node.attr}
        name = "arith.constant" if node.op == "const" else node.op
        return ir.Operation.create(name, results=[kind], operands=operands, attributes=attributes).results[0]


def _constant(node: Expr, kind):
    if node.kind == "i1":
        return ir.BoolAttr.get(node.attr)
    return ir.FloatAttr.get(kind, node.attr) if node.is_float() else ir.IntegerAttr.get(kind, node.attr)
