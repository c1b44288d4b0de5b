"""What changed loops visit, and in what order: a nest over h and i writes down the two as digits of a number that it carries."""

import pytest

from fa4c.ir import scalar
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.mlir import ir
from fa4c.passes import loop_nest

NEST = """
%c0 = arith.constant 0 : index
%c1 = arith.constant 1 : index
%c10 = arith.constant 10 : index
%from = arith.constant FROM : index
%end = arith.constant END : index
%heads = arith.constant HEADS : index
%r = scf.for %h = %c0 to %heads step %c1 iter_args(%a = %c1) -> (index) {
  BEFORE
  %s = scf.for %i = %from to TO step STEP iter_args(%b = %a) -> (index) {
    %x = arith.muli %b, %c10 : index
    %y = arith.addi %x, %h : index
    %z = arith.muli %y, %c10 : index
    %w = arith.addi %z, %i : index
    scf.yield %w : index
  }
  scf.yield RESULT : index
}
"""


def nest(start=0, end=3, heads=2, **words) -> str:
    words = {"FROM": start, "END": end, "HEADS": heads, "TO": "%end", "STEP": "%c1", "BEFORE": "", "RESULT": "%s", **words}
    text = NEST
    for word, meaning in words.items():
        text = text.replace(word, str(meaning))
    return text


def ran(block, known: dict) -> list:
    """What the block yields, if it does: its loops and scalar operations, executed."""
    for op in block.operations:
        operands = [known[v] for v in op.operation.operands]
        if op.operation.name == "scf.yield":
            return operands
        if op.operation.name == "scf.for":
            (lower, upper, step), carried, body = operands[:3], operands[3:], op.regions[0].blocks[0]
            for index in range(int(lower), int(upper), int(step)):
                carried = ran(body, known | dict(zip(body.arguments, [index, *carried], strict=True)))
            known |= dict(zip(op.operation.results, carried, strict=True))
        else:
            known[op.operation.results[0]] = scalar.apply(op, operands)[0]
    return [known[op.operation.results[0]]]


def visits(text: str, change=None) -> list[tuple[int, int]]:
    """(h, i) of each visit, in order; `change` gets the two loops."""
    with new_context() as context, ir.Location.unknown():
        module = parse_module(text, "loops.mlir", context)
        outer = list(module.body.operations)[-1]
        inner = next(op for op in outer.body.operations if op.operation.name == "scf.for")
        if change is not None:
            change(outer, inner)
            assert module.operation.verify()
        digits = str(ran(module.body, {})[0])[1:]
    return [(int(digits[n]), int(digits[n + 1])) for n in range(0, len(digits), 2)]


@pytest.mark.parametrize("start", [0, 2])
def test_walked_backwards(start):
    text, blocks = nest(start, 4), range(start, 4)
    assert visits(text) == [(h, i) for h in range(2) for i in blocks]
    assert visits(text, lambda _, inner: loop_nest.walk_backwards(inner)) == [(h, i) for h in range(2) for i in reversed(blocks)]


@pytest.mark.parametrize(("heads", "end"), [(2, 3), (3, 1), (1, 3), (2, 0), (0, 3)])
def test_swapped(heads, end):
    """All heads for one i, then for the next; a single head as it was."""
    assert visits(nest(0, end, heads), loop_nest.swap) == [(h, i) for i in range(end) for h in range(heads)]
    assert visits(nest(0, end, heads), lambda outer, _: loop_nest.walk_backwards(outer)) == [
        (h, i) for h in reversed(range(heads)) for i in range(end)]


@pytest.mark.parametrize(("words", "allowed"), [
    ({}, True),
    ({"BEFORE": "%more = arith.addi %end, %h : index"}, True),  # scalars may stand before it
    ({"BEFORE": "%more = arith.addi %end, %h : index", "TO": "%more"}, False),  # other trips for each head
    ({"FROM": 1}, False),
    ({"STEP": "%end"}, False),
    ({"RESULT": "%a"}, False),  # what the inner loop carries out is dropped
    ({"BEFORE": '%t = "tile.splat"() {value = 0.0 : f32} : () -> tensor<64xf32, #tile.reg>'}, False),
])  # fmt: skip
def test_what_may_be_swapped(words, allowed):
    with new_context() as context:
        module = parse_module(nest(**words), "loops.mlir", context)
        outer = list(module.body.operations)[-1]
        assert loop_nest.can_swap(outer, list(outer.body.operations)[-2]) == allowed


LOOP = """
%c0 = arith.constant 0 : index
%c1 = arith.constant 1 : index
%zeros = "tile.splat"() {value = 0.0 : f32} : () -> tensor<64xf32, #tile.reg>
%x = "tile.splat"() {value = 2.0 : f32} : () -> tensor<64x64xf32, #tile.reg>
%r = scf.for %i = %c0 to %c1 step %c1 iter_args(%old = %zeros) -> (tensor<64xf32, #tile.reg>) {
  %new = "tile.reduce"(%x, FROM) {kind = "KIND"} : (tensor<64x64xf32, #tile.reg>, tensor<64xf32, #tile.reg>) -> tensor<64xf32, #tile.reg>
  scf.yield YIELD : tensor<64xf32, #tile.reg>
}
"""


@pytest.mark.parametrize(("kind", "start", "last", "sums"), [
    ("sum", "%old", "%new", True), ("max", "%old", "%new", False), ("sum", "%zeros", "%new", False), ("sum", "%old", "%old", False),
])  # fmt: skip
def test_only_sums_may_be_walked_in_any_order(kind, start, last, sums):
    """Whatever else a loop carries may depend on the order of its iterations."""
    with new_context() as context:
        text = LOOP.replace("FROM", start).replace("YIELD", last).replace("KIND", kind)
        module = parse_module(text, "loop.mlir", context)
        assert loop_nest.carries_sums(list(module.body.operations)[-1]) == sums
