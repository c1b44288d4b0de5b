"""`fa4c check`: all static checks on a file of any level, or on an artifact. Nothing is built or run.

A file of the warp level is checked as it stands; one above it is also lowered for a target, so that what `fa4c compile` would refuse is
refused here, without the seconds of making PTX.
"""

from __future__ import annotations

import argparse

from ..ir.diagnostics import Diagnostic, UsageError
from .compile import target_named
from .files import display_name, is_artifact, read_text

EXAMPLES = """examples:
  fa4c check examples/causal.mlir
  fa4c check examples/causal.mlir --target sm_100a
  fa4c compile examples/causal.mlir --emit warp | fa4c check -
  fa4c check causal.fa4c                        hashes of all members, and the manifest's schema
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a .mlir file of any level, - for standard input, or a .fa4c artifact")
    parser.add_argument("--target", metavar="T", help="whether it compiles for this one; see `fa4c targets` (default: what the file says, "
                        "else sm_90a)")


def needs_mlir(args: argparse.Namespace) -> bool:
    return not is_artifact(args.file)


def run(args: argparse.Namespace) -> None:
    if args.target is not None:
        target_named(args.target)
    if not is_artifact(args.file):
        done = _check_module(args.file, args.target)
    elif args.target is None:
        done = _check_artifact(args.file)
    else:
        raise UsageError("--target does not apply to an artifact", why="it is compiled already", fix="leave it out")
    print(f"{display_name(args.file)}: ok: {done}")


def _check_artifact(path: str) -> str:
    from ..runtime import artifact

    loaded = artifact.load(path)
    return f"artifact '{loaded.manifest['name']}' for {loaded.manifest['target']}, {len(loaded.members)} members, hashes and manifest right"


def _check_module(path: str, target: str | None) -> str:
    from ..ir.context import parse_module
    from ..ir.mlir import ir
    from ..lowering import cute_source
    from ..lowering.compile import lowered
    from ..passes.registry import run_pipeline, verify

    text = read_text(path)
    module = parse_module(text, display_name(path), ir.Context.current)
    if not len(module.body.operations):
        raise Diagnostic("the file holds no function and no kernel", where=module.operation.location, why="there is nothing to check",
                         fix="see examples/causal.mlir")
    verify(module)
    found = levels(module)
    if not found:
        return "no attn function and no kernel; verified as plain MLIR"
    if "warp" in found:
        run_pipeline(module, "warp-check")
    with lowered(text, display_name(path), target=target) as result:
        cute_source.emit(result.module)
        return f"{' and '.join(found)} level, verified, and lowered for {result.target}"


def levels(module) -> list[str]:
    """The levels of a module's functions and kernels, highest first. Kernels of the warp level hold operations of the tile level too."""
    from ..ir.attn_signature import is_attn_function

    names = {"attn" if is_attn_function(op) else op.operation.name for op in module.body.operations}
    return [level for level, name in (("attn", "attn"), ("tile", "tile.kernel"), ("warp", "warp.kernel")) if name in names]
