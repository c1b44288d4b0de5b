"""The emulator backend: plans a call as the cuda backend does, then executes each launch's PTX on the CPU.

The emulator works on NumPy arrays at addresses of its own, so tensors are passed as the span of memory they cover; TMA descriptors come
from the same plan. Hazards that it reports (races, missing waits, bad addresses) are errors here; `run_reported` gives the reports.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import counters, tensor_map
from .errors import BackendError
from .plan import Fill, Launch
from .torch_types import TORCH

# what a manifest may ask about the device, of the machine that a target stands for (H200, B200)
DEVICES = {"sm_90a": {"num_sms": 132, "l2_bytes": 50 << 20}, "sm_100a": {"num_sms": 148, "l2_bytes": 126 << 20}}


def available() -> bool:
    """Whether the emulator can be imported."""
    try:
        from . import emulator
    except ImportError:
        return False
    return hasattr(emulator, "launch")


def run(artifact, given: dict[str, torch.Tensor], wanted, **options) -> dict[str, torch.Tensor]:
    """{output: tensor}. Raises `BackendError` if the emulator reports a hazard; `options` as in `run_reported`."""
    from .emulator import EmulatorError

    try:
        outputs, reports = run_reported(artifact, given, wanted, **options)
    except EmulatorError as error:
        raise BackendError(error.what, where=error.where, why=error.why, fix=error.fix) from error
    bad = next((r for r in reports if not r.ok), None)
    if bad is not None:
        name_sources(artifact, bad)
        raise BackendError(
            f"the emulated kernel {bad.entry} has hazards",
            where=artifact.path,
            why=bad.text(),
            fix="this is a fault of the compiled kernel: please report it with the artifact",
        )
    return outputs


def run_reported(artifact, given: dict[str, torch.Tensor], wanted, *, workspaces: dict[str, torch.Tensor] | None = None,
                 **options) -> tuple[dict[str, torch.Tensor], list]:
    """(outputs, one report for each launch). `workspaces`, where given, is filled with what the launches leave in theirs. `options` go to
    `emulator.launch`: schedule, schedule_seed, hazards, strict, progress, processes."""
    from .emulator import launch

    program = artifact.program
    tensors = dict(given)
    for name, t in given.items():
        if program.layout_problem(name, tuple(t.shape), t.stride()):
            tensors[name] = t.clone(memory_format=torch.contiguous_format)
            counters.count("copies")
            counters.count(f"copies.{name}")
    geometry = {name: (tuple(t.shape), t.stride()) for name, t in tensors.items()}
    aligned = {("aligned", name, n): _aligned(tensors.get(name), n) for name, n in program.alignments}
    plan = program.plan(geometry, wanted, DEVICES[artifact.target], aligned)
    for name, shape in plan.output_shapes.items():
        tensors[name] = _poison(shape, TORCH[program.tensors[name].dtype])
    for w in plan.workspaces:
        shape, dtype = (max(w.size, 1),), TORCH[w.dtype]
        tensors[w.name] = _poison(shape, dtype) if w.init == "none" else torch.zeros(shape, dtype=dtype)
    poisoned = set(plan.output_shapes) | {w.name for w in plan.workspaces if w.init == "none"}
    buffers = {name: _buffer(name, t, name in plan.output_shapes or name not in given, name in poisoned) for name, t in tensors.items()}
    reports, after = [], None
    for step in plan.steps:
        if isinstance(step, Fill):
            after = None
            tensors[step.buffer].fill_(step.value)
            buffers[step.buffer] = _buffer(step.buffer, tensors[step.buffer], True, False)
        else:
            kernel = artifact.manifest["kernels"][step.kernel]
            reports.append(
                launch(
                    artifact.members[kernel["ptx"]].decode(),
                    kernel["entry"],
                    step.grid,
                    kernel["block"],
                    kernel["cluster"],
                    kernel["smem_bytes"],
                    _parameters(step, buffers),
                    file=kernel["ptx"],
                    after=after if kernel.get("pdl") else None,
                    **options,
                )
            )
            after = reports[-1]
    if workspaces is not None:
        workspaces |= {w.name: tensors[w.name] for w in plan.workspaces}
    return {name: tensors[name] for name in wanted}, reports


def _poison(shape, dtype) -> torch.Tensor:
    """Memory that nothing has written: values that spoil a result, also where hazards are not looked for."""
    return torch.full(shape, float("nan") if dtype.is_floating_point else -1, dtype=dtype)


# (source, name, target) -> PTX with line information. Who has the compiler sets it; the runtime works without, and knows none.
rebuild: Callable[[str, str, str], str] | None = None


def name_sources(artifact, report) -> None:
    """Add to each hazard the CuTe-DSL lines and IR ops of its PTX lines, or a note why not. Compiles the artifact's own source again."""
    from .emulator.source_lines import describe, map_lines

    ptx_name = report.file
    source_name = ptx_name.removesuffix(".ptx") + ".cute.py"
    if source_name not in artifact.members:
        report.notes.append(f"PTX lines only: the artifact holds no {source_name}")
        return
    source = artifact.members[source_name].decode()
    if rebuild is None:
        report.notes.append("PTX lines only: CuTe lines need the compiler, as in `fa4c run`")
        return
    try:
        located = rebuild(source, source_name.removesuffix(".cute.py"), artifact.target)
    except Exception as error:  # the hazards matter more than their lines
        report.notes.append(f"PTX lines only: {source_name} does not compile here: {str(error).splitlines()[0]}")
        return
    lines = map_lines(artifact.members[ptx_name].decode(), located, source_name)
    if lines is None:
        report.notes.append(f"PTX lines only: {source_name} compiles to other instructions here than the artifact's, with another compiler")
        return
    for hazard in report.hazards:
        hazard.sources = tuple(describe(source, source_name, lines[n]) if n in lines else "" for n in hazard.lines)


def _parameters(step: Launch, buffers: dict) -> list:
    from .emulator import TensorMap

    found = []
    for param in step.params:
        if param.tensor is None:
            found.append(param.data)
        elif param.map is None:
            found.append(buffers[param.tensor])
        else:
            m: tensor_map.MapSpec = param.map
            found.append(TensorMap(buffers[param.tensor], m.dtype, m.shape, m.strides, m.box, m.swizzle))
    return found


def _buffer(name: str, t: torch.Tensor, writable: bool, poison: bool):
    """The memory that `t` covers, from its first to its last element, as a flat array that shares it (bf16 as 16-bit integers)."""
    from .emulator import Buffer

    span = 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride())) if t.numel() else 0
    flat = torch.as_strided(t.detach(), (span,), (1,))
    if t.dtype == torch.bfloat16:
        flat = flat.view(torch.int16)
    return Buffer(flat.numpy(), writable, name=name, poison=poison, dtype={torch.bfloat16: "bf16"}.get(t.dtype))


def _aligned(t: torch.Tensor | None, n: int) -> bool:
    """Buffers lie at multiples of 128 bytes in the emulator; strides are the tensor's."""
    if t is None:
        return n <= 128
    step = t.element_size()
    return n <= 128 and all(s * step % n == 0 for s, size in zip(t.stride(), t.shape) if size > 1 and s != 1)


__all__ = ["available", "name_sources", "run", "run_reported"]
