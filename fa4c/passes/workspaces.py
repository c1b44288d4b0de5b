"""More memory for the kernels of a host function: a workspace of the host, an argument of it and of a kernel."""

from __future__ import annotations

from ..ir.mlir import ir
from ..ir.tile import space_of


def host_of(launch):
    """The `tile.host` around a launch, which may stand in a branch."""
    operation = launch.operation
    while operation.name != "tile.host":
        operation = operation.parent
    return operation.opview if hasattr(operation, "opview") else operation


def add_workspace(host, base: str, dims: list[str], kind, *, init: str = "none", lifetime: str = "call"):
    """A workspace called `base`, or like it where that name is taken; returns the host's argument."""
    taken = {entry["name"].value for entry in host.tensors}
    name = next(n for n in (base, *(f"{base}_{k}" for k in range(2, len(taken) + 3))) if n not in taken)
    named = ", ".join(f'"{dim}"' for dim in dims)
    entry = f'{{name = "{name}", role = "workspace", dims = [{named}], init = "{init}", lifetime = "{lifetime}"}}'
    host.attributes["tensors"] = ir.ArrayAttr.get([*host.tensors, ir.Attribute.parse(entry)])
    return host.body.blocks[0].add_argument(kind, host.location)


def tensor_argument(kernel, kind):
    """A new argument behind a kernel's tensors; the scalars behind it are made anew, since arguments can only be added at the end."""
    block = kernel.body.blocks[0]
    scalars = [a for a in block.arguments if space_of(a.type) != "gmem"]
    first = len(block.arguments) - len(scalars)
    block.add_argument(kind, kernel.location)
    for scalar in scalars:
        scalar.replace_all_uses_with(block.add_argument(scalar.type, kernel.location))
    for _ in scalars:
        block.erase_argument(first)
    return block.arguments[first]


def entry_of(host, value) -> ir.DictAttr:
    """What the host says of one of its tensors."""
    return host.tensors[list(host.body.blocks[0].arguments).index(value)]
