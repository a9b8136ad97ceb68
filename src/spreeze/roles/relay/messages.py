"""What learner's machine and outposts say to each other. Ray carries it; nothing here knows Ray."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from spreeze.envs.targets import EnvTarget, NamedEnv
from spreeze.policy import PolicyForm
from spreeze.rows import Field
from spreeze.settings.cluster import AUTH_MODE
from spreeze.settings.config import Config
from spreeze.spec import EnvSpec
from spreeze.wires.blocks import Columns

MIRRORED = (
    ("supervisor", "exploration"),
    ("supervisor", "training_began_s"),
    ("supervisor", "min_updates_per_step"),
    ("learner", "allowed_steps"),
    ("learner", "updates"),
    ("learner", "batch_size"),
    ("learner", "compiled"),
    ("learner", "first_update_s"),
)
"""Words of the control wire that every machine has as the learner's machine has them."""


class Invitation(NamedTuple):
    """What an outpost needs to sample for a run."""

    config: Config
    """As resolved on the learner's machine."""
    spec: EnvSpec
    env: EnvTarget
    evaluation: tuple[NamedEnv, ...]
    """The environments of evaluations; empty: `env`."""
    fields: tuple[Field, ...]
    """The layout of a row, as the learner's machine has computed it."""
    policy_size: int
    machine: int
    """The number of this outpost, for its seeds."""
    cpus: int
    """How many Ray gives it."""
    elapsed_s: float
    """Since the run's command was started."""
    resumed_steps: int
    env_steps: int
    """Of the run so far."""
    form: PolicyForm | None = None
    """The policy that acts; None: as the config says."""
    scratch: Path | None = None
    """Where it keeps its files if the run has started Ray, on the learner's machine."""


class Asked(NamedTuple):
    """A policy to evaluate, which comes beside the orders."""

    number: int
    seed: int
    """Of the first episode."""


class Orders(NamedTuple):
    """What an outpost is told with each call. The newest policy comes beside it, if there is one."""

    words: tuple[float, ...]
    """The values of `MIRRORED`."""
    steps_elsewhere: int
    """Env steps of all other machines."""
    version: int
    """Of the newest policy; 0: there is none."""
    env_calls: Any = None
    """The calls for environments, if there are new ones."""
    asked: Asked | None = None
    """What to evaluate, if there is something new."""


class Report(NamedTuple):
    """What an outpost answers."""

    block: Columns | None
    """New rows, if there are any."""
    env_steps: int = 0
    """Since it has joined, like the other counts."""
    episodes: int = 0
    rows_lost: int = 0
    samplers: int = 0
    """How many work now."""
    version: int = 0
    """Of the policy that they act with."""
    played: tuple[int, Any] | None = None
    """The number of an evaluation and its episodes, when they have been played."""
    notes: tuple[str, ...] = ()
    """What the user should know."""
    failure: str | None = None
    """Why it cannot go on."""


def versions() -> dict[str, str]:
    """What must be the same on all machines: they exchange rows, policies and settings, and trust each other."""
    major, minor, _ = platform.python_version_tuple()
    return {
        "Spreeze": version("spreeze"),
        "Python": f"{major}.{minor}",
        "numpy": version("numpy").partition(".")[0],
        "gymnasium": version("gymnasium").partition(".")[0],
        AUTH_MODE: os.environ.get(AUTH_MODE, "unset"),
    }


def skew(theirs: dict[str, str], ours: dict[str, str]) -> str | None:
    """Which versions differ, by name; None if none does."""
    differing = [
        f"{name} {theirs.get(name, 'is missing')} there, {ours[name]} here"
        for name in ours
        if theirs.get(name) != ours[name]
    ]
    return "; ".join(differing) or None
