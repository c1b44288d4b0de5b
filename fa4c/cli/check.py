"""`fa4c check`: all static checks on a file of any level, or on an artifact. Nothing is compiled or run."""

from __future__ import annotations

import argparse

from ..ir.diagnostics import Diagnostic
from .files import display_name, is_artifact, read_module

EXAMPLES = """examples:
  fa4c check examples/causal.mlir
  fa4c compile examples/causal.mlir --emit warp | fa4c check -
  fa4c check causal.fa4c                        hashes of all members, and the manifest's schema
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a .mlir file of any level, - for standard input, or a .fa4c artifact")


def needs_mlir(args: argparse.Namespace) -> bool:
    return not is_artifact(args.file)


def run(args: argparse.Namespace) -> None:
    done = _check_artifact(args.file) if is_artifact(args.file) else _check_module(args.file)
    print(f"{display_name(args.file)}: ok: {done}")


def _check_artifact(path: str) -> str:
    from ..runtime import artifact

    loaded = artifact.load(path)
    return f"artifact '{loaded.manifest['name']}' for {loaded.manifest['target']}, {len(loaded.members)} members, hashes and manifest right"


def _check_module(path: str) -> str:
    from ..passes.registry import find_pass, run_pipeline, verify

    module = read_module(path)
    if not len(module.body.operations):
        raise Diagnostic("the file holds no function and no kernel", where=module.operation.location, why="there is nothing to check",
                         fix="see examples/causal.mlir")
    verify(module)
    found = levels(module)
    if "warp" in found and find_pass("warp-check") is not None:
        run_pipeline(module, "warp-check")
    return f"{' and '.join(found)} level, verified" if found else "no attn function and no kernel; verified as plain MLIR"


def levels(module) -> list[str]:
    """The levels of a module's functions and kernels, highest first. Kernels of the warp level hold operations of the tile level too."""
    from ..ir.attn_signature import is_attn_function

    names = {"attn" if is_attn_function(op) else op.operation.name for op in module.body.operations}
    return [level for level, name in (("attn", "attn"), ("tile", "tile.kernel"), ("warp", "warp.kernel")) if name in names]
