"""Attention as mathematics becomes the program of one CTA: blocks of rows and columns, tiles in shared memory and registers.

A CTA takes block_m rows (queries in a forward; keys where a backward's function is stationary over n) of one head and batch entry. It loads
them once and visits the columns in blocks of block_n. Scores never reach global memory, which is why attention is done in blocks at all. A
softmax becomes its online form: row maximum and partial row sums go from block to block, accumulators are multiplied by what the maximum
grew, and are divided by the row sum once at the end.

Band masks (`attn-simplify-mask` runs first) bound the loop and say which blocks need no mask; other masks are evaluated in every block.
Columns past the end are masked in the last block only. Block shapes, 0 = chosen here: `_attn_to_tile_shape.py`. Where the best one depends
on the lengths there are several kernels, and the host launches one of them (`scf.if`): `_attn_to_tile_configurations.py`. Several functions
become kernels that one host launches in order, under a condition where `attn.when` says so; results with `attn.workspace` are memory
between them. Results that are 0 whatever the arguments are the host fills: `_attn_to_tile_zeros.py`. `add-buffers`: copies in shared memory
of a part of a sum over several CTAs, on its way to memory (0: two if they fit). With `alike` so many neighbouring row blocks make the same
trips, over all columns that any of them sees, as CTAs must that form products together. Blocks are then such that a pair can halve what it
multiplies by, and as large as fits with these halves (`tile-split-2cta`).

Before:  %s = "attn.gemm"(%q, %k) {transpose_b = true} ...   %p, %lse = "attn.softmax"(%s) ...   %o = "attn.gemm"(%pc, %v) ...
After:   "tile.host" with a launch on a grid (query blocks, heads, batch), "tile.kernel" with
           %q0 = "tile.load"(%q, ...) : tensor<128x128xbf16, #tile.smem>
           scf.for %t = %c0 to %blocks step %c1 iter_args(%o = %zero, %m = %minus_inf, %l = %zero4) {
             %k0 = "tile.load" ...   %s = "tile.mma"(%q0, %k0) {transpose_b = true} ...   %m1 = "tile.reduce"(%s, %m) {kind = "max"} ...
             %f = "tile.rescale_factor"(%m, %m1) ...   %p = "tile.map"(%s, ...) ...   %o1 = "tile.mma"(%pc, %v0, %of) ... }
"""

import json
import os
from dataclasses import replace

from ..ir.attn_signature import attn_functions, function_facts, memory_order
from ..ir.diagnostics import Diagnostic, op_diagnostic
from ..ir.mlir import arith, i64, index_constant, ir, scf
from ..ir.tile import HostOp, KernelOp, LaunchOp, tile_type
from ..targets import of as target_of
from ._attn_to_tile_configurations import MEASURED, choose_configurations
from ._attn_to_tile_kernel import Kernel
from ._attn_to_tile_plan import Plan, Score, Streamed, Total, make_plan
from ._attn_to_tile_shape import Demand, copies_of_added, padding_step
from ._attn_to_tile_zeros import take_zeros
from ._tile_map import dim_of, erase_unused
from .registry import register_pass

_ALIGNED_ELEMENTS = 4  # rows of f32 workspaces start at multiples of 16 bytes, as TMA wants


@register_pass("attn-to-tile")
def attn_to_tile(
    module: ir.Module, *, block_m: int = 0, block_n: int = 0, buffers: int = 0, add_buffers: int = 0, configurations: str = MEASURED,
    alike: int = 1,
) -> None:
    if add_buffers < 0:
        raise Diagnostic(f"add_buffers={add_buffers} is no count", fix="give a positive number, or 0 for as many as fit, up to two")
    if alike < 1:
        raise Diagnostic(f"alike={alike} is no number of CTAs", why="so many neighbours make the same trips", fix="give 1 or more")
    functions = attn_functions(module)
    if not functions:
        raise Diagnostic("there are 0 attn functions to lower", where=module.operation.location, fix="start from an attn file")
    target, semantics = target_of(module), _semantics(module, functions)
    declared = [(function, function_facts(function)) for function in functions]
    left, zeros = _without_zeros(declared)
    ctas = 2 if alike % 2 == 0 and target.mma.pair_m else 1
    step = padding_step(target, ctas)
    kernels = []
    for function in left:
        plan = make_plan(function)
        check_operands(plan, target)
        demand = demand_of(plan, step, ctas)
        if ctas == 1 and target.mma.pair_m:
            demand = replace(demand, in_pairs=demand_of(plan, padding_step(target, 2), 2))
        chosen = choose_configurations(
            function, plan, demand, target, wanted=configurations, block_m=block_m, block_n=block_n, buffers=buffers
        )
        kernels.append((plan, chosen))
    with ir.InsertionPoint(functions[0]), functions[0].location:
        host = _Host([plan for plan, _ in kernels], declared, zeros)
        host.emit(kernels, semantics)
    for plan, chosen in kernels:
        with ir.InsertionPoint(plan.function), plan.function.location:
            for configuration in chosen:
                name = host.kernel_name(plan, configuration, chosen)
                copies = add_buffers or copies_of_added(demand_of(plan, step, ctas), target, configuration.shape)
                _emit_kernel(plan, name, configuration, lambda size: _padded(size, step), target.mma.lanes_a_row, host, copies, alike)
    for function in functions:
        function.operation.erase()


def _without_zeros(declared: list) -> tuple[list, set]:
    """(functions that need a kernel, names of results that need none)."""
    left, zeros = [], set()
    for function, facts in declared:
        taken = take_zeros(function)
        zeros |= taken
        if not taken or len(taken) < len(facts.results):
            left.append(function)
    if not left:
        raise op_diagnostic(
            declared[0][0],
            f"returns nothing but 0: {', '.join(t.name for _, facts in declared for t in facts.results)}",
            why="no kernel is needed for that, and a program launches one at least",
            fix="take zeros, or ask for a gradient that depends on something too: attn-derive-backward{wrt=... of=...}",
        )
    return left, zeros


def _padded(size: int, step: int) -> int:
    return -(-size // step) * step


def check_operands(plan: Plan, target) -> None:
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


def demand_of(plan: Plan, step: int, ctas: int = 1) -> Demand:
    """With head dims padded to multiples of `step`. Where `ctas` = 2 form a product together, each loads half of what both multiply by: a
    tile that is multiplied by in two ways comes in two halves. For a sum over rows each has half of the columns of both CTAs' rows."""
    rows, columns, accumulators, streamed = {}, {}, [], []
    for operation in plan.operations:
        for number, value in enumerate(operation.operands):
            tensor = plan.tensors.get(value)
            if tensor is not None and len(tensor.dims) == 2 and tensor.shape[1] is not None:
                width = _padded(tensor.shape[1], step) * (2 if tensor.dtype == "f32" else 1)
                if operation.name == "attn.gemm" or not plan.has_scores():
                    halved = ctas == 2 and operation.name == "attn.gemm" and number == 1
                    key = tensor.name, halved and operation.opview.transpose_b.value  # by rows, or by columns
                    if tensor.dims[0] == plan.rows:
                        rows[key if halved else tensor.name] = width
                    else:
                        columns[key if halved else tensor.name] = width // ctas if halved else width
        if operation.name != "attn.gemm":
            continue
        width = _padded(plan.tensors[operation.operands[1]].shape[1], step)
        if isinstance(plan.kinds[operation.results[0]], Streamed):
            streamed.append(width // ctas)
        elif plan.dims_of(operation.results[0]) != plan.space:
            accumulators.append(width)
    softmaxes = sum(operation.name == "attn.softmax" for operation in plan.operations)
    return Demand(
        tuple(rows.values()),
        tuple(columns.values()),
        tuple(accumulators),
        _live_halves(plan),
        softmaxes,
        tuple(streamed),
        _products(plan),
        sum(tensor.dims == (plan.columns,) for tensor in plan.tensors.values()),
        ctas,
        most_columns=plan.most_columns(),
    )


def _products(plan: Plan) -> int:
    """GEMMs that make scores."""
    return sum(operation.name == "attn.gemm" and plan.score(operation.results[0]) is not None for operation in plan.operations)


def _live_halves(plan: Plan) -> int:
    """The most that scores take of registers at once, in 16 bits an element. Elementwise work is in place, but a cast needs both forms.

    A pipelined loop makes the next block's scores while an MMA still reads what was made of this block's; where a softmax stands between
    them, the text's order counts. Where a sum over rows makes all warpgroups meet in each block, a wide block is worth more than overlap:
    each product's f32 scores are held, and operands are cast when these are no longer needed (`tile-pipeline`).
    """
    last_use = {value: position for position, operation in enumerate(plan.operations) for value in operation.operands}
    scores = [value for value, kind in plan.kinds.items() if isinstance(kind, Score)]
    born = {value: position for position, operation in enumerate(plan.operations) for value in operation.results}
    most = widest = 0  # with casts, and of what is in f32
    for position, operation in enumerate(plan.operations):
        both = operation.name == "attn.cast"
        live = [v for v in scores if born[v] <= position < last_use.get(v, -1) or (both and last_use.get(v) == position)]
        live += [v for v in scores if born[v] == position and last_use.get(v, -1) <= position]
        wide = [v for v in live if v.type.element_type.width == 32]
        most, widest = max(most, len(live) + len(wide)), max(widest, 2 * len(wide))
    if any(operation.name == "attn.softmax" for operation in plan.operations):
        return most
    if any(isinstance(kind, Streamed) for kind in plan.kinds.values()):
        return max(widest, 2 * _products(plan))
    return max(most, 2 * _products(plan) + 1)


def _semantics(module, functions) -> ir.StringAttr:
    """The variant's expression tree as it was before any pass, which the driver keeps on the module."""
    attributes = module.operation.attributes
    if "fa4c.semantics" in attributes:
        return ir.StringAttr(attributes["fa4c.semantics"])
    if len(functions) > 1:
        return None
    from ..ir.semantics import from_function

    return ir.StringAttr.get(json.dumps(from_function(functions[0])))


# -- host ------------------------------------------------------------------------------------------------


class _Host:
    """The tensors of all functions: (role, facts, order in memory, type in global memory) by name."""

    def __init__(self, plans: list, declared: list, zeros: set):
        """`declared`: (function, its facts) of all functions, with results that are 0 (`zeros`), which no plan has."""
        facts = [facts for _, facts in declared]
        self._alone, self._name = len(facts) == 1, _common_name([f.name for f in facts])
        _check_names(declared)
        made = {t.name for f in facts for t in f.results}
        inputs = {t.name: t for f in facts for t in f.args if t.name not in made}
        outputs = {t.name: t for f in facts for t in f.results if not t.workspace}
        self.workspaces = {t.name: t for f in facts for t in f.results if t.workspace}
        self.filled = zeros | {
            t.name
            for plan in plans
            for value, t in zip(plan.operations[-1].operands, plan.facts.results, strict=True)
            if isinstance(plan.kinds[value], (Streamed, Total))
        }
        self.tensors = {}
        for role, group in (("input", inputs), ("output", outputs), ("workspace", self.workspaces)):
            for tensor in group.values():
                order = memory_order(tensor, facts[0].layout)
                static = dict(zip(tensor.dims, tensor.shape, strict=True))
                element = {"fp16": "f16"}.get(tensor.dtype, tensor.dtype)
                self.tensors[tensor.name] = (role, tensor, order, tile_type([static.get(name) for name in order], element, "gmem"))

    def of(self, plan: Plan) -> list[str]:
        """What a kernel takes: arguments, then results that are none."""
        return list(dict.fromkeys(t.name for t in (*plan.facts.args, *plan.facts.results)))

    def emit(self, kernels: list, semantics) -> None:
        op = HostOp(
            sym_name=ir.StringAttr.get(self._name),
            tensors=ir.ArrayAttr.get([self._entry(tensor) for tensor in self.tensors]),
            semantics=semantics,
        )
        kinds = [kind for _, _, _, kind in self.tensors.values()]
        block = op.body.blocks.append(*kinds, arg_locs=[op.location] * len(kinds))
        self.arguments = dict(zip(self.tensors, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for plan, chosen in kernels:
                with plan.function.location:
                    if plan.facts.when is None:
                        self._choose(plan, chosen, chosen)
                        continue
                    branch = scf.IfOp(self._fits(plan, *plan.facts.when))
                    with ir.InsertionPoint(branch.then_block):
                        self._choose(plan, chosen, chosen)
                        scf.YieldOp([])

    def _choose(self, plan: Plan, left: list, chosen: list) -> None:
        """Launch the kernel of the first configuration whose limit holds."""
        configuration, *others = left
        if not others:
            self._launch(plan, configuration, chosen)
            return
        branch = scf.IfOp(self._fits(plan, *configuration.limit), has_else=True)
        with ir.InsertionPoint(branch.then_block):
            self._launch(plan, configuration, chosen)
            scf.YieldOp([])
        with ir.InsertionPoint(branch.else_block):
            self._choose(plan, others, chosen)
            scf.YieldOp([])

    def _fits(self, plan: Plan, size: str, most: int):
        return arith.cmpi(arith.CmpIPredicate.sle, self._size(plan, size), index_constant(most))

    def _launch(self, plan: Plan, configuration, chosen: list) -> None:
        rows = index_constant(configuration.shape.block_m)
        heads = ("hkv",) if plan.grouped else ("hq", "hkv")
        grid = [arith.ceildivsi(self._size(plan, plan.rows), rows), self._size(plan, *heads), self._size(plan, "b")]
        tensors = [self.arguments[tensor] for tensor in self.of(plan)]
        name = self.kernel_name(plan, configuration, chosen)
        LaunchOp(kernel=ir.FlatSymbolRefAttr.get(name), grid=grid, tensors=tensors, scalars=[])

    def _size(self, plan: Plan, *names):
        """The first of these sizes that a tensor of the kernel has; 1 if none does."""
        for name in names:
            for tensor in self.of(plan):
                order = self.tensors[tensor][2]
                if name in order:
                    return dim_of(self.arguments[tensor], order.index(name))
        return index_constant(1)

    def kernel_name(self, plan: Plan, configuration, chosen: list) -> str:
        """Several functions say themselves what they are."""
        name = f"{plan.facts.name}_fwd" if self._alone else plan.facts.name
        return name if len(chosen) == 1 else f"{name}_{configuration.label}"

    def _entry(self, name: str) -> ir.DictAttr:
        role, tensor, order, _ = self.tensors[name]

        def strings(names):
            return ir.ArrayAttr.get([ir.StringAttr.get(name) for name in names])

        entry = {"name": ir.StringAttr.get(name), "role": ir.StringAttr.get(role), "axes": strings(tensor.axes), "dims": strings(order)}
        if role == "output" and len(tensor.dims) == 1:
            entry["optional"] = ir.BoolAttr.get(True)
        if role == "workspace":
            entry["lifetime"] = ir.StringAttr.get("call")
            entry["pad"] = i64(_ALIGNED_ELEMENTS)
        if role == "workspace" or name in self.filled:
            entry["init"] = ir.StringAttr.get("zero" if name in self.filled else "none")
        return ir.DictAttr.get(entry)


def _emit_kernel(plan: Plan, name: str, configuration, padded, row_lanes: int, host: _Host, added: int, alike: int) -> None:
    kernel = KernelOp(sym_name=ir.StringAttr.get(name))
    names = host.of(plan)
    block = kernel.body.blocks.append(*[host.tensors[name][3] for name in names], arg_locs=[kernel.location] * len(names))
    tensors = dict(zip(names, block.arguments, strict=True))
    with ir.InsertionPoint(block):
        Kernel(plan, configuration.shape, padded, row_lanes, tensors, frozenset(host.workspaces), added, alike).emit()
    erase_unused(block)
    for wish, priority in zip(("l2_repeated", "l2_once"), configuration.l2, strict=True):
        if priority != "none":
            kernel.attributes[wish] = ir.StringAttr.get(priority)


def _check_names(declared) -> None:
    """Functions hand tensors on by name."""
    returned: dict = {}
    for function, facts in declared:
        for tensor in facts.results:
            if facts.when is not None and tensor.name not in returned:
                raise op_diagnostic(
                    function,
                    f"returns '{tensor.name}', and may not run at all",
                    why="where attn.when does not hold it is what a function before returned, and none does",
                    fix=f"put the function that returns '{tensor.name}' in front, or remove attn.when",
                )
            other = returned.setdefault(tensor.name, facts)
            if other is not facts and facts.when is None:
                raise op_diagnostic(
                    function,
                    f"returns '{tensor.name}', as @{other.name} does",
                    why="functions of one module are the kernels of one program, which hand tensors on by name",
                    fix="put functions that have nothing to do with each other into files of their own",
                )


def _common_name(names: list[str]) -> str:
    """NAME of NAME_preprocess, NAME_main, ..."""
    return names[0] if len(names) == 1 else os.path.commonprefix(names).rstrip("_") or names[0]
