"""The tolerance: each of its parts accepts at the limit and fails beyond it."""

import math

import pytest
import torch
from runtime_samples import CAUSAL, attention_tree

from fa4c.runtime import check, inputs
from fa4c.runtime.errors import InputError

TREE = attention_tree(mask=CAUSAL)
SIZES = dict(b=1, hq=2, hkv=1, m=40, n=32)  # eight rows see no key


@pytest.fixture(scope="module")
def case():
    given = inputs.make_inputs(TREE, SIZES)
    exact, eager = check.expected(TREE, given)
    return given, exact, eager


def rows(case, **changes):
    given, exact, eager = case
    outputs = {"o": exact["o"].to(torch.bfloat16), "lse": exact["lse"].float(), **changes}
    return {(r.tensor, r.norm): r for r in check.check(TREE, given, outputs, exact=exact, eager=eager)}


def test_the_rounded_exact_result_passes(case):
    found = rows(case)
    assert set(found) == {("o", "max"), ("o", "frobenius"), ("lse", "lse")} and all(r.ok for r in found.values())


def test_eager_pytorch_passes(case):
    assert all(r.ok for r in rows(case, o=case[2]["o"]).values())


def test_limits_are_those_of_the_definition(case):
    _, exact, eager = case
    eps, ref, err = 2**-7, exact["o"], (eager["o"].double() - exact["o"])
    found = rows(case)
    assert found["o", "max"].limit == pytest.approx(2 * err.abs().max().item() + 2 * eps * ref.abs().max().item())
    assert found["o", "frobenius"].limit == pytest.approx(2 * err.norm().item() + eps / 4 * ref.norm().item())


@pytest.mark.parametrize("share, fine", [(0.98, True), (1.02, False)])
def test_max_norm_fails_just_beyond_its_limit(case, share, fine):
    row = rows(case)["o", "max"]
    wrong = case[1]["o"].clone()
    wrong[0, 39, 0, 3] += share * row.limit
    assert rows(case, o=wrong)["o", "max"].ok is fine


@pytest.mark.parametrize("share, fine", [(0.98, True), (1.02, False)])
def test_frobenius_norm_fails_just_beyond_its_limit(case, share, fine):
    row = rows(case)["o", "frobenius"]
    noise = torch.ones_like(case[1]["o"])
    wrong = case[1]["o"] + noise * share * row.limit / noise.norm()
    found = rows(case, o=wrong)
    assert found["o", "frobenius"].ok is fine and found["o", "max"].ok


@pytest.mark.parametrize("share, fine", [(0.98, True), (1.02, False)])
def test_lse_fails_just_beyond_its_limit(case, share, fine):
    wrong = case[1]["lse"].clone()
    wrong[0, 1, 20] += share * (1e-4 + 1e-6 * abs(wrong[0, 1, 20].item()))
    row = rows(case, lse=wrong)["lse", "lse"]
    assert row.ok is fine and row.ratio == pytest.approx(share, rel=1e-6)


def test_one_nan_or_infinity_fails(case):
    for value, note in ((float("nan"), "1 NaN of"), (float("inf"), "1 infinities differ")):
        wrong = case[1]["o"].clone()
        wrong[0, 39, 0, 0] = value
        found = rows(case, o=wrong)
        assert not found["o", "max"].ok and note in found["o", "max"].note


def test_a_reference_that_is_nan_is_said(case):
    row = check.compare_tensor("o", torch.zeros(4), torch.tensor([1.0, math.nan, math.inf, 2.0]), torch.zeros(4), 0.0)[0]
    assert not row.ok and row.note == "1 NaN of 4 in the reference; 1 infinities differ" and (row.err, row.limit) == (2.0, 4.0)


def test_empty_rows_need_minus_infinity(case):
    assert torch.isinf(case[1]["lse"][0, :, :8]).all()
    for value in (0.0, float("inf"), -1e30):
        wrong = case[1]["lse"].clone()
        wrong[0, 0, 0] = value
        found = rows(case, lse=wrong)["lse", "lse"]
        assert not found.ok and "1 infinities differ" in found.note


def test_a_wrong_shape_is_an_error(case):
    with pytest.raises(InputError, match="o has the shape"):
        rows(case, o=case[1]["o"][:, :5])


def test_a_wrong_mask_or_scale_is_seen(case):
    """What the checker is for: the answers of slightly other variants are wrong."""
    from fa4c.runtime import reference

    given = case[0]
    for other in (
        attention_tree(),
        attention_tree(mask=CAUSAL, align="top_left"),
        attention_tree(mask=[["index", "j"], ["index", "i"], ["lt", 0, 1]]),
        attention_tree(mask=CAUSAL, score=[["x", 0], ["const", 0.12, "f32"], ["mul", 0, 1]]),
    ):
        got = reference.evaluate(other, given)
        found = rows(case, o=got["o"].to(torch.bfloat16), lse=got["lse"])
        assert not all(r.ok for r in found.values())


def test_sizes_of_zero_pass_and_can_fail():
    given = inputs.make_inputs(TREE, dict(b=1, hq=2, hkv=2, m=4, n=0))
    good = {"o": torch.zeros(1, 4, 2, 64, dtype=torch.bfloat16), "lse": torch.full((1, 2, 4), float("-inf"))}
    assert all(r.ok for r in check.check(TREE, given, good))
    assert not all(r.ok for r in check.check(TREE, given, {**good, "o": good["o"] + 1}))
    assert not all(r.ok for r in check.check(TREE, given, {**good, "lse": torch.zeros(1, 2, 4)}))
