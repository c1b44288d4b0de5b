"""From a problem whose inputs require grad to its `Training`: which backward is compiled, what it is given, where its gradients go."""

from __future__ import annotations

import torch

from .problem import Problem
from .runtime import execute, gradients
from .runtime.autograd import Training
from .runtime.check import lse_values
from .runtime.errors import InputError, NotYetError


def training(problem: Problem, given: dict, return_lse: bool, deterministic: bool) -> Training:
    """All results are computed: the backward reads some of them again."""
    o, lse = result_names(problem.semantics, return_lse, optional=True)
    run, order, wanted = problem.runner(given, problem.results)

    def results(tensors):
        tensors = problem.laid_out(tensors) if problem.swap else tensors
        return run(tensors if order is None else [tensors[k] for k in order])

    def make(of, needs, fixed_order):
        named = [name for name, has in zip((o, lse), of) if has]
        needed = {name for name, is_needed in zip(problem.names, needs) if is_needed}
        active = needed & gradients.depended_on(problem.semantics, named)
        wrt = [name for name in gradients.floating(problem.semantics["args"]) if name in active]
        return _backward(problem, list(wanted), named, wrt, needed - active, (o, lse), fixed_order)

    places = wanted.index(o), None if lse is None else wanted.index(lse)
    return Training(results, len(wanted), *places, problem.swap, return_lse, deterministic, make)


def _backward(problem: Problem, results: list[str], of: list[str], wrt: list[str], zero, arriving, deterministic: bool):
    """A function from [*inputs, *results, do, dlse] to the gradients of the inputs, in the caller's layouts: 0 for `zero`, on which nothing
    depends that a gradient arrives for, None where in neither."""
    semantics = problem.semantics
    names = [*problem.names, *results]

    def by_reference(values, given):
        found = gradients.gradients(semantics, {n: values[n].detach() for n in problem.names}, given, wrt)
        return {n: g.to(values[n].dtype) for n, g in found.items()}

    def nothing(values, given):
        return {}

    if wrt:
        compute = by_reference if problem.backend == "reference" else _backward_kernel(problem, of, wrt, deterministic)
    else:
        compute = nothing

    def run(tensors):
        values = dict(zip(names, [*problem.laid_out(tensors[: len(problem.names)]), *tensors[len(problem.names) : len(names)]]))
        do, dlse = tensors[len(names) :]
        if problem.swap and do is not None:
            do = do.transpose(1, 2)
        found = compute(values, {n: g for n, g in zip(arriving, (do, dlse)) if g is not None})
        found |= {n: torch.zeros_like(values[n], memory_format=torch.contiguous_format) for n in zero}
        return problem.laid_out([found.get(n) for n in problem.names])

    return run


def _backward_kernel(problem: Problem, of: list[str], wrt: list[str], deterministic: bool):
    """A function from {input or result: tensor}, {result: gradient} to {input: gradient}, by a compiled backward."""
    artifact = problem.compiled("bwd", _derive(problem.semantics, of, wrt, deterministic))
    tree = artifact.semantics
    gradients.check_given(problem.semantics, tree, dict.fromkeys(of, 1))
    arriving, leaving = gradients.incoming(problem.semantics, tree), gradients.outgoing(problem.semantics, tree)
    missing = set(wrt) - set(leaving.values())
    if missing:
        raise InputError(
            f"{', '.join(sorted(missing))} requires grad, but this backward gives no gradient for it",
            where=artifact.path,
            why=f"it was derived for {', '.join(leaving.values())}",
            fix="compile the variant again, or detach that tensor",
        )
    inputs = [t.name for t in artifact.program.inputs]
    gives = {n: leaving[n] for n in leaving if leaving[n] in wrt}
    wanted = execute.wanted_outputs(artifact, tuple(gives), None)

    def compute(values, given):
        tensors = [_arrived(n, arriving, values, given) for n in inputs]
        if problem.backend == "cuda":
            found = zip(wanted, execute.runner(artifact, tensors, wanted, problem.device)(tensors))
        else:
            found = execute.execute(artifact, dict(zip(inputs, tensors)), backend=problem.backend, want=wanted).items()
        return {gives[n]: g for n, g in found if n in gives}

    return compute


def _arrived(name, arriving, values, given):
    """The tensor of one input of a backward; a gradient that it wants and that does not arrive is 0."""
    if name not in arriving:
        if values[name] is None:
            raise NotYetError(
                f"the backward of this variant reads {name} again",
                why="a graph of torch.compile keeps o and lse alone",
                fix="call fa4c.attention outside of torch.compile (torch.compiler.disable)",
            )
        return values[name]
    gradient = given.get(arriving[name])
    return torch.zeros_like(values[arriving[name]]) if gradient is None else gradient


def _derive(semantics, of, wrt, deterministic) -> dict:
    """What differs from what a backward is derived for by default: all floating results but LSE, all floating inputs."""
    statistics = [r["name"] for r in semantics["results"] if r["value"] in lse_values(semantics)]
    usual = [n for n in gradients.floating(semantics["results"]) if n not in statistics]
    derive = {} if of == usual else {"of": of}
    derive |= {} if wrt == gradients.floating(semantics["args"]) else {"wrt": wrt}
    return derive | ({"deterministic": True} if deterministic else {})


def result_names(semantics, return_lse: bool, optional: bool = False) -> tuple[str, str | None]:
    """Names of the output and of its log-sum-exp; None where that is not wanted, or (`optional`: wanted if it is there) not returned."""
    results = semantics["results"]
    found = [r["name"] for r in results if r["value"] in lse_values(semantics)]
    if return_lse and not found:
        raise InputError(
            "this variant returns no LSE",
            why=f"its results are {', '.join(r['name'] for r in results)}",
            fix="return the softmax's second result too",
        )
    o = next((r["name"] for r in results if r["name"] not in found), None)
    if o is None:
        raise InputError("this variant returns no output but LSE", fix="use fa4c.load(...) and fa4c.runtime.execute")
    return o, found[0] if found and (return_lse or optional) else None
