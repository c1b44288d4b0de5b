"""The table of `no_decoration.py`: a sample of its edits here, all of them in bench/results/no_decoration.txt."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import no_decoration  # noqa: E402
from no_decoration import Edit, Row, Table  # noqa: E402

EVERY = 19  # of about 4000 edits, 0.1 s each


@pytest.mark.parametrize("level", list(no_decoration.LEVELS))
@pytest.mark.parametrize("example", no_decoration.EXAMPLES)
def test_no_edit_goes_unseen(example, level):
    rows = list(Table(example, level).rows(EVERY, first=len(example + level) % EVERY))
    assert len(rows) > 20
    assert [str(row) for row in rows if no_decoration.is_decoration(row)] == []


@pytest.fixture(scope="module")
def causal() -> Table:
    return Table("causal", "warp with barriers")


def test_an_edit_that_changes_nothing_is_decoration(causal):
    """An operation that no rule reads: a location apart, the module is the same."""
    row = causal.row(Edit(0, "attribute", "tile.host sym_name", "as it is", lambda op: None))
    assert row.outcome == "same"
    assert no_decoration.is_decoration(row)


def test_a_crash_is_decoration(causal):
    def broken(op):
        raise IndexError("list index out of range")

    row = causal.row(Edit(0, "delete", "warp.role", "", broken))
    assert row.outcome == "crash"
    assert no_decoration.is_decoration(row)


def test_a_refusal_without_a_place_is_decoration():
    assert no_decoration._refusal("fa4c: error: something")[0] == "refused without a place"
    assert no_decoration._refusal("causal.mlir:3:1: error: 'warp.wait' waits")[0] == "refused"


def test_exceptions_cover_what_they_name_only():
    def row(kind, what, note):
        return Row("causal", "warp", kind, what, "", note, "-", "same", "")

    assert no_decoration.is_decoration(row("swap", "warp.wait / warp.wgmma", ""))
    assert no_decoration.is_decoration(row("delete", "arith.constant", ""))
    assert no_decoration.is_decoration(row("attribute", "warp.map fill", ""))
    assert not no_decoration.is_decoration(row("swap", "warp.buffer / warp.tensor_map", "a parameter"))
    assert not no_decoration.is_decoration(row("attribute", "arith.addf fastmath", ""))


def test_every_kind_of_edit_is_made(causal):
    kinds = {edit.kind for edit in causal.edits}
    names = {edit.what for edit in causal.edits}
    assert kinds == {"delete", "swap", "attribute"}
    assert {"warp.wait", "warp.wgmma accumulate", "warp.pipeline arrivals", "warp.map", "tile.host tensors"} <= names
    deleted = [edit.what for edit in causal.edits if edit.kind == "delete"]
    assert len(deleted) == sum(1 for _ in no_decoration.walk(causal.module.operation))
