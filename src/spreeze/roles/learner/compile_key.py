"""What the compiled updates of a run depend on."""

from __future__ import annotations

import dataclasses

from spreeze.learning.compiled.key import CompileKey, ours_is_fastest
from spreeze.learning.state import Part
from spreeze.rows import Placement
from spreeze.settings.config import Config, resolved
from spreeze.spec import EnvSpec


def compile_keys(
    config: Config,
    spec: EnvSpec,
    batch_size: int,
    placement: Placement | None = None,
    fused: bool = False,
) -> list[CompileKey]:
    """The key of each part of a run's update: critic and actor if they are on two devices, else one.

    `placement` is where the replay really is; by default where the config puts it. `fused`: the form that
    is ready first, in place of the fastest one, which may be the same. Torch's form is a list of kernels, which
    has no place for what ranks exchange.
    """
    parts: tuple[Part, ...] = ("critic", "actor") if config.is_split else ("whole",)
    planned: Placement = resolved(config.replay.placement)
    keys = [_compile_key(config, spec, batch_size, placement or planned, part) for part in parts]
    fused = fused or config.num_ranks > 1
    return [
        dataclasses.replace(key, fused=fused or ours_is_fastest(config.hyper, spec, key.device))
        for key in keys
    ]


def _compile_key(
    config: Config, spec: EnvSpec, batch_size: int, placement: Placement, part: Part
) -> CompileKey:
    for_actor = part == "actor"  # the actor's part never reads the replay
    device = config.devices[1 if for_actor else 0]
    return CompileKey(
        algo=config.algo,
        hyper=dataclasses.asdict(config.hyper),
        spec=spec.to_json(),
        capacity=0 if for_actor else resolved(config.replay.capacity) // config.num_ranks,
        batch_size=batch_size,
        device=device,
        precision=resolved(config.learner.precision),
        threads=resolved(config.learner.threads),
        sampled_on_host=placement == "host" and device != "cpu" and not for_actor,
        part=part,
        num_ranks=config.num_ranks,
    )
