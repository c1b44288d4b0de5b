"""Operations of the `tile` dialect on the host: which kernels run, on what grid, with which tensors."""

from collections.abc import Sequence
from typing import Any

from .base import IDENTIFIER, optional
from .diagnostics import nearest, op_error
from .mlir import ext, ir
from .tile_base import Operation, axis_in_range, in_space, nested_operations, no_stray_attributes, space_of


class HostOp(Operation, name="host", traits=[ir.NoTerminatorTrait, ir.IsIsolatedFromAboveTrait]):
    """Runs on the host: computes grids from sizes and launches kernels. `tensors` names the region's arguments.

    Each entry: {name, role = "input"|"output"|"workspace", dims = ["b", "m", "hq", "d"], optional}; `dims` name the problem sizes in
    memory order. A workspace may say what it starts with (init = "none"|"zero"; an output may start with "zero", so that kernels can
    add to it, or leave it at that), how long it lives (lifetime = "call"|"cached"), and that its rows are allocated in multiples of `pad`
    elements: TMA wants strides of 16 bytes, and what lies beyond the problem's size is not seen. `semantics` is the variant's expression
    tree as JSON text (design.md section 5), absent for programs that are not attention.

    An `scf.if` around launches chooses between kernels by the problem's sizes. Both of its branches launch something, or what one of them
    launches is given no output, and no workspace that does not hold something before, by a launch or by `init`.
    """

    sym_name: ir.StringAttr
    tensors: ir.ArrayAttr
    semantics: Any = optional(ir.StringAttr)
    body: ext.Region

    def verify_op(self) -> bool:
        arguments = self.body.blocks[0].arguments
        if len(arguments) != len(self.tensors):
            return op_error(
                self,
                f"names {len(self.tensors)} tensors, but its region has {len(arguments)} arguments",
                why="'tensors' describes the arguments one by one",
                fix="add or remove an entry",
            )
        for number, (argument, entry) in enumerate(zip(arguments, self.tensors, strict=True)):
            problem = _tensor_entry_problem(argument.type, entry)
            if problem:
                return op_error(
                    self,
                    f"describes tensor {number} wrongly: {problem}",
                    fix='write {name = "q", role = "input", dims = ["b", "m", "hq", "d"]}',
                )
        names = [entry["name"].value for entry in self.tensors]
        twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
        if twice is not None:
            return op_error(self, f"describes two tensors of the name '{twice}'", why="callers pass tensors by name")
        operations = nested_operations(self.body)
        if not any(op.operation.name == "tile.launch" for op in operations):
            return op_error(self, "launches no kernel", why="nothing would write its outputs", fix='add a "tile.launch"')
        roles = {argument: entry["role"].value for argument, entry in zip(arguments, self.tensors, strict=True)}
        written = {argument for argument, entry in zip(arguments, self.tensors, strict=True) if _holds_something(entry)}
        for op in self.body.blocks[0].operations:
            if not _is_whole_choice(op, roles, written):
                return False
            written.update(value for value in _given_to_launches(op) if value in roles)
        return no_stray_attributes(operations)


def _holds_something(entry) -> bool:
    """Whether a tensor does so before anything is launched."""
    return entry["role"].value == "input" or ("init" in entry and entry["init"].value == "zero")


def _given_to_launches(op) -> list:
    """The tensors of launches in an operation, itself one of them or not; launches are verified after this."""
    operations = [op, *(inner for region in op.operation.regions for inner in nested_operations(region))]
    given = [value for inner in operations if inner.operation.name == "tile.launch" for value in inner.operation.operands]
    return [value for value in given if not isinstance(value.type, ir.IndexType)]


def _is_whole_choice(op, roles: dict, written: set) -> bool:
    """Whichever way control flow of the host goes, what kernels write is written; a launcher knows no loops. `written`: tensors that hold
    something before it."""
    launching = [any(inner.operation.name == "tile.launch" for inner in nested_operations(region)) for region in op.operation.regions]
    if not any(launching):
        return True
    if op.operation.name != "scf.if":
        return op_error(op, "launches kernels", why="a launcher runs each step once", fix="choose between launches by scf.if")
    if not all(launching) and any(roles.get(value) == "output" or value not in written for value in _given_to_launches(op)):
        return op_error(
            op,
            "launches a kernel in one of its branches only",
            why="for the sizes that take the other branch nothing would write the outputs",
            fix='put a "tile.launch" into both branches, or remove the scf.if',
        )
    inside = [inner for region in op.operation.regions for block in region.blocks for inner in block.operations]
    return all(_is_whole_choice(inner, roles, written) for inner in inside)


def _tensor_entry_problem(kind, entry) -> str:
    if not isinstance(entry, ir.DictAttr):
        return "the entry is no dictionary"
    unknown = {a.name for a in entry} - {"name", "role", "dims", "optional", "axes", "init", "lifetime", "pad"}
    if unknown:
        return f"unknown key '{sorted(unknown)[0]}'"
    for key in ("name", "role", "dims"):
        if key not in entry:
            return f"key '{key}' is missing"
    if not isinstance(entry["name"], ir.StringAttr) or not IDENTIFIER.fullmatch(entry["name"].value):
        return f"name {entry['name']} is no identifier"
    if str(entry["role"]).strip('"') not in ("input", "output", "workspace"):
        return f"role {entry['role']} is none of input, output, workspace"
    if space_of(kind) != "gmem":
        return f"its type {kind} is no tensor in #tile.gmem"
    dims = entry["dims"]
    if not isinstance(dims, ir.ArrayAttr) or not all(isinstance(dim, ir.StringAttr) and IDENTIFIER.fullmatch(dim.value) for dim in dims):
        return f"dims {dims} is no list of identifiers"
    if len(dims) != kind.rank:
        return f"dims has {len(entry['dims'])} names for a tensor of rank {kind.rank}"
    return _workspace_problem(kind, entry)


_WORKSPACE_CHOICES = {"init": ("none", "zero"), "lifetime": ("call", "cached")}


def _workspace_problem(kind, entry) -> str:
    role = entry["role"].value
    for key, choices in _WORKSPACE_CHOICES.items():
        if key in entry and str(entry[key]).strip('"') not in choices:
            return f"{key} {entry[key]} is none of {', '.join(choices)}"
    for key in ("lifetime", "pad"):
        if key in entry and role != "workspace":
            return f"it has {key}, but is an {role}, which the caller allocates"
    if "init" in entry and (role == "input" or (role == "output" and entry["init"].value == "none")):
        return f"it has init = {entry['init']}, but is an {role}" + (", which starts with anything as it is" if role == "output" else "")
    if "pad" in entry and (not isinstance(entry["pad"], ir.IntegerAttr) or entry["pad"].value < 1):
        return f"pad {entry['pad']} is no positive number of elements"
    if role == "workspace" and not kind.rank:
        return "a workspace has at least one dimension"
    dims = [dim.value for dim in entry["dims"]]
    outside = [axis.value for axis in entry["axes"] if axis.value not in dims] if "axes" in entry and role == "workspace" else []
    return f"its axis '{outside[0]}' is none of its dims" if outside else ""


class DimOp(Operation, name="dim", traits=[ext.Pure]):
    """out = the size of dimension `axis` of a tensor in global memory."""

    tensor: ext.Operand[Any]
    axis: ir.IntegerAttr
    out: ext.Result[ir.IndexType]

    def verify_op(self) -> bool:
        return in_space(self, "tensor", self.tensor, "gmem") and axis_in_range(self, "axis", self.axis.value, self.tensor.type.rank)


class DeviceOp(Operation, name="device", traits=[ext.Pure]):
    """out = a property of the device, known on the host: `num_sms` or `l2_bytes` (bytes)."""

    prop: ir.StringAttr
    out: ext.Result[ir.IndexType]

    def verify_op(self) -> bool:
        return self.prop.value in ("num_sms", "l2_bytes") or op_error(
            self, f"has prop = {self.prop}, which is no device property", why='known are "num_sms" and "l2_bytes"'
        )


class Pow2FloorOp(Operation, name="pow2_floor", traits=[ext.Pure]):
    """out = the largest power of two that is at most x; 1 for x < 1. On the host only."""

    x: ext.Operand[ir.IndexType]
    out: ext.Result[ir.IndexType]


class LaunchOp(Operation, name="launch"):
    """Launch `kernel` on a grid of CTAs, with tensors and scalars as its arguments, in that order."""

    kernel: ir.FlatSymbolRefAttr
    grid: Sequence[ext.Operand[Any]]
    tensors: Sequence[ext.Operand[Any]]
    scalars: Sequence[ext.Operand[Any]]

    def verify_op(self) -> bool:
        if len(self.grid) != 3:
            return op_error(self, f"needs 3 grid sizes, but has {len(self.grid)}", fix="use a constant 1 for unused ones")
        for number, value in enumerate([*self.grid, *self.scalars]):
            if not isinstance(value.type, ir.IndexType):
                return op_error(self, f"takes sizes of type index, but grid or scalar {number} is {value.type}")
        return all(in_space(self, f"tensor {n}", value, "gmem") for n, value in enumerate(self.tensors)) and self._fits_its_kernel()

    def _fits_its_kernel(self) -> bool:
        module = self.operation.parent and self.operation.parent.operation
        while module is not None and module.name != "builtin.module":
            module = module.parent and module.parent.operation
        if module is None:
            return True  # under construction
        kernels = [op for op in module.regions[0].blocks[0].operations if op.operation.name in ("tile.kernel", "warp.kernel")]
        if not all("sym_name" in op.attributes and len(op.operation.regions) == 1 and len(op.body.blocks) == 1 for op in kernels):
            return True  # those are verified after this, and say it themselves
        kernels = {op.sym_name.value: op for op in kernels}
        name = self.kernel.value
        if name not in kernels:
            return op_error(
                self, f"launches @{name}, but the module has no such kernel", fix=nearest(name, kernels) or "add a 'tile.kernel'"
            )
        takes = ", ".join(str(argument.type) for argument in kernels[name].body.blocks[0].arguments)
        given = ", ".join(str(value.type) for value in [*self.tensors, *self.scalars])
        return takes == given or op_error(
            self, f"passes ({given}), but @{name} takes ({takes})", why="a kernel's arguments are the launch's tensors, then its scalars"
        )
