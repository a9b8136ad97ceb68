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
    with pytest.raises(UsageError, match="Train one first"):
        find_run(None, tmp_path / "empty")
    with pytest.raises(UsageError, match="no checkpoint yet"):
        RunDir(new).checkpoint()
