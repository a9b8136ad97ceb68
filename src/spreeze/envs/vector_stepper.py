"""Vector environments, stepped as a whole."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from spreeze.envs.calls import EnvCall, PendingCalls
from spreeze.envs.divergence import Simulations
from spreeze.envs.episodes import info_of_env
from spreeze.envs.guard import ATTEMPTS, ENV_ERRORS, OTHER, STEP, EnvGuard, as_column, as_obs
from spreeze.envs.observations import images_of, parts_of
from spreeze.envs.step_result import StepResult
from spreeze.faults import Doing
from spreeze.images import FrameLayout
from spreeze.spec import flatten_obs, pack_frame


class VectorStepper:
    """A `gymnasium.vector.VectorEnv`, in any auto-reset mode."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        make: Callable[[], VectorEnv[Any, Any, Any]],
        guard: EnvGuard | None = None,
    ) -> None:
        """Take over the environment; `close` closes it. If it raises, it is closed and made again."""
        self.env = env
        self.num_envs = env.num_envs
        self.guard = guard or EnvGuard()
        self._make = make
        self._mode = AutoresetMode(env.metadata["autoreset_mode"])
        self._parts = parts_of(env.single_observation_space)
        self._images = images_of(env.single_observation_space)
        size = sum(part.size for part in self._parts)
        self._shape = (size,) if self._parts else (env.single_observation_space.shape or ())
        if self._images:
            self._shape = (4 * FrameLayout(self._images, size).words,)
        self._simulations = _simulations(env)
        self._types: dict[str, np.dtype[Any]] = {}
        """The type of the first observation of `reset`, of `step` and of the end of an episode."""
        self._calls, self._seed = PendingCalls(), 0
        self._resetting = np.zeros(env.num_envs, np.bool_)
        self._skip_next = np.zeros(env.num_envs, np.bool_)
        """Where the last observation was bad: the policy acted on zeros, so the next step is invalid."""

    def reset_into(self, seed: int, outcome: StepResult) -> None:
        """Start an episode in every environment."""
        for attempt in range(ATTEMPTS):
            self.guard.begin(Doing.RESET)
            try:
                self._calls.make(self.env)
                obs = self._flat(self.env.reset(seed=seed + attempt * self.num_envs)[0], "reset")
                break
            except ENV_ERRORS as error:
                self.guard.error(error)
                self._remake()
        else:
            raise self.guard.broken(f"{ATTEMPTS} resets in a row failed")
        self._seed = seed
        self._resetting[:] = False
        self._simulations.restarted(range(self.num_envs))
        outcome.obs[:] = obs
        outcome.valid[:] = True
        self._skip_bad(outcome)
        self.guard.doing[()] = OTHER

    def step(self, actions: NDArray[Any], outcome: StepResult) -> None:
        """Step all environments, and undo what auto-reset did to the observations."""
        guard = self.guard
        guard.doing[()] = STEP
        guard.steps += self.num_envs
        try:
            done = self._step(actions, outcome)
        except ENV_ERRORS as error:
            guard.error(error)
            guard.all_failed(self.num_envs)
            self._remake()
            self.reset_into(self._seed + guard.steps, outcome)
            outcome.refuse(slice(None))
            outcome.any_done_or_invalid = True
            return
        if not guard.all_fine(outcome.numbers):
            self._reject(guard.fine_rows(outcome.reward, outcome.next_obs), outcome)
        self._skip_bad(outcome)
        outcome.any_done_or_invalid = bool(done.any()) or not outcome.valid.all()
        guard.doing[()] = OTHER

    def take_calls(self, calls: Sequence[EnvCall]) -> None:
        """These are the newest calls. They are made at once: only the environment knows when it resets."""
        self._calls.take(calls)
        try:
            self._calls.make(self.env)
        except ENV_ERRORS as error:  # tried again before the next reset
            self.guard.error(error)

    def _step(self, actions: NDArray[Any], outcome: StepResult) -> NDArray[np.bool_]:
        """Step, and write what came to `outcome`; returns where an episode ended."""
        after, reward, terminated, truncated, info = self.env.step(actions)
        outcome.next_obs[:] = self._flat(after, "step")
        outcome.reward[:] = as_column(reward, self.num_envs, "reward")
        outcome.terminated[:] = as_column(terminated, self.num_envs, "terminated")
        outcome.truncated[:] = as_column(truncated, self.num_envs, "truncated")
        done: NDArray[np.bool_] = outcome.terminated | outcome.truncated
        outcome.obs[:] = outcome.next_obs
        # NEXT_STEP: the step after the end of an episode ignores its action and returns the first
        # observation of the next one. It is not a transition.
        outcome.valid[:] = ~self._resetting & ~self._skip_next
        self._drop_diverged(outcome)
        self._keep_infos(done, info, outcome)
        restarted = done
        if self._mode is AutoresetMode.NEXT_STEP:
            restarted, self._resetting = self._resetting, done
        elif self._mode is AutoresetMode.SAME_STEP:
            for i in np.flatnonzero(done):
                outcome.next_obs[i] = self._flat(info["final_obs"][i], "final_obs", 1)[0]
        elif done.any():
            self.guard.begin(Doing.RESET)
            fresh, _ = self.env.reset(options={"reset_mask": done})
            outcome.obs[done] = self._flat(fresh, "reset")[done]
        self._simulations.restarted(np.flatnonzero(restarted))
        return done

    def _keep_infos(self, done: NDArray[np.bool_], info: Any, outcome: StepResult) -> None:
        """What the environments whose episode ended have said in its last step."""
        outcome.infos.clear()
        if done.any():
            last = info.get("final_info", {}) if self._mode is AutoresetMode.SAME_STEP else info
            for i in np.flatnonzero(done).tolist():
                outcome.infos[i] = info_of_env(last, i, self.num_envs)

    def _drop_diverged(self, outcome: StepResult) -> None:
        """The episode goes on where MuJoCo put it; the step that led there is not used."""
        diverged = self._simulations.diverged()
        for i in diverged:
            self.guard.simulation_reset()
            outcome.valid[i] = False
        if len(diverged) == self.num_envs:
            self.guard.all_failed(self.num_envs)

    def _reject(self, fine: NDArray[np.bool_], outcome: StepResult) -> None:
        bad = np.flatnonzero(~fine)
        if len(bad):
            first = outcome.next_obs[bad[0]], outcome.reward[bad[0]]
            self.guard.reject(len(bad), self.guard.bad_number("step", *first))
            outcome.valid &= fine
            if len(bad) == self.num_envs:
                self.guard.all_failed(self.num_envs)

    def _skip_bad(self, outcome: StepResult) -> None:
        """Where the next action would be for a bad observation, act on zeros and drop that step."""
        self._skip_next[:] = False
        if self.guard.all_fine(outcome.obs.ravel()):
            return
        self._skip_next[:] = ~self.guard.fine_obs(outcome.obs)
        if from_reset := np.flatnonzero(self._skip_next & outcome.valid).tolist():
            bad = self.guard.bad_number("reset", outcome.obs[from_reset[0]])
            self.guard.reject(len(from_reset), bad)
        outcome.obs[self._skip_next] = 0

    def _remake(self) -> None:
        self.guard.begin(Doing.CONSTRUCT)
        with contextlib.suppress(*ENV_ERRORS):
            self.env.close()
        self.env = self._make()
        self._simulations = _simulations(self.env)
        self._calls.forget_made()

    def close(self) -> None:
        """Close the vector environment."""
        self.env.close()

    def _flat(self, obs: Any, source: str, num: int | None = None) -> NDArray[Any]:
        num_envs = num or self.num_envs
        shape = self._shape if num else (num_envs, *self._shape)
        if self._images:
            flat: Any = pack_frame(self._images, self._parts, obs, None if num else num_envs)
        else:
            flat = flatten_obs(self._parts, obs) if self._parts else obs
        array = as_obs(flat, shape, self._types.get(source))
        self._types.setdefault(source, array.dtype)
        return array.reshape(num_envs, -1)


def _simulations(env: VectorEnv[Any, Any, Any]) -> Simulations:
    """Those that can be looked at: of this process, not of others and not inside C++."""
    inner = env.unwrapped
    return Simulations(inner.envs if isinstance(inner, SyncVectorEnv) else ())
