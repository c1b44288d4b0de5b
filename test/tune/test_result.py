"""What follows from a measurement: winners, limits between lengths, the target's data, and that the compiler reads them."""

import json

import pytest
from tune_fakes import FACTS, shape

from fa4c.ir.diagnostics import Diagnostic
from fa4c.targets import tuned
from fa4c.tune import result as results
from fa4c.tune.data import RESULT, SCHEMA

TODAY, OTHER, THIRD = "192x128x2", "128x128x2", "128x192x2"
SHAPES = {TODAY: shape(192, 128), OTHER: shape(128, 128), THIRD: shape(128, 192, l2=["evict_last", "none"])}


def measured(speeds: dict, lengths=(1024, 4096, 16384), facts=FACTS) -> dict:
    """A result in which a label has these speeds against today's."""
    rows = []
    for k, n in enumerate(lengths):
        for label, speed in speeds.items():
            ms = 1.0 / speed[k]
            rows.append(
                {
                    "problem": facts,
                    "variant": "sample d=64",
                    "label": label,
                    "sizes": dict(b=1, hq=1, hkv=1, m=n, n=n),
                    "ms": ms,
                    "rounds_ms": [ms],
                    "baseline": TODAY,
                    "against": speed[k],
                    "configuration": SHAPES.get(label),
                    "set": [],
                    "disabled": [],
                    "predicted_clk": 100,
                }
            )
    return {
        "schema": SCHEMA,
        "kind": RESULT,
        "target": "sm_90a",
        "machine": {"gpu": "Fake 100", "driver": "1.2", "date": "2026-11-29T10:00:00Z"},
        "dsl": "4.8.1",
        "rows": rows,
        "wrong": [],
        "not_compiled": [],
        "not_measured": [],
    }


def chosen(speeds, **more):
    (entry,) = results.winners(measured(speeds, **more))
    return entry["changed"], entry["configurations"]


def test_one_that_is_best_everywhere_wins():
    assert chosen({TODAY: [1, 1, 1], OTHER: [1.1, 1.05, 1.02]}) == (True, [SHAPES[OTHER]])


def test_lengths_that_differ_get_two_with_a_limit_between():
    changed, (short, long) = chosen({TODAY: [1, 1, 1], OTHER: [1.10, 0.99, 0.87]})
    assert changed
    assert short == {**SHAPES[OTHER], "limit": {"size": "n", "most": 2048}}
    assert long == SHAPES[TODAY]
    changed, (short, long) = chosen({TODAY: [1, 1, 1], THIRD: [0.9, 0.98, 1.07]})
    assert (short["limit"]["most"], long) == (8192, SHAPES[THIRD])


@pytest.mark.parametrize(
    "speeds", [{TODAY: [1, 1, 1], OTHER: [1.05, 1.0, 0.99]}, {TODAY: [1, 1, 1], OTHER: [1.02, 1.015, 1.01]}, {TODAY: [1, 1, 1]}]
)
def test_less_than_two_percent_changes_nothing(speeds):
    assert chosen(speeds) == (False, [SHAPES[TODAY]])


def test_a_candidate_without_all_lengths_is_no_winner():
    result = measured({TODAY: [1, 1, 1], OTHER: [2, 2, 2]})
    result["rows"] = [row for row in result["rows"] if (row["label"], row["sizes"]["n"]) != (OTHER, 4096)]
    (entry,) = results.winners(result)
    assert entry["configurations"] == [SHAPES[TODAY]]


def test_other_passes_options_are_suggested_not_applied():
    result = measured({TODAY: [1, 1, 1], f"{TODAY} walk-always": [1.0, 1.2, 1.3], f"{TODAY} no-turns": [0.9, 0.9, 0.9]})
    (entry,) = results.winners(result)
    assert not entry["changed"]
    (line,) = results.suggestions(result)
    assert "walk-always" in line and "n=4096 1.200x" in line


def test_the_targets_data(tmp_path):
    path = tmp_path / "tuned.json"
    results.apply(measured({TODAY: [1, 1, 1], OTHER: [1.10, 0.99, 0.87]}), path)
    data = json.loads(path.read_text())
    (entry,) = tuned.check(data, path)
    assert entry["problem"] == FACTS and len(entry["configurations"]) == 2
    assert "Fake 100, driver 1.2, 2026-11-29" in entry["source"] and "1.0" in entry["source"]
    assert entry["measured"]["machine"]["gpu"] == "Fake 100"
    assert entry["measured"]["ms"][f"{TODAY} n=1024"] == [1.0, 1.0, 1.0]
    # another problem is added, the same one replaced; one without a winner adds nothing
    results.apply(measured({TODAY: [1, 1, 1], OTHER: [1.2, 1.2, 1.2]}, facts={**FACTS, "mask": "all"}), path)
    results.apply(measured({TODAY: [1, 1, 1], OTHER: [1.2, 1.2, 1.2]}), path)
    results.apply(measured({TODAY: [1, 1, 1], OTHER: [0.9, 0.9, 0.9]}, facts={**FACTS, "mask": "any"}), path)
    entries = tuned.check(json.loads(path.read_text()), path)
    assert [entry["problem"]["mask"] for entry in entries] == ["all", "up to a key"]
    assert all(entry["configurations"] == [SHAPES[OTHER]] for entry in entries)
    # measured again: what was there is no better
    results.apply(measured({TODAY: [1, 1, 1], OTHER: [0.9, 0.9, 0.9]}), path)
    assert tuned.check(json.loads(path.read_text()), path)[-1]["configurations"] == [SHAPES[TODAY]]


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({}, "lacks 'problem'"),
        (dict(problem={}, configurations=[], source=""), "has no configuration"),
        (dict(problem={}, configurations=[{"block_m": 64}], source=""), "no block shape"),
        (dict(problem={}, configurations=[shape(64, 64, colour=1)], source=""), "unknown key colour"),
        (dict(problem={}, configurations=[shape(64, 64), shape(128, 64)], source=""), "without a limit"),
        (dict(problem={}, configurations=[shape(64, 64, limit={"size": "n", "most": 9})], source=""), "limits its last"),
    ],
)
def test_data_that_make_no_sense(entry, complaint):
    with pytest.raises(Diagnostic, match=complaint):
        tuned.check({"schema": 1, "entries": [entry]}, "x.json")


def test_the_table_says_it_all():
    text = results.table(measured({TODAY: [1, 1, 1], OTHER: [1.25, 1, 1]}))
    first = text.splitlines()[2]
    assert first.split()[:4] == [OTHER, "0.8000", "0.0%", "1.250"]
    assert "n=1024" in text and "n=16384" in text
