"""One `warp.kernel` as one readable, standalone CuTe-DSL file. One rule for each operation; nothing is decided here.

Rules for the generated text (facts: the project's sheet "CuTe DSL as a code generator's target", section 3): a role is one branch of a
single if/elif on
the warp index; rolled loops say `unroll=1`; fragments are flat and indexed by trace-time constants only, so they stay in registers;
slot and phase are plain Int32 variables.

Thread coordinates (PTX ISA, wgmma accumulator): element r of a thread lies in row `row0 + 8 * (r // 2 % 2)` and column
`col0 + 8 * (r // 4) + r % 2`; of a row vector or a rows x 4 tile it holds 2, rows `row0` and `row0 + 8`.
"""

from __future__ import annotations

import contextlib

from ..ir import tile, warp
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import ir
from ..ir.tile import space_of
from ..ir.value_names import name_of
from . import parameters
from .prelude import IMPORTS, prelude_for
from .scalar_source import dsl_type, expression, float_text, is_literal
from .source_text import Lines, Names, comment

_RESERVED = (
    "cute cuda cutlass cudadrv prims warpgroup pipeline select select_ base tid warp wg t row0 col0 r g c kk lane OperandMajorMode "
    "BFloat16 Float16 Float32 Int8 Int32 Int64 Boolean range_constexpr quad_max quad_sum tanh_exp2 take_tile leave_queue exp2_emulated read_element write_element "
    "truncated_div row col"
).split()


def emit(module: ir.Module) -> str:
    """The CuTe-DSL source of a module's only warp.kernel and its host function. Raises Diagnostic for what has no rule."""
    host, kernel = parameters.host_and_kernel(module)
    return _Kernel(host, kernel).source()


class _Kernel:
    def __init__(self, host, kernel):
        self.host, self.kernel = host, kernel
        self.parameters = parameters.of_kernel(host, kernel)
        self.names = Names(_RESERVED)
        self.values = {}  # SSA value -> Python expression
        self.top = Lines(1)
        self.role = None

    def source(self) -> str:
        for p in self.parameters:
            p.name = self.names.fresh(p.name)
        self.parameter_name = parameters.lookup(self.parameters)
        block = self.kernel.body.blocks[0]
        self._open()
        for op in block.operations:
            self.emit(op)
        body = self.top.text()
        out = Lines()
        out(f'"""{self.kernel.sym_name.value}: {self.kernel.threads.value} threads, {self.kernel.smem_bytes.value} bytes of shared memory.')
        out()
        out('Written by fa4c; edit the IR instead."""')
        for line in [*IMPORTS, "", *prelude_for(body), ""]:
            out(line)
        out()
        out("@cute.kernel")
        name = self.kernel.sym_name.value
        out(f"def {name}(")
        for p in self.parameters:
            out(f"    {p.name}: {p.annotation},  # {p.comment}")
        out("):")
        return out.text() + body + "\n\n" + parameters.host_source(self.host, self.kernel, self.parameters)

    def _open(self) -> None:
        top = self.top
        top("tid, _, _ = cute.arch.thread_idx()")
        top("warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())")
        top("base = cute.arch.get_dyn_smem(Int8, alignment=1024)")
        for argument in self.kernel.body.blocks[0].arguments:
            self.values[argument] = self.parameter_name.get(("scalar", argument), "")

    def _tensor_name(self, value) -> str:
        """The tensor that is copied into or out of a buffer, or through a pipe; "tile" where that is none."""
        for op in _walk(self.kernel.body.blocks[0]):
            if isinstance(op, (warp.TmaLoadOp, warp.TmaStoreOp)):
                state = op.state if isinstance(op, warp.TmaLoadOp) else None
                if value == op.buffer or (state is not None and value == state.owner.opview.pipe):
                    return parameters.entries_of(self.host, self.kernel)[op.map.owner.opview.tensor]["name"]
        return "tile"

    # -- dispatch

    def emit(self, op) -> None:
        kind = type(op)
        if kind in _RULES:
            _RULES[kind](self, op)
        elif op.operation.name in _CONTROL_RULES:
            _CONTROL_RULES[op.operation.name](self, op)
        else:
            self._scalar(op)

    def block(self, block) -> None:
        for op in block.operations:
            self.emit(op)

    def _scalar(self, op) -> None:
        text = expression(op, [self.operand(v) for v in op.operation.operands])
        if is_literal(op):
            self.values[op.operation.results[0]] = text if not text.startswith("-") else f"({text})"
            return
        self._assign(op.operation.results[0], text)

    def _assign(self, value, text, hint="v") -> None:
        name = self.names.fresh(hint)
        self.top(f"{name} = {text}")
        self.values[value] = name

    def operand(self, value) -> str:
        return self.values[value]

    @contextlib.contextmanager
    def unrolled(self, hint: str, *bounds):
        """`for NAME in range_constexpr(...)`. Names are never used twice in a kernel: the DSL would join them across branches."""
        name = self.names.fresh(hint)
        with self.top.block(f"for {name} in range_constexpr({', '.join(map(str, bounds))}):"):
            yield name

    # -- scalars that are no arith

    def program_id(self, op) -> None:
        names = [self.names.fresh(hint) for hint in ("bid_x", "bid_y", "bid_z")]
        self.top(f"{', '.join(names)} = cute.arch.block_idx()")
        self.values.update(zip(op.operation.results, names, strict=True))

    def dim(self, op) -> None:
        static = op.tensor.type.shape[op.axis.value]
        self.values[op.out] = (
            str(static) if not op.tensor.type.is_dynamic_dim(op.axis.value) else self.parameter_name[("dim", op.tensor, op.axis.value)]
        )

    def load_element(self, op) -> None:
        tensor = op.source
        terms = []
        for axis, coord in enumerate(op.coords):
            terms.append(f"({self.operand(coord)}, {self._size(tensor, axis)}, {self.parameter_name[('stride', tensor, axis)]})")
        listing = ", ".join(terms) + ("," if len(terms) == 1 else "")
        pointer = self.parameter_name[("pointer", tensor)]
        self._assign(op.out, f"read_element({dsl_type(op.out.type)}, {pointer}, ({listing}))", "x")

    def _size(self, tensor, axis) -> str:
        return self.parameter_name[("dim", tensor, axis)] if tensor.type.is_dynamic_dim(axis) else str(tensor.type.shape[axis])

    def exp2(self, op) -> None:
        x = self.operand(op.x)
        if op.emulated.value == 0:
            text = f"cute.math.exp2({x}, fastmath=True)"
        else:
            text = f"exp2_emulated({x}) if {self.element} // 4 % 16 < {op.emulated.value} else cute.math.exp2({x}, fastmath=True)"
        self._assign(op.out, text)

    def ptx(self, op) -> None:
        args = ", ".join(self.operand(v) for v in op.inputs)
        self._assign(op.out, f'prims.inline_ptx("{op.asm.value}", write_only_types=[{dsl_type(op.out.type)}], read_only_args=[{args}])')

    # -- top level

    def tensor_map(self, op) -> None:
        name = self.parameter_name[("tensor_map", op.out)]
        self.values[op.out] = name

    def buffer(self, op) -> None:
        stages, rows, columns = op.out.type.shape
        name = self.names.fresh("s" + self._tensor_name(op.out).capitalize())
        dtype = dsl_type(op.out.type.element_type)
        self.top(
            f"{name} = cute.recast_ptr(base + {op.offset.value}, dtype={dtype})  # {stages} x {rows} x {columns}, swizzle {op.swizzle.value}"
        )
        self.values[op.out] = name

    def pipeline(self, op) -> None:
        name = self.names.fresh(f"full_{self._tensor_name(op.out)}")
        self.top(f"{name} = cute.recast_ptr(base + {op.offset.value}, dtype=Int64)  # {op.stages.value} x {op.tx_bytes.value} bytes")
        self.values[op.out] = name
        if op.arrivals.value:
            empty = self.names.fresh(name.replace("full", "empty"))
            self.top(f"{empty} = {name} + {op.stages.value}  # {op.arrivals.value} warps")
            self.values[op.out, "empty"] = empty

    def init_barriers(self, op) -> None:
        with self.top.block("if warp == 0:"):
            with self.top.block("with cute.arch.elect_one():"):
                for pipe in op.pipes:
                    made = pipe.owner.opview
                    with self.unrolled("s", made.stages.value) as s:
                        self.top(f"cute.arch.mbarrier_init({self.values[pipe]} + {s}, 1)")
                        if made.arrivals.value:
                            self.top(f"cute.arch.mbarrier_init({self.values[pipe, 'empty']} + {s}, {made.arrivals.value})")
            self.top("cute.arch.mbarrier_init_fence()")
        self.top("cute.arch.sync_threads()")

    def role_op(self, op) -> None:
        first, count = list(op.warps)[0], len(list(op.warps))
        at_launch = parameters.launch_registers(self.kernel.threads.value)
        self.role = op
        self.top()
        with self.top.block(f"if (warp >= {first}) & (warp < {first + count}):  # role {op.sym_name.value}"):
            if op.registers.value != at_launch:
                direction = "increase" if op.registers.value > at_launch else "decrease"
                self.top(f"cute.arch.setmaxregister_{direction}({op.registers.value})")
            outer_top = self.top
            self.declared, self.header, self.views, self.top = {}, Lines(), Lines(), Lines()
            self.block(op.body.blocks[0])
            body, self.top = self.top, outer_top
            inner = op.active.value != count
            if inner:
                condition = f"warp == {first}" if op.active.value == 1 else f"warp < {first + op.active.value}"
                with self.top.block(f"if {condition}:"):
                    self._role_body(body)
            else:
                self.top(f"wg = warp // 4 - {first // 4}")
                self.top("t = tid % 128")
                self.top("row0 = wg * 64 + t // 32 * 16 + t % 32 // 4")
                self.top("col0 = t % 4 * 2")
                self._role_body(body)
        self.role = None

    def _role_body(self, body: Lines) -> None:
        for part in (self.header, self.views, body):
            self.top.extend(part)

    # -- control

    def for_op(self, op) -> None:
        lower, upper, step = (self.operand(v) for v in list(op.operation.operands)[:3])
        if len(op.operation.results):
            raise op_diagnostic(op, "carries values", why="at the warp level loops carry nothing: fragments are storage")
        name = self.names.fresh("k")
        body = op.regions[0].blocks[0]
        self.values[body.arguments[0]] = name
        step_text = "" if step == "1" else f", {step}"
        with self.top.block(f"for {name} in cutlass.range({lower}, {upper}{step_text}, unroll=1):"):
            self.block(body)

    def if_op(self, op) -> None:
        if len(op.operation.results) or len(op.regions[1].blocks):
            raise op_diagnostic(op, "has results or an else branch", why="at the warp level branches only guard", fix="use arith.select")
        with self.top.block(f"if {self.operand(op.operation.operands[0])}:"):
            self.block(op.regions[0].blocks[0])

    def yield_op(self, op) -> None:
        """Ends a guard or a loop body: no text."""

    def walk(self, op) -> None:
        """The first tile is the CTA's number; the next one comes from the queue (taker) or from the taker, through shared memory."""
        tile_name, word = self.names.fresh("tile"), self.names.fresh("next_tile")
        pipe = self._pipe(op.state)
        full, empty, phase = self.operand(pipe), self.values[pipe, "empty"], self.values[op.state, "phase"]
        self.top(f"{word} = cute.make_tensor(cute.recast_ptr(base + {op.word.value}, dtype=Int32), cute.make_layout(1))")
        self.top(f"{tile_name} = Int32(cute.arch.block_idx()[0])")
        self.values[op.body.blocks[0].arguments[0]] = tile_name
        self.top(comment(op))
        with self.top.block(f"while {tile_name} < {self.operand(op.tiles)}:"):
            self.block(op.body.blocks[0])
            if op.queue is not None:
                self.top(f"cute.arch.mbarrier_wait({empty}, {phase})")
                with self.top.block("if prims.elect_sync():"):
                    self.top(f"{word}[0] = take_tile({self.parameter_name[('pointer', op.queue)]})")
                    self.top(f"cute.arch.mbarrier_arrive({full})")
                self.top(f"cute.arch.mbarrier_wait({full}, {phase} ^ 1)")
                self.top(f"{tile_name} = {word}[0]")
            else:
                self.top(f"cute.arch.mbarrier_wait({full}, {phase})")
                self.top(f"{tile_name} = cute.arch.shuffle_sync({word}[0], 0)  # all lanes have read it")
                with self.top.block("if prims.elect_sync():"):
                    self.top(f"cute.arch.mbarrier_arrive({empty})")
            self.top(f"{phase} ^= 1")
        if op.queue is not None:
            with self.top.block("if prims.elect_sync():"):
                self.top(f"leave_queue({self.parameter_name[('pointer', op.queue)]})")

    # -- pipes

    def state(self, op) -> None:
        slot, phase = self.names.fresh("slot"), self.names.fresh("phase")
        self.top(f"{slot}, {phase} = Int32(0), Int32({op.phase.value})")
        self.values[op.out] = slot
        self.values[op.out, "phase"] = phase

    def _pipe(self, state):
        return state.owner.opview.pipe

    def acquire(self, op) -> None:
        self.top(
            f"cute.arch.mbarrier_wait({self.values[self._pipe(op.state), 'empty']} + {self.operand(op.state)}, {self.values[op.state, 'phase']})"
        )

    def arm(self, op) -> None:
        pipe = self._pipe(op.state)
        self.top(
            f"cute.arch.mbarrier_arrive_and_expect_tx({self.operand(pipe)} + {self.operand(op.state)}, {pipe.owner.opview.tx_bytes.value})"
        )

    def wait(self, op) -> None:
        self.top(
            f"cute.arch.mbarrier_wait({self.operand(self._pipe(op.state))} + {self.operand(op.state)}, {self.values[op.state, 'phase']})"
        )

    def release(self, op) -> None:
        with self.top.block("if prims.elect_sync():"):
            self.top(f"cute.arch.mbarrier_arrive({self.values[self._pipe(op.state), 'empty']} + {self.operand(op.state)})")

    def advance(self, op) -> None:
        stages = self._pipe(op.state).owner.opview.stages.value
        slot, phase = self.operand(op.state), self.values[op.state, "phase"]
        if stages == 1:
            self.top(f"{phase} ^= 1")
            return
        self.top(f"{slot} += 1")
        with self.top.block(f"if {slot} == {stages}:"):
            self.top(f"{slot} = Int32(0)")
            self.top(f"{phase} ^= 1")

    def elect(self, op) -> None:
        if op.scope.value == "warpgroup":
            with self.top.block("if warp % 4 == 0:"), self.top.block("if prims.elect_sync():"):
                self.block(op.body.blocks[0])
        else:
            with self.top.block("if prims.elect_sync():"):
                self.block(op.body.blocks[0])

    def barrier(self, op) -> None:
        if op.scope.value == "warpgroup":
            self.top(f"cute.arch.barrier(barrier_id={op.id.value} + wg, number_of_threads=128)")
        else:
            self.top(f"cute.arch.barrier(barrier_id={op.id.value}, number_of_threads={32 * self.role.active.value})")

    def turn_init(self, op) -> None:
        with self.top.block("if wg == 0:"):
            self.top(f"cute.arch.barrier_arrive(barrier_id={op.id.value}, number_of_threads=256)")

    def turn_take(self, op) -> None:
        self.top(f"cute.arch.barrier(barrier_id={op.id.value} + wg, number_of_threads=256)")

    def turn_give(self, op) -> None:
        groups = self.role.active.value // 4
        self.top(f"cute.arch.barrier_arrive(barrier_id={op.id.value} + (wg + 1) % {groups}, number_of_threads=256)")

    def fence_async(self, op) -> None:
        self.top('cute.arch.fence_proxy("async.shared", space="cta")')

    # -- data movement

    def _slab(self, buffer):
        """(elements of one swizzle span, slabs, rows, stages) of a buffer."""
        made = buffer.owner.opview
        stages, rows, columns = buffer.type.shape
        span = made.swizzle.value * 8 // warp.bits_of(buffer.type.element_type)
        return span, columns // span, rows, stages

    def _coords(self, coords, slab_offset: str, row=None) -> str:
        """Innermost first; the innermost moves with the slab, `row` with the warpgroup."""
        texts = [self.operand(c) for c in coords]
        if row is not None:
            texts[row] = f"{texts[row]} + wg * 64"
        texts[-1] = slab_offset if texts[-1] == "0" else f"{texts[-1]} + {slab_offset}"
        return ", ".join(reversed(texts))

    def tma_load(self, op) -> None:
        span, slabs, rows, _ = self._slab(op.buffer)
        self._check_box(op, [rows, span])
        self.top(comment(op))
        slot = self.operand(op.state)
        full = f"{self.operand(self._pipe(op.state))} + {slot}"
        with self.unrolled("slab", slabs) as slab:
            self.top(
                f"prims.cp_async_bulk_tensor_shared_cta_global({self.operand(op.buffer)} + {slot} * {slabs * rows * span} + {slab} * {rows * span}, "
                f"{self.operand(op.map)}.get_ptr(), ({self._coords(op.coords, f'{slab} * {span}')}), {full})"
            )

    def tma_store(self, op) -> None:
        span, slabs, rows, _ = self._slab(op.buffer)
        self._check_box(op, [64, span])
        self.top(comment(op))
        with self.unrolled("slab", slabs) as slab:
            self.top(
                f"prims.cp_async_bulk_tensor_global_shared_cta({self.operand(op.map)}.get_ptr(), "
                f"{self.operand(op.buffer)} + wg * {64 * span} + {slab} * {rows * span}, ({self._coords(op.coords, f'{slab} * {span}', op.row.value)}))"
            )

    def _check_box(self, op, want) -> None:
        box = [size for size in op.map.owner.opview.box]
        got = [size for size in box[:-1] if size != 1] or [1]
        if [*got, box[-1]] != want:
            raise op_diagnostic(
                op,
                f"moves boxes of {box}, but the buffer takes {want[0]} rows of {want[1]} elements at a time",
                why="a box fills one swizzle span of all its rows",
                fix="change the box of the warp.tensor_map",
            )

    def store_commit(self, op) -> None:
        self.top("cute.arch.cp_async_bulk_commit_group()")

    def store_wait(self, op) -> None:
        self.top(f"cute.arch.cp_async_bulk_wait_group({op.pending.value}, read=True)")

    def store_shared(self, op) -> None:
        span, slabs, rows, _ = self._slab(op.buffer)
        columns = slabs * span
        dtype = dsl_type(op.source.type.element_type)
        source = self.operand(op.source)
        key = self._declare(
            ("stmatrix", op.buffer, op.source),
            lambda name: [
                f"{name}_mma = cute.make_tiled_mma(warpgroup.MmaF16BF16Op({dtype}, Float32, (64, {columns}, 16), warpgroup.OperandSource.SMEM, OperandMajorMode.K, OperandMajorMode.K))",
                *self._view(f"{name}_s", op.buffer, "K", row_part=True),
                f"{name} = cute.make_tiled_copy_C(cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), {dtype}), {name}_mma).get_slice(t)",
            ],
            "r2s",
        )
        self.top(comment(op))
        self.top(
            f"cute.copy({key}, {key}.retile(cute.make_tensor({source}.iterator, cute.make_layout({key}_mma.partition_shape_C((64, {columns}))))), "
            f"{key}.partition_D({key}_s[None, None, 0]))"
        )

    def store_rows(self, op) -> None:
        target, rank = op.target, op.target.type.rank
        source = self.operand(op.source)
        coords = [self.operand(c) for c in op.coords]
        self.top(comment(op))
        with self.unrolled("g", 2) as g:
            row = self.names.fresh("row")
            self.top(f"{row} = {coords[-1]} + row0 + 8 * {g}")
            terms = [f"Int64({c}) * {self.parameter_name[('stride', target, axis)]}" for axis, c in enumerate([*coords[:-1], row])]
            pointer = self.parameter_name[("pointer", target)]
            with self.top.block(f"if (t % 4 == 0) & ({row} < {self._size(target, rank - 1)}) & ({pointer} != 0):"):
                self.top(f"write_element({dsl_type(target.type.element_type)}, {pointer}, {' + '.join(terms)}, {source}[{g}])")

    # -- compute

    def fragment(self, op) -> None:
        kind = op.out.type
        name = self.names.fresh(
            "r" + (name_of(op.out) or "Tile").capitalize() + ("_row" if kind.rank == 1 else "_quad" if kind.shape[1] == 4 else "")
        )
        dtype = "Int32" if str(kind.element_type) == "i1" else dsl_type(kind.element_type)
        self.header(
            f"{name} = cute.make_rmem_tensor({self._elements(kind)}, {dtype})  # {'x'.join(map(str, kind.shape))}x{kind.element_type}"
        )
        self.values[op.out] = name

    def _elements(self, kind) -> int:
        """Values a thread holds."""
        return 2 if kind.rank == 1 or kind.shape[1] == 4 else kind.shape[1] // 2

    def fill(self, op) -> None:
        kind = op.target.type
        value = float_text(op.value.value) if isinstance(op.value, ir.FloatAttr) else str(op.value.value)
        with self.unrolled("r", self._elements(kind)) as r:
            self.top(f"{self.operand(op.target)}[{r}] = {dsl_type(kind.element_type)}({value})")

    def copy(self, op) -> None:
        with self.unrolled("r", self._elements(op.target.type)) as r:
            self.top(f"{self.operand(op.target)}[{r}] = {self.operand(op.source)}[{r}]")

    def when(self, op) -> None:
        cond = self.operand(op.cond)
        with self.top.block(f"if {cond}[0] != 0:" if space_of(op.cond.type) == "reg" else f"if {cond}:"):
            # without it LLVM may turn the branch into a select an element, which costs more than it saves
            self.top('prims.ptx_add_comment("warp.when")')
            self.block(op.body.blocks[0])

    def map_op(self, op) -> None:
        self.top(comment(op))
        self._map_loop(op)

    def _map_loop(self, op) -> None:
        kind = op.target.type
        body = op.body.blocks[0]
        full_width = kind.rank == 2 and kind.shape[1] != 4
        arguments = list(body.arguments)
        with self.unrolled("r", self._elements(kind)) as r:
            self.element = r
            half = f"{r} // 2 % 2" if full_width else r
            for argument, value in zip(arguments, op.inputs, strict=False):
                per_row = value.type.rank == 1 and kind.rank == 2
                flag = " != 0" if str(value.type.element_type) == "i1" else ""
                self._assign(argument, f"{self.operand(value)}[{half if per_row else r}]{flag}", "x")
            used = _uses(body)
            if arguments[-2] in used:
                self._assign(arguments[-2], f"row0 + 8 * ({half})", "row")
            if arguments[-1] in used:
                self._assign(arguments[-1], f"col0 + 8 * ({r} // 4) + {r} % 2" if full_width else "t % 4", "col")
            operations = list(body.operations)
            for inner in operations[:-1]:
                self.emit(inner)
            result = self.operand(operations[-1].operation.operands[0])
            if str(kind.element_type) == "i1":
                result = f"select(Int32, {result}, 1, 0)"
            self.top(f"{self.operand(op.target)}[{r}] = {result}")

    def reduce(self, op) -> None:
        source, target = self.operand(op.source), self.operand(op.target)
        kind, columns = op.kind.value, op.source.type.shape[1]
        lanes = op.target.type.rank == 1
        combine = (lambda a, b: f"cute.arch.fmax({a}, {b})") if kind == "max" else (lambda a, b: f"{a} + {b}")
        even, odd = self.names.fresh("even"), self.names.fresh("odd")
        self.top(comment(op))
        with self.unrolled("g", 2) as g:
            if columns == 4:
                self.top(f"{even} = {source}[{g}]")
            else:  # two chains, for latency
                self.top(f"{even}, {odd} = {source}[2 * {g}], {source}[2 * {g} + 1]")
                with self.unrolled("q", 1, columns // 8) as q:
                    self.top(f"{even} = {combine(even, f'{source}[4 * {q} + 2 * {g}]')}")
                    self.top(f"{odd} = {combine(odd, f'{source}[4 * {q} + 2 * {g} + 1]')}")
                self.top(f"{even} = {combine(even, odd)}")
            if lanes:
                self.top(f"{even} = quad_{kind}({even})")
            if op.accumulate.value:
                self.top(f"{even} = {combine(f'{target}[{g}]', even)}")
            self.top(f"{target}[{g}] = {even}")

    def vote_any(self, op) -> None:
        source, target = self.operand(op.source), self.operand(op.target)
        self.top(comment(op))
        vote = self.names.fresh("vote")
        self.top(f"{vote} = select(Int32, cute.arch.vote_any_sync(({source}[0] | {source}[1]) != 0), 1, 0)")
        self.top(f"{target}[0] = {vote}")
        self.top(f"{target}[1] = {vote}")

    def wgmma_fence(self, op) -> None:
        self.top("warpgroup.fence()")

    def wgmma_commit(self, op) -> None:
        self.top("warpgroup.commit_group()")

    def wgmma_wait(self, op) -> None:
        self.top(f"warpgroup.wait_group({op.pending.value})")

    def wgmma(self, op) -> None:
        key = self._declare_mma(op)
        _, columns = op.acc.type.shape
        depth = op.a.type.shape[-1]
        b_slot = self.operand(op.b_state) if op.b_state is not None else "0"
        if space_of(op.a.type) == "smem":
            a_slot = self.operand(op.a_state) if op.a_state is not None else "0"
            a_text = f"{key}_A[None, None, {{}}, {a_slot}]"
        else:
            a_text = f"{key}_A[None, None, {{}}]"
        self.top(comment(op))
        with self.unrolled("kk", depth // 16) as kk:
            self.top(f"{key}.set(warpgroup.Field.ACCUMULATE, {'True' if op.accumulate.value else f'{kk} != 0'})")
            self.top(f"cute.gemm({key}, {key}_D, {a_text.format(kk)}, {key}_B[None, None, {kk}, {b_slot}], {key}_D)")

    def _declare_mma(self, op) -> str:
        rows, columns = op.acc.type.shape
        depth = op.a.type.shape[-1]
        from_registers = space_of(op.a.type) == "reg"
        dtype = dsl_type(op.a.type.element_type)
        major = "K" if op.transpose_b.value else "MN"
        source = "RMEM" if from_registers else "SMEM"
        acc, a = self.operand(op.acc), self.operand(op.a)

        def lines(name):
            text = [
                f"{name} = cute.make_tiled_mma(warpgroup.MmaF16BF16Op({dtype}, Float32, (64, {columns}, 16), warpgroup.OperandSource.{source}, OperandMajorMode.K, OperandMajorMode.{major}))",
                f"{name}_D = cute.make_tensor({acc}.iterator, cute.make_layout({name}.partition_shape_C((64, {columns}))))",
            ]
            if from_registers:
                text.append(f"{name}_A = cute.make_tensor({a}.iterator, cute.make_layout({name}.partition_shape_A((64, {depth}))))")
            else:
                text += self._view(f"{name}_sA", op.a, "K", row_part=True)
                text.append(f"{name}_A = {name}.make_fragment_A({name}.get_slice(0).partition_A({name}_sA))")
            text += self._view(f"{name}_sB", op.b, major)
            text.append(f"{name}_B = {name}.make_fragment_B({name}.get_slice(0).partition_B({name}_sB))")
            return text

        return self._declare(("mma", op.acc, op.a, op.b, major), lines, "mma")

    def _view(self, name: str, buffer, major: str, row_part: bool = False) -> list[str]:
        """A CuTe tensor over a buffer: (rows, columns, stages) K-major, (columns, rows, stages) MN-major; `row_part`: this warpgroup's 64
        rows.
        """
        span, slabs, rows, stages = self._slab(buffer)
        columns = slabs * span
        swizzle = buffer.owner.opview.swizzle.value
        dtype = dsl_type(buffer.type.element_type)
        shape, order = (f"({rows}, {columns}, {stages})", "(0, 1, 2)") if major == "K" else (f"({columns}, {rows}, {stages})", "(1, 0, 2)")
        pointer = f"cute.recast_ptr({self.operand(buffer)}, {name}_layout.inner, dtype={dtype})"
        text = [
            f"{name}_layout = cute.tile_to_shape(warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.{major}_SW{swizzle}, {dtype}), {shape}, {order})",
            f"{name} = cute.make_tensor({pointer}, {name}_layout.outer)",
        ]
        if row_part:
            text.append(
                f"{name} = cute.make_tensor({name}.iterator + cute.assume(wg * {64 * span}, divby={64 * span}), "
                f"cute.local_tile({name}, (64, {columns}, {stages}), (0, 0, 0)).layout)"
            )
        return text

    def _declare(self, key, lines, hint) -> str:
        """Views and atoms of a role, written once at its top."""
        if key not in self.declared:
            name = self.names.fresh(hint)
            self.declared[key] = name
            for line in lines(name):
                self.views(line)
        return self.declared[key]


def _walk(block):
    for op in block.operations:
        yield op
        for region in op.operation.regions:
            for inner in region.blocks:
                yield from _walk(inner)


def _uses(block) -> set:
    used = set()
    for op in block.operations:
        used.update(op.operation.operands)
        for region in op.operation.regions:
            for inner in region.blocks:
                used |= _uses(inner)
    return used


_CONTROL_RULES = {"scf.for": _Kernel.for_op, "scf.if": _Kernel.if_op, "scf.yield": _Kernel.yield_op}
_RULES = {
    tile.ProgramIdOp: _Kernel.program_id,
    tile.DimOp: _Kernel.dim,
    tile.LoadElementOp: _Kernel.load_element,
    tile.Exp2Op: _Kernel.exp2,
    warp.PtxOp: _Kernel.ptx,
    warp.TensorMapOp: _Kernel.tensor_map,
    warp.WalkOp: _Kernel.walk,
    warp.BufferOp: _Kernel.buffer,
    warp.PipelineOp: _Kernel.pipeline,
    warp.InitBarriersOp: _Kernel.init_barriers,
    warp.RoleOp: _Kernel.role_op,
    warp.StateOp: _Kernel.state,
    warp.AcquireOp: _Kernel.acquire,
    warp.ArmOp: _Kernel.arm,
    warp.WaitOp: _Kernel.wait,
    warp.ReleaseOp: _Kernel.release,
    warp.AdvanceOp: _Kernel.advance,
    warp.ElectOp: _Kernel.elect,
    warp.BarrierOp: _Kernel.barrier,
    warp.TurnInitOp: _Kernel.turn_init,
    warp.TurnTakeOp: _Kernel.turn_take,
    warp.TurnGiveOp: _Kernel.turn_give,
    warp.FenceAsyncOp: _Kernel.fence_async,
    warp.TmaLoadOp: _Kernel.tma_load,
    warp.TmaStoreOp: _Kernel.tma_store,
    warp.StoreCommitOp: _Kernel.store_commit,
    warp.StoreWaitOp: _Kernel.store_wait,
    warp.StoreSharedOp: _Kernel.store_shared,
    warp.StoreRowsOp: _Kernel.store_rows,
    warp.FragmentOp: _Kernel.fragment,
    warp.FillOp: _Kernel.fill,
    warp.CopyOp: _Kernel.copy,
    warp.WhenOp: _Kernel.when,
    warp.MapOp: _Kernel.map_op,
    warp.ReduceOp: _Kernel.reduce,
    warp.VoteAnyOp: _Kernel.vote_any,
    warp.WgmmaFenceOp: _Kernel.wgmma_fence,
    warp.WgmmaCommitOp: _Kernel.wgmma_commit,
    warp.WgmmaWaitOp: _Kernel.wgmma_wait,
    warp.WgmmaOp: _Kernel.wgmma,
}
