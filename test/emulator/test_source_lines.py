"""Reports on our own kernels name the CuTe-DSL line and the IR op."""

import pathlib
import types

import pytest

from fa4c.runtime.emulator import Hazard, Report
from fa4c.runtime.emulator.source_lines import describe, map_lines, op_of

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent / "examples"
PTX = """.version 8.8
.target sm_90a

k()
{
\tmov.u32 \t%r1, %tid.x;
\t// begin inline asm
\twgmma.fence.sync.aligned;
wgmma.commit_group.sync.aligned;
\t// end inline asm
$L__BB0_1:
\tselp.f32 \t%r2, %r1, %r1, %p1;
\tret;
}
"""
LOCATED = """.version 8.8
.target sm_90a, debug

k()
{
$L__tmp0:
\t.loc\t1 4 9
\tmov.u32 \t%r1, %tid.x;
\t.loc\t1 7 5
\t// begin inline asm
\twgmma.fence.sync.aligned;
\t.loc\t1 8 5
wgmma.commit_group.sync.aligned;
\t// end inline asm
$L__BB0_1:
\t.loc\t1 99 0
\tselp.f32 \t%r2, %r1, %r1, %p1;
\t.loc\t2 5 1
\tret;
}
\t.file\t1 "folder/k.cute.py"
\t.file\t2 "elsewhere.py"
\t.section\t.debug_abbrev
\t{
\t}
"""
SOURCE = """def kernel():
    # warp.walk  a.mlir:1:1
    if producer:
        # warp.tma_load  a.mlir:2:2
        load()
    if consumer:
        wait()
        # warp.map  a.mlir:3:3
        for r in rows:
            x = y
        done()
"""


def test_lines_of_the_same_instructions():
    assert map_lines(PTX, LOCATED, "k.cute.py") == {6: 4, 8: 7, 9: 7, 11: 7, 12: 7}


def test_other_instructions_are_no_map():
    assert map_lines(PTX, LOCATED.replace("%tid.x", "%tid.y"), "k.cute.py") is None
    assert map_lines(PTX, LOCATED.replace("\tret;\n", ""), "k.cute.py") is None


OPS = {5: "warp.tma_load", 7: "warp.walk", 10: "warp.map", 11: "warp.map", 1: None, 2: "warp.walk"}


@pytest.mark.parametrize("line, op", OPS.items())
def test_op_of_a_source_line(line, op):
    """A block beside the line's own does not count: line 7 is in no phase of its own branch."""
    found = op_of(SOURCE, line)
    assert (found and found[0]) == op


def test_text_of_a_source_line():
    assert describe(SOURCE, "k.cute.py", 10) == "k.cute.py:10: x = y  (warp.map, a.mlir:3:3)"


def test_without_the_compiler_the_report_says_why(monkeypatch):
    pytest.importorskip("torch")
    from fa4c.runtime import emulated

    monkeypatch.setattr(emulated, "rebuild", None)  # a command that another test ran in this process may have set it

    def notes(members):
        report = Report("k.ptx", "k", [Hazard("race", "m", (6,))])
        emulated.name_sources(types.SimpleNamespace(members=members, target="sm_90a"), report)
        assert report.hazards[0].sources == ()
        return report.notes[0]

    assert notes({"k.ptx": PTX.encode()}) == "PTX lines only: the artifact holds no k.cute.py"
    assert "PTX lines only: CuTe lines need the compiler" in notes({"k.ptx": PTX.encode(), "k.cute.py": SOURCE.encode()})


def test_another_compiler_gives_a_note(monkeypatch):
    pytest.importorskip("torch")
    from fa4c.runtime import emulated

    artifact = types.SimpleNamespace(members={"k.ptx": PTX.encode(), "k.cute.py": SOURCE.encode()}, target="sm_90a")
    for text, expected in ((LOCATED.replace("tid.x", "tid.y"), "other instructions"), (None, "does not compile here: no")):

        def fake(source, name, target, text=text):
            if text is None:
                raise RuntimeError("no\nmore")
            return text

        monkeypatch.setattr(emulated, "rebuild", fake)
        report = Report("k.ptx", "k", [Hazard("race", "m", (6,))])
        emulated.name_sources(artifact, report)
        assert expected in report.notes[0] and not report.hazards[0].sources


def test_dropped_wait_in_the_emitted_source(tmp_path, monkeypatch):
    """The whole way: a wgmma wait taken out of a compiled kernel's source is reported at the use, by CuTe line and op."""
    pytest.importorskip("torch_mlir")
    pytest.importorskip("cutlass")
    import fa4c
    from fa4c.lowering.build import build
    from fa4c.runtime import artifact, emulated, inputs
    from fa4c.runtime.errors import BackendError

    monkeypatch.setenv("FA4C_CACHE_DIR", str(tmp_path))
    right = fa4c.compile(EXAMPLES / "full.mlir", target="sm_90a", head_dim=16, dtype="bf16")  # a small kernel: it is compiled three times
    lines = right.text(".cute.py").split("\n")
    gemm = next(k for k, text in enumerate(lines) if "# warp.wgmma" in text)
    wait = next(k for k in range(gemm, len(lines)) if "warpgroup.wait_group(0)" in lines[k])
    lines[wait] = lines[wait].replace("warpgroup.wait_group(0)", "pass")
    source, name = "\n".join(lines), next(n for n in right.members if n.endswith(".cute.py"))
    stem = name.removesuffix(".cute.py")
    binary = build(source, stem, "sm_90a")
    wrong = artifact.build(right.manifest, {**right.members, name: source, f"{stem}.ptx": binary.ptx, f"{stem}.cubin": binary.cubin})
    given = inputs.make_inputs(wrong.semantics, dict(b=1, hq=1, hkv=1, m=64, n=64))
    monkeypatch.setattr(emulated, "rebuild", lambda source, name, target: build(source, name, target, line_info=True).ptx)
    with pytest.raises(BackendError) as caught:
        emulated.run(wrong, given, ("o",))
    first = caught.value.why.split("\n")
    assert "wgmma-pending" in first[0]
    sources = [text for text in first if text.startswith("note: source: ")]
    assert f"note: source: {name}:" in sources[0] and "(warp." in sources[0], caught.value.why
    assert "cute.gemm(" in sources[1] and "(warp.wgmma, " in sources[1] and "full.mlir:" in sources[1], caught.value.why
