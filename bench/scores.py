"""How long tasks take: rows of tables from bench/results."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

MISSING = "\N{EN DASH}"
FIRST, PREPARED = "first", "prepared"
"""A run on a machine that has compiled and measured nothing, and one where an earlier run did both."""
Facts = dict[str, Any]
Rows = list[list[str]]


class Results:
    """The files of bench/results, each read once."""

    def __init__(self, folder: Path) -> None:
        """Read from this folder."""
        self.folder = folder
        self.files: dict[str, Facts] = {}

    def read(self, name: str) -> Facts:
        """One file by its name without .json."""
        if name not in self.files:
            self.files[name] = json.loads((self.folder / f"{name}.json").read_text())
        return self.files[name]

    def find(self, name: str) -> Facts | None:
        """One file by its name without .json, if it exists."""
        return self.read(name) if (self.folder / f"{name}.json").exists() else None

    def matching(self, pattern: str) -> list[Facts]:
        """All files whose name without .json is like this."""
        return [self.read(path.stem) for path in sorted(self.folder.glob(f"{pattern}.json"))]


@dataclass(frozen=True)
class Task:
    """A return to reach, and the files that say how long it took."""

    env: str
    target: int
    first: tuple[str, ...] = ()
    prepared: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As a table cell."""
        return f"{self.env} to {self.target:,}"


def _on_h200(env: str, recorded: tuple[str, ...] = ("recorded-h200",)) -> tuple[str, ...]:
    """Files of first runs on the H200 and of prepared ones beside them."""
    return (*recorded, *(f"time-to-score-{env}-h200-seed{seed}" for seed in (51, 52)))


TASKS = (
    Task(
        "Pendulum-v1",
        -200,
        first=("time-to-score-Pendulum-v1-2cores",),
        prepared=("time-to-score-Pendulum-v1-2cores",),
    ),
    Task(
        "CartPole-v1",
        475,
        first=("time-to-score-CartPole-v1-2cores",),
        prepared=("time-to-score-CartPole-v1-2cores",),
    ),
    Task(
        "HalfCheetah-v5",
        3000,
        first=("time-to-score-HalfCheetah-v5-2cores",),
        prepared=("time-to-score-HalfCheetah-v5-2cores",),
    ),
    Task("HalfCheetah-v5", 5000, prepared=("recorded-2cores",)),
    Task("Hopper-v5", 3000, prepared=("recorded-2cores",)),
    Task("Walker2d-v5", 3000, prepared=("recorded-2cores",)),
    Task("Pendulum-v1", -200, prepared=("steady-Pendulum-v1-2cores",)),
    Task("CartPole-v1", 475, prepared=("steady-CartPole-v1-2cores",)),
    Task(
        "LunarLanderContinuous-v3",
        200,
        prepared=("steady-LunarLanderContinuous-v3-2cores", "recorded-2cores-avx2"),
    ),
    Task("HalfCheetah-v5", 5000, prepared=("steady-HalfCheetah-v5-2cores",)),
    Task(
        "HalfCheetah-v5",
        10_000,
        first=_on_h200("HalfCheetah-v5"),
        prepared=_on_h200("HalfCheetah-v5"),
    ),
    Task("HalfCheetah-v5", 14_000, prepared=("steady-HalfCheetah-v5-h200",)),
    Task("Hopper-v5", 3000, first=_on_h200("Hopper-v5"), prepared=_on_h200("Hopper-v5")),
    Task("Walker2d-v5", 5000, first=_on_h200("Walker2d-v5"), prepared=_on_h200("Walker2d-v5")),
    Task("Ant-v5", 5000, first=_on_h200("Ant-v5", ()), prepared=_on_h200("Ant-v5", ())),
    Task("Humanoid-v5", 6000, first=_on_h200("Humanoid-v5"), prepared=_on_h200("Humanoid-v5")),
    # The same tasks with the seeds by which settings were chosen, in an earlier version.
    Task(
        "HalfCheetah-v5",
        10_000,
        prepared=("tuner-HalfCheetah-v5-h200", "steady-HalfCheetah-v5-h200"),
    ),
    Task("Hopper-v5", 3000, prepared=("steady-Hopper-v5-h200",)),
    Task("Walker2d-v5", 5000, prepared=("steady-Walker2d-v5-h200",)),
    Task("Ant-v5", 5000, prepared=("steady-Ant-v5-h200",)),
    Task("Humanoid-v5", 6000, prepared=("steady-Humanoid-v5-h200",)),
    Task("Humanoid-v5", 5000, prepared=("tuner-Humanoid-v5-h200", "tuner-Humanoid-v5-finals-h200")),
)
STEADY = ("CartPole-v1-2cores", "LunarLanderContinuous-v3-2cores", "HalfCheetah-v5-2cores",
          "HalfCheetah-v5-h200", "Hopper-v5-h200", "Walker2d-v5-h200", "Ant-v5-h200",
          "Humanoid-v5-h200")  # fmt: skip

STARTS = ("Pendulum-v1-2cores", "Pendulum-v1-2cores-prepared",
          "HalfCheetah-v5-h200", "HalfCheetah-v5-h200-prepared")  # fmt: skip
"""Results of `spreeze bench start-up`."""
MILESTONES = {
    "flags_read": "Python has started and the flags are read",
    "environment_tried": "the environment has been made and tried out",
    "planned": "every setting is chosen",
    "run_folder_made": "the run folder exists",
    "roles_asked_for": "all processes are asked for",
    "all_samplers_stepping": "every sampler has made a step",
    "learner_process_up": "the learner has imported torch",
    "networks_ready": "replay and networks exist",
    "first_update_begun": "the replay holds enough rows",
    "first_update_done": "the first updates are done and their policy is published",
}


def number(value: float | None) -> str:
    """Whole numbers as they are, others with as many decimals as their size deserves."""
    if value is None:
        return MISSING
    decimals = 0 if isinstance(value, int) or abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{decimals}f}"


def seconds(value: float | None) -> str:
    """A time: whole numbers as they were recorded, others with one decimal."""
    if value is None:
        return MISSING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def millions(value: float) -> str:
    """A rate of transitions."""
    return f"{value / 1e6:.1f} M" if value >= 999_500 else number(value)


def percent(share: float) -> str:
    """A share."""
    return f"{100 * share:.0f} %"


def machine(facts: Facts) -> str:
    """What a reader needs to know of the machine."""
    named = facts["machine"]
    parts = [f"{named['cores']} cores", *(name.removeprefix("NVIDIA ") for name in named["gpu"])]
    return ", ".join(parts + ["AVX2 only"] * (named.get("instructions") == "AVX2"))


def seconds_of(facts: Facts, task: Task, start: str) -> list[float | None]:
    """The runs of a task in one file: seconds to the target, None where it was not reached."""
    if "rows" in facts:  # recorded by hand
        wanted = (task.env, task.target, start)
        rows = [r for r in facts["rows"] if (r["env"], r["target"], r.get("start")) == wanted]
        return [time for row in rows for time in row["seconds"]]
    if facts["env"] != task.env:
        return []
    if "wall_s" in facts:  # spreeze bench time-to-score
        if facts["target"] != task.target:
            return []
        if start == PREPARED and facts["cold"]:
            return list(facts["wall_s"].get("spreeze prepared", []))
        return list(facts["wall_s"]["spreeze"]) if facts["cold"] == (start == FIRST) else []
    if start == FIRST:
        return []
    if "chosen" in facts:  # bench/tuner.py
        tuned = [run["time_to_target_s"] for run in facts["runs"] if run["cell"] is None]
        return tuned if facts["target"] == task.target else []
    return [  # bench/steady.py
        next((time for time, *_, mean in run["curve"] if mean >= task.target), None)
        for run in facts["runs"]
    ]


def times(results: Results, task: Task, start: str) -> list[float | None]:
    """The runs of a task in all its files."""
    gathered = []
    for name in task.first if start == FIRST else task.prepared:
        found = seconds_of(results.read(name), task, start)
        if not found:
            sys.exit(f"bench/results/{name}.json has no {start} run of {task}.")
        gathered += found
    return gathered


def middle(times_s: Sequence[float | None]) -> float | None:
    """The median; None if there are no runs or half of them did not get there."""
    typical = median(inf if time is None else time for time in times_s) if times_s else inf
    return typical if typical < inf else None


def machine_of(results: Results, task: Task) -> str:
    """The machine that all files of a task have in common."""
    names = {machine(results.read(name)) for name in task.first + task.prepared}
    if len(names) > 1:
        sys.exit(f"{task}: runs of different machines: {', '.join(sorted(names))}.")
    return names.pop()


def start_up(results: Results) -> Rows:
    """When a run reaches each milestone of its start, in seconds since the command."""
    files = [results.read(f"start-up-{name}") for name in STARTS]
    heads = [
        f"{machine(facts)}, {'prepared' if facts['prepared'] else 'first run'}" for facts in files
    ]
    rows = [["milestone", *(f"{head}, s" for head in heads)]]
    for name, text in MILESTONES.items():
        rows.append([text, *(f"{facts['median_s'][name]:.2f}" for facts in files)])
    return rows


def time_to_score(results: Results) -> Rows:
    """All tasks, first runs beside prepared ones."""
    rows = [["task", "machine", "first run, s", "runs", "prepared, s", "runs"]]
    for task in TASKS:
        cells = [str(task), machine_of(results, task)]
        for start in (FIRST, PREPARED):
            runs = times(results, task, start)
            cells += [seconds(middle(runs)), str(len(runs)) if runs else MISSING]
        rows.append(cells)
    return rows


def steady(results: Results) -> Rows:
    """Whether what was learned stays learned."""
    rows = [["task", "machine", "runs", "slowest, s", "best return", "lowest later evaluation"]]
    for name in STEADY:
        facts = results.read(f"steady-{name}")
        runs = facts["runs"]
        rows.append(
            [
                str(Task(facts["env"], round(facts["target"]))),
                machine(facts),
                str(len(runs)),
                seconds(max(run["seconds"] for run in runs)),
                number(median(run["best"] for run in runs)),
                percent(min(run["steady"] for run in runs)),
            ]
        )
    return rows
