"""The manifest of a checkpoint: what each of its files must be, so that any damage is found.

    {"format": 2, "files": {"config.json": {"size": 9, "sha256": "..."},
                            "policy.safetensors": {..., "tensors": {"w0": {"dtype": "F32", "shape": [3, 4]}}}}}

Checkpoints of format 1 have no manifest. They are read with all other checks.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from spreeze.errors import DamagedFile
from spreeze.store.files import parse_json, read_inside, read_json
from spreeze.store.tensors import MAX_TENSOR_BYTES, TensorFile, parse_header, read_tensors

FORMAT = 2
MANIFEST = "manifest.json"
MAX_FILES = 64
FILE_NAME = re.compile(r"[\w-]{1,60}\.(safetensors|json)", re.ASCII)
OLD_FILES = ("policy.safetensors", "train.safetensors", "config.json")
"""What a checkpoint without a manifest may hold."""


@dataclass(frozen=True)
class CheckpointContent:
    """What the files of a checkpoint hold, by the name of the file without its ending."""

    tensors: dict[str, dict[str, NDArray[Any]]]
    data: dict[str, dict[str, Any]]


def make_manifest(files: dict[str, bytes]) -> bytes:
    """The manifest of files that are about to be written."""
    return json.dumps(
        {"format": FORMAT, "files": {name: _facts(name, b) for name, b in files.items()}}, indent=2
    ).encode()


def _facts(name: str, content: bytes) -> dict[str, Any]:
    facts = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    if not name.endswith(".safetensors"):
        return facts
    header_bytes = int.from_bytes(content[:8], "little")
    header, rest = content[8 : 8 + header_bytes], len(content) - 8 - header_bytes
    places = parse_header(header, rest, name)
    return facts | {"tensors": {tensor: place.describe() for tensor, place in places.items()}}


def read_checkpoint(
    folder: Path,
    only: Iterable[str] | None = None,
    *,
    limit: int = MAX_TENSOR_BYTES,
    keep: bool = True,
) -> CheckpointContent:
    """Read a checkpoint and check everything that can be checked; DamagedFile if anything is wrong.

    `only` names the files to read; all of them if None. No tensor file may be larger than `limit`
    bytes. Without `keep` the files are only checked.
    """
    listed = read_manifest(folder)
    names = list(listed or _old_files(folder)) if only is None else list(only)
    content = CheckpointContent({}, {})
    for name in names:
        if listed is not None and name not in listed:
            raise DamagedFile(f"{folder / MANIFEST} does not list {name}.")
        facts = None if listed is None else listed[name]
        stem, _, ending = name.rpartition(".")
        try:
            if ending == "json":
                content.data[stem] = _read_data(folder, name, facts)
            else:
                file = read_tensors(folder, name, limit, keep=keep)
                _compare(folder / name, facts, _facts_read(file))
                content.tensors[stem] = file.tensors
        except FileNotFoundError:
            raise DamagedFile(f"{folder / name} is missing.") from None
    return content


def read_manifest(folder: Path) -> dict[str, dict[str, Any]] | None:
    """What the manifest says about each file; None if there is no manifest."""
    path = folder / MANIFEST
    try:
        manifest = read_json(folder, MANIFEST)
    except FileNotFoundError:
        return None
    files = manifest.get("files")
    if manifest.get("format") != FORMAT or set(manifest) != {"format", "files"}:
        raise DamagedFile(
            f"{path} is damaged, or of another format than {FORMAT}: a newer version of Spreeze may read it."
        )
    if not isinstance(files, dict) or not 0 < len(files) <= MAX_FILES:
        raise DamagedFile(f"{path} lists no files.")
    for name, facts in files.items():
        if not FILE_NAME.fullmatch(name) or name == MANIFEST or not isinstance(facts, dict):
            raise DamagedFile(f"{path} lists a file that no checkpoint has.")
    return files


def _old_files(folder: Path) -> list[str]:
    """The files of a checkpoint of format 1, which only a `best` one may lack."""
    return [name for name in OLD_FILES if not folder.name.endswith("-best") or name != OLD_FILES[1]]


def _read_data(folder: Path, name: str, facts: dict[str, Any] | None) -> dict[str, Any]:
    content = read_inside(folder, name)
    found = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    _compare(folder / name, facts, found)
    return parse_json(content, str(folder / name))


def _facts_read(file: TensorFile) -> dict[str, Any]:
    tensors = {name: place.describe() for name, place in file.places.items()}
    return {"size": file.size, "sha256": file.sha256, "tensors": tensors}


def _compare(path: Path, listed: dict[str, Any] | None, found: dict[str, Any]) -> None:
    """Refuse a file that is not what the manifest says; without a manifest there is nothing to compare."""
    if listed is None or listed == found:
        return
    wrong = [name for name in found if listed.get(name) != found[name]]
    raise DamagedFile(f"{path} is not what its manifest says: {', '.join(wrong or ['facts'])}.")
