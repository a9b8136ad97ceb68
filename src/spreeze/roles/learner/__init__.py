"""Learner: moves experience into the replay, updates the networks, publishes the policy.

Reads: all lanes, control.   Writes: weights, its control counters, metrics, checkpoints.
Owns: the replay and the training state.
"""

from __future__ import annotations

from collections.abc import Iterator

from spreeze.faults import fault_point
from spreeze.learning.symptoms import find_symptoms
from spreeze.learning.two_devices.updater import TwoDeviceUpdater
from spreeze.roles.context import Context
from spreeze.roles.learner.divergence import DivergenceGuard
from spreeze.roles.learner.intake import Intake
from spreeze.roles.learner.publisher import PolicyPublisher
from spreeze.roles.learner.saver import Saver
from spreeze.roles.learner.setup import build
from spreeze.roles.learner.update_runner import UpdateRunner
from spreeze.roles.pacing import NO_LIMIT, Pace, warmup_steps
from spreeze.settings.config import resolved
from spreeze.store.metrics import record_interval
from spreeze.store.trace import Activity
from spreeze.wires.control import CompileState

LOG_EVERY_S = 1.0
LOOK_EVERY_S = 10.0
"""How often the replay is searched for reasons why a run may not learn."""
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
            learner.check()
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
        ctx.counters["up_s"] = ctx.counters["up_s"] or ctx.now()  # a restart is no start
        self._replay, self._updater, restored = build(ctx)
        self._intake = Intake(ctx.lane_readers(restored.lanes))
        ctx.note(f"replay and networks are in place, device {config.device}")
        ctx.counters["ready_s"] = ctx.counters["ready_s"] or ctx.now()
        self._runner = UpdateRunner(ctx, self._updater, self._replay)
        self._publisher = PolicyPublisher(ctx, ctx.weights.size, self._replay.device)
        # Every rank needs a row.
        self._warmup_rows = max(resolved(config.learner.warmup_rows), config.num_ranks)
        self._resumed = restored.resumed
        self._lost_before = int(ctx.counters["rows_lost"])
        """Rows that learners before this one have lost."""
        self._pace: Pace | None = None
        """None until there are enough rows to learn from."""
        self._updates = self._logged_updates = restored.updates
        self._guard = DivergenceGuard(ctx, self._updater, self._replay, self._updates)
        self._saver = Saver(ctx, restored, self._guard.last_good, self._replay, self._intake)
        self._has_schedules = bool(config.hyper.schedules())
        self._share_done, self._learning_rate = 0.0, config.hyper.rates()[0]
        self._logged_s = ctx.now()
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
            ctx.mark(Activity.DRAIN)
            self._intake.move_to(self._replay, ctx.weights.version)
            self._intake_s += ctx.now() - began_s
            self._next_intake_s = began_s + INTAKE_EVERY_S
            fault_point("learner.rows_taken")
        counters["replay_rows"] = self._replay.num_drawable
        counters["rows_lost"] = self._lost_before + self._intake.num_lost
        counters["policy_lag"] = self._intake.lag

    def update_or_wait(self) -> None:
        """One chunk of updates if there is enough to learn from, else a short sleep."""
        ctx, counters, updater = self._ctx, self._counters, self._updater
        env_steps = ctx.control.env_steps
        if self._pace is None and self._replay.num_drawable >= self._warmup_rows:
            self._pace = self._new_pace(env_steps)
        if self._pace is None:
            counters["allowed_steps"] = NO_LIMIT
        else:
            asked = ctx.control.supervisor
            least, most = (float(asked[f"{end}_updates_per_step"]) for end in ("min", "max"))
            self._pace.set_ratios(least, most, self._updates, env_steps)
            counters["allowed_steps"] = self._pace.allowed_steps(self._updates + updater.chunk)
        if self._pace is None or not self._pace.may_update(self._updates, env_steps):
            if not self._publisher.flush():
                self._roll_back()
            ctx.wait(WAIT_S)
            return
        if counters["first_update_s"] == 0:
            ctx.note(f"{self._replay.num_drawable:,} rows in the replay: learning begins")
            counters["first_update_s"] = ctx.now()
        self._follow_rates()
        ctx.mark(Activity.UPDATE)
        self._runner.run()
        if counters["updates"] == 0:
            compiled = (CompileState.COMPILED, CompileState.FUSED)
            counters["prepared"] = counters["compiled"] in compiled
        fault_point("learner.updated")
        self._updates += updater.chunk
        counters["rows_learned"] += updater.chunk * updater.batch_size
        counters["updates"], counters["exchange_age"] = self._updates, updater.age
        ctx.mark(Activity.PUBLISH)
        if not self._publisher.send(updater.policy, self._updates):
            self._roll_back()
        ctx.mark(Activity.OTHER)
        if counters["first_updated_s"] == 0:
            counters["first_updated_s"] = ctx.now()

    def _follow_rates(self) -> None:
        """Set the rates that the schedules now ask for; a learning rate on the control wire goes before."""
        ctx, hyper = self._ctx, self._ctx.config.hyper
        share = ctx.share_done if self._has_schedules else 0.0
        rate = float(ctx.control.supervisor["learning_rate"]) or hyper.lr_at(share)
        if rate != self._learning_rate:
            self._learning_rate = rate
            self._updater.set_learning_rate(rate)
        if share != self._share_done:
            self._share_done = share
            self._updater.set_entropy_shift(hyper.entropy_shift_at(share))

    def check(self) -> None:
        """Go back to the last good state if the newest one is broken."""
        if self._guard.is_broken(self._updates):
            self._roll_back()

    def _roll_back(self) -> None:
        self._publisher.drop()
        self._guard.roll_back(self._updates)

    def _new_pace(self, env_steps: int) -> Pace:
        """Steps and updates count from now on, or in a run that begins to learn from the end of the warm-up."""
        _, most = resolved(self._ctx.config.learner.ratio_bounds)
        # A learner that was killed before its first checkpoint leaves nothing to resume, but many steps.
        goes_on = self._resumed or self._counters["first_update_s"] > 0
        steps = env_steps if goes_on else warmup_steps(self._ctx.config)
        return Pace(steps, self._updates, most)

    def log_if_due(self) -> None:
        """Record the metrics once per `LOG_EVERY_S`, in a long run less often."""
        if self._pace is not None and self._counters["first_update_s"] > 0:
            passed_s = self._ctx.now() - self._logged_s
            if passed_s >= record_interval(LOG_EVERY_S, self._ctx.now()):
                self._log(passed_s)

    def log_rest(self) -> None:
        """Record the metrics of updates since the last record."""
        if self._updates > self._logged_updates:
            self._log(max(self._ctx.now() - self._logged_s, 1e-9))

    def save_if_due(self) -> None:
        """Write a checkpoint at the configured interval, in the background."""
        self._saver.advance(self._updates)

    def close(self) -> None:
        """End compilations and write the last checkpoint."""
        self._runner.close()
        if self._ctx.at_boundary:  # lanes start empty after it
            self._intake.move_to(self._replay, self._ctx.weights.version)
        self._guard.settle(self._updates)
        self._saver.finish(self._ctx.at_boundary)

    def _log(self, passed_s: float) -> None:
        ctx, counters, updater, more = self._ctx, self._counters, self._updater, {}
        if isinstance(updater, TwoDeviceUpdater):
            more = {"async/exchange_age": updater.age, "async/exchange_bound": updater.age_bound}
        env_steps, updates = ctx.control.env_steps, int(counters["updates"])
        metrics = updater.metrics()
        if not counters["looked_s"] or ctx.now() - counters["looked_s"] >= LOOK_EVERY_S:
            counters["q_mean"] = metrics.get("q_mean", 0.0)
            for name, value in find_symptoms(self._replay, ctx.spec)._asdict().items():
                counters[name] = value
            counters["looked_s"] = ctx.now()  # last: a reader of it sees the others, too
        ctx.recorder.record(
            time_s=ctx.now(),
            env_steps=env_steps,
            updates=updates,
            **{f"train/{name}": value for name, value in metrics.items()},
            **{
                "train/learning_rate": self._learning_rate,
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
