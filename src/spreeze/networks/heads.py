"""Actor and critic heads that several algorithms share."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from spreeze.networks.layers import Network, Shapes
from spreeze.rows import Batch
from spreeze.spec import LOG_STD_RANGE


def tanh_gaussian(head: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Tanh-squashed Gaussian: actions in [-1, 1] and their log-probabilities, from [mean | raw log-std].

    The log-std is bounded by a tanh, not by a clamp, which has no gradient outside its bounds.
    """
    mean, raw = head.chunk(2, dim=-1)
    low, high = LOG_STD_RANGE
    log_std = low + 0.5 * (high - low) * (torch.tanh(raw) + 1)
    u = mean + log_std.exp() * noise
    # log N(u) - log|d tanh/du|. The latter is 2 (log 2 - u - softplus(-2u)), which cannot overflow.
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    squash = 2 * (math.log(2) - u - F.softplus(-2 * u))
    return torch.tanh(u), (gaussian - squash).sum(-1)


class SoftActor:
    """A tanh-Gaussian policy and its temperature in one vector: [policy | log alpha].

    The actor's loss trains the temperature too. Haarnoja et al. 2018, arXiv 1812.05905.
    """

    def __init__(
        self,
        policy: Network,
        init_alpha: float,
    ) -> None:
        """A policy with this network, and `init_alpha` as its first temperature."""
        self._policy, self._init_alpha = policy, init_alpha
        self.policy_size = policy.shapes.size
        self.shapes = Shapes((*self._policy.shapes.items, ("log_alpha", (1,))))

    def init(self, generator: torch.Generator) -> Tensor:
        """Fresh parameters."""
        log_alpha = torch.full((1,), math.log(self._init_alpha))
        return torch.cat([self._policy.init(generator), log_alpha])

    def __call__(self, actor: Tensor, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Actions [B, action], their log-probabilities [B], and the log of the temperature [1]."""
        policy, log_alpha = torch.split(actor, [self.policy_size, 1])
        action, log_prob = tanh_gaussian(self._policy(policy, obs), noise)
        return action, log_prob, log_alpha

    @staticmethod
    def loss(
        q: Tensor, log_prob: Tensor, log_alpha: Tensor, target_entropy: Tensor | float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Eq. 9 for the policy plus Eq. 18 for the temperature; neither has a gradient in the other."""
        alpha = log_alpha.exp().detach()
        policy = (alpha * log_prob - q).mean()
        temperature = -(log_alpha * (log_prob.detach() + target_entropy)).mean()
        return policy + temperature, {
            "actor_loss": policy.detach(),
            "ent_coef": alpha.squeeze(0),
            "entropy": -log_prob.detach().mean(),
        }


def gather_action(values: Tensor, action: Tensor) -> Tensor:
    """The entry of each stored action [..., 1] in the values of all actions [..., N]: [...]."""
    # Clamped: inductor autotunes on random data, and a bad index kills the CUDA context.
    index = action.long().clamp(0, values.shape[-1] - 1)
    return values.gather(-1, index).squeeze(-1)


def quantile_loss(quantiles: Tensor, goals: Tensor) -> Tensor:
    """The Huber loss between every quantile [..., N] and every goal [..., M], weighted so that the N-th part of the goals
    ends up below each: [...]. Dabney et al. 2017, arXiv 1710.10044, Eq. 10."""
    num = quantiles.shape[-1]
    tau = (torch.arange(num, device=quantiles.device) + 0.5) / num
    error = goals[..., None, :] - quantiles[..., None]  # [..., N, M]
    huber = torch.where(error.abs() < 1, 0.5 * error.square(), error.abs() - 0.5)
    weight = (tau[:, None] - (error < 0).float()).abs()
    return (weight * huber).mean((-2, -1))


class CategoricalCritics:
    """Twin distributional critics: probabilities of atoms evenly spaced from -largest to largest (C51)."""

    def __init__(self, network: Network, num_atoms: int, largest: float) -> None:
        """`network` returns logits [2, B, atoms]."""
        self._network = network
        self._num_atoms, self._largest = num_atoms, largest

    def values(self, critic: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        """The mean return that each critic expects: [2, B]."""
        probs = self._network(critic, obs, action).softmax(-1)
        return (probs * atoms(self._num_atoms, self._largest, critic)).sum(-1)

    def loss(
        self, critic: Tensor, target: Tensor, batch: Batch, next_action: Tensor, bonus: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross entropy with the Bellman target of the critic that expects less; `bonus` [B] is added to the
        next state's return."""
        z = atoms(self._num_atoms, self._largest, critic)
        probs = self._network(target, batch.next_obs, next_action).softmax(-1)  # [2, B, atoms]
        first, second = (probs * z).sum(-1)
        smaller = torch.where((first < second)[:, None], probs[0], probs[1])
        returns = batch.reward[:, None] + batch.discount[:, None] * (z + bonus[:, None])
        goal = project(smaller, returns, z).detach()
        log_probs = self._network(critic, batch.obs, batch.action).log_softmax(-1)
        loss = -(batch.weight * (goal * log_probs).sum(-1)).mean(1).sum()
        return loss, {
            "critic_loss": loss.detach(),
            "q_mean": (goal * z).sum(-1).mean(),
            "edge_mass": (goal[:, 0] + goal[:, -1]).mean(),  # large: returns exceed the atoms
        }


def atoms(num: int, largest: float, like: Tensor) -> Tensor:
    """The support of a categorical critic: `num` returns evenly spaced from -largest to largest."""
    return torch.linspace(-largest, largest, num, device=like.device)


def project(probs: Tensor, values: Tensor, support: Tensor) -> Tensor:
    """Project a distribution, probabilities [B, N] of values [B, N], onto the atoms of a support [M].

    Each probability is split between the two nearest atoms, which keeps the mean unless values lie beyond
    the ends. Bellemare et al. 2017, Eq. 7.
    """
    gap = support[1] - support[0]
    place = ((values - support[0]) / gap).clamp(0, len(support) - 1)
    below = place.floor()
    above_share = place - below
    # Clamped for NaN: as an index it would kill the CUDA context.
    index = below.long().clamp(0, len(support) - 1)
    out = torch.zeros(len(probs), len(support), dtype=probs.dtype, device=probs.device)
    out = out.scatter_add(1, index, probs * (1 - above_share))
    # At the last atom the share above is 0, so clamping its index changes nothing.
    return out.scatter_add(1, (index + 1).clamp(max=len(support) - 1), probs * above_share)
