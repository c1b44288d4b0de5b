"""Shadow memory and the ordering checks (PTX ISA chapter 8, "Memory consistency model", and 9.7.8.24 on proxies).

For every byte the shadow keeps the record of its last write and the set of reads since. An access is ordered after a record
if the accessor's clock knows the record's lanes that far (clocks.py), or knows the asynchronous operation complete.
Records of generic accesses keep their 32 addresses, so that two lanes of one warp are told apart byte by byte.
"""

import numpy as np

from .clocks import Clock, join_all
from .report import Hazard

NEVER, HOST = 0, 1  # record numbers: never written; written before the launch
SCOPES = {"cta": 1, "cluster": 2, "gpu": 3, "sys": 4}
GPU = SCOPES["gpu"]
FULL = 0xFFFFFFFF
COLLECT_EVERY = 50_000  # records between two collections
MOST_BEFORE = 64  # unordered atomic writes that one access remembers


_GENERIC_PROXY = ("mbarrier.init", "cp.async", "st.async")  # operations of the generic proxy: they need no proxy fence


def includes(scope, cta, other):
    """Whether a scope around one CTA includes another."""
    return scope >= GPU or cta is other or (scope == SCOPES["cluster"] and cta.cluster is other.cluster)


class Record:
    """One executed access, by lanes of a warp (`asy` None) or by an asynchronous operation.

    `strong`: the scope of an atomic or strong access, else 0. `before`: numbers of atomic writes that are not ordered before
    this one, itself an atomic write, and which it therefore does not stand for. `own`: of a write that a fence made a release,
    {lane: operation number}; whoever acquires from that lane knows the number.
    """

    __slots__ = ("asy", "warp", "mask", "marr", "ep", "line", "rows", "size", "write", "strong", "before", "own")

    def __init__(self, line, write, asy=None, warp=None, mask=0, marr=None, ep=None, rows=None, size=0, strong=0):
        self.line, self.write, self.asy, self.warp, self.mask, self.marr = line, write, asy, warp, mask, marr
        self.ep, self.rows, self.size, self.strong, self.before, self.own = ep, rows, size, strong, (), None

    def agent(self, lanes=None):
        if self.asy is not None:
            return self.asy.agent()
        return f"{self.warp.name()} {lane_text(self.mask if lanes is None else lanes)}"


def lane_text(mask):
    if mask == FULL:
        return "all lanes"
    lanes = [i for i in range(32) if mask >> i & 1]
    if len(lanes) == 1:
        return f"lane {lanes[0]}"
    return f"lanes {lanes[0]}..{lanes[-1]}" if lanes else "no lane"


class Shadow:
    """Shadow of one memory: last-write record and read-set number of every cell (a byte, or a 32-bit TMEM cell)."""

    def __init__(self, cells, name, poison, unit="byte"):
        self.n, self.name, self.unit = cells, name, unit
        self.cells = -(-cells // 16) * 16
        self.w = np.full(self.cells, NEVER if poison else HOST, np.int32)
        self.r = np.zeros(self.cells, np.int32)
        self.wv = {s: self.w.reshape(-1, s) for s in (1, 2, 4, 8, 16)}
        self.rv = {s: self.r.reshape(-1, s) for s in (1, 2, 4, 8, 16)}


class AsyncOp:
    """An asynchronous operation: its number, its issuer's clock when it started, and what it does when it runs."""

    __slots__ = ("id", "clock", "line", "kind", "warp", "lane", "run", "done", "cta", "waits", "waited")

    def __init__(self, number, clock, line, kind, warp, lane):
        self.id, self.clock, self.line, self.kind, self.warp, self.lane = number, clock, line, kind, warp, lane
        self.run, self.done, self.cta = None, False, warp.cta
        self.waited = False  # bulk groups: the issuing thread knows that the source is read

    def agent(self):
        return (
            f"{self.kind} issued by {self.warp.name()} lane {self.lane}" if self.lane is not None else f"{self.kind} of {self.warp.name()}"
        )

    def lane_bits(self, lane):
        """Both bits of one lane's part, for an operation with 32 numbers."""
        return 3 << (2 * (self.id + lane))

    @property
    def read_bit(self):
        return 1 << (2 * self.id)

    @property
    def bits(self):
        return 3 << (2 * self.id)


class Hazards:
    """All checks of one launch. Methods that take a fragment `F` act for its active lanes."""

    def __init__(self, launch, strict):
        self.launch, self.strict = launch, strict
        self.recs = [None, None]
        self.sets = [()]
        self.set_ids = {(): 0}
        self.collected = 0
        self.found, self.ranks, self.reports = {}, {}, 0  # findings by class and lines; the cluster that found each first, and when
        self.same_value = None  # while a store is checked: whether it changes nothing

    def collect(self, shadows):
        """Forget records that no shadow names any more (their numbers stay): memory follows what is live, not what ran."""
        if len(self.recs) - self.collected < COLLECT_EVERY:
            return
        live_sets, live = set(), set()
        for shadow in shadows:
            live.update(np.unique(shadow.w).tolist())
            live_sets.update(np.unique(shadow.r).tolist())
        for k, members in enumerate(self.sets):
            if members and k not in live_sets:
                self.set_ids.pop(members, None)
                self.sets[k] = None
            elif members:
                live.update(members)
        live.update([n for k in live if k > HOST for n in self.recs[k].before])
        for k in range(2, len(self.recs)):
            if k not in live:
                self.recs[k] = None
        self.collected = len(self.recs)

    # --- clocks of lanes ----------------------------------------------------------------------------------------
    def start_clock(self, cluster):
        if cluster.zero_clock is None:
            z = np.zeros(cluster.lanes, np.int32)
            cluster.zero_clock = Clock(z, z, 0, None, cluster.index)
        return cluster.zero_clock

    def release(self, F, mask):
        """The clock that lanes `mask` publish now; their counters move on."""
        w = F.warp
        c = join_all(clock for m, clock in F.parts if m & mask)
        lanes = w.lane_slice
        marr = F.mask_array(mask)
        g = c.g.copy()
        np.maximum(g[lanes], w.ep * marr, out=g[lanes])
        out = Clock(g, c.a, c.bits, c.ext, c.home)
        w.ep = w.ep + marr
        return out

    def acquire(self, F, mask, clock):
        """Lanes `mask` of a fragment learn what `clock` knows."""
        if clock is None:
            return
        parts, changed = [], []
        for m, c in F.parts:
            if m & ~mask:
                parts.append((m & ~mask, c))
            if m & mask:
                changed.append((m & mask, c.join(clock)))
        F.parts = merge_parts(parts + changed)

    def sync(self, frags, mask):
        """A warp-level synchronisation of lanes that may belong to several fragments."""
        c = join_all(self.release(F, F.mask & mask) for F in frags if F.mask & mask)
        for F in frags:
            rest = [(m & ~mask, k) for m, k in F.parts if m & ~mask]
            F.parts = merge_parts(rest + [(F.mask & mask, c)]) if F.mask & mask else F.parts

    def proxy_fence(self, F, mask):
        """fence.proxy.async: what these lanes know ordered becomes visible to the asynchronous proxy."""
        w = F.warp
        marr = F.mask_array(mask)
        lanes = w.lane_slice
        parts = []
        for m, c in F.parts:
            if m & ~mask:
                parts.append((m & ~mask, c))
            if m & mask:
                g = c.g.copy()
                np.maximum(g[lanes], w.ep * F.mask_array(m & mask), out=g[lanes])
                a = np.maximum(c.a, g)
                ext = {k: (v[0], np.maximum(v[0], v[1])) for k, v in c.ext.items()} if c.ext else c.ext
                # The lane's own counter is taken back out of g: other lanes of the part have not seen it.
                parts.append((m & mask, Clock(c.g, a, c.bits, ext, c.home)))
        w.ep = w.ep + marr
        F.parts = merge_parts(parts)

    def add_bits(self, F, mask, bits):
        if bits:
            F.parts = merge_parts(
                [(m & ~mask, c) for m, c in F.parts if m & ~mask] + [(m & mask, c.with_bits(bits)) for m, c in F.parts if m & mask]
            )

    def issue_clock(self, F, lane_mask):
        """The clock from which an asynchronous operation issued by these lanes starts."""
        return self.release(F, lane_mask)

    # --- accesses -------------------------------------------------------------------------------------------------
    def generic(self, F, marr, shadow, rows, size, write, line, strong=0, what="access", reads=False, own=None):
        """Lanes of a warp access row `rows[i]` (units of `size` cells) of a shadow; with `reads` a write is an update."""
        w = F.warp
        parts = F.parts
        for m, clock in parts:
            if len(parts) > 1 or marr is not None:
                act = F.mask_array(m) if marr is None else F.mask_array(m) & marr
                if not act.any():
                    continue
            else:
                act = F.marr if m != FULL else None
            r = rows if act is None else rows[act]
            rec = Record(line, write, None, w, F.mask_int(act) if act is not None else FULL, act, w.ep, rows, size, strong)
            rec.own = own
            self._access(rec, clock, shadow, r, size, write, what, reads)

    def flat(self, F, shadow, rows, size, write, line):
        """A whole warp accesses rows together (an allocation, say), not lane by lane."""
        clock = join_all(c for _, c in F.parts)
        op = AsyncOp(-1, clock, line, "access", F.warp, None)
        op.clock = self.release(F, F.mask)
        wv, rv = shadow.wv[size], shadow.rv[size]
        rec = Record(line, write, op)
        for k in _unique(wv[rows]):
            if k > HOST and not self._ordered(self.recs[k], rec, op.clock, shadow, rows, size):
                self._race(rec, self.recs[k], shadow, rows, size, wv[rows] == k)
        for s in _unique(rv[rows]):
            for k in self.sets[s]:
                if not self._ordered(self.recs[k], rec, op.clock, shadow, rows, size):
                    self._race(rec, self.recs[k], shadow, rows, size, rv[rows] == s)

    def async_access(self, op, shadow, rows, size, write, what="access"):
        """An asynchronous operation accesses rows of a shadow."""
        self._access(Record(op.line, write, op), op.clock, shadow, rows, size, write, what)

    def async_lanes(self, op, shadow, rows, marr, size, write):
        """Lane i's part of an asynchronous operation accesses row `rows[i]`."""
        rec = Record(op.line, write, op, op.warp, 0, marr, None, rows, size)
        self._access(rec, op.clock, shadow, np.unique(rows[marr]), size, write, "copy")

    def async_write(self, op, shadow, rows, size):
        """An asynchronous operation writes rows of a shadow."""
        self._access(Record(op.line, True, op), op.clock, shadow, rows, size, True, "write")

    def async_reduce(self, op, shadow, rows, size):
        """An asynchronous reduction: atomic for each element, so it does not race with other atomics."""
        self._access(Record(op.line, True, op, strong=GPU), op.clock, shadow, rows, size, True, "reduction", reads=True)

    def _access(self, rec, clock, shadow, rows, size, write, what, reads=False):
        wv, rv = shadow.wv[size], shadow.rv[size]
        rid = len(self.recs)
        self.recs.append(rec)
        last = wv[rows]
        for k in _unique(last):
            if k == NEVER:
                if not write or reads:
                    self._uninitialised(rec, shadow, rows, size, last, what)
            elif k != HOST:
                self._after_write(rec, k, clock, shadow, rows, size, last == k)
        seen = rv[rows]
        if write:
            for s in _unique(seen):
                for k in self.sets[s]:
                    old = self.recs[k]
                    if not self._ordered(old, rec, clock, shadow, rows, size):
                        self._race(rec, old, shadow, rows, size, seen == s)
            wv[rows] = rid
            rv[rows] = 0
        else:
            ids = _unique(seen)
            if len(ids) == 1:
                rv[rows] = self._with_reader(int(ids[0]), rec, rid, clock)
            else:
                new = seen.copy()
                for s in ids:
                    new[seen == s] = self._with_reader(int(s), rec, rid, clock)
                rv[rows] = new

    def _after_write(self, rec, k, clock, shadow, rows, size, hit):
        """An access comes after write `k`, the last of the cells `hit`, and after the atomic writes that `k` does not stand for."""
        rv = shadow.rv[size]
        for n in (*self.recs[k].before, k):
            old = self.recs[n]
            if old.strong and self._morally_strong(old, rec):  # whether they share a cell can wait until somebody else asks
                if n not in rec.before and not self._known(old, clock):
                    rec.before = (*rec.before, n)[-MOST_BEFORE:]
            elif self._in_order(old, rec, clock, shadow, rows, size):
                continue
            elif not (rec.write and self._ordered_by_reader(rec, clock, shadow, rows, size, rv, hit)):
                self._race(rec, old, shadow, rows, size, hit)

    def _with_reader(self, set_id, rec, rid, clock):
        keep = []
        for k in self.sets[set_id]:
            old = self.recs[k]
            if (
                rec.asy is None
                and old.asy is None
                and old.warp is rec.warp
                and not (old.mask & ~rec.mask)
                and (old.ep < rec.ep)[rec.marr if rec.marr is not None else slice(None)].all()
            ):
                continue  # a later read of the same lanes stands for the earlier one
            if (
                rec.asy is not None
                and old.asy is not None
                and rec.asy.warp is old.asy.warp
                and rec.asy.kind == old.asy.kind
                and rec.asy.clock.knows(2 * old.asy.id)
            ):
                continue
            keep.append(k)
        if rec.asy is None and len(keep) > 8:
            # What is ordered before this read is ordered before everything that comes after it.
            keep = [k for k in keep if not self._known(self.recs[k], clock)]
        key = (*keep, rid)
        n = self.set_ids.get(key)
        if n is None:
            n = self.set_ids[key] = len(self.sets)
            self.sets.append(key)
        return n

    @staticmethod
    def _known(old, clock):
        """True if a whole earlier access is ordered before a clock's owner."""
        if old.asy is not None:
            return old.rows is None and bool(clock.knows(2 * old.asy.id + (1 if old.write else 0)))
        behind = old.ep > clock.seen(old.warp.cluster.index, old.warp.lane_slice, False)
        return not (behind if old.marr is None else behind & old.marr).any()

    def _ordered(self, old, new, clock, shadow, rows, size):
        return self._morally_strong(old, new) or self._in_order(old, new, clock, shadow, rows, size)

    @staticmethod
    def _morally_strong(old, new):
        """Two strong accesses within each other's scope do not race."""
        if not (old.strong and new.strong):
            return False
        scope = min(old.strong, new.strong)
        return scope >= GPU or includes(scope, (old.asy or old.warp).cta, (new.asy or new.warp).cta)

    def _in_order(self, old, new, clock, shadow, rows, size):
        """True if the clock has the earlier access before the new one, or they share no cell."""
        if old.asy is not None:
            if new.asy is old.asy:
                return True
            if old.rows is not None:  # each lane's part completes by itself
                shift = 2 * old.asy.id + (1 if old.write else 0)
                open_lanes = old.marr & ~np.array([clock.bits >> (shift + 2 * k) & 1 for k in range(32)], bool)
                return not open_lanes.any() or not self._lanes_meet(old, open_lanes, new, rows, size)
            return clock.knows(2 * old.asy.id + (1 if old.write else 0))
        w = old.warp
        visible = new.asy is not None and (old.write or self.strict) and new.asy.kind not in _GENERIC_PROXY
        known = clock.seen(w.cluster.index, w.lane_slice, visible)
        behind = old.ep > known
        if old.marr is not None:
            behind = behind & old.marr
        if old.own is not None and behind.any():
            behind = behind.copy()
            behind[[lane for lane, number in old.own.items() if clock.knows(2 * number)]] = False
        if not behind.any():
            return True
        return not self._lanes_meet(old, behind, new, rows, size)

    def _ordered_by_reader(self, new, clock, shadow, rows, size, rv, hit):
        """True if every byte of an unordered last write has since been read by someone who is ordered before the new write."""
        sets = [self.sets[s] for s in _unique(rv[rows][hit])]
        return all(any(self._ordered(self.recs[k], new, clock, shadow, rows, size) for k in readers) for readers in sets)

    def _lanes_meet(self, old, behind, new, rows, size):
        """True if a lane of `old` that is not known to be done touched a byte of the new access (by another lane)."""
        lanes = np.flatnonzero(behind)
        old_cells = (old.rows[lanes][:, None] * old.size + np.arange(old.size)).ravel()
        if new.asy is not None or old.asy is not None or new.warp is not old.warp:
            span = np.unique(rows)
            return bool(np.isin(old_cells // size, span).any())
        # Same warp: another lane than the one that makes the new access. Sort both by cell and compare owners.
        mine = np.arange(32) if new.marr is None else np.flatnonzero(new.marr)
        new_cells = (np.asarray(rows)[:, None] * size + np.arange(size)).ravel()
        if (
            old.size == size
            and lanes.size == mine.size
            and np.array_equal(old_cells, new_cells)
            and np.unique(new_cells).size == new_cells.size
        ):
            return bool((lanes != mine).any())
        old_owner, new_owner = np.repeat(lanes, old.size), np.repeat(mine, size)
        order = np.argsort(old_cells, kind="stable")
        old_cells, old_owner = old_cells[order], old_owner[order]
        first, last = np.searchsorted(old_cells, new_cells, "left"), np.searchsorted(old_cells, new_cells, "right")
        return any((old_owner[first[k] : last[k]] != new_owner[k]).any() for k in np.flatnonzero(last > first))

    # --- reports ----------------------------------------------------------------------------------------------------
    def _race(self, new, old, shadow, rows, size, hit):
        if self.same_value is not None and new.line == old.line and old.write and old.asy is None and self.same_value():
            if self.strict:
                self.report(
                    "same-value",
                    f"unordered writes of equal values on {shadow.name}",
                    (new.line, old.line),
                    (new.agent(), old.agent()),
                    severity="warning",
                )
            return
        kind = {(True, True): "write after write", (True, False): "write after read", (False, True): "read after write"}[
            (new.write, old.write)
        ]
        cls, hint, severity = "race", "", "error"
        if new.asy is not None and old.asy is not None and new.asy.kind == old.asy.kind == "tcgen05.mma" and new.asy.warp is old.asy.warp:
            cls, hint, severity = (
                "tcgen05-order",
                "; both are MMAs of one thread, of different shape or accumulator: the ISA promises no order",
                "warning",
            )
        if new.asy is not None and old.asy is None:
            known_generic = new.asy.clock.seen(old.warp.cluster.index, old.warp.lane_slice, False)
            behind = old.ep > known_generic
            if old.marr is not None:
                behind = behind & old.marr
            if not behind.any():
                access = "write" if old.write else "read"
                cls, hint = "proxy-race", f"; the {access} is ordered, but no fence.proxy.async makes it known to the asynchronous proxy"
                severity = "error" if old.write else "warning"
        hint = hint or getattr(old.asy, "hint", "")
        first = self._first_cell(shadow, rows, size, hit)
        self.report(
            cls,
            f"{kind} without order on {shadow.name} at {shadow.unit} {first}{hint}",
            (new.line, old.line),
            (new.agent(), old.agent()),
            severity,
        )

    def _uninitialised(self, rec, shadow, rows, size, last, what):
        first = self._first_cell(shadow, rows, size, last == NEVER)
        self.report(
            "uninitialised", f"read of {shadow.name} that nothing has written, at {shadow.unit} {first}", (rec.line,), (rec.agent(),)
        )

    @staticmethod
    def _first_cell(shadow, rows, size, hit):
        rows = np.asarray(rows)
        r, c = np.argwhere(hit)[0]
        cell = int(rows[r]) * size + int(c)
        return f"{cell:#x}" if shadow.unit == "byte" else f"lane {cell // 512}, column {cell % 512}"

    def report(self, cls, message, lines, agents=(), severity="error"):
        key, cluster = (cls, lines), self.launch.running
        h = self.found.get(key)
        if h is not None:
            h.count += 1
            if cluster >= self.ranks[key][0]:
                return
            h.message, h.agents, h.severity = message, agents, severity  # as the first cluster sees it, whoever ran first
        else:
            self.found[key] = Hazard(cls, message, lines, agents, severity, where=tuple(self.launch.program.where(n) for n in lines))
        self.reports += 1
        self.ranks[key] = cluster, self.reports

    def in_order(self):
        """Findings by cluster, and in each in the order in which they were made."""
        return [self.found[key] for key in sorted(self.ranks, key=self.ranks.get)]

    def forget(self):
        """Drop all records: no shadow in use names one."""
        self.recs, self.sets, self.set_ids, self.collected = [None, None], [()], {(): 0}, 0


def merge_parts(parts):
    """Parts with the same clock become one."""
    if len(parts) < 2:
        return parts
    out = {}
    for m, c in parts:
        k = id(c)
        out[k] = (out[k][0] | m, c) if k in out else (m, c)
    return list(out.values())


def _unique(a):
    """Distinct values of a small integer array, fast where there is one."""
    if a.size == 0:
        return ()
    lo = int(a.min())
    return (lo,) if lo == int(a.max()) else np.unique(a).tolist()
