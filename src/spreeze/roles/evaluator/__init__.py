"""Evaluator: plays whole episodes without noise, records the result, saves the best policy.

It evaluates and saves an average over the newest policies: any single policy may be a bad one among
good neighbours.

Reads: weights, control.   Writes: its control counters, metrics, the `best` checkpoint.
Owns: its environments and their seeds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence

import numpy as np

from spreeze.envs.calls import EnvCall
from spreeze.envs.inspect import evaluation_env
from spreeze.envs.targets import NamedEnv
from spreeze.faults import Doing, fault_point
from spreeze.roles.context import Context
from spreeze.roles.core_lending import CoreLending, missing_cores
from spreeze.roles.env_calls import EnvCallsReader
from spreeze.roles.evaluator.average import PolicyAverage
from spreeze.roles.evaluator.elsewhere import EpisodesElsewhere, answer_evaluations
from spreeze.roles.evaluator.episodes import EpisodePool, Player, WorkerKilled
from spreeze.roles.evaluator.results import Results
from spreeze.roles.evaluator.schedule import Schedule
from spreeze.settings.config import resolved
from spreeze.store.trace import Activity

POLL_S = 0.02


def run(ctx: Context) -> Iterator[None]:
    """One unit of work is one step of all evaluation environments."""
    if ctx.job.machine:  # not the learner's
        yield from answer_evaluations(ctx)
    config = ctx.config.evaluator
    guard = ctx.env_guard()
    guard.begin(Doing.CONSTRUCT)
    envs = ctx.job.evaluation or (NamedEnv("", evaluation_env(ctx.job.env, ctx.spec)),)
    targets = tuple(env.target for env in envs)
    planned = min(resolved(config.processes), config.episodes)
    num = _num_processes(ctx, planned)
    pool = EpisodePool(Player(targets, ctx.spec, ctx.make_policy, guard), config.episodes, num)
    # With fewer processes than planned, each may work more: the total stays as planned.
    share = min(1.0, resolved(config.share) * planned / num)
    lending = CoreLending(ctx.control, ctx.now)
    lending.set_size(missing_cores(ctx.config, num))
    policy = ctx.make_policy()
    average = PolicyAverage(ctx, policy.vector.size)
    seeds, calls = np.random.default_rng(ctx.seed()[0]), EnvCallsReader(ctx)
    results, schedule = Results(ctx, [env.name for env in envs]), Schedule(ctx, share)
    elsewhere = ctx.config.backend == "ray" and ctx.config.ray.evaluate == "nodes"
    play = EpisodesElsewhere(ctx, pool).play if elsewhere else pool.play
    asks, answered = ctx.control.supervisor, int(ctx.control.supervisor["evaluations_asked"])

    def take_calls(newest: Sequence[EnvCall]) -> None:
        pool.take_calls(newest)
        results.forget_best()  # scores before and after a change of the task do not compare

    def meanwhile() -> bool:
        ctx.mark(Activity.EVALUATE)
        average.refresh()
        return ctx.control.stopping

    try:
        while True:
            average.refresh()
            asked = int(asks["evaluations_asked"])
            if not schedule.is_due(average.stamp, asked != answered):
                ctx.wait(POLL_S)
                yield
                continue
            stamp, answered = average.stamp, asked
            policy.vector[:] = average.vector
            began_s = ctx.now()
            lending.borrow()
            calls.pass_on(take_calls)
            episodes = yield from play(policy.vector, int(seeds.integers(2**31)), meanwhile)
            lending.give_back()
            ctx.mark(Activity.OTHER)
            took_s = ctx.now() - began_s
            fault_point("evaluator.played")
            results.report(policy, stamp, episodes, took_s)
            fault_point("evaluator.reported")
            schedule.ended(stamp, began_s)
    except WorkerKilled:  # workers cannot be replaced one by one: restart the whole evaluator
        os.kill(os.getpid(), signal.SIGKILL)
    finally:
        lending.give_back()
        results.finish()
        pool.close()


def _num_processes(ctx: Context, planned: int) -> int:
    """How many processes play. A forked worker lacks the threads of the user's code and may wait for them forever."""
    if ctx.config.serial:
        return 1
    if len(os.listdir("/proc/self/task")) > 1:
        ctx.note("your code has started threads, so one process plays all episodes")
        return 1
    return planned
