"""How much of their time the roles wait, from their counters on the control wire."""

from __future__ import annotations

from spreeze.store.metrics import Rate
from spreeze.wires.control import Control

ROLES = ("samplers", "learner", "evaluator", "visualizer")


class Waiting:
    """Follows how long each role has waited."""

    def __init__(self, control: Control) -> None:
        """Waiting counts from now on."""
        self._control = control
        self._rates = {role: Rate() for role in ROLES}
        self._samplers_s = 0.0
        self._seen = control.samplers["waited_s"].copy()

    def percent(self, now: float) -> dict[str, float]:
        """Share of the time that each role has waited lately; of the samplers, those that are active."""
        control = self._control
        waits = control.samplers["waited_s"].copy()
        # Samplers that are switched off do not wait for the learner.
        active = max(1, int(control.supervisor["active_samplers"]))
        self._samplers_s += float((waits - self._seen)[:active].mean())
        self._seen = waits
        waited_s = {
            "samplers": self._samplers_s,
            "learner": float(control.learner["waited_s"]),
            "evaluator": float(control.evaluator["waited_s"]),
            "visualizer": float(control.visualizer["waited_s"]),
        }
        return {
            role: min(100.0, 100 * rate.update(waited_s[role], now))
            for role, rate in self._rates.items()
        }
