"""The GPU suite's own Python, by the reference backend on the CPU; and that it can fail."""

import json
import os
import pathlib
import subprocess
import sys
import types

import pytest
import torch
from runtime_samples import (
    ALIBI_SCORE,
    BACKWARD_MEMBERS,
    CAUSAL,
    MEMBERS,
    SLOPES,
    attention_tree,
    backward_manifest,
    both_manifest,
    manifest,
)

from fa4c.runtime import artifact, execute

SUITE = pathlib.Path(__file__).resolve().parent.parent / "gpu"


@pytest.fixture
def suite(monkeypatch):
    monkeypatch.setenv("FA4C_SUITE_DEVICE", "cpu")
    monkeypatch.syspath_prepend(str(SUITE))
    for name in ("cases", "run_gpu", "behaviours", "backward", "timing", "host_times"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import run_gpu

    yield run_gpu
    for name in ("cases", "run_gpu", "behaviours", "backward", "timing", "host_times"):
        sys.modules.pop(name, None)


def test_a_folder_runs_and_is_recorded(tmp_path):
    artifact.write(tmp_path / "causal.fa4c", manifest(), MEMBERS)
    artifact.write(tmp_path / "alibi.fa4c", manifest(attention_tree(score=ALIBI_SCORE, captures=[SLOPES])), MEMBERS)
    (tmp_path / "broken.fa4c").write_bytes(b"PK")
    command = [
        sys.executable,
        SUITE / "run_gpu.py",
        tmp_path,
        "--out",
        tmp_path / "r.json",
        "--cases",
        "one and,x 65,fused,no keys",
        "--commit",
        "abc",
    ]
    done = subprocess.run(command, env={**os.environ, "FA4C_SUITE_DEVICE": "cpu"}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "WRONG broken.fa4c" in done.stdout and "10 passed, 1 failed" in done.stdout, done.stdout + done.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["commit"] == "abc" and result["machine"]["torch"] == torch.__version__
    good = [r for r in result["rows"] if r["artifact"] != "broken.fa4c"]
    assert {r["artifact"] for r in good} == {"causal.fa4c", "alibi.fa4c"} and len(good) == 10 and all(0 <= r["ratio"] < 1 for r in good)


def test_every_view_holds_the_same_numbers(suite):
    import cases

    tree = attention_tree()
    for case in cases.LAYOUTS[:-1]:
        plain = cases.inputs_of(cases.Case("x", case.b, case.hq, case.hkv, case.m, case.n), tree)
        viewed = cases.inputs_of(case, tree)
        for name, t in viewed.items():
            wanted = plain[name]
            if case.view == "expanded heads" and name != "q":
                wanted = wanted[:, :, :1].expand_as(wanted)
            if case.view == "expanded batch" and name != "q":
                wanted = wanted[:1].expand_as(wanted)
            assert torch.equal(t, wanted), (case.view, name)
        changed = [n for n, t in viewed.items() if t.stride() != plain[n].stride() or t.data_ptr() % 16]
        assert changed, case.view


def wrong_result(change):
    def run(a, inputs, backend=None, outputs=None, want=None):
        got = original(a, inputs, backend="reference", outputs=outputs)
        change(got)
        return got

    original = execute.execute
    return run


@pytest.mark.parametrize(
    "change, note",
    [
        (lambda got: got["o"][0, 3, 0].add_(0.5), ""),
        (lambda got: got["o"][0, 3, 0, 5].fill_(float("nan")), "o: 1 NaN"),
        (lambda got: got["lse"][0, 0, 0].add_(1e-2), ""),
        (lambda got: got["o"].as_strided((1,), (1,), got["o"].storage_offset() - 1).fill_(0), "o: written outside"),
        (lambda got: got["lse"].as_strided((1,), (1,), got["lse"].storage_offset() + got["lse"].numel()).fill_(0), "lse: written outside"),
    ],
)
def test_a_wrong_kernel_fails(suite, monkeypatch, change, note):
    import cases

    a = artifact.build(manifest(attention_tree(mask=CAUSAL)), MEMBERS)
    case = cases.Case("x", 1, 2, 2, 33, 33)
    assert suite.run_case(a, case)["ok"]
    monkeypatch.setattr(execute, "execute", wrong_result(change))
    row = suite.run_case(a, case)
    assert not row["ok"] and note in row["note"]


def test_contents_do_what_their_names_say(suite):
    import cases

    tree = attention_tree()
    for case in cases.VALUES:
        given = cases.inputs_of(case, tree)
        s = given["q"][0, :, 0].double() @ given["k"][0, :, 0].double().T / 8
        assert torch.isfinite(s).all()
        top = s.unflatten(1, (4, -1)).amax(-1)
        if case.contents == "rising maxima":
            assert (top.diff(dim=1) > 1).all() and top[:, -1].max() > 40
        if case.contents == "falling maxima":
            assert (top.diff(dim=1) < -1).all()
        if case.contents == "all equal":
            assert (s == 0).all()
        if case.contents == "negative scores":
            assert s.max() < -100
        if case.contents == "large scores":
            assert s.abs().max() > 40
        if case.contents == "huge scores":
            assert s.abs().max() > 1000


def test_pairs_are_counted_from_the_mask(suite):
    import cases
    import timing

    for mask, wanted in ((CAUSAL, 2 * 3 * 40 * 41 // 2), (None, 2 * 3 * 1600)):
        tree = attention_tree(mask=mask)
        assert timing.visible_pairs(tree, cases.inputs_of(cases.Case("x", 2, 3, 3, 40, 40), tree)) == wanted


def test_both_directions_run_backward(tmp_path):
    artifact.write(tmp_path / "causal-both.fa4c", *both_manifest())
    artifact.write(tmp_path / "causal-bwd.fa4c", backward_manifest(), BACKWARD_MEMBERS)
    command = [sys.executable, SUITE / "run_gpu.py", tmp_path, "--out", tmp_path / "r.json", "--commit", "abc"]
    command += ["--cases", "one and,x 65,no ,dO odd,dO exp,m just"]
    done = subprocess.run(command, env={**os.environ, "FA4C_SUITE_DEVICE": "cpu"}, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert len({r["case"] for r in rows}) == 10 and len(rows) == 20 and all(0 <= r["ratio"] < 1 for r in rows)
    assert {"dq max", "dk frobenius", "dv max"} <= set(rows[0]["figures"])


@pytest.mark.parametrize(
    "change, note",
    [
        (lambda got: got["dq"][0, 3, 0].add_(0.5), ""),
        (lambda got: got["dk"][0, 0].mul_(1.1), ""),
        (lambda got: got["dv"][0, 3, 0, 5].fill_(float("nan")), "dv: 1 NaN"),
        (lambda got: got["dk"].as_strided((1,), (1,), got["dk"].storage_offset() - 1).fill_(0), "dk: written outside"),
    ],
)
def test_a_wrong_backward_fails(suite, monkeypatch, change, note):
    import cases

    a = artifact.build(*both_manifest())
    case = cases.Case("x", 1, 2, 2, 33, 33)
    assert suite.run_backward(a, case)["ok"]

    def run(a, inputs, backend=None, outputs=None, want=None):
        got = original(a, inputs, backend="reference", outputs=outputs, want=want)
        if a.direction == "bwd":
            change(got)
        return got

    original = execute.execute
    monkeypatch.setattr(execute, "execute", run)
    row = suite.run_backward(a, case)
    assert not row["ok"] and note in row["note"]


def test_every_gradient_view_holds_the_same_numbers(suite):
    import cases

    o = torch.empty(2, 33, 4, 64, dtype=torch.bfloat16)
    plain = cases.gradient_of(cases.Case("x", 2, 4, 4, 33, 33), o)
    for case in cases.GRADIENTS[1:7]:
        viewed = cases.gradient_of(case, o)
        assert torch.equal(viewed, plain) and (viewed.stride() != plain.stride() or viewed.data_ptr() % 16), case.grad
    assert not cases.gradient_of(cases.GRADIENTS[0], o).is_contiguous()


def test_the_suites_checks_run_on_the_cpu(suite, monkeypatch):
    """Those that need no GPU; the bitwise test fails where runs differ."""
    import backward

    monkeypatch.setattr(backward, "MANY", [backward.Case("x", 1, 2, 1, 20, 20)])
    monkeypatch.setattr(backward, "RUNS", 4)
    a = artifact.build(*both_manifest())
    assert backward.bitwise(a) is None and backward.dirty_workspaces(a) is None and backward.autograd(a) is None
    runs = iter(range(100))
    original = backward.Problem.run

    def shaky(self):
        return {n: t + (next(runs) == 5) for n, t in original(self).items()}

    monkeypatch.setattr(backward.Problem, "run", shaky)
    assert "1 of 4 runs differ" in backward.bitwise(a)
    monkeypatch.setattr(backward, "adds_in_any_order", lambda a: True)
    assert "shows nothing" in backward.bitwise(a)


def test_host_times_tell_of_a_slow_machine(suite, monkeypatch):
    """By a clock of its own: a machine that is slow for two thirds of the time takes 60 us for 30, and 20 for 10 of pure Python."""
    import backward
    import host_times

    clock, done = [0.0], []
    monkeypatch.setattr(host_times, "WARM", 1)
    monkeypatch.setattr(host_times, "BLOCKS", 9)
    monkeypatch.setattr(host_times, "CALLS", 3)
    monkeypatch.setattr(host_times, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))

    def taking(calm):
        def call():
            done.append(calm)
            slow = len(done) > 1 + 2 * 3 * 3  # behind the warm call and three blocks of each
            clock[0] += calm * (2e-6 if slow else 1e-6)

        return call

    monkeypatch.setattr(host_times, "pure_python", taking(10))
    assert host_times.measure(taking(30)) == {"us": 60, "us_least": 30, "python_us": 20, "python_us_least": 10}
    for measured in backward.HOST_TIMES:
        assert set(measured(artifact.build(*both_manifest()))) == {"us", "us_least", "python_us", "python_us_least"}


def test_compiled_functions_of_captured_tensors_are_compared(suite, monkeypatch):
    import backward
    from cases import Case

    monkeypatch.setattr(backward, "Case", lambda name, b, hq, hkv, m, n: Case(name, b, hq, hkv, m // 10, n // 10))
    a = artifact.build(*both_manifest(attention_tree(score=ALIBI_SCORE, captures=[SLOPES])))
    assert backward.compiled(a) is None
    seen = []
    monkeypatch.setattr(backward, "_same", lambda a, one, two: seen.append(one.shape) or len(seen) < 5)
    assert "the compiled function differs" in backward.compiled(a) and seen[4] == (4,)  # the slopes


def test_a_measured_group_of_gradients_is_compared(suite, monkeypatch):
    import backward
    import cases
    import timing

    case = cases.Case("x", 2, 6, 3, 40, 40)
    problem = backward.Problem(artifact.build(*both_manifest()), case)
    found = problem.run()
    ok, ratio = timing.compare_gradients(problem, case, found)
    assert ok and 0 < ratio < 1
    found["dk"][1, 3, 2] += 1  # in the group that is looked at
    assert timing.compare_gradients(problem, case, found)[0] is False
    assert timing.pairs_of(problem.forward, problem.given, case) == 2 * 6 * 40 * 41 // 2
