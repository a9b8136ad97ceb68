"""The run directory: its paths, and what its files say about a run. Tools read nothing else.

config.json   system.json   status.json   summary.json
metrics/<role>-<i>.jsonl    tensorboard/  checkpoints/<n>/  replay/  live/  videos/  logs/<role>-<i>.log
trace.json.gz is what each process did for some seconds, if --trace was given.
logs/<role>-<i>.error is the newest error of that role's environments.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spreeze.errors import DamagedFile, UsageError
from spreeze.store.files import loads, read_json, replace_bytes
from spreeze.text import plain, suggest

LINKS = ("best", "last")
"""Links to checkpoints: the policy with the best evaluation, and the newest training state."""


@dataclass(frozen=True)
class RunDir:
    """The directory of one run."""

    path: Path

    @property
    def short_path(self) -> Path:
        """The path relative to the working directory, if the run is inside it."""
        here = Path.cwd()
        return self.path.relative_to(here) if self.path.is_relative_to(here) else self.path

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def replay(self) -> Path:
        """Folder of the newest rows of the replay."""
        return self.path / "replay"

    @property
    def metrics(self) -> Path:
        """Folder of the metrics, one JSON-lines file per role."""
        return self.path / "metrics"

    @property
    def live(self) -> Path:
        """Folder of the newest picture of the policy, `frame.jpg`, and its description, `view.json`."""
        return self.path / "live"

    @property
    def videos(self) -> Path:
        """Folder of the videos."""
        return self.path / "videos"

    @property
    def trace(self) -> Path:
        """What each process did, for a viewer; exists after --trace."""
        return self.path / "trace.json.gz"

    @property
    def trace_parts(self) -> Path:
        """Folder in which each process saves its part of the trace."""
        return self.path / "trace"

    def log(self, role: str) -> Path:
        """File with the output of a role."""
        return self.path / "logs" / f"{role}.log"

    def error(self, role: str) -> Path:
        """File with the newest error of a role's environments; does not exist without any."""
        return self.path / "logs" / f"{role}.error"

    def keep_error(self, role: str, text: str) -> None:
        """Make this the newest error of a role's environments."""
        path = self.error(role)
        path.parent.mkdir(exist_ok=True)
        replace_bytes(path, text.encode(errors="replace"))

    def read(self, name: str) -> dict[str, Any]:
        """Read `config`, `system`, `status` or `summary`. Empty if it does not exist or is damaged."""
        try:
            return read_json(self.path, f"{name}.json")
        except (FileNotFoundError, DamagedFile):
            return {}

    @property
    def engine(self) -> str | None:
        """What stepped the run's environments, if its config says so."""
        return _word(self._simulation().get("engine"))

    @property
    def max_episode_steps(self) -> int | None:
        """The time limit that the run gave its environments, if its config says so."""
        steps = self._simulation().get("max_episode_steps")
        return steps if type(steps) is int and steps > 0 else None

    @property
    def env_kwargs(self) -> dict[str, Any]:
        """The arguments that the run gave its environments, if its config says so."""
        text = self._simulation().get("kwargs")
        try:
            return _mapping(loads(text)) if isinstance(text, str) else {}
        except ValueError:
            return {}

    def _simulation(self) -> dict[str, Any]:
        return _mapping(_mapping(self.read("config").get("config")).get("simulation"))

    def checkpoint(self, which: str | None = None) -> Path:
        """The checkpoint `best`, `last`, or the one after so many updates; None: the best, or else the last.

        UsageError if there is none.
        """
        names = (which,) if which in LINKS else LINKS if which is None else ()
        for name in names:
            if os.path.lexists(self.checkpoints / name):
                return self._linked(name)
        if which is not None and which not in LINKS:
            return self._after_updates(which)
        missing = "no checkpoint" if which is None else f"no checkpoint {which!r}"
        raise UsageError(
            [
                f"run {self.path} has {missing} yet. The first evaluation writes one. "
                f"If the run has ended, look into {self.path / 'logs'}."
            ]
        )

    def _linked(self, name: str) -> Path:
        """Where `best` or `last` leads to."""
        link = self.checkpoints / name
        # A stored link may lead anywhere. A copy of a run may have a folder in its place.
        target = os.readlink(link) if link.is_symlink() else name
        path = self.checkpoints / target
        outside = "/" in target or target in (".", "..") or self.checkpoints.is_symlink()
        if outside or path.is_symlink() or not path.is_dir():
            raise DamagedFile(f"{link} does not lead to a checkpoint of this run.")
        return path.absolute()

    def _after_updates(self, which: str) -> Path:
        """The checkpoint with this name, or after this number of updates."""
        found: list[Path] = []
        if self.checkpoints.is_dir() and not self.checkpoints.is_symlink():
            folders = [path for path in self.checkpoints.iterdir() if not path.is_symlink()]
            found = sorted(path for path in folders if path.name[:1].isdigit() and path.is_dir())
        number = which.replace(",", "").lstrip("0")
        for path in found:
            if which == path.name or number == path.name.partition("-")[0].lstrip("0"):
                return path.absolute()
        numbers = [*LINKS, *(path.name.lstrip("0") for path in found)]
        raise UsageError(
            [f"--checkpoint {which}: run {self.path} has {', '.join(map(plain, numbers))}."]
        )


def list_runs(folder: Path) -> list[RunDir]:
    """The runs in a folder, newest last."""
    if not folder.is_dir():
        return []
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # not a run, or one that may not be read
            found.append(((path / "config.json").lstat().st_mtime, path))
    return [RunDir(path) for _, path in sorted(found)]


def find_run(run: str | None, folder: Path) -> RunDir:
    """Find a run by path or by its name in `folder`. None means the newest."""
    runs = list_runs(folder)
    if run is None and runs:
        return runs[-1]
    for path in () if run is None else (Path(run), folder / run):
        if os.path.lexists(path / "config.json") and not (path / "policy.safetensors").exists():
            return RunDir(path)
    missing = "" if run is None else f"there is no run {run!r}: "
    if run is None or not runs:
        train = "Train one first: spreeze train Pendulum-v1"
        raise UsageError([f"{missing}there are no runs in {folder}/. {train}"])
    hint = suggest(run, (known.path.name for known in runs), 0.4) or (
        f" To list those in {folder}/: spreeze runs {shlex.quote(str(folder))}"
    )
    raise UsageError([f"there is no run {run!r}.{hint}"])


def run_facts(run: RunDir) -> dict[str, Any]:
    """One run as a table row: from its summary, or from its last status if it has not ended."""
    status, summary = run.read("status"), run.read("summary")
    progress = _mapping(status.get("progress"))
    state = summary.get("state") or status.get("state") or "unknown"
    if state == "running" and not supervisor_lives(status):
        state = "killed"
    names = (
        "best_return",
        "final_return",
        "env_steps",
        "updates",
        "wall_s",
        "sample_hz",
        "update_hz",
    )
    in_progress = {"final_return": "eval_return", "wall_s": "time_s"}
    values = {
        name: _number(summary.get(name, progress.get(in_progress.get(name, name))))
        for name in names
    }
    config = _mapping(run.read("config").get("config"))
    return {
        "name": run.path.name,
        "env": _word(config.get("env")),
        "algo": _word(config.get("algo")),
        "seed": _number(config.get("seed")),
        "state": _word(state),
        **values,
        "reason": _word(summary.get("reason")),
    }


def supervisor_lives(status: dict[str, Any]) -> bool:
    """Whether the process that wrote this status still runs, and not a later one with the same pid."""
    pid, started = _mapping(status.get("pids")).get("supervisor"), status.get("started")
    if type(pid) is not int or not 0 < pid < 2**31:
        return False
    found = process_start(pid)
    # Runs of earlier versions did not record when they were started.
    return found is not None and started in (None, found)


def process_start(pid: int) -> str | None:
    """When a process was started, exact and never the same for two with one pid; None if it does not run."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The name of the process is in brackets and may hold anything.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else f"{boot} {fields[18]}"


def _mapping(value: Any) -> dict[str, Any]:
    """The value if it is a mapping, else an empty one: a stored file may hold anything."""
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> int | float | None:
    """The value if it is a number that can be shown, else None."""
    if type(value) not in (int, float) or not abs(value) < 1e18:
        return None
    return value  # type: ignore[no-any-return]


def _word(value: Any) -> str | None:
    """A short stored text, safe to print; None for anything else."""
    return plain(value[:100]) if isinstance(value, str) else None
