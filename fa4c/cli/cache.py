"""`fa4c cache`: what the compile cache holds. It is a folder of artifacts and can be carried to another machine."""

from __future__ import annotations

import argparse

EXAMPLES = """examples:
  fa4c cache                                    the same as `fa4c cache list`
  fa4c cache dir
  fa4c cache clear
  FA4C_CACHE_DIR=kernels fa4c cache list
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("list", "clear", "dir"), default="list", help="default: list")


def run(args: argparse.Namespace) -> None:
    from ..runtime import cache

    if args.action == "dir":
        print(cache.directory())
    elif args.action == "clear":
        print(f"{cache.directory()}: removed {cache.clear()} kernels")
    else:
        entries = cache.entries()
        for entry in entries:
            print(f"{entry['bytes']:>10}  {_what(entry)}  {entry['path']}")
        print(f"{cache.directory()}: {len(entries)} kernels, {cache.size()} bytes")


def _what(entry: dict) -> str:
    if "error" in entry:
        return f"damaged: {entry['error']}"
    dims = ",".join(str(size) for size in (entry["head_dims"] or {}).values())
    return f"{entry['name']} {entry['direction']} {entry['target']} {entry['dtype']} {dims}"
