"""Automatic settings: every "auto" is replaced by a value, with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spreeze.machine.facts import Machine
from spreeze.settings.auto.algorithm import choose_algorithm, choose_network
from spreeze.settings.auto.devices import check_devices_fit, choose_device
from spreeze.settings.auto.images import choose_images
from spreeze.settings.auto.learning import (
    choose_learning_rates,
    choose_returns,
    choose_update_ratio,
)
from spreeze.settings.auto.limits import choose_limits
from spreeze.settings.auto.memory import choose_replay
from spreeze.settings.auto.processes import choose_cores, choose_processes, choose_rendering
from spreeze.settings.auto.rates import (
    choose_from_probe,
    choose_without_probe,
    needs_probe,
    probe_request,
)
from spreeze.settings.auto.reason import Reason
from spreeze.settings.auto.reproducible import fix_machine
from spreeze.settings.auto.resolver import AutoResolver
from spreeze.settings.config import Config
from spreeze.settings.probe import ProbeRequest, ProbeResult
from spreeze.spec import EnvSpec

Probe = Callable[[ProbeRequest], ProbeResult | None]
"""Measures this machine; None if it cannot."""


@dataclass(frozen=True)
class Resolved:
    """A config without "auto"."""

    config: Config
    reasons: dict[str, Reason]
    """Why each automatic value was chosen, by knob."""
    probe: ProbeResult | None
    """What was measured, if anything was."""


def no_probe(_: ProbeRequest) -> None:
    """Measure nothing: rules of thumb decide."""


def resolve(config: Config, spec: EnvSpec, machine: Machine, probe: Probe = no_probe) -> Resolved:
    """Replace every "auto". `probe` is called if a measurement of this machine is needed."""
    resolver = AutoResolver(config)
    if config.reproducible:
        spec, machine = fix_machine(resolver, spec, machine)
    choose_algorithm(resolver, spec, machine)
    choose_device(resolver, machine)
    choose_images(resolver, spec)
    choose_network(resolver, spec, machine)
    choose_returns(resolver, spec)
    check_devices_fit(resolver.config, spec)
    measured = probe(probe_request(resolver, spec, machine)) if needs_probe(resolver) else None
    if measured is None:
        choose_without_probe(resolver, spec)
    else:
        choose_from_probe(resolver, machine, measured)
    choose_processes(resolver, spec, machine, measured)
    choose_learning_rates(resolver, spec)
    choose_replay(resolver, spec, machine)
    choose_cores(resolver, machine)
    choose_update_ratio(resolver, machine)
    choose_rendering(resolver, machine)
    choose_limits(resolver, spec, machine)
    return Resolved(resolver.config, resolver.reasons, measured)
