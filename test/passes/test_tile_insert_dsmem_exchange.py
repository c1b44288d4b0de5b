"""tile-insert-dsmem-exchange by execution: a pair's exchanged halves sum to what single CTAs sum to; a wrong half or CTA does not."""

import pathlib

import numpy as np
import pytest

from fa4c.ir.context import parse_module, print_module
from fa4c.ir.interpret_tile import run
from fa4c.passes.registry import run_pipeline

TEXT = (pathlib.Path(__file__).parent / "inputs" / "sum_over_rows.mlir").read_text()
PAIR = "tile-split-2cta{ctas=2 exchange=true},tile-insert-dsmem-exchange"
TMEM = "tile-accumulate-in-tmem,tile-pipeline,tile-alias-tmem"


def inputs(m: int, n: int) -> tuple[dict, dict]:
    """q and k that bf16 holds exactly, and what the program makes of them."""
    rng = np.random.default_rng(m + n)
    q, k = (np.round(rng.standard_normal((rows, 64)) * 16) / 16 for rows in (m, n))
    w = np.maximum(q @ k.T, 0)
    return {"q": q, "k": k}, {"dq": w @ k, "dk": w.T @ q}


def after(passes: str, text: str = TEXT) -> str:
    module = parse_module(text, "sum_over_rows.mlir")
    run_pipeline(module, passes)
    return print_module(module, locations=False)


@pytest.mark.parametrize(("m", "n"), [(300, 500), (5, 300), (128, 64)])
@pytest.mark.parametrize(("passes", "mode"), [("cse", "value"), (f"{PAIR},cse", "value"), (f"{PAIR},{TMEM}", "storage")])
def test_halves_add_up(passes, mode, m, n):
    given, want = inputs(m, n)
    got = run(parse_module(after(passes)), given, mode=mode)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-12, atol=1e-9)


@pytest.fixture(scope="module")
def scheduled() -> str:
    return after(f"{PAIR},{TMEM}")


@pytest.mark.parametrize(("old", "new"), [
    ("arith.subi %n0, %sk_1 : index", "arith.addi %n0, %c0 : index"),  # keys of this CTA and those behind, instead of the pair's
    ("arith.addi %m0, %0 : index", "arith.subi %m0, %0 : index"),  # queries of another half
    ("arith.muli %x_0, %sk_3 : index", "arith.muli %c0, %sk_3 : index"),  # both CTAs have the left half of d
    ("dims = array<i64: 0, 1>, folded = true", "dims = array<i64: 0, 1>"),  # 128 rows of 32 columns
])
def test_a_wrong_half_gives_wrong_numbers(scheduled, old, new):
    assert scheduled.count(old) == 1, scheduled
    given, want = inputs(300, 500)
    got = run(parse_module(scheduled.replace(old, new)), given, mode="storage")
    assert not np.allclose(got["dq"], want["dq"]) and np.allclose(got["dk"], want["dk"])


def test_half_as_much_is_added():
    """A CTA adds 64 rows of 64 columns a step, where it added 128."""
    plain, paired = ([line for line in after(p).splitlines() if '"tile.global_add"' in line] for p in ("cse", PAIR))
    assert "tensor<128x64xf32, #tile.smem>" in plain[0] and "tensor<128x32xf32, #tile.smem>" in paired[0]
