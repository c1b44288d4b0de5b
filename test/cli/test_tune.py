"""`fa4c tune` as a user meets it on a machine without a GPU."""

import json
import pathlib
import re

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
CAUSAL = str(EXAMPLES / "causal.mlir")
SHAPE = ("--shapes", "b=1,hq=4,m=4096")


def test_the_list_says_what_is_taken_and_why(fa4c_cli):
    text = fa4c_cli.ok("tune", CAUSAL, "--head-dim", "64", "--list", "--knobs", "l2", "--try", "128x160,192x256x3,100x64", *SHAPE)
    assert text.startswith("causal d=64, today:\n    ")
    assert "n = 4096" in text and "128x160x2" in text and " l2 " in text and "knobs: l2, " in text
    assert re.search(r"^    192x256x3 +left out: a thread would need about \d+ registers, but \d+ are there with 3", text, re.MULTILINE)
    assert re.search(r"^    100x64x2 +left out: blocks have 64 or 128 or 192 rows, 32 to 256 columns", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        ((), 2, "a FILE is needed"),
        ((CAUSAL, "--measure", "x"), 2, "--measure takes no FILE"),
        ((CAUSAL, "--apply", "x"), 2, "--apply takes no FILE"),
        ((CAUSAL, "--list", "--try", "128"), 2, "--try 128: not of the form"),
        ((CAUSAL, "--list", "--shapes", "b=x"), 2, "--shapes: 'b=x'"),
        ((CAUSAL, "--list", "--lengths", "1k"), 2, "no list of lengths"),
        ((CAUSAL, "--list", "--lengths", "99999999999"), 2, "no list of lengths from 1 to 1,048,576"),
        ((CAUSAL, "--list", "--shapes", "m=0"), 2, "m = 0 cannot be measured"),
        ((CAUSAL, "--list", "--factor", "nan"), 2, "'nan' is no number from 1 on"),
        ((CAUSAL, "--list", "--jobs", "0"), 2, "'0' is no whole number from 1 on"),
        ((CAUSAL, "--list", "--head-dim", "7"), 1, "has head dim 7 (d of q)"),
        ((CAUSAL, "--list", "--knobs", "l3"), 1, "no knob 'l3'"),
        ((CAUSAL, "--list", "--target", "sm_80"), 1, "target 'sm_80' is planned"),
        ((str(EXAMPLES / "tile" / "gemm.mlir"), "--list"), 1, "0 attn functions to tune"),
        (("--measure", "no/such/folder"), 1, "cannot read this file"),
        (("--apply", CAUSAL), 1, "this file is no JSON"),
        (("none.mlir", "--list"), 1, "cannot read this file"),
    ],
)
def test_mistakes(fa4c_cli, args, status, words):
    done = fa4c_cli("tune", *args)
    assert done.returncode == status, done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr


def test_without_a_gpu(fa4c_cli, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    (tmp_path / "plan.json").write_text(json.dumps({"schema": 1, "kind": "fa4c tune plan", "target": "sm_90a", "problems": []}))
    for args in ((CAUSAL,), ("--measure", str(tmp_path), "--out", str(tmp_path / "r.json"))):
        done = fa4c_cli("tune", *args)
        assert done.returncode == 1
        assert "there is no GPU that torch can use" in done.stderr and "--prepare DIR" in done.stderr


def test_apply_writes_data_that_targets_would_show(fa4c_cli, tmp_path):
    problem = {"mask": "all"}
    row = {"problem": problem, "variant": "full d=64", "sizes": {"n": 1024}, "baseline": "a"}
    shapes = {"a": [192, 128, 2], "b": [128, 96, 2]}
    rows = [
        {
            **row,
            "label": label,
            "ms": ms,
            "rounds_ms": [ms],
            "against": 2.0 / ms,
            "configuration": dict(zip(("block_m", "block_n", "buffers"), shapes[label])),
        }
        for label, ms in (("a", 2.0), ("b", 1.0))
    ]
    result = {
        "schema": 1,
        "kind": "fa4c tune result",
        "target": "sm_90a",
        "machine": {"gpu": "Fake", "driver": "1", "date": "2026-11-29"},
        "rows": rows,
        "wrong": [],
        "not_compiled": [],
        "not_measured": [],
    }
    (tmp_path / "r.json").write_text(json.dumps(result))
    out = tmp_path / "tuned.json"
    text = fa4c_cli.ok("tune", "--apply", str(tmp_path / "r.json"), "--out", str(out))
    assert "full d=64: 128x96x2    (Fake, driver 1, 2026-11-29: 2.000x the speed of a)" in text
    (entry,) = json.loads(out.read_text())["entries"]
    assert entry["problem"] == problem and entry["configurations"] == [{"block_m": 128, "block_n": 96, "buffers": 2}]
