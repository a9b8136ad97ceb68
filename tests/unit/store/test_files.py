"""Files that are replaced atomically."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from spreeze.store.files import sync, write_atomic


def test_a_json_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_atomic(path, {"a": 1})
    with path.open() as old:
        write_atomic(path, {"a": 2})
        assert json.load(old) == {"a": 1}, "an open reader keeps the old file"
    assert json.loads(path.read_text()) == {"a": 2}


@pytest.mark.parametrize("drop", [False, True])
def test_a_file_that_is_not_read_back_stays_in_the_cache(
    drop: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: dropped.append(arguments[-1]))
    (tmp_path / "block").write_bytes(b"rows")
    sync(tmp_path / "block", drop=drop)
    assert dropped == [os.POSIX_FADV_DONTNEED] * drop
