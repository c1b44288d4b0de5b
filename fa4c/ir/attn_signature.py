"""What the arguments and results of an attn function are: `attn.*` attributes on `func.func`, read and verified.

MLIR does not check discardable attributes, so `verify_function` does: known names only, the right kinds, and that the dimensions which the
operations produce are those that the results claim. It runs before every pipeline and in `fa4c check`.
"""

import difflib
import re
from dataclasses import dataclass

from .base import IDENTIFIER, NAME_RULE
from .diagnostics import Diagnostic, nearest, op_diagnostic
from .mlir import func, ir

AXES = ("b", "hq", "hkv")
SIZES = (*AXES, "m", "n")
ALIGNMENTS = ("top_left", "bottom_right")
LAYOUTS = ("bshd", "bhsd")
ARGUMENT_ATTRIBUTES = ("attn.name", "attn.axes", "attn.dims", "attn.fill", "attn.cu_seqlens", "attn.never")
RESULT_ATTRIBUTES = ("attn.name", "attn.axes", "attn.dims", "attn.workspace", "attn.kernel")
FUNCTION_ATTRIBUTES = ("attn.align", "attn.layout", "attn.stationary", "attn.when")
STATIONARY = ("m", "n")
INFINITIES = ("inf", "-inf")
_FUNC_OWN_ATTRIBUTES = ("sym_name", "function_type", "sym_visibility", "arg_attrs", "res_attrs", "no_inline")
_DTYPES = {"f32": "f32", "f64": "f64", "bf16": "bf16", "f16": "fp16", "i32": "i32", "i64": "i64", "i1": "i1", "index": "index"}
_NUMBER = r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?"
_WHEN = re.compile(r"(\w+) *<= *([0-9]+)")
_FILL = re.compile(rf"normal|alibi|uniform\({_NUMBER},\s*{_NUMBER}\)|sorted_ids\([1-9][0-9]*\)")


@dataclass(frozen=True)
class TensorFacts:
    """An argument or a result. `shape` has one size for each of `dims`, None where it is known at run time only.

    `workspace`: a result that a later function of the module takes by its name, and no result of the whole. `never`: "inf" or "-inf", a
    value that no element has. `kernel`: results of one name are computed by one kernel.
    """

    name: str
    dtype: str
    axes: tuple[str, ...]
    dims: tuple[str, ...]
    shape: tuple[int | None, ...]
    fill: str | None = None
    cu_seqlens: str | None = None
    workspace: bool = False
    never: str | None = None
    kernel: str | None = None


@dataclass(frozen=True)
class FunctionFacts:
    """`stationary`: the dimension whose blocks CTAs own, "m" where the function does not say.

    `when`: (size, most). The function runs where that size is at most so large, and its results, workspaces each, are arguments by the
    same names: what they are where it does not run, and in the memory that it writes.
    """

    name: str
    align: str
    layout: str
    args: tuple[TensorFacts, ...]
    results: tuple[TensorFacts, ...]
    stationary: str = "m"
    when: tuple[str, int] | None = None


def dtype_name(kind) -> str:
    """The name of an element type in semantics trees and manifests: f16 is "fp16" there."""
    return _DTYPES[str(kind)]


def is_attn_function(op) -> bool:
    """Whether a `func.func` is at the attn level: it holds an attn operation or carries an attn attribute."""
    if op.operation.name != "func.func":
        return False
    operation = op.operation
    dictionaries = [
        entry
        for which in ("arg_attrs", "res_attrs")
        if which in operation.attributes
        for entry in ir.ArrayAttr(operation.attributes[which])
    ]
    names = [name for name in operation.attributes] + [entry.name for d in dictionaries for entry in ir.DictAttr(d)]
    names += [inner.operation.name for block in operation.regions[0].blocks for inner in block.operations]
    return any(name.startswith("attn.") for name in names)


def verify_module(module) -> None:
    """`verify_function` on every attn function of a module (or of its operation). Raises `Diagnostic`."""
    for op in module.operation.regions[0].blocks[0].operations:
        if is_attn_function(op):
            verify_function(op)


def verify_function(func_op) -> None:
    """Check signature and dimensions of an attn `func.func`, as far as single operations cannot. Raises `Diagnostic`."""
    from .attn_dims import infer_dims

    with func_op.operation.context:
        facts = function_facts(func_op)
        _check_names(func_op, facts)
        _check_packing(func_op, facts)
        infer_dims(func_op, facts)


def function_facts(func_op) -> FunctionFacts:
    """The signature of an attn function, every attribute checked by itself. Raises `Diagnostic`."""
    op = func_op.operation
    kind = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
    if not op.regions[0].blocks or len(op.regions[0].blocks) != 1:
        raise op_diagnostic(
            op,
            f"has {len(op.regions[0].blocks)} blocks",
            why="an attn function is one straight line of operations",
            fix="give it one block",
        )
    if not IDENTIFIER.fullmatch(op.attributes["sym_name"].value):
        raise op_diagnostic(op, f"has the name {op.attributes['sym_name']}, which is no identifier", **NAME_RULE)
    _check_known(op, [name for name in op.attributes if name not in _FUNC_OWN_ATTRIBUTES], FUNCTION_ATTRIBUTES, "", op.location)
    arguments = op.regions[0].blocks[0].arguments
    return FunctionFacts(
        name=op.attributes["sym_name"].value,
        align=_choice(op, "attn.align", ALIGNMENTS),
        layout=_choice(op, "attn.layout", LAYOUTS),
        args=tuple(
            _tensor_facts(op, f"argument {n}", t, _dictionary(op, "arg_attrs", n), ARGUMENT_ATTRIBUTES, arguments[n].location)
            for n, t in enumerate(kind.inputs)
        ),
        results=tuple(
            _tensor_facts(op, f"result {n}", t, _dictionary(op, "res_attrs", n), RESULT_ATTRIBUTES, op.location)
            for n, t in enumerate(kind.results)
        ),
        stationary=_choice(op, "attn.stationary", STATIONARY),
        when=_when(op),
    )


def _dictionary(op, which: str, number: int) -> dict:
    if which not in op.attributes:
        return {}
    return {entry.name: entry.attr for entry in ir.DictAttr(ir.ArrayAttr(op.attributes[which])[number])}


def _tensor_facts(op, what: str, kind, attributes: dict, allowed: tuple[str, ...], where) -> TensorFacts:
    _check_known(op, list(attributes), allowed, f" on {what}", where)
    if not isinstance(kind, ir.RankedTensorType) or kind.encoding is not None or str(kind.element_type) not in _DTYPES:
        raise Diagnostic(
            f"'func.func' has {what} of type {kind}",
            where=where,
            why="it must be a ranked tensor of floats or integers without encoding",
            fix="for example tensor<?x128xbf16>",
        )
    for name in ("attn.name", "attn.axes", "attn.dims"):
        if name not in attributes:
            raise Diagnostic(
                f"'func.func' lacks '{name}' on {what}",
                where=where,
                why="every argument and result has a name, its axes and its dimensions",
                fix=f"add {_EXAMPLES[name]}",
            )
    name = _string(attributes["attn.name"], "attn.name", what, where)
    if not IDENTIFIER.fullmatch(name):
        raise Diagnostic(
            f"'func.func' has attn.name = \"{name}\" on {what}", where=where, why="it must be an identifier", fix="letters, digits and _"
        )
    shape = tuple(None if kind.is_dynamic_dim(k) else kind.get_dim_size(k) for k in range(kind.rank))
    facts = TensorFacts(
        name,
        dtype_name(kind.element_type),
        _strings(attributes["attn.axes"], "attn.axes", what, where),
        _strings(attributes["attn.dims"], "attn.dims", what, where),
        shape,
        _string(attributes["attn.fill"], "attn.fill", what, where) if "attn.fill" in attributes else None,
        _string(attributes["attn.cu_seqlens"], "attn.cu_seqlens", what, where) if "attn.cu_seqlens" in attributes else None,
        "attn.workspace" in attributes and _unit(attributes["attn.workspace"], "attn.workspace", what, where),
        _string(attributes["attn.never"], "attn.never", what, where) if "attn.never" in attributes else None,
        _string(attributes["attn.kernel"], "attn.kernel", what, where) if "attn.kernel" in attributes else None,
    )
    _check_axes(facts, what, where)
    _check_dims(facts, what, kind, where)
    if facts.fill is not None and not _FILL.fullmatch(facts.fill):
        raise Diagnostic(
            f"'func.func' has attn.fill = \"{facts.fill}\" on {what}",
            where=where,
            why='it is "normal", "uniform(lo,hi)", "sorted_ids(n)" or "alibi"',
            fix='for example attn.fill = "uniform(0,10)"',
        )
    if facts.never not in (None, *INFINITIES):
        raise Diagnostic(f"'func.func' has attn.never = \"{facts.never}\" on {what}", where=where, why='it is "inf" or "-inf"')
    if facts.kernel is not None and not IDENTIFIER.fullmatch(facts.kernel):
        raise Diagnostic(f"'func.func' has attn.kernel = \"{facts.kernel}\" on {what}", where=where, why="it must be an identifier")
    return facts


_EXAMPLES = {"attn.name": 'attn.name = "q"', "attn.axes": 'attn.axes = ["b", "hq"]', "attn.dims": 'attn.dims = ["m", "d"]'}


def _check_known(op, names, allowed, suffix: str, where) -> None:
    for name in sorted(set(names) - set(allowed)):
        near = difflib.get_close_matches(name.split(".")[-1], [a.split(".")[-1] for a in allowed], n=1, cutoff=0.3)
        raise Diagnostic(
            f"'func.func' has no attribute '{name}'{suffix}",
            where=where,
            why=f"declared attributes are: {', '.join(allowed)}",
            fix=f"did you mean 'attn.{near[0]}'?" if near else "remove it",
        )


def _choice(op, name: str, choices: tuple[str, ...]) -> str:
    if name not in op.attributes:
        return choices[0]
    value = _string(op.attributes[name], name, "the function", op.location)
    if value not in choices:
        raise op_diagnostic(op, f'has {name} = "{value}"', why=f"it is one of {', '.join(choices)}", fix=nearest(value, choices))
    return value


def _when(op) -> tuple[str, int] | None:
    if "attn.when" not in op.attributes:
        return None
    text = _string(op.attributes["attn.when"], "attn.when", "the function", op.location)
    found = _WHEN.fullmatch(text)
    if not found or found[1] not in SIZES:
        why = f"a function runs where one of {', '.join(SIZES)} is at most a number"
        raise op_diagnostic(op, f'has attn.when = "{text}"', why=why, fix='write attn.when = "n <= 16"')
    return found[1], int(found[2])


def _string(attribute, name: str, what: str, where) -> str:
    if not isinstance(attribute, ir.StringAttr):
        raise Diagnostic(f"'func.func' has {name} = {attribute} on {what}", where=where, why="it must be a string", fix=f'{name} = "..."')
    return attribute.value


def _unit(attribute, name: str, what: str, where) -> bool:
    if not isinstance(attribute, ir.UnitAttr):
        raise Diagnostic(f"'func.func' has {name} = {attribute} on {what}", where=where, why="it has no value", fix=f"write {name}")
    return True


def tensor_attributes(tensor: TensorFacts) -> ir.DictAttr:
    """The `attn.*` attributes that say these facts: an entry of `arg_attrs` or `res_attrs`."""

    def strings(names):
        return ir.ArrayAttr.get([ir.StringAttr.get(name) for name in names])

    entries = {"attn.name": ir.StringAttr.get(tensor.name), "attn.axes": strings(tensor.axes), "attn.dims": strings(tensor.dims)}
    for name in ("fill", "cu_seqlens", "never", "kernel"):
        if getattr(tensor, name) is not None:
            entries[f"attn.{name}"] = ir.StringAttr.get(getattr(tensor, name))
    if tensor.workspace:
        entries["attn.workspace"] = ir.UnitAttr.get()
    return ir.DictAttr.get(entries)


def _strings(attribute, name: str, what: str, where) -> tuple[str, ...]:
    if not isinstance(attribute, ir.ArrayAttr) or not all(isinstance(entry, ir.StringAttr) for entry in attribute):
        raise Diagnostic(
            f"'func.func' has {name} = {attribute} on {what}", where=where, why="it must be a list of strings", fix=f"add {_EXAMPLES[name]}"
        )
    return tuple(entry.value for entry in attribute)


def _check_axes(facts: TensorFacts, what: str, where) -> None:
    if facts.axes != tuple(a for a in AXES if a in facts.axes) or {"hq", "hkv"} <= set(facts.axes):
        raise Diagnostic(
            f"'func.func' has attn.axes = {list(facts.axes)} on {what}",
            where=where,
            why="axes are b, then hq or hkv, each at most once",
            fix='for example attn.axes = ["b", "hq"]',
        )


def _check_dims(facts: TensorFacts, what: str, kind, where) -> None:
    if len(facts.dims) != len(facts.shape):
        raise Diagnostic(
            f"'func.func' has {len(facts.dims)} attn.dims on {what}, but its type {kind} has rank {len(facts.shape)}",
            where=where,
            why="each dimension of one (batch, head) has a name",
            fix="axes (batch, head) are not part of the type",
        )
    for dim, size in zip(facts.dims, facts.shape, strict=True):
        if not IDENTIFIER.fullmatch(dim) or dim in AXES:
            raise Diagnostic(
                f"'func.func' names a dimension '{dim}' on {what}",
                where=where,
                why="dimensions are m, n, d, dv or another identifier that is no axis",
            )
        if dim in ("m", "n") and size is not None:
            raise Diagnostic(
                f"'func.func' has the static size {size} for dimension {dim} on {what}",
                where=where,
                why="one kernel serves all lengths",
                fix=f"write ? for {dim} in {kind}",
            )
        if dim in ("d", "dv") and size is None:
            raise Diagnostic(
                f"'func.func' has no size for dimension {dim} on {what}",
                where=where,
                why="head dims are compiled in",
                fix=f"write the size, for example 128, in {kind}",
            )


def _check_names(op, facts: FunctionFacts) -> None:
    seen, updated = set(), _updated(op, facts)
    sizes: dict[str, tuple[int | None, str]] = {}
    for tensor in (*facts.args, *facts.results):
        if tensor.name in seen and not (tensor.workspace and tensor.name in updated):
            raise op_diagnostic(
                op, f"has two tensors named '{tensor.name}'", why="names are the keys of inputs and outputs", fix="rename one of them"
            )
        seen.add(tensor.name)
        for dim, size in zip(tensor.dims, tensor.shape, strict=True):
            size_before, other = sizes.setdefault(dim, (size, tensor.name))
            if size != size_before:
                raise op_diagnostic(
                    op,
                    f"has dimension {dim} of size {size or '?'} in '{tensor.name}' but {size_before or '?'} in '{other}'",
                    why="one name is one size",
                    fix="give one of them another name",
                )


def _updated(op, facts: FunctionFacts) -> set[str]:
    """The names of the workspaces that a function with `attn.when` takes and returns: all of its results."""
    if facts.when is None:
        return set()
    if not any(facts.when[0] in (*t.axes, *t.dims) for t in facts.args):
        raise op_diagnostic(op, f'has attn.when = "{facts.when[0]} <= {facts.when[1]}"', why=f"no argument has the size {facts.when[0]}")
    taken = {t.name: t for t in facts.args}
    for result in facts.results:
        before = taken.get(result.name)
        if not result.workspace or before is None or (before.dtype, before.axes, before.dims, before.shape) != (
            result.dtype, result.axes, result.dims, result.shape
        ):
            raise op_diagnostic(
                op,
                f"returns '{result.name}', and may not run at all",
                why="where attn.when does not hold, a result is what an argument of the same name, dtype, axes and dimensions was",
                fix=f"take the workspace '{result.name}', which a function before returns, or remove attn.when",
            )
    return {t.name for t in facts.results}


def _check_packing(op, facts: FunctionFacts) -> None:
    packed = [t for t in facts.args if t.cu_seqlens is not None]
    for tensor in packed:
        if tensor.cu_seqlens not in ("m", "n"):
            raise op_diagnostic(op, f"has attn.cu_seqlens = \"{tensor.cu_seqlens}\" on '{tensor.name}'", why='it packs "m" or "n"')
        if tensor.dtype != "i32" or tensor.axes or tensor.dims != ("batch_plus_1",):
            raise op_diagnostic(
                op,
                f"has packed lengths in '{tensor.name}' of dtype {tensor.dtype}, axes {list(tensor.axes)}, dims {list(tensor.dims)}",
                why="offsets are one i32 vector for the whole batch",
                fix='tensor<?xi32> {attn.axes = [], attn.dims = ["batch_plus_1"], attn.cu_seqlens = "m"}',
            )
        if sum(other.cu_seqlens == tensor.cu_seqlens for other in packed) > 1:
            raise op_diagnostic(op, f"packs dimension {tensor.cu_seqlens} twice", fix="keep one attn.cu_seqlens for it")


def attn_functions(module) -> list[func.FuncOp]:
    """The attn functions of a module (or of its operation), in order."""
    return [op for op in module.operation.regions[0].blocks[0].operations if is_attn_function(op)]


def memory_order(tensor: TensorFacts, layout: str, packed: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Axes and dimensions of a tensor, outermost first, as it lies in memory: ("b", "m", "hq", "d") for q under bshd.

    `packed` names the dimensions that `attn.cu_seqlens` packs: a tensor over the batch that has one of them has no axis b of its own.
    """
    axes = tensor.axes
    order = [*axes, *tensor.dims]
    if layout == "bshd" and len(tensor.dims) == 2 and len(axes) == 2 and axes[0] == "b":
        order = [axes[0], tensor.dims[0], axes[1], tensor.dims[1]]
    return tuple(name for name in order if not (name == "b" and set(packed) & set(tensor.dims)))
