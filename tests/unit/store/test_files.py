"""Files that are replaced atomically."""

from __future__ import annotations

import json
from pathlib import Path

from spreeze.store.files import write_atomic


def test_a_json_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_atomic(path, {"a": 1})
    with path.open() as old:
        write_atomic(path, {"a": 2})
        assert json.load(old) == {"a": 1}, "an open reader keeps the old file"
    assert json.loads(path.read_text()) == {"a": 2}
