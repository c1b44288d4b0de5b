"""Loops of a PTX kernel: basic blocks by labels and branches, back edges by dominance, instructions of each loop counted.

A loop that only polls an mbarrier (inline PTX, its labels local to braces) is part of the wait that it implements, no loop of the program.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

_LABEL = re.compile(r"^\s*([\w$]+):\s*$")
_BRANCH = re.compile(r"^\s*(@!?%?\w+\s+)?bra(?:\.uni)?\s+([\w$]+)\s*;")
_OPCODE = re.compile(r"^\s*(?:@!?%?\w+\s+)?([a-z][\w.:]*)")

# What is counted: name -> the opcode's beginning.
COUNTED = {
    "mma": "wgmma.mma_async",
    "ex2": "ex2.",
    "bulk": "cp.async.bulk.tensor",
    "wait": "mbarrier.try_wait",
    "arrive": "mbarrier.arrive",
    "barrier": ("bar.", "barrier."),
    "tanh": "tanh.",
}


@dataclass
class Block:
    number: int
    opcodes: list = field(default_factory=list)
    successors: list = field(default_factory=list)


@dataclass(frozen=True)
class Loop:
    """A loop of the program, without the loops inside it."""

    header: int
    blocks: frozenset
    counts: Counter
    depth: int

    def __getitem__(self, name: str) -> int:
        return self.counts[name]


def kernel_body(ptx: str) -> list[str]:
    """The lines of the first entry's body."""
    lines = ptx.splitlines()
    start = next(i for i, line in enumerate(lines) if ".entry" in line)
    first = next(i for i in range(start, len(lines)) if lines[i].startswith("{"))
    last = next(i for i in range(first, len(lines)) if lines[i].startswith("}") and _depth(lines[first : i + 1]) == 0)
    return lines[first + 1 : last]


def _depth(lines) -> int:
    return sum(_scopes(line) for line in lines)


def _scopes(line: str) -> int:
    """+1 for a line that opens a scope, -1 for one that closes it; operand lists in braces are balanced on their line."""
    return line.count("{") - line.count("}")


def basic_blocks(ptx: str) -> list[Block]:
    blocks, labels, targets = [Block(0)], {}, []
    scopes, scope_number = [0], 0
    for line in kernel_body(ptx):
        change = _scopes(line)
        if change > 0:
            scope_number += 1
            scopes.append(scope_number)
        elif change < 0:
            scopes.pop()
        label, branch = _LABEL.match(line), _BRANCH.match(line)
        if label:
            blocks.append(Block(len(blocks)))
            blocks[-2].successors.append(blocks[-1].number)
            labels[_scoped(label[1], scopes)] = blocks[-1].number
        elif branch:
            targets.append((blocks[-1], _scoped(branch[2], scopes)))
            blocks.append(Block(len(blocks)))
            if branch[1]:
                blocks[-2].successors.append(blocks[-1].number)
        elif re.match(r"^\s*(ret|exit)\b", line):
            blocks.append(Block(len(blocks)))
        elif opcode := _OPCODE.match(line.split("//")[0]):
            blocks[-1].opcodes.append(opcode[1])
    for block, target in targets:
        block.successors.append(labels[target])
    return blocks


def _scoped(label: str, scopes) -> str:
    """Labels of inline PTX belong to their scope; the kernel's own start with $."""
    return label if label.startswith("$") else f"{label}@{scopes[-1]}"


def loops(ptx: str) -> list[Loop]:
    """The program's loops in the order of the text, counts without those of inner loops."""
    blocks = basic_blocks(ptx)
    dominators = _dominators(blocks)
    bodies: dict[int, set] = {}
    for block in (blocks[n] for n in sorted(_reachable(blocks))):
        for target in block.successors:
            if target in dominators[block.number]:
                bodies.setdefault(target, {target}).update(_natural_loop(blocks, target, block.number))
    program = {header: body for header, body in bodies.items() if not _only_polls(blocks, body)}
    found = []
    for header, body in sorted(program.items()):
        inner = set().union(*(other for h, other in program.items() if h != header and other < body))
        opcodes = [opcode for n in body - inner for opcode in blocks[n].opcodes]
        depth = sum(1 for h, other in program.items() if h != header and body < other)
        found.append(
            Loop(
                header,
                frozenset(body),
                Counter({name: sum(o.startswith(start) for o in opcodes) for name, start in COUNTED.items()}),
                depth,
            )
        )
    return found


def _reachable(blocks) -> set:
    found, work = {0}, [0]
    while work:
        for target in blocks[work.pop()].successors:
            if target not in found:
                found.add(target)
                work.append(target)
    return found


def _only_polls(blocks, body) -> bool:
    opcodes = [opcode for n in body for opcode in blocks[n].opcodes if not opcode.startswith(".")]
    return bool(opcodes) and all(opcode.startswith("mbarrier.try_wait") for opcode in opcodes)


def _dominators(blocks) -> list[set]:
    everything = _reachable(blocks)
    before = [[] for _ in blocks]
    for block in (blocks[n] for n in everything):
        for target in block.successors:
            before[target].append(block.number)
    dominators = [{0}] + [set(everything) for _ in blocks[1:]]
    changed = True
    while changed:
        changed = False
        for n in everything - {0}:
            new = {n} | set.intersection(*(dominators[p] for p in before[n]))
            if new != dominators[n]:
                dominators[n], changed = new, True
    return dominators


def _natural_loop(blocks, header: int, latch: int) -> set:
    before = {}
    for block in blocks:
        for target in block.successors:
            before.setdefault(target, []).append(block.number)
    body, work = {header, latch}, [latch]
    while work:
        n = work.pop()
        if n == header:
            continue
        for p in before.get(n, []):
            if p not in body:
                body.add(p)
                work.append(p)
    return body
