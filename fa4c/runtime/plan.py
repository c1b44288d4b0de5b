"""From a manifest and the tensors' shapes and strides to launches with all values filled in, but for the addresses. No GPU needed.

`Program` is the manifest made ready once for each artifact. `Program.plan` does the work of one combination of shapes, strides and
wanted outputs; backends keep the result and later only write addresses into it. Offsets and strides are Python integers: a value that
does not fit its parameter is an error, never cut.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from . import tensor_map
from .errors import BackendError, InputError
from .iexpr import Closure, compile_expr
from .layout import ITEMSIZE, bind_sizes, contiguous_strides, static_dims
from .manifest import all_alignments, layouts_of, symbols_of

_RANGE = {"i32": (-(1 << 31), 1 << 32), "i64": (-(1 << 63), 1 << 64)}
_PACK = {("i32", False): "<I", ("i32", True): "<i", ("i64", False): "<Q", ("i64", True): "<q"}
_GRID_LIMIT = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True)
class Tensor:
    """A tensor of the manifest: `layout` names its dimensions in memory; `maps` are its tensor_map parameters, `stride_dims` the
    dimensions whose stride each kernel that takes its pointer is given (None: no kernel takes it by pointer)."""

    name: str
    dtype: str
    layout: tuple[str, ...]
    static: dict[str, int]
    optional: bool
    maps: tuple[dict, ...]
    stride_dims: frozenset[str] | None


@dataclass(frozen=True)
class Param:
    """One kernel parameter: `data` complete, or (`tensor` given) with an address to write into its first 8 bytes."""

    data: bytes
    tensor: str | None = None
    map: tensor_map.MapSpec | None = None


@dataclass(frozen=True)
class Launch:
    """A step: a kernel of the manifest by name, its grid in CTAs, its parameters in order."""

    kernel: str
    grid: tuple[int, int, int]
    params: tuple[Param, ...]


@dataclass(frozen=True)
class Fill:
    """A step: all elements of a tensor or workspace become `value`."""

    buffer: str
    value: float


@dataclass(frozen=True)
class Workspace:
    """`size` in elements."""

    name: str
    dtype: str
    size: int
    init: str
    lifetime: str


@dataclass
class Plan:
    """What one combination of shapes runs. `empty`: some size is 0, nothing may be launched."""

    sizes: dict[str, int]
    output_shapes: dict[str, tuple[int, ...]]
    steps: list[Launch | Fill] = field(default_factory=list)
    workspaces: list[Workspace] = field(default_factory=list)
    empty: bool = False


class Program:
    """A manifest ready to plan with. `inputs` and `outputs` are `Tensor`s in the manifest's order."""

    def __init__(self, manifest: dict, where: str):
        self.manifest, self.where = manifest, where
        self.alignments = all_alignments(manifest)
        tensors = {t["name"]: self._tensor(t) for t in manifest["tensors"]}
        self.inputs = [tensors[t["name"]] for t in manifest["tensors"] if t["role"] == "input"]
        self.outputs = [tensors[t["name"]] for t in manifest["tensors"] if t["role"] == "output"]
        self.tensors = tensors
        self.layouts = {name: tuple(layout) for name, layout in layouts_of(manifest).items()}
        self.constants = {k: v for k, v in manifest.get("head_dims", {}).items() if isinstance(v, int)}
        symbols = symbols_of(manifest)

        def expr(value, path) -> Closure:
            return compile_expr(value, symbols, tensors, f"{where}: {path}")

        self._workspaces = [(w, expr(w["size"], f"workspaces.{w['name']}.size")) for w in manifest["workspaces"]]
        self._steps = [(s, None if s.get("when") is None else expr(s["when"], f"steps[{k}].when")) for k, s in enumerate(manifest["steps"])]
        self._kernels = {}
        for name, kernel in manifest["kernels"].items():
            grid = [expr(e, f"kernels.{name}.grid[{k}]") for k, e in enumerate(kernel["grid"])]
            values = [
                expr(p["value"], f"kernels.{name}.params[{k}]") if isinstance(p.get("value"), (int, str, list)) else None
                for k, p in enumerate(kernel["params"])
            ]
            self._kernels[name] = (kernel, grid, values)

    def _tensor(self, t: dict) -> Tensor:
        maps, strides = [], None
        for kernel in self.manifest["kernels"].values():
            mine = [p for p in kernel["params"] if p.get("tensor") == t["name"]]
            maps += [p for p in mine if p["kind"] == "tensor_map"]
            if any(p["kind"] == "pointer" for p in mine):
                given = frozenset(p["dim"] for p in mine if p["kind"] == "stride")
                strides = given if strides is None else strides & given
        return Tensor(t["name"], t["dtype"], tuple(t["layout"]), static_dims(t), t.get("optional", False), tuple(maps), strides)

    def bind(self, shapes: dict[str, tuple]) -> dict[str, int]:
        """Sizes of all dimensions from the input shapes; raises `InputError`."""
        sizes = bind_sizes([(t.name, t.layout, t.static) for t in self.inputs], shapes, self.where)
        return {**self.constants, **{d: s for t in self.outputs for d, s in t.static.items()}, **sizes}

    def layout_problem(self, name: str, shape, strides, zero_stride: bool = False) -> str | None:
        """Why the kernels cannot take this tensor as it lies in memory (then it is copied), or None."""
        t = self.tensors[name]
        for param in t.maps:
            order = [t.layout.index(d["dim"]) for d in param["dims"]]
            reason = tensor_map.problem([shape[k] for k in order], [strides[k] for k in order], ITEMSIZE[t.dtype], zero_stride)
            if reason:
                return reason
        if t.stride_dims is not None:
            for dim, size, stride, packed in zip(t.layout, shape, strides, contiguous_strides(shape)):
                if dim not in t.stride_dims and size > 1 and stride != packed:
                    return f"the stride of {dim} is {stride}, and the kernel is not told strides of {dim}"
        return None

    def plan(self, geometry: dict[str, tuple], wanted, device: dict[str, int], aligned: dict | None = None) -> Plan:
        """Plan one combination.

        `geometry`: {input: (shape, strides)}, and of any output whose strides are not the packed ones; `wanted`: names of the outputs
        to compute; `device`: num_sms, l2_bytes; `aligned`: {("aligned", tensor, bytes): bool} for each of `self.alignments`.
        """
        sizes = self.bind({t.name: geometry[t.name][0] for t in self.inputs})
        shapes = {t.name: tuple(self._size(sizes, d, t.name) for d in t.layout) for t in self.outputs}
        plan = Plan(sizes, {name: shape for name, shape in shapes.items() if name in wanted})
        plan.empty = any(sizes.get(s) == 0 for s in ("b", "hq", "hkv", "m", "n"))
        if plan.empty:
            return plan
        geometry = {**{name: (shape, contiguous_strides(shape)) for name, shape in shapes.items()}, **geometry}
        env = {**sizes, **device, **(aligned or {})}
        for name in ("b", "hq", "hkv", "m", "n", "d", "dv"):
            env.setdefault(name, 1)  # an expression may name an axis that this variant lacks
        geometry.update({w["name"]: _workspace_geometry(w, env) for w, _ in self._workspaces if "dims" in w})
        for step, when in self._steps:
            if when is not None and not when(env):
                continue
            if step["op"] == "fill":
                if step["buffer"] not in shapes or step["buffer"] in wanted:
                    plan.steps.append(Fill(step["buffer"], step["value"]))
            else:
                plan.steps.append(self._launch(step["kernel"], geometry, wanted, env))
        if not any(isinstance(s, Launch) for s in plan.steps):
            raise BackendError(
                f"no step of this artifact is for the sizes {sizes}",
                where=self.where,
                why="every launch has a 'when' that does not hold here",
                fix="compile the variant again with a configuration for these sizes",
            )
        used = _buffers_of(plan.steps)
        plan.workspaces = [
            Workspace(w["name"], w["dtype"], size(env), w["init"], w["lifetime"]) for w, size in self._workspaces if w["name"] in used
        ]
        return plan

    def _size(self, sizes, dim, name):
        if dim not in sizes:
            raise InputError(f"the size of {dim} (of the output {name}) is given by no input", where=self.where)
        return sizes[dim]

    def _launch(self, name, geometry, wanted, env) -> Launch:
        kernel, grid, values = self._kernels[name]
        size = tuple(g(env) for g in grid)
        for axis, count, limit in zip("xyz", size, _GRID_LIMIT):
            if not 1 <= count <= limit:
                raise BackendError(
                    f"grid.{axis} = {count} for kernel {name}, not in 1..{limit}",
                    where=self.where,
                    why=f"the sizes are { ({k: v for k, v in env.items() if isinstance(k, str)}) }",
                    fix="use smaller sizes in one call",
                )
        return Launch(
            name,
            size,
            tuple(
                self._param(f"{name}.params[{k}]", p, v, geometry, wanted, env) for k, (p, v) in enumerate(zip(kernel["params"], values))
            ),
        )

    def _param(self, path, param, value, geometry, wanted, env) -> Param:
        kind, name = param["kind"], param.get("tensor")
        if kind == "scalar":
            return Param(self._scalar(path, param, value, env))
        tensor = self.tensors.get(name)
        unwanted = tensor in self.outputs and name not in wanted
        if kind == "stride":
            return Param(struct.pack("<q", geometry[name][1][self.layouts[name].index(param["dim"])]))
        if kind == "pointer":
            return Param(bytes(8), None if unwanted else name)
        return Param(bytes(128), None if unwanted else name, tensor_map.spec(param, self.layouts[name], *geometry[name]))

    def _scalar(self, path, param, value, env) -> bytes:
        dtype = param["dtype"]
        if dtype == "f32":
            return struct.pack("<f", param["value"] if value is None else value(env))
        number = value(env)
        low, high = _RANGE[dtype]
        if not low <= number < high:
            raise BackendError(
                f"{path} is {number} and does not fit {dtype}",
                where=self.where,
                why=f"the sizes are { ({k: v for k, v in env.items() if isinstance(k, str)}) }",
                fix="use smaller sizes in one call",
            )
        return struct.pack(_PACK[dtype, number < 0], number)


def _buffers_of(steps) -> set[str]:
    """Names of all tensors and workspaces that these steps read or write."""
    fills = {step.buffer for step in steps if isinstance(step, Fill)}
    return fills.union(*({p.tensor for p in step.params if p.tensor is not None} for step in steps if isinstance(step, Launch)))


def _workspace_geometry(w: dict, env: dict) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(shape, strides in elements) of a workspace: packed rows, of which each is padded to a multiple of `pad` elements."""
    shape = tuple(env[dim] if size is None else size for dim, size in zip(w["dims"], w["shape"]))
    pad = w.get("pad", 1)
    return shape, contiguous_strides((*shape[:-1], -(-shape[-1] // pad) * pad))
