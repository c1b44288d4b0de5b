"""Sizes from text, contents from fills."""

import pytest
import torch
from runtime_samples import SLOPES, attention_tree

from fa4c.runtime.errors import InputError
from fa4c.runtime.inputs import fill, make_inputs
from fa4c.runtime.sizes import parse_sizes


def test_parse_sizes_and_defaults():
    assert parse_sizes("b=2,hq=8,hkv=2,m=1000,n=77") == dict(b=2, hq=8, hkv=2, m=1000, n=77)
    assert parse_sizes("") == dict(b=1, hq=4, hkv=2, m=256, n=256)
    assert parse_sizes("m=5") == dict(b=1, hq=4, hkv=2, m=5, n=5)
    assert parse_sizes("hq=6") == dict(b=1, hq=6, hkv=6, m=256, n=256)


@pytest.mark.parametrize(
    "text, message",
    [
        ("b=2;m=3", "no NAME=INTEGER"),
        ("b=two", "no NAME=INTEGER"),
        ("s=3", "unknown size 's'"),
        ("m=-1", "negative"),
        ("m=1,m=2", "twice"),
        ("hq=6,hkv=4", "6 query heads are no multiple of 4"),
        ("hqq=6", "did you mean 'hq'"),
    ],
)
def test_bad_sizes(text, message):
    with pytest.raises(InputError, match=message):
        parse_sizes(text)


def test_shapes_are_those_of_memory():
    given = make_inputs(attention_tree(dv=32, captures=[SLOPES]), dict(b=2, hq=4, hkv=2, m=5, n=7))
    assert {n: tuple(t.shape) for n, t in given.items()} == {"q": (2, 5, 4, 64), "k": (2, 7, 2, 64), "v": (2, 7, 2, 32), "slopes": (4,)}
    assert all(t.is_contiguous() for t in given.values()) and given["q"].dtype == torch.bfloat16
    torch.testing.assert_close(given["slopes"], torch.tensor([2**-2.0, 2**-4.0, 2**-6.0, 2**-8.0]))


def test_seed_decides():
    tree = attention_tree()
    a, b, c = (make_inputs(tree, {}, seed=s)["q"] for s in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_fills():
    g = torch.Generator().manual_seed(0)
    u = fill("uniform(-3, 5)", (1000,), ["n"], torch.float32, g, "cpu")
    assert -3 <= u.min() < -2.5 and 4.5 < u.max() <= 5
    ids = fill("sorted_ids(4)", (3, 100), ["b", "n"], torch.int32, g, "cpu")
    assert ids.dtype == torch.int32 and (ids.diff(dim=-1) >= 0).all() and set(ids.unique().tolist()) == {0, 1, 2, 3}
    n = fill("normal", (10000,), ["n"], torch.float32, g, "cpu")
    assert abs(n.mean()) < 0.05 and abs(n.std() - 1) < 0.05
    for kind, message in (
        ("gaussian", "unknown fill"),
        ("uniform(1)", "unknown fill"),
        ("normall", "did you mean 'normal'"),
        ("alibi", "head axis"),
        ("uniform(a,b)", "no number"),
        ("sorted_ids(0)", "unknown fill"),
    ):
        with pytest.raises(InputError, match=message):
            fill(kind, (3,), ["n"], torch.float32, g, "cpu")


def test_integers_without_a_fill_are_asked_for():
    table = {"name": "table", "dtype": "i32", "axes": [], "dims": ["p"], "shape": [3], "fill": None}
    with pytest.raises(InputError, match="'?table'? .*has no fill"):
        make_inputs(attention_tree(captures=[table]), {})
    assert "table" not in make_inputs(attention_tree(captures=[table]), {}, given=["table"])


def test_packed_lengths():
    tree = attention_tree()
    for dim in "mn":
        tree["args"].append({"name": f"cu_{dim}", "dtype": "i32", "axes": [], "dims": ["batch_plus_1"], "shape": [None], "cu_seqlens": dim})
    given = make_inputs(tree, dict(b=3, hq=2, hkv=2, m=10, n=20))
    assert given["q"].shape == (30, 2, 64) and given["k"].shape == (60, 2, 64)
    cu = given["cu_n"]
    assert cu.dtype == torch.int32 and len(cu) == 4 and cu[0] == 0 and cu[-1] == 60 and (cu.diff() >= 0).all()
