"""One round of updates for every algorithm: gradients, Adam, target networks, normalisation.

Everything here is a pure function of tensors. `step` puts it together with the draw from the replay,
`updater` runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from spreeze.algos.base import Algorithm, Metrics
from spreeze.learning.running_statistics import normalise_batch, update_statistics
from spreeze.learning.state import StateName, TrainingState
from spreeze.networks import ranks
from spreeze.rows import Batch

Loss = Callable[[Tensor], tuple[Tensor, Metrics]]
"""A loss as a function of the parameters that it trains."""

BETA1 = 0.9
ADAM_EPS = 1e-8


class AdamState(NamedTuple):
    """The parameters of one network and Adam's moments of their gradient."""

    params: Tensor
    m: Tensor
    v: Tensor


class Gradient(NamedTuple):
    """The gradient of a loss, and the metrics that it reports."""

    params: Tensor
    weight: Tensor | None
    """By the weight of each row, if that was asked for."""
    metrics: Metrics


def adam(network: AdamState, grad: Tensor, step: Tensor, lr: Tensor, beta2: float) -> AdamState:
    """One Adam step."""
    m = torch.lerp(network.m, grad, 1 - BETA1)
    v = torch.lerp(network.v, grad.square(), 1 - beta2)
    m_hat = m / (1 - BETA1**step)
    v_hat = v / (1 - beta2**step)
    return AdamState(network.params - lr * m_hat / (v_hat.sqrt() + ADAM_EPS), m, v)


def gradient(
    loss: Loss, params: Tensor, max_norm: float | None, weight: Tensor | None = None
) -> Gradient:
    """The gradient of a loss by its parameters, clipped to `max_norm`, and by `weight` if given.

    It is that of the whole batch, if other ranks have rows of it. The metrics are of this rank's rows.

    Plain autograd: `torch.func.grad` gives the same numbers, but its first call imports all of
    torch._dynamo, which takes a second.
    """
    leaf = params.detach().requires_grad_()
    with torch.enable_grad():
        value, metrics = loss(leaf)
        grad, *by_weight = torch.autograd.grad(value, [leaf] if weight is None else [leaf, weight])
    grad = ranks.mean(grad)
    if max_norm is not None:
        grad = grad * (max_norm / (grad.norm() + 1e-6)).clamp(max=1)
    return Gradient(grad, by_weight[0] if by_weight else None, metrics)


def update(
    algorithm: Algorithm,
    state: TrainingState,
    batch: Batch,
    noise: Tensor,
    lr: Tensor,
    tau: Tensor,
) -> tuple[TrainingState, Metrics]:
    """One round: some critic updates, each from its share of the batch, then one actor update.

    `noise` is [2, rows, action]: the first for the critic's loss, the second for the actor's. The number
    of critic updates is a constant of the algorithm, so that every round is the same operations. If rows
    are drawn by priority, the metric `errors` is the size of each row's error.
    """
    before = with_statistics(algorithm, state, batch)
    batch = normalise(algorithm, before, batch)
    after, metrics = critic_update(algorithm, before, batch, noise[0], lr, tau)
    if algorithm.actor_loss is None:
        return after, metrics
    share, share_noise = actor_minibatch(algorithm, batch, noise[1])
    with_critic: TrainingState = {**before, "critic": after["critic"]}
    actors, more = actor_update(algorithm, with_critic, share, share_noise, lr, tau)
    return {**after, **actors}, {**metrics, **more}


def with_statistics(algorithm: Algorithm, state: TrainingState, batch: Batch) -> TrainingState:
    """The state after its statistics have seen the batch."""
    if "stats" not in state:
        return state.copy()
    memory = algorithm.config.statistics_rows
    return {**state, "stats": update_statistics(state["stats"], batch, memory)}


def normalise(algorithm: Algorithm, state: TrainingState, batch: Batch) -> Batch:
    """The batch as the losses expect it."""
    config = algorithm.config
    if "stats" in state:
        batch = normalise_batch(
            state["stats"], batch, config.normalise_obs, config.normalise_reward
        )
    if config.reward_scale != 1:
        batch = batch._replace(reward=batch.reward * config.reward_scale)
    return batch


def actor_minibatch(algorithm: Algorithm, batch: Batch, noise: Tensor) -> tuple[Batch, Tensor]:
    """What the actor learns from: the rows of the last critic update."""
    rounds = algorithm.config.critic_updates()
    return Batch(*(field.chunk(rounds)[-1] for field in batch)), noise.chunk(rounds)[-1]


def critic_update(
    algorithm: Algorithm,
    state: TrainingState,
    batch: Batch,
    noise: Tensor,
    lr: Tensor,
    tau: Tensor,
) -> tuple[TrainingState, Metrics]:
    """The critic's part of a round, from a normalised batch. It only reads the actor."""
    config, s = algorithm.config, state.copy()
    rounds = config.critic_updates()
    metrics: Metrics = {}
    errors: list[Tensor] = []
    for i in range(rounds):
        share = Batch(*(field.chunk(rounds)[i] for field in batch))
        s["updates"] = s["updates"] + 1
        grad = _critic_gradient(algorithm, s, share, noise.chunk(rounds)[i])
        metrics = grad.metrics
        if grad.weight is not None:
            # The derivative of the loss by a row's weight is that row's loss, over the number of rows.
            errors.append((grad.weight * len(share.weight)).abs().sqrt())
        critic = AdamState(s["critic"], s["critic_m"], s["critic_v"])
        s["critic"], s["critic_m"], s["critic_v"] = adam(
            critic, grad.params, s["updates"], lr, config.beta2
        )
        s["target"] = torch.lerp(s["target"], s["critic"], tau)
    return s, {**metrics, "errors": torch.cat(errors)} if errors else metrics


def _critic_gradient(
    algorithm: Algorithm, state: TrainingState, batch: Batch, noise: Tensor
) -> Gradient:
    weight = None
    if algorithm.config.prioritised:
        weight = batch.weight.detach().requires_grad_()
        batch = batch._replace(weight=weight)
    acting: StateName = "critic" if algorithm.actor_loss is None else "actor"
    actor = state["target_actor" if algorithm.target_actor else acting]

    def loss(critic: Tensor) -> tuple[Tensor, Metrics]:
        return algorithm.critic_loss(critic, state["target"], actor, batch, noise)

    return gradient(loss, state["critic"], algorithm.config.max_grad_norm, weight)


def actor_update(
    algorithm: Algorithm,
    state: TrainingState,
    batch: Batch,
    noise: Tensor,
    lr: Tensor,
    tau: Tensor,
) -> tuple[TrainingState, Metrics]:
    """The actor's part of a round, from normalised rows. Returns only the vectors that are the actor's.

    `state` is the one before the round, except for the critic, which is the newest one.
    """
    actor_loss = algorithm.actor_loss
    assert actor_loss is not None
    config = algorithm.config
    rounds = config.critic_updates()

    def loss(actor: Tensor) -> tuple[Tensor, Metrics]:
        return actor_loss(actor, state["critic"], batch, noise)

    grad = gradient(loss, state["actor"], config.max_grad_norm)
    updates = state["updates"] + rounds
    before = AdamState(state["actor"], state["actor_m"], state["actor_v"])
    actor, m, v = adam(before, grad.params, updates / rounds, lr, config.beta2)
    after: TrainingState = {"actor": actor, "actor_m": m, "actor_v": v, "updates": updates}
    if algorithm.target_actor:
        after["target_actor"] = torch.lerp(state["target_actor"], actor, tau)
    return after, grad.metrics
