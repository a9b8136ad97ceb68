"""The registry of algorithms: a new one is a file beside this one and a line below.

One of a user's own is named by where it is: `package.module:ENTRY` or `path/file.py:ENTRY`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

import cloudpickle

from spreeze.algos import ddpg, dqn, fastsac, fasttd3, ppo, sac, td3, tqc
from spreeze.algos.base import AlgoConfig, Algorithm
from spreeze.errors import UsageError
from spreeze.spec import EnvSpec

Actions = Literal["Box", "Discrete"]


@dataclass(frozen=True)
class Entry:
    """What the registry knows of an algorithm; none of it needs torch."""

    config: type[AlgoConfig]
    build: Callable[..., Algorithm]
    summary: str
    actions: tuple[Actions, ...] = ("Box",)
    """Kinds of action spaces that it takes."""

    @property
    def spaces(self) -> str:
        """The same in words."""
        return f"observations that are numbers or choices, {' or '.join(self.actions)} actions"

    def takes(self, spec: EnvSpec) -> bool:
        """Whether it can learn in this environment."""
        return ("Discrete" if spec.discrete else "Box") in self.actions


ALGORITHMS: dict[str, Entry] = {
    "sac": Entry(sac.SACConfig, sac.build, "soft actor-critic, learned temperature"),
    "td3": Entry(td3.TD3Config, td3.build, "twin delayed deterministic policy gradient"),
    "ddpg": Entry(ddpg.DDPGConfig, ddpg.build, "deep deterministic policy gradient"),
    "fastsac": Entry(
        fastsac.FastSACConfig, fastsac.build, "SAC with categorical critics, all normalised"
    ),
    "fasttd3": Entry(
        fasttd3.FastTD3Config, fasttd3.build, "TD3 with categorical critics, all normalised"
    ),
    "tqc": Entry(tqc.TQCConfig, tqc.build, "SAC with truncated quantile critics"),
    "dqn": Entry(dqn.DQNConfig, dqn.build, "double dueling n-step Q-learning", ("Discrete",)),
    "ppo": Entry(
        ppo.PPOConfig,
        ppo.build,
        "asynchronous proximal policy optimisation, with V-trace",
        ("Box", "Discrete"),
    ),
}


def find_algorithm(name: str) -> Entry:
    """The entry of an algorithm by its name, or by where a user's own is; UsageError if there is none."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    where, _, attribute = name.rpartition(":")
    if where:
        entry = getattr(_module(where), attribute, None)
        if isinstance(entry, Entry):
            return entry
        raise UsageError(
            [f"--algo {name}: {where} has no spreeze.algos.Entry of the name {attribute}."]
        )
    near = difflib.get_close_matches(name.lower(), ALGORITHMS, 1, 0.3)
    hint = f" Did you mean {near[0]}?" if near else ""
    known = ", ".join(["auto", *ALGORITHMS])
    raise UsageError(
        [
            f"--algo {name}: there is no such algorithm; there are {known}.{hint} "
            "One of your own goes as file.py:ENTRY."
        ]
    )


def algorithm_file(name: str) -> Path | None:
    """Where the code of a user's own algorithm is; None for one of the registry."""
    where = name.rpartition(":")[0]
    if not where:
        return None
    return Path(_module(where).__file__ or "")


def _module(where: str) -> ModuleType:
    """A user's module, by its name or by its file; the same one each time."""
    if not where.endswith(".py"):
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            raise UsageError([f"--algo {where}: there is no module {error.name!r}."]) from None
    path = Path(where).absolute()
    name = f"spreeze_user_{path.stem}"
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    if not path.is_file():
        raise UsageError([f"--algo {where}: there is no such file."])
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    # Other processes have no module of this name: they get its classes themselves.
    cloudpickle.register_pickle_by_value(module)
    return module
