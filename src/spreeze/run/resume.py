"""Going on from a run's last checkpoint."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from spreeze.errors import UsageError
from spreeze.settings.config import Config, config_from_json
from spreeze.spec import EnvSpec
from spreeze.store.rundir import RunDir, find_run

SHAPING = (
    *("hidden", "normalise_obs", "normalise_reward", "layer_norm"),
    *("num_critics", "num_atoms", "num_quantiles"),
)
"""Knobs of algorithms that decide what their networks are."""


def resumed_config(
    name: str, runs: Path, algo: str | None = None, preset: str | None = None
) -> Config:
    """The config to go on with from a run's last checkpoint: as it was asked for, "auto" and all.

    What limited the old run does not limit the new one. `algo` is needed for one of the user's own.
    """
    if preset is not None:
        raise UsageError(
            [f"--preset {preset}: a run that is resumed keeps its settings. Give single ones."]
        )
    run = find_run(name, runs)
    needed = [run.checkpoints / "last" / file for file in ("train.safetensors", "config.json")]
    stored = run.read("config")
    if "asked" not in stored or not all(file.exists() for file in needed):
        raise UsageError([f"run {run.path} has no whole checkpoint to resume from."])
    own = str(Path(algo).absolute()) if algo is not None and ":" in algo else None
    config = config_from_json(stored["asked"], own)
    trained = stored["config"]["algo"] if config.algo == "auto" else config.algo
    if algo not in (None, "auto", trained) and own != trained:
        raise UsageError(
            [f"--algo {algo}: run {name} was trained with {trained}, and goes on with it."]
        )
    path = str(run.path.absolute())
    return dataclasses.replace(config, resume=path, name=None, time=None, steps=None, target=None)


def check_resumed(config: Config, spec: EnvSpec) -> list[str]:
    """Whether the networks of the run that is resumed fit this one."""
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
    pairs = [] if same else [("--algo", old["algo"], new["algo"])]
    if same:
        pairs += [
            (f"--algo.{name.replace('_', '-')}", old["hyper"].get(name), new["hyper"][name])
            for name in SHAPING
            if name in new["hyper"]
        ]
    return [f"{flag} {b}: the run that is resumed has {a}." for flag, a, b in pairs if a != b]


def _spaces(spec: EnvSpec) -> tuple[Any, ...]:
    return spec.obs_shape, spec.action_shape, spec.num_actions
