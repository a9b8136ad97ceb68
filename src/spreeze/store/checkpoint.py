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

from spreeze.store.files import write_synced

Tensors = Mapping[str, NDArray[Any]]


def save_checkpoint(
    folder: Path, name: str, tensors: Mapping[str, Tensors], data: Mapping[str, Any]
) -> Path:
    """Write `<folder>/<name>/` with `<x>.safetensors` and `<x>.json` files; returns its path."""
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
        if path.exists():  # of before a restart: the same number of updates, other weights
            path.rename(old)
        draft.rename(path)
        _sync_folder(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return path


def name_checkpoint(path: Path, link: str) -> None:
    """Let `last` or `best` mean this checkpoint, in one step."""
    draft = path.parent / f".{link}.{os.getpid()}"
    draft.unlink(missing_ok=True)
    draft.symlink_to(path.name)
    draft.replace(path.parent / link)
    _sync_folder(path.parent)


def prune_checkpoints(folder: Path, pattern: str, keep: int) -> None:
    """Delete the oldest checkpoints that match, but the newest `keep` and those with a name."""
    named = {(folder / link).resolve() for link in ("last", "best")}
    for path in sorted(folder.glob(pattern))[:-keep]:
        if path.resolve() not in named:
            shutil.rmtree(path, ignore_errors=True)


def save_training(
    folder: Path, updates: int, tensors: Mapping[str, Tensors], data: Mapping[str, Any], keep: int
) -> bool:
    """A checkpoint to resume from, `<updates>/`; it becomes `last`. False if the disk refused."""
    return _try_to_save(folder, f"{updates:09d}", "last", tensors, data, ("[0-9]" * 9, keep))


def save_best(
    folder: Path, updates: int, tensors: Mapping[str, Tensors], data: Mapping[str, Any]
) -> bool:
    """A policy to deploy, `<updates>-best/`; it becomes `best`. False if the disk refused."""
    return _try_to_save(folder, f"{updates:09d}-best", "best", tensors, data, ("*-best", 1))


def _try_to_save(
    folder: Path,
    name: str,
    link: str,
    tensors: Mapping[str, Tensors],
    data: Mapping[str, Any],
    prune: tuple[str, int],
) -> bool:
    """A full disk costs a checkpoint, never the run: what was saved before is still whole."""
    try:
        name_checkpoint(save_checkpoint(folder, name, tensors, data), link)
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
