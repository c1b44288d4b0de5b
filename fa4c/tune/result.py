"""What follows from a measurement: the table, the configurations that win, and the data of the target that the compiler reads."""

from __future__ import annotations

import itertools
import json
import math
import pathlib

from ..ir.diagnostics import Diagnostic
from ..targets import tuned
from .data import TARGET_SCHEMA, write_json

# Geometric mean over the sizes: below it the simpler choice stays. A second kernel takes as long to compile as the first, and five rounds
# of one kernel differ by as much.
LEAST_GAIN = 1.02
_LIMIT_STEP = 64


def table(result: dict) -> str:
    """Rows by variant and size, fastest first."""
    lines = []
    for (variant, sizes), rows in _groups(result):
        lines.append(f"{variant}  {' '.join(f'{k}={v}' for k, v in json.loads(sizes).items())}")
        lines.append(f"    {'configuration':28} {'ms':>9} {'spread':>7} {'speed':>7} {'model':>7}  registers  shared")
        base = next((row for row in rows if row["label"] == row["baseline"]), rows[0])
        for row in sorted(rows, key=lambda row: row["ms"]):
            spread = (max(row["rounds_ms"]) - min(row["rounds_ms"])) / row["ms"]
            model = f"{base['predicted_clk'] / row['predicted_clk']:.3f}" if row.get("predicted_clk") and base.get("predicted_clk") else "-"
            lines.append(
                f"    {row['label']:28} {row['ms']:9.4f} {spread:7.1%} {row['against']:7.3f} {model:>7}  "
                f"{row.get('registers', '-'):>9}  {row.get('smem_bytes', '-')}"
            )
    for entry in result["wrong"]:
        lines.append(f"out: {entry['variant']} {entry['label']}: {entry['note']}")
    for entry in result["not_compiled"]:
        lines.append(f"not compiled: {entry['variant']} {entry['label']}: {entry['why']}")
    if result["not_measured"]:
        lines.append(f"not measured: {len(result['not_measured'])} of the candidates and sizes")
    return "\n".join(lines)


def _groups(result: dict):
    def key(row):
        return row["variant"], json.dumps(row["sizes"])

    order = list(dict.fromkeys(map(key, result["rows"])))
    return [(name, [row for row in result["rows"] if key(row) == name]) for name in order]


# -- who wins ------------------------------------------------------------------------------------------------------------------------------


def winners(result: dict) -> list[dict]:
    """An entry of the target's data for each problem: the configuration that wins, or two where lengths differ about it.

    Candidates that no configuration can express (other passes' options) are not among them: `suggestions`. `changed` says whether it
    is another than what the compiler takes today.
    """
    entries = []
    for problem in _problems(result):
        rows = [row for row in result["rows"] if row["problem"] == problem and row["configuration"] is not None]
        lengths = sorted({row["sizes"]["n"] for row in rows})
        speed = {}
        for row in rows:
            speed.setdefault(row["label"], {}).setdefault(row["sizes"]["n"], []).append(row["against"])
        speed = {label: {n: _mean(v) for n, v in at.items()} for label, at in speed.items() if len(at) == len(lengths)}
        if speed:
            entries.append(_entry(result, problem, rows, _best_choice(speed, lengths, rows[0]["baseline"]), speed, lengths))
    return entries


def _problems(result: dict) -> list[dict]:
    found = []
    for row in result["rows"]:
        if row["problem"] not in found:
            found.append(row["problem"])
    return found


def _best_choice(speed: dict, lengths: list, today: str) -> list[tuple[str, int]]:
    """[(label, how many of the lengths, from the shortest)]. Another than today's must gain, and so must two over the best single one."""

    def value(choice) -> float:
        labels = [label for label, count in choice for _ in range(count)]
        return _mean([speed[label][n] for label, n in zip(labels, lengths)])

    single = max(([(label, len(lengths))] for label in speed), key=value)
    if today in speed and value(single) < LEAST_GAIN * value([(today, len(lengths))]):
        single = [(today, len(lengths))]
    pairs = itertools.permutations(speed, 2)
    splits = [[(a, cut), (b, len(lengths) - cut)] for a, b in pairs for cut in range(1, len(lengths))]
    best = max(splits, key=value, default=single)
    return best if value(best) >= LEAST_GAIN * value(single) else single


def _entry(result, problem, rows, choice, speed, lengths) -> dict:
    configurations, at = [], 0
    for label, count in choice:
        at += count
        own = dict(next(row["configuration"] for row in rows if row["label"] == label))
        if at < len(lengths):
            own["limit"] = {"size": "n", "most": _between(lengths[at - 1], lengths[at])}
        configurations.append(own)
    labels = [label for label, count in choice for _ in range(count)]
    gain = _mean([speed[label][n] for label, n in zip(labels, lengths)])
    machine = result["machine"]
    return {
        "problem": problem,
        "changed": labels != [rows[0]["baseline"]] * len(lengths),
        "variants": list(dict.fromkeys(row["variant"] for row in rows)),
        "configurations": configurations,
        "source": f"{machine.get('gpu', '?')}, driver {machine.get('driver', '?')}, {machine.get('date', '?')[:10]}: "
        f"{gain:.3f}x the speed of {rows[0]['baseline']}",
        "measured": {
            "machine": machine,
            "dsl": result.get("dsl", ""),
            "ms": {row["label"] + f" n={row['sizes']['n']}": [row["ms"], min(row["rounds_ms"]), max(row["rounds_ms"])] for row in rows},
        },
    }


def _between(a: int, b: int) -> int:
    """A length halfway between two, by their ratio."""
    return max(a, round(math.sqrt(a * b) / _LIMIT_STEP) * _LIMIT_STEP)


def suggestions(result: dict) -> list[str]:
    """Other passes' options that gain over the same block shape, by variant: for the target's numbers, by hand."""
    lines = []
    for variant in dict.fromkeys(row["variant"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["variant"] == variant and row["configuration"] is None]
        for label in dict.fromkeys(row["label"] for row in rows):
            gain = {row["sizes"]["n"]: row["against"] for row in rows if row["label"] == label}
            if max(gain.values()) >= LEAST_GAIN:
                lines.append(f"{variant} {label}: " + ", ".join(f"n={n} {x:.3f}x" for n, x in gain.items()))
    return lines


def _mean(values) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


# -- the target's data ---------------------------------------------------------------------------------------------------------------------


def apply(result: dict, path=None) -> tuple[pathlib.Path, list[dict]]:
    """Put the winners into the target's data; returns its path and the winners.

    Entries of other problems stay. A problem that had none gets one only where the winner is not what the formula gives anyway.
    """
    path = pathlib.Path(path) if path is not None else tuned.path_of(result["target"])
    before = []
    if path.exists():
        before = list(tuned.check(json.loads(path.read_text(encoding="utf-8")), path))
    entries = winners(result)
    had = [entry["problem"] for entry in before]
    new = [{k: v for k, v in e.items() if k != "changed"} for e in entries if e["changed"] or e["problem"] in had]
    kept = [entry for entry in before if entry["problem"] not in [e["problem"] for e in new]]
    data = {"schema": TARGET_SCHEMA, "target": result["target"], "entries": kept + new}
    tuned.check(data, path)
    try:
        write_json(path, data)
    except OSError as error:
        raise Diagnostic(
            "cannot write the target's data",
            where=str(path),
            why=error.strerror or str(error),
            fix="name another file with --out, and copy it there",
        ) from None
    tuned.entries.cache_clear()
    return path, entries
