"""`fa4c run`: variants and artifacts on data, the comparison, and that an artifact needs no compiler."""

import json
import os
import re
import subprocess
import sys

import numpy
import pytest


@pytest.fixture
def artifact(tmp_path, root, monkeypatch):
    """An artifact that was not compiled: right semantics, members that no backend but the reference could use."""
    monkeypatch.setattr(sys, "path", [str(root / "test" / "runtime"), *sys.path])
    from runtime_samples import MEMBERS, attention_tree, manifest

    from fa4c.runtime.artifact import write

    path = tmp_path / "sample.fa4c"
    write(path, manifest(attention_tree()), MEMBERS)
    return path


def test_json(fa4c_cli, examples):
    result = json.loads(fa4c_cli.ok("run", examples / "causal.mlir", "--backend", "reference", "--shape", "b=2,hq=4,hkv=2,m=9,n=5",
                                    "--dtype", "fp16", "--head-dim", "64,32", "--check", "--json"))
    assert result["outputs"]["o"]["shape"] == [2, 9, 4, 32] and result["outputs"]["o"]["dtype"] == "fp16"
    assert result["outputs"]["lse"]["not_finite"] == 2 * 4 * 4  # bottom-right: the first four queries of each head see no key
    assert result["ok"] is True and all(row["ok"] for row in result["check"])


def test_given_inputs_fix_sizes_and_are_used(fa4c_cli, examples, tmp_path):
    """One key: the output is its value, whatever the queries are."""
    numpy.save(tmp_path / "v.npy", numpy.full((1, 1, 2, 128), 3.0, numpy.float32))
    result = json.loads(fa4c_cli.ok("run", examples / "full.mlir", "--backend", "reference", "--shape", "b=1,hq=2,hkv=2,m=7", "--input",
                                    f"v={tmp_path / 'v.npy'}", "--json"))
    assert result["sizes"]["n"] == 1
    assert result["outputs"]["o"]["largest"] == result["outputs"]["o"]["mean_abs"] == 3.0


def test_seed_changes_made_up_inputs(fa4c_cli, examples):
    args = ["run", examples / "full.mlir", "--backend", "reference", "--shape", "m=8,n=8", "--seed"]
    runs = [fa4c_cli.ok(*args, seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(("args", "status", "says"), [
    (["--shape", "m=x"], 2, "no NAME=INTEGER"),
    (["--shape", "mm=3"], 2, "unknown size 'mm'"),
    (["--shape", "hq=3,hkv=2"], 2, "--shape"),
    (["--input", "q"], 2, "NAME=FILE.npy"),
    (["--schedule", "random"], 2, "--schedule and --schedule-seed are of the emulator"),
    (["--set", "attn-to-tile.block-n=64"], 2, "--set does not apply to --backend reference"),
    (["--input", "q={root}/README.md"], 1, "cannot read this array"),
    (["--head-dim", "x"], 2, "no head dim"),
])
def test_wrong_data(fa4c_cli, examples, root, args, status, says):
    args = [arg.format(root=root) for arg in args]
    assert says in fa4c_cli.error("run", examples / "causal.mlir", "--backend", "reference", *args, status=status)


def test_integers_are_not_taken_for_floats(fa4c_cli, examples, tmp_path):
    numpy.save(tmp_path / "q.npy", numpy.ones((1, 4, 4, 128), numpy.int64))
    text = fa4c_cli.error("run", examples / "causal.mlir", "--backend", "reference", "--input", f"q={tmp_path / 'q.npy'}")
    assert "input 'q' is bf16, but the array is int64" in text


def test_a_file_below_the_attn_level_has_no_reference(fa4c_cli, examples):
    assert "needs one attn function" in fa4c_cli.error("run", examples / "tile" / "gemm.mlir", "--backend", "reference")


def test_no_gpu(fa4c_cli, artifact):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    text = fa4c_cli.error("run", artifact, "--backend", "cuda")
    assert "there is no GPU" in text and "note: fix: " in text


def test_artifact_runs_without_the_compiler(fa4c_cli, artifact, without):
    env = without("torch_mlir", "cutlass")
    assert "within tolerance" in fa4c_cli.ok("run", artifact, "--backend", "reference", "--check", env=env)
    assert "hashes and manifest right" in fa4c_cli.ok("check", artifact, env=env)


def test_an_artifact_cannot_be_retyped(fa4c_cli, artifact):
    assert "--dtype does not apply to an artifact" in fa4c_cli.error("run", artifact, "--dtype", "fp16", status=2)
    assert "--disable-pass does not apply to an artifact" in fa4c_cli.error("run", artifact, "--disable-pass", "cse", status=2)


def test_altered_artifact(fa4c_cli, artifact):
    data = bytearray(artifact.read_bytes())
    data[len(data) // 2] ^= 0xFF
    artifact.write_bytes(bytes(data))
    for command in (["check"], ["run"]):
        fa4c_cli.error(*command, artifact)
    artifact.write_bytes(bytes(data[: len(data) // 3]))
    assert "truncated" in fa4c_cli.error("check", artifact)


def test_out_of_tolerance_is_exit_status_1(fa4c_cli, artifact, root, tmp_path):
    """Results doubled behind the command's back."""
    (tmp_path / "sitecustomize.py").write_text(
        "import fa4c.runtime.execute as e\nright = e.run_reference\n"
        "e.run_reference = lambda *a: {name: 2 * value for name, value in right(*a).items()}\n")
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    done = fa4c_cli("run", artifact, "--backend", "reference", "--check", env=env)
    assert done.returncode == 1
    assert "check: OUT OF TOLERANCE" in done.stdout and "comparisons are out of tolerance" in done.stderr


# -- backward ------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def both(tmp_path, root, monkeypatch):
    """Paths of artifacts of both directions and of the backward alone, not compiled. Gradients are in another order than arguments."""
    monkeypatch.setattr(sys, "path", [str(root / "test" / "runtime"), *sys.path])
    from runtime_samples import BACKWARD_MEMBERS, backward_manifest, both_manifest

    from fa4c.runtime.artifact import write

    pair, alone = both_manifest(), backward_manifest()
    for manifest in (pair[0]["backward"], alone):
        manifest["tensors"].reverse()
    write(tmp_path / "both.fa4c", *pair)
    write(tmp_path / "bwd.fa4c", alone, BACKWARD_MEMBERS)
    return tmp_path


@pytest.mark.parametrize("example", ["alibi", "document"])
def test_the_derived_tree_against_autograd(fa4c_cli, examples, example):
    result = json.loads(fa4c_cli.ok("run", examples / f"{example}.mlir", "--direction", "both", "--backend", "reference", "--check",
                                    "--json", "--shape", "b=2,hq=4,hkv=2,m=20,n=13", "--head-dim", "32,16"))
    wanted = ["o", "lse", "dq", "dk", "dv"] + (["dslopes"] if example == "alibi" else [])
    assert list(result["outputs"]) == wanted and result["ok"] is True and result["direction"] == "both"
    assert result["outputs"]["dk"]["shape"] == [2, 13, 2, 32] and {row["tensor"] for row in result["check"]} == set(wanted)


SEVERAL = """
import contextlib, io, json, sys
from fa4c.cli.main import main

found = []
for command in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(command) or 0
    found.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""


def test_artifacts_run_in_their_directions(both, without):
    """One process for all: each would import torch for seconds."""
    run, pair, alone = ["--backend", "reference", "--check", "--shape", "m=20,n=13"], str(both / "both.fa4c"), str(both / "bwd.fa4c")
    commands = [["run", pair], ["run", pair, "--direction", "bwd"], ["run", pair, "--direction", "fwd"], ["run", alone],
                ["run", alone, "--direction", "both"]]
    done = subprocess.run([sys.executable, "-c", SEVERAL, json.dumps([[*command, *run] for command in commands])],
                          env={**os.environ, **without("torch_mlir", "cutlass")}, capture_output=True, text=True, timeout=300)
    (s1, first, _), (s2, backward, _), (s3, forward, _), (s4, only, _), (s5, _, message) = json.loads(done.stdout)
    assert (s1, s2, s3, s4, s5) == (0, 0, 0, 0, 2), done.stdout + done.stderr
    assert first.startswith("sample, both, on reference") and "dv       frobenius" in first and "lse      lse" in first
    assert "dv       frobenius" in backward and "lse      lse" not in backward and backward == only
    assert re.findall(r"^(d\w) +bf16", backward, re.MULTILINE) == ["dq", "dk", "dv"]  # of the arguments, not that of the kernels
    assert "dv       frobenius" not in forward
    assert "--direction both does not apply" in message and "compiled with --direction bwd" in message


def test_a_given_gradient_is_used(fa4c_cli, both, tmp_path):
    numpy.save(tmp_path / "do.npy", numpy.zeros((1, 20, 4, 64), numpy.float32))
    result = json.loads(fa4c_cli.ok("run", both / "both.fa4c", "--backend", "reference", "--shape", "n=13", "--json", "--check",
                                    "--input", f"do={tmp_path / 'do.npy'}"))
    assert result["sizes"]["m"] == 20 and result["outputs"]["dq"]["largest"] == result["outputs"]["dv"]["largest"] == 0


def test_wrong_gradients_are_exit_status_1(fa4c_cli, both, root):
    (both / "sitecustomize.py").write_text(
        "import fa4c.runtime.execute as e\nright = e.run_reference\n"
        "e.run_reference = lambda *a: {n: 1.1 * t if n == 'dk' else t for n, t in right(*a).items()}\n")
    done = fa4c_cli("run", both / "both.fa4c", "--backend", "reference", "--check", env={"PYTHONPATH": f"{both}{os.pathsep}{root}"})
    assert done.returncode == 1 and "2 of 9 comparisons are out of tolerance" in done.stderr and "dk" in done.stderr
