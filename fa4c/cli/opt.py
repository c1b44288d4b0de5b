"""`fa4c opt`: one or more passes, text in, text out."""

from __future__ import annotations

import argparse

from . import pass_flags
from .files import read_module

EXAMPLES = """examples:
  fa4c opt causal.mlir --pass-pipeline attn-simplify-mask
  fa4c opt causal.mlir --pass-pipeline 'attn-simplify-mask,attn-to-tile{block-m=64},cse' --no-loc
  fa4c opt causal.mlir --pass-pipeline attn-to-tile | fa4c opt - --pass-pipeline tile-pipeline
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a .mlir file of any level, or - for standard input")
    pass_flags.add_pass_flags(parser, required=True)


def needs_mlir(args: argparse.Namespace) -> bool:
    return True


def run(args: argparse.Namespace) -> None:
    from ..ir.context import print_module
    from ..passes.registry import check_overrides_occur, resolve, run_pipeline

    changes = pass_flags.overrides(args)
    check_overrides_occur(changes, resolve(args.pass_pipeline), args.disable_pass)
    module = read_module(args.file)
    timing = [] if args.timing else None
    run_pipeline(module, args.pass_pipeline, disabled=args.disable_pass, overrides=changes,
                 print_after=pass_flags.print_after(args), timing=timing)
    if timing is not None:
        pass_flags.show_timing(timing)
    print(print_module(module, locations=not args.no_loc).rstrip("\n"))
