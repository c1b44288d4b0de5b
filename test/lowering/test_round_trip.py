"""Only text travels between passes: one pass at a time through files gives the CuTe-DSL source of one process, byte for byte."""

import re

import compiled
import pytest

from fa4c.ir.context import new_context, parse_module, print_module
from fa4c.ir.mlir import ir
from fa4c.lowering import cute_source
from fa4c.passes.pipeline_text import format_pipeline
from fa4c.passes.pipelines import pipeline
from fa4c.passes.registry import resolve, run_pipeline
from fa4c.runtime import cache

ATTENTION = sorted(path.name for path in compiled.EXAMPLES.glob("*.mlir"))
PROGRAMS = [
    *((name, "attn") for name in ATTENTION),
    ("tile/gemm.mlir", "tile"),
    ("tile/two_gemms.mlir", "tile"),
    ("warp/gemm_bias_tanh.mlir", "warp"),
]


def pass_by_pass(path, entry: str, folder, locations: bool = True) -> str:
    """The source at the end of files that hold the module after each pass. Each pass has a context of its own."""
    text = (compiled.EXAMPLES / path).read_text()
    file = folder / "0.mlir"
    file.write_text(text)
    filename = str(compiled.EXAMPLES / path)
    for number, item in enumerate([None, *resolve(pipeline("sm_90a", "fwd", entry=entry, emit="warp"))]):
        with new_context() as context, ir.Location.unknown():
            module = parse_module(file.read_text(), filename, context)
            if item is None:  # what `compile` writes into every module first
                module.operation.attributes["fa4c.target"] = ir.StringAttr.get("sm_90a")
            else:
                run_pipeline(module, format_pipeline([item]))
            file = folder / f"{number + 1}.mlir"
            file.write_text(print_module(module, locations))
            filename = str(file)
    with new_context() as context, ir.Location.unknown():
        (source,) = cute_source.emit(parse_module(file.read_text(), str(file), context)).values()
        return source


@pytest.mark.parametrize(("path", "entry"), PROGRAMS)
def test_pass_by_pass_equals_one_process(path, entry, tmp_path):
    assert pass_by_pass(path, entry, tmp_path) == compiled.level(path, "cute")


def test_without_locations_only_comments_and_names_differ(tmp_path):
    """So the comparison above can fail. Locations, and the names in them, are part of the text; what the code does is not up to them."""
    bare = pass_by_pass("causal.mlir", "attn", tmp_path, locations=False)
    whole = compiled.level("causal.mlir", "cute")
    assert bare != whole
    assert [code(line) for line in bare.splitlines()] == [code(line) for line in whole.splitlines()]


def code(line: str) -> str:
    """A line without its comment, all names alike."""
    return re.sub(r"[A-Za-z_]\w*", "x", line.split("#")[0].rstrip())


@pytest.mark.parametrize("level", ["attn", "tile", "warp", "cute"])
def test_locations_survive(level):
    """The first GEMM is in line 10 of causal.mlir, at every level."""
    text = compiled.level("causal.mlir", level)
    if level == "cute":
        assert "# warp.wgmma" in text
        assert "causal.mlir:10:" in text
    else:
        assert 'causal.mlir":10:' in text


def test_locations_name_the_file_as_given():
    text = compiled.compile_text((compiled.EXAMPLES / "causal.mlir").read_text(), "some/where/x.mlir", emit="warp")
    assert '"some/where/x.mlir":10:' in text
    assert "causal.mlir" not in text


def test_two_runs_give_the_same_bytes():
    first = compiled.compile_text((compiled.EXAMPLES / "alibi.mlir").read_text(), str(compiled.EXAMPLES / "alibi.mlir"), emit="cute")
    assert first == compiled.level("alibi.mlir", "cute")


# -- cache keys ----------------------------------------------------------------------------------------------------------------------------


def key(path, *, blank_lines: int = 0) -> str:
    """The key under which `fa4c.compile` keeps a variant: that of its semantics."""
    from fa4c.ir.attn_signature import is_attn_function
    from fa4c.ir.semantics import from_function

    text = "\n" * blank_lines + (compiled.EXAMPLES / path).read_text()
    with new_context() as context, ir.Location.unknown():
        module = parse_module(text, f"moved/by/{blank_lines}.mlir", context)
        function = next(op for op in module.body.operations if is_attn_function(op))
        return cache.key_of(from_function(function), target="sm_90a", direction="fwd", dtype="bf16", head_dim=(128, 128))


def test_cache_keys_ignore_locations():
    assert key("softcap.mlir") == key("softcap.mlir", blank_lines=7)
    assert key("softcap.mlir") != key("causal.mlir")


def test_cache_keys_of_text_ignore_comments_and_space():
    text = (compiled.EXAMPLES / "softcap.mlir").read_text()
    moved = "// one more comment\n\n" + text.replace("  %s = ", "      %s = ")
    keys = [
        cache.key_of_text(t, target="sm_90a", direction="fwd", dtype=None, head_dim=None)
        for t in (text, moved, text.replace("30.0", "50.0"))
    ]
    assert keys[0] == keys[1] != keys[2]
