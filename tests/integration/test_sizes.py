"""The batch size changes during a run, as the supervisor may ask at any time."""

from __future__ import annotations

import time
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import fakes
import spreeze
from spreeze.cli.commands.train import report
from spreeze.learning.updater import Updater
from spreeze.machine.cache import cache_folder
from spreeze.run import launch
from spreeze.run.crew import Crew
from spreeze.run.outcome import EndReason, Outcome, RunState
from spreeze.run.supervisor import Run as EndedRun
from spreeze.settings.defaults import config_with, default_config
from spreeze.store.rundir import RunDir
from spreeze.wires.control import CompileState
from user_runs import records

SIZES = (64, 48, 64)
LOOK_S = 1.5


class ChangingSupervisor(launch.Supervisor):
    """Asks for the next size when updates of the last one are compiled, then ends."""

    phase, since = 0, 0.0
    files: ClassVar[list[set[str]]] = [set(), set(), set()]
    """What had been compiled at the end of each phase, by anyone."""
    compiled: tuple[list[int], ...] = ([], [], [])
    meanwhile: ClassVar[list[tuple[int, int]]] = []
    """Steps and updates, sampled while the second size is being compiled."""

    def _tick(self) -> None:
        super()._tick()
        words = self.control.learner
        if "learner-0" not in self.progress.pids:
            return
        self.files[self.phase] |= {
            path.name
            for path in (cache_folder() / "compiled").glob("*.bin")
            if "-" not in path.name  # a draft
        }
        if words["batch_size"] != SIZES[self.phase]:
            self.since = time.monotonic()
            if self.phase == 1:
                self.meanwhile.append((self.control.env_steps, int(words["updates"])))
        else:
            self.compiled[self.phase].append(int(words["compiled"]))
            if words["compiled"] != CompileState.COMPILED:
                self.since = time.monotonic()
            elif time.monotonic() - self.since > LOOK_S and self.phase < 2:
                self.phase += 1
                self.since = time.monotonic()
                self.control.supervisor["batch_size"] = SIZES[self.phase]

    def _end_reason(self, crew: Crew | None) -> Outcome | None:
        done = self.phase == 2 and time.monotonic() - self.since > LOOK_S
        return Outcome(RunState.FINISHED, EndReason.STEPS) if done else super()._end_reason(crew)


@pytest.mark.timeout(300)
@pytest.mark.exhaustive
def test_sizes_change_without_a_stall_and_what_was_compiled_stays(
    runs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(launch, "Supervisor", ChangingSupervisor)
    most = 0.5  # updates a step: never holds samplers, and leaves time to compile
    knobs = {
        "runs": runs,
        "time": "270s",
        "device": "cpu",  # a GPU stores two forms of each size
        "algo.hidden": (64, 64),
        "learner.batch_size": SIZES[0],
        "learner.warmup_rows": SIZES[0],
        "learner.ratio_bounds": (0.0, most),
        "replay.capacity": 10_000,
    }
    config = config_with(default_config(env="slow"), knobs)
    run = launch.launch(config, partial(fakes.wide_env, slow=True), lambda *_: None)
    assert run.summary["reason"] == "steps", ChangingSupervisor.compiled
    assert run.summary["batch_size"] == SIZES[0]

    smallest, largest = (run.summary["update_hz"] * size for size in (min(SIZES), max(SIZES)))
    assert smallest < run.summary["update_frame_hz"] < largest, "each with the size it had"

    learner, supervisor = records(run.path, "learner-0"), records(run.path, "supervisor-0")
    sizes = [size for size, _ in groupby(line["train/batch_size"] for line in learner)]
    assert sizes == list(SIZES), "later updates use the new size"
    (steps, updates), *_, (last_step, last_update) = ChangingSupervisor.meanwhile
    allowed = most * (last_step - steps)
    assert last_update - updates > allowed / 2 > 0, "learning kept up with the sampling"
    stalls = [line.get("async/stall_percent/samplers", 0) for line in supervisor if line["updates"]]
    assert len(stalls) > 3
    assert not any(stalls)

    first, second, again = ChangingSupervisor.files
    assert len(second - first) == 1
    assert again == second, "going back compiles nothing again"
    for size in ChangingSupervisor.compiled[1:]:
        assert set(size) == {CompileState.COMPILED}, (
            "the old size stays until the new one is compiled"
        )


@pytest.mark.fault("F55")
def test_a_batch_that_does_not_fit_is_halved_and_the_user_is_told(
    runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Updater._prepare

    def prepare(self: Updater) -> Any:
        if self.batch_size > 256:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(self)

    monkeypatch.setattr(Updater, "_prepare", prepare)
    knobs = {"algo.hidden": (16, 16), "learner.batch_size": 1000, "replay.capacity": 10_000}
    run = spreeze.train("Pendulum-v1", runs=runs, serial=True, steps="3000", **knobs)
    placed = "pinned" if run.summary["device"] == "cuda" else "host"
    said = f"out of GPU memory: went on with replay.placement {placed} and batches of 256"
    assert run.summary["out_of_memory"] == said
    assert run.summary["batch_size"] == 256
    assert RunDir(run.path).read("status")["warnings"] == [said]
    ended = EndedRun(run.path, run.summary)
    assert said in report(ended, default_config(env="Pendulum-v1"))
    assert {line["train/batch_size"] for line in records(run.path, "learner-0")} == {256}
