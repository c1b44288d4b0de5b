"""Gradients on the GPU: cases against autograd, and what their numbers do not show. Of artifacts of direction both (or bwd).

Each check returns None if all is well, else a sentence that says what is not; `*_time` return what `host_times.measure` does.
"""

from __future__ import annotations

import threading

import host_times
import torch
from cases import BACKEND, DEVICE, Case, gradient_of, inputs_of

from fa4c.runtime import check, counters, execute, gradients

SMALL = Case("small", 2, 4, 2, 300, 300)
# more CTAs than the 132 SMs whatever owns what, and 8 blocks of 128 keys that add to each row of dQ
MANY = [Case("MHA", 2, 12, 12, 1024, 1024), Case("GQA", 8, 12, 3, 1024, 1024)]
RUNS = 30


class Problem:
    """A case with everything that a backward is given; O and LSE come from the artifact's forward, or from float64 where it has none.
    With `through_o` the gradients of other results are 0, as they are where autograd comes from O alone."""

    def __init__(self, artifact, case: Case, seed: int = 0, through_o: bool = False):
        self.forward, self.backward = artifact.forward_semantics, artifact.backward
        self.given = inputs_of(case, self.forward, seed)
        names = [r["name"] for r in self.forward["results"]]
        if artifact.direction == "both":
            self.stored = execute.execute(artifact, self.given, backend=BACKEND, want=names)
        else:
            self.stored = execute.run_reference(self.forward, self.given, names)
        arriving = gradients.incoming(self.forward, self.backward.semantics)
        self.arriving = {name: gradient_of(case, self.stored[result], seed) for name, result in arriving.items()}
        for name in list(self.arriving)[1:] if through_o else ():
            self.arriving[name].zero_()
        read = [t.name for t in self.backward.program.inputs]
        self.inputs = {n: t for n, t in {**self.given, **self.stored, **self.arriving}.items() if n in read}

    def run(self, **options) -> dict[str, torch.Tensor]:
        return execute.execute(self.backward, self.inputs, backend=BACKEND, **options)

    def check(self, got: dict[str, torch.Tensor]) -> list:
        tree = self.backward.semantics
        by_result = {result: self.arriving[name] for name, result in gradients.incoming(self.forward, tree).items()}
        by_argument = {argument: got[name] for name, argument in gradients.outgoing(self.forward, tree).items()}
        return check.check_gradients(self.forward, self.given, by_result, by_argument, backward=tree)


def _differs(one: dict, two: dict) -> str | None:
    return next((n for n, t in one.items() if not torch.equal(t, two[n])), None)


def adds_in_any_order(artifact) -> bool:
    return artifact.backward.adds_in_any_order


def spread(problem: Problem) -> None:
    """Operands over 2^-8 to 2^8, so that the order of a sum shows in its bits; 2^-4 to 2^4 in fp16, where dO V^T would overflow."""
    generator = torch.Generator(device=DEVICE).manual_seed(5)
    for name in ("v", *problem.arriving):
        t = problem.inputs[name]
        most = 4 if t.dtype == torch.float16 else 8
        powers = torch.randint(-most, most + 1, t.shape[:3], generator=generator, device=DEVICE).float()
        t.mul_(torch.exp2(powers).view(*powers.shape, *[1] * (t.dim() - 3)).to(t.dtype))


def bitwise(artifact) -> str | None:
    """Issue 5 item 4: 30 runs give the same bits; the plain kernel, if it adds by atomics, is seen to differ."""
    seen = 0
    for case in MANY:
        problem = Problem(artifact, case)
        spread(problem)
        first = problem.run()
        others = [_differs(first, problem.run()) for _ in range(RUNS - 1)]
        seen += sum(other is not None for other in others)
        if seen and not adds_in_any_order(artifact):
            return f"{case.name}: {sum(o is not None for o in others)} of {RUNS} runs differ, first in {next(o for o in others if o)}"
    if not seen and adds_in_any_order(artifact):
        return "no run differs, though sums have no order: the test shows nothing"
    return None


def dirty_workspaces(artifact) -> str | None:
    """Freed memory full of NaN is what workspaces are made of next; results stay."""
    problem = Problem(artifact, SMALL)
    first = problem.run()
    for value in (float("nan"), float("inf"), -1e30):
        for size in (1 << 10, 1 << 16, 1 << 20, 1 << 24):
            junk = [torch.full((size,), value, device=DEVICE) for _ in range(8)]
            del junk
        got = problem.run()
        if not all(row.ok for row in problem.check(got)):
            return f"with memory that held {value}: out of tolerance"
        if not adds_in_any_order(artifact) and _differs(first, got):
            return f"with memory that held {value}: {_differs(first, got)} differs"
    return None


def _attention(artifact, problem: Problem, needs="qkv", **options):
    """o, and the leaves it depends on, by `fa4c.attention`."""
    import fa4c

    leaves = {n: t.detach().requires_grad_(n in needs and t.is_floating_point()) for n, t in problem.given.items()}
    captured = {n: t for n, t in leaves.items() if n not in ("q", "k", "v")} or None
    o = fa4c.attention(leaves["q"], leaves["k"], leaves["v"], variant=artifact, captured=captured, backend=BACKEND, **options)
    return o, leaves


def _same(artifact, one: torch.Tensor, two: torch.Tensor) -> bool:
    if BACKEND == "cuda" and not adds_in_any_order(artifact):  # the reference evaluates two things that are equal in mathematics
        return torch.equal(one, two)
    return torch.allclose(one.float(), two.float(), rtol=0.02, atol=0.02)


def autograd(artifact) -> str | None:
    """Gradients by autograd are those of the kernels, for all and for some of the inputs; dO is expanded, then not contiguous."""
    problem = Problem(artifact, SMALL, through_o=True)
    do = next(iter(problem.arriving.values()))
    wanted = problem.run()
    for needs in ("qkv", "q", "kv", "v"):
        o, leaves = _attention(artifact, problem, needs)
        o.backward(do)
        for name in "qkv":
            if (leaves[name].grad is not None) != (name in needs):
                return f"{needs} need gradients: {name} has {leaves[name].grad is not None}"
            if name in needs and not _same(artifact, leaves[name].grad, wanted[f"d{name}"]):
                return f"{needs} need gradients: d{name} differs from the kernel's"
    found = []
    for make in (lambda t: t.sum().backward(), lambda t: t.transpose(1, 2).contiguous().sum().backward()):
        o, leaves = _attention(artifact, problem)
        make(o)
        found.append(leaves["q"].grad)
    return None if _same(artifact, *found) else "an expanded dO gives another dq than a contiguous one"


def autograd_graph(artifact) -> str | None:
    """Forward and backward captured together after warm calls on a side stream; replays with new contents equal plain calls."""
    problem = Problem(artifact, SMALL, seed=1, through_o=True)
    import fa4c

    static = {n: t.clone().requires_grad_(n in ("q", "k", "v")) for n, t in problem.given.items()}
    do = next(iter(problem.arriving.values())).clone()
    captured = {n: t for n, t in static.items() if n not in ("q", "k", "v")} or None

    def step():
        o = fa4c.attention(static["q"], static["k"], static["v"], variant=artifact, captured=captured, backend=BACKEND)
        return torch.autograd.grad(o, [static[n] for n in "qkv"], do)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    for seed in (2, 3):
        fresh = Problem(artifact, SMALL, seed=seed, through_o=True)
        with torch.no_grad():
            for name, t in static.items():
                t.copy_(fresh.given[name])
            do.copy_(next(iter(fresh.arriving.values())))
        graph.replay()
        torch.cuda.synchronize()
        wanted = fresh.run()
        for name, gradient in zip("qkv", got):
            if not _same(artifact, gradient, wanted[f"d{name}"]):
                return f"replay with seed {seed} gives another d{name}"
    return None


def autograd_threads(artifact) -> str | None:
    """Four threads with streams of their own, each forward and backward ten times; autograd's thread serves them all."""
    problems = [Problem(artifact, SMALL, seed=10 + k, through_o=True) for k in range(4)]
    wanted = [p.run() for p in problems]
    torch.cuda.synchronize()
    wrong = []

    def work(k):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(10):
                    o, leaves = _attention(artifact, problems[k])
                    o.backward(next(iter(problems[k].arriving.values())))
                    torch.cuda.current_stream().synchronize()
                    if not all(_same(artifact, leaves[n].grad, wanted[k][f"d{n}"]) for n in "qkv"):
                        wrong.append(f"thread {k} got other gradients")
        except Exception as error:
            wrong.append(f"thread {k}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return wrong[0] if wrong else None


def no_synchronisation(artifact) -> str | None:
    """Warm calls return while the GPU is still busy with what was queued before."""
    problem = Problem(artifact, SMALL)
    do = next(iter(problem.arriving.values()))
    for _ in range(2):
        _attention(artifact, problem)[0].backward(do)
    torch.cuda.synchronize()
    torch.cuda._sleep(100_000_000)  # some 50 ms
    event = torch.cuda.Event()
    event.record()
    _attention(artifact, problem)[0].backward(do)
    done = event.query()
    torch.cuda.synchronize()
    return "forward or backward waited for the GPU" if done else None


def copied_gradients(artifact) -> str | None:
    """dO is copied where TMA cannot describe it, and nothing else ever is."""
    for grad, wanted in (("packed", 0), ("bhsd", 0), ("every second row", 0), ("odd base", 1), ("inner stride", 1), ("odd row stride", 1)):
        problem = Problem(artifact, Case(grad, 2, 4, 2, 64, 64, grad=grad))
        counters.reset()
        problem.run()
        seen = {k: v for k, v in counters.stats().items() if k.startswith("copies.")}
        if seen != ({f"copies.{next(iter(problem.arriving))}": 1} if wanted else {}):
            return f"dO {grad}: copied {seen}"
    return None


def compiled(artifact) -> str | None:
    """torch.compile(fullgraph=True), dynamic lengths, captured tensors, gradients too."""
    import fa4c

    others = [a["name"] for a in artifact.semantics["args"] if a["name"] not in ("q", "k", "v")]

    def function(q, k, v, *captured):
        named = dict(zip(others, captured)) or None
        return fa4c.attention(q * 1, k, v, variant=artifact, captured=named, backend=BACKEND).float() * 2

    torch._dynamo.reset()  # each artifact is another constant of this function: too many of them in a process are refused
    graph = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for m in (300, 333):
        problem = Problem(artifact, Case("compiled", 2, 4, 2, m, m))
        found = []
        for call in (function, graph):
            leaves = [problem.given[n].detach() for n in ("q", "k", "v", *others)]
            wrt = [t.requires_grad_() for t in leaves if t.is_floating_point()]
            out = call(*leaves)
            out.backward(torch.ones_like(out))
            found.append([out, *(t.grad for t in wrt)])
        if not all(_same(artifact, one, two) for one, two in zip(*found)):
            return f"{m} queries: the compiled function differs"
    return None


def workspaces(artifact) -> str | None:
    """At most dQ in f32 padded to tiles, dK and dV in f32 under GQA, and some numbers a row."""
    from fa4c.runtime import cuda

    program = artifact.backward.program
    for case in (Case("MHA", 2, 8, 8, 1000, 1000), Case("GQA", 2, 8, 2, 1000, 1000)):
        problem = Problem(artifact, case)
        geometry = {n: (tuple(t.shape), t.stride()) for n, t in problem.inputs.items()}
        names = [t.name for t in program.outputs]
        aligned = {("aligned", name, n): True for name, n in program.alignments}
        plan = program.plan(geometry, names, cuda.properties(torch.cuda.current_device()), aligned)
        used = sum(w.size * (4 if w.dtype in ("f32", "i32") else 8) for w in plan.workspaces)
        d, dv = plan.sizes["d"], plan.sizes["dv"]
        rows = case.b * case.hq * 1024
        limit = 4 * rows * (d + 16) + (4 * case.b * case.hkv * 1024 * (d + dv) if case.hq != case.hkv else 0) + (1 << 16)
        if used > limit:
            return f"{case.name}: {used} bytes, at most {limit} are allowed"
    return None


def autograd_forward_time(artifact) -> dict:
    """Of one `fa4c.attention` call whose inputs require grad."""
    problem = Problem(artifact, Case("host", 1, 1, 1, 128, 128))
    leaves = {n: t.detach().requires_grad_(t.is_floating_point()) for n, t in problem.given.items()}
    import fa4c

    captured = {n: t for n, t in leaves.items() if n not in ("q", "k", "v")} or None
    q, k, v = (leaves[n] for n in "qkv")
    return host_times.measure(lambda: fa4c.attention(q, k, v, variant=artifact, captured=captured, backend=BACKEND))


def autograd_backward_time(artifact) -> dict:
    """Of one backward, autograd's own work included."""
    problem = Problem(artifact, Case("host", 1, 1, 1, 128, 128))
    o, leaves = _attention(artifact, problem)
    do = torch.ones_like(o)
    wrt = [leaves[n] for n in "qkv"]
    return host_times.measure(lambda: torch.autograd.grad(o, wrt, do, retain_graph=True))


CHECKS = [bitwise, dirty_workspaces, copied_gradients, workspaces]
WITH_FORWARD = [autograd, autograd_graph, autograd_threads, no_synchronisation, compiled]  # for artifacts of both directions
HOST_TIMES = [autograd_forward_time, autograd_backward_time]
