"""Checkpoints: complete or absent, linked by name, pruned."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from spreeze.store import checkpoint
from spreeze.store.checkpoint import save_best, save_training

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
def test_a_disk_that_refuses_leaves_the_last_checkpoint_usable(
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


def test_everything_is_on_disk_before_it_gets_its_name(
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


def test_a_checkpoint_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted run reaches the same number of updates again."""
    assert save_training(tmp_path, 10, TENSORS, {"config": {}}, keep=1)
    real_rename = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == f".000000010.{os.getpid()}":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real_rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    changed = {"policy": {"w0": np.zeros((2, 3), np.float32)}}
    assert not save_training(tmp_path, 10, changed, {"config": {}}, keep=1)
    assert load_file(tmp_path / "last" / "policy.safetensors")["w0"].all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000010", "last"]
