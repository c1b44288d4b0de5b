#!/usr/bin/env python3
"""What each kernel of sm_100a has on the stack, and which accesses to local memory lie inside a loop.

    local_memory.py --direction bwd|fwd [--only BEGINNING]... [--out RESULT.json] [--seconds S] [--list]

Compiles the kernels of `emulator_matrix.py`, and what it leaves out: the other examples, and the backward at head dim 256. Reads registers
and stack from the cubin and LDL and STL from its disassembly. A loop is a natural one: a branch back to an instruction that dominates it,
and all that reaches the branch from there. Each is compiled in a process of its own, one after the other, and the record written behind
each; run again, only sources that the record does not hold are compiled. Exits 1 where a kernel has an access inside a loop, or more than
16 bytes of stack. No GPU is needed.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import multiprocessing
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from emulator_matrix import HEAD_DIMS, VARIANTS, Kernel, matrix, text_of  # noqa: E402

from fa4c.ir.diagnostics import Diagnostic  # noqa: E402
from fa4c.lowering import build, cute_source, sass  # noqa: E402
from fa4c.lowering.compile import lowered  # noqa: E402
from fa4c.lowering.cubin import resources  # noqa: E402

MOST_OUTSIDE = 16  # bytes of stack that a kernel may have outside of its loops
_LABEL = re.compile(r"^\s*(\.L_x?_?\w+):")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*(?:\(\*.*)?;")
_TARGET = re.compile(r"`\((\.L_x?_?\w+)\)")


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


def cases(direction: str) -> list[Kernel]:
    """The matrix; then the other examples and what the matrix has no place for, alone and, where sums of CTAs meet, in a fixed order."""
    more = sorted({path.stem for path in (ROOT / "examples").glob("*.mlir")} - set(VARIANTS))
    more = [Kernel(direction, variant, head_dim) for head_dim in HEAD_DIMS for variant in more]
    if direction == "bwd":
        more += [Kernel(direction, variant, HEAD_DIMS[-1]) for variant in VARIANTS]
        more += [Kernel(k.direction, k.variant, k.head_dim, deterministic=True) for k in more]
    return [*(k for k in matrix() if k.direction == direction), *more]


def measured(case: Kernel, known: dict[str, dict]) -> list[dict]:
    """A row for each kernel; one row that says why where it is refused. `known`: digest of a source -> its row."""
    try:
        with lowered(text_of(case.variant), f"{case.variant}.mlir", **case.options) as result:
            sources = cute_source.emit(result.module)
    except Diagnostic as refused:
        return [{"case": str(case), "refused": str(refused).splitlines()[0]}]
    return [{"case": str(case), "kernel": name, **_of_kernel(source, name, known)} for name, source in sources.items()]


def _of_kernel(source: str, name: str, known: dict[str, dict]) -> dict:
    """Kernels that differ in their name and in comments alone are compiled once."""
    text = re.sub(r"#.*", "", source.replace(name, "kernel")) + build.import_dsl().__version__
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if digest not in known:
        data = build.build(source, name, "sm_100a").cubin
        (used,), (accesses,) = resources(data).values(), local_accesses(sass.disassemble(data)).values()
        known[digest] = {"registers": used.registers, "stack_bytes": used.stack_bytes, "local_bytes": used.local_bytes, **accesses}
    return {"source": digest, **known[digest]}


def _in_a_process(case: Kernel, known: dict[str, dict]) -> list[dict]:
    """`measured` in a process that is gone afterwards, with what the compiler leaves in memory; a row that says so where it died."""
    context = multiprocessing.get_context("fork")  # the modules are there already, and no MLIR context is
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(measured(case, known)))
    child.start()
    sender.close()
    try:
        rows = receiver.recv()
    except EOFError:
        rows = None
    child.join()
    return rows or [{"case": str(case), "died": f"exit status {child.exitcode}"}]


def is_bad(row: dict) -> bool:
    return "died" in row or ("refused" not in row and (bool(row["inside"]) or row["stack_bytes"] > MOST_OUTSIDE))


def _text(row: dict) -> str:
    said = row.get("refused") or row.get("died") or (
        f"{row['kernel']}: {row['registers']} registers, {row['stack_bytes']} bytes of stack, local accesses inside loops "
        f"{len(row['inside'])}, outside {len(row['outside'])}"
    )
    return f"{row['case']} {said}{'  <--' if is_bad(row) else ''}"


def _write(file: pathlib.Path, direction: str, rows: list[dict]) -> None:
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    record = {"what": f"stack and local accesses of the {direction} kernels of sm_100a, see bench/local_memory.py", "commit": commit,
              "date": datetime.date.today().isoformat(), "most_bytes_outside_loops": MOST_OUTSIDE}
    listed = ",\n".join("  " + json.dumps(row) for row in rows)
    file.write_text(json.dumps(record, indent=1)[:-2] + f',\n "kernels": [\n{listed}\n ]\n}}\n', encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--direction", choices=("fwd", "bwd"), required=True)
    parser.add_argument("--only", action="append", metavar="BEGINNING", help="cases whose name begins so, as --list gives it")
    parser.add_argument("--out", type=pathlib.Path, help="the record; what it holds of the same sources is not compiled again")
    parser.add_argument("--seconds", type=float, default=1e9, metavar="S", help="begin no case after so many")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    chosen = [case for case in cases(args.direction) if str(case).startswith(tuple(args.only or [""]))]
    if args.list:
        print("\n".join(map(str, chosen)))
        return
    old = json.loads(args.out.read_text(encoding="utf-8"))["kernels"] if args.out and args.out.exists() else []
    facts = ("registers", "stack_bytes", "local_bytes", "inside", "outside")
    known = {row["source"]: {key: row[key] for key in facts} for row in old if "source" in row}
    build.import_dsl()
    start, rows, done = time.time(), [], set()
    for case in chosen:
        if time.time() - start > args.seconds:
            break
        found = _in_a_process(case, known)
        known.update((row["source"], {key: row[key] for key in facts}) for row in found if "source" in row)
        print("\n".join(map(_text, found)), flush=True)
        rows += found
        done.add(str(case))
        if args.out:  # what an earlier run found of others is kept
            _write(args.out, args.direction, rows + [row for row in old if row.get("case") not in done])
    bad = sum(map(is_bad, rows))
    print(f"{len(rows)} kernels of {len(done)} cases, {bad} beyond the limits, {len(chosen) - len(done)} cases not begun, "
          f"{time.time() - start:.0f} s", file=sys.stderr)
    sys.exit(1 if bad or len(done) < len(chosen) else 0)


if __name__ == "__main__":
    main()
