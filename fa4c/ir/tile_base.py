"""The `tile` dialect's memory spaces, its base operations, and what several of its operations check."""

from .attn_checks import stray_attribute
from .base import OptionalAttr, make_operation_base
from .diagnostics import op_error
from .mlir import ext, ir


class Tile(ext.Dialect, name="tile"):
    """Blocks, memory spaces, stages and grid order, before warps and barriers exist."""


class Gmem(Tile.Attribute, name="gmem"):
    """A tensor in global memory."""


class Smem(Tile.Attribute, name="smem"):
    """A tile in shared memory."""


class Reg(Tile.Attribute, name="reg"):
    """A tile spread over the registers of the CTA's compute warpgroups: 64 rows each, or the share of the columns of a tile of 64 rows."""


class Tmem(Tile.Attribute, name="tmem"):
    """A tile in tensor memory (sm_100a), from `column` on; -1 until `tile-alias-tmem` has given it a place.

    A tile of 256 rows is two blocks of 128, at that column of each half of the columns.
    """

    column: ir.IntegerAttr


Operation = make_operation_base(Tile)


class Scheduled(Operation):
    """An operation that may carry its place in a software pipeline (written by `tile-pipeline`).

    `after`, pairs (order, iterations before): operations of its loop that must be done before this one overwrites columns of tensor
    memory that they use (written by `tile-alias-tmem`). One of a later iteration, of an earlier stage, has a number below 0.
    """

    _shared_optional = {
        "stage": OptionalAttr("0 : i64", ir.IntegerAttr),
        "order": OptionalAttr(None, ir.IntegerAttr),
        "after": OptionalAttr(None, ir.DenseI64ArrayAttr),
    }

    def verify_invariants(self) -> bool:
        if not super().verify_invariants():
            return False
        if self.stage.value < 0:
            return op_error(
                self,
                f"has stage = {self.stage.value}",
                why="in step k an operation of stage s works for iteration k - s",
                fix="count stages from 0",
            )
        return self.after is None or self._check_after()

    def _check_after(self) -> bool:
        numbers = list(self.after)
        if len(numbers) % 2 or not all(order >= 0 for order in numbers[::2]):
            return op_error(self, f"has after = {numbers}", why="it is pairs of an order and a number of iterations before")
        if not any(space_of(result.type) == "tmem" for result in self.operation.results):
            return op_error(self, "has after, but writes nothing in tensor memory", fix="remove after")
        return True


SPACES = {"gmem": Gmem, "smem": Smem, "reg": Reg, "tmem": Tmem}
_SPACE_NAMES = {attribute: name for name, attribute in SPACES.items()}


def space_of(kind) -> str | None:
    """ "gmem", "smem", "reg" or "tmem" for a tile's type, None for other types."""
    return _SPACE_NAMES.get(type(kind.encoding)) if isinstance(kind, ir.RankedTensorType) else None


def column_of(kind) -> int:
    """The first column of a tile in tensor memory; the bindings hand out an attribute's parameters untyped."""
    return ir.IntegerAttr(kind.encoding.column).value


L2_PRIORITIES = ("evict_first", "evict_last")


def is_l2_priority(op, name: str = "l2") -> bool:
    """The attribute is absent or a priority that a copy can ask for (PTX ISA, createpolicy)."""
    value = getattr(op, name)
    return value is None or value.value in L2_PRIORITIES or op_error(
        op, f"has {name} = {value}", why=f"known are {', '.join(L2_PRIORITIES)}", fix="leave it out for the cache's own order"
    )


def is_cluster_size(op) -> bool:
    """`op.cluster`, of a kernel, is a portable size (PTX ISA)."""
    return op.cluster.value in (1, 2, 4, 8) or op_error(op, f"has cluster = {op.cluster.value}", why="1, 2, 4 or 8 CTAs run together")


def cluster_around(op) -> int:
    """How many CTAs run together in the kernel of an operation; 2 while it is under construction."""
    operation = op.operation.parent
    while operation is not None and operation.name != "tile.kernel":
        operation = operation.parent
    return operation.opview.cluster.value if operation is not None else 2


def has_ctas(op) -> bool:
    """A product of a pair stands in a kernel whose CTAs run in pairs."""
    if op.ctas.value not in (1, 2):
        return op_error(op, f"has ctas = {op.ctas.value}", why="one CTA forms a product, or the two of a pair")
    if op.folded.value and op.ctas.value == 1:
        return op_error(op, "is folded, but formed by one CTA", why="only 64 rows of a pair's 128 take all lanes so", fix="remove folded")
    return op.ctas.value <= cluster_around(op) or op_error(
        op, "is formed by a pair of CTAs, but none run together", fix="give its tile.kernel cluster = 2, or remove ctas"
    )


def has_shares(op) -> bool:
    """The shares of a shared load are whole swizzle atoms of 8 rows."""
    if not op.shared.value:
        return True
    ctas = cluster_around(op)
    if ctas == 1:
        return op_error(op, "is shared, but no CTAs run together", fix="give its tile.kernel a cluster, or remove shared")
    rows = op.out.type.shape[0]
    return (op.out.type.rank == 2 and rows > 1 and rows % (8 * ctas) == 0) or op_error(
        op, f"shares {op.out.type} among {ctas} CTAs", why="each reads a multiple of 8 rows", fix="remove shared"
    )


def tile_type(shape, element_type, space: str):
    """`tensor<SHAPExELEMENT, #tile.SPACE>`; `element_type` is a type or its text, a dimension None is dynamic."""
    dims = "".join(f"{'?' if s is None or s < 0 else s}x" for s in shape)
    return ir.Type.parse(f"tensor<{dims}{element_type}, #tile.{space}>")


def check_yield(op, region, types) -> bool:
    """The region ends with `tile.yield` of these types."""
    operations = list(region.blocks[0].operations)
    last = operations[-1] if operations else None
    if last is None or last.operation.name != "tile.yield":
        return op_error(op, "has a region that does not end with 'tile.yield'", fix='end it with "tile.yield"(%value) : (...) -> ()')
    got = [value.type for value in last.operands]
    return got == list(types) or op_error(op, f"yields {', '.join(map(str, got)) or 'nothing'}, but needs {', '.join(map(str, types))}")


def takes_elements(op) -> bool:
    """Whether the region of a map takes an element of each input, and where it stands."""
    arguments = list(op.body.blocks[0].arguments)
    if len(arguments) != len(op.inputs) + 2:
        return op_error(
            op,
            f"has {len(op.inputs)} inputs, but its region takes {len(arguments)} arguments",
            why="the region takes one element of each input, then row and column as index",
        )
    for number, value in enumerate(op.inputs):
        given, held = arguments[number].type, value.type.element_type
        if given != held:
            return op_error(op, f"region argument {number} is {given}, but input {number} holds {held}")
    for argument in arguments[-2:]:
        if not isinstance(argument.type, ir.IndexType):
            return op_error(op, f"region arguments for row and column are index, but one is {argument.type}")
    return True


def goes_to_shared(op) -> bool:
    """Whether an operation brings x from registers to shared memory, into one of its `buffers`."""
    if not (in_space(op, "x", op.x, "reg", rank=2) and in_space(op, "out", op.out, "smem", rank=2)):
        return False
    return op.buffers.value >= 1 or op_error(op, f"needs at least 1 buffer, but has {op.buffers.value}")


def nested_operations(region) -> list:
    """All operations in a region, nested ones included, in order."""
    return [op for block in region.blocks for op in nested_in(block)]


def nested_in(block) -> list:
    """The same of one block."""
    found = []
    for op in block.operations:
        found.append(op)
        for region in op.operation.regions:
            found += nested_operations(region)
    return found


def no_stray_attributes(operations: list) -> bool:
    """Upstream operations let any attribute pass; a misspelled one would be dropped silently further down."""
    for op in operations:
        stray = stray_attribute(op)
        if stray is not None:
            return op_error(op, f"has no attribute '{stray[0]}'", fix=stray[1])
    return True


def schedules_stand_in_loops(operations: list) -> bool:
    """Elsewhere operations run once, in text order, and a schedule would be dropped silently."""
    for op in operations:
        if isinstance(op, Scheduled) and op.operation.parent.name != "scf.for":
            for name in ("stage", "order", "after"):
                if name in op.attributes:
                    return op_error(
                        op,
                        f"has {name} = {getattr(op.attributes[name], 'value', op.attributes[name])}, but stands in no loop",
                        why="it would place it in a loop's steps",
                        fix=f"remove {name}",
                    )
    return True


def in_space(op, name, value, *spaces, rank=None) -> bool:
    space = space_of(value.type)
    if space not in spaces:
        return op_error(op, f"needs {name} in {' or '.join('#tile.' + s for s in spaces)}, but it is {value.type}")
    rank = 2 if space == "tmem" else rank
    if rank is not None and value.type.rank != rank:
        return op_error(op, f"needs {name} of rank {rank}, but it is {value.type}")
    if space == "gmem":
        return True
    if not value.type.has_static_shape or value.type.rank not in (1, 2):
        return op_error(op, f"needs {name} of fixed size, with rows or rows and columns, but it is {value.type}")
    if space == "tmem" and column_of(value.type) < -1:
        return op_error(op, f"needs {name} at a column of tensor memory, 0 or more (-1: not placed yet), but it is {value.type}")
    return True


def axis_in_range(op, name, axis, rank) -> bool:
    return 0 <= axis < rank or op_error(op, f"has {name} = {axis}, but the tensor has dimensions 0 to {rank - 1}")


def check_coords(op, whole) -> bool:
    return len(op.coords) == whole.rank or op_error(
        op, f"needs {whole.rank} coordinates, but has {len(op.coords)}", why=f"the tensor is {whole}"
    )


def check_element(op, whole, tile) -> bool:
    return tile.element_type == whole.element_type or op_error(
        op, f"moves {tile.element_type} out of or into a tensor of {whole.element_type}", why="copies do not convert"
    )


def check_box(op, whole, tile) -> bool:
    """`op.coords` and `op.dims` place `tile` in `whole`."""
    if not check_coords(op, whole):
        return False
    dims = list(op.dims)
    if len(dims) != tile.rank:
        return op_error(
            op, f"has dims = {dims}, but the tile has rank {tile.rank}", why="dims names one dimension of the tensor for each of the tile"
        )
    for axis in dims:
        if not axis_in_range(op, "a dim", axis, whole.rank):
            return False
    if len(dims) == 2 and dims[1] != whole.rank - 1:
        return op_error(
            op, f"has dims = {dims}, but columns must run along dimension {whole.rank - 1}", why="only the last dimension is contiguous"
        )
    if dims != sorted(set(dims)):
        return op_error(op, f"has dims = {dims}, which are not ascending")
    return check_element(op, whole, tile)


def shape_text(shape) -> str:
    return "x".join(map(str, shape))
