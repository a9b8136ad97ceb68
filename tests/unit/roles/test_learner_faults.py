"""A learner that ends at any of its fault points: the next one continues, and readers notice nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from learner_stage import LearnerStage
from spreeze import faults
from spreeze.faults import InjectedFault
from spreeze.roles.learner import Learner
from spreeze.store.checkpoint import load_training
from spreeze.wires.weights import WeightsReader

POINTS = [
    "learner.rows_taken",
    "learner.updated",
    "learner.published",
    "learner.saving",
    "replay.block_written",
    "weights.mid_publish",
]


def until_it_ends(stage: LearnerStage, learner: Learner) -> None:
    """Work until the fault happens; nothing is closed, as after a kill."""

    def work() -> None:
        while True:
            stage.write(16)
            stage.work(learner, 1, seconds=0.1)

    with pytest.raises(InjectedFault):
        work()
    learner._saver._pool.shutdown()  # type: ignore[union-attr]


@pytest.mark.fault("F28")
@pytest.mark.fault("F09")
@pytest.mark.parametrize("point", POINTS)
def test_the_next_learner_continues_from_the_last_checkpoint(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = LearnerStage(tmp_path / "r", **{"checkpoint.every_s": 1.0, "replay.capacity": 30_000})
    stage.write(320)
    learner = stage.start()
    reader = WeightsReader(stage.context.weights, np.zeros(stage.context.weights.size, np.float32))
    while not (stage.folder / "checkpoints" / "last").exists():
        stage.work(learner, 1, seconds=0.1)
    assert reader.refresh()
    version, vector = reader.stamp.version, reader._vector.copy()
    monkeypatch.setenv("SPREEZE_FAULTS_FOLDER", str(tmp_path))
    monkeypatch.setattr(faults, "_PLAN", f"{point}:raise")
    until_it_ends(stage, learner)
    assert reader.refresh() == (stage.context.weights.version > version)
    assert np.isfinite(reader._vector).all()
    if point == "weights.mid_publish":
        assert reader.stamp.version == version
        np.testing.assert_array_equal(reader._vector, vector)
    saved = load_training(stage.folder / "checkpoints")
    successor = stage.start(resume=stage.folder)
    assert successor._updates == saved.updates
    stage.work(successor)
    stage.write(16)
    stage.work(successor, 30, seconds=0.1)
    taken = stage.numbers(successor)
    assert sorted(taken) == list(range(stage.num_rows)), "every row once"
    assert reader.refresh()
    assert stage.control.learner["updates"] > saved.updates
    successor.close()
    assert load_training(stage.folder / "checkpoints").updates == successor._updates
    stage.close()


def test_seeds_differ_after_a_resume(tmp_path: Path) -> None:
    stage = LearnerStage(tmp_path / "r")
    stage.start().close()
    first = stage.context.seed(3)
    stage.control.supervisor["resumed_steps"] = 5000
    resumed = stage.context.seed(3)
    stage.control.supervisor["resumed_steps"] = 6000
    assert not set(first) & set(resumed)
    assert not set(resumed) & set(stage.context.seed(3))
    stage.close()


@pytest.mark.fault("F65")
def test_a_learner_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, hanging_disk: threading.Event
) -> None:
    stage = LearnerStage(tmp_path / "r", threads=True)
    stage.write(320)
    learner = stage.start()
    for _ in range(3):
        stage.work(learner, 2, seconds=1.0)
        learner.log_if_due()
    assert stage.control.learner["updates"] > 0
    file = tmp_path / "r" / "metrics" / "learner-0.jsonl"
    assert file.read_text() == ""
    hanging_disk.set()
    learner.close()
    stage.context.close()
    assert len(file.read_text().splitlines()) == 3
    stage.close()
