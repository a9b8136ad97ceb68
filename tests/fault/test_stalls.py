"""Environments and processes that stall: they delay nothing else, and what hangs is replaced."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import fakes
import spreeze
from user_runs import learning, read, records, training, wait_for

KNOBS: dict[str, Any] = {
    "algo": "sac",
    "algo.hidden": (16, 16),
    "learner.batch_size": 32,
    "learner.compile": False,
    "replay.capacity": 10_000,
    "sampler.processes": 3,
    "sampler.envs_per_process": 2,
    "learner.ratio_bounds": (0.0, 1000.0),
    "learner.warmup_rows": 64,  # sampled before the learner is up, so it never waits for them
    "evaluator.episodes": 2,
}
RUN_S = 7.0


def went_on(run: Path, role: str, count: str) -> bool:
    """Whether it still made progress long after the stall began, to the end of the run."""
    lines = records(run, role)
    middle, last = lines[len(lines) // 2], lines[-1]
    return last["time_s"] > RUN_S - 3 and last[count] > middle[count]


@pytest.mark.exhaustive
@pytest.mark.timeout(60)
def test_a_stalled_environment_slows_no_other_role_and_the_run_ends_in_time(runs: str) -> None:
    run = spreeze.train(partial(fakes.StallEnv, 50), runs=runs, time=f"{RUN_S:.0f}s", **KNOBS)
    assert run.summary["state"] == "finished"
    assert run.summary["restarts"] == 0
    # Sampler 0 stood still for most of the run; the others never waited.
    assert all(line["time_s"] < RUN_S - 3 for line in records(run.path, "sampler-0"))
    for i in (1, 2):
        assert went_on(run.path, f"sampler-{i}", "rollout/episodes")
    assert went_on(run.path, "learner-0", "updates")
    assert went_on(run.path, "evaluator-0", "updates")
    for line in records(run.path, "supervisor-0"):
        for role in ("samplers", "learner"):
            assert line[f"async/stall_percent/{role}"] == 0
    assert (run.path / "checkpoints" / "last").exists()


LIMITS_S = ("--limits.construct-s", "1.5", "--limits.reset-s", "1.5", "--limits.step-s", "1")


@pytest.mark.fault("F05")
@pytest.mark.fault("F06")
@pytest.mark.timeout(90)
def test_roles_that_hang_are_replaced_and_their_logs_say_where(tmp_path: Path) -> None:
    knobs = ("--sampler.processes", "3", "--no-dashboard", "--learner.no-compile", *LIMITS_S)
    with training(tmp_path, "fakes:HangEnv", *knobs) as process:
        pids = learning(tmp_path)
        os.kill(pids["evaluator-0"], signal.SIGSTOP)
        hung = ("sampler-0", "sampler-1", "evaluator-0")

        def told(name: str) -> bool:
            notes = read(tmp_path, "status")["warnings"]
            return any(
                f"{name} was ended after it" in note and "--limits." in note for note in notes
            )

        for name in hung:
            wait_for(lambda n=name: told(n) and read(tmp_path, "status")["pids"][n] != pids[n])  # type: ignore[misc]
        assert read(tmp_path, "status")["pids"]["sampler-2"] == pids["sampler-2"]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    for name in hung[:2]:
        log = (tmp_path / "runs" / "r" / "logs" / f"{name}.log").read_text()
        assert "fakes.py" in log, "the stack shows the step that hung"
    summary = read(tmp_path, "summary")
    assert summary["faults"]["hung"] >= 3
    assert "killed" not in summary["faults"]


@pytest.mark.exhaustive
@pytest.mark.fault("F05")
@pytest.mark.timeout(90)
def test_an_evaluator_and_a_visualizer_whose_environment_hangs_are_replaced(tmp_path: Path) -> None:
    knobs = ("--visualizer.draw", "on", "--no-dashboard", "--learner.no-compile")
    with training(tmp_path, "fakes:hangs_elsewhere", "--limits.step-s", "1", *knobs) as process:
        pids = learning(tmp_path)
        hung = ("evaluator-0", "visualizer-0")

        def told(name: str) -> bool:
            notes = read(tmp_path, "status")["warnings"]
            return any(f"{name} was ended after" in n and "--limits.step-s" in n for n in notes)

        for name in hung:
            wait_for(lambda n=name: told(n) and read(tmp_path, "status")["pids"][n] != pids[n])  # type: ignore[misc]
        wait_for(lambda: records(tmp_path / "runs" / "r", "evaluator-0"))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    for name in hung:
        log = (tmp_path / "runs" / "r" / "logs" / f"{name}.log").read_text()
        assert "fault_env.py" in log, "the stack shows the step that hung"
    assert read(tmp_path, "summary")["faults"]["hung"] == 2


@pytest.mark.fault("F05")
def test_an_environment_that_is_not_made_in_time_is_refused_before_the_run(tmp_path: Path) -> None:
    limits = ("--limits.construct-s", "0.5", "--limits.reset-s", "0.1", "--limits.step-s", "0.1")
    with training(tmp_path, "fakes:SlowToMake", *limits) as process:
        _, err = process.communicate(timeout=30)
        assert process.returncode == 1
    assert "was not ready in time. If it needs longer, raise --limits.construct-s." in err
    assert "Traceback" not in err
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
    left = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert left == [tmp_path / "runs" / "r" / "logs" / "probe.log"]


@pytest.mark.fault("F73")
@pytest.mark.timeout(60)
@pytest.mark.exhaustive
def test_a_run_that_was_suspended_continues_with_the_same_processes(tmp_path: Path) -> None:
    # Without pictures: on busy cores one may take longer than these limits.
    draw = ("--visualizer.draw", "off")
    with training(tmp_path, "Pendulum-v1", *LIMITS_S, *draw) as process:
        pids = learning(tmp_path)
        supervisor = psutil.Process(process.pid)
        family = [supervisor, *supervisor.children(recursive=True)]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.suspend()
        time.sleep(3.0)  # longer than every limit
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.resume()
        before = read(tmp_path, "status")["progress"]["updates"]
        wait_for(lambda: read(tmp_path, "status")["progress"]["updates"] > before + 500)
        assert read(tmp_path, "status")["pids"] == pids
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
    summary = read(tmp_path, "summary")
    assert (summary["restarts"], summary["faults"]) == (0, {})
