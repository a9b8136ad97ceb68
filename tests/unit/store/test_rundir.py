"""Finding runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spreeze.errors import UsageError
from spreeze.store.files import write_atomic
from spreeze.store.rundir import RunDir, find_run, list_runs


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
    with pytest.raises(UsageError, match="there is no run 'mine': there are no runs in "):
        find_run("mine", tmp_path / "none")
    with pytest.raises(UsageError, match="Train one first"):
        find_run(None, tmp_path / "empty")
    with pytest.raises(UsageError, match="no checkpoint yet"):
        RunDir(new).checkpoint()


def test_a_checkpoint_is_chosen_by_its_link_or_its_number(tmp_path: Path) -> None:
    run = RunDir(make_run(tmp_path, "run", 100))
    folders = [run.checkpoints / name for name in ("000000500", "000012000")]
    for path in folders:
        path.mkdir(parents=True)
    with pytest.raises(UsageError, match="no checkpoint 'best' yet"):
        run.checkpoint("best")
    (run.checkpoints / "last").symlink_to("000012000")
    assert run.checkpoint() == run.checkpoint("last") == folders[1]
    (run.checkpoints / "best").symlink_to("000000500")
    assert run.checkpoint() == run.checkpoint("best") == folders[0]
    assert run.checkpoint("12000") == run.checkpoint("12,000") == folders[1]
    assert run.checkpoint("000000500") == folders[0]
    with pytest.raises(UsageError, match=r"--checkpoint 7: .*best, last, 500, 12000"):
        run.checkpoint("7")
    with pytest.raises(UsageError, match=r"--checkpoint \.\./x"):
        run.checkpoint("../x")
