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

    def arranged(tensors):
        tensors = problem.laid_out(tensors) if problem.swap else tensors
        return run(tensors if order is None else [tensors[k] for k in order])

    def make(of, needs, fixed_order):
        named = [name for name, has in zip((o, lse), of) if has]
        needed = {name for name, is_needed in zip(problem.names, needs) if is_needed}
        active = needed & gradients.depended_on(problem.semantics, named)
        wrt = [name for name in gradients.floating(problem.semantics["args"]) if name in active]
        return _backward(problem, list(wanted), named, wrt, needed - active, (o, lse), fixed_order)

    places = wanted.index(o), None if lse is None else wanted.index(lse)
    results = arranged if problem.swap or order is not None else run
    return Training(results, len(wanted), *places, problem.swap, return_lse, deterministic, make)


def _backward(problem: Problem, results: list[str], of: list[str], wrt: list[str], zero, arriving, deterministic: bool):
    """A function from [*inputs, *results, do, dlse] to the gradients of the inputs, in the caller's layouts: 0 for `zero`, on which nothing
    depends that a gradient arrives for, None where in neither."""
    names, count = problem.names, len(problem.names)
    places = {name: place for place, name in enumerate([*names, *results])}
    gradients_at = {name: len(places) + k for k, name in enumerate(arriving)}
    zeroed = [names.index(n) for n in zero]

    def by_reference(tensors):
        inputs = {n: t.detach() for n, t in zip(names, tensors)}
        found = gradients.gradients(problem.semantics, inputs, {n: tensors[gradients_at[n]] for n in of}, wrt)
        return [found[n].to(t.dtype) if n in found else None for n, t in zip(names, tensors)]

    def nothing(tensors):
        return [None] * count

    if wrt:
        by_kernel = problem.backend != "reference"
        compute = _backward_kernel(problem, places, gradients_at, of, wrt, deterministic) if by_kernel else by_reference
    else:
        compute = nothing

    def run(tensors):
        if problem.swap:
            *others, do, dlse = tensors[count:]
            tensors = [*problem.laid_out(tensors[:count]), *others, None if do is None else do.transpose(1, 2), dlse]
        found = compute(tensors)
        for k in zeroed:
            found[k] = torch.zeros_like(tensors[k], memory_format=torch.contiguous_format)
        return problem.laid_out(found) if problem.swap else found

    return run


def _backward_kernel(problem: Problem, places: dict, gradients_at: dict, of: list[str], wrt: list[str], deterministic: bool):
    """A function from a list of tensors to the gradients of the inputs, by a compiled backward. `places`: where inputs and results are in
    the list; `gradients_at`: where a result's gradient is, given for those in `of`; of any other result it is 0."""
    artifact = problem.compiled("bwd", _derive(problem.semantics, of, wrt, deterministic))
    tree = artifact.semantics
    gradients.check_given(problem.semantics, tree, dict.fromkeys(of, 1))
    incoming, outgoing = gradients.incoming(problem.semantics, tree), gradients.outgoing(problem.semantics, tree)
    missing = set(wrt) - set(outgoing.values())
    if missing:
        raise InputError(
            f"{', '.join(sorted(missing))} requires grad, but this backward gives no gradient for it",
            where=artifact.path,
            why=f"it was derived for {', '.join(outgoing.values())}",
            fix="compile the variant again, or detach that tensor",
        )
    inputs = [t.name for t in artifact.program.inputs]
    taken = [gradients_at[incoming[n]] if incoming.get(n) in of else places[incoming.get(n, n)] for n in inputs]
    absent = [k for k, n in enumerate(inputs) if n in incoming and incoming[n] not in of]
    wanted = execute.wanted_outputs(artifact, tuple(n for n in outgoing if outgoing[n] in wrt), None)
    gradient_of = {outgoing[n]: k for k, n in enumerate(wanted) if outgoing.get(n) in wrt}
    leaving = [gradient_of.get(n) for n in problem.names]

    def compute(tensors):
        given = [tensors[k] for k in taken]
        for name, tensor in zip(inputs, given):
            if tensor is None:
                raise NotYetError(
                    f"the backward of this variant reads {name} again",
                    why="a graph of torch.compile keeps o and lse alone",
                    fix="call fa4c.attention outside of torch.compile (torch.compiler.disable)",
                )
        for k in absent:  # in its place is the result itself
            given[k] = torch.zeros_like(given[k])
        if problem.backend == "cuda":
            found = execute.runner(artifact, given, wanted, problem.device).run(given)
        else:
            by_name = execute.execute(artifact, dict(zip(inputs, given)), backend=problem.backend, want=wanted)
            found = [by_name[n] for n in wanted]
        return [None if k is None else found[k] for k in leaving]

    return compute


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
