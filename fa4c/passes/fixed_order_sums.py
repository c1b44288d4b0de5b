"""Sums of all CTAs to one element of a tensor, in a fixed order: each CTA stores what it would add, kernels behind it add that up.

A row vector that is added to one element (`tile.global_add` without dims: the gradient of ALiBi's slopes) is stored in a workspace instead,
a place for each row of each CTA. Three small kernels follow, of which every thread adds in the order of its loop:

    ..._parts   parts[z, y, r] = sum over k of rows[z, y, 128 k + r]      a CTA for each (y, z) of the grid
    ..._heads   heads[z, y]    = sum over r of parts[z, y, r]             a CTA for 128 y
    ..._total   target[e]      = sum of heads[z, y] over the (y, z) whose CTAs add to e: their coordinates are computed again

The workspaces take 4 bytes for each row of each (y, z), as the log-sum-exp does, and 516 bytes more.
"""

from __future__ import annotations

from ..ir import tile
from ..ir.diagnostics import op_diagnostic
from ..ir.mlir import arith, index_constant, ir, scf
from ._tile_map import dim_of, emit_map, operations_in
from .loop_nest import compute_again, depends
from .workspaces import add_workspace, entry_of, host_of

_ROWS, _COLUMNS = 128, 64  # of the tiles that are added up: 8192 values a step


def add_up_behind(add, kernel, launches: list) -> None:
    """Store what `add`, of a row vector to one element, would add, and add it up behind each launch of its kernel."""
    _Sum(add, kernel).apply(launches)


def place_of(add, kernel):
    """The `tile.program_id` of the kernel around an addition."""
    place = next((op for op in operations_in(kernel) if isinstance(op, tile.ProgramIdOp)), None)
    if place is None:
        raise op_diagnostic(add, "is not made for CTAs of a grid", why="the kernel does not ask for its place", fix="add tile.program_id")
    return place


class _Sum:
    def __init__(self, add, kernel):
        self.add, self.kernel, self.target, self.coords = add, kernel, add.target, list(add.coords)
        self.place = place_of(add, kernel)
        self.number = list(kernel.body.blocks[0].arguments).index(add.target)
        self.kind = add.target.type  # of the target
        self._check()

    def _check(self) -> None:
        around = self.add.operation.parent.name
        if around == "scf.if":
            raise op_diagnostic(self.add, "adds to one place under a condition", why="each CTA stores what it would add, and where it "
                                "stores nothing there is no 0", fix="add always, and choose between the value and 0 by arith.select")
        if around != "tile.kernel":
            raise op_diagnostic(self.add, "adds to one place in several iterations of a loop", why="one sum of a CTA has a place to store",
                                fix="sum in registers, and add behind the loop")
        if len(list(self.target.uses)) != 1:
            raise op_diagnostic(self.add, "adds to a tensor that its kernel uses twice", why="the sum is complete behind the kernel only",
                                fix="give each sum a tensor of its own")
        if any(depends(coord, self.place.x) for coord in self.coords):
            raise op_diagnostic(self.add, "adds to a place that depends on the CTA's x", why="sums are over all x of the grid",
                                fix="let y and z of the grid say which element it is")

    def apply(self, launches: list) -> None:
        if not launches:
            raise op_diagnostic(self.add, "is in a kernel that is not launched", why="kernels behind it add up what its CTAs store",
                                fix="launch it from a tile.host")
        name = f"{self.kernel.sym_name.value}_{self._name(launches[0])}"
        sizes = self._sizes()
        with ir.InsertionPoint(self.kernel.operation.block), self.add.location:
            kernels = [self._parts(f"{name}_parts"), self._heads(f"{name}_heads"), self._total(f"{name}_total", sizes)]
        for launch in launches:
            self._launch(launch, [op.sym_name.value for op in kernels], sizes)
        self._store()

    def _name(self, launch) -> str:
        return entry_of(host_of(launch), launch.tensors[self.number])["name"].value

    def _sizes(self) -> list:
        """The kernel's tensors whose sizes the coordinates are computed from."""
        found: dict = {}
        for coord in self.coords:
            _tensors_below(coord, found)
        return list(found)

    def _store(self) -> None:
        rows = self.kernel.body.blocks[0].arguments[self.number]
        with ir.InsertionPoint(self.add), self.add.location:
            first = arith.muli(self.place.x, index_constant(self.add.x.type.shape[0]))
            rows.set_type(_gmem(None, None, None))
            tile.StoreOp(tile=self.add.x, target=rows, coords=[self.place.z, self.place.y, first], dims=_dims(2))
        self.add.operation.erase()

    # -- kernels: each CTA adds up 128 rows of numbers -----------------------------------------------------------

    def _parts(self, name: str):
        def emit(place, rows, parts):
            def value(r, k):
                return _load(rows, place.z, place.y, arith.addi(arith.muli(k, index_constant(_ROWS)), r))

            blocks = arith.ceildivsi(dim_of(rows, 2), index_constant(_ROWS))
            tile.StoreOp(tile=_row_sums(blocks, value), target=parts, coords=[place.z, place.y, index_constant(0)], dims=_dims(2))

        return _kernel(name, [_gmem(None, None, None), _gmem(None, None, _ROWS)], emit)

    def _heads(self, name: str):
        def emit(place, parts, heads):
            y0 = arith.muli(place.x, index_constant(_ROWS))
            sums = _row_sums(index_constant(_ROWS), lambda r, k: _load(parts, place.z, arith.addi(y0, r), k))
            tile.StoreOp(tile=sums, target=heads, coords=[place.z, y0], dims=_dims(1))

        return _kernel(name, [_gmem(None, None, _ROWS), _gmem(None, None)], emit)

    def _total(self, name: str, sizes: list):
        def emit(place, heads, target, *tensors):
            known = dict(zip(sizes, tensors, strict=True))
            for coord in self.coords:
                self._compute_constants(coord, known)
            row0 = arith.muli(place.x, index_constant(_ROWS))
            outer, width = [place.y, place.z][: max(0, self.kind.rank - 1)], dim_of(heads, 1)

            def value(row, k):
                z = arith.floordivsi(k, width)
                y = arith.subi(k, arith.muli(z, width))
                coords = [compute_again(coord, {**known, self.place.y: y, self.place.z: z}) for coord in self.coords]
                wanted = [*outer, arith.addi(row0, row)][: max(1, self.kind.rank)]
                matches = [_equal(a, b) for a, b in zip(coords or [index_constant(0)], wanted, strict=True)]
                adds = matches[0]
                for match in matches[1:]:
                    adds = arith.andi(adds, match)
                zero = arith.constant(ir.F32Type.get(), 0.0)
                return arith.select(adds, _load(heads, z, y), zero)

            sums = _row_sums(arith.muli(dim_of(heads, 0), width), value)
            last = [row0] if self.kind.rank else []
            tile.StoreOp(tile=sums, target=target, coords=[*outer, *last], dims=_dims(*range(self.kind.rank)[-1:]))

        return _kernel(name, [_gmem(None, None), self.kind, *(t.type for t in sizes)], emit)

    def _compute_constants(self, value, known: dict) -> None:
        """What is the same for all (y, z), at the insertion point."""
        if value in known or isinstance(value.owner, ir.Block) or value.owner == self.place.operation:
            return
        if not any(depends(value, own) for own in (self.place.y, self.place.z)):
            compute_again(value, known)
            return
        for operand in value.owner.operands:
            self._compute_constants(operand, known)

    # -- host ----------------------------------------------------------------------------------------------------

    def _launch(self, launch, names: list[str], sizes: list) -> None:
        host, target, (x, y, z) = host_of(launch), launch.tensors[self.number], launch.grid
        base = self._name(launch)
        arguments = list(self.kernel.body.blocks[0].arguments)
        across = [self._dim(host, value) for value in (z, y)]
        row = self._dim(host, _divided(x))
        rows, parts, heads = (add_workspace(host, f"{base}_{what}", [name for name, _ in dims], _gmem(*(size for _, size in dims)))
                              for what, dims in (("rows", [*across, row]), ("parts", [*across, ("rows", _ROWS)]), ("heads", across)))
        self._start_anywhere(host, target)
        launch.operation.operands[3 + self.number] = rows
        with ir.InsertionPoint.after(launch), launch.location:
            one = index_constant(1)
            tall = arith.ceildivsi(y, index_constant(_ROWS))
            last = arith.ceildivsi(dim_of(target, self.kind.rank - 1), index_constant(_ROWS)) if self.kind.rank else one
            outer = [dim_of(target, axis) for axis in range(self.kind.rank - 1)]
            given = [launch.tensors[arguments.index(t)] for t in sizes]
            for name, grid, tensors in zip(
                names, ([one, y, z], [tall, one, z], [last, *outer, one, one][:3]),
                ([rows, parts], [parts, heads], [heads, target, *given]), strict=True,
            ):
                tile.LaunchOp(kernel=ir.FlatSymbolRefAttr.get(name), grid=grid, tensors=tensors, scalars=[])

    def _dim(self, host, size) -> tuple[str, None]:
        """The name of a size of the problem, which the type does not know."""
        owner = size.owner
        if isinstance(owner, ir.Block) or owner.name != "tile.dim":
            raise op_diagnostic(self.add, "is made for a grid whose sizes are no sizes of a tensor",
                                why="what each CTA adds is stored by its place in the grid",
                                fix='give the launch sizes from "tile.dim", x one of them or its quotient by the rows of a CTA, '
                                    "in whole pairs")
        return entry_of(host, owner.operands[0])["dims"][owner.attributes["axis"].value].value, None

    def _start_anywhere(self, host, target) -> None:
        """Nobody adds to the target any more."""
        number = list(host.body.blocks[0].arguments).index(target)
        entries = [dict((a.name, a.attr) for a in entry) for entry in host.tensors]
        entries[number].pop("init", None)
        host.attributes["tensors"] = ir.ArrayAttr.get([ir.DictAttr.get(entry) for entry in entries])


def _kernel(name: str, kinds: list, emit):
    kernel = tile.KernelOp(sym_name=ir.StringAttr.get(name))
    block = kernel.body.blocks.append(*kinds, arg_locs=[kernel.location] * len(kinds))
    index = ir.IndexType.get()
    with ir.InsertionPoint(block):
        emit(tile.ProgramIdOp(x=index, y=index, z=index), *block.arguments)
    return kernel


def _row_sums(columns, value):
    """sum over k < columns of value(r, k), for the rows r < 128 of a CTA. `value` is 0 from there on."""
    kind = tile.tile_type([_ROWS, _COLUMNS], "f32", "reg")
    zero = tile.SplatOp(value=ir.FloatAttr.get(ir.F32Type.get(), 0.0), out=kind).out
    loop = scf.ForOp(index_constant(0), arith.ceildivsi(columns, index_constant(_COLUMNS)), index_constant(1), [zero])
    with ir.InsertionPoint(loop.body):
        first = arith.muli(loop.induction_variable, index_constant(_COLUMNS))
        more = emit_map([loop.inner_iter_args[0]], kind, lambda x, r, c: arith.addf(x, value(r, arith.addi(first, c))))
        scf.YieldOp([more])
    return tile.ReduceOp(x=loop.results[0], init=None, kind=ir.StringAttr.get("sum"), out=tile.tile_type([_ROWS], "f32", "reg")).out


def _tensors_below(value, found: dict) -> None:
    if isinstance(value.owner, ir.Block):
        if tile.space_of(value.type) == "gmem":
            found[value] = None
        return
    for operand in value.owner.operands:
        _tensors_below(operand, found)


def _gmem(*shape):
    return tile.tile_type(list(shape), "f32", "gmem")


def _load(source, *coords):
    return tile.LoadElementOp(source=source, coords=list(coords), out=source.type.element_type).out


def _equal(a, b):
    return arith.cmpi(arith.CmpIPredicate.eq, a, b)


def _dims(*axes: int):
    return ir.DenseI64ArrayAttr.get(list(axes))


def _divided(size):
    """What CTAs divide among them: the size that their number is the quotient of, in whole pairs where it is rounded up to these."""
    def made_by(value, name: str):
        return value.owner if not isinstance(value.owner, ir.Block) and value.owner.name == name else None

    product = made_by(size, "arith.muli")
    pairs = product and made_by(product.operands[0], "arith.ceildivsi")
    if pairs and pairs.operands[1] == product.operands[1]:
        size = pairs.operands[0]
    quotient = made_by(size, "arith.ceildivsi")
    return quotient.operands[0] if quotient else size
