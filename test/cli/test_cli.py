"""The command line as a user meets it: what is printed where, exit statuses, and that nothing half-done is left behind."""

import os
import re
import subprocess
import sys
import zipfile

import forked
import pytest

COMMANDS = ("compile", "opt", "run", "emulate", "check", "tune", "passes", "targets", "doctor", "cache")

PLAIN = """module {
  func.func @f(%a: f32) -> f32 {
    %b = arith.addf %a, %a : f32
    return %a : f32
  }
}
"""


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "plain.mlir"
    path.write_text(PLAIN)
    return path


# -- help ---------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(fa4c_cli, command):
    text = fa4c_cli.ok(command, "--help")
    assert "examples:" in text and f"fa4c {command}" in text


def test_the_flags_of_each_command_are_those_of_the_docs(fa4c_cli, root):
    _, _, table = (root / "docs" / "cli.md").read_text().partition("## Flags\n")
    heads, _, *rows = [line.strip("|").split("|") for line in table.partition("\n## ")[0].splitlines() if line.startswith("|")]
    assert len(rows) > 4
    for n, command in enumerate(heads[1:], 1):
        shown = re.findall(r"--[a-z-]+", fa4c_cli.ok(command.strip(" `"), "--help").partition("examples:")[0])
        for row in rows:
            assert {flag in shown for flag in re.findall(r"--[a-z-]+", row[0])} == {row[n].strip() == "yes"}, (command, row)


def test_help_lists_all_commands(fa4c_cli):
    text = fa4c_cli.ok("--help")
    assert all(f"    {command} " in text for command in COMMANDS)


def test_opt_help_is_fast():
    """0.4 s is the contract's figure. Counted is processor time, the least of five, since other tests run beside this one."""
    resource = pytest.importorskip("resource")
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "fa4c.cli", "opt", "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.4, times


@pytest.mark.parametrize("args", [["--help"], ["opt", "--help"], ["compile", "--help"], ["run", "--help"], ["targets"], ["cache", "dir"]])
def test_light_commands_import_neither_mlir_nor_torch(args):
    code = f"""
import sys
from fa4c.cli.main import main
try:
    main({args})
except SystemExit:
    pass
heavy = {{name.split('.')[0] for name in sys.modules}} & {{'torch', 'torch_mlir', 'cutlass', 'numpy'}}
sys.exit(f'imports {{heavy}}' if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- wrong usage: exit status 2 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("args", "says"), [
    ([], "a command is needed"),
    (["xyz"], "there is no command 'xyz'\nnote: fix: use one of: cache, check, "),
    (["complie", "{plain}"], "note: fix: did you mean 'compile'?"),
    (["opt"], "required"),
    (["opt", "{plain}"], "--pass-pipeline"),
    (["opt", "{plain}", "--pass-pipeline", "cse", "--frobnicate"], "fa4c opt has no flag --frobnicate\nnote: fix: "),
    (["opt", "{plain}", "--pass-pipelin=cse", "--no-lco"], "did you mean '--no-loc'?"),
    (["compile", "{plain}", "{plain}"], "fa4c compile has no place for "),
    (["opt", "{plain}", "--pass-pipeline", "canonicalise"], "did you mean 'canonicalize'?"),
    (["opt", "{plain}", "--pass-pipeline", "attn-retyp"], "did you mean 'attn-retype'?"),
    (["opt", "{plain}", "--pass-pipeline", "attn-retype{head-dims=64}"], "did you mean 'head-dim'?"),
    (["opt", "{plain}", "--pass-pipeline", "attn-retype{dtype=fp32}"], "must be one of bf16, fp16"),
    (["opt", "{plain}", "--pass-pipeline", "attn-retype{head-dim=big}"], "must be a list of integers"),
    (["opt", "{plain}", "--pass-pipeline", "func.func(attn-retype)"], "cannot run inside func.func"),
    (["opt", "{plain}", "--pass-pipeline", "canonicalize{nope=1}"], "no such option nope"),
    (["opt", "{plain}", "--pass-pipeline", "cse,"], "column 5"),
    (["opt", "{plain}", "--pass-pipeline", "func.func(cse"], "expected ')'"),
    (["opt", "{plain}", "--pass-pipeline", "cse", "--disable-pass", "csee"], "did you mean 'cse'?"),
    (["opt", "{plain}", "--pass-pipeline", "cse", "--set", "attn-retype"], "PASS.OPTION=VALUE"),
    (["opt", "{plain}", "--pass-pipeline", "cse", "--set", "attn-retype.head-dim=64"], "does not run here"),
    (["opt", "{plain}", "--pass-pipeline", "attn-retype", "--set", "attn-retype.hed-dim=64"], "did you mean 'head-dim'?"),
    (["compile", "{plain}", "--dtype", "fp8"], "--dtype takes no 'fp8'\nnote: why: its values are: bf16, fp16\nnote: fix: "),
    (["compile", "{plain}", "--emit", "cuda"], "did you mean 'cute'?"),
    (["compile", "{plain}", "--head-dim", "0"], "is no head dim"),
    (["compile", "{plain}", "--head-dim", "64,64,64"], "is no head dim"),
    (["compile", "-"], "needs a name"),
    (["compile", "{plain}", "--disable-pass", "tile-pipelin"], "there is no pass"),
    (["passes", "attn-retip"], "did you mean 'attn-retype'?"),
    (["cache", "burn"], "ACTION takes no 'burn'"),
    (["run", "{plain}", "--backend", "gpu"], "--backend takes no 'gpu'"),
    (["run", "{plain}", "--disable-pass", "tile-pipelin"], "did you mean 'tile-pipeline'?"),
    (["check", "{plain}", "--target", "sm_99"], "there is no target 'sm_99'"),
])
def test_wrong_usage(fa4c_cli, plain, args, says):
    text = fa4c_cli.error(*[arg.format(plain=plain) if arg == "{plain}" else arg for arg in args], status=2, stdin="")
    assert says in text


# -- bad input: exit status 1 -------------------------------------------------------------------------------------------------------------


def test_missing_file(fa4c_cli, tmp_path):
    assert "No such file" in fa4c_cli.error("opt", tmp_path / "nope.mlir", "--pass-pipeline", "cse")


def test_folder(fa4c_cli, tmp_path):
    assert "Is a directory" in fa4c_cli.error("opt", tmp_path, "--pass-pipeline", "cse")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(fa4c_cli, plain):
    plain.chmod(0)
    assert "Permission denied" in fa4c_cli.error("opt", plain, "--pass-pipeline", "cse")


@pytest.mark.parametrize(("content", "says"), [
    (b"\xff\xfe\x00\x01", "no MLIR text"),
    (b"module {\0}", "zero byte"),
    (b"# A heading\n\nand prose\n", "error"),
    (b"func.func @f() {", "error"),
    (b"module { \"attn.nope\"() : () -> () }", "attn.nope"),
], ids=["binary", "zero", "prose", "cut", "unknown-op"])
def test_no_mlir(fa4c_cli, tmp_path, content, says):
    path = tmp_path / "bad.mlir"
    path.write_bytes(content)
    text = fa4c_cli.error("opt", path, "--pass-pipeline", "cse", placed=says not in ("no MLIR text", "zero byte"))
    assert says in text and "bad.mlir" in text


def test_artifact_where_text_is_wanted(fa4c_cli, tmp_path):
    path = tmp_path / "x.fa4c"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", "{}")
    assert "artifact, not MLIR" in fa4c_cli.error("opt", path, "--pass-pipeline", "cse")


def test_verifier_error_has_place_reason_and_fix(fa4c_cli, examples, tmp_path):
    path = tmp_path / "bad.mlir"
    path.write_text((examples / "causal.mlir").read_text().replace("{transpose_b = true}", "{transpose_bb = true}"))
    text = fa4c_cli.error("opt", path, "--pass-pipeline", "cse", placed=True)
    assert "'attn.gemm' has no attribute 'transpose_bb'" in text
    assert "\nnote: why: " in text and "\nnote: fix: did you mean 'transpose_b'?" in text


@pytest.mark.parametrize("command", [["opt", "--pass-pipeline", "cse"], ["check"]], ids=["opt", "check"])
def test_signature_error_is_found_before_any_pass(fa4c_cli, examples, tmp_path, command):
    path = tmp_path / "bad.mlir"
    path.write_text((examples / "causal.mlir").read_text().replace("attn.align", "attn.allign"))
    assert "did you mean 'attn.align'?" in fa4c_cli.error(command[0], path, *command[1:], placed=True)


def test_unknown_and_planned_targets(fa4c_cli, plain):
    assert "known targets are: sm_90a, sm_100a, sm_80" in fa4c_cli.error("compile", plain, "--target", "sm_70", status=2)
    assert "planned (portable path: `cp.async`, `mma.sync`, LPT)" in fa4c_cli.error("compile", plain, "--target", "sm_80")


# -- opt ----------------------------------------------------------------------------------------------------------------------------------


def test_opt_prints_locations_unless_told_not_to(fa4c_cli, plain):
    with_locations = fa4c_cli.ok("opt", plain, "--pass-pipeline", "cse")
    assert f'loc("{plain}":2:3)' in with_locations
    assert "loc(" not in fa4c_cli.ok("opt", plain, "--pass-pipeline", "cse", "--no-loc")


def test_opt_reads_what_it_prints(fa4c_cli, plain):
    once = fa4c_cli.ok("opt", plain, "--pass-pipeline", "cse")
    assert fa4c_cli.ok("opt", "-", "--pass-pipeline", "", stdin=once) == once


def test_opt_names_standard_input_in_errors(fa4c_cli):
    assert "<stdin>:1:" in fa4c_cli.error("opt", "-", "--pass-pipeline", "cse", stdin="nonsense", placed=True)


def test_nested_upstream_pipeline(fa4c_cli, plain):
    assert "arith.addf" in fa4c_cli.ok("opt", plain, "--pass-pipeline", "", "--no-loc")
    assert "arith.addf" not in fa4c_cli.ok("opt", plain, "--pass-pipeline", "builtin.module(func.func(canonicalize,cse))", "--no-loc")


def test_disabled_pass_is_left_out(fa4c_cli, plain):
    text = fa4c_cli.ok("opt", plain, "--pass-pipeline", "func.func(canonicalize)", "--disable-pass", "canonicalize", "--no-loc")
    assert "arith.addf" in text


def test_set_changes_every_occurrence(fa4c_cli, examples):
    text = fa4c_cli.ok("opt", examples / "causal.mlir", "--pass-pipeline", "attn-retype{head-dim=64},attn-retype{head-dim=32}",
                       "--set", "attn-retype.head-dim=96,80", "--no-loc")
    assert "tensor<?x96xbf16>" in text and "tensor<?x80xbf16>" in text and "x64x" not in text and "x32x" not in text


def test_print_ir_after_all_and_timing_go_to_stderr(fa4c_cli, plain):
    done = fa4c_cli("opt", plain, "--pass-pipeline", "cse,canonicalize", "--print-ir-after-all", "--timing", "--no-loc")
    assert done.returncode == 0 and done.stdout.startswith("module {")
    assert done.stderr.count("IR after ") == 2 and "IR after canonicalize" in done.stderr
    assert "ms  cse" in done.stderr and "ms  total" in done.stderr


def test_reader_that_goes_away_is_no_error_text(plain):
    """`fa4c opt ... | head -1`: quiet, whatever the reader did not want."""
    process = subprocess.Popen([sys.executable, "-m", "fa4c.cli", "opt", str(plain), "--pass-pipeline", "cse"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1


@pytest.mark.skipif(not forked.POSSIBLE, reason="this system cannot fork")
@pytest.mark.parametrize("signal", [0, 11])
def test_a_forked_command_ends_as_a_fresh_one(tmp_path, monkeypatch, signal):
    """By its status, or by a signal: `not fa4c ...` in a lit test takes a crash for no refusal."""
    (tmp_path / "ends.py").write_text("import os\nimport fa4c.cli.main as m\nm.main = lambda args: os.kill(os.getpid(), int(args[0]))\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = forked.Server(["ends"])
    done = subprocess.run([sys.executable, "-I", "-S", forked.__file__, server.address, str(signal)], capture_output=True, text=True)
    server.stop()
    assert (done.returncode, done.stderr) == (-signal, "")


# -- check, compile, the lists ------------------------------------------------------------------------------------------------------------


def test_check_every_example(fa4c_cli, examples):
    for path in sorted(examples.glob("*.mlir")):
        assert fa4c_cli.ok("check", path) == f"{path}: ok: attn level, verified, and lowered for sm_90a\n"


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_check_refuses_what_compile_refuses(fa4c_cli, examples, tmp_path, target):
    """A variant in f32 is right as IR, and the reference evaluates it."""
    path = tmp_path / "f32.mlir"
    path.write_text((examples / "causal.mlir").read_text().replace("bf16", "f32"))
    said = fa4c_cli.error("check", path, "--target", target, placed=True)
    assert said == fa4c_cli.error("compile", path, "--target", target, "--emit", "tile", placed=True)
    assert said.startswith(f"{path}:10:8: error: 'attn.gemm' multiplies f32 (q)\nnote: why: tensor cores take bf16, fp16\n")


def test_check_damaged_artifact(fa4c_cli, tmp_path):
    path = tmp_path / "x.fa4c"
    path.write_bytes(b"PK\x03\x04 cut")
    assert "truncated" in fa4c_cli.error("check", path)
    path.write_bytes(b"")
    fa4c_cli.error("check", path)


def test_failed_compile_leaves_nothing_and_keeps_the_old_file(fa4c_cli, plain, tmp_path):
    output = tmp_path / "out.txt"
    output.write_text("old")
    fa4c_cli.error("compile", plain, "--emit", "cute", "-o", output)
    assert output.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.txt", "plain.mlir"]


def test_compile_refuses_a_place_it_cannot_write_before_it_works(fa4c_cli, plain, tmp_path):
    assert "there is no folder" in fa4c_cli.error("compile", plain, "-o", tmp_path / "nowhere" / "x.fa4c")
    assert "it is a folder" in fa4c_cli.error("compile", plain, "-o", tmp_path)


def test_passes_lists_options_defaults_and_what_it_does(fa4c_cli):
    text = fa4c_cli.ok("passes")
    assert "attn-retype{dtype=none head-dim=}\n    Give an attn function another" in text
    assert "Constants keep their values" in fa4c_cli.ok("passes", "attn-retype")


def test_targets(fa4c_cli):
    text = fa4c_cli.ok("targets")
    assert "sm_90a   ready" in text and "sm_80    planned" in text
    assert "smem_bytes = 232448" in fa4c_cli.ok("targets", "sm_90a")


def test_doctor_names_each_part_and_what_a_missing_one_costs(fa4c_cli):
    import json

    findings = {entry["name"]: entry for entry in json.loads(fa4c_cli.ok("doctor", "--json"))}
    assert {"torch", "torch-mlir", "nvidia-cutlass-dsl", "cuda-bindings", "ptxas", "nvdisasm", "NVIDIA driver"} <= set(findings)
    text = fa4c_cli.ok("doctor", env={"PATH": ""})
    for entry in findings.values():
        if not entry["found"]:
            assert entry["purpose"] and entry["purpose"] in text


def test_cache(fa4c_cli, tmp_path):
    env = {"FA4C_CACHE_DIR": str(tmp_path)}
    (tmp_path / "bad.fa4c").write_text("no zip")
    assert fa4c_cli.ok("cache", "dir", env=env) == f"{tmp_path}\n"
    assert "damaged" in fa4c_cli.ok("cache", env=env)
    assert "removed 1 kernels" in fa4c_cli.ok("cache", "clear", env=env)
    assert list(tmp_path.iterdir()) == []


def test_missing_package_is_named(fa4c_cli, plain, without):
    """A machine that only runs artifacts has no torch-mlir."""
    text = fa4c_cli.error("opt", plain, "--pass-pipeline", "cse", env=without("torch_mlir"))
    assert "the package torch-mlir is not installed" in text and "pip install torch-mlir" in text


def test_our_bug_says_so_and_keeps_its_traceback(fa4c_cli, root, plain, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import fa4c.cli.opt as opt\ndef run(args):\n    raise ZeroDivisionError('by our mistake')\nopt.run = run\n")
    done = fa4c_cli("opt", plain, "--pass-pipeline", "cse", env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}, traceback=True)
    assert done.returncode == 1
    assert "this is a bug in fa4c" in done.stderr and "ZeroDivisionError: by our mistake" in done.stderr
