"""What `attn-to-tile` reads out of an attn function before it builds anything.

Queries are the rows of a CTA's tile, keys are visited block by block. So every operation belongs to one of two phases: values over
(m, n) are made once a block and die with it (`Score`); values over (m) or (m, x) are known after the last block (`Final`). Between
the two stand the accumulations over n: GEMMs, reductions and the statistics of a softmax. A probability is the odd one: until the last
block its row sum is unknown, so what the block has is P times the row sum, and only what is linear in P can be computed from it.

`Score` also carries what an element is where a key is masked or lies past the end, which decides which blocks may be left out and where the
boundary block needs a mask of its own.
"""

import math
from dataclasses import dataclass, field, replace

from ..ir.attn_dims import infer_dims
from ..ir.attn_signature import FunctionFacts, TensorFacts, function_facts
from ..ir.diagnostics import op_diagnostic
from ._attn_to_tile_regions import constant_result, is_linear

ROWS, COLUMNS = "m", "n"
SPACE = (ROWS, COLUMNS)
_NOWHERE = "attn-to-tile makes one pass over the keys for each block of queries"


@dataclass(frozen=True)
class Score:
    """A value over (m, n). Where any of `bands` excludes an element it is `outside`; for keys past the last one it is `beyond`."""

    softmax: int | None = None  # position of the softmax whose row sum it still has to be divided by
    bands: tuple[int, ...] = ()  # positions of band masks
    outside: float | None = None  # None: not known
    beyond: float | None = None


@dataclass(frozen=True)
class Final:
    """A value over (m) or (m, x), known after the last block."""


@dataclass
class Plan:
    """`kinds` tells each value's phase. Positions count the operations of the function."""

    function: object
    facts: FunctionFacts
    dims: dict  # value -> (dims, axes)
    operations: list
    tensors: dict  # function argument -> TensorFacts
    kinds: dict = field(default_factory=dict)
    sinks: list = field(default_factory=list)  # what accumulates over n: (position, operand)
    guards: dict = field(default_factory=dict)  # position -> what its operand must be for keys past the end, where it is not so by itself

    def dims_of(self, value) -> tuple[str, ...]:
        return self.dims[value][0]

    def score(self, value) -> Score | None:
        kind = self.kinds.get(value)
        return kind if isinstance(kind, Score) else None

    def is_final(self, value) -> bool:
        return isinstance(self.kinds.get(value), Final)

    def visible(self) -> list[tuple[int, ...]]:
        """For each accumulation, the band masks outside of which nothing reaches it; () where every key may."""
        return [
            self.score(value).bands if self.score(value).outside == neutral(self.operations[position]) else ()
            for position, value in self.sinks
        ]


def make_plan(function) -> Plan:
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
    for position, operation in enumerate(plan.operations):
        rule = _RULES.get(operation.name)
        if rule is not None:
            rule(plan, position, operation.opview)
    _check_results(plan)
    return plan


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
    if plan.dims_of(op.out) == SPACE:
        _check_score_operand(plan, op, "a", op.a, ROWS, op.transpose_a.value, transposed=False)
        _check_score_operand(plan, op, "b", op.b, COLUMNS, op.transpose_b.value, transposed=True)
        plan.kinds[op.out] = Score(beyond=0.0)  # keys past the end are loaded as 0
        return
    kind = plan.score(op.a)
    if kind is None or op.transpose_a.value or op.transpose_b.value or op.b not in plan.tensors:
        names = " x ".join(plan.dims_of(op.out))
        raise op_diagnostic(
            op,
            f"computes {names} in a way that has no lowering",
            why=f"{_NOWHERE}: a GEMM either makes m x n scores from two arguments or "
            "multiplies m x n values, contracting n, by an argument",
            fix="write it as one of the two, or as a kernel of its own",
        )
    _check_memory_order(op, "b", plan.tensors[op.b], (COLUMNS,))
    _check_operand_type(plan, op, op.b)
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
    if dims != SPACE:
        _final_map(plan, op, dims)
        return
    scores = [(number, plan.score(value)) for number, value in enumerate(op.inputs) if plan.score(value) is not None]
    for number, value in enumerate(op.inputs):
        if plan.is_final(value):
            raise op_diagnostic(
                op,
                f"needs input {number} before the last key block is done",
                why=f"{_NOWHERE}; that input is a result of the whole row",
                fix="compute this in a second function that takes it as an argument",
            )
    normalised = [(number, kind) for number, kind in scores if kind.softmax is not None]
    if not normalised:
        plan.kinds[op.out] = _mapped(op, scores)
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


def _mapped(op, scores) -> Score:
    """What is known of a map's result where its input is masked or past the end."""
    block = op.body.blocks[0]
    if len(scores) != 1 or len(op.inputs) != 1:
        return Score()
    number, kind = scores[0]
    outside = constant_result(block, {block.arguments[number]: kind.outside})
    beyond = constant_result(block, {block.arguments[number]: kind.beyond})
    return Score(bands=kind.bands if outside is not None else (), outside=outside, beyond=beyond)


def _final_map(plan: Plan, op, dims) -> None:
    if dims[:1] != (ROWS,) or COLUMNS in dims:
        raise op_diagnostic(
            op,
            f"maps over {' x '.join(dims)}",
            why=f"{_NOWHERE}: maps are over m x n while keys are visited, or over m or m x dv after that",
            fix="compute it outside and pass the result as an argument",
        )
    plan.kinds[op.out] = Final()


def _mask(plan: Plan, position: int, op) -> None:
    kind = plan.score(op.scores)
    _check_unnormalised(op, kind, "masks a probability", "mask the scores before the softmax")
    bands = kind.bands if kind.outside == -math.inf else ()
    own = (position,) if op.operation.name == "attn.band_mask" else ()
    bands = bands + own
    plan.kinds[op.out] = Score(bands=bands, outside=-math.inf if bands else None, beyond=-math.inf)


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
    if op.x in plan.tensors:
        raise op_diagnostic(
            op,
            f"casts the argument {plan.tensors[op.x].name}",
            why="tiles go from memory to the tensor cores as they are",
            fix="pass it in the dtype that is needed",
        )
    kind = plan.kinds[op.x]
    if isinstance(kind, Score) and not _finite(kind.beyond):
        plan.guards[position] = 0.0  # here, in f32, rather than behind the cast, in front of the GEMM
        kind = replace(kind, beyond=0.0)
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
        raise op_diagnostic(op, f"reduces dimension {op.dim.value}", why=f"{_NOWHERE}: rows are reduced over keys or over the head dim")
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
    elif not plan.is_final(op.x) or len(plan.dims_of(op.x)) != 2:
        raise op_diagnostic(
            op,
            f"reduces {' x '.join(plan.dims_of(op.x))}",
            why=f"{_NOWHERE}: rows are reduced over keys or over the head dim",
            fix="compute it outside and pass the result as an argument",
        )
    plan.kinds[op.out] = Final()


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
    if not plan.sinks:
        raise op_diagnostic(
            returned,
            "returns nothing that was accumulated over keys",
            why=f"{_NOWHERE}, and this function needs none",
            fix="write a function with a GEMM, a softmax or a reduction over n",
        )
    for value, result in zip(returned.operands, plan.facts.results, strict=True):
        if not plan.is_final(value):
            what = "its argument" if value in plan.tensors else f"{' x '.join(plan.dims_of(value))} values"
            raise op_diagnostic(
                returned,
                f"returns {what} as '{result.name}'",
                why="results are stored once a row block, after the last key block",
                fix="return a GEMM over the keys, a reduction or the log-sum-exp",
            )
        varies = plan.dims[value][1]
        missing = [axis for axis in varies if axis not in result.axes and not (axis == "hkv" and "hq" in result.axes)]
        if missing:
            raise op_diagnostic(
                returned,
                f"sums '{result.name}' over {', '.join(missing)}",
                why=f"its value varies over {list(varies)}, its attn.axes are {list(result.axes)}; "
                "sums over batch or heads are not lowered to tiles yet",
                fix=f"give it attn.axes = {list(varies)} and add up outside",
            )
