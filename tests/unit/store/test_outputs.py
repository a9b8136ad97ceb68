"""Checkpoints, metrics and run directories."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spreeze.errors import UsageError
from spreeze.store import checkpoint
from spreeze.store.checkpoint import save_best, save_training
from spreeze.store.files import write_atomic
from spreeze.store.metrics import Follower, Rate, Recorder
from spreeze.store.rundir import RunDir, find_run, list_runs
from spreeze.store.tensorboard import TensorBoard
from spreeze.text import short

TENSORS = {"policy": {"w0": np.ones((2, 3), np.float32)}}


def test_checkpoints_are_named_and_the_oldest_are_pruned(tmp_path: Path) -> None:
    for updates in (10, 20, 30, 40):
        assert save_training(tmp_path, updates, TENSORS, {"config": {"updates": updates}}, keep=2)
    assert save_best(tmp_path, 20, TENSORS, {"config": {}})
    assert save_best(tmp_path, 40, TENSORS, {"config": {}})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["000000030", "000000040", "000000040-best", "best", "last"]
    assert (tmp_path / "last").resolve().name == "000000040"
    assert json.loads((tmp_path / "last" / "config.json").read_text()) == {"updates": 40}


@pytest.mark.parametrize("call", ["fsync", "rename", "symlink_to"])
def test_a_disk_that_refuses_leaves_the_last_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert save_training(tmp_path, 10, TENSORS, {"config": {}}, keep=1)

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os if call == "fsync" else Path, call, refuse)
        assert not save_training(tmp_path, 20, TENSORS, {"config": {}}, keep=1)
    assert "No space left" in capsys.readouterr().err
    assert (tmp_path / "last").resolve().name == "000000010"
    assert not list(tmp_path.glob(".*")), "no draft is left"
    assert save_training(tmp_path, 30, TENSORS, {"config": {}}, keep=1)
    assert (tmp_path / "last").resolve().name == "000000030"


def test_everything_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real_sync, real_rename = os.fsync, Path.rename

    def sync(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        real_sync(fd)

    def rename(self: Path, target: Path) -> Path:
        files = {path.name for path in self.iterdir()} | {self.name}
        assert files <= set(synced)
        return real_rename(self, target)

    monkeypatch.setattr(checkpoint.os, "fsync", sync)
    monkeypatch.setattr(Path, "rename", rename)
    assert save_training(tmp_path, 10, TENSORS, {"config": {}}, keep=1)
    assert synced[-1] == tmp_path.name


def test_a_json_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_atomic(path, {"a": 1})
    with path.open() as old:
        write_atomic(path, {"a": 2})
        assert json.load(old) == {"a": 1}, "an open reader keeps the old file"
    assert json.loads(path.read_text()) == {"a": 2}


def test_metrics_are_followed_line_by_line(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "learner-0.jsonl")
    follower = Follower(tmp_path)
    recorder.record(
        time_s=1.0, env_steps=10, updates=2, **{"train/x": float("nan"), "train/y": 3.0}
    )
    ((role, record),) = follower.new()
    assert role == "learner-0"
    assert record == {"time_s": 1.0, "env_steps": 10, "updates": 2, "train/x": None, "train/y": 3.0}
    with (tmp_path / "learner-0.jsonl").open("a") as half:
        half.write('{"time_s": 2.0, ')
    assert list(follower.new()) == [], "half a line is not read"
    with (tmp_path / "learner-0.jsonl").open("a") as half:
        half.write('"env_steps": 1, "updates": 1}\n')
    assert len(list(follower.new())) == 1
    recorder.close()


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "metrics" / "evaluator-0.jsonl")
    recorder.record(time_s=1.0, env_steps=10, updates=2, **{"eval/mean_reward": -150.0})
    recorder.close()
    TensorBoard(tmp_path).close()
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"eval/mean_reward" in events.read_bytes()


def test_tensorboard_does_without_torch_and_leaves_it_to_others(tmp_path: Path) -> None:
    """It costs a second of a core and 200 MB; that of the supervisor is the learner's."""
    (tmp_path / "metrics").mkdir()
    script = """
import sys
from pathlib import Path
from spreeze.store.tensorboard import TensorBoard
TensorBoard(Path(sys.argv[1])).close()
assert list(Path(sys.argv[1], "tensorboard").iterdir())
assert not {name for name in sys.modules if name.split(".")[0] == "torch"}
import torch
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)


def test_a_rate_is_over_its_window() -> None:
    rate = Rate(window_s=5)
    assert rate.update(0, 0.0) == 0
    for second in range(1, 11):
        value = rate.update(100 * second, float(second))
    assert value == pytest.approx(100)
    for second in range(11, 20):
        value = rate.update(1000, float(second))
    assert value == 0


def test_a_count_that_begins_anew_has_no_speed_below_zero() -> None:
    """As after the restart of a learner, from its last checkpoint."""
    rate = Rate(window_s=5)
    rates = [rate.update(n, float(i)) for i, n in enumerate((0, 100, 200, 50, 150))]
    assert rates == [0, 100, 100, 0, 100]


def make_run(folder: Path, name: str, at: int) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    write_atomic(path / "config.json", {})
    os.utime(path / "config.json", (at, at))
    return path


def test_runs_are_found_by_path_by_name_and_newest_first(tmp_path: Path) -> None:
    old, new = make_run(tmp_path, "old-run", 100), make_run(tmp_path, "new-run", 200)
    assert [run.path for run in list_runs(tmp_path)] == [old, new]
    assert find_run(None, tmp_path).path == new
    assert find_run("old-run", tmp_path).path == old
    assert find_run(str(old), Path("elsewhere")).path == old
    with pytest.raises(UsageError, match="Did you mean old-run"):
        find_run("old-rum", tmp_path)
    with pytest.raises(UsageError, match="Train one first"):
        find_run(None, tmp_path / "empty")
    with pytest.raises(UsageError, match="no checkpoint yet"):
        RunDir(new).checkpoint()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.5, "0.5"),
        (950, "950"),
        (1234, "1,234"),
        (12_345, "12.3k"),
        (4.5e6, "4.5M"),
        (-1500, "-1,500"),
    ],
)
def test_numbers_for_people(value: float | None, text: str) -> None:
    assert short(value) == text
