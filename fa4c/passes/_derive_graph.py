"""An attn function as a graph of tensors, equal ones once: what `attn-derive-backward` builds a function of.

Tensors are made freely and written out at the end, those that the results need. Before that, a map that only one map of the same space
reads becomes part of it.
"""

from dataclasses import dataclass

from ..ir.attn import BandMaskOp, CastOp, GemmOp, MapOp, MaskOp, ReduceOp, ScatterOp, SoftmaxOp, YieldOp
from ..ir.attn_dims import union
from ..ir.mlir import i64, ir
from ._derive_expr import Expr, Scalars, Writer

_WIDTHS = {"bf16": 16, "f16": 16, "f32": 32, "f64": 64}


@dataclass(frozen=True, eq=False)
class Tensor:
    """`operands` are tensors, for maps those whose elements `exprs` read and those kept only for their space or axes (`attr`)."""

    op: str
    operands: tuple
    attr: tuple
    exprs: tuple[Expr, ...]
    dims: tuple[str, ...]
    axes: tuple[str, ...]
    dtype: str
    loc: object
    number: int


class Graph:
    """Builds tensors. `sizes`: dimension -> static size or None; `loc`: the location of new ones."""

    def __init__(self, scalars: Scalars, sizes: dict):
        self.scalars, self.sizes, self.loc = scalars, sizes, None
        self._known: dict = {}

    def _make(self, op, operands, attr, exprs, dims, axes, dtype) -> Tensor:
        key = (op, tuple(operands), attr, tuple(exprs), dims, dtype)
        if key not in self._known:
            self._known[key] = Tensor(op, *key[1:4], dims, axes, dtype, self.loc, len(self._known))
        return self._known[key]

    def argument(self, name: str, dims, axes, dtype: str) -> Tensor:
        return self._make("argument", (), name, (), tuple(dims), tuple(axes), dtype)

    def gemm(self, a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
        dims = (a.dims[1 if transpose_a else 0], b.dims[0 if transpose_b else 1])
        return self._make("gemm", (a, b), (transpose_a, transpose_b), (), dims, union([a.axes, b.axes]), "f32")

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        if x.dtype == dtype:
            return x
        if x.op == "cast" and x.operands[0].dtype == dtype and _WIDTHS[x.dtype] > _WIDTHS[dtype]:
            return x.operands[0]  # there and back without a loss
        return self._make("cast", (x,), (), (), x.dims, x.axes, dtype)

    def aside(self, x: Tensor) -> Tensor:
        """x, for what another kernel will compute: such a reader does not keep a map from becoming part of its only other one."""
        return self._make("aside", (x,), (), (), x.dims, x.axes, x.dtype)

    def softmax(self, scores: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        p = self._make("softmax", (scores,), (scale, 0), (), scores.dims, scores.axes, "f32")
        return p, self._make("softmax", (scores,), (scale, 1), (), scores.dims[:1], scores.axes, "f32")

    def reduce(self, x: Tensor, kind: str = "sum", dim: int | None = None) -> Tensor:
        x, dim = self.cast(x, "f32"), len(x.dims) - 1 if dim is None else dim
        return self._make("reduce", (x,), (kind, dim), (), x.dims[:dim] + x.dims[dim + 1 :], x.axes, "f32")

    def mask(self, scores: Tensor, predicate: Expr, bounds=()) -> Tensor:
        exprs = (predicate, *bounds)
        axes = union([scores.axes, _axes(exprs)])
        return self._make("band_mask" if bounds else "mask", (scores,), (), exprs, scores.dims, axes, "f32")

    def elem(self, x: Tensor) -> Expr:
        """An element of a tensor; of one that only spreads another over its space, an element of that."""
        if x.op == "map" and x.exprs[0].op == "elem" and not x.attr:
            return self.elem(x.exprs[0].attr)
        return self.scalars.elem(x)

    def map(self, dims, expr: Expr, like=(), axes=()) -> Tensor:
        """expr over the space `dims`. `like`: tensors from which to take the space, and axes that nothing in `expr` depends on."""
        (expr,), operands, found = self._space(dims, (expr,), like, axes)
        if expr.op == "elem" and expr.attr.dims == dims and len(operands) == 1:
            return expr.attr
        return self._make("map", operands, self._beyond(operands, expr, axes), (expr,), dims, found, expr.kind)

    def _beyond(self, operands, expr: Expr, axes) -> tuple[str, ...]:
        """The axes that a map was asked to vary over although nothing that it reads does."""
        read = [node.attr.axes for node in expr.below() if node.op == "elem"]
        return tuple(sorted(_missing(axes, union([*read, _axes((expr,))]))))

    def scatter(self, like_out: Tensor, dims, exprs, like=(), axes=()) -> Tensor:
        exprs, operands, found = self._space(dims, tuple(exprs), like, axes)
        axes = union([like_out.axes, found])
        exprs = (self.scalars.convert(exprs[0], "f32"), *exprs[1:])
        return self._make("scatter", (like_out, *operands), (dims,), exprs, like_out.dims, axes, "f32")

    def _space(self, dims, exprs, like, wanted):
        """(expressions, operands, axes) of a map or scatter that goes over `dims` and varies over the axes `wanted`."""
        operands = list(dict.fromkeys(node.attr for expr in exprs for node in expr.below() if node.op == "elem"))
        if not any(tensor.dims == dims for tensor in operands):
            operands.append(next(tensor for tensor in like if tensor.dims == dims))

        def axes():
            return union([tensor.axes for tensor in operands] + [_axes(exprs)])

        for tensor in like:
            if _missing(wanted, axes()) - set(_missing(wanted, union([axes(), tensor.axes]))) and set(tensor.dims) <= set(dims):
                operands.append(tensor)
        missing = _missing(wanted, axes())
        if missing:
            exprs = (self._dependent(exprs[0], missing), *exprs[1:])
        return exprs, tuple(operands), axes()

    def _dependent(self, expr: Expr, axes) -> Expr:
        """The same value, made to depend on the batch or head index, so that it counts once for each of them in a sum over that axis."""
        s = self.scalars
        for axis in sorted(axes):
            counts = self.is_first("hq") if axis == "hkv" else s.compare("sge", s.index("b" if axis == "b" else "h"), s.const(0, "index"))
            expr = s.select(counts, expr, s.const(0.0, expr.kind))
        return expr

    def is_first(self, axis: str) -> Expr:
        """Whether an element belongs to batch entry 0 ("b"), to the first query head of all ("hkv"), or of its KV head ("hq")."""
        s = self.scalars
        index = s.index("b" if axis == "b" else "h")
        if axis == "hq":
            group = s.make("arith.divsi", (s.size("hq"), s.size("hkv")), (), "index")
            index = s.make("arith.remsi", (index, group), (), "index")
        return s.compare("eq", index, s.const(0, "index"))


def _missing(wanted, axes) -> set:
    return {axis for axis in wanted if axis not in axes and not (axis == "hkv" and "hq" in axes)}


def _axes(exprs) -> tuple[str, ...]:
    """The axes that expressions vary over by themselves: what `attn_dims.infer_dims` finds in the region."""
    found = set()
    for expr in exprs:
        for node in expr.below():
            if node.op == "index" and node.attr in ("b", "h"):
                found.add("b" if node.attr == "b" else "hq")
            if node.op == "load":
                found.update(node.attr.axes)
    return union([found])


# -- fusion --------------------------------------------------------------------------------------------------------------------------------


def fuse_maps(graph: Graph, results: list[Tensor]) -> list[Tensor]:
    """The same results, each map that one map or scatter of its space alone reads made part of it."""
    tensors = reachable(results)
    readers: dict[Tensor, list] = {}
    for tensor in tensors:
        for operand in dict.fromkeys(tensor.operands if tensor.op != "aside" else ()):
            readers.setdefault(operand, []).append(tensor)
    for result in results:
        readers.setdefault(result, []).append(None)
    final: dict[Tensor, Tensor] = {}
    inlined: dict[Tensor, Tensor] = {}  # map that becomes part of its reader -> what it is by then
    for tensor in tensors:
        graph.loc = tensor.loc
        new = _rebuilt(graph, tensor, final, inlined)
        alone = readers.get(tensor, [None])
        if tensor.op == "map" and len(alone) == 1 and alone[0] is not None and _reads_elements(alone[0], tensor):
            inlined[tensor] = new
        final[tensor] = new
    return [final[result] for result in results]


def _reads_elements(reader: Tensor, tensor: Tensor) -> bool:
    """Whether `reader` is over the space of `tensor` and can compute its elements itself."""
    if reader.op == "map":
        return reader.dims == tensor.dims
    return reader.op == "scatter" and reader.attr[0] == tensor.dims and reader.operands[0] is not tensor


def _rebuilt(graph: Graph, tensor: Tensor, final: dict, inlined: dict) -> Tensor:
    if tensor.op == "argument":
        return tensor
    operands = tuple(final[operand] for operand in tensor.operands)
    if tensor.op not in ("map", "scatter"):
        return graph._make(tensor.op, operands, tensor.attr, tensor.exprs, tensor.dims, tensor.axes, tensor.dtype)
    replacements, like = {}, []
    own = tensor.operands if tensor.op == "map" else tensor.operands[1:]
    for old in own:
        made = old.operands[0] if old.op == "aside" else old
        if made in inlined:
            replacements[graph.scalars.elem(old)] = inlined[made].exprs[0] if inlined[made].op == "map" else graph.elem(inlined[made])
            like += inlined[made].operands if inlined[made].op == "map" else [inlined[made]]
        else:
            replacements[graph.scalars.elem(old)] = graph.scalars.elem(final[old])
            like.append(final[old])
    exprs = [graph.scalars.substitute(expr, replacements) for expr in tensor.exprs]
    if tensor.op == "map":
        return graph.map(tensor.dims, exprs[0], like, tensor.attr)
    return graph.scatter(operands[0], tensor.attr[0], exprs, like, tensor.axes)


def reachable(results: list[Tensor]) -> list[Tensor]:
    """All that the results are made of, operands first; tensors that `attn.load` reads are arguments and not listed."""
    found, stack = {}, list(results)
    while stack:
        tensor = stack.pop()
        if tensor not in found:
            found[tensor] = True
            stack += tensor.operands
    return sorted(found, key=lambda tensor: tensor.number)


# -- writing it out ------------------------------------------------------------------------------------------------------------------------


class Emitter:
    """Writes tensors as operations at the current insertion point. `values`: argument -> SSA value."""

    def __init__(self, graph: Graph, values: dict):
        self._sizes, self.values = graph.sizes, dict(values)

    def emit(self, results: list[Tensor]) -> list:
        for tensor in reachable(results):
            if tensor not in self.values:
                with tensor.loc or ir.Location.unknown():
                    self._operation(tensor)
        return [self.values[result] for result in results]

    def _type(self, dims, dtype: str):
        sizes = [self._sizes[dim] if self._sizes[dim] is not None else ir.ShapedType.get_dynamic_size() for dim in dims]
        return ir.RankedTensorType.get(sizes, ir.Type.parse(dtype))

    def _operation(self, tensor: Tensor) -> None:
        operands = [self.values[operand] for operand in tensor.operands]
        self.values[tensor] = _EMIT[tensor.op](self, tensor, operands, self._type(tensor.dims, tensor.dtype))

    def _gemm(self, tensor, operands, out):
        a, b = operands
        flags = {name: ir.BoolAttr.get(True) for name, on in zip(("transpose_a", "transpose_b"), tensor.attr) if on}
        return GemmOp(a=a, b=b, out=out, **flags).out

    def _aside(self, tensor, operands, out):
        return operands[0]

    def _cast(self, tensor, operands, out):
        return CastOp(x=operands[0], out=out).out

    def _reduce(self, tensor, operands, out):
        kind, dim = tensor.attr
        last = dim == len(tensor.operands[0].dims) - 1
        attributes = {} if last else {"dim": i64(dim)}
        return ReduceOp(x=operands[0], kind=ir.StringAttr.get(kind), out=out, **attributes).out

    def _softmax(self, tensor, operands, out):
        scale, number = tensor.attr
        both = [t for t in self.values if t.op == "softmax" and t.operands == tensor.operands]
        other = next((t for t in both if t.attr == (scale, 1 - number)), None)
        if other is not None:
            return self.values[other].owner.results[number]
        dims = tensor.operands[0].dims
        attributes = {} if scale == 1.0 else {"scale": ir.FloatAttr.get(ir.F32Type.get(), scale)}
        op = SoftmaxOp(scores=operands[0], p=self._type(dims, "f32"), lse=self._type(dims[:1], "f32"), **attributes)
        return op.operation.results[number]

    def _mask(self, tensor, operands, out):
        op = MaskOp(scores=operands[0], out=out)
        self._region(op.predicate, [], 2, tensor.exprs)
        return op.out

    def _band_mask(self, tensor, operands, out):
        op = BandMaskOp(scores=operands[0], out=out)
        self._region(op.predicate, [], 2, tensor.exprs[:1])
        self._region(op.bounds, [], 1, tensor.exprs[1:])
        return op.out

    def _map(self, tensor, operands, out):
        op = MapOp(inputs=operands, out=out)
        self._region(op.body, tensor.operands, len(tensor.dims), tensor.exprs)
        return op.out

    def _scatter(self, tensor, operands, out):
        op = ScatterOp(like=operands[0], inputs=operands[1:], out=out)
        self._region(op.body, tensor.operands[1:], len(tensor.attr[0]), tensor.exprs)
        return op.out

    def _region(self, region, elements, rank: int, exprs) -> None:
        kinds = [ir.Type.parse(tensor.dtype) for tensor in elements] + [ir.IndexType.get()] * (2 + rank)
        place = getattr(ir.Location.current, "child_loc", ir.Location.current)  # not the name of the tensor
        block = ir.Block.create_at_start(region, kinds, [place] * len(kinds))
        leaves = {("elem", tensor): argument for tensor, argument in zip(elements, block.arguments)}
        leaves |= {("index", which): argument for which, argument in zip(("b", "h", 0, 1), list(block.arguments)[len(elements) :])}
        values = {node: leaves[node.op, node.attr] for expr in exprs for node in expr.below() if node.op in ("elem", "index")}
        with ir.InsertionPoint(block):
            writer = Writer(values, self.values.__getitem__)
            YieldOp(values=[writer.write(expr) for expr in exprs])


_OPERATIONS = ("gemm", "aside", "cast", "reduce", "softmax", "mask", "band_mask", "map", "scatter")
_EMIT = {name: getattr(Emitter, f"_{name}") for name in _OPERATIONS}
