"""Which devices learn."""

from __future__ import annotations

from spreeze.algos import ALGORITHMS
from spreeze.algos.base import AlgoConfig
from spreeze.errors import UsageError
from spreeze.machine.facts import Machine
from spreeze.settings.auto.resolver import AutoResolver
from spreeze.settings.config import Config
from spreeze.spec import EnvSpec


def choose_device(resolver: AutoResolver, machine: Machine) -> None:
    """Which device learns."""
    gpus = machine.gpus
    found = f"{gpus[0].name} found" if gpus else "no NVIDIA GPU found"
    given = resolver.config.device
    device = resolver.choose("device", "cuda" if gpus else "cpu", found)
    if given == "auto" and len(gpus) > 1:
        resolver.second = "cuda:1"
    for name in resolver.config.devices:
        if (gpu_index(name) or 0) >= len(gpus) and name != "cpu":
            have = f"only {len(gpus)} here" if gpus else "none was found here"
            raise UsageError(
                [
                    f"--device {device}: no such GPU, {have}. Use --device cpu, or ask spreeze doctor."
                ]
            )


def gpu_index(device: str) -> int | None:
    """Which GPU it is; None for a CPU."""
    return int(device.partition(":")[2] or 0) if device.startswith("cuda") else None


def has_actor(hyper: AlgoConfig, spec: EnvSpec) -> bool:
    """Whether there is an actor beside the critic, which can learn elsewhere."""
    return hyper.policy_form(spec).head != "values"


def check_halves(config: Config, spec: EnvSpec) -> None:
    """Two devices are for an actor and a critic."""
    if len(config.devices) == 1 or has_actor(config.hyper, spec):
        return
    able = [
        name
        for name, entry in ALGORITHMS.items()
        if entry.takes(spec) and has_actor(entry.config(hidden=(1,)), spec)
    ]
    raise UsageError(
        [
            f"--device {config.device}: {config.algo} has no actor that could learn on a second "
            f"device; {', '.join(able)} have. Name one device."
        ]
    )
