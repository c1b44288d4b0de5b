"""The tuner's measuring part with a GPU that is none: what is timed, what is left out, and what survives a kernel that hangs or dies."""

import json
import subprocess
import sys

import pytest
import tune_fakes
from tune_fakes import SIZES, folder, shape

from fa4c.ir.diagnostics import Diagnostic
from fa4c.tune.data import RESULT, read_json
from fa4c.tune.measure import ROUNDS, measure
from fa4c.tune.result import table

CANDIDATES = {"192x128x2": shape(192, 128), "128x128x2": shape(128, 128), "192x128x2-no-turns": None}


def run(tmp_path, monkeypatch, candidates, times, **options):
    folder(tmp_path, candidates)
    monkeypatch.setenv("FAKE_TIMES", json.dumps(times))
    out = tmp_path / "result.json"
    result = measure(str(tmp_path), str(out), bench="tune_fakes:Bench", say=lambda text: None, **options)
    assert read_json(out, RESULT) == result
    return result


def test_every_candidate_is_timed_at_every_size(tmp_path, monkeypatch):
    result = run(tmp_path, monkeypatch, CANDIDATES, {"192x128x2": 2.0, "128x128x2": 1.6, "192x128x2-no-turns": 2.5})
    assert [(row["label"], row["sizes"]["n"]) for row in result["rows"]] == [(label, at["n"]) for at in SIZES for label in CANDIDATES]
    first, second, third = result["rows"][:3]
    assert (first["ms"], first["against"], first["baseline"], len(first["rounds_ms"])) == (2.0, 1.0, "192x128x2", ROUNDS)
    assert (second["ms"], second["against"], second["configuration"]) == (1.6, 1.25, shape(128, 128))
    assert (third["against"], third["configuration"]) == (0.8, None)
    assert first["predicted_clk"] == 1 and result["rows"][-1]["predicted_clk"] == 3
    assert result["machine"]["gpu"] == "Fake 100"
    assert result["not_measured"] == [] and result["wrong"] == []
    assert result["not_compiled"][0]["why"].startswith("spills")


def test_medians_are_taken_over_rounds_and_ratios_within_them(tmp_path, monkeypatch):
    """The chip slows down from round to round: each round's ratio is 1.25, though the medians of the two do not say so."""
    slow = [1.0, 1.0, 2.0, 4.0, 4.0]  # the call before the rounds takes the first
    result = run(
        tmp_path, monkeypatch, {"a": shape(192, 128), "b": shape(128, 128)}, {"a": [t * 1.25 for t in [1.0, *slow[1:], 1.0]], "b": slow}
    )
    a, b = result["rows"][:2]
    assert a["rounds_ms"] == [1.25, 2.5, 5.0, 5.0, 1.25]
    assert b["rounds_ms"] == slow
    assert (a["ms"], b["ms"]) == (2.5, 2.0)
    assert b["against"] == 1.25


def test_wrong_results_are_out(tmp_path, monkeypatch):
    result = run(tmp_path, monkeypatch, {**CANDIDATES, "64x128x2-wrong": shape(64, 128)}, {"64x128x2-wrong": 0.1})
    assert {row["label"] for row in result["rows"]} == set(CANDIDATES)
    (wrong,) = result["wrong"]
    assert wrong["label"] == "64x128x2-wrong" and "WRONG" in wrong["note"]
    assert {entry["label"] for entry in result["not_measured"]} == {"64x128x2-wrong"}
    assert "out: sample d=64 64x128x2-wrong" in table(result)


@pytest.mark.parametrize(("how", "note"), [("hang", "the kernel hangs"), ("die", "ended with status 3")])
def test_a_kernel_that_hangs_or_dies_is_left_out(tmp_path, monkeypatch, how, note):
    result = run(tmp_path, monkeypatch, CANDIDATES, {"128x128x2": how}, stall=12)
    assert {row["label"] for row in result["rows"]} == {"192x128x2", "192x128x2-no-turns"}
    assert len(result["rows"]) == 2 * len(SIZES)
    (wrong,) = result["wrong"]
    assert wrong["label"] == "128x128x2" and note in wrong["note"]


def test_a_budget_that_is_used_up(tmp_path, monkeypatch):
    result = run(tmp_path, monkeypatch, CANDIDATES, {"128x128x2": "hang"}, budget=5)
    assert result["rows"] == []
    assert len(result["not_measured"]) == len(CANDIDATES) * len(SIZES)


def test_errors_of_files(tmp_path):
    for text, complaint in [
        ("{", "no JSON"),
        ("[]", "its kind is 'list'"),
        ('{"kind": "other"}', "its kind is 'other'"),
        ('{"kind": "fa4c tune plan", "schema": 9}', "schema 9"),
        ('{"kind": "fa4c tune plan", "schema": 1}', "'target'"),
    ]:
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(Diagnostic, match=complaint):
            measure(str(tmp_path), str(tmp_path / "out.json"))
    with pytest.raises(Diagnostic, match="cannot read this file"):
        measure(str(tmp_path / "none"), str(tmp_path / "out.json"))


def test_measuring_and_applying_need_no_compiler(tmp_path):
    """The whole of `--measure` and `--apply` with MLIR and the kernel DSL blocked."""
    folder(tmp_path, CANDIDATES, sizes=SIZES[:1])
    blocked = (
        "class Block:\n    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] in ('torch_mlir', 'cutlass'): raise ImportError(name)\n"
    )
    path = [str(tmp_path), str(tune_fakes.pathlib.Path(tune_fakes.__file__).parent)]
    code = (
        f"import sys\n{blocked}\nsys.meta_path.insert(0, Block()); sys.path[:0] = {path!r}\n"
        "from fa4c.tune.measure import measure\nfrom fa4c.tune.result import apply, table\n"
        f"result = measure({str(tmp_path)!r}, {str(tmp_path / 'r.json')!r}, bench='tune_fakes:Bench')\n"
        f"print(table(result)); print(apply(result, {str(tmp_path / 'tuned.json')!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tune_fakes.pathlib.Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert "192x128x2" in done.stdout
