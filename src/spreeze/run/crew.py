"""The crew: the processes of a run. It starts them, notices when one ends or hangs, and starts it again.

Whether and when a process is started again is decided by `restarts`, what counts as a hang by `watchdog`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Sequence
from typing import BinaryIO

import psutil

from spreeze.faults import Fault, fault_point
from spreeze.machine.oom import oom_kills
from spreeze.roles.context import Job
from spreeze.run.account import Account
from spreeze.run.leaks import LOOK_EVERY_S, LeakWatch, private_bytes
from spreeze.run.processes.call_result import Raised
from spreeze.run.processes.pool import Child, Processes, StartFailed, start_task
from spreeze.run.restarts import EXCEPTION_COST, KILL_COST, StartQueue, Task
from spreeze.run.shutdown import LEARNER, crash_message
from spreeze.run.watchdog import Hang, Watchdog, signs_of_life
from spreeze.run.wording import describe_hang
from spreeze.settings.config import resolved
from spreeze.store.logs import open_log
from spreeze.store.rundir import RunDir
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control

DUMP_S = 0.2
"""How long processes that hang get to write their stacks into their logs."""
OBSERVER_LIVED_S = 3.0
"""The page and the tracker have no heartbeat; after this long they have done their work."""


class Crew:
    """The processes of one run, or of an outpost."""

    def __init__(
        self,
        processes: Processes,
        jobs: Sequence[Job],
        observers: Sequence[Task],
        arena: Arena,
        progress: Account,
        watchdog: Watchdog,
    ) -> None:
        """Start nothing yet. Training continues without the observers."""
        config = jobs[0].config
        self.children: dict[str, Child] = {}
        """The processes that run, by their names."""
        self.lost_samplers: dict[str, str] = {}
        """Samplers that were given up, and why."""
        self.has_news = False
        """Whether a process was started or has ended; reset it when you have told."""
        self._restarted: list[str] = []
        self._processes, self._arena, self._progress = processes, arena, progress
        self._watchdog, self._limits = watchdog, config.limits
        self._control, self._run_dir = Control(arena), RunDir(jobs[0].run_path)
        self._jobs = {job.name: job for job in jobs}
        self._observers = {task.name: task for task in observers}
        self._queue = StartQueue(config.limits.restarts_per_minute)
        self._logs: dict[str, BinaryIO] = {}
        """Opened once: a restart must not wait for a disk that hangs."""
        self._started_s: dict[str, float] = {}
        self._work_before: dict[str, int] = {}
        """How much work each role had done when it was started."""
        self._hangs: dict[str, Hang] = {}
        """Roles that were killed because they hung, until their end is noticed."""
        self._leaks = LeakWatch(1e6 * resolved(config.limits.memory_mb))
        self._leaking: set[int] = set()
        """Pids of samplers that were killed because they leaked, until their end is noticed."""
        self._looked_for_leaks_s = 0.0
        self._oom_kills = oom_kills()

    def start_all(self) -> str | None:
        """Start everything but the learner, whose fork server is still importing torch; returns what failed."""
        if LEARNER in self._jobs:
            self._queue.add(self._jobs[LEARNER])
        others = [job for job in self._jobs.values() if job.name != LEARNER]
        for task in (*others, *self._observers.values()):
            try:
                self._start(task)
            except StartFailed as error:
                return self._fail(str(error), str(error))
        return None

    def watch(self, timeout_s: float) -> str | None:
        """Wait up to `timeout_s`, then start what is due; returns why the run has failed, if it has."""
        ended = self._processes.poll(timeout_s)
        if (failure := self._processes.failure) is not None:
            return self._fail(failure, failure)
        if LEARNER in self._work_before:  # a new learner may begin with fewer updates
            before = self._work_before[LEARNER]
            self._work_before[LEARNER] = min(before, self._work_done(LEARNER))
        for child in ended:
            if (failure := self._on_exit(child)) is not None:
                return failure
        for task in self._queue.pop_due(self._processes):
            if (failure := self._start_again(task)) is not None:
                return failure
        self._end_hangs()
        self._end_leaks()
        return None

    def close(self) -> None:
        """Close the logs."""
        for log in self._logs.values():
            log.close()

    def take_restarted(self) -> list[str]:
        """The processes that were started again since the last call."""
        restarted, self._restarted = self._restarted, []
        return restarted

    def has_started(self, name: str) -> bool:
        """Whether a process was ever started."""
        return name in self._started_s

    @property
    def roles(self) -> list[Child]:
        """The processes that train and evaluate."""
        return [child for name, child in self.children.items() if name in self._jobs]

    @property
    def observing(self) -> list[Child]:
        """The processes that only watch."""
        return [child for name, child in self.children.items() if name in self._observers]

    def _start(self, task: Task) -> None:
        name = task.name
        if name in (signs := signs_of_life(self._control)):
            self._work_before[name] = self._work_done(name)
            self._watchdog.started(name, signs[name])
        self._started_s[name] = time.monotonic()
        child = start_task(self._processes, task, self._arena, self._log(name))
        self.children[name] = child
        self._progress.pids[name] = child.pid
        self.has_news = True
        fault_point("supervisor.started")

    def _log(self, name: str) -> BinaryIO:
        if name not in self._logs:
            self._logs[name] = open_log(self._run_dir.log(name))
        return self._logs[name]

    def _start_again(self, task: Task) -> str | None:
        """Start a process that is due; returns why the run cannot continue, if so."""
        try:
            if self.has_started(task.name):
                self._restarted.append(task.name)
            self._start(task)
        except StartFailed as error:
            self._watchdog.ended(task.name)
            if self._processes.failure is not None:
                return self._fail(str(error), str(error))
            if not self._queue.add_restart(task, KILL_COST, progressed=False):
                return self._give_up(task.name, str(error), None)
        return None

    def _on_exit(self, child: Child) -> str | None:
        """A process ended before the run did; returns why the run cannot continue, if so."""
        fault_point("supervisor.exited")
        name, error = child.name, child.error
        del self.children[name]
        self._progress.pids.pop(name, None)
        self._watchdog.ended(name)
        self.has_news = True
        hang = self._hangs.pop(name, None)
        if name in self._observers and child.exit_code == 0:
            return None  # it has nothing more to do
        leaked = child.pid in self._leaking
        self._leaking.discard(child.pid)
        fault = Fault.RAISED if error else Fault.KILLED
        self._progress.faults[Fault.HUNG if hang else Fault.LEAKED if leaked else fault] += 1
        end = "because it leaked memory" if leaked else self._describe_end(child, hang, error)
        progressed = self._has_progressed(name)
        final = error is not None and error.is_final
        if error is not None and name == LEARNER and (final or not progressed):
            # It would raise again: a mistake in an algorithm, or a device that is missing.
            return self._fail(crash_message(name, error, self._run_dir.log(name)), error.cause)
        cost = EXCEPTION_COST if error and progressed else KILL_COST
        if final or not self._queue.add_restart(self._task(name), cost, progressed):
            often = f"it was ended {self._queue.exits[name]} times, last {end}"
            return self._give_up(name, error.cause if error and final else often, error)
        self._progress.restarts += 1
        self._progress.note(f"{name} was ended {end} and started again")
        return None

    def _task(self, name: str) -> Task:
        """What to start again: a learner continues from its last checkpoint, if it finds one."""
        if name != LEARNER:
            return self._jobs.get(name) or self._observers[name]
        job = self._jobs[name]
        config = dataclasses.replace(job.config, resume=str(job.run_path))
        return dataclasses.replace(job, config=config)

    def _describe_end(self, child: Child, hang: Hang | None, error: Raised | None) -> str:
        if hang is not None:
            return f"after {describe_hang(hang)}"
        if error is not None:
            return f"by an exception ({error.cause})"
        kills = oom_kills()
        if child.exit_code == -signal.SIGKILL and kills > self._oom_kills:
            self._oom_kills += 1  # several processes may have been ended at once
            return "by the kernel: out of memory"
        return f"by {child.how_it_ended}"

    def _give_up(self, name: str, cause: str, error: Raised | None) -> str | None:
        """Start a process no more; returns why the run cannot continue without it, if so."""
        progress, log = self._progress, self._run_dir.log(name)
        progress.faults[Fault.GIVEN_UP] += 1
        if name in self._observers:
            count = self._queue.exits[name]
            after = f" after it ended {count} times" if count else ""
            why = f": {cause}" if error else ""
            progress.note(f"{name} was given up{after}{why}; see {log}")
            return None
        trace = f"{error.traceback}\n" if error else ""
        failure = f"{trace}{name} was given up: {cause}. Its whole output: {log}"
        if self._jobs[name].role == "sampler":
            self.lost_samplers[name] = cause
            total = sum(job.role == "sampler" for job in self._jobs.values())
            left = total - len(self.lost_samplers)
            if left and len(self.lost_samplers) <= self._limits.lost_samplers * total:
                go_on = f"{left} of {total} samplers go on"
                progress.standing["lost samplers"] = [
                    f"{lost} was given up: {why}; {go_on}"
                    for lost, why in self.lost_samplers.items()
                ]
                progress.note(f"{name} was given up: {cause}; see {log}\n{trace}".strip())
                return None
        return self._fail(failure, f"{name} was given up: {cause}")

    def _fail(self, message: str, cause: str) -> str:
        """The run fails: keep the cause in one line, and return the whole message."""
        self._progress.stop_reason = cause
        return message

    def _work_done(self, name: str) -> int:
        """A number that grows while a role makes progress: updates of the learner, units of work of the others."""
        if name == LEARNER:
            return int(self._control.learner["updates"])
        return self._control.heartbeats()[name]

    def _has_progressed(self, name: str) -> bool:
        """Whether a process has done any work since it was started."""
        if name in self._work_before:
            return self._work_done(name) > self._work_before[name]
        return time.monotonic() - self._started_s[name] > OBSERVER_LIVED_S

    def _end_hangs(self) -> None:
        """Kill the roles that hang, after each has written its stacks into its log."""
        hangs = self._watchdog.look(signs_of_life(self._control), time.monotonic())
        for hang in hangs:
            self._hangs[hang.name] = hang
            self._watchdog.ended(hang.name)
            _dump_stacks(self.children[hang.name].pid)
        if hangs:
            time.sleep(DUMP_S)
        for hang in hangs:
            self.children[hang.name].kill()

    def _end_leaks(self) -> None:
        """Kill samplers whose environment leaks; their successors start with little memory."""
        now = time.monotonic()
        if now - self._looked_for_leaks_s < LOOK_EVERY_S:
            return
        self._looked_for_leaks_s = now
        pids = [child.pid for name, child in self.children.items() if name.startswith("sampler")]
        used = {pid: used for pid in pids if (used := private_bytes(pid)) is not None}
        self._leaking |= set(self._leaks.look(used, now))
        for child in self.children.values():
            if child.pid in self._leaking:
                child.kill()


def _dump_stacks(pid: int) -> None:
    """Ask a role and its workers for their stacks; other programs that it has started may end by the signal."""
    with contextlib.suppress(psutil.Error):
        role = psutil.Process(pid)
        for process in (role, *role.children()):
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGUSR1)
