"""What the README and the documents show works as shown."""

import importlib
import re
import shlex
import subprocess
import sys

import pytest

from fa4c.cli.main import COMMANDS, main, parse_arguments


@pytest.fixture
def blocks(root):
    """The code blocks of the README: (language, text)."""
    return re.findall(r"```(\w+)\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)


def test_the_variant_and_the_python_example(blocks, tmp_path, monkeypatch, capsys):
    """In both directions, in float64; what they compile is that of any other variant."""
    texts = dict(reversed(blocks))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FA4C_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FA4C_BACKEND", "reference")
    (tmp_path / "bent_window.mlir").write_text(texts["mlir"])
    command = ["run", "bent_window.mlir", "--backend", "reference", "--direction", "both", "--shape", "m=70,n=100", "--check"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert text.startswith("bent_window, both, on reference: ") and "dv       frobenius" in text and "check: within tolerance" in text
    names = {}
    exec(texts["python"], names)
    assert names["o"].shape == (1, 200, 4, 128) and all(names[t].grad.isfinite().all() for t in "qkv")
    q, k, v, attention = (names[t] for t in ("q", "k", "v", "fa4c"))
    assert names["o"][0, 0, 0].equal(v[0, 0, 0])  # of the variant's first query, which sees the first key alone
    assert attention.attention(q, k, v, causal=True)[0, -1].equal(attention.attention(q, k, v)[0, -1])  # and the last one sees all here


def test_the_emitted_source_alone(blocks, tmp_path):
    """The second Python example, where no fa4c can be imported."""
    variant, (_, program) = dict(reversed(blocks))["mlir"], (text for language, text in blocks if language == "python")
    (tmp_path / "bent_window.mlir").write_text(variant)
    assert main(["compile", f"{tmp_path}/bent_window.mlir", "--emit", "cute", "-o", f"{tmp_path}/bent_window.cute.py"]) == 0
    refuse = "import sys; sys.modules['fa4c'] = None\n"
    done = subprocess.run([sys.executable, "-c", refuse + program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert ".target sm_90a" in done.stdout and ".visible .entry bent_window_fwd" in done.stdout


def test_command_lines_are_those_of_the_program(root):
    """Every line that calls `fa4c`, in the README, in docs/ and in the examples of `--help`, parses."""
    texts = {path.name: path.read_text() for path in (root / "README.md", *(root / "docs").glob("*.md"))}
    texts = {name: "".join(re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)) for name, text in texts.items()}
    texts |= {name: importlib.import_module(f"fa4c.cli.{name}").EXAMPLES for name in COMMANDS}
    lines = [(name, line) for name, text in texts.items() for line in re.findall(r"^ *fa4c (.+)$", text, re.MULTILINE)]
    assert len(lines) > 50
    for name, line in lines:
        words = shlex.split(re.split(r"   |  \(| [|>#] ", line)[0])
        try:
            parse_arguments(words)
        except SystemExit as stop:
            assert stop.code == 0, f"{name}: fa4c {line}"
