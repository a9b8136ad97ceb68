"""The algorithms as one writes them with modules and torch.optim: the reference for speed and numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from spreeze.algos.base import Algorithm
from spreeze.algos.sac import SACConfig
from spreeze.networks import tanh_gaussian
from spreeze.spec import Batch, EnvSpec
from spreeze.updates import State


class PlainSAC:
    """SAC with a module per network and an optimiser per loss, from the same start as `state`."""

    def __init__(
        self,
        config: SACConfig,
        spec: EnvSpec,
        algorithm: Algorithm,
        state: State,
        rates: tuple[float, float],
    ) -> None:
        """Copy the networks out of the flat vectors."""
        lr, self._tau = rates
        self._target_entropy = config.target_entropy_per_action * spec.action_size
        actor = algorithm.actor_shapes.split(state["actor"])
        critic = algorithm.critic_shapes.split(state["critic"])
        self.log_alpha = actor.pop("log_alpha").clone().requires_grad_()
        self.actor = _module(actor)
        self.critics = [_module({k: v[i] for k, v in critic.items()}) for i in range(2)]
        self.targets = [_module({k: v[i] for k, v in critic.items()}) for i in range(2)]
        parameters = [p for c in self.critics for p in c.parameters()]
        self._critic_optimizer = torch.optim.Adam(parameters, lr)
        self._actor_optimizer = torch.optim.Adam([*self.actor.parameters(), self.log_alpha], lr)

    def update(self, batch: Batch, noise: Tensor) -> None:
        """One update of critics, actor, temperature and targets."""
        with torch.no_grad():
            action, log_prob = tanh_gaussian(self.actor(batch.next_obs), noise[0])
            next_q = self._smaller(self.targets, batch.next_obs, action)
            goal = batch.reward + batch.discount * (next_q - self.log_alpha.exp() * log_prob)
        inputs = torch.cat([batch.obs, batch.action], -1)
        critic_loss = sum(
            0.5 * mse_loss(critic(inputs).squeeze(-1), goal) for critic in self.critics
        )
        assert isinstance(critic_loss, Tensor)
        self._critic_optimizer.zero_grad()
        critic_loss.backward()  # type: ignore[no-untyped-call]
        self._critic_optimizer.step()
        action, log_prob = tanh_gaussian(self.actor(batch.obs), noise[1])
        q = self._smaller(self.critics, batch.obs, action)
        policy_loss = (self.log_alpha.exp().detach() * log_prob - q).mean()
        surplus = log_prob.detach() + self._target_entropy
        self._actor_optimizer.zero_grad()
        (policy_loss - (self.log_alpha * surplus).mean()).backward()  # type: ignore[no-untyped-call]
        self._actor_optimizer.step()
        with torch.no_grad():
            for target, critic in zip(self.targets, self.critics, strict=True):
                for mixed, online in zip(target.parameters(), critic.parameters(), strict=True):
                    mixed.lerp_(online, self._tau)

    def vectors(self) -> State:
        """The networks as the flat vectors they came from."""
        return {
            "actor": torch.cat([*_flat(self.actor), self.log_alpha.detach()]),
            "critic": _interleave(self.critics),
            "target": _interleave(self.targets),
        }

    @staticmethod
    def _smaller(critics: list[nn.Sequential], obs: Tensor, action: Tensor) -> Tensor:
        inputs = torch.cat([obs, action], -1)
        first, second = (critic(inputs).squeeze(-1) for critic in critics)
        return torch.minimum(first, second)


PLAIN: dict[str, Callable[..., Any]] = {"sac": PlainSAC}


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


def _interleave(twins: list[nn.Sequential]) -> Tensor:
    """Parameter by parameter, the two side by side, as the ensemble's vector has them."""
    pairs = zip(*(_flat(twin) for twin in twins), strict=True)
    return torch.cat([part for pair in pairs for part in pair])
