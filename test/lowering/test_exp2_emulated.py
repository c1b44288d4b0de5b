"""Helpers that an emitted file carries. Exponentials on the FMA units: masked scores become exactly 0, as they do on the special-function
unit. Division of integers: towards zero, whatever their signs."""

import re

import compiled
import numpy
import torch

from fa4c.lowering import prelude
from fa4c.runtime import execute


def test_rows_without_a_key_are_zero():
    """150 queries, 70 keys, causal from the bottom right: the first 80 rows see nothing; 2**-126 would make them means of V."""
    options = {"overrides": (("tile-exp-emulation", "share", "8"),)}
    artifact = compiled.loaded("softcap.mlir", **options)
    source = compiled.kernel("softcap.mlir", **options)[1]["softcap.cute.py"].decode()
    assert "exp2_emulated(" in source and re.search(r"% 16 < 8 else", source)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, length, 1, 128).bfloat16() for length in (150, 70, 70))
    out = execute.execute(artifact, {"q": q, "k": k, "v": v}, backend="emulator")
    assert (out["o"][:, :80] == 0).all() and (out["o"][:, 80:] != 0).any()
    assert torch.isneginf(out["lse"][..., :80]).all() and torch.isfinite(out["lse"][..., 80:]).all()


def test_division_cuts_towards_zero():
    """As the helper is written, with divisors that are constants (Python's numbers) and that are not."""
    found = {"Int32": numpy.int64, "select": lambda kind, condition, a, b: kind(a if condition else b)}
    exec(prelude.HELPERS["truncated_div"], found)
    for a in range(-9, 10):
        for b in (-7, -2, -1, 1, 3):
            for given in ((a, b), (numpy.int64(a), b), (numpy.int64(a), numpy.int64(b))):
                assert found["truncated_div"](*given) == int(a / b), given
