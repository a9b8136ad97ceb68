"""A policy that acts in numpy.

Its parameters are views into one flat vector, the same vector that the learner publishes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spreeze.policy.activations import ACTIVATIONS, layer_norm
from spreeze.policy.form import PolicyForm
from spreeze.policy.noise import COLOUR_BLOCK, NOISE_BLOCK, coloured_noise
from spreeze.spec import LOG_STD_RANGE, OBS_CLIP, EnvSpec, Floats


class Policy:
    """A network of dense layers that acts; `predict` has Stable-Baselines3's signature."""

    def __init__(self, spec: EnvSpec, form: PolicyForm, vector: Floats | None = None) -> None:
        """Use `vector` as the parameters, or zeros until you fill `self.vector`."""
        self.spec, self.form = spec, form
        self.vector = np.zeros(form.size(spec), np.float32) if vector is None else vector
        self._params: dict[str, Floats] = {}
        start = 0
        for name, shape in form.shapes(spec).items():
            size = int(np.prod(shape))
            self._params[name] = self.vector[start : start + size].reshape(shape)
            start += size
        num_layers = 0 if form.module else len(form.sizes(spec)) - 1
        self.layers = [(self._params[f"w{i}"], self._params[f"b{i}"]) for i in range(num_layers)]
        self._action_size = spec.action_size  # a property that multiplies: too slow for every step
        # The environment's action for x in [-1, 1] is middle + x * half_range.
        self.low = _float32_inside(spec.action_low, 1)
        self.high = _float32_inside(spec.action_high, -1)
        self.half_range: Floats = (self.high - self.low) / np.float32(2)
        self.middle: Floats = self.low + self.half_range
        self._symmetric = not self.middle.any()
        self.has_log_prob = form.head in ("gaussian", "categorical")
        """Whether `act` also leaves the log-probabilities of its actions in `log_prob`."""
        self.log_prob: Floats = np.zeros(0, np.float32)
        self._scales: Floats | None = None
        self._colour = 0.0
        self._coloured_envs: NDArray[np.intp] = np.zeros(0, np.intp)
        self._coloured: Floats = np.zeros((0, 0, 0), np.float32)
        self._rng = np.random.default_rng()
        self._batch = self._noise_used = 0
        self._noise_block: Floats = np.zeros((0, 0, 0), np.float32)
        self._allocate(0)
        self._head = getattr(self, f"_{form.head}")
        self._activate = ACTIVATIONS[form.activation]

    def seed(self, seed: np.random.SeedSequence | int) -> None:
        """Make the exploration noise repeatable."""
        self._rng = np.random.default_rng(seed)
        self._allocate(0)

    def set_exploration_scales(self, scales: Floats) -> None:
        """How strongly each environment of the batch explores: a factor on the noise, or epsilon.

        Only samplers set this. Without it, `act` draws only from the policy's own distribution. Noise that
        is already drawn, for up to `NOISE_BLOCK` steps, keeps its scale: dropping it would cut lasting noise.
        """
        first, self._scales = self._scales is None, np.asarray(scales, np.float32)[:, None]
        if first:
            self._allocate(0)

    def set_noise_colour(self, colour: float, envs: NDArray[np.intp]) -> None:
        """Act in these environments of the batch by `coloured_noise` of variance 1 alone, not by the policy.

        Only samplers set this.
        """
        self._colour, self._coloured_envs = colour, envs
        self._allocate(0)

    def act(self, obs: NDArray[Any], explore: bool) -> Floats:
        """Actions for a batch of flat observations, as rows store them. The next call overwrites them."""
        if len(obs) != self._batch:
            self._allocate(len(obs))
        action: Floats = self._head(self._network(self._inputs(obs)), explore)
        return action

    def choose(self, outputs: Floats, explore: bool) -> Floats:
        """Actions from what the last layer gave elsewhere, and for a Gaussian the log of its standard deviation."""
        if len(outputs) != self._batch:
            self._allocate(len(outputs))
        num = self.form.outputs(self.spec)
        if self.form.head == "gaussian":
            self._params["log_std"][:] = outputs[0, num:]
        action: Floats = self._head(np.array(outputs[:, :num]), explore)
        return action

    def _inputs(self, obs: NDArray[Any]) -> Floats:
        """What the first layer takes."""
        if not self.form.normalised:
            return obs
        x: Floats = np.subtract(obs, self._params["obs_mean"], out=self._normalised_obs)
        np.multiply(x, self._params["obs_scale"], out=x)
        np.maximum(x, -OBS_CLIP, out=x)  # together a third of the time of np.clip
        np.minimum(x, OBS_CLIP, out=x)
        return x

    def _network(self, x: Floats) -> Floats:
        """The outputs of the last layer; the head may overwrite them."""
        first = x
        for (weight, bias), out in zip(self.layers, self._outputs, strict=True):
            np.matmul(x, weight, out=out)
            np.add(out, bias, out=out)
            if out is not self._outputs[-1]:
                if self.form.layer_norm:
                    layer_norm(out)
                self._activate(out)
                if self.form.residual and x is not first and x.shape == out.shape:
                    np.add(out, x, out=out)
            x = out
        return x

    def _tanh_gaussian(self, x: Floats, explore: bool) -> Floats:
        # Copied to contiguous arrays: strided rows take three times as long.
        action: Floats = self._mean_std[0]
        std: Floats = self._mean_std[1]
        action[...] = x[:, : self._action_size]
        if explore:
            action[self._coloured_envs] = 0
            std[...] = x[:, self._action_size :]
            low, high = LOG_STD_RANGE
            np.tanh(std, out=std)
            std *= 0.5 * (high - low)
            std += 0.5 * (high + low)
            np.exp(std, out=std)
            std[self._coloured_envs] = 1
            std *= self._noise()
            action += std
        return np.tanh(action, out=action)

    def _tanh(self, action: Floats, explore: bool) -> Floats:
        np.tanh(action, out=action)
        if explore and self._scales is not None:  # only samplers add noise
            action[self._coloured_envs] = 0
            action += self._noise()
            np.clip(action, -1, 1, out=action)
        return action

    def _gaussian(self, action: Floats, explore: bool) -> Floats:
        """Not clipped to [-1, 1]: the log-probability is that of the unclipped action."""
        if explore:
            noise, log_std = self._noise(), self._params["log_std"]
            action += np.exp(log_std) * noise
            constant = 0.5 * np.log(2 * np.pi)
            self.log_prob = (-0.5 * noise * noise - log_std - constant).sum(1, dtype=np.float32)
        return action

    def _categorical(self, logits: Floats, explore: bool) -> Floats:
        # The argmax of logits plus Gumbel noise is a sample of their softmax.
        noisy = logits + self._rng.gumbel(size=logits.shape) if explore else logits
        choice = noisy.argmax(1)[:, None]
        top = logits.max(1, keepdims=True)
        total = top + np.log(np.exp(logits - top).sum(1, keepdims=True))
        self.log_prob = (np.take_along_axis(logits, choice, 1) - total)[:, 0]
        index: Floats = choice.astype(np.float32)
        return index

    def _values(self, values: Floats, explore: bool) -> Floats:
        choice = values[:, 1:].argmax(1)[:, None]  # the state's value is the same for all actions
        if explore and self._scales is not None:
            at_random = self._rng.random(choice.shape, np.float32) < self._scales
            choice = np.where(
                at_random, self._rng.integers(values.shape[1] - 1, size=choice.shape), choice
            )
        index: Floats = choice.astype(np.float32)
        return index

    def _noise(self) -> Floats:
        """Standard normal noise for one step, scaled per environment unless the head gives log-probabilities."""
        if self._noise_used == len(self._noise_block):
            shape = (NOISE_BLOCK, self._batch, self._action_size)
            self._noise_block = self._rng.standard_normal(shape, np.float32)
            if self._scales is not None and not self.has_log_prob:
                self._noise_block *= self._scales
            if len(self._coloured_envs):
                self._noise_block[:, self._coloured_envs] = self._next_coloured()
            self._noise_used = 0
        self._noise_used += 1
        noise: Floats = self._noise_block[self._noise_used - 1]
        return noise

    def _next_coloured(self) -> Floats:
        """The next steps of coloured noise."""
        if not len(self._coloured):
            shape = (COLOUR_BLOCK, len(self._coloured_envs), self._action_size)
            self._coloured = coloured_noise(shape, self._colour, self._rng)
        block, self._coloured = np.split(self._coloured, [NOISE_BLOCK])
        return block

    def _allocate(self, batch: int) -> None:
        """Buffers for a batch of this size; noise drawn so far is dropped."""
        self._batch = batch
        self._outputs = [np.zeros((batch, len(bias)), np.float32) for _, bias in self.layers]
        self._normalised_obs: Floats = np.zeros((batch, self.spec.vector_size), np.float32)
        self._mean_std: Floats = np.zeros((2, batch, self._action_size), np.float32)
        self._noise_block, self._noise_used = self._noise_block[:0], 0
        self._coloured = self._coloured[:0]

    def act_randomly(self, num: int) -> Floats:
        """Uniform random actions, as rows store them: for the time before the first weights arrive."""
        if self.spec.num_actions is not None:
            return self._rng.integers(self.spec.num_actions, size=(num, 1)).astype(np.float32)
        uniform: Floats = self._rng.random((num, self.spec.action_size), np.float32)
        action: Floats = uniform * np.float32(2) - np.float32(1)
        return action

    def to_env_action(self, action: Floats) -> NDArray[Any]:
        """Convert actions from rows to the environment's bounds, shape and dtype; keeps leading dimensions."""
        if self.spec.discrete:
            return action[..., 0].astype(np.int64) + self.spec.first_action
        if self.form.head == "gaussian":
            action = np.clip(action, -1, 1)
        scaled: Floats = action * self.half_range  # a new array: an environment may keep it
        if not self._symmetric:
            scaled += self.middle
            np.clip(scaled, self.low, self.high, out=scaled)  # rounding may exceed the bounds
        return scaled.reshape(*action.shape[:-1], *self.spec.action_shape)

    def greedy_action(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Actions for a batch of flat observations, without exploration, as the environment takes them."""
        return self.to_env_action(self.act(obs, explore=False))

    def predict(
        self,
        observation: ArrayLike | Mapping[str, Any] | tuple[Any, ...],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], Any]:
        """The action for one observation or a batch, as the environment returns it or flattened, in its own bounds."""
        obs = np.asarray(self.spec.flatten(observation), np.float32)
        if obs.shape[obs.ndim - len(self.spec.obs_shape) :] != self.spec.obs_shape:
            raise ValueError(
                f"observation has shape {obs.shape}; this policy was trained on "
                f"{self.spec.id} with observations of shape {self.spec.obs_shape}"
            )
        lead = obs.shape[: obs.ndim - len(self.spec.obs_shape)]
        action = self.act(obs.reshape(-1, self.spec.obs_size), explore=not deterministic)
        return self.to_env_action(action).reshape((*lead, *self.spec.action_shape)), state

    def copy(self) -> Policy:
        """A copy with separate parameters; its noise starts from the beginning."""
        return type(self)(self.spec, self.form, self.vector.copy())

    def named(self) -> dict[str, Floats]:
        """The parameters by name, as policy.safetensors stores them."""
        return dict(self._params)

    def describe(self) -> dict[str, Any]:
        """Everything except the parameters, as config.json stores it; `load_policy` reads it."""
        return {"spec": self.spec.to_json(), **asdict(self.form)}


def _float32_inside(bounds: tuple[float, ...], inwards: int) -> Floats:
    """Bounds in single precision, moved inwards where rounding would put them outside."""
    exact, rounded = np.array(bounds, np.float64), np.array(bounds, np.float32)
    outside = (exact - rounded) * inwards > 0
    inside: Floats = np.where(outside, np.nextafter(rounded, np.float32(inwards * np.inf)), rounded)
    return inside
