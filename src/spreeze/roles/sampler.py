"""Sampler: acts with the newest policy, steps its environments, writes rows to its lane.

Reads: weights, control.   Writes: its lane, its control counters, metrics.   Owns: its environments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import cycle

import numpy as np

from spreeze.envs.calls import EnvCall
from spreeze.envs.episodes import Episode, InfoNames, rollout_metrics, totals_of
from spreeze.faults import fault_point
from spreeze.roles.acting import Side, make_sides
from spreeze.roles.context import Context
from spreeze.roles.core_lending import CoreLending
from spreeze.roles.env_calls import EnvCallsReader
from spreeze.roles.noise_trial import NoiseTrial, Phase
from spreeze.roles.pacing import allowed_steps, warmup_steps
from spreeze.settings.config import resolved
from spreeze.store.metrics import record_interval
from spreeze.store.trace import Activity
from spreeze.wires.documents import episodes_of

HOLD_S = 0.005
LOG_EVERY_S = 2.0
FIRST_UPDATES = 32
"""Before the learner sets a limit, samplers may run ahead as far as this many updates would allow."""
REST_S, ANSWER_S = 0.002, 0.00005
RECENT_EPISODES = 100
"""The means are over about so many of the newest episodes of all samplers."""
FETCH_EVERY_S = 0.01
"""A GPU publishes hundreds of policies a second; copying every one would cost samplers too much time."""


def run(ctx: Context) -> Iterator[None]:
    """One unit of work is one step of all environments of a side of this process."""
    config, counters = ctx.config, ctx.counters
    sides = make_sides(ctx, ctx.seed(2))
    calls = EnvCallsReader(ctx)
    lane, hold = ctx.experience.writer(ctx.job.index), Hold(ctx)
    random_steps = -(-config.sampler.random_steps // resolved(config.sampler.processes))
    next_fetch_s, env_steps = 0.0, int(counters["env_steps"])  # a restart counts on
    log = EpisodeLog(ctx, sides)

    def take_calls(newest: Sequence[EnvCall]) -> None:
        for side in sides:
            side.group.take_calls(newest)

    try:
        calls.pass_on(take_calls)
        for side in sides:
            side.reset(env_steps)
        turns = cycle(sides)
        side = next(turns)
        while True:
            # 1. Hold while samplers are too far ahead of the updates, or while this one is not needed.
            if hold():
                yield
                continue
            # 2. Follow what is new.
            if ctx.now() >= next_fetch_s:
                next_fetch_s = ctx.now() + FETCH_EVERY_S
                ctx.mark(Activity.FETCH)
                calls.pass_on(take_calls)
                for each in sides:
                    each.follow()
                counters["version"] = side.version
            # 3. Act, at random until there is a policy. 4. Step, and write complete rows straight into the lane.
            ctx.mark(Activity.ACT)
            at_random = not side.has_weights or env_steps < random_steps
            if not side.is_ready(at_random):
                ctx.mark(Activity.WAIT)
                ctx.idle(ANSWER_S)  # no wait for the learner
                yield
                continue
            rows = lane.reserve()
            fault_point("sampler.reserved")
            num_rows = side.step(rows, at_random)
            fault_point("sampler.stepped")
            lane.commit(num_rows)
            fault_point("sampler.committed")
            # 5. Count.
            ctx.mark(Activity.OTHER)
            env_steps += side.group.num_envs
            counters["env_steps"] = env_steps
            if side.group.finished:
                log.count(side)
            log.record_if_due()
            side = next(turns)
            yield
    finally:
        for side in sides:
            side.group.close()


class Hold:
    """Rests while samplers are too far ahead of the updates, while this one is not needed, or lends its core."""

    def __init__(self, ctx: Context) -> None:
        """Nothing holds it yet."""
        self._ctx, self._control = ctx, ctx.control
        self._steps_here = ctx.control.samplers["env_steps"]
        self._steps_elsewhere = ctx.control.relay["env_steps"]
        self._lending = CoreLending(ctx.control, ctx.now)

    def __call__(self) -> bool:
        """Rest for a moment if there is a reason; returns whether there was one."""
        ctx, control = self._ctx, self._control
        limit = control.learner["allowed_steps"] or _first_limit(ctx)
        inactive = ctx.job.index >= control.supervisor["active_samplers"]
        if self._steps_here.sum() + self._steps_elsewhere > limit or inactive:
            ctx.wait(HOLD_S)
            return True
        if self._lending.is_lent(ctx.job.index):
            ctx.mark(Activity.WAIT)
            ctx.idle(REST_S)  # not a wait: the core is at work
            return True
        return False


def _first_limit(ctx: Context) -> int:
    """Env steps of all samplers that are allowed before the learner has set a limit."""
    learner = ctx.config.learner
    fewest, _ = resolved(learner.ratio_bounds)
    return allowed_steps(warmup_steps(ctx.config), FIRST_UPDATES, fewest)


class EpisodeLog:
    """The recent episodes of a sampler, and what is told of them."""

    def __init__(self, ctx: Context, sides: Sequence[Side]) -> None:
        """No episode yet. By the returns, noise of a side's policy may begin to last."""
        when, restarted = ctx.config.hyper.lasting_noise_when(), bool(ctx.counters["env_steps"])
        self._ctx = ctx
        self._noise = {
            id(side): NoiseTrial(side.policy, side.group.num_envs, *when, restarted)
            for side in sides
        }
        share = -(-RECENT_EPISODES // resolved(ctx.config.sampler.processes))
        self._recent: deque[Episode] = deque(maxlen=share)
        self._names = InfoNames()
        self._report = ctx.document(episodes_of(ctx.job.index))
        self._next_s = ctx.now() + LOG_EVERY_S

    def count(self, side: Side) -> None:
        """Take the finished episodes from a side, and update what depends on them."""
        counters = self._ctx.counters
        finished, envs = side.group.take_finished()
        self._recent.extend(self._names.keep(finished))
        counters["episodes"] += len(finished)
        results = [(episode.total, episode.length) for episode in self._recent]
        counters["return_mean"], counters["length_mean"] = np.mean(results, axis=0)
        if self._noise[id(side)].judge(finished, envs):
            lasting = (trial.phase is Phase.LASTING for trial in self._noise.values())
            counters["noise_lasts"] = any(lasting)

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
