"""One launch: which fragment or asynchronous operation runs next, when a kernel is stuck, and the step that runs a block.

`fifo` is deterministic: every fragment in order runs until it must wait; asynchronous operations complete after each round.
`random` draws both who runs and for how many blocks, and completes asynchronous operations in any order their unit allows.
"""

import random
import sys
from collections import defaultdict

import numpy as np

from .errors import EmulatorError
from .hazards import AsyncOp, Hazards, merge_parts
from .machine import CTA, DONE, PARKED, RUN, Cluster, Frag, Token, exit_lanes, mask_array, mask_int
from .memory import SHARED_RESERVED, Bytes, GlobalMemory
from .report import Report
from .sync import check_cta_end
from .tcgen05 import use_loads
from .wgmma import check_block

FIFO_BUDGET = 20000
DEFAULT_RESIDENT = 16
MISFITS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # operands that a rule cannot work with


class Launch:
    def __init__(self, program, grid, block, cluster, smem, schedule, seed, hazards, strict, resident, max_steps, progress):
        self.program, self.grid, self.block, self.cluster = program, grid, block, cluster
        self.dynamic_smem, self.strict = smem, strict
        self.hazards = Hazards(self, strict) if hazards else None
        self.memory = GlobalMemory(hazards)
        self.random = random.Random(seed) if schedule == "random" else None
        self.resident, self.max_steps, self.progress = resident, max_steps, progress
        self.sms, self.steps, self.effects, self.retries = 132, 0, 0, 0
        self.counts = defaultdict(int)
        self.pending = []  # asynchronous operations in issue order
        self.next_op = 0
        self.notes = []
        self.running = 0  # the cluster that runs, for hazards
        self.coupled = ""  # why what a cluster does may depend on when others run (processes.py)
        self.all_counters = []
        self.param_mem, self.params, self.tensor_maps, self.sync_clocks = None, b"", {}, {}
        self.before, self.before_records, self.waited, self.released = None, (0, 0), False, False  # dependent.py
        self.layout_shared()

    # --- addresses ------------------------------------------------------------------------------------------------------
    def layout_shared(self):
        """Static shared variables from the reserved KiB on, dynamic shared memory behind them."""
        self.shared_at, self.local_at, at, local, dynamic_align = {}, {}, SHARED_RESERVED, 0, 16
        for v in self.program.symbols.values():
            if v.space == "shared" and not v.extern:
                at = -(-at // v.align) * v.align
                self.shared_at[v.name] = at
                at += v.size
            elif v.space == "shared":
                dynamic_align = max(dynamic_align, v.align)
            elif v.space == "local":
                local = -(-local // v.align) * v.align
                self.local_at[v.name] = local
                local += v.size
        at = -(-at // dynamic_align) * dynamic_align
        for v in self.program.symbols.values():
            if v.space == "shared" and v.extern:
                self.shared_at[v.name] = at
        self.smem_limit, self.local_size = at + self.dynamic_smem, local
        if self.smem_limit > 1 << 24:
            raise EmulatorError(
                f"{self.dynamic_smem} bytes of shared memory", why="a CTA of any target has at most 227 KiB", fix="check the launch"
            )

    def symbol_address(self, name, cta):
        if name in self.shared_at:
            return self.shared_at[name] | cta.rank << 24
        if name in self.program.params:
            return self.program.params[name].offset
        if name in self.local_at:
            return self.local_at[name]
        v = self.program.symbols.get(name)
        if v is None:
            raise EmulatorError(f"symbol {name} is not defined", file=self.program.file)
        if name not in self.memory.by_id:
            data = np.zeros(v.size, np.uint8)
            data[: len(v.init)] = np.frombuffer(v.init, np.uint8)
            self.memory.by_id[name] = self.memory.add(data, name)
        return self.memory.by_id[name]

    def place_symbols(self):
        """Global variables get their addresses before anything runs, in the order of the text."""
        for v in self.program.symbols.values():
            if v.space not in ("shared", "local"):
                self.symbol_address(v.name, None)

    def set_params(self, raw):
        """The packed parameter bytes."""
        self.params = raw
        self.param_mem = Bytes(np.frombuffer(raw + b"\0" * 16, np.uint8).copy(), "parameters")
        self.param_values = {}

    def param_value(self, name, offset, size, n):
        key = (name, offset, size, n)
        v = self.param_values.get(key)
        if v is None:
            at = self.program.params[name].offset + offset
            v = []
            for k in range(n):
                a = np.full(32, int.from_bytes(self.params[at + k * size : at + (k + 1) * size], "little"), f"u{size}")
                a.setflags(write=False)
                v.append(a)
            self.param_values[key] = v
        return v

    # --- running ---------------------------------------------------------------------------------------------------------
    def run(self):
        self.run_clusters(range(self.cluster_count()))
        return self.report()

    def cluster_count(self):
        gx, gy, gz = self.grid
        cx, cy, cz = self.cluster
        return gx * gy * gz // (cx * cy * cz)

    def run_clusters(self, order):
        """Run these clusters to their end; they start in this order."""
        with np.errstate(all="ignore"):
            self._run(order)

    def _run(self, order):
        cx, cy, cz = self.cluster
        n_clusters = len(order)
        self.total_clusters = n_clusters
        per = cx * cy * cz
        limit = max(1, (self.resident or DEFAULT_RESIDENT) // per)
        grown = 0
        self.live, started, self.frags = [], 0, []
        self.finished_clusters = 0
        timeouts_at = -1
        while True:
            while started < n_clusters and len(self.live) < limit:
                self._start_cluster(order[started])
                started += 1
            if not self.frags and not self.pending and started == n_clusters:
                break
            if self.random:
                moved = self._random_round()
            else:
                moved = self._fifo_round()
            if self.pending and not self.random:
                self._complete_all()
                moved = True
            self.frags = [f for f in self.frags if f.state != DONE]
            self._retire()
            if self.hazards:
                self.hazards.collect(self._shadows())
            if moved:
                continue
            if started < n_clusters and not self.frags:
                continue
            # Nothing can move: time limits of try_wait run out, once for each state of the machine.
            waiting = [f for f in self.frags if f.state == PARKED and f.timeout is False and f.why.startswith("try_wait")]
            if waiting and timeouts_at != self.effects:
                timeouts_at = self.effects
                self.coupled = "a try_wait runs into its time limit"
                for f in waiting:
                    f.timeout = True
                continue
            if started < n_clusters:
                grown += 1
                limit += 1
                continue
            self.running, self.coupled = self.cluster_count(), "nothing can move any more"
            self._deadlock()
            break
        if grown:
            self.running, self.coupled = self.cluster_count(), "clusters wait for each other"
            text = f"the kernel needs {limit * per} CTAs resident at once; with {(self.resident or DEFAULT_RESIDENT)} it makes no progress"
            self.notes.append(text)
            if self.resident and self.hazards:
                self.hazards.report("co-residency", text, ())

    def _start_cluster(self, k):
        gx, gy, gz = self.grid
        cx, cy, cz = self.cluster
        nx, ny = gx // cx, gy // cy
        base = (k % nx, k // nx % ny, k // (nx * ny))
        cl = Cluster(self, k, base, cx * cy * cz)
        for r in range(cl.n):
            x, y, z = r % cx, r // cx % cy, r // (cx * cy)
            idx = (base[0] * cx + x, base[1] * cy + y, base[2] * cz + z)
            cta = CTA(cl, r, idx, idx[0] + gx * (idx[1] + gy * idx[2]))
            cl.ctas.append(cta)
        for cta in cl.ctas:
            cta.start()
            for w in cta.warps:
                self.frags.extend(w.frags)
        self.live.append(cl)

    def _shadows(self):
        """Every shadow memory in use."""
        for mem in self.memory.items:
            yield mem.shadow
        for cl in self.live:
            yield cl.smem.mem.shadow
            for cta in cl.ctas:
                if cta.tmem is not None:
                    yield cta.tmem.shadow

    def _retire(self):
        done = [cl for cl in self.live if all(c.exited for c in cl.ctas)]
        for cl in done:
            if any(op.cta.cluster is cl for op in self.pending):
                continue
            self.live.remove(cl)
            self.finished_clusters += 1
            self.running = cl.index
            for cta in cl.ctas:
                check_cta_end(cta)
                self.all_counters.append((cta.index, cta.counters))
                cta.warps = []
            cl.smem = None
            if self.progress:
                self.progress(self.finished_clusters, self.total_clusters)

    def _fifo_round(self):
        moved = False
        for f in list(self.frags):
            if f.state != DONE and self.step(f, FIFO_BUDGET):
                moved = True
        return moved

    def _random_round(self):
        """One round in random order; who can move runs a random number of blocks."""
        moved = False
        order = list(self.frags)
        self.random.shuffle(order)
        for f in order:
            if f.state != DONE and self.random.random() < 0.7 and self.step(f, self.random.choice((1, 2, 3, 5, 8, 30, 200))):
                moved = True
            if self.pending and self.random.random() < 0.3:
                self._complete_some()
        if self.pending and not moved:
            self._complete_some()
            moved = True
        if not moved:
            for f in order:
                if f.state != DONE and self.step(f, 50):
                    moved = True
        return moved

    # --- asynchronous operations --------------------------------------------------------------------------------------------
    def issue(self, op):
        """Queue an operation; `op.waits` names the unit queue in which it keeps its order, None for no order."""
        self.pending.append(op)

    def _complete_all(self):
        while self.pending:
            ops, self.pending = self.pending, []
            for op in ops:
                self._complete(op)

    def _complete_some(self):
        heads, seen = [], set()
        for op in self.pending:
            q = op.waits
            if q is None or q not in seen:
                heads.append(op)
            if q is not None:
                seen.add(q)
        op = self.random.choice(heads)
        self.pending.remove(op)
        self._complete(op)

    def _complete(self, op):
        self.running = op.cta.cluster.index
        try:
            op.run(op)
        except EmulatorError as e:
            raise e.located(self.program.file, op.line) from None
        except MISFITS as e:
            raise self._cannot_execute(f"the {op.kind}", op.line, e) from e
        op.done = True
        self.effects += 1

    def new_op(self, F, kind, line, lane_mask, lane=None, numbers=1):
        """An asynchronous operation issued by lanes of a fragment; with 32 numbers each lane's part completes by itself."""
        n = self.next_op
        self.next_op += numbers
        clock = self.hazards.issue_clock(F, lane_mask) if self.hazards else None
        op = AsyncOp(n, clock, line, kind, F.warp, lane)
        op.waits = None
        return op

    # --- one fragment ---------------------------------------------------------------------------------------------------
    def step(self, F, budget):
        """Run a fragment until it waits, ends or has used its budget of blocks; returns the number of blocks run."""
        ran = 0
        code, warp = self.program.code, F.warp
        R = warp.R
        counts = self.counts
        self.running = F.cta.cluster.index
        try:
            while ran < budget:
                while F.stack is not None and F.stack.block == F.block:
                    if not self._meet(F):
                        return ran + 1
                c = code[F.block]
                b = c.block
                if warp.pending_regs:
                    check_block(F, c)
                if warp.watch_loads:
                    use_loads(F, b.upward)
                if c.op is not None:
                    m = self._guard(F, c.instr)
                    if m is None or F.fired:
                        F.fired = False
                    elif c.op(F, m) is False:
                        F.state = PARKED
                        return ran
                    F.state, F.timeout = RUN, False
                    counts[F.cta, F.block] += 1
                    F.block = b.next
                    ran += 1
                    if b.next < 0:
                        self._end(F, F.mask)
                        return ran
                    continue
                if warp.dirty is not None:
                    warp.dirty.add(b)
                p = c.full(F, R, F.marr) if F.mask == warp.alive else c.masked(F, R, F.marr)
                counts[F.cta, F.block] += 1
                ran += 1
                kind = b.kind
                if kind == "fall":
                    F.block = b.next
                    if b.next < 0:
                        self._end(F, F.mask)
                        return ran
                elif kind == "jump":
                    F.block = b.target
                elif kind == "cond":
                    taken = mask_int(p) & F.mask
                    if taken == F.mask:
                        F.block = b.target
                    elif not taken:
                        F.block = b.next
                    else:
                        self._split(F, b, taken)
                else:
                    ending = F.mask if p is None else mask_int(p) & F.mask
                    if ending:
                        self._end(F, ending)
                        if F.state == DONE:
                            return ran
                    F.block = b.next
        except EmulatorError as e:
            raise e.located(self.program.file, e.line or c.instr.line) from None
        except MISFITS as e:
            what = c.instr.opcode + ("" if c.op is not None else ", or what follows it in its block")
            raise self._cannot_execute(what, c.instr.line, e) from e
        finally:
            self.steps += ran
            if self.max_steps and self.steps > self.max_steps:
                raise EmulatorError(
                    f"more than {self.max_steps} blocks executed",
                    file=self.program.file,
                    line=self.program.kernel.instrs[code[max(F.block, 0)].block.first].line,
                    why="the step limit guards against endless loops",
                    fix="raise max_steps, or look at the loop around this line",
                )
        return ran

    def _guard(self, F, ins):
        """Active lanes of a guarded machine operation, None for none."""
        if ins.guard is None:
            return F.marr
        p = F.warp.R[ins.guard.index]
        m = (~p if ins.guard_neg else p) & F.marr
        return m if m.any() else None

    def _split(self, F, b, taken):
        other = F.mask & ~taken
        token = Token(b.ipdom, F.mask, F.stack)
        new = Frag(F.warp, taken, b.target, token, [(m & taken, c) for m, c in F.parts if m & taken])
        F.parts = [(m & other, c) for m, c in F.parts if m & other]
        F.mask, F.marr, F.block, F.stack = other, mask_array(other), b.next, token
        self._add(new)

    def _cannot_execute(self, what, line, e):
        """An instruction whose operands made no sense to its rule; the cause stays with it."""
        return EmulatorError(
            f"cannot execute {what}",
            file=self.program.file,
            line=line,
            why=f"{type(e).__name__}: {e}",
            fix="check operand count and types against the PTX ISA; if they are right, the emulator is wrong: please report it",
        )

    def _add(self, frag):
        frag.warp.frags = [f for f in frag.warp.frags if f.state != DONE]
        frag.warp.frags.append(frag)
        self.frags.append(frag)

    def _meet(self, F):
        """A fragment reaches the meeting point of its innermost divergence; False if it ends there."""
        t = F.stack
        t.arrived |= F.mask
        t.parts.extend(F.parts)
        if t.arrived == t.expected:
            F.parts = merge_parts([(m & t.expected, c) for m, c in t.parts if m & t.expected])
            F.mask, F.marr, F.stack = t.expected, mask_array(t.expected), t.parent
            return True
        F.state = DONE
        return False

    def _end(self, F, mask):
        resumed = exit_lanes(F, mask)
        if F.mask == mask:
            F.state = DONE
        else:
            keep = F.mask & ~mask
            F.parts = [(m & keep, c) for m, c in F.parts if m & keep]
            F.mask, F.marr = keep, mask_array(keep)
        for f in resumed:
            self._add(f)
        if not F.warp.alive:
            cta = F.cta
            if not any(w.alive for w in cta.warps):
                cta.exited = True

    # --- the end -------------------------------------------------------------------------------------------------------------
    def _deadlock(self):
        lines, agents, texts = [], [], []
        for f in self.frags:
            if f.state == PARKED:
                line = self.program.code[f.block].instr.line
                texts.append(f"{f.agent()} waits at line {line}: {f.why}")
                lines.append(line)
                agents.append(f.agent())
        message = "nothing can move any more; " + "; ".join(texts[:8]) + (f"; and {len(texts) - 8} more" if len(texts) > 8 else "")
        if self.hazards is None:
            raise EmulatorError(f"deadlock: {message}", file=self.program.file, line=lines[0] if lines else 0)
        uniq = tuple(dict.fromkeys(lines))[:8]
        self.hazards.report("deadlock", message, uniq, tuple(agents[: len(uniq)]))
        for cl in self.live:
            for cta in cl.ctas:
                self.all_counters.append((cta.index, cta.counters))

    def report(self, counted=None):
        """The report; `counted` gives each CTA's counters where other processes executed them."""
        report = Report(self.program.file, self.program.kernel.name, self.hazards.in_order() if self.hazards else [], {}, self.notes)
        per_cta = counted if counted is not None else self._counters()
        total = defaultdict(int)
        for _, d in (ordered := sorted(per_cta.items(), key=lambda pair: tuple(map(int, pair[0].split(","))))):
            for k, v in d.items():
                total[k] += v
        total["try_wait_retries"] = self.retries
        report.counters = {"total": dict(total), "cta": dict(ordered)}
        return report

    def _counters(self):
        by_cta = defaultdict(lambda: defaultdict(int))
        code = self.program.code
        for (cta, block), n in self.counts.items():
            d = by_cta[cta.index]
            for key in code[block].counters:
                d[key] += n
            d["instructions"] += n * code[block].n
        for index, counters in self.all_counters:
            d = by_cta[index]
            for k, v in counters.values.items():
                d[k] += v
        return {"%d,%d,%d" % index: dict(d) for index, d in by_cta.items()}


def stderr_progress(done, total):
    """A progress line on a terminal."""
    if sys.stderr.isatty():
        print(f"\remulating: cluster {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)
