"""What `warp-specialize` refuses, and what it decides from the program: warpgroups, registers, bytes, descriptors."""

import re

import pytest

from fa4c import targets
from fa4c.ir import warp
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.mlir import ir
from fa4c.passes.registry import run_pipeline

# Row sums of a @ b^T; what a case changes is marked by its value.
PROGRAM = """
!a = tensor<?x64xbf16, #tile.gmem>
!sa = tensor<128x64xbf16, #tile.smem>
!sb = tensor<128x64xbf16, #tile.smem>
!v = tensor<128xf32, #tile.reg>
!p = tensor<128x128xf32, #tile.reg>
!s = tensor<128x4xf32, #tile.reg>
module {
"tile.kernel"() ({
^bb0(%a: !a, %b: !a, %c: tensor<?xf32, #tile.gmem>):
  %x, %y, %z = "tile.program_id"() : () -> (index, index, index)
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c128 = arith.constant 128 : index
  %m0 = arith.muli %x, %c128 : index
  %n = "tile.dim"(%b) {axis = 0} : (!a) -> index
  %nb = arith.ceildivsi %n, %c128 : index
  %sa = "tile.load"(%a, %m0, %c0) {dims = array<i64: 0, 1>} : (!a, index, index) -> !sa
  %zero = "tile.splat"() {value = 0.0 : f32} : () -> !s
  %sum = scf.for %i = %c0 to %nb step %c1 iter_args(%s = %zero) -> (!s) {
    %n0 = arith.muli %i, %c128 : index
    %sb = "tile.load"(%b, %n0, %c0) {dims = array<i64: 0, 1>, buffers = 2} : (!a, index, index) -> !sb
    %p = "tile.mma"(%sa, %sb) {transpose_b = true} : (!sa, !sb) -> !p
    %s1 = "tile.reduce"(%p, %s) {kind = "sum"} : (!p, !s) -> !s
    scf.yield %s1 : !s
  }
  %r = "tile.reduce"(%sum) {kind = "sum"} : (!s) -> !v
  "tile.store"(%r, %c, %m0) {dims = array<i64: 0>} : (!v, tensor<?xf32, #tile.gmem>, index) -> ()
}) {sym_name = "row_sums"} : () -> ()
}
"""


def specialized(text: str):
    """The `warp.kernel` of a program."""
    context = new_context()
    with context, ir.Location.unknown():
        module = parse_module(text, "program.mlir", context)
        run_pipeline(module, "warp-specialize")
        return module, next(op for op in module.body.operations if isinstance(op, warp.KernelOp))


def with_rows(rows: int) -> str:
    return re.sub(r"^(!(sa|v|p|s) = tensor<)128", rf"\g<1>{rows}", PROGRAM, flags=re.MULTILINE)


REFUSED = {
    "a scalar is carried": (
        PROGRAM.replace("iter_args(%s = %zero) -> (!s) {", "iter_args(%s = %zero, %k = %c0) -> (!s, index) {")
        .replace("%sum = scf", "%sum:2 = scf")
        .replace("scf.yield %s1 : !s", "scf.yield %s1, %n0 : !s, index")
        .replace('"tile.reduce"(%sum)', '"tile.reduce"(%sum#0)'),
        "'scf.for' carries a index from one iteration to the next",
    ),
    "rows that are no whole warpgroups": (with_rows(96), "'tile.kernel' has register tiles of 96 rows"),
    "rows of two sizes": (
        PROGRAM.replace('  %r = "tile', '  %other = "tile.splat"() {value = 0.0 : f32} : () -> tensor<192xf32, #tile.reg>\n  %r = "tile'),
        "'tile.kernel' has register tiles of 128, 192 rows",
    ),
    "nothing to compute": (
        '"tile.kernel"() ({\n^bb0(%a: tensor<?x64xbf16, #tile.gmem>):\n  %c0 = arith.constant 0 : index\n  %sa = "tile.load"(%a, %c0, %c0) '
        '{dims = array<i64: 0, 1>} : (tensor<?x64xbf16, #tile.gmem>, index, index) -> tensor<128x64xbf16, #tile.smem>\n}) {sym_name = "k"} : () -> ()\n',  # noqa: E501
        "'tile.kernel' computes nothing in registers",
    ),
    "more shared memory than there is": (
        PROGRAM.replace("buffers = 2", "buffers = 14"),
        "needs 246784 bytes of shared memory, but a CTA has 232448",
    ),
    "loads that take turns, for warpgroups": (
        PROGRAM.replace("buffers = 2", "turns = 0").replace(
            "    %p = ",
            '    %more = "tile.load"(%b, %c0, %c0) {dims = array<i64: 0, 1>, turns = 0} : (!a, index, index) -> !sb\n    %p = '),
        "'tile.load' takes turns with the load of .* in one buffer, which warpgroups read",
    ),
    "more threads than there are": (with_rows(512), "needs 1152 threads"),
    "boxes taller than TMA's": (with_rows(320), "moves 320 rows"),
    "a schedule that needs two copies of S": (
        PROGRAM.replace('(%p, %s) {kind = "sum"}', '(%p, %s) {kind = "sum", stage = 1, order = 9}'),
        "'tile.reduce' needs two copies of a register tile",
    ),
    "stages of a loop that holds a loop": (
        PROGRAM.replace(
            "    %p = ",
            '    scf.for %j = %c0 to %n0 step %c1 {\n      %e = "tile.splat"() {value = 1.0 : f32} : () -> !s\n    }\n    %p = ',
        ).replace('(%p, %s) {kind = "sum"}', '(%p, %s) {kind = "sum", stage = 1}'),
        "'scf.for' pipelines a loop that holds another loop|needs two copies|is read before it was computed",
    ),
    "rows narrower than a swizzle": (
        PROGRAM.replace("!sb = tensor<128x64", "!sb = tensor<128x8")
        .replace("(%sa, %sb)", "(%sa, %sa)")
        .replace("(!sa, !sb)", "(!sa, !sa)"),
        "'tile.load' has rows of 16 bytes in shared memory",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    text, message = REFUSED[name]
    with pytest.raises(Diagnostic) as caught:
        specialized(text)
    said = caught.value.text()
    assert re.match(r"^program.mlir:\d+:\d+: error: ", said), said
    assert re.search(message, said), said
    assert "note: why: " in said


def test_the_program_itself_is_accepted():
    specialized(PROGRAM)


# -- decisions ---------------------------------------------------------------------------------------------------------------------------


def role(kernel, name: str):
    return next(op for op in kernel.body.blocks[0].operations if isinstance(op, warp.RoleOp) and op.sym_name.value == name)


@pytest.mark.parametrize(("rows", "threads", "load", "compute"), [(64, 256, 248, 248), (128, 384, 24, 240), (192, 512, 32, 160)])
def test_a_warpgroup_for_64_rows(rows, threads, load, compute):
    """Registers: what the load warpgroup gives up goes to the compute warpgroups, in steps of 8, and no more than 65536 are given. One
    compute warpgroup has all that a thread may have at launch: nothing is given up, and a CTA takes what ptxas needs."""
    module, kernel = specialized(with_rows(rows))
    assert kernel.threads.value == threads
    assert (role(kernel, "load").registers.value, role(kernel, "compute").registers.value) == (load, compute)
    assert 128 * load + (threads - 128) * compute <= targets.of(module).registers
    assert list(role(kernel, "compute").warps) == list(range(4, threads // 32))


def test_the_target_decides():
    """Half the registers, half the budget; fewer for a thread, and that many; less shared memory, and the program does not fit."""
    with targets.override(targets.DEFAULT, registers=32768):
        module, kernel = specialized(PROGRAM)
        assert (role(kernel, "compute").registers.value, targets.of(module).registers) == (112, 32768)
    with targets.override(targets.DEFAULT, max_registers_per_thread=207):
        module, kernel = specialized(PROGRAM)
        assert role(kernel, "compute").registers.value == 192
    with targets.override(targets.DEFAULT, smem_bytes=40000), pytest.raises(Diagnostic, match="but a CTA has 40000"):
        specialized(PROGRAM)


def test_one_descriptor_for_equal_boxes():
    """Both loads of one tensor share it; another box gets its own."""
    _, kernel = specialized(PROGRAM.replace('"tile.load"(%b, %n0', '"tile.load"(%a, %n0'))
    assert sum(isinstance(op, warp.TensorMapOp) for op in kernel.body.blocks[0].operations) == 1
    _, kernel = specialized(PROGRAM)
    assert sum(isinstance(op, warp.TensorMapOp) for op in kernel.body.blocks[0].operations) == 2


def test_buffers_do_not_overlap():
    _, kernel = specialized(PROGRAM)
    buffers = [op for op in kernel.body.blocks[0].operations if isinstance(op, warp.BufferOp)]
    ends = [op.offset.value + 2 * op.out.type.shape[0] * op.out.type.shape[1] * op.out.type.shape[2] for op in buffers]
    assert [op.offset.value for op in buffers] == [1024, *ends[:-1]]
    assert kernel.smem_bytes.value == ends[-1]
