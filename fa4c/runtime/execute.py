"""Run an artifact on torch tensors: checks, choice of backend, and the cuda path's cache of plans.

A `Runner` is one combination of artifact, shapes, strides, wanted outputs, device and thread. The first call of a combination plans and
binds it; later calls look it up, write addresses and launch.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable

import torch

from . import counters, cuda, reference
from .artifact import Artifact
from .errors import BackendError, InputError, InputTypeError, nearest
from .layout import contiguous_strides
from .plan import Fill, Plan, Tensor, Workspace
from .torch_types import TORCH, name_of

BACKENDS = ("cuda", "emulator", "reference")
_MAX_RUNNERS = 1024  # for each thread; a server with ever new shapes starts over then
_local = threading.local()


def execute(
    artifact: Artifact,
    inputs: dict[str, torch.Tensor],
    *,
    backend: str | None = None,
    outputs: dict[str, torch.Tensor] | None = None,
    want=None,
) -> dict[str, torch.Tensor]:
    """Outputs of `artifact` for `inputs`.

    `inputs`: {name: tensor} in the manifest's layouts (q, k, v: (b, s, h, d)), any strides, one device. `want`: names of the outputs to
    compute (default all; an optional one left out is not written). `outputs`: tensors to write into, by name. `backend`: 'cuda',
    'emulator' or 'reference', else FA4C_BACKEND, else by device. Raises `InputError`, `InputTypeError`, `BackendError`.
    """
    tensors = check_inputs(artifact, inputs)
    wanted = wanted_outputs(artifact, want, outputs)
    device = tensors[0].device if tensors else torch.device("cpu")
    backend = choose_backend(backend, device)
    if backend == "cuda":
        values = runner(artifact, tensors, wanted, device).run(tensors, outputs)
        return dict(zip(wanted, values))
    given = dict(zip((t.name for t in artifact.program.inputs), (t.detach() for t in tensors)))
    sizes = artifact.program.bind({name: tuple(t.shape) for name, t in given.items()})
    if backend == "reference" or is_empty(sizes):
        values = run_reference(artifact.semantics, given, wanted)
    else:
        from . import emulated

        values = emulated.run(artifact, given, wanted)
    return _deliver(values, wanted, outputs)


def run_reference(semantics: dict, inputs: dict[str, torch.Tensor], wanted) -> dict[str, torch.Tensor]:
    """The wanted results in the dtypes a kernel gives, computed in float64 by torch."""
    if not semantics.get("body"):
        raise InputError(
            "the artifact says nothing of its semantics", why="it was compiled from a file below the attn level", fix="use backend='cuda'"
        )
    values = reference.evaluate(semantics, inputs)
    dtypes = {r["name"]: TORCH[r["dtype"]] for r in semantics["results"]}
    return {name: values[name].to(dtypes[name]) for name in wanted}


def is_empty(sizes: dict[str, int]) -> bool:
    """Whether some size is 0: then no kernel is launched, and torch gives the answer (no keys: O = 0, LSE = -inf)."""
    return any(sizes.get(s) == 0 for s in ("b", "hq", "hkv", "m", "n"))


def choose_backend(backend: str | None, device: torch.device) -> str:
    """'cuda', 'emulator' or 'reference': the argument, else FA4C_BACKEND, else cuda for CUDA tensors and the emulator for CPU tensors."""
    source = "backend" if backend else "FA4C_BACKEND"
    backend = backend or os.environ.get("FA4C_BACKEND") or None
    if backend is not None and backend not in BACKENDS:
        raise InputError(f"{source} is {backend!r}{nearest(backend, BACKENDS)}", why=f"the backends are {', '.join(BACKENDS)}")
    if device.type not in ("cuda", "cpu"):
        raise InputError(
            f"the tensors are on {device}",
            why="fa4c runs on CUDA devices, and on the CPU by the emulator or the reference",
            fix="move the tensors",
        )
    if backend == "cuda" and device.type != "cuda":
        raise InputError(
            "backend 'cuda' needs CUDA tensors, but these are on the CPU",
            fix="move the tensors to the GPU, or use 'emulator' or 'reference'",
        )
    if backend == "emulator" and device.type == "cuda":
        raise InputError("backend 'emulator' needs CPU tensors, but these are on the GPU", fix="move the tensors to the CPU, or use 'cuda'")
    if backend is None:
        backend = "cuda" if device.type == "cuda" else "emulator"
    if backend == "emulator" and not emulator_available():
        raise BackendError(
            "the emulator backend is not there",
            why="CPU tensors run by the PTX emulator, which this build lacks",
            fix="use backend='reference' (float64 in torch), or CUDA tensors on a matching GPU",
        )
    return backend


def emulator_available() -> bool:
    """Whether CPU tensors can run here."""
    try:
        from . import emulated

        return emulated.available()
    except ImportError:
        return False


def check_inputs(artifact: Artifact, inputs: dict) -> list[torch.Tensor]:
    """The input tensors in the manifest's order, after checks of names, kinds, dtypes and devices (shapes are checked when planning)."""
    program = artifact.program
    names = [t.name for t in program.inputs]
    for name in inputs:
        if name not in names:
            raise InputError(
                f"there is no input {name!r}{nearest(name, names)}", where=artifact.path, why=f"the inputs are {', '.join(names)}"
            )
    tensors = []
    for spec in program.inputs:
        if spec.name not in inputs:
            raise InputError(
                f"the input {spec.name!r} is missing",
                where=artifact.path,
                why=f"the inputs are {', '.join(names)}",
                fix=f"pass {spec.name}, a {spec.dtype} tensor ({', '.join(spec.layout)})",
            )
        tensors.append(check_tensor(spec, inputs[spec.name], artifact.path))
    check_devices(names, tensors, artifact.path)
    return tensors


def check_tensor(spec: Tensor, tensor, where: str) -> torch.Tensor:
    """The tensor; raises `InputTypeError` unless it is strided and of the manifest's dtype. Shapes are checked when planning."""
    if not isinstance(tensor, torch.Tensor):
        raise InputTypeError(f"{spec.name} is {type(tensor).__name__}, not a torch.Tensor", where=where, fix="torch.as_tensor(...)")
    if tensor.layout != torch.strided:
        raise InputTypeError(
            f"{spec.name} has the layout {tensor.layout}",
            where=where,
            why="kernels read strided memory",
            fix="pass a dense tensor: x.to_dense()",
        )
    if tensor.dtype != TORCH[spec.dtype]:
        raise InputTypeError(
            f"{spec.name} is {tensor.dtype}, but this kernel takes {TORCH[spec.dtype]}",
            where=where,
            why="the dtype is part of the compiled kernel",
            fix=f"convert it: x.to({TORCH[spec.dtype]}), or compile for {name_of(tensor.dtype)}",
        )
    return tensor


def check_devices(names, tensors, where: str = "fa4c") -> None:
    """Raises `InputError` unless all are on one device."""
    for name, tensor in zip(names, tensors):
        if tensor.device != tensors[0].device:
            raise InputError(
                f"{name} is on {tensor.device}, but {names[0]} is on {tensors[0].device}", where=where, fix="move all inputs to one device"
            )


def wanted_outputs(artifact: Artifact, want, outputs) -> tuple[str, ...]:
    """Names in the manifest's order: all, or those in `want` and all that are not optional. Raises `InputError` for an unknown name in
    `want` or in `outputs` (tensors to write to, by name).
    """
    program = artifact.program
    names = [t.name for t in program.outputs]
    for name in [*(want or ()), *(outputs or ())]:
        if name not in names:
            raise InputError(
                f"there is no output {name!r}{nearest(name, names)}", where=artifact.path, why=f"the outputs are {', '.join(names)}"
            )
    if want is None:
        return tuple(names)
    return tuple(t.name for t in program.outputs if t.name in want or not t.optional)


def runner(artifact: Artifact, tensors, wanted: tuple[str, ...], device: torch.device) -> Runner:
    """This thread's `Runner` for these shapes and strides, made at the first call."""
    key = (id(artifact), wanted, device.index, *[(t.shape, t.stride()) for t in tensors])
    runners = _local.__dict__.setdefault("runners", {})
    found = runners.get(key)
    if found is None or found.artifact is not artifact:
        if len(runners) >= _MAX_RUNNERS:
            runners.clear()
        found = runners[key] = Runner(artifact, tensors, wanted, device)
    return found


class Runner:
    """`run(tensors, outputs=None)` gives a list of the wanted outputs, for the shapes, strides, dtypes and device it was made for.

    Inputs that the kernels cannot read where they lie are copied, each alone: those whose strides say so are known when the runner is
    made, those whose base is no multiple of 16 bytes are seen in each call.
    """

    def __init__(self, artifact: Artifact, tensors, wanted: tuple[str, ...], device: torch.device):
        cuda.check_target(artifact.target, device.index, artifact.path)
        program = artifact.program
        self.artifact, self.wanted, self.device, self.index = artifact, wanted, device, device.index
        self.names = [t.name for t in program.inputs]
        self.mapped = [bool(t.maps) for t in program.inputs]
        self.geometry = {t.name: (tuple(x.shape), tuple(x.stride())) for t, x in zip(program.inputs, tensors)}
        self.sizes = program.bind({name: shape for name, (shape, _) in self.geometry.items()})
        self.empty = is_empty(self.sizes)
        zero = not self.empty and cuda.zero_stride()
        self.copied = frozenset(
            n for n, (shape, strides) in self.geometry.items() if not self.empty and program.layout_problem(n, shape, strides, zero)
        )
        self.bound: dict = {}
        self.plain = None
        counters.count("plans")

    def run(self, tensors, outputs=None):
        if self.empty:
            return self._run_empty(tensors, outputs)
        if _current_device() != self.index:
            with torch.cuda.device(self.index):
                return self.run(tensors, outputs)
        addresses, low = [], 0  # of the inputs, then of the results, then of the workspaces
        for tensor in tensors:
            address = tensor.data_ptr()
            addresses.append(address)
            low |= address
        bound = self._bind(tensors, addresses) if low & 15 or self.plain is None else self.plain
        if bound.copied:
            tensors = self._copy(bound.copied, tensors, addresses)
        results = self._given(bound.templates, outputs) if outputs else [*map(torch.empty_like, bound.templates)]
        for result in results:
            addresses.append(result.data_ptr())
        stream, buffers = _raw_stream(self.index), None
        if bound.needs_buffers:
            workspaces = [_workspace(self, workspace, make, stream) for workspace, make in bound.workspaces]
            addresses += [workspace.data_ptr() for workspace in workspaces]
            buffers = [*tensors, *results, *workspaces]
        for step in bound.steps:
            step(addresses, buffers, stream)
        return self._handed_back(results, outputs) if outputs else results

    def _bind(self, tensors, addresses) -> _Bound:
        """The bound plan for the alignments of these addresses."""
        program = self.artifact.program
        aligned = {("aligned", name, n): self._is_aligned(name, n, tensors, addresses) for name, n in program.alignments}
        off = frozenset(n for n, mapped, address in zip(self.names, self.mapped, addresses) if mapped and address % 16)
        key = off, tuple(aligned.values())
        bound = self.bound.get(key)
        if bound is None:
            copied = self.copied | off
            geometry = {n: (shape, contiguous_strides(shape) if n in copied else strides) for n, (shape, strides) in self.geometry.items()}
            for name in copied:
                reason = program.layout_problem(name, *geometry[name])
                if reason:
                    raise InputError(
                        f"{name} has the shape {geometry[name][0]}, which TMA cannot describe even when contiguous: {reason}",
                        where=self.artifact.path,
                        fix="make the innermost dimension a multiple of 16 bytes",
                    )
            plan = program.plan(geometry, self.wanted, cuda.properties(self.index), aligned)
            bound = self.bound[key] = _Bound(self, plan, copied)
            if not off and not program.alignments:
                self.plain = bound
        return bound

    def _is_aligned(self, name, n, tensors, addresses) -> bool:
        if name in self.copied or name not in self.names:
            return n <= 16
        place = self.names.index(name)
        tensor, step = tensors[place], tensors[place].element_size()
        return addresses[place] % n == 0 and all(s * step % n == 0 for s, size in zip(tensor.stride(), tensor.shape) if size > 1 and s != 1)

    def _copy(self, names, tensors, addresses):
        """Copies of the tensors that cannot be read in place; the returned list keeps them alive until the launch."""
        tensors = list(tensors)
        for k, name in enumerate(self.names):
            if name in names:
                tensors[k] = tensors[k].detach().clone(memory_format=torch.contiguous_format)
                addresses[k] = tensors[k].data_ptr()
                counters.count("copies")
                counters.count(f"copies.{name}")
        return tensors

    def _given(self, templates, outputs) -> list[torch.Tensor]:
        """What the kernels write: the caller's tensors where they can."""
        results = []
        for name, template in zip(self.wanted, templates):
            given = outputs.get(name)
            if given is not None and (given.shape, given.dtype, given.device) != (template.shape, template.dtype, template.device):
                raise InputError(
                    f"the output {name} is {tuple(given.shape)} {given.dtype} on {given.device}, but must be {tuple(template.shape)} "
                    f"{template.dtype} on {template.device}",
                    where=self.artifact.path,
                )
            in_place = given is not None and given.is_contiguous() and given.data_ptr() % 16 == 0
            results.append(given if in_place else torch.empty_like(template))
        return results

    def _handed_back(self, results, outputs) -> list[torch.Tensor]:
        """The caller's tensors where given, written to behind the launch where the kernels could not."""
        given = [outputs.get(name) for name in self.wanted]
        return [result if to is None or to is result else to.copy_(result) for to, result in zip(given, results)]

    def _run_empty(self, tensors, outputs):
        counters.count("empty")
        values = run_reference(self.artifact.semantics, dict(zip(self.names, (t.detach() for t in tensors))), self.wanted)
        return [*_deliver(values, self.wanted, outputs).values()]


class _Bound:
    """A plan's steps with what they need: `templates` of the results, `workspaces` with functions that make them, names of the inputs that
    are `copied`."""

    __slots__ = ("steps", "templates", "copied", "workspaces", "needs_buffers")

    def __init__(self, runner: Runner, plan: Plan, copied):
        names = [*runner.names, *runner.wanted, *(w.name for w in plan.workspaces)]
        self.steps = cuda.bind(runner.artifact, plan, runner.index, {name: place for place, name in enumerate(names)})
        dtypes = [TORCH[runner.artifact.program.tensors[name].dtype] for name in runner.wanted]
        self.templates = [_template(plan.output_shapes[name], dtype, runner.device) for name, dtype in zip(runner.wanted, dtypes)]
        self.copied, self.workspaces = copied, [(w, _maker(w, runner.device)) for w in plan.workspaces]
        self.needs_buffers = bool(plan.workspaces) or any(isinstance(s, Fill) for s in plan.steps)


def _maker(workspace: Workspace, device: torch.device) -> Callable:
    like = torch.zeros_like if workspace.init == "zero" else torch.empty_like
    return functools.partial(like, _template(max(workspace.size, 1), TORCH[workspace.dtype], device))


def _template(shape, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor without memory: `empty_like` of one takes half the time of `empty`, whose arguments are read again in each call."""
    template = torch.empty(shape, dtype=dtype, device=device)
    template.untyped_storage().resize_(0)
    return template


def _deliver(values: dict, wanted, outputs) -> dict[str, torch.Tensor]:
    """The results, written into the caller's `outputs` where given."""
    return {name: outputs[name].copy_(values[name]) if outputs and name in outputs else values[name] for name in wanted}


def _workspace(owner: Runner, workspace: Workspace, make: Callable, stream: int) -> torch.Tensor:
    """A buffer for one call, or this thread's own cached one of (artifact, device, stream).

    While a graph is captured even a cached workspace is fresh: its memory must belong to the graph, and a zeroed one must be zeroed
    again on every replay.
    """
    if workspace.lifetime == "call" or torch.cuda.is_current_stream_capturing():
        return make()
    cached = _local.__dict__.setdefault("workspaces", {})
    key = owner.artifact.digest, workspace.name, owner.index, stream
    if key not in cached or cached[key].numel() < workspace.size:
        cached[key] = make()
    return cached[key]


# `torch.cuda.current_device` sees to it that CUDA is initialised, in Python; this does so by itself
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
try:
    _raw_stream = torch._C._cuda_getCurrentRawStream  # the stream's handle without building a Stream object
except AttributeError:  # a torch without CUDA, or without this shortcut

    def _raw_stream(index: int) -> int:
        return torch.cuda.current_stream(index).cuda_stream
