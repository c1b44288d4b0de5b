"""What a kernel's numbers do not show: graphs, threads, streams, repeated runs, copies, host time, PTX by JIT, descriptors by the driver.

Each function returns None if all is well, else a sentence that says what is not; `host_time` returns what `host_times.measure` does.
"""

from __future__ import annotations

import threading

import host_times
import torch
from cases import BACKEND, Case, inputs_of

from fa4c.runtime import artifact as artifact_module
from fa4c.runtime import counters, cuda, execute, tensor_map

SMALL = Case("small", 2, 4, 2, 300, 300)


def outputs(artifact, inputs, **options):
    return execute.execute(artifact, inputs, backend=BACKEND, **options)


def repeats(artifact) -> str | None:
    """Twenty runs give the same bits, whether LSE is wanted or not."""
    inputs = inputs_of(SMALL, artifact.semantics)
    first = outputs(artifact, inputs)
    for _ in range(20):
        if any(not torch.equal(a, first[n]) for n, a in outputs(artifact, inputs).items()):
            return "two runs differ"
    optional = [t.name for t in artifact.program.outputs if t.optional]
    rest = outputs(artifact, inputs, want=[n for n in first if n not in optional])
    if any(n in rest for n in optional) or any(not torch.equal(a, first[n]) for n, a in rest.items()):
        return "leaving out the optional outputs changes the others"
    return None


def graph(artifact) -> str | None:
    """Captured after one warm call; replays with new contents equal plain calls."""
    static = inputs_of(SMALL, artifact.semantics, seed=1)
    outputs(artifact, static)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        got = outputs(artifact, static)
    for seed in (2, 3):
        fresh = inputs_of(SMALL, artifact.semantics, seed=seed)
        for name, t in static.items():
            t.copy_(fresh[name])
        captured.replay()
        wanted = outputs(artifact, fresh)
        torch.cuda.synchronize()
        for name, t in wanted.items():
            if not torch.equal(got[name], t):
                return f"replay with seed {seed} gives another {name}"
    return None


def threads(artifact) -> str | None:
    """Four threads, each with its own inputs and stream, twenty calls each."""
    given = [inputs_of(SMALL, artifact.semantics, seed=10 + k) for k in range(4)]
    wanted = [outputs(artifact, g) for g in given]
    torch.cuda.synchronize()
    wrong = []

    def work(k):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(20):
                    got = outputs(artifact, given[k])
                    if any(not torch.equal(got[n], t) for n, t in wanted[k].items()):
                        wrong.append(f"thread {k} got another result")
        except Exception as error:
            wrong.append(f"thread {k}: {type(error).__name__}: {error}")

    started = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in started:
        t.start()
    for t in started:
        t.join()
    return wrong[0] if wrong else None


def streams(artifact) -> str | None:
    """The launch is on torch's current stream: work before and after it on that stream is ordered, and another stream's is not needed."""
    fresh = inputs_of(SMALL, artifact.semantics, seed=21)
    wanted = outputs(artifact, fresh)
    static = {n: torch.zeros_like(t) for n, t in fresh.items()}
    torch.cuda.synchronize()
    one = torch.cuda.Stream()
    with torch.cuda.stream(one):
        torch.cuda._sleep(20_000_000)  # the inputs arrive late, on this stream only
        for n, t in static.items():
            t.copy_(fresh[n])
        got = outputs(artifact, static)
        late = {n: t.clone() for n, t in got.items()}
    torch.cuda.synchronize()
    for n, t in wanted.items():
        if not torch.equal(late[n], t):
            return f"{n} was computed before its inputs came on the stream"
    return None


def no_synchronisation(artifact) -> str | None:
    """A warm call returns while the GPU is still busy with what was queued before."""
    inputs = inputs_of(SMALL, artifact.semantics)
    outputs(artifact, inputs)
    torch.cuda.synchronize()
    torch.cuda._sleep(100_000_000)  # some 50 ms
    event = torch.cuda.Event()
    event.record()
    outputs(artifact, inputs)
    done = event.query()
    torch.cuda.synchronize()
    return "the call waited for the GPU" if done else None


def copies(artifact) -> str | None:
    """Only the tensor that cannot be described is copied; slices of a fused projection are not."""
    zero = cuda.zero_stride()
    for view, wanted in (
        ("packed", set()),
        ("fused qkv", set()),
        ("bhsd", set()),
        ("odd base", {"copies.k"}),
        ("inner stride", {"copies.v"}),
        ("expanded heads", set() if zero else {"copies.k", "copies.v"}),
    ):
        inputs = inputs_of(Case(view, 2, 4, 4, 64, 64, view), artifact.semantics)
        counters.reset()
        outputs(artifact, inputs)
        seen = {k for k in counters.stats() if k.startswith("copies.")}
        if seen != wanted:
            return f"{view}: copied {sorted(seen)}, expected {sorted(wanted)}"
    return None


def jit(artifact) -> str | None:
    """The PTX alone, compiled by the driver, gives the cubin's bits or at least its tolerance."""
    m = {**artifact.manifest, "kernels": {k: {**v, "cubin": None} for k, v in artifact.manifest["kernels"].items()}}
    if any(not k.get("ptx") for k in m["kernels"].values()):
        return "the artifact has no PTX"
    alone = artifact_module.build(m, {n: d for n, d in artifact.members.items() if not n.endswith(".cubin")}, artifact.path + " (PTX)")
    inputs = inputs_of(SMALL, artifact.semantics)
    counters.reset()
    got, wanted = outputs(alone, inputs), outputs(artifact, inputs)
    if not counters.stats().get("jit"):
        return "the PTX was not compiled by the driver"
    worst = max((got[n].float() - t.float()).nan_to_num(posinf=0, neginf=0).abs().max().item() for n, t in wanted.items())
    return None if worst < 0.02 else f"the PTX gives results that differ by {worst}"


def descriptors(artifact) -> str | None:
    """Every tensor map of the artifact: our Python encoder and the driver agree on the 60 bytes of fields, and only the address changes."""
    shapes = {
        t.name: tuple({"b": 2, "hq": 4, "hkv": 2, "m": 300, "n": 333, **artifact.program.constants, **t.static}.get(d, 5) for d in t.layout)
        for t in artifact.program.tensors.values()
    }
    from fa4c.runtime.layout import contiguous_strides

    for t in artifact.program.tensors.values():
        for param in t.maps:
            m = tensor_map.spec(param, t.layout, shapes[t.name], contiguous_strides(shapes[t.name]))
            ours, driver = tensor_map.encode(m, 1 << 20), cuda.encode(m, 1 << 20)
            if ours[:60] != driver[:60]:
                return f"{t.name}: ours {ours[:60].hex()}, the driver's {driver[:60].hex()}"
            if cuda.encode(m, 3 << 20)[8:] != driver[8:]:
                return f"{t.name}: another address changes more than the first 8 bytes"
    return None


def host_time(artifact) -> dict:
    """Of one `fa4c.attention` call."""
    import fa4c

    inputs = inputs_of(Case("host", 1, 1, 1, 128, 128), artifact.semantics)
    q, k, v, *captured = inputs.values()
    extra = {n: t for n, t in inputs.items() if n not in ("q", "k", "v")} or None
    with torch.no_grad():
        return host_times.measure(lambda: fa4c.attention(q, k, v, variant=artifact, captured=extra, backend=BACKEND))


CHECKS = [repeats, graph, threads, streams, no_synchronisation, copies, jit, descriptors]
