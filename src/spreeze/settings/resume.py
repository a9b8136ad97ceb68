"""Continuing from a run's last checkpoint."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from spreeze.errors import UsageError
from spreeze.knobs import Effect, flag, knobs_of
from spreeze.settings.config import Config
from spreeze.settings.defaults import config_from_json
from spreeze.spec import EnvSpec
from spreeze.store.rundir import RunDir, find_run


def resumed_config(
    name: str, runs: Path, env: str = "", algo: str | None = None, preset: str | None = None
) -> Config:
    """The config of a run to continue from its last checkpoint, as its user gave it, "auto" included.

    The limits of the old run (time, steps, target) do not apply to the new one. A stored file
    never names code to import: the user must name their own environment or algorithm again.
    """
    if preset is not None:
        raise UsageError(
            [f"--preset {preset}: a resumed run keeps its settings. Change single knobs instead."]
        )
    run = find_run(name, runs)
    needed = [run.checkpoints / "last" / file for file in ("train.safetensors", "config.json")]
    stored = run.read("config")
    if "asked" not in stored or not all(file.exists() for file in needed):
        raise UsageError([f"run {run.path} has no complete checkpoint to resume from."])
    own = str(Path(algo).absolute()) if algo is not None and ":" in algo else None
    config = config_from_json(stored["asked"], own)
    trained = stored["config"]["algo"] if config.algo == "auto" else config.algo
    if algo not in (None, "auto", trained) and own != trained:
        raise UsageError(
            [f"--algo {algo}: run {name} was trained with {trained} and has to continue with it."]
        )
    if ":" in config.env and not env:
        raise UsageError(
            [
                f"run {name} trained {config.env}, which is your own code. "
                f"Name it again: spreeze train {config.env} --resume {name}"
            ]
        )
    config = dataclasses.replace(config, env=env or config.env, resume=str(run.path.absolute()))
    return dataclasses.replace(config, name=None, time=None, steps=None, target=None)


def check_resumed(config: Config, spec: EnvSpec) -> list[str]:
    """Whether the networks of the resumed run fit this one."""
    if config.resume is None:
        return []
    stored = RunDir(Path(config.resume)).read("config")
    before = EnvSpec.from_json(stored["env_spec"])
    if _spaces(before) != _spaces(spec):
        return [
            f"--resume: that run trained on {before.id} (observations {before.obs_shape}, actions "
            f"{before.action_shape}); {spec.id} has {spec.obs_shape} and {spec.action_shape}."
        ]
    old, new = stored["config"], json.loads(json.dumps(config.to_json()))
    same = old["algo"] == new["algo"] or (":" in old["algo"] and ":" in new["algo"])
    if not same:
        return [f"--algo {new['algo']}: the resumed run has {old['algo']}."]
    shaping = [
        name for name, knob in knobs_of(type(config.hyper)).items() if knob.effect is Effect.NETWORK
    ]
    pairs = [(name, old["hyper"].get(name), new["hyper"][name]) for name in shaping]
    return [
        f"{flag(f'algo.{name}')} {now}: the resumed run has {then}."
        for name, then, now in pairs
        if then != now
    ]


def _spaces(spec: EnvSpec) -> tuple[Any, ...]:
    return spec.obs_shape, spec.action_shape, spec.num_actions
