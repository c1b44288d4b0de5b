"""`fa4c explain`: the clocks that a kernel's IR implies for each unit, its storage and schedule, and what each pass changed."""

from __future__ import annotations

import argparse
import json
import sys

from ..ir.diagnostics import UsageError
from . import pass_flags
from .compile import add_variant_flags, check_changes, check_flags
from .files import check_writable, display_name, progress, read_text, write_whole
from .sizes import sizes_of

EXAMPLES = """examples:
  fa4c explain examples/causal.mlir --target sm_100a
  fa4c explain examples/causal.mlir --target sm_100a --direction bwd --json
  fa4c explain examples/causal.mlir --shape b=2,hq=16,hkv=16,m=4096,n=4096      and what a launch executes
  fa4c explain examples/causal.mlir --generation fa2                            as FlashAttention-2 would, on sm_90a; then fa3, fa4
  fa4c explain examples/causal.mlir --set attn-to-tile.block-n=64 --html out.html
  fa4c explain my_kernel.tile.mlir --level tile                                 as it stands: no pass of the warp level
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a .mlir file of the attn, tile or warp level, or - for standard input")
    add_variant_flags(parser)
    parser.add_argument("--shape", metavar="NAME=SIZE,...",
                        help="also count what launches for this problem execute; what it does not name is as in `fa4c run`")
    parser.add_argument("--level", choices=("tile", "warp"), default="warp", help="explain the kernel as it is there (default: warp)")
    parser.add_argument("--json", action="store_true", help="as JSON; docs/explain.md has the keys")
    parser.add_argument("--html", metavar="OUT", help="write an HTML page")
    pass_flags.add_pass_flags(parser, required=False)


def run(args: argparse.Namespace) -> None:
    if args.direction == "both":
        raise UsageError("an explanation is of one direction", fix="choose --direction fwd or --direction bwd")
    sizes = None if args.shape is None else sizes_of(args.shape, None)
    if args.html is not None:
        check_writable(args.html)
    changes = check_flags(args)
    text = read_text(args.file)
    check_changes(args, changes, text, args.level)
    from ..explain import explain, show

    timing: list = []
    progress(f"explaining {display_name(args.file)}")
    found = explain(
        text, display_name(args.file), sizes=sizes, level=args.level, target=args.target, direction=args.direction,
        deterministic=args.deterministic, dtype=args.dtype, head_dim=args.head_dim, pipeline=args.pass_pipeline, generation=args.generation,
        disabled=tuple(args.disable_pass), overrides=changes, print_after=pass_flags.print_after(args),
        timing=timing)
    if args.timing:
        pass_flags.show_timing(timing)
    if args.html is not None:
        write_whole(args.html, show.as_html(found))
    if args.json:
        print(json.dumps(found, indent=1))
    elif args.html is None:
        sys.stdout.write(show.as_text(found))
