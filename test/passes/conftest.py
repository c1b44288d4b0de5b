"""Lets the tests of this directory import their helpers: `test` is no package, since Python has one of that name."""

import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
