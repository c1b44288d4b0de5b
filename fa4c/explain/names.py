"""Names of operations and buffers; of what copies move, with that of the host's tensor: `k for s` is K as the product S reads it."""

from __future__ import annotations

from ..ir import tile
from ..ir.mlir import ir
from ..ir.value_names import name_of
from ..passes._tile_map import operations_in


def tensors_of(module) -> dict[str, list[str]]:
    """{kernel: the names of its tensor arguments, in order}, of those that a host launches. Kernels themselves only number them."""
    found = {}
    for host in module.body.operations:
        if isinstance(host, tile.HostOp):
            names = {value: entry["name"].value for value, entry in zip(host.body.blocks[0].arguments, host.tensors, strict=True)}
            launches = [op for op in operations_in(host) if isinstance(op, tile.LaunchOp)]
            found |= {op.kernel.value: [names[value] for value in op.tensors] for op in launches}
    return found


def op_name(op) -> str:
    """The source name of its result or, of a store, of what it writes."""
    results = list(op.operation.results)
    values = results or list(op.operation.operands)[:1]
    return next((name for name in map(name_of, values) if name), op.operation.name)


def of_operation(op, tensors: list[str]) -> str:
    """The same of an operation of the tile level; a load is called after its reader, and so by its tensor, too."""
    return _moved([op.source], tensors, op_name(op)) if isinstance(op, tile.LoadOp) else op_name(op)


def of_buffer(op, tensors: list[str]) -> str:
    """Of a `warp.buffer`. Copies name it together with the descriptor of a tensor."""
    operands = [value for use in op.out.uses for value in use.owner.operands] if tensors else []
    maps = [value.owner.opview for value in operands if not isinstance(value.owner, ir.Block) and value.owner.name == "warp.tensor_map"]
    return _moved([op.tensor for op in maps], tensors, name_of(op.out) or "") or "out"


def _moved(arguments, tensors: list[str], own: str) -> str:
    moved = "/".join(dict.fromkeys(tensors[argument.arg_number] for argument in arguments if argument.arg_number < len(tensors)))
    return f"{moved} for {own}" if moved and own and moved != own else moved or own
