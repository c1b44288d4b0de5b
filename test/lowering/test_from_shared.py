"""Tiles from shared memory into registers, in kernels that only move data: a row sum of products, and a conversion from f32."""

import pathlib
import re
import string

import compiled
import numpy as np
import pytest
import torch

from fa4c.ir import interpret_tile
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import Diagnostic, from_mlir_error
from fa4c.ir.mlir import ir
from fa4c.passes.registry import run_pipeline
from fa4c.runtime import execute

FILE = pathlib.Path(__file__).parent / "inputs" / "from_shared.mlir.in"
PRODUCT = {
    "bf16": "%a = arith.extf %e : bf16 to f32\n    %b_ = arith.extf %f : bf16 to f32\n    %v = arith.mulf %a, %b_ : f32",
    "f16": "%a = arith.extf %e : f16 to f32\n    %b_ = arith.extf %f : f16 to f32\n    %v = arith.mulf %a, %b_ : f32",
    "f32": "%v = arith.mulf %e, %f : f32",
}
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
# rows, columns, dtype: one and two warpgroups; every swizzle span of both widths (128, 64, 32 bytes), several spans a row
SHAPES = [(128, 128, "bf16"), (64, 64, "f32"), (128, 32, "bf16"), (64, 16, "f16"), (64, 8, "f32"), (128, 16, "f32")]


def text(rows, d, element):
    return string.Template(FILE.read_text()).substitute(rows=rows, d=d, dv=max(d, 16), element=element, product=PRODUCT[element])


def inputs(batch, m, heads, d, element):
    generator = torch.Generator().manual_seed(m)
    kinds = {"x": (d, DTYPES[element]), "y": (d, DTYPES[element]), "z": (max(d, 16), torch.float32)}  # bf16 rows are 32 bytes at least
    return {name: torch.randn(batch, m, heads, width, generator=generator).to(kind) for name, (width, kind) in kinds.items()}


def expected(given):
    x, y, z = (t.double().numpy() for t in given.values())
    return {"delta": (x * y).sum(axis=3).transpose(0, 2, 1), "out": z * 0.5}


def error(got, want) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize("mode", ["value", "storage"])
def test_interpreted(mode):
    given = inputs(2, 133, 3, 64, "bf16")
    with new_context() as context:
        module = parse_module(text(128, 64, "bf16"), FILE.name, context)
        got = interpret_tile.run(module, given, mode=mode)
    for name, want in expected(given).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("rows", "d", "element"), SHAPES)
def test_emulated(rows, d, element):
    artifact = compiled.load(*compiled.kernel_of_text(text(rows, d, element), FILE.name))
    given = inputs(2, rows + 5, 2, d, element)
    got = execute.execute(artifact, given, backend="emulator")
    want = expected(given)
    assert error(got["delta"].double().numpy(), want["delta"]) < 2**-20
    assert error(got["out"].double().numpy(), want["out"]) < 2**-8
    for kernel in artifact.manifest["kernels"].values():
        assert kernel["block"] == [128 + 2 * rows, 1, 1]
        assert kernel["stack_bytes"] == kernel["local_bytes"] == 0


def test_a_ctas_registers_leave_room_for_others_and_256_columns_do_not_spill():
    """Without setmaxnreg a kernel takes what it needs: with 64 rows of 128 columns two CTAs fit an SM, of which each waits for memory."""
    for d, most in ((128, 65536 // 2 // 256), (256, 248)):
        manifest, members = compiled.kernel_of_text(text(64, d, "bf16"), FILE.name)
        for name, kernel in manifest["kernels"].items():
            assert kernel["registers"] <= most and kernel["stack_bytes"] == kernel["local_bytes"] == 0
            assert b"setmaxregister" not in members[f"{name}.cute.py"]


def test_loads_are_as_wide_as_two_elements_and_hit_no_bank_twice():
    """Addresses of a warp's loads, by the formula of the emitted code, for 16-bit and f32 tiles under a swizzle of 128 bytes."""
    for wide, lanes in ((False, 32), (True, 16)):  # 8-byte loads go by half warps
        for q in range(4):
            for first in range(0, 32, lanes):
                words = []
                for lane in range(first, first + lanes):
                    row, t = lane // 4, lane % 4
                    if wide:
                        xor = row % 8 ^ row % 2 * 4
                        start = row * 32 + ((q * 2 + t // 2) ^ xor) * 4 + t % 2 * 2
                        words += [start, start + 1]
                    else:
                        words.append((row * 64 + (q ^ row % 8) * 8 + t * 2) // 2)
                assert len({word % 32 for word in words}) == 32
    for element, load in (("bf16", r"ld\.shared\.(v2\.b16|b32)"), ("f32", r"ld\.shared\.v2\.[bf]32")):
        ptx = compiled.kernel_of_text(text(128, 128, element), FILE.name)[1]["multiply_and_sum.ptx"].decode()
        assert len(re.findall(load, ptx)) == 2 * 128 * 128 // 256 // 2
        assert "ld.local" not in ptx


def refused(*edits, message):
    changed = text(128, 64, "bf16")
    for old, new in edits:
        assert old in changed, old
        changed = changed.replace(old, new)
    with pytest.raises((Diagnostic, ir.MLIRError)) as caught:
        compiled.compile_text(changed, FILE.name, emit="cute")
    error = caught.value
    assert re.search(message, error.text() if isinstance(error, Diagnostic) else from_mlir_error(error)), error


def test_refused():
    load = '%rz = "tile.from_shared"(%sz) : (!sz) -> !rz'
    refused((load, load + '\n  %r16 = "tile.from_shared"(%sz) : (!sz) -> !rout'), message="shape and dtype stay")
    again = '%so = "tile.to_shared"(%half) : (!rout) -> !sout\n  %back = "tile.from_shared"(%so) : (!sout) -> !rout'
    refused(('%so = "tile.to_shared"(%half) : (!rout) -> !sout', again), message="a tile of shared memory that 'tile.to_shared' wrote")
    whole = ('"tile.map"(%rx, %ry)', '"tile.map"(%sx, %ry)'), ("(!r, !r) -> !acc", "(!s, !r) -> !acc")
    refused(*whole, message="reads .* element by element(.|\n)*from_shared")


def test_a_buffer_that_nothing_fills_is_refused():
    specialized = compiled.compile_text(text(128, 64, "bf16"), FILE.name, emit="warp", locations=False, pipeline="warp-specialize,cse")
    load = next(line for line in specialized.splitlines() if '"warp.tma_load"' in line)
    with new_context() as context:
        module = parse_module(specialized.replace(load, ""), FILE.name, context)
        with pytest.raises(Diagnostic, match="reads a buffer that no TMA load fills"):
            run_pipeline(module, "warp-insert-barriers")
