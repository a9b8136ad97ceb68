"""The user's cache folder: compiled updates and measurements of this machine."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Where the cache is: in the user's cache folder, else in a private temporary one; OSError if nowhere."""
    try:
        return _usable(_home_cache())
    except (OSError, RuntimeError):
        return _private_folder()


def cache_note() -> str | None:
    """What to tell the user if the cache is not where it belongs; None if it is."""
    try:
        _usable(_home_cache())
    except (OSError, RuntimeError) as error:
        why = f"the cache folder cannot be used ({error})"
    else:
        return None
    try:
        return f"{why}; {_private_folder()} is used instead. To choose one, set XDG_CACHE_HOME."
    except OSError:
        return f"{why}: every run has to measure and compile again. Set XDG_CACHE_HOME to a folder."


def _home_cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # or compiled code would be loaded from the working folder
        base = Path("~/.cache").expanduser()
    return base / "spreeze"


def _usable(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written to")
    return folder


def _private_folder() -> Path:
    """A folder in the temporary one that nobody else can have prepared: compiled code is loaded from it."""
    folder = Path(tempfile.gettempdir()) / f"spreeze-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    ours = found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) & 0o077 == 0
    if not stat.S_ISDIR(found.st_mode) or not ours:
        raise PermissionError(f"{folder} belongs to someone else")
    return _usable(folder)
