"""How long `fa4c compile` takes from cold and `fa4c explain` after import, for the record.

    python bench/compile_time.py --rounds 3 --out bench/results/DATE_compile_time.json

A compile is a fresh process with an empty cache of kernels; wall and CPU seconds (user and system, of all its processes) are the least of
the rounds, since other work on the machine only adds; it adds to CPU seconds too, up to twice on a machine with more work than CPUs.
An explanation is one that is not the first in its process, so without imports; `calls` counts its function calls, which depend on no
machine. `--package` takes the package of another checkout, for a before and an after on one machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAIRS = ["--set", "tile-split-2cta.ctas=2", "--set", "attn-to-tile.alike=2"]
COMPILES = [
    ("sm_100a", "bwd", []), ("sm_100a", "bwd", ["--deterministic"]), ("sm_100a", "bwd", PAIRS),
    ("sm_100a", "fwd", []), ("sm_90a", "bwd", []), ("sm_90a", "bwd", ["--deterministic"]), ("sm_90a", "fwd", []),
]  # fmt: skip
EXPLAINED = [ROOT / "examples" / f"{name}.mlir" for name in ("causal", "softcap", "alibi")]  # the last two are the dearest of all
CLI = "import sys; from fa4c.cli.main import main; sys.exit(main())"
EXPLAIN = """
import contextlib, cProfile, io, pstats, sys, time
from fa4c.cli.main import main
def explain():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(sys.argv[1:]) == 0
rounds = int(sys.argv.pop(1))
explain()
for _ in range(rounds):
    wall, cpu = time.perf_counter(), time.process_time()
    explain()
    print(time.perf_counter() - wall, time.process_time() - cpu)
with cProfile.Profile() as profile:
    explain()
print(pstats.Stats(profile).total_calls)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--package", type=Path, default=ROOT, help="the checkout whose fa4c is measured")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    environment = {**os.environ, "PYTHONPATH": str(args.package)}
    record = {
        "machine": {"cpus": len(os.sched_getaffinity(0)), "cpu": _cpu(), "system": platform.platform(), "load": os.getloadavg()},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("torch-mlir", "nvidia-cutlass-dsl")}},
        "commit": subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=args.package, text=True).strip(),
        "rounds": args.rounds,
        "compile": [_compile(args, environment, *case) for case in COMPILES],
        "explain": [_explain(args, environment, *case) for case in itertools.product(
            EXPLAINED, ("sm_90a", "sm_100a"), ("fwd", "bwd"))],
    }  # fmt: skip
    text = json.dumps(record, indent=1) + "\n"
    if args.out is not None:
        args.out.write_text(text)
    sys.stdout.write(text)


def _compile(args, environment: dict, target: str, direction: str, options: list[str]) -> dict:
    walls, cpus = [], []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            command = ["compile", str(ROOT / "examples" / "causal.mlir"), "--target", target, "--direction", direction, *options]
            before, start = _children(), time.perf_counter()
            subprocess.run([sys.executable, "-c", CLI, *command, "-o", f"{folder}/x.fa4c"], check=True, capture_output=True, cwd=folder,
                           env={**environment, "FA4C_CACHE_DIR": f"{folder}/cache"})
            walls.append(time.perf_counter() - start)
            cpus.append(_children() - before)
    return {"target": target, "direction": direction, "options": options, "wall_s": round(min(walls), 2), "cpu_s": round(min(cpus), 2)}


def _explain(args, environment: dict, file: Path, target: str, direction: str) -> dict:
    command = ["explain", str(file), "--target", target, "--direction", direction, "--json"]
    done = subprocess.run([sys.executable, "-c", EXPLAIN, str(args.rounds), *command], check=True, capture_output=True, text=True,
                          env=environment, cwd=args.package)
    *rounds, calls = done.stdout.splitlines()
    walls, cpus = zip(*[map(float, line.split()) for line in rounds], strict=True)
    return {"file": file.name, "target": target, "direction": direction,
            "wall_s": round(min(walls), 3), "cpu_s": round(min(cpus), 3), "calls": int(calls)}


def _children() -> float:
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    main()
