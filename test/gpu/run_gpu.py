#!/usr/bin/env python3
"""Run compiled artifacts on a real GPU with the runtime alone and compare them with float64.

    run_gpu.py DIR --out result.json               every NAME.fa4c in DIR: shapes, layouts, contents, graphs, threads, streams, copies
    run_gpu.py DIR --out times.json --time         TFLOP/s of the core sizes (medians, L2 flushed, chip warm)
    run_gpu.py DIR --only causal --cases issue     some artifacts, some cases (substrings)

An artifact of direction both or bwd is run backward: gradients against autograd, memory layouts of dO, graphs, the bitwise test; one of
direction both through torch's autograd and compiler too. `--jobs 8` runs 8 artifacts side by side, without host times.

Needs torch and cuda-bindings, neither MLIR nor the kernel DSL. The work is done by a child process: if a kernel hangs or faults, that
artifact is marked and the rest goes on in a new child. Exit status 1 if anything is wrong. Outputs lie between guard
zones and start as NaN.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]
GUARD = 1 << 13  # elements of NaN before and after each output


def parse_arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("folder", help="a folder of .fa4c files, or one file")
    ap.add_argument("--out", default="result.json", help="JSON with every figure")
    ap.add_argument("--time", action="store_true", help="measure speed instead of correctness")
    ap.add_argument("--only", default="", help="comma-separated parts of file names")
    ap.add_argument("--cases", default="", help="comma-separated parts of case and check names")
    ap.add_argument("--skip", default="", help="comma-separated parts of case and check names to leave out")
    ap.add_argument("--jobs", type=int, default=1, help="artifacts at a time")
    ap.add_argument("--seed", type=int, default=0, help="of the operands of the cases")
    ap.add_argument("--stall", type=float, default=60, help="seconds without progress after which a kernel counts as hanging")
    ap.add_argument("--budget", type=float, default=480, help="seconds for the whole run; what is left then is reported as not run")
    ap.add_argument("--commit", default="", help="the commit to record (default: asks git)")
    ap.add_argument("--worker", nargs="*", help=argparse.SUPPRESS)
    return ap.parse_args()


def main() -> int:
    args = parse_arguments()
    if args.worker is not None:
        return worker(args)
    folder = pathlib.Path(args.folder)
    files = sorted(folder.glob("*.fa4c")) if folder.is_dir() else [folder]
    files = [f for f in files if not args.only or any(part in f.name for part in args.only.split(","))]
    if not files:
        print(f"run_gpu: error: no .fa4c file in {folder}", file=sys.stderr)
        return 1
    deadline = time.time() + args.budget
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        found = list(pool.map(lambda own: run_files(args, own, deadline), [files[k :: args.jobs] for k in range(args.jobs)]))
    machine = next((r for part in found for r in part if r["kind"] == "machine"), None)
    rows = [r for part in found for r in part if r["kind"] not in ("machine", "start")]
    write_result(args, machine, rows)
    return report(args, machine, rows)


def run_files(args, files: list, deadline: float) -> list[dict]:
    """All rows of these artifacts, child after child; what was not reached is a failure."""
    rows = []
    while files and time.time() < deadline:
        done, found, reason = run_child(args, files, deadline)
        rows += found
        files = [f for f in files if f.name not in done]
        if reason and files:
            current = next((r for r in reversed(found) if r["kind"] == "start"), None)
            name = current["artifact"] if current else files[0].name
            rows.append(dict(kind="check", artifact=name, case=current["case"] if current else "start", ok=False, note=reason))
            print(f"{name}: {reason}", file=sys.stderr)
            files = [f for f in files if f.name != name]
    return rows + [dict(kind="check", artifact=f.name, case="all", ok=False, note="not run: the budget was used up") for f in files]


def run_child(args, files, deadline):
    """(names finished, rows, why it stopped early or '')."""
    with tempfile.TemporaryDirectory() as scratch:
        log = pathlib.Path(scratch) / "rows.jsonl"
        log.touch()
        command = [sys.executable, __file__, args.folder, "--out", str(log), "--cases", args.cases]
        command += ["--skip", args.skip, "--jobs", str(args.jobs), "--seed", str(args.seed), "--worker", *map(str, files)]
        child = subprocess.Popen(command + (["--time"] if args.time else []))
        seen, last, reason = 0, time.time(), ""
        while child.poll() is None:
            time.sleep(0.2)
            size = log.stat().st_size
            if size != seen:
                seen, last = size, time.time()
            elif time.time() - last > (args.stall if seen else max(args.stall, 180)):  # the first line waits for torch and the driver
                reason = f"no progress for {time.time() - last:.0f} s: the kernel hangs"
            if time.time() > deadline:
                reason = "not finished: the budget was used up"
            if reason:
                child.kill()
                child.wait()
        rows = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
        if not reason and child.returncode != 0:
            reason = next((r["note"] for r in reversed(rows) if r["kind"] == "fault"), f"the process ended with status {child.returncode}")
        return {r["artifact"] for r in rows if r["kind"] == "done"}, [r for r in rows if r["kind"] not in ("done", "fault")], reason


def worker(args) -> int:
    """Runs in the child: one JSON line for each event."""
    import torch

    from fa4c.runtime import artifact as artifact_module

    with open(args.out, "a") as file:

        def say(**row):
            file.write(json.dumps(row) + "\n")
            file.flush()

        say(kind="machine", **describe_machine())
        for path in args.worker:
            name = pathlib.Path(path).name
            say(kind="start", artifact=name, case="load")
            try:
                artifact, begun = artifact_module.load(path), time.time()

                def starts(case, name=name):
                    say(kind="start", artifact=name, case=case)

                found = times(artifact, Chosen(args), starts) if args.time else checks(artifact, Chosen(args), starts, args.seed)
                for event in found:
                    say(artifact=name, **event, seconds=round(time.time() - begun, 2))
                    begun = time.time()
                synchronize()
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                say(kind="fault", artifact=name, note=text[:600])
                traceback.print_exc()
                return 4  # a fault may have broken the context: go on in a new process
            say(kind="done", artifact=name)
            torch.cuda.empty_cache()
    return 0


def synchronize() -> None:
    import cases
    import torch

    if cases.DEVICE == "cuda":
        torch.cuda.synchronize()


def checks(artifact, chosen, start, seed):
    """Events of one artifact: one for each case and each behaviour."""
    import backward
    import behaviours
    import cases
    import torch

    forward = artifact.direction == "fwd"
    for case in cases.ALL if forward else cases.BACKWARD:
        if chosen(case.name):
            start(case.name)
            yield dict(kind="check", case=case.name, sizes=case.sizes, **(run_case if forward else run_backward)(artifact, case, seed))
    if cases.DEVICE != "cuda":
        return
    more = backward.WITH_FORWARD if artifact.direction == "both" else []
    for check in behaviours.CHECKS if forward else [*backward.CHECKS, *more]:
        if check is behaviours.jit and (artifact.name != "causal" or artifact.manifest["dtype"] != "bf16"):
            continue  # the driver compiles for a second or more: enough for one variant of each head dim
        if chosen(check.__name__):
            start(check.__name__)
            try:
                note = check(artifact)
                torch.cuda.synchronize()
            except (AssertionError, ValueError, RuntimeError) as error:
                if "CUDA error" in str(error) or "CUDA_ERROR" in str(error):
                    raise
                note = f"{type(error).__name__}: {error}"
            yield dict(kind="check", case=check.__name__, ok=note is None, note=note or "")
    for measure in (behaviours.host_time,) if forward else backward.HOST_TIMES:
        if chosen.alone and chosen(measure.__name__) and (forward or artifact.direction == "both"):
            start(measure.__name__)
            yield dict(kind="host", case=measure.__name__, **measure(artifact))


class Chosen:
    """Which cases and checks are wanted, by name; `alone`: nothing else runs beside them."""

    def __init__(self, args):
        self.alone = args.jobs == 1
        self._wanted, self._skipped = ([part for part in text.split(",") if part] for text in (args.cases, args.skip))

    def __call__(self, name: str) -> bool:
        return not any(part in name for part in self._skipped) and (not self._wanted or any(part in name for part in self._wanted))


def run_case(artifact, case, seed: int = 0) -> dict:
    """Compare with float64, outputs poisoned and guarded; `ratio` is the worst error over its limit."""
    import cases

    from fa4c.runtime import check

    inputs = cases.inputs_of(case, artifact.semantics, seed)
    return guarded(artifact, artifact.semantics, inputs, lambda got: check.check(artifact.semantics, inputs, got))


def run_backward(artifact, case, seed: int = 0) -> dict:
    """The same for gradients, compared with autograd; O and LSE are the forward kernel's."""
    import backward

    problem = backward.Problem(artifact, case, seed)
    return guarded(artifact.backward, artifact.backward.semantics, problem.inputs, problem.check)


def guarded(artifact, semantics, inputs, rows_of) -> dict:
    import cases
    import torch

    from fa4c.runtime import execute, reference
    from fa4c.runtime.errors import RuntimeDiagnostic
    from fa4c.runtime.torch_types import TORCH

    try:
        shapes = reference.result_shapes(semantics, reference.sizes_of(semantics, inputs))
        dtypes = {r["name"]: TORCH[r["dtype"]] for r in semantics["results"]}
        whole, outputs = {}, {}
        for name, shape in shapes.items():
            count = torch.Size(shape).numel()
            whole[name] = torch.full((count + 2 * GUARD,), float("nan"), dtype=dtypes[name], device=cases.DEVICE)
            outputs[name] = whole[name][GUARD : GUARD + count].view(shape)
        got = execute.execute(artifact, inputs, backend=cases.BACKEND, outputs=outputs)
        synchronize()
    except RuntimeDiagnostic as error:
        if "CUDA_ERROR" in str(error):
            raise
        return dict(ok=False, ratio=None, note=str(error)[:400])
    rows = rows_of(got)
    notes = [f"{r.tensor}: {r.note}" for r in rows if r.note]
    for name, buffer in whole.items():
        if not (torch.isnan(buffer[:GUARD]).all() and torch.isnan(buffer[-GUARD:]).all()):
            notes.append(f"{name}: written outside")
    worst = max(rows, key=lambda r: r.ratio)
    figures = {f"{r.tensor} {r.norm}": [r.err, r.limit, *([r.with_f32] if r.with_f32 else [])] for r in rows}
    by_eager = max((r.err / r.by_eager for r in rows if r.by_eager), default=0.0)
    return dict(
        ok=all(r.ok for r in rows) and not notes,
        ratio=finite(worst.ratio),
        worst=f"{worst.tensor} {worst.norm}",
        within_f32=not notes and all(r.ok or (not r.note and r.err <= r.with_f32) for r in rows),
        note="; ".join(dict.fromkeys(notes)),
        figures=figures,
        **({"ratio_by_eager": finite(by_eager)} if by_eager else {}),
    )


def finite(x: float):
    return round(x, 4) if x < 1e9 else 1e9


def times(artifact, chosen, start):
    import timing

    for case in timing.sizes_for(artifact):
        if chosen(case.name):
            start(case.name)
            yield dict(kind="time", case=case.name, **timing.measure(artifact, case))


def describe_machine() -> dict:
    import importlib.metadata

    import cases
    import torch

    from fa4c import __version__
    from fa4c.runtime import cuda

    if cases.DEVICE != "cuda":
        return dict(gpu=None, torch=torch.__version__, fa4c=__version__)
    cu = cuda.driver()
    return dict(
        gpu=torch.cuda.get_device_name(),
        driver=cuda.ask(cu.cuDriverGetVersion(), "ask the driver's version"),
        python=platform.python_version(),
        torch=torch.__version__,
        cuda_bindings=importlib.metadata.version("cuda-bindings"),
        fa4c=__version__,
        driver_takes_stride_0=cuda.zero_stride(),
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def write_result(args, machine, rows) -> None:
    commit = args.commit
    if not commit and shutil.which("git"):
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout.strip()
    machine = {k: v for k, v in (machine or {}).items() if k != "kind"}
    text = json.dumps(dict(machine=machine, commit=commit or None, rows=rows), indent=0)
    temporary = args.out + ".tmp"
    pathlib.Path(temporary).write_text(text + "\n")
    os.replace(temporary, args.out)


def report(args, machine, rows) -> int:
    print({k: v for k, v in (machine or {}).items() if k != "kind"})
    if args.time:
        import timing

        timing.table(rows)
    else:
        table(rows)
    bad = [r for r in rows if r.get("ok") is False]
    for r in bad:
        print(f"WRONG {r['artifact']} | {r['case']} | ratio {r.get('ratio')} {r.get('worst', '')} {r.get('note', '')}"[:500])
    checked = [r for r in rows if r.get("kind") == "check"]
    if not args.time:
        left = sum(1 for r in bad if r.get("within_f32"))
        print(f"{len(checked) - len(bad)} passed, {len(bad)} failed; {left} of these within what one f32 sum leaves of terms that cancel")
        for r in checked:
            if r.get("ratio_by_eager", 0) > 1 and r["ok"]:
                ratios = f"ratio {r['ratio']}, by eager's error {r['ratio_by_eager']}"
                print(f"eager gives 0, limit of 16-bit operands: {r['artifact']} | {r['case']} | {ratios}")
    return 1 if bad or not rows else 0


def table(rows) -> None:
    """One line an artifact: cases passed, the worst ratio and where, failed checks, host time beside that of a piece of pure Python."""
    print(f"{'artifact':40s} {'passed':>9s} {'worst':>7s}  where{'':28s} host us/pure Python  failed")
    for name in dict.fromkeys(r["artifact"] for r in rows):
        mine = [r for r in rows if r["artifact"] == name and r["kind"] == "check"]
        ratios = [r for r in mine if r.get("ratio") is not None]
        worst = max(ratios, key=lambda r: r["ratio"], default=None)
        host = " ".join(f"{r['us']}/{r['python_us']}" for r in rows if r["artifact"] == name and r["kind"] == "host")
        failed = [r["case"] for r in mine if not r["ok"]]
        where = f"{worst['case']}: {worst['worst']}" if worst else "-"
        passed, ratio = f"{len(mine) - len(failed):4d}/{len(mine):<4d}", worst["ratio"] if worst else float("nan")
        print(f"{name:40s} {passed} {ratio:7.3f}  {where:33s} {host or '-':>7}  {', '.join(failed[:6])}")


if __name__ == "__main__":
    sys.exit(main())
