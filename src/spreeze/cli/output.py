"""The commands, one module each with a `main(arguments, started_s) -> exit code`."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
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
