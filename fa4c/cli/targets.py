"""`fa4c targets`: what can be compiled for, and what is planned."""

from __future__ import annotations

import argparse

EXAMPLES = """examples:
  fa4c targets
  fa4c targets sm_90a                           all numbers of one target
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="TARGET", help="all numbers of one target")


def run(args: argparse.Namespace) -> None:
    import dataclasses

    from .. import targets
    from .compile import target_described

    if args.name is not None:
        target = target_described(args.name)
        for field, value in dataclasses.asdict(target).items():
            if field != "tuned":
                print(f"{field} = {value}")
        for entry in target.tuned:
            print(f"tuned: {_facts(entry['problem'])}: {', '.join(map(shape_text, entry['configurations']))} ({entry['source']})")
        return
    for name in targets.NAMES:
        target = targets.describe(name)
        print(f"{name:8} {target.status:8} {target.runs_on}. {target.description}")
        if target.refusal:
            print(f"{'':17} {target.refusal}")


def _facts(problem: dict) -> str:
    """Tile widths of K and V (or what else is loaded for each block), and what the mask lets through."""
    return f"{' + '.join(map(str, problem['column_tiles']))}, keys: {problem['mask']}, {problem['special']} special functions a score"


def shape_text(configuration: dict) -> str:
    """A configuration of the target's data."""
    limit = configuration.get("limit")
    shape = "x".join(str(configuration[key]) for key in ("block_m", "block_n", "buffers"))
    l2 = f" l2 {'/'.join(configuration['l2'])}" if "l2" in configuration else ""
    return shape + l2 + (f" up to {limit['size']} = {limit['most']}" if limit else "")
