"""launch.json: a launch as data, for `fa4c emulate` and `python -m fa4c.runtime.emulator`. docs/emulator.md describes the fields."""

import argparse
import json
import math
import pathlib
import sys

import numpy as np

from .errors import EmulatorError
from .half import f32_to_bf16
from .launch import Buffer, Scalar, TensorMap, launch
from .launch_schema import BUFFER, LAUNCH, PARAMETERS, THEN, check
from .schedule import stderr_progress

_NUMPY = {
    "bf16": "u2",
    "f16": "f2",
    "fp16": "f2",
    "f32": "f4",
    "f64": "f8",
    "i8": "i1",
    "u8": "u1",
    "i16": "i2",
    "u16": "u2",
    "i32": "i4",
    "u32": "u4",
    "i64": "i8",
    "u64": "u8",
}


class LaunchFile:
    """A parsed launch.json: `buffers` by name, and the launches one after the other as `steps`, each with its `params` in order."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        try:
            self.data = json.loads(self.path.read_text())
        except OSError as e:
            raise EmulatorError(f"cannot read the launch file: {e.strerror}", file=str(path)) from None
        except UnicodeDecodeError as e:
            raise EmulatorError(f"cannot read the launch file: byte {e.start} is no UTF-8", file=str(path)) from None
        except json.JSONDecodeError as e:
            raise EmulatorError(f"not JSON: {e.msg}", file=str(path), line=e.lineno) from None
        check(str(self.path), self.data, LAUNCH, "the file", ("grid", "block", "params"))
        self.specs = self.data.get("buffers", {})
        self.buffers = {name: self._buffer(name, spec) for name, spec in self.specs.items()}
        self.steps = [self.data, *self.data.get("then", [])]
        for k, step in enumerate(self.steps[1:]):
            check(str(self.path), step, THEN, f"launch {k + 1}", ("grid", "block", "params"))
        self.params = [[self._param(k, p) for k, p in enumerate(step["params"])] for step in self.steps]

    def fail(self, what, why="", fix=""):
        raise EmulatorError(what, file=str(self.path), why=why, fix=fix)

    def _buffer(self, name, spec):
        check(str(self.path), spec, BUFFER, f"buffer {name!r}", ("dtype",))
        dtype, shape = spec["dtype"], tuple(spec.get("shape", ()))
        if dtype not in _NUMPY:
            self.fail(f"buffer {name!r} has the type {dtype!r}", fix="types: " + ", ".join(_NUMPY))
        n = math.prod(shape) * np.dtype(_NUMPY[dtype]).itemsize
        if n > 1 << 32:
            self.fail(
                f"buffer {name!r} of {n >> 20} MB",
                why="the emulator keeps everything in memory, with shadow state",
                fix="launch a smaller problem",
            )
        if "file" in spec:
            array = self._load(spec["file"], name, dtype, shape)
        elif "random" in spec:
            array = self._random(name, dtype, shape, spec)
        else:
            array = np.full(shape, spec.get("fill", 0), np.float32 if dtype == "bf16" else _NUMPY[dtype])
            array = _encode(array, dtype)
        return Buffer(array, spec.get("writable", True), name=name, poison=bool(spec.get("poison", False)), dtype=dtype)

    def _load(self, file, name, dtype, shape):
        try:
            array = np.load(self.path.parent / file, allow_pickle=False)
        except (OSError, ValueError) as e:
            self.fail(f"buffer {name!r}: cannot read {file}: {e}")
        array = _encode(array, dtype)
        if shape and array.shape != shape:
            self.fail(f"buffer {name!r}: {file} has shape {array.shape}, the launch says {shape}")
        return np.ascontiguousarray(array)

    def _random(self, name, dtype, shape, spec):
        rng = np.random.default_rng(spec.get("seed", 0))
        kind, scale = spec["random"], spec.get("scale", 1)
        if kind == "normal":
            array = rng.standard_normal(shape) * scale
        elif kind == "uniform":
            array = rng.random(shape) * scale
        elif kind == "integers":
            array = rng.integers(0, scale, shape)
        else:
            self.fail(f"buffer {name!r}: unknown distribution {kind!r}", fix="normal, uniform or integers")
        return _encode(array.astype(np.float32) if dtype == "bf16" else array, dtype)

    def _of(self, p, k):
        name = p.get("buffer", p.get("tensor"))
        if name not in self.buffers:
            self.fail(f"parameter {k} names the buffer {name!r}", fix="buffers: " + ", ".join(self.buffers))
        return name, self.buffers[name]

    def _param(self, k, p):
        kind = p.get("kind")
        if not isinstance(kind, str) or kind not in PARAMETERS:
            self.fail(f"parameter {k} has the kind {kind!r}", fix="kinds: " + ", ".join(PARAMETERS))
        check(str(self.path), {n: v for n, v in p.items() if n != "kind"}, PARAMETERS[kind], f"parameter {k}")
        try:
            if kind == "pointer":
                return self._of(p, k)[1]
            if kind == "scalar":
                return Scalar(p["value"], p["dtype"])
            if kind == "bytes":
                return bytes.fromhex(p["hex"])
            if kind == "struct":
                return [self._param(k, x) for x in p["fields"]]
            if kind == "tensor_map_bytes":
                return TensorMap.from_bytes(bytes.fromhex(p["hex"]), self._of(p, k)[1], p.get("offset", 0))
            return self._tensor_map(k, p)
        except (KeyError, ValueError) as e:
            self.fail(f"parameter {k} ({kind}): {type(e).__name__}: {e}")

    def _tensor_map(self, k, p):
        name, buffer = self._of(p, k)
        shape, item = buffer.array.shape, buffer.array.itemsize
        strides = [int(np.prod(shape[i + 1 :])) * item for i in range(len(shape))]
        dims = p.get("dims")
        if dims is None:
            sizes, steps = list(shape[::-1]), strides[::-1][1:]
        elif isinstance(dims[0], dict):  # the manifest's form: names of the buffer's layout, innermost first
            layout = self.specs[name].get("layout", [])
            if len(layout) != len(shape):
                self.fail(f"parameter {k} names dimensions, but the layout of {name!r} is {layout} and its shape {list(shape)}")
            order = [layout.index(d["dim"]) for d in dims]
            sizes, steps = [shape[i] for i in order], [strides[i] for i in order[1:]]
        else:
            sizes, steps = dims, p["strides_bytes"]
        return TensorMap(
            buffer,
            p.get("dtype", buffer.dtype),
            sizes,
            steps,
            p["box"],
            p.get("swizzle", 0),
            p.get("element_strides"),
            p.get("oob_fill", "zero"),
            p.get("base_offset_bytes", 0),
        )

    def launch(self, file, **options):
        """The reports of all launches. A later one has the first one's PTX, or its own file beside the launch file."""
        reports = []
        for step, params in zip(self.steps, self.params):
            name = str(self.path.parent / step["ptx"]) if "ptx" in step else file
            shape = step["grid"], step["block"], step.get("cluster", (1, 1, 1)), step.get("smem", 0)
            after = reports[-1] if step.get("pdl") else None
            reports.append(launch(read_ptx(name), step.get("entry"), *shape, params, file=name, after=after, **options))
        return reports

    def finish(self):
        """Write what `save` asks for, and compare with `expect`: messages of what differs."""
        bad = []
        for name, spec in self.specs.items():
            buffer = self.buffers[name]
            if "save" in spec:
                np.save(self.path.parent / spec["save"], buffer.array)
            if "expect" in spec:
                got, want = (
                    _decode(buffer.array, buffer.dtype),
                    _decode(self._load(spec["expect"], name, buffer.dtype, buffer.array.shape), buffer.dtype),
                )
                error = float(np.abs(got - want).max())
                if not error <= spec.get("tolerance", 0):
                    bad.append(f"buffer {name!r} differs from {spec['expect']} by up to {error:.3g}, tolerance {spec.get('tolerance', 0)}")
        return bad


def _encode(array, dtype):
    if dtype == "bf16" and array.dtype != np.uint16:
        return f32_to_bf16(np.ascontiguousarray(array, np.float32)).astype(np.uint16)
    return np.ascontiguousarray(array.astype(_NUMPY[dtype]) if array.dtype != np.dtype(_NUMPY[dtype]) else array)


def _decode(array, dtype):
    if dtype == "bf16":
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def read_ptx(file):
    try:
        return pathlib.Path(file).read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise EmulatorError(f"cannot read the PTX: {getattr(e, 'strerror', None) or e}", file=file) from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="KERNEL.ptx", help="PTX text")
    parser.add_argument("--launch", required=True, metavar="launch.json", help="grid, block, buffers and parameters")
    parser.add_argument(
        "--schedule", choices=("fifo", "random"), default="fifo", help="how warps and copies interleave (default: fifo, deterministic)"
    )
    parser.add_argument("--schedule-seed", type=int, default=0, metavar="N", help="seed of the random schedule")
    parser.add_argument("--resident", type=int, metavar="N", help="how many CTAs run at once")
    parser.add_argument("--max-steps", type=int, default=50_000_000, metavar="N", help="give up after N basic blocks (default: 50 million)")
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="use N processes where clusters share no written memory (default: 1)"
    )
    parser.add_argument("--no-hazards", action="store_true", help="execute only: faster, finds no races")
    parser.add_argument("--strict", action="store_true", help="also report what the ISA asks for but released kernels do without")
    parser.add_argument("--json", action="store_true", help="the report and the counters as JSON")


def run(args: argparse.Namespace) -> int:
    """Exit status 0 if the launch is clean, 1 with hazards, wrong results or a kernel that cannot run."""
    launch_file = LaunchFile(args.launch)
    reports = launch_file.launch(
        args.file,
        schedule=args.schedule,
        schedule_seed=args.schedule_seed,
        hazards=not args.no_hazards,
        strict=args.strict,
        resident=args.resident,
        max_steps=args.max_steps,
        progress=stderr_progress,
        processes=args.processes,
    )
    wrong = launch_file.finish()
    if args.json:
        found = reports[0].as_dict() if len(reports) == 1 else {"launches": [r.as_dict() for r in reports]}
        print(json.dumps(found | {"wrong": wrong}, indent=1))
    else:
        print("\n".join([*(r.text() for r in reports), *(f"error: {w}" for w in wrong)]))
    return 0 if all(r.ok for r in reports) and not wrong else 1


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fa4c.runtime.emulator", description="Execute a PTX kernel on the CPU and report its hazards."
    )
    add_arguments(parser)
    args = parser.parse_args(argv)
    try:
        return run(args)
    except EmulatorError as e:
        print(e.text(), file=sys.stderr)
        return 1
