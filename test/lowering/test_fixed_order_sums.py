"""Gradients of tensors that all CTAs share: what each CTA adds is stored, and kernels behind add it up in a fixed order."""

import functools
import sys

import compiled
import numpy as np
import pytest
import torch

from fa4c.frontend.to_mlir import to_mlir
from fa4c.ir import interpret_tile
from fa4c.ir.context import new_context, parse_module
from fa4c.ir.diagnostics import Diagnostic
from fa4c.lowering.compile import compile_text
from fa4c.passes.registry import run_pipeline
from fa4c.runtime import emulated

sys.path.insert(0, str(compiled.ROOT / "test" / "runtime"))
from runtime_samples import attention_tree  # noqa: E402

TO_TILES = ("attn-fold-scale,attn-derive-backward{wrt=table},attn-sink-scale,attn-exp-to-exp2,attn-split-backward,attn-outline-kernels,"
            "attn-transpose-recompute,attn-simplify-mask,attn-to-tile")


def biased(*axes: str) -> str:
    """Full attention with a learned slope: score + table * (j - i), one number for each place on `axes`."""
    score = [["x", 0], ["const", 0.125, "f32"], ["mul", 0, 1], ["load", "table"], ["index", "j"], ["index", "i"], ["sub", 4, 5],
             ["cast", 6, "f32"], ["mul", 3, 7], ["add", 2, 8]]  # fmt: skip
    table = dict(name="table", axes=list(axes), dims=[], dtype="f32", shape=[])
    return to_mlir(attention_tree(score=score, captures=[table], align="top_left"))


@functools.cache
def inputs(b: int, hq: int, hkv: int, m: int, n: int, *axes: str):
    generator = torch.Generator().manual_seed(m)

    def normal(rows, heads):
        return torch.randn(b, rows, heads, 64, generator=generator).to(torch.bfloat16)

    table = torch.randn([{"b": b, "hq": hq, "hkv": hkv}[axis] for axis in axes], generator=generator)
    spread = torch.exp2(torch.randint(-8, 9, (1, m, 1, 1), generator=generator).float())
    return {"q": normal(m, hq), "k": normal(n, hkv), "v": normal(n, hkv), "o": normal(m, hq), "do": (normal(m, hq) * spread).bfloat16(),
            "lse": torch.randn(b, hq, m, generator=generator) + 5, "table": 0.01 * table}


@pytest.mark.parametrize("axes", [(), ("b", "hq"), ("hkv",)], ids=str)
def test_the_sum_is_the_same(axes):
    """Shared by all CTAs, by those of one head, by those of a group of heads: the places are computed again from the grid. The second
    grid is one of whole pairs of CTAs, of which the second CTA has no keys."""
    given, results = inputs(2, 4, 2, 140, 40, *axes), []
    for passes in ("", "tile-multicast{ctas=2},tile-deterministic-reduction",
                   "tile-deterministic-reduction,tile-pipeline,tile-lpt-grid,tile-persistent"):
        with new_context():
            module = parse_module(biased(*axes), "biased.mlir")
            run_pipeline(module, f"{TO_TILES},{passes}".rstrip(","))
            assert ("tile.global_add" in str(module)) == (passes == "") and ("cluster = 2" in str(module)) == ("multicast" in passes)
            results.append(interpret_tile.run(module, given, mode="storage" if "pipeline" in passes else "value")["dtable"])
    assert results[0].shape == tuple(given["table"].shape) and np.abs(results[0]).max() > 0
    for result in results[1:]:
        assert np.abs(result - results[0]).max() <= 1e-9 * np.abs(results[0]).max()


@functools.cache
def built(target: str, deterministic: bool, *axes: str):
    manifest, members = compiled.kernel_of_text(biased(*axes), "biased.mlir", direction="bwd", target=target, deterministic=deterministic,
                                                overrides=(("attn-derive-backward", "wrt", "table"),))
    return compiled.load(manifest, members)


def gradient(target: str, deterministic: bool, axes: tuple, **options) -> np.ndarray:
    given = inputs(2, 1, 1, 300, 40, *axes)
    outputs, reports = emulated.run_reported(built(target, deterministic, *axes), given, ["dtable"], **options)
    assert all(report.hazards == [] for report in reports)
    return outputs["dtable"].numpy()


def test_the_same_bits_under_any_schedule():
    """Six CTAs add to the one number, of operands that differ by 2**16; added up as they come, bits differ between schedules."""
    runs = [gradient("sm_90a", True, ("hq",), hazards=seed == 0, schedule="random", schedule_seed=seed) for seed in range(3)]
    assert all((run.view(np.uint32) == runs[0].view(np.uint32)).all() for run in runs)
    plain = gradient("sm_90a", False, ("hq",), hazards=False)
    others = (gradient("sm_90a", False, ("hq",), hazards=False, schedule="random", schedule_seed=seed) for seed in range(12))
    assert any((other.view(np.uint32) != plain.view(np.uint32)).any() for other in others)
    assert np.abs(runs[0] - plain).max() <= 1e-4 * np.abs(plain).max()


def test_a_number_without_axes_in_tensor_memory_s_layout():
    """The last kernel stores one row, of a tensor without dimensions; on sm_100a rows that are stored come from threads of their own."""
    lanes, quads = gradient("sm_100a", True, (), hazards=True), gradient("sm_90a", True, (), hazards=False)
    assert abs(lanes - quads) <= 1e-3 * abs(quads)


@pytest.mark.parametrize(("around", "says"), [
    ("{0}\n{0}", "adds to a tensor that its kernel uses twice"),
    ("%yes = arith.constant true\nscf.if %yes {{\n{0}\n}}", "adds to one place under a condition"),
])
def test_two_sums_into_one_place_and_one_under_a_condition_are_refused(around, says):
    text = compile_text(biased("hq"), "biased.mlir", emit="tile", locations=False, pipeline=TO_TILES)
    line = next(line for line in text.split("\n") if "tile.global_add" in line)
    with new_context():
        module = parse_module(text.replace(line, around.format(line)), "biased.mlir")
        with pytest.raises(Diagnostic, match=says):
            run_pipeline(module, "tile-deterministic-reduction")


def test_a_kernel_that_nobody_launches_is_refused():
    text = compile_text(biased("hq"), "biased.mlir", emit="tile", locations=False, pipeline=TO_TILES)
    with new_context():
        module = parse_module(text, "biased.mlir")
        for op in list(module.body.operations):
            if op.operation.name == "tile.host":
                op.operation.erase()
        with pytest.raises(Diagnostic, match="is in a kernel that is not launched"):
            run_pipeline(module, "tile-deterministic-reduction")
