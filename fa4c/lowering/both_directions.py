"""What an artifact says of its backward: the semantics of both directions, and two compiled directions put into one artifact."""

from __future__ import annotations

from ..ir.attn_signature import attn_functions
from ..ir.diagnostics import Diagnostic
from ..ir.semantics import from_function
from ..passes.registry import show


class Recorder:
    """Watches the attn-level passes. `semantics`: the last module that was one function; `forward`: what it was derived from, or None.

    Later passes cut a backward into kernels, none of which says the whole; and the pass that derives it drops the forward.
    """

    def __init__(self, module):
        self.semantics, self._first = None, None
        self.look(module)
        self._first = self.semantics

    def look(self, module) -> None:
        functions = attn_functions(module)
        if len(functions) == 1:
            self.semantics = from_function(functions[0])

    def also(self, print_after):
        """`print_after` of `run_pipeline`: what the caller wants, and a look at each module."""

        def watch(item, module):
            self.look(module)
            if print_after is not None:
                show(print_after, item, module)

        return watch

    @property
    def forward(self) -> dict | None:
        derived = self._first is not None and _results(self._first) != _results(self.semantics)
        return self._first if derived else None

    def write(self, manifest: dict) -> None:
        if self.semantics is not None:
            manifest["semantics"] = self.semantics
        if self.forward is not None:
            manifest["forward"] = self.forward


def _results(tree: dict) -> list[str]:
    return [r["name"] for r in tree["results"]]


def combine(forward: tuple[dict, dict], backward: tuple[dict, dict], filename: str) -> tuple[dict, dict]:
    """One (manifest, members) of two: the backward's manifest stands whole in the forward's, under `backward`."""
    (manifest, members), (inner, more) = forward, backward
    shared = sorted(set(members) & set(more))
    if shared:
        raise Diagnostic(
            f"both directions have a member {shared[0]}",
            where=filename,
            why="one artifact holds the files of both",
            fix="compile them one by one, with --direction fwd and --direction bwd",
        )
    inner = {**inner, "members": dict.fromkeys(more, "")}
    return {**manifest, "direction": "both", "backward": inner}, {**members, **more}
