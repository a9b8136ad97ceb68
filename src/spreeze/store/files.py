"""Files: written atomically or synced to disk, and read with care.

A run directory may come from anywhere. So files in it are opened without following links, only plain
files are read, and nothing is read beyond a limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any, BinaryIO

from spreeze.errors import DamagedFile

MAX_JSON_BYTES = 4 << 20
"""As objects, JSON takes up to thirty times this much memory."""


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
        draft.unlink(missing_ok=True)
        write_new(draft, content)
        draft.replace(path)
    except OSError:  # such as a full disk
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def write_new(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet, not even as a link."""
    with path.open("xb") as file:
        file.write(content)


def sync(path: Path, *, drop: bool = False) -> None:
    """Wait until a file or folder is on disk; with `drop`, the next reader sees the disk, not the cache."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(fd)
        if drop:
            with contextlib.suppress(OSError):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def open_inside(folder: Path, *names: str) -> BinaryIO:
    """Open a plain file inside `folder`. No name after `folder` may be a link; a pipe does not block.

    Raises FileNotFoundError if it does not exist, DamagedFile if it is anything but a plain file.
    """
    path = folder.joinpath(*names)
    parent = -1
    try:
        parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        for name in names[:-1]:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            os.close(parent)
            parent = inner
        fd = os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # a null character in a name is a ValueError
        raise DamagedFile(f"{path} cannot be read: {_why(path, error)}.") from None
    finally:
        if parent >= 0:
            os.close(parent)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DamagedFile(f"{path} is not a plain file.")
    return open(fd, "rb")


def _why(path: Path, error: OSError | ValueError) -> str:
    """What the system says about a file that cannot be opened; a link is named as such."""
    if path.is_symlink():
        return "it is a link"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def read_inside(folder: Path, *names: str, limit: int = MAX_JSON_BYTES) -> bytes:
    """The bytes of a plain file inside `folder`; see `open_inside`. Refused beyond `limit` bytes."""
    path = folder.joinpath(*names)
    with open_inside(folder, *names) as file:
        try:
            content = file.read(limit + 1)
        except OSError as error:
            raise DamagedFile(f"{path} cannot be read: {error.strerror}.") from None
    if len(content) > limit:
        raise DamagedFile(f"{path} is larger than {limit:,} bytes.")
    return content


def read_json(folder: Path, *names: str, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The JSON object in a file inside `folder`; DamagedFile if it holds anything else."""
    return parse_json(read_inside(folder, *names, limit=limit), str(folder.joinpath(*names)))


def loads(text: str | bytes, **options: Any) -> Any:
    """As `json.loads`, but text that is nested too deeply is a ValueError, too."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_json(content: bytes, name: str) -> dict[str, Any]:
    """A JSON object from bytes. `name` is for the message of the DamagedFile that is raised otherwise."""
    try:
        value = loads(content.decode(), parse_constant=lambda _: None)  # NaN is no number
    except ValueError as error:  # not UTF-8, not JSON, or a number with thousands of digits
        raise DamagedFile(f"{name} is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise DamagedFile(f"{name} is not a JSON object.")
    return value
