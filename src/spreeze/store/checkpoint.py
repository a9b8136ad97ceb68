"""Checkpoints: folders that are either complete or absent.

A folder is written under a temporary name. Its files and the folder itself are synced to disk, and
only then is it renamed. `last` and `best` are links that are replaced atomically. Tensors are stored
as safetensors and everything else as JSON, so loading a checkpoint cannot run code.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as to_safetensors

from spreeze.store.files import write_synced

Tensors = Mapping[str, NDArray[Any]]


def save_checkpoint(
    folder: Path, name: str, tensors: Mapping[str, Tensors], data: Mapping[str, Any]
) -> Path:
    """Write `<folder>/<name>/` with one `.safetensors` or `.json` file per entry; return its path.

    A checkpoint of the same name is replaced. If writing fails, the old one stays. Replacing takes
    two renames: a process that is killed between them leaves neither under this name.
    """
    path = folder / name
    draft, old = folder / f".{name}.{os.getpid()}", folder / f".{name}.old"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        for stem, group in tensors.items():
            whole = {key: np.array(array, order="C") for key, array in group.items()}
            write_synced(draft / f"{stem}.safetensors", to_safetensors(whole))
        for stem, value in data.items():
            write_synced(draft / f"{stem}.json", json.dumps(value, indent=2).encode())
        _sync_folder(draft)
        if path.exists():  # a restarted run reaches the same number of updates with other weights
            path.rename(old)
        draft.rename(path)
        _sync_folder(folder)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return path


def link_checkpoint(path: Path, link: str) -> None:
    """Point the link `last` or `best` at this checkpoint, atomically."""
    draft = path.parent / f".{link}.{os.getpid()}"
    draft.unlink(missing_ok=True)
    draft.symlink_to(path.name)
    draft.replace(path.parent / link)
    _sync_folder(path.parent)


def prune_checkpoints(folder: Path, pattern: str, keep: int) -> None:
    """Delete matching checkpoints, except the newest `keep` and those that `last` or `best` name."""
    linked = {(folder / link).resolve() for link in ("last", "best")}
    for path in sorted(folder.glob(pattern))[:-keep]:
        if path.resolve() not in linked:
            shutil.rmtree(path, ignore_errors=True)


def save_training(
    folder: Path, updates: int, tensors: Mapping[str, Tensors], data: Mapping[str, Any], keep: int
) -> bool:
    """Save `<updates>/`, a checkpoint to resume from, as `last`. Return False if the disk refused it."""
    return _try_to_save(folder, f"{updates:09d}", "last", tensors, data, ("[0-9]" * 9, keep))


def save_best(
    folder: Path, updates: int, tensors: Mapping[str, Tensors], data: Mapping[str, Any]
) -> bool:
    """Save `<updates>-best/`, a policy to deploy, as `best`. Return False if the disk refused it."""
    return _try_to_save(folder, f"{updates:09d}-best", "best", tensors, data, ("*-best", 1))


def _try_to_save(
    folder: Path,
    name: str,
    link: str,
    tensors: Mapping[str, Tensors],
    data: Mapping[str, Any],
    prune: tuple[str, int],
) -> bool:
    """Save, link, then delete older ones. An OSError, such as a full disk, is printed and not raised.

    In that case nothing older is deleted, so the checkpoints that were saved before stay usable.
    """
    try:
        link_checkpoint(save_checkpoint(folder, name, tensors, data), link)
    except OSError as error:
        print(f"checkpoint {name} was not saved: {error}", file=sys.stderr)  # noqa: T201
        return False
    prune_checkpoints(folder, *prune)
    return True


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
