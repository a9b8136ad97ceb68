"""A config on its way to having no "auto"."""

from __future__ import annotations

from typing import Any

from spreeze.settings.config import Config, config_with, knob, knob_names


class AutoResolver:
    """A config on its way to having no "auto"."""

    def __init__(self, config: Config) -> None:
        """Begin with what the user gave."""
        self.config = config
        self.reasons: dict[str, str] = {}
        self.second: str | None = None
        """A second device that is there, if it is left to us whether to use it."""

    def choose(self, name: str, value: Any, reason: str) -> Any:
        """Set a knob that is "auto"; returns what it is now. What this algorithm has not stays unset."""
        if name not in knob_names(self.config):
            return value
        if (given := knob(self.config, name)) != "auto":
            return given
        self.config = config_with(self.config, {name: value})
        self.reasons[name] = reason
        return value

    @property
    def on_gpu(self) -> bool:
        """Whether the networks learn on a GPU."""
        return self.config.device.startswith("cuda")
