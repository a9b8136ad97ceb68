"""Checkpoints: folders that are either complete or absent, and that are checked before they are used.

A folder is written under a temporary name. Its files and the folder itself are synced to disk and read
back, and only then is it renamed. `last` and `best` are links that are replaced atomically. Tensors are
stored as safetensors and everything else as JSON, so loading a checkpoint cannot run code. A manifest
with the size and hash of each file finds damage.

Only the learner saves training checkpoints, and only the evaluator the best policy.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from spreeze.errors import DamagedFile
from spreeze.faults import fault_point
from spreeze.store.files import sync, write_new
from spreeze.store.manifest import MANIFEST, CheckpointContent, make_manifest, read_checkpoint
from spreeze.store.tensors import MAX_TENSOR_BYTES, Tensors, check_tensors, encode_tensors

__all__ = [
    "LoadedTraining",
    "check_tensors",
    "has_training_checkpoint",
    "load_training",
    "save_best",
    "save_training",
]


class Kind(Enum):
    """What a checkpoint is for: the link that names the newest, and the pattern of the names."""

    TRAINING = "last", re.compile(r"(\d{9,18})(?:-(\d{1,9}))?", re.ASCII)
    BEST = "best", re.compile(r"(\d{9,18})-best(?:-(\d{1,9}))?", re.ASCII)

    def __init__(self, link: str, pattern: re.Pattern[str]) -> None:
        """The link is the prefix of temporary names, too: each kind has one writer."""
        self.link, self.pattern = link, pattern

    def order(self, name: str) -> tuple[int, int] | None:
        """Sorts names by updates, then by how often this number was saved; None for other names."""
        found = self.pattern.fullmatch(name)
        return None if found is None else (int(found[1]), int(found[2] or 1))

    def folder_name(self, updates: int, copy: int) -> str:
        """The name of a checkpoint; `copy` counts those with this number of updates, from 1."""
        middle = "-best" if self is Kind.BEST else ""
        return f"{updates:09d}{middle}{'' if copy == 1 else f'-{copy}'}"


@dataclass(frozen=True)
class LoadedTraining:
    """The newest training checkpoint of a run that is whole."""

    path: Path
    tensors: dict[str, dict[str, NDArray[Any]]]
    """By file (`policy`, `train`), then by name."""
    data: dict[str, dict[str, Any]]
    """By file; `config` has `updates` and `env_steps`, which are whole numbers."""
    refused: list[tuple[Path, str]]
    """Newer checkpoints that are damaged, and what is wrong with each."""

    @property
    def updates(self) -> int:
        """Updates done: exact, while the state counts in float32."""
        return int(self.data["config"]["updates"])

    @property
    def env_steps(self) -> int:
        """Env steps done."""
        return int(self.data["config"]["env_steps"])


def load_training(
    folder: Path,
    limit: int = MAX_TENSOR_BYTES,
    *,
    keep: bool = True,
    wanted: Callable[[dict[str, dict[str, Any]]], bool] = lambda _: True,
) -> LoadedTraining:
    """The newest checkpoint in `folder` that is whole; DamagedFile, with every reason, if there is none.

    `limit` bounds the bytes of each file of tensors. Without `keep` the tensors are checked, not
    kept. Whether they fit the networks is for the caller to find out, with `check_tensors`. Those
    whose data are not `wanted` are passed over.
    """
    refused: list[tuple[Path, str]] = []
    for path in reversed(_list(folder, Kind.TRAINING)):
        try:
            content = read_checkpoint(path, limit=limit, keep=keep)
            _check_training(path, content)
        except DamagedFile as error:
            refused.append((path, str(error)))
        else:
            if wanted(content.data):
                return LoadedTraining(path, content.tensors, content.data, refused)
    if not refused:
        raise DamagedFile(f"{folder} has no checkpoint to resume from.")
    reasons = " ".join(why for _, why in refused)
    raise DamagedFile(f"{folder} has no checkpoint that is whole. {reasons}")


def has_training_checkpoint(folder: Path) -> bool:
    """Whether there is any checkpoint to resume from, whole or damaged."""
    return bool(_list(folder, Kind.TRAINING))


def _check_training(path: Path, content: CheckpointContent) -> None:
    """Whether a checkpoint has what a learner resumes from."""
    config = content.data.get("config", {})
    for name in ("updates", "env_steps"):
        value = config.get(name)
        if type(value) is not int or not 0 <= value < 2**53:
            raise DamagedFile(f"{path / 'config.json'} does not say how many {name} were done.")
    if "train" not in content.tensors:
        raise DamagedFile(f"{path} has no training state.")


def save_training(
    folder: Path, updates: int, tensors: Mapping[str, Tensors], data: Mapping[str, Any], keep: int
) -> bool:
    """Save `<updates>/`, a checkpoint to resume from, as `last`. Return False if the disk refused it."""
    return _try_to_save(folder, Kind.TRAINING, updates, tensors, data, keep)


def save_best(
    folder: Path, updates: int, tensors: Mapping[str, Tensors], data: Mapping[str, Any]
) -> bool:
    """Save `<updates>-best/`, a policy to deploy, as `best`. Return False if the disk refused it."""
    return _try_to_save(folder, Kind.BEST, updates, tensors, data, 1)


def _try_to_save(
    folder: Path,
    kind: Kind,
    updates: int,
    tensors: Mapping[str, Tensors],
    data: Mapping[str, Any],
    keep: int,
) -> bool:
    """Save, link, then delete older ones. A disk that refuses is reported and not raised.

    In that case nothing older is deleted, so the checkpoints that were saved before stay usable.
    """
    files = {f"{stem}.safetensors": encode_tensors(group) for stem, group in tensors.items()}
    for stem, value in data.items():
        files[f"{stem}.json"] = json.dumps(value, indent=2).encode()
    try:
        path = _save(folder, kind, updates, files)
        _link(path, kind)
    except (OSError, DamagedFile) as error:
        print(f"checkpoint {updates} was not saved: {error}", file=sys.stderr)  # noqa: T201
        return False
    with contextlib.suppress(OSError):  # what cannot be deleted now is deleted after the next save
        _prune(path, kind, keep)
    return True


def _save(folder: Path, kind: Kind, updates: int, files: dict[str, bytes]) -> Path:
    """Write files as a checkpoint and return its path. If anything fails, nothing is left of it."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f".{kind.link}-*"):  # of a process that was killed
        _remove(leftover)
    draft = folder / _hidden_name(kind)
    draft.mkdir(mode=0o700)
    try:
        fault_point("checkpoint.begun")
        for name, content in {**files, MANIFEST: make_manifest(files)}.items():
            write_new(draft / name, content)
        fault_point("checkpoint.written")
        for written in draft.iterdir():
            sync(written, drop=True)  # it is read back from the disk
        sync(draft)
        fault_point("checkpoint.synced")
        read_checkpoint(draft, keep=False)
        fault_point("checkpoint.verified")
        path = _free_path(folder, kind, updates)
        draft.rename(path)
    except BaseException:
        _remove(draft)
        raise
    sync(folder)
    fault_point("checkpoint.renamed")
    return path


def _free_path(folder: Path, kind: Kind, updates: int) -> Path:
    """A name that no checkpoint has: a restarted run reaches the same number with other weights."""
    orders = [order for path in _list(folder, kind) if (order := kind.order(path.name))]
    copies = [copy for number, copy in orders if number == updates]
    return folder / kind.folder_name(updates, max(copies, default=0) + 1)


def _link(path: Path, kind: Kind) -> None:
    """Point `last` or `best` at this checkpoint, atomically."""
    draft = path.with_name(_hidden_name(kind))
    draft.symlink_to(path.name)
    try:
        draft.replace(path.parent / kind.link)
    except OSError:
        _remove(draft)
        raise
    sync(path.parent)
    fault_point("checkpoint.linked")


def _hidden_name(kind: Kind) -> str:
    """A new temporary name; what is left under such names is deleted before the next save."""
    return f".{kind.link}-{secrets.token_hex(8)}"


def _prune(newest: Path, kind: Kind, keep: int) -> None:
    """Delete checkpoints of this kind except the newest `keep`.

    Those with a higher number than the one just saved were refused when this run loaded the one it
    went on from, so they go as well.
    """
    others = _list(newest.parent, kind)
    position = others.index(newest)
    for path in others[: max(position + 1 - keep, 0)] + others[position + 1 :]:
        hidden = path.with_name(_hidden_name(kind))
        path.rename(hidden)  # first, so that a checkpoint with a name is never half deleted
        _remove(hidden)
    fault_point("checkpoint.pruned")


def _list(folder: Path, kind: Kind) -> list[Path]:
    """The checkpoints of this kind, oldest first. Links are not followed."""
    try:
        entries = [path for path in folder.iterdir() if not path.is_symlink() and path.is_dir()]
    except OSError:
        return []
    found = [(order, path) for path in entries if (order := kind.order(path.name)) is not None]
    return [path for _, path in sorted(found)]


def _remove(path: Path) -> None:
    """Delete a folder or a link, whatever state it is in."""
    if path.is_symlink():
        with contextlib.suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
