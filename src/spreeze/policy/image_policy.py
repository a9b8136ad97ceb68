"""A policy that sees images: it acts on stacks of frames."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spreeze.images import Bytes, FrameStack, leaf
from spreeze.policy.encoding import encode
from spreeze.policy.policy import Policy
from spreeze.spec import Floats, pack_frame


class ImagePolicy(Policy):
    """An encoder of images before the dense layers. `act` takes stacks of frames, as `FrameStack` makes them."""

    def _inputs(self, obs: NDArray[Any]) -> Floats:
        pixels, numbers = self.spec.frames.split_stack(obs)
        return self._join(pixels, super()._inputs(numbers))

    def _join(self, pixels: Bytes, numbers: Floats) -> Floats:
        """The features of the images, then the other numbers."""
        assert self.form.encoder is not None
        parts, end = [], 0
        for i, image in enumerate(self.spec.images):
            kernels = [x for name, x in self._params.items() if name.startswith(f"image{i}.")]
            these = pixels[:, :, end : end + image.size]
            parts.append(encode(self.form.encoder, image, kernels, these))
            end += image.size
        return np.concatenate([*parts, numbers], axis=1)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], Any]:
        """The action for one observation or a batch, as the environment returns it, and the state for the next call.

        The state holds the frames before: give it back, and None at the start of an episode. `episode_start` marks
        the environments of a batch that begin a new one.
        """
        spec, first = self.spec, self.spec.images[0]
        shape = np.shape(leaf(observation, first.path))
        num = shape[0] if len(shape) > len(first.shape) else None
        frames = pack_frame(spec.images, spec.obs_parts, observation, num).reshape(num or 1, -1)
        if state is None:
            state, starts = FrameStack(len(frames), spec.frames), None
        else:
            starts = np.zeros(len(frames), np.bool_)
            starts |= False if episode_start is None else np.asarray(episode_start, np.bool_)
        action = self.act(state.push(frames, starts), explore=not deterministic)
        action = self.to_env_action(action)
        return (action[0] if num is None else action), state
