"""Assign the operations of a CTA's program to roles: a TMA producer warp, compute warpgroups of 64 rows each, warps that add or store.

Register tiles of 64 rows in a program whose others have more are split by columns: all warpgroups hold all rows.

Loads go to the role `load`; additions to global memory from tiles in shared memory, and the waiting for their turns, to `reduce`; stores of
tiles that threads wrote there to `epilogue`, where the target favours it (`stores_apart`; `epilogue` = "yes" and "no" say so); all else to
`compute`. Each role gets its own copy of the loops, software-pipelined as `stage` and `order` say (prologue, steady state, epilogue),
and of the scalars it needs. Tiles become storage: buffers in shared memory at byte offsets, fragments in registers. The roles run at their
own pace: one warp that only issues copies hides their latency behind all compute, and can give its registers away; what `compute` hands
over to be added or stored costs it no wait for the copy, or for other CTAs. What they wait for is left to `warp-insert-barriers`.

Before:  scf.for { %k = tile.load ...; %s = tile.mma %q, %k ... }
After:   warp.role @load { scf.for { warp.tma_load ... } }   warp.role @compute { scf.for { warp.wgmma ... } }
         and, for "tile.global_add" from shared memory:       warp.role @reduce { scf.for { warp.tma_add ... } }
         for "tile.store" from there, where stores are apart: warp.role @epilogue { warp.tma_put ... }

`roles` = "one": one role does it all, in the order of the program, and waits for each copy that it asked for, as kernels did before copies
and MMAs ran by themselves (FlashAttention-2). Slower, for comparison, and only where MMAs sum in registers.

Run after the tile passes; source: CUTLASS and FlashAttention-3 (Shah et al. 2024, section 3.1) for the division of work.
"""

from __future__ import annotations

from typing import Literal

from .. import targets
from ..ir import tile, tile_pair, warp
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import i64, ir
from ..ir.tile import space_of
from . import fragments, handed_over
from ._attn_to_tile_shape import register_budget
from .handed_over import EPILOGUE, is_reduce
from .registry import register_pass
from .role_loops import clone_op, operations_within
from .role_ops import ALL, Role, is_any, is_compute, is_load, is_row, is_staged
from .schedule import is_scalar_op
from .shared_room import BARRIER_BYTES, follows
from .streams import COMPUTE, LOAD, REDUCE


@register_pass("warp-specialize")
def warp_specialize(
    module: ir.Module, *, roles: Literal["many", "one"] = "many", correction: Literal["auto", "yes", "no"] = "auto",
    epilogue: Literal["auto", "yes", "no"] = "auto",
) -> None:  # fmt: skip
    from .tmem_roles import TmemKernel, holds_tmem  # it extends the classes of this file

    target = targets.of(module)
    stores_apart = target.stores_apart if epilogue == "auto" else epilogue == "yes"
    for op in list(module.body.operations):
        if isinstance(op, tile.KernelOp):
            if roles == "one" and holds_tmem(op):
                raise op_diagnostic(op, "sums in tensor memory, but is to have one role",
                                    why="one thread issues those MMAs, others compute", fix="leave out roles=one")
            kind = TmemKernel if holds_tmem(op) else _OneRole if roles == "one" else TileKernel
            with ir.InsertionPoint(op), op.location:
                (TmemKernel(op, target, stores_apart, correction) if kind is TmemKernel else kind(op, target, stores_apart)).build()
            op.operation.erase()


class TileKernel:
    """One tile.kernel on its way to a warp.kernel."""

    group_rows = 64  # of a register tile, in a warpgroup
    computes = staticmethod(is_compute)
    hands_over = True  # what is added from shared memory to a role for that
    takes_turns = False  # loads in one buffer: MMAs of the role that computes read it until that role waits for them, behind the next load

    def __init__(self, kernel, target, stores_apart: bool = False):
        self.kernel, self.target = kernel, target
        self.body = kernel.body.blocks[0]
        self.all_ops = list(operations_within(self.body))
        self.warpgroups = self._count_warpgroups()
        self.compute_registers, self.load_registers = self._budgets()
        self.fragments = fragments.assign(kernel, self.computes)
        self.scalars = {}  # tile-level scalar -> warp-level scalar at the top of the kernel
        self.maps = {}
        self.buffers = {}  # smem tile -> warp.buffer
        self.added = handed_over.additions(self.all_ops) if self.hands_over else []
        self.stored = handed_over.stores(self.all_ops) if self.hands_over and stores_apart else []
        self.handed_over = {*(op.x for op in self.added), *(op.tile for op in self.stored)}

    def keeps(self, name: str):
        """Whether an operation is of the role of that name, as a function."""
        fixed = {LOAD: is_load, REDUCE: is_reduce, EPILOGUE: lambda op: op in self.stored, ALL: is_any}
        return fixed.get(name, lambda op: is_compute(op) and op not in self.stored)

    def is_common(self, op) -> bool:
        """Whether a scalar is computed once for all roles."""
        return True

    def fragments_of(self, name: str):
        """The fragments of a role's register tiles."""
        return self.fragments

    def groups_of(self, value) -> list:
        """The parts of a tile that a role for stores takes one by one: each warpgroup's rows. One, if they share its columns."""
        apart = self.warpgroups > 1 and value.type.shape[0] == self.group_rows * self.warpgroups
        return [i64(group) for group in range(self.warpgroups)] if apart else [None]

    def _count_warpgroups(self) -> int:
        rows = {value.type.shape[0] for op in self.all_ops for value in op.operation.results if fragments.is_register(value)}
        if not rows:
            raise op_diagnostic(self.kernel, "computes nothing in registers", why="the compute role would be empty")
        if len(rows - {64}) > 1 or max(rows) % 64:
            raise op_diagnostic(
                self.kernel,
                f"has register tiles of {', '.join(map(str, sorted(rows)))} rows",
                why="each compute warpgroup holds 64 rows of every register tile, or its share of the columns of one of 64 rows",
                fix="give all of them one multiple of 64 rows, or some of them 64",
            )
        return max(rows) // 64

    def _budgets(self) -> tuple[int, int]:
        return _register_budgets(self.target, self.warpgroups, any(isinstance(op, tile.MmaOp) for op in self.all_ops))

    def _threads(self) -> int:
        return 128 * (1 + self.warpgroups)

    def build(self) -> None:
        threads = self._threads()
        if threads > self.target.max_threads_per_cta:
            raise op_diagnostic(
                self.kernel,
                f"needs {threads} threads",
                why=f"{threads // 128 - 1} warpgroups beside the one for loads; a CTA has {self.target.max_threads_per_cta}",
            )
        smem_bytes = self._place_buffers()
        cluster = self.kernel.cluster if self.kernel.cluster.value > 1 else None
        new = warp.KernelOp(sym_name=self.kernel.sym_name, threads=i64(threads), smem_bytes=i64(smem_bytes), cluster=cluster)
        arguments = list(self.body.arguments)
        block = new.body.blocks.append(*[a.type for a in arguments], arg_locs=[self.kernel.location] * len(arguments))
        self.scalars.update(zip(arguments, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for op in self.body.operations:
                if is_scalar_op(op) and self.is_common(op):
                    clone_op(op, self.scalars)
            for key, (offset, stages, swizzle) in self.placed.items():
                part, loc = (_part_of(key), key.location) if is_staged(key) else (key.type, key.owner.location)
                kind = tile.tile_type([stages, *part.shape], part.element_type, "smem")
                self.buffers[key] = warp.BufferOp(offset=i64(offset), swizzle=i64(swizzle), out=kind, loc=loc).out
            self._make_tensor_maps()
            self._emit_roles()

    def _emit_roles(self) -> None:
        for name, first, count in self._warps_of_one([LOAD, *[REDUCE] * bool(self.added), *[EPILOGUE] * bool(self.stored)]):
            self._role(name, first, count, 1, self.load_registers)
        self._role(COMPUTE, 4, 4 * self.warpgroups, 4 * self.warpgroups, self.compute_registers)

    def _warps_of_one(self, names: list[str]) -> list:
        """(role, first warp, warps) of those of which one warp is active: they share the first warpgroup, the last one has what is left."""
        return [(name, n, 1 if n + 1 < len(names) else 4 - n) for n, name in enumerate(names)]

    def _column_shares(self, value) -> int:
        """Among how many warpgroups a tile is shared by columns, as an MMA's operand b or what they write: each takes whole spans."""
        results = [op.out for op in self.all_ops if isinstance(op, tile.MmaOp) and op.b == value and not op.transpose_b.value]
        results += [op.x for op in self.all_ops if isinstance(op, tile.ToSharedOp) and op.out == value]
        return max((warp.column_shares(result.type, self.warpgroups) for result in results), default=1)

    def _place_buffers(self) -> int:
        """Byte offsets of all smem tiles: (offset, stages, swizzle); of a staged addition, under the operation itself. What is written last
        may lie over what was loaded once, if it must.
        """
        tiles = [(op, op.out) for op in self.all_ops if isinstance(op, (tile.LoadOp, tile.ToSharedOp, tile_pair.ExchangeOp))]
        tiles.sort(key=lambda pair: is_row(pair[1]))  # rows last: they need less alignment than what would come behind them
        self.placed, at = {}, BARRIER_BYTES
        for op in self.all_ops:
            if is_staged(op):
                part = _part_of(op)
                self.placed[op] = (at, op.buffers.value, _swizzle(op, part, self.target, 1))
                at += -(-op.buffers.value * _bytes(part) // 1024) * 1024
        loaded_once = []
        for op, value in tiles:
            stages = op.buffers.value
            if follows(op):
                home = next(other for other in op.others_in_turn() if not follows(other))
                if not self.takes_turns:
                    raise op_diagnostic(op, f"takes turns with the load of {home.out.type} in one buffer, which warpgroups read",
                                        why="only a role that issues MMAs into tensor memory tells when they have read it",
                                        fix="remove turns")
                self.placed[value] = (self.placed[home.out][0], 1, _swizzle(op, value.type, self.target, self._column_shares(value)))
                continue
            alignment = warp.ROW_ALIGNMENT if is_row(value) else 1024
            size = stages * _bytes(value.type) if not is_row(value) else stages * -(-_bytes(value.type) // alignment) * alignment
            swizzle = 0 if is_row(value) else _swizzle(op, value.type, self.target, self._column_shares(value))
            if isinstance(op, tile.ToSharedOp) and at + size > self.target.smem_bytes and self._written_last(op):
                home = next((h for h in loaded_once if _bytes(h.type) >= size), None)
                if home is not None:
                    self.placed[value] = (self.placed[home][0], stages, swizzle)
                    loaded_once.remove(home)
                    continue
            self.placed[value] = (at, stages, swizzle)
            at += -(-size // alignment) * alignment
            if isinstance(op, tile.LoadOp) and op.operation.parent.name == "tile.kernel":
                loaded_once.append(value)
        if at > self.target.smem_bytes:
            raise op_diagnostic(
                self.kernel,
                f"needs {at} bytes of shared memory, but a CTA has {self.target.smem_bytes}",
                why="; ".join(f"{_part_of(v) if is_staged(v) else v.type} x {s}" for v, (_, s, _) in self.placed.items()),
                fix="use smaller blocks or fewer buffers",
            )
        return at

    def _written_last(self, op) -> bool:
        """Whether only stores read the tile: then all MMAs come before it."""
        readers = [inner for inner in self.all_ops if op.out in list(inner.operation.operands)]
        return all(isinstance(reader, tile.StoreOp) for reader in readers)

    def _make_tensor_maps(self) -> None:
        for op in self.all_ops:
            if isinstance(op, tile.LoadOp):
                ctas = self.kernel.cluster.value if op.shared.value else 1
                self._tensor_map(op, op.source, op.out.type, op.out.type.shape[0] // ctas)
            elif isinstance(op, tile.StoreOp) and space_of(op.tile.type) == "smem":
                self._check_stored(op, op.tile)
                self._tensor_map(op, op.target, op.tile.type, self.group_rows)
            elif isinstance(op, tile.GlobalAddOp) and is_reduce(op):
                if op.x not in self.handed_over:
                    self._check_stored(op, op.x)
                self._tensor_map(op, op.target, op.x.type, op.x.type.shape[0] if op.x in self.handed_over else self.group_rows)
            elif is_staged(op):
                self._tensor_map(op, op.target, _part_of(op), self.group_rows // (2 if op.folded.value else 1))

    def _check_stored(self, op, value) -> None:
        rows, copies = value.type.shape[0], self.placed[value][1]
        if rows != self.group_rows * self.warpgroups and warp.column_shares(value.type, self.warpgroups) == 1:
            raise op_diagnostic(
                op, f"stores {rows} rows from {self.warpgroups} warpgroups", why=f"each stores {self.group_rows} rows of its own"
            )
        if copies > 1 and isinstance(value.owner.opview, tile.ToSharedOp) and value not in self.handed_over:
            raise op_diagnostic(op, f"stores a tile that has {copies} buffers", why="the next tile waits for the store anyway",
                                fix="remove `buffers`")

    def _tensor_map(self, op, tensor, kind, rows) -> None:
        moved = op.out if isinstance(op, tile.LoadOp) else op.tile if isinstance(op, tile.StoreOp) else op if is_staged(op) else op.x
        swizzle = self.placed[moved][2]
        box = [1] * tensor.type.rank
        box[list(op.dims)[0]] = rows
        box[list(op.dims)[-1]] = swizzle * 8 // warp.bits_of(kind.element_type) if swizzle else kind.shape[1]
        key = (tensor, tuple(box), swizzle)
        if key not in self.maps:
            if max(box) > 256:
                what = "rows" if rows > 256 else "columns"
                raise op_diagnostic(op, f"moves {max(box)} {what}", why=f"a TMA box has at most 256 {what} (PTX ISA, tensor copies)")
            self.maps[key] = warp.TensorMapOp(
                tensor=self.scalars[tensor],
                box=ir.DenseI64ArrayAttr.get(box),
                swizzle=i64(swizzle),
                out=ir.Type.parse("!warp.descriptor"),
                loc=op.location,
            ).out
        self.maps[op] = self.maps[key]

    def _role(self, name, first, count, active, registers) -> None:
        role = warp.RoleOp(
            sym_name=ir.StringAttr.get(name),
            warps=ir.DenseI64ArrayAttr.get(list(range(first, first + count))),
            active=i64(active),
            registers=i64(registers),
        )
        block = role.body.blocks.append()
        with ir.InsertionPoint(block):
            Role(self, name).emit_block(self.body, dict(self.scalars))


class _OneRole(TileKernel):
    """One role of all warpgroups loads, multiplies, computes and adds."""

    hands_over = False

    def _threads(self) -> int:
        return 128 * self.warpgroups

    def _budgets(self) -> tuple[int, int]:
        """All that there is at launch: nobody gives registers away."""
        return at_launch(self.target, self._threads()), 0

    def _emit_roles(self) -> None:
        self._role(ALL, 0, 4 * self.warpgroups, 4 * self.warpgroups, self.compute_registers)


def _part_of(op):
    """The type of one part of a staged addition."""
    return tile.tile_type([op.x.type.shape[0], op.staged.value], op.x.type.element_type, "smem")


def _register_budgets(target, warpgroups: int, multiplies: bool) -> tuple[int, int]:
    """Registers a thread for (compute, load): the load warpgroup keeps few, the rest is shared; both multiples of the step.

    A kernel without MMAs waits for memory most of the time. Its roles keep what they have at launch: without setmaxnreg a CTA takes only
    what it needs, and several of them on an SM hide each other's latency. So do those of a kernel with one compute warpgroup, which has
    as many at launch as one thread may have.
    """
    launched, share = at_launch(target, 128 * (1 + warpgroups)), register_budget(target, warpgroups)
    load = 24 if warpgroups < 3 else 32  # what CUTLASS-style producers need; with 3 x 160 + 32 = 512 nothing is left over
    return (share, load) if multiplies and share > launched else (launched, launched)


def at_launch(target, threads: int) -> int:
    """Registers of a thread as ptxas gives them to a kernel of so many threads, one CTA to an SM: all that setmaxnreg can hand about."""
    step = target.register_step
    return min(target.registers // threads // step * step, target.max_registers_per_thread // step * step)


def _swizzle(op, kind, target, shares: int) -> int:
    """The widest span that divides a row, and its shares where there are several if any does."""
    width = kind.shape[1] * warp.bits_of(kind.element_type) // 8
    for swizzle in target.swizzle_bytes:
        if width % (shares * swizzle) == 0:
            return swizzle
    for swizzle in target.swizzle_bytes:
        if width % swizzle == 0:
            return swizzle
    raise op_diagnostic(
        op,
        f"has rows of {width} bytes in shared memory",
        why="rows are whole swizzle spans, at least 32 bytes",
        fix="make the columns a multiple of 16",
    )


def _bytes(kind) -> int:
    return kind.shape[0] * kind.shape[1] * warp.bits_of(kind.element_type) // 8
