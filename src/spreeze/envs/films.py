"""Films: how steps of environments with images become rows that hold each frame once.

Each environment fills a film in private memory; a full one is copied to its row at once. The next film begins with
the frames that its first stacks need, and with the steps whose n-step returns were not complete.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spreeze.envs.step_result import StepResult
from spreeze.images import Bytes
from spreeze.rows import RowFormat, Rows, as_matrix, film_of, row_layout
from spreeze.spec import EnvSpec, Floats


class FilmWriter:
    """Consecutive steps of each environment, collected until they fill a film."""

    def __init__(self, num_envs: int, spec: EnvSpec, form: RowFormat) -> None:
        """Allocate one unfinished film per environment."""
        film = film_of(spec, form)
        assert film is not None
        self._film, self._n_step, self._gamma = film, form.n_step, np.float32(form.gamma)
        self._columns = row_layout(spec, form).columns()
        self._most_steps = film.steps + form.n_step - 1
        shape = (num_envs, self._most_steps)
        self._frames: Bytes = np.zeros((num_envs, film.capacity, 4 * film.frames.words), np.uint8)
        self._steps: dict[str, NDArray[Any]] = {
            "action": np.zeros((*shape, spec.action_size), np.float32),
            "reward": np.zeros(shape, np.float32),
            "discount": np.zeros(shape, np.float32),
            "ended": np.zeros(shape, np.bool_),
            "obs": np.zeros(shape, np.int32),
            "next_obs": np.zeros(shape, np.int32),
            "back": np.zeros(shape, np.int32),
            "version": np.zeros(shape, np.uint32),
        }
        self._optional = [name for name in ("log_prob", "past_return") if name in self._columns]
        for name in self._optional:
            self._steps[name] = np.zeros(shape, np.float32)
        self._all = np.arange(num_envs)
        self._num_steps = np.zeros(num_envs, np.int64)
        self._num_frames = np.zeros(num_envs, np.int64)
        self._fresh = np.ones(num_envs, np.bool_)
        """Where the current frame is not in the film yet: an episode begins."""
        self._age = np.zeros(num_envs, np.int64)
        """Frames of the episode before the current one."""

    def begin(
        self, obs: Bytes, actions: Floats, version: int, _: Rows, log_prob: Floats | None
    ) -> None:
        """Store what the step starts from."""
        for i in np.flatnonzero(self._fresh).tolist():
            self._frames[i, self._num_frames[i]] = obs[i]
        here, steps = (self._all, self._num_steps), self._steps
        steps["obs"][here] = self._num_frames - ~self._fresh
        steps["back"][here] = np.minimum(self._age, self._film.frames.stack - 1)
        steps["action"][here] = actions
        steps["version"][here] = version
        if "log_prob" in steps:
            assert log_prob is not None, "a segment stores the log-probabilities of its actions"
            steps["log_prob"][here] = log_prob

    def end(self, out: StepResult, past_return: Floats | None, rows: Rows) -> int:
        """Store what the step gave; writes the films that are full now and returns their number."""
        steps, here = self._steps, (self._all, self._num_steps)
        steps["reward"][here] = out.reward
        steps["discount"][here] = self._gamma * ~out.terminated
        if past_return is not None:
            steps["past_return"][here] = past_return
        if not out.any_done_or_invalid and not self._fresh.any():
            self._frames[self._all, self._num_frames] = out.next_obs
            steps["next_obs"][here] = self._num_frames
            steps["ended"][here] = False
            self._num_frames += 1
            self._num_steps += 1
            self._age += 1
        else:
            for i in self._all.tolist():
                self._end(i, out)
        # A film has frames to spare for a few truncations. After more, it ends early.
        needed = self._num_frames + 1 + self._fresh
        full = (self._num_steps == self._most_steps) | (needed > self._film.capacity)
        if not full.any():
            return 0
        ready = np.flatnonzero(full).tolist()
        for row, i in enumerate(ready):
            self._write(i, rows[row : row + 1])
        return len(ready)

    def _end(self, i: int, out: StepResult) -> None:
        """Store what the step gave in one environment, where an episode may have begun or ended."""
        steps, step = self._steps, self._num_steps[i]
        if not out.valid[i]:
            # The step before it was the last one of its episode.
            if step:
                steps["ended"][i, step - 1] = True
            self._fresh[i], self._age[i] = True, 0
            return
        self._num_frames[i] += self._fresh[i]
        if out.terminated[i]:  # nothing follows, so no update looks at the last frame
            steps["next_obs"][i, step] = steps["obs"][i, step]
        else:
            steps["next_obs"][i, step] = self._num_frames[i]
            self._frames[i, self._num_frames[i]] = out.next_obs[i]
            self._num_frames[i] += 1
        ended = bool(out.terminated[i] or out.truncated[i])
        steps["ended"][i, step] = self._fresh[i] = ended
        self._age[i] = 0 if ended else self._age[i] + 1
        self._num_steps[i] += 1

    def _write(self, i: int, row: Rows) -> None:
        """Write the film of an environment, and begin the next one."""
        film, total = self._film, int(self._num_steps[i])
        steps = {name: values[i] for name, values in self._steps.items()}
        if total < self._most_steps:  # it ends early, and repeats its transitions
            steps = {name: values.copy() for name, values in steps.items()}
            steps["ended"][total - 1] = True
            again = np.arange(self._most_steps) % max(total, 1)
            steps = {name: values[again] for name, values in steps.items()}
        values = self._returns(steps) | {
            name: steps[name][: film.steps]
            for name in ("action", "obs", "back", "ended", *self._optional)
        }
        line = as_matrix(row)[0]
        frames = line[self._columns["frames"]].view(np.uint8)
        frames[:] = self._frames[i].ravel()
        for name, place in self._columns.items():
            if name in values:
                line[place] = values[name].ravel()
        row["version"] = steps["version"][0]
        self._begin_next(i, total)

    def _returns(self, steps: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Reward, discount and next frame of each n-step transition. A window stops where its episode ends."""
        num = self._film.steps
        reward, discount = steps["reward"][:num].copy(), steps["discount"][:num].copy()
        next_obs, going = steps["next_obs"][:num].copy(), ~steps["ended"][:num]
        for k in range(1, self._n_step):
            later = slice(k, k + num)
            reward += np.where(going, discount * steps["reward"][later], 0)
            discount = np.where(going, discount * steps["discount"][later], discount)
            next_obs = np.where(going, steps["next_obs"][later], next_obs)
            going &= ~steps["ended"][later]
        return {"reward": reward, "discount": discount, "next_obs": next_obs}

    def _begin_next(self, i: int, total: int) -> None:
        """Keep the frames that the next stacks need, and the steps that were not complete."""
        used = min(total, self._film.steps)
        kept, frames, end = total - used, self._frames[i], int(self._num_frames[i])
        if kept:
            first = int(self._steps["obs"][i, used] - self._steps["back"][i, used])
        elif self._fresh[i]:
            first = end
        else:
            first = end - 1 - min(int(self._age[i]), self._film.frames.stack - 1)
        frames[: end - first] = frames[first:end].copy()
        for name, values in self._steps.items():
            values[i, :kept] = values[i, used:total]
            if name in ("obs", "next_obs"):
                values[i, :kept] -= first
        self._num_frames[i], self._num_steps[i] = end - first, kept
