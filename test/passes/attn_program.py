"""Attention functions put together in Python: a semantics tree, printed as MLIR."""

from fa4c.frontend.to_mlir import to_mlir
from fa4c.ir.expr import ExprBuilder

SIZES = {"d": 8, "dv": 6}


class Program:
    """`p.arg`, then operations by name, then `p.result`; `p.text()` is the module. Values are names."""

    def __init__(self, align="bottom_right", layout="bshd", dtype="bf16"):
        self.tree = {"schema": 1, "name": "f", "align": align, "layout": layout, "args": [], "body": [], "results": []}
        self.dtype = dtype
        self.dtypes: dict[str, str] = {}
        self.dims: dict[str, list[str]] = {}

    def arg(self, name, axes, dims, dtype=None, **more):
        dtype = dtype or self.dtype
        shape = [SIZES.get(dim) for dim in dims.split()]
        described = {"name": name, "dtype": dtype, "axes": axes.split(), "dims": dims.split(), "shape": shape, "fill": None}
        self.tree["args"].append(described | more)
        self.dtypes[name], self.dims[name] = dtype, dims.split()
        return name

    def qkv(self, kv="b hkv", q="b hq"):
        return self.arg("q", q, "m d"), self.arg("k", kv, "n d"), self.arg("v", kv, "n dv")

    def step(self, op, inputs, dims, dtype="f32", results=1, **attributes):
        out = [f"%{len(self.dims) + k}" for k in range(results)]
        kept = {"dtype": dtype} if op in ("gemm", "map", "cast") else {}
        self.tree["body"].append({"op": op, "in": inputs, "out": out, **kept, **attributes})
        for name, own in zip(out, dims):
            self.dtypes[name], self.dims[name] = dtype, list(own)
        return out[0] if results == 1 else out

    def gemm(self, a, b, ta=False, tb=False):
        dims = (self.dims[a][1 if ta else 0], self.dims[b][0 if tb else 1])
        return self.step("gemm", [a, b], [dims], transpose_a=ta, transpose_b=tb)

    def scores(self, q="q", k="k"):
        return self.gemm(q, k, tb=True)

    def _builder(self, inputs):
        tensors = {a["name"]: (a["dtype"], len(a["dims"])) for a in self.tree["args"]}
        return ExprBuilder([self.dtypes[name] for name in inputs], tensors)

    def map(self, inputs, body):
        """`body(e, x0, x1, ...)` with e an ExprBuilder; bf16 elements come as f32."""
        e = self._builder(inputs)
        expr = e.build(body(e, *[e.cast(e.x(k), "f32") for k in range(len(inputs))]))
        dims = max((self.dims[name] for name in inputs), key=len)
        return self.step("map", inputs, [dims], expr=expr)

    def scaled(self, x, factor=0.5):
        return self.map([x], lambda e, x: e.op("mul", x, e.const(factor, "f32")))

    def mask(self, x, body):
        e = self._builder([])
        return self.step("mask", [x], [self.dims[x]], expr=e.build(body(e, e.index("i"), e.index("j"))))

    def causal(self, x):
        return self.mask(x, lambda e, i, j: e.op("le", j, i))

    def softmax(self, x):
        return self.step("softmax", [x], [self.dims[x], self.dims[x][:1]], results=2)

    def cast(self, x, dtype=None):
        dtype = dtype or self.dtype
        return self.step("cast", [x], [self.dims[x]], dtype)

    def reduce(self, x, kind="sum", dim=None):
        dims = list(self.dims[x])
        dims.pop(len(dims) - 1 if dim is None else dim)
        return self.step("reduce", [x], [dims], kind=kind, **({} if dim is None else {"dim": dim}))

    def output(self, p, v="v"):
        return self.gemm(self.cast(p), v)

    def result(self, name, value, axes="b hq", cast=False):
        value = self.cast(value) if cast else value
        dims = self.dims[value]
        shape = [SIZES.get(dim) for dim in dims]
        described = {"name": name, "value": value, "dtype": self.dtypes[value], "axes": axes.split(), "dims": dims, "shape": shape}
        self.tree["results"].append(described)

    def text(self) -> str:
        return to_mlir(self.tree)


def attention(score=None, mask=None, after=None, **options) -> Program:
    """Softmax attention; `score(p, s)` and `after(p, P)` make a value of a value, `mask(p, s)` too."""
    p = Program(**options)
    p.qkv()
    s = p.scaled(p.scores())
    s = score(p, s) if score else s
    s = mask(p, s) if mask else s
    probabilities, lse = p.softmax(s)
    probabilities = after(p, probabilities) if after else probabilities
    p.result("o", p.output(probabilities), cast=True)
    p.result("lse", lse)
    return p
