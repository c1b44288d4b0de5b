"""The manifest of an artifact, from a module at the warp level and what was compiled from it. Schema: docs/architecture.md."""

from __future__ import annotations

import json
import re

from .. import __version__
from . import parameters
from .cubin import resources
from .index_expr import index_expression
from .scalar_source import MANIFEST_DTYPES

SCHEMA = 1
_MIN_DRIVER = {"8.8": "575", "9.0": "580"}  # first driver branch that reads a PTX version (CUDA 12.9, 13.0)


def make(module, binary, *, target: str, direction: str) -> dict:
    """The manifest, without `members` hashes (the writer adds them). Raises Diagnostic where the host function says what no launcher can
    do.
    """
    host, kernel = parameters.host_and_kernel(module)
    name, kernel_name = host.sym_name.value, kernel.sym_name.value
    entries = list(zip(parameters.tensor_entries(host), host.body.blocks[0].arguments, strict=True))
    tensors = [_tensor(entry, argument.type) for entry, argument in entries if entry["role"] != "workspace"]
    workspaces = [_workspace(entry, argument.type) for entry, argument in entries if entry["role"] == "workspace"]
    entry, used = next(iter(resources(binary.cubin).items()))
    launch = parameters.launch_of(host)
    version = re.search(r"^\.version\s+(\S+)", binary.ptx, re.MULTILINE)[1]
    return {
        "schema": SCHEMA,
        "name": name,
        "fa4c": __version__,
        "dsl": binary.dsl_version,
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
        "steps": [{"op": "launch", "kernel": kernel_name}],
        "kernels": {
            kernel_name: {
                "entry": entry,
                "ptx": f"{name}.ptx",
                "cubin": f"{name}.cubin",
                "block": [kernel.threads.value, 1, 1],
                "smem_bytes": kernel.smem_bytes.value,
                "cluster": [1, 1, 1],
                "pdl": False,
                "grid": [index_expression(v, host) for v in launch.grid],
                "registers": used.registers,
                "stack_bytes": used.stack_bytes,
                "local_bytes": used.local_bytes,
                "params": [p.manifest for p in parameters.of_kernel(host, kernel)],
            }
        },
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


def _workspace(entry: dict, kind) -> dict:
    """Sizes of workspaces are static so far."""
    size = 1
    for extent in kind.shape:
        size *= extent
    return {
        "name": entry["name"],
        "dtype": MANIFEST_DTYPES[str(kind.element_type)],
        "size": size,
        "init": entry.get("init", "none"),
        "lifetime": entry.get("lifetime", "call"),
    }


def _dtype(tensors) -> str:
    return next((t["dtype"] for t in tensors if t["dtype"] in ("bf16", "fp16")), tensors[0]["dtype"])


def _head_dims(tensors) -> dict:
    found = {}
    for t in tensors:
        for name, size in zip(t["dims"], t["shape"], strict=True):
            if name in ("d", "dv") and size is not None:
                found[name] = size
    return found
