"""An explanation as tables: as text, or as one HTML page without scripts or other files."""

from __future__ import annotations

import html
import textwrap
from dataclasses import dataclass

from .steps import QUANTITIES, UNITS

_BAR, _WIDTH = 30, 100  # characters


@dataclass
class Table:
    """`bars`: for each row a share of 1, or None; `note`: a line under the title."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    note: str = ""
    bars: list[float | None] | None = None


def tables(found: dict) -> list[Table]:
    shown = []
    for kernel in found["kernels"]:
        for step in kernel["steps"]:
            shown += [_clocks(kernel["name"], _loop(kernel, step), step), *_schedule(kernel, step)]
        shown += _memory(kernel)
        shown += _registers(kernel)
    shown += [_launch(launch) for launch in found.get("launches", [])]
    return shown + _passes(found.get("passes", []))


def as_text(found: dict) -> str:
    lines = [_headline(found)]
    for table in tables(found):
        lines += ["", table.title, *textwrap.wrap(table.note, _WIDTH, initial_indent="  ", subsequent_indent="    ")]
        widths = [max(len(row[i]) for row in [table.heads, *table.rows]) for i in range(len(table.heads))]
        for number, row in enumerate([table.heads, *table.rows]):
            bar = table.bars[number - 1] if table.bars and number else None
            cells = "  ".join(cell.rjust(width) if _is_number(cell) else cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append("  " + (cells + ("  " + "#" * round(bar * _BAR) if bar else "")).rstrip())
    return "\n".join(lines) + "\n"


_STYLE = """body{font:14px/1.4 system-ui,sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}td,th{padding:.1em .8em .1em 0;
text-align:left;vertical-align:top}td.n{text-align:right;font-variant-numeric:tabular-nums}h2{font-size:1.05em;margin:1.6em 0 .3em}
p{margin:.2em 0}.bar{background:#4a7ebb;height:.8em;display:inline-block}"""


def as_html(found: dict) -> str:
    parts = [f"<!doctype html><meta charset=utf-8><title>{html.escape(_headline(found))}</title><style>{_STYLE}</style>",
             f"<h1>{html.escape(_headline(found))}</h1>"]
    for table in tables(found):
        parts.append(f"<h2>{html.escape(table.title)}</h2>" + (f"<p>{html.escape(table.note)}</p>" if table.note else ""))
        parts.append("<table><tr>" + "".join(f"<th>{html.escape(head)}</th>" for head in table.heads) + "</tr>")
        for number, row in enumerate(table.rows):
            cells = "".join(f"<td class={'n' if _is_number(cell) else 't'}>{html.escape(cell)}</td>" for cell in row)
            bar = table.bars[number] if table.bars else None
            parts.append(f"<tr>{cells}" + (f"<td><span class=bar style='width:{bar * 20:.2f}em'></span></td>" if bar else "") + "</tr>")
        parts.append("</table>")
    return "\n".join(parts) + "\n"


def _headline(found: dict) -> str:
    return f"{found['file']}: {found['direction']} for {found['target']}, {found['level']} level"


def _is_number(cell: str) -> bool:
    return cell.replace(".", "", 1).replace(",", "").replace("-", "", 1).isdigit()


def _number(x) -> str:
    return f"{x:,.0f}" if x == int(x) else f"{x:,.1f}"


def _clock_rows(clocks: dict, bound: str) -> tuple[list[list[str]], list[float | None]]:
    """Each unit, and under one that several quantities share these; what is 0 is left out."""
    rows, bars, most = [], [], clocks[bound] or 1
    for unit, parts in UNITS.items():
        if clocks[unit]:
            rows.append([unit, _number(clocks[unit]), "<- bound" if unit == bound else ""])
            bars.append(clocks[unit] / most)
        for part in parts if len(parts) > 1 and unit != "issue" else ():
            if clocks[part]:
                rows.append(["  " + part, _number(clocks[part]), ""])
                bars.append(None)
    return rows, bars


def _loop(kernel: dict, step: dict) -> str:
    """Its place or, of one that a pass made, its number where there are several."""
    if step["loop"]:
        return f"the loop at {step['loop']}"
    return "its block loop" if len(kernel["steps"]) == 1 else f"block loop {1 + kernel['steps'].index(step)}"


def _clocks(name: str, loop: str, step: dict) -> Table:
    rows, bars = _clock_rows(step["clocks"], step["bound"])
    moved = [f"{name} {step['counts'][name]:,} bytes" for name in ("tmem_read", "tmem_written") if name in step["counts"]]
    notes = [f"tensor memory, by threads: {', '.join(moved)}"] if moved else []
    notes += [f"{step['interval']:,} clocks between steps by the model of tile-pipeline, waits included"] if step["interval"] else []
    return Table(f"{name}: clocks of one step of {loop}", ["unit", "clocks", ""], rows, "; ".join(notes), bars)


def _schedule(kernel: dict, step: dict) -> list[Table]:
    if not step["schedule"]:
        return []
    rows = [[_text(s["order"]), str(s["stage"]), s["name"], s["op"], s["unit"] + (" (seldom)" if s["seldom"] else ""), str(s["clocks"])]
            for s in step["schedule"]]
    return [Table(f"{kernel['name']}: schedule of a step", ["order", "stage", "name", "operation", "unit", "clocks"], rows,
                  "in step k an operation of stage s works for iteration k - s")]


def _memory(kernel: dict) -> list[Table]:
    found, memory, shared = [], kernel["tmem"], kernel["smem"]
    if memory is not None:
        rows = [[t["name"], "{} to {}".format(*t["columns"]) if t["columns"] else "not placed", f"{t['rows']}x{t['dtype']}", _life(t)]
                for t in memory["tiles"]]
        each = f", each of {memory['row_blocks']} row blocks its half" if memory["row_blocks"] > 1 else ""
        found.append(Table(f"{kernel['name']}: tensor memory", ["tile", "columns", "rows", "needed"], rows,
                           f"{memory['used']} of {memory['columns']} columns in use{each}; side by side {memory['side_by_side']}"))
    rows = [[b["name"], _text(b["offset"]), str(b["stages"]), f"{b['bytes']:,}"] for b in shared["buffers"]]
    if rows:
        found.append(Table(f"{kernel['name']}: shared memory", ["buffer", "offset", "stages", "bytes"], rows,
                           f"{shared['bytes']:,} of {shared['limit']:,} bytes"))
    return found


def _life(t: dict) -> str:
    if "written_by" not in t:
        return ""
    if t["whole_loop"]:
        return "across the loop"
    later = f", {t['iterations']} later" if t["iterations"] else ""
    return f"from {t['written_by']} to {t['last_needed_by']}{later}"


def _registers(kernel: dict) -> list[Table]:
    found = kernel["registers"]
    if found is None:
        return []
    rows = [[r["name"], f"{r['active']} of {r['warps']}", str(r["registers"]), str(r["fragments"])] for r in found["roles"]]
    return [Table(f"{kernel['name']}: roles", ["role", "warps", "registers", "of fragments"], rows,
                  f"{found['threads']} threads, {found['used']:,} of {found['limit']:,} registers"
                  + (f"; clusters of {kernel['cluster']}" if kernel["cluster"] > 1 else ""))]


def _launch(launch: dict) -> Table:
    rows, bars = _clock_rows(launch["clocks"], launch["bound"])
    counts = {key: n for key, n in launch["counts"].items() if key in (*QUANTITIES, "smem_read", "smem_written", "smem_bulk")}
    grid = "x".join(map(str, launch["grid"]))
    title = f"{launch['kernel']} on a grid of {grid}: clocks of an SM, {1e6 * launch['seconds']:.1f} us at least"
    return Table(title, ["unit", "clocks", ""], rows, "executed: " + ", ".join(f"{key} {n:,}" for key, n in counts.items()), bars)


def _passes(passes: list[dict]) -> list[Table]:
    rows = []
    for entry in passes:
        said = [f"{fact}: {_text(before)} -> {_text(after)}" for fact, (before, after) in entry.get("facts", {}).items()]
        said += [", ".join(_counted(entry))]
        lines = [line for text in said for line in textwrap.wrap(text, _WIDTH, subsequent_indent="  ")]
        lines = lines or ["changes attributes or the order of operations" if entry["changed"] else "changes nothing"]
        rows += [[name, line.replace("\xa0", " ")] for name, line in zip([entry["pass"], *[""] * len(lines)], lines, strict=False)]
    return [Table("what each pass changed", ["pass", ""], rows)] if rows else []


def _counted(entry: dict) -> list[str]:
    """Operations that came and went, by kind, each a word; index and bit arithmetic as one."""
    found = []
    for sign, key in (("+", "added"), ("-", "removed")):
        kinds = entry.get(key, {})
        found += [f"{sign}{n}\xa0{name}" for name, n in kinds.items() if not name.startswith("arith.")]
        scalars = sum(n for name, n in kinds.items() if name.startswith("arith."))
        found += [f"{sign}{scalars}\xa0arith"] if scalars else []
    return found


def _text(value) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
