"""What the machine has: cores, memory, GPUs, a compiler. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from spreeze.machine.cgroups import core_limit, free_memory


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU and its free memory."""

    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Machine:
    """What a run may use on this machine."""

    cores: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    bfloat16: bool = False
    """Whether the CPU has instructions for bfloat16 matrix products."""


def detect_machine() -> Machine:
    """Detect what this process may use."""
    return Machine(
        cores=usable_cores(),
        memory_bytes=available_memory(),
        gpus=visible_gpus(),
        bfloat16=multiplies_bfloat16(),
    )


def usable_cores() -> int:
    """Number of cores by affinity and by the container's CPU limit."""
    return min(len(os.sched_getaffinity(0)), allowed_cores())


def allowed_cores() -> int:
    """The container's CPU limit in whole cores. It limits time, not which cores are used."""
    limit = core_limit()
    return sys.maxsize if limit is None else max(1, int(limit))


def available_memory() -> int:
    """Bytes available without swapping, by the kernel and by the container's limit."""
    import psutil

    available, limit = int(psutil.virtual_memory().available), free_memory()
    return available if limit is None else max(0, min(available, limit))


def visible_gpus() -> tuple[Gpu, ...]:
    """NVIDIA GPUs as torch would see them. Empty without a driver or with a CPU build of torch."""
    if version("torch").endswith("+cpu"):
        return ()
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        count = pynvml.nvmlDeviceGetCount()
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
        indices = range(count)
        if wanted is not None:
            named = [part.strip() for part in wanted.split(",") if part.strip()]
            indices = [int(part) for part in named if part.isdigit() and int(part) < count]  # type: ignore[assignment]
        gpus = []
        for index in indices:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = pynvml.nvmlDeviceGetName(handle)
            gpus.append(Gpu(str(name), int(pynvml.nvmlDeviceGetMemoryInfo(handle).free)))
        return tuple(gpus)
    finally:
        pynvml.nvmlShutdown()


def learns_on_gpu(device: str, gpus: Sequence[Gpu]) -> bool:
    """Whether a run with `--device device` learns on a GPU, given these GPUs."""
    return len(gpus) > 0 if device == "auto" else device.startswith("cuda")


def cpu_name() -> str:
    """Model name of the CPU."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16 matrix products."""
    with contextlib.suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text()
        return "amx_bf16" in flags or "avx512_bf16" in flags
    return False


def compiler() -> str | None:
    """Path of a C++ compiler, which torch.compile needs on the CPU. None if there is none."""
    return shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


def shared_memory_problem() -> str | None:
    """Why processes cannot share memory on this machine. None if they can."""
    if sys.platform != "linux":
        return f"shared memory between processes needs Linux; this is {sys.platform}"
    if platform.machine() not in ("x86_64", "AMD64"):
        return (
            "the lock-free shared memory needs the memory ordering of x86-64; "
            f"this is {platform.machine()}"
        )
    return None
