"""For which block shapes `attn-to-tile` builds kernels, and which sizes each is for: as its options say, as was measured, or by a formula.

The best block of one variant depends on the lengths. So a function may become several kernels, and the host chooses: the first whose
limits hold, the last one has none. In the pass's option they are written `[n<=2048:]128x128x2[:l2=LOOP/ONCE],192x128x2`:
block_m x block_n x buffers, priorities in L2 that `tile-l2-hints` is asked for.

Measurements are data of the target (`fa4c tune` writes them), looked up by what the function asks of the machine (`problem_of`), not by its
name. Without data for it there is one configuration, by `_attn_to_tile_shape.py`.
"""

import functools
import re
from dataclasses import dataclass

from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import ir
from ._attn_to_tile_plan import Plan
from ._attn_to_tile_shape import Demand, Shape, choose_shape, is_one_block, problem_with
from ._attn_to_tile_trial import clocks_of_a_score
from .op_costs import special_work

FORMULA, MEASURED = "formula", "measured"
_PRIORITY = "none|evict_first|evict_last"
_ENTRY = re.compile(rf"(?:(\w+)<=(\d+):)?(\d+)x(\d+)(?:x(\d+))?(?::l2=({_PRIORITY})/({_PRIORITY}))?")


@dataclass(frozen=True)
class Configuration:
    """`limit`: (size, most) for problems of at most that size, None for all. `l2`: priorities of loads in the loop, and outside.

    `source` says where the numbers came from.
    """

    shape: Shape
    limit: tuple[str, int] | None = None
    l2: tuple[str, str] = ("none", "none")
    source: str = ""

    @property
    def label(self) -> str:
        return f"{self.shape.block_m}x{self.shape.block_n}x{self.shape.buffers}"


def choose_configurations(op, plan: Plan, demand: Demand, target, *, wanted: str, **shape: int) -> list[Configuration]:
    """At least one; only the last has no limit. `wanted`: the pass's option; `shape`: block_m, block_n, buffers, 0 = free. Both are for
    kernels that visit block after block: all columns of one that `attn.when` limits may be a single block, which is as large as they are.
    """
    clocks = functools.partial(clocks_of_a_score, op, target)
    if is_one_block(demand, target):
        return [Configuration(choose_shape(op, demand, target, clocks=clocks), source="one block of columns")]
    if wanted not in (FORMULA, MEASURED):
        return _written(op, plan, demand, target, wanted, shape)
    if any(shape.values()):
        return [Configuration(choose_shape(op, demand, target, clocks=clocks, **shape), source="options of the pass")]
    found = measured(plan, demand, target) if wanted == MEASURED else None
    by_formula = "least 1 / block_m + 1 / block_n that fits, or the model's choice of copies; not measured"
    return found or [Configuration(choose_shape(op, demand, target, clocks=clocks), source=by_formula)]


def measured(plan: Plan, demand: Demand, target) -> list[Configuration] | None:
    """What the target's data say of such a function; None where they say nothing, or something that does not fit this target."""
    problem = problem_of(plan, demand)
    entry = next((entry for entry in target.tuned if entry["problem"] == problem), None)
    if entry is None:
        return None
    found = [_from_data(configuration, entry["source"]) for configuration in entry["configurations"]]
    fits = all(problem_with(demand, target, c.shape) == "" and (c.limit is None or c.limit[0] in _sizes(plan)) for c in found)
    return found if fits else None


def _from_data(data: dict, source: str) -> Configuration:
    limit = data.get("limit")
    return Configuration(
        Shape(data["block_m"], data["block_n"], data["buffers"]),
        None if limit is None else (limit["size"], limit["most"]),
        tuple(data.get("l2", ("none", "none"))),
        source,
    )


def problem_of(plan: Plan, demand: Demand) -> dict:
    """What decides about block shapes, as plain data: tiles and registers of `Demand`, what is done to a score, the kind of mask."""
    maps = [op for op in plan.operations if op.name == "attn.map" and plan.score(op.results[0])]
    masks = [op for op in plan.operations if op.name in ("attn.mask", "attn.band_mask")]
    return {
        "row_tiles": list(demand.row_tiles),
        "column_tiles": list(demand.column_tiles),
        "accumulators": list(demand.accumulators),
        "live_halves": demand.live_halves,
        "softmaxes": demand.softmaxes,
        "special": sum(special_work(op.regions[0].blocks[0]) for op in maps),
        "operations": sum(_scalar_operations(op) for op in (*maps, *masks)),
        "mask": _mask_kind(plan),
    }


def _scalar_operations(op) -> int:
    """Of a map's or a mask's region, for one score: what they need in registers is not in `Demand`."""
    return sum(inner.operation.name not in ("arith.constant", "attn.yield") for inner in op.regions[0].blocks[0].operations)


def _mask_kind(plan: Plan) -> str:
    """Of the visible keys of a row: "all", "up to a key", "from a key on", "between keys", or "any": a mask in every block."""
    kinds = {_band_kind(op) for op in plan.operations if op.name == "attn.band_mask"}
    if any(op.name == "attn.mask" for op in plan.operations) or len(kinds) > 1:
        return "any"
    return kinds.pop() if kinds else "all"


def _band_kind(op) -> str:
    lo, hi = list(op.regions[1].blocks[0].operations)[-1].operation.operands[:2]
    from_start = not isinstance(lo.owner, ir.Block) and lo.owner.name == "arith.constant" and lo.owner.attributes["value"].value <= 0
    to_end = not isinstance(hi.owner, ir.Block) and hi.owner.name == "attn.size"
    return {(True, False): "up to a key", (False, True): "from a key on"}.get((from_start, to_end), "between keys")


# -- the option ----------------------------------------------------------------------------------------------------------------------------


def _written(op, plan: Plan, demand: Demand, target, text: str, shape: dict) -> list[Configuration]:
    if any(shape.values()):
        raise op_diagnostic(
            op,
            "is given a block shape and a list of configurations",
            why="each configuration of the list says its own shape",
            fix="leave out block-m, block-n and buffers, or configurations",
        )
    found = [_read(op, entry) for entry in text.split(",")]
    for number, configuration in enumerate(found):
        last = number == len(found) - 1
        if last != (configuration.limit is None):
            raise op_diagnostic(
                op,
                f"has configurations = {text}, of which the {'last is' if last else f'{configuration.label} is not'} limited",
                why="the host takes the first configuration whose limit holds, and the last one for all other sizes",
                fix="write for example n<=2048:128x128x2,192x128x2",
            )
        if not last and configuration.limit[0] not in _sizes(plan):
            raise op_diagnostic(
                op,
                f"has no size '{configuration.limit[0]}'",
                why=f"the sizes that its tensors leave open are: {', '.join(_sizes(plan))}",
                fix="limit one of these",
            )
        blocks = configuration.shape
        choose_shape(op, demand, target, block_m=blocks.block_m, block_n=blocks.block_n, buffers=blocks.buffers, clocks=None)
    return found


def _sizes(plan: Plan) -> list[str]:
    """What the host knows when it is called."""
    tensors = (*plan.facts.args, *plan.facts.results)
    return sorted({name for t in tensors for name in (*t.axes, *(d for d, size in zip(t.dims, t.shape, strict=True) if size is None))})


def _read(op, entry: str) -> Configuration:
    found = _ENTRY.fullmatch(entry)
    if not found or any(len(digits) > 9 for digits in re.findall(r"\d+", entry)):
        raise op_diagnostic(
            op,
            f"cannot read the configuration '{entry}'",
            why=f"a list of configurations is {MEASURED}, {FORMULA} or [SIZE<=MOST:]BLOCK_MxBLOCK_N[xBUFFERS][:l2=LOOP/ONCE], ...",
            fix="write for example n<=2048:128x128x2,192x128x2",
        )
    size, most, block_m, block_n, buffers, repeated, once = found.groups()
    return Configuration(
        Shape(int(block_m), int(block_n), int(buffers or 2)),
        (size, int(most)) if size else None,
        (repeated or "none", once or "none"),
        "option of the pass",
    )
