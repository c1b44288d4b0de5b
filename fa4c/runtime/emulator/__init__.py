"""A PTX emulator for Hopper and Blackwell kernels: executes the emitted PTX on the CPU and reports its hazards.

`launch` runs one kernel on NumPy arrays. See docs/emulator.md for what is modelled and how to read a report.
"""

from .errors import EmulatorError
from .launch import Buffer, Scalar, TensorMap, launch
from .report import Hazard, Report

__all__ = ["Buffer", "EmulatorError", "Hazard", "Report", "Scalar", "TensorMap", "launch"]
