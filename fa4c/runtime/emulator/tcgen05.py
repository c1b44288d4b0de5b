"""tcgen05: tensor memory and the fifth-generation MMA (PTX ISA chapter 9.7.16), kind::f16, one CTA or a pair.

Tensor memory is 128 lanes x 512 columns of 32 bits a CTA; a cell's number is lane * 512 + column. MMAs of one thread run in
issue order (the ISA promises it only for MMAs of one shape and accumulator; released kernels rely on more). A tcgen05.ld counts
as complete once one of its results is used, or at wait::ld; a tcgen05.st at wait::st.
"""

import numpy as np

from .codegen import Unsupported
from .counters import BLACKWELL_FLOP_PER_CLOCK
from .errors import EmulatorError
from .hazards import Shadow
from .mbarrier import arrive, find
from .operands import element_index, product, tcgen05_fields, to_float
from .parser import Imm, Mem, Reg, Vec

COLUMNS = 512


class Tmem:
    """Tensor memory of one CTA, its allocations and its shadow."""

    def __init__(self, cta):
        self.cta = cta
        self.data = np.zeros((128, COLUMNS), np.uint32)
        self.owner = np.zeros(COLUMNS, np.int32)  # allocation number of each column, 0 for none
        self.allocs = {}  # start column -> (count, number, line)
        self.number = 0
        self.relinquished = None
        self.shadow = Shadow(128 * COLUMNS, f"tensor memory of {cta.name()}", True, unit="cell") if cta.launch.hazards else None

    def alloc(self, n, line):
        """The first free run of n columns, or None."""
        for start in range(0, COLUMNS - n + 1, 32):
            if not self.owner[start : start + n].any():
                self.number += 1
                self.owner[start : start + n] = self.number
                self.allocs[start] = (n, self.number, line)
                if self.shadow is not None:
                    self.shadow.w.reshape(128, COLUMNS)[:, start : start + n] = 0
                    self.shadow.r.reshape(128, COLUMNS)[:, start : start + n] = 0
                return start
        return None

    def check_columns(self, F, start, n, line):
        """Columns of an access must be inside tensor memory and allocated."""
        if start < 0 or start + n > COLUMNS:
            raise EmulatorError(
                f"tensor memory columns {start}..{start + n - 1}",
                line=line,
                why=f"there are {COLUMNS}",
                fix="check the address: lane << 16 | column",
            )
        if F.H and not self.owner[start : start + n].all():
            F.H.report(
                "tmem-unallocated",
                f"access to tensor memory columns {start}..{start + n - 1}, which are not all allocated",
                (line,),
                (F.agent(),),
            )

    def check_end(self, cta):
        """Allocations that a CTA leaves behind."""
        H = cta.launch.hazards
        if H:
            for start, (n, _, line) in self.allocs.items():
                H.report("tmem-leak", f"{cta.name()} exits with tensor memory columns {start}..{start + n - 1} allocated", (line,))


class ThreadState:
    """What one warp has in flight: bits of MMAs by issuing lane, loads and stores not waited for."""

    def __init__(self):
        self.chain = {}
        self.loads, self.stores, self.load_regs = 0, 0, {}


def _tmem(cta):
    if cta.tmem is None:
        cta.tmem = Tmem(cta)
    return cta.tmem


def _state(w):
    if w.tc is None:
        w.tc = ThreadState()
    return w.tc


def op_tcgen05(ins, program):
    p = ins.parts
    maker = {
        "alloc": _alloc,
        "dealloc": _dealloc,
        "relinquish_alloc_permit": _relinquish,
        "mma": _mma,
        "commit": _commit,
        "ld": _ld,
        "st": _st,
        "wait": _wait,
        "fence": _fence,
    }.get(p[1].split("::")[0])
    if maker is None:
        raise Unsupported(f"instruction {ins.opcode}")
    return maker(ins)


# --- allocation ---------------------------------------------------------------------------------------------------------
def _whole_warp(F, ins):
    if F.mask != F.warp.alive:
        raise EmulatorError(f"{ins.opcode} by a part of a warp", line=ins.line, why="it is .sync.aligned: all lanes must execute it")


def _alloc(ins):
    mem, n_op = ins.ops

    def run(F, m):
        _whole_warp(F, ins)
        t = _tmem(F.cta)
        n = int(F.get(n_op)[0])
        if n < 32 or n > 512 or n & (n - 1):
            raise EmulatorError(f"tcgen05.alloc of {n} columns", line=ins.line, why="the count must be a power of two, 32 to 512")
        if t.relinquished and F.H:
            F.H.report("tmem-relinquished", "tcgen05.alloc after relinquish_alloc_permit", (ins.line, t.relinquished), (F.agent(), ""))
        start = t.alloc(n, ins.line)
        if start is None:
            F.why = f"tcgen05.alloc of {n} columns: not enough are free"
            return False
        smem = F.cta.cluster.smem
        a = F.address(mem)
        a = a - (1 << 44) if int(a[0]) >= 1 << 44 else a
        at = smem.index(a[:1], 4, ins.line, F)
        smem.mem.views[4][int(at[0]) // 4] = start
        if F.H:
            F.H.generic(F, F.mask_array(F.mask & -F.mask), smem.mem.shadow, np.full(32, int(at[0]) // 4), 4, True, ins.line)
        F.launch.effects += 1
        return True

    return run


def _dealloc(ins):
    a_op, n_op = ins.ops

    def run(F, m):
        _whole_warp(F, ins)
        t = _tmem(F.cta)
        start, n = int(F.get(a_op)[0]) & 0xFFFF, int(F.get(n_op)[0])
        known = t.allocs.pop(start, None)
        if known is None or known[0] != n:
            if known:
                t.allocs[start] = known
            if F.H:
                F.H.report("tmem-dealloc", f"tcgen05.dealloc of {n} columns at {start}, which is no allocation", (ins.line,), (F.agent(),))
            return True
        if F.H:
            cells = (np.arange(128)[:, None] * COLUMNS + np.arange(start, start + n, 32)[None, :]).ravel() // 16
            rows = np.concatenate([cells, cells + 1])
            F.H.flat(F, t.shadow, rows, 16, True, ins.line)
        t.owner[start : start + n] = 0
        F.launch.effects += 1
        return True

    return run


def _relinquish(ins):
    def run(F, m):
        _tmem(F.cta).relinquished = ins.line
        return True

    return run


def _fence(ins):
    after = "fence::after_thread_sync" in ins.parts

    def run(F, m):
        if after:
            F.warp.synced = False
        return True

    return run


def _check_fence(F, ins):
    """--strict: a tcgen05 instruction after a synchronisation wants tcgen05.fence::after_thread_sync between."""
    if F.launch.strict and F.warp.synced and F.H:
        F.H.report(
            "tcgen05-fence",
            f"{ins.opcode} after a barrier without tcgen05.fence::after_thread_sync between",
            (ins.line,),
            (F.agent(),),
            severity="warning",
        )
        F.warp.synced = False


# --- MMA ------------------------------------------------------------------------------------------------------------------
class Shape:
    """The fields of an instruction descriptor, kind::f16."""

    def __init__(self, idesc, line):
        self.m, self.n = (idesc >> 24 & 31) * 16, (idesc >> 17 & 63) * 8
        self.d_type, self.a_type, self.b_type = idesc >> 4 & 3, idesc >> 7 & 7, idesc >> 10 & 7
        self.negate = (idesc >> 13 & 1) ^ (idesc >> 14 & 1)
        self.a_mn, self.b_mn = bool(idesc >> 15 & 1), bool(idesc >> 16 & 1)
        if idesc >> 2 & 1 or self.d_type != 1 or self.a_type > 1 or self.b_type > 1:
            raise EmulatorError(
                f"instruction descriptor {idesc:#010x} is not modelled",
                line=line,
                why="sparse, f16 accumulators or other types than f16 and bf16",
            )


def _mma(ins):
    p, ops = ins.parts, list(ins.ops)
    group = 2 if "cta_group::2" in p else 1
    kind = next((x for x in p if x.startswith("kind::")), "")
    if kind != "kind::f16" or "ws" in p or "sp" in p or any(x.startswith("block_scale") for x in p):
        raise Unsupported(f"instruction {ins.opcode}")
    d_op, a_op, b_op, i_op, *rest = ops
    lanes_off = rest.pop(0) if isinstance(rest[0], Vec) else None
    enable = rest.pop(0)
    if rest:
        raise Unsupported("scale-input-d of tcgen05.mma")

    def run(F, m):
        line = ins.line
        lanes = np.flatnonzero(m).tolist()
        if len(lanes) > 1 and F.H:
            F.H.report(
                "mma-issue",
                f"tcgen05.mma is issued by {len(lanes)} lanes, each an MMA of its own",
                (line,),
                (F.agent(),),
                severity="warning",
            )
        for lane in lanes:
            shape = Shape(int(F.get(i_op)[lane]), line)
            if (group == 1 and shape.m not in (64, 128)) or (group == 2 and shape.m not in (128, 256)) or not 8 <= shape.n <= 256:
                raise EmulatorError(
                    f"tcgen05.mma of shape {shape.m}x{shape.n} with cta_group::{group}",
                    line=line,
                    why="M is 64 or 128 for one CTA, 128 or 256 for two; N at most 256",
                )
            d = int(F.get(d_op.base)[lane]) + d_op.offset
            a = ("tmem", int(F.get(a_op.base)[lane]) + a_op.offset) if isinstance(a_op, Mem) else ("smem", int(F.get(a_op, 8)[lane]))
            b = int(F.get(b_op, 8)[lane])
            acc = bool(F.pred(enable)[lane]) if not isinstance(enable, Imm) else enable.value != 0
            off = [int(F.get(x)[lane]) for x in lanes_off.items] if lanes_off else []
            state = _state(F.warp)
            op = F.launch.new_op(F, "tcgen05.mma", line, 1 << lane, lane)
            _check_fence(F, ins)
            if F.H:
                # Issue order counts as order; under --strict only among MMAs of one shape and accumulator.
                key = (lane, d, shape.m, shape.n) if F.launch.strict else lane
                op.clock = op.clock.with_bits(state.chain.get(key, 0))
                state.chain[key] = state.chain.get(key, 0) | op.bits
                if F.launch.strict:
                    state.chain[lane] = state.chain.get(lane, 0) | op.bits
            op.waits = (id(F.cta), "tcgen05")
            ctas = [F.cta]
            if group == 2:
                ctas = [F.cta.cluster.ctas[F.cta.rank & ~1], F.cta.cluster.ctas[F.cta.rank | 1]]
            op.run = lambda o, x=(ctas, shape, d, a, b, acc, off): _run_mma(F, o, *x)
            F.launch.issue(op)
            F.counters.add("mma_flops", 2 * shape.m * shape.n * 16)
            F.counters.add("mma_clocks", 2 * shape.m * shape.n * 16 / (BLACKWELL_FLOP_PER_CLOCK * group))
        return True

    return run


def _operand(F, op, cta, desc, rows, k_major, line):
    """A 16-bit operand tile [rows, 16] from a CTA's shared memory."""
    fields = tcgen05_fields(desc)
    if fields is None or desc >> 52 & 1:
        raise EmulatorError(
            f"shared-memory descriptor {desc:#018x} is not modelled", line=line, why="swizzle mode or absolute leading offset"
        )
    index, chunks = element_index(*fields, rows, 16, k_major)
    smem = cta.cluster.smem
    lo, hi = int(chunks[0]) * 16, int(chunks[-1]) * 16 + 16
    if lo < 1024 or hi > smem.limit:
        raise EmulatorError(
            f"tcgen05.mma operand out of bounds: shared bytes {lo:#x}..{hi - 1:#x} of a window that ends at {smem.limit:#x}",
            line=line,
            why=f"descriptor start {fields[0]:#x}, leading {fields[1]}, stride {fields[2]}, swizzle {fields[3]}",
            fix="check start address and offsets",
        )
    base = cta.rank * smem.window
    if F.H:
        F.H.async_access(op, smem.mem.shadow, chunks + (base >> 4), 16, False)
        if cta is not F.cta and cta.exited:
            F.H.report("exited-peer", f"tcgen05.mma reads the shared memory of {cta.name()}, which has exited", (line,), (op.agent(),))
    F.counters.add("smem_bytes.operands", rows * 32)
    return smem.mem.views[2].take(index + (base >> 1))


def _cells(lanes, column, n):
    """Shadow rows (and their unit) of n columns in some lanes."""
    unit = 16
    while column % unit or n % unit:
        unit //= 2
    return ((lanes * COLUMNS + column)[:, None] + np.arange(0, n, unit)[None, :]).ravel() // unit, unit


def _a_tile(F, op, cta, a, shape, rows, line):
    bf16 = shape.a_type == 1
    if a[0] == "smem":
        return to_float(_operand(F, op, cta, a[1], rows, not shape.a_mn, line), bf16)
    t, column = _tmem(cta), a[1] & 0xFFFF
    t.check_columns(F, column, 8, line)
    lanes = np.arange(rows) if rows == 128 else _lanes64(rows)
    if F.H:
        F.H.async_access(op, t.shadow, *_cells(lanes, column, 8), False)
    words = np.ascontiguousarray(t.data[lanes, column : column + 8])
    return to_float(words.view(np.uint16), bf16)


def _lanes64(rows):
    """M = 64, one CTA: 16 rows in each quarter of the lanes (data path layout F)."""
    r = np.arange(rows)
    return r % 16 + r // 16 * 32


def _run_mma(F, op, ctas, shape, d, a, b, acc, off):
    line, n = op.line, shape.n
    pair = len(ctas) == 2
    rows = shape.m // len(ctas)
    if pair and a[0] == "tmem" and rows != 128:
        raise EmulatorError("tcgen05.mma of a pair with M = 128 and A in tensor memory is not modelled", line=line)
    b_tile = np.concatenate([to_float(_operand(F, op, c, b, n // len(ctas), not shape.b_mn, line), shape.b_type == 1) for c in ctas])
    for k, cta in enumerate(ctas):
        a_tile = _a_tile(F, op, cta, a, shape, rows, line)
        total = product(a_tile, b_tile)
        if shape.negate:
            total = -total
        t, column = _tmem(cta), d & 0xFFFF
        if d >> 16:
            raise EmulatorError(f"tcgen05.mma with the accumulator at lane {d >> 16}", line=line, why="D starts at lane 0")
        # M = 128 of a pair: the right half of the columns lies in lanes 64..127 (data path layout B).
        if pair and rows == 64:
            lanes, width = np.arange(128), n // 2
            total = np.concatenate([total[:, :width], total[:, width:]])
        elif rows == 64:
            lanes, width = _lanes64(64), n
        else:
            lanes, width = np.arange(128), n
        keep = None
        words = off[4 * k : 4 * k + 4]
        if any(words):
            disabled = np.array([words[x // 32] >> (x % 32) & 1 for x in lanes], bool)
            keep = ~disabled
            lanes, total = lanes[keep], total[keep]
        t.check_columns(F, column, width, line)
        if a[0] == "tmem" and F.H and column < (a[1] & 0xFFFF) + 8 and (a[1] & 0xFFFF) < column + width:
            F.H.report(
                "tmem-overlap",
                f"the accumulator, columns {column}..{column + width - 1}, overlaps operand A at column {a[1] & 0xFFFF}",
                (line,),
                (op.agent(),),
            )
        view = t.data.view(np.float32)
        if acc:
            total += view[lanes, column : column + width]
        if F.H:
            cells = _cells(lanes, column, width)
            if acc:
                F.H.async_access(op, t.shadow, *cells, False)
            F.H.async_write(op, t.shadow, *cells)
        view[lanes, column : column + width] = total


def _commit(ins):
    p, ops = ins.parts, ins.ops
    multicast = any(x.startswith("multicast") for x in p)

    def run(F, m):
        for lane in np.flatnonzero(m).tolist():
            state = _state(F.warp)
            bits = state.chain.get(lane, 0)
            address = int(F.address(ops[0])[lane])
            address = address - (1 << 44) if address >= 1 << 44 else address
            targets = [address]
            if multicast:
                mask = int(F.get(ops[1], 2)[lane])
                targets = [(address & 0xFFFFFF) | r << 24 for r in range(F.cta.cluster.n) if mask >> r & 1]
            op = F.launch.new_op(F, "tcgen05.commit", ins.line, 1 << lane, lane)
            op.waits = (id(F.cta), "tcgen05")

            def complete(o, bits=bits, targets=targets):
                clock = None
                if F.H:
                    # What the issuer knew when it issued the commit is known to who sees it: released 2-CTA kernels rely on it.
                    clock = (F.H.start_clock(F.cta.cluster) if F.launch.strict else o.clock).with_bits(bits)
                for t in targets:
                    arrive(F.launch, find(F, t, ins.line), 1, clock, ins.line)

            op.run = complete
            F.launch.issue(op)
        return True

    return run


# --- loads and stores -------------------------------------------------------------------------------------------------------
def _shape(ins):
    p = ins.parts
    if "32x32b" not in p or any("pack" in x or x == "red" for x in p):
        raise Unsupported(f"instruction {ins.opcode}")
    return int(next(x for x in p if x[0] == "x" and x[1:].isdigit())[1:])


def _window(F, ins, mem, n):
    """(tensor memory, lanes, first column) of a warp's access; a warp owns the lanes of its quarter."""
    _whole_warp(F, ins)
    a = F.address(mem)
    if F.H and not (a[F.marr] == a[int(F.marr.argmax())]).all():
        F.H.report("tmem-lane", "the lanes of a warp give different tensor memory addresses", (ins.line,), (F.agent(),))
    address = int(a[int(F.marr.argmax())])
    lane, column = address >> 16 & 0xFFFF, address & 0xFFFF
    quarter = F.warp.index % 4 * 32
    if lane != quarter:
        raise EmulatorError(
            f"warp {F.warp.index} accesses tensor memory lanes {lane}..{lane + 31}",
            line=ins.line,
            why=f"it may access lanes {quarter}..{quarter + 31} only",
            fix="the lane in the address (bits 16 and up) must be 32 * (warp % 4)",
        )
    t = _tmem(F.cta)
    t.check_columns(F, column, n, ins.line)
    return t, np.arange(quarter, quarter + 32), column


def _ld(ins):
    n = _shape(ins)
    d, mem = ins.ops[:2]
    items = d.items if isinstance(d, Vec) else (d,)
    if len(items) != n:
        raise EmulatorError(f"{ins.opcode} with {len(items)} registers", line=ins.line, why=f"the shape has {n}")
    regs = tuple(r.index for r in items if isinstance(r, Reg))

    def run(F, m):
        t, lanes, column = _window(F, ins, mem, n)
        _check_fence(F, ins)
        state = _state(F.warp)
        if F.H:
            op = F.launch.new_op(F, "tcgen05.ld", ins.line, F.mask)
            F.H.async_access(op, t.shadow, *_cells(lanes, column, n), False)
            state.loads |= op.bits
            for r in regs:
                state.load_regs[r] = op
            F.warp.watch_loads = True
        block = np.ascontiguousarray(t.data[lanes, column : column + n].T)
        R = F.warp.R
        for r, v in zip(items, block):
            if isinstance(r, Reg):
                R[r.index] = v
        F.counters.add("tmem_bytes.load", 128 * n)
        return True

    return run


def _st(ins):
    n = _shape(ins)
    mem, s = ins.ops[:2]
    items = s.items if isinstance(s, Vec) else (s,)

    def run(F, m):
        t, lanes, column = _window(F, ins, mem, n)
        _check_fence(F, ins)
        state = _state(F.warp)
        if F.H:
            use_loads(F, {r.index for r in items if isinstance(r, Reg)})
            op = F.launch.new_op(F, "tcgen05.st", ins.line, F.mask)
            F.H.async_write(op, t.shadow, *_cells(lanes, column, n))
            state.stores |= op.bits
        t.data[lanes, column : column + n] = np.stack([F.get(i) for i in items], 1)
        F.launch.effects += 1
        F.counters.add("tmem_bytes.store", 128 * n)
        return True

    return run


def _wait(ins):
    loads = any(x == "wait::ld" for x in ins.parts)

    def run(F, m):
        state = _state(F.warp)
        if F.H:
            F.H.add_bits(F, F.mask, state.loads if loads else state.stores)
        if loads:
            state.loads, state.load_regs = 0, {}
            F.warp.watch_loads = False
        else:
            state.stores = 0
        return True

    return run


def use_loads(F, regs):
    """Loads whose results are used are complete: the register dependence waits for them."""
    state = F.warp.tc
    hit = state.load_regs.keys() & regs
    if not hit:
        return
    done = {state.load_regs[r].id: state.load_regs[r] for r in hit}
    bits = 0
    for op in done.values():
        bits |= op.bits
        if F.launch.strict:
            F.H.report(
                "tcgen05-wait", "a result of tcgen05.ld is used without tcgen05.wait::ld", (op.line,), (F.agent(),), severity="warning"
            )
    state.load_regs = {r: op for r, op in state.load_regs.items() if op.id not in done}
    F.warp.watch_loads = bool(state.load_regs)
    F.H.add_bits(F, F.mask, bits)
