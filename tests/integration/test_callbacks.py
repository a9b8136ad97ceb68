"""Callbacks in whole runs, with processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

import fakes
import spreeze
from user_runs import records

SMALL = {"algo.hidden": (16, 16), "learner.batch_size": 32, "learner.compile": False}


class Graded(fakes.ReachEnv):
    """Says in every episode which difficulty it was told, and which attribute was set."""

    difficulty, goal = 0.0, 0.0

    def set_difficulty(self, value: float) -> None:
        self.difficulty = value

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        said = {"difficulty": self.difficulty, "goal": self.goal}
        return (*super().step(action)[:4], said)


class Conductor(spreeze.Callback):
    """Calls environments, kills a sampler, and stops when its successor has the newest values."""

    fatal = True
    seen: ClassVar[set[str]] = set()

    def on_start(self, run: Any) -> None:
        run.call_envs("set_difficulty", 0.25)
        run.set_env_attr("goal", 3)
        run.set_knob("learner.updates_per_step", 0.1)  # before the first update
        self.killed = self.restarted = False

    def on_log(self, run: Any, metrics: dict[str, float]) -> None:
        run.log("mine", 7)
        told = [metrics.get(f"{role}/info/difficulty") for role in ("rollout", "eval")]
        if not self.killed and told == [0.25, 0.25]:
            self.killed = True
            run.set_knob("algo.lr", 1e-5)
            run.save_checkpoint()
            run.call_envs("set_difficulty", 0.75)
            pids = json.loads((run.path / "status.json").read_text())["pids"]
            os.kill(pids["sampler-0"], signal.SIGKILL)
        values = [*told, metrics.get("rollout/info/goal"), metrics.get("eval/info/goal")]
        if self.restarted and values == [0.75, 0.75, 3, 3] and self.seen >= {"checkpoint", "best"}:
            run.stop("all have heard")

    def on_new_best(self, run: Any, result: Any) -> None:
        self.seen.add("best")

    def on_checkpoint(self, run: Any, path: Path) -> None:
        assert (path / "policy.safetensors").exists()
        self.seen.add("checkpoint")

    def on_restart(self, run: Any, role: str) -> None:
        assert role == "sampler-0"
        self.restarted = True

    def on_end(self, run: Any, summary: dict[str, Any]) -> None:
        self.seen.add(summary["reason"])
        run.log("at_end", 1)


def test_a_callback_conducts_a_run(runs: str) -> None:
    knobs = {**SMALL, "sampler.processes": 1}
    run = spreeze.train(Graded, runs=runs, time="50s", callbacks=[Conductor], **knobs)
    assert (run.summary["reason"], run.summary["stop_reason"]) == ("stopped", "all have heard")
    assert run.summary["restarts"] == 1
    assert "stopped" in Conductor.seen
    logged = records(run.path, "callbacks-0")
    assert logged[0]["callback/mine"] == 7
    assert logged[-1]["callback/at_end"] == 1
    events = [r["event"] for r in records(run.path, "supervisor-0") if "event" in r]
    assert "environments: set_difficulty(0.75)" in events
    assert "algo.lr = 1e-05" in events
    assert "perf/callbacks_percent" in records(run.path, "supervisor-0")[-1]


class Fatal(spreeze.Callback):
    fatal = True

    def on_start(self, run: Any) -> None:
        raise LookupError("no config for this run")


def test_a_fatal_callback_fails_the_run_with_its_traceback(runs: str) -> None:
    with pytest.raises(spreeze.RunFailed, match=r"(?s)in on_start.*no config for this run"):
        spreeze.train(Graded, runs=runs, time="20s", callbacks=[Fatal], **SMALL)
    (run,) = Path(runs).iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["state"], summary["reason"]) == ("failed", "error")
    assert "LookupError" in summary["stop_reason"]
    assert not psutil.Process().children(recursive=True)


class Wrong(spreeze.Callback):
    def on_start(self, run: Any) -> None:
        run.call_envs("set_dificulty", 1)


def test_a_method_that_the_environment_lacks_is_refused_before_the_start(runs: str) -> None:
    with pytest.raises(spreeze.UsageError, match=r"Did you mean set_difficulty\?"):
        spreeze.train(Graded, runs=runs, time="20s", callbacks=[Wrong])
    with pytest.raises(spreeze.UsageError, match=r"EnvPool|envpool"):
        spreeze.train(
            "Pendulum-v1", runs=runs, time="20s", callbacks=[Wrong], **{"env.engine": "envpool"}
        )
    assert not Path(runs).exists()


@pytest.mark.learning
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("flags", "ended"), [([], "opens the lock"), (["--without"], "does not open the lock")]
)
def test_the_lock_of_the_examples_is_opened_with_the_curriculum_only(
    tmp_path: Path, flags: list[str], ended: str
) -> None:
    example = Path(__file__).parents[2] / "examples" / "curriculum.py"
    done = subprocess.run(
        [sys.executable, str(example), *flags],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    assert done.stdout.endswith(f"the policy {ended}\n")
