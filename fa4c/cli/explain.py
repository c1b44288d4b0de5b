"""`fa4c explain`: the clocks that a kernel's IR implies for each unit, its storage and schedule, and what each pass changed."""

from __future__ import annotations

import argparse
import json
import sys

from ..ir.diagnostics import UsageError
from . import pass_flags
from .compile import add_variant_flags, check_flags, check_what_ran
from .files import check_writable, display_name, progress, read_text, write_whole

DEFAULT_SIZES = {"b": 1, "hq": 4, "hkv": 2, "m": 256, "n": 256}

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
                        help="also count what launches for this problem execute; not named: b=1,hq=4,hkv=2,m=256,n=256")
    parser.add_argument("--level", choices=("tile", "warp"), default="warp", help="explain the kernel as it is there (default: warp)")
    parser.add_argument("--json", action="store_true", help="as JSON; docs/explain.md has the keys")
    parser.add_argument("--html", metavar="OUT", help="write an HTML page")
    pass_flags.add_pass_flags(parser, required=False)


def run(args: argparse.Namespace) -> None:
    if args.direction == "both":
        raise UsageError("an explanation is of one direction", fix="choose --direction fwd or --direction bwd")
    sizes = _sizes(args.shape)
    if args.html is not None:
        check_writable(args.html)
    changes = check_flags(args)
    text = read_text(args.file)
    from ..explain import explain, show

    timing: list = []
    progress(f"explaining {display_name(args.file)}")
    found = explain(
        text, display_name(args.file), sizes=sizes, level=args.level, target=args.target, direction=args.direction,
        deterministic=args.deterministic, dtype=args.dtype, head_dim=args.head_dim, pipeline=args.pass_pipeline, generation=args.generation,
        disabled=tuple(args.disable_pass), overrides=changes, print_after=pass_flags.print_after(args),
        timing=timing)
    check_what_ran(args, changes, timing)
    if args.html is not None:
        write_whole(args.html, show.as_html(found))
    if args.json:
        print(json.dumps(found, indent=1))
    elif args.html is None:
        sys.stdout.write(show.as_text(found))


def _sizes(text: str | None) -> dict[str, int] | None:
    """`b=2,m=512` with `run`'s defaults for what it does not name; None where nothing was asked for."""
    if text is None:
        return None
    sizes, named = dict(DEFAULT_SIZES), set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value.isdigit():
            raise UsageError(f"--shape: {part!r} is no NAME=SIZE", fix="write for example b=2,hq=8,hkv=2,m=1000,n=1000")
        if name in named:
            raise UsageError(f"--shape: {name} is given twice", fix="name each size once")
        named.add(name)
        sizes[name] = int(value)
    if "hq" in named and "hkv" not in named:
        sizes["hkv"] = sizes["hq"]
    if not sizes["hkv"] or sizes["hq"] % sizes["hkv"]:
        raise UsageError(f"--shape: {sizes['hq']} query heads do not share {sizes['hkv']} key heads evenly",
                         fix="make hq a multiple of hkv")
    return sizes
