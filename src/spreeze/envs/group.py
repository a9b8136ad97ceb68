"""An `EnvGroup` is what a sampler steps: several environments as one, with finished rows as the result.

One call of `EnvGroup.step` goes through three files: here, then a stepper (the environments move), then
`transitions` (the step becomes rows). The rows are written straight into the slots the caller reserved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spreeze.envs.calls import EnvCall
from spreeze.envs.episodes import Episode, numbers_in
from spreeze.envs.guard import EnvGuard
from spreeze.envs.step_result import StepResult
from spreeze.envs.stepping import Stepper, make_stepper
from spreeze.envs.targets import EnvTarget
from spreeze.envs.transitions import row_writer
from spreeze.rows import TRANSITION, RowFormat, Rows
from spreeze.spec import EnvSpec, Floats
from spreeze.store.trace import Activity, Mark, no_mark


class EnvGroup:
    """Environments that are stepped together. Their steps come out as finished rows."""

    def __init__(self, stepper: Stepper, spec: EnvSpec, form: RowFormat = TRANSITION) -> None:
        """Step with `stepper` and write rows of `form`."""
        self._stepper, self.guard = stepper, stepper.guard
        self.num_envs = stepper.num_envs
        self._outcome = StepResult(self.num_envs, spec)
        self._seen = self._outcome.obs
        self._writer = row_writer(self.num_envs, spec, form)
        self._past = np.zeros(self.num_envs, np.float32) if form.past_return else None
        self._gamma, self._cost = np.float32(form.gamma), np.float32(form.termination_cost)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self.finished: list[Episode] = []
        """Episodes that have ended, until `take_finished`."""
        self._finished_in: list[int] = []
        self.mark: Mark = no_mark

    @property
    def obs(self) -> Floats:
        """What to act on, one line per environment; the next step overwrites it."""
        return self._seen

    def reset(self, seed: int) -> None:
        """Start an episode in every environment."""
        self._stepper.reset_into(seed, self._outcome)
        self._seen = self._outcome.seen(restarted=True)

    def step(
        self,
        actions: Floats,
        env_actions: NDArray[Any],
        version: int,
        rows: Rows,
        log_prob: Floats | None = None,
    ) -> int:
        """Step every environment and write the rows that this completes to the front of `rows`.

        `actions` are stored; `env_actions` are the same in the environment's own bounds. `log_prob`, the
        log-probabilities of `actions`, is read only for segments. Returns the number of complete rows.
        """
        out = self._outcome
        self.mark(Activity.WRITE)
        # A row has 32 bits for the version; readers compare versions modulo 2**32.
        self._writer.begin(out.obs, actions, version % 2**32, rows, log_prob)
        self.mark(Activity.SIMULATE)
        self._stepper.step(env_actions, out)
        self.mark(Activity.WRITE)
        self._count_episodes(out)
        # After counting: rows pay for a termination, the returns of episodes do not.
        if self._cost and out.any_done_or_invalid:
            out.reward[out.terminated] -= self._cost
        self._seen = out.seen()
        return self._writer.end(out, self._past_return(out), rows)

    def take_finished(self) -> tuple[list[Episode], list[int]]:
        """The episodes that have ended since the last call, and the environments in which they ended."""
        ended = self.finished, self._finished_in
        self.finished, self._finished_in = [], []
        return ended

    def take_calls(self, calls: Sequence[EnvCall]) -> None:
        """These are the newest calls into the environments."""
        self._stepper.take_calls(calls)

    def close(self) -> None:
        """Close the environments."""
        self._stepper.close()

    def _past_return(self, out: StepResult) -> Floats | None:
        """The discounted rewards of each episode so far, this step included; None if rows do not store it."""
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

    def _count_episodes(self, out: StepResult) -> None:
        """Add this step to the returns and lengths of the episodes."""
        if not out.any_done_or_invalid:
            self._returns += out.reward
            self._lengths += 1
            return
        valid, done = out.valid, out.terminated | out.truncated
        self._returns[valid] += out.reward[valid]
        self._lengths[valid] += 1
        self._returns[~valid] = 0.0
        self._lengths[~valid] = 0
        for i in np.flatnonzero(done & valid).tolist():
            info = numbers_in(out.infos.get(i))
            self.finished.append(Episode(float(self._returns[i]), int(self._lengths[i]), info))
            self._finished_in.append(i)
            self._returns[i], self._lengths[i] = 0.0, 0


def make_group(
    target: EnvTarget,
    spec: EnvSpec,
    num_envs: int,
    form: RowFormat = TRANSITION,
    guard: EnvGuard | None = None,
) -> EnvGroup:
    """`num_envs` environments of `target` as one group; `guard` counts what they do wrong."""
    return EnvGroup(make_stepper(target, num_envs, guard), spec, form)
