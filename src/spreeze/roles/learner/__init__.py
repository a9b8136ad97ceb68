"""Learner: moves experience into the replay, updates the networks, publishes the policy.

Reads: all lanes, control.   Writes: weights, its control counters, metrics, checkpoints.
Owns: the replay and the training state.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spreeze.learning.state import named
from spreeze.learning.two_devices.updater import TwoDeviceUpdater
from spreeze.policy import Policy
from spreeze.roles.context import Context
from spreeze.roles.learner.intake import Intake
from spreeze.roles.learner.publisher import PolicyPublisher
from spreeze.roles.learner.setup import build
from spreeze.roles.learner.update_runner import UpdateRunner
from spreeze.roles.pacing import SampleBudget, warmup_steps
from spreeze.settings.config import resolved
from spreeze.store.checkpoint import save_training
from spreeze.store.metrics import record_interval
from spreeze.store.rundir import updates_before

LOG_EVERY_S = 1.0
WAIT_S = 0.001
INTAKE_EVERY_S = 0.05
"""Beside a GPU, new rows are taken this often: a pass over all lanes costs more than the rows in it."""


def run(ctx: Context) -> Iterator[None]:
    """One unit of work: take new rows, do a chunk of updates, publish the policy."""
    learner = Learner(ctx)
    learner.publish_initial_policy()
    try:
        while True:
            learner.take_rows()
            learner.update_or_wait()
            learner.log_if_due()
            learner.save_if_due()
            yield
    except GeneratorExit:  # the run is over, maybe within its first second
        learner.log_rest()
        raise
    finally:
        learner.close()


class Learner:
    """The learner of one run; `run` calls its methods in turn."""

    def __init__(self, ctx: Context) -> None:
        """Allocate everything, and start to load what is compiled already."""
        config = ctx.config
        self._ctx, self._counters = ctx, ctx.counters
        self._intake = Intake(ctx.experience.readers(as_words=True))
        self._replay, self._updater = build(ctx)
        ctx.note(f"replay and networks are in place, device {config.device}")
        self._runner = UpdateRunner(ctx, self._updater, self._replay)
        self._policy = Policy(ctx.spec, config.hyper.policy_form(ctx.spec))
        self._publisher = PolicyPublisher(ctx, self._policy, self._replay.device)
        self._warmup_rows = resolved(config.learner.warmup_rows)
        self._warmup_steps = warmup_steps(config)
        self._budget = SampleBudget(self._warmup_steps)
        _, self._max_updates_per_step = resolved(config.learner.ratio_bounds)
        self._updates = self._logged_updates = updates_before(config.resume)
        self._logged_s = self._saved_s = ctx.now()
        self._intake_s = self._next_intake_s = 0.0

    def publish_initial_policy(self) -> None:
        """Let samplers act with the initial networks rather than wait for the first update."""
        counters = self._counters
        self._publisher.send(self._updater.policy, self._updates)
        self._publisher.flush()
        # If a learner was killed, its updates since the last checkpoint are lost.
        lost = max(int(counters["updates"]) - self._updates, 0)
        counters["rows_learned"] -= lost * int(counters["batch_size"])
        counters["updates"] = self._updates

    def take_rows(self) -> None:
        """Move new rows into the replay, if it is time."""
        ctx, counters = self._ctx, self._counters
        began_s = ctx.now()
        if self._replay.slack == 0 or began_s >= self._next_intake_s:
            self._intake.move_to(self._replay, ctx.weights.version)
            self._intake_s += ctx.now() - began_s
            self._next_intake_s = began_s + INTAKE_EVERY_S
        counters["replay_rows"] = self._replay.num_rows
        counters["rows_lost"] = self._intake.num_lost
        counters["policy_lag"] = self._intake.lag

    def update_or_wait(self) -> None:
        """One chunk of updates if there is enough to learn from, else a short sleep."""
        ctx, counters, updater = self._ctx, self._counters, self._updater
        warm = self._replay.num_rows >= self._warmup_rows
        min_ratio = float(ctx.control.supervisor["min_updates_per_step"]) if warm else 0.0
        env_steps = ctx.control.env_steps
        counters["allowed_steps"] = self._budget.allowed_steps(
            self._updates + updater.chunk, min_ratio, env_steps
        )
        learned_steps = max(env_steps - self._warmup_steps, 0)
        if not warm or self._updates >= self._max_updates_per_step * learned_steps:
            self._publisher.flush()
            ctx.wait(WAIT_S)
            return
        if counters["first_update_s"] == 0:
            ctx.note(f"{self._replay.num_rows:,} rows in the replay: learning begins")
            counters["first_update_s"] = ctx.now()
        self._runner.run()
        self._updates += updater.chunk
        counters["rows_learned"] += updater.chunk * updater.batch_size
        counters["updates"], counters["exchange_age"] = self._updates, updater.age
        self._publisher.send(updater.policy, self._updates)

    def log_if_due(self) -> None:
        """Record the metrics once per `LOG_EVERY_S`, in a long run less often."""
        if self._counters["first_update_s"] > 0:
            passed_s = self._ctx.now() - self._logged_s
            if passed_s >= record_interval(LOG_EVERY_S, self._ctx.now()):
                self._log(passed_s)

    def log_rest(self) -> None:
        """Record the metrics of updates since the last record."""
        if self._updates > self._logged_updates:
            self._log(max(self._ctx.now() - self._logged_s, 1e-9))

    def save_if_due(self) -> None:
        """Write a checkpoint at the configured interval."""
        if self._ctx.now() - self._saved_s >= self._ctx.config.checkpoint.every_s:
            self._saved_s = self._ctx.now()
            self._save()

    def close(self) -> None:
        """End compilations and write the last checkpoint."""
        self._runner.close()
        self._save()

    def _log(self, passed_s: float) -> None:
        ctx, counters, updater, more = self._ctx, self._counters, self._updater, {}
        if isinstance(updater, TwoDeviceUpdater):
            more = {"async/exchange_age": updater.age, "async/exchange_bound": updater.age_bound}
        env_steps, updates = ctx.control.env_steps, int(counters["updates"])
        ctx.recorder.record(
            time_s=ctx.now(),
            env_steps=env_steps,
            updates=updates,
            **{f"train/{name}": value for name, value in updater.metrics().items()},
            **{
                "train/n_updates": updates,
                "train/batch_size": int(counters["batch_size"]),
                "perf/compiled": int(counters["compiled"]),
                "perf/intake_share": self._intake_s / passed_s,
                "perf/updates_per_step": updates / max(env_steps, 1),
                "async/policy_lag": float(counters["policy_lag"]),
                "replay/rows": int(counters["replay_rows"]),
                "replay/lost": int(counters["rows_lost"]),
                **more,
            },
        )
        self._logged_s, self._logged_updates, self._intake_s = ctx.now(), self._updates, 0.0

    def _save(self) -> None:
        ctx, policy, updater = self._ctx, self._policy, self._updater
        config = {
            "policy": policy.describe(),
            "config": ctx.config.to_json(),
            "updates": self._updates,
            "env_steps": ctx.control.env_steps,
        }
        train = {name: vector.cpu().numpy() for name, vector in named(updater.state).items()}
        if not all(np.isfinite(array).all() for array in train.values()):
            ctx.counters["diverged"] = 1
            return  # keep the last good checkpoint
        policy.vector[:] = updater.policy.cpu().numpy()
        tensors = {"policy": policy.named(), "train": train}
        keep = ctx.config.checkpoint.keep
        if not save_training(ctx.run.checkpoints, self._updates, tensors, {"config": config}, keep):
            ctx.counters["saves_failed"] += 1
