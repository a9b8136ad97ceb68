"""What each framework is measured with, read from settings.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spreeze.errors import UsageError
from spreeze.text import suggest

FOLDER = Path(__file__).parent
ALL = "all"
"""In place of names: every framework that has settings for the task."""


@dataclass(frozen=True)
class Contestant:
    """A framework with settings for a task."""

    framework: str
    variant: str = ""
    source: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As results call it."""
        return f"{self.framework}, {self.variant}" if self.variant else self.framework


def frameworks() -> list[str]:
    """All that can be measured."""
    return sorted({name for entry in _entries() for name in entry["frameworks"]})


def contestants(asked: str, env: str, discrete: bool) -> list[Contestant]:
    """The frameworks named in a list with commas, each with all of its settings for a task; or all that have some.

    Settings for the task itself count; only without any, those for all tasks with such actions.
    """
    known, chosen, problems = frameworks(), [], []
    names = known if asked == ALL else [part.strip() for part in asked.split(",")]
    for name in dict.fromkeys(names):
        if name not in known:
            problems.append(
                f"--against {name}: must be one of {', '.join(known)}.{suggest(name, known)}"
            )
            continue
        mine = [entry for entry in _entries() if name in entry["frameworks"]]
        general = "Discrete" if discrete else "Box"
        fitting = [entry for entry in mine if env in entry["tasks"]]
        fitting = fitting or [entry for entry in mine if general in entry["tasks"]]
        if not fitting and asked != ALL:
            why = _file()["why_not"].get(name, "settings.toml has none for it")
            problems.append(f"--against {name}: it cannot run on {env}: {why}.")
        chosen += [
            Contestant(name, entry.get("variant", ""), entry["source"], entry["arguments"])
            for entry in fitting
        ]
    if problems:
        raise UsageError(problems)
    return chosen


def _entries() -> list[dict[str, Any]]:
    """Settings, and their variants with what they share."""
    entries = []
    for entry in _file()["settings"]:
        variants = entry.pop("variants", [])
        entries.append(entry)
        for variant in variants:
            arguments = entry["arguments"] | variant["arguments"]
            entries.append(entry | variant | {"arguments": arguments})
    return entries


def _file() -> dict[str, Any]:
    return tomllib.loads((FOLDER / "settings.toml").read_text())
