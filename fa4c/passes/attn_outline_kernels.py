"""Split an attn function into the kernels that compute it: what precedes the scores, the scores, what follows.

A backward needs delta = rowsum(dO * O) before its block loop, for every block of keys again: a small kernel computes it once. CTAs own
blocks of one dimension, the stationary one: that which most results of a kernel have. What lacks it is the sum of what many CTAs
contribute: dQ where they own keys. Such sums are f32 numbers in memory, scaled and cast when all is there. What a CTA completes by itself
stays in the main kernel; that includes dK and dV under grouped queries, as a CTA that owns keys visits all heads of the group.

The kernels are functions of the module, run in order: NAME_preprocess, NAME_rows (sums over a row of scores that the scores of that row are
made of: delta as the row sum of P * dP), NAME_main, NAME_postprocess, each only where there is something for
it; instead of NAME_main one for each `attn.kernel` among the results (`attn-split-backward`). A result with `attn.workspace` is an
argument, by name, of a later function and no result of the whole. `attn.stationary` on a function says whose blocks its CTAs own.

A vector that a sum over scores corrects for some sizes only (delta where there are few keys: `attn-derive-backward`) is a workspace of the
preprocess kernel as it is without. NAME_refine, with `attn.when` = "n <= 16", takes and returns it, in place, and runs for such sizes only;
no other kernel knows of it.

Before:  func.func @f(%q, %k, %v, %o, %lse, %do) -> (%dq: bf16, %dk: bf16, %dv: bf16)
After:   func.func @f_preprocess(%o, %lse, %do) -> (%delta: f32 {attn.workspace}, ...)
         func.func @f_main(%q, %k, %v, %do, %delta, ...) -> (%dq_sum: f32 {attn.workspace}, %dk: bf16, %dv: bf16)
         func.func @f_postprocess(%dq_sum: f32) -> (%dq: bf16)

Option `stationary`: "n" or "m" for all kernels, or "auto".
"""

from dataclasses import dataclass, replace
from typing import Literal

from ..ir.attn_dims import infer_dims
from ..ir.attn_signature import TensorFacts, attn_functions, function_facts, tensor_attributes
from ..ir.diagnostics import Diagnostic
from ..ir.mlir import ir
from . import _infinities
from ._refinements import refinements
from .registry import register_pass

_DTYPES = {"f16": "fp16"}
_SIZES = ("b", "hq", "hkv", "m", "n")


@register_pass("attn-outline-kernels")
def attn_outline_kernels(module: ir.Module, *, stationary: Literal["auto", "n", "m"] = "auto") -> None:
    functions = attn_functions(module)
    if len(functions) != 1:
        raise Diagnostic(
            f"there are {len(functions)} attn functions to outline",
            where=module.operation.location,
            why="one program is made from one function",
        )
    _Outline(functions[0], stationary).apply()


@dataclass(frozen=True)
class _Part:
    """A function to be: `cut` are values that it takes as arguments, by the tensors they are; it returns `returned`."""

    suffix: str
    cut: dict
    returned: list  # (value, TensorFacts)
    stationary: str = ""
    refined: tuple = ()  # of those returned, as they are where the function runs: a `Refinement` each


class _Outline:
    def __init__(self, function, stationary: str):
        self.function, self.facts = function, function_facts(function)
        self.known = infer_dims(function, self.facts)
        self.block = function.operation.regions[0].blocks[0]
        self.operations = [op.operation for op in self.block.operations]
        self.returned = list(zip(self.operations[-1].operands, self.facts.results, strict=True))
        self._names = {t.name for t in (*self.facts.args, *self.facts.results)}
        self.scored = self._follow_scores()
        self.groups = self._group()
        self.stationary = {name: _most_common(group) if stationary == "auto" else stationary for name, group in self.groups.items()}

    def apply(self) -> None:
        before, rows, summed, main, final = self._values_before(), self._row_sums(), {}, {name: [] for name in self.groups}, []
        refined = self._take_refined(before, rows)
        for name, group in self.groups.items():
            sums = []
            for value, tensor in group:
                source = self._sum_of(value, tensor, self.stationary[name])
                if source is None:
                    main[name].append((value, replace(tensor, kernel=None)))
                    continue
                summed[source] = self._workspace(source, tensor.axes)
                sums.append((source, summed[source]))
                final.append((value, replace(tensor, kernel=None)))
            main[name][:0] = sums
        if not before and not rows and not final and len(self.groups) == 1:
            return
        parts = [_Part("_preprocess", {}, list(before.items())), _Part("_rows", before, list(rows.items()), "m")]
        parts += self._refining(before, refined)
        known = {refined[value].value if value in refined else value: tensor for value, tensor in before.items()} | rows
        parts += [_Part(f"_{name}", known, returned, self.stationary[name]) for name, returned in main.items()]
        for dim in dict.fromkeys(_first_dim(tensor) for _, tensor in final):
            own = [(value, tensor) for value, tensor in final if _first_dim(tensor) == dim]
            parts.append(_Part("_postprocess" if len(own) == len(final) else f"_postprocess_{dim}", summed, own, dim))
        where = ir.InsertionPoint(self.function.operation)
        for part in parts:
            if part.returned:
                self._emit(part, where)
        self.function.operation.erase()

    def _group(self) -> dict:
        """Results by the kernel that computes them: name -> [(value, facts)]."""
        groups: dict = {}
        for value, tensor in self.returned:
            groups.setdefault(tensor.kernel or "main", []).append((value, tensor))
        return groups

    def _is_score(self, value) -> bool:
        return value in self.known and {"m", "n"} <= set(self.known[value][0])

    def _follow_scores(self) -> set:
        """The values that scores have a part in."""
        scored = set()
        for operation in self.operations:
            if any(self._is_score(value) or value in scored for value in (*operation.operands, *operation.results)):
                scored.update(operation.results)
        return scored

    def _values_before(self) -> dict:
        """What the score operations read that others compute, if it takes a sum to compute it, or is a vector along the blocks that are
        visited: value -> workspace."""
        read = [
            value
            for operation in self.operations
            if any(result in self.scored for result in operation.results)
            for value in operation.operands
            if value not in self.scored and not isinstance(value.owner, ir.Block) and value in self.known
        ]
        visited = [("m", "n")[stationary == "m"] for stationary in self.stationary.values()]
        if not any(
            self._takes_a_sum(value) or _takes_two_steps(value) or (len(dims := self.known[value][0]) == 1 and dims[0] in visited)
            for value in read
        ):
            return {}
        made = {value: self._workspace(value, self.known[value][1]) for value in dict.fromkeys(read)}
        return {value: replace(tensor, never=_infinities.never(value)) for value, tensor in made.items()}

    def _row_sums(self) -> dict:
        """Sums over the keys of a row of scores that scores are computed from: what needs the whole row, before the last block is done.
        value -> workspace."""
        read = [
            operand
            for operation in self.operations
            if any(self._is_score(value) for value in operation.results)
            for operand in operation.operands
            if operand in self.scored and not self._is_score(operand) and operand in self.known
        ]
        sums = [value for value in dict.fromkeys(read) if self.known[value][0] == ("m",) and self._is_row_sum(value)]
        return {value: self._workspace(value, self.known[value][1]) for value in sums}

    def _take_refined(self, before: dict, rows: dict) -> dict:
        """The row sums that a kernel may leave out, taken out of `rows`: what is there before -> its refinement."""
        packed = any(t.cu_seqlens for t in self.facts.args)  # then a size is not that of one batch entry
        found = [r for r in refinements(self.operations) if r.value in rows and r.base in before and not packed]
        for refined in found:
            rows.pop(refined.value)
        return {refined.base: refined for refined in found}

    def _refining(self, before: dict, refined: dict) -> list:
        """A part for each condition: it corrects workspaces in place."""
        parts: dict = {}
        for base, refinement in refined.items():
            parts.setdefault((refinement.size, refinement.most), []).append((base, refinement))
        return [
            _Part("_refine" + str(number or ""), before, [(r.value, before[base]) for base, r in own], "m", tuple(r for _, r in own))
            for number, own in enumerate(parts.values())
        ]

    def _is_row_sum(self, value) -> bool:
        """Whether it is a sum over scores, or made of one and of other values of its row."""
        if value not in self.scored or isinstance(value.owner, ir.Block):
            return False
        name = value.owner.name
        return name == "attn.reduce" or (name == "attn.map" and any(map(self._is_row_sum, value.owner.operands)))

    def _takes_a_sum(self, value) -> bool:
        if isinstance(value.owner, ir.Block):
            return False
        return value.owner.name in ("attn.reduce", "attn.gemm") or any(map(self._takes_a_sum, value.owner.operands))

    def _sum_of(self, value, result, stationary: str):
        """What a result is cast from, if that is the sum of several CTAs' contributions; else None."""
        source = value
        while not isinstance(source.owner, ir.Block) and source.owner.name in ("attn.cast", "attn.map") and len(source.owner.operands) == 1:
            source = source.owner.operands[0]
        if source == value or source not in self.scored:
            return None
        dims, axes = self.known[source]
        more = set(axes) - set(result.axes)
        complete = stationary in dims and (not more or (more == {"hq"} and "hkv" in result.axes))
        return None if complete else source

    def _workspace(self, value, axes) -> TensorFacts:
        name = getattr(value.owner.location, "name_str", "") or "w"
        while name in self._names:
            name += "_sum" if value in self.scored else "_"
        self._names.add(name)
        kind = value.type
        shape = tuple(None if kind.is_dynamic_dim(k) else kind.get_dim_size(k) for k in range(kind.rank))
        dtype = str(kind.element_type)
        return TensorFacts(name, _DTYPES.get(dtype, dtype), axes, self.known[value][0], shape, workspace=True)

    def _emit(self, part: _Part, where) -> None:
        """A copy of the whole function that takes and returns what the part does, without what nothing needs then."""
        copy = self.function.operation.clone(ip=where)
        copy.attributes["sym_name"] = ir.StringAttr.get(self.facts.name + part.suffix)
        block = copy.regions[0].blocks[0]
        counterpart = dict(zip(self.block.arguments, block.arguments))
        operations = [op.operation for op in block.operations]
        for old, new in zip(self.operations, operations):
            counterpart.update(zip(old.results, new.results))
        arguments = list(self.facts.args)
        operations[-1].erase()
        returned = [counterpart[value] for value, _ in part.returned]
        for value, tensor in part.cut.items():
            argument = block.add_argument(value.type, value.owner.location)
            counterpart[value].replace_all_uses_with(argument)
            returned = [argument if old == counterpart[value] else old for old in returned]
            arguments.append(replace(tensor, workspace=False))
        for refined in part.refined:
            copy.attributes["attn.when"] = ir.StringAttr.get(f"{refined.size} <= {refined.most}")
            _take_first_choice(counterpart[refined.value].owner)
        if part.stationary == "n":
            copy.attributes["attn.stationary"] = ir.StringAttr.get("n")
        with ir.InsertionPoint(block), self.operations[-1].location:
            ir.Operation.create("func.return", operands=returned)
        drop_dead(operations[:-1])
        arguments = drop_unused(block, arguments)
        copy.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get([argument.type for argument in block.arguments], [value.type for value in returned])
        )
        copy.attributes["arg_attrs"] = ir.ArrayAttr.get([tensor_attributes(t) for t in arguments])
        copy.attributes["res_attrs"] = ir.ArrayAttr.get([tensor_attributes(replace(t, never=None)) for _, t in part.returned])


def _first_dim(tensor) -> str:
    return tensor.dims[0] if tensor.dims else "scalar"


def _takes_two_steps(value) -> bool:
    """Whether it is made of what another operation made: a kernel reads elements of arguments, not of chains."""
    return any(not isinstance(operand.owner, ir.Block) for operand in value.owner.operands)


def _most_common(group: list) -> str:
    """The dimension that most results of a kernel have: each CTA completes its blocks of these."""
    having = {dim: sum(dim in tensor.dims for _, tensor in group) for dim in ("m", "n")}
    return "n" if having["n"] > having["m"] else "m"


def _take_first_choice(operation) -> None:
    """Of a map that yields a choice: where its condition holds."""
    block = operation.regions[0].blocks[0]
    last = list(block.operations)[-1].operation
    last.operands[0] = last.operands[0].owner.operands[1]
    for inner in reversed(list(block.operations)[:-1]):
        if not any(list(result.uses) for result in inner.operation.results):
            inner.operation.erase()


def drop_dead(operations) -> None:
    """Erase values that nothing reads, those too that only such are made of."""
    for operation in reversed(operations):
        if not any(list(result.uses) for result in operation.results):
            operation.erase()


def drop_unused(block, arguments: list) -> list:
    """Erase arguments that nothing reads; where positions or sizes are read, not the last one that says how large a dimension is."""
    sizes = {name for t in arguments for name in (*t.axes, *t.dims)} & set(_SIZES) if _reads_positions(block) else set()
    kept = list(enumerate(arguments))
    for number, tensor in reversed(list(enumerate(arguments))):
        rest = [entry for entry in kept if entry[0] != number]
        unused = not any(True for _ in block.arguments[number].uses) and not tensor.cu_seqlens
        if unused and sizes <= {name for _, t in rest for name in (*t.axes, *t.dims)}:
            block.erase_argument(number)
            kept = rest
    return [tensor for _, tensor in kept]


def _reads_positions(block) -> bool:
    for op in block.operations:
        for region in op.operation.regions:
            inner = region.blocks[0]
            if any(str(argument.type) == "index" and list(argument.uses) for argument in inner.arguments):
                return True
            if any(nested.operation.name == "attn.size" for nested in inner.operations):
                return True
        if op.operation.name == "attn.size":
            return True
    return False
