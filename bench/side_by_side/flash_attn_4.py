"""Executes flash-attn-4's kernels for sm_100a in fa4c's emulator: run by side_by_side.py, in a Python that has flash-attn-4 and NumPy.

Its own host code runs and compiles, with a stand-in for the driver (driver_stand_in.c) that notes each launch; tensors on the CPU are
passed off as CUDA tensors. Nothing of the peer is copied or kept.

Reads q, k, v and, for the backward, do (bf16 as 16-bit integers, (1, s, h, d)) from an .npz; writes outputs to an .npz, counters as JSON.
"""

import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SMS = 148


def stand_in() -> ctypes.CDLL:
    """The driver's stand-in, built, loaded, and named to the CuTe-DSL."""
    library = pathlib.Path(tempfile.mkdtemp(prefix="side-by-side-")) / "driver_stand_in.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "driver_stand_in.c")], check=True)
    os.environ.update(FLASH_ATTENTION_ARCH="sm_100", CUTE_DSL_ARCH="sm_100a", FLASH_ATTENTION_NUM_SMS=str(SMS), CUTE_DSL_LIBS=str(library),
                      CUTE_DSL_KEEP="ptx")
    os.chdir(library.parent)
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


class Recorder:
    """Runs what `cute.compile` returns, and then its launches in the emulator."""

    def __init__(self, driver: ctypes.CDLL, compile_, hazards: bool):
        self.driver, self.compile, self.hazards = driver, compile_, hazards
        self.launches: list[dict] = []
        self.tensors: list = []
        self.before = None

    def __call__(self, *args, **kwargs):
        kwargs["options"] = f"{kwargs.get('options', '')} --keep-ptx --dump-dir {os.getcwd()}"
        return Compiled(self, self.compile(*args, **kwargs))

    def __getitem__(self, options):
        return self

    def __getattr__(self, name):
        return getattr(self.compile, name)

    def passed(self, value):
        """An argument, its tensors said to lie on a GPU."""
        import torch

        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return on_device(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.passed, value))
        return type(value)(map(self.passed, value)) if isinstance(value, (tuple, list)) else value


class Compiled:
    def __init__(self, recorder: Recorder, function):
        from fa4c.runtime.emulator.parser import parse

        self.recorder, self.function, self.ptx = recorder, function, function.__ptx__
        self.kernel = next(iter(parse(self.ptx, "peer").kernels.values()))

    def __call__(self, *args):
        driver, sizes = self.recorder.driver, [p.size for p in self.kernel.params]
        first = ctypes.c_int.in_dll(driver, "launch_count").value
        ctypes.c_int.in_dll(driver, "parameter_count").value = len(sizes)
        (ctypes.c_int * 256).in_dll(driver, "parameter_sizes")[: len(sizes)] = sizes
        self.function(*map(self.recorder.passed, args))
        for n in range(first, ctypes.c_int.in_dll(driver, "launch_count").value):
            shape = list((ctypes.c_uint * 10 * 16).in_dll(driver, "launch_shape")[n % 16])
            smem = (ctypes.c_size_t * 16).in_dll(driver, "launch_smem")[n % 16]
            data = bytes((ctypes.c_ubyte * 65536 * 16).in_dll(driver, "launch_parameters")[n % 16])
            self.recorder.launches.append(self.emulate(shape, smem, data))

    def emulate(self, shape: list[int], smem: int, data: bytes) -> dict:
        from fa4c.runtime.emulator.dependent import follow, touched_by
        from fa4c.runtime.emulator.program import load_program
        from fa4c.runtime.emulator.schedule import Launch

        program = load_program(self.ptx, self.kernel.name, "peer")
        grid, block, cluster, dependent = shape[:3], shape[3:6], shape[6:9], bool(shape[9])
        run = Launch(program, tuple(grid), tuple(block), tuple(cluster), smem, "fifo", 0, self.recorder.hazards, False, None, None, None)
        spans = self._memory(run)
        raw, at = bytearray(program.kernel.param_bytes), 0
        for parameter in program.kernel.params:
            given = bytearray(data[at : at + parameter.size])
            at += parameter.size
            for offset in (0,) if parameter.size == 128 else range(0, parameter.size - 7, 8):  # of a tensor map the address alone
                pointer = int.from_bytes(given[offset : offset + 8], "little")
                for low, count, base in spans:
                    if low <= pointer < low + count:
                        given[offset : offset + 8] = (pointer - low + base).to_bytes(8, "little")
            raw[parameter.offset : parameter.offset + parameter.size] = given
        run.set_params(bytes(raw))
        before = self.recorder.before if dependent else None
        if before is not None:
            follow(run, before)
        report = run.run()
        report.touched = touched_by(run, before)
        self.recorder.before = report
        return {"grid": grid, "cluster": cluster, "counters": report.counters["total"], "hazards": len(report.errors)}

    def _memory(self, run) -> list[tuple[int, int, int]]:
        """(address, bytes, address in the emulator) of each tensor that was passed."""
        import torch

        spans = {}
        for tensor in self.recorder.tensors:
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage.data_ptr() not in spans:
                array = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
                spans[storage.data_ptr()] = storage.nbytes(), run.memory.add(array, f"tensor {len(spans)}")
        return [(low, count, base) for low, (count, base) in spans.items()]


def on_device(tensor):
    """The same memory as a DLPack tensor whose device says CUDA (2): field `device` stands behind the data pointer."""
    import torch
    import tvm_ffi

    capsule = torch.utils.dlpack.to_dlpack(tensor.detach())
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    ctypes.c_int32.from_address(get(capsule, b"dltensor") + 8).value = 2

    class Exporter:
        def __dlpack__(self, **_):
            return capsule

        def __dlpack_device__(self):
            return 2, 0

    return tvm_ffi.from_dlpack(Exporter())


class Hardware:
    """What the peer asks about the GPU."""

    def __init__(self, *_):
        pass

    def get_max_active_clusters(self, cluster_size=1, **_):
        return SMS // cluster_size

    def __getattr__(self, _):
        return lambda *args, **kwargs: SMS


def peer(driver: ctypes.CDLL, hazards: bool):
    """flash-attn-4's interface, recorded."""
    import cutlass.cute as cute
    import cutlass.utils
    import torch

    torch.cuda.get_device_capability = lambda *_: (10, 0)
    torch.cuda.current_device = lambda: 0
    cutlass.utils.HardwareInfo = Hardware
    recorder = cute.compile = Recorder(driver, cute.compile, hazards)
    import flash_attn.cute.cute_dsl_utils as dsl_utils
    import flash_attn.cute.utils as utils

    from_dlpack = dsl_utils.from_dlpack
    dsl_utils.from_dlpack = utils.from_dlpack = lambda tensor, **options: from_dlpack(on_device(tensor), **options)
    import flash_attn.cute.interface as interface

    return recorder, interface


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs")
    parser.add_argument("outputs", help="OUT.npz; counters go to OUT.json")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--hazards", action="store_true")
    args = parser.parse_args()
    inputs, outputs = pathlib.Path(args.inputs).resolve(), pathlib.Path(args.outputs).resolve()
    recorder, interface = peer(stand_in(), args.hazards)
    import numpy as np
    import torch

    given = {name: torch.from_numpy(array).view(torch.bfloat16) for name, array in np.load(inputs).items()}
    q, k, v = (given[name] for name in "qkv")
    o, lse = interface._flash_attn_fwd(q, k, v, causal=args.causal, return_lse=True)[:2]
    found = {"o": o, "lse": lse}
    if args.backward:
        recorder.launches.clear()
        found = dict(zip(("dq", "dk", "dv"), interface._flash_attn_bwd(q, k, v, o, given["do"], lse, causal=args.causal)))
    np.savez(outputs, **{name: tensor.detach().float().numpy() for name, tensor in found.items()})
    outputs.with_suffix(".json").write_text(json.dumps(recorder.launches))


if __name__ == "__main__":
    sys.exit(main())
