"""The run directory: all that tools know about a run.

config.json   system.json   status.json   summary.json
metrics/<role>-<i>.jsonl    tensorboard/  checkpoints/<n>/  live/  videos/  logs/<role>-<i>.log
"""

from __future__ import annotations

import difflib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spreeze.errors import UsageError


@dataclass(frozen=True)
class RunDir:
    """Paths and contents of one run."""

    path: Path

    @property
    def short_path(self) -> Path:
        """As the user would write it from where he is."""
        here = Path.cwd()
        return self.path.relative_to(here) if self.path.is_relative_to(here) else self.path

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """Where the JSON lines lie."""
        return self.path / "metrics"

    @property
    def live(self) -> Path:
        """Where the newest picture of the policy lies, `frame.jpg`, and what it shows, `view.json`."""
        return self.path / "live"

    @property
    def videos(self) -> Path:
        """Where the videos of milestones lie."""
        return self.path / "videos"

    def log(self, role: str) -> Path:
        """Where a role's output goes."""
        return self.path / "logs" / f"{role}.log"

    def read(self, name: str) -> dict[str, Any]:
        """`config`, `system`, `status` or `summary`; empty where it is not written yet."""
        try:
            value = json.loads((self.path / f"{name}.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return value if isinstance(value, dict) else {}

    def checkpoint(self) -> Path:
        """The best checkpoint, else the last; UsageError where none was written."""
        for name in ("best", "last"):
            if (self.checkpoints / name / "policy.safetensors").exists():
                return (self.checkpoints / name).resolve()
        raise UsageError(
            [
                f"run {self.path} has no checkpoint yet. One is written at the first evaluation; "
                f"{self.path / 'logs'} says what happened."
            ]
        )


def list_runs(folder: Path) -> list[RunDir]:
    """The runs in a folder, the newest last."""
    if not folder.is_dir():
        return []
    found = [RunDir(path) for path in folder.iterdir() if (path / "config.json").exists()]
    return sorted(found, key=lambda run: (run.path / "config.json").stat().st_mtime)


def find_run(run: str | None, folder: Path) -> RunDir:
    """A run by path, by name under `folder`, or the newest one."""
    runs = list_runs(folder)
    if run is None:
        if not runs:
            raise UsageError(
                [f"there are no runs in {folder}/. Train one first: spreeze train Pendulum-v1"]
            )
        return runs[-1]
    for path in (Path(run), folder / run):
        if (path / "config.json").exists() and not (path / "policy.safetensors").exists():
            return RunDir(path)
    near = difflib.get_close_matches(run, [known.path.name for known in runs], 1, 0.4)
    hint = (
        f" Did you mean {near[0]}?"
        if near
        else f" {folder}/ holds {len(runs)} runs: spreeze runs {shlex.quote(str(folder))}"
    )
    raise UsageError([f"there is no run {run!r}.{hint}"])


def run_facts(run: RunDir) -> dict[str, Any]:
    """One run as a row: its summary, or what it last said of itself."""
    import psutil

    status, summary = run.read("status"), run.read("summary")
    progress, pid = _mapping(status.get("progress")), _mapping(status.get("pids")).get("supervisor")
    state = summary.get("state") or status.get("state", "unknown")
    if state == "running" and not (
        isinstance(pid, int) and 0 < pid < 2**31 and psutil.pid_exists(pid)
    ):
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
    other = {"final_return": "eval_return", "wall_s": "time_s"}
    values = {name: summary.get(name, progress.get(other.get(name, name))) for name in names}
    return {"name": run.path.name, "state": state, **values, "reason": summary.get("reason")}


def _mapping(value: Any) -> dict[str, Any]:
    """A stored file may hold anything."""
    return value if isinstance(value, dict) else {}


def updates_before(resume: str | None) -> int:
    """Updates done by the run that is resumed. Not from the state: float32 stops counting at 2^24."""
    if resume is None:
        return 0
    return int(RunDir(Path(resume) / "checkpoints" / "last").read("config")["updates"])
