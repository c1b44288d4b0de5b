"""What the operations of a tile kernel become in one role of the warp level: its fragments, loops and copies (`warp-specialize`)."""

from __future__ import annotations

from ..ir import tile, tile_pair, warp
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import arith, i64, ir
from ..ir.tile import space_of
from . import fragments
from .handed_over import is_reduce
from .loop_nest import constant
from .role_loops import RoleLoops, captured, clone_op, index_constant
from .streams import COMPUTE, LOAD, REDUCE

ALL = "all"  # the name of a role that does everything


def is_load(op) -> bool:
    return isinstance(op, tile.LoadOp)


def is_compute(op) -> bool:
    return type(op) in RULES and not is_load(op) and not is_reduce(op)


def is_any(op) -> bool:
    return type(op) in RULES


class Role(RoleLoops):
    """Emits one role's part of the program."""

    def __init__(self, kernel, name: str):
        super().__init__(kernel.keeps(name))
        self.kernel, self.name = kernel, name
        self.fragments = kernel.fragments_of(name)
        self.fragment_ops = {}
        if self.holds_fragments():
            for home in dict.fromkeys(self.fragments.home[value] for value in self._held_values()):
                self.fragment_ops[home] = warp.FragmentOp(out=home.type, loc=location_of(home, kernel.kernel)).out
            read = {value for op in kernel.all_ops if self.keep(op) for value in op.operation.operands}
            for op in kernel.all_ops:
                if isinstance(op, tile.LoadOp) and is_row(op.out) and op.out in read:
                    kind = tile.tile_type(op.out.type.shape, op.out.type.element_type, "reg")
                    self.fragment_ops[op.out] = warp.FragmentOp(out=kind, loc=op.location).out
        self.readers = {}  # (operation, buffer's tile) -> number of its stage among those that read the tile
        self.loaded = {}  # row of column values -> environment of the iteration whose values its fragment holds

    def holds_fragments(self) -> bool:
        return self.name in (COMPUTE, ALL)

    def _held_values(self) -> list:
        """Register tiles that this role's operations touch, and that loops carry."""
        home = self.fragments.home
        loops = [op for op in self.kernel.all_ops if op.operation.name == "scf.for"]
        touched = {v for op in self.kernel.all_ops if self.keep(op) for v in [*op.operation.operands, *op.operation.results]}
        touched.update(argument for op in loops for argument in op.regions[0].blocks[0].arguments)
        return [value for value in home if value in touched]

    def fragment(self, value):
        return self.fragment_ops[self.fragments.home[value]]

    # -- loops

    def emit_walk(self, op, env) -> None:
        """The role that loads is ahead of the others: it takes the tiles."""
        if self.name == ALL:
            raise op_diagnostic(op, "takes tiles from a queue", why="one role would wait for itself", fix="leave out tile-persistent")
        queue = self.kernel.scalars[op.queue] if self.name == LOAD else None
        walk = warp.WalkOp(tiles=self.scalar(op.tiles, env), queue=queue, state=None, loc=op.location)
        block = walk.body.blocks.append(ir.IndexType.get(), arg_locs=[op.location])
        with ir.InsertionPoint(block):
            self.emit_block(op.body.blocks[0], {**env, op.body.blocks[0].arguments[0]: block.arguments[0]})

    def number_readers(self, loop, slots) -> None:
        """A tile loaded in each iteration may be read in several stages: then its buffer has readers that are steps apart."""
        inside = {r for o in loop.regions[0].blocks[0].operations if is_load(o) for r in o.operation.results}
        for value in inside:
            stages = sorted({slot.stage for slot in slots if value in list(slot.op.operation.operands)})
            for slot in slots:
                if value in list(slot.op.operation.operands):
                    self.readers[slot.op, value] = stages.index(slot.stage)

    def _reader(self, op, *values):
        numbers = {self.readers[op, value] for value in values if (op, value) in self.readers}
        if len(numbers) > 1:
            raise op_diagnostic(
                op,
                "reads two tiles, of which one was read in earlier steps and the other was not",
                why="one operation has one number among the readers of its buffers",
                fix="give all operations that read either of them one stage",
            )
        number = max(numbers, default=0)
        return i64(number) if number else None

    def enter(self, op) -> None:
        """Copies of initial values into the fragments that the first iteration reads, where they are not the same."""
        if self.holds_fragments():
            arguments, inits = list(op.regions[0].blocks[0].arguments)[1:], list(op.operation.operands)[3:]
            for argument, init in zip(arguments, inits, strict=True):
                self.copy(argument, init, op.location)

    def carry(self, op, which) -> None:
        """Copies of yielded values into the fragments that the next iteration reads, where they are not the same."""
        if not self.holds_fragments():
            return
        body = op.regions[0].blocks[0]
        yielded = list(body.operations)[-1].operation.operands
        for i, (argument, value) in enumerate(zip(list(body.arguments)[1:], yielded, strict=True)):
            if i in which:
                self.copy(argument, value, op.location)

    def copy(self, target, source, loc) -> None:
        if target in self.fragments.home and not self.fragments.same(target, source):
            warp.CopyOp(target=self.fragment(target), source=self.fragment(source), loc=loc)

    # -- operations, one rule each

    def emit_op(self, op, env) -> None:
        getattr(self, RULES[type(op)].__name__)(op, env)  # a subclass may have a rule of its own

    def load(self, op, env) -> None:
        warp.TmaLoadOp(
            map=self.kernel.maps[op],
            buffer=self.kernel.buffers[op.out],
            state=None,
            coords=self.scalars(op.coords, env),
            l2=op.l2,
            shared=op.shared if op.shared.value else None,
            loc=op.location,
        )

    def slot(self, value, env):
        """Which of its buffers a tile that threads wrote lies in: its loop's iterations take turns. None where it has one, or a pipe
        tells."""
        copies, loop = self.kernel.placed[value][1], value.owner.parent
        if copies == 1 or value in self.kernel.handed_over or not isinstance(value.owner.opview, tile.ToSharedOp) or loop.name != "scf.for":
            return None
        return arith.RemUIOp(env["iteration", loop.regions[0].blocks[0].arguments[0]], index_constant(copies)).result

    def mma(self, op, env) -> None:
        if self.kernel.target.mma.accumulator != "reg":
            raise op_diagnostic(op, "sums in registers", why="MMAs of this target sum in tensor memory", fix="run tile-accumulate-in-tmem")
        if op.acc is not None:
            self.copy(op.out, op.acc, op.location)
        self._check_split(op)
        in_shared = space_of(op.a.type) == "smem"
        with op.location:
            a_slot, b_slot = self.slot(op.a, env) if in_shared else None, self.slot(op.b, env)
        warp.WgmmaOp(
            acc=self.fragment(op.out),
            a=self.kernel.buffers[op.a] if in_shared else self.fragment(op.a),
            b=self.kernel.buffers[op.b],
            a_state=a_slot,
            b_state=b_slot,
            transpose_a=op.transpose_a,
            transpose_b=op.transpose_b,
            accumulate=ir.BoolAttr.get(op.acc is not None),
            reader=self._reader(op, op.a, op.b),
            loc=op.location,
        )

    def _check_split(self, op) -> None:
        """A result of 64 rows is shared among the warpgroups by its columns: each reads its columns of b, and all of a."""
        shares, columns = warp.column_shares(op.out.type, self.kernel.warpgroups), op.out.type.shape[1]
        if shares == 1:
            return
        if space_of(op.a.type) == "reg":
            raise op_diagnostic(op, f"multiplies {op.a.type} from registers of {shares} warpgroups",
                                why="each holds a share of the columns only, but sums over all",
                                fix='put it into shared memory first: "tile.to_shared"')
        span = 8 if op.transpose_b.value else self.kernel.placed[op.b][2] * 8 // warp.bits_of(op.b.type.element_type)
        if columns % (shares * span):
            raise op_diagnostic(op, f"shares {columns} columns among {shares} warpgroups", why=f"shares of b are whole spans of {span} "
                                "columns", fix=f"use {64 * shares} rows, or a multiple of {shares * span} columns")

    def from_shared(self, op, env) -> None:
        self._require_load(op, op.x)
        self._require_rows(op)
        reader = self._reader(op, op.x)
        warp.LoadFragmentOp(buffer=self.kernel.buffers[op.x], state=None, target=self.fragment(op.out), reader=reader, loc=op.location)

    def _require_rows(self, op) -> None:
        if warp.column_shares(op.out.type, self.kernel.warpgroups) > 1:
            raise op_diagnostic(
                op,
                f"reads shared memory into {op.out.type}, whose columns {self.kernel.warpgroups} warpgroups share",
                why="each warpgroup reads 64 rows of its own",
                fix=f"use {64 * self.kernel.warpgroups} rows",
            )

    def _require_load(self, op, value) -> None:
        if not is_load(value.owner.opview):
            raise op_diagnostic(
                op,
                f"reads a tile of shared memory that '{value.owner.name}' wrote",
                why="threads would read what other threads wrote, and only what TMA brings is waited for",
                fix="use the register tile that was written there",
            )

    def _load_columns(self, op, value, env) -> None:
        """Column values into registers, unless these hold them: maps that follow each other read them once."""
        self._require_load(op, value)
        if self.loaded.get(value) is not env:
            self.loaded[value] = env
            buffer, target, reader = self.kernel.buffers[value], self.fragment_ops[value], self._reader(op, value)
            warp.LoadColumnsOp(buffer=buffer, state=None, target=target, reader=reader, loc=op.location)

    def _input(self, value):
        return self.fragment_ops[value] if is_row(value) else self.fragment(value)

    def map(self, op, env) -> None:
        for value in op.inputs:
            if is_row(value):
                self._require_rows(op)
                self._load_columns(op, value, env)
            elif not fragments.is_register(value):
                raise op_diagnostic(
                    op, f"reads {value.type} element by element", why="maps work on registers", fix='bring it there: "tile.from_shared"'
                )
        self._map_where(op, env, self._map_body)

    def map_both(self, op, env) -> None:
        raise op_diagnostic(op, "makes two tiles of what lies in quads of lanes", why="maps of two results are computed a row a thread",
                            fix="use two tile.map")

    def _map_where(self, op, env, body) -> None:
        """`body(op, env)`, under the map's condition where it has one; what is left out keeps the first input."""
        for value in captured(op.body.blocks[0]):
            self.scalar(value, env)
        if op.cond is None:
            body(op, env)
            return
        self.copy(op.out, op.inputs[0], op.location)
        cond = self.fragment(op.cond) if isinstance(op.cond.type, ir.RankedTensorType) else self.scalar(op.cond, env)
        when = warp.WhenOp(cond=cond, loc=op.location)
        with ir.InsertionPoint(when.body.blocks.append()):
            body(op, env)

    def _map_body(self, op, env) -> None:
        self.copy_region(op, warp.MapOp(target=self.fragment(op.out), inputs=[self._input(v) for v in op.inputs], loc=op.location), env)

    def copy_region(self, op, new, env) -> None:
        """The scalar code of a tile.map into what it becomes."""
        source = op.body.blocks[0]
        block = new.body.blocks.append(*[a.type for a in source.arguments], arg_locs=[op.location] * len(source.arguments))
        inner = dict(env)
        inner.update(zip(source.arguments, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for body_op in source.operations:
                clone_op(body_op, inner)

    def reduce(self, op, env) -> None:
        if warp.column_shares(op.x.type, self.kernel.warpgroups) > 1:
            raise op_diagnostic(op, f"reduces {op.x.type}, which {self.kernel.warpgroups} warpgroups share by columns",
                                why="they would have to exchange their parts", fix=f"use {64 * self.kernel.warpgroups} rows")
        if op.init is not None:
            self.copy(op.out, op.init, op.location)
        warp.ReduceOp(
            target=self.fragment(op.out),
            source=self.fragment(op.x),
            kind=op.kind,
            accumulate=ir.BoolAttr.get(op.init is not None),
            loc=op.location,
        )

    def splat(self, op, env) -> None:
        warp.FillOp(target=self.fragment(op.out), value=op.value, loc=op.location)

    def rescale_factor(self, op, env) -> None:
        new = warp.MapOp(target=self.fragment(op.out), inputs=[self.fragment(op.old), self.fragment(op.new)], loc=op.location)
        f32, index = ir.F32Type.get(), ir.IndexType.get()
        block = new.body.blocks.append(f32, f32, index, index, arg_locs=[op.location] * 4)
        with ir.InsertionPoint(block), op.location:
            old, current = list(block.arguments)[:2]
            never = arith.CmpFOp(arith.CmpFPredicate.OEQ, old, _f32(float("-inf"))).result
            scaled = arith.MulFOp(arith.SubFOp(old, current).result, arith.ConstantOp(f32, op.scale_log2).result).result
            factor = ir.Operation.create("math.exp2", results=[f32], operands=[scaled]).result
            tile.YieldOp(values=[arith.SelectOp(never, _f32(0.0), factor).result])

    def vote_any(self, op, env) -> None:
        warp.VoteAnyOp(target=self.fragment(op.out), source=self.fragment(op.x), loc=op.location)

    def to_shared(self, op, env) -> None:
        bits = warp.bits_of(op.x.type.element_type)
        if bits not in (16, 32):
            raise op_diagnostic(
                op, f"puts {op.x.type} into shared memory", why="two neighbours are stored as 4 or 8 bytes", fix="cast the tile first"
            )
        shares, span = warp.column_shares(op.x.type, self.kernel.warpgroups), self.kernel.placed[op.out][2] * 8 // bits
        if shares > 1 and op.x.type.shape[1] % (shares * span):
            raise op_diagnostic(op, f"stores {op.x.type}, which {shares} warpgroups share by columns",
                                why=f"shares are whole spans of {span} columns",
                                fix=f"use {64 * shares} rows, or a multiple of {shares * span} columns")
        with op.location:
            slot = self.slot(op.out, env)
        warp.StoreSharedOp(buffer=self.kernel.buffers[op.out], source=self.fragment(op.x), slot=slot, loc=op.location)

    def exchange(self, op, env) -> None:
        raise op_diagnostic(op, "exchanges what lies in quads of lanes", why="halves of rows are stored a row a thread so far")

    def global_add(self, op, env) -> None:
        coords = self.scalars(op.coords, env)
        if space_of(op.x.type) == "smem" and op.x not in self.kernel.handed_over:
            self._tma_store(op, op.x, coords, add=True)
            return
        if space_of(op.x.type) == "smem":
            warp.TmaAddOp(map=self.kernel.maps[op], buffer=self.kernel.buffers[op.x], state=None, coords=coords, loc=op.location)
            return
        if is_staged(op):
            raise op_diagnostic(op, "stages what lies in quads of lanes", why="parts of columns are stored a row a thread so far",
                                fix='put all of it into shared memory: "tile.to_shared"')
        warp.GlobalAddOp(
            source=self.fragment(op.x), target=self.kernel.scalars[op.target], coords=coords, dims=op.dims, vector=i64(_vector(op)),
            loc=op.location,
        )

    def wait_count(self, op, env) -> None:
        self._check_counter(op)
        count = self.scalar(op.count, env)
        warp.WaitCountOp(counter=self.kernel.scalars[op.counter], count=count, coords=self.scalars(op.coords, env), loc=op.location)

    def add_count(self, op, env) -> None:
        self._check_counter(op)
        warp.AddCountOp(counter=self.kernel.scalars[op.counter], coords=self.scalars(op.coords, env), loc=op.location)

    def _check_counter(self, op) -> None:
        wanted = 1 if self.name == REDUCE else self.kernel.warpgroups
        if op.counter.type.shape[-1] != wanted:
            raise op_diagnostic(op, f"has {op.counter.type.shape[-1]} counters in a place, but {wanted} would count", why="each warpgroup "
                                "counts on its own where it adds from registers; one warp adds from shared memory")

    def store(self, op, env) -> None:
        coords = self.scalars(op.coords, env)
        if op.tile in self.kernel.handed_over:
            for group in self.kernel.groups_of(op.tile):
                warp.TmaPutOp(map=self.kernel.maps[op], buffer=self.kernel.buffers[op.tile], state=None, coords=coords, group=group,
                              loc=op.location)
        elif space_of(op.tile.type) == "smem":
            self._tma_store(op, op.tile, coords)
        else:
            warp.StoreRowsOp(source=self.fragment(op.tile), target=self.kernel.scalars[op.target], coords=coords, loc=op.location)

    def _tma_store(self, op, value, coords: list, add: bool = False) -> None:
        map_, buffer, row = self.kernel.maps[op], self.kernel.buffers[value], i64(list(op.dims)[0])
        warp.TmaStoreOp(map=map_, buffer=buffer, coords=coords, row=row, add=ir.BoolAttr.get(True) if add else None, loc=op.location)


RULES = {
    tile.LoadOp: Role.load,
    tile.MmaOp: Role.mma,
    tile.MapOp: Role.map,
    tile.MapBothOp: Role.map_both,
    tile.ReduceOp: Role.reduce,
    tile.SplatOp: Role.splat,
    tile.RescaleFactorOp: Role.rescale_factor,
    tile.VoteAnyOp: Role.vote_any,
    tile.FromSharedOp: Role.from_shared,
    tile.ToSharedOp: Role.to_shared,
    tile_pair.ExchangeOp: Role.exchange,
    tile.StoreOp: Role.store,
    tile.GlobalAddOp: Role.global_add,
    tile.WaitCountOp: Role.wait_count,
    tile.AddCountOp: Role.add_count,
}


def is_staged(op) -> bool:
    """Whether it is an addition that goes through shared memory in parts."""
    return isinstance(op, tile.GlobalAddOp) and op.staged is not None


def is_row(value) -> bool:
    """Whether a tile holds one value a column, to be spread over the rows of maps."""
    return space_of(value.type) == "smem" and value.type.shape[0] == 1


def _vector(op) -> int:
    """2 where pairs of columns are known to lie at multiples of 8 bytes, and inside or outside of the target together."""
    if op.x.type.rank == 1:
        return 1
    target, at = op.target.type, constant(op.coords[-1])
    even = not target.is_dynamic_dim(target.rank - 1) and target.shape[-1] % 2 == 0
    return 2 if even and at is not None and at % 2 == 0 else 1


def _f32(x: float):
    return arith.ConstantOp(ir.F32Type.get(), ir.FloatAttr.get_f32(x)).result


def location_of(value, default):
    return default.location if isinstance(value.owner, ir.Block) else value.owner.location
