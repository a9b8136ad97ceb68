"""Checkpoints: folders that are either whole or not there.

A folder is written under a temporary name, every file and the folder itself are synced to disk,
and only then it gets its name. `last` and `best` are links, replaced atomically. Tensors are
safetensors and everything else is JSON: loading a checkpoint cannot run code.
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

Tensors = Mapping[str, NDArray[Any]]


def save_checkpoint(
    folder: Path, updates: int, tensors: Mapping[str, Tensors], data: Mapping[str, Any]
) -> Path:
    """Write `<folder>/<updates>/` with `<name>.safetensors` and `<name>.json` files; returns its path."""
    path = folder / f"{updates:09d}"
    if path.exists():
        return path  # the same number of updates: the same weights
    draft = folder / f".{path.name}.{os.getpid()}"
    draft.mkdir(parents=True)
    try:
        for name, group in tensors.items():
            whole = {key: np.ascontiguousarray(array) for key, array in group.items()}
            write_synced(draft / f"{name}.safetensors", to_safetensors(whole))
        for name, value in data.items():
            write_synced(draft / f"{name}.json", json.dumps(value, indent=2).encode())
        _sync_folder(draft)
        try:
            draft.rename(path)
        except OSError:
            if not path.exists():  # else another role saved the same weights in the meantime
                raise
        _sync_folder(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def name_checkpoint(path: Path, name: str) -> None:
    """Let `last` or `best` mean this checkpoint, in one step."""
    link = path.parent / name
    draft = path.parent / f".{name}.{os.getpid()}"
    draft.unlink(missing_ok=True)
    draft.symlink_to(path.name)
    draft.replace(link)
    _sync_folder(path.parent)


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Delete the oldest checkpoints but the newest `keep` and those with a name."""
    named = {(folder / name).resolve() for name in ("last", "best")}
    numbered = sorted(path for path in folder.iterdir() if path.name.isdigit())
    for path in numbered[:-keep]:
        if path.resolve() not in named:
            shutil.rmtree(path, ignore_errors=True)


def try_to_save(
    folder: Path, updates: int, tensors: Mapping[str, Tensors], data: Mapping[str, Any], name: str
) -> bool:
    """Save and name a checkpoint; False, and the cause on standard error, if the disk refuses.

    A full disk costs a checkpoint, never the run: what was saved before is still whole.
    """
    try:
        name_checkpoint(save_checkpoint(folder, updates, tensors, data), name)
    except OSError as error:
        print(f"checkpoint {updates} was not saved: {error}", file=sys.stderr)  # noqa: T201
        return False
    return True


def write_atomic(path: Path, value: Any) -> None:
    """Replace a JSON file in one step: a reader sees the old one or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(value, indent=2) + "\n")
    draft.replace(path)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
