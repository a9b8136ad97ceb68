"""Configs with the defaults of an algorithm and a preset, with knobs changed, or from config.json."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from spreeze.algos import ALGORITHMS, find_algorithm
from spreeze.algos.off_policy import OffPolicyConfig
from spreeze.errors import DamagedFile, UsageError
from spreeze.knobs import flag, knobs_of
from spreeze.settings.config import FIELDS, SECTIONS, Config, all_knobs, knob_names
from spreeze.settings.other_names import end_of_message
from spreeze.settings.presets import PRESETS, Preset, preset_for
from spreeze.settings.sections import UndecidedConfig
from spreeze.text import suggest


def default_config(
    algo: str = "auto",
    env: str = "",
    preset: str | None = None,
    asked: Collection[str] = (),
) -> Config:
    """The defaults of an algorithm, with the given preset or the environment's.

    With "auto" the preset names the algorithm; if that lacks the knobs `asked` for, the first algorithm
    that has them is taken. Without a preset and such knobs it stays "auto": `resolve` chooses it by the task.
    """
    if preset not in (None, "none") and preset not in PRESETS:
        known = ", ".join(["none", *PRESETS])
        hint = suggest(str(preset), PRESETS)
        raise UsageError([f"--preset {preset}: there is no such preset; there are {known}.{hint}"])
    if algo == "auto":
        usual = preset if preset is not None else preset_for(env, algo)
        algo = _choose_algorithm(PRESETS.get(usual or ""), asked)
    name = preset if preset is not None else preset_for(env, algo)
    values: dict[str, Any] = {}
    if name in PRESETS:
        if algo not in PRESETS[name].algos:
            fitting = ", ".join(PRESETS[name].algos)
            raise UsageError([f"--preset {name}: it has values for {fitting}, not for {algo}."])
        values = PRESETS[name].algos[algo]
    undecided = UndecidedConfig(asked=tuple(asked))
    hyper = undecided if algo == "auto" else find_algorithm(algo).config()
    if ".py:" in algo:  # other processes may run in another folder
        algo = str(Path(algo).absolute())
    config = Config(env=env, algo=algo, preset=name, hyper=hyper)
    return config_with(config, values)


def _choose_algorithm(preset: Preset | None, asked: Collection[str]) -> str:
    """What "auto" means: the preset's algorithm if it has the knobs asked for, else the first that has."""
    special = set(asked) - knobs_of(OffPolicyConfig).keys()
    able = [name for name, entry in ALGORITHMS.items() if special <= knobs_of(entry.config).keys()]
    if preset is not None and (preset.algorithm in able or not able):
        return preset.algorithm
    return able[0] if special and able else "auto"


def config_with(config: Config, knobs: Mapping[str, Any]) -> Config:
    """The config with knobs changed, by name: `seed`, `learner.batch_size`."""
    known = knob_names(config)
    if unknown := [name for name in knobs if name not in known]:
        raise UsageError(
            [f"there is no knob {name!r}{why_unknown(name, known)}" for name in unknown]
        )
    top: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for name, value in knobs.items():
        section, _, last = name.rpartition(".")
        if section:
            nested.setdefault(FIELDS[section], {})[last] = value
        else:
            top[name] = str(value) if name in ("time", "steps") and value is not None else value
    for section, values in nested.items():
        top[section] = dataclasses.replace(getattr(config, section), **values)
    return dataclasses.replace(config, **top)


def check_flags(flags: Mapping[str, str], config: Config) -> None:
    """UsageError for flags that do not exist, and for values that cannot be read; `flags` are those that were typed."""
    knobs = all_knobs(config)
    del knobs["env"]  # it is typed without a flag
    problems = []
    for name, value in flags.items():
        knob, switch = knobs.get(name), knobs.get(re.sub(r"(^|\.)no_", r"\1", name))
        if knob is not None and not value and knob.type is not bool:
            problems.append(f"{flag(name)}: a value is missing; it must be {knob.allowed}.")
        elif knob is None and (switch is None or switch.type is not bool):
            problems.append(f"{flag(name)}: there is no such flag{why_unknown(name, knobs, flag)}")
        elif knob is not None and value:
            problems.extend(filter(None, [knob.problem_as_typed(flag(name), value)]))
    if problems:
        raise UsageError(problems)


def why_unknown(name: str, known: Collection[str], spell: Callable[[str], str] = str) -> str:
    """What follows "there is no such knob"."""
    if name.startswith("algo."):
        last = name.removeprefix("algo.")
        if able := [algo for algo, entry in ALGORITHMS.items() if last in knobs_of(entry.config)]:
            return f" for this algorithm; it is one of {', '.join(able)}."
    return end_of_message(name, known, spell)


def with_algorithm(config: Config, algo: str) -> Config:
    """The config with this algorithm in place of "auto"; knobs that were given are kept."""
    hyper = find_algorithm(algo).config(**given_knobs(config))
    return dataclasses.replace(config, algo=algo, hyper=hyper)


def given_knobs(config: Config) -> dict[str, Any]:
    """The knobs of the algorithm that the user gave, while the algorithm is "auto"."""
    undecided = config.hyper
    assert isinstance(undecided, UndecidedConfig), "the algorithm is already chosen"
    given = {
        name: value
        for name, value in vars(undecided).items()
        if name in undecided.asked or value != getattr(UndecidedConfig(), name)
    }
    given.pop("asked", None)
    return given


def config_from_json(data: dict[str, Any], trusted: str | None = None) -> Config:
    """A config from its `to_json` form. Unknown names are refused, and nothing in it can name code.

    The user must name their own algorithm again, as `trusted`; its file may have moved.
    """
    algo = data.get("algo", "sac")
    if not isinstance(algo, str):
        raise DamagedFile("the stored settings name no algorithm.")
    if ":" in algo and (trusted is None or ":" not in trusted):
        raise UsageError(
            [f"it was trained with --algo {algo}, which is your own code: name it again."]
        )
    if ":" in algo:
        algo = str(trusted)
        data = {**data, "algo": algo}
    config = default_config(algo, preset="none")
    knobs: dict[str, Any] = {}
    for name, value in data.items():
        if name not in SECTIONS:
            knobs[name] = tuple(value) if isinstance(value, list) else value
        elif not isinstance(value, dict):
            raise DamagedFile(f"the stored settings {name} are not a section of knobs.")
        else:
            knobs |= {
                f"{SECTIONS[name]}.{k}": tuple(v) if isinstance(v, list) else v
                for k, v in value.items()
            }
    return config_with(config, knobs)
