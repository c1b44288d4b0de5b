"""The manifest's schema: checked once on load, every complaint with its path inside the file.

`docs/architecture.md` describes the fields. Unknown fields are refused where they would change a launch (params, steps, workspaces)
and ignored where they only inform (top level, kernels).
"""

from __future__ import annotations

from .errors import ManifestError, nearest
from .iexpr import alignments, compile_expr
from .layout import ITEMSIZE

SCHEMA = 1
TARGETS = {"sm_90a": (9, 0), "sm_100a": (10, 0)}  # target -> compute capability of the GPUs it runs on
SYMBOLS = ("b", "hq", "hkv", "m", "n", "d", "dv", "num_sms", "l2_bytes")
DIRECTIONS = ("fwd", "bwd", "both")
_MAP_DTYPES = ("bf16", "fp16", "f32")
_SCALARS = {"i32": (-(2**31), 2**32), "i64": (-(2**63), 2**64), "f32": None}
_PARAMS = {
    "tensor_map": {"tensor", "dtype", "dims", "box", "swizzle"},
    "pointer": {"tensor"},
    "stride": {"tensor", "dim"},
    "scalar": {"dtype", "value"},
}


def validate(manifest, where: str = "manifest.json") -> dict:
    """Return `manifest` if it keeps the schema, else raise `ManifestError` that names the place and what belongs there."""
    return _Checker(manifest, where).run()


def symbols_of(manifest: dict) -> set[str]:
    """All symbols that an expression of this manifest may use: the problem's, the device's, and private dims of its tensors."""
    return set(SYMBOLS).union(*(t["layout"] for t in manifest["tensors"]))


def layouts_of(manifest: dict) -> dict[str, list[str]]:
    """{name: dimension names in memory order} of all tensors and of the workspaces that have dimensions."""
    return {t["name"]: t["layout"] for t in manifest["tensors"]} | {w["name"]: w["dims"] for w in manifest["workspaces"] if "dims" in w}


def all_alignments(manifest: dict) -> list[tuple[str, int]]:
    """Every (tensor, bytes) asked about by an `aligned` of the manifest, sorted: they belong to the plan's key."""
    found: set = set()
    for step in manifest["steps"]:
        found |= alignments(step.get("when"))
    for workspace in manifest["workspaces"]:
        found |= alignments(workspace["size"])
    for kernel in manifest["kernels"].values():
        for expr in kernel["grid"]:
            found |= alignments(expr)
        for param in kernel["params"]:
            found |= alignments(param.get("value"))
    return sorted(found)


class _Checker:
    def __init__(self, manifest, where):
        self.m, self.file = manifest, where

    def run(self) -> dict:
        m = self.m
        if not isinstance(m, dict):
            self.fail("", "the manifest is no JSON object")
        if m.get("schema") != SCHEMA:
            self.fail(
                "schema",
                f"schema {m.get('schema')!r}, but this runtime reads schema {SCHEMA}",
                fix="compile again, or install the fa4c that wrote it",
            )
        for field, kind in (
            ("name", str),
            ("target", str),
            ("direction", str),
            ("dtype", str),
            ("members", dict),
            ("semantics", dict),
            ("tensors", list),
            ("workspaces", list),
            ("steps", list),
            ("kernels", dict),
        ):
            self.field(m, "", field, kind)
        if m["target"] not in TARGETS:
            self.fail(
                "target", f"unknown target {m['target']!r}{nearest(m['target'], TARGETS)}", why=f"this runtime knows {', '.join(TARGETS)}"
            )
        self.choice(m["direction"], "direction", DIRECTIONS)
        self.field(m, "", "forward", dict, {})
        for name, digest in m["members"].items():
            if not isinstance(digest, str) or len(digest) != 64:
                self.fail(f"members.{name}", "needs the SHA-256 of the member as 64 hexadecimal digits")
        self.tensors = self.named(m["tensors"], "tensors", self.tensor)
        self.symbols = symbols_of(m)
        self.workspaces = self.named(m["workspaces"], "workspaces", self.workspace)
        for name, kernel in m["kernels"].items():
            self.kernel(f"kernels.{name}", kernel)
        for k, step in enumerate(m["steps"]):
            self.step(f"steps[{k}]", step)
        self.backward()
        return m

    def backward(self):
        """`backward` of an artifact of both directions: a whole manifest, of kernels for the same problem, in the same zip."""
        both = self.m["direction"] == "both"
        inner = self.field(self.m, "", "backward", dict, None if not both else ...)
        if inner is None:
            return
        if not both:
            self.fail("backward", f"stands in an artifact of direction {self.m['direction']}", fix='its direction is "both"')
        _Checker(inner, f"{self.file}: backward").run()
        for field, wanted in (("direction", "bwd"), *((name, self.m[name]) for name in ("target", "dtype"))):
            if inner[field] != wanted:
                self.fail(f"backward.{field}", f"is {inner[field]!r}, but must be {wanted!r}")
        for name, digest in inner["members"].items():
            if self.m["members"].get(name) != digest:
                self.fail(f"backward.members.{name}", "is no member of the artifact, or its hash differs")

    def fail(self, path, what, why="", fix=""):
        raise ManifestError(what, where=f"{self.file}: {path}" if path else self.file, why=why, fix=fix)

    def field(self, value, path, name, kind, default=...):
        if not isinstance(value, dict):
            self.fail(path, f"is no JSON object: {value!r}")
        if name not in value:
            if default is not ...:
                return default
            self.fail(path, f"the field {name!r} is missing{nearest(name, value)}")
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value[name], kinds) or (isinstance(value[name], bool) and bool not in kinds):
            self.fail(f"{path}.{name}".lstrip("."), f"needs {' or '.join(k.__name__ for k in kinds)}, got {value[name]!r}")
        return value[name]

    def only(self, value, path, known):
        for name in value:
            if name not in known:
                self.fail(path, f"unknown field {name!r}{nearest(name, known)}", why="an unknown field here could change what is launched")

    def choice(self, value, path, known):
        if value not in known:
            self.fail(path, f"{value!r} is none of {', '.join(map(str, known))}{nearest(value, known)}")

    def named(self, items, path, check):
        names = set()
        for k, item in enumerate(items):
            check(f"{path}[{k}]", item)
            if item["name"] in names:
                self.fail(f"{path}[{k}]", f"the name {item['name']!r} is used twice")
            names.add(item["name"])
        return names

    def expr(self, expr, path):
        compile_expr(expr, self.symbols, self.tensors, f"{self.file}: {path}")

    def tensor(self, path, t):
        self.field(t, path, "name", str)
        self.choice(self.field(t, path, "role", str), f"{path}.role", ("input", "output"))
        self.choice(self.field(t, path, "dtype", str), f"{path}.dtype", tuple(ITEMSIZE))
        axes, dims = self.field(t, path, "axes", list), self.field(t, path, "dims", list)
        shape, layout = self.field(t, path, "shape", list), self.field(t, path, "layout", list)
        self.field(t, path, "optional", bool, False)
        if len(shape) != len(dims):
            self.fail(f"{path}.shape", f"has {len(shape)} sizes for the {len(dims)} dims {dims}")
        if sorted(layout) != sorted(axes + dims) and sorted(layout) != sorted([a for a in axes if a != "b"] + dims):
            self.fail(f"{path}.layout", f"{layout} is no order of the axes {axes} and dims {dims}")

    def workspace(self, path, w):
        self.field(w, path, "name", str)
        self.only(w, path, ("name", "dtype", "axes", "dims", "shape", "pad", "size", "init", "lifetime"))
        self.choice(self.field(w, path, "dtype", str), f"{path}.dtype", tuple(ITEMSIZE))
        self.choice(self.field(w, path, "init", str), f"{path}.init", ("none", "zero"))
        self.choice(self.field(w, path, "lifetime", str), f"{path}.lifetime", ("call", "cached"))
        self.expr(self.field(w, path, "size", (int, str, list)), f"{path}.size")
        self.workspace_layout(path, w)
        if w["name"] in self.tensors:
            self.fail(path, f"the workspace {w['name']!r} has the name of a tensor")

    def workspace_layout(self, path, w):
        """Dimensions are there or not; without them only a pointer to the workspace can be passed."""
        axes, dims = self.field(w, path, "axes", list, []), self.field(w, path, "dims", list, [])
        shape = self.field(w, path, "shape", list, [])
        if len(shape) != len(dims):
            self.fail(f"{path}.shape", f"has {len(shape)} sizes for the {len(dims)} dims {dims}")
        if not set(axes) <= set(dims):
            self.fail(f"{path}.axes", f"{axes} are not all among the dims {dims}")
        if self.field(w, path, "pad", int, 1) < 1:
            self.fail(f"{path}.pad", f"needs a positive number of elements, got {w['pad']}")
        for k, (dim, size) in enumerate(zip(dims, shape)):
            if size is None:
                self.choice(dim, f"{path}.dims[{k}]", tuple(sorted(self.symbols)))
            elif not isinstance(size, int) or size < 1:
                self.fail(f"{path}.shape[{k}]", f"needs null or a positive integer, got {size!r}")

    def step(self, path, step):
        op = self.field(step, path, "op", str)
        self.choice(op, f"{path}.op", ("launch", "fill"))
        if op == "launch":
            self.only(step, path, ("op", "kernel", "when"))
            self.choice(self.field(step, path, "kernel", str), f"{path}.kernel", tuple(self.m["kernels"]))
        else:
            self.only(step, path, ("op", "buffer", "value", "when"))
            self.choice(self.field(step, path, "buffer", str), f"{path}.buffer", (*self.workspaces, *self.tensors))
            self.field(step, path, "value", (int, float))
        if step.get("when") is not None:
            self.expr(step["when"], f"{path}.when")

    def kernel(self, path, kernel):
        self.field(kernel, path, "entry", str)
        for image in ("ptx", "cubin"):
            name = self.field(kernel, path, image, (str, type(None)), None)
            if name is not None and name not in self.m["members"]:
                self.fail(f"{path}.{image}", f"names {name!r}, which is no member of the artifact{nearest(name, self.m['members'])}")
        if not kernel.get("ptx") and not kernel.get("cubin"):
            self.fail(path, "needs a 'cubin' or a 'ptx' member")
        for triple in ("block", "cluster"):
            value = self.field(kernel, path, triple, list)
            if len(value) != 3 or not all(isinstance(x, int) and x >= 1 for x in value):
                self.fail(f"{path}.{triple}", f"needs three positive integers, got {value!r}")
        if self.field(kernel, path, "smem_bytes", int) < 0:
            self.fail(f"{path}.smem_bytes", "is negative")
        self.field(kernel, path, "pdl", bool, False)
        grid = self.field(kernel, path, "grid", list)
        if len(grid) != 3:
            self.fail(f"{path}.grid", f"needs three expressions, got {len(grid)}")
        for k, expr in enumerate(grid):
            self.expr(expr, f"{path}.grid[{k}]")
        for k, param in enumerate(self.field(kernel, path, "params", list)):
            self.param(f"{path}.params[{k}]", param)

    def param(self, path, param):
        kind = self.field(param, path, "kind", str)
        self.choice(kind, f"{path}.kind", tuple(_PARAMS))
        self.only(param, path, {"kind"} | _PARAMS[kind])
        if kind == "scalar":
            dtype = self.field(param, path, "dtype", str)
            self.choice(dtype, f"{path}.dtype", tuple(_SCALARS))
            value = self.field(param, path, "value", (int, float, str, list))
            if isinstance(value, float) and dtype != "f32":
                self.fail(f"{path}.value", f"{value!r} is no integer")
            if not isinstance(value, float):
                self.expr(value, f"{path}.value")
            return
        name = self.field(param, path, "tensor", str)
        known = self.tensors | self.workspaces
        self.choice(name, f"{path}.tensor", tuple(sorted(known)))
        layout = layouts_of(self.m).get(name, [])
        if kind == "stride":
            self.choice(self.field(param, path, "dim", str), f"{path}.dim", tuple(layout))
        if kind == "tensor_map":
            self.tensor_map(path, param, layout)

    def tensor_map(self, path, param, layout):
        self.choice(self.field(param, path, "dtype", str), f"{path}.dtype", _MAP_DTYPES)
        self.choice(self.field(param, path, "swizzle", int), f"{path}.swizzle", (0, 32, 64, 128))
        dims, box = self.field(param, path, "dims", list), self.field(param, path, "box", list)
        for k, dim in enumerate(dims):
            self.choice(self.field(dim, f"{path}.dims[{k}]", "dim", str), f"{path}.dims[{k}].dim", tuple(layout))
            self.only(dim, f"{path}.dims[{k}]", ("dim",))
        names = [d["dim"] for d in dims]
        if not 1 <= len(dims) <= 5 or sorted(names) != sorted(layout):
            self.fail(f"{path}.dims", f"{names} must list each of the tensor's {layout} once, at most 5")
        if len(box) != len(dims) or not all(isinstance(x, int) and 1 <= x <= 256 for x in box):
            self.fail(f"{path}.box", f"needs {len(dims)} integers of 1 to 256, got {box!r}")
        if param["tensor"] in self.workspaces:
            self.workspace_rows(path, param, next(w for w in self.m["workspaces"] if w["name"] == param["tensor"]))
        inner = box[0] * ITEMSIZE[param["dtype"]]
        if inner % 16 or (param["swizzle"] and inner > param["swizzle"]):
            self.fail(
                f"{path}.box",
                f"the inner {box[0]} elements are {inner} bytes: not a multiple of 16, or above the swizzle span {param['swizzle']}",
            )

    def workspace_rows(self, path, param, w):
        """Who allocates a workspace can see to it that TMA may read it; an input is looked at in each call."""
        pad, last = w.get("pad", 1), w["shape"][-1]
        row = (pad if last is None else -(-last // pad) * pad) * ITEMSIZE[w["dtype"]]
        if len(w["dims"]) > 1 and row % 16:
            self.fail(
                f"{path}.tensor",
                f"rows of the workspace {w['name']!r} are multiples of {row} bytes",
                why="strides of a TMA descriptor are multiples of 16 bytes",
                fix=f"give the workspace pad = {16 // ITEMSIZE[w['dtype']]}",
            )
        if [d["dim"] for d in param["dims"]] != w["dims"][::-1]:
            self.fail(f"{path}.dims", f"of a workspace must be {w['dims'][::-1]}, innermost first")
