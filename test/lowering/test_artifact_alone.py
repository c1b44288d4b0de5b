"""A compiled artifact runs where neither MLIR nor the kernel DSL can be imported: in its own process, with a hook that refuses them."""

import subprocess
import sys

import compiled
import pytest

HOOK = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        package, compiler = name.split(".")[0], ("fa4c.ir", "fa4c.passes", "fa4c.lowering", "fa4c.frontend")
        if package in {"torch_mlir", "mlir", "iree", "cutlass", "nvidia_cutlass_dsl"} or name.startswith(compiler):
            raise ImportError(name + " is refused by the test")

sys.meta_path.insert(0, Refuse())
"""
RUN = """
from fa4c.runtime import artifact, check, execute, inputs
a = artifact.load(sys.argv[1])
given = inputs.make_inputs(a.semantics, dict(b=1, hq=2, hkv=1, m=70, n=90))
out = execute.execute(a, given, backend="emulator")
rows = check.check(a.semantics, given, out)
assert rows and all(row.ok for row in rows), rows
print("right:", ", ".join(sorted(out)))
"""


def alone(code: str, *args) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", HOOK + code, *map(str, args)], capture_output=True, text=True, cwd=compiled.ROOT, timeout=500
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    from fa4c.runtime import artifact

    path = tmp_path_factory.mktemp("artifact") / "causal.fa4c"
    artifact.write(path, *compiled.kernel("causal.mlir", head_dim=(64, 64)))
    return path


def test_an_artifact_runs_alone(file):
    done = alone(RUN, file)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "right: lse, o\n"


@pytest.mark.parametrize("module", ["torch_mlir", "cutlass", "fa4c.lowering.compile"])
def test_the_hook_refuses(module):
    done = alone(f"import {module}")
    assert done.returncode == 1
    assert "is refused by the test" in done.stderr


def test_what_was_written_is_what_is_read(file):
    """Every member comes back, the kernel's numbers are the cubin's, and each readable source compiles to the same PTX."""
    from fa4c.lowering.cubin import resources
    from fa4c.runtime import artifact

    manifest, members = compiled.kernel("causal.mlir", head_dim=(64, 64))
    a = artifact.load(file)
    assert a.members == members
    assert len(manifest["kernels"]) == 2  # measured: one for short sequences, one for long ones
    for name, kernel in manifest["kernels"].items():
        ((entry, used),) = resources(members[f"{name}.cubin"]).items()
        assert (kernel["entry"], kernel["registers"], kernel["stack_bytes"], kernel["local_bytes"]) == (entry, used.registers, 0, 0)
        binary = compiled.kept_build(members[f"{name}.cute.py"].decode(), name, "sm_90a")
        assert binary.ptx.encode() == members[f"{name}.ptx"]
    levels = {f"causal.{level}.mlir" for level in ("attn", "tile", "warp")}
    assert set(members) == levels | {f"{name}.{kind}" for name in manifest["kernels"] for kind in ("ptx", "cubin", "cute.py")}
