"""The command line: the documented examples, launch.json, exit status and located errors."""

import json
import pathlib
import random
import re
import subprocess
import sys

import numpy as np
import pytest
from emulator_kernels import bf16, f32, ptx
from test_units import raw_map

from fa4c.runtime.emulator.launch_file import main

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "emulate"


def test_module_runs_without_torch_or_mlir():
    code = (
        "import sys; import fa4c.runtime.emulator.launch_file as m; s = m.main(sys.argv[1:]); "
        "bad = {n.split('.')[0] for n in sys.modules} & {'torch', 'torch_mlir', 'cutlass', 'numba'}; assert not bad, bad; sys.exit(s)"
    )
    r = subprocess.run(
        [sys.executable, "-c", code, str(EXAMPLES / "softmax.ptx"), "--launch", str(EXAMPLES / "softmax.json")],
        capture_output=True,
        text=True,
        cwd=EXAMPLES.parents[1],
    )
    assert r.returncode == 0, r.stdout + r.stderr
    assert "0 hazards" in r.stdout


def edited(tmp_path, name, change):
    """A copy of an example's launch file with changes, beside its PTX."""
    data = json.loads((EXAMPLES / f"{name}.json").read_text())
    change(data)
    path = tmp_path / "launch.json"
    path.write_text(json.dumps(data))
    return [str(EXAMPLES / f"{name}.ptx"), "--launch", str(path)]


@pytest.mark.parametrize(
    "schedule", [[], ["--schedule", "random", "--schedule-seed", "4"], ["--no-hazards"], ["--strict"], ["--resident", "1"]]
)
def test_softmax_example(tmp_path, schedule, capsys):
    x = np.random.default_rng(2).standard_normal((5, 100)).astype(np.float32)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "want.npy", (e / e.sum(1, keepdims=True)).astype(np.float32))

    def change(d):
        d["buffers"]["in"] = {"dtype": "f32", "shape": [5, 100], "file": "x.npy"}
        d["buffers"]["out"] |= {"expect": "want.npy", "tolerance": 1e-6, "save": "out.npy"}

    assert main(edited(tmp_path, "softmax", change) + schedule) == 0, capsys.readouterr()
    assert np.load(tmp_path / "out.npy").shape == (5, 100)


def test_gemm_example(tmp_path, capsys):
    g = np.random.default_rng(0)
    a, b = bf16(g.standard_normal((64, 64))), bf16(g.standard_normal((64, 64)))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", f32(b))  # float32 files are rounded

    def change(d):
        d["buffers"]["A"] |= {"file": "a.npy"}
        d["buffers"]["B"] |= {"file": "b.npy"}
        d["buffers"]["C"] |= {"save": "c.npy"}

    assert main(edited(tmp_path, "gemm_cute", change) + ["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and report["counters"]["total"]["mma_flops"] == 2 * 64**3
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), f32(a).astype(np.float64) @ f32(b).T, atol=1e-4)


def test_raw_descriptor_bytes(tmp_path, capsys):
    """The same launch with its maps as 128 bytes each, as a driver would have encoded them; another swizzle gives other values."""

    def launch_with(swizzle):
        def change(d):
            d["buffers"]["C"] |= {"save": f"c{swizzle}.npy"}
            raw = raw_map(0x7F0012340000, 10, (64, 64), (128,), (64, 64), swizzle)
            d["params"][:2] = [dict(kind="tensor_map_bytes", buffer=p["buffer"], hex=raw.hex()) for p in d["params"][:2]]
        return edited(tmp_path, "gemm_cute", change)  # fmt: skip

    assert main(edited(tmp_path, "gemm_cute", lambda d: d["buffers"]["C"].update(save="c.npy"))) == 0
    assert main(launch_with(3)) == 0, capsys.readouterr()
    np.testing.assert_array_equal(np.load(tmp_path / "c3.npy"), np.load(tmp_path / "c.npy"))
    assert main(launch_with(0)) == 0
    assert (np.load(tmp_path / "c0.npy") != np.load(tmp_path / "c.npy")).any()
    short = dict(kind="tensor_map_bytes", buffer="A", hex="00")
    args = edited(tmp_path, "gemm_cute", lambda d: d["params"].__setitem__(0, short))
    assert main(args) == 1 and ": error: " in capsys.readouterr().err


def test_a_wrong_result_is_exit_status_1(tmp_path, capsys):
    np.save(tmp_path / "want.npy", np.zeros((5, 100), np.float32))
    assert main(edited(tmp_path, "softmax", lambda d: d["buffers"]["out"].update(expect="want.npy"))) == 1
    assert "differs from want.npy" in capsys.readouterr().out


def test_a_hazard_is_exit_status_1(tmp_path, capsys):
    text = (
        (EXAMPLES / "gemm_cute.ptx")
        .read_text()
        .replace("mbarrier.try_wait.parity", "mbarrier.test_wait.parity")
        .replace(", 0, 10000000;", ", 1;")
    )
    assert text != (EXAMPLES / "gemm_cute.ptx").read_text()
    (tmp_path / "k.ptx").write_text(text)
    assert main([str(tmp_path / "k.ptx"), "--launch", str(EXAMPLES / "gemm_cute.json")]) == 1
    out = capsys.readouterr().out
    assert "error: deadlock" in out and "k.ptx:" in out


BAD = {
    "no JSON": (lambda d: "{", "not JSON"),
    "unknown field": (lambda d: d.update(gird=[1]), "'gird'"),
    "missing field": (lambda d: d.pop("grid"), "'grid' is missing"),
    "unknown buffer": (lambda d: d["params"][0].update(buffer="nope"), "'nope'"),
    "unknown kind": (lambda d: d["params"][0].update(kind="thing"), "'thing'"),
    "unknown dtype": (lambda d: d["buffers"]["in"].update(dtype="f8"), "'f8'"),
    "unknown distribution": (lambda d: d["buffers"]["in"].update(random="cauchy"), "'cauchy'"),
    "missing file": (lambda d: d["buffers"]["in"].update(file="none.npy"), "none.npy"),
    "missing parameter": (lambda d: d["params"].pop(), "takes 4 parameters"),
    "buffer too small": (lambda d: d["buffers"]["out"].update(shape=[5, 99]), "out of bounds"),
    "too much memory": (lambda d: d["buffers"]["in"].update(shape=[1 << 16, 1 << 16]), "MB"),
    "wrong entry": (lambda d: d.update(entry="nope"), "no kernel 'nope'"),
    "bad grid": (lambda d: d.update(grid=[0, 1, 1]), "grid"),
    "bad cluster": (lambda d: d.update(cluster=[2, 1, 1]), "cluster"),
    "block": (lambda d: d.update(block=[2048, 1, 1]), "1024"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_launch_files(name, tmp_path, capsys):
    change, what = BAD[name]
    args = edited(tmp_path, "softmax", change)
    if name == "no JSON":
        (tmp_path / "launch.json").write_text("{")
    assert main(args) == 1
    err = capsys.readouterr().err
    assert what in err and ": error: " in err


WRONG = [None, "x", -1, 0, 1.5, [], {}, [None], "f32", 1 << 40, True, [-1], {"a": 1}, 1e300]


def places(data, at=()):
    for k, v in data.items() if isinstance(data, dict) else enumerate(data):
        yield *at, k
        if isinstance(v, (dict, list)):
            yield from places(v, (*at, k))


@pytest.mark.parametrize("name", ["softmax", "gemm_cute"])
def test_no_value_of_a_launch_file_is_a_traceback(name, tmp_path, capsys):
    """One value at a time replaced by something else: it runs, or it is an error with the file's name."""
    draw = random.Random(4)
    for _ in range(80):
        place = draw.choice(list(places(json.loads((EXAMPLES / f"{name}.json").read_text()))))
        wrong = draw.choice(WRONG)

        def change(d, place=place, wrong=wrong):
            for k in place[:-1]:
                d = d[k]
            d[place[-1]] = wrong

        status = main([*edited(tmp_path, name, change), "--max-steps", "20000"])
        out, err = capsys.readouterr()
        assert status in (0, 1) and (status == 0 or ": error: " in err + out), (place, wrong)


@pytest.mark.parametrize("name", ["softmax", "gemm_cute"])
def test_no_damage_to_the_text_is_a_traceback(name, tmp_path, capsys):
    """A token lost, doubled or swapped: it runs, or it is an error with a line."""
    draw, text = random.Random(5), (EXAMPLES / f"{name}.ptx").read_text()
    for _ in range(60):
        tokens = re.findall(r"\s+|[\w.%$:]+|.", text)
        k = draw.randrange(len(tokens) - 2)
        how = draw.choice(["lose", "double", "swap", "foreign"])
        if how == "swap":
            tokens[k], tokens[k + 2] = tokens[k + 2], tokens[k]
        else:
            tokens[k] = {"lose": "", "double": tokens[k] * 2, "foreign": draw.choice(["%r9999", "-1", "[", ".f32", "bra", "}"])}[how]
        (tmp_path / "k.ptx").write_text("".join(tokens))
        status = main([str(tmp_path / "k.ptx"), "--launch", str(EXAMPLES / f"{name}.json"), "--max-steps", "20000"])
        out, err = capsys.readouterr()
        assert status in (0, 1) and (status == 0 or "error: " in err + out), (how, tokens[k])


def test_step_limit(tmp_path, capsys):
    (tmp_path / "k.ptx").write_text(ptx("L: add.u32 %r4, %r4, 1;\nbra L;"))
    (tmp_path / "l.json").write_text(json.dumps({"entry": "k", "grid": [1], "block": [32], "smem": 0, "params": []}))
    assert main([str(tmp_path / "k.ptx"), "--launch", str(tmp_path / "l.json"), "--max-steps", "1000"]) == 1
    assert "1000 blocks" in capsys.readouterr().err


def test_co_residency(tmp_path, capsys):
    """CTA 0 waits for CTA 1: fine when both run, a report when only one may."""
    text = ptx(
        """ld.param.u64 %rd0, [flag]; mov.u32 %r4, %ctaid.x; setp.eq.u32 %p0, %r4, 1; @%p0 bra S;
W: ld.acquire.gpu.global.u32 %r5, [%rd0]; setp.eq.u32 %p1, %r5, 0; @%p1 bra W; bra E;
S: mov.u32 %r6, 1; setp.ne.u32 %p2, %r0, 0; @%p2 bra E; st.release.gpu.global.u32 [%rd0], %r6; E:""",
        [".u64 flag"],
    )
    (tmp_path / "k.ptx").write_text(text)
    (tmp_path / "l.json").write_text(
        json.dumps(
            {"grid": [2], "block": [32], "buffers": {"f": {"dtype": "u32", "shape": [1]}}, "params": [{"kind": "pointer", "buffer": "f"}]}
        )
    )
    args = [str(tmp_path / "k.ptx"), "--launch", str(tmp_path / "l.json")]
    assert main(args) == 0
    assert main([*args, "--resident", "1"]) == 1
    assert "co-residency" in capsys.readouterr().out


CHAIN = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry first(.param .u64 w) {
.reg .b32 %r<2>; .reg .b64 %rd<3>;
ld.param.u64 %rd0, [w]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd0, %rd0, %rd1;
EARLY st.global.u32 [%rd0], %r0;
ret; }
.visible .entry second(.param .u64 w, .param .u64 out) {
.reg .b32 %r<2>; .reg .b64 %rd<4>;
ld.param.u64 %rd0, [w]; ld.param.u64 %rd1, [out]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 4; add.u64 %rd0, %rd0, %rd2;
add.u64 %rd1, %rd1, %rd2;
WAIT ld.global.u32 %r1, [%rd0]; add.u32 %r1, %r1, 5; st.global.u32 [%rd1], %r1;
ret; }
"""


@pytest.mark.parametrize("early,waits,pdl,words,found", [
    ("", "", False, 32, None),
    ("", "", False, 31, "uninitialised: read of w"),
    ("griddepcontrol.launch_dependents;", "", True, 32, "race: read after write"),
    ("griddepcontrol.launch_dependents;", "griddepcontrol.wait;", True, 32, None),
])  # fmt: skip
def test_launches_one_after_the_other(early, waits, pdl, words, found, tmp_path, capsys):
    """Two kernels over a workspace; the second also from a file of its own."""
    text = CHAIN.replace("EARLY", early).replace("WAIT", waits)
    (tmp_path / "k.ptx").write_text(text)
    (tmp_path / "other.ptx").write_text(text)
    np.save(tmp_path / "want.npy", np.arange(5, 37, dtype=np.uint32))
    w, out = {"kind": "pointer", "buffer": "w"}, {"kind": "pointer", "buffer": "out"}
    buffers = {"w": {"dtype": "u32", "shape": [32], "poison": True}, "out": {"dtype": "u32", "shape": [32], "expect": "want.npy"}}
    then = {"entry": "second", "ptx": "other.ptx", "grid": 1, "block": 32, "params": [w, out], "pdl": pdl}
    launches = {"entry": "first", "grid": 1, "block": words, "buffers": buffers, "params": [w], "then": [then]}
    (tmp_path / "l.json").write_text(json.dumps(launches))
    status = main([str(tmp_path / "k.ptx"), "--launch", str(tmp_path / "l.json")])
    text = capsys.readouterr().out
    assert status == (1 if found else 0) and (found or ", 0 hazards, 0 warnings") in text, text
    main([str(tmp_path / "k.ptx"), "--launch", str(tmp_path / "l.json"), "--json"])
    assert [r["entry"] for r in json.loads(capsys.readouterr().out)["launches"]] == ["first", "second"]
    launches["then"][0]["gird"] = 1
    (tmp_path / "l.json").write_text(json.dumps(launches))
    assert main([str(tmp_path / "k.ptx"), "--launch", str(tmp_path / "l.json")]) == 1
    assert "launch 1: unknown field 'gird'" in capsys.readouterr().err


def test_processes(tmp_path, capsys):
    """The flag reaches the launch: atomics make it fall back, with a note."""
    (tmp_path / "k.ptx").write_text(ptx("ld.param.u64 %rd0, [n]; red.global.add.u32 [%rd0], 1;", [".u64 n"]))
    buffers = {"n": {"dtype": "u32", "shape": [1]}}
    (tmp_path / "l.json").write_text(
        json.dumps({"grid": [2], "block": [32], "buffers": buffers, "params": [{"kind": "pointer", "buffer": "n"}]})
    )
    args = [str(tmp_path / "k.ptx"), "--launch", str(tmp_path / "l.json")]
    assert main(args) == 0 and "one process" not in capsys.readouterr().out
    assert main([*args, "--processes", "2"]) == 0
    assert "ran in one process: atomics on global memory" in capsys.readouterr().out
    assert main([*args, "--processes", "0"]) == 1
