"""The `attn` dialect: attention as mathematics, before blocks, memory and threads exist.

All tensors are those of one (batch, head). Spaces are named by their dimensions: `m` queries, `n` keys, `d`, `dv` head dims. What an
operation does along batch and heads follows from `attn.axes` on the function's arguments (`attn_signature.py`).

Regions are pure scalar code, one element at a time, over `arith` and `math`, `scf.if`, `attn.load` and `attn.size` (`attn_checks.py`).
Their index arguments are: %b batch entry, %h query head, %i position in the first dimension, %j in the second. Where a function has
`attn.align = "bottom_right"`, a position along `m` is counted in key coordinates: row + (n - m).
"""

from collections.abc import Sequence
from typing import Any

from .attn_checks import (
    check_choice,
    check_mask,
    check_region,
    check_shape,
    check_tensor,
    index_type,
    map_space,
    maybe_swapped,
    reduced_dim,
    region_arguments,
    shape_of,
    size_text,
)
from .base import make_operation_base, optional
from .diagnostics import op_error
from .mlir import ext, ir

REDUCE_KINDS = ("sum", "max")
PROBLEM_SIZES = ("m", "n", "hq", "hkv")


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
            check_tensor(self, "a", self.a.type, ranks=(2,))
            and check_tensor(self, "b", self.b.type, ranks=(2,))
            and check_tensor(self, "out", self.out.type, ranks=(2,), dtypes=("f32",))
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
        rows, depth_a = maybe_swapped(shape_of(self.a.type), self.transpose_a.value)
        depth_b, columns = maybe_swapped(shape_of(self.b.type), self.transpose_b.value)
        if depth_a != depth_b:
            return op_error(
                self,
                f"needs one contracted size, but a has {size_text(depth_a)} and b has {size_text(depth_b)}",
                why=f"op(a) is {size_text(rows)}x{size_text(depth_a)} and op(b) is {size_text(depth_b)}x{size_text(columns)}",
                fix="set transpose_a or transpose_b, or give both operands the same size there",
            )
        return check_shape(self, "out", self.out.type, (rows, columns), "its rows are those of op(a), its columns those of op(b)")


class MapOp(Operation, name="map", traits=[ext.Pure]):
    """out[i, j] = body(x0[i, j], x1[i, j], ..., b, h, i, j): elementwise work, biases, soft caps.

    A one-dimensional input is a row or column vector, spread over the dimension that it lacks; a scalar is spread over all. If all inputs
    are one-dimensional, so is the result, and the region has no %j; if all are scalars, it has no %i either.
    """

    inputs: Sequence[ext.Operand[Any]]
    out: ext.Result[Any]
    body: ext.Region

    def verify_op(self) -> bool:
        space = map_space(self, self.inputs)
        return (
            space is not None
            and check_tensor(self, "out", self.out.type)
            and check_shape(self, "out", self.out.type, space, "the result has the shape of the inputs")
            and check_region(self, self.body, region_arguments(self.inputs, space), [self.out.type.element_type])
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
        space = map_space(self, self.inputs)
        every = ("f32", "f64", "bf16", "f16", "i32", "i64")
        if space is None or not (
            check_tensor(self, "like", self.like.type, dtypes=every) and check_tensor(self, "out", self.out.type, dtypes=("f32",))
        ):
            return False
        yielded = [self.out.type.element_type] + [index_type()] * self.like.type.rank
        return check_shape(self, "out", self.out.type, shape_of(self.like.type), "the result has the shape of 'like'") and check_region(
            self, self.body, region_arguments(self.inputs, space), yielded
        )


class MaskOp(Operation, name="mask", traits=[ext.Pure]):
    """out[i, j] = scores[i, j] where predicate(b, h, i, j), else -inf."""

    scores: ext.Operand[Any]
    out: ext.Result[Any]
    predicate: ext.Region

    def verify_op(self) -> bool:
        return check_mask(self)


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
        return check_mask(self) and check_region(self, self.bounds, [(name, index_type()) for name in "bhi"], [index_type()] * 4)


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
            check_tensor(self, "scores", self.scores.type, ranks=(2,), dtypes=("f32",))
            and check_tensor(self, "p", self.p.type, ranks=(2,), dtypes=("f32",))
            and check_tensor(self, "lse", self.lse.type, ranks=(1,), dtypes=("f32",))
        ):
            return False
        if not 0 < self.scale.value < float("inf"):
            return op_error(self, f"has scale = {self.scale}", why="it must be positive and finite", fix="use an attn.map")
        shape = shape_of(self.scores.type)
        return check_shape(self, "p", self.p.type, shape, "there is one probability a score") and check_shape(
            self, "lse", self.lse.type, shape[:1], "there is one log-sum-exp a row"
        )


class CastOp(Operation, name="cast", traits=[ext.Pure]):
    """out = x rounded to another floating dtype, to nearest even."""

    x: ext.Operand[Any]
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        return (
            check_tensor(self, "x", self.x.type)
            and check_tensor(self, "out", self.out.type)
            and check_shape(self, "out", self.out.type, shape_of(self.x.type), "a cast changes the dtype only")
        )


class ReduceOp(Operation, name="reduce", traits=[ext.Pure]):
    """out = sum (or max) of x over its last dimension, or over dimension `dim`; the sum of nothing is 0, the maximum of nothing -inf."""

    x: ext.Operand[Any]
    kind: ir.StringAttr
    dim: Any = optional(ir.IntegerAttr)
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        if not (
            check_choice(self, "kind", REDUCE_KINDS)
            and check_tensor(self, "x", self.x.type, ranks=(1, 2), dtypes=("f32",))
            and check_tensor(self, "out", self.out.type, ranks=(0, 1), dtypes=("f32",))
        ):
            return False
        rank, dim = self.x.type.rank, reduced_dim(self)
        if not 0 <= dim < rank:
            return op_error(
                self, f"has dim = {dim}, but x has {rank} dimensions", why="they are counted from 0", fix=f"write dim = {rank - 1}"
            )
        shape = shape_of(self.x.type)
        return check_shape(self, "out", self.out.type, shape[:dim] + shape[dim + 1 :], f"dimension {dim} is reduced")


class LoadOp(Operation, name="load", traits=[ext.Pure]):
    """out = tensor[indices], one index for each of the tensor's own dimensions; out of range reads 0.

    `tensor` is an argument of the function, taken at this (b, h) along its axes: a per-head scalar `tensor<f32>` has no index.
    """

    tensor: ext.Operand[Any]
    indices: Sequence[ext.Operand[Any]]
    out: ext.Result[Any]

    def verify_op(self) -> bool:
        if not check_tensor(self, "tensor", self.tensor.type, dtypes=("f32", "f64", "bf16", "f16", "i32", "i64")):
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
            if index.type != index_type():
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
        return check_choice(self, "dim", PROBLEM_SIZES) and (
            self.out.type == index_type() or op_error(self, f"gives {self.out.type}, but a size is of type index")
        )


class YieldOp(Operation, name="yield", traits=[ext.Pure, ir.IsTerminatorTrait]):
    """Ends a region of this dialect with its values."""

    values: Sequence[ext.Operand[Any]]

    def verify_op(self) -> bool:
        parent = self.operation.parent
        if parent is not None and parent.name in ("attn.map", "attn.scatter", "attn.mask", "attn.band_mask"):
            return True
        if parent is not None and not self.operation.context.is_registered_operation(parent.name):
            return True  # a misspelt attn.map: MLIR refuses it by its name, but only once its region has verified
        return op_error(
            self,
            "stands outside any region of attn.map, attn.scatter, attn.mask or attn.band_mask",
            why="it gives such a region's value",
            fix="end an scf.if with scf.yield, a function with return",
        )
