"""Which register tiles share a fragment: what must be summed in place is, and no read finds another value than it means."""

import pytest

from fa4c.ir import tile
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.ir.mlir import ir
from fa4c.passes import fragments
from fa4c.passes.warp_specialize import is_compute

TEMPLATE = """
!s = tensor<128x8xf32, #tile.reg>
module {{
"tile.kernel"() ({{
^bb0(%n: index):
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = "tile.splat"() {{value = 0.0 : f32}} : () -> !s
  %one = "tile.splat"() {{value = 1.0 : f32}} : () -> !s
{body}
}}) {{sym_name = "k"}} : () -> ()
}}
"""
ADD = """"tile.map"({a}, {b}) ({{
  ^bb0(%e: f32, %f: f32, %row: index, %col: index):
    %t = arith.addf %e, %f : f32
    "tile.yield"(%t) : (f32) -> ()
  }}) {{operandSegmentSizes = array<i32: 2, 0>{more}}} : (!s, !s) -> !s"""


def add(a: str, b: str, more: str = "") -> str:
    return ADD.format(a=a, b=b, more=f", {more}" if more else "")


def homes(body: str):
    """name of a result's position -> fragment, for the maps of a kernel in text order; also the splats."""
    context = new_context()
    with context, ir.Location.unknown():
        module = parse_module(TEMPLATE.format(body=body), "k.mlir", context)
        kernel = next(op for op in module.body.operations if isinstance(op, tile.KernelOp))
        return Found(module, kernel, fragments.assign(kernel, is_compute))


class Found:
    def __init__(self, module, kernel, assigned):
        self.module, self.assigned = module, assigned
        self.values = [r for op in self._walk(kernel.body.blocks[0]) for r in op.operation.results if fragments.is_register(r)]

    def _walk(self, block):
        for op in block.operations:
            yield op
            if op.operation.name == "scf.for":
                yield from self._walk(op.regions[0].blocks[0])

    def same(self, i: int, j: int) -> bool:
        return self.assigned.same(self.values[i], self.values[j])

    def count(self) -> int:
        return len(set(self.assigned.home.values()))


def test_a_map_overwrites_an_input_that_nobody_reads_again():
    found = homes(f"  %a = {add('%zero', '%one')}\n  %b = {add('%a', '%one')}")
    assert found.same(2, 0)
    assert found.same(3, 2)
    assert found.count() == 2


def test_an_input_that_is_read_again_keeps_its_fragment():
    found = homes(f"  %a = {add('%zero', '%one')}\n  %b = {add('%zero', '%a')}")
    assert not found.same(2, 0)


LOOP = """  %r = scf.for %i = %c0 to %n step %c1 iter_args(%acc = %zero) -> (!s) {{
{body}
    scf.yield %next : !s
  }}"""


def test_what_a_loop_carries_stays_in_place():
    found = homes(LOOP.format(body=f"    %next = {add('%acc', '%one')}"))
    assert found.same(0, 2)  # the initial value and the loop's result
    assert found.same(2, 3)  # and what the body computes
    assert found.count() == 2


def test_an_initial_value_that_is_read_after_the_loop_is_copied():
    found = homes(LOOP.format(body=f"    %next = {add('%acc', '%one')}") + f"\n  %b = {add('%r', '%zero')}")
    assert not found.same(0, 2)


def test_a_read_of_the_old_value_after_the_new_one_keeps_them_apart():
    body = f"    %next = {add('%acc', '%one')}\n    %late = {add('%acc', '%next')}"
    found = homes(LOOP.format(body=body))
    assert not found.same(2, 3)


def test_a_schedule_that_reads_what_is_overwritten_is_refused():
    """The producer runs once more before the reader of its last value."""
    body = f"    %x = {add('%one', '%one', 'stage = 0, order = 0')}\n    %next = {add('%acc', '%x', 'stage = 1, order = 1')}"
    with pytest.raises(Diagnostic, match="needs two copies of a register tile"):
        homes(LOOP.format(body=body))


def test_the_same_schedule_with_the_reader_first_is_accepted():
    body = f"    %x = {add('%one', '%one', 'stage = 0, order = 1')}\n    %next = {add('%acc', '%x', 'stage = 1, order = 0')}"
    homes(LOOP.format(body=body))


def test_a_read_before_the_value_is_computed_is_refused():
    body = f"    %x = {add('%one', '%one', 'stage = 0, order = 1')}\n    %next = {add('%acc', '%x', 'stage = 0, order = 0')}"
    with pytest.raises(Diagnostic, match="before it was computed"):
        homes(LOOP.format(body=body))
