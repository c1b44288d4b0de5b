"""The forward for sm_100a in the emulator, all head dims, masks and score functions: right against float64, no hazard.

    PYTHONPATH=. python bench/emulator_forward.py --out bench/results/emulator_forward_sm_100a.json [--only 128,128]

Each kernel is compiled to a cubin once (stack, registers, shared memory), and run at lengths that are odd, less than a tile, and of several
tiles, with grouped heads; under the emulator's own schedule and under random ones. Ends with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import time

from fa4c.lowering.compile import compile_text
from fa4c.lowering.cubin import resources
from fa4c.runtime import artifact, check, emulated
from fa4c.runtime.inputs import make_inputs

TARGET = "sm_100a"
EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
HEAD_DIMS = [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)]
VARIANTS = ["causal", "full", "window", "softcap", "alibi"]
SIZES = [
    dict(b=1, hq=2, hkv=1, m=201, n=167),  # odd
    dict(b=1, hq=1, hkv=1, m=37, n=23),  # smaller than a tile
    dict(b=1, hq=1, hkv=1, m=300, n=290),  # several tiles
    dict(b=2, hq=4, hkv=2, m=1, n=130),  # groups of heads, one query
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the record, written after each kernel")
    parser.add_argument("--only", metavar="D,DV", help="one head dim")
    parser.add_argument("--seeds", type=int, default=2, help="random schedules of each size")
    args = parser.parse_args()
    dims = [d for d in HEAD_DIMS if args.only in (None, f"{d[0]},{d[1]}")]
    what = __doc__.split("\n", maxsplit=1)[0]
    record = {"what": what, "target": TARGET, "date": time.strftime("%Y-%m-%d"), "random_schedules": args.seeds, "kernels": []}
    for variant in VARIANTS:
        for head_dim in dims:
            found = examine(variant, head_dim, args.seeds)
            record["kernels"].append(found)
            print(json.dumps(found), flush=True)
            args.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(kernel["ok"] for kernel in record["kernels"]) else 1


def examine(variant: str, head_dim: tuple[int, int], seeds: int) -> dict:
    """One kernel: what ptxas gave it, and each run."""
    start = time.process_time()
    manifest, members = compile_text((EXAMPLES / f"{variant}.mlir").read_text(), variant, target=TARGET, head_dim=head_dim)
    kernel = loaded(manifest, members)
    found = {"variant": variant, "head_dim": list(head_dim), **built(manifest, members), "runs": []}
    for size in SIZES if variant != "alibi" else [{**s, "hkv": s["hq"]} for s in SIZES]:
        found["runs"] += [run(kernel, size, seed) for seed in range(-1, seeds)]
    found["ok"] = found["stack_bytes"] <= 16 and all(r["ok"] for r in found["runs"])
    found["cpu_seconds"] = round(time.process_time() - start, 1)
    return found


def loaded(manifest, members):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "kernel.fa4c"
        artifact.write(file, manifest, members)
        return artifact.load(file)


def built(manifest, members) -> dict:
    cubin = next(data for name, data in members.items() if name.endswith(".cubin"))
    source = next(data for name, data in members.items() if name.endswith(".cute.py")).decode()
    (used,) = resources(bytes(cubin)).values()
    (launched,) = manifest["kernels"].values()
    return {
        "stack_bytes": used.stack_bytes, "local_bytes": used.local_bytes, "registers_at_launch": used.registers,
        "smem_bytes": launched["smem_bytes"], "tmem_columns": int(re.search(r"alloc_tmem\((\d+),", source)[1]),
        "roles": re.findall(r"# role (\w+)", source),
    }


def run(kernel, size: dict, seed: int) -> dict:
    """Seed -1: the emulator's own schedule."""
    options = {} if seed < 0 else {"schedule": "random", "schedule_seed": seed}
    given = make_inputs(kernel.semantics, size, max(seed, 0), "cpu")
    out, reports = emulated.run_reported(kernel, given, ("o", "lse"), **options)
    rows = check.check(kernel.semantics, given, out)
    hazards = [str(hazard) for report in reports for hazard in report.hazards]
    return {"size": size, "schedule": "fifo" if seed < 0 else f"random {seed}", "hazards": hazards,
            "ok": all(row.ok for row in rows) and not hazards}


if __name__ == "__main__":
    raise SystemExit(main())
