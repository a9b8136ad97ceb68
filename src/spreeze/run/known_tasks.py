"""Tasks that this user has trained on this machine: their settings need not be listed again."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from spreeze.machine.cache import cache_folder
from spreeze.settings.config import Config


def is_known(config: Config) -> bool:
    """Whether a run of this environment with this algorithm has been started before."""
    with contextlib.suppress(OSError):
        return _mark(config).exists()
    return False


def remember(config: Config) -> None:
    """From now on it is known."""
    with contextlib.suppress(OSError):
        _mark(config).parent.mkdir(parents=True, exist_ok=True)
        _mark(config).touch()


def _mark(config: Config) -> Path:
    task = hashlib.sha256(f"{config.env} {config.algo}".encode()).hexdigest()[:32]
    return cache_folder() / "tasks" / task
