"""The training state: networks, targets, Adam's moments and running statistics, by name.

It is a dict of flat vectors: the names are those of the tensors in a checkpoint, and a compiled update
takes and returns the vectors in the order of `state_names`. On two devices the critic's part of the state
is on one and the actor's on the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypedDict, cast

import torch
from torch import Tensor

from spreeze.algos.base import Algorithm
from spreeze.learning.running_statistics import init_statistics, policy_statistics

Part = Literal["whole", "critic", "actor"]
"""What one device updates: everything, or one of the two networks."""


class TrainingState(TypedDict, total=False):
    """Everything an update changes. An algorithm, or a part of the update, has only some of it."""

    critic: Tensor
    critic_m: Tensor
    """Adam's first moment."""
    critic_v: Tensor
    """Adam's second moment."""
    target: Tensor
    """The target critic."""
    actor: Tensor
    actor_m: Tensor
    actor_v: Tensor
    target_actor: Tensor
    stats: Tensor
    """Running statistics of observations and returns."""
    updates: Tensor
    """Critic updates so far: Adam's step count."""


StateName = Literal[
    "critic",
    "critic_m",
    "critic_v",
    "target",
    "actor",
    "actor_m",
    "actor_v",
    "target_actor",
    "stats",
    "updates",
]


def state_names(algorithm: Algorithm, part: Part = "whole") -> tuple[StateName, ...]:
    """The vectors that `part` of the update reads and writes, in the order it takes and returns them."""
    names: list[StateName] = []
    if part != "actor":
        names += ["critic", "critic_m", "critic_v", "target"]
    if part != "critic" and algorithm.actor_loss is not None:
        names += ["actor", "actor_m", "actor_v"]
        if algorithm.target_actor:
            names.append("target_actor")
    if part != "actor" and keeps_statistics(algorithm):
        names.append("stats")
    return (*names, "updates")


def other_names(algorithm: Algorithm, part: Part) -> tuple[StateName, ...]:
    """The vectors that `part` of the update only reads: they belong to the other part."""
    if part == "critic":
        return ("target_actor" if algorithm.target_actor else "actor",)
    if part == "actor":
        return ("critic", "stats") if keeps_statistics(algorithm) else ("critic",)
    return ()


def keeps_statistics(algorithm: Algorithm) -> bool:
    """Whether observations or rewards are normalised."""
    return algorithm.config.normalise_obs or algorithm.config.normalise_reward


def to_state(names: Sequence[StateName], tensors: Iterable[Tensor]) -> TrainingState:
    """The state whose vectors these are, in the order of `names`."""
    return cast(TrainingState, dict(zip(names, tensors, strict=True)))


def to_tensors(state: TrainingState, names: Sequence[StateName]) -> list[Tensor]:
    """The vectors of a state, in the order of `names`."""
    return [state[name] for name in names]


def named(state: TrainingState) -> dict[str, Tensor]:
    """The vectors by name, as in a checkpoint."""
    return cast(dict[str, Tensor], state)


def init_state(algorithm: Algorithm, seed: int, device: torch.device) -> TrainingState:
    """Fresh networks, targets, moments and statistics."""
    # Drawn on the CPU, so that a seed gives the same networks on every device.
    actor, critic = algorithm.init(torch.Generator().manual_seed(seed))
    state: TrainingState = {
        "critic": critic,
        "critic_m": torch.zeros_like(critic),
        "critic_v": torch.zeros_like(critic),
        "target": critic.clone(),
        "actor": actor,
        "actor_m": torch.zeros_like(actor),
        "actor_v": torch.zeros_like(actor),
        "target_actor": actor.clone(),
        "stats": init_statistics(algorithm.spec.vector_size),
        "updates": torch.zeros(()),
    }
    names = state_names(algorithm)
    return to_state(names, [state[name].to(device) for name in names])


def policy_vector(algorithm: Algorithm, state: TrainingState) -> Tensor:
    """The policy as samplers run it: its network, then the statistics if observations are normalised."""
    network = state["critic" if algorithm.actor_loss is None else "actor"][: algorithm.policy_size]
    if not algorithm.config.normalise_obs:
        return network
    return torch.cat([network, policy_statistics(state["stats"])])
