"""What goes wrong on a machine or in a command, in one process: a run of `fa4c` each would import torch for seconds."""

import ast
import os
import pathlib
import re

import numpy
import pytest

from fa4c.cli.main import main


@pytest.fixture
def fa4c(capsys):
    """(exit status, stdout, stderr) of a command; nothing but argparse's own exit may escape."""

    def run(*args):
        try:
            status = main([*map(str, args)])
        except SystemExit as stop:
            status = stop.code
        return (status, *capsys.readouterr())

    return run


@pytest.fixture
def readme(root, tmp_path):
    """The first variant of the README, as a file."""
    path = tmp_path / "bent_window.mlir"
    path.write_text((root / "README.md").read_text().split("```mlir\n")[1].split("```")[0])
    return path


# -- output ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("args", [["passes"], ["--help"]])
def test_a_full_device(fa4c, monkeypatch, args):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        status, _, text = fa4c(*args)
    assert status == 1 and text.startswith("fa4c: error: the output cannot be written\nnote: why: No space left on device\n")
    assert text.count("\n") == 3


def test_a_reader_that_went_away(fa4c, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        assert fa4c("passes") == (1, "", "")


def test_closed_streams(fa4c, monkeypatch):
    """`fa4c passes >&-`: Python starts without the stream."""
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    assert main(["targets"]) == 0 and main(["targets", "sm_9"]) == 2


@pytest.mark.parametrize("args", [["compile", "-o"], ["explain", "--html"], ["tune", "--list", "--prepare"]])
@pytest.mark.skipif(not pathlib.Path("/proc/self").exists(), reason="there is no /proc")
def test_a_folder_that_takes_no_files_is_found_before_any_work(fa4c, examples, args, monkeypatch):
    for work in ("fa4c.lowering.compile.compile_text", "fa4c.explain.explain", "fa4c.tune.prepare.prepare"):
        monkeypatch.setattr(work, None)
    args = [args[0], examples / "causal.mlir", args[-1], "/proc/x"]
    status, out, text = fa4c(*args)
    assert (status, out) == (1, "") and text.startswith("/proc/x: error: cannot write ")


# -- sizes -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("args", "status", "says"), [
    (["--shape", "m=3000000000"], 2, "m = 3000000000 is too large"),
    (["--shape", "b=" + "9" * 5000], 2, "is too large"),
    (["--shape", "mm=3"], 2, "unknown size 'mm' (did you mean 'm'?)"),
    (["--input", "qq={one}"], 2, "there is no input 'qq'"),
    (["--input", "q=nofile.npy"], 1, "nofile.npy: error: cannot read this array\nnote: why: there is no such file\n"),
    (["--input", "q={one}", "--input", "q={one}"], 2, "'q' is given already"),
    (["--input", "q={one}", "--shape", "m=9"], 1, "q has m = 1, but --shape has m = 9"),
    (["--input", "q={one}", "--head-dim", "64"], 1, "q has d = 128, but this kernel is for d = 64"),
    (["--input", "k={one}", "--input", "q={one}", "--shape", "hq=4,hkv=2"], 1, "k has hkv = 1, but --shape has hkv = 2"),
    (["--target", "sm_99"], 2, "there is no target 'sm_99'"),
    (["--shape", "b=100000", "--backend", "reference"], 1, "q (b=100000, m=256, hq=4, d=128) is the largest, would take 104.9 GB"),
    (["--head-dim", "100000000", "--backend", "reference"], 1, "d=100000000) is the largest, would take 819.2 GB"),
    (["--shape", "b=1,hq=1,m=100000", "--backend", "reference"], 1, "the 100000 x 100000 scores and probabilities of one head"),
])
def test_sizes_that_cannot_be(fa4c, examples, monkeypatch, tmp_path, args, status, says):
    """Before anything is compiled or allocated."""
    monkeypatch.setattr("fa4c.cli.run.compile_file", None)
    monkeypatch.setattr("fa4c.runtime.memory.available", lambda device: 64e9)
    numpy.save(tmp_path / "one.npy", numpy.ones((1, 1, 1, 128), numpy.float32))
    args = [arg.format(one=tmp_path / "one.npy") for arg in args]
    found, out, text = fa4c("run", examples / "causal.mlir", "--direction", "fwd", *args)
    assert (found, out) == (status, "") and says in text and "note: " in text


def test_run_compiles_with_the_passes_it_is_told(fa4c, examples, monkeypatch):
    given = {}

    def compile_text(*_, **options):
        given.update(options)
        raise MemoryError("enough")

    monkeypatch.setattr("fa4c.lowering.compile.compile_text", compile_text)
    assert fa4c("run", examples / "causal.mlir", "--set", "attn-to-tile.block-n=64", "--disable-pass", "cse")[0] == 1
    assert given["overrides"] == [("attn-to-tile", "block-n", "64")] and given["disabled"] == ("cse",)


@pytest.mark.parametrize(("command", "change", "says"), [
    (["compile", "causal.mlir"], "tile-split-2cta.ctas=2", "does not run here"),  # on this target
    (["compile", "warp/gemm_bias_tanh.mlir", "--emit", "cute"], "attn-to-tile.block-n=64", "does not run here"),  # below its level
    (["explain", "causal.mlir", "--level", "tile"], "warp-specialize.roles=one", "does not run here"),  # above its level
    (["run", "causal.mlir", "--direction", "bwd"], "tile-conditional-rescale.threshold-log2=4", "does not run here"),
    (["run", "causal.mlir", "--disable-pass", "attn-to-tile"], "attn-to-tile.block-n=64", "'attn-to-tile' is left out"),
    (["opt", "causal.mlir", "--pass-pipeline", "attn-to-tile", "--disable-pass", "attn-to-tile"], "attn-to-tile.block-n=64", "is left out"),
])
def test_a_change_to_a_pass_that_does_not_run(fa4c, examples, monkeypatch, command, change, says):
    """Said before any pass runs; one that runs in either direction of two is none."""
    monkeypatch.setattr("fa4c.passes.registry._our_step", lambda *_: lambda module: 1 / 0)
    name, file, *rest = command
    status, _, text = fa4c(name, examples / file, *rest, "--set", change)
    assert status == 2 and text.startswith(f"fa4c: error: --set {change}: pass ") and says in text
    with pytest.raises(ZeroDivisionError):
        fa4c("compile", examples / "causal.mlir", "--direction", "both", "--set", "tile-conditional-rescale.threshold-log2=4")


def test_memory_that_ends_all_the_same(fa4c, examples, monkeypatch):
    import torch

    def full(*args, **kwargs):
        torch.empty(1 << 50)

    monkeypatch.setattr("fa4c.runtime.inputs.make_inputs", full)
    status, _, text = fa4c("run", examples / "causal.mlir", "--backend", "reference")
    assert status == 1 and text.startswith("fa4c: error: there is not enough memory\nnote: why: ") and "Traceback" not in text


@pytest.mark.parametrize(("args", "says"), [
    (["run", "x.mlir", "--seed", "9" * 20], "is no seed"),
    (["run", "x.mlir", "--seed", "-1"], "is no seed"),
    (["compile", "x.mlir", "--head-dim", "9" * 20], "is no head dim"),
    (["compile", "x.mlir", "-o", ""], "-o names no file"),
    (["compile", "x.mlir", "--set", "attn-to-tile.alike=" + "9" * 20], "must be an integer (below 2^31)"),
    (["compile", "x.mlir", "--set", "tile-conditional-rescale.threshold-log2=nan"], "must be a number (below 2^31)"),
    (["opt", "x.mlir", "--pass-pipeline", "func.func(" * 2000], "too many anchors"),
])
def test_values_that_cannot_be(fa4c, args, says):
    status, out, text = fa4c(*args)
    assert (status, out) == (2, "") and says in text


# -- files -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["check"], ["compile"], ["run"]])
@pytest.mark.parametrize("text", ["", "// nothing\n"])
def test_a_file_without_a_function(fa4c, tmp_path, command, text):
    path = tmp_path / "empty.mlir"
    path.write_text(text)
    status, out, text = fa4c(*command, path)
    assert (status, out) == (1, "") and text.startswith(f"{path}:1:1: error: the file holds no ")


def test_an_unknown_target_of_a_file_is_located(fa4c, tmp_path, examples):
    path = tmp_path / "x.mlir"
    path.write_text('module attributes {fa4c.target = "sm_99"} {\n' + (examples / "full.mlir").read_text() + "}\n")
    status, _, text = fa4c("compile", path, "--emit", "tile")
    assert status == 1 and text.startswith(f"{path}:1:1: error: there is no target 'sm_99'")


@pytest.mark.parametrize("command", [["compile", "{}"], ["explain", "{}"], ["tune", "--list", "{}"], ["targets", "sm_99"], ["run", "{}"]])
def test_an_unknown_target_is_wrong_usage(fa4c, examples, command):
    command = [part.format(examples / "causal.mlir") for part in command]
    status, out, text = fa4c(*command, *([] if command[0] == "targets" else ["--target", "sm_99"]))
    assert (status, out) == (2, "") and text.startswith("fa4c: error: there is no target 'sm_99'")


@pytest.mark.parametrize(("right", "wrong", "says"), [
    ("attn.softmax", "attn.sofmax", "note: fix: did you mean 'attn.softmax'?"),
    ('"attn.map"', '"attn.mapp"', "{path}:8:8: error: there is no operation 'attn.mapp'\nnote: why: the dialect attn has none of that "
     "name\nnote: fix: did you mean 'attn.map'?"),  # MLIR verifies its yield first
    ("math.tanh", "math.tahn", "note: fix: did you mean 'math.tanh'?"),  # nearest of all is math.tan, which means nothing here
    ('"attn.softmax"', "attn.softmax", "{path}:24:14: error: 'attn.softmax' stands here without quotes\nnote: why: "),  # MLIR says nothing
    ("sle, %j", "slle, %j", "note: fix: did you mean 'sle'?"),
    ("%seen = arith.cmpi sle, %j, %i", "%c0 = arith.constant 0 : index\n%by = arith.remsi %j, %c0 : index\n%seen = arith.cmpi sle, %j, %i",
     "error: 'arith.remsi' divides by 0\nnote: why: "),
    ('"attn.softmax', '"atn.softmax', "error: there is no operation 'atn.softmax'\nnote: why: the name before an operation's dot is one of "
     "attn, tile, warp, func, arith, math, scf\nnote: fix: did you mean 'attn'?\n"),  # MLIR's note has forty dialects
    ("arith.mulf", "airth.mulf", "error: there is no operation 'airth.mulf'\nnote: why: the name before an operation's dot is one of "
     "attn, tile, warp, func, arith, math, scf\nnote: fix: did you mean 'arith'?\n"),
    ('"attn.gemm"(%q, %k)', '"attn.gemm"(%q, %kk)', "{path}:7:24: error: use of undeclared SSA value name\nnote: why: no argument and no "
     "operation before it makes %kk\nnote: fix: did you mean %k?"),
    ('"attn.gemm"(%q, %k)', '"attn.gemm"(%q %k)', "{path}:7:22: error: expected ')' to end operand list\nnote: why: there stands "
     "`%k) {{transpose_b = true}} : (te...` behind `%s = \"attn.gemm\"(%q`\nnote: fix: write %result = "),
    ("\n}\n", "\n", "error: expected operation name in quotes\nnote: why: the text ends behind `...sor<?x128xbf16>, tensor<?xf32>`\n"
     "note: fix: close what is open: "),
    ("arith.cmpi sle, %j, %i : index", "arith.subi %j, %i : index", "note: {path}:19:5: prior use here"),
])
def test_a_slip_in_a_variant(fa4c, readme, right, wrong, says):
    readme.write_text(readme.read_text().replace(right, wrong, 1))
    status, _, text = fa4c("check", readme)
    assert status == 1 and text.startswith(f"{readme}:") and says.format(path=readme) in text
    assert f"did you mean '{right.split()[0]}'" not in text.replace(says, "")  # what is there already


def test_a_gradient_with_a_place_for_each_score_is_refused_by_its_name(fa4c, readme):
    """Of a captured bias; without it there is a backward."""
    text = readme.read_text().replace('"n", "dv"]})', '"n", "dv"]},\n    %bias: tensor<?x?xf32> {attn.name = "bias", attn.axes = ["hq"], '
                                      'attn.dims = ["m", "n"]})')
    text = text.replace("arith.mulf %x, %scale : f32\n", """arith.mulf %x, %scale : f32
    %at = "attn.load"(%bias, %i, %j) : (tensor<?x?xf32>, index, index) -> f32\n""")
    text = text.replace("math.tanh %y : f32", "arith.addf %y, %at : f32")
    readme.write_text(text)
    status, _, text = fa4c("compile", readme, "--direction", "bwd", "--emit", "tile")
    assert status == 1 and text.startswith(f"{readme}:26:14: error: 'attn.map' makes the m x n values of the result 'dbias'"), text
    assert fa4c("compile", readme, "--direction", "bwd", "--emit", "tile", "--set", "attn-derive-backward.wrt=q,k,v")[0] == 0


def test_what_else_to_disable(fa4c, examples):
    """P (1 - t^2), made early, fits a thread's registers only as one map with P."""
    command = ["compile", examples / "softcap.mlir", "--target", "sm_100a", "--direction", "bwd", "--emit", "warp"]
    command += ["--disable-pass", "tile-join-maps"]
    status, _, text = fa4c(*command)
    assert status == 1 and text.endswith("\nnote: fix: disable attn-early-factors, too, which counts on tile-join-maps\n")
    assert fa4c(*command, "--disable-pass", "attn-early-factors")[0] == 0


def test_a_backward_without_the_log_sum_exp_names_the_softmax(fa4c, readme):
    text = readme.read_text().replace(", %lse : tensor<?x128xbf16>, tensor<?xf32>", " : tensor<?x128xbf16>")
    head, rest = text.split(',\n        tensor<?xf32> {attn.name = "lse"')
    readme.write_text(head + rest[rest.index("})") + 1:])
    status, _, text = fa4c("compile", readme, "--direction", "bwd", "--emit", "tile")
    assert status == 1 and text.startswith(f"{readme}:23:14: error: 'attn.softmax' sums over n")
    assert "return the second result of this softmax" in text


def test_what_is_no_finite_number_is_counted(fa4c, readme):
    readme.write_text(readme.read_text().replace("0.0883883461", "0x7FC00000"))
    status, text, said = fa4c("run", readme, "--backend", "reference", "--check", "--shape", "m=8,n=8,hq=1")
    assert status == 1 and "o        bf16  (1, 8, 1, 128)  largest 0  mean of |x| 0  1024 NaN\n" in text
    assert "lse      f32   (1, 1, 8)  largest 0  mean of |x| 0  8 infinite\n" in text and "1024 NaN of 1024 in the reference" in said


# -- names -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a/b", "a b", "größe", "9", "a" * 200])
def test_a_name_that_is_no_identifier(fa4c, readme, name):
    """It would be the name of a Python function, of an entry of the PTX and of files."""
    readme.write_text(readme.read_text().replace("@bent_window", f'@"{name}"'))
    status, _, text = fa4c("compile", readme, "--emit", "cute")
    assert status == 1 and text.startswith(f"{readme}:1:1: error: 'func.func' has the name") and "which is no identifier" in text


@pytest.mark.parametrize("what", ["gemm_bias_tanh_kernel", "gemm_bias_tanh", "load"])
def test_names_of_kernels_hosts_and_roles(fa4c, examples, tmp_path, what):
    path = tmp_path / "x.mlir"
    path.write_text((examples / "warp" / "gemm_bias_tanh.mlir").read_text().replace(f'"{what}"', '"a/b"').replace(f"@{what},", '@"a/b",'))
    status, _, text = fa4c("check", path)
    assert status == 1 and text.startswith(f"{path}:") and 'has sym_name = "a/b", which is no identifier' in text


@pytest.mark.parametrize("name", ["class", "host", "m"])
def test_a_kernel_may_have_the_name_of_something_else(fa4c, examples, tmp_path, name):
    """Of a keyword of Python, or of what the emitted file calls so: its function has another one there, the PTX has the kernel's."""
    path = tmp_path / "x.mlir"
    path.write_text((examples / "warp" / "gemm_bias_tanh.mlir").read_text().replace("gemm_bias_tanh_kernel", name))
    status, source, text = fa4c("compile", path, "--emit", "cute")
    assert status == 0, text
    tops = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    function = tops[-3]
    assert tops[-2:] == ["host", "fake_args"] and len(set(tops)) == len(tops) and f'{function}.set_name_prefix("{name}"' in source
    assert not re.search(rf"\b{function}\b( =|: )", source.split('"""')[2])
