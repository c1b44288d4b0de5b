"""Roles of a kernel whose MMAs sum into tensor memory: warps that load, issue MMAs, and store (`handed_over.py`), and compute warpgroups of
128 rows each; where tiles are added to global memory through shared memory, a warpgroup for that (`streams.py`); where loops scale sums in
tensor memory, as many warpgroups that correct those (`corrections.py`).

The rest of `warp-specialize` for such kernels; it decides by where the tiles lie. One thread issues all MMAs, of row block after row block:
while one's scores are exponentiated, the other's products are formed. Compute warpgroups read and write tensor memory a row a thread; maps
that touch it work on a few columns at a time. Who waits for whom: `handoffs.py`, as `warp.signal` and `warp.await`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import tile, tile_pair, warp, warp_tmem
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import arith, ir, scf
from ..ir.tile import column_of, space_of
from . import corrections, fragments, handoffs, tmem_tiles
from .handed_over import EPILOGUE
from .register_pressure import MAP_COLUMNS, columns_at_a_time, has_long_function
from .role_loops import captured, index_constant, less, operations_within
from .role_ops import RULES, Role, i64, is_load, is_row, is_staged, location_of
from .schedule import Slot, is_scalar_op
from .streams import COMPUTE, LOAD, MMA, REDUCE, stream_of
from .warp_specialize import TileKernel, at_launch

CORRECT = "correct"
_REDUCE_REGISTERS = 184  # of the warpgroup that adds: a row of 128 sums, addresses
_ISSUE_REGISTERS, _MOST_ISSUE_REGISTERS = 48, 88  # of the warpgroup whose warps only issue copies and MMAs; if nobody else can take them
# Beside a role that corrects: 8 columns, what they become and addresses fit 48 registers, and 40 where the function of a map takes several
# steps, as ptxas needs 184 for it then; issuing takes 22. 2 x (176 + 48) + 32 = 480: five warpgroups start with 96 registers a thread each,
# and setmaxnreg waits for ever for more than they start with
_CORRECT_REGISTERS, _FEWER_CORRECT_REGISTERS, _CORRECT_CHUNK, _FEWER_ISSUE_REGISTERS = 48, 40, 8, 32
_WORD = 1020  # byte of the i32 that the address of tensor memory goes to, behind the mbarriers


def holds_tmem(kernel) -> bool:
    """Whether a tile.kernel has tiles in tensor memory."""
    return any(space_of(value.type) == "tmem" for op in operations_within(kernel.body.blocks[0]) for value in op.operation.results)


def is_mma(op) -> bool:
    return isinstance(op, tile.MmaOp)


def computes(op) -> bool:
    return type(op) in RULES and stream_of(op) == COMPUTE


def reduces(op) -> bool:
    return type(op) in RULES and stream_of(op) == REDUCE


def role_of(op, corrected=frozenset()) -> str:
    """The role that runs an operation; `corrected`: what goes to the role that corrects sums."""
    return CORRECT if op in corrected else stream_of(op)


class TmemKernel(TileKernel):
    """One tile.kernel with tiles in tensor memory on its way to a warp.kernel."""

    group_rows = warp_tmem.LANES
    computes = staticmethod(computes)
    takes_turns = True
    corrections = None

    def __init__(self, kernel, target, stores_apart: bool = False, correction: str = "auto"):
        super().__init__(kernel, target, stores_apart)
        self.ctas = _check_ctas([op for op in self.all_ops if is_mma(op)])
        self.reduced = fragments.assign(kernel, reduces)
        for op in self.all_ops:
            _check(op)
        tmem_tiles.check(kernel, target)
        self.corrections = self._corrections(correction)
        self.compute_registers, self.load_registers = self._budgets()
        self.links = handoffs.find(kernel, self.role_of, self.corrections.boxes.values() if self.corrections else ())
        self.regions = {}  # value in tensor memory -> warp.tmem
        self.boxes = {}  # row vector that changes roles -> warp.row_box

    def is_common(self, op) -> bool:
        """What is computed from sizes and places each role computes for itself: it would be alive across the compute role, which needs all
        its registers, and ptxas would keep it on the stack for all roles. Not what a common operation needs, as a place that is read."""
        if not op.operation.name.startswith("arith.") or op.operation.name == "arith.constant":
            return True
        users = [use.owner for result in op.operation.results for use in result.uses]
        return any(user.operation.parent == op.operation.parent and is_scalar_op(user) and self.is_common(user) for user in users)

    def role_of(self, op) -> str:
        return EPILOGUE if op in self.stored else role_of(op, self.corrections.operations if self.corrections is not None else ())

    def corrects(self, op) -> bool:
        return self.role_of(op) == CORRECT

    def _corrections(self, choice: str):
        """What goes to a role of its own; None if nothing does, or if shared memory has no room for what it needs to know."""
        found = corrections.find(self.kernel) if choice != "no" else None
        if found is None:
            return None
        self.smem_bytes = super()._place_buffers()
        needs = self._with_boxes(found)
        if needs > self.target.smem_bytes:
            if choice == "auto":
                return None
            raise op_diagnostic(self.kernel, f"needs {needs} bytes of shared memory, but a CTA has {self.target.smem_bytes}",
                                why=f"{len(found.boxes)} row vectors go to the role that corrects sums", fix="leave correction to the pass")
        return found

    def _with_boxes(self, found) -> int:
        return self.smem_bytes + len(found.boxes) * corrections.BOX_BYTES * self.group_rows * self.warpgroups

    def _place_buffers(self) -> int:
        at = super()._place_buffers()
        return at if self.corrections is None else self._with_boxes(self.corrections)

    def _threads(self) -> int:
        return super()._threads() + 128 * (self._reduces() + (self.warpgroups if self.corrections is not None else 0))

    def _count_warpgroups(self) -> int:
        rows = {v.type.shape[0] for op in self.all_ops for v in op.operation.results if space_of(v.type) in ("reg", "tmem")}
        if len(rows) > 1 or next(iter(rows)) not in (self.group_rows, 2 * self.group_rows):
            raise op_diagnostic(
                self.kernel,
                f"has tiles of {', '.join(map(str, sorted(rows)))} rows",
                why=f"each compute warpgroup, of 1 or 2, holds {self.group_rows} rows of every tile in registers and in tensor memory",
                fix=f"give all of them {self.group_rows} rows, or all of them {2 * self.group_rows}",
            )
        return next(iter(rows)) // self.group_rows

    def fragments_of(self, name: str):
        return self.reduced if name == REDUCE else self.fragments

    def _reduces(self) -> bool:
        return any(reduces(op) for op in self.all_ops)

    @property
    def correct_registers(self) -> int:
        maps = [op for op in self.all_ops if isinstance(op, tile.MapOp)]
        return _FEWER_CORRECT_REGISTERS if any(map(has_long_function, maps)) else _CORRECT_REGISTERS

    def _budgets(self) -> tuple[int, int]:
        threads, step = self._threads(), self.target.register_step
        corrects = self.corrections is not None
        issue = _FEWER_ISSUE_REGISTERS if corrects else _ISSUE_REGISTERS
        there = threads // 128 * at_launch(self.target, threads) - _REDUCE_REGISTERS * self._reduces()
        share = (there - issue) // self.warpgroups - self.correct_registers * corrects
        share = min(share, self.target.max_registers_per_thread) // step * step
        if corrects or self._reduces():  # with 80 beside a role that adds, ptxas puts what all roles know on the stack; with 48 it does not
            return share, issue
        launched = at_launch(self.target, threads)
        if launched >= share:  # one compute warpgroup: nothing to give away, and a CTA takes what ptxas needs
            return launched, launched
        return share, min(there - share * self.warpgroups, _MOST_ISSUE_REGISTERS)

    def _emit_roles(self) -> None:
        memory = warp_tmem.TmemAllocOp(
            columns=i64(self._columns()), word=i64(_WORD), warp=i64(1), ctas=self.pair(),
            out=ir.Type.parse("!warp.tensor_memory"),
        ).out  # fmt: skip
        handles = {}  # column and type -> region
        for op in self.all_ops:
            for value in [*op.operation.results, *(op.regions[0].blocks[0].arguments if op.operation.name == "scf.for" else ())]:
                if space_of(value.type) == "tmem":
                    if value.type not in handles:
                        handles[value.type] = warp_tmem.TmemOp(memory=memory, out=value.type, loc=location_of(value, self.kernel)).out
                    self.regions[value] = handles[value.type]
        together = {}  # who waits for several roles' threads at one place waits once
        for link in self.links:
            alone = link if link.source == MMA or link.in_step or link.between_runs else None
            together.setdefault((link.sink, link.after, link.ahead, alone), []).append(link)
        self.link_values = {}
        for links in together.values():
            value = warp_tmem.LinkOp(
                groups=i64(self.warpgroups), ahead=i64(links[0].ahead), out=ir.Type.parse("!warp.order"), loc=links[0].after.location
            ).out
            self.link_values.update(dict.fromkeys(links, value))
        warps = 4 * self.warpgroups
        for name, first, count in self._warps_of_one([LOAD, MMA, *[EPILOGUE] * bool(self.stored)]):
            self._tmem_role(name, first, count, self.load_registers, _Issuer if name == MMA else _TmemRole)
        if self.corrections is not None:
            self._make_boxes()
        self._tmem_role(COMPUTE, 4, warps, self.compute_registers, _TmemRole)
        last = 4 + warps
        if self.corrections is not None:
            self._tmem_role(CORRECT, last, warps, self.correct_registers, _Corrector)
            last += warps
        if self._reduces():
            self._tmem_role(REDUCE, last, 4, _REDUCE_REGISTERS, _TmemRole)
        warp_tmem.TmemFreeOp(memory=memory)

    def _columns(self) -> int:
        """What to allocate: a power of two from 32 on (PTX ISA, tcgen05.alloc). CTAs that leave columns to others may share an SM."""
        tiles = tmem_tiles.find(self.kernel)
        blocks = max(tmem_tiles.block_of(t.kind) for t in tiles)
        last = max(column_of(t.kind) + t.words for t in tiles)
        return blocks * max(32, 1 << (last - 1).bit_length())

    def pair(self):
        """The attribute `ctas` of what pairs of CTAs do together; absent where there are none."""
        return i64(2) if self.ctas == 2 else None

    def keeps(self, name: str):
        """Whether an operation is of the role of that name, as a function."""
        fixed = {LOAD: is_load, MMA: is_mma, REDUCE: reduces}
        return fixed[name] if name in fixed else lambda op: type(op) in RULES and self.role_of(op) == name

    def _make_boxes(self) -> None:
        at = self.smem_bytes
        for value in self.corrections.boxes:
            kind = tile.tile_type(value.type.shape, value.type.element_type, "smem")
            self.boxes[value] = warp_tmem.RowBoxOp(offset=i64(at), out=kind, loc=value.owner.location).out
            at += corrections.BOX_BYTES * kind.shape[0]

    def _tmem_role(self, name, first, count, registers, emitter) -> None:
        whole = count % 4 == 0
        role = warp.RoleOp(
            sym_name=ir.StringAttr.get(name),
            warps=ir.DenseI64ArrayAttr.get(list(range(first, first + count))),
            active=i64(count if whole else 1),
            registers=i64(registers),
            layout=ir.StringAttr.get("lanes") if whole else None,
            leader=ir.BoolAttr.get(True) if name == MMA and self.ctas == 2 else None,
        )
        block = role.body.blocks.append()
        with ir.InsertionPoint(block):
            emitter(self, name).emit_block(self.body, dict(self.scalars))


@dataclass(frozen=True)
class _Wait:
    """In a slot of its own, for a link `in_step`."""

    link: handoffs.Link
    operation = None


class _TmemRole(Role):
    """One role's part; it signals and awaits where the links say."""

    groups = (None,)  # each warpgroup's own
    chunk = MAP_COLUMNS
    counts_loops_around = False  # the count would be one more number that is kept through the loops within

    def holds_fragments(self) -> bool:
        return self.name in (COMPUTE, REDUCE)

    def waits_within(self, loop) -> list:
        waits = [link for link in self.kernel.links if link.in_step and link.sink == self.name]
        waits = [link for link in waits if link.after.operation.parent == loop.operation]
        return [Slot(_Wait(link), link.before.stage.value, link.after.order.value - 0.5) for link in waits]

    def emit_op(self, op, env) -> None:
        if isinstance(op, _Wait):
            self._await_links([op.link], self.groups, op.link.after)
            return
        self._await(op, self.groups)
        super().emit_op(op, env)
        for value in op.operation.results:
            if value in self.kernel.boxes:
                warp_tmem.PostOp(box=self.kernel.boxes[value], source=self.fragment(value), loc=op.location)
        self._signal(op, self.groups)

    def emit_loop(self, op, env) -> None:
        between = [link for link in self.kernel.links if link.between_runs and link.before == op]
        self._await(op, self.groups)
        self._where_trips(op, env, [link for link in between if link.sink == self.name], self._await_links)
        super().emit_loop(op, env)
        self._where_trips(op, env, [link for link in between if link.source == self.name], self._signal_links)
        self._signal(op, self.groups)

    def _where_trips(self, op, env, links, emit) -> None:
        if links:
            with op.location:
                count = self._trip_count(*[self.scalar(v, env) for v in list(op.operation.operands)[:3]])
                branch = scf.IfOp(less(index_constant(0), count))
                with ir.InsertionPoint(branch.then_block):
                    emit(links, self.groups, op)
                    scf.YieldOp([])

    def _await(self, op, groups) -> None:
        here = [link for link in self.kernel.links if link.sink == self.name and link.after == op]
        self._await_links([link for link in here if not link.in_step and not link.between_runs], groups, op)

    def _await_links(self, links, groups, op) -> None:
        for value in dict.fromkeys(self.kernel.link_values[link] for link in links):
            for group in groups:
                warp_tmem.AwaitOp(link=value, group=group, loc=op.location)

    def _signal(self, op, groups) -> None:
        here = [link for link in self.kernel.links if link.source == self.name and link.before == op]
        self._signal_links([link for link in here if not link.between_runs], groups, op)

    def _signal_links(self, links, groups, op) -> None:
        for link in links:
            for group in groups:
                warp_tmem.SignalOp(link=self.kernel.link_values[link], group=group, loc=op.location)

    # -- operations

    def copy(self, target, source, loc) -> None:
        if space_of(target.type) == "tmem":
            if self.kernel.regions[target] != self.kernel.regions[source]:
                raise op_diagnostic(target.owner.opview if not isinstance(target.owner, ir.Block) else self.kernel.kernel,
                                    "would have to be copied within tensor memory", why="an accumulator has one place",
                                    fix="give both the same column")
            return
        super().copy(target, source, loc)

    def storage(self, value):
        return self.kernel.regions[value] if space_of(value.type) == "tmem" else self._input(value)

    def map(self, op, env) -> None:
        """Column values are read a few at a time too, as a thread has a whole row; where a condition guards them, before it."""
        rows = any(map(is_row, op.inputs)) and op.cond is None
        if not rows and not any(space_of(v.type) == "tmem" for v in [op.out, *op.inputs]):
            super().map(op, env)
            return
        for value in op.inputs:
            if is_row(value) and not rows:
                self._load_columns(op, value, env)
        self._map_where(op, env, self._tmem_map)

    def _source(self, op, value):
        if is_row(value) and op.cond is None:
            self._require_load(op, value)
            return self.kernel.buffers[value]
        return self.storage(value)

    def _tmem_map(self, op, env) -> None:
        source = op.body.blocks[0]
        last = list(source.operations)[-1]
        if space_of(op.out.type) == "reg" and list(last.operation.operands) == [source.arguments[0]] and len(op.inputs) == 1:
            warp_tmem.TmemLoadOp(target=self.fragment(op.out), source=self.storage(op.inputs[0]), loc=op.location)
            return
        columns = columns_at_a_time(op, self.kernel.compute_registers, self.chunk)
        new = warp_tmem.TmemMapOp(
            target=self.storage(op.out), inputs=[self._source(op, v) for v in op.inputs], states=[], columns=i64(columns),
            reader=self._reader(op, *[v for v in op.inputs if is_row(v)]), loc=op.location,
        )  # fmt: skip
        self.copy_region(op, new, env)

    def map_both(self, op, env) -> None:
        """What goes to registers is written beside the other result, which may go to tensor memory."""
        for value in captured(op.body.blocks[0]):
            self.scalar(value, env)
        if space_of(op.out.type) != "reg":
            raise op_diagnostic(op, f"makes its first result in {op.out.type}", why="that is held in registers; the second one may lie in "
                                "tensor memory", fix="give the results in the other order")
        new = warp_tmem.TmemMapBothOp(
            target=self.storage(op.beside), inputs=[self._source(op, v) for v in op.inputs], states=[],
            columns=i64(columns_at_a_time(op, self.kernel.compute_registers, self.chunk)),
            reader=self._reader(op, *[v for v in op.inputs if is_row(v)]), beside=self.fragment(op.out), loc=op.location,
        )  # fmt: skip
        self.copy_region(op, new, env)
        yielded = list(new.body.blocks[0].operations)[-1].operation
        out, beside = yielded.operands
        yielded.operands[0], yielded.operands[1] = beside, out

    def global_add(self, op, env) -> None:
        """Part after part, in the slots in turn."""
        if not is_staged(op):
            super().global_add(op, env)
            return
        width, part, slots = op.x.type.shape[1], op.staged.value, op.buffers.value
        fold = i64(width) if op.folded.value else None
        *others, column = self.scalars(op.coords, env)
        for number, first in enumerate(range(0, width, part)):
            with op.location:
                slot = index_constant(number % slots) if slots > 1 else None
                at = arith.AddIOp(column, index_constant(first)).result if first else column
            buffer = self.kernel.buffers[op]
            warp.StoreSharedOp(buffer=buffer, source=self.fragment(op.x), slot=slot, first=i64(first), loc=op.location)
            warp.TmaStoreOp(
                map=self.kernel.maps[op], buffer=buffer, coords=[*others, at], row=i64(list(op.dims)[0]), add=ir.BoolAttr.get(True),
                slot=i64(number % slots), fold=fold, loc=op.location,
            )  # fmt: skip

    def exchange(self, op, env) -> None:
        if op.axis.value != 1 or op.x.type.shape[0] != warp_tmem.LANES:
            raise op_diagnostic(op, f"exchanges halves of {op.x.type} along axis {op.axis.value}", why="a thread has a whole row, of which "
                                "it sends half", fix=f"exchange columns of {warp_tmem.LANES} rows")
        warp.StoreSharedOp(
            buffer=self.kernel.buffers[op.out], source=self.fragment(op.x), slot=None, exchange=ir.BoolAttr.get(True), loc=op.location
        )

    def splat(self, op, env) -> None:
        if space_of(op.out.type) != "tmem":
            super().splat(op, env)
            return
        new = warp_tmem.TmemMapOp(target=self.storage(op.out), inputs=[], states=[], columns=i64(self.chunk), loc=op.location)
        index = ir.IndexType.get()
        block = new.body.blocks.append(index, index, arg_locs=[op.location] * 2)
        with ir.InsertionPoint(block), op.location:
            value = ir.Operation.create("arith.constant", results=[op.out.type.element_type], attributes={"value": op.value}).result
            tile.YieldOp(values=[value])


class _Issuer(_TmemRole):
    """The warp that issues MMAs: each step row block after row block, which have nothing to do with each other."""

    def __init__(self, kernel: TmemKernel, name: str):
        super().__init__(kernel, name)
        self.groups = tuple(i64(block) for block in range(kernel.warpgroups))

    def emit_op(self, op, env) -> None:
        for group in self.groups:
            self._issue(op, group)

    def _emit_slots(self, op, slots, k, lower, step, env) -> None:
        for group in self.groups:
            for slot, _ in slots:
                self._issue(slot.op, group)

    def _issue(self, op, group) -> None:
        if isinstance(op, _Wait):
            self._await_links([op.link], [group], op.link.after)
            return
        self._await(op, [group])
        regions, buffers = self.kernel.regions, self.kernel.buffers
        warp_tmem.Tcgen05MmaOp(
            acc=regions[op.out],
            a=buffers[op.a] if space_of(op.a.type) == "smem" else regions[op.a],
            b=buffers[op.b],
            a_state=None,
            b_state=None,
            block=group,
            transpose_a=op.transpose_a,
            transpose_b=op.transpose_b,
            reader=self._reader(op, op.a, op.b),
            ctas=self.kernel.pair(),
            folded=op.attributes.get("folded"),
            accumulate=ir.BoolAttr.get(op.acc is not None),
            loc=op.location,
        )
        self._signal(op, [group])


class _Corrector(_TmemRole):
    """Warpgroups that scale sums in tensor memory, and store them in the end, by row vectors that the compute ones pass on."""

    chunk = _CORRECT_CHUNK

    def __init__(self, kernel: TmemKernel, name: str):
        super().__init__(kernel, name)
        self.held = {}  # row vector -> fragment
        for op in kernel.all_ops:
            for value in op.operation.operands if kernel.corrects(op) and not isinstance(op, tile.ToSharedOp) else ():
                for held in dict.fromkeys([corrections.source_of(value), value]) if space_of(value.type) == "reg" else ():
                    if held not in self.held:
                        self.held[held] = warp.FragmentOp(out=held.type, loc=held.owner.location).out

    def fragment(self, value):
        return self.held[value]

    def emit_op(self, op, env) -> None:
        self._await(op, self.groups)
        for value in dict.fromkeys(v for v in op.operation.operands if v in self.held and not self.kernel.corrects(v.owner.opview)):
            source = corrections.source_of(value)
            if op in self.kernel.corrections.boxes[source].readers:
                warp_tmem.FetchOp(box=self.kernel.boxes[source], target=self.held[source], loc=op.location)
                if source != value:
                    self.vote_any(value.owner.opview, env)
        Role.emit_op(self, op, env)
        self._signal(op, self.groups)

    def storage(self, value):
        made = getattr(value.owner, "opview", None)
        stored = self.kernel.corrections.written.get(made)
        return super().storage(value) if stored is None else self.kernel.buffers[stored]

    def to_shared(self, op, env) -> None:
        """Done by the map that made the tile."""


def _check_ctas(products) -> int:
    """How many CTAs form each product: the same number for all."""
    single = next((op for op in products if op.ctas.value == 1), None)
    if single is not None and any(op.ctas.value == 2 for op in products):
        raise op_diagnostic(single, "is formed by one CTA, others of its kernel by pairs",
                            why="all tcgen05 instructions of a kernel have one cta_group (PTX ISA)",
                            fix="run tile-insert-dsmem-exchange behind tile-split-2cta{exchange=true}")
    return 1 if single is not None or not products else 2


def _check(op) -> None:
    """What tensor memory asks of a tile program."""
    tiles = [v.type for v in [*op.operation.operands, *op.operation.results] if space_of(v.type) == "tmem"]
    if any(column_of(kind) < 0 for kind in tiles):
        raise op_diagnostic(op, "has tiles in tensor memory without columns", fix="run tile-alias-tmem before warp-specialize")
    if is_mma(op):
        if space_of(op.out.type) != "tmem" or space_of(op.a.type) not in ("tmem", "smem"):
            raise op_diagnostic(op, f"multiplies {op.a.type} into {op.out.type}", why="this MMA reads and sums outside of registers",
                                fix="run tile-accumulate-in-tmem")
        if op.acc is not None and op.acc.type != op.out.type:
            raise op_diagnostic(op, f"sums {op.acc.type} into {op.out.type}", why="it sums in place", fix="give both the same column")
        for name, value in (("a", op.a), ("b", op.b)):
            made = getattr(value.owner, "opview", None)
            written = isinstance(made, (tile.ToSharedOp, tile_pair.ExchangeOp))
            if written and made.buffers.value > 1:
                raise op_diagnostic(op, f"reads {name}, which has {made.buffers.value} buffers",
                                    why="the role that writes it and the one that issues MMAs take turns at one", fix="give it buffers = 1")
            if op.out.type.shape[0] > warp_tmem.LANES and written:
                raise op_diagnostic(op, f"reads {name} from shared memory that this CTA wrote, for {op.out.type.shape[0]} rows",
                                    why="row blocks would wait for each other", fix=f"use tiles of {warp_tmem.LANES} rows")
    if isinstance(op, tile.FromSharedOp) or (isinstance(op, tile.GlobalAddOp) and op.x.type.rank == 2 and not is_staged(op)):
        raise op_diagnostic(op, "has no form for one row a thread yet", why="tensor memory is read a lane a row")
    if isinstance(op, tile.VoteAnyOp) and op.rows.value != 32:
        raise op_diagnostic(op, f"votes over {op.rows.value} rows", why="a warp holds 32 rows, one a lane", fix="give it rows = 32")
