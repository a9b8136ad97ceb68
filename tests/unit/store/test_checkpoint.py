"""Checkpoints: complete or absent, verified, linked by name, pruned, and the newest whole one is loaded."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from spreeze import faults
from spreeze.errors import DamagedFile, UsageError
from spreeze.store.checkpoint import check_tensors, load_training, save_best, save_training

GOLDEN = Path(__file__).parent / "golden"
POINTS = ("begun", "written", "synced", "verified", "renamed", "linked", "pruned")


def save(folder: Path, updates: int, keep: int = 3, value: float = 1.0) -> bool:
    """A small training checkpoint."""
    tensors = {
        "policy": {"w0": np.full((2, 3), value, np.float32)},
        "train": {"actor": np.full(6, value, np.float32), "updates": np.float32(updates)},
    }
    data = {"config": {"updates": updates, "env_steps": 2 * updates}}
    return save_training(folder, updates, tensors, data, keep)  # type: ignore[arg-type]


def names(folder: Path) -> list[str]:
    """Everything in the folder, temporary names too."""
    return sorted(path.name for path in folder.iterdir())


def test_checkpoints_are_named_and_the_oldest_are_pruned(tmp_path: Path) -> None:
    policy = {"policy": {"w0": np.ones((2, 3), np.float32)}}
    for updates in (10, 20, 30, 40):
        assert save(tmp_path, updates, keep=2)
    assert save_best(tmp_path, 20, policy, {"config": {}})
    assert save_best(tmp_path, 40, policy, {"config": {}})
    assert names(tmp_path) == ["000000030", "000000040", "000000040-best", "best", "last"]
    assert (tmp_path / "last").resolve().name == "000000040"
    config = json.loads((tmp_path / "last" / "config.json").read_text())
    assert config == {"updates": 40, "env_steps": 80}


def test_checkpoints_are_sorted_by_number_beyond_nine_digits(tmp_path: Path) -> None:
    for updates in (999_999_998, 999_999_999, 1_000_000_000, 10_000_000_000):
        assert save(tmp_path, updates, keep=2)
    assert names(tmp_path) == ["1000000000", "10000000000", "last"]
    assert load_training(tmp_path).updates == 10_000_000_000


def test_the_manifest_describes_every_file_and_tensor(tmp_path: Path) -> None:
    assert save(tmp_path, 10)
    folder = tmp_path / "last"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["format"] == 2
    assert set(manifest["files"]) == {"policy.safetensors", "train.safetensors", "config.json"}
    train = manifest["files"]["train.safetensors"]
    assert train["size"] == (folder / "train.safetensors").stat().st_size
    assert train["tensors"] == {
        "actor": {"dtype": "F32", "shape": [6]},
        "updates": {"dtype": "F32", "shape": []},
    }


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    assert save(tmp_path, 10)
    assert save(tmp_path, 20, value=2.0)
    loaded = load_training(tmp_path)
    assert (loaded.path.name, loaded.updates, loaded.env_steps) == ("000000020", 20, 40)
    assert loaded.refused == []
    np.testing.assert_array_equal(loaded.tensors["train"]["actor"], np.full(6, 2, np.float32))
    assert loaded.tensors["train"]["updates"].shape == ()
    checked = load_training(tmp_path, keep=False)
    assert checked.path == loaded.path
    assert checked.tensors == {"policy": {}, "train": {}}


@pytest.mark.fault("F64")
@pytest.mark.parametrize("call", ["fsync", "rename", "symlink_to", "mkdir", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.fault("F66")
def test_a_disk_that_refuses_leaves_the_last_checkpoint_usable(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert save(tmp_path, 10, keep=1)

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os if call == "fsync" else Path, call, refuse)
        assert not save(tmp_path, 20, keep=1)
    assert os.strerror(code) in capsys.readouterr().err
    assert (tmp_path / "last").resolve().name == "000000010"
    assert not list(tmp_path.glob(".*")), "no draft is left"
    assert save(tmp_path, 30, keep=1)
    assert (tmp_path / "last").resolve().name == "000000030"
    assert names(tmp_path) == ["000000030", "last"]


@pytest.mark.fault("F66")
def test_nothing_is_pruned_if_the_new_checkpoint_does_not_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert save(tmp_path, 10, keep=1)

    def damage(name: str) -> None:
        if name == "checkpoint.synced":
            (draft,) = tmp_path.glob(".last-*")
            content = bytearray((draft / "train.safetensors").read_bytes())
            content[-1] ^= 1
            (draft / "train.safetensors").write_bytes(content)

    with monkeypatch.context() as patch:
        patch.setattr("spreeze.store.checkpoint.fault_point", damage)
        assert not save(tmp_path, 20, keep=1)
    assert "not what its manifest says" in capsys.readouterr().err
    assert names(tmp_path) == ["000000010", "last"]
    assert load_training(tmp_path).updates == 10


def test_numbers_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    assert save(tmp_path, 10, keep=1)
    assert not save(tmp_path, 20, keep=1, value=np.nan)
    assert load_training(tmp_path).updates == 10


@pytest.mark.fault("F62")
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

    monkeypatch.setattr("spreeze.store.files.os.fsync", sync)
    monkeypatch.setattr(Path, "rename", rename)
    assert save(tmp_path, 10, keep=1)
    assert synced[-1] == tmp_path.name


def test_a_number_that_is_reached_twice_gets_a_name_of_its_own(tmp_path: Path) -> None:
    """A restarted run reaches the same number of updates again."""
    for value in (1.0, 2.0, 3.0):
        assert save(tmp_path, 10, keep=2, value=value)
    assert names(tmp_path) == ["000000010-2", "000000010-3", "last"]
    loaded = load_training(tmp_path)
    assert loaded.tensors["train"]["actor"][0] == 3
    assert (tmp_path / "last").resolve() == loaded.path
    policy = {"policy": {"w0": np.ones(1, np.float32)}}
    assert save_best(tmp_path, 10, policy, {"config": {}})
    assert save_best(tmp_path, 10, policy, {"config": {}})
    assert os.readlink(tmp_path / "best") == "000000010-best-2"


def test_saving_goes_on_from_an_older_checkpoint_if_the_newer_one_is_damaged(
    tmp_path: Path,
) -> None:
    assert save(tmp_path, 10)
    assert save(tmp_path, 20)
    (tmp_path / "000000020" / "train.safetensors").write_bytes(b"")
    assert load_training(tmp_path).updates == 10
    assert save(tmp_path, 15)
    assert names(tmp_path) == ["000000010", "000000015", "last"]


def _save_with_faults(folder: Path, faults_folder: Path, plan: str) -> None:
    os.environ["SPREEZE_FAULTS_FOLDER"] = str(faults_folder)
    faults._PLAN = plan
    try:
        save(folder, 20, keep=1)
    except faults.InjectedFault:
        os._exit(3)
    os._exit(0)


@pytest.mark.fault("F61")
@pytest.mark.fault("F64")
@pytest.mark.fault("F66")
@pytest.mark.parametrize("what", ["kill", "raise", "full"])
@pytest.mark.parametrize("point", POINTS)
def test_whatever_happens_during_a_save_the_newest_whole_checkpoint_loads(
    tmp_path: Path, point: str, what: str
) -> None:
    folder, marks = tmp_path / "checkpoints", tmp_path / "marks"
    marks.mkdir()
    assert save(folder, 10, keep=1)
    plan = f"checkpoint.{point}:{what}"
    child = multiprocessing.get_context("fork").Process(
        target=_save_with_faults, args=(folder, marks, plan)
    )
    child.start()
    child.join()
    assert (marks / plan).exists(), "the point was passed"
    assert child.exitcode == {"kill": -signal.SIGKILL, "raise": 3, "full": 0}[what]
    loaded = load_training(folder)
    assert loaded.refused == []
    complete = point in ("renamed", "linked", "pruned")
    assert loaded.updates == (20 if complete else 10)
    assert (folder / "last" / "train.safetensors").exists(), "the link leads somewhere"
    if what != "kill":
        assert not list(folder.glob(".*")), "no draft is left"
    assert save(folder, 20, keep=1)
    assert load_training(folder).updates == 20
    assert len(names(folder)) == 2, "leftovers of the dead process are gone"


def test_leftovers_of_the_other_writer_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".best-0123").mkdir()
    (tmp_path / ".last-0123").mkdir()
    (tmp_path / ".last-4567").symlink_to("nowhere")
    assert save(tmp_path, 10)
    assert names(tmp_path) == [".best-0123", "000000010", "last"]


@pytest.mark.fault("S19")
def test_a_planted_link_is_neither_followed_nor_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if another process could guess the temporary name."""
    monkeypatch.setattr("spreeze.store.checkpoint.secrets.token_hex", lambda _: "guessed")
    folder, outside = tmp_path / "checkpoints", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    folder.mkdir()
    (folder / ".last-guessed").symlink_to(outside)
    assert save(folder, 10)
    assert names(outside) == ["kept"]
    assert names(folder) == ["000000010", "last"]
    assert not (folder / "000000010").is_symlink()


# What is stored may be damaged.


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def delete(path: Path) -> None:
    path.unlink()


def to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def to_link(path: Path) -> None:
    copy = path.parents[2] / "elsewhere"
    shutil.copy(path, copy)
    path.unlink()
    path.symlink_to(copy)


DAMAGE = (truncate, empty, flip, delete, to_fifo, to_folder, to_link)
FILES = ("train.safetensors", "policy.safetensors", "config.json", "manifest.json")


@pytest.mark.fault("F63")
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "checkpoints"
    assert save(folder, 10)
    assert save(folder, 20)
    damage(folder / "000000020" / file)
    if (damage, file) == (delete, "manifest.json"):
        assert load_training(folder).updates == 20, "as checkpoints of format 1: nothing to compare"
        return
    loaded = load_training(folder)
    assert loaded.updates == 10
    ((path, why),) = loaded.refused
    assert path.name == "000000020"
    assert "000000020" in why
    assert "\n" not in why


@pytest.mark.fault("F63")
@pytest.mark.parametrize("file", FILES)
def test_every_single_flipped_bit_is_found(tmp_path: Path, file: str) -> None:
    assert save(tmp_path, 10)
    assert save(tmp_path, 20)
    path = tmp_path / "000000020" / file
    whole = path.read_bytes()
    for i in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[i // 8] ^= 1 << i % 8
        path.write_bytes(damaged)
        assert load_training(tmp_path, keep=False).updates == 10, f"bit {i} of {file}"
    path.write_bytes(whole)
    assert load_training(tmp_path).updates == 20


@pytest.mark.fault("F63")
def test_without_a_whole_checkpoint_nothing_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(DamagedFile, match="no checkpoint to resume from"):
        load_training(tmp_path)
    for updates in (10, 20):
        assert save(tmp_path, updates)
        truncate(tmp_path / f"{updates:09d}" / "train.safetensors")
    with pytest.raises(UsageError, match=r"000000020.*000000010") as refused:
        load_training(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_file_larger_than_expected_is_refused(tmp_path: Path) -> None:
    assert save(tmp_path, 10)
    size = (tmp_path / "last" / "train.safetensors").stat().st_size
    assert load_training(tmp_path, limit=size).updates == 10
    with pytest.raises(DamagedFile, match="at most"):
        load_training(tmp_path, limit=size - 1)


# Checkpoints of format 1 have no manifest.


@pytest.mark.fault("F70")
def test_a_checkpoint_of_format_1_still_loads() -> None:
    loaded = load_training(GOLDEN / "format-1" / "checkpoints")
    assert (loaded.updates, loaded.env_steps) == (64, 1504)
    stored = load_file(loaded.path / "train.safetensors")
    assert set(loaded.tensors["train"]) == set(stored)
    for name, array in stored.items():
        np.testing.assert_array_equal(loaded.tensors["train"][name], array)


@pytest.mark.fault("F63")
@pytest.mark.parametrize("file", FILES[:3])
@pytest.mark.parametrize("damage", [truncate, empty, delete, to_fifo, to_folder, to_link])
def test_damage_to_a_checkpoint_of_format_1_is_found(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    shutil.copytree(GOLDEN / "format-1", tmp_path / "r", symlinks=True)
    damage(tmp_path / "r" / "checkpoints" / "000000064" / file)
    with pytest.raises(DamagedFile):
        load_training(tmp_path / "r" / "checkpoints")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"updates": "64", "env_steps": 1},
        {"updates": True, "env_steps": 1},
        {"updates": -1, "env_steps": 1},
        {"updates": 10**300, "env_steps": 1},
        {"updates": 64.0, "env_steps": 1},
        {"updates": 64},
    ],
)
def test_a_config_without_counts_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    shutil.copytree(GOLDEN / "format-1", tmp_path / "r", symlinks=True)
    path = tmp_path / "r" / "checkpoints" / "000000064"
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DamagedFile, match="does not say how many"):
        load_training(path.parent)


def test_nan_in_a_checkpoint_of_format_1_is_refused(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "format-1", tmp_path / "r", symlinks=True)
    path = tmp_path / "r" / "checkpoints" / "000000064" / "train.safetensors"
    tensors = load_file(path)
    tensors["actor"][3] = np.inf
    save_file(tensors, path)
    with pytest.raises(DamagedFile, match="actor holds NaN or infinity"):
        load_training(path.parents[1])


def test_every_tensor_that_does_not_fit_is_named() -> None:
    found = {
        "actor": np.zeros(1, np.float32),
        "critic": np.zeros(4, np.float32),
        "stats": np.zeros(2, np.float64),
        "more": np.zeros(2, np.float32),
    }
    expected = {"actor": (6,), "critic": (4,), "target": (4,), "stats": (2,)}
    assert check_tensors(found, expected) == [
        "target is missing",
        "more is not expected",
        "actor has shape (1,) instead of (6,)",
        "stats has type float64 instead of float32",
    ]
    assert check_tensors({"critic": found["critic"]}, {"critic": (4,)}) == []


def test_a_header_that_lies_about_its_length_reads_nothing(tmp_path: Path) -> None:
    assert save(tmp_path, 10)
    path = tmp_path / "last" / "train.safetensors"
    for length in (0, 1, 10**6, 2**40, 2**64 - 1):
        path.write_bytes(struct.pack("<Q", length) + b"{}")
        with pytest.raises(DamagedFile, match="not a safetensors file"):
            load_training(tmp_path)
