"""What must hold of every emitted kernel.

Each check takes text or bytes and returns complaints, so that a test can try it on a kernel that breaks it.
"""

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass

import ptx_loops

from fa4c.ir import tile, warp
from fa4c.ir.context import new_context, parse_module
from fa4c.lowering.cubin import resources


def local_memory(ptx: str) -> list[str]:
    return [f"line {number}: {line.strip()}" for number, line in enumerate(ptx.splitlines(), 1) if re.search(r"\.local\b", line)]


def stack_and_local_bytes(cubin: bytes) -> list[str]:
    return [
        f"{name}: {r.stack_bytes} bytes of stack, {r.local_bytes} of local memory"
        for name, r in resources(cubin).items()
        if r.stack_bytes or r.local_bytes
    ]


def find_ptxas() -> str | None:
    return shutil.which("ptxas") or shutil.which("/usr/local/cuda/bin/ptxas")


def ptxas_log(ptx: str, *options: str) -> str:
    """What a stand-alone `ptxas -v` says."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        done = subprocess.run(
            [find_ptxas(), "-v", "-arch", "sm_90a", *options, file.name, "-o", "/dev/null"], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def spills(log: str) -> list[str]:
    found = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert found, log
    return [
        f"stack {stack}, spill stores {stores}, spill loads {loads}"
        for stack, stores, loads in found
        if (stack, stores, loads) != ("0", "0", "0")
    ]


def advisories(log: str) -> list[str]:
    """C7508 to C7519: wgmmas serialised, register moves between them, setmaxnreg ignored, and the like."""
    return [line for line in log.splitlines() if re.search(r"C75(0[89]|1\d)", line)]


def loop_counts(ptx: str, warp_text: str) -> list[str]:
    """The loops of the PTX are the loops of the `warp` IR, role by role, each with the instructions that its operations stand for.

    Arithmetic is compared in innermost loops only: around them, what is known before the first iteration may have been folded.
    """
    want, got = expected_loops(warp_text), ptx_loops.loops(ptx)
    if len(want) != len(got):
        return [f"the warp level has {len(want)} loops, the PTX {len(got)}: {[dict(loop.counts) for loop in got]}"]
    return [
        f"loop {n} of role {expected.role}: {name} {loop[name]} times, but the warp level says {count}"
        for n, (expected, loop) in enumerate(zip(want, got, strict=True))
        for name, count in expected.counts.items()
        if loop[name] != count and (expected.innermost or name not in ("ex2", "tanh"))
    ]


@dataclass
class ExpectedLoop:
    role: str
    counts: Counter
    innermost: bool = True


def expected_loops(warp_text: str) -> list[ExpectedLoop]:
    """What each loop of each role holds, in text order, inner loops left out."""
    with new_context():
        module = parse_module(warp_text)
        kernel = next(op for op in module.body.operations if isinstance(op, warp.KernelOp))
        found = []
        for role in kernel.body.blocks[0].operations:
            if isinstance(role, warp.RoleOp):
                _collect(role.body.blocks[0], role.sym_name.value, None, found)
        return found


def _collect(block, role, around, found) -> None:
    for op in block.operations:
        if around is not None:
            _count(op, around.counts)
        if op.operation.name == "scf.for" or isinstance(op, warp.WalkOp):
            if around is not None:
                around.innermost = False
            loop = ExpectedLoop(role, Counter(dict.fromkeys(ptx_loops.COUNTED, 0)))
            found.append(loop)
            if isinstance(op, warp.WalkOp):  # the role that has the queue waits until the last number was read, then for its own
                loop.counts["wait"] += 2 if op.queue is not None else 1
                loop.counts["arrive"] += 1
            _collect(op.operation.regions[0].blocks[0], role, loop, found)
        elif not isinstance(op, warp.MapOp):  # guards and the like
            for inner in (inner for region in op.operation.regions for inner in region.blocks):
                _collect(inner, role, around, found)


def _count(op, counts) -> None:
    if isinstance(op, warp.WgmmaOp):
        counts["mma"] += op.a.type.shape[-1] // 16  # one for each 16 of the contracted size
    elif isinstance(op, (warp.TmaLoadOp, warp.TmaStoreOp, warp.TmaPutOp)):
        width = op.buffer.type.shape[2] * warp.bits_of(op.buffer.type.element_type) // 8
        counts["bulk"] += width // op.buffer.owner.opview.swizzle.value  # one for each swizzle span of columns
    elif isinstance(op, (warp.WaitOp, warp.AcquireOp)):
        counts["wait"] += 1
    elif isinstance(op, (warp.ArmOp, warp.ReleaseOp)):
        counts["arrive"] += 1
    elif isinstance(op, (warp.BarrierOp, warp.TurnTakeOp, warp.TurnGiveOp)):
        counts["barrier"] += 1
    elif isinstance(op, warp.MapOp):
        kind = op.target.type
        elements = range(2 if kind.rank == 1 or kind.shape[1] == 4 else kind.shape[1] // 2)  # a thread's share
        for inner in op.body.blocks[0].operations:
            counts["ex2"] += sum(_exponentials(inner, r) for r in elements)
            counts["tanh"] += len(elements) * (isinstance(inner, warp.PtxOp) and inner.asm.value.startswith("tanh"))


def _exponentials(op, element: int) -> int:
    if isinstance(op, tile.Exp2Op):
        return int(element // 4 % 16 >= op.emulated.value)
    return int(op.operation.name in ("math.exp2", "math.exp", "math.tanh", "math.powf"))
