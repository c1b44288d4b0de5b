#!/usr/bin/env python3
"""Compile what `run_gpu.py` runs: each example in both dtypes, and causal, full and softcap for all head dims. Needs no GPU.

    build_artifacts.py DIR [--target sm_90a] [--only causal] [--jobs 2] [--core] [--direction both] [--deterministic] [--of o,lse]
    build_artifacts.py DIR --suite --jobs 16                      all that the record of the backward suite is made of

`--core`: only causal and full in bf16, whose speed `run_gpu.py --time` measures. `--direction both`: what is run backward; `bwd` builds
faster and leaves out what goes through autograd. `--deterministic`: with sums in a fixed order (`NAME-det`), in bf16.
`--of o,lse`: with a gradient that arrives through LSE too (`NAME-lse`). `--suite`: of direction both, plain in both dtypes, in a fixed
order, odd head dims in both ways, through LSE, and each example for all head dims in both dtypes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
HEAD_DIMS = [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)]
ODD_HEAD_DIMS = [(8, 8), (40, 40), (72, 72), (80, 80), (136, 136), (64, 128), (128, 64)]


def plan(core: bool, deterministic: bool = False) -> list[tuple[str, str, tuple[int, int]]]:
    """(example, dtype, head dims) of each artifact."""
    if core:
        return [(name, "bf16", dims) for name in ("causal", "full") for dims in HEAD_DIMS]
    dtypes = ("bf16",) if deterministic else ("bf16", "fp16")
    every = [(path.stem, dtype, (128, 128)) for path in sorted((ROOT / "examples").glob("*.mlir")) for dtype in dtypes]
    every += [(name, dtype, dims) for name in ("causal", "full") for dims in HEAD_DIMS for dtype in dtypes]
    if deterministic:
        return list(dict.fromkeys(every))
    every += [("causal", "bf16", dims) for dims in ODD_HEAD_DIMS] + [("softcap", "bf16", (64, 64))]
    return list(dict.fromkeys(every))


def suite() -> list[tuple[str, str, tuple[int, int], tuple]]:
    """(example, dtype, head dims, how) of each artifact of the backward suite, those that take longest to compile first."""
    plain, fixed, lse = ("both", False, ""), ("both", True, ""), ("both", False, "o,lse")
    found = [(*p, plain) for p in plan(False)] + [(*p, fixed) for p in plan(False, True)]
    found += [("causal", "bf16", dims, fixed) for dims in ODD_HEAD_DIMS]
    found += [(name, "bf16", (128, 128), lse) for name in ("causal", "full", "softcap")]
    examples = sorted((ROOT / "examples").glob("*.mlir"))
    found += [(path.stem, dtype, dims, plain) for path in examples for dims in HEAD_DIMS for dtype in ("bf16", "fp16")]
    return sorted(dict.fromkeys(found), key=lambda p: -sum(p[2]))


def name_of(example: str, dtype: str, dims: tuple[int, int], direction: str = "fwd", deterministic: bool = False, of: str = "") -> str:
    suffix = ("" if direction == "fwd" else f"-{direction}") + ("-det" if deterministic else "") + ("-lse" if "lse" in of else "")
    return f"{example}-{dtype}-d{dims[0]}" + ("" if dims[0] == dims[1] else f"x{dims[1]}") + suffix + ".fa4c"


def build(folder: str, target: str, how: tuple, example: str, dtype: str, dims: tuple[int, int]) -> str | None:
    """None, or what went wrong. `how`: direction, deterministic, of."""
    import fa4c

    direction, deterministic, of = how
    try:
        made = fa4c.compile(
            ROOT / "examples" / f"{example}.mlir",
            target=target,
            dtype=dtype,
            head_dim=dims,
            direction=direction,
            deterministic=deterministic,
            of=of.split(",") if of else None,
        )
        made.save(pathlib.Path(folder) / name_of(example, dtype, dims, *how))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("folder")
    ap.add_argument("--target", default="sm_90a")
    ap.add_argument("--only", default="", help="comma-separated parts of artifact names")
    ap.add_argument("--jobs", type=int, default=2)
    ap.add_argument("--core", action="store_true")
    ap.add_argument("--direction", choices=("fwd", "bwd", "both"), default="fwd")
    ap.add_argument("--deterministic", action="store_true")
    ap.add_argument("--of", default="", help="comma-separated results that have a gradient")
    ap.add_argument("--suite", action="store_true", help="what the record of the backward suite is made of")
    args = ap.parse_args()
    pathlib.Path(args.folder).mkdir(parents=True, exist_ok=True)
    how = args.direction, args.deterministic, args.of
    parts = args.only.split(",")
    everything = suite() if args.suite else [(*p, how) for p in plan(args.core, args.deterministic)]
    wanted = {p: name for p in everything if any(part in (name := name_of(*p[:3], *p[3])) for part in parts)}
    start, failed = time.time(), 0
    with concurrent.futures.ProcessPoolExecutor(args.jobs) as pool:
        jobs = {pool.submit(build, args.folder, args.target, p[3], *p[:3]): name for p, name in wanted.items()}
        for job in concurrent.futures.as_completed(jobs):
            problem = job.result()
            failed += problem is not None
            print(f"{jobs[job]:40s} {'ok' if problem is None else problem}", file=sys.stderr, flush=True)
    print(f"{len(wanted) - failed} of {len(wanted)} built in {time.time() - start:.0f} s", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
