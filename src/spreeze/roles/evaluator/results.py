"""What evaluations lead to: counters, metrics, and the `best` checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spreeze.envs.episodes import Episode, InfoNames, eval_metrics, mean_info, mean_of
from spreeze.policy import Policy
from spreeze.roles.context import Context
from spreeze.store.checkpoint import save_best
from spreeze.store.metrics import finite, record_interval
from spreeze.store.rundir import RunDir
from spreeze.wires.documents import EVALUATION
from spreeze.wires.weights import Stamp


class Best(NamedTuple):
    """A policy that had the best evaluation so far."""

    policy: Policy
    stamp: Stamp
    mean: float


class Results:
    """The results of one evaluator."""

    def __init__(self, ctx: Context, envs: Sequence[str]) -> None:
        """Nothing is evaluated yet. `envs` are the names of the environments that are evaluated on."""
        self._ctx, self._envs, self._names = ctx, envs, InfoNames()
        self._unsaved: Best | None = None
        """The best policy, if the disk has refused it; saved after a later evaluation."""
        self._next_record_s = 0.0
        self._newest, self._sampled = ctx.document(EVALUATION), ctx.episode_reports()
        # An evaluator that was killed may have counted a best policy without having saved it.
        ctx.counters["best_return"] = _saved_best(ctx)

    def report(
        self, policy: Policy, stamp: Stamp, episodes: Sequence[Sequence[Episode]], took_s: float
    ) -> None:
        """Count an evaluation, stamped with the newest weights in the average and the time of its result.

        `episodes` are those of each environment. The mean over the environments is the result.
        """
        ctx, counters, target = self._ctx, self._ctx.counters, self._ctx.config.target
        whole = [
            self._names.keep(episode for episode in env if not math.isnan(episode.total))
            for env in episodes
        ]
        ctx.count_names(self._names)
        num_broken = sum(map(len, episodes)) - sum(map(len, whole))
        all_whole = not num_broken
        counters["broken_episodes"] += num_broken
        if not all(whole):  # a mean without one of the environments would not compare
            return
        mean = float(np.mean([np.mean([episode.total for episode in env]) for env in whole]))
        # A policy that breaks the simulator may look good by the episodes it did not break.
        is_best = all_whole and not mean <= counters["best_return"]
        if is_best:
            counters["best_return"] = mean
            self._unsaved = Best(policy.copy(), stamp, mean)
        self._save_best()
        metrics = self._metrics(whole, took_s)
        if is_best or ctx.now() >= self._next_record_s:
            self._next_record_s = ctx.now() + record_interval(0.0, ctx.now())
            self._record(stamp, metrics)
        counters["return_mean"] = mean
        counters["updates"] = stamp.updates
        value = (metrics | self._sampled.means()).get(ctx.config.target_metric)
        reached = target is not None and value is not None and value >= target
        if reached and all_whole and counters["target_time_s"] == 0:
            counters["target_time_s"] = ctx.now()
        result = {"is_best": is_best, "time_s": ctx.now(), "target_value": value}
        counts = {"env_steps": stamp.env_steps, "updates": stamp.updates}
        finite_metrics = {name: finite(number) for name, number in metrics.items()}
        self._newest.write_metrics(result | counts, finite_metrics)
        # Last: the supervisor reads what is above as soon as this one moves.
        counters["evaluations"] += 1

    def forget_best(self) -> None:
        """The task has changed: the next evaluation is the best one of the new task."""
        self._ctx.counters["best_return"] = math.nan

    def finish(self) -> None:
        """Save what the disk has refused so far, if it takes it now."""
        self._save_best()

    def _metrics(self, whole: Sequence[Sequence[Episode]], took_s: float) -> dict[str, float]:
        metrics = _statistics(whole)
        if len(whole) > 1:
            for name, env in zip(self._envs, whole, strict=True):
                metrics |= {_of(name, metric): x for metric, x in _statistics([env]).items()}
        best = float(self._ctx.counters["best_return"])
        return metrics | {"eval/best_mean_reward": best, "eval/seconds": took_s}

    def _record(self, stamp: Stamp, metrics: dict[str, float]) -> None:
        self._ctx.recorder.record(
            time_s=self._ctx.now(),
            env_steps=stamp.env_steps,
            updates=stamp.updates,
            version=stamp.version,
            **metrics,
        )

    def _save_best(self) -> None:
        """Save the best policy, unless it is saved."""
        if self._unsaved is None:
            return
        policy, stamp, mean = self._unsaved
        config = {
            "policy": policy.describe(),
            "updates": stamp.updates,
            "env_steps": stamp.env_steps,
            "mean_reward": mean,
        }
        tensors, data = {"policy": policy.named()}, {"config": config}
        if save_best(self._ctx.run.checkpoints, stamp.updates, tensors, data):
            self._unsaved = None
        else:
            self._ctx.counters["saves_failed"] += 1


def _statistics(whole: Sequence[Sequence[Episode]]) -> dict[str, float]:
    """What is recorded of the episodes of one or more environments; each environment counts alike in the means."""
    returns = np.array([episode.total for env in whole for episode in env])
    means = [np.mean([(episode.total, episode.length) for episode in env], axis=0) for env in whole]
    mean_return, mean_length = np.mean(means, axis=0)
    return {
        "eval/mean_reward": float(mean_return),
        "eval/std_reward": float(returns.std()),
        "eval/min_reward": float(returns.min()),
        "eval/max_reward": float(returns.max()),
        "eval/mean_ep_length": float(mean_length),
        **eval_metrics(mean_of(mean_info(env) for env in whole)),
    }


def _of(env: str, metric: str) -> str:
    """The name of a metric of one environment among several: `eval/Pendulum-v1/mean_reward`."""
    return "/".join(("eval", env, metric.removeprefix("eval/")))


def _saved_best(ctx: Context) -> float:
    """The return of the best policy that is saved; NaN without one."""
    saved = RunDir(ctx.run.checkpoints / "best").read("config").get("mean_reward")
    return float(saved) if isinstance(saved, float) else float("nan")
