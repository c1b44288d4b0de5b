"""docs/passes.md is in step with the passes: a section for each, and a row for each that a pipeline has."""

import importlib.util
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOC = (ROOT / "docs" / "passes.md").read_text(encoding="utf-8")


def script():
    spec = importlib.util.spec_from_file_location("pass_table", ROOT / "bench" / "pass_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_pass_has_a_section():
    for name in script().all_passes():
        start = f"\n### {name}\n<!-- {name} -->\n`{name}"
        assert start in DOC, f"docs/passes.md has no section of {name}: write one, then run python bench/pass_table.py --text"


def test_every_pass_of_a_pipeline_has_a_row():
    table = script()
    rows = set(re.findall(r"^\| \S+ \| \S+ \| `([\w-]+)[`{]", DOC, re.MULTILINE))
    names = {item.name for target, direction in table.PIPELINES for item in table.parse(table.pipeline(target, direction))}
    assert not names - rows, f"run python bench/pass_table.py --write: no row of {', '.join(sorted(names - rows))}"


def test_what_a_pass_left_out_should_move_names_passes_and_counts():
    table = script()
    assert set(table.PROMISES) <= set(table.all_passes())
    assert {name for promise in table.PROMISES.values() for name in promise} <= set(table.SHOWN)
