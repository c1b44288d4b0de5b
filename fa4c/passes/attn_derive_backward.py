"""Derive the backward of an attn function: from NAME the function NAME_bwd, by reverse mode over its operations.

It takes the arguments of the forward, the results of it that it can use (O, LSE), and a gradient `d<result>` for each chosen result.
It returns `d<argument>` for each chosen argument, with that argument's dtype, axes and dimensions; a gradient that varies over more axes
(dK over the query heads of a group) is summed over them, as `attn.axes` says. S and P are computed again from Q, K and LSE: one GEMM more,
m x n numbers less in memory. delta = rowsum(dO * O) comes from stored outputs. So plain attention has five GEMMs: S, dP, dV, dK, dQ.

Before:  func.func @causal(%q, %k, %v) -> (%o, %lse)
           %s = gemm(%q, %k)   %u = mask(%s)   %p, %lse = softmax(%u)   %o = gemm(cast(%p), %v)
After:   func.func @causal_bwd(%q, %k, %v, %o, %lse, %do) -> (%dq, %dk, %dv)
           %s = gemm(%q, %k)   %u = mask(%s)   %p = map exp(%u - %lse)   %dp = gemm(%do, %v)   %delta = reduce(map %do * %o)
           %ds = map %p * (%dp - %delta)   %dv = gemm(%p^T, %do)   %dk = gemm(%ds^T, %q)   %dq = gemm(%ds, %k)

A stored O has its rounding, and so has delta. It multiplies P, which sums to 1 over a row: of many keys no gradient sees it, but of two to
eight of which one dominates, P (dP - delta) is as small as that rounding (docs/backward.md has the rates of misses). So where a row has few
keys, delta is corrected by the sum of what it is off by, P (dP - delta), which is 0 in exact arithmetic:

           %off = reduce(map %p * (%dp - %delta))   %refined = map select(n <= 16, %delta + %off, %delta)

`refine`: up to how many keys (0: never). It costs a kernel of its own, launched for these sizes only (`attn-outline-kernels`).

`wrt` names the arguments to differentiate for (default: all of floating dtype). `of` names the results that have a gradient (default: all
of floating dtype but LSE, the statistics of a softmax, unless there is nothing else). `keep` leaves the forward in the module.

The text of this pass is `docs/backward.md`; its rules are in `_derive_rules.py` (tensors) and `_derive_scalar.py` (regions).
"""

from ..ir.attn_dims import infer_dims, loads_in
from ..ir.attn_signature import TensorFacts, attn_functions, function_facts, tensor_attributes
from ..ir.diagnostics import Diagnostic, nearest, op_diagnostic
from ..ir.mlir import func, ir
from ._derive_expr import Scalars
from ._derive_graph import Emitter, Graph, Tensor, fuse_maps, reachable
from ._derive_primal import Primal
from ._derive_rules import Reverse
from .registry import register_pass

_FLOATS = {"bf16": "bf16", "fp16": "f16", "f32": "f32", "f64": "f64"}


@register_pass("attn-derive-backward")
def attn_derive_backward(module: ir.Module, *, wrt: str = "", of: str = "", keep: bool = False, refine: int = 16) -> None:
    if refine < 0:
        raise Diagnostic(f"refine={refine} is no number of keys", why="so many and fewer have a corrected delta", fix="give 0 for none")
    functions = attn_functions(module)
    if not functions:
        raise Diagnostic("there is no attn function to derive", where=module.operation.location, why="the pass works at the attn level")
    for function in functions:
        _derive(function, _names(wrt), _names(of), refine)
        if not keep:
            function.operation.erase()


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _derive(function, wrt: list[str], of: list[str], refine: int) -> None:
    facts = function_facts(function)
    block = function.operation.regions[0].blocks[0]
    operations = [op.operation for op in block.operations]
    returned = list(operations[-1].operands)
    arguments = dict(zip(block.arguments, facts.args, strict=True))
    wrt = _choose(function, wrt, facts.args, "argument", _differentiable(facts.args))
    of = _choose(function, of, facts.results, "result", _without_statistics(facts, returned))
    chosen = {value: t for value, t in arguments.items() if t.name in wrt}
    outputs = [number for number, t in enumerate(facts.results) if t.name in of]
    active = _active(operations, set(chosen))
    if not any(returned[number] in active for number in outputs):
        raise op_diagnostic(
            function,
            "has nothing to differentiate",
            why=f"no result of {', '.join(of)} depends on {_listed(chosen.values())} by floating-point arithmetic",
            fix="choose others: attn-derive-backward{wrt=... of=...}",
        )

    sizes = {dim: size for t in (*facts.args, *facts.results) for dim, size in zip(t.dims, t.shape)}
    graph = Graph(Scalars(), sizes)
    tensors = {value: _argument(graph, t) for value, t in arguments.items()}
    primal = Primal(graph, infer_dims(function, facts), tensors, facts)
    primal.offer_results(operations[-1])
    reverse = Reverse(graph, primal, operations, active, facts.align == "bottom_right", refine)
    names = _Names(facts)
    incoming = {}
    for number in outputs:
        result = facts.results[number]
        gradient = _renamed(result, names.new(result.name))
        primal.at(operations[-1], gradient.name)
        incoming[gradient] = graph.argument(gradient.name, gradient.dims, gradient.axes, _FLOATS[gradient.dtype])
        reverse.seed(number, returned[number], incoming[gradient])
    reverse.run()

    outgoing = {}
    for value, t in chosen.items():
        gradient = _renamed(t, names.new(t.name))
        primal.at(function, gradient.name)
        outgoing[gradient] = _result(graph, reverse, value, tensors[value], t)
    results = fuse_maps(graph, list(outgoing.values()))
    used = reachable(results)
    saved = {facts.results[n]: tensor for n, tensor in sorted(primal.used_results.items()) if tensor in used}
    inputs = {**dict(zip(facts.args, tensors.values())), **saved, **incoming}
    _emit(function, graph, inputs, list(outgoing), results)


def _argument(graph: Graph, t: TensorFacts) -> Tensor:
    return graph.argument(t.name, t.dims, t.axes, _FLOATS.get(t.dtype, t.dtype))


def _result(graph: Graph, reverse: Reverse, value, tensor: Tensor, t: TensorFacts) -> Tensor:
    """The gradient of an argument in its dtype; zero where no result depends on it."""
    gradient = reverse.gradient(value)
    if gradient is None:
        gradient = graph.map(tensor.dims, graph.scalars.const(0.0), [tensor])
    return graph.cast(gradient, _FLOATS[t.dtype])


def _differentiable(tensors) -> list[str]:
    return [t.name for t in tensors if t.dtype in _FLOATS]


def _without_statistics(facts, returned) -> list[str]:
    """Results of floating dtype but LSE; that too where there is no other."""
    names = _differentiable(facts.results)
    statistics = {
        t.name
        for t, value in zip(facts.results, returned)
        if not isinstance(value.owner, ir.Block) and value.owner.name == "attn.softmax" and value == value.owner.results[1]
    }
    return [name for name in names if name not in statistics] or names


def _choose(function, wanted: list[str], tensors, what: str, default: list[str]) -> list[str]:
    """The names asked for, checked, or else `default`."""
    for name in wanted:
        found = next((t for t in tensors if t.name == name), None)
        if found is None:
            raise op_diagnostic(
                function, f"has no {what} '{name}'", why=f"there are {_listed(tensors)}", fix=nearest(name, [t.name for t in tensors])
            )
        if found.dtype not in _FLOATS:
            raise op_diagnostic(
                function,
                f"has the {what} '{name}' of dtype {found.dtype}",
                why="only floating-point tensors have a gradient",
                fix="leave it out",
            )
    if not (wanted or default):
        raise op_diagnostic(
            function, "has nothing to differentiate", why=f"no {what} is of a floating dtype; there are: {_listed(tensors)}"
        )
    return wanted or default


def _listed(tensors) -> str:
    return ", ".join(t.name for t in tensors) or "none"


def _active(operations, active: set) -> set:
    """The values that these arguments influence."""
    active = set(active)
    for operation in operations:
        loads = [load.operands[0] for region in operation.regions for load in loads_in(region)] if operation.name == "attn.map" else []
        if any(value in active for value in (*operation.operands, *loads)):
            active.update(operation.results)
    return active


class _Names:
    """Names for gradients, none of them taken."""

    def __init__(self, facts):
        self._taken = {t.name for t in (*facts.args, *facts.results)}

    def new(self, name: str) -> str:
        name = f"d{name}"
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def _renamed(t: TensorFacts, name: str) -> TensorFacts:
    return TensorFacts(name, t.dtype, t.axes, t.dims, t.shape)


# -- the new function ----------------------------------------------------------------------------------------------------------------------


def _emit(function, graph: Graph, inputs: dict, outgoing: list[TensorFacts], results: list[Tensor]) -> None:
    attributes = function.operation.attributes
    with ir.InsertionPoint.after(function.operation), function.location as where:
        kinds = [[_type(t) for t in inputs], [_type(t) for t in outgoing]]
        new = func.FuncOp(attributes["sym_name"].value + "_bwd", ir.FunctionType.get(*kinds))
        new.operation.attributes["arg_attrs"] = ir.ArrayAttr.get([tensor_attributes(t) for t in inputs])
        new.operation.attributes["res_attrs"] = ir.ArrayAttr.get([tensor_attributes(t) for t in outgoing])
        for name in ("attn.align", "attn.layout"):
            if name in attributes:
                new.operation.attributes[name] = attributes[name]
        block = ir.Block.create_at_start(new.operation.regions[0], kinds[0], [ir.Location.name(t.name, where) for t in inputs])
        with ir.InsertionPoint(block):
            emitter = Emitter(graph, dict(zip(inputs.values(), block.arguments)))
            func.ReturnOp(emitter.emit(results))


def _type(t: TensorFacts):
    shape = [ir.ShapedType.get_dynamic_size() if size is None else size for size in t.shape]
    return ir.RankedTensorType.get(shape, ir.Type.parse(_FLOATS.get(t.dtype, t.dtype)))
