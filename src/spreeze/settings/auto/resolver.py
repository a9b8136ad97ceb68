"""A config whose "auto" knobs are being replaced."""

from __future__ import annotations

from typing import Any

from spreeze.settings.auto.reason import Reason, Source
from spreeze.settings.config import Config, get_knob, knob_names
from spreeze.settings.defaults import config_with


class AutoResolver:
    """A config whose "auto" knobs are being replaced, each with a reason."""

    def __init__(self, config: Config) -> None:
        """Start with what the user gave."""
        self.config = config
        self.reasons: dict[str, Reason] = {}
        self.second_device: str | None = None
        """A second device that training may be split over, if the user leaves that open."""
        self.ranks: tuple[str, ...] = ()
        """Devices that may share each batch, in that case; none: there are not enough."""

    def choose(self, name: str, value: Any, reason: str, source: Source = Source.RULE) -> Any:
        """Set a knob if it is "auto" and return its value. Knobs the algorithm lacks are ignored."""
        if name not in knob_names(self.config):
            return value
        if (given := get_knob(self.config, name)) != "auto":
            return given
        self.set(name, value, Reason(source, reason))
        return value

    def set(self, name: str, value: Any, reason: Reason) -> None:
        """Set a knob, whatever it was."""
        self.config = config_with(self.config, {name: value})
        self.reasons[name] = reason

    @property
    def on_gpu(self) -> bool:
        """Whether the networks train on a GPU."""
        return self.config.device.startswith("cuda")
