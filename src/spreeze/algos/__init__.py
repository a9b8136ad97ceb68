"""The registry of algorithms. A new one is a file in this folder and a line below.

Your own algorithm is named by where it is: `package.module:ENTRY` or `path/file.py:ENTRY`.
Imported by `learning` and everything above it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import cloudpickle

from spreeze.algos import ddpg, dqn, fastsac, fasttd3, ppo, sac, td3, tqc
from spreeze.algos.base import AlgoConfig, Algorithm, Metrics
from spreeze.algos.off_policy import OffPolicyConfig, SoftConfig
from spreeze.errors import UsageError
from spreeze.knobs import Effect, knob
from spreeze.policy import PolicyForm
from spreeze.rows import Batch, RowFormat
from spreeze.spec import EnvSpec
from spreeze.text import suggest
from spreeze.user_code import import_named

if TYPE_CHECKING:
    from spreeze.networks import Arithmetic

__all__ = [
    "ALGORITHMS",
    "AlgoConfig",
    "Algorithm",
    "Batch",
    "Effect",
    "Entry",
    "EnvSpec",
    "Metrics",
    "OffPolicyConfig",
    "PolicyForm",
    "RowFormat",
    "SoftConfig",
    "ddpg",
    "dqn",
    "fastsac",
    "fasttd3",
    "knob",
    "ppo",
    "sac",
    "td3",
    "tqc",
]
"""Public: what an algorithm of your own is made of. Of the modules here, their config and `build`."""

Actions = Literal["Box", "Discrete"]


@dataclass(frozen=True)
class Entry:
    """What the registry knows about an algorithm, without importing torch."""

    config: type[AlgoConfig]
    build: Callable[..., Algorithm]
    summary: str
    actions: tuple[Actions, ...] = ("Box",)
    """Action spaces that it supports."""
    shares_batches: bool = False
    """Whether several devices may share each batch: its losses are means over rows, and whatever else they take
    from all rows comes from `networks`, such as `mean_and_std`."""

    @property
    def spaces(self) -> str:
        """The spaces that it supports, for tables."""
        return f"numeric or discrete observations, {' or '.join(self.actions)} actions"

    def takes(self, spec: EnvSpec) -> bool:
        """Whether it supports the environment's action space."""
        return ("Discrete" if spec.discrete else "Box") in self.actions


_entry = partial(Entry, shares_batches=True)
ALGORITHMS: dict[str, Entry] = {
    "sac": _entry(sac.SACConfig, sac.build, "soft actor-critic, learned temperature"),
    "td3": _entry(td3.TD3Config, td3.build, "twin delayed deterministic policy gradient"),
    "ddpg": _entry(ddpg.DDPGConfig, ddpg.build, "deep deterministic policy gradient"),
    "fastsac": _entry(
        fastsac.FastSACConfig, fastsac.build, "SAC with categorical critics, all normalised"
    ),
    "fasttd3": _entry(
        fasttd3.FastTD3Config, fasttd3.build, "TD3 with categorical critics, all normalised"
    ),
    "tqc": _entry(tqc.TQCConfig, tqc.build, "SAC with truncated quantile critics"),
    "dqn": _entry(dqn.DQNConfig, dqn.build, "double dueling n-step Q-learning", ("Discrete",)),
    "ppo": _entry(
        ppo.PPOConfig,
        ppo.build,
        "asynchronous proximal policy optimisation, with V-trace",
        ("Box", "Discrete"),
    ),
}


def find_algorithm(name: str) -> Entry:
    """An algorithm by its name, or your own by where its code is; UsageError if there is none."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    where, _, attribute = name.rpartition(":")
    if where:
        entry = getattr(_module(where), attribute, None)
        if isinstance(entry, Entry):
            return entry
        raise UsageError(
            [f"--algo {name}: {where} has no spreeze.algos.Entry with the name {attribute}."]
        )
    known = ", ".join(["auto", *ALGORITHMS])
    raise UsageError(
        [
            f"--algo {name}: there is no such algorithm; there are {known}."
            f"{suggest(name.lower(), ALGORITHMS, 0.3)} Name your own as file.py:ENTRY."
        ]
    )


def build_algorithm(
    name: str, config: AlgoConfig | Mapping[str, Any], spec: EnvSpec, arithmetic: Arithmetic
) -> Algorithm:
    """Build an algorithm from its config, or from the config as plain data."""
    entry = find_algorithm(name)
    if not isinstance(config, AlgoConfig):
        config = entry.config(**config)
    return entry.build(config, spec, arithmetic)


def algorithm_file(name: str) -> Path | None:
    """Where the code of your own algorithm is; None for one of the registry."""
    where = name.rpartition(":")[0]
    if not where:
        return None
    return Path(_module(where).__file__ or "")


def _module(where: str) -> ModuleType:
    """A user's module, by name or by file; the same one each time."""
    module = import_named("--algo", where)
    if where.endswith(".py"):
        # Other processes cannot import this module, so its classes are pickled by value.
        cloudpickle.register_pickle_by_value(module)
    return module
