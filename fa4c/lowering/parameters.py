"""The parameters of a kernel, in order: as Python annotations, as fake arguments for compiling, as entries of the manifest.

ABI (the project's sheet "CuTe DSL as a code generator's target", section 4): a TMA descriptor is one 128-byte `GridConstant[TensorMap]`,
an address an `Int64`, sizes `Int32`, strides `Int64` in elements. What the kernel does not use it does not take.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir import tile, warp
from ..ir.diagnostics import Diagnostic, op_diagnostic
from ..ir.mlir import ir
from ..ir.tile_base import nested_operations
from .index_expr import index_expression
from .scalar_source import MANIFEST_DTYPES, dsl_type
from .source_text import Lines


@dataclass(frozen=True)
class Launch:
    """One launch of the host function: `op`, a tile.launch of `host`, and the warp.kernel that it names.

    `when`: (an i1 of the host, what it must be) for each branch that the launch stands in.
    """

    host: object
    op: object
    kernel: object
    when: tuple = ()

    @property
    def name(self) -> str:
        """The kernel's."""
        return self.kernel.sym_name.value


@dataclass
class Parameter:
    """Of an emitted kernel: how its text declares it, and its entry in the manifest, which says where the runtime takes it from."""

    key: tuple  # what the emitter looks it up by
    name: str
    annotation: str
    comment: str
    manifest: dict
    aliases: list = field(default_factory=list)  # other keys that mean the same number


def launches(module: ir.Module) -> list[Launch]:
    """What the module's tile.host launches, in order. Raises Diagnostic where host, launches and warp.kernels do not fit together."""
    hosts = [op for op in module.body.operations if isinstance(op, tile.HostOp)]
    kernels = {op.sym_name.value: op for op in module.body.operations if isinstance(op, warp.KernelOp)}
    if len(hosts) != 1 or not kernels:
        raise Diagnostic(
            f"the module has {len(hosts)} tile.host and {len(kernels)} warp.kernel operations",
            where=module.operation.location,
            why="one host function launches the kernels of an artifact",
            fix="bring every tile.kernel to the warp level first: warp-specialize",
        )
    found = {}
    for op, when in _launch_ops(hosts[0].body.blocks[0]):
        found[op.kernel.value] = _launch(hosts[0], op, kernels, found, when)
    for name, kernel in kernels.items():
        if name not in found:
            raise op_diagnostic(kernel, "is never launched", why="an artifact holds what its host runs", fix="launch or remove it")
    return list(found.values())


def _launch_ops(block, when=()):
    """(launch, its conditions), in order."""
    for op in block.operations:
        if isinstance(op, tile.LaunchOp):
            yield op, when
        elif op.operation.name == "scf.if":
            for region, holds in zip(op.operation.regions, (True, False)):
                for inner in region.blocks:
                    yield from _launch_ops(inner, (*when, (op.operation.operands[0], holds)))


def _launch(host, op, kernels, before, when) -> Launch:
    name = op.kernel.value
    if name not in kernels:
        raise op_diagnostic(op, f"launches @{name}, but no warp.kernel is called so", why=f"there are @{', @'.join(kernels)}")
    if name in before:
        raise op_diagnostic(
            op, f"launches @{name} a second time", why="a kernel of an artifact has one grid and one list of arguments", fix="copy the kernel"
        )
    given = [v.type for v in [*op.tensors, *op.scalars]]
    taken = [a.type for a in kernels[name].body.blocks[0].arguments]
    if given != taken:
        raise op_diagnostic(
            op,
            f"passes {len(given)} arguments of other types than the {len(taken)} that @{name} takes",
            why="tensors come first, then scalars, types equal",
        )
    return Launch(host, op, kernels[name], when)


def entries_of(launch: Launch) -> dict:
    """kernel argument -> the entry (name, role, dims, ...) of the host's tensor that is passed for it."""
    described = dict(zip(launch.host.body.blocks[0].arguments, tensor_entries(launch.host), strict=True))
    return {argument: described[value] for argument, value in zip(launch.kernel.body.blocks[0].arguments, launch.op.tensors, strict=False)}


def tensor_entries(host) -> list[dict]:
    """The entries of `tensors` as Python dictionaries."""
    return [_plain(entry) for entry in host.tensors]


def _plain(attribute):
    if isinstance(attribute, ir.DictAttr):
        return {entry.name: _plain(entry.attr) for entry in attribute}
    if isinstance(attribute, ir.ArrayAttr):
        return [_plain(entry) for entry in attribute]
    return attribute.value


def of_kernel(launch: Launch) -> list[Parameter]:
    """Descriptors, addresses, strides, sizes, launch scalars: those in use."""
    entries, kernel = entries_of(launch), launch.kernel
    descriptors, pointers, strides, sizes = [], [], [], {}
    for op in nested_operations(kernel.body):
        if isinstance(op, warp.TensorMapOp):
            descriptors.append(_descriptor(op, entries[op.tensor]))
        elif isinstance(op, tile.DimOp):
            _add_size(sizes, op.tensor, op.axis.value, entries)
        elif isinstance(op, warp.WalkOp) and op.queue is not None:
            pointers.append(_pointer(op.queue, entries[op.queue]))
        elif isinstance(op, (warp.WaitCountOp, warp.AddCountOp)):
            pointers.append(_pointer(op.counter, entries[op.counter]))
            strides += [_stride(op.counter, axis, entries[op.counter]) for axis in range(op.counter.type.rank - 1)]
        elif isinstance(op, (tile.LoadElementOp, warp.StoreRowsOp, warp.GlobalAddOp)):
            tensor = op.source if isinstance(op, tile.LoadElementOp) else op.target
            axes = range(tensor.type.rank)[-1:] if isinstance(op, warp.StoreRowsOp) else range(tensor.type.rank)
            if isinstance(op, warp.GlobalAddOp) and len(op.dims):
                axes = list(op.dims)
            for axis in axes:
                _add_size(sizes, tensor, axis, entries)
            pointers.append(_pointer(tensor, entries[tensor]))
            strided = tensor.type.rank - (isinstance(op, warp.GlobalAddOp) and len(op.dims) > 0)  # its columns are neighbours
            strides += [_stride(tensor, axis, entries[tensor]) for axis in range(strided)]
    arguments = list(kernel.body.blocks[0].arguments)[len(launch.op.tensors) :]
    scalars = [
        Parameter(
            ("scalar", a),
            f"arg{n}",
            "Int32",
            "computed on the host",
            {"kind": "scalar", "dtype": "i32", "value": index_expression(v, launch.host)},
        )
        for n, (a, v) in enumerate(zip(arguments, launch.op.scalars, strict=True))
    ]
    merged: dict[tuple, Parameter] = {}
    for p in [*descriptors, *pointers, *strides]:
        merged.setdefault(p.key, p)
    return [*merged.values(), *sizes.values(), *scalars]


def lookup(parameters: list[Parameter]) -> dict:
    """key -> name, for all keys of each parameter."""
    table = {}
    for p in parameters:
        for key in (p.key, *p.aliases):
            table[key] = p.name
    return table


def _add_size(sizes, tensor, axis, entries) -> None:
    if not tensor.type.is_dynamic_dim(axis):
        return
    symbol, key = entries[tensor]["dims"][axis], ("dim", tensor, axis)
    if symbol in sizes:
        sizes[symbol].aliases.append(key)
    else:
        sizes[symbol] = Parameter(key, symbol, "Int32", "size", {"kind": "scalar", "dtype": "i32", "value": symbol})


def _descriptor(op, entry) -> Parameter:
    _check_row_bytes(op, entry)
    box = [size for size in op.box]
    dims = list(reversed(entry["dims"]))
    manifest = {
        "kind": "tensor_map",
        "tensor": entry["name"],
        "dtype": MANIFEST_DTYPES[str(op.tensor.type.element_type)],
        "dims": [{"dim": d} for d in dims],
        "box": box[::-1],
        "swizzle": op.swizzle.value,
    }
    return Parameter(
        ("tensor_map", op.out),
        f"desc_{entry['name']}",
        "cutlass.GridConstant[cuda.TensorMap]",
        f"{entry['name']} ({', '.join(dims)}), boxes of {tuple(box[::-1])}, swizzle {op.swizzle.value} bytes",
        manifest,
    )


def _check_row_bytes(op, entry) -> None:
    """The rows of a workspace are as long as the host says; those of inputs and outputs are the caller's, and looked at in each call."""
    kind = op.tensor.type
    row = entry.get("pad", 1) if kind.is_dynamic_dim(kind.rank - 1) else -(-kind.shape[-1] // entry.get("pad", 1)) * entry.get("pad", 1)
    row_bytes = row * warp.bits_of(kind.element_type) // 8
    if entry["role"] == "workspace" and kind.rank > 1 and row_bytes % 16:
        step = 128 // warp.bits_of(kind.element_type)
        raise op_diagnostic(
            op,
            f"moves boxes of the workspace '{entry['name']}', whose rows are multiples of {row_bytes} bytes",
            why="strides of a TMA descriptor are multiples of 16 bytes",
            fix=f"give its entry in tile.host pad = {step} : i64",
        )


def _pointer(tensor, entry) -> Parameter:
    return Parameter(
        ("pointer", tensor),
        f"ptr_{entry['name']}",
        "Int64",
        "address" + (", 0 if absent" if entry.get("optional") else ""),
        {"kind": "pointer", "tensor": entry["name"]},
    )


def _stride(tensor, axis, entry) -> Parameter:
    dim = entry["dims"][axis]
    return Parameter(
        ("stride", tensor, axis),
        f"stride_{entry['name']}_{dim}",
        "Int64",
        "elements",
        {"kind": "stride", "tensor": entry["name"], "dim": dim},
    )


def launch_registers(threads: int, registers: int = 65536) -> int:
    """Registers a thread has at launch when one CTA fills the SM: what setmaxnreg, which takes multiples of 8, starts from."""
    return min(248, registers // threads // 8 * 8)


def host_source(kernel, function: str, parameters: list[Parameter]) -> str:
    """The `host` function and `fake_args`, which make the file compile on its own, without a GPU."""
    out = Lines()
    maps = [p for p in parameters if p.manifest["kind"] == "tensor_map"]
    others = [p for p in parameters if p.manifest["kind"] != "tensor_map"]
    out("@cute.jit")
    out("def host(")
    for p in maps:
        out(f"    {p.name}: cute.Tensor,")
    for p in others:
        out(f"    {p.name}: {p.annotation},")
    out("    grid_x: Int32, grid_y: Int32, grid_z: Int32, stream: cudadrv.CUstream,")
    out("):")
    out.indent = 1
    for p in maps:
        box, rank = p.manifest["box"][::-1], len(p.manifest["box"])
        swizzle = f"s{p.manifest['swizzle']}b" if p.manifest["swizzle"] else "none"
        out(
            f"{p.name} = cuda.create_tensor_map_tiled_from_view({p.name}, box_dims={tuple(box)}, swizzle=cuda.TensorMapSwizzle.{swizzle}, "
            f"stride_order={tuple(range(rank))[::-1]})"
        )
    out(f'{function}.set_name_prefix("{kernel.sym_name.value}", keep_mangled_name=False, remove_cutlass_symbol=True)')
    cluster = f"cluster=({kernel.cluster.value}, 1, 1), " if kernel.cluster.value > 1 else ""
    out(f"{function}({', '.join(p.name for p in parameters)}).launch(")
    out(
        f"    grid=(grid_x, grid_y, grid_z), block=({kernel.threads.value}, 1, 1), {cluster}smem={kernel.smem_bytes.value}, stream=stream, min_blocks_per_mp=1)"
    )
    out.indent = 0
    out()
    out()
    out("def fake_args(make_fake_compact_tensor, make_fake_stream):")
    out.indent = 1
    out('"""Arguments of `host` with symbolic shapes, for cute.compile on a machine without a GPU."""')
    out("def tensor(dtype, rank):")
    out(
        "    return make_fake_compact_tensor(dtype, tuple(cute.sym_int(divisibility=8) for _ in range(rank)), stride_order=tuple(range(rank))[::-1], assumed_align=16)"
    )
    out()
    out("return (")
    types = {"bf16": "BFloat16", "fp16": "Float16", "f32": "Float32"}
    for p in maps:
        out(f"    tensor({types[p.manifest['dtype']]}, {len(p.manifest['box'])}),")
    for p in others:
        out(f"    {p.annotation}(1),")
    out("    Int32(1), Int32(1), Int32(1), make_fake_stream(),")
    out(")")
    return out.text()


__all__ = [
    "Launch",
    "Parameter",
    "dsl_type",
    "entries_of",
    "host_source",
    "launch_registers",
    "launches",
    "lookup",
    "of_kernel",
    "tensor_entries",
]
