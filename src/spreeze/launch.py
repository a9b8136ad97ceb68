"""The life of a run on one page: check, plan, allocate, start, watch, restart, stop, report."""

from __future__ import annotations

import dataclasses
import datetime
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from spreeze.backends.local import Child, Processes, call, start_role
from spreeze.backends.serial import run_serially
from spreeze.checkpoint import write_atomic
from spreeze.config import Config, check_config, check_folder
from spreeze.envs import EnvTarget, inspect_env, portable
from spreeze.metrics import Recorder, TensorBoard
from spreeze.placement import Machine, cpu_name, look_around, supports_wires
from spreeze.policy import policy_size
from spreeze.progress import Progress, Snapshot
from spreeze.roles.base import Job
from spreeze.rundir import RunDir
from spreeze.spec import EnvSpec, UsageError, transition_layout
from spreeze.tuner import resolve
from spreeze.wires.arena import Arena, Block, arena_bytes
from spreeze.wires.control import Control, control_blocks
from spreeze.wires.experience import experience_blocks
from spreeze.wires.weights import weights_blocks

TICK_S = 0.05
GRACE_S = 10.0
RESTART_DELAYS_S = (0.0, 0.1, 0.5, 2.0, 10.0, 30.0)
LANE_BYTES = 256 << 20
SAMPLER_BYTES, LEARNER_BYTES = 100 << 20, 700 << 20


class RunFailed(RuntimeError):
    """The run ended by an error; the message holds its cause and where to read more."""


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    path: Path
    summary: dict[str, Any]
    interrupted: bool = False
    """Whether Ctrl-C ended it."""


class Interrupts:
    """Ctrl-C and SIGTERM: the first asks for a clean stop, a second Ctrl-C ends the run at once."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self.signal: int | None = None

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Take a signal."""
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle signals inside the block; only a main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {n: signal.signal(n, self) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


Show = Callable[[Snapshot, RunDir, Config], None]


def launch(config: Config, env: EnvTarget, show: Show, started_s: float | None = None) -> Run:
    """Train as `config` says, until its end; raises UsageError before and RunFailed after the start."""
    started_s = time.monotonic() if started_s is None else started_s
    problems = [*check_config(config), *check_folder(Path(config.runs))]
    if not config.serial and (reason := supports_wires()):
        problems.append(f"{reason}. Use --serial.")
    interrupts = Interrupts()
    with interrupts.installed():
        processes = None if config.serial or problems else Processes()
        try:
            spec = _describe_env(env, config.env, processes, problems)
            plan = make_plan(config, spec, look_around())
            run = _create_run(plan, started_s)
            supervisor = Supervisor(plan, env, run, started_s, show, interrupts)
            return supervisor.run_serially() if processes is None else supervisor.run(processes)
        finally:
            if processes is not None:
                processes.close()


def _describe_env(env: EnvTarget, name: str, processes: Processes | None, problems: list[str]) -> EnvSpec:
    """Look at the environment in a throw-away process, so that its prints and crashes stay there."""
    try:
        if processes is not None:
            spec, _ = call(processes, inspect_env, portable(env), name)
        elif not problems or env:
            spec = inspect_env(env, name)
    except UsageError as error:
        raise UsageError([*problems, *error.problems]) from None
    except Exception as error:
        trace = "".join(getattr(error, "__notes__", [])) or f"{type(error).__name__}: {error}"
        raise RunFailed(f"{trace}\nThe environment raised this when it was tried out; nothing was started.") from None
    if problems:
        raise UsageError(problems)
    return spec  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Plan:
    """A run before it starts: nothing is "auto" any more, and it is known to fit."""

    config: Config
    reasons: dict[str, str]
    spec: EnvSpec
    blocks: list[Block]


def make_plan(config: Config, spec: EnvSpec, machine: Machine) -> Plan:
    """Fill every "auto" and compute what the run will take; UsageError if the machine has it not."""
    config, reasons = resolve(config, spec, machine)
    problems = check_config(config)
    if problems:
        raise UsageError(problems)
    layout = transition_layout(spec)
    lanes, block, capacity = config.sampler.processes, config.sampler.envs_per_process, config.replay.capacity
    assert isinstance(lanes, int) and isinstance(block, int) and isinstance(capacity, int)
    lane_rows = min(LANE_BYTES // layout.row_bytes // lanes, 65_536)
    blocks = [
        *control_blocks(lanes),
        *weights_blocks(policy_size(spec, config.hyper.hidden)),
        *experience_blocks(layout, lanes, max(lane_rows, 8 * block), block),
    ]
    replay = 0 if config.device.startswith("cuda") else capacity * layout.row_bytes
    needed = {
        "lanes and weights": arena_bytes(blocks),
        f"replay of {capacity:,} transitions": replay,
        f"{lanes} samplers": lanes * SAMPLER_BYTES,
        "learner": LEARNER_BYTES,
    }
    if sum(needed.values()) > machine.memory_bytes:
        table = ", ".join(f"{what} {size / 2**30:.2f}" for what, size in needed.items())
        raise UsageError(
            [f"this run needs {sum(needed.values()) / 2**30:.1f} GiB of memory ({table} GiB) and "
             f"{machine.memory_bytes / 2**30:.1f} GiB are free. Lower --replay.capacity or --sampler.processes."]
        )
    return Plan(config, reasons, spec, blocks)


def _create_run(plan: Plan, started_s: float) -> RunDir:
    """Make the run directory and write what is known before the start."""
    import platform

    from spreeze import __version__

    config = plan.config
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    short = re.sub(r"[^\w.-]+", "-", config.env)
    name = config.name or f"{short}-{config.algo}-{config.seed}-{stamp}"
    path = Path(config.runs) / name
    if (path / "config.json").exists():
        raise UsageError([f"run {path} exists already. Give another --name, or go on from it with --resume {name}."])
    for folder in ("metrics", "checkpoints", "logs"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    write_atomic(path / "config.json", {
        "config": config.to_json(), "reasons": plan.reasons, "env_spec": plan.spec.to_json(),
    })
    machine = look_around()
    write_atomic(path / "system.json", {
        "command": sys.argv,
        "cpu": cpu_name(),
        "cores": machine.cores,
        "memory_gib": round(machine.memory_bytes / 2**30, 1),
        "gpus": [gpu.name for gpu in machine.gpus],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "spreeze": __version__,
    })
    return RunDir(path)


class Supervisor:
    """Starts the roles of one run, watches them, and ends them."""

    def __init__(
        self, plan: Plan, env: EnvTarget, run: RunDir, started_s: float, show: Show, interrupts: Interrupts
    ) -> None:
        """Allocate the wires."""
        self.config, self.run_dir, self.interrupts, self.show = plan.config, run, interrupts, show
        self.arena = Arena.create(plan.blocks)
        self.control = Control(self.arena)
        self.control.supervisor["active_samplers"] = plan.config.sampler.processes
        self.control.supervisor["batch_size"] = plan.config.learner.batch_size
        self.recorder = Recorder(run.metrics / "supervisor-0.jsonl")
        self.progress = Progress(plan.config, self.control, started_s, self.recorder)
        self.restarts: dict[str, int] = {}
        self.due: list[tuple[float, Job]] = []
        self.shown_s = self.written_s = 0.0

        def job(role: str, index: int = 0) -> Job:
            path = run.path.absolute()
            return Job(role, index, plan.config, plan.spec, portable(env), path, started_s)

        # The learner first: it has the longest way to its first unit of work.
        samplers = [job("sampler", i) for i in range(plan.config.sampler.processes)]  # type: ignore[arg-type]
        self.jobs = [job("learner"), *samplers, job("evaluator")]

    def run(self, processes: Processes) -> Run:
        """One process per role, until the end."""
        self.processes = processes
        self.children: dict[str, Child] = {}
        state, reason, failure = "failed", "error", None
        try:
            for job in self.jobs:
                self._start(job)
            tensorboard = TensorBoard(self.run_dir.path)
            while (end := self._end()) is None and failure is None:
                for child in processes.poll(TICK_S):
                    failure = failure or self._ended(child)
                self._start_due()
                self._tick(tensorboard)
            if end is not None:
                state, reason = end
        except KeyboardInterrupt:  # a second Ctrl-C before the stop began
            state, reason = "interrupted", "stopped"
        finally:
            summary = self._stop(state, reason)
        tensorboard.close()
        if failure is not None:
            raise RunFailed(failure)
        return Run(self.run_dir.path, summary, self.interrupts.signal == signal.SIGINT)

    def run_serially(self) -> Run:
        """All roles in this process, until the end."""
        rounds = run_serially(self.jobs, self.arena)
        state, reason = "failed", "error"
        self.progress.pids = {"supervisor": _own_pid()}
        tensorboard = TensorBoard(self.run_dir.path)
        try:
            for _ in rounds:
                if (end := self._end()) is not None:
                    state, reason = end
                    break
                self._tick(tensorboard)
        finally:
            rounds.close()  # type: ignore[attr-defined]
            summary = self._finish(state, reason)
            tensorboard.close()
        return Run(self.run_dir.path, summary, self.interrupts.signal == signal.SIGINT)

    def _start(self, job: Job) -> None:
        child = start_role(self.processes, job, self.arena, self.run_dir.log(job.name))
        self.children[job.name] = child
        self.progress.pids = {"supervisor": _own_pid()} | {n: c.pid for n, c in self.children.items()}

    def _ended(self, child: Child) -> str | None:
        """A role ended before the run did: restart it, or say why the run has failed.

        One that was killed from outside is started again. One that raised would raise again: its
        traceback is what the user needs to see.
        """
        log = self.run_dir.log(child.name)
        if child.report:
            return f"{child.report.decode(errors='replace')}\n{child.name} raised this; its whole output is in {log}"
        job = next(job for job in self.jobs if job.name == child.name)
        self.restarts[child.name] = count = self.restarts.get(child.name, 0) + 1
        how = f"signal {-child.exit_code}" if (child.exit_code or 0) < 0 else f"exit code {child.exit_code}"
        if count > len(RESTART_DELAYS_S):
            return f"{child.name} ended by {how} {count} times; its output is in {log}"
        if job.role == "learner":
            if not (self.run_dir.checkpoints / "last").exists():
                return (f"the learner was ended by {how} before its first checkpoint"
                        f"{' (out of memory?)' if child.exit_code == -9 else ''}; its output is in {log}")
            job = dataclasses.replace(job, config=dataclasses.replace(job.config, resume=str(self.run_dir.path.absolute())))
        self.progress.restarts += 1
        self.progress.notes.append(f"{child.name} was ended by {how} and started again")
        self.due.append((time.monotonic() + RESTART_DELAYS_S[count - 1], job))
        return None

    def _start_due(self) -> None:
        now = time.monotonic()
        for entry in [entry for entry in self.due if entry[0] <= now]:
            self.due.remove(entry)
            self._start(entry[1])

    def _end(self) -> tuple[str, str] | None:
        """(state, reason) if the run is over."""
        config, control = self.config, self.control
        if self.interrupts.signal is not None:
            return "interrupted", "stopped"
        if control.evaluator["target_time_s"] > 0:
            return "finished", "target"
        if config.time_s is not None and self.progress.elapsed_s >= config.time_s:
            return "finished", "time"
        if config.max_steps is not None and control.env_steps >= config.max_steps:
            return "finished", "steps"
        return None

    def _tick(self, tensorboard: TensorBoard) -> None:
        """Look, draw, write: a few times a second."""
        now = time.monotonic()
        if now - self.shown_s >= 0.25:
            self.shown_s = now
            self.show(self.progress.look(), self.run_dir, self.config)
        if now - self.written_s >= 1.0:
            self.written_s = now
            write_atomic(self.run_dir.path / "status.json", self.progress.status("running"))
            tensorboard.update()

    def _stop(self, state: str, reason: str) -> dict[str, Any]:
        """Let every role finish its unit of work; a second Ctrl-C or too long a wait kills."""
        self.control.supervisor["stop"] = 1
        self.progress.look()
        children = list(self.children.values())
        try:
            self.processes.wait(children, GRACE_S)
        except KeyboardInterrupt:
            pass
        finally:
            for child in children:
                child.kill()
            self.processes.wait(children, 2.0)
        return self._finish(state, reason)

    def _finish(self, state: str, reason: str) -> dict[str, Any]:
        summary = self.progress.summary(state, reason)
        self.show(self.progress.snapshot, self.run_dir, self.config)
        self.recorder.close()
        write_atomic(self.run_dir.path / "summary.json", summary)
        write_atomic(self.run_dir.path / "status.json", self.progress.status(state) | {"pids": {}})
        self.arena.close()
        return summary


def _own_pid() -> int:
    import os

    return os.getpid()
