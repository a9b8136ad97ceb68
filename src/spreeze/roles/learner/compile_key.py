"""What the compiled update of a run depends on."""

from __future__ import annotations

import dataclasses

from spreeze.learning.compiled.key import Recipe
from spreeze.learning.update import Part
from spreeze.settings.config import Config, settled
from spreeze.spec import EnvSpec


def recipe_of(
    config: Config, spec: EnvSpec, batch_size: int, staged: bool = False, part: Part = "whole"
) -> Recipe:
    """What the update of a run depends on, or a half of it."""
    of_actor = part == "actor"  # which never sees the replay
    return Recipe(
        algo=config.algo,
        hyper=dataclasses.asdict(config.hyper),
        spec=spec.to_json(),
        capacity=0 if of_actor else settled(config.replay.capacity),
        batch_size=batch_size,
        device=config.devices[-1 if of_actor else 0],
        precision=settled(config.learner.precision),
        threads=settled(config.learner.threads),
        staged=staged and not of_actor,
        part=part,
    )
