"""Whether there is memory for what is about to be made, asked before: Linux promises more than it has, and then ends the process."""

from __future__ import annotations

import contextlib
import os
import re

import torch

from .errors import InputError

_WORTH_ASKING = 1 << 28  # bytes: less is not worth asking the system for


def require(size: int, device, what: str, *, where: str = "--shape", fix: str = "choose smaller sizes") -> None:
    """Raises `InputError` if `device` has no room for `size` bytes of `what`."""
    if size < _WORTH_ASKING:
        return
    there = available(device)
    if size > there:
        raise InputError(
            f"{what} would take {size / 1e9:.4g} GB of memory", where=where, why=f"{there / 1e9:.4g} GB are free on {device}", fix=fix
        )


def available(device) -> int:
    """Bytes that could be allocated now; where the system does not say, more than any machine has."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limits = [1 << 47]
    try:
        with open("/proc/meminfo") as file:
            found = dict(re.findall(r"^(MemAvailable|SwapFree): *(\d+) kB", file.read(), re.MULTILINE))
        limits.append(1024 * (int(found["MemAvailable"]) + int(found.get("SwapFree", 0))))
    except (OSError, KeyError):  # not Linux: all that is built in
        with contextlib.suppress(AttributeError, OSError, ValueError):
            limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError), open("/sys/fs/cgroup/memory.max") as file:  # of a container
        limits.append(int(file.read()))
    return min(limits)
