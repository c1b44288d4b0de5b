"""Which candidates are found, what the model says of them, and that preparing compiles them."""

import pathlib

import pytest

from fa4c import targets
from fa4c.ir.diagnostics import Diagnostic
from fa4c.passes._attn_to_tile_shape import Shape
from fa4c.runtime import artifact
from fa4c.tune import candidates, model
from fa4c.tune.candidates import Search
from fa4c.tune.data import PLAN, read_json
from fa4c.tune.prepare import Variant, prepare

ROOT = pathlib.Path(__file__).parents[2]
CAUSAL, FULL = ((ROOT / "examples" / f"{name}.mlir").read_text() for name in ("causal", "full"))
SM90 = targets.get("sm_90a")  # with its data


@pytest.fixture(autouse=True)
def nothing_measured(request):
    """sm_90a without its data, so that there is one shape today, the formula's; a test marked `with_data` has them."""
    if "with_data" in request.fixturenames:
        yield
        return
    with targets.override("sm_90a", tuned=()):
        yield


@pytest.fixture
def with_data():
    pass


def find(text=CAUSAL, target=None, head_dim=(64, 64), **search):
    return candidates.find(text, "x.mlir", target or targets.get("sm_90a"), Search(**search), head_dim=head_dim)


def test_todays_choice_is_the_first():
    found = find(limit=3)
    assert found.title == "causal d=64"
    assert [c.label for c in found.today] == [found.candidates[0].label] == ["192x128x2"]
    assert len(found.candidates) == 4
    assert [at["n"] for at in found.sizes] == [1024, 4096, 16384]
    assert all(at["b"] * at["n"] == 16384 and at["hq"] * 64 == 2048 for at in found.sizes)


def test_measured_shapes_come_first_and_hints_must_still_pay(with_data):
    """What the target's data say is today's choice: the kernel for all sizes is the baseline, those for short ones follow."""
    short, long = dict(block_m=64, block_n=96, buffers=2, l2=["evict_last", "none"]), dict(block_m=192, block_n=96, buffers=3)
    entry = {"problem": find(limit=0).facts, "configurations": [{**short, "limit": {"size": "n", "most": 512}}, long], "source": "a test"}
    with targets.override("sm_90a", tuned=(entry,)) as target:
        found = find(target=target, limit=1, knobs=("walk-never", "l2"))
    base, hinted, other, plain, walk, l2 = found.candidates
    assert [c.label for c in (base, hinted, plain)] == ["192x96x3", "64x96x2:l2=evict_last/none", "64x96x2"]
    assert (base.configuration, hinted.configuration) == (long, short)
    assert hinted.overrides == (("attn-to-tile", "configurations", "64x96x2:l2=evict_last/none"),)
    assert "l2" not in plain.configuration and other.label.split("x")[:2] not in (["192", "96"], ["64", "96"])
    assert walk.label == "192x96x3 walk-never" and l2.configuration == {**long, "l2": ["evict_last", "evict_first"]}


def test_the_targets_own_data_are_found(with_data):
    """Of the shipped data: causal at head dim 64 has a kernel for short and one for long sequences, causal at 128 one."""
    assert [(c.label, c.limit) for c in find(limit=0).today] == [("128x128x2", ("n", 2048)), ("192x128x3", None)]
    assert [c.label for c in find(head_dim=(128, 128), limit=0).today] == ["128x128x2"]
    assert "H200" in find(limit=0).today[0].source


def test_candidates_fit_and_are_apart():
    labels = [c.label for c in find(limit=12, factor=2.0).candidates]
    assert len(set(labels)) == len(labels) == 13
    shapes = [tuple(map(int, label.split("x"))) for label in labels]
    assert all(a[0] != b[0] or abs(a[1] - b[1]) >= 32 for n, a in enumerate(shapes) for b in shapes[:n])
    smaller = targets.override("sm_90a", smem_bytes=60_000, tuned=())
    with smaller as target:
        few = find(target=target, limit=12, factor=2.0)
        assert all(2 * c.configuration["block_m"] * 64 + 512 * c.configuration["block_n"] < 60_000 for c in few.candidates)
        assert len(few.candidates) > 1


def test_the_factor_prunes():
    assert len(find(limit=30, factor=1.0).candidates) < len(find(limit=30, factor=1.3).candidates)


def test_given_shapes_and_knobs():
    found = find(limit=0, also=(Shape(128, 192, 2), Shape(192, 256, 9)), knobs=("l2", "walk-never", "exp2-1"))
    base = found.candidates[0]
    assert [c.label for c in found.candidates[1:]] == ["128x192x2", f"{base.label} l2", f"{base.label} walk-never", f"{base.label} exp2-1"]
    assert [entry["label"] for entry in found.dropped] == ["192x256x9"]
    _, _, l2, walk, exp2 = found.candidates
    assert l2.configuration == {**base.configuration, "l2": ["evict_last", "evict_first"]}
    assert walk.disabled == ("tile-persistent",) and walk.configuration is None
    assert ("tile-exp-emulation", "share", "1") in exp2.overrides
    with pytest.raises(Diagnostic, match="no knob 'l3'"):
        find(knobs=("l3",))


def test_a_file_of_a_lower_level_is_refused():
    with pytest.raises(Diagnostic, match="0 attn functions to tune"):
        candidates.find((ROOT / "examples/tile/gemm.mlir").read_text(), "gemm.mlir", SM90, Search())


# Median milliseconds at the clock of each, on an H200 (bench/results/2026-11-29_h200_forward.json), with the shape that was compiled.
RECORDED = [
    ((64, 64), "all", (192, 128), dict(b=1, hq=32, m=16384, n=16384), 4.127, 1830),
    ((64, 64), "up to a key", (192, 128), dict(b=16, hq=32, m=1024, n=1024), 0.2618, 1740),
    ((96, 96), "all", (128, 128), dict(b=4, hq=16, m=4096, n=4096), 0.7202, 1920),
    ((128, 128), "all", (128, 128), dict(b=1, hq=16, m=16384, n=16384), 3.2469, 1845),
    ((128, 128), "up to a key", (128, 128), dict(b=16, hq=16, m=1024, n=1024), 0.1565, 1725),
    ((192, 128), "up to a key", (128, 128), dict(b=4, hq=16, m=4096, n=4096), 0.532, 1935),
    ((256, 256), "all", (128, 80), dict(b=4, hq=8, m=4096, n=4096), 0.7074, 1875),
]


@pytest.mark.parametrize(("dims", "mask", "shape", "sizes", "ms", "mhz"), RECORDED)
def test_the_model_is_near_what_was_recorded(dims, mask, shape, sizes, ms, mhz):
    facts = {"row_tiles": [dims[0]], "column_tiles": list(dims), "softmaxes": 1, "special": 0, "mask": mask}
    predicted = model.clocks(facts, SM90, model.Blocks(*shape, 2), sizes)
    assert 0.85 < ms * 1e3 * mhz / predicted < 1.15


def test_the_model_follows_the_targets_numbers():
    facts = find().facts
    at = dict(b=1, hq=16, m=8192, n=8192)
    shape = model.Blocks(192, 128, 2)
    before = model.clocks(facts, SM90, shape, at)
    for change in ({"mma_flops": 2048}, {"num_sms": 66}, {"mufu": 4}):
        with targets.override("sm_90a", **change) as target:
            assert model.clocks(facts, target, shape, at) > 1.2 * before


def test_visited_blocks():
    shape = model.Blocks(128, 64, 2)
    assert [model.visited("all", shape, r, 256, 300) for r in (0, 1)] == [5, 5]
    assert [model.visited("up to a key", shape, r, 256, 256) for r in (0, 1)] == [2, 4]
    assert [model.visited("up to a key", shape, r, 256, 384) for r in (0, 1)] == [4, 6]
    assert [model.visited("from a key on", shape, r, 256, 256) for r in (0, 1)] == [4, 2]
    assert model.visited("between keys", shape, 15, 2048, 2048) == 10


def test_preparing_compiles_and_adds(tmp_path):
    pytest.importorskip("cutlass")
    target = targets.get("sm_90a")
    search = Search(shapes=(dict(b=1, hq=1, hkv=1, m=64, n=64),), limit=0, also=(Shape(192, 256, 2),))
    said = []
    plan = prepare(str(tmp_path), [Variant(CAUSAL, "causal.mlir", None, (64, 64))], target, search, say=said.append)
    (problem,) = plan["problems"]
    (candidate,) = problem["candidates"]
    assert said == ["1 of 1  000-causal-d-64-192x128x2"]
    loaded = artifact.load(tmp_path / candidate["artifact"])
    assert loaded.manifest["head_dims"] == {"d": 64, "dv": 64}
    assert candidate["registers"] > 0 and problem["problem"]["mask"] == "up to a key"
    assert [entry["label"] for entry in problem["dropped"]] == ["192x256x2"]
    # a shape that cannot be built is left out with its reason; the other file is added
    plan = prepare(str(tmp_path), [Variant(FULL, "full.mlir", None, (64, 64))], target, search, say=said.append)
    assert [p["name"] for p in plan["problems"]] == ["causal", "full"]
    assert read_json(tmp_path / "plan.json", PLAN) == plan
    assert len(list(tmp_path.glob("*.fa4c"))) == 2
