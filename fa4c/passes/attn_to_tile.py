"""Attention as mathematics becomes the program of one CTA: blocks of queries and keys, tiles in shared memory and registers.

A CTA takes block_m queries of one head and batch entry. It loads them once and visits the keys in blocks of block_n, from the last to the
first: with a causal mask the blocks that need masking come first, and a running softmax starts near its final maximum. Scores never reach
global memory, which is why attention is done in blocks at all. A softmax becomes its online form: row maximum and partial row sums go from
block to block, accumulators are multiplied by what the maximum grew, and are divided by the row sum once at the end.

Band masks (`attn-simplify-mask` runs first) bound the loop and say which blocks need no mask; other masks are evaluated in every block.
Keys past the end are masked in the last block only. Block shapes, 0 = chosen here: `_attn_to_tile_shape.py`. Where the best one depends on
the lengths there are several kernels, and the host launches one of them (`scf.if`): `_attn_to_tile_configurations.py`.

Before:  %s = "attn.gemm"(%q, %k) {transpose_b = true} ...   %p, %lse = "attn.softmax"(%s) ...   %o = "attn.gemm"(%pc, %v) ...
After:   "tile.host" with a launch on a grid (query blocks, heads, batch), "tile.kernel" with
           %q0 = "tile.load"(%q, ...) : tensor<128x128xbf16, #tile.smem>
           scf.for %t = %c0 to %blocks step %c1 iter_args(%o = %zero, %m = %minus_inf, %l = %zero4) {
             %k0 = "tile.load" ...   %s = "tile.mma"(%q0, %k0) {transpose_b = true} ...   %m1 = "tile.reduce"(%s, %m) {kind = "max"} ...
             %f = "tile.rescale_factor"(%m, %m1) ...   %p = "tile.map"(%s, ...) ...   %o1 = "tile.mma"(%pc, %v0, %of) ... }
"""

import json

from ..ir.attn_signature import attn_functions, memory_order
from ..ir.diagnostics import Diagnostic, op_diagnostic
from ..ir.mlir import arith, ir, scf
from ..ir.tile import HostOp, KernelOp, LaunchOp, tile_type
from ..targets import of as target_of
from ._attn_to_tile_configurations import MEASURED, choose_configurations
from ._attn_to_tile_frame import dim_of
from ._attn_to_tile_kernel import Kernel
from ._attn_to_tile_plan import SPACE, Plan, Score, make_plan
from ._attn_to_tile_shape import Demand
from ._tile_map import erase_unused
from .registry import register_pass
from .tile_l2_hints import hint_loads


@register_pass("attn-to-tile")
def attn_to_tile(
    module: ir.Module, *, block_m: int = 0, block_n: int = 0, buffers: int = 0, configurations: str = MEASURED
) -> None:
    functions = attn_functions(module)
    if len(functions) != 1:
        raise Diagnostic(
            f"there are {len(functions)} attn functions to lower",
            where=module.operation.location,
            why="one program is made from one function",
            fix="put each into a file of its own" if functions else "start from an attn file",
        )
    function, target = functions[0], target_of(module)
    plan = make_plan(function)
    _check_operands(plan, target)
    step = target.mma.k
    chosen = choose_configurations(
        function, plan, demand_of(plan, step), target, wanted=configurations, block_m=block_m, block_n=block_n, buffers=buffers
    )
    semantics = _semantics(module, function)
    names = [_kernel_name(plan) + (f"_{c.label}" if len(chosen) > 1 else "") for c in chosen]
    with ir.InsertionPoint(function), function.location:
        _emit_host(plan, list(zip(names, chosen, strict=True)), semantics)
        for name, configuration in zip(names, chosen, strict=True):
            _emit_kernel(plan, name, configuration, lambda size: _padded(size, step))
    function.operation.erase()


def _padded(size: int, step: int) -> int:
    return -(-size // step) * step


def _check_operands(plan: Plan, target) -> None:
    """Dtypes and head dims that the target's MMA takes."""
    for operation in plan.operations:
        for value in operation.operands if operation.name == "attn.gemm" else []:
            tensor = plan.tensors.get(value)
            if tensor is None:
                continue
            if tensor.dtype not in target.dtypes:
                raise op_diagnostic(
                    operation,
                    f"multiplies {tensor.dtype} ({tensor.name})",
                    why=f"tensor cores take {', '.join(target.dtypes)}",
                    fix="pass it in one of these",
                )
            size = tensor.shape[1]
            if size % target.head_dim_step or not 0 < size <= target.max_head_dim:
                raise op_diagnostic(
                    operation,
                    f"has head dim {size} ({tensor.dims[1]} of {tensor.name})",
                    why=f"head dims are multiples of {target.head_dim_step} up to {target.max_head_dim}",
                    fix="pad the tensor outside",
                )


def demand_of(plan: Plan, step: int) -> Demand:
    rows, columns, accumulators = {}, [], []
    for operation in plan.operations:
        if operation.name != "attn.gemm":
            continue
        a, b = (plan.tensors.get(value) for value in operation.operands)
        if a is not None:
            rows[a.name] = _padded(a.shape[1], step)
        columns.append(_padded(b.shape[1], step))
        if plan.dims_of(operation.results[0]) != SPACE:
            accumulators.append(_padded(b.shape[1], step))
    softmaxes = sum(operation.name == "attn.softmax" for operation in plan.operations)
    return Demand(tuple(rows.values()), tuple(columns), tuple(accumulators), _live_halves(plan), softmaxes)


def _live_halves(plan: Plan) -> int:
    """The most that scores take of registers at once, in 16 bits an element. Elementwise work is in place, but a cast needs both forms."""
    last_use = {value: position for position, operation in enumerate(plan.operations) for value in operation.operands}
    scores = [value for value, kind in plan.kinds.items() if isinstance(kind, Score)]
    born = {value: position for position, operation in enumerate(plan.operations) for value in operation.results}
    most = 0
    for position, operation in enumerate(plan.operations):
        both = operation.name == "attn.cast"
        live = [v for v in scores if born[v] <= position < last_use.get(v, -1) or (both and last_use.get(v) == position)]
        live += [v for v in scores if born[v] == position and last_use.get(v, -1) <= position]
        most = max(most, sum(2 if v.type.element_type.width == 32 else 1 for v in live))
    return most


def _semantics(module, function) -> ir.StringAttr:
    """The variant's expression tree as it was before any pass, which the driver keeps on the module."""
    attributes = module.operation.attributes
    if "fa4c.semantics" in attributes:
        return ir.StringAttr(attributes["fa4c.semantics"])
    from ..ir.semantics import from_function

    return ir.StringAttr.get(json.dumps(from_function(function)))


# -- host ------------------------------------------------------------------------------------------------


def _tensors(plan: Plan) -> list:
    """(role, facts, order in memory, type in global memory) of each argument and result."""
    described = []
    for role, group in (("input", plan.facts.args), ("output", plan.facts.results)):
        for tensor in group:
            order = memory_order(tensor, plan.facts.layout)
            static = dict(zip(tensor.dims, tensor.shape, strict=True))
            element = {"fp16": "f16"}.get(tensor.dtype, tensor.dtype)
            described.append((role, tensor, order, tile_type([static.get(name) for name in order], element, "gmem")))
    return described


def _entry(role: str, tensor, order) -> ir.DictAttr:
    def strings(names):
        return ir.ArrayAttr.get([ir.StringAttr.get(name) for name in names])

    entry = {"name": ir.StringAttr.get(tensor.name), "role": ir.StringAttr.get(role), "axes": strings(tensor.axes), "dims": strings(order)}
    if role == "output" and len(tensor.dims) == 1:
        entry["optional"] = ir.BoolAttr.get(True)
    return ir.DictAttr.get(entry)


def _emit_host(plan: Plan, kernels: list, semantics) -> None:
    """`kernels`: (name, configuration) of each; the host launches the first whose limit holds."""
    tensors = _tensors(plan)
    host = HostOp(
        sym_name=ir.StringAttr.get(plan.facts.name),
        tensors=ir.ArrayAttr.get([_entry(role, t, order) for role, t, order, _ in tensors]),
        semantics=semantics,
    )
    block = _region_block(host, tensors)
    with ir.InsertionPoint(block):
        one = arith.constant(ir.IndexType.get(), 1)

        def size(*names):
            for name in names:
                for argument, (_, _, order, _) in zip(block.arguments, tensors, strict=True):
                    if name in order:
                        return dim_of(argument, order.index(name))
            return one

        def launch(name, configuration):
            rows = arith.constant(ir.IndexType.get(), configuration.shape.block_m)
            grid = [arith.ceildivsi(size("m"), rows), size("hq", "hkv"), size("b")]
            LaunchOp(kernel=ir.FlatSymbolRefAttr.get(name), grid=grid, tensors=list(block.arguments), scalars=[])

        _emit_choice(kernels, size, launch)


def _emit_choice(kernels: list, size, launch) -> None:
    (name, configuration), *others = kernels
    if not others:
        launch(name, configuration)
        return
    which, most = configuration.limit
    fits = arith.cmpi(arith.CmpIPredicate.sle, size(which), arith.constant(ir.IndexType.get(), most))
    branch = scf.IfOp(fits, has_else=True)
    with ir.InsertionPoint(branch.then_block):
        launch(name, configuration)
        scf.YieldOp([])
    with ir.InsertionPoint(branch.else_block):
        _emit_choice(others, size, launch)
        scf.YieldOp([])


def _emit_kernel(plan: Plan, name: str, configuration, padded) -> None:
    tensors = _tensors(plan)
    kernel = KernelOp(sym_name=ir.StringAttr.get(name))
    block = _region_block(kernel, tensors)
    with ir.InsertionPoint(block):
        named = {tensor.name: argument for argument, (_, tensor, _, _) in zip(block.arguments, tensors, strict=True)}
        Kernel(plan, configuration.shape, padded, named).emit()
    erase_unused(block)
    hint_loads(kernel, *configuration.l2)


def _kernel_name(plan: Plan) -> str:
    return f"{plan.facts.name}_fwd"


def _region_block(op, tensors):
    kinds = [kind for _, _, _, kind in tensors]
    return op.body.blocks.append(*kinds, arg_locs=[op.location] * len(kinds))
