"""The settings in which runs differ, from their stored configs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spreeze.store.files import loads

Knobs = dict[str, Any]
"""Values by the name of the knob: `algo`, `learner.batch_size`."""

PREFIXES = {"simulation": "env", "hyper": "algo"}
"""Sections of a stored config whose knobs are named otherwise; the others have the name of their section."""
LIMITS = {"time", "steps", "target", "limits"}
SHOWN = {"name", "runs", "dashboard", "track", "visualizer"}
KEPT = {"checkpoint", "resume", "retune"}
NOT_COMPARED = {"seed", "seeds", *LIMITS, *SHOWN, *KEPT}
"""Knobs and sections that change how long a run goes on, what it shows or what it keeps, but not how it learns."""
RESOLVED = ("env", "algo", "hyper", "device")
"""What defines a run as it was resolved, whether it came from a flag, a preset or a rule; of the rest, what was asked for."""


def compared_knobs(config: Mapping[str, Any]) -> Knobs:
    """The knobs of a stored config (`config` in config.json) in which runs are compared."""
    knobs: Knobs = {}
    for name, value in config.items():
        if name in NOT_COMPARED:
            continue
        if isinstance(value, dict):
            prefix = PREFIXES.get(name, name)
            knobs |= {f"{prefix}.{knob}": inner for knob, inner in value.items()}
        else:
            knobs[name] = value
    for name in knobs.keys() & FORMS.keys():
        knobs[name] = FORMS[name](knobs[name])
    return knobs


def _arguments(text: Any) -> Any:
    """Arguments of an environment in one form, however they were typed; None for none."""
    try:
        found = loads(text, parse_float=_whole_if_equal) if isinstance(text, str) else text
    except ValueError:
        return text
    return json.dumps(found, sort_keys=True) if found else None


def _whole_if_equal(number: str) -> float | int:
    value = float(number)
    return int(value) if value.is_integer() else value


def _each_arguments(texts: Any) -> Any:
    return [_arguments(text) for text in texts] if isinstance(texts, list) else texts


def _names(callbacks: Any) -> Any:
    """The names of callbacks, wherever their files are."""
    return (
        [str(name).rpartition(":")[2] for name in callbacks]
        if isinstance(callbacks, list)
        else callbacks
    )


FORMS: Mapping[str, Callable[[Any], Any]] = {
    "env.kwargs": _arguments,
    "evaluator.kwargs": _each_arguments,
    "callback": _names,
}
"""Knobs that mean the same in several forms, and what makes one form of them."""


def used_knobs(stored: Mapping[str, Any]) -> Knobs:
    """The knobs in which runs are compared as they were used, from config.json."""
    return _with_callbacks(compared_knobs(_section(stored, "config")), stored)


def identity(stored: Mapping[str, Any]) -> Knobs:
    """What defines a run, from config.json. What it chose itself for this machine does not: only what was asked for."""
    config = _section(stored, "config")
    asked = _section(stored, "asked") or config
    knobs = compared_knobs({**asked, **{name: config.get(name) for name in RESOLVED}})
    knobs.pop("preset", None)  # its values are compared
    return _with_callbacks(knobs, stored)


def _with_callbacks(knobs: Knobs, stored: Mapping[str, Any]) -> Knobs:
    """Callbacks that were given in Python have no knob: their names are stored beside."""
    if isinstance(names := stored.get("callbacks"), list):
        knobs["callback"] = _names(names)
    return knobs


def _section(stored: Mapping[str, Any], name: str) -> dict[str, Any]:
    return found if isinstance(found := stored.get(name), dict) else {}


def differing(runs: Sequence[Knobs]) -> list[Knobs]:
    """For each run, its values of the knobs that are not the same in all of them.

    A knob that some lack, because they have another algorithm, is compared between those that have it.
    """
    known: Knobs = {}
    names: set[str] = set()
    for knobs in runs:
        for name, value in knobs.items():
            if known.setdefault(name, value) != value:
                names.add(name)
    return [{n: v for n, v in knobs.items() if n in names} for knobs in runs]
