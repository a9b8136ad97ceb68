"""The runs of a folder, read with care.

Runs may come from anywhere, so their files are not trusted: links are not followed, sizes are
limited, and only plain numbers and texts get through.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from spreeze.errors import DamagedFile
from spreeze.store.differences import Knobs, differing, used_knobs
from spreeze.store.files import open_inside, read_json
from spreeze.store.rundir import RunDir, run_facts

MAX_FILE_BYTES, MAX_TEXT_CHARS, MAX_ITEMS, MAX_DEPTH = 4 << 20, 2000, 2000, 8
MAX_VIDEO_BYTES = 64 << 20
RESCAN_S = 2.0
MAX_RUNS = 1000
MAX_DIFFERENCES, MAX_VALUE_CHARS = 60, 200


@dataclass(frozen=True)
class StoredRun(RunDir):
    """A run directory whose files are not trusted."""

    @property
    def id(self) -> str:
        """Identifies the run on the page without telling its path."""
        return hashlib.sha256(self.path.name.encode(errors="surrogateescape")).hexdigest()[:16]

    def open(self, *names: str) -> BinaryIO | None:
        """Open a file of the run. None if it does not exist or is not a plain file.

        The names come from this program or from `listing`, never from a request.
        """
        try:
            return open_inside(self.path, *names)
        except (OSError, DamagedFile):
            return None

    def content(self, *names: str, limit: int = MAX_FILE_BYTES) -> bytes | None:
        """The bytes of a file. None if it does not exist or is too large."""
        file = self.open(*names)
        if file is None:
            return None
        with file:
            data = file.read(limit + 1)
        return data if len(data) <= limit else None

    def read(self, name: str) -> dict[str, Any]:
        """Read `config`, `system`, `status` or `summary`, cleaned. Empty if it does not exist."""
        return self.json(f"{name}.json")

    def json(self, *names: str) -> dict[str, Any]:
        """Read a JSON file of the run, cleaned. Empty if it is not a JSON object."""
        try:
            value: dict[str, Any] = clean(read_json(self.path, *names, limit=MAX_FILE_BYTES))
        except (OSError, DamagedFile):
            return {}
        return value

    def listing(self, folder: str, pattern: str) -> list[str]:
        """Sorted names of the plain files in a folder of the run that match `pattern`."""
        try:
            fd = os.open(self.path / folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            return []
        try:
            with os.scandir(fd) as entries:
                names = [e.name for e in entries if e.is_file(follow_symlinks=False)]
        except OSError:
            return []
        finally:
            os.close(fd)
        return sorted(name for name in names if re.fullmatch(pattern, name))[:MAX_ITEMS]


def clean(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Plain JSON of bounded size: NaN becomes None, long texts are cut, control characters become spaces."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", " ", value[:MAX_TEXT_CHARS])
    if depth == 0:
        return None
    if isinstance(value, list):
        return [clean(item, depth - 1) for item in value[:MAX_ITEMS]]
    if isinstance(value, dict):
        items = list(value.items())[:MAX_ITEMS]
        return {clean(str(k))[:200]: clean(v, depth - 1) for k, v in items}
    return None


class RunIndex:
    """The runs of one folder."""

    def __init__(self, folder: Path) -> None:
        """Read runs in `folder`, also those that appear later."""
        self.folder = folder.resolve()
        self._runs: dict[str, StoredRun] = {}
        self._scanned_s = -math.inf
        self._facts: dict[str, tuple[object, dict[str, Any]]] = {}
        self._compared: list[tuple[str, float | None]] = []
        self._differences: dict[str, Knobs] = {}

    def runs(self) -> dict[str, StoredRun]:
        """Runs by id, oldest first. Links are not followed, so a run outside the folder is never found."""
        now = time.monotonic()
        if now - self._scanned_s > RESCAN_S:
            self._scanned_s = now
            found: list[tuple[float, StoredRun]] = []
            with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        with contextlib.suppress(OSError):
                            config = os.stat(f"{entry.path}/config.json", follow_symlinks=False)
                            found.append((config.st_mtime, StoredRun(Path(entry.path))))
            found.sort(key=lambda pair: pair[0])
            self._runs = {run.id: run for _, run in found[-MAX_RUNS:]}
        return self._runs

    def table(self) -> list[dict[str, Any]]:
        """One row per run, newest first. `differs` has the settings in which runs of its task differ."""
        rows = [self._row(run) for run in reversed(self.runs().values())]
        stamp = [(row["id"], row["began"]) for row in rows]
        if stamp != self._compared:
            self._differences = self._compare(rows)
            self._compared = stamp
        return [row | {"differs": self._differences[row["id"]]} for row in rows]

    def _row(self, run: StoredRun) -> dict[str, Any]:
        stamp = tuple(_stamp(run.path / f"{name}.json") for name in ("status", "summary"))
        known = self._facts.get(run.id)
        if known is None or known[0] != stamp or known[1]["state"] == "running":
            began = {"began": _stamp(run.path / "config.json")}
            known = (stamp, {"id": run.id, **clean(run_facts(run)), **began})
            self._facts[run.id] = known
        return known[1]

    def _compare(self, rows: list[dict[str, Any]]) -> dict[str, Knobs]:
        """For each run, its settings that differ among the runs of its task; the algorithm has its own column."""
        tasks: dict[str | None, list[str]] = {}
        for row in rows:
            tasks.setdefault(row["env"], []).append(row["id"])
        found: dict[str, Knobs] = {}
        for ids in tasks.values():
            own = differing([used_knobs(self._runs[run].read("config")) for run in ids])
            found |= {run: _bounded(knobs) for run, knobs in zip(ids, own, strict=True)}
        return found


def _bounded(knobs: Knobs) -> Knobs:
    """So many knobs, and no long texts, that a list of runs stays small."""
    kept = [(name, value) for name, value in knobs.items() if name != "algo"][:MAX_DIFFERENCES]
    return {
        n: v if len(str(v)) <= MAX_VALUE_CHARS else f"{str(v)[:MAX_VALUE_CHARS]}..."
        for n, v in kept
    }


def _stamp(path: Path) -> float | None:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime
    except OSError:
        return None
