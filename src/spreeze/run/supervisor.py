"""The supervisor: starts the roles of a run, watches them, restarts what was killed, stops them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spreeze.envs.targets import EnvTarget, picklable_target
from spreeze.errors import RunFailed
from spreeze.roles.context import Job
from spreeze.run.companions import Companions
from spreeze.run.controller import Controller
from spreeze.run.plan import Plan
from spreeze.run.processes.pool import (
    Child,
    Companion,
    Processes,
    needs_torch,
    start_companion,
    start_role,
)
from spreeze.run.processes.serial import run_serially
from spreeze.run.progress import Progress, Snapshot
from spreeze.run.signals import Interrupts
from spreeze.settings.auto.rates import batches_worth_a_try
from spreeze.settings.config import Config, resolved
from spreeze.store.files import write_atomic
from spreeze.store.metrics import Recorder
from spreeze.store.rundir import RunDir
from spreeze.store.tensorboard import TensorBoard
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control

TICK_S, SHOW_EVERY_S, WRITE_EVERY_S = 0.05, 0.25, 1.0

STUCK_S, GRACE_S, KILL_S = 3.0, 10.0, 5.0

RESTART_DELAYS_S = (0.0, 0.1, 0.5, 2.0, 10.0, 30.0)

PART_S = {"visualizer-0": 6.0, "dashboard": 3.0, "tracker": 60.0}
"""How long those who only look on may take to end, unless the user has pressed Ctrl-C."""

Show = Callable[[Snapshot, RunDir, Config], None]


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    path: Path
    summary: dict[str, Any]
    interrupted: bool = False
    """Whether Ctrl-C ended it."""


class Supervisor:
    """Starts the roles of one run, watches them, and ends them."""

    def __init__(
        self,
        plan: Plan,
        env: EnvTarget,
        run_dir: RunDir,
        started_s: float,
        show: Show,
        interrupts: Interrupts,
    ) -> None:
        """Allocate the wires and write down who has to run."""
        config = plan.config
        self.config, self.run_dir, self.show, self.interrupts = config, run_dir, show, interrupts
        self.arena = Arena.create(plan.blocks)
        self.control = Control(self.arena)
        self.control.supervisor["active_samplers"] = config.sampler.processes
        self.control.supervisor["batch_size"] = config.learner.batch_size
        self.control.supervisor["min_updates_per_step"] = resolved(config.learner.ratio_bounds)[0]
        if config.resume is not None:  # go on counting where that run stopped
            last = RunDir(Path(config.resume) / "checkpoints" / "last")
            self.control.samplers["env_steps"][0] = last.read("config")["env_steps"]
        self.recorder = Recorder(run_dir.metrics / "supervisor-0.jsonl")
        self.progress = Progress(config, self.control, started_s, self.recorder)
        self.progress.pids = {"supervisor": os.getpid()}
        measured = plan.measured
        expected_hz = batches_worth_a_try(measured, config.devices) if measured else {}
        free = [name for name, why in plan.reasons.items() if not why.startswith("preset")]
        self.controller = Controller(config, free, expected_hz, self.control)
        self.tensorboard = TensorBoard(run_dir.path)
        self.children: dict[str, Child] = {}
        self.restarts: dict[str, int] = {}
        self.due: list[tuple[float, Job | Companion]] = []
        self.shown_s = self.written_s = 0.0
        self.drawn = False
        """Whether the visualizer has come as far as to draw."""

        def job(role: str, index: int = 0) -> Job:
            path = run_dir.path.absolute()
            return Job(role, index, config, plan.spec, picklable_target(env), path, started_s)

        samplers = [job("sampler", i) for i in range(resolved(config.sampler.processes))]
        self.jobs = [job("learner"), *samplers, job("evaluator")]
        # Who only looks on: training goes on whatever becomes of them.
        self.companions = Companions(config, run_dir)
        pictures = [job("visualizer")] if config.visualizer.draw == "on" else []
        self.onlookers: list[Job | Companion] = [*pictures, *self.companions.all]
        self.progress.snapshot.page = self.companions.page
        self.progress.notes += self.companions.notes

    def run(self, processes: Processes | None) -> Run:
        """Live through the whole run, with a process per role or, without `processes`, with none."""
        state, reason, failure = "failed", "error", None
        rounds = None if processes else run_serially(self.jobs, self.arena)
        try:
            if processes:
                # Until the learner's fork server has imported torch, the others make their first steps.
                learner, *others = self.jobs
                self.due.append((0.0, learner))
                for job in (*others, *self.onlookers):
                    self._start(job, processes)
            while failure is None:
                if (end := self._end()) is not None:
                    state, reason = end
                    break
                if processes:
                    failure = self._watch(processes)
                elif rounds:
                    next(rounds)
                self._tick()
        except KeyboardInterrupt:  # a second Ctrl-C in serial mode
            state, reason = "interrupted", "stopped"
        finally:
            if processes:
                failure = self._stop(processes) or failure
            elif rounds:
                rounds.close()  # type: ignore[attr-defined]
            summary = self._finish(state if failure is None else "failed", reason)
            if processes:
                self._part(processes, hurry=failure is not None)
            self.companions.close()
        if failure is not None:
            raise RunFailed(failure)
        return Run(self.run_dir.path, summary, self.interrupts.signal == signal.SIGINT)

    def _start(self, job: Job | Companion, processes: Processes) -> None:
        log = self.run_dir.log(job.name)
        if isinstance(job, Job):
            child = start_role(processes, job, self.arena, log)
        else:
            child = start_companion(processes, job, log)
        self.children[job.name] = child
        self.progress.pids[job.name] = child.pid
        self.written_s = 0.0  # whoever reads the status wants to know

    def _watch(self, processes: Processes) -> str | None:
        """Wait a moment; restart what was killed; returns why the run has failed, if it has."""
        ended = processes.poll(TICK_S)
        if processes.failure is not None:
            return processes.failure
        for child in ended:
            if (failure := self._ended(child)) is not None:
                return failure
        now = time.monotonic()
        for entry in [entry for entry in self.due if entry[0] <= now]:
            if processes.ready(needs_torch(entry[1])):
                self.due.remove(entry)
                self._start(entry[1], processes)
        return None

    def _ended(self, child: Child) -> str | None:
        """A role ended before the run did. One that raised would raise again, so the run fails
        with its traceback; one that was killed from outside is started again."""
        log = self.run_dir.log(child.name)
        for onlooker in self.onlookers:
            if onlooker.name == child.name:
                self._onlooker_ended(onlooker, child)
                return None
        if child.report:
            return _crash(child, log)
        job = next(job for job in self.jobs if job.name == child.name)
        count = self.restarts[child.name] = self.restarts.get(child.name, 0) + 1
        code, how = child.exit_code or 0, child.how_it_ended
        if count > len(RESTART_DELAYS_S):
            return f"{child.name} was ended {count} times, now by {how}; its output is in {log}"
        if job.role == "learner":
            if not (self.run_dir.checkpoints / "last").exists():
                maybe = " (out of memory?)" if code == -signal.SIGKILL else ""
                return (
                    f"the learner was ended by {how}{maybe} before its first checkpoint; see {log}"
                )
            config = dataclasses.replace(job.config, resume=str(job.run_path))
            job = dataclasses.replace(job, config=config)
        self.progress.restarts += 1
        self.progress.note(f"{child.name} was ended by {how} and started again")
        self.due.append((time.monotonic() + RESTART_DELAYS_S[count - 1], job))
        return None

    def _onlooker_ended(self, job: Job | Companion, child: Child) -> None:
        """Start it again, unless it had nothing to do or ends whatever we do."""
        self.progress.pids.pop(child.name, None)
        if child.exit_code == 0:
            return
        count = self.restarts[child.name] = self.restarts.get(child.name, 0) + 1
        if count > len(RESTART_DELAYS_S):
            log = self.run_dir.log(child.name)
            self.progress.note(f"{child.name} was given up after {count} ends; see {log}")
            return
        self.progress.restarts += 1
        self.progress.note(f"{child.name} was ended by {child.how_it_ended} and started again")
        self.due.append((time.monotonic() + RESTART_DELAYS_S[count - 1], job))

    def _end(self) -> tuple[str, str] | None:
        """(state, reason) if the run is over."""
        config, control = self.config, self.control
        if self.interrupts.signal is not None:
            return "interrupted", "stopped"
        if self.due and self.jobs[0].name not in self.children:
            return None  # no run ends before it has a learner, who writes the policy
        if control.evaluator["target_time_s"] > 0:
            return "finished", "target"
        if config.time_s is not None and self.progress.elapsed_s >= config.time_s:
            return "finished", "time"
        if config.max_steps is not None and control.env_steps >= config.max_steps:
            return "finished", "steps"
        return None

    def _tick(self) -> None:
        """Look, draw, write: a few times a second. A full disk must not end the run."""
        now = time.monotonic()
        if now - self.shown_s >= SHOW_EVERY_S:
            self.shown_s = now
            self.progress.look()
            self._draw()
        if now - self.written_s >= WRITE_EVERY_S:
            self.written_s = now
            if (decision := self.controller.tick(now)) is not None:
                self.progress.decided(decision)
            with contextlib.suppress(OSError):
                self._write_status("running")
                if self.control.learner["first_update_s"] > 0:
                    self.tensorboard.update()

    def _write_status(self, state: str) -> None:
        view = RunDir(self.run_dir.live).read("view")
        beside = {"dashboard": self.companions.status, "visualizer": view}
        write_atomic(self.run_dir.path / "status.json", self.progress.status(state) | beside)

    def _draw(self) -> None:
        """Show the run; a screen that cannot be drawn must not end it."""
        try:
            self.show(self.progress.snapshot, self.run_dir, self.config)
        except Exception as error:
            self.show = lambda *_: None
            self.progress.note(f"the screen was given up: {type(error).__name__}: {error}")

    def _stop(self, processes: Processes) -> str | None:
        """Let every role end its unit of work; kill what takes too long or after another Ctrl-C."""
        before = self._beats()
        self.control.supervisor["stop"] = 1
        looking_on = {job.name for job in self.onlookers}
        children = [child for name, child in self.children.items() if name not in looking_on]
        began, late = time.monotonic(), False
        while any(child.exit_code is None for child in children) and processes.failure is None:
            waited_s = time.monotonic() - began
            late = late or waited_s > GRACE_S
            if self.interrupts.urgent or late:
                for child in children:
                    child.kill()
            elif waited_s > STUCK_S:
                for name, beats in self._beats().items():
                    if beats == before[name] and name in self.children:
                        self.children[name].kill()  # inside a step of its environment
            if waited_s > GRACE_S + KILL_S:
                break  # in the hands of the kernel, which does not let it go
            processes.poll(TICK_S)
        if late and self.children["learner-0"].exit_code == -signal.SIGKILL:
            return (
                f"the learner did not end within {GRACE_S:.0f} s and was killed without a last "
                "checkpoint; an earlier one may be there. Smaller --learner.updates-per-publish helps."
            )
        crashed = [child for child in children if child.report]
        return _crash(crashed[0], self.run_dir.log(crashed[0].name)) if crashed else None

    def _beats(self) -> dict[str, int]:
        """Units of work done by those who step environments; the learner has a checkpoint to write."""
        samplers = {f"sampler-{i}": int(n) for i, n in enumerate(self.control.samplers["beats"])}
        return {**samplers, "evaluator-0": int(self.control.evaluator["beats"])}

    def _finish(self, state: str, reason: str) -> dict[str, Any]:
        """Write down how it went."""
        summary = self.progress.summary(state, "error" if state == "failed" else reason)
        write_atomic(self.run_dir.path / "summary.json", summary)
        self.progress.pids = {}
        self.companions.say_end()
        self._write_status(state)
        self._draw()
        self.drawn = bool(self.control.visualizer["frames"])
        self.recorder.close()
        self.tensorboard.close()
        self.arena.close()
        return summary

    def _part(self, processes: Processes, hurry: bool) -> None:
        """Let those who look on see the end; kill who stays too long."""
        children = [self.children[job.name] for job in self.onlookers if job.name in self.children]
        hurry = hurry or self.interrupts.signal == signal.SIGINT
        began = time.monotonic()
        while any(child.exit_code is None for child in children) and processes.failure is None:
            for child in children:
                idle = child.name == "visualizer-0" and not self.drawn
                patience_s = 0.0 if idle else 0.5 if hurry else PART_S[child.name]
                if time.monotonic() - began > patience_s or self.interrupts.urgent:
                    child.kill()
            processes.poll(TICK_S)


def _crash(child: Child, log: Path) -> str:
    trace = child.report.decode(errors="replace")
    return f"{trace}\n{child.name} raised this. Its whole output: {log}"
