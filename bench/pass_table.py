"""Leaves each pass out in turn, where it may be, and turns the optional ones on: is the kernel still right, and which counts move?

    python bench/pass_table.py --jobs 8        prints the table of docs/passes.md; half an hour of CPU time
    python bench/pass_table.py --write         and puts it there
    python bench/pass_table.py --outcomes FILE goes on with what the file of an interrupted run of the same commit lacks
    python bench/pass_table.py --only sm_90a:fwd --write       other rows stay
    python bench/pass_table.py --text          only what the passes say of themselves

Each kernel is compiled, executed by the emulator (any hazard is an error), compared with float64, and its counts with those of the whole
pipeline. What a pass promises is in `PROMISES`; a count that does not move so ends in exit status 1.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import pathlib
import sys
import tempfile
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fa4c.cli import run_backward  # noqa: E402
from fa4c.cli.passes import signature  # noqa: E402
from fa4c.explain import explain  # noqa: E402
from fa4c.ir.diagnostics import Diagnostic  # noqa: E402
from fa4c.lowering.compile import compile_text  # noqa: E402
from fa4c.passes.pipeline_text import parse  # noqa: E402
from fa4c.passes.pipelines import PIPELINES, pipeline  # noqa: E402
from fa4c.passes.registry import all_passes  # noqa: E402
from fa4c.runtime import artifact, check, emulated  # noqa: E402
from fa4c.runtime.inputs import make_inputs  # noqa: E402

DOC, BEGIN, END = ROOT / "docs" / "passes.md", "<!-- table: begin -->\n", "<!-- table: end -->\n"
SIZES = {"fwd": {"b": 1, "hq": 2, "hkv": 1, "m": 300, "n": 300}, "bwd": {"b": 1, "hq": 1, "hkv": 1, "m": 520, "n": 520}}
VARIANT = "causal"
# pass -> counts that grow ("+") or shrink ("-") where it is left out. `interval`: clocks between steps by the model, see docs/explain.md
PROMISES = {
    "attn-simplify-mask": {"mma_flops": "+"},
    "attn-fold-scale": {"instructions.fp32": "+"},
    "attn-sink-scale": {"instructions.fp32": "+"},
    "attn-exp-to-exp2": {"instructions.fp32": "+"},
    "tile-conditional-rescale": {"instructions.fp32": "+"},
    "tile-exp-emulation": {"instructions.ex2": "+"},
    "tile-row-sum-by-mma": {"smem_bytes.load": "+", "instructions": "+"},
    "tile-pipeline": {"interval": "+"},
    "tile-persistent": {"atomics": "-"},  # tiles from a queue, one number taken for each
    "warp-ping-pong": {"instructions.sync": "-"},
    "warp-interleave-columns": {"instructions": "+"},
}
# On sm_100a one instruction multiplies two scores: at these lengths as many multiply dK and dQ behind the loop.
PROMISED_ON = {"attn-sink-scale": ("sm_90a",)}
# passes that are off, or do nothing, by default: target, direction, variant, options that turn them on (none: the deterministic pipeline
# has it), what then shrinks or grows
OPTIONAL = [
    ("sm_90a", "fwd", "full", "tile-multicast", {"ctas": "2"}, {"global_bytes.tma_load": "-"}),
    ("sm_90a", "fwd", "full", "tile-l2-hints", {"repeated": "evict_last"}, {}),
    ("sm_90a", "fwd", "causal", "tile-exp-emulation", {"share": "4"}, {"instructions.ex2": "-"}),
    ("sm_90a", "bwd", "causal", "tile-deterministic-reduction", {}, {"atomics": "+"}),
    ("sm_100a", "fwd", "full", "tile-split-2cta", {"ctas": "2"}, {"smem_bytes.operands": "-"}),
    ("sm_100a", "bwd", "full", "tile-split-2cta", {"ctas": "2"}, {"smem_bytes.operands": "-", "smem_bytes.dsmem": "+"}),
    ("sm_100a", "bwd", "causal", "tile-deterministic-reduction", {}, {"atomics": "+"}),
]
SHOWN = ("mma_flops", "smem_bytes.operands", "smem_bytes.store", "smem_bytes.load", "smem_bytes.tma", "smem_bytes.dsmem",
         "global_bytes.tma_load", "tmem_bytes.load", "instructions.ex2", "instructions.special", "instructions.fp32", "instructions.sync",
         "instructions", "atomics", "ctas", "interval")


@dataclass(frozen=True)
class Case:
    """A compilation of an example. One that leaves out a pass is executed only where it is another kernel."""

    target: str
    direction: str
    variant: str = VARIANT
    without: str = ""
    overrides: tuple[tuple[str, str, str], ...] = ()
    deterministic: bool = False

    @property
    def options(self) -> dict:
        return dict(target=self.target, direction=self.direction, disabled=(self.without,) if self.without else (),
                    overrides=self.overrides, deterministic=self.deterministic)


def outcome(case: Case) -> tuple[str, dict]:
    """("right" | "the same kernel" | "refused: ..." | "WRONG: ...", counts where it was executed and right)."""
    try:
        if case.without and _warp_text(case) == _warp_text(Case(case.target, case.direction)):
            return "the same kernel", {}
        return "right", measure(case)
    except Diagnostic as error:
        return ("refused: " if case.without else "WRONG: ") + _first_line(error), {}
    except AssertionError as error:
        return "WRONG: " + str(error).splitlines()[0].replace("|", "/"), {}


@functools.cache
def _warp_text(case: Case) -> str:
    return compile_text(_source(case), "x.mlir", emit="warp", locations=False, **case.options)


def _source(case: Case) -> str:
    return (ROOT / "examples" / f"{case.variant}.mlir").read_text(encoding="utf-8")


def measure(case: Case) -> dict:
    """Counts of a kernel over all launches; raises Diagnostic where it is refused, AssertionError where it is wrong."""
    text, name = _source(case), f"{case.variant}.mlir"
    manifest, members = compile_text(text, name, **case.options)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "kernel.fa4c"
        artifact.write(path, manifest, members)
        kernel = artifact.load(path)
    reports = (_backward if case.direction == "bwd" else _forward)(kernel)
    counts = {name: sum(r.counters["total"].get(name, 0) for r in reports) for name in SHOWN}
    counts["ctas"] = sum(len(r.counters["cta"]) for r in reports)
    steps = [s for k in explain(text, name, changes=False, **case.options)["kernels"] for s in k["steps"]]
    counts["interval"] = sum(s["interval"] or 0 for s in steps)
    return counts


def _forward(kernel) -> list:
    inputs = make_inputs(kernel.semantics, SIZES["fwd"], 0)
    found, reports = emulated.run_reported(kernel, inputs, [r["name"] for r in kernel.semantics["results"]])
    _require(check.check(kernel.semantics, inputs, found), reports)
    return reports


def _backward(kernel) -> list:
    program = run_backward.of_artifact(kernel, "bwd")
    if program is None:
        raise Diagnostic("what comes out is no backward")
    inputs = make_inputs(program.semantics, SIZES["bwd"], 0)
    more = run_backward.arriving(program, SIZES["bwd"], 0, {}, "cpu") | run_backward.stored(program, inputs, {}, {})
    wanted = [t["name"] for t in kernel.manifest["tensors"] if t["role"] == "output"]
    found, reports = emulated.run_reported(kernel, {**inputs, **more}, wanted)
    _require(run_backward.check(program, inputs, more, found), reports)
    return reports


def _require(rows, reports) -> None:
    assert all(r.ok for r in reports), next(r.text() for r in reports if not r.ok)
    assert all(row.ok for row in rows), "; ".join(str(row) for row in rows if not row.ok)


# ------------------------------------------------------------------------------------------------------------------------- rows


def cases(target: str, direction: str) -> list[Case]:
    """All that a pipeline's rows need."""
    names = dict.fromkeys(item.name for item in parse(pipeline(target, direction)))
    found = [Case(target, direction), *(Case(target, direction, without=name) for name in names)]
    for _, _, variant, name, options, _ in _optional(target, direction):
        found += [Case(target, direction, variant), _turned_on(target, direction, variant, name, options)]
    return list(dict.fromkeys(found))


def _optional(target: str, direction: str) -> list[tuple]:
    return [entry for entry in OPTIONAL if entry[:2] == (target, direction)]


def _turned_on(target, direction, variant, name, options) -> Case:
    return Case(target, direction, variant, overrides=tuple((name, *item) for item in options.items()), deterministic=not options)


def rows_of(target: str, direction: str, found: dict[Case, tuple[str, dict]]) -> tuple[list[str], list[str], list[str]]:
    """(rows of passes left out, of passes turned on, complaints) for a pipeline, from the outcome of each case."""
    out, on, wrong = [], [], []
    whole = found[Case(target, direction)][1]
    for case in (case for case in found if case.without and (case.target, case.direction) == (target, direction)):
        verdict, counts = found[case]
        moved = _moved(whole, counts) if whole and counts else ""
        out.append(f"| {target} | {direction} | `{case.without}` | {verdict} | {moved} |")
        kept = whole and counts and target in PROMISED_ON.get(case.without, (target,))
        promise = PROMISES.get(case.without, {}) if kept else {}
        wrong += _broken(f"{target} {direction} without {case.without}", promise, whole, counts)
    for _, _, variant, name, options, promise in _optional(target, direction):
        before, (verdict, after) = found[Case(target, direction, variant)][1], found[_turned_on(target, direction, variant, name, options)]
        listed = "{" + " ".join(f"{option}={value}" for option, value in options.items()) + "}" if options else ""
        moved = _moved(before, after) if before and after else ""
        on.append(f"| {target} | {direction} | `{name}{listed}`, {variant} | {verdict} | {moved} |")
        wrong += _broken(f"{target} {direction} with {name}", promise if before and after else {}, before, after)
    wrong += [f"{case}: {verdict}" for case, (verdict, _) in found.items()
              if verdict.startswith("WRONG") and (case.target, case.direction) == (target, direction)]
    return out, on, wrong


def _first_line(error: Diagnostic) -> str:
    return error.text().splitlines()[0].split("error: ", 1)[-1].replace("|", "/")


def _moved(before: dict, after: dict) -> str:
    """Counts that differ by a hundredth or more, as a factor where there was something."""
    found = []
    for name in SHOWN:
        old, new = before[name], after[name]
        if old != new and abs(new - old) * 100 >= old:
            found.append(f"{name} {old:,.0f} -> {new:,.0f}")
    return ", ".join(found) or "none of those shown"


def _broken(what: str, promise: dict, before: dict, after: dict) -> list[str]:
    moves = {name: "+" if after[name] > before[name] else "-" if after[name] < before[name] else "=" for name in promise}
    return [f"{what}: {name} moves {moves[name]}, not {sign}" for name, sign in promise.items() if moves[name] != sign and before[name]]


HEADS = ("| target | direction | without | | counts that move, whole pipeline -> without |",
         "| target | direction | with | | counts that move, default -> with |")


def outcomes(todo: list[Case], jobs: int, kept_in: pathlib.Path | None) -> dict[Case, tuple[str, dict]]:
    """Of all cases; `kept_in` has a line for each that is done."""
    done = {}
    if kept_in is not None and kept_in.exists():
        done = dict(json.loads(line) for line in kept_in.read_text(encoding="utf-8").splitlines())
    missing = [case for case in todo if str(case) not in done]
    missing.sort(key=lambda case: case.direction)  # backwards, which take longest, first
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for case, found in pool.imap_unordered(_named, missing):
            done[str(case)] = found
            what = case.without or case.overrides or case.variant
            print(f"{case.target} {case.direction} {what}: {found[0]}", file=sys.stderr, flush=True)
            if kept_in is not None:
                with kept_in.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([str(case), found]) + "\n")
    return {case: tuple(done[str(case)]) for case in todo}


def _named(case: Case) -> tuple[Case, tuple[str, dict]]:
    return case, outcome(case)


def table(only: str = "", before: str = "", jobs: int = 1, kept_in: pathlib.Path | None = None) -> tuple[str, list[str]]:
    """The two tables; rows that `only` leaves out are those of the text `before`."""
    kept = [part.splitlines() for part in before.split(HEADS[1])] if HEADS[1] in before else [[], []]
    wanted = [key for key in PIPELINES if only in ("", ":".join(key))]
    found = outcomes([case for key in wanted for case in cases(*key)], jobs, kept_in)
    tables: list[list[str]] = [[], []]
    wrong = []
    for target, direction in PIPELINES:
        if (target, direction) in wanted:
            out, on, complaints = rows_of(target, direction, found)
            wrong += complaints
        else:
            out, on = ([line for line in old if line.startswith(f"| {target} | {direction} |")] for old in kept)
        tables[0] += out
        tables[1] += on
    return "\n\n".join("\n".join([head, "|---|---|---|---|---|", *lines]) for head, lines in zip(HEADS, tables, strict=True)) + "\n", wrong


# ------------------------------------------------------------------------------------------------------------ the text of passes


def described(doc: str) -> str:
    """The page with signature, summary and the IR before and after of each pass, as the head of its file has them."""
    for entry in all_passes().values():
        mark = f"<!-- {entry.name} -->\n"
        head, found, rest = doc.partition(mark)
        if found:
            doc = head + mark + _description(entry) + "<!-- end -->\n" + rest.partition("<!-- end -->\n")[2]
    return doc


def _description(entry) -> str:
    lines = entry.description.split("\n")
    first = next((n for n, line in enumerate(lines) if line.startswith(("Before:", "Without"))), None)
    last = next((n for n, line in enumerate(lines) if first is not None and n > first and not line.strip()), len(lines))
    block = "" if first is None else "\n```\n" + "\n".join(lines[first:last]) + "\n```\n"
    return f"`{signature(entry)}`: {entry.summary}\n{block}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/passes.md")
    parser.add_argument("--text", action="store_true", help="put what the passes say of themselves into docs/passes.md; runs nothing")
    parser.add_argument("--only", default="", metavar="TARGET:DIRECTION")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--outcomes", type=pathlib.Path, metavar="FILE", help="keeps what is done, a line a case")
    args = parser.parse_args()
    if args.text:
        DOC.write_text(described(DOC.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    head, _, rest = DOC.read_text(encoding="utf-8").partition(BEGIN)
    before, _, rest = rest.partition(END)
    text, wrong = table(args.only, before, args.jobs, args.outcomes)
    if args.write:
        DOC.write_text(head + BEGIN + text + END + rest, encoding="utf-8")
    else:
        print(text, end="")
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
