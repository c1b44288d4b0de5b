"""How many clocks a tile operation keeps which part of an SM busy: closed formulas over tile shapes, region contents and the target.

    mma      max(2 M N K / mma_flops, operand bytes / smem_bytes_per_clk): each warpgroup reads all of b, and its rows of a if a is in smem;
             warpgroups that share 64 rows read all of a, and their columns of b
    map ...  max over fp32, alu and mufu of operations x elements / lanes, and all instructions / issue slots: independent elements keep
             the units busy side by side; where fp32 instructions are packed, each is two operations
    copies   bytes / smem_bytes_per_clk
    adds     bytes / smem_bytes_per_clk, like stores from registers: what the L2 does with them is waited for by nobody

One value a row is held, and computed, by the four lanes that share the row of an accumulator in registers. What a map with `cond` does
is not counted, only its branch: such maps are there for the few blocks at a boundary, or the few times a maximum grows.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from ..ir import tile, tile_pair
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import ir
from ..ir.tile import space_of
from ._tile_map import operations_in

LANES_A_WARP = 32
COPY_LATENCY = 600  # clocks from a copy's issue until its first bytes arrive from L2; a guess, not measured

# Instructions of one scalar operation, by unit. bf16 conversions pack two elements (F2FP). exp, log, pow: one multiply around ex2/lg2.
_ONE = {
    "fp32": {"arith.addf", "arith.subf", "arith.mulf", "arith.negf", "math.fma"},
    "mufu": {"math.exp2", "math.log2", "math.rsqrt", "math.sin", "math.cos"},
}
_SEVERAL = {
    "math.exp": {"mufu": 1, "fp32": 1}, "math.log": {"mufu": 1, "fp32": 1}, "math.powf": {"mufu": 2, "fp32": 1},
    "math.tanh": {"mufu": 2, "fp32": 3},  # emitted as 1 - 2 / (exp2(c x) + 1)
    "math.sqrt": {"mufu": 1, "fp32": 1}, "arith.divf": {"mufu": 1, "fp32": 1}, "math.erf": {"mufu": 1, "fp32": 12},
    "arith.truncf": {"alu": 0.5}, "arith.constant": {}, "arith.index_cast": {}, "arith.index_castui": {}, "tile.yield": {},
    "tile.load_element": {"alu": 4},
}
_EMULATED_EXP2 = {"fp32": 6, "alu": 2}  # range reduction, polynomial, exponent


@dataclass(frozen=True)
class Cost:
    """`clocks` on `unit`; `latency` clocks after its start the result is there. `issue`: clocks of the stream that starts it."""

    unit: str
    clocks: int
    issue: int
    latency: int
    asynchronous: bool = False


def cost(op, target, *, whole: bool = False) -> Cost:
    """Of a scheduled tile operation; `whole`: of what a condition guards too."""
    if whole and isinstance(op, tile.MapOp):
        return _elementwise(map_work(op, target), target)
    rule = _RULES.get(type(op))
    if rule is None:
        raise op_diagnostic(op, "has no cost, so that it cannot be scheduled", fix="leave out tile-pipeline")
    return rule(op, target)


def _mma(op, target) -> Cost:
    by_columns = _shares(op, target)[1]
    clocks = _clocks(product_clocks(op, target), shared_bytes(op, target) / target.smem_bytes_per_clk)
    n = op.out.type.shape[1] // by_columns
    issue = -(-_depth(op) // target.mma.k) * -(-n // target.mma.n_max)
    return Cost("tensor", clocks, issue, clocks, asynchronous=True)


def _depth(op) -> int:
    return op.a.type.shape[0 if op.transpose_a.value else 1]


def _shares(op, target) -> tuple[int, int]:
    """Among how many instructions, or warpgroups, a product is shared by its rows, and by its columns."""
    by_rows = -(-op.out.type.shape[0] // target.mma.m)
    return by_rows, max(1, warpgroups(op, target) // by_rows)


def product_clocks(op, target) -> float:
    """Clocks of the tensor cores of one SM; a pair of CTAs has those of two, for the rows of two."""
    m, n = op.out.type.shape  # folded or not
    return 2 * m * n * _depth(op) / target.mma_flops


def shared_bytes(op, target) -> int:
    """Bytes of shared memory that an operation reads or writes, copies from global memory left out: operands of products, what threads
    write, what copies to global memory read. Of operand b a pair's CTA has, and reads, half."""
    if isinstance(op, tile.MmaOp):
        by_rows, by_columns = _shares(op, target)
        return _bytes(op.b.type) * by_rows + (_bytes(op.a.type) * by_columns if space_of(op.a.type) == "smem" else 0)
    if isinstance(op, (tile.ToSharedOp, tile_pair.ExchangeOp)):
        return _bytes(op.x.type)
    if isinstance(op, (tile.StoreOp, tile.GlobalAddOp)):
        value = op.tile if isinstance(op, tile.StoreOp) else op.x
        return _bytes(value.type) if space_of(value.type) == "smem" else 0
    return 0


def warpgroups(op, target) -> int:
    """Of the kernel: the tile with the most rows gives each 64 of them."""
    if target.mma.accumulator != "reg":
        return 1
    kernel = op.operation.parent
    while kernel.name not in ("tile.kernel", "builtin.module"):
        kernel = kernel.parent
    rows = [r.type.shape[0] for inner in operations_in(kernel) for r in inner.operation.results if space_of(r.type) == "reg"]
    return -(-max(rows) // target.mma.m)


def _load(op, target) -> Cost:
    clocks = _clocks(_bytes(op.out.type) / target.smem_bytes_per_clk)
    return Cost("copy", clocks, 1, clocks + COPY_LATENCY, asynchronous=True)


def _store(op, target) -> Cost:
    if space_of(op.tile.type) == "smem":
        clocks = _clocks(_bytes(op.tile.type) / target.smem_bytes_per_clk)
        return Cost("copy", clocks, 1, clocks, asynchronous=True)
    return _elementwise({"alu": _elements(op.tile.type, target)}, target)


def _count(op, target) -> Cost:
    """How long others take is not known here."""
    return Cost("global", 1, 1, 1)


def _global_add(op, target) -> Cost:
    """A row vector is added up across its warp's rows first: three exchanges and additions."""
    if space_of(op.x.type) == "smem":
        clocks = _clocks(_bytes(op.x.type) / target.smem_bytes_per_clk)
        return Cost("copy", clocks, 1, clocks, asynchronous=True)
    if op.staged is not None:  # written, and read by a copy that adds
        clocks = _clocks(2 * _bytes(op.x.type) / target.smem_bytes_per_clk)
        return Cost("smem", clocks, clocks, clocks)
    if op.x.type.rank == 1:
        return _elementwise({"alu": 3 * row_elements(op.x.type, target), "fp32": 4 * row_elements(op.x.type, target)}, target)
    clocks = _clocks(_bytes(op.x.type) / target.smem_bytes_per_clk)
    return Cost("global", clocks, clocks, clocks)


def _shared_copy(op, target) -> Cost:
    """Between registers and shared memory, either way."""
    clocks = _clocks(_bytes(op.x.type) / target.smem_bytes_per_clk)
    return Cost("smem", clocks, clocks, clocks)


def _exchange(op, target) -> Cost:
    """Half of the tile is written here, half to the peer, whose half comes in meanwhile."""
    clocks = _clocks(_bytes(op.x.type) / target.smem_bytes_per_clk)
    return Cost("smem", clocks, clocks, clocks + target.dsmem_exchange_clk)


def unit_work(op, target) -> Counter:
    """Operations of elementwise work by unit, one for each lane; none for what is not elementwise."""
    rule = _WORK.get(type(op))
    return rule(op, target) if rule is not None else Counter()


def _map_work(op, target) -> Counter:
    return map_work(op, target) if op.cond is None else Counter({"alu": LANES_A_WARP})


def map_work(op, target) -> Counter:
    """Operations of a map where it runs, whatever its `cond`; by unit, one for each lane."""
    each, row = _elements(op.out.type, target), row_elements(op.out.type, target)
    inputs = list(op.inputs)
    work = region_work(op.body.blocks[0], inputs, op.out.type, each, row, target)
    for value in inputs:
        if space_of(value.type) == "smem":  # a row of column values: a lane reads one for the two rows that it holds, two at a time
            work["alu"] += each // 4
    return work


def region_work(block, inputs, kind, each: int, row: int, target, without=()) -> Counter:
    """Operations of a map's region for a result of type `kind`, by unit: `each` times what depends on an element, `row` times what
    depends on rows alone, nothing for what is the same everywhere, nor for the operations `without`. One for each lane.
    """
    work: Counter = Counter()
    packed = target.fp32_packed == 2 and kind.rank == 2 and all(not len(inner.operation.regions) for inner in block.operations)
    arguments = list(block.arguments)
    wide = {a for a, value in zip(arguments, inputs, strict=False) if value.type.rank >= kind.rank} | {arguments[-1]}
    narrow = set(arguments) - wide
    for inner in block.operations:
        operation = inner.operation
        operands = set(operation.operands)
        times = each if operands & wide else row if operands & narrow else 0
        (wide if times == each else narrow if times else set()).update(operation.results)
        for unit, count in _instructions(inner, kind, packed).items() if operation not in without else ():
            work[unit] += count * times
    return work


def _reduce_work(op, target) -> Counter:
    results = row_elements(op.out.type, target) if op.out.type.rank == 1 else 0
    return reduce_work(op.kind.value, _elements(op.x.type, target), results, op.init is not None, target.mma.lanes_a_row > 1, target)


def reduce_work(kind: str, elements: int, rows: int, accumulate: bool, shared: bool, target) -> Counter:
    """Operations of a reduction, by unit, one for each lane. `rows`: lanes times row values that are complete behind it; `shared`: of a row
    among four lanes."""
    unit = {"max": "alu", "sum": "fp32"}[kind]
    work = Counter({unit: elements // (target.max_inputs - 1) if kind == "max" else elements if accumulate else elements - rows})
    if shared:  # two exchanges with the other lanes of the row, and what combines them
        work["alu"] += 2 * rows
        work[unit] += 2 * rows
    return work


def _factor_work(op, target) -> Counter:
    rows = row_elements(op.out.type, target)
    return Counter({"fp32": 2 * rows, "alu": 2 * rows, "mufu": rows})


def _vote_work(op, target) -> Counter:
    return Counter({"alu": row_elements(op.out.type, target)})


def _elementwise_cost(op, target) -> Cost:
    return _elementwise(unit_work(op, target), target)


_WORK = {
    tile.MapOp: _map_work, tile.MapBothOp: _map_work, tile.ReduceOp: _reduce_work, tile.RescaleFactorOp: _factor_work,
    tile.VoteAnyOp: _vote_work,
}
_RULES = {
    tile.MmaOp: _mma, tile.LoadOp: _load, tile.StoreOp: _store, tile.GlobalAddOp: _global_add,
    tile.WaitCountOp: _count, tile.AddCountOp: _count, tile.ToSharedOp: _shared_copy,
    tile.FromSharedOp: _shared_copy, tile_pair.ExchangeOp: _exchange, **dict.fromkeys(_WORK, _elementwise_cost),
}


def _elementwise(work, target) -> Cost:
    clocks = unit_clocks(work, target)
    unit = max((u for u in clocks if u != "issue"), key=clocks.get)
    whole = _clocks(*clocks.values())
    return Cost(unit, whole, whole, whole)


def unit_clocks(work, target) -> dict[str, float]:
    """Clocks that work keeps each unit, and the issue slots, of an SM busy."""
    lanes = {"fp32": target.fp32, "alu": target.alu, "mufu": target.mufu}
    instructions = sum(work.values()) - work.get("fp32", 0) * (1 - 1 / target.fp32_packed)
    slots = target.warps_per_warpgroup * LANES_A_WARP
    return {**{unit: work.get(unit, 0) / lanes[unit] for unit in lanes}, "issue": instructions / slots}


def emulated_share(emulated: int, columns: int) -> float:
    """Of a row's exponentials, computed in groups of 8 columns, of which `emulated` in 16 are on the FMA units."""
    groups = max(1, columns // 8)
    return sum(group % 16 < emulated for group in range(groups)) / groups


def emulation_work(share: float) -> dict[str, float]:
    """Operations of one exponential, on the average, where a share of them is emulated."""
    return {"mufu": 1 - share, **{unit: count * share for unit, count in _EMULATED_EXP2.items()}}


def _instructions(op, kind=None, packed: bool = False) -> dict[str, float]:
    """Of one scalar operation for one element of a tile of type `kind`; `packed`: done for two elements at a time."""
    name = op.operation.name
    if name == "tile.exp2":
        return emulation_work(emulated_share(op.emulated.value, kind.shape[1] if kind is not None and kind.rank == 2 else 128))
    if joins_a_sum(op, packed):
        return {}
    for unit, names in _ONE.items():
        if name in names:
            return {unit: 1}
    return _SEVERAL.get(name, {"alu": 1})


def special_work(block) -> int:
    """Instructions of the special-function unit in a region, for one element."""
    return int(sum(_instructions(op).get("mufu", 0) for op in block.operations))


def joins_a_sum(op, packed: bool) -> bool:
    """Whether a product becomes its only user's FMA: the first product of a sum does; of a difference too, but for a packed instruction,
    which changes no signs."""
    operation = op.operation
    if operation.name != "arith.mulf" or not isinstance(operation.results[0].type, ir.F32Type):
        return False
    users = [use.owner.operation for use in operation.results[0].uses]
    if len(users) != 1 or users[0].name not in (("arith.addf",) if packed else ("arith.addf", "arith.subf")):
        return False
    others = [v.owner for v in users[0].operands if v != operation.results[0] and not isinstance(v.owner, ir.Block)]
    return not any(o.name == "arith.mulf" and len(list(o.results[0].uses)) == 1 and o.is_before_in_block(operation) for o in others)


def _clocks(*shares: float) -> int:
    return max(1, math.ceil(max(shares)))


def _elements(kind, target) -> int:
    return math.prod(kind.shape) if kind.rank > 1 else row_elements(kind, target)


def row_elements(kind, target) -> int:
    """Rows, times the lanes that each hold one row's value."""
    return kind.shape[0] * target.mma.lanes_a_row


def _bytes(kind) -> int:
    element = kind.element_type
    width = 64 if isinstance(element, ir.IndexType) else element.width
    return math.prod(kind.shape) * width // 8
