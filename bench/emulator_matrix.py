"""Forward and backward in the emulator, all masks, score functions, head dims and modes: right against float64, no hazard.

    python bench/emulator_matrix.py --list                            the kernels; those marked * are CI's (test/lowering/test_matrix.py)
    python bench/emulator_matrix.py --target sm_90a --list            the kernels that the GPU suite runs on an H200 (test/gpu)
    python bench/emulator_matrix.py --out RECORD.json --jobs 16       all of them, 20 random schedules of each size; hours of CPU time
    python bench/emulator_matrix.py --out RECORD.json --only bwd:causal:128,128 --schedules 5
    python bench/emulator_matrix.py --out RECORD.json --jobs 16 --schedules 0         the emulator's own schedule alone; minutes

Each kernel is compiled to a cubin (stack, local memory, registers, shared memory), and run at lengths that are odd, less than a tile, and
of several tiles, of few keys, with grouped heads, under the emulator's own schedule and under random ones. A record is written after each
kernel; run again, the script goes on with what a record of the same commit lacks. Ends with 1 if a result is beyond its tolerance
(fa4c/runtime/check.py), a hazard was seen, executed counts are not those that `fa4c explain` computes from the IR, bits differ between
schedules though sums have an order, or the stack exceeds STACK.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import pathlib
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from fa4c import targets  # noqa: E402
from fa4c.cli import run_backward  # noqa: E402
from fa4c.explain import executed, launches  # noqa: E402
from fa4c.ir.context import new_context, parse_module  # noqa: E402
from fa4c.ir.diagnostics import Diagnostic  # noqa: E402
from fa4c.lowering.compile import compile_text  # noqa: E402
from fa4c.lowering.cubin import resources  # noqa: E402
from fa4c.runtime import artifact, check, emulated  # noqa: E402
from fa4c.runtime.inputs import make_inputs  # noqa: E402
from fa4c.runtime.torch_types import TORCH  # noqa: E402

TARGET = "sm_100a"
STACK = 16  # bytes of a thread, outside of loops
HEAD_DIMS = [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)]
VARIANTS = ["causal", "full", "window", "softcap", "alibi", "bias"]
ODD, SMALL, TILES, ONE_QUERY = "odd", "smaller than a tile", "several tiles", "one query, groups of heads"
WRITERS, FEW = "four writers", "few keys"
SIZES = {
    ODD: dict(b=1, hq=2, hkv=1, m=201, n=167),
    SMALL: dict(b=1, hq=1, hkv=1, m=37, n=23),
    TILES: dict(b=1, hq=1, hkv=1, m=300, n=290),
    ONE_QUERY: dict(b=2, hq=4, hkv=2, m=1, n=130),
    WRITERS: dict(b=1, hq=1, hkv=1, m=40, n=450),  # four blocks of keys add to each tile of dQ
    FEW: dict(b=1, hq=2, hkv=1, m=150, n=5),  # delta is corrected (docs/backward.md)
}
BACKWARD_ONLY = (WRITERS, FEW)
FIFO = -1  # as a seed: the emulator's own schedule
WHOLE = dict(b=1, hq=1, hkv=1, m=512, n=512)  # whole tiles, of a pair's rows too


@dataclass(frozen=True)
class Kernel:
    """`ctas` 2: pairs. `deterministic`: sums across CTAs in a fixed order. `of`: results whose gradients arrive, by default O's."""

    direction: str
    variant: str
    head_dim: tuple[int, int]
    ctas: int = 1
    deterministic: bool = False
    target: str = TARGET
    dtype: str = "bf16"
    of: str = ""

    def __str__(self) -> str:
        mode = ("pair-" if self.ctas == 2 else "") + "deterministic" if self.deterministic else "pair" if self.ctas == 2 else "plain"
        more = [self.dtype] * (self.dtype != "bf16") + [self.of] * bool(self.of)
        return ":".join([self.direction, self.variant, f"{self.head_dim[0]},{self.head_dim[1]}", mode, *more])

    @property
    def options(self) -> dict:
        overrides = []
        if self.ctas == 2:
            overrides += [("tile-split-2cta", "ctas", "2"), ("attn-to-tile", "alike", "2")]
            overrides += [("attn-split-backward", "ctas", "2")] if self.direction == "bwd" else []
        if self.direction == "bwd" and self.variant == "bias":
            overrides += [("attn-derive-backward", "wrt", "q,k,v")]  # a gradient that docs/backward.md says is refused
        overrides += [("attn-derive-backward", "of", self.of)] * bool(self.of)
        return dict(target=self.target, direction=self.direction, head_dim=self.head_dim, deterministic=self.deterministic,
                    overrides=tuple(overrides)) | ({"dtype": self.dtype} if self.dtype != "bf16" else {})

    @property
    def sizes(self) -> dict[str, dict]:
        """Name -> sizes. ALiBi's slopes are one a query head; one query reads a bias's first row for all 128 of a tile, which the emulator
        is slow at. Of a pair one CTA adds to a row, so twice the keys make as many writers."""
        found = {name: size for name, size in SIZES.items() if name not in BACKWARD_ONLY or self.direction == "bwd"}
        if self.ctas == 2 and WRITERS in found:
            found[WRITERS] = {**SIZES[WRITERS], "n": 2 * SIZES[WRITERS]["n"]}
        if self.variant == "alibi":
            return {name: {**size, "hkv": size["hq"]} for name, size in found.items()}
        return {**found, ONE_QUERY: dict(b=1, hq=4, hkv=2, m=129, n=40)} if self.variant == "bias" else found


def matrix() -> list[Kernel]:
    """The backward at head dim 256 is no part of it, pairs and orders of sums only where a kernel has what they change."""
    found = []
    for direction in ("bwd", "fwd"):
        for head_dim in HEAD_DIMS[:4] if direction == "bwd" else HEAD_DIMS:
            for variant in VARIANTS:
                found += [Kernel(direction, variant, head_dim), Kernel(direction, variant, head_dim, ctas=2)]
                if direction == "bwd":
                    found += [Kernel(direction, variant, head_dim, ctas, deterministic=True) for ctas in (1, 2)]
    return found


def hopper() -> list[Kernel]:
    """What the GPU suite runs on an H200: the kernels of each direction by themselves."""
    sys.path.insert(0, str(ROOT / "test" / "gpu"))
    from build_artifacts import suite

    every = [dict(variant=variant, dtype=dtype, head_dim=dims, deterministic=fixed, of=of, target="sm_90a")
             for variant, dtype, dims, (_, fixed, of) in suite()]
    forward = [options for options in every if not options["deterministic"] and not options["of"]]
    return [Kernel("bwd", **options) for options in every] + [Kernel("fwd", **options) for options in forward]


def of_ci() -> dict[Kernel, str]:
    """Kernel -> the name of its sizes, each in turn: every direction, head dim and variant, a captured bias by one of both; pairs at each
    head dim, fixed orders at each that has them, and both at once in the smallest. The product of all is `matrix`."""
    sizes, found = list(SIZES), {}
    for direction in ("fwd", "bwd"):
        for place, head_dim in enumerate(HEAD_DIMS[:4] if direction == "bwd" else HEAD_DIMS):
            variants = ["causal", "full", "window", "softcap", "alibi" if place % 2 else "bias"]
            kernels = [Kernel(direction, variant, head_dim) for variant in variants]
            kernels.append(Kernel(direction, ("full", "causal", "window", "softcap" if direction == "fwd" else "causal", "full")[place],
                                  head_dim, ctas=2))
            if direction == "bwd" and head_dim in HEAD_DIMS[:3]:
                kernels.append(Kernel(direction, ("causal", "window", "full")[place], head_dim, deterministic=True))
            for kernel in kernels:
                found[kernel] = sizes[(len(found) + place) % (len(sizes) - (0 if direction == "bwd" else len(BACKWARD_ONLY)))]
    return {**found, Kernel("bwd", "causal", HEAD_DIMS[0], ctas=2, deterministic=True): ODD}


# -- one kernel ----------------------------------------------------------------------------------------------------------------------------


def text_of(variant: str) -> str:
    """The example; a window narrow enough to leave out blocks at these lengths; a captured bias (b, hq, m, n) for all heads and scores."""
    text = (ROOT / "examples" / f"{'full' if variant == 'bias' else variant}.mlir").read_text(encoding="utf-8")
    edits = {
        "window": [("arith.constant 511 ", "arith.constant 69 ")],
        "bias": [
            ('attn.dims = ["n", "dv"]})', 'attn.dims = ["n", "dv"]},\n'
             '    %bias: tensor<?x?xf32> {attn.name = "bias", attn.axes = ["b", "hq"], attn.dims = ["m", "n"], attn.fill = "normal"})'),
            ('"attn.yield"(%y)', '%at = "attn.load"(%bias, %i, %j) : (tensor<?x?xf32>, index, index) -> f32\n'
             '    %biased = arith.addf %y, %at : f32\n    "attn.yield"(%biased)'),
        ],
    }
    for old, new in edits.get(variant, ()):
        assert text.count(old) == 1, (variant, old)
        text = text.replace(old, new)
    return text


def build(kernel: Kernel):
    """(manifest, members). Raises Diagnostic where it is refused."""
    return compile_text(text_of(kernel.variant), f"{kernel.variant}.mlir", **kernel.options)


def load(manifest, members):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "kernel.fa4c"
        artifact.write(file, manifest, members)
        return artifact.load(file)


def built(manifest, members, target: str) -> dict:
    """What ptxas and the warp level gave each kernel; and whether that is within the limits."""
    found, limits = {}, targets.get(target)
    for name, launched in manifest["kernels"].items():
        (used,) = resources(bytes(members[launched["cubin"]])).values()
        found[name] = {"stack_bytes": used.stack_bytes, "local_bytes": used.local_bytes, "registers_at_launch": used.registers,
                       "smem_bytes": launched["smem_bytes"],
                       "fits": used.stack_bytes <= STACK and used.local_bytes == 0 and launched["smem_bytes"] <= limits.smem_bytes}
    return found


def run(loaded, size: dict, seed: int) -> dict:
    """One execution: worst error as a share of its limit, hazards, and a digest of all that was written, workspaces in f32 too; under the
    emulator's own schedule the counts that are not as the IR says (under another they are the same, test/emulator/test_machine.py)."""
    options = {} if seed == FIFO else {"schedule": "random", "schedule_seed": seed}
    wanted = [t["name"] for t in loaded.manifest["tensors"] if t["role"] == "output"]
    left: dict = {}
    if loaded.direction == "bwd":
        program = run_backward.of_artifact(loaded, "bwd")
        inputs = make_inputs(program.semantics, size, 0, "cpu")
        more = run_backward.arriving(program, size, 0, {}, "cpu")
        more |= run_backward.stored(program, inputs, more, {})
        out, reports = emulated.run_reported(loaded, {**inputs, **more}, wanted, workspaces=left, **options)
        rows = run_backward.check(program, inputs, more, out)
    else:
        inputs = make_inputs(loaded.semantics, size, 0, "cpu")
        out, reports = emulated.run_reported(loaded, inputs, wanted, workspaces=left, **options)
        rows = check.check(loaded.semantics, inputs, out)
    digest = hashlib.sha256()
    for name, tensor in sorted({**out, **left}.items()):
        digest.update(name.encode() + bytes(tensor.contiguous().flatten().view(torch.uint8).numpy()))
    hazards = [hazard.text(report.file) for report in reports for hazard in report.hazards]
    counts = unlike_the_ir(loaded, size, reports) if seed == FIFO else []
    wrong = [str(row) for row in rows if not row.ok] + counts
    return {"ratio": max(row.ratio for row in rows), "hazards": hazards, "bits": digest.hexdigest()[:16], "wrong": wrong, "counts": counts,
            "ok": not wrong and not hazards}


def unlike_the_ir_in_whole_tiles(loaded) -> list[str]:
    """The same on zeros: scores that are all the same grow no maximum, so that no vote for a rescaling is taken."""
    sizes = {**loaded.manifest["head_dims"], **WHOLE}
    inputs = [t for t in loaded.manifest["tensors"] if t["role"] == "input"]
    if any(dim not in sizes for t in inputs for dim in t["layout"]):
        return []
    given = {t["name"]: torch.zeros([sizes[dim] for dim in t["layout"]], dtype=TORCH[t["dtype"]]) for t in inputs}
    wanted = [t["name"] for t in loaded.manifest["tensors"] if t["role"] == "output"]
    return unlike_the_ir(loaded, WHOLE, emulated.run_reported(loaded, given, wanted, hazards=False)[1])


def unlike_the_ir(loaded, size: dict, reports) -> list[str]:
    """What was executed and is not what the IR says; nothing where that depends on data, as a prefix's length."""
    text = next(bytes(data).decode() for name, data in loaded.members.items() if name.endswith(".warp.mlir"))
    with new_context() as context:
        try:
            implied = launches.launches(parse_module(text, "kernel.mlir", context), size)
        except Diagnostic as error:
            if "known on the device only" not in error.text():
                raise
            return []
    return executed.differences(implied, [report.counters["total"] for report in reports], whole=size == WHOLE)


def examine(kernel: Kernel, schedules: int) -> dict:
    """The kernel's entry of the record."""
    start = time.process_time()
    entry: dict = {"kernel": str(kernel)}
    try:
        manifest, members = build(kernel)
    except Diagnostic as error:
        return {**entry, "refused": error.text().splitlines()[0], "ok": False}
    entry |= {"kernels": built(manifest, members, kernel.target), "sizes": {}}
    loaded = load(manifest, members)
    counts = unlike_the_ir_in_whole_tiles(loaded) if kernel.target == TARGET else []
    for name, size in kernel.sizes.items():
        seeds = [FIFO, *range(max(schedules, 20) if schedules and name == WRITERS and kernel.deterministic else schedules)]
        runs = {seed: run(loaded, size, seed) for seed in seeds}
        counts += runs[FIFO]["counts"]
        entry["sizes"][name] = {
            "sizes": size, "schedules": len(runs), "worst": round(max(r["ratio"] for r in runs.values()), 3),
            "different_bits": len({r["bits"] for r in runs.values()}),
            "bad": {seed: {key: r[key] for key in ("wrong", "hazards")} for seed, r in runs.items() if not r["ok"]},
        }
    ordered = kernel.deterministic or kernel.direction == "fwd"
    entry["counts"] = counts or "equal"
    entry["ok"] = not counts and not any(s["bad"] or (ordered and s["different_bits"] > 1) for s in entry["sizes"].values())
    entry["fits"] = all(k["fits"] for k in entry["kernels"].values())
    return {**entry, "cpu_seconds": round(time.process_time() - start, 1)}


# -- the record ----------------------------------------------------------------------------------------------------------------------------


def _begun(file: pathlib.Path, commit: str, target: str) -> dict:
    """The record in the file, as far as it is of this commit."""
    record = {"what": __doc__.splitlines()[0], "target": target, "commit": commit, "date": time.strftime("%Y-%m-%d"), "kernels": []}
    if file.exists():
        old = json.loads(file.read_text(encoding="utf-8"))
        record = old if (old["commit"], old["target"]) == (commit, target) else record
    return record


def _task(given: tuple[Kernel, int, float]) -> dict | None:
    kernel, schedules, deadline = given
    return examine(kernel, schedules) if time.time() < deadline else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="the record, written after each kernel")
    parser.add_argument("--only", default=[""], nargs="+", metavar="BEGINNING", help="kernels whose name begins so, as --list gives it")
    parser.add_argument("--target", choices=(TARGET, "sm_90a"), default=TARGET)
    parser.add_argument("--ci", action="store_true", help="only the kernels of CI")
    parser.add_argument("--schedules", type=int, default=20, metavar="N", help="random schedules of each size")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--seconds", type=float, default=None, metavar="S", help="begin no kernel after so many")
    parser.add_argument("--commit", default=None, help="what the record says it is of; default: git's")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    ci = of_ci()
    every = matrix() if args.target == TARGET else hopper()
    chosen = [k for k in every if str(k).startswith(tuple(args.only)) and (k in ci or not args.ci)]
    if args.list:
        print("\n".join(f"{'*' if k in ci else ' '} {k}" for k in chosen))
        return 0
    if args.out is None:
        parser.error("the following arguments are required: --out")
    commit = args.commit or subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True,
                                           check=True).stdout.strip()
    record = _begun(args.out, commit, args.target)
    done = {entry["kernel"] for entry in record["kernels"]}
    todo = [k for k in chosen if str(k) not in done]
    deadline = time.time() + (args.seconds or 1e9)
    with multiprocessing.get_context("spawn").Pool(args.jobs, maxtasksperchild=8) as pool:
        for entry in pool.imap_unordered(_task, [(kernel, args.schedules, deadline) for kernel in todo]):
            if entry is not None:
                record["kernels"].append(entry)
                args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
                print(json.dumps(entry), flush=True)
    wrong = [entry["kernel"] for entry in record["kernels"] if not entry["ok"]]
    large = [entry["kernel"] for entry in record["kernels"] if not entry.get("fits", True)]
    missing = {str(k) for k in chosen} - {entry["kernel"] for entry in record["kernels"]}
    print(f"{len(record['kernels'])} kernels recorded; wrong: {wrong}; more than {STACK} bytes of stack: {large}; not run: {len(missing)}",
          file=sys.stderr)
    return 1 if wrong or large else 0


if __name__ == "__main__":
    sys.exit(main())
