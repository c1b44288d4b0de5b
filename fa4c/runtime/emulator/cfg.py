"""Basic blocks, post-dominators (where diverged lanes meet again) and liveness of registers."""

from dataclasses import dataclass, field

from .parser import Kernel, Mem, Not, Pair, Reg, Vec

# Instructions whose first operand is a source, not a destination.
_NO_DEST = {
    "st",
    "red",
    "bar",
    "barrier",
    "bra",
    "ret",
    "exit",
    "trap",
    "brkpt",
    "membar",
    "fence",
    "prefetch",
    "prefetchu",
    "cp",
    "griddepcontrol",
    "setmaxnreg",
    "nanosleep",
    "stmatrix",
    "pmevent",
    "discard",
    "applypriority",
    "multimem",
    "createpolicy_",
    "clusterlaunchcontrol",
}


def operand_regs(op):
    """Register indices named by an operand."""
    if isinstance(op, Reg):
        return (op.index,)
    if isinstance(op, Vec):
        return tuple(r for i in op.items for r in operand_regs(i))
    if isinstance(op, Mem):
        return operand_regs(op.base) + tuple(r for c in op.coords for r in operand_regs(c))
    if isinstance(op, Pair):
        return operand_regs(op.first) + operand_regs(op.second)
    if isinstance(op, Not):
        return operand_regs(op.item)
    return ()


def has_dest(instr):
    """True if the first operand is written."""
    p = instr.parts
    if p[0] == "mbarrier":
        return p[1] in ("arrive", "arrive_drop", "test_wait", "try_wait", "pending_count") and not isinstance(instr.ops[0], Mem)
    if p[0] == "tcgen05":
        return p[1] == "ld"
    if p[0] == "wgmma":
        return p[1] == "mma_async"
    if p[0] in ("bar", "barrier"):
        return "red" in p
    return p[0] not in _NO_DEST


def defs_uses(instr):
    """(written, read) register indices of one instruction; a guarded write also reads."""
    uses, defs = [], ()
    ops = instr.ops
    if ops and has_dest(instr):
        defs = operand_regs(ops[0])
        ops = ops[1:]
        if instr.parts[0] == "wgmma":
            uses.extend(defs)
    for o in ops:
        uses.extend(operand_regs(o))
    if instr.guard is not None:
        uses.append(instr.guard.index)
        uses.extend(defs)
    return defs, uses


@dataclass(eq=False)
class Block:
    id: int
    first: int
    last: int  # one past
    op: bool = False  # a single instruction that the machine executes, and that may have to wait
    succ: list = field(default_factory=list)
    kind: str = "fall"  # fall, jump, cond, exit
    target: int = -1
    next: int = -1
    ipdom: int = -1  # -1: the exit
    live_out: int = 0
    upward: frozenset = frozenset()  # registers read before written
    defs: frozenset = frozenset()


def build(kernel: Kernel, is_op) -> list:
    """Basic blocks of a kernel; `is_op(instr)` says which instructions stand alone."""
    n = len(kernel.instrs)
    leaders = {0}
    for i, ins in enumerate(kernel.instrs):
        base = ins.parts[0]
        if base == "bra":
            leaders.add(ins.target)
            leaders.add(i + 1)
        elif base in ("ret", "exit"):
            leaders.add(i + 1)
        elif is_op(ins):
            leaders.add(i)
            leaders.add(i + 1)
    starts = sorted(x for x in leaders if x < n)
    index = {s: k for k, s in enumerate(starts)}
    blocks = []
    for k, s in enumerate(starts):
        e = starts[k + 1] if k + 1 < len(starts) else n
        b = Block(k, s, e)
        last = kernel.instrs[e - 1]
        after = index.get(e, -1)
        b.next = after
        if last.parts[0] == "bra":
            b.target = index.get(last.target, -1)
            b.kind = "cond" if last.guard is not None else "jump"
            b.succ = [b.target] + ([after] if last.guard is not None else [])
        elif last.parts[0] in ("ret", "exit"):
            b.kind = "exit"
            b.succ = [-1] + ([after] if last.guard is not None else [])
        else:
            b.op = is_op(kernel.instrs[s]) and e == s + 1
            b.succ = [after]
        blocks.append(b)
    _postdominators(blocks)
    _liveness(kernel, blocks)
    return blocks


def _postdominators(blocks):
    n = len(blocks)
    preds = [[] for _ in range(n + 1)]
    for b in blocks:
        for s in b.succ:
            preds[s if s >= 0 else n].append(b.id)
    order, seen, stack = [], {n}, [(n, iter(preds[n]))]
    while stack:
        node, it = stack[-1]
        for p in it:
            if p not in seen:
                seen.add(p)
                stack.append((p, iter(preds[p])))
                break
        else:
            order.append(node)
            stack.pop()
    rank = {b: i for i, b in enumerate(order)}  # postorder on the reversed graph; the exit is last
    idom = {n: n}
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            new = None
            for s in blocks[node].succ:
                s = s if s >= 0 else n
                if s not in idom:
                    continue
                if new is None:
                    new = s
                else:
                    a, b = s, new
                    while a != b:
                        while rank[a] < rank[b]:
                            a = idom[a]
                        while rank[b] < rank[a]:
                            b = idom[b]
                    new = a
            if new is not None and idom.get(node) != new:
                idom[node] = new
                changed = True
    for b in blocks:
        d = idom.get(b.id, n)
        b.ipdom = -1 if d == n else d


def _liveness(kernel, blocks):
    gen, kill = [], []
    for b in blocks:
        up, written = set(), set()
        for ins in kernel.instrs[b.first : b.last]:
            defs, uses = defs_uses(ins)
            up.update(u for u in uses if u not in written)
            written.update(defs)
        b.upward, b.defs = frozenset(up), frozenset(written)
        gen.append(sum(1 << u for u in up))
        kill.append(sum(1 << d for d in written))
    live_in = [0] * len(blocks)
    preds = [[] for _ in blocks]
    for b in blocks:
        for s in b.succ:
            if s >= 0:
                preds[s].append(b.id)
    work = list(range(len(blocks)))
    queued = set(work)
    while work:
        k = work.pop()
        queued.discard(k)
        b = blocks[k]
        out = 0
        for s in b.succ:
            if s >= 0:
                out |= live_in[s]
        b.live_out = out
        new = gen[k] | (out & ~kill[k])
        if new != live_in[k]:
            live_in[k] = new
            for p in preds[k]:
                if p not in queued:
                    queued.add(p)
                    work.append(p)
