"""A launch in several processes: each takes every n-th cluster, on a copy of memory, and the written bytes are put together.

Only where that cannot be told from one process. The shadow memory says which bytes each cluster wrote and read; if two clusters wrote one
byte, or one read what another wrote, nothing is kept and the launch runs again in one process. The same holds for whatever couples
clusters by time: atomics on global memory, polling loops, time limits of try_wait, clocks, a deadlock, an error. Hazards are stamped with
the cluster that found them (hazards.py), so that a report does not depend on who ran beside whom.
"""

import multiprocessing
import multiprocessing.connection
import warnings

import numpy as np

from .memory import MEMORY_LIMIT, Bytes
from .report import Hazard


def run_split(run, processes):
    """(report, "") from `processes` processes, or (None, why they cannot be used); then `run` has not changed."""
    n = run.cluster_count()
    processes = min(processes, n)
    why = _obstacle(run, processes)
    if why:
        return None, why
    parts = _gather(run, processes)
    if isinstance(parts, str):
        return None, parts
    written, why = _merge(run, parts)
    if why:
        return None, why
    for k, (mask, values) in written.items():
        mem = run.memory.items[k]
        mem.data[mask[: mem.data.size]] = values
        mem.shadow.w[mask] = 1  # written, for `keep_initialised`
    return _report(run, parts), ""


def _obstacle(run, processes):
    if run.hazards is None:
        return "the shadow memory of hazard detection shows that clusters share nothing, and it is off"
    if run.random:
        return "a random schedule draws for all clusters in one order"
    if run.before is not None:
        return "the launch before may still be running"
    if "fork" not in multiprocessing.get_all_start_methods():
        return "this system cannot fork"
    if run.memory.total * processes > MEMORY_LIMIT:
        return f"{processes} copies of {run.memory.total >> 20} MB are too much memory"
    return ""


def _gather(run, processes):
    """What each process found, in order, or why one gave up."""
    context = multiprocessing.get_context("fork")
    n, workers = run.cluster_count(), {}
    for k in range(processes):
        mine, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(run, range(k, n, processes), theirs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of BLAS; the child does not use them
            worker.start()
        theirs.close()
        workers[mine] = k, worker
    parts, finished, why = [None] * processes, 0, ""
    waiting = set(workers)
    while waiting and not why:
        for pipe in multiprocessing.connection.wait(waiting):
            try:
                message = pipe.recv()
            except EOFError:
                message = "a process ended early"
            if isinstance(message, str):
                why = message
                break
            if message is None:  # one cluster more
                finished += 1
                if run.progress:
                    run.progress(finished, n)
            else:
                parts[workers[pipe][0]] = message
                waiting.remove(pipe)
    for pipe, (_, worker) in workers.items():
        pipe.close()
        if why:
            worker.terminate()
        worker.join()
    return why or parts


def _work(run, clusters, pipe):
    """One process: its clusters one after the other, with a fresh shadow each."""
    try:
        run.progress = None
        for mem in run.memory.items:
            if mem.writable:
                own = Bytes(mem.data.copy(), mem.name)
                mem.data, mem.views = own.data, own.views
        start = [mem.shadow.w.astype(np.uint8) for mem in run.memory.items]
        touched = [(np.zeros(mem.shadow.cells, bool), np.zeros(mem.shadow.cells, bool)) for mem in run.memory.items]
        for k in clusters:
            run.run_clusters([k])
            why = run.coupled or _keep(run, start, touched)
            if why:
                pipe.send(why)
                return
            pipe.send(None)
        report = run.report()
        writes = [
            (np.packbits(w), np.packbits(r), mem.data[w[: mem.data.size]] if w.any() else None)
            for mem, (w, r) in zip(run.memory.items, touched)
        ]
        hazards = [(key, rank, run.hazards.found[key].__dict__) for key, rank in run.hazards.ranks.items()]
        pipe.send((writes, hazards, report.counters["cta"], run.steps))
    except Exception as error:  # one process meets it again, and reports it as ever
        pipe.send(f"a process stopped: {error}")


def _keep(run, start, touched):
    """Add what one cluster touched and forget it in the shadow; why not, if it met another cluster's bytes."""
    for mem, first, (written, read) in zip(run.memory.items, start, touched):
        shadow = mem.shadow
        w, r = shadow.w > 1, shadow.r != 0
        if (w & (written | read)).any() or (r & written).any():
            return f"clusters share bytes of {mem.name} that one of them writes"
        shadow.w[w] = first[w]
        shadow.r[r] = 0
        written |= w
        read |= r
    run.hazards.forget()
    run.sync_clocks.clear()
    return ""


def _merge(run, parts):
    """({buffer number: (mask, values)}, "") of all parts, or why they do not fit together."""
    out, steps = {}, sum(p[3] for p in parts)
    if run.max_steps and steps > run.max_steps:
        return None, "the step limit is reached"
    for k, mem in enumerate(run.memory.items):
        cells = mem.shadow.cells
        written, read, data = np.zeros(cells, bool), np.zeros(cells, bool), mem.data.copy()
        for writes, *_ in parts:
            w, r = (np.unpackbits(bits, count=cells).astype(bool) for bits in writes[k][:2])
            if (w & (written | read)).any() or (r & written).any():
                return None, f"clusters share bytes of {mem.name} that one of them writes"
            if writes[k][2] is not None:
                data[w[: data.size]] = writes[k][2]
            written |= w
            read |= r
        if written.any():
            out[k] = written, data[written[: data.size]]
    return out, ""


def _report(run, parts):
    """Hazards of all parts, each as its first cluster saw it, and the counters of all CTAs."""
    found = {}
    for _, hazards, *_ in parts:
        for key, rank, fields in hazards:
            old = found.get(key)
            if old is None:
                found[key] = rank, Hazard(**fields)
                continue
            first = min(old, (rank, Hazard(**fields)), key=lambda pair: pair[0])
            first[1].count = old[1].count + fields["count"]
            found[key] = first
    run.hazards.ranks = {key: rank for key, (rank, _) in found.items()}
    run.hazards.found = {key: hazard for key, (_, hazard) in found.items()}
    return run.report({index: values for part in parts for index, values in part[2].items()})
