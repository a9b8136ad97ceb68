"""How a config is built: defaults, preset or resumed run first, then your knobs.

Python calls `build_config`. The command line takes `starting_config` and lets tyro apply the flags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spreeze.errors import UsageError
from spreeze.settings.config import Config
from spreeze.settings.defaults import config_with, default_config
from spreeze.settings.parse import parse_seeds
from spreeze.settings.resume import resumed_config
from spreeze.settings.start_from import config_from_source

STARTING_KNOBS = ("algo", "preset", "resume", "start_from")
"""Knobs that decide where a config starts; `starting_config` sets them."""
READ_EARLY = (*STARTING_KNOBS, "runs")
"""Knobs that `starting_config` reads."""


def build_config(env: str, given: Mapping[str, Any]) -> Config:
    """The config for an environment and the knobs you give, by name: `seed`, `learner.batch_size`."""
    rest = {name: value for name, value in given.items() if name not in STARTING_KNOBS}
    if isinstance(kwargs := rest.get("env.kwargs"), Mapping):
        rest["env.kwargs"] = _as_json("env.kwargs", kwargs)
    for name in ("evaluator.env", "evaluator.kwargs"):
        if name in rest:
            rest[name] = tuple(
                _as_json(name, value) if isinstance(value, Mapping) else value
                for value in _as_list(rest[name])
            )
    return config_with(starting_config(env, given), rest)


def each_seed(config: Config) -> list[Config]:
    """The config of each run that `--seeds` asks for; `--name` gets the seed behind it."""
    seeds = [config.seed] if config.seeds is None else parse_seeds(config.seeds, config.seed)
    return [
        replace(config, seeds=None, seed=seed, name=config.name and f"{config.name}-{seed}")
        for seed in seeds
    ]


def _as_list(values: Any) -> list[Any]:
    """One value or several, as a list."""
    return list(values) if isinstance(values, list | tuple) else [values]


def _as_json(name: str, kwargs: Mapping[str, Any]) -> str:
    """Arguments of an environment as they are typed and stored."""
    try:
        return json.dumps(dict(kwargs))
    except (TypeError, ValueError) as error:
        raise UsageError(
            [
                f"{name} {kwargs!r}: must be plain numbers, texts, lists and dictionaries ({error}). "
                "For other arguments, give functools.partial(YourEnv, ...) as the environment."
            ]
        ) from None


def starting_config(env: str, given: Mapping[str, Any]) -> Config:
    """The config that your knobs are applied to, for the algorithm, preset or other run you give."""
    algo, preset = given.get("algo"), given.get("preset")
    runs, source = Path(given.get("runs", "runs")), given.get("start_from")
    if source is not None and given.get("resume") is not None:
        raise UsageError(
            ["--from and --resume: the first begins a new run, the second continues one."]
        )
    if source is not None:
        return config_from_source(str(source), runs, env, algo, preset, given.keys())
    if given.get("resume") is not None:
        return resumed_config(str(given["resume"]), runs, env, algo, preset)
    asked = [name.removeprefix("algo.") for name in given if name.startswith("algo.")]
    return default_config(str(algo or "auto"), env, preset, asked)
