"""Puts this folder's helper modules on the path."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
