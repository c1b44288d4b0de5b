"""What `attn-to-tile` reads out of an attn function before it builds anything.

A CTA owns a block of rows, of the function's stationary dimension (queries in a forward), and visits the columns, the other one, block by
block. So every operation belongs to one of two phases: values over (rows, columns) are made once a block and die with it (`Score`);
values over (rows) or (rows, x) are known after the last block (`Final`). Between the two stand the accumulations over the columns: GEMMs,
reductions and the statistics of a softmax. A GEMM that sums over the rows gives each block a part of a result that other CTAs have parts of
too (`Streamed`), and so does the sum of everything (`Total`): these are added up in memory. A function without scores has one phase, after.

A probability is the odd one: until the last block its row sum is unknown, so what the block has is P times the row sum, and only what is
linear in P can be computed from it.

`Score` also carries what an element is where a column is masked or lies past the end, which decides which blocks may be left out and where
the boundary block needs a mask of its own.
"""

import math
from dataclasses import dataclass, field, replace

from ..ir.attn_dims import infer_dims
from ..ir.attn_signature import FunctionFacts, TensorFacts, function_facts
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import ir
from ._attn_to_tile_regions import constant_result, is_linear

_LSE_RESULT = 'tensor<?xf32> {attn.name = "lse", attn.axes = ["b", "hq"], attn.dims = ["m"]}'
_NOWHERE = "attn-to-tile makes one pass over the columns for each block of rows"


@dataclass(frozen=True)
class Score:
    """A value over rows and columns. Where any of `bands` excludes an element it is `outside`; columns past the last one have `beyond`."""

    softmax: int | None = None  # position of the softmax whose row sum it still has to be divided by
    bands: tuple[int, ...] = ()  # positions of band masks
    outside: float | None = None  # None: not known
    beyond: float | None = None


@dataclass(frozen=True)
class Final:
    """A value over (rows) or (rows, x), known after the last block."""


@dataclass(frozen=True)
class Streamed:
    """A value over (columns, x) of which each block of each CTA has a part."""


@dataclass(frozen=True)
class Total:
    """A number of which each CTA has a part."""


@dataclass
class Plan:
    """`kinds` tells each value's phase. Positions count the operations of the function."""

    function: object
    facts: FunctionFacts
    dims: dict  # value -> (dims, axes)
    operations: list
    tensors: dict  # function argument -> TensorFacts
    kinds: dict = field(default_factory=dict)
    sinks: list = field(default_factory=list)  # what accumulates over the columns: (position, operand)
    guards: dict = field(default_factory=dict)  # position -> what its operand must be past the last column, where it is not so by itself
    settled: set = field(default_factory=set)  # values that all later readers take guarded: before, nobody knew what lay past the end

    def __post_init__(self):
        self.rows = self.facts.stationary
        self.columns = {"m": "n", "n": "m"}[self.rows]
        self.space = (self.rows, self.columns)
        axes = {axis for t in (*self.facts.args, *self.facts.results) for axis in t.axes}
        self.grouped = self.rows == "n" and {"hq", "hkv"} <= axes  # a CTA that owns keys visits all query heads that share them

    def dims_of(self, value) -> tuple[str, ...]:
        return self.dims[value][0]

    def score(self, value) -> Score | None:
        kind = self.kinds.get(value)
        return kind if isinstance(kind, Score) else None

    def is_final(self, value) -> bool:
        """Whether a value is known after the last block; arguments over the rows count where no block is visited at all."""
        return isinstance(self.kinds.get(value), Final) or (value in self.tensors and self.dims_of(value)[:1] == (self.rows,))

    def has_scores(self) -> bool:
        return any(isinstance(kind, Score) for kind in self.kinds.values())

    def most_columns(self) -> int:
        """How many columns there are at most where the kernel runs; 0: any number."""
        size, most = self.facts.when or ("", 0)
        return most if size == self.columns else 0

    def visible(self) -> list[tuple[int, ...]]:
        """For each accumulation, the band masks outside of which nothing reaches it; () where every key may."""
        return [
            self.score(value).bands if self.score(value).outside == neutral(self.operations[position]) else ()
            for position, value in self.sinks
        ]


def make_plan(function) -> Plan:
    """What becomes of each value of an attn function. Raises Diagnostic where one has no lowering."""
    facts = function_facts(function)
    _refuse_packed(function, facts)
    block = function.operation.regions[0].blocks[0]
    plan = Plan(
        function,
        facts,
        infer_dims(function, facts),
        [op.operation for op in block.operations],
        dict(zip(block.arguments, facts.args, strict=True)),
    )
    _check_before_all(plan)
    for position, operation in enumerate(plan.operations):
        rule = _RULES.get(operation.name)
        if rule is not None:
            rule(plan, position, operation.opview)
    _check_results(plan)
    return plan


def _check_before_all(plan: Plan) -> None:
    """What would be refused at another operation: where scores cannot be transposed, at the GEMM that makes them."""
    for value, result in zip(plan.operations[-1].operands, plan.facts.results, strict=True):
        if not isinstance(value.owner, ir.Block) and set(plan.dims_of(value)) >= set(plan.space):
            raise op_diagnostic(
                value.owner,
                f"makes the {' x '.join(plan.dims_of(value))} values of the result '{result.name}'",
                why="results are stored once a row block, after the last block of columns",
                fix="return a GEMM over the columns, a reduction or the log-sum-exp; of a captured tensor with a place for each score "
                "leave the gradient out: attn-derive-backward{wrt=q,k,v}",
            )
    for operation in plan.operations:
        if operation.name == "attn.softmax" and plan.dims_of(operation.operands[0]) != plan.space:
            raise op_diagnostic(
                operation,
                f"sums over {plan.rows}, of which each CTA of '{plan.facts.name}' has a block",
                why="no CTA has a whole row of probabilities; a backward takes them from the log-sum-exp, where the forward returns it",
                fix="return the second result of this softmax from the forward too: " + _LSE_RESULT,
            )


def neutral(operation) -> float:
    """What adds nothing: -inf to a maximum and to a softmax, 0 to a sum."""
    is_max = operation.name == "attn.reduce" and operation.attributes["kind"].value == "max"
    return -math.inf if is_max or operation.name == "attn.softmax" else 0.0


def _sink(plan, position: int, op, value) -> None:
    """Note that `op` accumulates `value` over n. Keys past the end must add nothing; a GEMM takes any number, their rows of b are 0."""
    beyond, nothing = plan.score(value).beyond, neutral(op.operation)
    plan.sinks.append((position, value))
    if beyond != nothing and not (op.operation.name == "attn.gemm" and _finite(beyond)):
        plan.guards[position] = nothing


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


# -- one rule an operation -------------------------------------------------------------------------------


def _gemm(plan: Plan, position: int, op) -> None:
    if plan.dims_of(op.out) == plan.space:
        _check_score_operand(plan, op, "a", op.a, plan.rows, op.transpose_a.value, transposed=False)
        _check_score_operand(plan, op, "b", op.b, plan.columns, op.transpose_b.value, transposed=True)
        plan.kinds[op.out] = Score(beyond=0.0)  # what lies past the end is loaded as 0
        return
    kind = plan.score(op.a)
    if kind is None or op.transpose_b.value or op.b not in plan.tensors:
        names = " x ".join(plan.dims_of(op.out))
        raise op_diagnostic(
            op,
            f"computes {names} in a way that has no lowering",
            why=f"{_NOWHERE}: a GEMM either makes {' x '.join(plan.space)} scores from two arguments or "
            f"multiplies {' x '.join(plan.space)} values by an argument",
            fix="write it as one of the two, or as a kernel of its own",
        )
    summed = plan.rows if op.transpose_a.value else plan.columns
    _check_memory_order(op, "b", plan.tensors[op.b], (summed,))
    _check_operand_type(plan, op, op.b)
    if op.transpose_a.value:
        _check_unnormalised(op, kind, "sums a probability over its rows", "recompute P from LSE: attn-derive-backward does")
        plan.kinds[op.out] = Streamed()
        return
    _sink(plan, position, op, op.a)
    plan.kinds[op.out] = Final()


def _check_score_operand(plan, op, name, value, first, is_transposed, transposed) -> None:
    if value not in plan.tensors:
        raise op_diagnostic(
            op,
            f"takes a computed tensor as {name}",
            why="operands of a score GEMM come from memory",
            fix="compute it outside and pass it as an argument",
        )
    if is_transposed != transposed:
        raise op_diagnostic(
            op,
            f"takes {name} stored as {' x '.join(plan.dims_of(value))}",
            why=f"{name} is read with dimension {first} first, its contracted dimension contiguous",
            fix="store the argument the other way round",
        )
    _check_memory_order(op, name, plan.tensors[value], (first,))
    _check_operand_type(plan, op, value)


def _check_memory_order(op, name, tensor: TensorFacts, first) -> None:
    if tensor.dims[:1] != first or tensor.shape[1] is None:
        raise op_diagnostic(
            op,
            f"has {name} of dimensions {' x '.join(tensor.dims)} with sizes {list(tensor.shape)}",
            why="a tile spans a whole head dim, so its size must be in the type",
            fix=f"give {tensor.name} a static second dimension",
        )


def _check_operand_type(plan, op, value) -> None:
    tensor = plan.tensors[value]
    if set(tensor.axes) - {"b", "hq", "hkv"}:
        raise op_diagnostic(op, f"reads {tensor.name}, which varies over {list(tensor.axes)}")


def _map(plan: Plan, position: int, op) -> None:
    dims = plan.dims_of(op.out)
    if dims != plan.space:
        _final_map(plan, op, dims)
        return
    scores = [(number, plan.score(value)) for number, value in enumerate(op.inputs) if plan.score(value) is not None]
    for number, value in enumerate(op.inputs):
        if value not in plan.tensors and plan.score(value) is None:
            raise op_diagnostic(
                op,
                f"needs input {number} before the last block is done",
                why=f"{_NOWHERE}; that input is a result of the whole row",
                fix="compute this in a second function that takes it as an argument",
            )
    normalised = [(number, kind) for number, kind in scores if kind.softmax is not None]
    if not normalised:
        plan.kinds[op.out] = _mapped(plan, op, scores)
        return
    number, kind = normalised[0]
    others = [op.body.blocks[0].arguments[k] for k, _ in normalised[1:]]
    if others or not is_linear(op.body.blocks[0], op.body.blocks[0].arguments[number]):
        what = "combines two probabilities" if others else "is not linear in a probability"
        raise op_diagnostic(
            op,
            what,
            why="the row sum of a softmax is known after the last key block only: up to then P is P times its row sum, which a factor "
            "passes through but nothing else",
            fix="give each probability its own GEMM and combine their results, or apply the function to the scores",
        )
    plan.kinds[op.out] = replace(kind, outside=0.0, beyond=0.0)


def _mapped(plan, op, scores) -> Score:
    """What is known of a map's result where its inputs are masked or past the end."""
    block = op.body.blocks[0]
    arguments = [(argument, value) for argument, value in zip(block.arguments, op.inputs, strict=False) if value in plan.tensors]
    never = {argument: plan.tensors[value].never for argument, value in arguments}
    masked = [(kind.bands, constant_result(block, {block.arguments[n]: kind.outside}, never)) for n, kind in scores if kind.bands]
    masked = [(bands, outside) for bands, outside in masked if outside is not None]
    alike = [bands for bands, outside in masked if outside == masked[0][1]]
    past = {argument: 0.0 for argument, value in arguments if plan.dims_of(value) == (plan.columns,)}  # loaded as 0
    beyond = constant_result(block, {block.arguments[n]: kind.beyond for n, kind in scores} | past, never)
    bands = tuple(dict.fromkeys(position for own in alike for position in own))
    return Score(bands=bands, outside=masked[0][1] if masked else None, beyond=beyond)


def _final_map(plan: Plan, op, dims) -> None:
    if dims[:1] != (plan.rows,) or plan.columns in dims:
        raise op_diagnostic(
            op,
            f"maps over {' x '.join(dims)}",
            why=f"{_NOWHERE}: maps are over {' x '.join(plan.space)} while columns are visited, and over {plan.rows} after that",
            fix="compute it outside and pass the result as an argument",
        )
    plan.kinds[op.out] = Final()


def _mask(plan: Plan, position: int, op) -> None:
    kind = plan.score(op.scores)
    _check_unnormalised(op, kind, "masks a probability", "mask the scores before the softmax")
    bands = kind.bands if kind.outside == -math.inf else ()
    bounded = op.operation.name == "attn.band_mask" and not (plan.grouped and _reads_head(plan, op.bounds.blocks[0]))
    own = (position,) if bounded else ()
    bands = bands + own
    plan.kinds[op.out] = Score(bands=bands, outside=-math.inf if bands else None, beyond=-math.inf)


def _reads_head(plan: Plan, block) -> bool:
    """Whether bounds differ between the query heads of a group."""
    loads = [op.operation.operands[0] for op in block.operations if op.operation.name == "attn.load"]
    return any(True for _ in block.arguments[1].uses) or any("hq" in plan.tensors[value].axes for value in loads)


def _check_unnormalised(op, kind, what: str, fix: str) -> None:
    if kind is None:
        raise op_diagnostic(
            op,
            "works on a value that is no score",
            why=f"{_NOWHERE}: masks and softmaxes are over m x n",
            fix="apply it to the result of a score GEMM",
        )
    if kind.softmax is not None:
        raise op_diagnostic(op, what, why="the row sum of a softmax is known after the last key block only", fix=fix)


def _softmax(plan: Plan, position: int, op) -> None:
    kind = plan.score(op.scores)
    _check_unnormalised(op, kind, "takes a probability", "take the softmax of the scores")
    _sink(plan, position, op, op.scores)
    visible = kind.bands if kind.outside == -math.inf else ()
    plan.kinds[op.p] = Score(softmax=position, bands=visible, outside=0.0 if visible else None, beyond=0.0)
    plan.kinds[op.lse] = Final()


def _cast(plan: Plan, position: int, op) -> None:
    if op.x in plan.tensors and plan.dims_of(op.x)[:1] != (plan.rows,):
        raise op_diagnostic(
            op,
            f"casts the argument {plan.tensors[op.x].name}",
            why="tiles go from memory to the tensor cores as they are",
            fix="pass it in the dtype that is needed",
        )
    kind = plan.kinds.get(op.x, Final())
    if isinstance(kind, Score) and not _finite(kind.beyond):
        plan.guards[position] = 0.0  # here, in f32, rather than behind the cast, in front of the GEMM
        unknown, kind = kind.beyond is None, replace(kind, beyond=0.0)
        if unknown:  # else P would be kept twice: as it is for dS, and guarded for dV
            plan.settled.add(op.x)
            plan.kinds[op.x] = kind
    plan.kinds[op.out] = kind


def _scatter(plan: Plan, position: int, op) -> None:
    raise op_diagnostic(
        op,
        "has no lowering yet",
        why="sums at computed places need atomic additions to global memory",
        fix="leave the gradient of that table out: attn-derive-backward{wrt=q,k,v}",
    )


def _reduce(plan: Plan, position: int, op) -> None:
    if op.dim is not None and op.dim.value != op.x.type.rank - 1:
        why = f"{_NOWHERE}: rows are reduced over the columns or over the head dim"
        raise op_diagnostic(op, f"reduces dimension {op.dim.value}", why=why)
    kind = plan.score(op.x)
    if kind is not None:
        if kind.softmax is not None and op.kind.value != "sum":
            raise op_diagnostic(
                op,
                "takes the maximum of a probability",
                why="the row sum of a softmax is known after the last key block only",
                fix="take it of the scores",
            )
        _sink(plan, position, op, op.x)
    elif not plan.is_final(op.x) or (op.out.type.rank == 0 and op.kind.value != "sum"):
        raise op_diagnostic(
            op,
            f"reduces {' x '.join(plan.dims_of(op.x))} to its {op.kind.value}",
            why=f"{_NOWHERE}: rows are reduced over the columns or over the head dim, and then added up",
            fix="compute it outside and pass the result as an argument",
        )
    plan.kinds[op.out] = Final() if op.out.type.rank else Total()


_RULES = {
    "attn.gemm": _gemm,
    "attn.map": _map,
    "attn.scatter": _scatter,
    "attn.mask": _mask,
    "attn.band_mask": _mask,
    "attn.softmax": _softmax,
    "attn.cast": _cast,
    "attn.reduce": _reduce,
}


# -- whole function --------------------------------------------------------------------------------------


def _refuse_packed(function, facts: FunctionFacts) -> None:
    for tensor in facts.args:
        if tensor.cu_seqlens:
            raise op_diagnostic(
                function,
                f"packs dimension {tensor.cu_seqlens} with the argument '{tensor.name}'",
                why="packed lengths are not lowered to tiles yet",
                fix="pass padded tensors with a batch axis, and a captured length for a mask",
            )


def _check_results(plan: Plan) -> None:
    returned = plan.operations[-1]
    if plan.has_scores() and not plan.sinks:
        raise op_diagnostic(
            returned,
            "returns nothing that was accumulated over the columns",
            why=f"{_NOWHERE}, and this function needs none",
            fix="write a function with a GEMM, a softmax or a reduction over them",
        )
    for value, result in zip(returned.operands, plan.facts.results, strict=True):
        kind = plan.kinds.get(value)
        if isinstance(kind, (Streamed, Total)):
            _check_added_up(plan, returned, value, result)
        elif not isinstance(kind, Final):
            what = "its argument" if value in plan.tensors else f"{' x '.join(plan.dims_of(value))} values"
            raise op_diagnostic(
                returned,
                f"returns {what} as '{result.name}'",
                why="results are stored once a row block, after the last block of columns",
                fix="return a GEMM over the columns, a reduction or the log-sum-exp",
            )
        else:
            _check_complete(plan, returned, value, result)


def _check_added_up(plan, returned, value, result) -> None:
    if result.dtype != "f32":
        raise op_diagnostic(
            returned,
            f"adds up '{result.name}' in {result.dtype}",
            why="what several CTAs contribute to is added up in memory, in f32",
            fix="run attn-outline-kernels first, or return it in f32",
        )
    readers = [use.owner for use in value.uses]
    if len(readers) != 1:
        raise op_diagnostic(returned, f"returns '{result.name}', which it reads too", why="no CTA knows the sum of all")


def _check_complete(plan, returned, value, result) -> None:
    varies = plan.dims[value][1]
    covered = {"hkv"} if "hq" in result.axes else {"hq"} if plan.grouped and "hkv" in result.axes else set()
    missing = [axis for axis in varies if axis not in result.axes and axis not in covered]
    if missing:
        raise op_diagnostic(
            returned,
            f"sums '{result.name}' over {', '.join(missing)}",
            why=f"its value varies over {list(varies)}, its attn.axes are {list(result.axes)}; "
            "such sums over batch or heads are not lowered to tiles yet",
            fix=f"give it attn.axes = {list(varies)} and add up outside",
        )
    if plan.grouped and "hq" in result.axes:
        raise op_diagnostic(
            returned,
            f"returns '{result.name}' for each query head",
            why="a CTA that owns keys adds up over the query heads of its group",
            fix="put it into a kernel of its own: attn-split-backward{groups=...}",
        )
