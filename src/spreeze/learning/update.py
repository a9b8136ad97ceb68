"""From losses to updates: gradients, Adam, targets, scaling, for every algorithm alike.

`Step` is one whole round of updates, the gather from the replay included, as a pure function of plain
tensors; or the critic's half of it, or the actor's, for two devices (`pair`). How it is executed is the
business of `updater` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from spreeze.algos.base import Algorithm, Metrics
from spreeze.learning.replay import draw, draw_by_priority, gather
from spreeze.learning.statistics import fresh_statistics, observe, policy_statistics, scaled
from spreeze.rows import Batch, Layout

State = dict[str, Tensor]
Loss = Callable[..., tuple[Tensor, Metrics]]
StepFunction = Callable[..., Sequence[Tensor]]
Part = Literal["whole", "critic", "actor"]
"""Of a round of updates."""

BETA1 = 0.9
SMALLEST_ERROR = 1e-6
"""Of a row that is drawn by its error: none may become impossible."""
ADAM_EPS = 1e-8


def state_names(algorithm: Algorithm, part: Part = "whole") -> tuple[str, ...]:
    """What the training state of an algorithm consists of; `_m` and `_v` are Adam's moments."""
    names = []
    if part != "actor":
        names += ["critic", "critic_m", "critic_v", "target"]
    if part != "critic" and algorithm.actor_loss is not None:
        names += ["actor", "actor_m", "actor_v"]
        if algorithm.target_actor:
            names.append("target_actor")
    if part != "actor" and keeps_statistics(algorithm):
        names.append("stats")
    return (*names, "updates")


def names_of_others(algorithm: Algorithm, part: Part) -> tuple[str, ...]:
    """What a part needs of the other one's state."""
    if part == "critic":
        return ("target_actor" if algorithm.target_actor else "actor",)
    if part == "actor":
        return ("critic", *(["stats"] if keeps_statistics(algorithm) else []))
    return ()


def keeps_statistics(algorithm: Algorithm) -> bool:
    """Whether observations or rewards are brought to scale."""
    return algorithm.config.normalise_obs or algorithm.config.normalise_reward


def init_state(algorithm: Algorithm, seed: int, device: torch.device) -> State:
    """Fresh networks, targets, optimiser moments and statistics."""
    # Drawn on the CPU, so that a seed means the same networks on every device.
    actor, critic = algorithm.init(torch.Generator().manual_seed(seed))
    state = {"actor": actor, "target_actor": actor.clone()}
    state |= {"critic": critic, "target": critic.clone()}
    for name in ("actor", "critic"):
        state[f"{name}_m"] = torch.zeros_like(state[name])
        state[f"{name}_v"] = torch.zeros_like(state[name])
    state["stats"] = fresh_statistics(algorithm.spec.obs_size)
    state["updates"] = torch.zeros(())
    return {name: state[name].to(device) for name in state_names(algorithm)}


def policy_vector(algorithm: Algorithm, state: State) -> Tensor:
    """The policy as samplers run it: its network, and the statistics of observations if it has them."""
    network = state["critic" if algorithm.actor_loss is None else "actor"][: algorithm.policy_size]
    if not algorithm.config.normalise_obs:
        return network
    return torch.cat([network, policy_statistics(state["stats"])])


def adam(s: State, name: str, grad: Tensor, step: Tensor, lr: Tensor, beta2: float) -> State:
    """One Adam step of a network; returns it with its new moments."""
    m = torch.lerp(s[f"{name}_m"], grad, 1 - BETA1)
    v = torch.lerp(s[f"{name}_v"], grad.square(), 1 - beta2)
    m_hat = m / (1 - BETA1**step)
    v_hat = v / (1 - beta2**step)
    param = s[name] - lr * m_hat / (v_hat.sqrt() + ADAM_EPS)
    return {name: param, f"{name}_m": m, f"{name}_v": v}


def gradient(
    loss: Loss, max_norm: float | None, param: Tensor, *rest: Any
) -> tuple[Tensor, Metrics]:
    """The gradient of a loss by its first argument, cut to a length, and the loss's metrics.

    If the weights of the batch ask for their gradient too, it is the metric `by_weight`. By plain
    autograd: `torch.func.grad` gives the same numbers, but its first call imports the
    whole of torch._dynamo, a second in which nothing is learned.
    """
    leaf = param.detach().requires_grad_()
    with torch.enable_grad():
        value, metrics = loss(leaf, *rest)
        weights = [x.weight for x in rest if isinstance(x, Batch) and x.weight.requires_grad]
        grad, *by_weight = torch.autograd.grad(value, [leaf, *weights])
    if by_weight:
        metrics["by_weight"] = by_weight[0]
    if max_norm is not None:
        grad = grad * (max_norm / (grad.norm() + 1e-6)).clamp(max=1)
    return grad, metrics


def update(
    algorithm: Algorithm, state: State, batch: Batch, noise: Tensor, lr: Tensor, tau: Tensor
) -> tuple[State, Metrics]:
    """One round: some updates of the critic, each from its share of the batch, then one of the actor.

    `noise` is [2, rows, action]: the first for the critic's loss, the second for the actor's. How
    many critic updates is a constant of the algorithm, so that a round is always the same operations.
    If rows are drawn by priority, the metric `errors` is the size of each one's error.
    """
    before = with_statistics(algorithm, state, batch)
    batch = normalise(algorithm, before, batch)
    after, metrics = critic_update(algorithm, before, batch, noise[0], lr, tau)
    if algorithm.actor_loss is None:
        return after, metrics
    share, share_noise = actor_minibatch(algorithm, batch, noise[1])
    critic_too = {**before, "critic": after["critic"]}
    actors, more = actor_update(algorithm, critic_too, share, share_noise, lr, tau)
    return {**after, **actors}, {**metrics, **more}


def with_statistics(algorithm: Algorithm, state: State, batch: Batch) -> State:
    """The state with the batch in its statistics, if it has any."""
    if "stats" not in state:
        return dict(state)
    memory = algorithm.config.statistics_rows
    return {**state, "stats": observe(state["stats"], batch, memory)}


def normalise(algorithm: Algorithm, state: State, batch: Batch) -> Batch:
    """The batch as the losses want it."""
    config = algorithm.config
    if "stats" in state:
        batch = scaled(state["stats"], batch, config.normalise_obs, config.normalise_reward)
    if config.reward_scale != 1:
        batch = batch._replace(reward=batch.reward * config.reward_scale)
    return batch


def actor_minibatch(algorithm: Algorithm, batch: Batch, noise: Tensor) -> tuple[Batch, Tensor]:
    """What the actor learns from: the rows of the last update of the critic."""
    rounds = algorithm.config.critic_updates()
    return Batch(*(field.chunk(rounds)[-1] for field in batch)), noise.chunk(rounds)[-1]


def critic_update(
    algorithm: Algorithm, state: State, batch: Batch, noise: Tensor, lr: Tensor, tau: Tensor
) -> tuple[State, Metrics]:
    """The critic's half of a round, from a batch on scale; of the actor it only reads."""
    config, s = algorithm.config, dict(state)
    rounds, beta2, max_norm = config.critic_updates(), config.beta2, config.max_grad_norm
    metrics: Metrics = {}
    errors: list[Tensor] = []
    prioritised = config.priorities()[0] > 0
    for i in range(rounds):
        share = Batch(*(part.chunk(rounds)[i] for part in batch))
        if prioritised:
            share = share._replace(weight=share.weight.detach().requires_grad_())
        s["updates"] = s["updates"] + 1
        actor = s["target_actor"] if algorithm.target_actor else s.get("actor", s["critic"])
        rest = (s["target"], actor, share, noise.chunk(rounds)[i])
        grad, metrics = gradient(algorithm.critic_loss, max_norm, s["critic"], *rest)
        if prioritised:
            # What the loss gains with a row's weight is that row's own loss, over the number of rows.
            errors.append((metrics.pop("by_weight") * len(share.weight)).abs().sqrt())
        s |= adam(s, "critic", grad, s["updates"], lr, beta2)
        s["target"] = torch.lerp(s["target"], s["critic"], tau)
    return s, {**metrics, "errors": torch.cat(errors)} if prioritised else metrics


def actor_update(
    algorithm: Algorithm, state: State, share: Batch, noise: Tensor, lr: Tensor, tau: Tensor
) -> tuple[State, Metrics]:
    """The actor's half of a round, from its share of the batch, on scale; returns only what is the actor's.

    The state is that before the round, but for the critic, which is the newest there is.
    """
    assert algorithm.actor_loss is not None
    config = algorithm.config
    rounds = config.critic_updates()
    grad, metrics = gradient(
        algorithm.actor_loss, config.max_grad_norm, state["actor"], state["critic"], share, noise
    )
    updates = state["updates"] + rounds
    s = adam(state, "actor", grad, updates / rounds, lr, config.beta2)
    if algorithm.target_actor:
        s["target_actor"] = torch.lerp(state["target_actor"], s["actor"], tau)
    return {**s, "updates": updates}, metrics


class UpdateStep:
    """A round of updates from the replay: (data, window, uniform, noise, rates, *others, *state) -> (*state, metrics).

    Rates are learning rate and tau as a tensor, so that one compiled form serves all of them. With
    priorities these come first of all, and where to write which new ones comes out behind the
    metrics. A part takes of the others' state what it needs; out of the critic's come last the rows
    that the actor learns from.
    """

    def __init__(self, algorithm: Algorithm, layout: Layout, part: Part = "whole") -> None:
        """The update of `algorithm` on rows of `layout`."""
        self._algorithm, self._part = algorithm, part
        self._columns = layout.columns()
        self._steps = algorithm.config.row_format().segment
        self._power, self._correction = algorithm.config.priorities()
        self.prioritised = self._power > 0 and part != "actor"
        """Whether rows are drawn by priority, here."""
        self.names = state_names(algorithm, part)
        self.others = names_of_others(algorithm, part)
        self.metric_names: tuple[str, ...] = ()
        extras = ["index", "priorities"] if self.prioritised else []
        self.extras = (*extras, *(["rows"] if part == "critic" else []))
        """What comes out behind the metrics."""

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """One round; pure."""
        num = len(self.others) + len(self.names)
        *priorities, data, window, uniform, noise, rates = inputs[:-num]
        vectors, weight = inputs[-num:], None
        if priorities:
            index, weight = draw_by_priority(priorities[0], window, uniform, self._correction)
        else:
            index = draw(data, window, uniform)
        batch = gather(data, index, self._columns, self._steps)
        if weight is not None:
            batch = batch._replace(weight=weight)
        before = dict(zip((*self.others, *self.names), vectors, strict=True))
        after, metrics = self._update(before, batch, noise, rates[0], rates[1])
        errors = metrics.pop("errors", None)
        self.metric_names = tuple(metrics)
        values = torch.stack([value.reshape(()).float() for value in metrics.values()])
        out = [*(after[name] for name in self.names), values]
        if errors is not None:
            out += [index, (errors + SMALLEST_ERROR) ** self._power]
        if self._part == "critic":
            out.append(data[index.chunk(self._algorithm.config.critic_updates())[-1]])
        return tuple(out)

    def _update(
        self, before: State, batch: Batch, noise: Tensor, lr: Tensor, tau: Tensor
    ) -> tuple[State, Metrics]:
        algorithm = self._algorithm
        if self._part == "whole":
            return update(algorithm, before, batch, noise, lr, tau)
        if self._part == "critic":
            before = with_statistics(algorithm, before, batch)
            batch = normalise(algorithm, before, batch)
            return critic_update(algorithm, before, batch, noise[0], lr, tau)
        batch = normalise(algorithm, before, batch)
        return actor_update(algorithm, before, batch, noise[-1], lr, tau)
