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

    if args.name is not None:
        for field, value in dataclasses.asdict(targets.describe(args.name)).items():
            print(f"{field} = {value}")
        return
    for name in targets.NAMES:
        target = targets.describe(name)
        print(f"{name:8} {target.status:8} {target.runs_on}. {target.description}")
        if target.refusal:
            print(f"{'':17} {target.refusal}")
