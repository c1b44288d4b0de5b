#!/usr/bin/env python3
"""fa4c's kernels for sm_100a and flash-attn-4's own, executed by the emulator on the same inputs: what each counts per 128 x 128 tile.

    side_by_side.py --peer-python PY [--out RESULT.json]

PY is a Python that has flash-attn-4 and NumPy (the peer is installed by the user, is not part of this repository, and needs no GPU here).
One head, one batch entry, bf16, no mask. Two lengths each: their difference is a number of tiles in the steady state, without what happens
once for a CTA. Of each, the kernels that multiply and exponentiate are counted; with those beside them, which prepare rows (ours sums O dO
by an MMA) and convert results, in "per_tile_of_all_kernels". All outputs are compared with float64.

Ours is counted twice: as the pipeline chooses ("fa4c"), and told by `--set` what the peer chooses, its share of emulated exponentials
("fa4c, the peer's choices"). Where the two are the same kernel, it is run once.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

from fa4c.lowering.compile import compile_text  # noqa: E402
from fa4c.runtime import artifact, emulated  # noqa: E402

PAIRS = (("tile-split-2cta", "ctas", "2"),)
SHARE = (("tile-exp-emulation", "share", "2"),)  # of 16 exponentials
# direction, head dims, our options, those beside them that say the peer's choices, its environment, twice (m, n), tiles between the two
CASES = [
    ("fwd", (64, 64), (), SHARE, {}, (256, 512), (256, 768), 4),
    ("fwd", (96, 96), (), SHARE, {}, (256, 512), (256, 768), 4),
    ("fwd", (128, 128), (), (), {}, (256, 512), (256, 768), 4),
    ("fwd", (192, 128), (), (), {}, (256, 384), (256, 768), 6),
    ("bwd", (64, 64), (), (), {}, (512, 128), (768, 128), 2),
    ("bwd", (96, 96), (), (), {"FA_DISABLE_2CTA": "1"}, (512, 128), (768, 128), 2),
    ("bwd", (128, 128), (), (), {"FA_DISABLE_2CTA": "1"}, (512, 128), (768, 128), 2),
    ("bwd", (128, 128), PAIRS, (), {}, (512, 256), (768, 256), 4),
]
OURS, AS_PEER, PEER = "fa4c", "fa4c, the peer's choices", "flash-attn-4"  # columns of the record
# name -> the counters that it is the sum of; one side's TMA copy may be the other's bulk copy
COUNTED = {
    "MMA clocks": ("mma_clocks",),
    "smem bytes: operands": ("smem_bytes.operands",),
    "smem bytes: written by threads": ("smem_bytes.store",),
    "smem bytes: read by threads": ("smem_bytes.load",),
    "smem bytes: copies": ("smem_bytes.tma", "smem_bytes.bulk"),
    "smem bytes: to the other CTA": ("smem_bytes.dsmem",),
    "tmem bytes: read": ("tmem_bytes.load",),
    "tmem bytes: written": ("tmem_bytes.store",),
    "global bytes": tuple(f"global_bytes.{kind}" for kind in ("load", "store", "tma_load", "tma_store", "bulk", "atomic")),
    "warp instructions": ("instructions",),
    "warp instructions: exponentials": ("instructions.ex2",),
    "warp instructions: fp32": ("instructions.fp32",),
    "warp instructions: integer": ("instructions.integer",),
    "warp instructions: memory": ("instructions.memory",),
    "barrier waits": ("barrier_waits",),
}


def made_inputs(head_dim, m: int, n: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (1, m, 1, head_dim[0]), "k": (1, n, 1, head_dim[0]), "v": (1, n, 1, head_dim[1]), "do": (1, m, 1, head_dim[1])}
    return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}


def right(direction: str, q, k, v, do) -> dict[str, np.ndarray]:
    """Attention in float64, or its gradients."""
    q, k, v, do = (t[0, :, 0].double().requires_grad_() for t in (q, k, v, do))
    o = (q @ k.T * q.shape[1] ** -0.5).softmax(-1) @ v
    found = {"o": o} if direction == "fwd" else dict(zip(("dq", "dk", "dv"), torch.autograd.grad(o, (q, k, v), do.detach())))
    return {name: t.detach().numpy() for name, t in found.items()}


def ours(direction: str, head_dim, options, given: dict, forward) -> tuple[list[dict], dict[str, np.ndarray], artifact.Artifact]:
    """(counters of each launch, outputs, the artifact). The backward starts from what `forward`, an artifact, gives."""
    source = ROOT / "examples" / "full.mlir"
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "kernel.fa4c"
        text = re.sub(r"0\.08838\d+", f"{head_dim[0] ** -0.5:.9g}", source.read_text())  # the example's scale is that of head dim 128
        manifest, members = compile_text(text, source.name, target="sm_100a", direction=direction, head_dim=head_dim, overrides=options)
        artifact.write(file, manifest, members)
        kernel = artifact.load(file)
    inputs = {name: given[name] for name in "qkv"}
    if direction == "bwd":
        inputs |= emulated.run_reported(forward, inputs, ("o", "lse"))[0] | {"do": given["do"]}
    wanted = ("o", "lse") if direction == "fwd" else ("dq", "dk", "dv")
    found, reports = emulated.run_reported(kernel, inputs, wanted)
    assert all(report.ok for report in reports), [report.text() for report in reports]
    outputs = {name: t[0, :, 0].double().numpy() for name, t in found.items() if name != "lse"}
    return [report.counters["total"] for report in reports], outputs, kernel


def theirs(direction: str, given: dict, python: str, environment: dict) -> tuple[list[dict], dict[str, np.ndarray]]:
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = pathlib.Path(folder) / "in.npz", pathlib.Path(folder) / "out.npz"
        np.savez(inputs, **{name: t.view(torch.int16).numpy() for name, t in given.items()})
        # without assertions: by one of them the peer wants tensors on a GPU
        command = [python, "-O", str(HERE / "flash_attn_4.py"), str(inputs), str(outputs), *(["--backward"] if direction == "bwd" else [])]
        variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the peer failed:\n{done.stderr[-3000:]}")
        launches = json.loads(outputs.with_suffix(".json").read_text())
        found = {name: array[0, :, 0].astype(np.float64) for name, array in np.load(outputs).items() if name != "lse"}
    return [launch["counters"] for launch in launches], found


def forms_scores(counters: dict) -> bool:
    """Whether a launch is one of those over tiles of scores."""
    return bool(counters.get("mma_flops") and counters.get("instructions.ex2"))


def per_tile(small: list[dict], large: list[dict], tiles: int, of=forms_scores) -> dict[str, float]:
    """Of the launches that `of` picks, together: ours may be two kernels."""

    def total(counters: list[dict], keys) -> float:
        return sum(c.get(key, 0) for c in counters if of(c) for key in keys)

    return {name: round((total(large, keys) - total(small, keys)) / tiles, 1) for name, keys in COUNTED.items()}


def compared(case, python: str) -> dict:
    direction, head_dim, options, choices, environment, *sizes, tiles = case
    kinds = {OURS: options, AS_PEER: options + choices, PEER: None} if choices else {OURS: options, PEER: None}
    rows: dict[str, list] = {name: [] for name in kinds}
    errors: dict[str, dict] = {name: {} for name in kinds}
    for m, n in sizes:
        given = made_inputs(head_dim, m, n)
        want = right(direction, **given)
        forward = ours("fwd", head_dim, (), given, None)[2] if direction == "bwd" else None
        for name, told in kinds.items():
            counters, outputs = (
                theirs(direction, given, python, environment) if told is None else ours(direction, head_dim, told, given, forward)[:2])
            rows[name].append(counters)
            errors[name] = {out: float(f"{np.abs(outputs[out] - want[out]).max():.3g}") for out in want}
    counts = {name: per_tile(*counters, tiles) for name, counters in rows.items()}
    return {"direction": direction, "head_dim": list(head_dim), "fa4c": list(options), "peer's choices": list(choices), "peer": environment,
            "sizes": [list(s) for s in sizes], "tiles": tiles,
            "kernels_counted": {name: sum(map(forms_scores, counters[-1])) for name, counters in rows.items()},
            "max_abs_error": errors, "per_tile": counts,
            "per_tile_of_all_kernels": {name: per_tile(*counters, tiles, of=bool) for name, counters in rows.items()},
            "higher_in": {name: [row for row in COUNTED if counts[name][row] > counts[PEER][row]] for name in kinds if name != PEER}}


def said_by(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--case", type=int, action="append", help="number of a case, from 0; default all")
    args = parser.parse_args()
    version = said_by(args.peer_python, "-c", "import importlib.metadata as m; print(m.version('flash-attn-4'))")
    commit = said_by("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    record = {"what": "counts of the emulator per 128 x 128 tile in the steady state, full mask, one head, bf16; see bench/side_by_side",
              "date": datetime.date.today().isoformat(), "flash-attn-4": version, "cases": []}
    for number in args.case or range(len(CASES)):
        record["cases"].append({"commit": commit, **compared(CASES[number], args.peer_python)})
        print(json.dumps(record["cases"][-1], indent=1), flush=True)
        if args.out:
            args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
