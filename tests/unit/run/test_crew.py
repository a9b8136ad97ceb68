"""The crew without processes: which ends are mended, which cost a sampler, and which end the run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import cloudpickle
import pytest

import fakes
from spreeze.envs.inspect import inspect_env
from spreeze.faults import Fault
from spreeze.machine.facts import Machine
from spreeze.roles.context import Job
from spreeze.run import crew as module
from spreeze.run import restarts, shutdown
from spreeze.run.crew import Crew
from spreeze.run.plan import make_plan
from spreeze.run.processes.call_result import Raised
from spreeze.run.processes.pool import Child, Observer, StartFailed
from spreeze.run.progress import Progress
from spreeze.run.shutdown import LEARNER_GRACE_S, judge_ends, stop_roles
from spreeze.run.signals import Interrupts
from spreeze.run.start_up import StartUp
from spreeze.run.watchdog import Watchdog
from spreeze.settings.defaults import config_with, default_config
from spreeze.store.metrics import Recorder
from spreeze.store.rundir import RunDir
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control

RAISED = Raised("Traceback of the arm", "RuntimeError: the arm fell off")
BROKEN = Raised("Traceback of the arm", "too many errors", is_final=True)


class Stage:
    """Four samplers, a learner, an evaluator and a page that are only names; the test ends them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("metrics", "checkpoints"):
            (folder / name).mkdir()
        knobs = {"device": "cpu", "sampler.processes": 4, "limits.restarts_per_minute": 20}
        spec = inspect_env(fakes.CountEnv, "x")
        plan = make_plan(config_with(default_config(env="x"), knobs), spec, Machine(8, 8 << 30, ()))
        self.arena = Arena.create(plan.blocks)
        self.control = Control(self.arena)

        def job(role: str, index: int = 0) -> Job:
            return Job(role, index, plan.config, spec, fakes.CountEnv, folder, 0.0)

        self.recorder = Recorder(folder / "metrics" / "supervisor-0.jsonl")
        self.progress = Progress(plan.config, self.control, StartUp(0.0), self.recorder)
        jobs = [job("learner"), *(job("sampler", i) for i in range(4)), job("evaluator")]
        observers = [Observer("dashboard", "module:main", b"", ())]
        watchdog = Watchdog(plan.config.limits, lambda _: True)
        processes: Any = self
        self.crew = Crew(processes, jobs, observers, self.arena, self.progress, watchdog)
        self.failure: str | None = None
        self.started: list[tuple[str, str | None]] = []
        """The name of each process that was started, and where its learner resumes."""
        self.refuse_start = False
        self._pid, self._ended = 0, list[Child]()
        monkeypatch.setattr(module, "start_task", self.start_task)
        assert self.crew.start_all() is None
        assert self.crew.watch(0) is None

    def start_task(self, _: Any, task: Any, *__: Any) -> Child:
        if self.refuse_start:
            raise StartFailed("could not start a process: too many")
        self._pid += 1
        self.started.append((task.name, task.config.resume if isinstance(task, Job) else None))
        return Child(task.name, self._pid, -1)

    def poll(self, _: float) -> list[Child]:
        ended, self._ended = self._ended, []
        return ended

    def ready(self, with_torch: bool) -> bool:
        return True

    def end(
        self, name: str, error: Raised | None = None, code: int = -signal.SIGKILL
    ) -> str | None:
        """End a process and let the crew notice; returns why the run fails, if it does."""
        child = self.crew.children[name]
        child.exit_code = 1 if error else code
        child.report = cloudpickle.dumps(error) if error else b""
        self._ended.append(child)
        return self.crew.watch(0)

    def work(self) -> None:
        """All roles make progress."""
        for table in (self.control.samplers, self.control.evaluator, self.control.learner):
            table["beats"] += 1
        self.control.learner["updates"] += 1


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stage = Stage(tmp_path, monkeypatch)
    yield stage
    stage.crew.close()
    stage.recorder.close()
    stage.arena.close()


@pytest.mark.fault("F02")
def test_all_that_end_at_once_are_started_at_once(stage: Stage) -> None:
    stage.work()
    stage._ended = list(stage.crew.children.values())
    names = set(stage.crew.children)
    for child in stage._ended:
        child.exit_code = -signal.SIGKILL
    stage.started.clear()
    assert stage.crew.watch(0) is None
    assert {name for name, _ in stage.started} == names
    assert stage.progress.faults == {Fault.KILLED: len(names)}
    assert stage.progress.restarts == len(names)


@pytest.mark.fault("F64")
def test_a_restart_opens_no_file(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that hangs would hold the supervisor up."""
    stage.work()

    def hang(_: Path) -> BinaryIO:
        raise AssertionError("the supervisor would wait for the disk")

    monkeypatch.setattr(module, "open_log", hang)
    assert stage.end("sampler-1") is None
    assert stage.started[-1][0] == "sampler-1"


@pytest.mark.fault("F04")
def test_a_sampler_whose_environment_is_broken_is_given_up_and_the_others_go_on(
    stage: Stage,
) -> None:
    stage.work()
    for i, left in ((2, 3), (0, 2)):
        assert stage.end(f"sampler-{i}", BROKEN) is None
        assert f"sampler-{i}" not in stage.crew.children
        text = f"sampler-{i} was given up: too many errors; {left} of 4 samplers go on"
        assert text in stage.progress.look().open_warnings
        assert BROKEN.traceback in stage.progress.notes[-1]
    assert stage.progress.faults == {Fault.RAISED: 2, Fault.GIVEN_UP: 2}
    failure = stage.end("sampler-1", BROKEN)
    assert failure is not None, "more than half of them are lost"
    assert BROKEN.traceback in failure
    assert stage.progress.stop_reason == "sampler-1 was given up: too many errors"


@pytest.mark.fault("F03")
def test_a_sampler_that_raises_too_often_is_given_up(stage: Stage) -> None:
    for _ in range(4):
        stage.work()
        assert stage.end("sampler-0", RAISED) is None
        assert "sampler-0" in stage.crew.children
    stage.work()
    assert stage.end("sampler-0", RAISED) is None
    assert "sampler-0" not in stage.crew.children
    assert "it was ended 5 times" in stage.progress.standing["lost samplers"][0]


def test_a_run_without_its_evaluator_fails_with_the_traceback(stage: Stage) -> None:
    failure = stage.end("evaluator-0", BROKEN)
    assert failure is not None
    assert BROKEN.traceback in failure
    assert "evaluator-0" in failure


@pytest.mark.fault("F10")
def test_a_page_that_ends_again_and_again_is_given_up_with_a_note(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spreeze.run.restarts.DELAYS_S", (0.0, 0.0))
    for _ in range(3):
        assert stage.end("dashboard") is None
    assert "dashboard was given up after it ended 3 times" in stage.progress.notes[-1]
    assert "dashboard" not in stage.crew.children


def test_a_learner_that_raises_before_its_first_update_ends_the_run(stage: Stage) -> None:
    failure = stage.end("learner-0", RAISED)
    assert failure is not None
    assert RAISED.traceback in failure
    assert stage.progress.stop_reason == RAISED.cause


@pytest.mark.fault("F09")
def test_a_learner_that_raises_after_updates_continues_from_its_checkpoint(
    stage: Stage, tmp_path: Path
) -> None:
    stage.work()
    assert stage.end("learner-0", RAISED) is None
    assert stage.started[-1] == ("learner-0", str(tmp_path))
    # The new learner counts from an older number on, which is no progress; then it learns.
    stage.control.learner["updates"] = 0
    assert stage.crew.watch(0) is None
    stage.work()
    assert stage.end("learner-0", RAISED) is None
    assert stage.started[-1] == ("learner-0", str(tmp_path))
    stage.control.learner["updates"] = 0
    assert stage.crew.watch(0) is None
    assert stage.end("learner-0", RAISED) is not None, "no update since it was started"


@pytest.mark.fault("F09")
def test_a_learner_killed_before_its_first_checkpoint_is_started_again(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor does not look at the disk, which may hang."""
    monkeypatch.setattr(Path, "iterdir", lambda *_: pytest.fail("the supervisor looks at the disk"))
    assert stage.end("learner-0") is None
    assert stage.started[-1] == ("learner-0", str(tmp_path)), "it looks for a checkpoint itself"


@pytest.mark.fault("F71")
def test_a_kill_by_the_kernel_is_told_from_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.work()
    stage.end("sampler-0")
    assert "sampler-0 was ended by signal 9 and started again" in stage.progress.notes[-1]
    before = stage.crew._oom_kills
    monkeypatch.setattr(module, "oom_kills", lambda: before + 1)
    stage.end("sampler-1")
    assert "sampler-1 was ended by the kernel: out of memory" in stage.progress.notes[-1]
    stage.end("sampler-2")
    assert "sampler-2 was ended by signal 9" in stage.progress.notes[-1]


def test_a_process_that_the_system_refuses_is_started_when_there_is_room(stage: Stage) -> None:
    stage.work()
    stage.refuse_start = True
    assert stage.end("sampler-3") is None
    assert "sampler-3" not in stage.crew.children
    stage.refuse_start = False
    assert stage.crew.watch(0) is None
    assert "sampler-3" in stage.crew.children


@pytest.mark.fault("F05")
def test_a_role_that_hangs_whenever_its_environment_is_made_is_given_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "DELAYS_S", (0.0,) * len(restarts.DELAYS_S))
    for _ in restarts.DELAYS_S:
        stage.control.evaluator["env_calls"] += 1  # a sign of life, but no progress
        assert stage.end("evaluator-0") is None
    failure = stage.end("evaluator-0")
    assert failure is not None
    assert "evaluator-0 was given up" in failure


@pytest.mark.fault("F09")
def test_only_a_learner_that_ends_badly_fails_a_run_that_is_ending(stage: Stage) -> None:
    def ended(name: str, error: Raised | None = None, code: int = 0) -> str | None:
        child = Child(name, 1, -1, code, cloudpickle.dumps(error) if error else b"")
        return judge_ends([child], False, stage.progress, RunDir(Path("runs/r")))

    assert ended("learner-0") is None
    assert ended("sampler-0", code=-signal.SIGKILL) is None, "it hung"
    assert not stage.progress.faults
    assert ended("sampler-0", RAISED, 1) is None
    assert "the arm fell off" in stage.progress.notes[-1]
    assert RAISED.traceback in (ended("learner-0", RAISED, 1) or "")
    killed = ended("learner-0", code=-signal.SIGKILL) or ""
    assert "ended by signal 9 before it could save a last checkpoint" in killed
    assert stage.progress.faults == {Fault.RAISED: 2, Fault.KILLED: 1}


@pytest.mark.fault("F65")
def test_the_end_of_a_run_does_not_wait_for_ever_for_a_learner_whose_disk_hangs(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, killed_s = [0.0], []
    learner = stage.crew.children["learner-0"]

    def poll(timeout_s: float) -> list[Child]:
        seconds[0] += timeout_s
        return []

    def kill(child: Child) -> None:
        killed_s.append(seconds[0])
        child.exit_code = -signal.SIGKILL

    monkeypatch.setattr(shutdown.time, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(Child, "kill", kill)
    monkeypatch.setattr(stage, "poll", poll)
    processes: Any = stage
    late = stop_roles(processes, [learner], stage.control, Interrupts(serial=False))
    assert killed_s == [pytest.approx(LEARNER_GRACE_S, abs=0.1)]
    problem = judge_ends([learner], late, stage.progress, RunDir(Path("runs/r")))
    assert "did not end within 30 s" in str(problem)
    assert "Earlier ones are in runs/r/checkpoints" in str(problem)
