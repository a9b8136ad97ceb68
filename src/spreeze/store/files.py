"""Writing files: in one step, or synced to disk; and results as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def write_json(value: Any, file: str) -> None:
    """The facts of a command as JSON, to a file or, for `-`, to standard output."""
    text = json.dumps(value, indent=2) + "\n"
    if file == "-":
        sys.stdout.write(text)
    else:
        Path(file).write_text(text)


def write_atomic(path: Path, value: Any) -> None:
    """Replace a JSON file in one step: a reader sees the old one or the new one."""
    replace_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def replace_bytes(path: Path, content: bytes) -> None:
    """Replace a file in one step; not synced: for what is rewritten all the time."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError:  # a full disk
        draft.unlink(missing_ok=True)
        raise


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
