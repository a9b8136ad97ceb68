"""The run directory: its paths, and what its files say about a run. Tools read nothing else.

config.json   system.json   status.json   summary.json
metrics/<role>-<i>.jsonl    tensorboard/  checkpoints/<n>/  live/  videos/  logs/<role>-<i>.log
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spreeze.errors import UsageError
from spreeze.text import suggest


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

    def log(self, role: str) -> Path:
        """File with the output of a role."""
        return self.path / "logs" / f"{role}.log"

    def read(self, name: str) -> dict[str, Any]:
        """Read `config`, `system`, `status` or `summary`. Empty if the file does not exist yet."""
        try:
            value = json.loads((self.path / f"{name}.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return value if isinstance(value, dict) else {}

    def checkpoint(self) -> Path:
        """The best checkpoint, or the last if there is no best one. UsageError if there is none."""
        for name in ("best", "last"):
            if (self.checkpoints / name / "policy.safetensors").exists():
                return (self.checkpoints / name).resolve()
        raise UsageError(
            [
                f"run {self.path} has no checkpoint yet. The first evaluation writes one. "
                f"If the run has ended, look into {self.path / 'logs'}."
            ]
        )


def list_runs(folder: Path) -> list[RunDir]:
    """The runs in a folder, newest last."""
    if not folder.is_dir():
        return []
    found = [RunDir(path) for path in folder.iterdir() if (path / "config.json").exists()]
    return sorted(found, key=lambda run: (run.path / "config.json").stat().st_mtime)


def find_run(run: str | None, folder: Path) -> RunDir:
    """Find a run by path or by its name in `folder`. None means the newest."""
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
    hint = suggest(run, (known.path.name for known in runs), 0.4) or (
        f" To list the {len(runs)} runs in {folder}/: spreeze runs {shlex.quote(str(folder))}"
    )
    raise UsageError([f"there is no run {run!r}.{hint}"])


def run_facts(run: RunDir) -> dict[str, Any]:
    """One run as a table row: from its summary, or from its last status if it has not ended."""
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
    in_progress = {"final_return": "eval_return", "wall_s": "time_s"}
    values = {name: summary.get(name, progress.get(in_progress.get(name, name))) for name in names}
    return {"name": run.path.name, "state": state, **values, "reason": summary.get("reason")}


def _mapping(value: Any) -> dict[str, Any]:
    """The value if it is a mapping, else an empty one: a stored file may hold anything."""
    return value if isinstance(value, dict) else {}


def updates_before(resume: str | None) -> int:
    """Updates done by the run that is resumed, from its config: the state counts in float32, exact only to 2^24."""
    if resume is None:
        return 0
    return int(RunDir(Path(resume) / "checkpoints" / "last").read("config")["updates"])
