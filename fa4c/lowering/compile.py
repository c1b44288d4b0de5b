"""From the text of a file of any level to a kernel artifact, or to the text of a level on the way."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from .. import targets
from ..ir import tile, warp
from ..ir.attn_signature import attn_functions
from ..ir.context import new_context, parse_module, print_module
from ..ir.diagnostics import Diagnostic, op_diagnostic
from ..ir.mlir import ir
from ..passes.pipeline_text import Item, parse
from ..passes.pipelines import pipeline as standard_pipeline
from ..passes.pipelines import target_of
from ..passes.registry import naming_what_counts_on, pass_names, run_pipeline
from . import build_helper, cute_source, manifest, sass
from .both_directions import Recorder, combine

LEVELS = ("attn", "tile", "warp")
BINARIES = ("ptx", "sass", "artifact")  # what needs the DSL


def compile_text(
    text: str,
    filename: str = "-",
    *,
    target: str | None = None,
    direction: str = "fwd",
    deterministic: bool = False,
    dtype: str | None = None,
    head_dim: tuple[int, int] | None = None,
    pipeline: str | None = None,
    generation: str | None = None,
    disabled=(),
    overrides=(),
    emit: str = "artifact",
    locations: bool = True,
    print_after=None,
    timing: list | None = None,
    jobs: int = 1,
):
    """Compile MLIR text. `emit`: "attn", "tile", "warp", "cute", "ptx", "sass" give text; "artifact" gives (manifest, members: name ->
    bytes).

    `pipeline` replaces the standard passes; `disabled`, `overrides`, `print_after`, `timing` as in `run_pipeline`. Raises Diagnostic (the
    user's mistake) or ir.MLIRError (text that does not parse or verify). Direction "both" gives one artifact of two compilations;
    `deterministic` chooses the pipeline whose sums have a fixed order, where there is one; `generation` one of `pipelines.GENERATIONS`.
    `jobs`: with more than one, a second process compiles one of the kernels.
    """
    options = dict(
        target=target, deterministic=deterministic, dtype=dtype, head_dim=head_dim, pipeline=pipeline, generation=generation,
        disabled=disabled, overrides=overrides, locations=locations, print_after=print_after, timing=timing)
    with build_helper.Helper() if jobs > 1 and emit in BINARIES else contextlib.nullcontext() as helper:
        if direction == "both":
            _require_one_artifact(filename, pipeline, emit)
            return combine(*(_compile(text, filename, emit, helper, direction=one, **options) for one in ("fwd", "bwd")), filename)
        return _compile(text, filename, emit, helper, direction=direction, **options)


def _compile(text, filename, emit, helper, *, direction, **options):
    goal = emit if emit in LEVELS else "warp"
    with lowered(text, filename, goal=goal, direction=direction, **options) as result:
        module = result.module
        if emit in LEVELS:
            if options["pipeline"] is None:  # one that was written ends where it ends
                _require_level(module, filename, emit)
            return print_module(module, options["locations"])
        _require_level(module, filename, "warp")
        sources = cute_source.emit(module)
        if emit == "cute":
            return joined(sources, "#")
        binaries = build_helper.build_all(sources, result.target, helper)
        if emit == "ptx":
            return joined({kernel: binary.ptx for kernel, binary in binaries.items()}, "//")
        if emit == "sass":
            return joined({kernel: sass.disassemble(binary.cubin) for kernel, binary in binaries.items()}, "//")
        made = manifest.make(module, binaries, target=result.target, direction=direction)
        if result.recorder is not None:
            result.recorder.write(made)
        members = {}
        for kernel, entry in made["kernels"].items():
            stem = entry["ptx"].removesuffix(".ptx")
            members[f"{stem}.ptx"] = binaries[kernel].ptx.encode()
            members[f"{stem}.cubin"] = binaries[kernel].cubin
            members[f"{stem}.cute.py"] = sources[kernel].encode()
        members.update({f"{made['name']}.{level}.mlir": ir_text.encode() for level, ir_text in result.levels.items()})
        return made, members


def passes_of(text: str, filename: str, *, target, direction: str, deterministic: bool, generation, emit: str) -> list[Item]:
    """The standard passes that `compile_text` runs on a text, of both directions where it makes both."""
    with new_context() as context, ir.Location.unknown():
        module = parse_module(text, filename, context)
        name, entry = _set_target(module, target, targets.DEFAULT if generation is None else target_of(generation)), level_of(module)
    goal, directions = emit if emit in LEVELS else "warp", ("fwd", "bwd") if direction == "both" else (direction,)
    steps = (step for one in directions for step in _steps(None, name, one, entry, goal, deterministic, generation))
    return [item for passes, _ in steps for item in parse(passes)]


@dataclass
class Lowered:
    """A module behind the passes, in its context. `levels`: the text at the end of each level that it went through."""

    module: ir.Module
    target: str
    levels: dict[str, str]
    recorder: Recorder | None


@contextlib.contextmanager
def lowered(
    text: str,
    filename: str,
    *,
    target: str | None = None,
    direction: str = "fwd",
    deterministic: bool = False,
    dtype: str | None = None,
    head_dim: tuple[int, int] | None = None,
    pipeline: str | None = None,
    generation: str | None = None,
    disabled=(),
    overrides=(),
    goal: str = "warp",
    locations: bool = True,
    print_before=None,
    print_after=None,
    timing: list | None = None,
):
    """Parse a file and run the passes down to the level `goal`; options as in `compile_text`. Yields a `Lowered`.

    `print_before`: a function called with the module before the first pass.
    """
    with new_context() as context, ir.Location.unknown():
        module = parse_module(text, filename, context)
        name = _set_target(module, target, targets.DEFAULT if generation is None else target_of(generation))
        entry = level_of(module)
        if (dtype is not None or head_dim is not None) and entry != "attn":
            raise Diagnostic(
                f"--dtype and --head-dim re-type an attn-level file, but this one is of the {entry} level",
                where=filename,
                why="dtypes and sizes are compiled into all levels below attn",
                fix="start from the attn file",
            )
        if LEVELS.index(goal) < LEVELS.index(entry):
            raise Diagnostic(
                f"a file of the {entry} level cannot be brought to the {goal} level",
                where=filename,
                why="passes go down only",
                fix=f"emit {entry} or something below it",
            )
        levels, verified = {entry: print_module(module, locations)}, False
        if print_before is not None:
            print_before(module)
        if dtype is not None or head_dim is not None:
            run_pipeline(module, _retyping(dtype, head_dim), print_after=print_after, timing=timing)
            levels[entry] = print_module(module, locations)
        recorder = Recorder(module) if direction == "bwd" else None
        watch = print_after if recorder is None else recorder.also(print_after)
        steps = list(_steps(pipeline, name, direction, entry, goal, deterministic, generation))
        for text_of_passes, level in steps:
            try:
                run_pipeline(module, text_of_passes, disabled=disabled, overrides=overrides, print_after=watch, timing=timing,
                             verified=verified)
            except Diagnostic as error:
                ran = pass_names(item for passes, _ in steps for item in parse(passes))
                raise naming_what_counts_on(disabled, ran, error) from error.__cause__
            verified = True
            levels[level] = print_module(module, locations)
            if deterministic and level == "tile":
                _require_fixed_order(module)
        yield Lowered(module, name, levels, recorder)


def _require_fixed_order(module) -> None:
    """No sum in memory that CTAs add to as they come: each waits for its turn first."""
    found = []

    def look(op):
        if isinstance(op.opview, tile.GlobalAddOp):
            waits = any(isinstance(o, tile.WaitCountOp) and o.operation.is_before_in_block(op) for o in op.block.operations)
            found.extend([] if waits else [op])
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    if found:
        raise op_diagnostic(
            found[0],
            "adds to what other CTAs add to, in any order",
            why="a deterministic kernel gives the same bits in every run",
            fix="run tile-deterministic-reduction on it, or leave out --deterministic",
        )


def _require_one_artifact(filename, pipeline, emit) -> None:
    if emit != "artifact" or pipeline is not None:
        what = "a pipeline" if pipeline is not None else f"the {emit} text"
        raise Diagnostic(
            f"{what} is of one direction",
            where=filename,
            why="direction both is two compilations whose kernels go into one artifact",
            fix="choose --direction fwd or --direction bwd",
        )


def joined(texts: dict[str, str], comment: str) -> str:
    """The texts of all kernels; of several, one after the other, each under a line of its name."""
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "\n".join(f"{comment} {'=' * 20} kernel {name} {'=' * 20}\n{text}" for name, text in texts.items())


def level_of(module: ir.Module) -> str:
    """ "attn", "tile" or "warp": the highest level of which the module holds an operation."""
    if attn_functions(module):
        return "attn"
    kinds = {type(op) for op in module.body.operations}
    if tile.KernelOp in kinds:
        return "tile"
    if warp.KernelOp in kinds:
        return "warp"
    raise Diagnostic(
        "the file holds no kernel",
        where=module.operation.location,
        why="it has no attn function, no tile.kernel and no warp.kernel",
        fix="see examples/causal.mlir",
    )


def _set_target(module, target: str | None, default: str) -> str:
    """The target's name: the one asked for, else the module's own, else the default; from here on it is in the IR."""
    attributes = module.operation.attributes
    name = target or (attributes["fa4c.target"].value if "fa4c.target" in attributes else default)
    attributes["fa4c.target"] = ir.StringAttr.get(name)
    return targets.get(name, None if target else module.operation.location).name


def _retyping(dtype, head_dim) -> str:
    options = [f"dtype={dtype}"] if dtype is not None else []
    options += [f"head-dim={','.join(map(str, head_dim))}"] if head_dim is not None else []
    return f"attn-retype{{{' '.join(options)}}}"


def _steps(pipeline, target, direction, entry, goal, deterministic, generation):
    """(pipeline text, level reached) in order."""
    if pipeline is not None:
        yield pipeline, goal
        return
    reached = entry
    for level in LEVELS[LEVELS.index(entry) : LEVELS.index(goal) + 1]:
        first = entry if level == entry else f"{reached} to {level}"
        yield standard_pipeline(target, direction, entry=first, emit=level, deterministic=deterministic, generation=generation), level
        reached = level


def _require_level(module, filename, level: str) -> None:
    reached = level_of(module)
    if LEVELS.index(reached) < LEVELS.index(level):
        raise Diagnostic(
            f"the passes did not reach the {level} level",
            where=filename,
            why=f"they end at the {reached} level; code is emitted from warp.kernel operations only",
            fix="leave in attn-to-tile; end the pipeline with warp-specialize,warp-insert-barriers,warp-check",
        )


__all__ = ["compile_text", "level_of", "lowered", "passes_of"]
