"""`fa4c run`: a variant or an artifact on data, given or made up, and its results against the reference."""

from __future__ import annotations

import argparse
import json
import math

from ..ir.diagnostics import Diagnostic, UsageError, nearest
from . import pass_flags, run_backward
from .compile import add_variant_flags, check_flags, compile_file
from .files import STDIN, is_artifact, progress, read_module
from .run_backward import Program
from .sizes import sizes_of

BACKENDS = ("cuda", "emulator", "reference")

EXAMPLES = """examples:
  fa4c run causal.fa4c --shape b=2,hq=8,hkv=2,m=1000,n=1000 --check
  fa4c run examples/alibi.mlir --direction both --check               and dq, dk, dv, dslopes, compared with torch.autograd
  fa4c run examples/softcap.mlir --dtype fp16 --head-dim 64 --check --json
  fa4c run examples/causal.mlir --set attn-to-tile.block-n=64 --disable-pass tile-lpt-grid --check
  fa4c run examples/causal.mlir --backend reference --input q=q.npy --input k=k.npy --input v=v.npy

An input that is not given is made up by its attn.fill, a gradient that arrives (do) by normal numbers. --direction bwd runs the backward
alone, on O and LSE of the reference. Arrays are in the manifest's layout, (b, s, h, d) unless the file says otherwise.
An artifact is run without importing the compiler.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a .fa4c artifact, or a .mlir file, which is compiled first")
    add_variant_flags(parser)
    parser.set_defaults(direction=None)
    parser.add_argument("--backend", choices=BACKENDS, help="default: cuda where a GPU of the target is found, else emulator")
    parser.add_argument("--shape", default="", metavar="NAME=SIZE,...",
                        help="default: b=1,hq=4,hkv=2,m=256,n=256; n follows m, hkv follows hq")
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="of the inputs that are made up (default: 0)")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy", help="data for one input; may be repeated")
    parser.add_argument("--schedule", choices=("fifo", "random"), help="of the emulator's warps (default: fifo)")
    parser.add_argument("--schedule-seed", type=_seed, metavar="N", help="of --schedule random")
    parser.add_argument("--check", action="store_true", help="compare with float64; exit status 1 when out of tolerance")
    parser.add_argument("--json", action="store_true", help="results as JSON")
    pass_flags.add_pass_flags(parser, required=False)


def _seed(text: str) -> int:
    try:
        seed = int(text)
    except ValueError:
        seed = -1
    if not 0 <= seed < 2**63:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is no seed; write a number from 0 to 2^63 - 1")
    return seed


def needs_mlir(args: argparse.Namespace) -> bool:
    return not is_artifact(args.file)


def run(args: argparse.Namespace) -> int:
    sizes_of(args.shape, None)  # what is wrong with the words alone is said before torch and the compiler are imported
    check_flags(args)
    arrays = _arrays(args.input)
    if args.backend == "cuda":
        _require_gpu()
    if args.backend not in (None, "emulator"):
        _refuse_schedule(args, args.backend)
    program = _program(args, arrays)
    device, given = _device(args, program.artifact), _given(program, arrays)
    sizes, inputs = _inputs(args, program, given, device)
    backend, outputs, rows = None, {}, []
    if program.runs_forward:
        backend, outputs = _execute(args, program.forward_artifact, program.semantics, inputs)
        rows = _check(args, program.semantics, inputs, outputs)
    if program.backward:
        more = run_backward.arriving(program, sizes, args.seed, given, device)
        more |= run_backward.stored(program, inputs, outputs, given)
        backend, found = _execute(args, program.backward_artifact, program.backward, {**inputs, **more})
        outputs |= run_backward.by_argument(program, found)
        if args.check:
            progress("comparing with autograd in float64")
            rows += run_backward.check(program, inputs, more, found)
    artifact = program.artifact
    facts = {"name": program.semantics["name"], "direction": program.direction, "target": artifact.target if artifact else None,
             "backend": backend, "sizes": sizes}
    (_print_json if args.json else _print_text)(facts, outputs, rows, args.check)
    wrong = [row for row in rows if not row.ok]
    if wrong:
        raise Diagnostic(f"{len(wrong)} of {len(rows)} comparisons are out of tolerance", where=args.file,
                         why="; ".join(str(row) for row in wrong[:3]))
    return 0


def _program(args, arrays: dict) -> Program:
    """The reference needs no artifact, but the file."""
    from ..runtime import artifact

    if is_artifact(args.file):
        _refuse(args, (*_VARIANT, *_PASSES), "an artifact", why="it is compiled already", fix="give the .mlir file instead")
        return _program_of(artifact.load(args.file), args)
    args.direction = args.direction or "fwd"
    if args.backend == "reference":
        _refuse(args, _PASSES, "--backend reference", why="it evaluates what the file says", fix="leave it out")
        return run_backward.of_file(_typed_module(args), args.file, args.direction)
    _check_data(args, arrays)
    manifest, members = compile_file(args, "artifact")
    return _program_of(artifact.build(manifest, members, args.file), args)


_VARIANT = ("target", "dtype", "head_dim", "deterministic", "generation")
_PASSES = ("pass_pipeline", "disable_pass", "set", "print_ir_after_all", "timing", "no_loc")


def _refuse(args, flags, what: str, *, why: str, fix: str) -> None:
    for flag in flags:
        if getattr(args, "overrides" if flag == "set" else flag):
            raise UsageError(f"--{flag.replace('_', '-')} does not apply to {what}", why=why, fix=fix)


def _check_data(args, arrays: dict) -> None:
    """A variant's sizes and inputs are known before the seconds of compiling it (of a file below the attn level, behind them)."""
    from ..ir.attn_signature import attn_functions
    from ..ir.semantics import from_function
    from ..runtime.layout import bind_sizes, static_dims
    from ..runtime.sizes import dims_of

    if args.file == STDIN or not (args.shape or arrays):  # what is piped in can be read once
        return
    module = _typed_module(args)  # its functions are gone when it is
    functions = attn_functions(module)
    if len(functions) != 1:
        return
    semantics = from_function(functions[0])
    sizes_of(args.shape, dims_of(semantics))
    specs = {spec["name"]: spec for spec in semantics["args"]}
    if args.direction == "fwd":
        _check_inputs_exist(arrays, specs)
    known = {name: entry for name, entry in arrays.items() if name in specs}  # a backward takes others too
    shapes = {name: tuple(_tensor(*entry, specs[name]).shape) for name, entry in known.items()}
    named = _named_sizes(args.shape)
    bind_sizes([("--shape", list(named), {}), *((name, _layout(semantics, specs[name]), static_dims(specs[name])) for name in known)],
               {"--shape": tuple(named.values()), **shapes}, where="--input")


def _program_of(artifact, args) -> Program:
    """Of a program that does not say what it computes there are its tensors alone, which is enough to make up data."""
    program = run_backward.of_artifact(artifact, args.direction)
    if program is not None:
        return program
    if args.check:
        raise Diagnostic("there is nothing to compare with", where=args.file, why="it was compiled from a file below the attn level, which "
                         "does not say what is computed", fix="leave out --check, or compile the attn file")
    args_of = [{**tensor, "axes": [], "dims": tensor["layout"], "shape": _sizes_by_layout(tensor)}
               for tensor in artifact.manifest["tensors"] if tensor["role"] == "input"]
    return Program("fwd", {"name": artifact.name, "args": args_of, "body": [], "results": []}, forward_artifact=artifact)


def _sizes_by_layout(tensor: dict) -> list[int | None]:
    fixed = dict(zip(tensor["dims"], tensor["shape"]))
    return [fixed.get(name) for name in tensor["layout"]]


def _typed_module(args):
    from ..passes.pipeline_text import Item
    from ..passes.registry import run_pipeline

    module = read_module(args.file)
    options = {"dtype": args.dtype, "head-dim": args.head_dim and ",".join(map(str, args.head_dim))}
    options = {name: value for name, value in options.items() if value}
    run_pipeline(module, str(Item("attn-retype", options)) if options else "")
    return module


def _device(args, artifact) -> str:
    if args.backend in ("emulator", "reference"):
        return "cpu"
    import torch

    from ..runtime import cuda

    if not torch.cuda.is_available():
        return "cpu"
    fits = cuda.target_of(torch.cuda.current_device()) == artifact.target
    return "cuda" if fits or args.backend == "cuda" else "cpu"


def _require_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise Diagnostic("there is no GPU that torch can use", why="backend cuda was asked for",
                         fix="leave out --backend, or use --backend reference; `fa4c doctor` says what is installed")


def _inputs(args, program, given, device):
    """The sizes, and the forward's inputs: given or made up."""
    from ..runtime import inputs
    from ..runtime.sizes import dims_of

    semantics = program.semantics
    sizes = sizes_of(args.shape, dims_of(semantics))
    for name, tensor in given.items():
        sizes.update(_free_sizes(program, name, tensor, args.shape))
    made = inputs.make_inputs(semantics, sizes, args.seed, device, given)
    sizes = {name: size for name, size in sizes.items() if name in dims_of(semantics)}
    names = [spec["name"] for spec in semantics["args"]]
    return sizes, {name: given[name].to(device) if name in given else made[name] for name in names}


def _arrays(texts: list[str]) -> dict:
    """{input: (array, its file)}, read before anything is compiled."""
    arrays = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise UsageError(f"--input {text}: not of the form NAME=FILE.npy", fix="for example --input q=q.npy")
        if name in arrays:
            raise UsageError(f"--input {text}: '{name}' is given already", fix="give each input once")
        arrays[name] = (_load(path), path)
    return arrays


def _given(program, arrays: dict) -> dict:
    _check_inputs_exist(arrays, program.arguments)
    return {name: _tensor(*entry, program.arguments[name]) for name, entry in arrays.items()}


def _check_inputs_exist(arrays: dict, names) -> None:
    for name, (_, path) in arrays.items():
        if name not in names:
            raise UsageError(f"--input {name}={path}: there is no input '{name}'", fix=nearest(name, names))


def _load(path: str):
    import numpy

    try:
        array = numpy.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise Diagnostic("cannot read this array", where=path, why="there is no such file", fix="check the path") from None
    except (OSError, ValueError, EOFError) as error:
        raise Diagnostic("cannot read this array", where=path, why=str(error).split("\n")[0], fix="write it with numpy.save") from None
    if not isinstance(array, numpy.ndarray) or array.dtype.kind not in "fiub":
        raise Diagnostic("this is no array of numbers", where=path, fix="write one array with numpy.save")
    return array


def _tensor(array, path: str, spec: dict):
    """An array in the dtype of the input that it is for."""
    import numpy
    import torch

    from ..runtime.torch_types import TORCH

    tensor, wanted = torch.from_numpy(numpy.ascontiguousarray(array)), TORCH[spec["dtype"]]
    if tensor.dtype.is_floating_point != wanted.is_floating_point:
        raise Diagnostic(f"input '{spec['name']}' is {spec['dtype']}, but the array is {array.dtype}", where=path,
                         why="integers and floats are not converted into each other", fix="convert it with numpy's astype")
    return tensor.to(wanted)


def _free_sizes(program, name, tensor, shape_text) -> dict:
    """The run-time sizes that an array fixes, unless --shape names them too (then a difference is an error later on)."""
    from ..runtime.layout import packed_dims, static_dims

    spec = program.arguments[name]
    fixed = {*static_dims(spec), *packed_dims(program.semantics["args"]), *_named_sizes(shape_text)}
    return {dim: size for dim, size in zip(_layout(program.semantics, spec), tensor.shape) if dim not in fixed}


def _layout(semantics: dict, spec: dict) -> list[str]:
    """Names of a tensor's dimensions in memory order."""
    from ..runtime.layout import memory_layout, packed_dims

    return memory_layout(spec["axes"], spec["dims"], semantics.get("layout", "bshd"), packed_dims(semantics["args"]))


def _named_sizes(text: str) -> dict[str, int]:
    """Those that --shape names, without what follows from them."""
    sizes = sizes_of(text, None)
    return {name: sizes[name] for name in (part.partition("=")[0].strip() for part in text.split(",")) if name in sizes}


def _execute(args, artifact, semantics, inputs):
    from ..runtime import execute

    progress("running")
    _offer_the_compiler()
    if artifact is None:
        return "reference", execute.run_reference(semantics, inputs, [result["name"] for result in semantics["results"]])
    backend = execute.choose_backend(args.backend, next(iter(inputs.values())).device)
    inputs = {t.name: inputs[t.name] for t in artifact.program.inputs}  # a backward for V alone does not read V
    if args.schedule is None and args.schedule_seed is None:
        return backend, execute.execute(artifact, inputs, backend=backend)
    if backend != "emulator":
        _refuse_schedule(args, backend)
    from ..runtime import emulated

    wanted = execute.wanted_outputs(artifact, None, None)
    return backend, emulated.run(artifact, inputs, wanted, schedule=args.schedule or "random", schedule_seed=args.schedule_seed or 0)


def _refuse_schedule(args, backend: str) -> None:
    if args.schedule is not None or args.schedule_seed is not None:
        raise UsageError("--schedule and --schedule-seed are of the emulator", why=f"this runs on backend {backend}",
                         fix="add --backend emulator")


def _offer_the_compiler() -> None:
    """So that the emulator's reports can name lines of the kernel's source."""
    from ..runtime import emulated

    def rebuild(source: str, name: str, target: str) -> str:
        from ..lowering.build import build

        return build(source, name, target, line_info=True).ptx

    emulated.rebuild = rebuild


def _check(args, semantics, inputs, outputs):
    from ..runtime.check import check

    if not args.check:
        return []
    progress("comparing with the reference in float64")
    return check(semantics, inputs, outputs)


def _print_text(facts, outputs, rows, checked) -> None:
    sizes = " ".join(f"{name}={size}" for name, size in facts["sizes"].items())
    direction = "" if facts["direction"] == "fwd" else f", {facts['direction']},"
    print(f"{facts['name']}{direction} on {facts['backend']}" + (f" for {facts['target']}" if facts["target"] else "") + f": {sizes}")
    for name, tensor in outputs.items():
        summary = _summary(tensor)
        contents = f"largest {summary['largest']:.6g}  mean of |x| {summary['mean_abs']:.6g}" + _not_finite(summary)
        print(f"{name:8} {summary['dtype']:5} {tuple(summary['shape'])}  {contents}")
    for row in rows:
        print(row)
    if checked:
        print("check: " + ("within tolerance" if all(row.ok for row in rows) else "OUT OF TOLERANCE"))


def _not_finite(summary: dict) -> str:
    infinite = summary["not_finite"] - summary["nan"]
    return "".join(f"  {count} {what}" for count, what in ((summary["nan"], "NaN"), (infinite, "infinite")) if count)


def _print_json(facts, outputs, rows, checked) -> None:
    from dataclasses import asdict

    from ..runtime import counters

    result = {**facts, "outputs": {name: _summary(tensor) for name, tensor in outputs.items()}, "stats": counters.stats()}
    if checked:
        result |= {"check": [asdict(row) for row in rows], "ok": all(row.ok for row in rows)}
    print(json.dumps(_plain(result), indent=1, allow_nan=False))


def _summary(tensor) -> dict:
    """Of the finite elements; infinities (LSE of an empty row) are counted."""
    from ..runtime.torch_types import name_of

    values = tensor.double()
    finite = values[values.isfinite()].abs()
    return {"dtype": name_of(tensor.dtype), "shape": list(tensor.shape), "largest": float(finite.max()) if finite.numel() else 0.0,
            "mean_abs": float(finite.mean()) if finite.numel() else 0.0, "not_finite": int(values.numel() - finite.numel()),
            "nan": int(values.isnan().sum())}


def _plain(value):
    """JSON has no infinity and no NaN: they become text."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
