"""Speed of an artifact on the core sizes: median GPU time of one call, L2 flushed before each, on a warm chip.

FLOPs are 4 d for each visible (query, key) pair and head, or 2 (d + dv) where they differ, and 2.5 times that backward, 2 (3 d + 2 dv);
pairs are counted from the variant's own mask. An artifact of both directions is measured backward.
"""

from __future__ import annotations

import statistics
import time

import backward
import torch
from cases import Case, inputs_of

from fa4c.runtime import check, execute, reference

# batch, length, query heads, kv heads, d, dv
CORE = [
    (1, 16384, 16, 16, 128, 128),
    (2, 8192, 16, 16, 128, 128),
    (4, 4096, 16, 16, 128, 128),
    (8, 2048, 16, 16, 128, 128),
    (16, 1024, 16, 16, 128, 128),
    (1, 8192, 64, 8, 128, 128),
    (1, 16384, 32, 32, 64, 64),
    (4, 4096, 32, 32, 64, 64),
    (16, 1024, 32, 32, 64, 64),
    (4, 4096, 16, 16, 96, 96),
    (4, 4096, 16, 16, 192, 128),
    (4, 4096, 8, 8, 256, 256),
]
_state: dict = {}


def sizes_for(artifact) -> list[Case]:
    sizes = artifact.manifest["head_dims"]
    return [Case(f"b{b} s{s} hq{hq} hkv{hkv}", b, hq, hkv, s, s) for b, s, hq, hkv, d, dv in CORE if (d, dv) == (sizes["d"], sizes["dv"])]


def visible_pairs(semantics: dict, inputs: dict) -> int:
    """(query, key) pairs that the mask lets through, over all batches and heads: the finite scores before the softmax."""
    tree = dict(
        semantics, body=[], results=[{"name": "pairs", "value": "pairs", "dtype": "f64", "axes": [], "dims": ["m"], "shape": [None]}]
    )
    for op in semantics["body"]:
        if op["op"] == "softmax":
            seen = [["x", 0], ["const", -1e30, "f32"], ["gt", 0, 1], ["cast", 2, "f32"]]
            tree["body"] += [
                {"op": "map", "in": op["in"], "out": ["seen"], "expr": seen, "dtype": "f32"},
                {"op": "reduce", "in": ["seen"], "out": ["pairs"], "kind": "sum"},
            ]
            break
        tree["body"].append(op)
    return int(reference.evaluate(tree, inputs, torch.float32)["pairs"].double().sum())


def measure(artifact, case: Case) -> dict:
    """{"ms", "tflops", "ok", "ratio"}: one random (batch, KV head) group is compared with float64 first."""
    if artifact.direction != "fwd":
        return measure_backward(artifact, case)
    inputs = inputs_of(case, artifact.semantics)
    pairs = pairs_of(artifact.semantics, inputs, case)
    d, dv = artifact.manifest["head_dims"]["d"], artifact.manifest["head_dims"]["dv"]
    wanted = [t.name for t in artifact.program.outputs if not t.optional]
    buffers = execute.execute(artifact, inputs, backend="cuda", want=wanted)
    ok, ratio = compare_group(artifact, case, inputs, buffers)
    return timed(artifact, inputs, buffers, wanted, 2 * (d + dv) * pairs) | dict(ok=ok, ratio=ratio)


def measure_backward(artifact, case: Case) -> dict:
    problem = backward.Problem(artifact, case)
    pairs = pairs_of(problem.forward, problem.given, case)
    d, dv = artifact.manifest["head_dims"]["d"], artifact.manifest["head_dims"]["dv"]
    found = problem.run()
    ok, ratio = compare_gradients(problem, case, found)
    return timed(problem.backward, problem.inputs, found, list(found), 2 * (3 * d + 2 * dv) * pairs) | dict(ok=ok, ratio=ratio)


def pairs_of(semantics: dict, inputs: dict, case: Case) -> int:
    """Masks without captures of b or h are the same everywhere."""
    if any(a["axes"] for a in semantics["args"][3:]):
        return visible_pairs(semantics, inputs)
    return visible_pairs(semantics, group(inputs, 0, 0, 1)) * case.b * case.hq


def timed(artifact, inputs, buffers, wanted, flops) -> dict:
    def call():
        execute.execute(artifact, inputs, backend="cuda", outputs=buffers, want=wanted)

    reps = int(min(30, max(5, 60 / time_gpu(call, 3))))
    heat(0.3)
    ms = statistics.median(time_gpu(call, reps) for _ in range(3))
    return dict(ms=round(ms, 4), tflops=round(flops / ms / 1e9, 1))


def group(inputs: dict, b: int, hkv: int, heads: int) -> dict:
    """Inputs of one batch entry and the `heads` query heads of one KV head."""
    found = {"q": inputs["q"][b : b + 1, :, hkv * heads : (hkv + 1) * heads]}
    found |= {n: inputs[n][b : b + 1, :, hkv : hkv + 1] for n in ("k", "v")}
    return {**inputs, **found}


def compare_group(artifact, case: Case, inputs, outputs) -> tuple[bool | None, float | None]:
    """(within tolerance, worst ratio) for one group, or (None, None) where captures vary over b or h."""
    if any(a["axes"] for a in artifact.semantics["args"][3:]):
        return None, None
    heads, b, hkv = case.hq // case.hkv, case.b - 1, case.hkv - 1
    mine = {n: t[b : b + 1, :, hkv * heads : (hkv + 1) * heads] for n, t in outputs.items() if t.dim() == 4}
    rows = check.check(artifact.semantics, group(inputs, b, hkv, heads), mine)
    return all(r.ok for r in rows), round(max(r.ratio for r in rows), 4)


def compare_gradients(problem, case: Case, found: dict) -> tuple[bool | None, float | None]:
    """The same of dQ, dK and dV; gradients of captured tensors are sums over all groups and are not compared here."""
    if any(a["axes"] for a in problem.forward["args"][3:]):
        return None, None
    heads, b, hkv = case.hq // case.hkv, case.b - 1, case.hkv - 1
    do = next(iter(problem.arriving.values()))
    mine = group({"q": found["dq"], "k": found["dk"], "v": found["dv"]}, b, hkv, heads)
    given = {"o": do[b : b + 1, :, hkv * heads : (hkv + 1) * heads]}
    rows = check.check_gradients(problem.forward, group(problem.given, b, hkv, heads), given, mine)
    return all(r.ok for r in rows), round(max(r.ratio for r in rows), 4)


def time_gpu(call, reps: int) -> float:
    """Median GPU milliseconds; the queue is filled behind a sleep, so host time does not count."""
    if "flush" not in _state:
        _state["flush"] = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(reps)]
    torch.cuda._sleep(2_000_000 + reps * 1_300_000)
    for start, end in events:
        _state["flush"].zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def heat(seconds: float) -> None:
    if "heat" not in _state:
        _state["heat"] = [torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    begin = time.time()
    while time.time() - begin < seconds:
        for _ in range(20):
            _state["heat"][0] @ _state["heat"][1]
        torch.cuda.synchronize()


def table(rows) -> None:
    print(f"{'artifact':40s} {'size':24s} {'ms':>9s} {'TFLOP/s':>8s} {'ratio':>7s}")
    for r in rows:
        if r["kind"] == "time":
            print(
                f"{r['artifact']:40s} {r['case']:24s} {r['ms']:9.4f} {r['tflops']:8.1f} {r['ratio'] if r['ratio'] is not None else '-':>7}"
            )
