"""Which devices train."""

from __future__ import annotations

from spreeze.algos import ALGORITHMS
from spreeze.errors import UsageError
from spreeze.machine.facts import Machine
from spreeze.settings.auto.resolver import AutoResolver
from spreeze.settings.config import Config
from spreeze.spec import EnvSpec


def choose_device(resolver: AutoResolver, machine: Machine) -> None:
    """Choose the training device; refuse a GPU that does not exist."""
    gpus = machine.gpus
    found = f"{gpus[0].name} found" if gpus else "no NVIDIA GPU found"
    given = resolver.config.device
    device = resolver.choose("device", "cuda" if gpus else "cpu", found)
    if given == "auto" and len(gpus) > 1:
        resolver.second_device = "cuda:1"
    for name in resolver.config.devices:
        if (gpu_index(name) or 0) >= len(gpus) and name != "cpu":
            have = f"only {len(gpus)} here" if gpus else "none was found here"
            raise UsageError(
                [
                    f"--device {device}: no such GPU, {have}. Use --device cpu, or run spreeze doctor."
                ]
            )


def gpu_index(device: str) -> int | None:
    """Which GPU a device is; None for a CPU."""
    return int(device.partition(":")[2] or 0) if device.startswith("cuda") else None


def check_devices_fit(config: Config, spec: EnvSpec) -> None:
    """Refuse two devices for an algorithm without an actor."""
    if len(config.devices) == 1 or config.hyper.has_actor:
        return
    able = [
        name for name, entry in ALGORITHMS.items() if entry.takes(spec) and entry.config.has_actor
    ]
    raise UsageError(
        [
            f"--device {config.device}: {config.algo} has no actor that could train on a second "
            f"device; {', '.join(able)} have. Name one device."
        ]
    )
