"""GPU utilization, from NVML."""

from __future__ import annotations

import contextlib
import os
from typing import Any


class GpuMeter:
    """Mean utilization of the GPUs of a run."""

    def __init__(self, devices: tuple[str, ...]) -> None:
        """Measure `devices`, named as in `--device`. Devices that are not GPUs are ignored."""
        self._handles: list[Any] = []
        for device in dict.fromkeys(devices):
            if device.startswith("cuda"):
                import pynvml

                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlInit()
                    index = int(device.partition(":")[2] or 0)
                    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
                    if len(visible) > index and visible[index].strip().isdigit():
                        index = int(visible[index])
                    self._handles.append(pynvml.nvmlDeviceGetHandleByIndex(index))

    def percent(self) -> float | None:
        """Current utilization in percent. None without a GPU or if NVML does not answer."""
        if not self._handles:
            return None
        import pynvml

        with contextlib.suppress(pynvml.NVMLError):
            used = [pynvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in self._handles]
            return float(sum(used)) / len(used)
        return None
