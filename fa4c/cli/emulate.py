"""`fa4c emulate`: execute any PTX kernel on the CPU, and report its hazards."""

from __future__ import annotations

import argparse

from ..runtime.emulator import launch_file

EXAMPLES = """examples:
  fa4c emulate KERNEL.ptx --launch launch.json
  fa4c emulate KERNEL.ptx --launch launch.json --schedule random --schedule-seed 7 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    launch_file.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return launch_file.run(args)
