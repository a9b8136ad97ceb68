"""How a sampler acts: groups of environments, each with its exploration and with what chooses its actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spreeze.envs.group import make_group
from spreeze.roles.context import Context
from spreeze.rows import Rows
from spreeze.settings.config import resolved
from spreeze.spec import Floats
from spreeze.wires.acting import GROUPS, Acting, Question
from spreeze.wires.weights import WeightsReader


class Exploration:
    """The policy of a group, with its share of the exploration scales of all environments of the run."""

    def __init__(self, ctx: Context, seed: int, group: int = 0, num_groups: int = 1) -> None:
        """It explores as configured, times the factor on the control wire or of the schedule."""
        hyper, num_samplers = ctx.config.hyper, resolved(ctx.config.sampler.processes)
        num_envs = resolved(ctx.config.sampler.envs_per_process)
        scales = hyper.exploration(num_samplers * num_envs)
        mine = slice(ctx.job.index + group * num_samplers, None, num_samplers * num_groups)
        self._scales = None if scales is None else scales[mine]
        self._ones = np.ones(num_envs // num_groups, np.float32)
        self.policy = ctx.make_policy()
        self.policy.seed(seed)
        self._ctx, self._words, self._factor = ctx, ctx.control.supervisor, 1.0
        if self._scales is not None:
            self.policy.set_exploration_scales(self._scales)
        self.follow()

    def follow(self) -> None:
        """Take over the factor if it has changed."""
        scheduled = self._ctx.config.hyper.exploration_at(self._ctx.share_done)
        factor = float(self._words["exploration"]) or scheduled
        if factor != self._factor:
            self._factor = factor
            scales = self._ones if self._scales is None else self._scales
            self.policy.set_exploration_scales(scales * np.float32(factor))

    def act(self, obs: NDArray[Any], at_random: bool) -> Floats:
        """Actions with exploration noise; sets `policy.log_prob`, too."""
        if self.is_random(at_random):
            return self.policy.act_randomly(len(obs))
        return self.policy.act(obs, True)

    def is_random(self, at_random: bool) -> bool:
        """Whether actions are drawn without the policy, if they may be.

        A policy with log-probabilities acts from the start, since rows store them; without weights its
        actions are random anyway.
        """
        return at_random and not self.policy.has_log_prob


class Side:
    """Some environments of a sampler, and what chooses their actions: its own policy, or the role that infers.

    With the latter a sampler has several sides: while one waits for its answer, the others are stepped.
    """

    def __init__(self, ctx: Context, seeds: Sequence[int], number: int, num_sides: int) -> None:
        """Make the environments of side `number`."""
        env_seed, policy_seed = seeds
        self._num_envs = resolved(ctx.config.sampler.envs_per_process) // num_sides
        self._seed = env_seed + number * self._num_envs
        form = ctx.config.hyper.row_format()
        self.group = make_group(ctx.job.env, ctx.spec, self._num_envs, form, ctx.env_guard())
        self.group.mark = ctx.mark
        self.exploration = Exploration(ctx, policy_seed + number, number, num_sides)
        self.policy = self.exploration.policy
        self._question = _question(ctx, number)
        self._asked = False
        self._newest, self._weights = ctx.weights, WeightsReader(ctx.weights, self.policy.vector)
        self.version = 0
        """Of the weights that acted last; 0: none yet."""

    def reset(self, env_steps: int) -> None:
        """Start an episode in every environment."""
        self.group.reset(self._seed % 2**31 + env_steps)

    def follow(self) -> None:
        """Take over the newest weights, and what is asked of the exploration."""
        self.exploration.follow()
        if self._question is None and self._weights.refresh():
            self.version = self._weights.stamp.version

    @property
    def has_weights(self) -> bool:
        """Whether there is a policy yet."""
        return self.version > 0 or (self._question is not None and self._newest.version > 0)

    def is_ready(self, at_random: bool) -> bool:
        """Whether `step` can go on at once; if not, the question has been asked."""
        if self._question is None or self.exploration.is_random(at_random):
            return True
        self._ask(self._question)
        return self._question.is_answered

    def step(self, rows: Rows, at_random: bool) -> int:
        """Act, step the environments, and write complete rows; returns their number."""
        group, policy, question = self.group, self.policy, self._question
        if question is None or self.exploration.is_random(at_random):
            actions = self.exploration.act(group.obs, at_random)
        else:
            actions, self.version = policy.choose(question.answer, True), question.version
            self._asked = False
        env_actions = policy.to_env_action(actions)
        num_rows = group.step(actions, env_actions, self.version, rows, policy.log_prob)
        if question is not None and not self.exploration.is_random(at_random):
            self._ask(question)  # it is answered while the other side is stepped
        return num_rows

    def _ask(self, question: Question) -> None:
        if not self._asked:
            question.ask(self.group.obs.view(np.uint8))
            self._asked = True


def make_sides(ctx: Context, seeds: Sequence[int]) -> list[Side]:
    """All sides of this sampler."""
    num = GROUPS if ctx.config.sampler.acting == "inference" else 1
    return [Side(ctx, seeds, number, num) for number in range(num)]


def _question(ctx: Context, number: int) -> Question | None:
    if ctx.config.sampler.acting != "inference":
        return None
    return Acting(ctx.arena).question(ctx.job.index, number)
