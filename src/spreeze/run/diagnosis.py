"""Why a run does not learn: the likely cause, from what was measured, and the one flag to try."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum

import numpy as np

from spreeze.settings.config import Config, resolved
from spreeze.wires.control import Control

PATIENCE_S = 60.0
"""Seconds of learning without progress after which the cause is named."""
PROGRESS, LUCK = 0.05, 2.0
"""By how much of its size the return must have risen to count as progress, and by how many standard errors."""
COMPARED = 5
"""Evaluations, the first and the newest ones, whose means are compared: single ones differ by luck."""
LONG_EPISODE = 10_000
"""Env steps in one environment without the end of an episode."""
NOTHING = 1e-3
"""Share of the rewards that an episode could add up to, below which its return is about zero."""
IMPOSSIBLE = 5.0
"""How far the critic's mean may be beyond the largest sum of discounted rewards; entropy adds to it."""
MOSTLY, MIXED, LARGE = 0.9, 100.0, 100.0
"""Share of actions at their bounds, and ratio of spreads and size in the observation, that hinder learning."""


class Cause(Enum):
    """What keeps a run from learning, in the order in which they are looked for."""

    NO_EPISODE_ENDS = "no_episode_ends"
    EQUAL_REWARDS = "equal_rewards"
    CRITIC_DIVERGES = "critic_diverges"
    MIXED_OBSERVATIONS = "mixed_observations"
    LARGE_OBSERVATIONS = "large_observations"
    SATURATED_ACTIONS = "saturated_actions"
    DOES_NOTHING = "does_nothing"
    STILL_RANDOM = "still_random"


@dataclass(frozen=True)
class Diagnosis:
    """The likely cause, the number that shows it, and the flags to try."""

    cause: Cause
    value: float = 0.0
    flags: str = ""

    def to_json(self) -> dict[str, str]:
        """As status.json has it."""
        return {"cause": self.cause.value, "flags": self.flags}


class LearningWatch:
    """Follows the evaluations of a run, and says why it does not learn if it does not."""

    def __init__(self, config: Config) -> None:
        """Nothing has been evaluated yet."""
        self._config = config
        self._first: list[float] = []
        self._newest: deque[float] = deque(maxlen=COMPARED)
        self._num = 0
        self._best = -math.inf

    def evaluated(self, mean: float) -> None:
        """An evaluation has ended."""
        self._num += 1
        if len(self._first) < COMPARED:
            self._first.append(mean)
        self._newest.append(mean)
        self._best = max(self._best, mean)

    def diagnose(self, control: Control, elapsed_s: float) -> Diagnosis | None:
        """The likely cause, once learning has gone on for long enough without progress.

        A resumed run may begin with the best that there is.
        """
        began_s = control.first_update_s
        if began_s is None or elapsed_s - began_s < PATIENCE_S or self._config.resume:
            return None
        config, learner = self._config, control.learner
        envs = resolved(config.sampler.processes) * resolved(config.sampler.envs_per_process)
        each = control.env_steps / envs
        if not control.samplers["episodes"].any():
            found = Diagnosis(Cause.NO_EPISODE_ENDS, each, "--env.max-episode-steps 1000")
            return found if each > LONG_EPISODE else None
        if not self._num or not learner["looked_s"]:
            return None
        idle = self._does_nothing(control)
        if self._has_improved() and not idle:
            return None
        return self._measured_cause(control) or Diagnosis(
            Cause.DOES_NOTHING if idle else Cause.STILL_RANDOM,
            self._best,
            self._config.hyper.explore_more(),
        )

    def _has_improved(self) -> bool:
        """Whether the newest evaluations are better than the first ones, by more than luck."""
        num = min(COMPARED, max(self._num // 2, 1))
        first, newest = np.array(self._first[:num]), np.array([*self._newest][-num:])
        size = max(abs(first.mean()), abs(newest.mean()))
        # While returns rise quickly the newest ones differ by more than luck.
        error = min(first.std(), newest.std()) * math.sqrt(2 / num)
        return bool(newest.mean() - first.mean() > max(PROGRESS * size, LUCK * error))

    def _measured_cause(self, control: Control) -> Diagnosis | None:
        """What the learner has seen in its replay and its critic."""
        learner, hyper = control.learner, self._config.hyper
        low, high = float(learner["reward_low"]), float(learner["reward_high"])
        q = abs(float(learner["q_mean"]))
        if low == high:
            return Diagnosis(Cause.EQUAL_REWARDS, low, self._config.hyper.explore_more())
        largest = max(abs(low), abs(high)) / max(1 - hyper.gamma, 1e-6)
        if not hyper.normalise_reward and q > IMPOSSIBLE * largest:
            lower = f"--algo.lr {resolved(hyper.lr) / 10:.1g}"
            return Diagnosis(Cause.CRITIC_DIVERGES, q / largest, lower)
        if not hyper.normalise_obs:
            ratio, size = float(learner["obs_ratio"]), float(learner["obs_size"])
            if ratio > MIXED:
                return Diagnosis(Cause.MIXED_OBSERVATIONS, ratio, "--algo.normalise-obs")
            if size > LARGE:
                return Diagnosis(Cause.LARGE_OBSERVATIONS, size, "--algo.normalise-obs")
        saturated = float(learner["saturated"]) / (1 - self._acted_by_noise(control))
        if saturated > MOSTLY:
            scaled = hyper.normalise_reward
            flag = (
                f"--algo.lr {resolved(hyper.lr) / 10:.1g}" if scaled else "--algo.normalise-reward"
            )
            return Diagnosis(Cause.SATURATED_ACTIONS, saturated, flag)
        return None

    def _acted_by_noise(self, control: Control) -> float:
        """Share of the actions that noise has chosen, not the policy."""
        envs = resolved(self._config.sampler.envs_per_process)
        when, _ = self._config.hyper.lasting_noise_when()
        acting = control.samplers[control.samplers["episodes"] > 0]
        lasting = 1.0 if when == "always" else float(np.mean(acting["noise_lasts"]))
        return lasting * (envs // 2) / envs

    def _does_nothing(self, control: Control) -> bool:
        """Whether rewards are costs so far, and the policy avoids all of them."""
        learner = control.learner
        if learner["terminated"]:  # it has reached something
            return False
        playing = control.samplers[control.samplers["episodes"] > 0]
        largest = max(abs(float(learner["reward_low"])), abs(float(learner["reward_high"])))
        possible = largest * float(playing["length_mean"].mean())
        return float(learner["reward_high"]) <= 0 and abs(self._best) < NOTHING * possible
