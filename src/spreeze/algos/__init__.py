"""The registry of algorithms: a new one is a file beside this one and a line below."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spreeze.algos import sac
from spreeze.algos.base import AlgoConfig, Algorithm


@dataclass(frozen=True)
class Entry:
    """What the registry knows of an algorithm; none of it needs torch."""

    config: type[AlgoConfig]
    build: Callable[..., Algorithm]
    summary: str
    spaces: str


ALGORITHMS: dict[str, Entry] = {
    "sac": Entry(
        sac.SACConfig, sac.build, "soft actor-critic, learned temperature", "Box obs, Box actions"
    ),
}
