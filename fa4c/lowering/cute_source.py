"""One `warp.kernel` as one readable, standalone CuTe-DSL file. One rule for each operation; nothing is decided here.

Rules for the generated text (facts: the project's sheet "CuTe DSL as a code generator's target", section 3): a role is one branch of a
single if/elif on the warp index; rolled loops say `unroll=1`; fragments are flat and indexed by trace-time constants only, so they stay
in registers; slot and phase are plain Int32 variables (of which states: `shared_states.py`).

Which elements of a register tile a thread holds: `thread_layout.py`, by the role's `layout`. A tile of 64 rows in "quads" that
several warpgroups share by columns has rows `row0_shared`, and columns from `col0` plus the first one of the share on.
"""

from __future__ import annotations

import contextlib

from .. import targets
from ..ir import tile, tile_pair, warp
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import ir
from ..ir.tile import space_of
from ..ir.tile_base import nested_in, nested_operations
from ..ir.warp import bits_of
from . import parameters, shared_states
from .cute_maps import MapRules
from .cute_matrices import KEEP_ADDRESSES, KEEP_DESCRIPTORS, MatrixRules, check_orders
from .cute_tiles import TileRules
from .cute_tmem import TMEM_RULES, TmemRules
from .prelude import HELPERS, IMPORTS, prelude_for
from .scalar_source import dsl_type, expression, is_literal
from .source_text import Lines, Names, comment
from .thread_layout import LAYOUTS

# What emitted text means by these names: imports, helpers, what every kernel or role has, and short ones for indices.
_RESERVED = (
    *"cute cuda cutlass cudadrv prims warpgroup pipeline select_ base tid warp wg t cta_rank row0 col0 r g c kk lane lanes OperandMajorMode".split(),
    *"BFloat16 Float16 Float32 Int8 Int16 Int32 Int64 Boolean range_constexpr row col slot_tmem builtin llvm nvvm".split(),
    *HELPERS,
)

_OF_THE_HOST = "host fake_args tensor make_fake_compact_tensor make_fake_stream grid_x grid_y grid_z stream".split()


def emit(module: ir.Module) -> dict[str, str]:
    """Kernel name -> CuTe-DSL source of the kernel and a function that launches it, in launch order. Raises Diagnostic for what has no
    rule.
    """
    target, launches = targets.of(module), parameters.launches(module)
    check_orders(launches)
    return {launch.name: _Kernel(launch, target).source() for launch in launches}


class _Kernel(TileRules, MatrixRules, TmemRules, MapRules):
    def __init__(self, launch: parameters.Launch, target: targets.Target):
        self.launch, self.kernel = launch, launch.kernel
        self.parameters = parameters.of_kernel(launch)
        self.names = Names(_RESERVED)
        self.values = {}  # SSA value -> Python expression
        self.top = Lines(1)
        self.role, self.row0 = None, "row0"
        self.held = {}  # condition -> the register that holds it
        self.leading, self.silent = {}, set()  # of a role's states and advances: `shared_states.find`
        self.packed = target.fp32_packed  # fp32 operations of one instruction
        self.max_inputs = target.max_inputs
        self.sums_in_tmem = target.mma.accumulator == "tmem"
        self.keeps, self.keeps_descriptors = (self.most_products() >= count for count in (KEEP_ADDRESSES, KEEP_DESCRIPTORS))

    def source(self) -> str:
        function = Names([*_RESERVED, *_OF_THE_HOST]).fresh(self.kernel.sym_name.value)
        self.names.taken.add(function)
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
        out(f"def {function}(")
        for p in self.parameters:
            out(f"    {p.name}: {p.annotation},  # {p.comment}")
        out("):")
        return out.text() + body + "\n\n" + parameters.host_source(self.kernel, function, self.parameters)

    def _open(self) -> None:
        top = self.top
        top("tid, _, _ = cute.arch.thread_idx()")
        top("warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())")
        base = "cute.arch.get_dyn_smem(Int8, alignment=1024)"
        top(f"base = kept_pointer({base})" if self.keeps else f"base = {base}")
        if self.kernel.cluster.value > 1:
            top("cta_rank = cute.arch.block_idx_in_cluster()")
        for argument in self.kernel.body.blocks[0].arguments:
            self.values[argument] = self.parameter_name.get(("scalar", argument), "")

    def _tensor_name(self, value) -> str:
        """The tensor that is copied into or out of a buffer, or through a pipe; "tile" where that is none."""
        for op in self.operations():
            if isinstance(op, (warp.TmaLoadOp, warp.TmaStoreOp, warp.TmaAddOp, warp.TmaPutOp)):
                state = None if isinstance(op, warp.TmaStoreOp) else op.state
                if value == op.buffer or (state is not None and value == state.owner.opview.pipe):
                    return parameters.entries_of(self.launch)[op.map.owner.opview.tensor]["name"]
        return "tile"

    def operations(self):
        """All operations of the kernel, nested ones too."""
        return nested_operations(self.kernel.body)

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

    def cta_rank(self, op) -> None:
        self.values[op.out] = "cta_rank"

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
        own_row = self.role is not None and self.layout.whole_rows and bool(terms)  # then a map loads many of them
        read = "read_if_inside" if own_row and bits_of(op.out.type) == 32 else "read_element"
        read = "read_exclusive(" if op.exclusive.value else f"{read}({dsl_type(op.out.type)}, "
        self._assign(op.out, f"{read}{pointer}, ({listing}))", "x")

    def _size(self, tensor, axis) -> str:
        return self.parameter_name[("dim", tensor, axis)] if tensor.type.is_dynamic_dim(axis) else str(tensor.type.shape[axis])

    def exp2(self, op) -> None:
        x = self.operand(op.x)
        if op.emulated.value == 0:
            text = f"cute.math.exp2({x}, fastmath=True)"
        else:
            text = f"exp2_emulated({x}) if {self.layout.column_group(self.element)} % 16 < {op.emulated.value} else cute.math.exp2({x}, fastmath=True)"
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
        slots = op.stages.value * op.groups.value
        self.top(f"{name} = cute.recast_ptr(base + {op.offset.value}, dtype=Int64)  # {slots} x {op.tx_bytes.value} bytes")
        self.values[op.out] = name
        if op.arrivals.value:
            empty = self.names.fresh(name.replace("full", "empty"))
            self.top(f"{empty} = {name} + {slots}  # {op.arrivals.value} warps")
            self.values[op.out, "empty"] = empty

    def init_barriers(self, op) -> None:
        with self.top.block("if warp == 0:"):
            with self.top.block("with cute.arch.elect_one():"):
                for pipe in op.pipes:
                    made = pipe.owner.opview
                    with self.unrolled("s", made.stages.value * made.groups.value) as s:
                        self.top(f"cute.arch.mbarrier_init({self.values[pipe]} + {s}, {made.fills.value})")
                        if made.arrivals.value:
                            self.top(f"cute.arch.mbarrier_init({self.values[pipe, 'empty']} + {s}, {made.arrivals.value})")
            self.top("cute.arch.mbarrier_init_fence()")
        if self.kernel.cluster.value > 1:
            self._cluster_sync()
        else:
            self.top("cute.arch.sync_threads()")

    def cluster_sync(self, op) -> None:
        self._cluster_sync()

    def _cluster_sync(self) -> None:
        self.top("cute.arch.cluster_arrive(aligned=False)")
        self.top("cute.arch.cluster_wait()")

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
            self.leading, self.silent = shared_states.find(op.body.blocks[0]) if self.layout.whole_rows or self.keeps else ({}, set())
            self.block(op.body.blocks[0])
            body, self.top = self.top, outer_top
            inner = op.active.value != count
            if inner:
                condition = f"warp == {first}" if op.active.value == 1 else f"warp < {first + op.active.value}"
                with self.top.block(f"if {condition}:"):
                    self._role_body(body)
            elif count % 4:
                self._role_body(body)
            else:
                self.top(f"wg = warp // 4 - {first // 4}")
                self.top("t = tid % 128")
                for line in self.layout.header(first, count):
                    self.top(line)
                self._role_body(body)
        self.role = None

    @property
    def layout(self):
        """Which elements of a register tile a thread of this role holds."""
        return LAYOUTS[self.role.layout.value]

    def _role_body(self, body: Lines) -> None:
        with self.top.block("if cta_rank == 0:") if self.role.leader.value else contextlib.nullcontext():
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
        held = self._hold_conditions(body)
        with self.top.block(f"for {name} in cutlass.range({lower}, {upper}{step_text}, unroll=1):"), self._own_place(body):
            self.block(body)
        for cond in held:
            del self.held[cond]

    @contextlib.contextmanager
    def _own_place(self, body):
        """In a loop around others, what a thread's row leads to, or beside threads of whole rows the CTA's place, is found where it is used,
        and not kept in registers through those: a role that issues has few that all threads share, and needs them for coordinates."""
        row, places, warps = self.row0, {}, list(self.role.warps)
        if any(op.operation.name == "scf.for" for op in nested_in(body)):
            if self.layout.whole_rows:
                self.row0 = self.names.fresh("row0")
                self.top(f"{self.row0} = {self.layout.first_row(warps[0], len(warps))}")
            elif self.sums_in_tmem:
                read = [v for op in body.operations if op.operation.name.startswith("arith.") for v in op.operation.operands]
                places = {v: self.values[v] for v in read if isinstance(v.owner, tile.ProgramIdOp)}
                for value, outside in places.items():
                    self._assign(value, f"hold({outside})", "bid")
        yield
        self.row0 = row
        self.values.update(places)

    def _hold_conditions(self, body) -> list:
        """Conditions of a loop's guards that are known in front of it, each into a register: LLVM would compare again in every iteration,
        and load the parameters for it. Not where registers are short, as where they hold all tiles.
        """
        found = []
        for op in nested_in(body) if self.layout.whole_rows else ():
            if isinstance(op, warp.WhenOp) and space_of(op.cond.type) != "reg" and op.cond in self.values and op.cond not in self.held:
                self.held[op.cond] = self.names.fresh("held")
                self.top(f"{self.held[op.cond]} = hold(select(Int32, {self.operand(op.cond)}, 1, 0))")
                found.append(op.cond)
        return found

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
            with self._own_place(op.body.blocks[0]):
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
        leader = self.leading.get(op.out, op.out)
        if leader != op.out:
            phase = self.values[leader, "phase"]
            self.values[op.out] = self.operand(leader)
            self.values[op.out, "phase"] = phase if op.phase.value == leader.owner.opview.phase.value else f"{phase} ^ 1"
            return
        slot, phase = self.names.fresh("slot"), self.names.fresh("phase")
        self.top(f"{slot}, {phase} = Int32(0), Int32({op.phase.value})")
        self.values[op.out] = slot
        self.values[op.out, "phase"] = phase

    def _pipe(self, state):
        return state.owner.opview.pipe

    def _full(self, state) -> str:
        """The full barrier of the state's slot."""
        return f"{self.operand(self._pipe(state))} + {self._slot(state)}"

    def _empty(self, state) -> str:
        return f"{self.values[self._pipe(state), 'empty']} + {self._slot(state)}"

    def _slot(self, state) -> str:
        """Number of the slot, among those of all groups."""
        pipe, group = self._pipe(state).owner.opview, state.owner.opview.group
        if pipe.groups.value == 1:
            return self.operand(state)
        ring = "wg" if group is None else group.value
        return f"{ring} * {pipe.stages.value} + {self.operand(state)}"

    def acquire(self, op) -> None:
        self.top(f"cute.arch.mbarrier_wait({self._empty(op.state)}, {self.values[op.state, 'phase']})")

    def arm(self, op) -> None:
        made = self._pipe(op.state).owner.opview
        with self.top.block("if cta_rank == 0:") if made.leader.value else contextlib.nullcontext():
            self.top(f"cute.arch.mbarrier_arrive_and_expect_tx({self._full(op.state)}, {made.tx_bytes.value})")

    def wait(self, op) -> None:
        self.top(f"cute.arch.mbarrier_wait({self._full(op.state)}, {self.values[op.state, 'phase']})")

    def release(self, op) -> None:
        with self.top.block("if prims.elect_sync():"):
            ctas = self._pipe(op.state).owner.opview.ctas.value
            if ctas == 1:
                self.top(f"cute.arch.mbarrier_arrive({self._empty(op.state)})")
                return
            with self.unrolled("peer", ctas) as peer:
                self.top(f"cute.arch.mbarrier_arrive({self._empty(op.state)}, {peer})")

    def arrive(self, op) -> None:
        full, leader = self._full(op.state), self._pipe(op.state).owner.opview.leader.value
        if not leader and self.layout.whole_rows:
            self.top(f"arrive_one(base, {self._pipe(op.state).owner.opview.offset.value}, {self._slot(op.state)})")
            return
        with self.top.block("if prims.elect_sync():"):
            self.top(f"arrive_at_leader({full})" if leader else f"cute.arch.mbarrier_arrive({full})")

    def advance(self, op) -> None:
        if op in self.silent:
            return
        stages = self._pipe(op.state).owner.opview.stages.value
        state = self.leading.get(op.state, op.state)
        slot, phase = self.operand(state), self.values[state, "phase"]
        if stages == 1:
            self.top(f"{phase} ^= 1")
            return
        self.top(f"{slot} += 1")
        with self.top.block(f"if {slot} == {stages}:"):
            self.top(f"{slot} = Int32(0)")
            self.top(f"{phase} ^= 1")

    def elect(self, op) -> None:
        first = {"warp": "", "warpgroup": "warp % 4 == 0", "role": f"warp == {list(self.role.warps)[0]}"}[op.scope.value]
        with self.top.block(f"if {first}:") if first else contextlib.nullcontext(), self.top.block("if prims.elect_sync():"):
            self.block(op.body.blocks[0])

    def slot_owner(self, op) -> None:
        with self.top.block(f"if warp == {list(self.role.warps)[0]} + {self.operand(op.state)}:"):
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
        self.top(f'cute.arch.fence_proxy("async.shared", space="{"cluster" if op.cluster.value else "cta"}")')


_CONTROL_RULES = {"scf.for": _Kernel.for_op, "scf.if": _Kernel.if_op, "scf.yield": _Kernel.yield_op}
_RULES = {
    tile.ProgramIdOp: _Kernel.program_id,
    tile_pair.CtaRankOp: _Kernel.cta_rank,
    tile.DimOp: _Kernel.dim,
    tile.LoadElementOp: _Kernel.load_element,
    tile.Exp2Op: _Kernel.exp2,
    warp.PtxOp: _Kernel.ptx,
    warp.TensorMapOp: _Kernel.tensor_map,
    warp.WalkOp: _Kernel.walk,
    warp.BufferOp: _Kernel.buffer,
    warp.PipelineOp: _Kernel.pipeline,
    warp.InitBarriersOp: _Kernel.init_barriers,
    warp.ClusterSyncOp: _Kernel.cluster_sync,
    warp.RoleOp: _Kernel.role_op,
    warp.StateOp: _Kernel.state,
    warp.AcquireOp: _Kernel.acquire,
    warp.ArmOp: _Kernel.arm,
    warp.WaitOp: _Kernel.wait,
    warp.ReleaseOp: _Kernel.release,
    warp.ArriveOp: _Kernel.arrive,
    warp.AdvanceOp: _Kernel.advance,
    warp.ElectOp: _Kernel.elect,
    warp.SlotOwnerOp: _Kernel.slot_owner,
    warp.BarrierOp: _Kernel.barrier,
    warp.TurnInitOp: _Kernel.turn_init,
    warp.TurnTakeOp: _Kernel.turn_take,
    warp.TurnGiveOp: _Kernel.turn_give,
    warp.FenceAsyncOp: _Kernel.fence_async,
    warp.TmaLoadOp: _Kernel.tma_load,
    warp.TmaStoreOp: _Kernel.tma_store,
    warp.TmaAddOp: _Kernel.tma_add,
    warp.TmaPutOp: _Kernel.tma_put,
    warp.StoreCommitOp: _Kernel.store_commit,
    warp.StoreWaitOp: _Kernel.store_wait,
    warp.LoadColumnsOp: _Kernel.load_columns,
    warp.LoadFragmentOp: _Kernel.load_fragment,
    warp.SyncWarpOp: _Kernel.sync_warp,
    warp.StoreSharedOp: _Kernel.store_shared,
    warp.StoreRowsOp: _Kernel.store_rows,
    warp.GlobalAddOp: _Kernel.global_add,
    warp.WaitCountOp: _Kernel.wait_count,
    warp.AddCountOp: _Kernel.add_count,
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
    **TMEM_RULES,
}
