"""`make demo`: one variant from text to a kernel and to numbers, on any machine.

Compiles examples/causal.mlir for sm_90a, executes it on the CPU and compares with attention computed in float64. Executed is the PTX,
where the emulator is part of this version, else the `tile` level in storage mode: scheduled order, physical buffers, poisoned memory.
"""

from __future__ import annotations

import pathlib
import sys
import time

TARGET = "sm_90a"
SHAPE = "b=1,hq=2,hkv=1,m=150,n=200"  # no multiple of any block, two query heads on one key head, more keys than queries
EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / "examples" / "causal.mlir"


def main() -> int:
    from .ir.diagnostics import Diagnostic
    from .runtime.errors import RuntimeDiagnostic

    try:
        return _demo()
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("fa4c."):
            raise
        print(f"demo: {error.name} is not part of this version yet, so the demo ends here", file=sys.stderr)
    except (Diagnostic, RuntimeDiagnostic) as error:
        print(error.text(), file=sys.stderr)
    return 1


def _demo() -> int:
    from .lowering.compile import compile_text
    from .runtime import artifact, check, inputs
    from .runtime.sizes import parse_sizes

    if not EXAMPLE.is_file():
        print(f"demo: {EXAMPLE} is not there; run it in a checkout of the repository", file=sys.stderr)
        return 1
    name = EXAMPLE.relative_to(EXAMPLE.parent.parent).as_posix()
    print(f"1. {name}: causal attention as MLIR text")
    start = time.perf_counter()
    made = compile_text(EXAMPLE.read_text(), name, target=TARGET, direction="fwd", dtype=None, head_dim=None, pipeline=None, disabled=(),
                        overrides=(), emit="artifact")
    built = artifact.build(*made)
    print(f"2. compiled for {TARGET} in {time.perf_counter() - start:.1f} s, without a GPU: {_describe(built)}")
    data = inputs.make_inputs(built.semantics, parse_sizes(SHAPE))
    print(f"3. inputs: {SHAPE}, {built.manifest['dtype']}")
    start = time.perf_counter()
    what, outputs = _execute(built, data)
    print(f"4. executed on this CPU in {time.perf_counter() - start:.1f} s: {what}")
    print("5. compared with attention in float64:")
    rows = check.check(built.semantics, data, outputs)
    for row in rows:
        print(f"   {row}")
    if all(row.ok for row in rows):
        print("demo: right, within tolerance")
        return 0
    print("demo: WRONG, out of tolerance", file=sys.stderr)
    return 1


def _describe(built) -> str:
    source, ptx = built.text(".cute.py").splitlines(), built.text(".ptx")
    return f"{len(source)} lines of CuTe-DSL, {len(ptx.splitlines())} of PTX, with {ptx.count('wgmma.mma_async')} wgmma"


def _execute(built, data) -> tuple[str, dict]:
    from .runtime import execute

    if execute.emulator_available():
        return "the PTX, by the emulator", execute.execute(built, data, backend="emulator")
    import torch

    from .ir import interpret_tile
    from .ir.context import new_context, parse_module
    from .ir.mlir import ir

    with new_context():
        module = parse_module(built.text(".tile.mlir"), "causal.tile.mlir", ir.Context.current)
        outputs = interpret_tile.run(module, data, mode="storage", dtype="kernel")
    return "the tile level, in storage mode", {name: torch.from_numpy(values) for name, values in outputs.items()}


if __name__ == "__main__":
    sys.exit(main())
