"""Every emitted kernel, by its PTX and cubin.

Nothing in local memory, nothing spilled, no advice from ptxas, and loops that hold what the warp level says.

A small set of kernels is checked always; FA4C_SLOW_TESTS=1 checks every example with every head dim and dtype.
"""

import os
import re
import struct

import compiled
import kernel_checks
import ptx_loops
import pytest

ATTENTION = sorted(path.name for path in compiled.EXAMPLES.glob("*.mlir"))
OTHERS = ["tile/gemm.mlir", "tile/two_gemms.mlir", "warp/gemm_bias_tanh.mlir"]
FORMULA = (("attn-to-tile", "configurations", "formula"),)  # one kernel of known blocks, whatever was measured
HEAD_DIMS = [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)]

ALWAYS = [
    ("causal.mlir", {}),
    ("softcap.mlir", {}),
    ("document.mlir", {}),
    ("causal.mlir", {"head_dim": (64, 64)}),
    ("full.mlir", {"head_dim": (192, 128), "dtype": "fp16"}),
    ("causal.mlir", {"head_dim": (256, 256)}),
    *((path, {}) for path in OTHERS),
]
ALL = ALWAYS + [(path, {"head_dim": dims, "dtype": dtype}) for path in ATTENTION for dims in HEAD_DIMS for dtype in ("bf16", "fp16")]
IS_SLOW = pytest.mark.skipif(not os.environ.get("FA4C_SLOW_TESTS"), reason="80 kernels take 10 minutes: FA4C_SLOW_TESTS=1 checks them")
NEEDS_PTXAS = pytest.mark.skipif(kernel_checks.find_ptxas() is None, reason="no stand-alone ptxas: neither on PATH nor in /usr/local/cuda")


def label(case) -> str:
    path, options = case
    dims = "x".join(map(str, options["head_dim"])) if "head_dim" in options else ""
    return " ".join(filter(None, [path, dims, options.get("dtype", "")]))


def all_kernels(function):
    cases = [pytest.param(case, id=label(case)) for case in ALWAYS]
    return pytest.mark.parametrize("case", cases + [pytest.param("all", id="all", marks=IS_SLOW)])(function)


def kernels(case) -> list:
    return ALL if case == "all" else [case]


@all_kernels
def test_nothing_lies_in_local_memory(case):
    for path, options in kernels(case):
        assert kernel_checks.local_memory(compiled.ptx(path, **options)) == []
        assert kernel_checks.stack_and_local_bytes(compiled.cubin(path, **options)) == []


@all_kernels
def test_loops_hold_what_the_warp_level_says(case):
    for path, options in kernels(case):
        assert kernel_checks.loop_counts(compiled.ptx(path, **options), compiled.level(path, "warp", **options)) == []


@NEEDS_PTXAS
@all_kernels
def test_ptxas_spills_nothing_and_advises_nothing(case):
    for path, options in kernels(case):
        log = kernel_checks.ptxas_log(compiled.ptx(path, **options))
        assert kernel_checks.spills(log) == []
        assert kernel_checks.advisories(log) == []


# -- each check is seen to fail -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def causal_ptx() -> str:
    """One tile a CTA: a loop of copies and a loop of compute."""
    return compiled.ptx("causal.mlir", disabled=("tile-persistent",), overrides=FORMULA)


@pytest.fixture(scope="module")
def causal_warp() -> str:
    return compiled.level("causal.mlir", "warp", disabled=("tile-persistent",), overrides=FORMULA)


def test_local_memory_check_can_fail(causal_ptx):
    depot = causal_ptx.replace("\t.reg .pred", "\t.local .align 16 .b8 \t__local_depot0[64];\n\t.reg .pred", 1)
    assert len(kernel_checks.local_memory(depot)) == 1
    assert len(kernel_checks.local_memory(causal_ptx.replace("ld.param.b32", "ld.local.b32", 1))) == 1


def test_stack_check_can_fail():
    """A frame size written into the cubin's `.nv.info`."""
    cubin = bytearray(compiled.cubin("causal.mlir", overrides=FORMULA))
    for entry in re.finditer(re.escape(b"\x04\x11\x08\x00"), bytes(cubin)):
        assert struct.unpack_from("<I", cubin, entry.start() + 8) == (0,)
        struct.pack_into("<I", cubin, entry.start() + 8, 48)
    assert kernel_checks.stack_and_local_bytes(bytes(cubin)) == ["causal_fwd_0: 48 bytes of stack, 0 of local memory"]


@NEEDS_PTXAS
def test_spill_check_can_fail(causal_ptx):
    """The compute role keeps fewer registers than its accumulators need."""
    starved = re.sub(r"setmaxnreg\.inc(\S+)\s+240;", r"setmaxnreg.inc\1 168;", causal_ptx.replace(".reqntid 384", ".reqntid 512"))
    assert kernel_checks.spills(kernel_checks.ptxas_log(starved)) != []


@NEEDS_PTXAS
def test_advisory_check_can_fail(causal_ptx):
    """An accumulator that is touched while MMAs are in flight makes ptxas wait for each of them, and say so."""
    lines = causal_ptx.splitlines()
    mma = [n for n, line in enumerate(lines) if line.startswith("wgmma.mma_async")][3]
    accumulator = re.search(r"\{(%r\d+)", lines[mma])[1]
    after = next(n for n in range(mma, len(lines)) if lines[n].startswith("}"))
    lines.insert(after + 1, f"add.f32 {accumulator}, {accumulator}, 0f3F800000;")
    assert kernel_checks.advisories(kernel_checks.ptxas_log("\n".join(lines))) != []


def steady_state(ptx: str) -> ptx_loops.Loop:
    return next(loop for loop in ptx_loops.loops(ptx) if loop["mma"])


def test_loop_counts_of_causal(causal_ptx):
    """By hand, for 128 x 128 blocks of head dim 128.

    QK and PV of 8 steps each; 64 exponentials of P and 2 of the rescale factor a thread; K and V in two swizzle spans each; a wait and a
    release for each of them, on either side.
    """
    load, compute = ptx_loops.loops(causal_ptx)
    assert (load["bulk"], load["wait"], load["arrive"], load["mma"]) == (4, 2, 2, 0)
    assert (compute["mma"], compute["ex2"], compute["bulk"], compute["wait"], compute["arrive"]) == (16, 66, 0, 2, 2)


@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        ("mma", "wgmma.mma_async"),
        ("ex2", "ex2.approx"),
        ("bulk", "cp.async.bulk.tensor"),
        ("wait", "mbarrier.try_wait"),
        ("arrive", "mbarrier.arrive"),
        ("barrier", "bar"),
    ],
)
def test_count_checks_can_fail(causal_ptx, causal_warp, name, instruction):
    """One such instruction less in a loop: its line is blanked."""
    header = 'nounroll";'
    for start in [m.end() for m in re.finditer(re.escape(header), causal_ptx)]:
        at = re.search(rf"^\s*(@\S+\s+)?{re.escape(instruction)}[^\n]*$", causal_ptx[start:], re.MULTILINE)
        changed = causal_ptx[: start + at.start()] + causal_ptx[start + at.end() :] if at else causal_ptx
        if complaints := kernel_checks.loop_counts(changed, causal_warp):
            assert any(name in line or "loops, the PTX" in line for line in complaints), complaints
            return
    pytest.fail("no loop lost the instruction")


def test_a_loop_that_was_unrolled_is_seen(causal_ptx, causal_warp):
    """The back edge of a loop is left out: what remains is straight code."""
    loops = ptx_loops.loops(causal_ptx)
    assert len(loops) == 2
    back_edges = [
        m for m in re.finditer(r"^\s*@%p\d+ bra\s+(\$L\w+);$", causal_ptx, re.MULTILINE) if causal_ptx.find(f"\n{m[1]}:") < m.start()
    ]
    assert len(back_edges) == 2
    for edge in back_edges:
        straight = causal_ptx[: edge.start()] + causal_ptx[edge.end() :]
        assert "has 2 loops, the PTX 1" in kernel_checks.loop_counts(straight, causal_warp)[0]


def test_a_loop_unrolled_by_two_is_seen(causal_ptx, causal_warp):
    """Its body is there twice."""
    lines = causal_ptx.splitlines()
    edge = max(n for n, line in enumerate(lines) if re.match(r"\s*@%p\d+ bra\s+\$L", line) and _is_backward(lines, n))
    target = re.search(r"bra\s+(\$L\w+);", lines[edge])[1]
    top = lines.index(f"{target}:")
    body = [re.sub(r"(\$L\w+)", r"\1_twice", line) for line in lines[top + 1 : edge]]
    twice = "\n".join(lines[:edge] + body + lines[edge:])
    assert any("mma 32 times" in line for line in kernel_checks.loop_counts(twice, causal_warp))


def _is_backward(lines, n) -> bool:
    label = re.search(r"bra\s+(\$L\w+);", lines[n])[1] + ":"
    return label in lines[:n]


def test_polling_an_mbarrier_is_no_loop():
    ptx = """.visible .entry k()
{
	.reg .b32 	%r<9>;
	{
	LAB_WAIT:
	mbarrier.try_wait.parity.shared.b64 P1, [%r1], 1;
	@P1 bra.uni DONE;
	bra.uni LAB_WAIT;
	DONE:
	}
$L__BB0_1:
	add.s32 	%r1, %r1, 1;
	{
	LAB_WAIT:
	mbarrier.try_wait.parity.shared.b64 P1, [%r1], 1;
	@P1 bra.uni DONE;
	bra.uni LAB_WAIT;
	DONE:
	}
	@%p1 bra 	$L__BB0_1;
	ret;
}
"""
    (loop,) = ptx_loops.loops(ptx)
    assert loop["wait"] == 1


def test_inner_loops_are_counted_apart():
    ptx = """.visible .entry k()
{
$L__BB0_1:
	ex2.approx.f32 %r1, %r1;
$L__BB0_2:
	wgmma.mma_async.sync %r1;
	@%p1 bra 	$L__BB0_2;
	ex2.approx.f32 %r1, %r1;
	@!%p2 bra 	$L__BB0_1;
	ret;
}
"""
    outer, inner = ptx_loops.loops(ptx)
    assert (outer.depth, outer["ex2"], outer["mma"], inner.depth, inner["ex2"], inner["mma"]) == (0, 2, 0, 1, 0, 1)
