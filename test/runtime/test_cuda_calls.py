"""The cuda backend's Python against a driver that records: addresses, streams, copies, threads, graphs. No GPU takes part.

CPU tensors stand for CUDA tensors (their addresses are real); launches go to a list. What only hardware can say is in test/gpu.
"""

import ctypes
import sys
import threading
import types

import pytest
import torch
from runtime_samples import (
    ALIBI_SCORE,
    BACKWARD_MEMBERS,
    CAUSAL,
    MEMBERS,
    SLOPES,
    attention_tree,
    backward_manifest,
    both_manifest,
    manifest,
)

import fa4c
from fa4c import api
from fa4c.runtime import artifact, counters, cuda, execute, tensor_map
from fa4c.runtime.errors import BackendError, InputError

real = pytest.importorskip("cuda.bindings.driver")
SUCCESS = real.CUresult.CUDA_SUCCESS
CPU = torch.device("cpu")


class FakeDriver:
    """`cuda.bindings.driver`'s types, and functions that record. `launched`: (function, grid, parameter bytes, stream, config)."""

    def __init__(self):
        self.launched, self.loaded, self.attributes, self.refuse_cubin, self.sizes = [], [], [], False, {}

    def __getattr__(self, name):  # types and enumerations
        return getattr(real, name)

    def cuGetErrorString(self, status):
        return SUCCESS, b"the text of " + status.name.encode()

    def cuDeviceGet(self, k):
        return SUCCESS, k

    def cuDeviceGetAttribute(self, which, device):
        return SUCCESS, 132 if "MULTIPROCESSOR" in which.name else 50 << 20

    def cuDevicePrimaryCtxRetain(self, device):
        return SUCCESS, "context"

    def cuCtxSetCurrent(self, context):
        self.loaded.append(("current", threading.get_ident()))
        return (SUCCESS,)

    def cuModuleLoadData(self, image):
        if self.refuse_cubin:
            return real.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU, None
        self.loaded.append(("cubin", image))
        return SUCCESS, "module"

    def cuModuleLoadDataEx(self, image, count, options, values):
        self.loaded.append(("ptx", image))
        return SUCCESS, "module"

    def cuModuleGetFunction(self, module, name):
        return SUCCESS, name.decode()

    def cuFuncSetAttribute(self, function, which, value):
        self.attributes.append((function, which.name, value))
        return (SUCCESS,)

    def cuLaunchKernelEx(self, config, function, params, extra):
        pointers = (ctypes.c_void_p * len(self.sizes[function])).from_address(params)
        data = [ctypes.string_at(p, size) for p, size in zip(pointers, self.sizes[function])]
        assert all(p % 64 == 0 for p in pointers), "a tensor map must lie at a multiple of 64"
        grid = config.gridDimX, config.gridDimY, config.gridDimZ
        self.launched.append((function, grid, data, int(config.hStream), config))
        return (SUCCESS,)


@pytest.fixture
def driver(monkeypatch):
    fake = FakeDriver()
    for cached in (cuda.driver, cuda.capability, cuda.properties, cuda.zero_stride, cuda._context):
        cached.cache_clear()
    monkeypatch.setattr(cuda, "driver", lambda: fake)
    monkeypatch.setattr(cuda, "capability", lambda device: (9, 0))
    monkeypatch.setattr(cuda, "zero_stride", lambda: False)
    monkeypatch.setattr(cuda, "encode", tensor_map.encode)
    monkeypatch.setattr(cuda, "_modules", {})
    monkeypatch.setattr(cuda, "_kernels", {})
    monkeypatch.setattr(execute, "_current_device", lambda: DEVICE.index)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(execute, "_raw_stream", lambda index: fake.stream)
    monkeypatch.setattr(execute, "_local", threading.local())
    fake.stream = 77
    yield fake
    for cached in (cuda.properties, cuda._context):
        cached.cache_clear()


def make(**changes):
    return artifact.build(manifest(**changes), MEMBERS)


def qkv(b=2, m=20, n=30, hq=4, hkv=2, d=64):
    return [torch.zeros(b, s, h, d, dtype=torch.bfloat16) for s, h in ((m, hq), (n, hkv), (n, hkv))]


DEVICE = types.SimpleNamespace(index=0, type="cuda")


def call(a, tensors, wanted=("o", "lse"), outputs=None):
    """What `execute` does for CUDA tensors; outputs land on the CPU."""
    widths = {"tensor_map": 128, "pointer": 8, "scalar": 4}
    cuda.driver().sizes = {k["entry"]: [widths[p["kind"]] for p in k["params"]] for k in a.manifest["kernels"].values()}
    runner = execute.runner(a, tensors, wanted, DEVICE)
    runner.device = CPU
    return dict(zip(wanted, runner.run(tensors, outputs)))


def addresses(data):
    return [int.from_bytes(p[:8], "little") for p in data]


def test_a_call_passes_addresses_scalars_grid_and_stream(driver):
    a, (q, k, v) = make(), qkv()
    out = call(a, [q, k, v])
    ((function, grid, data, stream, config),) = driver.launched
    assert (function, grid, stream) == ("sample_0", (1, 4, 2), 77) and (config.blockDimX, config.sharedMemBytes) == (384, 164864)
    assert addresses(data)[:5] == [t.data_ptr() for t in (q, k, v, out["o"], out["lse"])]
    assert tensor_map.decode(data[1])[1].shape == (64, 30, 2, 2) and [int.from_bytes(p, "little") for p in data[5:8]] == [20, 30, 2]
    assert out["o"].shape == (2, 20, 4, 64) and out["lse"].shape == (2, 4, 20) and out["lse"].dtype == torch.float32
    assert ("sample_0", "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", 164864) in driver.attributes


def test_second_call_plans_nothing_and_replaces_only_addresses(driver):
    a = make()
    call(a, qkv())
    driver.stream = 99
    other = qkv()
    call(a, other)
    assert counters.stats()["plans"] == 1 and [k for k, _ in driver.loaded].count("cubin") == 1
    first, second = (x[2] for x in driver.launched)
    assert [x[8:] for x in first] == [x[8:] for x in second] and addresses(second)[:3] == [t.data_ptr() for t in other]
    assert [x[3] for x in driver.launched] == [77, 99]
    call(a, qkv(m=21))
    assert counters.stats()["plans"] == 2


def test_an_unwanted_lse_gets_the_pointer_0(driver):
    out = call(make(), qkv(), wanted=("o",))
    assert set(out) == {"o"} and addresses(driver.launched[0][2])[4] == 0


def strided(kind):
    q, k, v = qkv()
    if kind == "fused qkv":
        q, k, v = torch.zeros(2, 30, 3, 4, 64, dtype=torch.bfloat16).unbind(2)
        return [q, k, v], set()
    if kind == "bhsd views":
        return [torch.zeros(2, x.shape[2], x.shape[1], 64, dtype=torch.bfloat16).transpose(1, 2) for x in (q, k, v)], set()
    if kind == "expanded k":
        return [q, torch.zeros(2, 30, 1, 64, dtype=torch.bfloat16).expand(2, 30, 2, 64), v], {"k"}
    if kind == "inner stride":
        return [q, k, torch.zeros(2, 30, 2, 128, dtype=torch.bfloat16)[..., ::2]], {"v"}
    if kind == "odd row stride":
        return [torch.zeros(2, 20, 4, 65, dtype=torch.bfloat16)[..., :64], k, v], {"q"}
    if kind == "odd base":
        storage = torch.zeros(k.numel() + 1, dtype=torch.bfloat16)
        return [q, storage[1:].view(k.shape), v], {"k"}
    raise AssertionError(kind)


@pytest.mark.parametrize("kind", ["fused qkv", "bhsd views", "expanded k", "inner stride", "odd row stride", "odd base"])
def test_only_what_tma_cannot_describe_is_copied(driver, kind):
    tensors, copied = strided(kind)
    a = make()
    for calls in (1, 2):
        call(a, tensors)
        seen = addresses(driver.launched[-1][2])
        for name, t, address in zip("qkv", tensors, seen):
            assert (address != t.data_ptr()) == (name in copied)
        assert {k for k in counters.stats() if k.startswith("copies.")} == {f"copies.{n}" for n in copied}
        assert counters.stats().get("copies", 0) == calls * len(copied)
    _, k_map = tensor_map.decode(driver.launched[-1][2][1])
    assert k_map.strides[0] == 2 * (tensors[1].contiguous() if "k" in copied else tensors[1]).stride(1)


def test_alignment_is_seen_in_each_call_not_remembered(driver):
    a, (q, k, v) = make(), qkv()
    odd = torch.zeros(k.numel() + 1, dtype=torch.bfloat16)[1:].view(k.shape)
    for t, copies in ((k, 0), (odd, 1), (k, 1), (odd, 2)):
        call(a, [q, t, v])
        assert counters.stats().get("copies", 0) == copies
    assert counters.stats()["plans"] == 1


def test_a_head_dim_that_tma_cannot_describe_is_an_error(driver):
    a = make(semantics=attention_tree(mask=CAUSAL, d=60, dv=60))
    with pytest.raises(InputError, match="cannot describe even when contiguous"):
        call(a, qkv(d=60))


def test_given_outputs_are_written_in_place_or_copied_back(driver):
    a, (q, k, v) = make(), qkv()
    o = torch.ones(2, 20, 4, 64, dtype=torch.bfloat16)
    out = call(a, [q, k, v], outputs={"o": o})
    assert out["o"] is o and addresses(driver.launched[-1][2])[3] == o.data_ptr()
    wide = torch.ones(2, 20, 4, 65, dtype=torch.bfloat16)[..., :64]
    out = call(a, [q, k, v], outputs={"o": wide})
    assert out["o"] is wide and addresses(driver.launched[-1][2])[3] != wide.data_ptr()
    with pytest.raises(InputError, match=r"output o is \(2, 20, 4, 63\)"):
        call(a, [q, k, v], outputs={"o": o[..., :63]})


def test_threads_have_their_own_buffers_and_make_the_context_current(driver):
    a = make()
    mine, wrong = {}, []
    barrier = threading.Barrier(4)

    def work(number):
        tensors = qkv()
        mine[number] = tensors
        barrier.wait()
        for _ in range(50):
            call(a, tensors)
            data = next(x for x in reversed(list(driver.launched)) if int.from_bytes(x[2][0][:8], "little") == tensors[0].data_ptr())[2]
            if addresses(data)[:3] != [t.data_ptr() for t in tensors]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(driver.launched) == 200
    for _, _, data, *_ in driver.launched:
        q, k, v = addresses(data)[:3]
        assert [q, k, v] in [[t.data_ptr() for t in ts] for ts in mine.values()], "parameters of two threads were mixed"
    assert [k for k, _ in driver.loaded].count("cubin") == 1 and len({i for k, i in driver.loaded if k == "current"}) == 4


def test_ptx_is_tried_where_the_cubin_is_refused(driver):
    driver.refuse_cubin = True
    call(make(), qkv())
    assert driver.loaded[-1][0] == "ptx" and driver.loaded[-1][1].endswith(b"\0") and counters.stats()["jit"] == 1


def test_ptx_is_not_jitted_on_another_target(driver, monkeypatch):
    monkeypatch.setattr(cuda, "capability", lambda device: (10, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA B200")
    with pytest.raises(BackendError, match=r"kernel is for sm_90a, but cuda:0 \(NVIDIA B200\) is sm_100") as caught:
        call(make(), qkv())
    assert caught.value.fix == "compile for 'sm_100a'" and not driver.launched


def test_a_failing_launch_names_kernel_and_grid(driver, monkeypatch):
    monkeypatch.setattr(FakeDriver, "cuLaunchKernelEx", lambda self, *a: (real.CUresult.CUDA_ERROR_INVALID_VALUE,))
    with pytest.raises(BackendError, match=r"launch fwd with grid \(1, 4, 2\): CUDA_ERROR_INVALID_VALUE"):
        call(make(), qkv())


def test_cluster_and_pdl_are_launch_attributes(driver):
    m = manifest()
    m["kernels"]["fwd"] |= {"cluster": [2, 1, 1], "pdl": True}
    call(artifact.build(m, MEMBERS), qkv())
    config = driver.launched[0][4]
    assert config.numAttrs == 2 and {a.id.name for a in config.attrs} == {
        "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION",
        "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION",
    }
    assert config.attrs[0].value.clusterDim.x == 2


def test_size_zero_launches_nothing(driver):
    out = call(make(), qkv(n=0))
    assert (out["o"] == 0).all() and (out["lse"] == float("-inf")).all() and not driver.launched
    assert call(make(), qkv(m=0))["o"].shape == (2, 0, 4, 64) and call(make(), qkv(b=0))["o"].shape == (0, 20, 4, 64)
    assert counters.stats()["empty"] == 3


def workspace_artifact(lifetime, init):
    m = manifest(
        workspaces=[{"name": "w", "dtype": "f32", "size": ["mul", "b", "m"], "init": init, "lifetime": lifetime}],
        steps=[{"op": "fill", "buffer": "lse", "value": 3}, {"op": "launch", "kernel": "fwd"}],
    )
    m["kernels"]["fwd"]["params"].append({"kind": "pointer", "tensor": "w"})
    return artifact.build(m, MEMBERS)


def test_cached_workspaces_are_one_for_each_stream_and_thread(driver):
    a = workspace_artifact("cached", "zero")
    seen = []
    for stream in (1, 1, 2):
        driver.stream = stream
        out = call(a, qkv())
        seen.append(addresses(driver.launched[-1][2])[9])
    assert seen[0] == seen[1] != seen[2] and (out["lse"] == 3).all()
    thread = threading.Thread(target=lambda: (call(a, qkv()), seen.append(addresses(driver.launched[-1][2])[9])))
    thread.start()
    thread.join()
    assert seen[3] not in seen[:3]


def test_a_captured_graph_gets_its_own_workspace(driver, monkeypatch):
    a = workspace_artifact("cached", "zero")
    call(a, qkv())
    outside = addresses(driver.launched[-1][2])[9]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    call(a, qkv())
    assert addresses(driver.launched[-1][2])[9] != outside


def test_captured_pointer_tensors(driver):
    a = artifact.build(manifest(attention_tree(mask=CAUSAL, captures=[SLOPES])), MEMBERS)
    slopes = torch.ones(8)[::2]
    call(a, [*qkv(), slopes])
    assert counters.stats()["copies.slopes"] == 1
    slopes = torch.ones(5)[1:]  # 4-byte aligned: fine for a pointer
    call(a, [*qkv(), slopes])
    assert addresses(driver.launched[-1][2])[9] == slopes.data_ptr() and counters.stats()["copies"] == 1


@pytest.fixture
def functions(driver, monkeypatch):
    """Names of our Python functions, and the number of torch's, that a warm call runs; CPU tensors take the way of CUDA tensors."""
    monkeypatch.setattr(execute, "choose_backend", lambda backend, device: "cuda")
    monkeypatch.setattr(execute, "_current_device", lambda: CPU.index)
    monkeypatch.setattr(FakeDriver, "cuLaunchKernelEx", lambda self, *a: (SUCCESS,))
    monkeypatch.setattr(api, "_calls", api._Calls())

    def of(call, *args, **options):
        for _ in range(2):
            call(*args, **options)
        ours, of_torch = [], []

        def note(frame, event, argument):
            name = frame.f_globals["__name__"]
            if event == "call" and name.startswith(("fa4c", "torch")):
                (ours if name.startswith("fa4c") else of_torch).append(frame.f_code.co_name)

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            call(*args, **options)
        finally:
            sys.setprofile(before)
        return ours, len(of_torch)

    return of


def test_host_time_is_that_of_few_functions(functions):
    """No time is measured: what is counted are Python's functions. The GPU suite measures the real thing."""
    both = artifact.build(*both_manifest())
    alibi = artifact.build(manifest(attention_tree(score=ALIBI_SCORE, captures=[SLOPES])), MEMBERS)
    plain, leaves = qkv(), [t.requires_grad_() for t in qkv()]
    captured = {"slopes": torch.ones(4)}
    comprehensions = ["<listcomp>"] if sys.version_info < (3, 12) else []  # those of later ones are no functions
    for tensors, variant, more, wanted, of_torch in (
        (plain, both, {}, ["attention", "__call__", "run", "run"], 2),  # is_compiling
        (plain, alibi, {"captured": captured}, ["attention", *2 * comprehensions, "__call__", "run", "run"], 2),
        (leaves, both, {}, ["attention", "forward", "run", "run"], 4),  # and two methods of autograd's context
        (leaves, both, {"deterministic": True, "return_lse": True}, ["attention", "forward", "run", "run"], 4),
        (leaves, alibi, {"captured": captured}, ["attention", *comprehensions, "forward", "run", "run"], 4),
    ):
        ours, others = functions(fa4c.attention, *tensors, variant=variant, **more)
        assert ours == wanted and others <= of_torch, (variant.name, more)


# -- a backward ----------------------------------------------------------------------------------------------------------------------------


def backward_call(a, tensors, wanted=("dq", "dk", "dv"), outputs=None):
    widths = {"tensor_map": 128, "pointer": 8, "scalar": 4, "stride": 8}
    cuda.driver().sizes = {k["entry"]: [widths[p["kind"]] for p in k["params"]] for k in a.manifest["kernels"].values()}
    runner = execute.runner(a, tensors, wanted, DEVICE)
    runner.device = CPU
    return dict(zip(wanted, runner.run(tensors, outputs)))


def backward_tensors(m=21, do=None):
    q, k, v = qkv(m=m)
    o, lse = torch.zeros_like(q), torch.zeros(2, 4, m)
    return [q, k, v, o, lse, torch.zeros_like(q) if do is None else do(q)]


def named(a, launch, kernel):
    """{tensor: address} of a launch."""
    names = [p.get("tensor") for p in a.manifest["kernels"][kernel]["params"]]
    return {n: x for n, x in zip(names, addresses(launch[2])) if n}


def test_a_backward_launches_in_order_and_shares_a_workspace(driver):
    a = artifact.build(backward_manifest(), BACKWARD_MEMBERS)
    tensors = backward_tensors()
    out = backward_call(a, tensors)
    assert [x[0] for x in driver.launched] == ["pre_0", "main_0"] and {x[3] for x in driver.launched} == {77}
    first, second = named(a, driver.launched[0], "pre"), named(a, driver.launched[1], "main")
    assert first["lse"] == tensors[4].data_ptr() and first["do"] == second["do"] == tensors[5].data_ptr()
    assert first["delta"] == second["delta"] not in (0, *(t.data_ptr() for t in tensors))
    assert [second[n] for n in ("dq", "dk", "dv")] == [out[n].data_ptr() for n in ("dq", "dk", "dv")]
    plan = next(iter(next(iter(execute._local.runners.values())).bound.values()))
    assert [(w.name, w.size) for w, _ in plan.workspaces] == [("delta", 2 * 4 * 24)]  # rows of 21 padded to 24


@pytest.mark.parametrize(
    "do, copied",
    [
        (lambda q: torch.ones((), dtype=q.dtype).expand(q.shape), True),
        (lambda q: torch.zeros(2, 4, q.shape[1], 64, dtype=q.dtype).transpose(1, 2), False),
        (lambda q: torch.zeros(q.numel() + 1, dtype=q.dtype)[1:].view(q.shape), True),
        (lambda q: torch.zeros(*q.shape[:3], 128, dtype=q.dtype)[..., ::2], True),
        (lambda q: torch.zeros(4, 64, dtype=q.dtype).expand(2, q.shape[1], 4, 64), True),
    ],
    ids=["expanded", "bhsd", "odd base", "inner stride", "expanded rows"],
)
def test_only_a_gradient_that_tma_cannot_describe_is_copied(driver, do, copied):
    a = artifact.build(backward_manifest(), BACKWARD_MEMBERS)
    tensors = backward_tensors(do=do)
    for calls in (1, 2):
        backward_call(a, tensors)
        assert counters.stats().get("copies.do", 0) == counters.stats().get("copies", 0) == (calls if copied else 0)
        assert (named(a, driver.launched[-1], "main")["do"] != tensors[5].data_ptr()) == copied


def test_rows_far_apart_are_read_in_place(driver):
    """B10: a row stride of 2^21 elements gives offsets beyond 2^31; strides go into the descriptor as 40 bits."""
    a = artifact.build(backward_manifest(), BACKWARD_MEMBERS)
    rows, row = 1100, 1 << 21
    assert a.program.layout_problem("do", (1, rows, 1, 64), (rows * row, row, 64, 1)) is None
    q = torch.zeros(1, rows, 1, 64, dtype=torch.bfloat16)
    geometry = {n: (tuple(t.shape), t.stride()) for n, t in zip(("q", "k", "v", "o"), [q] * 4)}
    geometry |= {"lse": ((1, 1, rows), (rows, rows, 1)), "do": ((1, rows, 1, 64), (rows * row, row, 64, 1))}
    plan = a.program.plan(geometry, ("dq", "dk", "dv"), {"num_sms": 132, "l2_bytes": 50 << 20})
    found = next(p.map for p in plan.steps[0].params if p.map is not None and p.tensor == "do")
    assert 2 * row in found.strides


def test_fills_of_outputs_come_before_the_launches(driver):
    m = backward_manifest()
    m["steps"].insert(0, {"op": "fill", "buffer": "dq", "value": 0})
    out = backward_call(artifact.build(m, BACKWARD_MEMBERS), backward_tensors())
    assert (out["dq"] == 0).all() and len(driver.launched) == 2


def test_threads_of_autograd_have_their_own_parameters(driver):
    """A backward runs in another thread than its forward: its context is made current there, nothing is shared."""
    a = artifact.build(backward_manifest(), BACKWARD_MEMBERS)
    tensors = backward_tensors()
    backward_call(a, tensors)
    thread = threading.Thread(target=backward_call, args=(a, tensors))
    thread.start()
    thread.join()
    assert len(driver.launched) == 4 and counters.stats()["plans"] == 2
    assert len({i for k, i in driver.loaded if k == "current"}) == 2
    one, two = (named(a, driver.launched[k], "pre") for k in (0, 2))
    assert one["do"] == two["do"]


def test_a_warm_backward_is_few_functions(functions):
    tensors = [t.requires_grad_() for t in qkv()]
    o = fa4c.attention(*tensors, variant=artifact.build(*both_manifest()))
    do = torch.ones_like(o)
    ours, _ = functions(torch.autograd.grad, o, tensors, do, retain_graph=True)
    own = [name for name in ours if name != "<listcomp>"]
    assert own == ["backward", "backward", "run", "compute", "runner", "run", "_workspace", "run", "run"]
