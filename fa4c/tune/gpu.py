"""What measuring needs of a GPU: times of a call, a warm chip, who it is. `Bench` is the part that tests replace."""

from __future__ import annotations

import platform
import statistics
import subprocess
import time

from .. import __version__
from ..ir.diagnostics import Diagnostic

_FLUSH_BYTES = 256 << 20  # five times the L2 cache of an H200
_QUEUE_CLOCKS = 1_300_000  # of sleep for each call put behind it: more than the host needs to enqueue one


class Bench:
    """The GPU of this machine. Raises Diagnostic where there is none, or none that the target's kernels run on."""

    device, backend = "cuda", "cuda"
    small = {"b": 2, "hq": 4, "hkv": 2, "m": 333, "n": 461}  # compared in full: no multiples of a block, several of them

    def __init__(self, target: str):
        import torch

        from ..runtime import cuda

        if not torch.cuda.is_available():
            raise Diagnostic(
                "there is no GPU that torch can use",
                why="configurations are chosen by their times on a GPU of the target",
                fix="fa4c tune FILE --prepare DIR here, then fa4c tune --measure DIR where one is; `fa4c doctor` says what is missing",
            )
        cuda.check_target(target, torch.cuda.current_device(), "fa4c tune")
        self._torch, self._flush, self._operands = torch, None, None

    def time(self, call, calls: int) -> float:
        """Median milliseconds of one call, L2 emptied before each. The queue fills behind a sleep, so that host time does not count."""
        torch = self._torch
        if self._flush is None:
            self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)]
        torch.cuda._sleep(2_000_000 + calls * _QUEUE_CLOCKS)
        for start, end in events:
            self._flush.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in events)

    def heat(self, seconds: float) -> None:
        """Keep the tensor cores busy, so that all candidates run at the clocks of a warm chip."""
        torch = self._torch
        if self._operands is None:
            self._operands = [torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(20):
                self._operands[0] @ self._operands[1]
            torch.cuda.synchronize()

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def machine(self) -> dict:
        from ..runtime import cuda

        torch, found = self._torch, _nvidia_smi()
        return {
            "gpu": torch.cuda.get_device_name(),
            "driver": found.get("driver_version", ""),
            "cuda_driver": cuda.ask(cuda.driver().cuDriverGetVersion(), "ask the driver's version"),
            "sm_mhz": found.get("clocks.sm", ""),
            "sm_mhz_max": found.get("clocks.max.sm", ""),
            "power_limit_w": found.get("power.limit", ""),
            "num_sms": cuda.properties(torch.cuda.current_device())["num_sms"],
            "torch": torch.__version__,
            "python": platform.python_version(),
            "fa4c": __version__,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def clock(self) -> str:
        """SM clock in MHz while it works; "" where nvidia-smi is missing."""
        return _nvidia_smi().get("clocks.sm", "")


def _nvidia_smi() -> dict:
    fields = ("driver_version", "clocks.sm", "clocks.max.sm", "power.limit")
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(fields, (part.strip() for part in done.stdout.splitlines()[0].split(","))))
