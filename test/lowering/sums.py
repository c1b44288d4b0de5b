"""Running programs that add to outputs in global memory: those start at 0 here, not at NaN."""

import re
from unittest import mock

import compiled
import numpy as np

from fa4c.ir import interpret_tile
from fa4c.ir.context import new_context, parse_module, print_module
from fa4c.passes.registry import run_pipeline
from fa4c.runtime import emulated


def emulate(text: str, inputs: dict, *, zeroed=(), pipeline: str | None = None, **options):
    """(outputs as arrays, report of the only launch) on the emulator, of a tile-level text; inputs are torch tensors."""
    artifact = compiled.load(*compiled.kernel_of_text(text, "program.mlir", pipeline=pipeline))
    names = [t["name"] for t in artifact.manifest["tensors"] if t["role"] == "output"]
    parameters = emulated._parameters

    def zero(step, buffers):
        for name in zeroed:
            buffers[name].array[...] = 0
            buffers[name].poison = False
        return parameters(step, buffers)

    with mock.patch.object(emulated, "_parameters", zero):
        outputs, reports = emulated.run_reported(artifact, inputs, names, **options)
    return {name: t.double().numpy() for name, t in outputs.items()}, reports[-1]


def interpret(text: str, inputs: dict, *, zeroed=(), mode="value", dtype="float64", passes: str = "", edits=(),
              **options) -> dict[str, np.ndarray]:
    """The same outputs from the interpreter, after `passes` and then `edits` of the text: (pattern, replacement), which must fit."""
    with new_context():
        module = parse_module(text, "program.mlir")
        run_pipeline(module, passes)
        for pattern, replacement in edits:
            edited, found = re.subn(pattern, replacement, print_module(module, False))
            assert found, pattern
            module = parse_module(edited, "program.mlir")
        allocate = interpret_tile._allocate

        def zero(host, name, *rest):
            array = allocate(host, name, *rest)
            return np.zeros_like(array) if name in zeroed else array

        with mock.patch.object(interpret_tile, "_allocate", zero):
            return interpret_tile.run(module, inputs, mode=mode, dtype=dtype, **options)
