"""The algorithms in plain PyTorch, with modules and torch.optim: the reference for speed and numbers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, smooth_l1_loss

from spreeze.algos.base import Algorithm
from spreeze.algos.sac import SACConfig
from spreeze.algos.td3 import TD3Config
from spreeze.learning.state import TrainingState
from spreeze.networks import tanh_gaussian
from spreeze.rows import Batch


class PlainSAC:
    """SAC with a module per network and an optimizer per loss, starting from `state`."""

    def __init__(
        self, algorithm: Algorithm, state: TrainingState, rates: tuple[float, float]
    ) -> None:
        """Copy the networks out of the flat vectors of `state`. `rates` is (learning rate, tau)."""
        config = algorithm.config
        assert isinstance(config, SACConfig)
        lr, self._tau = rates
        self._target_entropy = config.target_entropy_per_action * algorithm.spec.action_size
        actor = algorithm.actor_shapes.split(state["actor"])
        self.log_alpha = actor.pop("log_alpha").clone().requires_grad_()
        self.actor = _module(actor)
        self.critics = _twins(algorithm, state)
        self.targets = copy.deepcopy(self.critics)
        self._critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr)
        self._actor_optimizer = torch.optim.Adam([*self.actor.parameters(), self.log_alpha], lr)

    def update(self, batch: Batch, noise: Tensor) -> None:
        """One update of critics, actor, temperature and targets."""
        with torch.no_grad():
            action, log_prob = tanh_gaussian(self.actor(batch.next_obs), noise[0])
            next_q = _q_values(self.targets, batch.next_obs, action).amin(0)
            target_q = batch.reward + batch.discount * (next_q - self.log_alpha.exp() * log_prob)
        q = _q_values(self.critics, batch.obs, batch.action)
        _learn(self._critic_optimizer, sum(0.5 * mse_loss(one, target_q) for one in q))
        action, log_prob = tanh_gaussian(self.actor(batch.obs), noise[1])
        value = _q_values(self.critics, batch.obs, action).amin(0)
        policy_loss = (self.log_alpha.exp().detach() * log_prob - value).mean()
        surplus = log_prob.detach() + self._target_entropy
        _learn(self._actor_optimizer, policy_loss - (self.log_alpha * surplus).mean())
        _mix(self.targets, self.critics, self._tau)

    def vectors(self) -> TrainingState:
        """The networks as flat vectors, in the form of `state`."""
        return {
            "actor": torch.cat([*_flat(self.actor), self.log_alpha.detach()]),
            "critic": _interleave(self.critics),
            "target": _interleave(self.targets),
        }


class PlainTD3:
    """TD3. Also DDPG, which is TD3 with one critic, no delay and no smoothing."""

    def __init__(
        self, algorithm: Algorithm, state: TrainingState, rates: tuple[float, float]
    ) -> None:
        """Copy the networks out of the flat vectors of `state`. `rates` is (learning rate, tau)."""
        self._config = algorithm.config
        lr, self._tau = rates
        self.actor = _module(algorithm.actor_shapes.split(state["actor"]))
        self.critics = _twins(algorithm, state)
        self.target_actor, self.targets = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self._critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr)
        self._actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr)

    def update(self, batch: Batch, noise: Tensor) -> None:
        """Update the critics on each part of the batch in turn, then the actor once."""
        num = self._config.critic_updates()
        for i in range(num):
            minibatch = Batch(*(column.chunk(num)[i] for column in batch))
            self._update_critics(minibatch, noise[0].chunk(num)[i])
        action = torch.tanh(self.actor(minibatch.obs))
        _learn(self._actor_optimizer, -_q_values(self.critics[:1], minibatch.obs, action).mean())
        _mix(self.target_actor, self.actor, self._tau)

    def _update_critics(self, batch: Batch, noise: Tensor) -> None:
        with torch.no_grad():
            action = torch.tanh(self.target_actor(batch.next_obs))
            if isinstance(self._config, TD3Config):
                limit = self._config.target_noise_clip
                action = action + torch.clamp(noise * self._config.target_noise, -limit, limit)
                action = torch.clamp(action, -1, 1)
            next_q = _q_values(self.targets, batch.next_obs, action).amin(0)
            target_q = batch.reward + batch.discount * next_q
        q = _q_values(self.critics, batch.obs, batch.action)
        _learn(self._critic_optimizer, sum(0.5 * mse_loss(one, target_q) for one in q))
        _mix(self.targets, self.critics, self._tau)

    def vectors(self) -> TrainingState:
        """The networks as flat vectors, in the form of `state`."""
        return {
            "actor": torch.cat(_flat(self.actor)),
            "target_actor": torch.cat(_flat(self.target_actor)),
            "critic": _interleave(self.critics),
            "target": _interleave(self.targets),
        }


class PlainDQN:
    """Double dueling DQN."""

    def __init__(
        self, algorithm: Algorithm, state: TrainingState, rates: tuple[float, float]
    ) -> None:
        """Copy the network out of the flat vector of `state`. `rates` is (learning rate, tau)."""
        lr, self._tau = rates
        self.network = _module(algorithm.critic_shapes.split(state["critic"]))
        self.target = copy.deepcopy(self.network)
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr)

    def update(self, batch: Batch, noise: Tensor) -> None:
        """One update of network and target. DQN needs no noise."""
        rows = torch.arange(len(batch.reward))
        with torch.no_grad():
            best = _dueling(self.network(batch.next_obs)).argmax(-1)
            next_q = _dueling(self.target(batch.next_obs))[rows, best]
            target_q = batch.reward + batch.discount * next_q
        q = _dueling(self.network(batch.obs))[rows, batch.action[:, 0].long()]
        _learn(self._optimizer, smooth_l1_loss(q, target_q))
        _mix(self.target, self.network, self._tau)

    def vectors(self) -> TrainingState:
        """The network as a flat vector, in the form of `state`."""
        return {"critic": torch.cat(_flat(self.network)), "target": torch.cat(_flat(self.target))}


PLAIN: dict[str, Any] = {"sac": PlainSAC, "td3": PlainTD3, "ddpg": PlainTD3, "dqn": PlainDQN}


def _dueling(out: Tensor) -> Tensor:
    return out[:, :1] + out[:, 1:] - out[:, 1:].mean(1, keepdim=True)


def _q_values(critics: Any, obs: Tensor, action: Tensor) -> Tensor:
    inputs = torch.cat([obs, action], -1)
    return torch.stack([critic(inputs).squeeze(-1) for critic in critics])


def _learn(optimizer: torch.optim.Optimizer, loss: Any) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _mix(target: nn.Module, online: nn.Module, tau: float) -> None:
    with torch.no_grad():
        for mixed, fresh in zip(target.parameters(), online.parameters(), strict=True):
            mixed.lerp_(fresh, tau)


def _twins(algorithm: Algorithm, state: TrainingState) -> nn.ModuleList:
    """One module per critic of the ensemble."""
    critic = algorithm.critic_shapes.split(state["critic"])
    if critic["w0"].ndim == 2:
        return nn.ModuleList([_module(critic)])
    num = len(critic["w0"])
    return nn.ModuleList(_module({k: v[i] for k, v in critic.items()}) for i in range(num))


def _module(params: dict[str, Tensor]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in range(len(params) // 2):
        weight, bias = params[f"w{i}"], params[f"b{i}"].reshape(-1)
        layer = nn.Linear(weight.shape[0], weight.shape[1], device=weight.device)
        with torch.no_grad():
            layer.weight.copy_(weight.t())
            layer.bias.copy_(bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _flat(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().t().reshape(-1) for parameter in module.parameters()]


def _interleave(twins: nn.ModuleList) -> Tensor:
    """Flatten critics as the ensemble's vector has them: parameter by parameter, critics side by side."""
    pairs = zip(*(_flat(twin) for twin in twins), strict=True)
    return torch.cat([part for pair in pairs for part in pair])
