"""Damaged files end in a diagnostic, never in a traceback or a crash."""

import glob
import os

import fuzz
import pytest

HERE = os.path.dirname(__file__)
FILES = sorted(glob.glob(os.path.join(HERE, "..", "..", "examples", "*.mlir"))) + [os.path.join(HERE, "inputs", "attn_every_op.mlir")]


@pytest.mark.parametrize("path", FILES, ids=os.path.basename)
def test_damage_ends_in_a_diagnostic(path):
    assert fuzz.failures(path) == []


def test_the_fuzzer_sees_what_is_not_checked():
    """Without the check of signatures, a misspelled argument attribute passes: the test above can fail."""
    found = fuzz.failures(FILES[0], verify=lambda module: None)
    assert any("arg_attrs[0] misspelled attn.axes: valid" in line for line in found)


def test_every_kind_of_damage_is_done():
    with open(FILES[-1], encoding="utf-8") as file:
        kinds = {damage.what.split(": ")[1].rstrip("0123456789") for damage in fuzz.damages(file.read(), "every_op.mlir")}
    for kind in ("without operand ", "without result ", "without region ", "region 0 without block argument ", "without attribute kind"):
        assert kind in kinds
    assert {"attribute transpose_b misspelled", "arg_attrs[0] without attn.axes", "res_attrs[0] misspelled attn.dims"} <= kinds


def test_a_bug_in_a_verifier_is_a_failure():
    def broken(module):
        raise IndexError("list index out of range")

    assert any("IndexError" in line for line in fuzz.failures(FILES[0], verify=broken))
