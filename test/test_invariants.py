"""The contract's invariants that can be read off the source text.

Each check is a function from source to complaints, tried on a line that breaks it before it is applied to the package.
"""

import ast
import dataclasses
import pathlib
import re
import subprocess
import sys

import pytest

from fa4c import targets

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "fa4c"

# Part -> parts it may import, apart from itself.
MAY_IMPORT = {
    "ir": {"targets"},
    "targets": {"ir"},
    "frontend": set(),
    "passes": {"ir", "targets"},
    "lowering": {"ir", "targets", "passes"},
    "runtime": set(),
    "tune": {"ir", "targets", "passes", "lowering", "runtime"},
    "explain": {"ir", "targets", "passes", "lowering"},
    "cli": {"ir", "targets", "frontend", "passes", "lowering", "runtime", "tune", "explain", "demo"},
}
# Modules of `ir` that import no MLIR (a test says so), for parts that must start without it.
MLIR_FREE = ("fa4c.ir.diagnostics", "fa4c.ir.expr")
BINDINGS = {"torch_mlir", "mlir", "iree"}
# Names of the examples are names of variants; `full` is also the class of a block that needs no mask.
VARIANTS = {path.stem for path in (ROOT / "examples").glob("*.mlir")} - {"full"}


def sources(part: str = "") -> list[pathlib.Path]:
    return sorted((PACKAGE / part).rglob("*.py"))


def imported(tree: ast.AST, module: str) -> set[str]:
    """Full names of all modules imported anywhere in a file, functions included. `module` is the file's own dotted name."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[:-node.level] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{name}.{alias.name}" for alias in node.names}
    return found


def imports_of(path: pathlib.Path) -> set[str]:
    return imported(ast.parse(path.read_text()), dotted(path))


def dotted(path: pathlib.Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


# -- imports run one way -------------------------------------------------------------------------------------------------------------------


def wrong_imports(source: str, module: str) -> list[str]:
    part = module.split(".")[1]
    if part not in MAY_IMPORT:
        return []  # fa4c/api.py and the like offer everything; that they leave `cli` alone is another test
    allowed = MAY_IMPORT[part] | {part}
    names = {name for name in imported(ast.parse(source), module) if name.startswith("fa4c.")}
    free = MLIR_FREE if part != "runtime" else ()  # the runtime stands alone
    parts = {name.split(".")[1] for name in names if not name.startswith(free)} & set(MAY_IMPORT)
    return [f"{module} imports fa4c.{other}" for other in sorted(parts - allowed)]


@pytest.mark.parametrize(("source", "module", "wrong"), [
    ("from ..lowering import compile", "fa4c.passes.x", 1),
    ("def f():\n    from ..passes.registry import run_pipeline", "fa4c.ir.x", 1),
    ("import fa4c.ir.mlir", "fa4c.runtime.x", 1),
    ("from .. import cli", "fa4c.lowering.x", 1),
    ("from ..ir.mlir import ir\nfrom .registry import register_pass", "fa4c.passes.x", 0),
    ("from .artifact import load", "fa4c.runtime.x", 0),
    ("from ...ir.mlir import ir", "fa4c.runtime.emulator.x", 1),
])
def test_import_check_can_fail(source, module, wrong):
    assert len(wrong_imports(source, module)) == wrong


def test_imports_run_one_way():
    assert [line for path in sources() for line in wrong_imports(path.read_text(), dotted(path))] == []


def test_nothing_imports_cli():
    outside = [path for path in sources() if not dotted(path).startswith("fa4c.cli")]
    assert [dotted(path) for path in outside if any(name.startswith("fa4c.cli") for name in imports_of(path))] == []


def test_only_the_shim_names_the_wheel():
    assert users_of(BINDINGS) == ["fa4c.ir.mlir"]


def test_runtime_and_frontend_name_no_compiler_package():
    assert [name for part in ("runtime", "frontend") for name in users_of(BINDINGS | {"cutlass"}, part)] == []


def users_of(packages: set[str], part: str = "") -> list[str]:
    return [dotted(path) for path in sources(part) if {name.split(".")[0] for name in imports_of(path)} & packages]


@pytest.mark.parametrize("module", [
    "fa4c", *MLIR_FREE, "fa4c.cli.main", "fa4c.frontend.variant", "fa4c.frontend.to_mlir", "fa4c.targets", "fa4c.runtime.cache",
    "fa4c.tune.measure", "fa4c.tune.result", "fa4c.tune.gpu",
])
def test_these_start_without_mlir(module):
    code = f"import {module}, sys; sys.exit('torch_mlir' in sys.modules or 'cutlass' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


# -- the IR is the only source of truth ----------------------------------------------------------------------------------------------------


def name_comparisons(source: str) -> list[str]:
    """Comparisons with the name of a target or of a variant, or of a function's symbol: decisions must follow from what the IR says."""
    return [f"{node.lineno}: {ast.unparse(node)}" for node in ast.walk(ast.parse(source)) if _compares_name(node)]


def _compares_name(node) -> bool:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("startswith", "endswith", "match"):
        sides = [node.func.value, *node.args]
    elif isinstance(node, ast.MatchValue):
        sides = [node.value]
    else:
        return False
    return any(_names_something(side) for side in sides)


def _names_something(side) -> bool:
    return any(_is_known_name(node) or _is_symbol(node) or _is_targets_name(node) for node in ast.walk(side))


def _is_known_name(node) -> bool:
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    return bool(re.match(r"sm_?\d", text)) or text in VARIANTS


def _is_symbol(node) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == "sym_name"


def _is_targets_name(node) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "name" and isinstance(node.value, ast.Name) and node.value.id == "target"


@pytest.mark.parametrize(("source", "wrong"), [
    ("if target.name == other: pass", 1),
    ("if arch in ('sm_90a', 'sm_100a'): pass", 1),
    ("if name.startswith('sm_9'): pass", 1),
    ("x = 1 if func.attributes['sym_name'].value == x else 2", 1),
    ("match kind:\n    case 'causal': pass", 1),
    ("if kind == 'softcap': pass", 1),
    ("if op.name == 'arith.constant': pass", 0),
    ("label = f'{target.name}'", 0),
    ("if target.tmem_columns == 0: pass", 0),
])
def test_name_check_can_fail(source, wrong):
    assert len(name_comparisons(source)) == wrong


def test_passes_and_lowering_compare_no_names():
    found = [f"{dotted(path)}:{line}" for part in ("passes", "lowering") for path in sources(part)
             for line in name_comparisons(path.read_text())]
    assert found == []


# -- passes --------------------------------------------------------------------------------------------------------------------------------


def test_one_file_a_pass_with_its_test():
    from fa4c.passes.registry import LEVELS, all_passes

    files = {path.stem for path in sources("passes") if path.stem.split("_")[0] in LEVELS}
    assert {name.replace("-", "_") for name in all_passes()} == files
    tested = {path.stem for path in (ROOT / "test" / "passes").glob("*.mlir")}
    assert [stem for stem in sorted(files) if not any(name.startswith(stem) for name in tested)] == []


def test_pipelines_name_passes_that_exist():
    from fa4c.passes.pipelines import PARTS, PIPELINES, pipeline
    from fa4c.passes.registry import resolve

    for target, direction in PIPELINES:
        assert targets.get(target).name == target
        assert resolve(pipeline(target, direction, entry=PARTS[0], emit=list(PIPELINES[target, direction])[-1]))


def test_block_shapes_are_tried_by_passes_of_the_pipeline():
    """`attn-to-tile` looks at the step that they make, in the order in which they run behind it."""
    from fa4c.passes._attn_to_tile_trial import TO_SCHEDULE
    from fa4c.passes.pipelines import SM100A_BACKWARD, SM100A_FORWARD

    for of_a_forward, passes in ((True, SM100A_FORWARD), (False, SM100A_BACKWARD)):
        tried = TO_SCHEDULE[of_a_forward].split(",")
        assert [name for name in passes["tile"].split(",") if name in tried] == tried


def test_dialect_files_postpone_no_annotations():
    """It turns operands into attributes without a word (the contract, section 9)."""
    for name in ("attn", "tile", "warp"):
        assert "from __future__ import annotations" not in (PACKAGE / "ir" / f"{name}.py").read_text()


# -- targets -------------------------------------------------------------------------------------------------------------------------------


def test_targets_are_frozen_and_overridden_only_within():
    before = targets.get("sm_90a").mufu
    with targets.override("sm_90a", mufu=1) as changed:
        assert targets.get("sm_90a").mufu == changed.mufu == 1
        with targets.override("sm_90a", tmem_columns=64):
            assert (targets.get("sm_90a").mufu, targets.get("sm_90a").tmem_columns) == (1, 64)
        assert targets.get("sm_90a").tmem_columns == 0
    assert targets.get("sm_90a").mufu == before
    with pytest.raises(AttributeError):
        targets.get("sm_90a").mufu = 2
    with pytest.raises(TypeError), targets.override("sm_90a", mufo=1):
        pass


def unread(fields: set[str], code: list[str]) -> set[str]:
    return fields - {node.attr for source in code for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}


def test_every_number_of_a_target_is_read():
    """Else changing it there would change nothing. `l2_bytes` and `num_sms` are read by the name that `tile.device` gives."""
    code = [path.read_text() for path in sources() if not dotted(path).startswith("fa4c.targets")]
    assert unread({"mufu", "mufo"}, code) == {"mufo"}
    fields = {field.name for kind in (targets.Target, targets.Mma) for field in dataclasses.fields(kind)}
    assert unread(fields, code) <= {"l2_bytes", "num_sms"}


def test_a_module_names_its_target():
    from fa4c.ir.context import new_context, parse_module
    from fa4c.ir.diagnostics import Diagnostic
    from fa4c.ir.mlir import ir

    with new_context():
        assert targets.of(parse_module("module {}", "x", ir.Context.current)).name == targets.DEFAULT
        assert targets.of(parse_module('module attributes {fa4c.target = "sm_90a"} {}', "x", ir.Context.current)).name == "sm_90a"
        with pytest.raises(Diagnostic, match="sm_80' is planned"):
            targets.of(parse_module('module attributes {fa4c.target = "sm_80"} {}', "x", ir.Context.current))
