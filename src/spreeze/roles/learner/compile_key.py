"""What the compiled update of a run depends on."""

from __future__ import annotations

import dataclasses

from spreeze.learning.compiled.key import CompileKey
from spreeze.learning.update import Part
from spreeze.settings.config import Config, resolved
from spreeze.spec import EnvSpec


def compile_key(
    config: Config, spec: EnvSpec, batch_size: int, staged: bool = False, part: Part = "whole"
) -> CompileKey:
    """What the update of a run depends on, or a half of it."""
    of_actor = part == "actor"  # which never sees the replay
    return CompileKey(
        algo=config.algo,
        hyper=dataclasses.asdict(config.hyper),
        spec=spec.to_json(),
        capacity=0 if of_actor else resolved(config.replay.capacity),
        batch_size=batch_size,
        device=config.devices[-1 if of_actor else 0],
        precision=resolved(config.learner.precision),
        threads=resolved(config.learner.threads),
        staged=staged and not of_actor,
        part=part,
    )
