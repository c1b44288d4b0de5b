"""`fa4c compile`: every level out, every level in, and what is left behind when it fails."""

import importlib.util
import re

import pytest

from fa4c.passes.pipeline_text import parse
from fa4c.passes.pipelines import pipeline

LEVELS = ("attn", "tile", "warp")
needs_dsl = pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason="nvidia-cutlass-dsl is not installed")


@pytest.fixture(scope="module")
def levels(fa4c_cli, examples, tmp_path_factory):
    """causal.mlir at each level, as files, and its CuTe-DSL source."""
    folder = tmp_path_factory.mktemp("levels")
    for level in LEVELS:
        fa4c_cli.ok("compile", examples / "causal.mlir", "--emit", level, "-o", folder / f"{level}.mlir")
    (folder / "cute.py").write_text(fa4c_cli.ok("compile", examples / "causal.mlir", "--emit", "cute"))
    return folder


@pytest.mark.parametrize("level", ["attn", "tile", "warp"])
def test_entering_at_any_level_gives_the_same_source(fa4c_cli, levels, level):
    assert fa4c_cli.ok("compile", levels / f"{level}.mlir", "--emit", "cute") == (levels / "cute.py").read_text()


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_is_one_level(fa4c_cli, levels, level):
    assert f"ok: {level}" in fa4c_cli.ok("check", levels / f"{level}.mlir")
    assert "loc(" in (levels / f"{level}.mlir").read_text()


def test_standard_input_and_output(fa4c_cli, levels):
    assert fa4c_cli.ok("compile", "-", "--emit", "cute", stdin=(levels / "attn.mlir").read_text()) == (levels / "cute.py").read_text()


def test_a_pass_left_out_that_goes_down_a_level(fa4c_cli, examples):
    for level, name in (("tile", "attn-to-tile"), ("warp", "warp-specialize")):
        said = fa4c_cli.error("compile", examples / "causal.mlir", "--emit", level, "--disable-pass", name)
        assert f"the passes did not reach the {level} level" in said


def test_no_loc(fa4c_cli, examples):
    assert "loc(" not in fa4c_cli.ok("compile", examples / "causal.mlir", "--emit", "tile", "--no-loc")


def test_going_up_is_refused(fa4c_cli, levels):
    assert "tile level cannot be brought to the attn level" in fa4c_cli.error("compile", levels / "tile.mlir", "--emit", "attn")


@pytest.mark.parametrize("flag", [["--dtype", "fp16"], ["--head-dim", "64"]])
def test_retyping_below_attn_is_refused(fa4c_cli, levels, flag):
    assert "is of the tile level" in fa4c_cli.error("compile", levels / "tile.mlir", "--emit", "tile", *flag)


def test_retyping_changes_the_kernel(fa4c_cli, examples):
    text = fa4c_cli.ok("compile", examples / "causal.mlir", "--emit", "tile", "--dtype", "fp16", "--head-dim", "64,96", "--no-loc")
    assert "x64xf16, #tile.smem" in text and "x96xf16, #tile.smem" in text and "bf16" not in text


def test_set_and_disable_reach_the_standard_pipeline(fa4c_cli, examples, levels):
    smaller = fa4c_cli.ok("compile", examples / "causal.mlir", "--emit", "tile", "--set", "attn-to-tile.block-n=64")
    assert "tensor<64x128xbf16, #tile.smem>" in smaller and smaller != (levels / "tile.mlir").read_text()
    other = fa4c_cli.ok("compile", examples / "causal.mlir", "--emit", "cute", "--disable-pass", "tile-lpt-grid")
    assert other != (levels / "cute.py").read_text()


def test_print_ir_and_timing(fa4c_cli, examples):
    done = fa4c_cli("compile", examples / "causal.mlir", "--emit", "tile", "--print-ir-after-all", "--timing")
    assert done.returncode == 0 and "IR after attn-to-tile" in done.stderr and re.search(r"ms  attn-to-tile", done.stderr)


def test_print_ir_shows_what_changed(fa4c_cli, examples):
    """A pass that makes another module shows all of it, one that writes a schedule those lines, one that does nothing says so."""
    done = fa4c_cli("compile", examples / "causal.mlir", "--emit", "tile", "--print-ir-after-all")
    shown = dict(re.findall(r"// -----// IR after (\S+) //----- // (.*\n(?:(?!// -----).*\n)*)", done.stderr))
    assert shown["attn-to-tile"].startswith("all ") and '"tile.kernel"' in shown["attn-to-tile"]
    assert shown["tile-multicast"].strip() == "nothing changed"
    come, go = (re.findall(rf"^[{sign}] .*", shown["tile-pipeline"], re.MULTILINE) for sign in "+-")
    assert "@@ line" in shown["tile-pipeline"] and ", causal_fwd" in shown["tile-pipeline"] and len(come) == len(go) > 5
    assert all("order = " in line for line in come) and not any("order = " in line for line in go)
    assert not re.search(r"^[+-] +%\d+ = arith", shown["tile-pipeline"], re.MULTILINE)


def test_print_ir_of_a_backward_in_tensor_memory(fa4c_cli, examples):
    """Each pass of the pipeline by name, with what it is there for: GEMMs, transposed ones, places in tensor memory, order, columns."""
    command = ("compile", examples / "causal.mlir", "--target", "sm_100a", "--direction", "bwd", "--emit", "warp", "--print-ir-after-all")
    done = fa4c_cli(*command, "--set", "tile-split-2cta.ctas=2", "--set", "attn-to-tile.alike=2")
    shown = dict(re.findall(r"// -----// IR after ([\w-]+).* //----- // (.*\n?(?:(?!// -----).*\n)*)", done.stderr))
    assert list(shown) == [item.name for item in parse(pipeline("sm_100a", "bwd"))]
    assert shown["attn-derive-backward"].count('"attn.gemm"') == 5
    for name, comes, goes in (
        ("attn-transpose-recompute", '"attn.gemm"(%k, %q) {transpose_b', '"attn.gemm"(%q, %k) {transpose_b'),
        ("tile-split-2cta", '"tile.cta_rank"()', None), ("tile-split-2cta", "ctas = 2 : i64", None),
        ("tile-insert-dsmem-exchange", '"tile.exchange"(', '"tile.to_shared"('),
        ("tile-accumulate-in-tmem", "#tile.tmem<-1 : i64>", None), ("tile-pipeline", "order = ", None),
        ("tile-alias-tmem", "#tile.tmem<0 : i64>", "#tile.tmem<-1 : i64>"), ("tile-alias-tmem", "after = array<i64:", None),
        ("warp-insert-barriers", '"warp.tcgen05_commit"(', '"warp.signal"('),
    ):  # fmt: skip
        come, go = (re.findall(rf"^[{sign}] .*", shown[name], re.MULTILINE) for sign in "+-")
        assert any(comes in line for line in come) and not any(comes in line for line in go), (name, comes)
        assert goes is None or any(goes in line for line in go), (name, goes)


def test_a_pipeline_that_does_not_reach_the_warp_level(fa4c_cli, examples):
    assert "did not reach the warp level" in fa4c_cli.error("compile", examples / "causal.mlir", "--emit", "cute", "--pass-pipeline", "cse")


def test_passes_in_an_order_that_cannot_work(fa4c_cli, examples):
    text = fa4c_cli.error("compile", examples / "causal.mlir", "--emit", "cute", "--pass-pipeline", "warp-specialize,attn-to-tile")
    assert "note: " in text


def test_no_kernel_in_the_file(fa4c_cli):
    assert "the file holds no kernel" in fa4c_cli.error("compile", "-", "--emit", "cute", stdin="module {}")


@pytest.mark.parametrize(("flag", "says"), [(["--head-dim", "7"], "7"), (["--head-dim", "512"], "512")])
def test_head_dims_out_of_range(fa4c_cli, examples, flag, says):
    text = fa4c_cli.error("compile", examples / "causal.mlir", "--emit", "tile", *flag)
    assert says in text and "note: " in text


def test_direction_bwd(fa4c_cli, examples):
    """Five GEMMs in one kernel, also where the order of sums is fixed; two in that which corrects delta where there are few keys."""
    compile = ("compile", examples / "causal.mlir", "--direction", "bwd", "--emit", "attn")
    for options in ((), ("--deterministic",)):
        functions = fa4c_cli.ok(*compile, *options).split("func.func @causal_bwd_")[1:]
        gemms = {text.partition("(")[0]: text.count('"attn.gemm"') for text in functions}
        assert gemms == {"preprocess": 0, "refine": 2, "main": 5, "postprocess": 0}


# -- the last steps ---------------------------------------------------------------------------------------------------------------------


def test_all_up_to_cute_works_without_the_dsl(fa4c_cli, examples, levels, tmp_path, without):
    """On a Mac there is no wheel of it."""
    env = without("cutlass")
    assert fa4c_cli.ok("compile", examples / "causal.mlir", "--emit", "cute", env=env) == (levels / "cute.py").read_text()
    output = tmp_path / "causal.fa4c"
    output.write_text("old")
    text = fa4c_cli.error("compile", examples / "causal.mlir", "-o", output, env=env)
    assert "nvidia-cutlass-dsl" in text and "--emit cute" in text
    assert output.read_text() == "old" and sorted(path.name for path in tmp_path.iterdir()) == ["causal.fa4c"]


@needs_dsl
def test_artifact_from_text_to_numbers(fa4c_cli, examples, levels, tmp_path):
    import zipfile

    assert fa4c_cli.ok("compile", examples / "causal.mlir", "--target", "sm_90a", cwd=tmp_path) == "causal.fa4c\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["causal.fa4c"]
    with zipfile.ZipFile(tmp_path / "causal.fa4c") as members:
        suffixes = {name.partition(".")[2] for name in members.namelist()}
        assert suffixes == {"json", "ptx", "cubin", "cute.py", *(f"{level}.mlir" for level in LEVELS)}
        assert members.read("causal.cute.py").decode() == (levels / "cute.py").read_text()
    assert "hashes and manifest right" in fa4c_cli.ok("check", tmp_path / "causal.fa4c")
    text = fa4c_cli.ok("run", tmp_path / "causal.fa4c", "--backend", "emulator", "--shape", "b=1,hq=2,hkv=1,m=70,n=130", "--check")
    assert "check: within tolerance" in text


@needs_dsl
def test_a_plain_gemm_runs(fa4c_cli, examples):
    text = fa4c_cli.ok("run", examples / "tile" / "gemm.mlir", "--backend", "emulator", "--shape", "m=70,n=72,k=64")
    assert text.startswith("gemm on emulator for sm_90a: m=70 n=72 k=64\n")
    assert "nothing to compare with" in fa4c_cli.error("run", examples / "tile" / "gemm.mlir", "--shape", "m=8,n=8,k=64", "--check")
