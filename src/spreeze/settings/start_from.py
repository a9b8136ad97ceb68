"""Starting with the networks of another run: where they are, which of them fit, and why the others do not."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spreeze.algos import build_algorithm
from spreeze.algos.base import AlgoConfig, Algorithm
from spreeze.errors import DamagedFile, UsageError
from spreeze.knobs import Effect, knobs_of
from spreeze.policy import Parameters
from spreeze.settings.config import Config
from spreeze.settings.defaults import config_with, default_config
from spreeze.spec import EnvSpec
from spreeze.store.checkpoint import load_training
from spreeze.store.manifest import read_checkpoint, read_manifest
from spreeze.store.rundir import RunDir, find_run

NO_ACTOR = "the critic is the policy"
TRAINING_FILE = "train.safetensors"


@dataclass(frozen=True)
class Source:
    """A checkpoint to start from, as plain data."""

    path: Path
    env: str
    algo: str
    hyper: dict[str, Any]
    spec: dict[str, Any]
    complete: bool
    """Whether it has the whole training state; a `best` checkpoint has the policy alone."""


@dataclass(frozen=True)
class Fit:
    """Which networks of a source can be used, and why the others cannot."""

    source: Source
    actor: str | None = None
    """Why it cannot; None if it can, like the next."""
    critic: str | None = None
    statistics: str | None = None

    def lines(self) -> list[str]:
        """What to tell the user before the start."""
        source = self.source
        said = [f"starts from {_short(source.path)}, {source.algo} on {source.env}:"]
        parts = {"actor": self.actor, "critic": self.critic, "statistics": self.statistics}
        if self.actor == NO_ACTOR:
            del parts["actor"]
        for name, why in parts.items():
            said.append(f"  {name:<11} {'taken' if why is None else f'new: {why}'}")
        return said

    def to_json(self) -> dict[str, Any]:
        """As config.json stores it."""
        reasons = {"actor": self.actor, "critic": self.critic, "statistics": self.statistics}
        taken = [name for name, why in reasons.items() if why is None]
        return {"checkpoint": str(self.source.path), "taken": taken}


def find_source(name: str, runs: Path) -> Source:
    """The checkpoint that a user names, by its folder or by its run; UsageError or DamagedFile if it is none."""
    path = Path(name)
    if (path / "policy.safetensors").is_file():
        path = (
            path.resolve()
        )  # `best` and `last` are links, which may lead elsewhere by the time it is read
    else:
        path = load_training(find_run(name, runs).checkpoints, keep=False).path.absolute()
    stored = read_checkpoint(path, ["config.json"]).data["config"]
    config, policy = stored.get("config"), stored.get("policy")
    if config is None:  # a `best` checkpoint: its run has the settings
        config = RunDir(path.parents[1]).read("config").get("config")
    if not isinstance(config, dict) or not isinstance(config.get("hyper"), dict):
        raise DamagedFile(f"{path}: neither it nor its run says with which settings it was made.")
    spec = EnvSpec.from_json(policy.get("spec") if isinstance(policy, dict) else None)
    listed = read_manifest(path)
    complete = (path / TRAINING_FILE).is_file() if listed is None else TRAINING_FILE in listed
    algo, env = str(config.get("algo")), str(config.get("env"))
    return Source(path, env, algo, config["hyper"], spec.to_json(), complete)


def config_from_source(
    name: str,
    runs: Path,
    env: str,
    algo: str | None,
    preset: str | None,
    given: Collection[str],
) -> Config:
    """The config that starts from this run or checkpoint, before the user's own knobs.

    Algorithm and shapes of the networks are the other run's, unless `given`. The policy acts from the start.
    """
    source = find_source(name, runs)
    if algo in (None, "auto") and ":" in source.algo:
        raise UsageError(
            [f"--from {name}: it was trained with your own code. Name it again with --algo."]
        )
    if ":" in source.env and not env:
        raise UsageError([f"--from {name}: which environment? That run's is your own code."])
    asked = [x.removeprefix("algo.") for x in given if x.startswith("algo.")]
    chosen = source.algo if algo in (None, "auto") else str(algo)
    config = default_config(chosen, env or source.env, preset, asked)
    knobs: dict[str, Any] = {
        f"algo.{knob}": tuple(value) if isinstance(value, list) else value
        for knob, value in source.hyper.items()
        if knob in _shared_shapes(type(config.hyper), config.algo == source.algo)
    }
    knobs["sampler.random_steps"] = 0
    kept = {knob: value for knob, value in knobs.items() if knob not in given}
    return dataclasses.replace(config_with(config, kept), start_from=str(source.path))


def _shared_shapes(kind: type[AlgoConfig], same: bool) -> set[str]:
    """The knobs that must be as in the other run for its networks to fit. Some algorithms need scaled rewards."""
    shaping = {name for name, knob in knobs_of(kind).items() if knob.effect is Effect.NETWORK}
    return shaping if same else shaping - {"normalise_reward"}


def fit_networks(source: Source, algo: str, hyper: dict[str, Any], spec: dict[str, Any]) -> Fit:
    """Which networks of a source fit an algorithm. Builds both algorithms, so it needs torch.

    A stored file never names code to import: both are built by the user's own code if `algo` names it.
    """
    if ":" in source.algo and ":" not in algo:
        raise UsageError(
            [
                f"--from: none of its networks fits {algo}: they are your own code's. Name it: --algo."
            ]
        )
    old_algo = algo if ":" in source.algo else source.algo
    old_spec, new_spec = EnvSpec.from_json(source.spec), EnvSpec.from_json(spec)
    try:
        old = build_algorithm(old_algo, _as_config(source.hyper), old_spec, "float32")
    except (TypeError, AssertionError):
        raise DamagedFile(f"{source.path / 'config.json'}: its algorithm is not known.") from None
    new = build_algorithm(algo, hyper, new_spec, "float32")
    if _spaces(old_spec) != _spaces(new_spec):
        raise UsageError(
            [
                f"--from {_short(source.path)}: it was trained on {old_spec.id} (observations "
                f"{old_spec.obs_shape}, actions {old_spec.action_shape or old_spec.num_actions}); {new_spec.id} "
                f"has {new_spec.obs_shape} and {new_spec.action_shape or new_spec.num_actions}."
            ]
        )
    fit = Fit(source, _actor_misfit(old, new), _critic_misfit(old, new), _no_statistics(old, new))
    if not source.complete and new.actor_loss is not None:
        fit = dataclasses.replace(fit, critic="this checkpoint has only the policy")
    if fit.actor is not None and fit.critic is not None:
        raise UsageError(
            [
                f"--from {_short(source.path)}: none of its networks fits. "
                f"Actor: {fit.actor}. Critic: {fit.critic}."
            ]
        )
    return fit


def _as_config(hyper: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in hyper.items()}


def _actor_misfit(old: Algorithm, new: Algorithm) -> str | None:
    if new.actor_loss is None or old.actor_loss is None:
        return (
            NO_ACTOR if old.actor_loss is new.actor_loss else "only one of the algorithms has one"
        )
    forms = [dataclasses.asdict(x.config.build_policy(x.spec).form) for x in (old, new)]
    return _first_difference(*forms) or other_shape(old.actor_shapes.items, new.actor_shapes.items)


def _critic_misfit(old: Algorithm, new: Algorithm) -> str | None:
    def facts(algorithm: Algorithm) -> dict[str, Any]:
        config = algorithm.config
        shaping = [n for n, k in knobs_of(type(config)).items() if k.effect is Effect.NETWORK]
        names = {*shaping, "reward_scale"}
        return {
            name: getattr(config, name) for name in sorted(names) if not name.startswith("actor_")
        }

    return _first_difference(facts(old), facts(new)) or other_shape(
        old.critic_shapes.items, new.critic_shapes.items
    )


def _no_statistics(old: Algorithm, new: Algorithm) -> str | None:
    for algorithm, which in ((new, "this"), (old, "that")):
        if not (algorithm.config.normalise_obs or algorithm.config.normalise_reward):
            return f"{which} run normalises nothing"
    return None


def _first_difference(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            return f"it has {name}, and these networks have not"
        if name not in old:
            return f"it has no {name}"
        if old[name] != new[name]:
            return f"its {name} is {_spoken(old[name])}, and here {_spoken(new[name])}"
    return None


def other_shape(old: Parameters, new: Parameters) -> str | None:
    """In which parameter two networks differ; None if in none."""
    if old == new:
        return None
    if len(old) != len(new):
        return f"it has {len(old)} parameters, and here there are {len(new)}"
    was, now = next(pair for pair in zip(old, new, strict=True) if pair[0] != pair[1])
    if was[0] != now[0]:
        return f"it has a parameter {was[0]}, and here there is {now[0]} in its place"
    return f"its {was[0]} has shape {was[1]}, and here {now[1]}"


def _spoken(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _spaces(spec: EnvSpec) -> tuple[Any, ...]:
    return spec.obs_shape, spec.action_shape, spec.num_actions


def _short(path: Path) -> str:
    """Relative to the working folder, if it is inside it."""
    here = os.path.relpath(path)
    return str(path) if here.startswith("..") else here
