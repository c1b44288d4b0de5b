"""The reference backend: evaluates a manifest's `semantics` in torch, by definition and without tricks.

`evaluate(semantics, inputs, dtype)` computes all in float64 (default) or float32. `eager=True` computes as eager PyTorch would in the
kernel's dtype: matmuls with results in bf16/fp16, maps and softmax rounded to it; its error sets the tolerance (`check.py`). Work
goes by chunks of heads of one batch entry, so that at most some `CHUNK` scores are held at a time.
"""

from __future__ import annotations

import torch

from . import expr as expr_module
from .errors import ManifestError
from .layout import bind_sizes, memory_layout, packed_dims, static_dims
from .torch_types import TORCH

CHUNK = 1 << 26  # scores in flight: 512 MiB for each float64 value of the body


def evaluate(
    semantics: dict, inputs: dict[str, torch.Tensor], dtype: torch.dtype = torch.float64, *, eager: bool = False
) -> dict[str, torch.Tensor]:
    """{result: tensor} in memory layout. Floats come in `dtype` (eager: in the result's own dtype).

    `inputs`: {argument: tensor} in memory layout (see `layout.memory_layout`). A result that lacks an axis is the sum over it. An empty
    row gives P = 0 and LSE = -inf. Raises `InputError` for shapes that do not fit and `ManifestError` for a tree that makes no sense.
    """
    return _Evaluator(semantics, inputs, dtype, eager).run()


def result_shapes(semantics: dict, sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    packed = packed_dims(semantics["args"])
    return {
        r["name"]: tuple(
            {**sizes, **static_dims(r)}[d] for d in memory_layout(r["axes"], r["dims"], semantics.get("layout", "bshd"), packed)
        )
        for r in semantics["results"]
    }


def sizes_of(semantics: dict, inputs: dict[str, torch.Tensor]) -> dict[str, int]:
    """Sizes of all dimensions; b of packed lengths is the number of sequences."""
    packed = packed_dims(semantics["args"])
    layout = semantics.get("layout", "bshd")
    specs = [(a["name"], memory_layout(a["axes"], a["dims"], layout, packed), static_dims(a)) for a in semantics["args"]]
    sizes = bind_sizes(specs, {a["name"]: tuple(inputs[a["name"]].shape) for a in semantics["args"]}, semantics.get("name", "fa4c"))
    if packed:
        sizes["b"] = sizes["batch_plus_1"] - 1
    return sizes


class _Evaluator:
    def __init__(self, semantics, inputs, dtype, eager):
        self.s, self.where = semantics, f"semantics of {semantics.get('name', '?')}"
        self.layout = semantics.get("layout", "bshd")
        self.args = {a["name"]: a for a in semantics["args"]}
        self.packed = packed_dims(semantics["args"])
        self.inputs = inputs
        self.sizes = sizes_of(semantics, inputs)
        self.device = next(iter(inputs.values())).device
        self.exact = None if eager else dtype
        self.kernel_dtype = TORCH[semantics["args"][0]["dtype"]]
        self.offsets = {dim: inputs[name].tolist() for dim, name in self.packed.items()}
        softmaxes = [op for op in semantics["body"] if op["op"] == "softmax"]
        self.score_dims = next((op["in"] for op in softmaxes), None)

    def run(self) -> dict[str, torch.Tensor]:
        results = {
            r["name"]: torch.zeros(shape, dtype=self.result_dtype(r), device=self.device)
            for r, shape in zip(self.s["results"], result_shapes(self.s, self.sizes).values())
        }
        batches, heads = self.sizes.get("b", 1), self.sizes.get("hq", 1)
        for b in range(batches):
            sizes = self.lengths(b)
            step = max(1, CHUNK // max(1, sizes.get("m", 1) * sizes.get("n", 1)))
            for start in range(0, heads, step):
                chunk = torch.arange(start, min(heads, start + step), device=self.device)
                values = _Chunk(self, b, chunk, sizes).run()
                for r in self.s["results"]:
                    self.add(results[r["name"]], r, values[r["value"]], b, chunk)
        return results

    def result_dtype(self, result) -> torch.dtype:
        dtype = TORCH[result["dtype"]]
        return self.exact if self.exact is not None and dtype.is_floating_point else dtype

    def lengths(self, b: int) -> dict[str, int]:
        """m and n of batch entry b."""
        return {**self.sizes, **{dim: offsets[b + 1] - offsets[b] for dim, offsets in self.offsets.items()}}

    def part(self, spec, tensor, b, chunk, merge=False):
        """The view or copy of `tensor` for batch entry b and the heads of `chunk`: (C or 1, own dims...)."""
        names = memory_layout(spec["axes"], spec["dims"], self.layout, self.packed)
        for dim in spec["dims"]:
            if dim in self.offsets and dim in names:
                lo, hi = self.offsets[dim][b : b + 2]
                tensor = tensor.narrow(names.index(dim), lo, hi - lo)
        if "b" in names:
            tensor = tensor.select(names.index("b"), b)
            names.remove("b")
        head = next((n for n in names if n in ("hq", "hkv")), None)
        if head is None:
            return tensor.unsqueeze(0)
        return (
            tensor.movedim(names.index(head), 0).index_select(0, self.head_index(head, chunk))
            if not merge
            else tensor.movedim(names.index(head), 0)
        )

    def head_index(self, axis, chunk):
        return chunk if axis == "hq" else torch.div(chunk, self.sizes["hq"] // self.sizes["hkv"], rounding_mode="floor")

    def add(self, out, result, value, b, chunk):
        """Add a chunk's value into the result; axes that the result lacks are summed over."""
        target = self.part(result, out, b, chunk, merge=True)
        value = value.to(out.dtype).expand(len(chunk), *target.shape[1:])
        if "hq" in result["axes"] or "hkv" in result["axes"]:
            target.index_add_(0, self.head_index("hq" if "hq" in result["axes"] else "hkv", chunk), value)
        else:
            target[0].add_(value.sum(0))


class _Chunk:
    """The body over the heads `chunk` of one batch entry; every value has shape (C or 1, dims...)."""

    def __init__(self, owner: _Evaluator, b: int, chunk: torch.Tensor, sizes: dict[str, int]):
        self.o, self.b, self.chunk, self.sizes = owner, b, chunk, sizes
        self.values: dict = {}
        self.dims: dict[str, list[str]] = {}

    def run(self) -> dict[str, torch.Tensor]:
        for name, spec in self.o.args.items():
            if not spec.get("cu_seqlens"):
                self.dims[name] = spec["dims"]
        for number, op in enumerate(self.o.s["body"]):
            where = f"{self.o.where}: body[{number}]"
            method = getattr(self, f"_{op.get('op')}", None)
            if method is None:
                raise ManifestError(f"unknown operation {op.get('op')!r}", where=where)
            method(op, where)
        return {r["value"]: self.value(r["value"]) for r in self.o.s["results"]}

    def captured(self, name):
        spec = self.o.args[name]
        tensor = self.o.part(spec, self.o.inputs[name], self.b, self.chunk)
        return tensor.to(self.o.exact) if self.o.exact is not None and tensor.is_floating_point() else tensor

    def value(self, name):
        if name not in self.values:
            self.values[name] = self.captured(name)
        return self.values[name]

    def put(self, name, value, dims):
        self.values[name], self.dims[name] = value, list(dims)

    def rounded(self, value):
        return value if self.o.exact is not None else value.to(self.o.kernel_dtype)

    def _gemm(self, op, where):
        (a, b), (out,) = op["in"], op["out"]
        left, right = self.value(a), self.value(b)
        ldims, rdims = list(self.dims[a]), list(self.dims[b])
        if op.get("transpose_a"):
            left, ldims = left.transpose(-1, -2), ldims[::-1]
        if op.get("transpose_b"):
            right, rdims = right.transpose(-1, -2), rdims[::-1]
        if self.o.exact is None:
            left, right = left.to(self.o.kernel_dtype), right.to(self.o.kernel_dtype)
        self.put(out, torch.matmul(left, right), [ldims[0], rdims[1]])

    def _map(self, op, where):
        value, dims = self._expr(op, where)
        self.put(op["out"][0], self.rounded(value), dims)

    def _mask(self, op, where):
        keep, dims = self._expr(op, where)
        score = self.value(op["in"][0])
        keep = keep if isinstance(keep, torch.Tensor) else torch.tensor(keep, device=self.o.device)
        self.put(op["out"][0], torch.where(keep, score, torch.full((), float("-inf"), dtype=score.dtype, device=score.device)), dims)

    _band_mask = _mask

    def _softmax(self, op, where):
        score, dims = self.value(op["in"][0]), self.dims[op["in"][0]]
        wide = score if self.o.exact is not None else score.float()
        if score.shape[-1] == 0:
            p, lse = score, torch.full(score.shape[:-1], float("-inf"), dtype=wide.dtype, device=score.device)
        else:
            top = wide.amax(-1, keepdim=True)
            seen = top > float("-inf")
            e = torch.exp(wide - torch.where(seen, top, 0.0))
            total = e.sum(-1, keepdim=True)
            p = torch.where(seen, e / total, 0.0) if self.o.exact is not None else torch.where(seen, torch.softmax(score, -1), 0.0)
            lse = torch.where(seen, top + torch.log(total), float("-inf")).squeeze(-1)
        self.put(op["out"][0], p, dims)
        if len(op["out"]) > 1:
            self.put(op["out"][1], lse, dims[:-1])

    def _cast(self, op, where):
        value = self.value(op["in"][0])
        self.put(
            op["out"][0],
            value if self.o.exact is not None and value.is_floating_point() else value.to(TORCH[op["dtype"]]),
            self.dims[op["in"][0]],
        )

    def _reduce(self, op, where):
        value, dims = self.value(op["in"][0]), self.dims[op["in"][0]]
        if op["kind"] not in ("sum", "max"):
            raise ManifestError(f"reduce has the kind {op['kind']!r}", where=where, why="the kinds are sum and max")
        if op["kind"] == "sum":
            reduced = value.sum(-1)
        elif value.shape[-1]:
            reduced = value.amax(-1)
        else:
            reduced = torch.full(value.shape[:-1], float("-inf"), dtype=value.dtype, device=value.device)
        self.put(op["out"][0], reduced, dims[:-1])

    def _expr(self, op, where):
        """(value, dims) of a map or mask: operands of 2-D spaces, rows spread over the columns."""
        dims = max((self.dims[name] for name in op["in"]), key=len)
        operands = []
        for name in op["in"]:
            value = self.value(name)
            operands.append(value.unsqueeze(-1) if len(self.dims[name]) < len(dims) else value)
        operands = [self.rounded(x) if x.is_floating_point() else x for x in operands]
        value = expr_module.evaluate(
            op["expr"], operands, expr_module.Space(self.indices(dims), self.sizes, self.captured, self.o.exact, self.o.device), where
        )
        shape = torch.broadcast_shapes(*(x.shape for x in operands))
        if op["op"] == "map":
            if not isinstance(value, torch.Tensor):
                value = torch.tensor(value, dtype=operands[0].dtype, device=self.o.device)
            value = value.broadcast_to(torch.broadcast_shapes(value.shape, shape))
        return value, dims

    def indices(self, dims):
        """b, h, i, j as tensors that broadcast over (C, *dims)."""
        rank = len(dims) + 1
        device = self.o.device
        m, n = self.sizes.get("m", 0), self.sizes.get("n", 0)
        shift = n - m if self.o.s.get("align", "top_left") == "bottom_right" else 0

        def along(values, axis):
            return values.reshape([-1 if k == axis else 1 for k in range(rank)])

        found = {"b": torch.full([1] * rank, self.b, device=device), "h": along(self.chunk, 0)}
        if "m" in dims:
            found["i"] = along(torch.arange(m, device=device) + shift, dims.index("m") + 1)
        if "n" in dims:
            found["j"] = along(torch.arange(n, device=device), dims.index("n") + 1)
        return found
