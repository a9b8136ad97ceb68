"""Evaluator: plays whole episodes without noise, records the result, saves the best policy.

It evaluates and saves an average over the newest policies: any single policy may be a bad one among
good neighbours.

Reads: weights, control.   Writes: its control counters, metrics, the `best` checkpoint.
Owns: its environments and their seeds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from spreeze.envs.inspect import evaluation_env
from spreeze.faults import Doing, fault_point
from spreeze.policy import Policy
from spreeze.roles.context import Context
from spreeze.roles.core_lending import CoreLending, missing_cores
from spreeze.roles.evaluator.average import PolicyAverage
from spreeze.roles.evaluator.episodes import EpisodePool, Player, WorkerKilled
from spreeze.settings.config import resolved
from spreeze.store.checkpoint import save_best
from spreeze.wires.weights import Stamp

POLL_S = 0.02


def run(ctx: Context) -> Iterator[None]:
    """One unit of work is one step of all evaluation environments."""
    config, form = ctx.config.evaluator, ctx.config.hyper.policy_form(ctx.spec)
    guard = ctx.env_guard()
    guard.begin(Doing.CONSTRUCT)
    target = evaluation_env(ctx.job.env, ctx.spec)
    planned = min(resolved(config.processes), config.episodes)
    num = _num_processes(ctx, planned)
    pool = EpisodePool(Player(target, ctx.spec, form, guard), config.episodes, num)
    # With fewer processes than planned, each may work more: the total stays as planned.
    share = min(1.0, resolved(config.share) * planned / num)
    lending = CoreLending(ctx.control, ctx.now)
    lending.set_size(missing_cores(ctx.config, num))
    policy = Policy(ctx.spec, form)
    average = PolicyAverage(ctx, policy.vector.size)
    seeds = np.random.default_rng(ctx.seed()[0])
    stamp, next_s = Stamp(), 0.0

    def meanwhile() -> bool:
        average.refresh()
        return ctx.control.stopping

    try:
        while True:
            average.refresh()
            # Version 1 is the untrained policy, which is not worth an evaluation.
            if ctx.now() < next_s or average.stamp.version in (0, 1, stamp.version):
                ctx.wait(POLL_S)
                yield
                continue
            stamp = average.stamp
            policy.vector[:] = average.vector
            began_s = ctx.now()
            lending.borrow()
            episodes = yield from pool.play(policy.vector, int(seeds.integers(2**31)), meanwhile)
            lending.give_back()
            took_s = ctx.now() - began_s
            fault_point("evaluator.played")
            _report(ctx, policy, stamp, np.array(episodes), took_s)
            fault_point("evaluator.reported")
            next_s = began_s + max(config.every_s, took_s / share)
    except WorkerKilled:  # workers cannot be replaced one by one: restart the whole evaluator
        os.kill(os.getpid(), signal.SIGKILL)
    finally:
        lending.give_back()
        pool.close()


def _num_processes(ctx: Context, planned: int) -> int:
    """How many processes play. A forked worker lacks the threads of the user's code and may wait for them forever."""
    if ctx.config.serial:
        return 1
    if len(os.listdir("/proc/self/task")) > 1:
        ctx.note("your code has started threads, so one process plays all episodes")
        return 1
    return planned


def _report(
    ctx: Context, policy: Policy, stamp: Stamp, episodes: NDArray[np.float64], took_s: float
) -> None:
    """Record an evaluation, stamped with the newest weights in the average and the time of its result."""
    counters, target = ctx.counters, ctx.config.target
    whole = episodes[~np.isnan(episodes[:, 0])]
    all_whole = len(whole) == len(episodes)
    counters["broken_episodes"] += len(episodes) - len(whole)
    if not len(whole):
        return
    returns, lengths = whole[:, 0], whole[:, 1]
    mean = float(returns.mean())
    if counters["evaluations"] == 0:
        counters["best_return"] = np.nan  # shared memory starts as 0
    # A policy that breaks the simulator may look good by the episodes it did not break.
    if all_whole and not mean <= counters["best_return"]:
        counters["best_return"] = mean
        _save_best(ctx, policy, stamp, mean)
    ctx.recorder.record(
        time_s=ctx.now(),
        env_steps=stamp.env_steps,
        updates=stamp.updates,
        version=stamp.version,
        **{
            "eval/mean_reward": mean,
            "eval/std_reward": float(returns.std()),
            "eval/min_reward": float(returns.min()),
            "eval/max_reward": float(returns.max()),
            "eval/mean_ep_length": float(lengths.mean()),
            "eval/best_mean_reward": float(counters["best_return"]),
            "eval/seconds": took_s,
        },
    )
    counters["return_mean"] = mean
    counters["updates"] = stamp.updates
    if all_whole and target is not None and mean >= target and counters["target_time_s"] == 0:
        counters["target_time_s"] = ctx.now()
    # Last: the supervisor reads the counters above as soon as this one moves.
    counters["evaluations"] += 1


def _save_best(ctx: Context, policy: Policy, stamp: Stamp, mean: float) -> None:
    config = {
        "policy": policy.describe(),
        "updates": stamp.updates,
        "env_steps": stamp.env_steps,
        "mean_reward": mean,
    }
    tensors, data = {"policy": policy.named()}, {"config": config}
    if not save_best(ctx.run.checkpoints, stamp.updates, tensors, data):
        ctx.counters["saves_failed"] += 1
