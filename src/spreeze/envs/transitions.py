"""Transitions: what environments gave, as rows that are complete.

A transition that leaves here is finished: its `next_obs` is the true one, its `discount` says how
much the future counts (0 only after a true termination), and the fake step of an auto-reset never
becomes one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spreeze.envs.stepping import Outcome, Stepper, make_stepper
from spreeze.envs.targets import EnvTarget
from spreeze.rows import TRANSITION, RowFormat, Rows, as_matrix, row_layout
from spreeze.spec import EnvSpec, Floats


class EnvGroup:
    """Environments stepped together whose steps come out as finished rows."""

    def __init__(self, stepper: Stepper, spec: EnvSpec, form: RowFormat = TRANSITION) -> None:
        """Drive `stepper` and make rows of `form`."""
        self._stepper = stepper
        self.num_envs = stepper.num_envs
        self._outcome = Outcome(self.num_envs, spec.obs_size)
        self._columns = row_layout(spec, form).columns()
        self._past = np.zeros(self.num_envs, np.float32) if form.past_return else None
        self._gatherer = _gatherer(self.num_envs, spec, form)
        self._gamma, self._cost = np.float32(form.gamma), np.float32(form.termination_cost)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self.finished: list[tuple[float, int]] = []
        """Return and length of each episode that ended; the caller empties it."""
        self.num_rejected = 0
        """Steps with numbers that are not finite; they were not stored and their episodes were cut."""

    @property
    def obs(self) -> Floats:
        """What to act on, one line per environment; overwritten by the next step."""
        return self._outcome.obs

    def reset(self, seed: int) -> None:
        """Begin an episode everywhere."""
        self._stepper.reset_into(seed, self._outcome)

    def step(
        self,
        actions: Floats,
        env_actions: NDArray[Any],
        version: int,
        rows: Rows,
        log_prob: Floats | None = None,
    ) -> int:
        """Step everywhere with `actions` as rows hold them; fills `rows`, returns how many are complete."""
        out = self._outcome
        if self._gatherer is not None:
            self._gatherer.begin(out.obs, actions, version, log_prob)
            self._advance(env_actions)
            past = self._past_return(out)
            return self._gatherer.end(out, past, rows)
        columns = self._columns
        matrix = as_matrix(rows[: self.num_envs])
        matrix[:, columns["obs"]] = out.obs
        matrix[:, columns["action"]] = actions
        self._advance(env_actions)
        matrix[:, columns["next_obs"]] = out.next_obs
        matrix[:, columns["reward"].start] = out.reward
        matrix[:, columns["discount"].start] = self._gamma
        rows["version"][: self.num_envs] = version
        if (past := self._past_return(out)) is not None:
            matrix[:, columns["past_return"].start] = past
        if not out.any_done_or_invalid:
            return self.num_envs
        matrix[out.terminated, columns["discount"].start] = 0
        return _keep(rows[: self.num_envs], out.valid)

    def close(self) -> None:
        """Close the environments."""
        self._stepper.close()

    def _advance(self, env_actions: NDArray[Any]) -> None:
        """Step everywhere. Episodes are counted as the environment has them, before rows pay for a termination."""
        out = self._outcome
        self._stepper.step(env_actions, out)
        self._count(out)
        if self._cost and out.any_done_or_invalid:
            out.reward[out.terminated] -= self._cost

    def _past_return(self, out: Outcome) -> Floats | None:
        """Discounted rewards of each episode so far, this step included; None if nobody asks."""
        if self._past is None:
            return None
        self._past *= self._gamma
        if not out.any_done_or_invalid:
            self._past += out.reward
            return self._past
        self._past += np.where(out.valid, out.reward, 0)
        now = self._past.copy()
        self._past[out.terminated | out.truncated | ~out.valid] = 0
        return now

    def _count(self, out: Outcome) -> None:
        """Returns and lengths of episodes."""
        if not out.any_done_or_invalid:
            self._returns += out.reward
            self._lengths += 1
            return
        real, ended = out.valid, out.terminated | out.truncated
        self._returns[real] += out.reward[real]
        self._lengths[real] += 1
        broken = ~np.isfinite(out.reward) | ~np.isfinite(out.next_obs).all(1)
        self.num_rejected += int(broken.sum())
        self._returns[broken] = 0.0
        self._lengths[broken] = 0
        for i in np.flatnonzero(ended & real):
            self.finished.append((float(self._returns[i]), int(self._lengths[i])))
            self._returns[i], self._lengths[i] = 0.0, 0


class NStepBuffer:
    """The last n steps of each environment, folded into transitions of n steps.

    Every step is emitted exactly once, n - 1 steps later, with a window that stops where its episode
    ended; so a step of N environments gives N rows, less the fake ones.
    """

    def __init__(self, num_envs: int, spec: EnvSpec, form: RowFormat) -> None:
        """Room for n steps."""
        self._gamma = form.gamma
        self._n_step = form.n_step
        shape = (form.n_step, num_envs)
        self._past: dict[str, NDArray[Any]] = {
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
            self._past["past_return"] = np.zeros(shape, np.float32)
        self._steps = 0

    def begin(self, obs: Floats, actions: Floats, version: int, _: Floats | None = None) -> None:
        """Note what a step starts from."""
        newest = self._steps % self._n_step
        self._past["obs"][newest] = obs
        self._past["action"][newest] = actions
        self._past["version"][newest] = version

    def end(self, out: Outcome, past_return: Floats | None, rows: Rows) -> int:
        """Note what it gave; fills `rows` with the transitions that are complete now."""
        past, newest = self._past, self._steps % self._n_step
        past["next_obs"][newest] = out.next_obs
        past["reward"][newest] = out.reward
        past["terminated"][newest] = out.terminated
        past["ended"][newest] = out.terminated | out.truncated
        past["valid"][newest] = out.valid
        if past_return is not None:
            past["past_return"][newest] = past_return
        self._steps += 1
        return self._emit(rows) if self._steps >= self._n_step else 0

    def _emit(self, rows: Rows) -> int:
        """The transitions that began n - 1 steps ago."""
        past, num = self._past, self._past["reward"].shape[1]
        first = self._steps % self._n_step
        rows = rows[:num]
        rows["obs"] = past["obs"][first].reshape(rows["obs"].shape)
        rows["action"] = past["action"][first].reshape(rows["action"].shape)
        for name in ("version", "past_return"):
            if name in past:
                rows[name] = past[name][first]
        total = np.zeros(num, np.float32)
        discount = np.ones(num, np.float32)
        next_obs = past["next_obs"][first].copy()
        going = past["valid"][first].copy()
        for k in range(self._n_step):
            step = (first + k) % self._n_step
            going &= past["valid"][step]
            total += np.where(going, discount * past["reward"][step], 0)
            if k:
                next_obs[going] = past["next_obs"][step][going]
            discount[going] *= self._gamma * ~past["terminated"][step][going]
            going &= ~past["ended"][step]
        rows["reward"] = total
        rows["discount"] = discount
        rows["next_obs"] = next_obs.reshape(rows["next_obs"].shape)
        return _keep(rows, past["valid"][first])


class Segments:
    """Steps of each environment side by side, until its row is full.

    Each environment fills a row of its own: the fake step of an auto-reset leaves no gap in it.
    """

    def __init__(self, num_envs: int, spec: EnvSpec, form: RowFormat) -> None:
        """Rows of `form`, none of them begun."""
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

    def begin(self, obs: Floats, actions: Floats, version: int, log_prob: Floats | None) -> None:
        """Note what a step starts from."""
        assert log_prob is not None, "a segment says how likely its actions were"
        here = (self._all, self._filled)
        self._fields["obs"][here] = obs
        self._fields["action"][here] = actions
        self._fields["log_prob"][here] = log_prob[:, None]
        self._rows["version"][self._filled == 0] = version

    def end(self, out: Outcome, past_return: Floats | None, rows: Rows) -> int:
        """Note what it gave; fills `rows` with those that are full now."""
        fields, here = self._fields, (self._all, self._filled)
        fields["next_obs"][here] = out.next_obs
        fields["reward"][here] = out.reward[:, None]
        fields["discount"][here] = (self._gamma * ~out.terminated)[:, None]
        fields["ended"][here] = (out.terminated | out.truncated)[:, None]
        if past_return is not None:
            fields["past_return"][here] = past_return[:, None]
        # What is no transition is written over; the one before it was its episode's last.
        cut = np.flatnonzero(~out.valid & (self._filled > 0))
        fields["ended"][cut, self._filled[cut] - 1] = 1
        self._filled += out.valid
        full = np.flatnonzero(self._filled == self._steps)
        rows[: len(full)] = self._rows[full]
        self._filled[full] = 0
        return len(full)


def _gatherer(num_envs: int, spec: EnvSpec, form: RowFormat) -> NStepBuffer | Segments | None:
    """What makes rows of several steps; a plain transition needs nothing."""
    if form.segment > 1:
        return Segments(num_envs, spec, form)
    return NStepBuffer(num_envs, spec, form) if form.n_step > 1 else None


def _keep(rows: Rows, valid: NDArray[np.bool_]) -> int:
    """Move the valid rows to the front; returns how many there are."""
    if valid.all():
        return len(rows)
    kept = int(valid.sum())
    rows[:kept] = rows[valid]
    return kept


def make_group(
    target: EnvTarget, spec: EnvSpec, num_envs: int, form: RowFormat = TRANSITION
) -> EnvGroup:
    """`num_envs` environments of `target` as one group."""
    return EnvGroup(make_stepper(target, num_envs), spec, form)
