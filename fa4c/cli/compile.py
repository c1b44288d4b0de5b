"""`fa4c compile`: from a file of any level to a kernel artifact, or to the text of a level on the way."""

from __future__ import annotations

import argparse
import os
import sys

from ..ir.diagnostics import Diagnostic, UsageError
from ..runtime.sizes import LARGEST
from . import pass_flags
from .files import STDIN, check_writable, display_name, progress, read_text, write_whole

EMIT = ("attn", "tile", "warp", "cute", "ptx", "sass", "artifact")
DIRECTIONS = ("fwd", "bwd", "both")
DTYPES = ("bf16", "fp16")
GENERATIONS = ("fa2", "fa3", "fa4")  # keys of `passes.pipelines.GENERATIONS`, which a test compares

EXAMPLES = """examples:
  fa4c compile examples/causal.mlir                                   writes causal.fa4c here
  fa4c compile examples/causal.mlir -o c64.fa4c --dtype fp16 --head-dim 64
  fa4c compile examples/causal.mlir --direction both                  forward and backward in one artifact
  fa4c compile examples/causal.mlir --emit tile --no-loc              the IR after the tile passes, on stdout
  fa4c compile my_kernel.tile.mlir --emit cute -o my_kernel.cute.py   entered at the tile level
  fa4c compile examples/causal.mlir --set tile-pipeline.stages=3 --disable-pass tile-lpt-grid
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a .mlir file of the attn, tile or warp level, or - for standard input")
    parser.add_argument("-o", metavar="OUT", dest="output",
                        help="where to write (default: NAME.fa4c here for an artifact, stdout for text)")
    add_variant_flags(parser)
    parser.add_argument("--emit", choices=EMIT, default="artifact", help="stop there (default: artifact); sass needs the extra [sass]")
    pass_flags.add_pass_flags(parser, required=False)


def add_variant_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", metavar="T", help="see `fa4c targets` (default: what the file says, else sm_90a)")
    parser.add_argument("--direction", choices=DIRECTIONS, default="fwd", help="forward, backward or both (default: fwd)")
    parser.add_argument("--deterministic", action="store_true", help="in the backward, sums over CTAs in a fixed order")
    parser.add_argument("--generation", choices=GENERATIONS,
                        help="passes of a kernel like FlashAttention-2, -3 or -4, for its target (default: the best for the target)")
    parser.add_argument("--dtype", choices=DTYPES, help="re-type an attn-level file before the first pass")
    parser.add_argument("--head-dim", type=head_dim, metavar="D[,DV]", help="re-type an attn-level file before the first pass")


def head_dim(text: str) -> tuple[int, int]:
    """`128` or `192,128` as (d, dv)."""
    try:
        sizes = tuple(int(size) for size in text.split(","))
    except ValueError:
        sizes = ()
    if len(sizes) not in (1, 2) or min(sizes) <= 0 or max(sizes) > LARGEST:
        raise argparse.ArgumentTypeError(f"'{text}' is no head dim; write one positive number, or two: 192,128")
    return sizes[0], sizes[-1]


def run(args: argparse.Namespace) -> None:
    output = _output(args)
    if output is not None:
        check_writable(output)
    result = compile_file(args, args.emit)
    if args.emit == "artifact":
        from ..runtime import artifact

        artifact.write(output, *result)
        print(output)
    elif output is None:
        sys.stdout.write(result)
    else:
        write_whole(output, result)


def compile_file(args: argparse.Namespace, emit: str):
    """The text of a level, or (manifest, members) for `artifact`."""
    changes = check_flags(args)
    text = read_text(args.file)
    check_changes(args, changes, text, emit)
    from ..lowering.build_helper import usable_cpus
    from ..lowering.compile import compile_text

    timing = []
    progress(f"compiling {display_name(args.file)}")
    result = compile_text(
        text, display_name(args.file), target=args.target, direction=args.direction, deterministic=args.deterministic, dtype=args.dtype,
        head_dim=args.head_dim, pipeline=args.pass_pipeline, generation=args.generation,
        disabled=tuple(args.disable_pass), overrides=changes, emit=emit,
        locations=not args.no_loc, print_after=pass_flags.print_after(args), timing=timing, jobs=min(usable_cpus(), 2))
    if args.timing:
        pass_flags.show_timing(timing)
    return result


def check_flags(args: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Refuse unknown targets, passes and options before any work; the changes that `--set` asks for."""
    from ..passes.registry import check_overrides_occur, resolve

    if args.target is not None:
        target_named(args.target)
    if args.generation is not None and args.pass_pipeline is not None:
        raise UsageError("--generation and --pass-pipeline both say which passes run", fix="give one of them")
    changes = pass_flags.overrides(args)
    resolve("", disabled=args.disable_pass, overrides=changes)
    if args.pass_pipeline is not None:
        check_overrides_occur(changes, resolve(args.pass_pipeline), args.disable_pass)
    return changes


def check_changes(args: argparse.Namespace, changes, text: str, emit: str) -> None:
    """Refuse a `--set` for a pass that the standard pipeline does not run on this text, before any pass does."""
    from ..lowering.compile import passes_of
    from ..passes.registry import check_overrides_occur

    if changes and args.pass_pipeline is None:
        items = passes_of(text, display_name(args.file), target=args.target, direction=args.direction, deterministic=args.deterministic,
                          generation=args.generation, emit=emit)
        check_overrides_occur(changes, items, args.disable_pass)


def target_named(name: str):
    """The target that a command line compiles for: an unknown one is wrong usage, a planned one is refused with its reason."""
    from .. import targets

    return targets.get(target_described(name).name)


def target_described(name: str):
    from .. import targets

    try:
        return targets.describe(name)
    except Diagnostic as error:
        raise UsageError(error.what, why=error.why, fix=error.fix) from None


def _output(args: argparse.Namespace) -> str | None:
    if args.output is not None or args.emit != "artifact":
        return args.output
    if args.file == STDIN:
        raise UsageError("an artifact of standard input needs a name", fix="add -o NAME.fa4c")
    return os.path.basename(args.file).split(".")[0] + ("_bwd.fa4c" if args.direction == "bwd" else ".fa4c")
