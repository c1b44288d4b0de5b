"""The manifest of an artifact, from a module at the warp level and what was compiled from it. Schema: docs/architecture.md."""

from __future__ import annotations

import json
import math
import re

from .. import __version__
from ..ir.diagnostics import op_diagnostic
from . import parameters
from .cubin import resources
from .index_expr import index_expression
from .scalar_source import MANIFEST_DTYPES

SCHEMA = 1
_MIN_DRIVER = {"8.8": "575", "9.0": "580"}  # first driver branch that reads a PTX version (CUDA 12.9, 13.0)


def make(module, binaries: dict, *, target: str, direction: str) -> dict:
    """The manifest, without `members` hashes (the writer adds them); `binaries`: kernel name -> Binary. Raises Diagnostic where the host
    function says what no launcher can do.
    """
    launches = parameters.launches(module)
    host = launches[0].host
    first = binaries[launches[0].name]
    entries = list(zip(parameters.tensor_entries(host), host.body.blocks[0].arguments, strict=True))
    tensors = [_tensor(entry, argument.type) for entry, argument in entries if entry["role"] != "workspace"]
    known = {dim for t in tensors for dim in t["layout"]}
    workspaces = [_workspace(host, known, entry, argument.type) for entry, argument in entries if entry["role"] == "workspace"]
    version = re.search(r"^\.version\s+(\S+)", first.ptx, re.MULTILINE)[1]
    return {
        "schema": SCHEMA,
        "name": host.sym_name.value,
        "fa4c": __version__,
        "dsl": first.dsl_version,
        "target": target,
        "ptx_version": version,
        "min_driver": _MIN_DRIVER.get(version, "580"),
        "direction": direction,
        "dtype": _dtype(tensors),
        "head_dims": _head_dims(tensors),
        "members": {},
        "semantics": json.loads(host.semantics.value) if host.semantics is not None else {},
        "tensors": tensors,
        "workspaces": workspaces,
        "steps": [*_fills(entries), *(_step(launch) for launch in launches)],
        "kernels": {launch.name: _kernel(launch, binaries[launch.name], stem(launches, launch)) for launch in launches},
    }


def _fills(entries) -> list[dict]:
    """Outputs that kernels add to, or that are 0 altogether; workspaces say themselves that they start at 0."""
    zero = [entry["name"] for entry, _ in entries if entry["role"] == "output" and entry.get("init") == "zero"]
    return [{"op": "fill", "buffer": name, "value": 0} for name in zero]


_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


def _step(launch) -> dict:
    """`when` is left out for a launch that stands in no branch."""
    step = {"op": "launch", "kernel": launch.name}
    terms = [_condition(index_expression(value, launch.host), holds) for value, holds in launch.when]
    return step | ({"when": terms[0] if len(terms) == 1 else ["and", *terms]} if terms else {})


def _condition(expression, holds: bool):
    if holds:
        return expression
    if isinstance(expression, list) and expression[0] in _OPPOSITE:
        return [_OPPOSITE[expression[0]], *expression[1:]]
    return ["not", expression]


def stem(launches, launch) -> str:
    """What the members of a launch's kernel are called, without the ending: the artifact's name if it is the only kernel."""
    return launch.host.sym_name.value if len(launches) == 1 else launch.name


def _kernel(launch, binary, stem: str) -> dict:
    entry, used = next(iter(resources(binary.cubin).items()))
    return {
        "entry": entry,
        "ptx": f"{stem}.ptx",
        "cubin": f"{stem}.cubin",
        "block": [launch.kernel.threads.value, 1, 1],
        "smem_bytes": launch.kernel.smem_bytes.value,
        "cluster": [launch.kernel.cluster.value, 1, 1],
        "pdl": False,
        "grid": [index_expression(v, launch.host) for v in launch.op.grid],
        "registers": used.registers,
        "stack_bytes": used.stack_bytes,
        "local_bytes": used.local_bytes,
        "params": [p.manifest for p in parameters.of_kernel(launch)],
    }


def _tensor(entry: dict, kind) -> dict:
    axes = entry.get("axes", [])
    layout = entry["dims"]
    dims = [d for d in layout if d not in axes]
    sizes = {d: None if kind.is_dynamic_dim(i) else kind.shape[i] for i, d in enumerate(layout)}
    return {
        "name": entry["name"],
        "role": entry["role"],
        "dtype": MANIFEST_DTYPES[str(kind.element_type)],
        "axes": axes,
        "dims": dims,
        "shape": [sizes[d] for d in dims],
        "layout": layout,
        "optional": bool(entry.get("optional", False)),
    }


def _workspace(host, known: set, entry: dict, kind) -> dict:
    """`size` in elements: the product of the sizes, the last one rounded up to a multiple of `pad`."""
    dims, pad = entry["dims"], entry.get("pad", 1)
    shape = [None if kind.is_dynamic_dim(axis) else kind.shape[axis] for axis in range(kind.rank)]
    for dim, size in zip(dims, shape, strict=True):
        if size is None and dim not in known:
            raise op_diagnostic(
                host,
                f"has the workspace '{entry['name']}' of unknown size",
                why=f"no input or output has a dimension '{dim}'",
                fix="give it a fixed size in the type, or name a dimension of an input",
            )
    return {
        "name": entry["name"],
        "dtype": MANIFEST_DTYPES[str(kind.element_type)],
        "axes": entry.get("axes", []),
        "dims": dims,
        "shape": shape,
        "pad": pad,
        "size": _product([dim if size is None else size for dim, size in zip(dims, shape, strict=True)], pad),
        "init": entry.get("init", "none"),
        "lifetime": entry.get("lifetime", "call"),
    }


def _product(sizes: list, pad: int):
    """The integer expression of a product, its last factor rounded up to a multiple of `pad`."""
    *outer, last = sizes
    if isinstance(last, int):
        last = -(-last // pad) * pad
    elif pad > 1:
        last = ["mul", ["ceildiv", last, pad], pad]
    factors = [size for size in [*outer, last] if not isinstance(size, int)]
    constant = math.prod(size for size in [*outer, last] if isinstance(size, int))
    if constant != 1 or not factors:
        factors.append(constant)
    return factors[0] if len(factors) == 1 else ["mul", *factors]


def _dtype(tensors) -> str:
    return next((t["dtype"] for t in tensors if t["dtype"] in ("bf16", "fp16")), tensors[0]["dtype"])


def _head_dims(tensors) -> dict:
    found = {}
    for t in tensors:
        for name, size in zip(t["dims"], t["shape"], strict=True):
            if name in ("d", "dv") and size is not None:
                found[name] = size
    return found
