"""Sampler: acts with the newest policy, steps its environments, writes rows to its lane.

Reads: weights, control.   Writes: its lane, its control counters, metrics.   Owns: its environments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from spreeze.envs.episodes import Episode, InfoNames, rollout_metrics, totals_of
from spreeze.envs.group import EnvGroup, make_group
from spreeze.faults import fault_point
from spreeze.policy import Policy
from spreeze.roles.context import Context
from spreeze.roles.core_lending import CoreLending
from spreeze.roles.env_calls import EnvCallsReader
from spreeze.roles.noise_trial import NoiseTrial, Phase
from spreeze.roles.pacing import allowed_steps, warmup_steps
from spreeze.settings.config import resolved
from spreeze.spec import Floats
from spreeze.store.metrics import record_interval
from spreeze.store.trace import Activity
from spreeze.wires.documents import episodes_of
from spreeze.wires.weights import WeightsReader

HOLD_S = 0.005
LOG_EVERY_S = 2.0
FIRST_UPDATES = 32
"""Before the learner sets a limit, samplers may run ahead as far as this many updates would allow."""
REST_S = 0.002
RECENT_EPISODES = 100
"""The means are over about so many of the newest episodes of all samplers."""
FETCH_EVERY_S = 0.01
"""A GPU publishes hundreds of policies a second; copying every one would cost samplers too much time."""


def run(ctx: Context) -> Iterator[None]:
    """One unit of work is one step of all environments of this process."""
    config, control, counters = ctx.config, ctx.control, ctx.counters
    env_seed, policy_seed = ctx.seed(2)
    num_envs = resolved(config.sampler.envs_per_process)
    group = make_group(ctx.job.env, ctx.spec, num_envs, config.hyper.row_format(), ctx.env_guard())
    group.mark = ctx.mark
    exploration = Exploration(ctx, policy_seed)
    policy, calls = exploration.policy, EnvCallsReader(ctx)
    weights = WeightsReader(ctx.weights, policy.vector)
    lane, lending = ctx.experience.writer(ctx.job.index), CoreLending(control, ctx.now)
    random_steps = -(-config.sampler.random_steps // resolved(config.sampler.processes))
    steps_here, steps_elsewhere = control.samplers["env_steps"], control.relay["env_steps"]
    version, next_fetch_s, env_steps = 0, 0.0, int(counters["env_steps"])  # a restart counts on
    log = EpisodeLog(ctx, policy)
    try:
        calls.pass_on(group.take_calls)
        group.reset(env_seed % 2**31 + env_steps)
        while True:
            # 1. Hold while samplers are too far ahead of the updates, or while this one is not needed.
            limit = control.learner["allowed_steps"] or _first_limit(ctx)
            inactive = ctx.job.index >= control.supervisor["active_samplers"]
            if steps_here.sum() + steps_elsewhere > limit or inactive:
                ctx.wait(HOLD_S)
                yield
                continue
            if lending.is_lent(ctx.job.index):
                ctx.mark(Activity.WAIT)
                ctx.idle(REST_S)  # not a wait: the core is at work
                yield
                continue
            # 2. Fetch new weights.
            if ctx.now() >= next_fetch_s:
                next_fetch_s = ctx.now() + FETCH_EVERY_S
                ctx.mark(Activity.FETCH)
                calls.pass_on(group.take_calls)
                exploration.follow()
                if weights.refresh():
                    counters["version"] = version = weights.stamp.version
            # 3. Act: at random until there is a policy.
            ctx.mark(Activity.ACT)
            actions = exploration.act(group.obs, version == 0 or env_steps < random_steps)
            env_actions = policy.to_env_action(actions)
            # 4. Step, and write the rows that are complete now straight into the lane.
            rows = lane.reserve()
            fault_point("sampler.reserved")
            num_rows = group.step(actions, env_actions, version, rows, policy.log_prob)
            fault_point("sampler.stepped")
            lane.commit(num_rows)
            fault_point("sampler.committed")
            # 5. Count.
            ctx.mark(Activity.OTHER)
            env_steps += group.num_envs
            counters["env_steps"] = env_steps
            if group.finished:
                log.count(group)
            log.record_if_due()
            yield
    finally:
        group.close()


class Exploration:
    """This sampler's policy, with its share of the exploration scales of all environments of the run."""

    def __init__(self, ctx: Context, seed: int) -> None:
        """It explores as configured, times the factor on the control wire or of the schedule."""
        hyper, num_samplers = ctx.config.hyper, resolved(ctx.config.sampler.processes)
        num_envs = resolved(ctx.config.sampler.envs_per_process)
        scales = hyper.exploration(num_samplers * num_envs)
        self._scales = None if scales is None else scales[ctx.job.index :: num_samplers]
        self._ones = np.ones(num_envs, np.float32)
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

    def act(self, obs: Floats, at_random: bool) -> Floats:
        """Actions with exploration noise; sets `policy.log_prob`, too.

        A policy with log-probabilities acts from the start, since rows store them; without weights its
        actions are random anyway.
        """
        if at_random and not self.policy.has_log_prob:
            return self.policy.act_randomly(len(obs))
        return self.policy.act(obs, True)


def _first_limit(ctx: Context) -> int:
    """Env steps of all samplers that are allowed before the learner has set a limit."""
    learner = ctx.config.learner
    fewest, _ = resolved(learner.ratio_bounds)
    return allowed_steps(warmup_steps(ctx.config), FIRST_UPDATES, fewest)


class EpisodeLog:
    """The recent episodes of a sampler, and what is told of them."""

    def __init__(self, ctx: Context, policy: Policy) -> None:
        """No episode yet. By the returns, noise of `policy` may begin to last."""
        when, num_envs = ctx.config.hyper.lasting_noise_when(), ctx.config.sampler.envs_per_process
        restarted = bool(ctx.counters["env_steps"])
        self._ctx, self._noise = ctx, NoiseTrial(policy, resolved(num_envs), *when, restarted)
        share = -(-RECENT_EPISODES // resolved(ctx.config.sampler.processes))
        self._recent: deque[Episode] = deque(maxlen=share)
        self._names = InfoNames()
        self._report = ctx.document(episodes_of(ctx.job.index))
        self._next_s = ctx.now() + LOG_EVERY_S

    def count(self, group: EnvGroup) -> None:
        """Take the finished episodes from the group, and update what depends on them."""
        counters = self._ctx.counters
        finished, envs = group.take_finished()
        self._recent.extend(self._names.keep(finished))
        counters["episodes"] += len(finished)
        results = [(episode.total, episode.length) for episode in self._recent]
        counters["return_mean"], counters["length_mean"] = np.mean(results, axis=0)
        if self._noise.judge(finished, envs):
            counters["noise_lasts"] = self._noise.phase is Phase.LASTING

    def record_if_due(self) -> None:
        """Record the means, and tell the supervisor what the environments said at the ends of episodes."""
        ctx, counters = self._ctx, self._ctx.counters
        if not self._recent or ctx.now() < self._next_s:
            return
        self._next_s = ctx.now() + record_interval(LOG_EVERY_S, ctx.now())
        if totals := rollout_metrics(totals_of(episode.info for episode in self._recent)):
            self._report.write(totals)
            ctx.count_names(self._names)
        ctx.recorder.record(
            time_s=ctx.now(),
            env_steps=ctx.control.env_steps,
            updates=int(ctx.control.learner["updates"]),
            **{
                "rollout/ep_rew_mean": float(counters["return_mean"]),
                "rollout/ep_len_mean": float(counters["length_mean"]),
                "rollout/episodes": int(counters["episodes"]),
                "async/weights_version": int(counters["version"]),
            },
        )
