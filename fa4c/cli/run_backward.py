"""The backward half of `fa4c run`: gradients that arrive, what the forward stored, and the comparison with autograd."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.diagnostics import Diagnostic, UsageError


@dataclass(frozen=True)
class Program:
    """What is run. `semantics`: of the forward, or of all there is where a file below the attn level names no forward.

    An artifact is None where only the reference runs. `backward` is the semantics of the derived function, None for a forward alone.
    """

    direction: str
    semantics: dict
    backward: dict | None = None
    forward_artifact: object = None
    backward_artifact: object = None

    @property
    def artifact(self):
        return self.forward_artifact or self.backward_artifact

    @property
    def runs_forward(self) -> bool:
        return self.direction != "bwd"

    @property
    def arguments(self) -> dict[str, dict]:
        """{name: description} of all that may be given: the forward's arguments, and of a backward what it takes besides."""
        more = self.backward["args"] if self.backward else []
        return {spec["name"]: spec for spec in (*more, *self.semantics["args"])}


def of_artifact(artifact, direction: str | None) -> Program | None:
    """None where the artifact does not say what it computes, or is a backward that names no forward: then it is run as it is."""
    has = artifact.direction
    if direction not in (None, has) and has != "both":
        raise UsageError(f"--direction {direction} does not apply to this artifact", why=f"it was compiled with --direction {has}",
                         fix="leave it out, or compile with --direction both")
    direction = direction or has
    if not artifact.semantics or artifact.forward_semantics is None:
        return None
    backward = artifact.backward if direction != "fwd" else None
    return Program(direction, artifact.forward_semantics, backward and backward.semantics, None if has == "bwd" else artifact, backward)


def arriving(program: Program, sizes: dict, seed: int, given: dict, device) -> dict:
    """Gradients that arrive: given, or normal numbers, others than the inputs of the same seed."""
    from ..runtime import gradients, inputs

    names = gradients.incoming(program.semantics, program.backward)
    specs = [spec for spec in program.backward["args"] if spec["name"] in names]
    made = inputs.make_inputs({**program.backward, "args": specs}, sizes, seed + 1, device)
    return {name: given[name].to(device) if name in given else tensor for name, tensor in made.items()}


def stored(program: Program, inputs: dict, outputs: dict, given: dict) -> dict:
    """Results of the forward that the backward reads: of this run, else exact ones rounded to their dtypes."""
    from ..runtime import execute, gradients

    names = gradients.saved(program.semantics, program.backward)
    missing = [name for name in names if name not in outputs and name not in given]
    found = execute.run_reference(program.semantics, inputs, missing) if missing else {}
    device = next(iter(inputs.values())).device
    return {name: (given if name in given else outputs if name in outputs else found)[name].to(device) for name in names}


def by_argument(program: Program, outputs: dict) -> dict:
    """Gradients in the order of the forward's arguments; which kernel gives which first is the target's affair."""
    from ..runtime import gradients

    arguments, leaving = [spec["name"] for spec in program.semantics["args"]], gradients.outgoing(program.semantics, program.backward)
    return {name: outputs[name] for name in sorted(outputs, key=lambda name: arguments.index(leaving[name]))}


def check(program: Program, inputs: dict, backward_inputs: dict, outputs: dict) -> list:
    from ..runtime import check, gradients

    by_result = {result: backward_inputs[name] for name, result in gradients.incoming(program.semantics, program.backward).items()}
    leaving = gradients.outgoing(program.semantics, program.backward)
    found = {argument: outputs[name] for name, argument in leaving.items()}
    return check.check_gradients(program.semantics, inputs, by_result, found, backward=program.backward)


def of_file(module, path: str, direction: str) -> Program:
    """For the reference: the trees of a file's function and of what the attn passes derive from it."""
    from .. import targets
    from ..ir.attn_signature import attn_functions
    from ..ir.semantics import from_function
    from ..lowering.both_directions import Recorder
    from ..passes.pipelines import pipeline
    from ..passes.registry import run_pipeline

    functions = attn_functions(module)
    if len(functions) != 1:
        raise Diagnostic(f"needs one attn function, but has {len(functions)}", where=path, why="it is what the reference evaluates",
                         fix="give a file of the attn level with one function")
    forward = from_function(functions[0])
    if direction == "fwd":
        return Program(direction, forward)
    recorder = Recorder(module)
    run_pipeline(module, pipeline(targets.DEFAULT, "bwd", emit="attn"), print_after=recorder.also(None))
    return Program(direction, forward, recorder.semantics)
