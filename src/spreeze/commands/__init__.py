"""The commands, one module each with a `main(arguments, started_s) -> exit code`."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_json(value: Any, file: str) -> None:
    """The facts of a command as JSON, to a file or, for `-`, to standard output."""
    text = json.dumps(value, indent=2) + "\n"
    if file == "-":
        sys.stdout.write(text)
    else:
        Path(file).write_text(text)


@contextmanager
def own_stdout() -> Iterator[None]:
    """What environments print inside the block, from C too, goes to standard error: the facts stay alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
