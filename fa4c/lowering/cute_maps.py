"""The body of a map, for one element or for two neighbours of a row at a time.

Where the target has packed fp32 instructions (`fp32_packed` = 2) and a thread's elements r and r + 1 are neighbours of a row, additions,
multiplications and FMAs of the two are one instruction (PTX ISA: add, sub, mul, fma of .f32x2, sm_100 and later), and so is the conversion
to 16 bits. All else is done for one after the other.
"""

from __future__ import annotations

import contextlib

from ..ir import tile
from ..ir.mlir import ir
from ..ir.tile_base import nested_in
from ..passes.op_costs import joins_a_sum
from .scalar_source import dsl_type

_PACKED = {
    "arith.addf": "add_pair", "arith.subf": "sub_pair", "arith.mulf": "mul_pair", "math.fma": "fma_pair", "math.tanh": "tanh_pair",
}
_HALVES = ("bf16", "f16")


class MapRules:
    """Mixed into the emitter of a kernel."""

    spread: dict = {}

    def packs(self, body, count: int) -> bool:
        """Whether `count` elements of a thread, neighbours of a row, are computed two at a time."""
        flat = all(not len(op.operation.regions) for op in body.operations)
        return self.packed == 2 and self.layout.neighbours and count % 2 == 0 and flat

    def map_elements(self, body, elements: list[str], texts: dict, *stores) -> None:
        """Emit the body for one or two elements; `texts`: argument -> its value's text for each. `store(element, result)` emits what becomes
        of a result, `store(element, a, b)` of two that are f32 still and that one instruction converts; one `store` for each result."""
        pairs = {}  # value -> its two names, where they differ
        used = uses(body)
        columns = texts[list(body.arguments)[-1]]
        for argument, each in texts.items():
            if argument not in used:
                continue
            if len(set(each)) == 1:
                self._assign(argument, each[0], "x")
            else:
                pairs[argument] = [self._named(text) for text in each]
        *operations, last = body.operations
        fused = {op.operation.results[0]: op for op in operations if joins_a_sum(op, packed=True)} if len(elements) == 2 else {}
        results = list(last.operation.operands)
        rounded = {result: _converted(result) if len(elements) == 2 else None for result in results}
        for op in operations:
            if op.operation.results[0] in self.spread:
                held = self.spread[op.operation.results[0]]
                if held:
                    pairs[op.operation.results[0]] = [self._named(f"cute.arch.shuffle_sync({held}[{c} // 32], {c} % 32)") for c in columns]
                continue
            if op.operation.results[0] in fused or rounded.get(op.operation.results[0]) is not None:
                continue
            products = [fused[operand] for operand in op.operation.operands if operand in fused]
            if any(v in pairs for inner in [op, *products] for v in inner.operation.operands):
                pairs[op.operation.results[0]] = self._pair(op, pairs, products, elements)
            else:
                self.element = elements[0]
                for inner in [*products, op]:
                    self.emit(inner)
        for result, store in zip(results, stores, strict=True):
            self._stored(result, rounded[result], elements, pairs, store)

    def _stored(self, result, rounded, elements: list[str], pairs: dict, store) -> None:
        if rounded in pairs:
            store(elements[0], *pairs[rounded])
            return
        if rounded is not None:  # the same for both
            self.emit(result.owner.opview)
        for number, element in enumerate(elements):
            store(element, pairs[result][number] if result in pairs else self.operand(result))

    @contextlib.contextmanager
    def spread_loads(self, body, width: int):
        """Of loads from global memory that depend on the column alone, each lane does those of its own columns, and the warp passes them
        round: one load for 32 elements of a thread's row, whose address and value would take registers each.

        While it lasts `spread` holds, of each operation that is not done an element at a time, the fragment of what was loaded; "" of
        those that led to it.
        """
        self.spread = {}
        if self.layout.whole_rows:
            loads = _loads_by_column(body)
            steps = [op for op in body.operations if any(op in slice_ for slice_ in loads.values())]
            for load, slice_ in loads.items():
                kind, parts = load.operation.results[0].type, -(-width // 32)
                held = self.names.fresh("rHeld")
                self.header(f"{held} = cute.make_rmem_tensor({parts}, {dsl_type(kind)})  # of {width} columns, those of a lane")
                with self.unrolled("part", parts) as part:
                    self.values[list(body.arguments)[-1]] = f"({part} * 32 + t % 32)"
                    for op in [*slice_, load]:
                        self.emit(op)
                    self.top(f"{held}[{part}] = {self.operand(load.operation.results[0])}")
                self.spread[load.operation.results[0]] = held
            for op in reversed(steps):
                if all(use.owner.results and use.owner.results[0] in self.spread for use in op.operation.results[0].uses):
                    self.spread[op.operation.results[0]] = ""
        yield
        self.spread = {}

    def _named(self, text: str) -> str:
        name = self.names.fresh("x")
        self.top(f"{name} = {text}")
        return name

    def _pair(self, op, pairs: dict, products: list, elements: list[str]) -> list[str]:
        names = [self.names.fresh("v"), self.names.fresh("v")]

        def both(value) -> str:
            return f"({', '.join(pairs[value] if value in pairs else [self.operand(value)] * 2)})"

        function, operands = _PACKED.get(op.operation.name), list(op.operation.operands)
        if function and isinstance(op.operation.results[0].type, ir.F32Type):
            for product in products:
                function = "fma_pair"
                operands = [*product.operation.operands, *(v for v in operands if v != product.operation.results[0])]
            self.top(f"{names[0]}, {names[1]} = {function}({', '.join(map(both, operands))})")
        elif isinstance(op, tile.Exp2Op) and op.emulated.value:
            self.top(f"{names[0]}, {names[1]} = exp2_pair({both(op.x)}, {self.layout.column_group(elements[0])} % 16 < {op.emulated.value})")
        else:
            for number, element in enumerate(elements):
                self.element = element
                self.values.update((value, pairs[value][number]) for value in operands if value in pairs)
                self.emit(op)
                names[number] = self.operand(op.operation.results[0])
        return names

    def store_halves(self, target: str, element: str, a: str, b: str) -> None:
        """Two neighbouring 16-bit elements of a fragment."""
        self.top(f"store_halves({target}, {element}, {a}, {b})")


def _loads_by_column(body) -> dict:
    """Load of 32 bits that depends on the column and on no other argument -> what leads to its coordinates, in order."""
    *others, column = body.arguments
    operations, found = list(body.operations), {}
    if any(len(op.operation.regions) for op in operations):
        return found
    for n, load in enumerate(operations):
        if isinstance(load, tile.LoadElementOp) and str(load.operation.results[0].type) in ("i32", "f32"):
            needed, slice_ = set(load.operation.operands), []
            for op in reversed(operations[:n]):
                if needed & set(op.operation.results):
                    needed.update(op.operation.operands)
                    slice_.insert(0, op)
            if column in needed and not needed & set(others):
                found[load] = slice_
    return found


def _converted(value):
    """The f32 that a result was converted to 16 bits from; None if it was not."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.truncf" or str(value.type) not in _HALVES:
        return None
    return owner.operands[0] if isinstance(owner.operands[0].type, ir.F32Type) and len(list(value.uses)) == 1 else None


def uses(block) -> set:
    """All values that the operations of a block take."""
    return {value for op in nested_in(block) for value in op.operation.operands}
