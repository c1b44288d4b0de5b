"""The reference backend: evaluates a manifest's `semantics` in torch, by definition and without tricks.

`evaluate(semantics, inputs, dtype)` computes all in float64 (default) or float32. `eager=True` computes as eager PyTorch would in the
kernel's dtype: matmuls with results in bf16/fp16, maps and softmax rounded to it; its error sets the tolerance (`check.py`).
With `casts=True` the tree's own casts round: in f32, what a kernel gives that is inexact by f32 and by 16-bit operands of GEMMs alone. Work
goes by chunks of heads of one batch entry, so that at most some `CHUNK` scores are held at a time.

All of it is differentiable by torch.autograd, rows that see nothing included (their gradient is 0): `gradients.py` builds on that.
"""

from __future__ import annotations

import numpy as np
import torch

from . import expr as expr_module
from . import memory
from .errors import InputError, ManifestError
from .layout import bind_sizes, memory_layout, packed_dims, static_dims
from .torch_types import TORCH

CHUNK = 1 << 26  # scores in flight: 512 MiB for each float64 value of the body


def evaluate(
    semantics: dict, inputs: dict[str, torch.Tensor], dtype: torch.dtype = torch.float64, *, eager: bool = False, casts: bool = False
) -> dict[str, torch.Tensor]:
    """{result: tensor} in memory layout. Floats come in `dtype` (eager: in the result's own dtype).

    `inputs`: {argument: tensor} in memory layout (see `layout.memory_layout`). A result that lacks an axis over which its value varies is
    the sum over it. An empty row gives P = 0 and LSE = -inf. Raises `InputError` for shapes that do not fit and `ManifestError` for a
    tree that makes no sense.
    """
    return Evaluator(semantics, inputs, dtype, eager, casts=casts).run()


def result_shapes(semantics: dict, sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """{result: shape in memory layout}; `sizes` names all axes and dimensions that the types leave open."""
    packed = packed_dims(semantics["args"])
    return {
        r["name"]: tuple(
            {**sizes, **static_dims(r)}[d] for d in memory_layout(r["axes"], r["dims"], semantics.get("layout", "bshd"), packed)
        )
        for r in semantics["results"]
    }


def sizes_of(semantics: dict, inputs: dict[str, torch.Tensor]) -> dict[str, int]:
    """Sizes of all dimensions; b of packed lengths is the number of sequences. An argument that is never read may be missing."""
    packed = packed_dims(semantics["args"])
    layout = semantics.get("layout", "bshd")
    known = [a for a in semantics["args"] if a["name"] in inputs]
    specs = [(a["name"], memory_layout(a["axes"], a["dims"], layout, packed), static_dims(a)) for a in known]
    sizes = bind_sizes(specs, {a["name"]: tuple(inputs[a["name"]].shape) for a in known}, semantics.get("name", "fa4c"))
    if packed:
        sizes["b"] = sizes["batch_plus_1"] - 1
    return sizes


# The problem axes that a value varies over, as a set of "b", "hkv", "hq"; a value of each query head is one of each KV head too.
_IMPLIED = {"b": {"b"}, "hkv": {"hkv"}, "hq": {"hkv", "hq"}}


def _axes_of(names) -> frozenset[str]:
    return frozenset().union(*(_IMPLIED[name] for name in names))


class Evaluator:
    """One evaluation: `chunks()` gives its parts, `run()` their results put together. `sizes`: where the inputs alone do not give all."""

    def __init__(self, semantics, inputs, dtype=torch.float64, eager=False, sizes=None, casts=False):
        self.s, self.where = semantics, f"semantics of {semantics.get('name', '?')}"
        self.layout = semantics.get("layout", "bshd")
        self.args = {a["name"]: a for a in semantics["args"]}
        self.packed = packed_dims(semantics["args"])
        self.inputs = inputs
        self.sizes = {"b": 1, **(sizes_of(semantics, inputs) if sizes is None else sizes)}
        self.sizes.setdefault("hkv", self.sizes.get("hq", 1))
        self.sizes.setdefault("hq", self.sizes["hkv"])  # no argument varies over query heads
        self.device = next(iter(inputs.values())).device
        self.exact, self.casts = None if eager else dtype, casts
        self.kernel_dtype = TORCH[semantics["args"][0]["dtype"]]
        self.offsets = {dim: inputs[name].tolist() for dim, name in self.packed.items()}
        self.groups = self.sizes["hq"] // max(self.sizes["hkv"], 1)

    def run(self) -> dict[str, torch.Tensor]:
        """{result: tensor in memory layout}, in the evaluation's dtype (integers as they are)."""
        results = {
            r["name"]: torch.zeros(shape, dtype=self.result_dtype(r), device=self.device)
            for r, shape in zip(self.s["results"], result_shapes(self.s, self.sizes).values())
        }
        for chunk in self.chunks():
            for r in self.s["results"]:
                value, heads = chunk.contribution(r)
                self.part(r, results[r["name"]], chunk.b).index_add_(0, heads, value.to(results[r["name"]].dtype))
        return results

    def chunks(self):
        """The evaluated parts: some heads of one batch entry each."""
        batches, heads = self.sizes["b"], self.sizes["hq"]
        for b in range(batches):
            sizes = self.lengths(b)
            scores = sizes.get("m", 1) * sizes.get("n", 1)
            step = max(1, CHUNK // max(1, scores))
            what = f"the {sizes.get('m', 1)} x {sizes.get('n', 1)} scores and probabilities of one head"
            memory.require(2 * scores * (2 if self.exact is None else self.exact.itemsize), self.device, what, where=self.where)
            for start in range(0, heads, step):
                chunk = torch.arange(start, min(heads, start + step), device=self.device)
                yield _Chunk(self, b, chunk, sizes).run()

    def result_dtype(self, result) -> torch.dtype:
        """Of a result of the tree: its own when eager, and of integers; else that of the evaluation."""
        dtype = TORCH[result["dtype"]]
        return self.exact if self.exact is not None and dtype.is_floating_point else dtype

    def lengths(self, b: int) -> dict[str, int]:
        """m and n of batch entry b."""
        return {**self.sizes, **{dim: offsets[b + 1] - offsets[b] for dim, offsets in self.offsets.items()}}

    def part(self, spec, tensor, b):
        """The view of `tensor` for batch entry b: (heads or 1, own dims...)."""
        names = memory_layout(spec["axes"], spec["dims"], self.layout, self.packed)
        for dim in spec["dims"]:
            if dim in self.offsets and dim in names:
                lo, hi = self.offsets[dim][b : b + 2]
                tensor = tensor.narrow(names.index(dim), lo, hi - lo)
        if "b" in names:
            tensor = tensor.select(names.index("b"), b)
            names.remove("b")
        head = next((n for n in names if n in ("hq", "hkv")), None)
        return tensor.unsqueeze(0) if head is None else tensor.movedim(names.index(head), 0)

    def head_index(self, axes, heads):
        """Where in a tensor over `axes` the values of these query heads are."""
        return heads if "hq" in axes else torch.div(heads, self.groups, rounding_mode="floor") if "hkv" in axes else torch.zeros_like(heads)


class _Chunk:
    """The body over the heads `chunk` of one batch entry; every value has shape (C or 1, dims...)."""

    def __init__(self, owner: Evaluator, b: int, chunk: torch.Tensor, sizes: dict[str, int]):
        self.o, self.b, self.chunk, self.sizes = owner, b, chunk, sizes
        self.values: dict = {}
        self.dims: dict[str, list[str]] = {}
        self.axes: dict[str, frozenset] = {}

    def run(self) -> _Chunk:
        for name, spec in self.o.args.items():
            self.axes[name] = _axes_of(spec["axes"])
            if not spec.get("cu_seqlens"):
                self.dims[name] = spec["dims"]
        for number, op in enumerate(self.o.s["body"]):
            where = f"{self.o.where}: body[{number}]"
            method = getattr(self, f"_{op.get('op')}", None)
            if method is None:
                raise ManifestError(f"unknown operation {op.get('op')!r}", where=where)
            method(op, where)
        return self

    def contribution(self, result) -> tuple[torch.Tensor, torch.Tensor]:
        """What this chunk adds to a result: values (heads here, dims...) and the head of the result that each belongs to.

        Axes that the result lacks are summed over, but a value that does not vary over such an axis counts once.
        """
        value, axes = self.value(result["value"]), self.axes[result["value"]]
        value = value.expand(len(self.chunk), *value.shape[1:])
        missing = {"hq", "hkv", "b"}.difference(axes, _axes_of(result["axes"]))
        if not missing:  # the usual case, which asks the device nothing
            return value, self.o.head_index(result["axes"], self.chunk)
        kept = torch.full_like(self.chunk, "b" not in missing or self.b == 0, dtype=torch.bool)
        if "hkv" in missing:
            kept &= self.chunk == 0
        elif "hq" in missing:
            kept &= self.chunk % self.o.groups == 0
        return value[kept], self.o.head_index(result["axes"], self.chunk[kept])

    def captured(self, name):
        spec = self.o.args[name]
        if name not in self.o.inputs:
            raise InputError(f"the input {name!r} is missing", where=self.o.where, why="the program reads it")
        tensor = self.o.part(spec, self.o.inputs[name], self.b)
        if {"hq", "hkv"} & set(spec["axes"]):
            tensor = tensor.index_select(0, self.o.head_index(spec["axes"], self.chunk))
        return tensor.to(self.o.exact) if self.o.exact is not None and tensor.is_floating_point() else tensor

    def value(self, name):
        if name not in self.values:
            self.values[name] = self.captured(name)
        return self.values[name]

    def put(self, op, value, dims, number=0, more=frozenset()):
        name = op["out"][number]
        self.values[name], self.dims[name] = value, list(dims)
        self.axes[name] = more.union(*(self.axes[read] for read in op["in"]))

    def rounded(self, value):
        return value if self.o.exact is not None else value.to(self.o.kernel_dtype)

    def _gemm(self, op, where):
        a, b = op["in"]
        left, right = self.value(a), self.value(b)
        ldims, rdims = list(self.dims[a]), list(self.dims[b])
        if op.get("transpose_a"):
            left, ldims = left.transpose(-1, -2), ldims[::-1]
        if op.get("transpose_b"):
            right, rdims = right.transpose(-1, -2), rdims[::-1]
        if self.o.exact is None:
            left, right = left.to(self.o.kernel_dtype), right.to(self.o.kernel_dtype)
        self.put(op, torch.matmul(left, right), [ldims[0], rdims[1]])

    def _map(self, op, where):
        (value,), dims, axes, _ = self._exprs(op, [op["expr"]], op["in"], where)
        self.put(op, self.rounded(value), dims, more=axes)

    def _scatter(self, op, where):
        """Values added up at computed places of a table; out of range they are dropped."""
        like, *inputs = op["in"]
        spread, dims, axes, _ = self._exprs(op, op["exprs"], inputs, where)
        value, *places = torch.broadcast_tensors(*spread)
        sizes = self.value(like).shape[1:]
        out = torch.zeros((value.shape[0], *sizes), dtype=value.dtype, device=self.o.device)
        inside = torch.ones(value.shape, dtype=torch.bool, device=self.o.device)
        for place, size in zip(places, sizes, strict=True):
            inside &= (place >= 0) & (place < size)
        head = torch.arange(value.shape[0], device=self.o.device).reshape(-1, *[1] * len(dims)).expand(value.shape)
        where_to = tuple(index[inside] for index in (head, *places))
        self.put(op, self.rounded(out.index_put(where_to, value[inside], accumulate=True)), self.dims[like], more=axes)

    def _mask(self, op, where):
        (keep,), _, axes, _ = self._exprs(op, [op["expr"]], op["in"], where)
        score = self.value(op["in"][0])
        unseen = torch.full((), float("-inf"), dtype=score.dtype, device=score.device)
        self.put(op, torch.where(keep, score, unseen), self.dims[op["in"][0]], more=axes)

    _band_mask = _mask

    def _softmax(self, op, where):
        score, dims = self.value(op["in"][0]), self.dims[op["in"][0]]
        wide = score if self.o.exact is not None else score.float()
        if score.shape[-1] == 0:
            p, lse = score, torch.full(score.shape[:-1], float("-inf"), dtype=wide.dtype, device=score.device)
        else:
            top = wide.detach().amax(-1, keepdim=True)  # a shift that cancels: no derivative
            seen = top > float("-inf")
            e = torch.exp(wide - torch.where(seen, top, 0.0))
            total = torch.where(seen, e.sum(-1, keepdim=True), 1.0)
            p = e / total if self.o.exact is not None else torch.where(seen, torch.softmax(torch.where(seen, score, 0.0), -1), 0.0)
            lse = torch.where(seen, top + torch.log(total), float("-inf")).squeeze(-1)
        self.put(op, p, dims)
        if len(op["out"]) > 1:
            self.put(op, lse, dims[:-1], 1)

    def _cast(self, op, where):
        value = self.value(op["in"][0])
        exact = self.o.exact is not None and value.is_floating_point()
        rounded = value if exact and not self.o.casts else value.to(TORCH[op["dtype"]])
        self.put(op, rounded.to(self.o.exact) if exact else rounded, self.dims[op["in"][0]])

    def _reduce(self, op, where):
        value, dims = self.value(op["in"][0]), list(self.dims[op["in"][0]])
        if op["kind"] not in ("sum", "max"):
            raise ManifestError(f"reduce has the kind {op['kind']!r}", where=where, why="the kinds are sum and max")
        dim = op.get("dim", len(dims) - 1)
        dims.pop(dim)
        axis = dim + 1
        if op["kind"] == "sum":
            reduced = value.sum(axis)
        elif value.shape[axis]:
            reduced = value.amax(axis)
        else:
            reduced = value.sum(axis) - float("inf")
        self.put(op, reduced, dims)

    def _exprs(self, op, exprs, inputs, where):
        """(values, dims of the space, axes that indices and loads add, shape) of a region: vectors are spread along the dim they lack."""
        dims = max((self.dims[name] for name in inputs), key=len)
        operands, shape = [], [1] * (1 + len(dims))
        for name in inputs:
            value, own = self.value(name), self.dims[name]
            if len(own) < len(dims):
                place = dims.index(own[0]) if own else None
                value = value.reshape(value.shape[0], *(value.shape[1] if k == place else 1 for k in range(len(dims))))
            operands.append(self.rounded(value) if value.is_floating_point() else value)
            shape = np.broadcast_shapes(shape, value.shape)  # torch's own imports sympy, for most of a second
        space = expr_module.Space(self.indices(dims, shape[1:]), self.sizes, self.captured, self.o.exact, self.o.device)
        values = []
        for expr in exprs:
            value = expr_module.evaluate(expr, operands, space, where)
            if not isinstance(value, torch.Tensor):
                value = torch.tensor(value, dtype=operands[0].dtype if isinstance(value, float) else None, device=self.o.device)
            values.append(value.broadcast_to(np.broadcast_shapes(value.shape, shape)))
        return values, dims, self._axes_read(exprs), shape

    def _axes_read(self, exprs) -> frozenset:
        nodes = [node for expr in exprs for node in expr]
        indices = _axes_of({"b": "b", "h": "hq"}[node[1]] for node in nodes if node[0] == "index" and node[1] in "bh")
        return indices.union(*(self.axes[node[1]] for node in nodes if node[0] == "load"))

    def indices(self, dims, shape):
        """b, h and the position in each dim of the space (i, then j) as tensors that broadcast over (C, *dims)."""
        rank = len(dims) + 1
        device = self.o.device
        shift = 0
        if self.o.s.get("align", "top_left") == "bottom_right":
            shift = self.sizes.get("n", 0) - self.sizes.get("m", 0)

        def along(values, axis):
            return values.reshape([-1 if k == axis else 1 for k in range(rank)])

        found = {"b": torch.full([1] * rank, self.b, device=device), "h": along(self.chunk, 0)}
        for axis, (name, dim, size) in enumerate(zip("ij", dims, shape), 1):
            found[name] = along(torch.arange(size, device=device) + (shift if dim == "m" else 0), axis)
        return found
