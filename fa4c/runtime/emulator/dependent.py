"""Programmatic dependent launch (PTX ISA, `griddepcontrol`): a launch that may start before the one before it has ended.

The emulator runs one launch after the other, which is one legal order. What hardware may do besides shows in the shadow memory: once
the first kernel has executed `launch_dependents`, all that it touched may still be going on in the second one until a thread has
executed `wait`, or has learnt of a wait from another thread. Without `launch_dependents` the second starts when the first has ended.
"""

import numpy as np

from .codegen import Unsupported
from .hazards import HOST, Record
from .machine import mask_int


class EarlierLaunch:
    """The accesses of the launch before, as one asynchronous operation that `griddepcontrol.wait` completes."""

    kind, warp, lane, rows = "the launch before", None, None, None
    hint = "; the launch before has let this one start early (griddepcontrol.launch_dependents), and no griddepcontrol.wait comes first"

    def __init__(self, entry, number):
        self.entry, self.id = entry, number
        self.bits = 3 << 2 * number

    def agent(self):
        return f"the launch before, {self.entry}"


class Touched:
    """Bytes that a launch wrote and read, by the address of each buffer."""

    def __init__(self, entry):
        self.entry, self.buffers = entry, {}

    def add(self, address, written, read):
        old = self.buffers.get(address)
        self.buffers[address] = (written, read) if old is None else (written | old[0], read | old[1])


def follow(run, previous):
    """Mark in the shadow of a launch what the launch before it (a report) may still be doing."""
    touched = previous.touched
    if touched is None or run.hazards is None:
        return
    H = run.hazards
    run.before = op = EarlierLaunch(touched.entry, run.next_op)
    run.next_op += 1
    write, read = len(H.recs), len(H.recs) + 1
    H.recs += [Record(0, True, op), Record(0, False, op)]
    H.sets.append((read,))
    H.set_ids[(read,)] = len(H.sets) - 1
    run.before_records = write, len(H.sets) - 1
    for mem in run.memory.items:
        masks = touched.buffers.get(_address(mem))
        if masks is not None:
            n = min(mem.shadow.cells, masks[0].size)
            mem.shadow.w[:n][masks[0][:n]] = write
            mem.shadow.r[:n][masks[1][:n]] = run.before_records[1]


def touched_by(run, previous):
    """What the next launch may overlap with: this one if it lets it start early, and the one before if nobody waited for that."""
    pending = previous.touched if previous is not None and not run.waited else None
    if run.hazards is None or (not run.released and pending is None):
        return None
    out = Touched(run.program.kernel.name if run.released else pending.entry)
    write, reads = run.before_records if run.before is not None else (HOST, 0)
    for mem in run.memory.items if run.released else ():
        w, r = mem.shadow.w, mem.shadow.r
        out.add(_address(mem), (w > HOST) & (w != write), (r != 0) & (r != reads))
    for address, masks in pending.buffers.items() if pending is not None else ():
        out.add(address, *masks)
    return out


def _address(mem):
    return mem.data.__array_interface__["data"][0]


def op_griddepcontrol(ins, program):
    """griddepcontrol.{wait,launch_dependents}."""
    kind = ins.parts[1] if len(ins.parts) == 2 else ""
    if kind not in ("wait", "launch_dependents"):
        raise Unsupported(f"instruction {ins.opcode}")

    def run(F, m):
        launch = F.launch
        if kind == "launch_dependents":
            launch.released = True
        else:
            launch.waited = True
            if launch.before is not None:
                F.H.add_bits(F, mask_int(np.asarray(m)), launch.before.bits)
        return True

    return run
