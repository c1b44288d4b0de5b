"""The rules of `cute_source.py` for tensor memory: allocation, MMAs into it, its loads and stores, and tiles of one row a thread.

MMAs are written with bare descriptors and addresses (`prims`): what stands there is what runs, and one `elect` covers a whole chain.
"""

from __future__ import annotations

import functools

from ..ir import warp_tmem
from ..ir.diagnostics import op_diagnostic
from ..ir.tile import column_of, space_of
from ..ir.value_names import name_of
from ..ir.warp import bits_of
from .scalar_source import dsl_type
from .source_text import comment


class TmemRules:
    """Mixed into the emitter of a kernel, beside `TileRules`."""

    # -- allocation

    def tmem_alloc(self, op) -> None:
        slot = self.names.fresh("slot_tmem")
        self.top(f"{slot} = cute.recast_ptr(base + {op.word.value}, dtype=Int32)")
        pair = op.ctas.value == 2
        with self.top.block(f"if warp == {op.warp.value}:"):
            self.top(f"cute.arch.alloc_tmem({op.columns.value}, {slot}{', is_two_cta=True' if pair else ''})")
            self.top(f"cute.arch.relinquish_tmem_alloc_permit({'is_two_cta=True' if pair else ''})")
        self.values[op.out] = slot

    def tmem_free(self, op) -> None:
        made = op.memory.owner.opview
        pair = made.ctas.value == 2
        self.top()
        if pair:
            self._cluster_sync()
        else:
            self.top("cute.arch.sync_threads()")
        with self.top.block(f"if warp == {made.warp.value}:"):
            pointer = f"cute.arch.retrieve_tmem_ptr(Float32, 16, {self.operand(op.memory)})"
            self.top(f"cute.arch.dealloc_tmem({pointer}, {made.columns.value}{', is_two_cta=True' if pair else ''})")

    def tmem(self, op) -> None:
        """Its address: `_tmem`."""

    def _tmem(self, region) -> str:
        """Address of a region's first column, read by each role for itself: LLVM and ptxas keep what roles share in registers through all of
        them, the stack included."""
        made, kind = region.owner.opview, region.type
        slot, first = self.operand(made.memory), column_of(kind)
        memory = self._declare(("memory", slot), lambda name: [f"{name} = hold(cute.make_tensor({slot}, cute.make_layout(1))[0])"], "memory")
        what = f"{'x'.join(map(str, kind.shape))}x{kind.element_type}, columns {first} to {first + warp_tmem.words_of(kind) - 1}"
        hint = "t" + (name_of(region) or "Tile").capitalize()
        return self._declare(("tmem", region), lambda name: [f"{name} = {memory} + {first}  # {what}"], hint)

    def _block_stride(self, region) -> int:
        """Columns from one row block to the next."""
        columns = region.owner.opview.memory.owner.opview.columns.value
        return columns // (region.type.shape[0] // warp_tmem.LANES)

    def _block_address(self, region, block: str) -> str:
        """Address of a row block's first column; lane 0."""
        name = self._tmem(region)
        if region.type.shape[0] == warp_tmem.LANES or block == "0":
            return name
        return f"{name} + {block} * {self._block_stride(region)}"

    def _own_address(self, region) -> str:
        """Of this warp's lanes of a row block's first column. Taken from a lane of the warp, the block's offset stays in a register: what
        can be computed again, LLVM computes again in loops that are short of registers."""
        if region.type.shape[0] == warp_tmem.LANES:
            return f"{self._tmem(region)} + lanes"
        offset = f"wg * {self._block_stride(region)} + lanes"
        own = self._declare(("own", offset), lambda name: [f"{name} = cute.arch.make_warp_uniform({offset})"], "own")
        return f"{self._tmem(region)} + {own}"

    # -- MMAs

    def tcgen05_mma(self, op) -> None:
        folds = 2 if op.folded.value else 1
        rows, columns = warp_tmem.LANES // folds, op.acc.type.shape[1] * folds  # of one instruction, in one CTA
        depth = op.a.type.shape[-2 if op.transpose_a.value else -1]
        dtype = dsl_type(op.a.type.element_type)
        block, ctas, a_major = op.block.value, op.ctas.value, not op.transpose_a.value
        major = "" if a_major else "a_major=1, "
        key = self._declare(
            ("idesc", rows, columns, dtype, op.transpose_a.value, op.transpose_b.value),
            lambda name: [
                f"{name} = prims.Tcgen05InstrDesc.build(c_dtype=Float32, a_dtype={dtype}, b_dtype={dtype}, "
                f"m_dim={rows * ctas}, n_dim={columns}, {major}b_major={0 if op.transpose_b.value else 1})"
            ],
            "shape",
        )
        self.top(comment(op))
        b = self.names.fresh("b")
        self.top(f"{b} = {self._descriptor(op.b, op.b_state, op.transpose_b.value, 0)}")
        if space_of(op.a.type) == "smem":
            a = self.names.fresh("a")
            self.top(f"{a} = {self._descriptor(op.a, op.a_state, a_major, block)}")
            a_step = self._at_step(a, op.a, a_major)
        else:
            a_step = f"tmem_at({self._block_address(op.a, str(block))} + 8 * {{kk}}, {dtype})"
        accumulator = f"tmem_at({self._block_address(op.acc, str(block))}, Float32)"
        with self.unrolled("kk", depth // 16) as kk:
            self.top(
                f"prims.tcgen05_mma(prims.Tcgen05MMAKind.F16, prims.CTAGroup.CTA_{ctas}, {accumulator}, {a_step.format(kk=kk)}, "
                f"{self._at_step(b, op.b, op.transpose_b.value).format(kk=kk)}, {key}, "
                f"{'True' if op.accumulate.value else f'{kk} != 0'})"
            )

    def _descriptor(self, buffer, state, k_major: bool, block: int) -> str:
        span, slabs, rows, _ = self._slab(buffer)
        swizzle = buffer.owner.opview.swizzle.value
        pointer = self.operand(buffer)
        if state is not None and state.owner.opview.pipe.owner.opview.stages.value > 1:
            pointer += f" + {self.operand(state)} * {slabs * rows * span}"
        if block:
            pointer += f" + {block * warp_tmem.LANES * span}"
        return f"smem_operand({f'({pointer})' if '+' in pointer else pointer}, {rows}, {swizzle}, {k_major})"

    def _at_step(self, name: str, buffer, k_major: bool) -> str:
        _, _, rows, _ = self._slab(buffer)
        return f"operand_at({name}, {{kk}}, {rows}, {buffer.owner.opview.swizzle.value}, {k_major})"

    def tcgen05_commit(self, op) -> None:
        where = self._full(op.state) if op.barrier.value == "full" else self._empty(op.state)
        both = ", multicast_mask=3, group=prims.CTAGroup.CTA_2" if op.ctas.value == 2 else ""
        self.top(f"prims.tcgen05_commit({where}{both})")

    # -- between tensor memory and registers

    def tmem_load(self, op) -> None:
        self.top(comment(op))
        self.top(f"tmem_load({self.operand(op.target)}, 0, {self._own_address(op.source)}, {warp_tmem.words_of(op.source.type)})")

    def tmem_store(self, op) -> None:
        self.top(comment(op))
        self.top(f"tmem_store({self._own_address(op.target)}, {self.operand(op.source)}, 0, {warp_tmem.words_of(op.target.type)})")

    def tmem_wait(self, op) -> None:
        self.top(f"prims.tcgen05_wait(prims.Tcgen05Wait.{op.kind.value.upper()})")

    def tmem_map(self, op) -> None:
        """Chunks of columns: load, compute, store. The chunk's registers are a fragment of its own."""
        self.top(comment(op))
        kind = op.kind
        width, step = kind.shape[1], op.columns.value
        chunks = {}  # region, or buffer that is written -> fragment of one chunk
        written = [] if space_of(op.target.type) == "reg" else [op.target]
        for region in dict.fromkeys([v for v in op.inputs if space_of(v.type) == "tmem"] + written):
            chunks[region] = name = self.names.fresh("rChunk")
            what = self._tmem(region) if space_of(region.type) == "tmem" else self.operand(region)
            self.header(f"{name} = cute.make_rmem_tensor({step}, {dsl_type(region.type.element_type)})  # {step} columns of {what}")
        rows = {}  # buffer of column values -> (its chunk, where its slot begins)
        for buffer, state in zip(op.rows, op.states, strict=False):
            name = self.names.fresh("rColumns")
            self.header(f"{name} = cute.make_rmem_tensor({step}, {dsl_type(buffer.type.element_type)})  # {step} of {self.operand(buffer)}")
            slot = f"{self.operand(state)} * {self._stage(buffer)} + " if buffer.type.shape[0] > 1 else ""
            rows[buffer] = name, slot
        read = [v for v in dict.fromkeys(op.inputs) if v in chunks]
        with self.spread_loads(op.body.blocks[0], width):
            self._chunks(op, chunks, read, rows)

    def tmem_map_both(self, op) -> None:
        self.tmem_map(op)

    def _chunks(self, op, chunks: dict, read: list, rows: dict) -> None:
        kind = op.kind
        width, step = kind.shape[1], op.columns.value
        for first in range(0, width, step):
            count = min(step, width - first)
            for region in read:
                at, words = _words(region.type, first), _words(region.type, count)
                self.top(f"tmem_load({chunks[region]}, 0, {self._own_address(region)} + {at}, {words})")
            for buffer, (name, slot) in rows.items():
                self.top(f"load_row({self.operand(buffer)}, {slot}{first}, {name}, {count})")
            if read:
                self.top("prims.tcgen05_wait(prims.Tcgen05Wait.LOAD)")
            self._chunk(op, {**chunks, **{buffer: name for buffer, (name, _) in rows.items()}}, first, count)
            if op.buffer is not None:
                self._store_row(op.buffer, self.operand(op.buffer), chunks[op.buffer], 0, count, first)
            elif op.target in chunks:
                at, words = _words(kind, first), _words(kind, count)
                self.top(f"tmem_store({self._own_address(op.target)} + {at}, {chunks[op.target]}, 0, {words})")

    def _chunk(self, op, chunks: dict, first: int, count: int) -> None:
        body = op.body.blocks[0]
        arguments = list(body.arguments)
        step = 2 if self.packs(body, count) else 1

        def column(r: str) -> str:
            return f"({first} + {r})" if first else r

        def text(value, r: str) -> str:
            place = r if value in chunks else "0" if value.type.rank == 1 else column(r)  # a row of column values is whole
            flag = " != 0" if str(value.type.element_type) == "i1" else ""
            return f"{chunks.get(value) or self.operand(value)}[{place}]{flag}"

        def store(written, r: str, *results) -> None:
            target, at = (chunks[written], r) if written in chunks else (self.operand(written), column(r))
            if len(results) > 1:
                self.store_halves(target, at, *results)
            else:
                self.top(f"{target}[{at}] = {dsl_type(written.type.element_type)}({results[0]})")

        stores = [functools.partial(store, written) for written in _written_by(op)]
        with self.unrolled("r", *((0, count, step) if step > 1 else (count,))) as r:
            elements = [r, f"({r} + 1)"][:step]
            texts = {a: [text(value, e) for e in elements] for a, value in zip(arguments, op.inputs, strict=False)}
            texts[arguments[-2]] = [self.row0] * step
            texts[arguments[-1]] = [column(e) for e in elements]
            self.map_elements(body, elements, texts, *stores)

    # -- tiles of one row a thread

    def store_shared_rows(self, op) -> None:
        place = self.operand(op.buffer) + (f" + {self.operand(op.slot)} * {self._stage(op.buffer)}" if op.slot is not None else "")
        self.top(comment(op))
        first, columns = op.first.value if op.first is not None else 0, op.buffer.type.shape[2]
        if op.exchange.value:
            self._exchange_rows(op, place, op.buffer.type.shape[1], columns)
            return
        self._store_row(op.buffer, place, self.operand(op.source), first, columns)

    def _store_row(self, buffer, place: str, source: str, first: int, columns: int, column: int = 0) -> None:
        """This thread's row of a buffer, from `column` on = source[first ... first + columns]."""
        rows, swizzle = buffer.type.shape[1], buffer.owner.opview.swizzle.value
        self.top(f"store_row({place}, {self.row0}, {source}, {first}, {columns}, {rows}, {swizzle}{f', {column}' if column else ''})")

    def row_box(self, op) -> None:
        kind = op.out.type
        name = self.names.fresh("box" + (name_of(op.out) or "Row").capitalize())
        dtype = "Int32" if str(kind.element_type) == "i1" else dsl_type(kind.element_type)
        self.top(f"{name} = cute.make_tensor(cute.recast_ptr(base + {op.offset.value}, dtype={dtype}), cute.make_layout({kind.shape[0]}))")
        self.values[op.out] = name

    def post(self, op) -> None:
        self.top(comment(op))
        self.top(f"{self.operand(op.box)}[{self.row0}] = {self.operand(op.source)}[0]")

    def fetch(self, op) -> None:
        self.top(comment(op))
        self.top(f"{self.operand(op.target)}[0] = {self.operand(op.box)}[{self.row0}]")

    def _exchange_rows(self, op, place: str, rows: int, columns: int) -> None:
        """This CTA's half of a row into its own buffer, the other half into the peer's; in both to the rows that are this CTA's."""
        span = op.buffer.owner.opview.swizzle.value
        for rank in range(2):
            with self.top.block(f"if cta_rank == {rank}:"):
                row = f"{self.row0} + {rank * rows // 2}" if rank else self.row0
                self.top(f"store_row({place}, {row}, {self.operand(op.source)}, {rank * columns}, {columns}, {rows}, {span})")
                self.top(f"send_row({place}, {1 - rank}, {row}, {self.operand(op.source)}, {(1 - rank) * columns}, {columns}, {rows}, {span})")

    def store_one_row(self, op) -> None:
        target, rank = op.target, op.target.type.rank
        coords = [self.operand(c) for c in op.coords]
        self.top(comment(op))
        if not rank:
            self.store_first_row(op)
            return
        row = self.names.fresh("row")
        self.top(f"{row} = {coords[-1]} + {self.row0}")
        terms = [f"Int64({c}) * {self.parameter_name[('stride', target, axis)]}" for axis, c in enumerate([*coords[:-1], row])]
        pointer = self.parameter_name[("pointer", target)]
        with self.top.block(f"if ({row} < {self._size(target, rank - 1)}) & ({pointer} != 0):"):
            self.top(f"write_element({dsl_type(target.type.element_type)}, {pointer}, {' + '.join(terms)}, {self.operand(op.source)}[0])")

    def reduce_row(self, op) -> None:
        """A result of 4 columns takes the columns j with j // 2 % 4 equal; one of a column all of them, in four chains for latency."""
        source, target = self.operand(op.source), self.operand(op.target)
        kind, columns = op.kind.value, op.source.type.shape[1]
        accumulate = op.accumulate.value

        def combine(a, b):
            return f"cute.arch.fmax({a}, {b})" if kind == "max" else f"{a} + {b}"

        self.top(comment(op))
        chains = [self.names.fresh("chain") for _ in range(4)]
        whole_row = op.target.type.rank == 1 and columns > 4
        if whole_row and kind == "max" and self.max_inputs == 3:
            self._max_of_threes(f"{target}[0]", accumulate, chains, source, columns)
            return
        if whole_row and kind == "sum" and self.packed == 2:
            self._add_pairs(f"{target}[0]", accumulate, chains, source, columns)
            return
        if columns == 4:
            for c, name in enumerate(chains):
                self.top(f"{name} = {source}[{c}]")
        else:
            for c, name in enumerate(chains):
                self.top(f"{name} = {combine(f'{source}[{2 * c}]', f'{source}[{2 * c + 1}]')}")
            with self.unrolled("q", 1, columns // 8) as q:
                for c, name in enumerate(chains):
                    self.top(f"{name} = {combine(name, combine(f'{source}[8 * {q} + {2 * c}]', f'{source}[8 * {q} + {2 * c + 1}]'))}")
        if op.target.type.rank == 2:
            for c, name in enumerate(chains):
                old = f"{target}[{c}]"
                self.top(f"{old} = {combine(old, name) if accumulate else name}")
            return
        whole = combine(combine(chains[0], chains[1]), combine(chains[2], chains[3]))
        self.top(f"{target}[0] = {combine(f'{target}[0]', whole) if accumulate else whole}")

    def _max_of_threes(self, target: str, accumulate: bool, chains: list[str], source: str, columns: int) -> None:
        """Each chain takes two columns at a time."""
        for c, name in enumerate(chains):
            first = f"{source}[{2 * c}], {source}[{2 * c + 1}]"
            self.top(f"{name} = max3({target}, {first})" if accumulate and c == 0 else f"{name} = cute.arch.fmax({first})")
        with self.unrolled("q", 1, columns // 8) as q:
            for c, name in enumerate(chains):
                self.top(f"{name} = max3({name}, {source}[8 * {q} + {2 * c}], {source}[8 * {q} + {2 * c + 1}])")
        self.top(f"{target} = max3({chains[0]}, {chains[1]}, cute.arch.fmax({chains[2]}, {chains[3]}))")

    def _add_pairs(self, target: str, accumulate: bool, chains: list[str], source: str, columns: int) -> None:
        """Each chain adds up even and odd columns beside each other, which meet at the end."""
        for c, name in enumerate(chains):
            first = f"{target} + {source}[0]" if accumulate and c == 0 else f"{source}[{2 * c}]"
            self.top(f"{name} = {first}, {source}[{2 * c + 1}]")
        with self.unrolled("q", 1, columns // 8) as q:
            for c, name in enumerate(chains):
                self.top(f"{name} = add_pair({name}, ({source}[8 * {q} + {2 * c}], {source}[8 * {q} + {2 * c + 1}]))")
        self.top(f"{chains[0]} = add_pair(add_pair({chains[0]}, {chains[1]}), add_pair({chains[2]}, {chains[3]}))")
        self.top(f"{target} = {chains[0]}[0] + {chains[0]}[1]")


def _written_by(op) -> list:
    """What a map writes, in the order in which its region yields."""
    return [op.target, op.beside] if isinstance(op, warp_tmem.TmemMapBothOp) else [op.target]


def _words(kind, columns: int) -> int:
    return columns * bits_of(kind.element_type) // 32


def _no_barriers(self, op) -> None:
    raise op_diagnostic(op, "is no instruction", why="it says which order the roles keep", fix="run warp-insert-barriers")


TMEM_RULES = {
    warp_tmem.TmemAllocOp: TmemRules.tmem_alloc,
    warp_tmem.TmemFreeOp: TmemRules.tmem_free,
    warp_tmem.TmemOp: TmemRules.tmem,
    warp_tmem.Tcgen05MmaOp: TmemRules.tcgen05_mma,
    warp_tmem.Tcgen05CommitOp: TmemRules.tcgen05_commit,
    warp_tmem.TmemLoadOp: TmemRules.tmem_load,
    warp_tmem.TmemStoreOp: TmemRules.tmem_store,
    warp_tmem.TmemWaitOp: TmemRules.tmem_wait,
    warp_tmem.TmemMapOp: TmemRules.tmem_map,
    warp_tmem.TmemMapBothOp: TmemRules.tmem_map_both,
    warp_tmem.RowBoxOp: TmemRules.row_box,
    warp_tmem.PostOp: TmemRules.post,
    warp_tmem.FetchOp: TmemRules.fetch,
    warp_tmem.LinkOp: _no_barriers,
}
