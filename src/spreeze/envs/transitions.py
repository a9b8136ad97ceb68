"""Transitions: how steps of environments become finished rows.

A finished row needs no correction later. Its `next_obs` is where the action led, even at the end of an
episode. Its `discount` is 0 only after a true termination, never after a truncation. The fake step of
an auto-reset never becomes a row.

Each writer is called twice per step: `begin` before the environments move, `end` after.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spreeze.envs.films import FilmWriter
from spreeze.envs.step_result import StepResult
from spreeze.rows import RowFormat, Rows, as_matrix, row_layout
from spreeze.spec import EnvSpec, Floats


class SingleStepWriter:
    """Each step is a row, written straight into its slot: nothing is kept from step to step."""

    def __init__(self, num_envs: int, spec: EnvSpec, form: RowFormat) -> None:
        """Write rows of `form`."""
        self._num_envs = num_envs
        self._columns = row_layout(spec, form).columns()
        self._gamma = np.float32(form.gamma)
        self._matrix: Floats = np.zeros((0, 0), np.float32)

    def begin(
        self, obs: Floats, actions: Floats, version: int, rows: Rows, _: Floats | None
    ) -> None:
        """Write what the step starts from."""
        columns = self._columns
        self._matrix = matrix = as_matrix(rows[: self._num_envs])
        matrix[:, columns["obs"]] = obs
        matrix[:, columns["action"]] = actions
        rows["version"][: self._num_envs] = version

    def end(self, out: StepResult, past_return: Floats | None, rows: Rows) -> int:
        """Write what the step gave; returns the number of rows."""
        columns, matrix = self._columns, self._matrix
        matrix[:, columns["next_obs"]] = out.next_obs
        matrix[:, columns["reward"].start] = out.reward
        matrix[:, columns["discount"].start] = self._gamma
        if past_return is not None:
            matrix[:, columns["past_return"].start] = past_return
        if not out.any_done_or_invalid:
            return self._num_envs
        matrix[out.terminated, columns["discount"].start] = 0
        return _compact(rows[: self._num_envs], out.valid)


class NStepBuffer:
    """The last n steps of each environment, folded into n-step transitions.

    Every step starts exactly one row, which is written n - 1 steps later. Its window stops where the
    episode ends. So a step of N environments gives N rows, minus those of fake steps.
    """

    def __init__(self, num_envs: int, spec: EnvSpec, form: RowFormat) -> None:
        """Allocate a ring of n steps."""
        self._gamma = form.gamma
        self._n_step = form.n_step
        shape = (form.n_step, num_envs)
        self._ring: dict[str, NDArray[Any]] = {
            "obs": np.zeros((*shape, spec.obs_size), np.float32),
            "action": np.zeros((*shape, spec.action_size), np.float32),
            "next_obs": np.zeros((*shape, spec.obs_size), np.float32),
            "reward": np.zeros(shape, np.float32),
            "terminated": np.zeros(shape, np.bool_),
            "ended": np.zeros(shape, np.bool_),
            "valid": np.zeros(shape, np.bool_),
            "version": np.zeros(shape, np.uint32),
        }
        if form.past_return:
            self._ring["past_return"] = np.zeros(shape, np.float32)
        self._steps = 0

    def begin(
        self, obs: Floats, actions: Floats, version: int, _rows: Rows, _: Floats | None
    ) -> None:
        """Remember what the step starts from."""
        newest = self._steps % self._n_step
        self._ring["obs"][newest] = obs
        self._ring["action"][newest] = actions
        self._ring["version"][newest] = version

    def end(self, out: StepResult, past_return: Floats | None, rows: Rows) -> int:
        """Remember what the step gave; writes the rows that are complete now and returns their number."""
        ring, newest = self._ring, self._steps % self._n_step
        ring["next_obs"][newest] = out.next_obs
        ring["reward"][newest] = out.reward
        ring["terminated"][newest] = out.terminated
        ring["ended"][newest] = out.terminated | out.truncated
        ring["valid"][newest] = out.valid
        if past_return is not None:
            ring["past_return"][newest] = past_return
        self._steps += 1
        return self._write(rows) if self._steps >= self._n_step else 0

    def _write(self, rows: Rows) -> int:
        """Write the rows that started n - 1 steps ago."""
        ring, num_envs = self._ring, self._ring["reward"].shape[1]
        first = self._steps % self._n_step
        rows = rows[:num_envs]
        rows["obs"] = ring["obs"][first].reshape(rows["obs"].shape)
        rows["action"] = ring["action"][first].reshape(rows["action"].shape)
        for name in ("version", "past_return"):
            if name in ring:
                rows[name] = ring[name][first]
        total = np.zeros(num_envs, np.float32)
        discount = np.ones(num_envs, np.float32)
        next_obs = ring["next_obs"][first].copy()
        going = ring["valid"][first].copy()
        for k in range(self._n_step):
            step = (first + k) % self._n_step
            going &= ring["valid"][step]
            total += np.where(going, discount * ring["reward"][step], 0)
            if k:
                next_obs[going] = ring["next_obs"][step][going]
            discount[going] *= self._gamma * ~ring["terminated"][step][going]
            going &= ~ring["ended"][step]
        rows["reward"] = total
        rows["discount"] = discount
        rows["next_obs"] = next_obs.reshape(rows["next_obs"].shape)
        return _compact(rows, ring["valid"][first])


class SegmentBuffer:
    """Consecutive steps of each environment, collected until they fill a row.

    Each environment fills its own row, so the fake step of an auto-reset leaves no gap.
    """

    def __init__(self, num_envs: int, spec: EnvSpec, form: RowFormat) -> None:
        """Allocate one unfinished row per environment."""
        layout = row_layout(spec, form)
        self._gamma, self._steps = np.float32(form.gamma), form.segment
        self._rows = np.zeros(num_envs, layout.dtype)
        matrix = as_matrix(self._rows)
        self._fields = {
            name: matrix[:, place].reshape(num_envs, form.segment, -1)
            for name, place in layout.columns().items()
            if name != "version"
        }
        self._all = np.arange(num_envs)
        self._filled = np.zeros(num_envs, np.int64)

    def begin(
        self, obs: Floats, actions: Floats, version: int, _rows: Rows, log_prob: Floats | None
    ) -> None:
        """Store what the step starts from. A row has the version of its first step."""
        assert log_prob is not None, "a segment stores the log-probabilities of its actions"
        here = (self._all, self._filled)
        self._fields["obs"][here] = obs
        self._fields["action"][here] = actions
        self._fields["log_prob"][here] = log_prob[:, None]
        self._rows["version"][self._filled == 0] = version

    def end(self, out: StepResult, past_return: Floats | None, rows: Rows) -> int:
        """Store what the step gave; writes the rows that are full now and returns their number."""
        fields, here = self._fields, (self._all, self._filled)
        fields["next_obs"][here] = out.next_obs
        fields["reward"][here] = out.reward[:, None]
        fields["discount"][here] = (self._gamma * ~out.terminated)[:, None]
        fields["ended"][here] = (out.terminated | out.truncated)[:, None]
        if past_return is not None:
            fields["past_return"][here] = past_return[:, None]
        # The next step overwrites an invalid one, so the step before it was the last of its episode.
        cut = np.flatnonzero(~out.valid & (self._filled > 0))
        fields["ended"][cut, self._filled[cut] - 1] = 1
        self._filled += out.valid
        full = np.flatnonzero(self._filled == self._steps)
        rows[: len(full)] = self._rows[full]
        self._filled[full] = 0
        return len(full)


RowWriter = SingleStepWriter | NStepBuffer | SegmentBuffer | FilmWriter


def row_writer(num_envs: int, spec: EnvSpec, form: RowFormat) -> RowWriter:
    """The writer for rows of `form`."""
    if spec.images:
        return FilmWriter(num_envs, spec, form)
    if form.segment > 1:
        return SegmentBuffer(num_envs, spec, form)
    if form.n_step > 1:
        return NStepBuffer(num_envs, spec, form)
    return SingleStepWriter(num_envs, spec, form)


def _compact(rows: Rows, valid: NDArray[np.bool_]) -> int:
    """Move the valid rows to the front; returns their number."""
    if valid.all():
        return len(rows)
    num_valid = int(valid.sum())
    rows[:num_valid] = rows[valid]
    return num_valid
