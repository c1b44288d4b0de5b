"""Reverse mode over the operations of an attn function: gradients of results become gradients of arguments.

A gradient may vary over more axes than its value: what is computed from it is linear in it, so the sum over the axes that an argument lacks
can wait until the result, where `attn.axes` says it. It must not vary over fewer than the operation did, or it would count too seldom.
Gradients are f32 (f64 of f64); a GEMM takes them in the dtype of its operands.
"""

from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import ir
from ._derive_expr import Expr, gradient_kind, is_zero
from ._derive_graph import Graph, Tensor
from ._derive_primal import Primal
from ._derive_scalar import is_linear_in, leaf_gradients

_MASKS = ("attn.mask", "attn.band_mask")
# Where the special-function unit or a division is at work, a value is kept rather than computed again.
_EXPENSIVE = frozenset(f"math.{name}" for name in "exp exp2 log log2 tanh erf sqrt rsqrt powf".split()) | {"arith.divf"}


class Reverse:
    """Goes backward over one function. `active`: the values that the chosen arguments influence; `refine`: up to how many keys a delta
    from stored outputs is corrected."""

    def __init__(self, graph: Graph, primal: Primal, operations: list, active: set, bottom_right: bool, refine: int = 0):
        self.graph, self.primal, self.s = graph, primal, graph.scalars
        self._operations, self.active, self._bottom_right, self._refine = operations, active, bottom_right, refine
        self._terms: dict = {}  # value -> gradients that reach it
        self._sums: dict = {}
        self._kept: dict = {}  # map operation -> its costly expressions, as elements of maps of their own
        self._returned: set = set()  # results that have a gradient

    def seed(self, number: int, value, gradient: Tensor) -> None:
        """The gradient of result `number` comes in."""
        self._returned.add(number)
        self.add(value, self.graph.cast(gradient, gradient_kind(gradient.dtype)))

    def add(self, value, gradient: Tensor) -> None:
        if value in self.active:
            self._terms.setdefault(value, []).append(gradient)

    def gradient(self, value) -> Tensor | None:
        """The sum of what reached a value; None where nothing did."""
        terms = self._terms.get(value)
        if not terms:
            return None
        if value not in self._sums:
            total = None
            for term in align(self.graph, terms, self._axes(value)):
                expr = self.s.wide(self.graph.elem(term))
                total = expr if total is None else self.s.add(total, expr)
            self._sums[value] = terms[0] if len(terms) == 1 else self.graph.map(self._dims(value), total, terms)
        return self._sums[value]

    def run(self) -> None:
        for operation in self._operations:
            if operation.name == "attn.map" and operation.results[0] in self.active:
                self._keep_expensive(operation.opview)
        for operation in reversed(self._operations):
            if operation.name in _SCALARS or not any(result in self.active for result in operation.results):
                continue
            if not any(self._terms.get(result) for result in operation.results):
                continue
            rule = _RULES.get(operation.name)
            if rule is None:
                raise op_diagnostic(
                    operation,
                    "has no derivative",
                    why=f"there are rules for {', '.join(_RULES)}",
                    fix="leave the arguments that it reads out: attn-derive-backward{wrt=...}",
                )
            self.primal.at(operation)
            rule(self, operation.opview)

    def _toward(self, op, value) -> None:
        """What is made from here on is the gradient of `value`, an operand of `op`."""
        name = self.primal.name_of(value)
        self.primal.at(op, f"d{name}" if name else "")

    def _dims(self, value) -> tuple[str, ...]:
        return self.primal.known[value][0]

    def _axes(self, value) -> tuple[str, ...]:
        return self.primal.known[value][1]

    # -- GEMM, cast, reduction

    def _gemm(self, op) -> None:
        gradient = self.gradient(op.out)
        ta, tb = op.transpose_a.value, op.transpose_b.value
        if op.a in self.active:
            b = self.primal.tensor(op.b)
            g = self._in_dtype(op, gradient, b.dtype)
            self._toward(op, op.a)
            self.add(op.a, self.graph.gemm(b, g, tb, True) if ta else self.graph.gemm(g, b, False, not tb))
        if op.b in self.active:
            a = self.primal.tensor(op.a)
            g = self._in_dtype(op, gradient, a.dtype)
            self._toward(op, op.b)
            self.add(op.b, self.graph.gemm(g, a, True, ta) if tb else self.graph.gemm(a, g, not ta, False))

    def _in_dtype(self, op, gradient: Tensor, dtype: str) -> Tensor:
        self._toward(op, op.out)
        return self.graph.cast(gradient, dtype)

    def _cast(self, op) -> None:
        self._toward(op, op.x)
        self.add(op.x, self.graph.cast(self.gradient(op.out), gradient_kind(str(op.x.type.element_type))))

    def _reduce(self, op) -> None:
        gradient, x = self.gradient(op.out), self.primal.tensor(op.x)
        self.primal.at(op)
        g = self.s.wide(self.graph.elem(gradient))
        if op.kind.value == "max":  # shared by all that are as large
            dim = None if op.dim is None else op.dim.value
            top = self.graph.reduce(x, "max", dim)  # not a stored one, which rounding may keep from equalling any x that is computed again
            is_top = self.s.compare("oeq", self.graph.elem(x), self.graph.elem(top))
            ones = self.graph.map(x.dims, self.s.select(is_top, self.s.const(1.0), self.s.const(0.0)), [x])
            count = self.graph.reduce(ones, "sum", dim)
            g = self.s.select(is_top, self.s.div(g, self.graph.elem(count)), self.s.const(0.0))
        self._toward(op, op.x)
        self.add(op.x, self.graph.map(x.dims, g, [x]))

    # -- masks and softmax

    def _mask(self, op) -> None:
        gradient = self.gradient(op.out)
        if self._feeds_softmax_only(op.out):
            self.add(op.scores, gradient)  # P is 0 there, and so is its gradient
            return
        predicate = self.primal.predicate(op)
        self._toward(op, op.scores)
        kept = self.s.select(predicate, self.s.wide(self.graph.elem(gradient)), self.s.const(0.0))
        self.add(op.scores, self.graph.map(gradient.dims, kept, [gradient], self._axes(op.out)))

    def _feeds_softmax_only(self, value) -> bool:
        users = [use.owner for use in value.uses]
        return all(user.name == "attn.softmax" or (user.name in _MASKS and self._feeds_softmax_only(user.results[0])) for user in users)

    def _softmax(self, op) -> None:
        """dS = scale * P * (dP - delta + dLSE), delta_i = sum_j P_ij dP_ij."""
        dp, dlse = self.gradient(op.p), self.gradient(op.lse)
        p = self.primal.tensor(op.p)
        self.primal.at(op)
        self.primal.at(op, "delta")
        products = [] if dp is None else self._output_products(op.p) or []
        self.primal.at(op, "delta")
        deltas = [self.graph.reduce(product) for product in products]
        exact = not deltas or self._is_summed_over_keys(op)  # not from what is stored alone
        if dp is not None and exact:
            deltas.append(self.graph.reduce(self._deviation(p, dp, deltas)))
        gradients = [t for t in (dp, dlse) if t is not None]
        aligned = align(self.graph, gradients + deltas, p.axes)
        rows = aligned[1:] if dp is not None else aligned
        row = self.s.const(0.0)
        for number, tensor in enumerate(rows):
            is_dlse = dlse is not None and number == 0
            part = self.s.wide(self.graph.elem(tensor))
            row = self.s.sub(row, part) if is_dlse else self.s.add(row, part)
        row = self.graph.map(p.dims[:1], row, rows)
        if not exact and self._refine and aligned == gradients + deltas and p.dims == ("m", "n"):
            row = self._refined(row, p, dp, dlse)
        row = self.graph.elem(row)
        inner = self.s.neg(row) if dp is None else self.s.sub(self.s.wide(self.graph.elem(aligned[0])), row)
        self._toward(op, op.scores)
        ds = self.s.mul(self.s.mul(self.graph.elem(p), inner), self.s.const(op.scale.value))
        self.add(op.scores, self.graph.map(p.dims, ds, [p], self._axes(op.p)))

    def _is_summed_over_keys(self, op) -> bool:
        """Whether the gradient of a table is a sum of dS times something over whole rows.

        An error of delta then counts with P's mean of that something (of distances, for a slope: hundreds), in every row. Stored outputs
        are rounded, so delta is not taken from them.
        """
        tables, seen, stack = self._tables(), set(), [op.scores]
        while stack:
            value = stack.pop()
            if isinstance(value.owner, ir.Block) or value in seen:
                continue
            seen.add(value)
            stack += value.owner.operands
            if value.owner.name == "attn.map":
                expr = self.primal.expression(value.owner.opview)[1]
                if any(node.op == "load" and node.attr in tables and "n" not in node.attr.dims for node in expr.below()):
                    return True
        return False

    def _deviation(self, p: Tensor, dp: Tensor, deltas: list[Tensor]) -> Tensor:
        """P * (dP - the sum of `deltas`): as P sums to 1 over a row, its row sum is what a delta from stored outputs is off by, and delta
        itself where there is none. What P in f32 does not sum up to 1 by then counts times that difference only, not times delta."""
        aligned = align(self.graph, [dp, *deltas], p.axes)
        difference = self.s.wide(self.graph.elem(aligned[0]))
        for tensor in aligned[1:]:
            difference = self.s.sub(difference, self.s.wide(self.graph.elem(tensor)))
        return self.graph.map(p.dims, self.s.mul(difference, self.s.wide(self.graph.elem(p))), [p])

    def _refined(self, row: Tensor, p: Tensor, dp: Tensor, dlse: Tensor | None) -> Tensor:
        """delta - dLSE, delta corrected where a row has few keys: there its rounding is as large as P * (dP - delta)."""
        s, row_element = self.s, self.s.wide(self.graph.elem(row))
        p_element, dp_element, *dlse_element = [s.wide(self.graph.elem(self.graph.aside(t))) for t in (p, dp, dlse) if t is not None]
        difference = s.sub(dp_element, row_element)
        for element in dlse_element:
            difference = s.sub(difference, element)
        off = self.graph.reduce(self.graph.map(p.dims, s.mul(difference, p_element), [p]))
        few = s.compare("sle", s.size(p.dims[1]), s.const(self._refine, "index"))
        corrected = s.add(row_element, s.wide(self.graph.elem(off)))
        return self.graph.map(row.dims, s.select(few, corrected, row_element), [row])

    def _product(self, x: Tensor, gradient: Tensor) -> Tensor:
        product = self.s.mul(self.s.wide(self._element(gradient)), self.s.wide(self._element(x)))
        return self.graph.map(x.dims, product, [x])

    def _output_products(self, value) -> list[Tensor] | None:
        """Tensors whose row sums add up to delta, that of value * d(value); None where the outputs made of it are not all at hand.

        Stored outputs spare a pass over the keys: if O = P @ V then sum_j P_ij dP_ij = sum_j P_ij sum_c dO_ic V_jc = sum_c dO_ic O_ic, and
        a factor between P and the GEMM moves along.
        """
        products = []
        for use in value.uses:
            operation = use.owner
            if operation.name == "func.return" and use.operand_number in self._returned:
                return None
            if not any(self._terms.get(result) for result in operation.results):
                continue
            if operation.name == "attn.cast" or (operation.name == "attn.map" and self._scales(operation.opview, use.operand_number)):
                inner = self._output_products(operation.results[0])
            elif operation.name == "attn.gemm" and use.operand_number == 0 and not operation.opview.transpose_a.value:
                inner = self._output_product(operation.results[0])
            else:
                inner = None
            if inner is None:
                return None
            products += inner
        return products or None

    def _output_product(self, out) -> list[Tensor] | None:
        return [self._product(self.primal.tensor(out), self.gradient(out))] if self.primal.is_saved(out) else None

    def _element(self, x: Tensor) -> Expr:
        """An element of a tensor; of a widened one, the widened element: a map reads any dtype."""
        if x.op == "cast" and x.dtype == "f32" and x.operands[0].dtype in ("bf16", "f16"):
            return self.s.wide(self.graph.elem(x.operands[0]))
        return self.graph.elem(x)

    def _scales(self, op, number: int) -> bool:
        """Whether a map multiplies its operand `number` by something else."""
        elements, expr = self.primal.expression(op)
        return is_linear_in(expr, elements[number])

    # -- maps

    def _map(self, op) -> None:
        elements, expr = self.primal.expression(op)
        self.primal.at(op)
        dims, axes = self.primal.known[op.out]
        gradient = self.s.wide(self.graph.elem(self.gradient(op.out)))
        inputs = dict(zip(elements, op.inputs))
        tables = self._tables()
        found = leaf_gradients(self.s, expr, gradient, self._wanted(inputs, tables))
        found = {leaf: self.s.substitute(part, self._kept.get(op.operation, {})) for leaf, part in found.items()}
        like = [self.primal.tensor(value) for value in op.inputs]
        self.primal.at(op)
        for leaf, part in found.items():
            self._toward(op, tables[leaf.attr] if leaf.op == "load" else inputs[leaf])
            part = self._zero_where_masked(op, inputs, part, gradient)
            if leaf.op == "load":
                self.add(tables[leaf.attr], self._table_gradient(leaf, dims, part, like, axes))
            else:
                self.add(inputs[leaf], self._input_gradient(self._dims(inputs[leaf]), dims, part, like, axes))

    def _tables(self) -> dict:
        """Arguments that have a gradient, by tensor: what `attn.load` reads of them passes it on."""
        return {self.primal.tensor(value): value for value in self.active if isinstance(value.owner, ir.Block)}

    def _wanted(self, inputs: dict, tables: dict):
        return lambda leaf: leaf.attr in tables if leaf.op == "load" else leaf in inputs and inputs[leaf] in self.active

    def _input_gradient(self, own, dims, part: Expr, like, axes) -> Tensor:
        """Of a map's input with dimensions `own`, which may be spread over the space `dims`."""
        whole = self.graph.map(dims, part, like, axes)
        for dim in reversed(range(len(dims))):
            if own != whole.dims and (not own or dims[dim] != own[0] or dims[0] == dims[-1] and dim):
                whole = self.graph.reduce(whole, "sum", dim)
        return whole

    def _table_gradient(self, leaf: Expr, dims, part: Expr, like, axes) -> Tensor:
        table, indices = leaf.attr, leaf.operands
        positions = [index.attr if self._is_position(index, dims) else None for index in indices]
        if all(p is not None and dims[p] == d for p, d in zip(positions, table.dims)) and positions == sorted(set(positions)):
            whole = self.graph.map(dims, part, like, axes)
            for dim in reversed(range(len(dims))):
                if dim not in positions:
                    whole = self.graph.reduce(whole, "sum", dim)
            return whole
        return self.graph.scatter(table, dims, (part, *indices), like, axes)

    def _is_position(self, index: Expr, dims) -> bool:
        """Whether an index is the plain position in a dimension of the space: queries may be counted in key coordinates."""
        return index.op == "index" and index.attr in range(len(dims)) and not (dims[index.attr] == "m" and self._bottom_right)

    def _keep_expensive(self, op) -> None:
        """Make maps of the costly parts of a map that its derivative needs again, where they stand in for what they are made of."""
        elements, expr = self.primal.expression(op)
        dims, own = self._dims(op.out), set(expr.below())
        one = self.s.elem(self.graph.argument("a gradient", dims, (), gradient_kind(str(op.out.type.element_type))))
        wanted = self._wanted(dict(zip(elements, op.inputs)), self._tables())
        found = leaf_gradients(self.s, expr, one, wanted).values()
        parts = [part for gradient in found for part in _outermost(gradient, lambda node: node in own and _is_costly(node))]
        like = [self.primal.tensor(value) for value in op.inputs]
        self.primal.at(op)
        replaced: dict = {}
        for part in sorted(dict.fromkeys(parts), key=lambda node: node.number):
            replaced[part] = self.graph.elem(self.graph.map(dims, self.s.substitute(part, replaced), like))
        after = [self.s.substitute(gradient, replaced) for gradient in found]
        if replaced and _count_matrices(after, dims) <= _count_matrices(found, dims):
            self._kept[op.operation] = replaced
            self.primal.splits[op.operation] = self.s.substitute(expr, replaced)

    def _zero_where_masked(self, op, inputs: dict, part: Expr, gradient: Expr) -> Expr:
        """A masked score is -inf with gradient 0; what is computed from both stays 0."""
        nodes = set(part.below())
        if is_zero(part) or not any(leaf in nodes and self._may_be_masked(value) for leaf, value in inputs.items()):
            return part
        return self.s.select(self.s.compare("oeq", gradient, self.s.const(0.0, gradient.kind)), self.s.const(0.0, part.kind), part)

    def _may_be_masked(self, value) -> bool:
        if isinstance(value.owner, ir.Block):
            return False
        name, operands = value.owner.name, value.owner.operands
        return name in _MASKS or (name in ("attn.map", "attn.cast") and any(map(self._may_be_masked, operands)))


def align(graph: Graph, tensors: list[Tensor], axes) -> list[Tensor]:
    """Gradients of one value with the axes `axes`, made such that their sum is right however often an axis beyond those is summed over.

    A term that lacks an axis which another has would count once for each entry along it; so it is kept for the first entry only.
    """
    s, aligned = graph.scalars, list(tensors)
    levels = [max(_head_level(axes), _head_level(t.axes)) for t in tensors]
    uneven = len(set(levels)) > 1
    for number, (tensor, level) in enumerate(zip(tensors, levels)):
        conditions = []
        if "b" not in axes and "b" not in tensor.axes and any("b" in t.axes for t in tensors):
            conditions.append(graph.is_first("b"))
        if uneven and level < 2:
            conditions.append(graph.is_first("hkv" if level == 0 else "hq"))
        expr = s.wide(graph.elem(tensor))
        for condition in conditions:
            expr = s.select(condition, expr, s.const(0.0, expr.kind))
        if conditions:
            aligned[number] = graph.map(tensor.dims, expr, [tensor])
    return aligned


def _head_level(axes) -> int:
    return 2 if "hq" in axes else 1 if "hkv" in axes else 0


def _is_costly(node: Expr) -> bool:
    return node.op in _EXPENSIVE and node.kind == "f32"


def _outermost(expr: Expr, chosen) -> list[Expr]:
    """The chosen expressions that are met first on the way down."""
    found, seen, stack = [], set(), [expr]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if chosen(node):
            found.append(node)
        else:
            stack += node.operands
    return sorted(found, key=lambda node: node.number)


def _count_matrices(exprs, dims) -> int:
    return len({node.attr for expr in exprs for node in expr.below() if node.op == "elem" and node.attr.dims == dims})


_SCALARS = ("func.return", "attn.size")
_RULES = {
    "attn.gemm": Reverse._gemm,
    "attn.map": Reverse._map,
    "attn.mask": Reverse._mask,
    "attn.band_mask": Reverse._mask,
    "attn.softmax": Reverse._softmax,
    "attn.cast": Reverse._cast,
    "attn.reduce": Reverse._reduce,
}
