"""Evaluates a semantics tree in float64 torch, so that torch.autograd gives the gradients to compare a derived backward with.

Written by itself, not with fa4c's interpreter or reference backend. Every value is [batch, KV head, query head of the group, *dims], size 1
where it does not vary. Rows that see nothing have output 0 and gradient 0.
"""

import math

import numpy as np
import torch

from fa4c.ir import interpret_attn
from fa4c.ir.attn_signature import attn_functions
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.semantics import from_function
from fa4c.passes.registry import run_pipeline
from fa4c.runtime import gradients as runtime_gradients
from fa4c.runtime import reference

CONTEXT = new_context()
PASS = "attn-derive-backward"


def function_of(text: str, pipeline: str = ""):
    """The single attn function of a module after some passes; the module is kept alive with it."""
    module = parse_module(text, "test.mlir", CONTEXT)
    if pipeline:
        run_pipeline(module, pipeline)
    with CONTEXT:
        (function,) = attn_functions(module)
    return module, function


def tree_of(text: str) -> dict:
    module, function = function_of(text)
    with CONTEXT:
        return from_function(function)


def order_of(t: dict, layout: str) -> list[str]:
    if layout == "bshd" and len(t["dims"]) == 2 and len(t["axes"]) == 2:
        return [t["axes"][0], t["dims"][0], t["axes"][1], t["dims"][1]]
    return [*t["axes"], *t["dims"]]


def make_inputs(tree: dict, sizes: dict, seed: int = 0, tensors=None) -> dict[str, torch.Tensor]:
    """Random tensors in memory order for `tensors` (default: the arguments); integers lie in [0, 4)."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for t in tree["args"] if tensors is None else tensors:
        static = {dim: size for dim, size in zip(t["dims"], t["shape"]) if size is not None}
        shape = [static.get(name, sizes.get(name)) for name in order_of(t, tree["layout"])]
        if t["dtype"].startswith("i"):
            made[t["name"]] = torch.randint(0, 4, shape, generator=generator).sort(-1).values if shape else torch.tensor(2)
        else:
            made[t["name"]] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return made


class Autograd:
    """One evaluation. `results`: name -> tensor in memory order."""

    def __init__(self, tree: dict, inputs: dict, sizes: dict):
        self.tree, self.sizes = tree, sizes
        self.heads = (sizes["hkv"], sizes["hq"] // sizes["hkv"] if sizes["hkv"] else 1)
        self.args = {t["name"]: self.grouped(t, inputs[t["name"]]) for t in tree["args"]}
        self.values, self.dims = dict(self.args), {t["name"]: list(t["dims"]) for t in tree["args"]}
        for step in tree["body"]:
            getattr(self, "_" + step["op"])(step)
        self.results = {r["name"]: self.returned(r) for r in tree["results"]}

    def grouped(self, t, array):
        names = order_of(t, self.tree["layout"])
        array = array.permute([names.index(name) for name in (*t["axes"], *t["dims"])])
        rest = array.shape[len(t["axes"]) :]
        heads = self.heads if "hq" in t["axes"] else (self.heads[0], 1) if "hkv" in t["axes"] else (1, 1)
        return array.reshape(array.shape[0] if "b" in t["axes"] else 1, *heads, *rest)

    def returned(self, r):
        value = self.values[r["value"]]
        full = value.expand(*[(self.sizes["b"], *self.heads)[k] for k in range(3)], *value.shape[3:])
        has = ("b" in r["axes"], bool({"hq", "hkv"} & set(r["axes"])), "hq" in r["axes"])
        axes = self.axes(r["value"])
        for k in (2, 1, 0):
            if not has[k]:
                full = full.sum(k, keepdim=True) if axes[k] else full.narrow(k, 0, min(1, full.shape[k]))
        shape = [self.sizes[a] for a in r["axes"]] + list(value.shape[3:])
        names = [*r["axes"], *r["dims"]]
        return full.reshape(shape).permute([names.index(name) for name in order_of(r, self.tree["layout"])])

    def axes(self, name):
        """Which of batch, KV head, query head a value varies over, by what it is computed from."""
        if name in self.args:
            found = next(t["axes"] for t in self.tree["args"] if t["name"] == name)
            return "b" in found, bool({"hq", "hkv"} & set(found)), "hq" in found
        step = next(s for s in self.tree["body"] if name in s["out"])
        parts = [self.axes(n) for n in step["in"]]
        for node in step.get("expr", []):
            if node[0] == "index" and node[1] in "bh":
                parts.append((True, False, False) if node[1] == "b" else (False, True, True))
            if node[0] == "load":
                parts.append(self.axes(node[1]))
        return tuple(any(p[k] for p in parts) for k in range(3))

    def put(self, step, value, dims, number=0):
        self.values[step["out"][number]], self.dims[step["out"][number]] = value, list(dims)

    def _gemm(self, step):
        (a, da), (b, db) = ((self.values[n], self.dims[n]) for n in step["in"])
        if step.get("transpose_a"):
            a, da = a.transpose(-1, -2), da[::-1]
        if step.get("transpose_b"):
            b, db = b.transpose(-1, -2), db[::-1]
        self.put(step, a @ b, [da[0], db[1]])

    def _cast(self, step):
        self.put(step, self.values[step["in"][0]], self.dims[step["in"][0]])

    def _reduce(self, step):
        x, dims = self.values[step["in"][0]], list(self.dims[step["in"][0]])
        dim = step.get("dim", len(dims) - 1)
        dims.pop(dim)
        if step["kind"] == "sum":
            self.put(step, x.sum(3 + dim), dims)
        else:
            self.put(step, x.amax(3 + dim) if x.shape[3 + dim] else x.sum(3 + dim) - math.inf, dims)

    def _softmax(self, step):
        x, dims = self.values[step["in"][0]], self.dims[step["in"][0]]
        seen = torch.isfinite(x.detach()).any(-1, keepdim=True)
        safe = torch.where(seen, x, torch.zeros_like(x))
        self.put(step, torch.where(seen, safe.softmax(-1), torch.zeros_like(x)), dims)
        if x.shape[-1]:
            lse = torch.where(seen[..., 0], safe.logsumexp(-1), torch.full_like(x[..., 0], -math.inf))
        else:
            lse = x.sum(-1) - math.inf
        self.put(step, lse, dims[:1], 1)

    def _mask(self, step):
        x, dims = self.values[step["in"][0]], self.dims[step["in"][0]]
        keep = self.expr(step["expr"], [], dims, x.shape[3:])
        self.put(step, torch.where(keep, x, torch.full_like(x, -math.inf)), dims)

    def _map(self, step):
        dims = max((self.dims[n] for n in step["in"]), key=len)
        elements, shape = [], [1] * len(dims)
        for n in step["in"]:
            x, own = self.values[n], self.dims[n]
            if len(own) < len(dims):
                x = x.reshape(*x.shape[:3], *[x.shape[3] if own and k == dims.index(own[0]) else 1 for k in range(len(dims))])
            elements.append(x)
            shape = [max(a, b) if 0 not in (a, b) else 0 for a, b in zip(shape, x.shape[3:])]
        value = self.expr(step["expr"], elements, dims, shape)
        self.put(step, value.expand(*value.shape[:3], *shape), dims)

    def expr(self, nodes, elements, dims, shape):
        rank = 3 + len(dims)

        def along(values, *axes):
            return values.reshape([values.numel() if axes == (k,) else 1 for k in range(rank)])

        shift = self.sizes["n"] - self.sizes["m"] if self.tree["align"] == "bottom_right" else 0
        index = {
            "b": along(torch.arange(self.sizes["b"]), 0),
            "h": torch.arange(self.sizes["hq"]).reshape(1, *self.heads, *[1] * len(dims)),
        }
        for k, (name, dim, size) in enumerate(zip("ij", dims, shape)):
            index[name] = along(torch.arange(size) + (shift if dim == "m" else 0), 3 + k)
        known = []
        for op, *rest in nodes:
            if op == "x":
                value = elements[rest[0]]
            elif op == "index":
                value = index[rest[0]]
            elif op == "size":
                value = torch.tensor(self.sizes[rest[0]])
            elif op == "const":
                value = torch.tensor(float(rest[0]) if rest[1] in ("f32", "f64", "bf16", "fp16") else rest[0])
                value = value.double() if value.is_floating_point() else value
            elif op == "load":
                value = self.load(rest[0], [known[n] for n in rest[1:]], rank)
            elif op == "cast":
                value = known[rest[0]].double() if rest[1] in ("f32", "f64", "bf16", "fp16") else known[rest[0]].long()
            else:
                value = OPS[op](*[known[n] for n in rest])
            known.append(value)
        value = known[-1]
        return value.reshape([1] * (rank - value.ndim) + list(value.shape))

    def load(self, name, indices, rank):
        table = self.args[name]
        if 0 in table.shape[3:]:
            return torch.zeros((), dtype=table.dtype)
        heads = [torch.arange(table.shape[k]).reshape([-1 if k == a else 1 for a in range(rank)]) for k in range(3)]
        inside = torch.ones((), dtype=torch.bool)
        clipped = []
        for k, position in enumerate(indices):
            inside = inside & (position >= 0) & (position < table.shape[3 + k])
            clipped.append(position.clamp(0, table.shape[3 + k] - 1))
        value = table[tuple(heads + clipped)]
        return torch.where(inside, value, torch.zeros_like(value))


def _sign_kept(a, b):
    return torch.div(a, b, rounding_mode="trunc") if not a.is_floating_point() else a / b


OPS = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": _sign_kept, "neg": torch.neg, "max": torch.maximum, "min": torch.minimum,
    "exp": torch.exp, "exp2": torch.exp2, "log": torch.log, "log2": torch.log2, "tanh": torch.tanh, "erf": torch.erf, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "abs": torch.abs, "pow": torch.pow, "floor": torch.floor, "rem": torch.fmod, "lt": torch.lt, "le": torch.le,
    "gt": torch.gt, "ge": torch.ge, "eq": torch.eq, "ne": torch.ne, "and": torch.logical_and, "or": torch.logical_or,
    "not": torch.logical_not, "select": torch.where, "xor": torch.logical_xor,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
}  # fmt: skip


# -- a derived backward against it ---------------------------------------------------------------------------------------------------------


def expected(tree: dict, sizes: dict, inputs: dict, wrt, gradients: dict) -> tuple[dict, dict]:
    """(results, d<argument> of each name in `wrt`) for these gradients of results."""
    leaves = {name: (x.clone().requires_grad_() if name in wrt else x) for name, x in inputs.items()}
    results = Autograd(tree, leaves, sizes).results
    total = sum((torch.where(torch.isfinite(results[name]), results[name], 0.0) * g).sum() for name, g in gradients.items())
    found = [None] * len(wrt)
    if total.requires_grad:
        found = torch.autograd.grad(total, [leaves[name] for name in wrt], allow_unused=True)
    given = {f"d{name}": torch.zeros_like(leaves[name]) if g is None else g for name, g in zip(wrt, found)}
    return {name: r.detach() for name, r in results.items()}, given


def check(text: str, sizes: dict, *, options="", wrt=None, of=None, seed=0, tolerance=2e-6, inputs=None, then="", gradients=None) -> str:
    """Derive, execute, compare; the derived function's text. `wrt` and `of` are passed on where given."""
    tree = tree_of(text)
    floats = [t["name"] for t in tree["args"] if not t["dtype"].startswith("i")]
    options = " ".join([options] + [f"{key}={','.join(names)}" for key, names in (("wrt", wrt), ("of", of)) if names]).strip()
    module, function = function_of(text, PASS + (f"{{{options}}}" if options else "") + then)
    inputs = make_inputs(tree, sizes, seed) if inputs is None else inputs
    with CONTEXT:
        backward = from_function(function)
    wanted = [t["name"].removeprefix("d") for t in backward["results"]]
    assert wanted == (list(wrt) if wrt else floats)
    forward_names = {t["name"] for t in (*tree["args"], *tree["results"])}
    incoming = [t for t in backward["args"] if t["name"] not in forward_names]
    if gradients is None:
        gradients = make_inputs(tree, sizes, seed + 1000, incoming)
    results, want = expected(tree, sizes, inputs, wanted, {name.removeprefix("d"): g for name, g in gradients.items()})
    with CONTEXT:
        got = interpret_attn.run(function, {**inputs, **results, **gradients})
    compare(got, want, tolerance)
    check_runtime(tree, backward, inputs, results, gradients, want, tolerance)
    return str(module)


def check_runtime(tree, backward, inputs, results, gradients, want, tolerance) -> None:
    """The runtime's reference: the derived tree evaluated, and autograd over the forward tree, which knows nothing of the derivation."""
    by_result = runtime_gradients.incoming(tree, backward)
    evaluated = reference.evaluate(backward, {**inputs, **results, **gradients})
    compare({name: x.numpy() for name, x in evaluated.items()}, want, tolerance)
    by_argument = runtime_gradients.outgoing(tree, backward)
    found = runtime_gradients.gradients(tree, inputs, {by_result[name]: g for name, g in gradients.items()}, by_argument.values())
    compare({name: found[argument].numpy() for name, argument in by_argument.items()}, want, tolerance)


def compare(got, want, tolerance) -> None:
    for name, value in want.items():
        value = value.numpy()
        assert got[name].shape == value.shape, name
        assert not np.isnan(got[name]).any(), name
        scale = max(1.0, np.abs(value).max(initial=0.0))
        np.testing.assert_allclose(got[name] / scale, value / scale, rtol=0, atol=tolerance, err_msg=name)
