"""docs/passes.md is in step with the passes: a section for each, and a row for each that a pipeline has."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOC = (ROOT / "docs" / "passes.md").read_text(encoding="utf-8")


sys.path.insert(0, str(ROOT / "bench"))
import pass_table as table  # noqa: E402

from fa4c.ir import attn, tile, tile_pair, warp, warp_tmem  # noqa: E402


def test_every_section_is_what_its_pass_says():
    for name in table.all_passes():
        assert f"\n### {name}\n<!-- {name} -->\n" in DOC, f"docs/passes.md has no section of {name}"
    assert table.described(DOC) == DOC, "run python bench/pass_table.py --text"


def test_operations_before_and_after_exist():
    """By their names, of which Before and After leave out some: a renamed one would stay there."""
    known = {value.OPERATION_NAME for module in (attn, tile, tile_pair, warp, warp_tmem) for value in vars(module).values()
             if isinstance(getattr(value, "OPERATION_NAME", None), str)}
    for name, entry in table.all_passes().items():
        shown = table._description(entry).partition("```")[2]
        named = set(re.findall(r"(?<![#{])\b((?:attn|tile|warp)\.[a-z_0-9]+)\b(?! =)", shown))  # no memory space, no attribute
        assert named <= known, (name, named - known)


def test_every_pass_of_a_pipeline_has_a_row():
    rows = set(re.findall(r"^\| \S+ \| \S+ \| `([\w-]+)[`{]", DOC, re.MULTILINE))
    names = {item.name for target, direction in table.PIPELINES for item in table.parse(table.pipeline(target, direction))}
    assert not names - rows, f"run python bench/pass_table.py --write: no row of {', '.join(sorted(names - rows))}"


def test_what_a_pass_left_out_should_move_names_passes_and_counts():
    assert set(table.PROMISES) <= set(table.all_passes())
    assert {name for promise in table.PROMISES.values() for name in promise} <= set(table.SHOWN)


def test_every_section_says_what_it_is_worth_and_where_it_ends():
    """IR before and after, clocks (or that there are none), limits."""
    for name in table.all_passes():
        section = re.split(r"\n##+ ", DOC.partition(f"\n### {name}\n")[2])[0]
        shown, _, said = section.partition("<!-- end -->")
        assert "\n```\nBefore:" in shown and "After:" in shown or name == "warp-check", name
        assert "clocks" in said and "**Limits**" in said, name
