"""Writing files: atomically, synced to disk, or as the JSON result of a command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def write_json(value: Any, file: str) -> None:
    """Write the result of a command as JSON to a file, or to standard output if `file` is `-`."""
    text = json.dumps(value, indent=2) + "\n"
    if file == "-":
        sys.stdout.write(text)
    else:
        Path(file).write_text(text)


def write_atomic(path: Path, value: Any) -> None:
    """Replace a JSON file atomically: a reader sees the old content or the new, never a mixture."""
    replace_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def replace_bytes(path: Path, content: bytes) -> None:
    """Replace a file atomically. Not synced to disk: this is for files that are rewritten often."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError:  # such as a full disk
        draft.unlink(missing_ok=True)
        raise


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
