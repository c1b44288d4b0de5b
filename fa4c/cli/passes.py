"""`fa4c passes`: the passes, their options with defaults, and what each does in one line."""

from __future__ import annotations

import argparse

EXAMPLES = """examples:
  fa4c passes
  fa4c passes tile-pipeline                     one pass in full: the text at the head of its file
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="PASS", help="one pass in full")


def run(args: argparse.Namespace) -> None:
    from ..ir.diagnostics import UsageError, nearest
    from ..passes.registry import all_passes, find_pass, own_names

    if args.name is None:
        for entry in all_passes().values():
            print(signature(entry))
            print(f"    {entry.summary}")
        print("\nPasses of upstream MLIR (canonicalize, cse, ...) may stand in a pipeline too.\n")
        for title, text in _pipelines():
            print(f"{title}:\n    {text}")
        return
    entry = find_pass(args.name)
    if entry is None:
        raise UsageError(f"there is no pass '{args.name}' of fa4c", fix=nearest(args.name, own_names()))
    print(signature(entry) + "\n\n" + entry.description)


def signature(entry) -> str:
    """`tile-pipeline{stages=2 order=}` with the defaults."""
    from ..passes.registry import format_value

    options = " ".join(f"{option.name}={format_value(option.default)}" for option in entry.options.values())
    return entry.name + ("{" + options + "}" if options else "")


def _pipelines() -> list[tuple[str, str]]:
    """What `compile` runs, by target and direction, and for each generation."""
    from ..passes.pipelines import GENERATIONS, PIPELINES, pipeline

    found = [(f"{target} {direction}", pipeline(target, direction)) for target, direction in PIPELINES]
    return found + [(f"{target} {direction} --generation {name}", pipeline(target, direction, generation=name))
                    for name, parts in GENERATIONS.items() for target, direction in parts]
