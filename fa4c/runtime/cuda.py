"""The cuda backend: loads kernel images and launches them through the driver API (`cuda-bindings`), nothing else.

Images are loaded once a device, cubin first; the PTX is JIT-compiled only where the device is of the artifact's own target. `bind` gives
a plan parameter buffers and launch configurations, for one device and one thread. Running its steps writes the addresses and launches: no
lock, no synchronisation, no allocation of its own.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable

from . import counters, tensor_map
from .errors import BackendError
from .manifest import TARGETS
from .plan import Fill, Launch, Plan

_SWIZZLE = {0: 0, 32: 1, 64: 2, 128: 3}
_lock = threading.Lock()  # guards the two tables of loaded images, never taken by a launch
_modules: dict = {}
_kernels: dict = {}


@functools.cache
def driver():
    """`cuda.bindings.driver`, initialised. Raises `BackendError` where the package or the driver is missing."""
    try:
        from cuda.bindings import driver as cu
    except ImportError as error:
        raise BackendError(
            f"cuda-bindings cannot be imported: {error}",
            why="the cuda backend calls the driver through it",
            fix="pip install cuda-bindings, or backend='reference'",
        ) from None
    try:
        status = cu.cuInit(0)[0]
    except Exception as error:  # cuda.pathfinder raises its own kind where libcuda is missing
        raise BackendError(f"no CUDA driver: {error}", fix="install the NVIDIA driver, or use backend='emulator' or 'reference'") from None
    if status != cu.CUresult.CUDA_SUCCESS:
        raise BackendError(
            f"the CUDA driver does not start: {status.name}", fix="look at nvidia-smi, or use backend='emulator' or 'reference'"
        )
    return cu


def ask(result, doing: str):
    """Unpack a driver call's result; raises `BackendError` saying what we were `doing`."""
    status, *values = result
    if status != driver().CUresult.CUDA_SUCCESS:
        text = driver().cuGetErrorString(status)[1]
        raise BackendError(f"{doing}: {status.name}", why=text.decode() if isinstance(text, bytes) else "")
    return values[0] if len(values) == 1 else tuple(values)


@functools.cache
def capability(device: int) -> tuple[int, int]:
    """Compute capability of a CUDA device, (9, 0) of an H200; asked once."""
    import torch

    return torch.cuda.get_device_capability(device)


def target_of(device: int) -> str | None:
    """The target whose kernels run on this device ('sm_90a' on an H100 or H200), or None."""
    return next((t for t, cc in TARGETS.items() if cc == capability(device)), None)


def check_target(target: str, device: int, where: str = "fa4c") -> None:
    """Raises `BackendError` unless kernels for `target` run on the CUDA device."""
    if capability(device) != TARGETS[target]:
        import torch

        major, minor = capability(device)
        raise BackendError(
            f"this kernel is for {target}, but cuda:{device} ({torch.cuda.get_device_name(device)}) is sm_{major}{minor}",
            where=where,
            why="code for an 'a' target runs on that architecture alone",
            fix=f"compile for {target_of(device)!r}" if target_of(device) else "use backend='emulator' or 'reference'",
        )


@functools.cache
def properties(device: int) -> dict[str, int]:
    """{"num_sms", "l2_bytes"}."""
    cu = driver()
    names = cu.CUdevice_attribute
    number = ask(cu.cuDeviceGet(device), "find the device")
    return {
        "num_sms": ask(cu.cuDeviceGetAttribute(names.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, number), "read a device attribute"),
        "l2_bytes": ask(cu.cuDeviceGetAttribute(names.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, number), "read a device attribute"),
    }


@functools.cache
def zero_stride() -> bool:
    """Whether this driver encodes a descriptor with a stride of 0 (an expanded tensor); if not, such inputs are copied."""
    try:
        encode(tensor_map.MapSpec("bf16", (64, 64, 2), (128, 0), (64, 64, 1), 128), 1 << 20)
    except BackendError:
        return False
    return True


def encode(m: tensor_map.MapSpec, address: int) -> bytes:
    """A descriptor's 128 bytes, by the driver. `address` is any multiple of 16 (16 for a template)."""
    cu = driver()
    kinds = cu.CUtensorMapDataType
    dtype = {
        "bf16": kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        "fp16": kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        "f32": kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    }[m.dtype]
    u64, u32 = cu.cuuint64_t, cu.cuuint32_t
    made = ask(
        cu.cuTensorMapEncodeTiled(
            dtype,
            len(m.shape),
            address,
            [u64(s) for s in m.shape],
            [u64(s) for s in m.strides],
            [u32(b) for b in m.box],
            [u32(1)] * len(m.shape),
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            cu.CUtensorMapSwizzle(_SWIZZLE[m.swizzle]),
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ),
        f"encode a TMA descriptor for sizes {m.shape}, strides {m.strides} bytes, box {m.box} (innermost first)",
    )
    return ctypes.string_at(made.getPtr(), 128)


def _module(artifact, kernel: dict, device: int):
    """The loaded image that holds `kernel`; the device's context is current. Called under the lock."""
    key = artifact.digest, kernel.get("cubin"), kernel.get("ptx"), device
    if key in _modules:
        return _modules[key]
    cu, why = driver(), "the artifact has no cubin"
    if kernel.get("cubin"):
        status, module = cu.cuModuleLoadData(artifact.members[kernel["cubin"]])
        if status == cu.CUresult.CUDA_SUCCESS:
            counters.count("modules")
            return _modules.setdefault(key, module)
        why = f"the cubin was refused: {status.name}"
    if not kernel.get("ptx"):
        raise BackendError(
            f"cannot load {kernel['cubin']!r} on cuda:{device}",
            where=artifact.path,
            why=why,
            fix="compile again with this driver's toolkit",
        )
    log = bytearray(8192)
    options = [cu.CUjit_option.CU_JIT_ERROR_LOG_BUFFER, cu.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    status, module = cu.cuModuleLoadDataEx(artifact.members[kernel["ptx"]] + b"\0", len(options), options, [log, len(log)])
    if status != cu.CUresult.CUDA_SUCCESS:
        said, least = log.split(b"\0")[0].decode(errors="replace").strip(), artifact.manifest.get("min_driver", "not stated")
        raise BackendError(
            f"cannot load {artifact.name} on cuda:{device}: {status.name}",
            where=artifact.path,
            why=f"{why}; the PTX (version {artifact.manifest.get('ptx_version')}, least driver {least}) was refused too: {said}",
            fix="update the driver, or compile again with an older PTX version",
        )
    counters.count("modules")
    counters.count("jit")
    return _modules.setdefault(key, module)


def kernel_function(artifact, name: str, device: int):
    """The CUfunction of kernel `name` on `device`, loaded once a process and device. The device's context must be current.

    Only for a device of the artifact's own target (`check_target`): elsewhere the PTX would be compiled for what it was not written for.
    """
    key = artifact.digest, name, device
    found = _kernels.get(key)
    if found is not None:
        return found
    cu, kernel = driver(), artifact.manifest["kernels"][name]
    with _lock:
        if key in _kernels:
            return _kernels[key]
        function = ask(
            cu.cuModuleGetFunction(_module(artifact, kernel, device), kernel["entry"].encode()), f"find the entry {kernel['entry']!r}"
        )
        attributes = cu.CUfunction_attribute
        if kernel["smem_bytes"]:
            ask(
                cu.cuFuncSetAttribute(function, attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel["smem_bytes"]),
                f"give {name} its {kernel['smem_bytes']} bytes of shared memory",
            )
        if _count(kernel["cluster"]) > 8:
            ask(
                cu.cuFuncSetAttribute(function, attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
                f"give {name} its cluster size",
            )
        _kernels[key] = function
    return function


def _count(dims) -> int:
    return dims[0] * dims[1] * dims[2]


@functools.cache
def _context(device: int):
    cu = driver()
    return ask(cu.cuDevicePrimaryCtxRetain(ask(cu.cuDeviceGet(device), "find the device")), "get the device's context")


def make_current(device: int) -> None:
    """Make the device's primary context (torch's) current in this thread."""
    ask(driver().cuCtxSetCurrent(_context(device)), "make the device's context current")


def bind(artifact, plan: Plan, device: int, places: dict[str, int]) -> list[Callable]:
    """The plan's steps on one device, for one thread at a time: functions of (addresses, buffers, stream) that write addresses and launch.

    `places`: where a tensor or workspace is in `addresses` and in `buffers` (which only a fill reads); `stream`: an integer handle, torch's
    current one.
    """
    make_current(device)
    return [_bound_step(artifact, step, device, places) for step in plan.steps]


def _bound_step(artifact, step: Launch | Fill, device: int, places: dict[str, int]) -> Callable:
    if isinstance(step, Fill):
        place, value = places[step.buffer], step.value
        return lambda addresses, buffers, stream: buffers[place].fill_(value)
    return _BoundLaunch(artifact.manifest["kernels"][step.kernel], step, kernel_function(artifact, step.kernel, device), places).run


class _BoundLaunch:
    """A launch with its parameter buffers and configuration; only addresses (by `places`) and the stream change between calls."""

    __slots__ = ("name", "slots", "config", "function", "params", "call", "ok", "stream", "_keep")

    def __init__(self, kernel: dict, launch: Launch, function, places: dict[str, int]):
        cu = driver()
        self.name, self.function, self.call, self.ok, self.stream = (
            launch.kernel,
            function,
            cu.cuLaunchKernelEx,
            cu.CUresult.CUDA_SUCCESS,
            None,
        )
        # one block for all parameters, each at a multiple of 64 bytes: a tensor map must be so aligned
        offsets, size = [], 0
        for param in launch.params:
            offsets.append(size)
            size += -(-len(param.data) // 64) * 64
        block = ctypes.create_string_buffer(size + 64)
        base = -(-ctypes.addressof(block) // 64) * 64
        self.slots = []
        for param, offset in zip(launch.params, offsets):
            data = param.data
            if param.map is not None and param.tensor is not None:
                data = encode(param.map, 16)
            ctypes.memmove(base + offset, data, len(data))
            if param.tensor is not None:
                self.slots.append((ctypes.c_uint64.from_address(base + offset), places[param.tensor]))
        array = (ctypes.c_void_p * len(offsets))(*(base + o for o in offsets))
        self.params = ctypes.addressof(array)
        self.config, attributes = _configuration(kernel, launch)
        self._keep = block, array, attributes

    def run(self, addresses: list[int], buffers, stream: int) -> None:
        for slot, place in self.slots:
            slot.value = addresses[place]
        if stream != self.stream:
            self.config.hStream = driver().CUstream(stream)
            self.stream = stream
        (status,) = self.call(self.config, self.function, self.params, 0)
        if status != self.ok:
            ask((status,), f"launch {self.name} with grid {self.config.gridDimX, self.config.gridDimY, self.config.gridDimZ}")


def _configuration(kernel: dict, launch: Launch):
    cu = driver()
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = kernel["block"]
    config.sharedMemBytes = kernel["smem_bytes"]
    attributes = []
    if _count(kernel["cluster"]) > 1:
        a, v = cu.CUlaunchAttribute(), cu.CUlaunchAttributeValue()
        v.clusterDim.x, v.clusterDim.y, v.clusterDim.z = kernel["cluster"]
        a.id, a.value = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, v
        attributes.append(a)
    if kernel.get("pdl"):
        a, v = cu.CUlaunchAttribute(), cu.CUlaunchAttributeValue()
        v.programmaticStreamSerializationAllowed = 1
        a.id, a.value = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, v
        attributes.append(a)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config, attributes
