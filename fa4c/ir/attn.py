"""The `attn` dialect: attention as mathematics, before blocks, memory and threads exist.

All tensors are those of one (batch, head). Spaces are named by their dimensions: `m` queries, `n` keys, `d`, `dv` head dims. What an
operation does along batch and heads follows from `attn.axes` on the function's arguments (`attn_signature.py`).

Regions are pure scalar code, one element at a time, over `arith` and `math` (`REGION_OPS`), `scf.if`, `attn.load` and `attn.size`. Their
index arguments are: %b batch entry, %h query head, %i position in the first dimension, %j in the second. Where a function has
`attn.align = "bottom_right"`, a position along `m` is counted in key coordinates: row + (n - m).
"""

import difflib
from collections.abc import Sequence
from typing import Any

from .base import make_operation_base, optional
from .diagnostics import op_error
from .mlir import ext, ir

REDUCE_KINDS = ("sum", "max")
PROBLEM_SIZES = ("m", "n", "hq", "hkv")

# Scalar operations that a region may hold; `scalar.py` evaluates each, `semantics.py` knows a name for each.
REGION_OPS = frozenset(
    [
        f"arith.{name}"
        for name in (
            "constant addf subf mulf divf remf negf maximumf minimumf addi subi muli divsi floordivsi remsi maxsi minsi andi ori xori "
            "cmpi cmpf select "
            "extf truncf sitofp uitofp fptosi index_cast index_castui trunci extsi extui"
        ).split()
    ]
    + [f"math.{name}" for name in "exp exp2 log log2 tanh erf sqrt rsqrt absf absi powf floor".split()]
    + ["scf.if", "scf.yield", "attn.load", "attn.size", "attn.yield"]
)


class Attn(ext.Dialect, name="attn"):
    """Attention as mathematics, before tiles and threads exist."""


Operation = make_operation_base(Attn)


class GemmOp(Operation, name="gemm", traits=[ext.Pure]):
    """out = op(a) @ op(b), op = transpose where asked; products in the operands' dtype, summed in f32.

    S = Q @ K^T is `transpose_b`; dV = P^T @ dO is `transpose_a`. A GEMM of tensors over different heads is taken head by head.
    """

    a: ext.Operand[Any]
    b: ext.Operand[Any]
    transpose_a: Any = optional(ir.BoolAttr, "false")
    transpose_b: Any = optional(ir.BoolAttr, "false")
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        return (
            _check_tensor(self, "a", self.a.type, ranks=(2,))
            and _check_tensor(self, "b", self.b.type, ranks=(2,))
            and _check_tensor(self, "out", self.out.type, ranks=(2,), dtypes=("f32",))
            and self._check_dtypes()
            and self._check_shapes()
        )

    def _check_dtypes(self) -> bool:
        a, b = self.a.type.element_type, self.b.type.element_type
        return a == b or op_error(
            self,
            f"needs one dtype for both operands, but a has {a} and b has {b}",
            why="tensor cores multiply two operands of one dtype",
            fix=f'cast one of them: "attn.cast"(%x) to {a}',
        )

    def _check_shapes(self) -> bool:
        rows, depth_a = _maybe_swapped(_shape(self.a.type), self.transpose_a.value)
        depth_b, columns = _maybe_swapped(_shape(self.b.type), self.transpose_b.value)
        if depth_a != depth_b:
            return op_error(
                self,
                f"needs one contracted size, but a has {_size(depth_a)} and b has {_size(depth_b)}",
                why=f"op(a) is {_size(rows)}x{_size(depth_a)} and op(b) is {_size(depth_b)}x{_size(columns)}",
                fix="set transpose_a or transpose_b, or give both operands the same size there",
            )
        return _check_shape(self, "out", self.out.type, (rows, columns), "its rows are those of op(a), its columns those of op(b)")


class MapOp(Operation, name="map", traits=[ext.Pure]):
    """out[i, j] = body(x0[i, j], x1[i, j], ..., b, h, i, j): elementwise work, biases, soft caps.

    A one-dimensional input is a row or column vector, spread over the dimension that it lacks; a scalar is spread over all. If all inputs
    are one-dimensional, so is the result, and the region has no %j; if all are scalars, it has no %i either.
    """

    inputs: Sequence[ext.Operand[Any]]
    out: ext.Result[Any]
    body: ext.Region

    def verify_op(self) -> bool:
        space = _map_space(self, self.inputs)
        return (
            space is not None
            and _check_tensor(self, "out", self.out.type)
            and _check_shape(self, "out", self.out.type, space, "the result has the shape of the inputs")
            and _check_region(self, self.body, _region_arguments(self.inputs, space), [self.out.type.element_type])
        )


class ScatterOp(Operation, name="scatter", traits=[ext.Pure]):
    """out[t0, ...] = the sum of the values for which body(x0[i, j], ..., b, h, i, j) yields (value, t0, ...); `attn.load` backwards.

    Inputs and region arguments are those of `attn.map`. The result has the shape of `like`, whose elements are not read; values whose
    indices lie outside of it are dropped.
    """

    like: ext.Operand[Any]
    inputs: Sequence[ext.Operand[Any]]
    out: ext.Result[Any]
    body: ext.Region

    def verify_op(self) -> bool:
        space = _map_space(self, self.inputs)
        every = ("f32", "f64", "bf16", "f16", "i32", "i64")
        if space is None or not (
            _check_tensor(self, "like", self.like.type, dtypes=every) and _check_tensor(self, "out", self.out.type, dtypes=("f32",))
        ):
            return False
        yielded = [self.out.type.element_type] + [_index()] * self.like.type.rank
        return _check_shape(self, "out", self.out.type, _shape(self.like.type), "the result has the shape of 'like'") and _check_region(
            self, self.body, _region_arguments(self.inputs, space), yielded
        )


class MaskOp(Operation, name="mask", traits=[ext.Pure]):
    """out[i, j] = scores[i, j] where predicate(b, h, i, j), else -inf."""

    scores: ext.Operand[Any]
    out: ext.Result[Any]
    predicate: ext.Region

    def verify_op(self) -> bool:
        return _verify_mask(self)


class BandMaskOp(Operation, name="band_mask", traits=[ext.Pure]):
    """A mask whose shape is known: `attn.mask` plus where row i can and does see keys.

    bounds(b, h, i) yields (lo, hi, full_lo, full_hi), index: every key that row i sees lies in [lo, hi), and all keys of [full_lo, full_hi)
    are seen. All four are non-decreasing in i and not clipped to [0, n).
    """

    scores: ext.Operand[Any]
    out: ext.Result[Any]
    predicate: ext.Region
    bounds: ext.Region

    def verify_op(self) -> bool:
        return _verify_mask(self) and _check_region(self, self.bounds, [(name, _index()) for name in "bhi"], [_index()] * 4)


class SoftmaxOp(Operation, name="softmax", traits=[ext.Pure]):
    """lse[i] = log(sum_j exp(scale * scores[i, j])) and p[i, j] = exp(scale * scores[i, j] - lse[i]), natural logarithm.

    A row that sees nothing (all -inf) has p = 0 and lse = -inf. `scale` is positive.
    """

    scores: ext.Operand[Any]
    scale: Any = optional(ir.FloatAttr, "1.0 : f32")
    p: ext.Result[Any]
    lse: ext.Result[Any]

    def verify_op(self) -> bool:
        if not (
            _check_tensor(self, "scores", self.scores.type, ranks=(2,), dtypes=("f32",))
            and _check_tensor(self, "p", self.p.type, ranks=(2,), dtypes=("f32",))
            and _check_tensor(self, "lse", self.lse.type, ranks=(1,), dtypes=("f32",))
        ):
            return False
        if not 0 < self.scale.value < float("inf"):
            return op_error(self, f"has scale = {self.scale}", why="it must be positive and finite", fix="use an attn.map")
        shape = _shape(self.scores.type)
        return _check_shape(self, "p", self.p.type, shape, "there is one probability a score") and _check_shape(
            self, "lse", self.lse.type, shape[:1], "there is one log-sum-exp a row"
        )


class CastOp(Operation, name="cast", traits=[ext.Pure]):
    """out = x rounded to another floating dtype, to nearest even."""

    x: ext.Operand[Any]
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        return (
            _check_tensor(self, "x", self.x.type)
            and _check_tensor(self, "out", self.out.type)
            and _check_shape(self, "out", self.out.type, _shape(self.x.type), "a cast changes the dtype only")
        )


class ReduceOp(Operation, name="reduce", traits=[ext.Pure]):
    """out = sum (or max) of x over its last dimension, or over dimension `dim`; the sum of nothing is 0, the maximum of nothing -inf."""

    x: ext.Operand[Any]
    kind: ir.StringAttr
    dim: Any = optional(ir.IntegerAttr)
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        if not (
            _check_choice(self, "kind", REDUCE_KINDS)
            and _check_tensor(self, "x", self.x.type, ranks=(1, 2), dtypes=("f32",))
            and _check_tensor(self, "out", self.out.type, ranks=(0, 1), dtypes=("f32",))
        ):
            return False
        rank, dim = self.x.type.rank, reduced_dim(self)
        if not 0 <= dim < rank:
            return op_error(
                self, f"has dim = {dim}, but x has {rank} dimensions", why="they are counted from 0", fix=f"write dim = {rank - 1}"
            )
        shape = _shape(self.x.type)
        return _check_shape(self, "out", self.out.type, shape[:dim] + shape[dim + 1 :], f"dimension {dim} is reduced")


class LoadOp(Operation, name="load", traits=[ext.Pure]):
    """out = tensor[indices], one index for each of the tensor's own dimensions; out of range reads 0.

    `tensor` is an argument of the function, taken at this (b, h) along its axes: a per-head scalar `tensor<f32>` has no index.
    """

    tensor: ext.Operand[Any]
    indices: Sequence[ext.Operand[Any]]
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        if not _check_tensor(self, "tensor", self.tensor.type, dtypes=("f32", "f64", "bf16", "f16", "i32", "i64")):
            return False
        rank, given = self.tensor.type.rank, len(self.indices)
        if given != rank:
            return op_error(
                self,
                f"reads {self.tensor.type} with {given} indices",
                why=f"it has {rank} dimensions, one index each",
                fix="axes named in attn.axes (batch, head) take no index",
            )
        for number, index in enumerate(self.indices):
            if index.type != _index():
                return op_error(self, f"has index {number} of type {index.type}, but indices are of type index", fix="use arith.index_cast")
        if not isinstance(self.tensor.owner, ir.Block):
            return op_error(
                self,
                "reads a computed tensor",
                why="only arguments of the function are in memory",
                fix='pass the tensor to the "attn.map" as an operand',
            )
        element = self.tensor.type.element_type
        return self.out.type == element or op_error(
            self, f"gives {self.out.type}, but the tensor's elements are {element}", fix=f"give the result the type {element}"
        )


class SizeOp(Operation, name="size", traits=[ext.Pure]):
    """The number of queries (`dim = "m"`) or keys (`dim = "n"`) of this batch entry, or of heads (`dim = "hq"`, `"hkv"`)."""

    dim: ir.StringAttr
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        return _check_choice(self, "dim", PROBLEM_SIZES) and (
            self.out.type == _index() or op_error(self, f"gives {self.out.type}, but a size is of type index")
        )


class YieldOp(Operation, name="yield", traits=[ext.Pure, ir.IsTerminatorTrait]):
    """Ends a region of this dialect with its values."""

    values: Sequence[ext.Operand[Any]]

    def verify_op(self) -> bool:
        parent = self.operation.parent
        return (parent is not None and parent.name in ("attn.map", "attn.scatter", "attn.mask", "attn.band_mask")) or op_error(
            self, "stands outside any region of attn.map, attn.scatter, attn.mask or attn.band_mask"
        )


# -- what the verifiers share --------------------------------------------------------------------------------------------------------------


def reduced_dim(op) -> int:
    """The dimension that an `attn.reduce` sums over."""
    return op.x.type.rank - 1 if op.dim is None else op.dim.value


def _map_space(op, inputs) -> tuple[int | None, ...] | None:
    """The sizes that a map goes over, those of its inputs of highest rank; None after a complaint."""
    kinds = [value.type for value in inputs]
    if not kinds:
        op_error(op, "needs at least 1 operand, but has 0", why="the operands give the space that it maps over")
        return None
    for number, kind in enumerate(kinds):
        if not _check_tensor(op, f"input {number}", kind):
            return None
    rank = max(kind.rank for kind in kinds)
    space = next(_shape(kind) for kind in kinds if kind.rank == rank)
    for number, kind in enumerate(kinds):
        fits = _shape(kind) == space if kind.rank == rank else set(_shape(kind)) <= set(space)
        if not fits:
            op_error(
                op,
                f"maps over {_shape_text(space)}, but input {number} is {kind}",
                why="all two-dimensional inputs have one shape; one-dimensional ones have one of its sizes",
            )
            return None
    return space


def _region_arguments(inputs, space) -> list:
    elements = [(f"element of input {number}", value.type.element_type) for number, value in enumerate(inputs)]
    return elements + [(name, _index()) for name in "bhij"[: 2 + len(space)]]


def _verify_mask(op) -> bool:
    if not (
        _check_tensor(op, "scores", op.scores.type, ranks=(2,), dtypes=("f32",))
        and _check_tensor(op, "out", op.out.type, ranks=(2,), dtypes=("f32",))
    ):
        return False
    return _check_shape(op, "out", op.out.type, _shape(op.scores.type), "a mask changes values, not shapes") and _check_region(
        op, op.predicate, [(name, _index()) for name in "bhij"], [ir.IntegerType.get_signless(1)]
    )


def _index():
    return ir.IndexType.get()


def _shape(kind) -> tuple[int | None, ...]:
    """Sizes of a ranked tensor, None where dynamic."""
    return tuple(None if kind.is_dynamic_dim(k) else kind.get_dim_size(k) for k in range(kind.rank))


def _size(size: int | None) -> str:
    return "?" if size is None else str(size)


def _shape_text(shape) -> str:
    return "x".join(_size(s) for s in shape) or "a scalar"


def _maybe_swapped(pair, swap: bool):
    return (pair[1], pair[0]) if swap else pair


def _check_tensor(
    op, what: str, kind, *, ranks: tuple[int, ...] = (0, 1, 2), dtypes: tuple[str, ...] = ("f32", "f64", "bf16", "f16")
) -> bool:
    if not isinstance(kind, ir.RankedTensorType):
        return op_error(op, f"needs a ranked tensor as {what}, but it is {kind}", fix=f"for example tensor<?x128x{dtypes[0]}>")
    if kind.encoding is not None:
        return op_error(
            op, f"has {what} with an encoding, {kind}", why="where a tensor lives is said at the tile level", fix="drop the encoding"
        )
    if kind.rank not in ranks:
        return op_error(
            op,
            f"has {what} of rank {kind.rank}, {kind}",
            why=f"it takes rank {' or '.join(map(str, ranks))}: the dimensions of one (batch, head)",
            fix="batch and heads are named in attn.axes, not in the type",
        )
    if str(kind.element_type) not in dtypes:
        return op_error(op, f"has {what} of dtype {kind.element_type}", why=f"it takes {', '.join(dtypes)}", fix='insert "attn.cast"')
    return True


def _check_shape(op, what: str, kind, shape, why: str) -> bool:
    return _shape(kind) == tuple(shape) or op_error(
        op,
        f"has {what} of shape {_shape_text(_shape(kind))}, but it must be {_shape_text(shape)}",
        why=why,
        fix=f"give it the type tensor<{''.join(_size(s) + 'x' for s in shape)}{kind.element_type}>",
    )


def _check_choice(op, name: str, choices: tuple[str, ...]) -> bool:
    value = op.attributes[name].value
    quoted = ", ".join(f'"{choice}"' for choice in choices)
    return value in choices or op_error(op, f'has {name} = "{value}"', why=f"it is one of {quoted}", fix=f'write {name} = "{choices[0]}"')


def _check_region(op, region, arguments, results) -> bool:
    """One block with these (name, type) arguments, scalar operations only, a yield of these types at its end."""
    block = region.blocks[0]
    given = [argument.type for argument in block.arguments]
    if given != [kind for _, kind in arguments]:
        wanted = ", ".join(f"{name}: {kind}" for name, kind in arguments)
        return op_error(
            op,
            f"has a region with arguments ({', '.join(map(str, given))})",
            why=f"it takes ({wanted})",
            fix="give the block these arguments in this order",
        )
    operations = list(block.operations)
    if not operations or operations[-1].operation.name != "attn.yield":
        return op_error(op, 'has a region that does not end in "attn.yield"', fix='end it with "attn.yield"(%value)')
    yielded = [value.type for value in operations[-1].operation.operands]
    if yielded != list(results):
        return op_error(
            op, f"has a region that yields ({', '.join(map(str, yielded))})", why=f"it must yield ({', '.join(map(str, results))})"
        )
    return _check_region_ops(op, block)


def _check_region_ops(op, block) -> bool:
    for inner in block.operations:
        name = inner.operation.name
        if name not in REGION_OPS:
            return op_error(
                inner,
                f"cannot stand in a region of '{op.operation.name}'",
                why="regions hold scalar arith and math operations, scf.if, attn.load and attn.size",
                fix=_hint(name),
            )
        stray = stray_attribute(inner)
        if stray is not None:
            return op_error(inner, f"has no attribute '{stray[0]}'", fix=stray[1])
        for region in inner.operation.regions:
            for nested in region.blocks:
                if not _check_region_ops(op, nested):
                    return False
    return True


# What arith and math operations may carry; MLIR itself lets any other name pass.
_UPSTREAM_ATTRIBUTES = ("value", "predicate", "fastmath", "overflowFlags", "nneg", "roundingmode")


def stray_attribute(op) -> tuple[str, str] | None:
    """The first attribute that an arith, math or scf operation does not declare (a misspelled `fastmath`), and how to put it right."""
    if op.operation.name.startswith(("arith.", "math.", "scf.")):
        for name in op.operation.attributes:
            if name not in _UPSTREAM_ATTRIBUTES:
                near = difflib.get_close_matches(name, _UPSTREAM_ATTRIBUTES, n=1)
                return name, f"did you mean '{near[0]}'?" if near else "remove it"
    return None


def _hint(name: str) -> str:
    return {
        "arith.maxnumf": "use arith.maximumf",
        "arith.minnumf": "use arith.minimumf",
        "arith.maxui": "use arith.maxsi",
        "arith.minui": "use arith.minsi",
        "arith.divui": "use arith.divsi",
        "arith.remui": "use arith.remsi",
    }.get(name, "write it with those")
