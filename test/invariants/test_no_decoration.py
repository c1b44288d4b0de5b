"""The table of `no_decoration.py`: a sample of its edits here, all of them in bench/results/no_decoration.txt."""

import collections
import json
import pathlib
import re
import sys

import numpy as np
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


def in_turns(*turns: int) -> str:
    """The GEMM of examples/tile, in which as many loads of b take turns, those of one number in one buffer."""
    text = (no_decoration.ROOT / "examples/tile/gemm.mlir").read_text().replace("sm_90a", "sm_100a")
    (load,), (mma,) = ([line for line in text.split("\n") if f"{name} = " in line] for name in ("%sb", "%s1"))
    loads = [load.replace("%sb", f"%b{n}").replace("buffers = 4", f"turns = {number}") for n, number in enumerate(turns)]
    sums = ["%s", *(f"%t{n}" for n in range(len(turns)))]
    mmas = [mma.replace("%s1", after).replace("%sb", f"%b{n}").replace("%s)", f"{before})")
            for n, (before, after) in enumerate(zip(sums, sums[1:], strict=False))]
    return text.replace(load, "\n".join(loads)).replace(mma, "\n".join(mmas)).replace("yield %s1", f"yield {sums[-1]}")


def test_turns_are_no_decoration():
    """Which loads share a buffer shows in what is emitted; a load left alone is refused."""
    table = Table("turns", "tile", "sm_100a", text=in_turns(0, 0, 0, 1, 1))
    rows = [table.row(edit) for edit in table.edits if edit.what == "tile.load turns" and not edit.detail.startswith("absent")]
    assert collections.Counter((row.detail, row.outcome) for row in rows) == {
        ("0 -> 1", "warp text"): 3, ("1 -> 2", "refused"): 2, ("1 -> 0", "refused"): 2}


# -- swaps compute the same ---------------------------------------------------------------------------------------------------------------

SIZES = {"b": 1, "hq": 2, "hkv": 1, "m": 150, "n": 300}
SWAPS = 10  # of each example


def swapped(example: str):
    """Modules of the tile level with two neighbours of the kernel changed places, sampled over the whole kernel."""
    table = Table(example, "tile")
    swaps = [edit for edit in table.edits if edit.kind == "swap" and "tile.host" not in edit.what]
    inside = [edit for edit in swaps if not _in_host(table, edit)]
    for edit in inside[:: len(inside) // SWAPS][:SWAPS]:
        with table.context, no_decoration.ir.Location.unknown():
            copy = table.module.operation.clone()
            edit.apply(next(no_decoration.itertools.islice(no_decoration.walk(copy), edit.number, None)))
            yield edit.what, no_decoration.ir.Module.parse(copy.get_asm(print_generic_op_form=True), table.context)


def _in_host(table, edit) -> bool:
    op = next(no_decoration.itertools.islice(no_decoration.walk(table.module.operation), edit.number, None))
    while op.parent.name not in ("tile.host", "tile.kernel", "builtin.module"):
        op = op.parent.operation
    return op.parent.name == "tile.host"


@pytest.mark.parametrize("example", no_decoration.EXAMPLES)
def test_swapped_neighbours_still_compute_right(example):
    """In storage mode: in scheduled order, on physical buffers."""
    from fa4c.ir import interpret_tile

    table = Table(example, "tile")
    given = _inputs(example)
    with table.context, no_decoration.ir.Location.unknown():
        want = interpret_tile.run(table._parse(table.text), given)["o"]
    assert np.isfinite(want).all()
    for what, module in swapped(example):
        with module.context, no_decoration.ir.Location.unknown():
            got = interpret_tile.run(module, given, mode="storage")["o"]
        assert np.abs(got - want).max() < 1e-12, what


def test_a_swap_of_operands_is_seen():
    """The comparison above can fail: the two operands of a subtraction change places."""
    from fa4c.ir import interpret_tile

    table = Table("causal", "tile")
    given = _inputs("causal")
    text = table.text
    at = text.index("math.fma")
    line = text[text.rindex("\n", 0, at) + 1 : text.index("\n", at)]
    first, second, third = line.split("math.fma ")[1].split(" : ")[0].split(", ")
    wrong = text.replace(line, line.replace(f"{first}, {second}, {third}", f"{first}, {third}, {second}"))
    with table.context, no_decoration.ir.Location.unknown():
        want = interpret_tile.run(table._parse(text), given)["o"]
        got = interpret_tile.run(table._parse(wrong), given)["o"]
    assert not np.allclose(got, want, equal_nan=True)


def _inputs(example: str) -> dict:
    from fa4c.runtime import inputs

    semantics = json.loads(re.search(r'"semantics": (\{.*\}), "tensors"', _manifest(example))[1])
    return {name: value.double().numpy() for name, value in inputs.make_inputs(semantics, dict(SIZES)).items()}


def _manifest(example: str) -> str:
    return Table(example, "warp with barriers").base["manifest"]
