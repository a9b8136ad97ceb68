"""Checkpoints beside running updates, and learners that continue from them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner_stage import LearnerStage
from spreeze.learning.state import named
from spreeze.roles.learner import Learner, saver
from spreeze.run import plan
from spreeze.run.shutdown import LEARNER_GRACE_S
from spreeze.store import replay_store
from spreeze.store.checkpoint import load_training, save_training
from spreeze.store.replay_store import ReplayStore
from spreeze.store.resume_point import ResumePoint
from user_runs import wait_for


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[LearnerStage]:
    made = LearnerStage(tmp_path / "r", **{"checkpoint.every_s": 1.0})
    yield made
    made.close()


class SlowDisk:
    """Stands for `save_training`; writes only when the test lets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_write, self.begun, self.at_once, self.most = threading.Event(), 0, 0, 0
        self._save = saver.save_training
        monkeypatch.setattr(saver, "save_training", self.save)

    def save(self, *arguments: Any) -> bool:
        self.begun += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        assert self.may_write.wait(60)
        self.at_once -= 1
        return self._save(*arguments)


def test_schedules_are_followed_over_the_steps(tmp_path: Path) -> None:
    made = LearnerStage(
        tmp_path / "r",
        **{
            "steps": "1000",
            "algo.lr": 1e-3,
            "algo.lr_schedule": "linear",
            "algo.target_entropy_schedule": "cosine",
        },
    )
    try:
        learner, seen = made.start(), []
        for _ in range(5):
            made.write(208)
            made.work(learner, 1)
            seen.append(learner._updater._rates.tolist())
        assert [rates[0] for rates in seen] == pytest.approx(
            [7.92e-4, 5.84e-4, 3.76e-4, 1.68e-4, 0.0]
        )
        assert seen[-1][2] == -1, "the target entropy ends one lower"
        learner.close()
    finally:
        made.close()


def settled(stage: LearnerStage, learner: Learner) -> ResumePoint:
    """Work until the checkpoint that is under way is on disk."""
    work = learner._saver
    while work._under_way is not None or work._writing:
        learner.check()
        learner.save_if_due()
        time.sleep(0.001)
    return ResumePoint.of(load_training(stage.folder / "checkpoints"))


@pytest.mark.fault("F65")
def test_updates_continue_while_a_slow_disk_writes(
    stage: LearnerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    stage.write(320)
    learner = stage.start()
    stage.work(learner, 20, seconds=0.1)
    wait_for(lambda: disk.begun == 1)
    before = learner._updates
    stage.work(learner, 60, seconds=0.5)
    assert learner._updates == before + 60 * learner._updater.chunk, "thirty seconds, no pause"
    assert disk.begun == 1, "saves that were due meanwhile are skipped"
    disk.may_write.set()
    learner.close()
    assert disk.begun == 2
    assert disk.most == 1, "never two at once"
    last = load_training(stage.folder / "checkpoints")
    assert last.updates == learner._updates, "the last one is written at the end"
    for name, vector in named(learner._updater.state).items():
        np.testing.assert_array_equal(last.tensors["train"][name], vector.numpy())


@pytest.mark.fault("F09")
@pytest.mark.parametrize("block_bytes", [1000, 1 << 22])
def test_a_learner_that_takes_over_has_every_row_once(
    stage: LearnerStage, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_store, "BLOCK_BYTES", block_bytes)
    stage.write(800)
    killed = stage.start()
    stage.work(killed, 12, seconds=0.1)
    saved = settled(stage, killed)
    assert saved.rows == (0, 800)
    stage.write(400)
    stage.work(killed, 2)  # takes rows that no checkpoint has
    killed._runner.close()
    successor = stage.start(resume=stage.folder)
    assert successor._replay.num_rows == 800
    stage.work(successor, 2)
    taken = stage.numbers(successor)
    assert sorted(taken) == list(range(1200)), "those from the lanes once, none from both"
    stage.seconds += 1
    stage.work(successor)
    assert settled(stage, successor).rows == (0, 1200)
    third = stage.start(resume=stage.folder)
    assert sorted(stage.numbers(third)) == list(range(1200))
    for learner in (killed, successor, third):
        learner._saver._pool.shutdown()  # type: ignore[union-attr]


def test_rows_that_the_lanes_no_longer_hold_are_lost_and_none_is_taken_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "LANE_ROWS", 256)
    stage = LearnerStage(tmp_path / "r", **{"checkpoint.every_s": 1.0})
    stage.write(160)
    first = stage.start()
    stage.work(first, 12, seconds=0.1)
    settled(stage, first)
    lane_rows = stage.arena["experience.rows"].shape[1] - 8
    stage.write(2 * lane_rows + 320)
    stage.work(first)  # and is killed
    assert stage.control.learner["rows_lost"] == 320
    second = stage.start(resume=stage.folder)
    stage.work(second, 1)
    assert stage.control.learner["rows_lost"] == 320, "a restart does not forget them"
    taken = stage.numbers(second)
    assert sorted(taken) == [*range(160), *range(stage.num_rows - 2 * lane_rows, stage.num_rows)]
    for learner in (first, second):
        learner._saver._pool.shutdown()  # type: ignore[union-attr]
    stage.close()


def test_only_new_rows_are_written_and_the_newest_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs = {"checkpoint.every_s": 1.0, "replay.capacity": 400}
    stage = LearnerStage(tmp_path / "r", **knobs)
    monkeypatch.setattr(replay_store, "BLOCK_BYTES", 100 * stage.algorithm_row_bytes)
    written: list[tuple[int, int]] = []
    write = ReplayStore.write

    def spy(store: ReplayStore, first: int, rows: Any) -> None:
        written.append((first, len(rows)))
        write(store, first, rows)

    monkeypatch.setattr(ReplayStore, "write", spy)
    learner = stage.start()
    for _ in range(4):
        stage.write(160)
        stage.work(learner, 2)
        stage.seconds += 1
        stage.work(learner)
        point = settled(stage, learner)
    assert written[:2] == [(0, 100), (100, 60)]
    assert written[2:4] == [(100, 100), (200, 100)], "the block that was not full, then new rows"
    assert point.rows == (240, 640)
    learner.close()
    assert sum(path.stat().st_size for path in (stage.folder / "replay").iterdir()) < 600 * (
        stage.algorithm_row_bytes
    )
    stage.close()


@pytest.mark.fault("F38")
@pytest.mark.parametrize("case", ["restart", "restart before the first checkpoint", "resume"])
def test_neither_side_catches_up_after_a_restart_or_a_resume(case: str, tmp_path: Path) -> None:
    has_checkpoint, same_run = case != "restart before the first checkpoint", case != "resume"
    every_s = 1.0 if has_checkpoint else 1000.0
    knobs = {"checkpoint.every_s": every_s, "learner.updates_per_step": 0.5}
    knobs |= {"learner.ratio_bounds": (0.5, 0.5), "learner.updates_per_publish": 4}
    stage = LearnerStage(tmp_path / "a", **knobs)
    stage.write(320)
    first = stage.start()
    stage.work(first, 40, seconds=0.1)
    if has_checkpoint:
        settled(stage, first)
    assert first._updates > 0
    stage.write(1600)  # while no learner was there
    other = stage if same_run else LearnerStage(tmp_path / "b", **knobs)
    if not same_run:
        other.control.samplers["env_steps"] = stage.control.samplers["env_steps"]
    second = other.start(resume=stage.folder if has_checkpoint else None)
    before = second._updates
    other.work(second, 200)
    assert second._updates == before, "no burst of updates for steps that were made meanwhile"
    steps, allowed = other.control.env_steps, int(other.control.learner["allowed_steps"])
    assert steps <= allowed <= steps + 2 * second._updater.chunk / 0.5, "and samplers may go on"
    other.write(80)
    other.work(second, 200)
    assert abs(second._updates - before - 40) <= second._updater.chunk
    for learner in (first, second):
        learner._saver._pool.shutdown()  # type: ignore[union-attr]
    for made in {stage, other}:
        made.close()


@pytest.mark.parametrize("algo", ["sac", "dqn"])
def test_a_resumed_learner_has_the_state_the_rows_and_the_random_numbers(
    algo: str, tmp_path: Path
) -> None:
    stage = LearnerStage(tmp_path / "a", algo)
    stage.write(800)
    learner = stage.start()
    stage.work(learner, 20)
    learner.close()
    drawn = torch.rand(5)
    other = LearnerStage(tmp_path / "b", algo)
    resumed = other.start(resume=stage.folder)
    assert torch.equal(torch.rand(5), drawn)
    assert resumed._updates == learner._updates
    for name, vector in named(learner._updater.state).items():
        assert torch.equal(named(resumed._updater.state)[name], vector), name
    assert other.numbers(resumed) == stage.numbers(learner)
    if (priorities := resumed._replay.priorities) is not None:
        assert (priorities[:800] == priorities.amax()).all(), "stored rows are drawn soon"
    resumed.close()
    assert ResumePoint.of(load_training(other.folder / "checkpoints")).rows == (0, 800)
    third = LearnerStage(tmp_path / "c", algo)
    again = third.start(resume=other.folder)
    assert third.numbers(again) == stage.numbers(learner), "a run resumed twice keeps them, too"
    again.close()
    for made in (stage, other, third):
        made.close()


def test_a_full_disk_costs_rows_and_checkpoints_but_not_the_learner(
    stage: LearnerStage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    stage.write(320)
    learner = stage.start()
    monkeypatch.setattr(replay_store, "write_new", full)
    stage.work(learner, 12, seconds=0.1)
    point = settled(stage, learner)
    assert stage.control.learner["saves_failed"] == 1
    assert "were not saved, from number 0 on: " in capsys.readouterr().out
    monkeypatch.undo()
    stage.write(80)
    learner.close()
    assert point.rows == (0, 0), "none is on disk"
    resumed = stage.start(resume=stage.folder)
    assert resumed._replay.num_rows == 320, "they were written with the next one"
    stage.work(resumed)
    assert sorted(stage.numbers(resumed)) == list(range(400)), "the others come from the lanes"
    resumed._saver._pool.shutdown()  # type: ignore[union-attr]


@pytest.mark.fault("F64")
def test_rows_that_the_disk_refused_are_written_with_the_next_checkpoint(
    stage: LearnerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_store, "BLOCK_BYTES", 100 * stage.algorithm_row_bytes)
    write = ReplayStore.write

    def refuse(store: ReplayStore, first: int, rows: Any) -> None:
        if first == 100:
            raise OSError(28, "No space left on device")
        write(store, first, rows)

    stage.write(400)
    learner = stage.start()
    with monkeypatch.context() as patch:
        patch.setattr(ReplayStore, "write", refuse)
        stage.work(learner, 12, seconds=0.1)
        point = settled(stage, learner)
    assert point.rows == (0, 100), "a checkpoint names the rows that are on disk"
    assert stage.control.learner["saves_failed"] == 1
    stage.write(80)
    stage.work(learner)
    learner.close()
    resumed = stage.start(resume=stage.folder)
    assert sorted(stage.numbers(resumed)) == list(range(480))
    resumed.close()


@pytest.mark.fault("F65")
def test_rows_keep_their_numbers_while_the_window_moves_on_and_the_disk_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = LearnerStage(tmp_path / "r", **{"checkpoint.every_s": 1.0, "replay.capacity": 400})
    monkeypatch.setattr(replay_store, "BLOCK_BYTES", 20 * stage.algorithm_row_bytes)
    may_write, written, write = threading.Event(), dict[int, int](), ReplayStore.write

    def slow(store: ReplayStore, first: int, rows: Any) -> None:
        assert may_write.wait(60)
        numbers = np.rint(rows.view(layout.dtype)["obs"][:, 0, 0] * 1e6).astype(int)
        written.update(zip(range(first, first + len(rows)), numbers.tolist(), strict=True))
        write(store, first, rows)

    monkeypatch.setattr(ReplayStore, "write", slow)
    learner, taken = stage.start(), dict[int, int]()
    replay = learner._replay
    layout = replay.layout
    for _ in range(12):
        stage.write(160)
        stage.work(learner, 2, seconds=1.0)
        taken |= dict(zip(range(replay.oldest, 10_000), stage.numbers(learner), strict=False))
    may_write.set()
    settled(stage, learner)
    learner.close()
    assert written == {number: taken[number] for number in written}
    assert set(range(replay.oldest, replay.num_inserted)) <= set(written)
    stage.close()


@pytest.mark.fault("F65")
def test_a_slow_disk_costs_the_newest_rows_at_the_end_but_not_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = LearnerStage(tmp_path / "r")
    monkeypatch.setattr(replay_store, "BLOCK_BYTES", 10 * stage.algorithm_row_bytes)
    write = ReplayStore.write

    def slow(store: ReplayStore, first: int, rows: Any) -> None:
        write(store, first, rows)
        stage.seconds += 1

    stage.write(800)
    learner = stage.start()
    stage.work(learner, 20)
    began_s = stage.seconds
    with monkeypatch.context() as patch:
        patch.setattr(ReplayStore, "write", slow)
        learner.close()
    assert stage.seconds - began_s < LEARNER_GRACE_S
    last = load_training(stage.folder / "checkpoints")
    assert last.updates == learner._updates
    first, end = ResumePoint.of(last).rows
    assert first == 0
    assert 30 <= end <= 80, "four seconds, and what the thread has begun by then"
    assert f"{800 - end} rows are not saved" in capsys.readouterr().out
    other = LearnerStage(tmp_path / "other")
    resumed = other.start(resume=stage.folder)
    assert other.numbers(resumed) == stage.numbers(learner)[:end]
    resumed.close()
    for made in (stage, other):
        made.close()


def test_without_room_for_rows_none_are_kept(tmp_path: Path) -> None:
    stage = LearnerStage(tmp_path / "a", **{"checkpoint.replay_mb": 0})
    stage.write(320)
    learner = stage.start()
    stage.work(learner, 4)
    learner.close()
    assert not (stage.folder / "replay").exists()
    resumed = stage.start(resume=stage.folder)
    assert resumed._replay.num_rows == 0
    assert resumed._updates == learner._updates
    resumed.close()
    stage.close()


def test_a_checkpoint_larger_than_the_learners_state_is_not_read(tmp_path: Path) -> None:
    stage = LearnerStage(tmp_path / "a")
    stage.start().close()
    small = load_training(stage.folder / "checkpoints")
    train = {**small.tensors["train"], "more": np.zeros(1 << 19, np.float32)}
    save_training(stage.folder / "checkpoints", 9, {"train": train}, small.data, keep=3)
    resumed = stage.start(resume=stage.folder)
    assert resumed._updates == 0
    assert stage.control.learner["checkpoints_refused"] == 1
    resumed.close()
    stage.close()
