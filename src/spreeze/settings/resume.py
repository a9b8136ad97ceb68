"""Continuing from a run's last checkpoint, and what becomes of each knob that is not as it was."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from spreeze.algos import ALGORITHMS
from spreeze.errors import DamagedFile, UsageError
from spreeze.knobs import Effect, flag, knobs_of
from spreeze.policy import PolicyForm, listed, read_parameters
from spreeze.settings.checks import check_knobs
from spreeze.settings.config import SECTIONS, Config, get_knob, knob_names
from spreeze.settings.defaults import config_from_json, with_algorithm
from spreeze.settings.start_from import other_shape
from spreeze.settings.trial import Tried
from spreeze.spec import EnvSpec
from spreeze.store.checkpoint import LoadedTraining, load_training
from spreeze.store.files import read_json
from spreeze.store.manifest import read_checkpoint
from spreeze.store.rundir import find_run

NEW_EACH_TIME = {
    "env",
    "algo",
    "seeds",
    "name",
    "runs",
    "resume",
    "start_from",
    "retune",
    "preset",
    "target_metric",
    "callback",
    "verbose",
}
"""Knobs of one run alone, and those that are checked by what they stand for."""
LIMITS = {"time", "steps", "target"}
"""Limits of the old run do not apply to the new one."""
OLD_ROWS_DROPPED = "stored rows have another format and are dropped"
CONSEQUENCES = {
    "seed": "random numbers are new from here on",
    "device": "results differ by rounding from here on",
    "serial": "a run resumed in the other mode does not repeat bit for bit",
    "env.engine": "stored rows are from the other engine",
    "learner.batch_size": "Adam's moments are those of the other batch size",
    "learner.precision": "results differ by rounding from here on",
    "algo.gamma": OLD_ROWS_DROPPED,
    "algo.n_step": OLD_ROWS_DROPPED,
    "algo.segment": OLD_ROWS_DROPPED,
    "algo.termination_cost": OLD_ROWS_DROPPED,
}
"""What else a changed knob means. Knobs that are not listed have no other consequence."""


class OnResume(Enum):
    """What becomes of a changed knob."""

    APPLIED = "applied"
    REFUSED = "refused, because the stored networks have another shape"


@dataclass(frozen=True)
class Change:
    """A knob that differs from the resumed run."""

    name: str
    before: Any
    now: Any
    verdict: OnResume
    consequence: str = ""

    def __str__(self) -> str:
        words = [_spoken(self.now), f"(was {_spoken(self.before)}):", self.verdict.value]
        more = f"; {self.consequence}" if self.consequence else ""
        return f"{flag(self.name)} {' '.join(words)}{more}"


@dataclass(frozen=True)
class Resumption:
    """What a run continues from, and what has changed."""

    checkpoint: Path
    changes: list[Change]
    damaged: list[tuple[Path, str]]
    """Newer checkpoints that are damaged, and what is wrong with each."""

    def lines(self) -> list[str]:
        """What to tell the user at the start, one line each."""
        return [
            *(f"{path.name} is damaged and was passed over: {why}" for path, why in self.damaged),
            *map(str, self.changes),
        ]

    def to_json(self) -> dict[str, Any]:
        """As config.json stores it."""
        changes = {c.name: {"before": c.before, "now": c.now} for c in self.changes}
        damaged = {path.name: why for path, why in self.damaged}
        return {"checkpoint": str(self.checkpoint), "changes": changes, "damaged": damaged}


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
    load_training(run.checkpoints, keep=False)  # refused now rather than by the learner
    stored = read_json(run.path, "config.json")
    asked, used = stored.get("asked"), stored.get("config")
    if not isinstance(asked, dict) or not isinstance(used, dict):
        raise DamagedFile(f"{run.path / 'config.json'} does not hold the settings of a run.")
    own = str(Path(algo).absolute()) if algo is not None and ":" in algo else None
    config = config_from_json(asked, own)
    if problems := list(check_knobs(config)):
        raise DamagedFile(f"{run.path / 'config.json'}: {' '.join(problems)}")
    trained = used.get("algo") if config.algo == "auto" else config.algo
    if algo not in (None, "auto", trained) and own != trained:
        raise UsageError(
            [f"--algo {algo}: run {name} was trained with {trained} and has to continue with it."]
        )
    if (
        config.algo == "auto" and trained in ALGORITHMS
    ):  # what was seen of the task may differ today
        config = with_algorithm(config, trained)
    if ":" in config.env and not env:
        raise UsageError(
            [
                f"run {name} trained {config.env}, which is your own code. "
                f"Name it again: spreeze train {config.env} --resume {name}"
            ]
        )
    config = dataclasses.replace(config, env=env or config.env, resume=str(run.path.absolute()))
    usual = Config.target_metric
    config = dataclasses.replace(config, target=None, target_metric=usual, callback=())
    if any(":" in name for name in config.evaluator.env):  # code: named again, or not imported
        evaluator = dataclasses.replace(config.evaluator, env=(), kwargs=())
        config = dataclasses.replace(config, evaluator=evaluator)
    return dataclasses.replace(config, name=None, time=None, steps=None, start_from=None)


def compare_with_resumed(config: Config, spec: EnvSpec) -> Resumption | None:
    """What has changed since the run that is resumed; UsageError with all that is refused.

    None if nothing is resumed.
    """
    if config.resume is None:
        return None
    before = load_training(Path(config.resume) / "checkpoints", keep=False)
    old = _stored_config(before)
    if problems := [*_check_spaces(before, spec), *_check_algorithm(old, config)]:
        raise UsageError(problems)
    changes = _changes(old, json.loads(json.dumps(config.to_json())), config)
    if refused := [f"--resume: {c}." for c in changes if c.verdict is OnResume.REFUSED]:
        raise UsageError(refused)
    return Resumption(before.path, changes, before.refused)


def check_own_networks(resumed: Resumption, algo: str, tried: Tried, spec: EnvSpec) -> None:
    """UsageError if the networks of the user's own algorithm are others than in the checkpoint."""
    stored = read_checkpoint(resumed.checkpoint, ["config.json"]).data["config"]
    described, form = stored["policy"], tried.form
    old = PolicyForm.from_json({k: v for k, v in described.items() if k != "spec"})
    if old != form:
        was, now = (listed([*x.shapes(spec).items()]) for x in (old, form))
        raise UsageError(
            [f"--resume: that run's policy has {was}; the policy of {algo} has {now}."]
        )
    if (critic := stored.get("critic")) is None:
        return  # a checkpoint of an earlier version: the learner compares the sizes
    if (differing := other_shape(read_parameters(critic), tried.critic)) is not None:
        raise UsageError([f"--resume: that run's critic is not the one of {algo}: {differing}."])


def _stored_config(before: LoadedTraining) -> dict[str, Any]:
    """The settings that a checkpoint was made with, covered by its manifest."""
    old = before.data["config"].get("config")
    sections = [old.get(name) for name in SECTIONS] if isinstance(old, dict) else [None]
    if not isinstance(old, dict) or any(not isinstance(s, dict | type(None)) for s in sections):
        raise DamagedFile(f"{before.path / 'config.json'} does not hold the settings of a run.")
    return old


def _check_spaces(before: LoadedTraining, spec: EnvSpec) -> list[str]:
    described = before.data["config"].get("policy")
    old = EnvSpec.from_json(described.get("spec") if isinstance(described, dict) else None)
    if _spaces(old) == _spaces(spec):
        return []
    return [
        f"--resume: that run trained on {old.id} (observations {old.obs_shape}, actions "
        f"{old.action_shape}); {spec.id} has {spec.obs_shape} and {spec.action_shape}."
    ]


def _check_algorithm(old: dict[str, Any], config: Config) -> list[str]:
    before = str(old.get("algo"))
    if before == config.algo or (":" in before and ":" in config.algo):
        return []
    return [f"--algo {config.algo}: the resumed run has {before}."]


def _changes(old: dict[str, Any], new: dict[str, Any], config: Config) -> list[Change]:
    """Every knob that differs. A knob that the old run did not know had its default then."""
    fields = {prefix: name for name, prefix in SECTIONS.items()}
    shaping = {
        k for k, knob in knobs_of(type(config.hyper)).items() if knob.effect is Effect.NETWORK
    }
    found = []
    for name in knob_names(config):
        prefix, _, last = name.rpartition(".")
        then = (old.get(fields[prefix]) or {}) if prefix else old
        now = (new[fields[prefix]] if prefix else new)[last]
        if name in NEW_EACH_TIME or last not in then or then[last] == now:
            continue
        if name in LIMITS and get_knob(config, name) is None:
            continue
        refused = prefix == "algo" and last in shaping
        verdict = OnResume.REFUSED if refused else OnResume.APPLIED
        found.append(Change(name, then[last], now, verdict, _consequence(name, then[last], now)))
    return found


def _consequence(name: str, before: Any, now: Any) -> str:
    if name == "replay.capacity":
        smaller = isinstance(before, int) and now < before
        return "the oldest stored rows are dropped" if smaller else ""
    return CONSEQUENCES.get(name, "")


def _spoken(value: Any) -> str:
    """A value as people type it."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _spaces(spec: EnvSpec) -> tuple[Any, ...]:
    return spec.obs_shape, spec.action_shape, spec.num_actions
