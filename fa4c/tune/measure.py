"""Time the candidates of a folder on a GPU. Needs the runtime only: neither MLIR nor the kernel DSL.

For each variant and size: every candidate's results are compared with float64 (of one group of heads, and at a small odd size in full),
outputs poisoned before; the wrong ones are out. Then rounds: in each, all candidates once, in turning order, so that a chip that slows
down slows all. A row has the median over the rounds and all of them; `against` is the median over the rounds of the baseline's time (what
the compiler takes today) by this one's: above 1 is faster.

The work is done by a child process that writes a line for each step. Where a kernel hangs or faults, that candidate is marked, and a new
child goes on behind it.
"""

from __future__ import annotations

import importlib
import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from ..ir.diagnostics import Diagnostic
from .data import PLAN, RESULT, SCHEMA, read_json, write_json

BENCH = "fa4c.tune.gpu:Bench"
ROUNDS, CALLS = 5, 8
_MILLISECONDS_A_ROUND = 20  # of one candidate: fewer calls where they are long
_COMPARED_IN_FULL = 1 << 18  # pairs of query and key


def measure(
    folder: str, out: str, *, budget: float = 600, stall: float = 60, bench: str = BENCH, say: Callable[[str], None] = print
) -> dict:
    """Run children until all is measured or `budget` seconds are over; write and return the result. `bench`: module:class of what times."""
    plan = read_json(pathlib.Path(folder) / "plan.json", PLAN)
    _bench(bench)(plan["target"])  # fails here, with a message, rather than in every child
    journal = pathlib.Path(f"{out}.journal")
    journal.write_text("")
    end = time.monotonic() + budget
    while time.monotonic() < end:
        reason = _child(folder, journal, bench, end, stall, say)
        events = _events(journal)
        if not reason:
            break
        current = events[-1] if events and events[-1]["event"] == "start" else None
        if current is None:
            raise Diagnostic("measuring does not start", where=folder, why=reason)
        _append(journal, {**current, "event": "wrong", "note": reason})
        say(f"{current['variant']} {current['label']}: {reason}")
    result = collect(plan, _events(journal))
    write_json(out, result)
    journal.unlink()
    return result


def _bench(name: str):
    module, _, kind = name.partition(":")
    return getattr(importlib.import_module(module), kind)


def _child(folder, journal, bench: str, end: float, stall: float, say) -> str:
    """'' when it has finished, else why it did not."""
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    path = f"import sys; sys.path[:0] = {[str(root), *sys.path]!r}"
    code = f"{path}; from fa4c.tune.measure import work; work({str(folder)!r}, {str(journal)!r}, {bench!r})"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=sys.stderr)
    before = seen = journal.stat().st_size
    last, shown = time.monotonic(), len(_events(journal))
    while child.poll() is None:
        time.sleep(0.1)
        events, size = _events(journal), journal.stat().st_size
        for event in events[shown:]:
            if event["event"] == "row":
                say(f"{event['variant']} {_sizes_text(event['sizes'])}  {event['label']}: {event['ms']:.4f} ms  {event['against']:.3f}x")
        shown = len(events)
        if size != seen:
            seen, last = size, time.monotonic()
        patience = stall if size > before else max(stall, 180)  # the first event waits for torch and the driver
        if time.monotonic() - last > patience or time.monotonic() > end:
            child.kill()
            child.wait()
            return "" if time.monotonic() > end else f"no progress for {patience:.0f} s: the kernel hangs"
    return "" if child.returncode == 0 else f"the process ended with status {child.returncode}"


def _events(journal: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in journal.read_text().splitlines() if line.endswith("}")]


def _append(journal, event: dict) -> None:
    with open(journal, "a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def work(folder: str, journal: str, bench: str) -> None:
    """The child: what the journal does not have yet."""
    plan = read_json(pathlib.Path(folder) / "plan.json", PLAN)
    bench = _bench(bench)(plan["target"])
    before = _events(pathlib.Path(journal))
    if not any(event["event"] == "machine" for event in before):
        bench.heat(1.0)
        _append(journal, {"event": "machine", **bench.machine()})
    wrong = {(e["variant"], e["label"]) for e in before if e["event"] == "wrong"}
    done = {(e["variant"], json.dumps(e["sizes"])) for e in before if e["event"] == "row"}
    for problem in plan["problems"]:
        for event in _problem(folder, problem, wrong, done, bench):
            _append(journal, event)


def _problem(folder, problem: dict, wrong: set, done: set, bench) -> Iterator[dict]:
    """Events of one variant: start (before anything that may hang), wrong, row."""
    from ..runtime import artifact

    variant = variant_of(problem)
    if all((variant, json.dumps(sizes)) in done for sizes in problem["sizes"]):
        return
    loaded, small = {}, None
    for candidate in problem["candidates"]:
        label = candidate["label"]
        if (variant, label) in wrong:
            continue
        yield {"event": "start", "variant": variant, "label": label, "sizes": bench.small}
        loaded[label] = artifact.load(pathlib.Path(folder) / candidate["artifact"])
        small = small or _Case(loaded[label].semantics, bench.small, bench)
        note = small.complaint(loaded[label])
        if note:
            del loaded[label]
            yield {"event": "wrong", "variant": variant, "label": label, "note": note}
    for sizes in problem["sizes"]:
        if loaded and (variant, json.dumps(sizes)) not in done:
            yield from _at(variant, sizes, loaded, bench)


def _at(variant: str, sizes: dict, loaded: dict, bench) -> Iterator[dict]:
    """All candidates at one size."""
    case = _Case(next(iter(loaded.values())).semantics, sizes, bench)
    calls = {}
    for label, artifact in loaded.items():
        yield {"event": "start", "variant": variant, "label": label, "sizes": sizes}
        note = case.complaint(artifact)
        if note:
            yield {"event": "wrong", "variant": variant, "label": label, "note": note}
        else:
            calls[label] = case.call(artifact)
    if not calls:
        return
    bench.heat(0.3)
    times, labels = {label: [] for label in calls}, list(calls)
    once = max(bench.time(calls[labels[0]], 2), 1e-3)
    count = int(max(2, min(CALLS, _MILLISECONDS_A_ROUND / once)))
    for number in range(ROUNDS):
        turn = number % len(labels)
        for label in labels[turn:] + labels[:turn]:
            yield {"event": "start", "variant": variant, "label": label, "sizes": sizes}
            times[label].append(bench.time(calls[label], count))
    clock = bench.clock()
    for label, own in times.items():
        against = statistics.median(a / b for a, b in zip(times[labels[0]], own))
        yield {
            "event": "row",
            "variant": variant,
            "label": label,
            "sizes": sizes,
            "ms": round(statistics.median(own), 5),
            "rounds_ms": [round(t, 5) for t in own],
            "baseline": labels[0],
            "against": round(against, 4),
            "calls": count,
            "sm_mhz": clock,
        }


class _Case:
    """Inputs of one size, poisoned outputs, and what one group of heads should give."""

    def __init__(self, semantics: dict, sizes: dict, bench):
        from ..runtime import inputs

        self.semantics, self.bench, self.sizes = semantics, bench, sizes
        self.inputs = inputs.make_inputs(semantics, sizes, 0, bench.device)
        self.outputs, self.expected = None, None

    def call(self, artifact):
        """A function that runs the artifact once, into these outputs. Optional ones are not computed, as in a call without gradients."""
        from ..runtime import execute

        wanted = [t.name for t in artifact.program.outputs if not t.optional]
        outputs = {name: self._poisoned()[name] for name in wanted}

        def run():
            execute.execute(artifact, self.inputs, backend=self.bench.backend, outputs=outputs, want=wanted)

        return run

    def complaint(self, artifact) -> str:
        """'' if all outputs (of the group) are right."""
        from ..runtime import check, execute
        from ..runtime.errors import RuntimeDiagnostic

        outputs = self._poisoned()
        try:
            execute.execute(artifact, self.inputs, backend=self.bench.backend, outputs=outputs)
            self.bench.synchronize()
        except RuntimeDiagnostic as error:
            return error.text().replace("\n", " ")
        given, mine = self._group(outputs)
        if given is None:
            return ""  # the small size was compared
        if self.expected is None:
            self.expected = check.expected(self.semantics, given)
        rows = check.check(self.semantics, given, mine, exact=self.expected[0], eager=self.expected[1])
        return "; ".join(str(row) for row in rows if not row.ok)

    def _poisoned(self) -> dict:
        import torch

        from ..runtime import reference
        from ..runtime.torch_types import TORCH

        if self.outputs is None:
            shapes = reference.result_shapes(self.semantics, self.sizes)
            dtypes = {r["name"]: TORCH[r["dtype"]] for r in self.semantics["results"]}
            self.outputs = {name: torch.empty(shape, dtype=dtypes[name], device=self.bench.device) for name, shape in shapes.items()}
        for tensor in self.outputs.values():
            tensor.fill_(float("nan"))
        return self.outputs

    def _group(self, outputs: dict):
        """(inputs, outputs) to compare: all of a small size; of a large one the last batch entry and KV head, or (None, None) where batch
        entries and heads are not alike."""
        tensors = {entry["name"]: entry for entry in (*self.semantics["args"], *self.semantics["results"])}
        if self.sizes["m"] * self.sizes["n"] <= _COMPARED_IN_FULL:
            return self.inputs, outputs
        if len(self.semantics["args"]) > 3 or '["index", "h"]' in json.dumps(self.semantics["body"]):
            return None, None
        return {n: self._cut(t, tensors[n]) for n, t in self.inputs.items()}, {n: self._cut(t, tensors[n]) for n, t in outputs.items()}

    def _cut(self, tensor, entry: dict):
        from ..runtime.layout import memory_layout

        heads = self.sizes["hq"] // self.sizes["hkv"]
        for axis, name in enumerate(memory_layout(entry["axes"], entry["dims"], self.semantics.get("layout", "bshd"), ())):
            count = {"b": 1, "hkv": 1, "hq": heads}.get(name)
            if count is not None:
                tensor = tensor.narrow(axis, tensor.shape[axis] - count, count)
        return tensor


def variant_of(problem: dict) -> str:
    """Name and head dims, as results and progress name it."""
    dims = problem["head_dims"]
    return f"{problem['name']} d={dims[0]}" + (f",{dims[1]}" if dims[0] != dims[1] else "")


def _sizes_text(sizes: dict) -> str:
    return " ".join(f"{name}={size}" for name, size in sizes.items())


def collect(plan: dict, events: list[dict]) -> dict:
    """The result: the machine, a row for each candidate and size, and what was left out and why."""
    by_variant = {variant_of(problem): problem for problem in plan["problems"]}
    rows, wrong = [], []
    for event in events:
        if event["event"] not in ("row", "wrong"):
            continue
        problem = by_variant[event["variant"]]
        candidate = next(c for c in problem["candidates"] if c["label"] == event["label"])
        fields = {k: v for k, v in event.items() if k != "event"}
        if event["event"] == "row":
            kept = ("configuration", "set", "disabled", "registers", "smem_bytes", "predicted_clk")
            at = problem["sizes"].index(event["sizes"])
            row = {"problem": problem["problem"], **fields, **{k: candidate[k] for k in kept if k in candidate}}
            rows.append({**row, "predicted_clk": row["predicted_clk"][at] if row.get("predicted_clk") else None})
        else:
            wrong.append(fields)
    measured = {(row["variant"], row["label"], json.dumps(row["sizes"])) for row in rows}
    missing = [
        {"variant": variant, "label": c["label"], "sizes": sizes}
        for variant, problem in by_variant.items()
        for c in problem["candidates"]
        for sizes in problem["sizes"]
        if (variant, c["label"], json.dumps(sizes)) not in measured
    ]
    machine = next((({k: v for k, v in e.items() if k != "event"}) for e in events if e["event"] == "machine"), {})
    dropped = [{"variant": variant, **entry} for variant, problem in by_variant.items() for entry in problem["dropped"]]
    return {
        "schema": SCHEMA,
        "kind": RESULT,
        "target": plan["target"],
        "machine": machine,
        "dsl": plan.get("dsl", ""),
        "rows": rows,
        "wrong": wrong,
        "not_compiled": dropped,
        "not_measured": missing,
    }
