#!/usr/bin/env python3
"""What each kernel of sm_100a has on the stack, and which accesses to local memory lie inside a loop.

    local_memory.py [--direction bwd|fwd] [--out RESULT.json] [--example NAME]... [--head-dim D[,DV]]... [--mode plain|deterministic]
                    [--set PASS.OPTION=VALUE]... [--jobs N]

Compiles every example, and for the forward a captured bias, at head dims 64, 96, 128, (192, 128) and 256, the backward plain and
deterministic; reads registers and stack from the cubin and LDL and STL from its disassembly. A loop is a natural one: a branch back to an
instruction that dominates it, and all that reaches the branch from there. Exits 1 where a kernel has an access inside a loop, or more than
16 bytes of stack. No GPU is needed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import json
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from emulator_matrix import text_of  # noqa: E402

from fa4c.ir.diagnostics import Diagnostic  # noqa: E402
from fa4c.lowering import build, cute_source, sass  # noqa: E402
from fa4c.lowering.compile import lowered  # noqa: E402
from fa4c.lowering.cubin import resources  # noqa: E402

HEAD_DIMS = ("64", "96", "128", "192,128", "256")
MOST_OUTSIDE = 16  # bytes of stack that a kernel may have outside of its loops
_LABEL = re.compile(r"^\s*(\.L_x?_?\w+):")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*(?:\(\*.*)?;")
_TARGET = re.compile(r"`\((\.L_x?_?\w+)\)")
_KNOWN: dict[str, dict] = {}  # source without its name -> what was found


def local_accesses(text: str) -> dict[str, dict[str, list[str]]]:
    """SASS of a cubin (`nvdisasm -c`) -> {kernel: {"inside": [...], "outside": [...]}}, of LDL and STL with their addresses."""
    found = {}
    for part in re.split(r"^\s*\.section\s+\.text\.", text, flags=re.MULTILINE)[1:]:
        name = re.match(r"[\w$]+", part)[0]
        instructions, labels = _parsed(part)
        looped = set().union(*_loops(instructions, labels))
        local = [n for n, (_, _, opcode, _) in enumerate(instructions) if opcode.split(".")[0] in ("LDL", "STL")]
        rows = {n: f"{instructions[n][0]} {instructions[n][2]} {instructions[n][3]}" for n in local}
        found[name] = {"inside": [rows[n] for n in local if n in looped], "outside": [rows[n] for n in local if n not in looped]}
    return found


def _parsed(part: str) -> tuple[list, dict[str, int]]:
    """([(address, predicated, opcode, operands)], label -> number of the instruction behind it)."""
    instructions, labels = [], {}
    for line in part.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif match := _INSTRUCTION.match(line):
            instructions.append((match[1], bool(match[2]), match[3], match[4]))
    return instructions, labels


def _loops(instructions: list, labels: dict[str, int]) -> list[set[int]]:
    """Natural loops, as numbers of instructions; computed on basic blocks."""
    ends = [n for n, (_, _, opcode, _) in enumerate(instructions) if opcode.split(".")[0] in ("BRA", "EXIT", "RET", "BRX", "JMP")]
    starts = sorted({0, *labels.values(), *(n + 1 for n in ends)} - {len(instructions)})
    block_of = {first: k for k, first in enumerate(starts)}
    spans = list(zip(starts, [*starts[1:], len(instructions)], strict=True))
    after = []
    for _, last in spans:
        _, predicated, opcode, operands = instructions[last - 1]
        name = opcode.split(".")[0]
        reached = []
        if name == "BRA":
            target = _TARGET.search(operands)
            reached.append(block_of[labels[target[1]]])
            predicated = predicated or operands.split("`")[0].strip(" ,") not in ("", "URZ")  # BRA.U UP0, `(...)
        if name not in ("EXIT", "RET", "BRX", "JMP", "BRA") or (predicated and last < len(instructions)):
            reached.extend([block_of[last]] if last in block_of else [])
        after.append(reached)
    dominators, before = _dominators(after)
    loops = []
    for k, targets in enumerate(after):
        for header in targets:
            if k in dominators and header in dominators[k]:
                body, work = {header}, [k]
                while work:
                    if (block := work.pop()) not in body:
                        body.add(block)
                        work.extend(b for b in before[block] if b in dominators)
                loops.append({n for b in body for n in range(*spans[b])})
    return loops


def _dominators(after: list[list[int]]) -> tuple[dict[int, set[int]], dict[int, list[int]]]:
    """Of the blocks that are reached from the first one; and who comes before each."""
    reached, work = {0}, [0]
    while work:
        for k in after[work.pop()]:
            if k not in reached:
                reached.add(k)
                work.append(k)
    before = {k: [] for k in range(len(after))}
    for k in reached:
        for target in after[k]:
            before[target].append(k)
    dominators = {k: set(reached) for k in reached} | {0: {0}}
    changed = True
    while changed:
        changed = False
        for k in sorted(reached - {0}):
            new = {k} | set.intersection(*(dominators[b] for b in before[k]))
            changed, dominators[k] = changed or new != dominators[k], new
    return dominators, before


def measured(direction: str, example: str, head_dim: str, mode: str, overrides: tuple) -> list[dict]:
    """A row for each kernel; one row that says why where it is refused."""
    dims = [int(d) for d in head_dim.split(",")]
    what = {"example": example, "head_dim": head_dim, "mode": mode}
    options = dict(target="sm_100a", direction=direction, deterministic=mode == "deterministic", overrides=overrides)
    try:
        text = text_of(example) if example == "bias" else (ROOT / "examples" / f"{example}.mlir").read_text()
        with lowered(text, f"{example}.mlir", head_dim=(dims[0], dims[-1]), **options) as result:
            sources = cute_source.emit(result.module)
    except Diagnostic as refused:
        return [{**what, "refused": str(refused).splitlines()[0]}]
    return [{**what, "kernel": name, **_of_kernel(source, name)} for name, source in sources.items()]


def _of_kernel(source: str, name: str) -> dict:
    """Kernels that differ in their name and in comments alone are compiled once."""
    key = re.sub(r"#.*", "", source.replace(name, "kernel"))
    if key not in _KNOWN:
        data = build.build(source, name, "sm_100a").cubin
        (used,), (accesses,) = resources(data).values(), local_accesses(sass.disassemble(data)).values()
        _KNOWN[key] = {"registers": used.registers, "stack_bytes": used.stack_bytes, "local_bytes": used.local_bytes, **accesses}
    return _KNOWN[key]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--direction", choices=("fwd", "bwd"), default="bwd")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--example", action="append")
    parser.add_argument("--head-dim", action="append")
    parser.add_argument("--mode", action="append", choices=("plain", "deterministic"))
    parser.add_argument("--set", action="append", default=[], metavar="PASS.OPTION=VALUE")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    overrides = tuple((*key.rsplit(".", 1), value) for key, _, value in (text.partition("=") for text in args.set))
    examples = args.example or sorted(path.stem for path in (ROOT / "examples").glob("*.mlir"))
    examples += ["bias"] if args.direction == "fwd" and not args.example else []
    modes = args.mode or (("plain", "deterministic") if args.direction == "bwd" else ("plain",))
    cases = [(args.direction, e, d, m, overrides) for m in modes for d in args.head_dim or HEAD_DIMS for e in examples]
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    record = {"what": f"stack and local accesses of the {args.direction} kernels of sm_100a, see bench/local_memory.py", "commit": commit,
              "date": datetime.date.today().isoformat(), "options": args.set, "most_bytes_outside_loops": MOST_OUTSIDE, "kernels": []}
    start, bad = time.time(), 0
    with concurrent.futures.ProcessPoolExecutor(args.jobs) as pool:
        for rows in pool.map(measured, *zip(*cases, strict=True)):
            for row in rows:
                wrong = "refused" not in row and (bool(row["inside"]) or row["stack_bytes"] > MOST_OUTSIDE)
                bad += wrong
                said = row.get("refused") or (
                    f"{row['kernel']}: {row['registers']} registers, {row['stack_bytes']} bytes of stack, local accesses inside loops "
                    f"{len(row['inside'])}, outside {len(row['outside'])}"
                )
                print(f"{row['example']} {row['head_dim']} {row['mode']} {said}{'  <--' if wrong else ''}", flush=True)
            record["kernels"] += rows
            if args.out:
                args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{len(record['kernels'])} kernels, {bad} beyond the limits, {time.time() - start:.0f} s", file=sys.stderr)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
