"""Compile all candidates into a folder: `plan.json` and one artifact each. Needs the compiler, no GPU.

A candidate that does not compile, or spills registers, is left out, and the plan says why.
"""

from __future__ import annotations

import concurrent.futures
import pathlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from .. import __version__
from ..ir.diagnostics import Diagnostic
from ..runtime import artifact
from . import candidates
from .data import PLAN, SCHEMA, read_json, write_json


@dataclass(frozen=True)
class Variant:
    """One file of the attn level, re-typed."""

    text: str
    filename: str
    dtype: str | None
    head_dim: tuple[int, int] | None


def prepare(
    folder: str, variants: list[Variant], target, search: candidates.Search, *, jobs: int = 1, say: Callable[[str], None] = print
) -> dict:
    """Write the folder, or add to one that was prepared before; returns the plan.

    Raises Diagnostic where a file cannot be tuned or nothing could be built.
    """
    root = pathlib.Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    problems = _before(root, target)
    first, work = len(list(root.glob("*.fa4c"))), []
    for variant in variants:
        found = candidates.find(variant.text, variant.filename, target, search, dtype=variant.dtype, head_dim=variant.head_dim)
        entry = _entry(variant, found)
        there = next((p for p in problems if all(p[key] == entry[key] for key in ("name", "head_dims", "dtype", "sizes"))), None)
        if there is None:
            problems.append(entry)
        (there or entry)["dropped"] += [shape for shape in found.dropped if shape not in (there or entry)["dropped"]]
        known = [candidate["label"] for candidate in there["candidates"]] if there else []
        for candidate in [c for c in found.candidates if c.label not in known]:
            name = re.sub(r"[^\w-]+", "-", f"{first + len(work):03d} {found.title} {candidate.label}") + ".fa4c"
            work.append((there or entry, candidate, variant, str(root / name)))
    _build_all(work, target.name, jobs, say)
    if not any(problem["candidates"] for problem in problems):
        raise Diagnostic("no candidate could be compiled", why=problems[0]["dropped"][-1]["why"] if problems else "no file was given")
    plan = {"schema": SCHEMA, "kind": PLAN, "target": target.name, "fa4c": __version__, "dsl": _dsl(), "problems": problems}
    write_json(root / "plan.json", plan)
    return plan


def _before(root: pathlib.Path, target) -> list[dict]:
    """The problems of a plan that is there already."""
    if not (root / "plan.json").exists():
        return []
    plan = read_json(root / "plan.json", PLAN)
    if plan["target"] != target.name:
        raise Diagnostic(
            f"this folder is for {plan['target']}",
            where=str(root),
            why=f"these candidates are for {target.name}",
            fix="name another folder",
        )
    return plan["problems"]


def _entry(variant: Variant, found: candidates.Problem) -> dict:
    return {
        "name": found.name,
        "file": variant.filename,
        "dtype": variant.dtype or "as the file says",
        "head_dims": list(found.head_dims),
        "problem": found.facts,
        "sizes": found.sizes,
        "candidates": [],
        "dropped": [],
    }


def _build_all(work, target: str, jobs: int, say) -> None:
    """Compile, each into its file; what was built is listed in the order of `work`."""
    tasks = [(variant, target, candidate.overrides, candidate.disabled, path) for _, candidate, variant, path in work]
    outcomes = [None] * len(work)
    with _pool(jobs) as run:
        for number, outcome in run(tasks):
            outcomes[number] = outcome
            _, candidate, _, path = work[number]
            say(
                f"{sum(o is not None for o in outcomes)} of {len(work)}  {pathlib.Path(path).stem}"
                + (f": {outcome['why']}" if "why" in outcome else "")
            )
    for (entry, candidate, _, path), outcome in zip(work, outcomes, strict=True):
        if "why" in outcome:
            entry["dropped"].append({"label": candidate.label, **outcome})
        else:
            entry["candidates"].append({**candidate.as_data(), "artifact": pathlib.Path(path).name, **outcome})


def build_one(variant: Variant, target: str, overrides, disabled, path: str) -> dict:
    """What the kernel uses, or {"why": ...}."""
    from ..lowering.compile import compile_text

    try:
        manifest, members = compile_text(
            variant.text,
            variant.filename,
            target=target,
            dtype=variant.dtype,
            head_dim=variant.head_dim,
            overrides=overrides,
            disabled=disabled,
        )
    except Diagnostic as error:
        return {"why": error.text().replace("\n", " ")}
    (kernel,) = manifest["kernels"].values()
    if kernel["local_bytes"] or kernel["stack_bytes"]:
        return {"why": f"spills {kernel['local_bytes'] + kernel['stack_bytes']} bytes a thread"}
    artifact.write(path, manifest, members)
    return {"registers": kernel["registers"], "smem_bytes": kernel["smem_bytes"]}


class _pool:
    """`with _pool(jobs) as run: for number, outcome in run(tasks)`: in this process for one job (the compiler is not thread-safe)."""

    def __init__(self, jobs: int):
        self.jobs, self.executor = jobs, None

    def __enter__(self):
        if self.jobs > 1:
            self.executor = concurrent.futures.ProcessPoolExecutor(self.jobs)
        return self._run

    def __exit__(self, *error) -> None:
        if self.executor is not None:
            self.executor.shutdown(cancel_futures=True)

    def _run(self, tasks):
        if self.executor is None:
            for number, task in enumerate(tasks):
                yield number, build_one(*task)
            return
        futures = {self.executor.submit(build_one, *task): number for number, task in enumerate(tasks)}
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.result()


def _dsl() -> str:
    from ..runtime.cache import dsl_version

    return dsl_version() or "none"
