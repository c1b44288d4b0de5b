"""`fa4c explain` as a user starts it."""

import json
import pathlib
import re

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent / "examples"
CAUSAL = EXAMPLES / "causal.mlir"


def test_json_has_the_documented_keys(fa4c_cli):
    found = json.loads(fa4c_cli.ok("explain", CAUSAL, "--target", "sm_100a", "--json", "--shape", "m=300,n=300"))
    documented = (EXAMPLES.parent / "docs" / "explain.md").read_text()
    (kernel,), (launch,) = found["kernels"], found["launches"]
    keys = {*found, *kernel, *kernel["steps"][0], *kernel["steps"][0]["clocks"], *launch}
    assert sorted(key for key in keys if f"`{key}`" not in documented) == []
    assert launch["grid"] == [8, 1, 1]


def test_text_html_and_any_level(fa4c_cli, tmp_path):
    text = fa4c_cli.ok("explain", CAUSAL, "--target", "sm_100a", "--html", tmp_path / "out.html")
    assert text == "" and "<h2>causal_fwd: tensor memory</h2>" in (tmp_path / "out.html").read_text()
    warp = fa4c_cli.ok("compile", CAUSAL, "--target", "sm_100a", "--emit", "warp")
    shown = fa4c_cli.ok("explain", "-", stdin=warp)
    assert "mma               2,048  <- bound" in shown and "mma       1 of 1" in shown and "epilogue  1 of 2" in shown


def test_what_each_pass_changed_is_said_in_short_lines(fa4c_cli):
    """Of `cse` too, which takes away index arithmetic only. In the tables before, each buffer has a name of its own."""
    tables, _, shown = fa4c_cli.ok("explain", CAUSAL, "--target", "sm_100a", "--direction", "bwd").partition("what each pass changed\n")
    assert "causal_bwd_main: clocks of one step of its block loop\n" in tables  # a pass made it: no place in the file
    (rows,) = re.findall(r"main: shared memory\n.*\n.*\n((?:  .*\n)+)", tables)
    assert sorted(re.findall(r"^  (\S+(?: for \S+)?) +\d+ +\d ", rows, re.MULTILINE)) == [
        "delta for du", "dk", "do for dpc", "dq", "dq_sum for dq", "dv", "k for s", "lse_ for p", "q for s", "v for dpc"]
    assert re.search(r"q for s +tile.load", tables)
    lines = [line.split(maxsplit=1) for line in shown.splitlines()[1:] if not line.startswith("   ")]
    assert [line for line in lines if len(line) < 2] == [] and max(map(len, shown.splitlines())) < 140
    assert any(name == "cse" and " arith" in said for name, said in lines)


def test_refusals(fa4c_cli):
    assert "one direction" in fa4c_cli.error("explain", CAUSAL, "--direction", "both", status=2)
    assert "no NAME=INTEGER" in fa4c_cli.error("explain", CAUSAL, "--shape", "m", status=2)
    for shape in ("m=2147483647", "m=3000000", "b=9999,m=99999"):  # what would take minutes, or more memory than there is
        assert "note: fix: choose smaller " in fa4c_cli.error("explain", CAUSAL, "--shape", shape, placed=True)
    assert "has no size mm" in fa4c_cli.error("explain", CAUSAL, "--shape", "mm=3", placed=True)
