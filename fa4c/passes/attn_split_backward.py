"""Decide which results of a backward one kernel computes, and mark them with `attn.kernel`.

One kernel for all of dQ, dK and dV computes S and dP once: five GEMMs. It needs dK's and dV's accumulators in registers beside the scores,
and adds each block's dQ to global memory. Where that does not fit (large head dims), or where the order of the additions must be fixed and
waiting for turns costs more than two further GEMMs, dQ gets a kernel whose CTAs own queries, and dK and dV one whose CTAs own keys, or
each one of its own: seven or eight GEMMs, no sums across CTAs.

Before:  -> (%dq, %dk, %dv)
After:   -> (%dq {attn.kernel = "dq"}, %dk {attn.kernel = "dk_dv"}, %dv {attn.kernel = "dk_dv"})

Options: `groups`, results by name, those of one kernel joined by "+", kernels by "," ("dq,dk+dv"); empty: the fewest kernels that fit the
target's registers and tensor memory. `fuse` = false never puts results over queries and results over keys into one kernel. `ctas` = 2:
pairs of CTAs will form the products, of whose dQ each has half (attn-to-tile{alike=2}, tile-split-2cta). `attn-outline-kernels` makes
the kernels.
"""

import math
from dataclasses import replace

from ..ir.attn_dims import infer_dims
from ..ir.attn_signature import attn_functions, function_facts, tensor_attributes
from ..ir.diagnostics import Diagnostic, nearest, op_diagnostic
from ..ir.mlir import ir
from ..targets import of as target_of
from ._attn_to_tile_regions import constant_result
from ._attn_to_tile_shape import backward_columns, backward_registers, least_columns, register_budget
from ._infinities import never
from ._refinements import needed, refinements
from .registry import register_pass

_GROUPS = 2  # compute warpgroups of a kernel: 128 rows
_SPAN = 16  # columns: what warpgroups that share the columns of a sum take are whole spans, padding included
_USUAL_HALVES = 5  # what `backward_registers` counts: P and dP in f32, one of them in 16 bits
_USUAL_BESIDE_PRODUCTS = 3  # the same without the product, which lies in tensor memory
_MOST_READERS = 2  # of a value that is made on the way


@register_pass("attn-split-backward")
def attn_split_backward(module: ir.Module, *, groups: str = "", fuse: bool = True, ctas: int = 1) -> None:
    if ctas not in (1, 2):
        raise Diagnostic(f"ctas={ctas} is no number of CTAs that form a product", why="one does, or the two of a pair", fix="give 1 or 2")
    for function in attn_functions(module):
        results = function_facts(function).results
        chosen = _parse(function, groups, results) if groups else _fewest(function, results, target_of(module), fuse, ctas)
        if len(chosen) > 1:
            _mark(function, results, chosen)


def _parse(function, text: str, results) -> list[list]:
    named = {t.name: t for t in results}
    chosen, seen = [], set()
    for part in text.split(","):
        chosen.append([])
        for name in (word.strip() for word in part.split("+")):
            if name not in named or name in seen:
                raise op_diagnostic(
                    function,
                    f"has no result '{name}' to put into a kernel" if name not in named else f"is to compute '{name}' twice",
                    why=f"its results are: {', '.join(named)}",
                    fix=nearest(name, named) or "attn-split-backward{groups=dq,dk+dv}",
                )
            seen.add(name)
            chosen[-1].append(named[name])
    missing = [name for name in named if name not in seen]
    if missing:
        raise Diagnostic(f"'{missing[0]}' is in no group", where=function.location, fix=f"add it: groups={text}+{missing[0]}")
    return chosen


def _fewest(function, results, target, fuse: bool, ctas: int) -> list[list]:
    """The first division that fits: all in one kernel; by the dimension that CTAs own; each result apart.

    One kernel for all owns keys, so most results must be over keys: dQ and dK without dV are two kernels. Sums over all of the scores
    (gradients of shared scalars) are made along with dQ, as CTAs that own queries sum over keys.
    """
    scored = [t for t in results if {"m", "n"} & set(t.dims)]
    rest = [t for t in results if t not in scored]
    by_dim = [[t for t in scored if dim in t.dims and not (dim == "n" and "m" in t.dims)] for dim in ("m", "n")]  # over both: with queries
    over_keys = sum("n" in t.dims for t in scored)
    divisions = [[scored]] if fuse and not rest and over_keys * 2 > len(scored) else []
    divisions += [[group for group in by_dim if group], [[t] for t in scored]]
    further = max(0, _score_halves(function) - _USUAL_HALVES)
    if target.mma.accumulator == "tmem":
        further = max(further, _score_halves(function, products=False) - _USUAL_BESIDE_PRODUCTS)
    chosen = next((d for d in divisions if all(_fits(group, target, further, ctas) for group in d)), divisions[-1])
    if not scored:
        return [rest]
    chosen[0] = chosen[0] + rest
    return chosen


def _score_halves(function, *, products: bool = True) -> int:
    """The most 16-bit units of an element's values over the scores that are alive at once: a soft cap keeps its tanh to the end
    where attn-early-factors has not run. What corrections are made of is no matter: they are a kernel of their own. Without `products` of
    GEMMs and what tile-join-maps computes on the way, which take no registers where products lie in tensor memory."""
    operations = [op.operation for op in function.operation.regions[0].blocks[0].operations]
    made = needed(operations, {refined.value for refined in refinements(operations)})
    operations = [op for op in operations if not op.results or made.intersection(op.results)]
    last = {value: k for k, op in enumerate(operations) for value in op.operands}
    dims = infer_dims(function, function_facts(function))
    halves, most = {}, 0
    for k, op in enumerate(operations):
        if not products and (op.name == "attn.gemm" or _made_on_the_way(k, operations, dims)):
            continue
        for value in op.results:
            if _is_score(value) and value in last:
                halves[value] = -(-value.type.element_type.width // 16)
        halves = {value: size for value, size in halves.items() if last[value] > k}
        most = max(most, sum(halves.values()))
    return most


def _is_score(value) -> bool:
    return list(value.type.shape) == [ir.ShapedType.get_dynamic_size()] * 2


def _made_on_the_way(k: int, operations: list, dims: dict) -> bool:
    """Whether tile-join-maps will compute the result of operation `k` along with its readers: they read nothing that is made later, and
    another value in registers, whose place what they make can take; and no select for rows past the end comes between."""
    op, known = operations[k], {value for earlier in operations[: k + 1] for value in earlier.results}
    readers = [reader for reader in operations if set(op.results).intersection(reader.operands)]
    read = {value for reader in readers for value in reader.operands if not isinstance(value.owner, ir.Block)}
    beside = [value for value in read - set(op.results) if _is_score(value) and value.owner.name != "attn.gemm"]
    if op.name != "attn.map" or not beside or len(readers) > _MOST_READERS or not read <= known:
        return False
    return all(reader.name in ("attn.map", "attn.cast") for reader in readers) and _past_the_end(op.results[0], dims) is not None


def _past_the_end(value, dims: dict) -> float | None:
    """What a value is for queries past the end, where CTAs own keys and q and rows are loaded as 0; None where that is not known."""
    over = dims.get(value, ((), ()))[0]
    if over == ("m",):
        return 0.0
    if isinstance(value.owner, ir.Block) or set(over) != {"m", "n"}:
        return None
    operation = value.owner.operation
    if operation.name == "attn.gemm":
        return 0.0
    if operation.name in ("attn.mask", "attn.band_mask"):
        return -math.inf
    block, inputs = operation.regions[0].blocks[0], list(operation.operands)
    known = {argument: _past_the_end(x, dims) for argument, x in zip(block.arguments, inputs, strict=False)}
    return constant_result(block, known, {argument: never(x) for argument, x in zip(block.arguments, inputs, strict=False)})


def _fits(group, target, further: int, ctas: int) -> bool:
    """Whether the accumulators of results over the stationary dimension, scores beside them, fit the registers of a thread.

    `further`: 16-bit units that an element of the scores takes beyond the usual ones.
    """
    over_keys = sum("n" in t.dims for t in group)
    stationary = "n" if over_keys * 2 > len(group) else "m"
    summed = [t for t in group if len(t.dims) == 2 and t.shape[-1] is not None]  # what is over queries and keys is no sum over either
    widths = [t.shape[-1] for t in summed if stationary in t.dims]
    streamed = [t.shape[-1] for t in summed if stationary not in t.dims]
    if backward_columns(target, widths, streamed, ctas) > target.tmem_columns:
        return False
    shared_by_columns = target.mma.accumulator == "reg"
    if shared_by_columns and any(-(-width // target.mma.k) * target.mma.k % (_GROUPS * _SPAN) for width in streamed):
        return False
    more = -(-target.mma.m * least_columns(target, streamed) * further // (2 * 32 * target.warps_per_warpgroup))
    return backward_registers(target, widths, streamed) + more <= register_budget(target, _GROUPS)


def _mark(function, results, chosen: list[list]) -> None:
    names = {t.name: "_".join(other.name for other in group) for group in chosen for t in group}
    marked = [replace(t, kernel=names[t.name]) for t in results]
    function.operation.attributes["res_attrs"] = ir.ArrayAttr.get([tensor_attributes(t) for t in marked])
