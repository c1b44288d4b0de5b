"""`fa4c doctor`: what is installed here, and what each missing part costs."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass

EXAMPLES = """examples:
  fa4c doctor
  fa4c doctor --json
"""


@dataclass
class Finding:
    name: str
    found: str  # version or description; empty where it is missing
    purpose: str  # what it is for: what is lost without it
    remedy: str


# Distribution, what for, how to get it.
PACKAGES = (
    ("torch-mlir", "compile, opt, check on .mlir: without it only artifacts can be run", "pip install torch-mlir"),
    ("nvidia-cutlass-dsl", "PTX, cubin, artifacts: without it compile stops at --emit cute",
     "pip install nvidia-cutlass-dsl==4.8.1 (Linux and Windows)"),
    ("torch", "running anything: data, the reference, launching on its streams", "pip install torch"),
    ("numpy", "the interpreters of the attn and tile levels", "pip install numpy"),
    ("cuda-bindings", "launching kernels on a GPU", "pip install cuda-bindings (Linux and Windows)"),
)
TOOLS = (
    ("nvdisasm", "nvidia-cuda-nvdisasm", "--emit sass", "pip install 'fa4c[sass]'"),
    ("nvcc", "nvidia-cuda-nvcc", "nothing here (it shows which CUDA toolkit is installed)", "install the CUDA toolkit"),
    ("ptxas", "nvidia-cuda-nvcc", "its advisories in the tests (C75xx); compiling needs it not", "install the CUDA toolkit"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def run(args: argparse.Namespace) -> None:
    findings = [*map(_package, PACKAGES), *map(_tool, TOOLS), *_gpu()]
    if args.json:
        print(json.dumps([asdict(f) for f in findings], indent=1))
        return
    print(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}")
    for finding in findings:
        mark = "ok" if finding.found else "--"
        print(f"[{mark}] {finding.name:20} {finding.found or 'missing'}")
        if not finding.found:
            print(f"     {'':20} needed for {finding.purpose}; {finding.remedy}")


def _package(entry) -> Finding:
    name, purpose, remedy = entry
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found = ""
    return Finding(name, found, purpose, remedy)


def _tool(entry) -> Finding:
    name, package, purpose, remedy = entry
    path = shutil.which(name) or _in_package(name, package)
    return Finding(name, f"{_tool_version(path)} {path}" if path else "", purpose, remedy)


def _in_package(tool: str, package: str) -> str:
    """The tool's path where a pip package brought it, which puts it outside PATH."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    return next((str(file.locate()) for file in files if file.name in (tool, f"{tool}.exe")), "")


def _tool_version(path: str) -> str:
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return "(does not start)"
    found = re.search(r"V([0-9][0-9.]*)", text)
    return found[1] if found else "(unknown version)"


def _gpu() -> list[Finding]:
    """Driver and devices, asked of the driver itself so that a CPU build of torch does not hide a GPU."""
    cost = "the cuda backend and `fa4c tune`; kernels still compile, and run by the emulator or the reference"
    nothing = [Finding("GPU", "", cost, "a machine with a GPU of one of `fa4c targets`"),
               Finding("NVIDIA driver", "", cost, "install the NVIDIA driver")]
    try:
        from cuda.bindings import driver

        if driver.cuInit(0)[0] != driver.CUresult.CUDA_SUCCESS:
            return nothing
        version = driver.cuDriverGetVersion()[1]
        names = [_device(driver, index) for index in range(driver.cuDeviceGetCount()[1])]
    except Exception:  # no package, or no libcuda: the loader has a class of its own for that
        return nothing
    findings = [Finding("NVIDIA driver", f"CUDA {version // 1000}.{version % 1000 // 10}", cost, "")]
    findings += [Finding(f"GPU {index}", name, cost, "") for index, name in enumerate(names)]
    return findings + [_torch_sees_gpu()]


def _device(driver, index: int) -> str:
    from .. import targets

    device = driver.cuDeviceGet(index)[1]
    name = driver.cuDeviceGetName(80, device)[1].decode().rstrip("\0")
    attribute = driver.CUdevice_attribute
    capability = (driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)[1],
                  driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)[1])
    fitting = [t for t in targets.NAMES if targets.describe(t).compute_capability == capability]
    return f"{name}, compute capability {capability[0]}.{capability[1]}, " + (f"target {fitting[0]}" if fitting else "no target fits")


def _torch_sees_gpu() -> Finding:
    import torch

    seen = torch.cuda.is_available()
    return Finding("torch with CUDA", f"CUDA {torch.version.cuda}" if seen else "", "CUDA tensors, and so the cuda backend",
                   "install a CUDA build of torch")
