"""TensorBoard files: the same numbers as the metrics, and no torch."""

from __future__ import annotations

import errno
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from spreeze.store.metrics import Recorder
from spreeze.store.tensorboard import TensorBoard


def scalars(folder: Path) -> Iterator[tuple[str, int, float]]:
    """(tag, step, value) of every scalar in the event files of a folder."""
    data = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
    while data:  # a record is its length, a checksum of that, the event, a checksum of that
        (length,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]
        for value in event.summary.value:
            yield value.tag, event.step, value.simple_value


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    evaluator = Recorder(tmp_path / "metrics" / "evaluator-0.jsonl")
    sampler = Recorder(tmp_path / "metrics" / "sampler-1.jsonl")
    evaluator.record(
        time_s=1.0,
        env_steps=10,
        updates=2,
        note="x",
        **{"eval/mean_reward": -150.0, "eval/x": None},
    )
    evaluator.record(time_s=2.0, env_steps=20, updates=4, **{"eval/mean_reward": -120.5})
    sampler.record(time_s=2.0, env_steps=30, updates=4, **{"rollout/ep_rew_mean": 0.25})
    evaluator.close()
    sampler.close()
    board.close()
    assert list(scalars(tmp_path / "tensorboard")) == [
        ("eval/mean_reward", 10, -150.0),
        ("eval/mean_reward", 20, -120.5),
        ("rollout/ep_rew_mean/sampler-1", 30, pytest.approx(0.25)),
    ]


def test_tensorboard_does_not_import_torch_or_keep_others_from_it(tmp_path: Path) -> None:
    """Importing torch would cost the supervisor a second of CPU time and 200 MB."""
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


@pytest.mark.fault("F64")
@pytest.mark.parametrize("place", ["write", "flush"])
def test_after_a_full_disk_a_new_file_has_what_the_old_one_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    metrics = Recorder(tmp_path / "metrics" / "evaluator-0.jsonl")

    def record(step: int) -> None:
        metrics.record(time_s=1.0, env_steps=step, updates=2, **{"eval/x": float(step)})

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    board = TensorBoard(tmp_path)
    record(1)
    board.update(flush=True)
    with monkeypatch.context() as patch:
        patch.setattr(type(board._file), place, full)
        record(2)
        with pytest.raises(OSError, match="No space"):
            board.update(flush=True)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", full)
        record(3)
        with pytest.raises(OSError, match="No space"):  # and no file can be opened
            board.update()
    board.close()
    metrics.close()
    assert sorted(step for _, step, _ in scalars(tmp_path / "tensorboard")) == [
        *([1, 2, 3] if place == "write" else [1, 2, 2, 3])
    ]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
