"""Networks as pure functions of one flat parameter vector.

All parameters of a network live in ONE float32 vector; a `Shape` table says which part is which
matrix. So an optimiser step, a target update, a publication or a checkpoint is one operation on
one tensor, and a network is a plain function that torch.func can differentiate and torch.compile
can swallow whole. `policy.py` reads the same vectors with numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from spreeze.spec import LOG_STD_RANGE, Batch

Arithmetic = Literal["float32", "half", "fused"]
"""How networks compute: as they are; hidden layers in bfloat16; the same in kernels made for it."""
FUSED_INPUTS, FUSED_WIDTHS, FUSED_OUTPUTS = 128, (64, 128, 256), 64
"""What the kernels are made for: all of a row's inputs are on the chip at once."""
MANY_ROWS, SHARES = 2048, 16
"""Rows from which on a product takes them in shares, and how many those are."""
MANY_OUTPUTS = 16
"""With more it pays to give a product a multiple of eight of them."""


def plain_arithmetic(precision: str) -> Arithmetic:
    """How networks compute at a precision, without kernels of our own."""
    return "half" if precision == "bf16" else "float32"


@dataclass(frozen=True)
class Shapes:
    """Names and shapes of the parameters in a flat vector, in order."""

    items: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def size(self) -> int:
        """Numbers in the vector."""
        return sum(math.prod(shape) for _, shape in self.items)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """The named parameters, as views. One `split`, so that its gradient is one concatenation."""
        sizes = [math.prod(shape) for _, shape in self.items]
        parts = torch.split(flat, sizes)
        return {
            name: part.view(shape) for (name, shape), part in zip(self.items, parts, strict=True)
        }

    def split_half(self, flat: Tensor) -> dict[str, Tensor]:
        """The same with all but the last layer in bfloat16.

        Eight bits are enough for hidden units, but not for a value of some hundreds, of which the
        loss takes small differences.
        """
        size = sum(math.prod(shape) for _, shape in self.items[-2:])
        hidden, last = torch.split(flat, [self.size - size, size])
        hidden_shapes, last_shapes = Shapes(self.items[:-2]), Shapes(self.items[-2:])
        return {**hidden_shapes.split(hidden.to(torch.bfloat16)), **last_shapes.split(last)}


def mlp_shapes(sizes: Sequence[int], ensemble: int | None = None) -> Shapes:
    """Layers `w0 [in, out], b0 [out], w1, ...`; with `ensemble`, that many side by side."""
    lead = () if ensemble is None else (ensemble,)
    items: list[tuple[str, tuple[int, ...]]] = []
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        bias = (fan_out,) if ensemble is None else (ensemble, 1, fan_out)
        items += [(f"w{i}", (*lead, fan_in, fan_out)), (f"b{i}", bias)]
    return Shapes(tuple(items))


def init_uniform(shapes: Shapes, generator: torch.Generator) -> Tensor:
    """Every weight and bias uniform in +-1/sqrt(fan in), as `torch.nn.Linear` starts."""
    parts = []
    fan_in = 1
    for name, shape in shapes.items:
        if name.startswith("w"):
            fan_in = shape[-2]
        bound = 1 / math.sqrt(fan_in)
        parts.append((torch.rand(math.prod(shape), generator=generator) * 2 - 1) * bound)
    return torch.cat(parts)


def mlp(
    shapes: Shapes, flat: Tensor, arithmetic: Arithmetic, *inputs: Tensor, layer_norm: bool = False
) -> Tensor:
    """ReLU between layers, none after the last, on inputs side by side: [B, out] or [ensemble, B, out].

    With `layer_norm` sums are normalised before the ReLU; a gain and a shift of its own it does not
    need, the weights around it have both.
    """
    if arithmetic == "fused" and not layer_norm and _fusable(shapes, inputs):
        return _fused(shapes, flat, *inputs)
    params = shapes.split(flat) if arithmetic == "float32" else shapes.split_half(flat)
    num_layers = len(params) // 2
    x = inputs[0] if len(inputs) == 1 else torch.cat(inputs, -1)
    for i in range(num_layers):
        w, b = params[f"w{i}"], params[f"b{i}"]
        x = x.to(w.dtype)  # each layer computes in the type of its parameters
        outputs = w.shape[-1]
        if x.is_cuda:
            x, w, b = _in_eights(x, w, b)
        if w.ndim == 2:
            x = torch.addmm(b, x, w)
        else:
            x = x.expand(w.shape[0], *x.shape) if x.ndim == 2 else x
            # Not baddbmm: it copies the bias to full size first; a compiler fuses this addition.
            x = _side_by_side(x, w) + b
        x = x if x.shape[-1] == outputs else x[..., :outputs]
        if i < num_layers - 1:
            x = torch.relu(F.layer_norm(x, x.shape[-1:]) if layer_norm else x)
    return x


def _in_eights(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A layer with zeros up to multiples of eight: tensor cores read lines of that several times as fast."""
    inputs, outputs = -x.shape[-1] % 8, -w.shape[-1] % 8
    if inputs and w.dtype == torch.bfloat16:
        x, w = F.pad(x, (0, inputs)), F.pad(w, (0, 0, 0, inputs))
    if outputs and w.shape[-1] > MANY_OUTPUTS:
        w, b = F.pad(w, (0, outputs)), F.pad(b, (0, outputs))
    return x, w, b


def _side_by_side(x: Tensor, w: Tensor) -> Tensor:
    """x [nets, B, in] @ w [nets, in, out].

    The gradient of w sums over all rows. In float32 a GPU's library gives that to a few of its many
    processors, unless the rows come in shares, each with a copy of w.
    """
    nets, rows, size = x.shape
    if not x.is_cuda or w.dtype != torch.float32 or rows < MANY_ROWS or rows % SHARES:
        return torch.bmm(x, w)
    copies = w.unsqueeze(1).expand(-1, SHARES, -1, -1).reshape(nets * SHARES, *w.shape[1:])
    return torch.bmm(x.reshape(nets * SHARES, -1, size), copies).view(nets, rows, -1)


@dataclass(frozen=True)
class Network:
    """A network as a function of one flat vector: `network(flat, *inputs)`."""

    shapes: Shapes
    forward: Callable[..., Tensor]
    """(flat, *inputs [B, size]) -> [B, out], or [ensemble, B, out]."""

    def __call__(self, flat: Tensor, *inputs: Tensor) -> Tensor:
        """The outputs."""
        return self.forward(flat, *inputs)

    def init(self, generator: torch.Generator) -> Tensor:
        """Fresh parameters."""
        return init_uniform(self.shapes, generator)


def mlp_network(
    sizes: Sequence[int],
    arithmetic: Arithmetic,
    *,
    ensemble: int | None = None,
    layer_norm: bool = False,
) -> Network:
    """A network of ReLU layers; with `ensemble`, that many side by side."""
    shapes = mlp_shapes(sizes, ensemble)
    return Network(
        shapes, lambda flat, *inputs: mlp(shapes, flat, arithmetic, *inputs, layer_norm=layer_norm)
    )


def _fusable(shapes: Shapes, inputs: Sequence[Tensor]) -> bool:
    """Whether there are kernels for a network of these shapes."""
    if len(shapes.items) != 6 or any(x.shape[-1] > FUSED_INPUTS for x in inputs):
        return False
    widths = [shape[-1] for name, shape in shapes.items if name.startswith("w")]
    return widths[0] == widths[1] and widths[0] in FUSED_WIDTHS and widths[2] <= FUSED_OUTPUTS


def _fused(shapes: Shapes, flat: Tensor, x0: Tensor, x1: Tensor | None = None) -> Tensor:
    from spreeze.fused import fused_mlp

    (_, first), (_, last) = shapes.items[0], shapes.items[-2]
    out = fused_mlp(flat, first[-1], last[-1], x0, x1)
    return out if len(first) == 3 else out.squeeze(0)


def tanh_gaussian(head: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Squashed Gaussian: action in [-1, 1] and its log-probability, from [mean | raw log-std].

    The raw log-std is bounded through tanh, not clamped: a clamp has no gradient outside.
    """
    mean, raw = head.chunk(2, dim=-1)
    low, high = LOG_STD_RANGE
    log_std = low + 0.5 * (high - low) * (torch.tanh(raw) + 1)
    u = mean + log_std.exp() * noise
    # log N(u) - log|d tanh/du|, the latter as 2 (log 2 - u - softplus(-2u)): no overflow for large u.
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    squash = 2 * (math.log(2) - u - F.softplus(-2 * u))
    return torch.tanh(u), (gaussian - squash).sum(-1)


class SoftActor:
    """A tanh-Gaussian policy and its temperature, as one vector: [policy | log alpha].

    The temperature is trained by the actor's loss and travels with the actor. Haarnoja et al. 2018,
    arXiv 1812.05905.
    """

    def __init__(self, sizes: Sequence[int], arithmetic: Arithmetic, init_alpha: float) -> None:
        """A policy of these layers."""
        self._policy = mlp_network(sizes, arithmetic)
        self._init_alpha = init_alpha
        self.policy_size = self._policy.shapes.size
        self.shapes = Shapes((*self._policy.shapes.items, ("log_alpha", (1,))))

    def init(self, generator: torch.Generator) -> Tensor:
        """Fresh parameters."""
        log_alpha = torch.full((1,), math.log(self._init_alpha))
        return torch.cat([self._policy.init(generator), log_alpha])

    def __call__(self, actor: Tensor, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Actions [B, action], their log-probabilities [B], and the logarithm of the temperature [1]."""
        policy, log_alpha = torch.split(actor, [self.policy_size, 1])
        action, log_prob = tanh_gaussian(self._policy(policy, obs), noise)
        return action, log_prob, log_alpha

    @staticmethod
    def loss(
        q: Tensor, log_prob: Tensor, log_alpha: Tensor, target_entropy: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Eq. 9 for the policy, Eq. 18 for the temperature; neither leaks into the other."""
        alpha = log_alpha.exp().detach()
        policy = (alpha * log_prob - q).mean()
        temperature = -(log_alpha * (log_prob.detach() + target_entropy)).mean()
        return policy + temperature, {
            "actor_loss": policy.detach(),
            "ent_coef": alpha.squeeze(0),
            "entropy": -log_prob.detach().mean(),
        }


def of_action(values: Tensor, action: Tensor) -> Tensor:
    """Of the values of all actions [..., N] the one of each stored action [..., 1]: [...]."""
    # Whatever the number says, as when the compiler tries out its kernels on random ones: an index
    # that is none would end CUDA for the whole process.
    index = action.long().clamp(0, values.shape[-1] - 1)
    return values.gather(-1, index).squeeze(-1)


class CategoricalCritics:
    """Twin critics that give probabilities to returns, on atoms evenly from -largest to largest."""

    def __init__(self, network: Network, num_atoms: int, largest: float) -> None:
        """Over a network with outputs [2, B, atoms]."""
        self._network = network
        self._num_atoms, self._largest = num_atoms, largest

    def values(self, critic: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        """What both expect: [2, B]."""
        probs = self._network(critic, obs, action).softmax(-1)
        return (probs * atoms(self._num_atoms, self._largest, critic)).sum(-1)

    def loss(
        self, critic: Tensor, target: Tensor, batch: Batch, next_action: Tensor, bonus: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross entropy with the target of the critic that expects less, moved by reward and bonus [B]."""
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
            "edge_mass": (goal[:, 0] + goal[:, -1]).mean(),  # much of it: returns beyond the atoms
        }


def atoms(num: int, largest: float, like: Tensor) -> Tensor:
    """The values that a categorical critic gives probabilities to: evenly from -largest to largest."""
    return torch.linspace(-largest, largest, num, device=like.device)


def project(probs: Tensor, values: Tensor, support: Tensor) -> Tensor:
    """Probabilities [B, N] of any values [B, N], shared out to the two nearest atoms of the support [M].

    The mean stays what it was, but for values beyond the ends. Bellemare et al. 2017, Eq. 7.
    """
    gap = support[1] - support[0]
    place = ((values - support[0]) / gap).clamp(0, len(support) - 1)
    below = place.floor()
    above_share = place - below
    index = below.long().clamp(
        0, len(support) - 1
    )  # NaN is no index: on a GPU it would end the run
    out = torch.zeros(len(probs), len(support), dtype=probs.dtype, device=probs.device)
    out = out.scatter_add(1, index, probs * (1 - above_share))
    # At the last atom nothing is left for the one above, which is not there.
    return out.scatter_add(1, (index + 1).clamp(max=len(support) - 1), probs * above_share)
