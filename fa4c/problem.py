"""What one combination of shapes and options computes, and by which backend: found by `api.py`, read by it and by `training.py`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .runtime import execute


class Problem:
    """`semantics` of the forward; `artifact` (None: the reference alone); `names` of the inputs in the order of the arguments; `swap`: the
    variant's layout is (b, h, s, d). `compiled(direction, derive)` gives the artifact of another direction. Holds no tensors.
    """

    def __init__(self, semantics: dict, artifact, names: list[str], backend: str, device: torch.device, compiled: Callable):
        self.semantics, self.artifact, self.names, self.backend, self.device = semantics, artifact, names, backend, device
        self.compiled = compiled
        self.swap = semantics.get("layout", "bshd") == "bhsd"
        self.results = [r["name"] for r in semantics["results"]]

    def laid_out(self, tensors) -> list:
        """q, k, v and captured tensors (or their gradients, or None) from the caller's layout to the variant's, or back."""
        return [*(None if t is None else t.transpose(1, 2) for t in tensors[:3]), *tensors[3:]] if self.swap else list(tensors)

    def runner(self, given: dict, want):
        """(function from a list of tensors to the results, order of the tensors or None, names of the results) of the forward."""
        if self.backend == "cuda":
            names = [t.name for t in self.artifact.program.inputs]
            order = [self.names.index(n) for n in names]
            wanted = execute.wanted_outputs(self.artifact, want, None)
            run = execute.runner(self.artifact, [given[n] for n in names], wanted, self.device).run
            return run, None if order == list(range(len(order))) else order, wanted

        def run(values):
            return list(self._executed(dict(zip(self.names, values)), want).values())

        return run, None, tuple(want)

    def _executed(self, inputs: dict, want) -> dict:
        """The results by the emulator or the reference, in the order of `want`."""
        if self.backend == "reference":
            return execute.run_reference(self.semantics, {n: t.detach() for n, t in inputs.items()}, want)
        results = execute.execute(self.artifact, inputs, backend=self.backend, want=want)
        return {name: results[name] for name in want}
