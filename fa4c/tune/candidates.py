"""Which configurations of a variant are worth a measurement.

Block shapes and buffers: of all that fit registers and shared memory, those that the model likes, apart enough to learn something from.
Besides, changes of one pass at a time ("knobs") to what the compiler takes today, which no model foresees: priorities in L2,
clusters that load together, how long loops may be for a CTA to walk through tiles, turns at issuing MMAs, a share of emulated exponentials.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir.context import new_context, parse_module
from ..ir.diagnostics import Diagnostic, nearest
from ..ir.mlir import ir
from ..passes._attn_to_tile_configurations import Configuration, choose_configurations, problem_of
from ..passes._attn_to_tile_plan import make_plan
from ..passes._attn_to_tile_shape import Shape, problem_with
from ..passes.attn_to_tile import check_operands, demand_of
from ..passes.registry import run_pipeline
from ..targets import Target
from . import model

_ROWS = (1, 2, 3)  # compute warpgroups
_BUFFERS = (2, 3)
_COLUMN_STEP = 16
_NO_HINTS = ("none", "none")
_APART = 32  # columns between two candidates of the same rows: 16 more or less change little
# knob -> (passes with an option each, passes left out)
KNOBS = {
    "l2": ((("tile-l2-hints", "repeated", "evict_last"), ("tile-l2-hints", "once", "evict_first")), ()),
    "l2-keep": ((("tile-l2-hints", "repeated", "evict_last"),), ()),
    "multicast": ((("tile-multicast", "ctas", "2"),), ()),
    "walk-always": ((("tile-persistent", "blocks", "1000000"),), ()),
    "walk-never": ((), ("tile-persistent",)),
    "no-turns": ((), ("warp-ping-pong",)),
    "exp2-1": ((("tile-exp-emulation", "share", "1"),), ()),
    "exp2-0": ((("tile-exp-emulation", "share", "0"),), ()),
}


@dataclass(frozen=True)
class Candidate:
    """One kernel to build: the standard pipeline with these changes. `configuration` is None where a knob changes another pass."""

    label: str
    configuration: dict | None
    overrides: tuple[tuple[str, str, str], ...]
    disabled: tuple[str, ...] = ()
    predicted: tuple[int, ...] = ()  # clocks at each of the sizes

    def as_data(self) -> dict:
        return {
            "label": self.label,
            "configuration": self.configuration,
            "set": [list(change) for change in self.overrides],
            "disabled": list(self.disabled),
            "predicted_clk": list(self.predicted),
        }


@dataclass(frozen=True)
class Search:
    """What to look at: `shapes` (sizes of a call), or one call for each of `lengths`; the rest as in `find`."""

    shapes: tuple[dict, ...] = ()
    lengths: tuple[int, ...] = (1024, 4096, 16384)
    limit: int = 3
    factor: float = 1.25
    knobs: tuple[str, ...] = ()
    also: tuple[Shape, ...] = ()

    def sizes_for(self, head_dims: tuple[int, int]) -> list[dict]:
        """`shapes`, or for each length a batch of 16k tokens, and heads that make 2048 columns together."""
        if self.shapes:
            return list(self.shapes)
        heads = max(1, 2048 // (1 << (head_dims[1] - 1).bit_length()))
        return [{"b": max(1, 16384 // n), "hq": heads, "hkv": heads, "m": n, "n": n} for n in self.lengths]


@dataclass
class Problem:
    """One variant with its head dims, what it asks of the machine, and what to try."""

    name: str
    head_dims: tuple[int, int]
    facts: dict
    today: list[Configuration]
    sizes: list[dict] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    dropped: list[dict] = field(default_factory=list)  # label and why, of shapes that were asked for

    @property
    def title(self) -> str:
        return f"{self.name} d={','.join(map(str, dict.fromkeys(self.head_dims)))}"


def find(text: str, filename: str, target: Target, search: Search, *, dtype=None, head_dim=None) -> Problem:
    """The problem of a file of the attn level and its candidates: what the compiler takes today, one for each of `knobs`, the shapes `also`
    that fit (`dropped` has the others), and up to `limit` shapes that the model likes, of those within `factor` of its best at some size.

    Raises Diagnostic for a file of another level, an unknown knob, or a variant that has no block shapes.
    """
    for knob in search.knobs:
        if knob not in KNOBS:
            raise Diagnostic(f"there is no knob '{knob}'", why=f"the knobs are: {', '.join(KNOBS)}", fix=nearest(knob, KNOBS))
    problem, reasons = _analyse(text, filename, target, dtype, head_dim)
    fitting = [shape for shape, reason in reasons.items() if not reason]
    asked = {shape: reasons.get(shape, _no_shape(target)) for shape in search.also}
    problem.dropped = [{"label": _label(shape), "why": reason} for shape, reason in asked.items() if reason]
    problem.sizes = sizes = search.sizes_for(problem.head_dims)
    taken = {configuration.shape: configuration.l2 for configuration in problem.today}
    shapes = list(dict.fromkeys(configuration.shape for configuration in reversed(problem.today)))  # the one for all sizes first
    shapes += [shape for shape, reason in asked.items() if not reason and shape not in shapes]
    shapes = _with_different(shapes, _best(problem.facts, target, fitting, sizes, search.factor), len(shapes) + search.limit)
    problem.candidates = [_of_shape(problem.facts, target, shape, taken.get(shape, _NO_HINTS), sizes) for shape in shapes]
    hinted = [shape for shape in shapes if taken.get(shape, _NO_HINTS) != _NO_HINTS]  # today's hints must still pay
    problem.candidates += [_of_shape(problem.facts, target, shape, _NO_HINTS, sizes) for shape in hinted]
    first = next(c for c in problem.candidates if c.label == _label(shapes[0]))
    problem.candidates += [_of_knob(first, knob) for knob in search.knobs]
    return problem


def _analyse(text, filename, target, dtype, head_dim) -> tuple[Problem, dict[Shape, str]]:
    """The problem, and of all shapes what does not fit, "" if all does."""
    options = ([f"dtype={dtype}"] if dtype else []) + ([f"head-dim={','.join(map(str, head_dim))}"] if head_dim else [])
    with new_context() as context, ir.Location.unknown():
        module = parse_module(text, filename, context)
        module.operation.attributes["fa4c.target"] = ir.StringAttr.get(target.name)
        retype = f"attn-retype{{{' '.join(options)}}}," if options else ""
        run_pipeline(module, f"{retype}attn-simplify-mask,attn-fold-scale")
        function = _only_function(module, filename)
        plan = make_plan(function)
        check_operands(plan, target)
        demand = demand_of(plan, target.mma.k)
        today = choose_configurations(function, plan, demand, target, wanted="measured")
        sizes = {dim: size for t in plan.facts.args for dim, size in zip(t.dims, t.shape, strict=True) if size is not None}
        found = Problem(plan.facts.name, (sizes["d"], sizes.get("dv", sizes["d"])), problem_of(plan, demand), today)
        return found, {shape: problem_with(demand, target, shape) for shape in _all_shapes(target)}


def _only_function(module, filename):
    from ..ir.attn_signature import attn_functions

    functions = attn_functions(module)
    if len(functions) != 1:
        raise Diagnostic(
            f"there are {len(functions)} attn functions to tune",
            where=filename,
            why="block shapes are chosen on the way from the attn level to the tile level, for one function",
            fix="give a file of the attn level with one function",
        )
    return functions[0]


def _all_shapes(target: Target) -> list[Shape]:
    columns = range(2 * _COLUMN_STEP, target.mma.n_max + 1, _COLUMN_STEP)
    return [Shape(groups * target.mma.m, n, buffers) for groups in _ROWS for n in columns for buffers in _BUFFERS]


def _no_shape(target: Target) -> str:
    """Why a shape is none of `_all_shapes`."""
    rows, buffers = (" or ".join(map(str, several)) for several in ([groups * target.mma.m for groups in _ROWS], _BUFFERS))
    return f"blocks have {rows} rows, {2 * _COLUMN_STEP} to {target.mma.n_max} columns in steps of {_COLUMN_STEP}, and {buffers} buffers"


def _best(facts, target, shapes, sizes, factor) -> list[Shape]:
    """Best first, by the place in the ranking at the size where each does best. Of one block with more or fewer buffers the model knows no
    difference: fewer first, and the next block before more buffers."""
    times = {shape: [model.clocks(facts, target, shape, at) for at in sizes] for shape in shapes}
    best = [min(column) for column in zip(*times.values(), strict=True)]
    share = {shape: min(time / least for time, least in zip(column, best, strict=True)) for shape, column in times.items()}
    within = [shape for shape in shapes if share[shape] <= factor]
    return sorted(within, key=lambda shape: (shape.buffers, share[shape], sum(times[shape])))


def _with_different(shapes: list[Shape], ranked: list[Shape], most: int) -> list[Shape]:
    """Up to `most`: of each number of rows in turn, the best one that is apart from those taken."""
    taken = list(shapes)
    while True:
        before = len(taken)
        for rows in dict.fromkeys(shape.block_m for shape in ranked):
            new = next((s for s in ranked if s.block_m == rows and all(_apart(s, other) for other in taken)), None)
            if new is not None and len(taken) < most:
                taken.append(new)
        if len(taken) == before:
            return taken


def _apart(a: Shape, b: Shape) -> bool:
    return a.block_m != b.block_m or abs(a.block_n - b.block_n) >= _APART


def _label(shape: Shape) -> str:
    return f"{shape.block_m}x{shape.block_n}x{shape.buffers}"


def _of_shape(facts, target, shape: Shape, l2: tuple[str, str], sizes) -> Candidate:
    """`l2`: the priorities in L2 that the target's data have with this shape today."""
    label = _label(shape)
    predicted = tuple(round(model.clocks(facts, target, shape, at)) for at in sizes)
    configuration = {"block_m": shape.block_m, "block_n": shape.block_n, "buffers": shape.buffers}
    if l2 == _NO_HINTS:
        return Candidate(label, configuration, (("attn-to-tile", "configurations", label),), predicted=predicted)
    hinted = f"{label}:l2={'/'.join(l2)}"
    return Candidate(hinted, {**configuration, "l2": list(l2)}, (("attn-to-tile", "configurations", hinted),), predicted=predicted)


def _of_knob(base: Candidate, knob: str) -> Candidate:
    """`base` with one change; priorities in L2 are part of a configuration, other knobs are not."""
    overrides, disabled = KNOBS[knob]
    given = {option: value for name, option, value in overrides if name == "tile-l2-hints"}
    configuration = {**base.configuration, "l2": [given.get("repeated", "none"), given.get("once", "none")]} if given else None
    return Candidate(f"{base.label} {knob}", configuration, (*base.overrides, *overrides), disabled, base.predicted)
