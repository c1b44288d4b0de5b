"""Exponentials on the FMA units: masked scores become exactly 0, as they do on the special-function unit."""

import re

import compiled
import torch

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
