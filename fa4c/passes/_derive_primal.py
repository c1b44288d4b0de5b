"""The forward function inside of its backward: which values come from memory, and how the others are computed again.

Arguments are passed again; results that cost a pass over all keys (O, LSE) are passed as they were stored. All else, S and P above all, is
recomputed: reading P would take m x n numbers from memory.
"""

import math

from ..ir.mlir import ir
from ._derive_expr import Reader
from ._derive_graph import Graph, Tensor

_TO_MLIR = {"fp16": "f16"}


class Primal:
    """Values of the forward function as tensors of the backward's graph.

    `known`: value -> (dims, axes); `arguments`: value -> tensor; `saved`: value -> (result number) of results that may be read back.
    """

    def __init__(self, graph: Graph, known: dict, arguments: dict, facts):
        self.graph, self.known, self.facts = graph, known, facts
        self.reader = Reader(graph.scalars, self.tensor)
        self.saved: dict = {}
        self.used_results: dict[int, Tensor] = {}
        self.splits: dict = {}  # map operation -> expression of its result, some parts of it maps of their own
        self._tensors = dict(arguments)

    def offer_results(self, return_op) -> None:
        """Note which values can be had from stored results: those that a GEMM, a softmax or a reduction made, and their casts."""
        for number, (value, result) in enumerate(zip(return_op.operands, self.facts.results, strict=True)):
            dims, axes = self.known[value]
            if set(dims) >= {"m", "n"} or result.axes != axes:
                continue  # scores are recomputed; a sum over an axis is not the value, a copy along one would count again in sums over it
            while not isinstance(value.owner, ir.Block):
                self.saved.setdefault(value, number)
                if value.owner.name != "attn.cast":
                    break
                value = value.owner.operands[0]

    def is_saved(self, value) -> bool:
        return value in self.saved

    def tensor(self, value) -> Tensor:
        if value not in self._tensors:
            self._tensors[value] = self._from_result(value) if self._worth_reading(value) else self._recompute(value)
        return self._tensors[value]

    def _worth_reading(self, value) -> bool:
        return value in self.saved and not self._is_elementwise(value)

    def _is_elementwise(self, value) -> bool:
        """Whether a value follows from arguments element by element."""
        if isinstance(value.owner, ir.Block):
            return True
        operation = value.owner
        return operation.name in ("attn.cast", "attn.map") and all(self._is_elementwise(operand) for operand in operation.operands)

    def _from_result(self, value) -> Tensor:
        number = self.saved[value]
        result = self.facts.results[number]
        if number not in self.used_results:
            dtype = _TO_MLIR.get(result.dtype, result.dtype)
            self.used_results[number] = self.graph.argument(result.name, result.dims, result.axes, dtype)
        return self.graph.cast(self.used_results[number], str(value.type.element_type))

    def _recompute(self, value) -> Tensor:
        operation = value.owner
        made = _RECOMPUTE[operation.name](self, operation.opview, value)
        return made

    def expression(self, op) -> tuple:
        """(elements, expression) of a map's region over the tensors of its inputs."""
        elements = [self.graph.elem(self.tensor(operand)) for operand in op.inputs]
        rank = len(self.known[op.out][0])
        (expr,) = self.reader.region(op.body, elements, rank)
        return elements, expr

    def at(self, operation, name: str = "") -> None:
        """What is made from here on comes from `operation`, and tensors are called `name` where its own name does not say what they are."""
        base = unnamed(operation.location)
        self.graph.scalars.loc = base
        self.graph.loc = ir.Location.name(name, base) if name else operation.location

    def name_of(self, value) -> str:
        if isinstance(value.owner, ir.Block):
            return self.facts.args[value.arg_number].name
        return getattr(value.owner.location, "name_str", "") if value == value.owner.results[0] else ""

    # -- one rule an operation

    def _gemm(self, op, value):
        a, b = self.tensor(op.a), self.tensor(op.b)
        self.at(op)
        return self.graph.gemm(a, b, op.transpose_a.value, op.transpose_b.value)

    def _map(self, op, value):
        expr = self.splits[op.operation] if op.operation in self.splits else self.expression(op)[1]
        self.at(op)
        dims, axes = self.known[op.out]
        return self.graph.map(dims, expr, [self.tensor(operand) for operand in op.inputs], axes)

    def predicate(self, op):
        return self.reader.region(op.predicate, [])[0]

    def _mask(self, op, value):
        scores, predicate = self.tensor(op.scores), self.predicate(op)
        bounds = self.reader.region(op.bounds, [], 1) if op.operation.name == "attn.band_mask" else ()
        self.at(op)
        return self.graph.mask(scores, predicate, bounds)

    def _softmax(self, op, value):
        """P again from the scores and LSE, where LSE was stored; else both by a softmax."""
        scores, scale = self.tensor(op.scores), op.scale.value
        if value == op.lse or not self.is_saved(op.lse):
            self.at(op)
            return self.graph.softmax(scores, scale)[0 if value == op.p else 1]
        lse = self.finite_lse(op)
        self.at(op)
        s = self.graph.scalars
        scaled = s.mul(self.graph.elem(scores), s.const(scale))
        return self.graph.map(scores.dims, s.unary("math.exp", s.sub(scaled, self.graph.elem(lse))), [scores], self.known[op.p][1])

    def finite_lse(self, op) -> Tensor:
        """LSE with +inf in place of -inf: P of a row that sees nothing is exp(-inf - inf) = 0, not exp(-inf + inf)."""
        lse = self.tensor(op.lse)
        self.at(op, "lse")
        s = self.graph.scalars
        x = self.graph.elem(lse)
        safe = s.select(s.compare("oeq", x, s.const(-math.inf)), s.const(math.inf), x)
        return self.graph.map(lse.dims, safe, [lse])

    def _cast(self, op, value):
        x = self.tensor(op.x)
        self.at(op)
        return self.graph.cast(x, str(op.out.type.element_type))

    def _reduce(self, op, value):
        x = self.tensor(op.x)
        self.at(op)
        return self.graph.reduce(x, op.kind.value, None if op.dim is None else op.dim.value)


def unnamed(location):
    """The place of a location, without the name of a value."""
    return getattr(location, "child_loc", location)


_RECOMPUTE = {
    "attn.gemm": Primal._gemm,
    "attn.map": Primal._map,
    "attn.mask": Primal._mask,
    "attn.band_mask": Primal._mask,
    "attn.softmax": Primal._softmax,
    "attn.cast": Primal._cast,
    "attn.reduce": Primal._reduce,
}
