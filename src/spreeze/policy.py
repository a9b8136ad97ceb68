"""The policy in numpy: what samplers, the evaluator and a user's robot run. Needs no torch.

Its parameters are views into one flat vector, the very one that travels on the weights wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spreeze.spec import LOG_STD_RANGE, EnvSpec, Floats

NOISE_BLOCK = 64


class Policy:
    """A tanh-Gaussian policy over a ReLU network; `predict` has Stable-Baselines3's signature."""

    def __init__(
        self, spec: EnvSpec, hidden: tuple[int, ...], vector: Floats | None = None
    ) -> None:
        """A policy for `spec`; all zero until its `vector` is filled."""
        self.spec = spec
        self.hidden = tuple(hidden)
        sizes = [spec.obs_size, *hidden, 2 * spec.action_size]
        self.layers: list[tuple[Floats, Floats]] = []
        self.vector = np.zeros(policy_size(spec, hidden), np.float32) if vector is None else vector
        start = 0
        for fan_in, fan_out in pairwise(sizes):
            weight = self.vector[start : start + fan_in * fan_out].reshape(fan_in, fan_out)
            start += weight.size
            self.layers.append((weight, self.vector[start : start + fan_out]))
            start += fan_out
        self._low = np.array(spec.action_low, np.float32)
        self._half_range: Floats = (np.array(spec.action_high, np.float32) - self._low).astype(
            np.float32
        ) / np.float32(2)
        self._rng = np.random.default_rng()
        self._batch = self._drawn = 0
        self._room: list[Floats] = []
        self._block: Floats = np.zeros((0, 0, 0), np.float32)

    def seed(self, seed: np.random.SeedSequence | int) -> None:
        """Make the exploration noise repeatable."""
        self._rng = np.random.default_rng(seed)
        self._make_room(0)

    def act(self, obs: Floats, explore: bool) -> Floats:
        """Actions in [-1, 1] for a batch of flat observations; the next call overwrites them."""
        if len(obs) != self._batch:
            self._make_room(len(obs))
        x = obs
        for (weight, bias), out in zip(self.layers, self._room, strict=True):
            np.matmul(x, weight, out=out)
            np.add(out, bias, out=out)
            if out is not self._room[-1]:
                np.maximum(out, 0, out=out)
            x = out
        action, raw = x[:, : self.spec.action_size], x[:, self.spec.action_size :]
        if explore:
            action += self._std(raw) * self._noise()
        return np.tanh(action, out=action)

    def _std(self, raw: Floats) -> Floats:
        low, high = LOG_STD_RANGE
        np.tanh(raw, out=raw)
        raw += 1
        raw *= 0.5 * (high - low)
        raw += low
        return np.exp(raw, out=raw)

    def _noise(self) -> Floats:
        """Drawn for many calls at once: a draw costs more than the numbers in it."""
        if self._drawn == len(self._block):
            shape = (NOISE_BLOCK, self._batch, self.spec.action_size)
            self._block = self._rng.standard_normal(shape, np.float32)
            self._drawn = 0
        self._drawn += 1
        noise: Floats = self._block[self._drawn - 1]
        return noise

    def _make_room(self, batch: int) -> None:
        self._batch = batch
        self._room = [np.zeros((batch, len(bias)), np.float32) for _, bias in self.layers]
        self._block, self._drawn = self._block[:0], 0

    def act_randomly(self, num: int) -> Floats:
        """Uniform actions in [-1, 1]: what one does before the first weights."""
        uniform: Floats = self._rng.random((num, self.spec.action_size), np.float32)
        action: Floats = uniform * np.float32(2) - np.float32(1)
        return action

    def scale(self, action: Floats) -> Floats:
        """From [-1, 1] to the environment's own bounds and shape; a leading batch is kept."""
        scaled: Floats = self._low + (action + np.float32(1)) * self._half_range
        return scaled.reshape(*action.shape[:-1], *self.spec.action_shape)

    def predict(
        self,
        observation: ArrayLike | Mapping[str, Any] | tuple[Any, ...],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[np.float32], Any]:
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
        return self.scale(action).reshape(*lead, *self.spec.action_shape), state

    def named(self) -> dict[str, Floats]:
        """The parameters by name, as they are stored in policy.safetensors."""
        out = {}
        for i, (weight, bias) in enumerate(self.layers):
            out[f"w{i}"], out[f"b{i}"] = weight, bias
        return out


def policy_size(spec: EnvSpec, hidden: tuple[int, ...]) -> int:
    """Numbers in the policy's flat vector."""
    sizes = [spec.obs_size, *hidden, 2 * spec.action_size]
    return sum((i + 1) * o for i, o in pairwise(sizes))


def load_policy(folder: Path) -> Policy:
    """The policy in a checkpoint folder: data only, nothing in it can run code."""
    import json

    from safetensors.numpy import load_file

    description = json.loads((folder / "config.json").read_text())["policy"]
    spec = EnvSpec.from_json(description["spec"])
    policy = Policy(spec, tuple(description["hidden"]))
    stored = load_file(folder / "policy.safetensors")
    for name, target in policy.named().items():
        if name not in stored or stored[name].shape != target.shape:
            found = stored[name].shape if name in stored else "nothing"
            raise ValueError(
                f"{folder / 'policy.safetensors'}: {name} should have shape {target.shape}, found {found}"
            )
        target[...] = stored[name]
    return policy
