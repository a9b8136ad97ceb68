"""The supervisor: takes a run from its plan to its summary.

Its processes are started and watched by the `crew`; `shutdown` ends them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spreeze.envs.targets import EnvTarget, picklable_target
from spreeze.errors import RunFailed
from spreeze.machine.shared_gpu import SharedGpu
from spreeze.roles.context import Job
from spreeze.run.callbacks.desk import Desk, UserCode
from spreeze.run.cluster_view import ClusterView, cluster_summary
from spreeze.run.controller import Controller
from spreeze.run.crew import Crew
from spreeze.run.initial_values import chosen_knobs, set_initial_values
from spreeze.run.observers import Observers
from spreeze.run.outcome import FAILED, INTERRUPTED, EndReason, Outcome, RunState
from spreeze.run.plan import Plan
from spreeze.run.processes.pool import Processes
from spreeze.run.processes.serial import run_serially
from spreeze.run.progress import Progress
from spreeze.run.record import LastWords, Record
from spreeze.run.restarts import Task
from spreeze.run.shutdown import LEARNER, await_observers, judge_ends, stop_roles
from spreeze.run.signals import Interrupts
from spreeze.run.snapshot import Snapshot
from spreeze.run.start_up import Milestone, StartUp
from spreeze.run.tracing import TraceFile
from spreeze.run.warnings import env_error_warnings, missing_target_metric
from spreeze.run.watchdog import Watchdog
from spreeze.run.wording import describe_no_update
from spreeze.settings.auto.rates import batches_worth_a_try
from spreeze.settings.config import Config, resolved
from spreeze.store.rundir import RunDir, process_start
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control
from spreeze.wires.documents import EVALUATION, Document, EpisodeReports

TICK_S, SHOW_EVERY_S, WRITE_EVERY_S = 0.05, 0.25, 1.0

Show = Callable[[Snapshot, RunDir, Config], int | None]
"""Shows the run; may say how many redraws were refused since the last call."""


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    path: Path
    summary: dict[str, Any]
    interrupted: bool = False
    """Whether Ctrl-C ended it."""
    summary_problem: str | None = None
    """Why summary.json could not be written; None if it was."""


class Supervisor:
    """Takes one run from its plan to its summary."""

    def __init__(
        self,
        plan: Plan,
        env: EnvTarget,
        run_dir: RunDir,
        start_up: StartUp,
        show: Show,
        interrupts: Interrupts,
    ) -> None:
        """Allocate the shared memory and list the processes to run; starts nothing."""
        config = plan.config
        self.config, self.run_dir, self.show, self.interrupts = config, run_dir, show, interrupts
        self.arena = Arena.create(plan.blocks)
        self.control = Control(self.arena)
        set_initial_values(self.control, plan)
        self.record = Record(run_dir)
        self.start_up, started_s = start_up, start_up.started_s
        self.progress = Progress(config, self.control, start_up, self.record)
        self.progress.more_metrics = self._more_metrics
        self.reports = EpisodeReports(self.arena, len(self.control.samplers))
        self.evaluation = Document(self.arena, EVALUATION)
        self.cluster = ClusterView(self.arena, self.progress, config)
        self.progress.pids = {"supervisor": os.getpid()}
        self.controller = _controller(plan, self.control)
        self.watchdog = Watchdog(config.limits, chosen_knobs(plan).__contains__)
        trace_s = config.trace_s
        self.trace = TraceFile(run_dir, trace_s, self.control) if trace_s else None
        self.shown_s = self.written_s = 0.0
        self.desk = self._desk(UserCode())
        self.shared_gpu = SharedGpu(wanted=config.acts_beside_updates)

        def job(role: str, index: int = 0) -> Job:
            path = run_dir.path.absolute()
            target, others = picklable_target(env), plan.evaluation
            made = Job(role, index, config, plan.spec, target, path, started_s, others)
            return replace(made, form=plan.form, shared_gpu=self.shared_gpu.folder)

        samplers = [job("sampler", i) for i in range(resolved(config.sampler.processes))]
        self.jobs = [job("learner"), *samplers, job("evaluator")]
        if config.sampler.acting == "inference":
            self.jobs.append(job("inference"))
        self.directory_observers = Observers(config, run_dir)
        tasks: list[Task] = [*self.directory_observers.all]
        if config.visualizer.draw == "on":
            tasks.insert(0, job("visualizer"))
        if config.backend == "ray":
            tasks.insert(0, replace(job("relay"), scratch=self.cluster.scratch))
        self.observers = {task.name: task for task in tasks}
        """Processes that only watch: training continues whatever happens to them."""
        self.progress.snapshot.page = self.directory_observers.page
        self.progress.notes += self.directory_observers.notes

    def attach(self, code: UserCode) -> None:
        """Call the user's code while the run goes on."""
        self.desk = self._desk(code)

    def _desk(self, code: UserCode) -> Desk:
        return Desk(code, self.config, self.run_dir, self.arena, self.progress, self.controller)

    def run(self, processes: Processes | None) -> Run:
        """Run to the end, with a process per role; without `processes`, in this one."""
        outcome, failure = FAILED, None
        rounds = None if processes else run_serially(self.jobs, self.arena)
        self.record.start()
        crew = self._crew(processes) if processes else None
        try:
            if crew:
                failure = crew.start_all()
                self.start_up.reach(Milestone.ROLES)
            self.desk.start()
            while failure is None:
                if (end := self._end_reason(crew)) is not None:
                    outcome, failure = end, self._nothing_learned(end)
                    break
                if crew:
                    failure = self._watch(crew)
                elif rounds:
                    next(rounds)
                self._tick()
                self.desk.tick(crew.take_restarted() if crew else ())
                failure = failure or self.desk.failure
        except KeyboardInterrupt:  # a second Ctrl-C in serial mode
            outcome = INTERRUPTED
        finally:
            if processes and crew:
                problem = self._stop(processes, crew)
                failure = failure or problem
            elif rounds:
                rounds.close()
            has_drawn = bool(self.control.visualizer["frames"])
            summary = self._write_summary(outcome if failure is None else FAILED)
            if processes and crew:
                failed = failure is not None
                await_observers(
                    processes, crew.observing, self.interrupts, failed=failed, has_drawn=has_drawn
                )
                crew.close()
            self.directory_observers.close()
            self.cluster.close()
            self.shared_gpu.close()
        if failure is not None:
            raise RunFailed(failure)
        interrupted = self.interrupts.signal == signal.SIGINT
        return Run(self.run_dir.path, summary, interrupted, self.record.summary_problem)

    def _watch(self, crew: Crew) -> str | None:
        """Wait a moment, then start what is due; returns why the run has failed, if it has."""
        failure = crew.watch(TICK_S)
        if crew.has_news:
            crew.has_news = False
            self.written_s = 0.0  # write the new pids to status.json at once
        if crew.lost_samplers:
            self.controller.use_all_samplers()
        return failure

    def _end_reason(self, crew: Crew | None) -> Outcome | None:
        """How the run has ended, if it has."""
        config, control = self.config, self.control
        if self.interrupts.signal is not None:
            return INTERRUPTED
        if crew and not crew.has_started(LEARNER):
            # The learner writes the policy, so a run does not end before its learner has started.
            return None
        self.progress.begin_training()
        if control.target_time_s is not None:
            return Outcome(RunState.FINISHED, EndReason.TARGET)
        if self.desk.stop_reason is not None:
            self.progress.stop_reason = self.desk.stop_reason
            return Outcome(RunState.FINISHED, EndReason.STOPPED)
        if config.time_s is not None and self.progress.training_s >= config.time_s:
            return Outcome(RunState.FINISHED, EndReason.TIME)
        if config.max_steps is not None and control.env_steps >= config.max_steps:
            return Outcome(RunState.FINISHED, EndReason.STEPS)
        return None

    def _nothing_learned(self, end: Outcome) -> str | None:
        """Why a run whose time is up is a failure: it has made no update. None if it is none."""
        snap, config = self.progress.look(), self.config
        if end.state is not RunState.FINISHED or snap.awaited is None or config.resume:
            return None
        needed_rows = resolved(config.learner.warmup_rows)
        why = describe_no_update(snap.awaited, snap.training_s, snap.replay_rows, needed_rows)
        self.progress.note(why)
        if end.reason is EndReason.STEPS:  # it has done what was asked for
            return None
        self.progress.stop_reason = why
        return why

    def _tick(self) -> None:
        """Update the screen a few times a second, the status and the settings once a second."""
        now = time.monotonic()
        if now - self.shown_s >= SHOW_EVERY_S:
            self.shown_s = now
            self.progress.look()
            self._look_at_evaluation()
            self.cluster.look()
            self._draw()
        if now - self.written_s >= WRITE_EVERY_S:
            self.written_s = now
            if (decision := self.controller.tick(now)) is not None:
                self.progress.record_decision(decision)
            if self.trace:
                self.trace.tick(self.progress.elapsed_s)
            self.record.count(self.desk.take_lost())
            self.progress.faults |= self.record.faults
            errors = env_error_warnings(self.control, dict(self.record.env_errors))
            self.progress.standing["environments"] = errors
            self.record.learning = self.control.first_update_s is not None
            more = {
                "started": process_start(os.getpid()),
                "dashboard": self.directory_observers.status,
                "nodes": self.cluster.nodes,
            }
            self.record.show(self.progress.status(RunState.RUNNING) | more)

    def _more_metrics(self) -> dict[str, float]:
        return self.reports.means() | self.desk.metrics()

    def _look_at_evaluation(self) -> None:
        """How far the metric is that ends the run."""
        if self.evaluation.refresh():
            newest = self.evaluation.value
            self.progress.snapshot.target_value = newest["target_value"]
            self.progress.standing["target"] = missing_target_metric(self.config, newest)

    def _draw(self) -> None:
        """Show the run. If that raises, the run continues without a screen."""
        try:
            refused = self.show(self.progress.snapshot, self.run_dir, self.config)
            self.record.count(refused or 0)
        except (Exception, SystemExit) as error:
            self.show = lambda *_: None
            self.progress.note(f"the screen was switched off: {type(error).__name__}: {error}")

    def _stop(self, processes: Processes, crew: Crew) -> str | None:
        """Stop all roles; returns what went wrong, if anything."""
        roles = crew.roles
        late = stop_roles(processes, roles, self.control, self.interrupts)
        if self.interrupts.urgent:
            return None
        return judge_ends(roles, late, self.progress, self.run_dir)

    def _crew(self, processes: Processes) -> Crew:
        observers = list(self.observers.values())
        return Crew(processes, self.jobs, observers, self.arena, self.progress, self.watchdog)

    def _write_summary(self, outcome: Outcome) -> dict[str, Any]:
        """Write summary and last status, tell the observers, and free the shared memory."""
        self.progress.faults |= self.record.faults
        summary = self.progress.summary(outcome)
        summary["start_up"] = self.start_up.table(self.control, summary["all_sampling_s"])
        if self.config.backend == "ray":
            summary["cluster"] = cluster_summary(self.control)
        if self.trace:
            self.trace.finish()
            summary["trace_percent"] = self.trace.percent
            if self.trace.percent is None:
                self.progress.note(f"there is no trace: {self.trace.problem}")
        self.desk.finish(summary, lambda: self.interrupts.urgent)
        self.progress.pids = {}
        status = self.progress.status(outcome.state) | {"dashboard": {}}
        self._draw()
        self.record.end_with(LastWords(summary, status), lambda: self.interrupts.urgent)
        self.directory_observers.announce_end()
        self.arena.close()
        return summary


def _controller(plan: Plan, control: Control) -> Controller:
    measured = plan.measured
    expected_hz = batches_worth_a_try(measured, plan.config) if measured else {}
    return Controller(plan.config, chosen_knobs(plan), expected_hz, control)
