#!/usr/bin/env python3
"""Run what `make_cases.py` prepared on an H200 and compare with the emulator's stored outputs.

    run_agreement.py DIR --out result.json

Needs torch, cuda-bindings and numpy, no compiler. A child process does the work: a kernel that hangs or faults is marked, and the rest
goes on in a new child. A case that the emulator refuses must fault here too. Exit status 1 if a result differs by more than its case
allows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import platform
import subprocess
import sys
import tempfile
import threading
import time
import types

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent.parent))
FLOATS = {"float16": np.float16, "float32": np.float32}


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("folder", type=pathlib.Path)
    ap.add_argument("--out", type=pathlib.Path, default=pathlib.Path("agreement.json"))
    ap.add_argument("--commit", default="", help="the commit to record")
    ap.add_argument("--stall", type=float, default=60, help="seconds without a result after which a kernel counts as hanging")
    ap.add_argument("--worker", nargs="*", help=argparse.SUPPRESS)
    args = ap.parse_args()
    if args.worker is not None:
        return worker(args.folder, set(args.worker))
    cases = json.loads((args.folder / "cases.json").read_text())
    names, faults = [case["name"] for case in cases], {case["name"]: case.get("faults") for case in cases}
    rows, machine = [], {}
    while len({r["case"] for r in rows}) < len(names):
        before = len(rows)
        found, why = run_child(args, [r["case"] for r in rows])
        machine = next((r for r in found if "gpu" in r), machine)
        rows += [r for r in found if "case" in r and "start" not in r]
        done = {r["case"] for r in rows}
        if why and not machine:
            print(f"run_agreement: error: {why}", file=sys.stderr)
            return 1
        if why:
            bad = next((n for n in names if n not in done), None)
            if bad:
                rows.append(dict(case=bad, what="", how="", ok=bool(faults[bad]) and faults[bad] in why, note=why))
        elif len(rows) == before:
            break
    write(args, machine, rows, names)
    return report(machine, rows, names)


def run_child(args, done):
    """(rows, why it ended early or ''). A case counts as done when the next one starts or the child ends well."""
    command = [sys.executable, __file__, str(args.folder), "--worker", *dict.fromkeys(done)]
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        lines, hung = [], []
        while True:
            watchdog = threading.Timer(args.stall, lambda: (hung.append(True), child.kill()))
            watchdog.start()
            line = child.stdout.readline()
            watchdog.cancel()
            if not line:
                break
            lines.append(json.loads(line))
        failed = child.wait()
        errors.seek(0)
        error = errors.read()
    why = ""
    if hung:
        why = f"no result in {args.stall:.0f} s: the kernel hangs"
    elif failed:
        # torch ends its CUDA errors with advice on debugging: the line that names the error stands above it.
        why = next((line for line in error.splitlines() if "CUDA error" in line), (error.strip().splitlines() or ["the process ended"])[-1])
    if why:
        print(error, file=sys.stderr)
        current = next((r["case"] for r in reversed(lines) if "start" in r), None)
        lines = [r for r in lines if r.get("case") != current]
    return lines, why


def worker(folder, done) -> int:
    import torch

    from fa4c.runtime import cuda

    torch.zeros(1, device="cuda")
    cuda.make_current(0)
    say(dict(gpu=torch.cuda.get_device_name(0), capability=list(torch.cuda.get_device_capability(0)), torch=torch.__version__,
             cuda=torch.version.cuda, driver=cuda.ask(cuda.driver().cuDriverGetVersion(), "ask the driver's version"),
             numpy=np.__version__, python=platform.python_version(), platform=platform.platform()))
    arrays = np.load(folder / "arrays.npz")
    for case in json.loads((folder / "cases.json").read_text()):
        if case["name"] in done:
            continue
        say(dict(case=case["name"], start=True))
        got = (run_kernel if case["kind"] == "kernel" else run_artifact)(folder, case, arrays)
        if case.get("faults"):
            say(dict(case=case["name"], what="", how="", ok=False, note=f"no {case['faults']}, but the emulator refuses it"))
        for output, how in case["outputs"].items():
            wanted = arrays[f"{case['name']}/{output}/emulator"]
            bound = arrays[f"{case['name']}/{output}/bound"] if how == "bound" else None
            dtype = case.get("dtypes", {}).get(output)
            one = got[output]
            pieces = [(output, one, wanted, bound)]
            if case.get("rows"):
                pieces = [(row, one[k], wanted[k], None if bound is None else bound[k]) for k, row in enumerate(case["rows"])]
            for what, x, y, limit in pieces:
                say(dict(case=case["name"], what=what, **compare(x, y, how, limit, "halves" if "16x2" in what else dtype)))
    return 0


def say(row) -> None:
    print(json.dumps(row), flush=True)


def run_kernel(folder, case, arrays):
    """Outputs by name: the cubin launched through the driver on copies of the stored bytes."""
    import torch

    from fa4c.runtime import cuda, plan, tensor_map

    data = (folder / case["cubin"]).read_bytes()
    kernel = dict(cubin="cubin", ptx=None, entry=case["entry"], smem_bytes=case["smem"], cluster=case["cluster"], block=case["block"])
    image = types.SimpleNamespace(digest=hashlib.sha256(data + str(case["smem"]).encode()).hexdigest(), members={"cubin": data},
                                  manifest={"kernels": {case["entry"]: kernel}}, path=case["cubin"], name=case["name"])
    function = cuda.kernel_function(image, case["entry"], 0)
    held = {b: torch.from_numpy(arrays[f"{case['name']}/{b}/in"].reshape(-1).view(np.uint8).copy()).cuda() for b in case["buffers"]}
    params = []
    for kind, value, *rest in case["params"]:
        if kind == "i32":
            params.append(plan.Param(int(value).to_bytes(4, "little", signed=True)))
        elif kind == "ptr":
            params.append(plan.Param(bytes(8), value))
        else:
            dtype, dims, strides, box, swizzle = rest
            params.append(plan.Param(bytes(128), value, tensor_map.MapSpec(dtype, tuple(dims), tuple(strides), tuple(box), swizzle)))
    launch = plan.Launch(case["entry"], tuple(case["grid"]), tuple(params))
    bound = cuda._BoundLaunch(kernel, launch, function, {b: k for k, b in enumerate(held)})
    torch.cuda.synchronize()
    bound.run([t.data_ptr() for t in held.values()], None, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    like = {b: arrays[f"{case['name']}/{b}/in"] for b in case["outputs"]}
    return {b: held[b].cpu().numpy().view(a.dtype).reshape(a.shape) for b, a in like.items()}


def run_artifact(folder, case, arrays):
    import torch

    from fa4c.runtime import artifact, execute

    given = {}
    for name in case["inputs"]:
        t = torch.from_numpy(arrays[f"{case['name']}/{name}/in"])
        given[name] = (t.view(torch.bfloat16) if case["dtypes"][name] == "bfloat16" else t).cuda()
    out = execute.execute(artifact.load(folder / case["file"]), given, backend="cuda")
    torch.cuda.synchronize()
    return {n: (t.contiguous().view(torch.int16) if t.dtype == torch.bfloat16 else t.contiguous()).cpu().numpy() for n, t in out.items()}


def compare(got, wanted, how, bound=None, dtype=None):
    """{how, ok, elements, different, largest: of |difference| / bound, or of the raw difference}."""
    width = 2 if dtype == "halves" else got.dtype.itemsize
    raw = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[width]
    g, w = np.ascontiguousarray(got).view(raw), np.ascontiguousarray(wanted).view(raw)
    different = g != w
    row = dict(how=how, elements=int(g.size), different=int(different.sum()))
    if how != "bound":
        if how != "bitwise":
            different &= ~(_nan(g) & _nan(w))
        row |= dict(ok=not different.any(), wrong=int(different.sum()))
        if different.any():
            at = int(np.flatnonzero(different.ravel())[0])
            row["note"] = f"first at {at}: H200 {int(g.ravel()[at]):#x}, emulator {int(w.ravel()[at]):#x}"
        return row
    if dtype == "bfloat16":
        x, y = ((a.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for a in (g, w))
    else:
        x, y = (a.view(FLOATS.get(dtype, np.float32)).astype(np.float64) for a in (g, w))
    same = (g == w) | (np.isnan(x) & np.isnan(y))
    with np.errstate(all="ignore"):
        share = np.where(same, 0, np.abs(x - y) / bound)
        off = np.where(same, 0, np.abs(x - y))
    share, off = (np.nan_to_num(a, nan=1e300, posinf=1e300) for a in (share, off))  # JSON has neither NaN nor infinity
    largest = float(off.max())
    return row | dict(ok=bool((share <= 1).all()), share_of_bound=float(share.max()), largest=largest)


def _nan(bits):
    """NaN as a float of that width; of 16 bits whatever is one as fp16 or as bf16."""
    if bits.dtype.itemsize == 2:
        return np.isnan(bits.view(np.float16)) | ((bits & 0x7FFF) > 0x7F80)
    return np.isnan(bits.view({4: np.float32, 8: np.float64}[bits.dtype.itemsize]))


def write(args, machine, rows, names):
    result = dict(what="outputs of the emulator against an H200", machine={k: v for k, v in machine.items()}, commit=args.commit,
                  date=time.strftime("%Y-%m-%d", time.gmtime()), cases=len(names), rows=rows, ok=all(r["ok"] for r in rows))
    args.out.write_text(json.dumps(result, indent=1) + "\n")


def report(machine, rows, names) -> int:
    for r in rows:
        figure = f"{r['wrong']} of {r['elements']} wrong" if "wrong" in r else ""
        if "share_of_bound" in r:
            figure = f"{r['share_of_bound']:.3f} of the bound, {r['different']} of {r['elements']} not equal"
        print(f"{'ok' if r['ok'] else 'WRONG':6}{r['case']:26} {r['what']:38} {r['how']:22} {figure} {r.get('note', '')}")
    wrong, missing = [r for r in rows if not r["ok"]], set(names) - {r["case"] for r in rows}
    print(f"{machine.get('gpu', 'no GPU')}: {len(rows) - len(wrong)} of {len(rows)} agree")
    if missing:
        print(f"not run: {', '.join(sorted(missing))}")
    return 1 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
