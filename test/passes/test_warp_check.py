"""`warp-check` finds each seeded fault and says where; what it lets pass is harmless, for the reason given here."""

import pytest
import warp_faults as wf
from warp_faults import Fault, set_number, set_text

from fa4c.ir.mlir import ir

CAUSAL = "causal.mlir"
ALL = sorted(path.name for path in wf.EXAMPLES.glob("*.mlir")) + ["tile/gemm.mlir", "tile/two_gemms.mlir", "warp/gemm_bias_tanh.mlir"]


@pytest.mark.parametrize("example", ALL)
def test_finds_nothing_in_what_the_passes_make(example):
    assert wf.verdict(wf.complete(example)) == ""


# -- every operation that synchronises, left out -----------------------------------------------------------------------------------------

SYNCHRONISING = (
    "acquire",
    "arm",
    "wait",
    "release",
    "advance",
    "wgmma_fence",
    "wgmma_commit",
    "wgmma_wait",
    "fence_async",
    "barrier",
    "turn_init",
    "turn_take",
    "turn_give",
    "store_commit",
    "store_wait",
    "init_barriers",
    "tma_load",
    "tma_store",
    "store_shared",
    "wgmma",
    "fill",
    "elect",
)


def why_harmless(op) -> str:
    """The reason for which a kernel is right without the operation, "" if there is none."""
    if op.name == "warp.advance" and not any(op.operands[0] in set(_operands(other)) for other in _behind(op)) and not _in_loop(op):
        return "nothing uses the place any more"
    if op.name == "warp.wgmma_fence" and _fenced_before(op):
        return "an earlier fence orders the same registers, and only MMAs came in between"
    return ""


def _behind(op) -> list:
    """What comes after an operation in its role."""
    role = op
    while role.name != "warp.role":
        role = role.parent.operation
    everything = list(wf._walk(role))
    return everything[everything.index(op) + 1 :]


def _operands(op):
    yield from op.operands
    for inner in wf._walk(op):
        yield from inner.operands


def _in_loop(op) -> bool:
    while op.name not in ("scf.for", "warp.walk", "warp.role"):
        op = op.parent.operation
    return op.name != "warp.role"


def _fenced_before(op) -> bool:
    """Between an earlier fence of the block and this one stand MMAs, waits for slots and barriers only: no access to registers."""
    untouched = ("warp.wgmma", "warp.wgmma_commit", "warp.wait", "warp.turn_take", "warp.turn_give")
    block = [other.operation for other in op.block.operations]
    for other in reversed(block[: block.index(op)]):
        if other.name == "warp.wgmma_fence":
            return True
        if other.name not in untouched and not other.name.startswith("arith."):
            return False
    return False


# A kernel of one tile a CTA, one that walks through tiles, and one of another shape.
PLAIN, WALKS, GEMM = (CAUSAL, ("tile-persistent",)), (CAUSAL, ()), ("tile/gemm.mlir", ("tile-persistent",))


def left_out(*kernels):
    for example, disabled in kernels:
        text = wf.complete(example, disabled=disabled)
        with wf.new_context() as context, ir.Location.unknown():
            operations = wf.Operations(wf.parse_module(text, "kernel.mlir", context))
            for name in SYNCHRONISING:
                for n, op in enumerate(operations.all(name)):
                    yield pytest.param(example, disabled, name, n, why_harmless(op), id=f"{example}-{'-'.join(disabled)}-{name}-{n}")


@pytest.mark.parametrize(("example", "disabled", "name", "n", "harmless"), list(left_out(PLAIN, WALKS, GEMM)))
def test_leaving_out_is_found(example, disabled, name, n, harmless):
    said = wf.verdict(wf.complete(example, disabled=disabled), lambda ops: ops.all(name)[n].erase())
    if harmless:
        assert said == "", (said, harmless)
    else:
        assert wf.is_located(said), said


def test_harmless_ones_are_few():
    """Three in causal of one tile a CTA: the last places of K and V on either side, and the second fence of the loop."""
    assert [p.values[2] for p in left_out(PLAIN) if p.values[4]] == ["advance", "advance", "wgmma_fence"]


# -- wrong numbers, wrong places ---------------------------------------------------------------------------------------------------------


def one_tile() -> str:
    """Causal, one tile a CTA."""
    return wf.complete(CAUSAL, disabled=PLAIN[1])


def pipe_of(ops, k: int):
    return ops.all("pipeline")[k]  # 0: Q, 1: K, 2: V


def swap_with_next(op) -> None:
    block = [other.operation for other in op.block.operations]
    block[block.index(op) + 1].move_before(op)


def move_before(op, other) -> None:
    op.move_before(other)


def use_operand(op, n: int, other, m: int) -> None:
    assert op.operands[n] != other.operands[m]
    op.operands[n] = other.operands[m]


# Q is waited for before any of it was asked for, or its slot is taken as full while the copy is on its way.
WRONG_PHASE = "waits forever|waits for a slot|was not waited for|by the state of another one|still being read"

FAULTS = [
    # parities
    Fault("consumer starts in the wrong phase", lambda o: set_number(o.all("state", role="compute")[1], "phase", 1), WRONG_PHASE),
    Fault("producer starts in the wrong phase", lambda o: set_number(o.all("state", role="load")[1], "phase", 0), "waits forever"),
    # arrivals and bytes
    Fault("fewer arrivals than warps", lambda o: set_number(pipe_of(o, 1), "arrivals", 4), "waits forever"),
    Fault("more arrivals than warps", lambda o: set_number(pipe_of(o, 1), "arrivals", 16), "waits forever"),
    Fault("no arrivals", lambda o: set_number(pipe_of(o, 1), "arrivals", 0), "nobody ever empties"),
    Fault("more bytes than come", lambda o: set_number(pipe_of(o, 1), "tx_bytes", 65536), "waits forever"),
    Fault("fewer bytes than come", lambda o: set_number(pipe_of(o, 2), "tx_bytes", 16384), "brings 32768 bytes into a slot"),
    Fault("bytes of the load that comes once", lambda o: set_number(pipe_of(o, 0), "tx_bytes", 16384), "brings 32768 bytes into a slot"),
    Fault("more stages than the buffer has", lambda o: (set_number(pipe_of(o, 2), "stages", 3),), "goes to stage 2 of a buffer that has 2"),
    # bytes of shared memory
    Fault(
        "K over Q",
        lambda o: set_number(o.all("buffer")[1], "offset", 1024),
        "overwrites bytes of another buffer|reads a buffer that was overwritten",
    ),
    Fault(
        "V over K",
        lambda o: set_number(o.all("buffer")[2], "offset", 33792),
        "overwrites bytes of another buffer|reads a buffer that was overwritten",
    ),
    Fault("O over V", lambda o: set_number(o.all("buffer")[3], "offset", 99328), "overwrites bytes of another buffer"),
    Fault(
        "a buffer past the end",
        lambda o: set_number(o.all("buffer")[3], "offset", 1 << 18),
        "takes bytes 262144 to 294912, but the kernel has",
    ),
    Fault("mbarriers in a buffer", lambda o: set_number(pipe_of(o, 1), "offset", 2048), "row vectors that roles exchange, share no bytes"),
    Fault("mbarriers in mbarriers", lambda o: set_number(pipe_of(o, 2), "offset", 16), "row vectors that roles exchange, share no bytes"),
    Fault("less shared memory", lambda o: set_number(o["kernel"], "smem_bytes", 65536), "but the kernel has 65536"),
    Fault(
        "more shared memory than there is",
        lambda o: set_number(o["kernel"], "smem_bytes", 1 << 18),
        "has smem_bytes = 262144, but a CTA has 232448",
    ),
    # warps and registers
    Fault(
        "too many registers",
        lambda o: set_number(o.all("role")[0], "registers", 56),
        "gives its roles 68608 registers, but starts with 64512",
    ),
    Fault(
        "too few registers",
        lambda o: set_number(o.all("role")[1], "registers", 64),
        "works on [0-9]+ registers a thread, but its role has 64",
    ),
    Fault("a warp without a role", lambda o: set_number(o["kernel"], "threads", 512), "has 16 warps, but its roles name"),
    Fault("a role without warps", lambda o: set_number(o["kernel"], "threads", 256), "has 8 warps, but its roles name"),
    Fault(
        "a warp with two roles",
        lambda o: o.all("role")[1].attributes.__setitem__("warps", ir.DenseI64ArrayAttr.get(range(8))),
        "which role @load has",
    ),
    Fault("half of the compute warps", lambda o: set_number(o.all("role")[1], "active", 4), "works on whole warpgroups, but 4 warps"),
    Fault("two producer warps", lambda o: set_number(o.all("role")[0], "active", 2), "is done by 2 threads"),
    # who does it
    Fault("each warp stores", lambda o: set_text(o.all("elect", role="compute")[0], "scope", "warp"), "is done by 8 threads"),
    Fault("all threads load", lambda o: move_before(o.all("tma_load")[1], o.all("elect")[1]), "is done by all threads"),
    Fault("one thread multiplies", lambda o: move_before(o["wgmma_fence"], o["store_commit"]), "is done by one thread"),
    # turns and named barriers
    Fault("turns given to oneself", lambda o: set_number(o["turn_give"], "id", 3), "named barrier 3|waits forever"),
    Fault("turns taken elsewhere", lambda o: set_number(o["turn_take"], "id", 6), "waits forever"),
    Fault("a first turn for nobody", lambda o: set_number(o["turn_init"], "id", 7), "waits forever"),
    Fault("give before take", lambda o: move_before(o["turn_give"], o["turn_take"]), "gives a turn that its warpgroup does not have"),
    Fault("a barrier with two purposes", lambda o: set_number(o["barrier"], "id", 2), "uses named barrier 2, which serves role @compute"),
    Fault("a barrier past the last", lambda o: set_number(o["barrier"], "id", 15), "takes named barriers 15 to 16"),
    # order
    Fault(
        "release before the wait for the MMA",
        lambda o: move_before(o.all("release", inside="loop")[0], o.all("wgmma_wait", inside="loop")[0]),
        "releases a slot that an MMA in flight still reads",
    ),
    Fault(
        "advance before release",
        lambda o: swap_with_next(o.all("release", inside="loop")[0]),
        "leaves a slot that it has not released|does not hold",
    ),
    Fault(
        "row maximum before S is complete",
        lambda o: move_before(o.all("reduce", inside="loop")[0], o.all("wgmma_wait", inside="loop")[0]),
        "reads or writes an accumulator of an MMA in flight",
    ),
    Fault("P rewritten while PV reads it", lambda o: move_before(p_cast(o), o.all("wgmma_wait", inside="loop")[0]), "an MMA in flight"),
    Fault("waits for too few MMAs", lambda o: set_number(o.all("wgmma_wait", inside="loop")[0], "pending", 2), "an MMA in flight"),
    Fault("fence before the write", lambda o: move_before(o["fence_async"], o["store_shared"]), "writes have not reached"),
    Fault("barrier before the fence", lambda o: swap_with_next(o["fence_async"]), "writes have not reached"),
    Fault("stores are not waited for", lambda o: set_number(o["store_wait"], "pending", 1), "may still read shared memory"),
    Fault("commit before the store", lambda o: swap_with_next(o["tma_store"]), "closes a group without stores"),
    Fault(
        "acquire after the copy",
        lambda o: move_before(o.all("elect", inside="loop")[0], o.all("acquire", inside="loop")[0]),
        "fills a slot that was not acquired",
    ),
    # wrong operands
    Fault(
        "K waited for by the state of V",
        lambda o: use_operand(o.all("wait", inside="loop")[0], 0, o.all("wait", inside="loop")[1], 0),
        "not waited for|twice",
    ),
    Fault(
        "the slot of another buffer",
        lambda o: use_operand(o.all("wgmma", inside="loop")[0], 4, o.all("wgmma", inside="loop")[1], 3),
        "not waited for|another one",
    ),
    Fault("V loaded into K", lambda o: use_operand(o.all("tma_load")[3], 1, o.all("tma_load")[1], 1), "by the state of another one"),
    Fault("a pipe that is not initialised", lambda o: drop_last_pipe(o), "is not initialised"),
]


def p_cast(ops):
    """The map that writes P, the register operand of the second MMA."""
    p = ops.all("wgmma", inside="loop")[1].operands[1]
    return next(op for op in ops.all("map", inside="loop") if op.operands[0] == p)


def drop_last_pipe(ops) -> None:
    init = ops["init_barriers"]
    ir.Operation.create("warp.init_barriers", operands=list(init.operands)[:-1], ip=ir.InsertionPoint(init), loc=init.location)
    init.erase()


# Edits that look like faults and are none: the message is the reason.
HARMLESS = [
    Fault(
        "a barrier of all warps instead of each warpgroup",
        lambda o: set_text(o["barrier"], "scope", "role"),
        "all wait for all: stricter than needed",
    ),
    Fault(
        "arm after the copy",
        lambda o: swap_with_next(o.all("arm", inside="elect")[1]),
        "bytes may come first: the phase ends when both have",
    ),
    Fault(
        "a copy of the old maximum moved up",
        lambda o: move_before(o.all("copy", inside="loop")[0], o.all("wgmma", inside="loop")[0]),
        "it touches no register of an MMA",
    ),
    Fault(
        "turns by other barriers",
        lambda o: [set_number(op, "id", 10) for op in o.everything if op.name.startswith("warp.turn_")],
        "any free barriers do",
    ),
    Fault(
        "later buffers",
        lambda o: (set_number(o.all("buffer")[3], "offset", 165888), set_number(o["kernel"], "smem_bytes", 198656)),
        "a hole of 1024 bytes",
    ),
    Fault("an early wait for all MMAs", lambda o: set_number(o.all("wgmma_wait", inside="loop")[0], "pending", 0), "slower, and right"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found(fault):
    said = wf.verdict(one_tile(), fault.apply)
    assert wf.is_located(said), said
    assert wf.re.search(fault.message, said), said


@pytest.mark.parametrize("fault", HARMLESS, ids=lambda fault: fault.name)
def test_what_is_no_fault_passes(fault):
    assert wf.verdict(one_tile(), fault.apply) == ""


# -- a buffer that lies over another one -------------------------------------------------------------------------------------------------


def test_output_over_q_needs_a_barrier_of_the_role():
    """At head dim 256, O goes where Q was; all warpgroups must have read Q before one of them overwrites it."""
    text = wf.complete(CAUSAL, head_dim=(256, 256), disabled=PLAIN[1])
    assert wf.verdict(text) == ""

    def barrier_of_the_role(ops):
        return next(op for op in ops.all("barrier") if op.attributes["scope"].value == "role")

    said = wf.verdict(text, lambda ops: barrier_of_the_role(ops).erase())
    assert wf.is_located(said)
    assert "overwrites bytes of another buffer" in said
    said = wf.verdict(text, lambda ops: set_text(barrier_of_the_role(ops), "scope", "warpgroup"))
    assert wf.is_located(said)


# -- a kernel without any barriers -------------------------------------------------------------------------------------------------------


def test_a_kernel_without_barriers_is_refused():
    from fa4c.lowering.compile import compile_text
    from fa4c.passes.pipelines import pipeline

    passes = pipeline("sm_90a", "fwd", entry="attn", emit="tile") + ",warp-specialize"
    bare = compile_text((wf.EXAMPLES / CAUSAL).read_text(), CAUSAL, pipeline=passes, emit="warp")
    said = wf.verdict(bare)
    assert wf.is_located(said)
    assert "'warp.tma_load' is done by all threads" in said


# -- walking through tiles ---------------------------------------------------------------------------------------------------------------


def walk_anew(op, queue) -> None:
    """The same walk with another queue, or none."""
    tiles, state = op.operands[0], op.operands[len(op.operands) - 1]
    new = ir.Operation.create(
        "warp.walk",
        operands=[tiles, *([queue] if queue is not None else []), state],
        attributes={"word": op.attributes["word"], "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, int(queue is not None), 1])},
        regions=1,
        ip=ir.InsertionPoint(op),
        loc=op.location,
    )
    op.regions[0].blocks[0].append_to(new.regions[0])
    op.erase()


def phase_of(walk):
    return walk.operands[len(walk.operands) - 1].owner


def turn_phase(op) -> None:
    set_number(op, "phase", 1 - op.attributes["phase"].value)


WALK_FAULTS = [
    Fault(
        "the number lies in an mbarrier", lambda o: [set_number(w, "word", 40) for w in o.all("walk")], "'warp.walk' takes bytes 40 to 44"
    ),
    Fault("the number lies in a buffer", lambda o: [set_number(w, "word", 4096) for w in o.all("walk")], "which overlap 1024 to 33792"),
    Fault("the number lies nowhere", lambda o: [set_number(w, "word", 1 << 20) for w in o.all("walk")], "but the kernel has"),
    Fault("two numbers", lambda o: set_number(o.all("walk")[0], "word", 512), "has another word than another role's walk"),
    Fault(
        "bytes for the number",
        lambda o: set_number(o.all("pipeline")[-1], "tx_bytes", 16),
        "counts 16 bytes for a tile's number",
    ),
    Fault("one reader too few", lambda o: set_number(o.all("pipeline")[-1], "arrivals", 9), "waits forever"),
    Fault("the taker starts in the wrong phase", lambda o: turn_phase(phase_of(o.all("walk", role="load")[0])), "waits forever"),
    Fault("a reader starts in the wrong phase", lambda o: turn_phase(phase_of(o.all("walk", role="compute")[0])), "waits forever"),
    Fault("nobody takes tiles", lambda o: walk_anew(o.all("walk", role="load")[0], None), "waits forever"),
    Fault("two roles take tiles", lambda o: walk_anew(o.all("walk", role="compute")[0], o.all("walk")[0].operands[1]), "in 8 warps"),
]


@pytest.mark.parametrize("fault", WALK_FAULTS, ids=lambda fault: fault.name)
def test_fault_of_a_walk_is_found(fault):
    said = wf.verdict(wf.complete(CAUSAL), fault.apply)
    assert wf.is_located(said), said
    assert wf.re.search(fault.message, said), said
