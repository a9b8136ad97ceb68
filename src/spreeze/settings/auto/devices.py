"""Which devices train."""

from __future__ import annotations

from collections.abc import Callable

from spreeze.algos import ALGORITHMS, Entry, find_algorithm
from spreeze.errors import UsageError
from spreeze.machine.facts import Machine
from spreeze.settings.auto.resolver import AutoResolver
from spreeze.settings.config import RANKS, Config
from spreeze.spec import EnvSpec


def choose_device(resolver: AutoResolver, machine: Machine) -> None:
    """Choose the training device; refuse a GPU that does not exist."""
    gpus = machine.gpus
    found = f"{gpus[0].name} found" if gpus else "no NVIDIA GPU found"
    given = resolver.config.device
    device = resolver.choose("device", "cuda" if gpus else "cpu", found)
    if given == "auto" and len(gpus) > 1:
        resolver.second_device = "cuda:1"
        ranks = max(num for num in RANKS if num <= len(gpus))
        resolver.ranks = tuple(f"cuda:{i}" for i in range(ranks))
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
    """Refuse two devices for an algorithm without an actor, and shared batches for one that does not allow it."""
    if config.is_split and not config.hyper.has_actor:
        why = "has no actor that could train on a second device"
        able = _names(spec, lambda entry: entry.config.has_actor)
    elif config.num_ranks > 1 and not find_algorithm(config.algo).shares_batches:
        why = "does not say that devices may share its batches (shares_batches in its Entry)"
        able = _names(spec, lambda entry: entry.shares_batches)
    else:
        return
    raise UsageError(
        [f"--device {config.device}: {config.algo} {why}. Name one device, or use {able}."]
    )


def _names(spec: EnvSpec, able: Callable[[Entry], bool]) -> str:
    """The algorithms of the registry that are able, and take the environment."""
    return ", ".join(
        name for name, entry in ALGORITHMS.items() if entry.takes(spec) and able(entry)
    )
