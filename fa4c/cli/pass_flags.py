"""The flags that `opt` and `compile` share, about which passes run and what is shown of them."""

from __future__ import annotations

import argparse
import sys

from ..ir.diagnostics import UsageError


def add_pass_flags(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--pass-pipeline", required=required, metavar="STR", help="passes in order: 'attn-to-tile{block-m=64},cse'")
    parser.add_argument("--disable-pass", action="append", default=[], metavar="NAME", help="leave this pass out; may be repeated")
    parser.add_argument("--set", action="append", default=[], metavar="PASS.OPTION=VALUE", dest="overrides",
                        help="change an option at every occurrence of a pass; may be repeated")
    parser.add_argument("--print-ir-after-all", action="store_true", help="show what each pass changed, on stderr")
    parser.add_argument("--timing", action="store_true", help="show each pass's time, on stderr")
    parser.add_argument("--no-loc", action="store_true", help="print IR without locations")


def overrides(args: argparse.Namespace) -> list[tuple[str, str, str]]:
    """`--set tile-pipeline.stages=3` as (pass, option, value)."""
    found = []
    for text in args.overrides:
        target, equals, value = text.partition("=")
        name, dot, option = target.partition(".")
        if not (equals and dot and name and option):
            raise UsageError(f"--set {text}: not of the form PASS.OPTION=VALUE", fix="for example --set tile-pipeline.stages=3")
        found.append((name, option, value))
    return found


def print_after(args: argparse.Namespace):
    """What `run_pipeline` is to call after each pass, or None."""
    from .changes import Changes  # needs MLIR, which this module's users import late

    return Changes() if args.print_ir_after_all else None


def show_timing(timing: list[tuple[str, float]]) -> None:
    total = sum(seconds for _, seconds in timing)
    for item, seconds in timing:
        print(f"{1000 * seconds:9.1f} ms  {item}", file=sys.stderr)
    print(f"{1000 * total:9.1f} ms  total", file=sys.stderr)
