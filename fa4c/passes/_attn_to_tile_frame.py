"""Where one CTA of an attn kernel stands: its rows, its batch entry and head, the problem's sizes, and tensors addressed from there.

Masks and maps count queries and keys by position; under `bottom_right` a query's position is its number plus n - m.
"""

from ..ir import tile as tile_ops
from ..ir.attn_signature import TensorFacts, memory_order
from ..ir.mlir import arith, i64, index_constant, ir
from ..ir.tile import LoadElementOp, LoadOp, ProgramIdOp, StoreOp, tile_type
from ._attn_to_tile_plan import Plan
from ._attn_to_tile_regions import clone, inline
from ._attn_to_tile_shape import Shape
from ._tile_map import dim_of

LO, HI, FULL_LO, FULL_HI = range(4)  # what the bounds of a band mask yield


class Frame:
    """Emits at the current insertion point and location. `tensors`: name of an argument or result -> its tensor in global memory. So many
    neighbouring row blocks as `alike` visit the same columns: all that any of them needs.
    """

    def __init__(self, plan: Plan, shape: Shape, tensors: dict, alike: int = 1):
        self.plan, self.shape, self.tensors, self.alike = plan, shape, tensors, alike
        self.facts = {t.name: t for t in (*plan.facts.args, *plan.facts.results)}
        self.scalars: dict = {}  # scalar values of the function, outside all regions
        self._constants: dict[int, object] = {}
        self._sizes: dict[str, object] = {}
        index = ir.IndexType.get()
        self._place = ProgramIdOp(x=index, y=index, z=index)
        self.b, self.h = self._place.z, self._place.y
        self.group = None  # query heads of one CTA, where there are several
        if plan.grouped:
            self.hkv = self._place.y
            self.group = arith.floordivsi(self.size("hq"), self.size("hkv"))
        else:
            self.hkv = self._kv_head()
        self.row0 = arith.muli(self._place.x, self.index(shape.block_m))
        self._shift = arith.subi(self.size("n"), self.size("m")) if self._counts_from_the_end() else None
        self.position0 = self.position(plan.rows, self.row0)
        for operation in plan.operations[:-1]:
            if not operation.name.startswith("attn.") or operation.name == "attn.size":
                clone(operation, self.scalars, self.external)

    # -- numbers ---------------------------------------------------------------------------------------------

    def index(self, value: int):
        """A constant, made once, at the start of the kernel."""
        if value not in self._constants:
            with ir.InsertionPoint(self._place):
                self._constants[value] = index_constant(value)
        return self._constants[value]

    def size(self, name: str):
        """The size of a problem axis or dimension, read off the first tensor that has it; made once, at the start of the kernel."""
        if name not in self._sizes:
            tensor = next(t for t in self.facts.values() if name in self.order(t.name))
            with ir.InsertionPoint(self._place):
                self._sizes[name] = dim_of(self.tensors[tensor.name], self.order(tensor.name).index(name))
        return self._sizes[name]

    def enter_head(self, number) -> None:
        """From here on the query head is this one of the CTA's group."""
        self.h = arith.addi(arith.muli(self.hkv, self.group), number)

    def _counts_from_the_end(self) -> bool:
        return self.plan.facts.align == "bottom_right" and self.has("m") and self.has("n")

    def position(self, dim: str, number):
        """A query or key as masks and maps count it."""
        return number if self._shift is None or dim != "m" else arith.addi(number, self._shift)

    def number(self, dim: str, position):
        """The query or key at a position."""
        return position if self._shift is None or dim != "m" else arith.subi(position, self._shift)

    def has(self, name: str) -> bool:
        return any(name in self.order(t) for t in self.facts)

    def _kv_head(self):
        if not (self.has("hq") and self.has("hkv")):
            return self.h
        return arith.floordivsi(self.h, arith.floordivsi(self.size("hq"), self.size("hkv")))

    # -- tensors ---------------------------------------------------------------------------------------------

    def order(self, name: str) -> tuple[str, ...]:
        return memory_order(self.facts[name], self.plan.facts.layout)

    def coordinates(self, tensor: TensorFacts, own: list) -> list:
        """One for each dimension in memory: this batch entry and head, and `own` for the tensor's own dimensions."""
        places = {"b": self.b, "hq": self.h, "hkv": self.hkv, **dict(zip(tensor.dims, own, strict=True))}
        return [places[name] for name in self.order(tensor.name)]

    def load_tile(self, tensor: TensorFacts, first, rows: int, columns: int, buffers: int):
        """Rows from `first` on, over all of the (padded) head dim, in shared memory."""
        source = self.tensors[tensor.name]
        order = self.order(tensor.name)
        dims = ir.DenseI64ArrayAttr.get([order.index(dim) for dim in tensor.dims])
        return LoadOp(
            source=source,
            coords=self.coordinates(tensor, [first, self.index(0)]),
            dims=dims,
            buffers=_count(buffers),
            out=tile_type([rows, columns], source.type.element_type, "smem"),
        ).out

    def load_row(self, tensor: TensorFacts, first, columns: int, buffers: int):
        """Values of a vector from `first` on, one a column, in shared memory."""
        source = self.tensors[tensor.name]
        order = self.order(tensor.name)
        return LoadOp(
            source=source,
            coords=self.coordinates(tensor, [first]),
            dims=ir.DenseI64ArrayAttr.get([order.index(tensor.dims[0])]),
            buffers=_count(buffers),
            out=tile_type([1, columns], source.type.element_type, "smem"),
        ).out

    def store(self, tile, tensor: TensorFacts) -> None:
        StoreOp(tile=tile, target=self.tensors[tensor.name], **self._box(tensor, self.row0))

    def add(self, tile, tensor: TensorFacts, first=None) -> None:
        """Add rows from `first` on, or a value a row to a single number, to what lies in memory."""
        tile_ops.GlobalAddOp(x=tile, target=self.tensors[tensor.name], **self._box(tensor, first))

    def _box(self, tensor: TensorFacts, first) -> dict:
        order = self.order(tensor.name)
        own = [first, self.index(0)][: len(tensor.dims)]
        return {"coords": self.coordinates(tensor, own), "dims": ir.DenseI64ArrayAttr.get([order.index(dim) for dim in tensor.dims])}

    def element(self, tensor: TensorFacts, own: list):
        source = self.tensors[tensor.name]
        updated = ir.BoolAttr.get(True) if any(t.name == tensor.name for t in self.plan.facts.results) else None
        return LoadElementOp(source=source, coords=self.coordinates(tensor, own), exclusive=updated, out=source.type.element_type).out

    # -- scalar code of the function -------------------------------------------------------------------------

    def external(self, operation, operands):
        """What `attn.load` and `attn.size` become."""
        if operation.name == "attn.size":
            return [self.size(operation.attributes["dim"].value)]
        if operation.name == "attn.load":
            return [self.element(self.plan.tensors[operation.operands[0]], operands[1:])]
        return None

    def inline(self, block, arguments: list, *, wanted=None) -> list:
        mapping = {**self.scalars, **dict(zip(block.arguments, arguments, strict=True))}
        return inline(block, mapping, self.external, wanted=wanted)

    def bounds(self, operation) -> list:
        """(lo, hi, full_lo, full_hi) of a band mask for all rows of this CTA: no row sees a column outside [lo, hi), all rows see those of
        [full_lo, full_hi). The four are non-decreasing in the row, so the first and the last row decide; rows past the end do not count.
        lo and hi are for the rows of all CTAs that are `alike`."""
        rows, columns = self.plan.space
        region = operation.regions[1].blocks[0]
        last = self._last_position(self.row0, self.shape.block_m)
        if self.alike == 1:
            lo, full_hi = self.inline(region, [self.b, self.h, self.position0], wanted=(LO, FULL_HI))
            hi, full_lo = self.inline(region, [self.b, self.h, last], wanted=(HI, FULL_LO))
        else:
            height = self.alike * self.shape.block_m
            row0 = arith.muli(arith.floordivsi(self._place.x, self.index(self.alike)), self.index(height))
            (full_hi,) = self.inline(region, [self.b, self.h, self.position0], wanted=(FULL_HI,))
            (full_lo,) = self.inline(region, [self.b, self.h, last], wanted=(FULL_LO,))
            (lo,) = self.inline(region, [self.b, self.h, self.position(rows, row0)], wanted=(LO,))
            (hi,) = self.inline(region, [self.b, self.h, self._last_position(row0, height)], wanted=(HI,))
        lo, hi, full_lo, full_hi = (self.number(columns, bound) for bound in (lo, hi, full_lo, full_hi))
        size = self.size(columns)
        return [self._at_least_zero(lo), arith.minsi(hi, size), self._at_least_zero(full_lo), arith.minsi(full_hi, size)]

    def _last_position(self, row0, height: int):
        """Of the last row that there is, of `height` from row0 on."""
        rows = self.plan.space[0]
        end = arith.minsi(arith.addi(row0, self.index(height)), self.size(rows))
        return self.position(rows, arith.subi(end, self.index(1)))

    def _at_least_zero(self, value):
        zero = self.index(0)
        if not isinstance(value.owner, ir.Block) and value.owner.name == "arith.constant" and value.owner.attributes["value"].value <= 0:
            return zero
        return arith.maxsi(value, zero)


def _count(buffers: int):
    return i64(buffers) if buffers > 1 else None
