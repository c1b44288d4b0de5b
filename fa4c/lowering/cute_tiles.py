"""The rules of `cute_source.py` for data movement and for work on tiles: copies, fragments, maps, reductions, MMAs."""

from __future__ import annotations

from ..ir import warp
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import ir
from ..ir.tile import space_of
from ..ir.value_names import name_of
from .scalar_source import dsl_type, float_text
from .source_text import comment


class TileRules:
    """Mixed into the emitter of a kernel, which gives operands their names and collects lines (`top`, `header`, `views`)."""

    # -- data movement

    def _slab(self, buffer):
        """(elements of one swizzle span, slabs, rows, stages) of a buffer."""
        made = buffer.owner.opview
        stages, rows, columns = buffer.type.shape
        span = made.swizzle.value * 8 // warp.bits_of(buffer.type.element_type) or columns
        return span, columns // span, rows, stages

    def _coords(self, coords, slab_offset: str, row=None, row_offset: str = "") -> str:
        """Innermost first; the innermost moves with the slab, `row` with the warpgroup or what `row_offset` says."""
        texts = [self.operand(c) for c in coords]
        if row is not None:
            texts[row] = f"{texts[row]} + {row_offset or f'wg * {self.layout.rows}'}"
        texts[-1] = slab_offset if texts[-1] == "0" else f"{texts[-1]} + {slab_offset}"
        return ", ".join(reversed(texts))

    def tma_load(self, op) -> None:
        span, slabs, rows, _ = self._slab(op.buffer)
        if op.shared.value:
            self._shared_load(op)
            return
        self._check_box(op, [rows, span])
        self.top(comment(op))
        slot, full = self.operand(op.state), self._full(op.state)
        hint = f", l2_cache_hint={self._l2_policy(op.l2.value)}" if op.l2 is not None else ""
        copy, pair = "prims.cp_async_bulk_tensor_shared_cta_global", ""
        if self._pipe(op.state).owner.opview.leader.value:  # onto the barrier of the pair's first CTA
            copy, pair = "prims.cp_async_bulk_tensor_shared_cluster_global", ", [], group=prims.CTAGroup.CTA_2"
            full = f"pair_barrier({full})"
        with self.unrolled("slab", slabs) as slab:
            self.top(
                f"{copy}({self.operand(op.buffer)} + {slot} * {self._stage(op.buffer)} + {slab} * {rows * span}, "
                f"{self.operand(op.map)}.get_ptr(), ({self._coords(op.coords, f'{slab} * {span}')}), {full}{pair}{hint})"
            )

    def _shared_load(self, op) -> None:
        """This CTA's share of the rows, into the same place of all CTAs of the cluster, and onto the same barrier of each."""
        ctas = self.kernel.cluster.value
        span, slabs, rows, _ = self._slab(op.buffer)
        share = rows // ctas
        self._check_box(op, [share, span])
        self.top(comment(op))
        slot = self.operand(op.state)
        hint = f", l2_cache_hint={self._l2_policy(op.l2.value)}" if op.l2 is not None else ""
        row = next(axis for axis, size in enumerate(op.map.owner.opview.box) if size == share)
        with self.unrolled("slab", slabs) as slab:
            target = f"{self.operand(op.buffer)} + {slot} * {self._stage(op.buffer)} + {slab} * {rows * span} + cta_rank * {share * span}"
            coords = self._coords(op.coords, f"{slab} * {span}", row, f"cta_rank * {share}")
            self.top(
                f"prims.cp_async_bulk_tensor_shared_cluster_global({target}, {self.operand(op.map)}.get_ptr(), ({coords}), "
                f"{self._full(op.state)}, [], multicast_mask=Int16({(1 << ctas) - 1}){hint})"
            )

    def _stage(self, buffer) -> int:
        """Elements from one stage to the next."""
        return warp.stage_bytes(buffer) * 8 // warp.bits_of(buffer.type.element_type)

    def _slot_offset(self, op) -> str:
        """Where the slot that an operation names by its state begins, in elements: "" or "slot * 64 + "."""
        stages = op.buffer.type.shape[0]
        return f"{self.operand(op.state)} * {self._stage(op.buffer)} + " if op.state is not None and stages > 1 else ""

    def load_columns(self, op) -> None:
        self.top(comment(op))
        if self.layout.whole_rows:
            width = op.buffer.type.shape[2]
            self.top(f"load_row({self.operand(op.buffer)}, {self._slot_offset(op)}0, {self.operand(op.target)}, {width})")
            return
        with self.unrolled("q", op.buffer.type.shape[2] // 8) as q:
            self.top(f"load_pair({self.operand(op.buffer)}, {self._slot_offset(op)}{q} * 8 + col0, {self.operand(op.target)}, 2 * {q})")

    def load_fragment(self, op) -> None:
        """8 columns are one 16-byte chunk of a swizzle span (16-bit elements) or two (f32); chunk c of a row lies at c ^ (row % 8) for a
        span of 128 bytes, every second or fourth row the next one for 64 or 32.

        f32: rows 2i and 2i + 1 would read the same banks; odd rows take the 8 columns 16 further first, and exchange the two at the end.
        """
        if op.buffer.owner.opview.interleaved.value:
            self.load_matrices(op)
            return
        span, slabs, rows, _ = self._slab(op.buffer)
        swizzle, wide = op.buffer.owner.opview.swizzle.value, warp.bits_of(op.buffer.type.element_type) == 32
        turned = wide and swizzle == 128
        xor, first = self.names.fresh("xor"), self.names.fresh("first")
        target = self.operand(op.target)
        self.top(comment(op))
        self.top(f"{xor} = row0 * {swizzle} // 128 % {swizzle // 16}" + (" ^ row0 % 2 * 4" if turned else ""))
        self.top(f"{first} = {self._slot_offset(op)}row0 * {span} + {'t % 2 * 2' if wide else 'col0'}")
        chunk = (lambda q: f"(({q} * 2 + t % 4 // 2) ^ {xor}) * 4") if wide else (lambda q: f"({q} ^ {xor}) * 8")
        with self.unrolled("slab", slabs) as slab, self.unrolled("q", span // 8) as q, self.unrolled("g", 2) as g:
            offset = f"{first} + {slab} * {rows * span} + {g} * {8 * span} + {chunk(q)}"
            self.top(f"load_pair({self.operand(op.buffer)}, {offset}, {target}, {slab} * {span // 2} + 4 * {q} + 2 * {g})")
        if turned:
            with self.unrolled("slab", slabs) as slab, self.unrolled("r", 8) as r:
                self.top(f"exchange_if(row0 % 2 == 1, {target}, {slab} * 16 + {r}, {slab} * 16 + {r} + 8)")

    def sync_warp(self, op) -> None:
        self.top("cute.arch.sync_warp()")

    def _l2_policy(self, priority: str) -> str:
        """The 64-bit policy of a priority, for all bytes of a copy; made once a role (PTX ISA, createpolicy)."""
        text = f'prims.inline_ptx("createpolicy.fractional.L2::{priority}.b64 $0, 1.0;", write_only_types=[Int64], read_only_args=[])'
        return self._declare(("l2", priority), lambda name: [f"{name} = {text}"], priority)

    def tma_store(self, op) -> None:
        span, slabs, rows, _ = self._slab(op.buffer)
        folds = 2 if op.fold is not None else 1
        self._check_box(op, [self.layout.rows // folds, span])
        shares = self._shares(op.buffer.type, 1)
        copy, how = ("cp_async_bulk_tensor_reduce", ", prims.TMARedux.ADD") if op.add.value else ("cp_async_bulk_tensor_global_shared_cta", "")
        slot = f"{op.slot.value * self._stage(op.buffer)} + " if op.slot.value else ""
        self.top(comment(op))
        with self.unrolled("slab", slabs // shares) as slab:
            place, part = f"{slab}", f"wg * {self.layout.rows * span} + {slab} * {rows * span}"
            if shares > 1:
                place = f"(wg * {slabs // shares} + {slab})"
                part = f"{place} * {rows * span}"
            for fold in range(folds):  # the lower half of the rows goes to other columns
                column, behind = (f" + {op.fold.value}", f" + {self.layout.rows // 2 * span}") if fold else ("", "")
                row, offset = (op.row.value if shares == 1 else None), f"wg * {self.layout.rows // folds}"
                coords = self._coords(op.coords, f"{place} * {span}{column}", row, offset)
                self.top(f"prims.{copy}({self.operand(op.map)}.get_ptr(), {self.operand(op.buffer)} + {slot}{part}{behind}{how}, ({coords}))")

    def tma_add(self, op) -> None:
        self._copy_rows(op, "cp_async_bulk_tensor_reduce", 0, op.buffer.type.shape[1], ", prims.TMARedux.ADD")

    def tma_put(self, op) -> None:
        self._copy_rows(op, "cp_async_bulk_tensor_global_shared_cta", *op.part)

    def _copy_rows(self, op, copy: str, first: int, count: int, how: str = "") -> None:
        """From `count` rows of a slot, from the row `first` on, to global memory, by one thread for all that wrote them."""
        span, slabs, rows, _ = self._slab(op.buffer)
        self._check_box(op, [count, span])
        row = next(axis for axis, size in enumerate(op.map.owner.opview.box) if size == count) if first else None
        self.top(comment(op))
        with self.unrolled("slab", slabs) as slab:
            part = f"{self._slot_offset(op)}{f'{first * span} + ' if first else ''}{slab} * {rows * span}"
            coords = self._coords(op.coords, f"{slab} * {span}", row, str(first))
            self.top(f"prims.{copy}({self.operand(op.map)}.get_ptr(), {self.operand(op.buffer)} + {part}{how}, ({coords}))")

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
        self.top(f"cute.arch.cp_async_bulk_wait_group({op.pending.value}, read={not op.complete.value})")

    def _counter(self, op) -> str:
        """The address of this warpgroup's number, or of the only one."""
        terms = [f"Int64({self.operand(c)}) * {self.parameter_name[('stride', op.counter, axis)]}" for axis, c in enumerate(op.coords)]
        own = ["Int64(wg)"] if self.role.active.value >= 4 else []
        return f"{self.parameter_name[('pointer', op.counter)]} + 4 * ({' + '.join([*terms, *own]) or 'Int64(0)'})"

    def wait_count(self, op) -> None:
        self.top(comment(op))
        self.top(f"wait_count({self._counter(op)}, Int32({self.operand(op.count)}))")

    def add_count(self, op) -> None:
        self.top(comment(op))
        self.top(f"add_count({self._counter(op)})")

    def store_shared(self, op) -> None:
        if self.layout.whole_rows:
            self.store_shared_rows(op)
            return
        if self.by_matrices(op):
            self.store_matrices(op)
            return
        if warp.bits_of(op.source.type.element_type) == 32:
            self._store_pairs(op)
            return
        columns = op.source.type.shape[1] // self._shares(op.source.type)
        dtype = dsl_type(op.source.type.element_type)
        source = self.operand(op.source)
        slot = self.operand(op.slot) if op.slot is not None else "0"
        part = ("rows", 64) if self._shares(op.source.type) == 1 else ("columns", columns)
        key = self._declare(
            ("stmatrix", op.buffer, op.source),
            lambda name: [
                f"{name}_mma = cute.make_tiled_mma({self._accumulator_atom(dtype, columns)})",
                *self._view(f"{name}_s", op.buffer, "K", part),
                f"{name} = cute.make_tiled_copy_C(cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), {dtype}), {name}_mma).get_slice(t)",
            ],
            "r2s",
        )
        self.top(comment(op))
        self.top(
            f"cute.copy({key}, {key}.retile(cute.make_tensor({source}.iterator, cute.make_layout({key}_mma.partition_shape_C((64, {columns}))))), "
            f"{key}.partition_D({key}_s[None, None, {slot}]))"
        )

    def _accumulator_atom(self, dtype: str, columns: int) -> str:
        """An MMA whose accumulator is laid out as a fragment: wgmma's where the kernel has some (its stores are shorter), else that of four
        warps' mma.m16n8k16, which all targets know.
        """
        if any(isinstance(op, warp.WgmmaOp) for op in self.operations()):
            return f"warpgroup.MmaF16BF16Op({dtype}, Float32, (64, {columns}, 16), warpgroup.OperandSource.SMEM, OperandMajorMode.K, OperandMajorMode.K)"
        return f"cute.nvgpu.warp.MmaF16BF16Op({dtype}, Float32, (16, 8, 16)), cute.make_layout((4, 1, 1)), permutation_mnk=(64, 16, 16)"

    def _store_pairs(self, op) -> None:
        """`load_fragment` the other way: f32, two neighbours at a time; odd rows take other columns first, as they would hit the banks of
        even ones."""
        span, slabs, rows, _ = self._slab(op.buffer)
        swizzle, shares = op.buffer.owner.opview.swizzle.value, self._shares(op.source.type)
        turned = swizzle == 128
        row0, _ = self._first_element(op.source.type)
        xor, first = self.names.fresh("xor"), self.names.fresh("first")
        slot = f"{self.operand(op.slot)} * {rows * slabs * span} + " if op.slot is not None and op.buffer.type.shape[0] > 1 else ""
        part = f" + wg * {slabs // shares * rows * span}" if shares > 1 else ""
        self.top(comment(op))
        self.top(f"{xor} = {row0} * {swizzle} // 128 % {swizzle // 16}" + (f" ^ {row0} % 2 * 4" if turned else ""))
        self.top(f"{first} = {slot}{row0} * {span} + t % 2 * 2{part}")
        source = self.operand(op.source)
        with self.unrolled("slab", slabs // shares) as slab, self.unrolled("q", span // 8) as q, self.unrolled("g", 2) as g:
            offset = f"{first} + {slab} * {rows * span} + {g} * {8 * span} + (({q} * 2 + t % 4 // 2) ^ {xor}) * 4"
            at = f"{slab} * {span // 2} + 4 * {q} + 2 * {g}"
            other = f"{slab} * {span // 2} + 4 * ({q} ^ 2) + 2 * {g}" if turned else at
            self.top(f"store_pair({self.operand(op.buffer)}, {offset}, {source}, {row0} % 2 == 1, {at}, {other})")

    def store_rows(self, op) -> None:
        if self.layout.whole_rows:
            self.store_one_row(op)
            return
        target, rank = op.target, op.target.type.rank
        source = self.operand(op.source)
        coords = [self.operand(c) for c in op.coords]
        self.top(comment(op))
        if not rank:
            self.store_first_row(op)
            return
        with self.unrolled("g", 2) as g:
            row = self.names.fresh("row")
            self.top(f"{row} = {coords[-1]} + row0 + 8 * {g}")
            terms = [f"Int64({c}) * {self.parameter_name[('stride', target, axis)]}" for axis, c in enumerate([*coords[:-1], row])]
            pointer = self.parameter_name[("pointer", target)]
            with self.top.block(f"if (t % 4 == 0) & ({row} < {self._size(target, rank - 1)}) & ({pointer} != 0):"):
                self.top(f"write_element({dsl_type(target.type.element_type)}, {pointer}, {' + '.join(terms)}, {source}[{g}])")

    def store_first_row(self, op) -> None:
        pointer = self.parameter_name[("pointer", op.target)]
        with self.top.block(f"if ({self.row0} == 0) & {'' if self.layout.whole_rows else '(t % 4 == 0) & '}({pointer} != 0):"):
            self.top(f"write_element({dsl_type(op.target.type.element_type)}, {pointer}, Int64(0), {self.operand(op.source)}[0])")

    def global_add(self, op) -> None:
        self.top(comment(op))
        if op.source.type.rank == 1:
            self._add_sum(op)
            return
        rows, columns = list(op.dims)
        kind, pointer = op.source.type, self.parameter_name[("pointer", op.target)]
        row0, col0 = self._first_element(kind)
        coords = [self.operand(c) for c in op.coords]
        coords[rows] = f"{coords[rows]} + {row0}"
        strides = [self.parameter_name[("stride", op.target, axis)] for axis in range(columns)]
        terms = [f"Int64({c}) * {stride}" for c, stride in zip(coords, strides, strict=False)]
        row, at = self.names.fresh("row"), self.names.fresh("address")
        with self.unrolled("g", 2) as g:
            self.top(f"{row} = {coords[rows]} + 8 * {g}")
            terms[rows] = f"Int64({row}) * {strides[rows]}"
            self.top(f"{at} = {pointer} + 4 * ({' + '.join([*terms, f'Int64({coords[columns]} + {col0})'])})")
            with self.top.block(f"if {row} < {self._size(op.target, rows)}:"), self.unrolled("q", self._elements(kind) // 4) as q:
                self._add_pair(op, at, f"4 * {q} + 2 * {g}", f"8 * {q}")

    def _add_pair(self, op, at: str, element: str, column: str) -> None:
        """Two neighbouring columns of a thread, in one instruction or in two."""
        source, columns = self.operand(op.source), list(op.dims)[1]
        coord, size = self.operand(op.coords[columns]), self._size(op.target, columns)
        known = coord.isdigit() and size.isdigit() and int(coord) + op.source.type.shape[1] <= int(size)
        _, col0 = self._first_element(op.source.type)
        for first in range(0, 2, op.vector.value):
            inside = "True" if known else f"{coord} + {col0} + {column} + {first} < {size}"
            values = ", ".join(f"{source}[{element} + {first + n}]" for n in range(op.vector.value))
            self.top(f"add_to_global({at}, 4 * ({column} + {first}), {inside}, [{values}])")

    def _add_sum(self, op) -> None:
        source = self.operand(op.source)
        coords = [self.operand(c) for c in op.coords]
        terms = [f"Int64({c}) * {self.parameter_name[('stride', op.target, axis)]}" for axis, c in enumerate(coords)]
        inside = [f"({c} >= 0) & ({c} < {self._size(op.target, axis)})" for axis, c in enumerate(coords)]
        total = self.names.fresh("total")
        whole = f"warp_sum({source}[0])" if self.layout.whole_rows else f"warp_rows_sum({source}[0] + {source}[1])"
        self.top(f"{total} = {whole}")
        at = f"{self.parameter_name[('pointer', op.target)]} + 4 * ({' + '.join(terms) or 'Int64(0)'})"
        self.top(f"add_to_global({at}, 0, {' & '.join(['(t % 32 == 0)', *inside])}, [{total}])")

    # -- compute

    def _shares(self, kind, rows: int = 0) -> int:
        """Into how many shares of columns the role's warpgroups split a tile; `rows`: which dimension are its rows."""
        return warp.column_shares(kind, self.role.active.value // 4, rows)

    def _first_element(self, kind) -> tuple[str, str]:
        """Row and column of a thread's first element, in the tile."""
        shares = self._shares(kind)
        if shares == 1:
            return self.row0, "col0"
        row0 = self._declare("row0_shared", lambda name: [f"{name} = row0 - wg * 64"], "row0_shared")
        return row0, f"col0 + wg * {kind.shape[1] // shares}"

    def fragment(self, op) -> None:
        kind = op.out.type
        name = self.names.fresh(
            "r" + (name_of(op.out) or "Tile").capitalize() + ("_row" if kind.rank == 1 else "_quad" if kind.shape[1] == 4 else "")
        )
        dtype = "Int32" if str(kind.element_type) == "i1" else dsl_type(kind.element_type)
        self.header(
            f"{name} = cute.make_rmem_tensor({self._elements(kind)}, {dtype})  # {'x'.join(map(str, kind.shape))}x{kind.element_type}"
            + (f", {self._shares(kind)} shares of columns" if self._shares(kind) > 1 else "")
        )
        self.values[op.out] = name

    def _elements(self, kind) -> int:
        """Values a thread holds."""
        return self.layout.elements(kind, self.role.active.value // 4)

    def fill(self, op) -> None:
        kind = op.target.type
        value = float_text(op.value.value) if isinstance(op.value, ir.FloatAttr) else str(op.value.value)
        with self.unrolled("r", self._elements(kind)) as r:
            self.top(f"{self.operand(op.target)}[{r}] = {dsl_type(kind.element_type)}({value})")

    def copy(self, op) -> None:
        with self.unrolled("r", self._elements(op.target.type)) as r:
            self.top(f"{self.operand(op.target)}[{r}] = {self.operand(op.source)}[{r}]")

    def when(self, op) -> None:
        cond = self.held.get(op.cond) or self.operand(op.cond)
        vote = space_of(op.cond.type) == "reg"
        with self.top.block(f"if {cond}[0] != 0:" if vote else f"if {cond} != 0:" if op.cond in self.held else f"if {cond}:"):
            # without it LLVM may turn the branch into a select an element, which costs more than it saves
            self.top('prims.ptx_add_comment("warp.when")')
            self.block(op.body.blocks[0])

    def map_op(self, op) -> None:
        self.top(comment(op))
        self._map_loop(op)

    def _map_loop(self, op) -> None:
        kind, body, target = op.target.type, op.body.blocks[0], self.operand(op.target)
        full_width = kind.rank == 2 and kind.shape[1] != 4
        count = self._elements(kind)
        step = 2 if kind.rank == 2 and self.packs(body, count) else 1
        row0, col0 = self._first_element(kind)

        def text(value, r: str) -> str:
            part = self.layout.row_part(r, full_width)
            place = part if value.type.rank == 1 and kind.rank == 2 else r
            if value.type.rank == 2 and value.type.shape[0] == 1:
                place = self.layout.column_part(r)
            flag = " != 0" if str(value.type.element_type) == "i1" else ""
            return f"{self.operand(value)}[{place}]{flag}"

        def store(r: str, *results) -> None:
            if len(results) > 1:
                self.store_halves(target, r, *results)
            else:
                result = f"select(Int32, {results[0]}, 1, 0)" if str(kind.element_type) == "i1" else results[0]
                self.top(f"{target}[{r}] = {result}")

        with self.spread_loads(body, count), self.unrolled("r", *((0, count, step) if step > 1 else (count,))) as r:
            elements = [r, f"({r} + 1)"][:step]
            arguments = list(body.arguments)
            texts = {a: [text(value, e) for e in elements] for a, value in zip(arguments, op.inputs, strict=False)}
            texts[arguments[-2]] = [self.layout.row(e, full_width, row0) for e in elements]
            texts[arguments[-1]] = [self.layout.column(e, full_width, col0) for e in elements]
            self.map_elements(body, elements, texts, store)

    def reduce(self, op) -> None:
        if self.layout.whole_rows:
            self.reduce_row(op)
            return
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
        vote, held = self.names.fresh("vote"), range(self._elements(op.source.type))
        self.top(f"{vote} = select(Int32, cute.arch.vote_any_sync(({' | '.join(f'{source}[{r}]' for r in held)}) != 0), 1, 0)")
        for r in held:
            self.top(f"{target}[{r}] = {vote}")

    def wgmma_fence(self, op) -> None:
        for value in op.fragments:
            kind, count, kept = "Float32", self._elements(value.type), self.operand(value)
            if warp.bits_of(value.type.element_type) == 16:
                kind, count, kept = "Int32", count // 2, self.names.fresh("packed")
                self.top(f"{kept} = cute.recast_tensor({self.operand(value)}, Int32)")
            with self.unrolled("r", count) as r:
                self.top(f'{kept}[{r}] = prims.inline_ptx("mov.b32 $0, $1;", write_only_types=[{kind}], read_only_args=[{kept}[{r}]])')
        self.top("warpgroup.fence()")

    def wgmma_commit(self, op) -> None:
        self.top("warpgroup.commit_group()")

    def wgmma_wait(self, op) -> None:
        self.top(f"warpgroup.wait_group({op.pending.value})")

    def wgmma(self, op) -> None:
        key = self._declare_mma(op)
        depth = self._depth(op)
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

    def _depth(self, op) -> int:
        return op.a.type.shape[-2 if op.transpose_a.value else -1]

    def _declare_mma(self, op) -> str:
        depth, shares = self._depth(op), self._shares(op.acc.type)
        columns = op.acc.type.shape[1] // shares
        from_registers = space_of(op.a.type) == "reg"
        dtype = dsl_type(op.a.type.element_type)
        major_a, major = "MN" if op.transpose_a.value else "K", "K" if op.transpose_b.value else "MN"
        # a warpgroup's rows of the result are rows of a, its columns are columns of b: which way they lie in the buffers depends on the major
        part_a = None if shares > 1 else ("rows" if major_a == "K" else "columns", 64)
        part_b = None if shares == 1 else ("rows" if major == "K" else "columns", columns)
        source = "RMEM" if from_registers else "SMEM"
        acc, a = self.operand(op.acc), self.operand(op.a)

        def lines(name):
            text = [
                f"{name} = cute.make_tiled_mma(warpgroup.MmaF16BF16Op({dtype}, Float32, (64, {columns}, 16), warpgroup.OperandSource.{source}, OperandMajorMode.{major_a}, OperandMajorMode.{major}))",
                f"{name}_D = cute.make_tensor({acc}.iterator, cute.make_layout({name}.partition_shape_C((64, {columns}))))",
            ]
            if from_registers:
                text.append(f"{name}_A = cute.make_tensor({a}.iterator, cute.make_layout({name}.partition_shape_A((64, {depth}))))")
            else:
                text += self._view(f"{name}_sA", op.a, major_a, part_a)
                text.append(f"{name}_A = {self._descriptors(f'{name}.make_fragment_A({name}.get_slice(0).partition_A({name}_sA))')}")
            text += self._view(f"{name}_sB", op.b, major, part_b)
            text.append(f"{name}_B = {self._descriptors(f'{name}.make_fragment_B({name}.get_slice(0).partition_B({name}_sB))')}")
            return text

        return self._declare(("mma", op.acc, op.a, op.b, major_a, major), lines, "mma")

    def _descriptors(self, text: str) -> str:
        return f"kept_descriptors({text})" if self.keeps_descriptors else text

    def _view(self, name: str, buffer, major: str, part: tuple[str, int] | None = None) -> list[str]:
        """A CuTe tensor over a buffer: (rows, columns, stages) K-major, (columns, rows, stages) MN-major; `part`: this warpgroup's so many
        "rows" or "columns".
        """
        span, slabs, rows, stages = self._slab(buffer)
        columns = slabs * span
        swizzle = buffer.owner.opview.swizzle.value
        dtype = dsl_type(buffer.type.element_type)
        order = "(0, 1, 2)" if major == "K" else "(1, 0, 2)"
        pointer = f"cute.recast_ptr({self.operand(buffer)}, {name}_layout.inner, dtype={dtype})"

        def shape(rows, columns):
            return f"({rows}, {columns}, {stages})" if major == "K" else f"({columns}, {rows}, {stages})"

        text = [
            f"{name}_layout = cute.tile_to_shape(warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.{major}_SW{swizzle}, {dtype}), {shape(rows, columns)}, {order})",
            f"{name} = cute.make_tensor({pointer}, {name}_layout.outer)",
        ]
        if part is not None:
            axis, size = part
            step = size * (span if axis == "rows" else rows)  # elements between two warpgroups' parts
            seen = shape(size, columns) if axis == "rows" else shape(rows, size)
            text.append(
                f"{name} = cute.make_tensor({name}.iterator + cute.assume(wg * {step}, divby={step}), cute.local_tile({name}, {seen}, (0, 0, 0)).layout)"
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

