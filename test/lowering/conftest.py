"""Puts this folder's helper modules on the path, and the programs that the tests of passes have."""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "passes")]
