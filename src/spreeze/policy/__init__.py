"""The policy in numpy: what samplers, the evaluator and a user's robot run. Needs no torch.

Its parameters are views into one flat vector, the very one that travels on the weights wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spreeze.spec import CLIP, LOG_STD_RANGE, EnvSpec, Floats

NOISE_BLOCK = 64
"""Steps that noise is drawn for at once."""
LAYER_NORM_EPS = 1e-5

Head = Literal["tanh_gaussian", "tanh", "gaussian", "categorical", "values"]
"""What the last layer means: a squashed Gaussian; a squashed action, to which noise is added; a Gaussian
with a spread of its own; log-probabilities of choices; one value for the state and one per choice."""


@dataclass(frozen=True, kw_only=True)
class PolicyForm:
    """All that a policy is, but its numbers and its environment."""

    hidden: tuple[int, ...]
    head: Head = "tanh_gaussian"
    normalised: bool = False
    """Whether mean and scale of observations come after the weights."""
    layer_norm: bool = False
    """Whether hidden layers are normalised before the ReLU."""

    def sizes(self, spec: EnvSpec) -> list[int]:
        """Numbers that go into each layer, and out of the last."""
        outputs = {
            "tanh_gaussian": 2 * spec.action_size,
            "tanh": spec.action_size,
            "gaussian": spec.action_size,
            "categorical": spec.num_actions or 0,
            "values": 1 + (spec.num_actions or 0),
        }[self.head]
        return [spec.obs_size, *self.hidden, outputs]

    def shapes(self, spec: EnvSpec) -> dict[str, tuple[int, ...]]:
        """Every part of the flat vector, in order."""
        shapes: dict[str, tuple[int, ...]] = {}
        for i, (fan_in, fan_out) in enumerate(pairwise(self.sizes(spec))):
            shapes |= {f"w{i}": (fan_in, fan_out), f"b{i}": (fan_out,)}
        if self.head == "gaussian":
            shapes["log_std"] = (spec.action_size,)
        if self.normalised:
            shapes |= {"obs_mean": (spec.obs_size,), "obs_scale": (spec.obs_size,)}
        return shapes

    def size(self, spec: EnvSpec) -> int:
        """Numbers in the flat vector."""
        return sum(int(np.prod(shape)) for shape in self.shapes(spec).values())


class Policy:
    """A ReLU network that acts; `predict` has Stable-Baselines3's signature."""

    def __init__(self, spec: EnvSpec, form: PolicyForm, vector: Floats | None = None) -> None:
        """A policy for `spec`; all zero until its `vector` is filled."""
        self.spec, self.form = spec, form
        self.vector = np.zeros(form.size(spec), np.float32) if vector is None else vector
        self._parts: dict[str, Floats] = {}
        start = 0
        for name, shape in form.shapes(spec).items():
            size = int(np.prod(shape))
            self._parts[name] = self.vector[start : start + size].reshape(shape)
            start += size
        num_layers = len(form.sizes(spec)) - 1
        self.layers = [(self._parts[f"w{i}"], self._parts[f"b{i}"]) for i in range(num_layers)]
        self._action_size = spec.action_size  # worked out anew each time
        # Actions are low + (x + 1) * half_range for x from -1 to 1, computed around the middle.
        self.low = _within(spec.action_low, 1)
        self.high = _within(spec.action_high, -1)
        self.half_range: Floats = (self.high - self.low) / np.float32(2)
        self.middle: Floats = self.low + self.half_range
        self._symmetric = not self.middle.any()
        self.has_log_prob = form.head in ("gaussian", "categorical")
        """Whether it says how likely its actions were, in `log_prob`."""
        self.log_prob: Floats = np.zeros(0, np.float32)
        self._spread: Floats | None = None
        self._hold = 1
        self._rng = np.random.default_rng()
        self._batch = self._drawn = 0
        self._block: Floats = np.zeros((0, 0, 0), np.float32)
        self._make_room(0)
        self._decide = getattr(self, f"_{form.head}")

    def seed(self, seed: np.random.SeedSequence | int) -> None:
        """Make the exploration noise repeatable."""
        self._rng = np.random.default_rng(seed)
        self._make_room(0)

    def set_exploration_scales(self, scales: Floats) -> None:
        """How strongly to explore, for each line of observations: a factor of the noise, or the chance
        of a random choice. Samplers say so; without it, only what the policy itself draws is random."""
        self._spread = np.asarray(scales, np.float32)[:, None]
        self._make_room(0)

    def set_noise_hold(self, longest: int) -> None:
        """Let samplers keep their noise for up to so many steps: what lasts leads farther than trembling."""
        self._hold = longest
        self._make_room(0)

    def act(self, obs: Floats, explore: bool) -> Floats:
        """Actions for a batch of flat observations, as rows hold them; the next call overwrites them."""
        if len(obs) != self._batch:
            self._make_room(len(obs))
        x = obs
        if self.form.normalised:
            x = np.subtract(obs, self._parts["obs_mean"], out=self._scaled)
            np.multiply(x, self._parts["obs_scale"], out=x)
            np.maximum(x, -CLIP, out=x)  # both at a third of the time of np.clip
            np.minimum(x, CLIP, out=x)
        for (weight, bias), out in zip(self.layers, self._room, strict=True):
            np.matmul(x, weight, out=out)
            np.add(out, bias, out=out)
            if out is not self._room[-1]:
                if self.form.layer_norm:
                    _normalise(out)
                np.maximum(out, 0, out=out)
            x = out
        action: Floats = self._decide(x, explore)
        return action

    def _tanh_gaussian(self, x: Floats, explore: bool) -> Floats:
        # In arrays of their own: lines that lie apart take three times as long.
        action: Floats = self._halves[0]
        std: Floats = self._halves[1]
        action[...] = x[:, : self._action_size]
        if explore:
            std[...] = x[:, self._action_size :]
            low, high = LOG_STD_RANGE
            np.tanh(std, out=std)
            std *= 0.5 * (high - low)
            std += 0.5 * (high + low)
            np.exp(std, out=std)
            std *= self._noise()
            action += std
        return np.tanh(action, out=action)

    def _tanh(self, action: Floats, explore: bool) -> Floats:
        np.tanh(action, out=action)
        if explore and self._spread is not None:  # who deploys it wants no noise
            action += self._noise()
            np.clip(action, -1, 1, out=action)
        return action

    def _gaussian(self, action: Floats, explore: bool) -> Floats:
        """Not cut to the bounds: that of the noise is what the log-probability is of."""
        if explore:
            noise, log_std = self._noise(), self._parts["log_std"]
            action += np.exp(log_std) * noise
            constant = 0.5 * np.log(2 * np.pi)
            self.log_prob = (-0.5 * noise * noise - log_std - constant).sum(1, dtype=np.float32)
        return action

    def _categorical(self, logits: Floats, explore: bool) -> Floats:
        # The largest of logits with Gumbel noise is a draw from their softmax.
        noisy = logits + self._rng.gumbel(size=logits.shape) if explore else logits
        choice = noisy.argmax(1)[:, None]
        top = logits.max(1, keepdims=True)
        total = top + np.log(np.exp(logits - top).sum(1, keepdims=True))
        self.log_prob = (np.take_along_axis(logits, choice, 1) - total)[:, 0]
        index: Floats = choice.astype(np.float32)
        return index

    def _values(self, values: Floats, explore: bool) -> Floats:
        choice = values[:, 1:].argmax(1)[:, None]  # the state's own value is the same for all
        if explore and self._spread is not None:
            at_random = self._rng.random(choice.shape, np.float32) < self._spread
            choice = np.where(
                at_random, self._rng.integers(values.shape[1] - 1, size=choice.shape), choice
            )
        index: Floats = choice.astype(np.float32)
        return index

    def _noise(self) -> Floats:
        """As strong as it should be. Drawn for many calls at once: a draw costs more than the numbers in it."""
        if self._drawn == len(self._block):
            shape = (NOISE_BLOCK, self._batch, self._action_size)
            self._block = self._rng.standard_normal(shape, np.float32)
            if self._spread is not None and not self.has_log_prob:
                self._block *= self._spread
            if self._hold > 1:
                self._block = _held(self._block, self._hold, self._rng)
            self._drawn = 0
        self._drawn += 1
        noise: Floats = self._block[self._drawn - 1]
        return noise

    def _make_room(self, batch: int) -> None:
        """For so many observations at once."""
        self._batch = batch
        self._room = [np.zeros((batch, len(bias)), np.float32) for _, bias in self.layers]
        self._scaled: Floats = np.zeros((batch, self.spec.obs_size), np.float32)
        self._halves: Floats = np.zeros((2, batch, self._action_size), np.float32)
        self._block, self._drawn = self._block[:0], 0

    def act_randomly(self, num: int) -> Floats:
        """Uniform actions: what one does before the first weights."""
        if self.spec.num_actions is not None:
            return self._rng.integers(self.spec.num_actions, size=(num, 1)).astype(np.float32)
        uniform: Floats = self._rng.random((num, self.spec.action_size), np.float32)
        action: Floats = uniform * np.float32(2) - np.float32(1)
        return action

    def to_env_action(self, action: Floats) -> NDArray[Any]:
        """From rows to the environment's own bounds, shape and type; a leading batch is kept."""
        if self.spec.discrete:
            return action[..., 0].astype(np.int64) + self.spec.first_action
        if self.form.head == "gaussian":
            action = np.clip(action, -1, 1)
        scaled: Floats = action * self.half_range  # not in place: an environment may keep it
        if not self._symmetric:
            scaled += self.middle
            np.clip(scaled, self.low, self.high, out=scaled)  # rounding may lead out of them
        return scaled.reshape(*action.shape[:-1], *self.spec.action_shape)

    def greedy_action(self, obs: Floats) -> NDArray[Any]:
        """The actions for a batch of flat observations, without exploration, as the environment takes them."""
        return self.to_env_action(self.act(obs, explore=False))

    def predict(
        self,
        observation: ArrayLike | Mapping[str, Any] | tuple[Any, ...],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], Any]:
        """The action for one observation or a batch of them, in the environment's own bounds.

        A Dict or Tuple observation may come as the environment gives it, or flat.
        """
        obs = np.asarray(self.spec.flat(observation), np.float32)
        if obs.shape[obs.ndim - len(self.spec.obs_shape) :] != self.spec.obs_shape:
            raise ValueError(
                f"observation has shape {obs.shape}; this policy was trained on "
                f"{self.spec.id} with observations of shape {self.spec.obs_shape}"
            )
        lead = obs.shape[: obs.ndim - len(self.spec.obs_shape)]
        action = self.act(obs.reshape(-1, self.spec.obs_size), explore=not deterministic)
        return self.to_env_action(action).reshape((*lead, *self.spec.action_shape)), state

    def named(self) -> dict[str, Floats]:
        """The parameters by name, as they are stored in policy.safetensors."""
        return dict(self._parts)

    def describe(self) -> dict[str, Any]:
        """All else that is stored: `load_policy` reads it."""
        return {"spec": self.spec.to_json(), **asdict(self.form)}


def _within(bounds: tuple[float, ...], inwards: int) -> Floats:
    """Bounds of actions in single precision: rounded, they must not lie outside."""
    exact, rounded = np.array(bounds, np.float64), np.array(bounds, np.float32)
    outside = (exact - rounded) * inwards > 0
    within: Floats = np.where(outside, np.nextafter(rounded, np.float32(inwards * np.inf)), rounded)
    return within


def _held(block: Floats, longest: int, rng: np.random.Generator) -> Floats:
    """Draws [step, line, ...], some kept for k steps, every line by itself: k is as likely as 1 / k^2, cut at `longest`."""
    steps, lines = block.shape[:2]
    ends = np.minimum(rng.zipf(2.0, (steps, lines)), longest).cumsum(0)
    draw, line = np.nonzero(ends < steps)
    taken_at = np.zeros((steps, lines), np.int64)
    taken_at[ends[draw, line], line] = ends[draw, line]
    np.maximum.accumulate(taken_at, out=taken_at)
    held: Floats = np.take_along_axis(block, taken_at[..., None], 0)
    return held


def _normalise(x: Floats) -> None:
    """Mean 0 and spread 1 in every row, in place."""
    x -= x.mean(1, keepdims=True)
    x /= np.sqrt(np.square(x).mean(1, keepdims=True) + LAYER_NORM_EPS)


def load_policy(folder: Path) -> Policy:
    """The policy in a checkpoint folder: data only, nothing in it can run code."""
    import json

    from safetensors.numpy import load_file

    description = json.loads((folder / "config.json").read_text())["policy"]
    spec = EnvSpec.from_json(description["spec"])
    form = {key: value for key, value in description.items() if key != "spec"}
    policy = Policy(spec, PolicyForm(**form | {"hidden": tuple(form["hidden"])}))
    stored = load_file(folder / "policy.safetensors")
    for name, target in policy.named().items():
        if name not in stored or stored[name].shape != target.shape:
            found = stored[name].shape if name in stored else "nothing"
            raise ValueError(
                f"{folder / 'policy.safetensors'}: {name} should have shape {target.shape}, found {found}"
            )
        target[...] = stored[name]
    return policy
