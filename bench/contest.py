"""Who takes how long at a task, and what it does in that time: Spreeze and other frameworks, from bench/results.

A file of `spreeze bench time-to-score ENV --against ...` that a task names says it for all. Where none of its files has other
frameworks, peers-2cores.json does, which was written down by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median
from typing import NamedTuple

import numpy as np
from scores import (
    FIRST,
    MISSING,
    PREPARED,
    TASKS,
    Facts,
    Results,
    Rows,
    Task,
    machine,
    machine_of,
    middle,
    millions,
    number,
    percent,
    seconds,
    times,
)

from spreeze.bench.result import machine_label

SPREEZE = "Spreeze"
STARTS = {FIRST: "spreeze", PREPARED: "spreeze prepared"}
"""What a result calls Spreeze's runs."""
NAMES = {
    "cleanrl": "CleanRL, rewritten",
    "rllib": "RLlib",
    "sample-factory": "Sample Factory",
    "sb3": "Stable-Baselines3",
    "sbx": "SBX",
    "skrl": "skrl",
    "tianshou": "Tianshou",
    "torchrl": "TorchRL",
    "CleanRL-style file": "CleanRL, rewritten",
}
PACKAGES = {"sb3": "stable_baselines3", "sbx": "sbx-rl", "rllib": "ray"}
"""Where the package has another name than the framework."""
OURS = "Spreeze's recipe"
"""Settings of ours in another framework: not what its authors publish."""
FEW = 3
"""With fewer runs there is no interval."""
RESAMPLES = 2000
HEADLINE = tuple(task for task in TASKS if task.first)
"""Tasks that were measured with seeds by which nothing was chosen, first runs too."""


class Rates(NamedTuple):
    """What is done per second and with what, None where it was not recorded."""

    sample_hz: float | None = None
    update_hz: float | None = None
    frame_hz: float | None = None
    """Transitions through updates."""
    cores: float | None = None
    gpu_percent: float | None = None


NOTHING = Rates()


@dataclass(frozen=True)
class Entry:
    """A framework with one of its settings at a task."""

    name: str
    settings: str
    seconds: Sequence[float | None]
    """By run; None where the target was not reached."""
    limit_s: float | None = None
    version: str = ""
    ours: bool = False
    """Whether it is Spreeze, or has Spreeze's settings."""
    rates: Rates = NOTHING
    curves: Sequence[Sequence[Sequence[float]]] = field(default=(), repr=False)
    """By run: rows [time_s, env_steps, updates, return]."""

    @property
    def middle(self) -> float:
        """The median; infinite if half of the runs did not get there."""
        typical = middle(self.seconds)
        return inf if typical is None else typical

    def cell(self) -> str:
        """The median, or in what time it was not reached."""
        return seconds(self.middle) if self.middle < inf else f"not in {self.limit_s:,.0f}"


def interval(values: Sequence[float | None]) -> tuple[float, float] | None:
    """95 % bootstrap interval of the median; its upper end may be infinite. None for a few runs."""
    if len(values) < FEW:
        return None
    known = np.array([inf if value is None else value for value in values])
    rng = np.random.default_rng(0)
    drawn = np.sort(known[rng.integers(len(known), size=(RESAMPLES, len(known)))], axis=1)
    medians = np.sort([median(row) for row in drawn.tolist()])
    return medians[round(0.025 * RESAMPLES)], medians[round(0.975 * RESAMPLES) - 1]


def spreeze(results: Results, task: Task) -> list[Entry]:
    """Its first runs and its prepared ones."""
    found = []
    for start, words in ((FIRST, "first run"), (PREPARED, "prepared")):
        if reached := times(results, task, start):
            entry = _measured(contests(results, task), STARTS[start])
            found.append(replace(entry, name=SPREEZE, settings=words, seconds=reached, ours=True))
    return found


def peers(results: Results, task: Task) -> list[Entry]:
    """Other frameworks with all their settings on the same machine, the fastest first."""
    files = contests(results, task)
    names = dict.fromkeys(name for facts in files for name in facts["wall_s"])
    found = [_measured(files, name) for name in names if name not in STARTS.values()]
    return sorted(found or _recorded(results, task), key=lambda entry: entry.middle)


def contests(results: Results, task: Task) -> list[Facts]:
    """The results of `spreeze bench time-to-score` that a task names."""
    files = [results.read(name) for name in dict.fromkeys(task.first + task.prepared)]
    return [facts for facts in files if "wall_s" in facts]


def fastest_of_each(entries: Sequence[Entry]) -> list[Entry]:
    """Every framework once, with its fastest published settings; the entries are sorted."""
    best: dict[str, Entry] = {}
    for entry in entries:
        if not entry.ours:
            best.setdefault(entry.name, entry)
    return list(best.values())


def best_peer(results: Results, task: Task) -> float | None:
    """The smallest median among other frameworks with their own settings; None if none got there."""
    medians = [entry.middle for entry in peers(results, task) if not entry.ours]
    return min((value for value in medians if value < inf), default=None)


def _measured(files: list[Facts], name: str) -> Entry:
    """What results say of a framework with one of its settings."""
    files = [facts for facts in files if name in facts["wall_s"]]
    trials = [trial for facts in files for trial in facts.get("trials", {}).get(name, [])]
    framework, _, variant = name.partition(", ")
    package, versions = PACKAGES.get(framework, framework), [facts.get("versions", {}) for facts in files]  # fmt: skip
    return Entry(
        NAMES.get(framework, framework),
        variant or "published",
        [value for facts in files for value in facts["wall_s"][name]],
        max((facts["limit_s"] for facts in files), default=None),
        max((known.get(framework, {}).get(package, "") for known in versions), default=""),
        ours=variant == OURS,
        rates=typical_rates([rates_of(trial) for trial in trials]),
        curves=[curve for facts in files for curve in facts.get("curves", {}).get(name, [])],
    )


def _recorded(results: Results, task: Task) -> list[Entry]:
    """Those that were written down by hand, if the machine is the same."""
    facts = results.read("peers-2cores")
    if machine(facts) != machine_of(results, task):
        return []
    return [
        Entry(
            NAMES.get(row["framework"], row["framework"]),
            row["settings"],
            row["seconds"],
            row.get("limit_s"),
            facts["versions"].get(row["framework"], ""),
            ours=bool(row.get("control")),
            rates=Rates(row["sample_hz"], row["update_hz"]),
        )
        for row in facts["rows"]
        if (row["env"], row["target"]) == (task.env, task.target) and row["framework"] != SPREEZE
    ]


def rates_of(trial: Facts) -> Rates:
    """From the first judged policy to the last."""
    rows = [row for i, row in enumerate(trial["curve"]) if not i or row[2] > trial["curve"][i - 1][2]]  # fmt: skip
    use = (trial.get("own_cores"), trial.get("gpu_percent"))
    if len(rows) < 2:
        return Rates(None, None, None, *use)
    passed_s, env_steps, updates = (rows[-1][column] - rows[0][column] for column in range(3))
    learned = trial.get("learned_rows")
    return Rates(
        env_steps / passed_s, updates / passed_s, learned / passed_s if learned else None, *use
    )


def typical_rates(rates: Sequence[Rates]) -> Rates:
    """The median of each figure over the runs that have it."""
    columns = [[value for value in column if value is not None] for column in zip(*rates, strict=True)]  # fmt: skip
    return Rates(*(median(column) if column else None for column in columns))


def rates_of_spreeze(results: Results, task: Task) -> Rates:
    """Of its first runs if they were recorded; else of the run in `spreeze bench ablations`, or in bench/steady.py."""
    rates = spreeze(results, task)[0].rates
    where = results.read(task.first[0])["machine"]
    known = (
        results.find(f"{kind}-{task.env}-{machine_label(where)}")
        for kind in ("ablations", "steady")
    )
    for facts in known:
        if rates.sample_hz is None and facts and machine(facts) == machine_of(results, task):
            runs = [facts["run"]] if "run" in facts else facts["runs"]
            rates = typical_rates([rates_of_run(run) for run in runs])
    return rates


def rates_of_run(run: Facts) -> Rates:
    """From what a run says of itself."""
    learned = run.get("transition_hz", run["update_hz"] * run["batch_size"])
    percents = run.get("cpu_percent")
    cores = None if percents is None else percents / 100
    return Rates(run["sample_hz"], run["update_hz"], learned, cores, run.get("gpu_percent"))


def peer_table(results: Results) -> Rows:
    """Other frameworks with all their settings beside Spreeze, the fastest of each task first."""
    table = [["task", "framework", "settings", "runs", "seconds"]]
    for task in HEADLINE:
        others = peers(results, task)
        entries = [*spreeze(results, task), *others] if others else []
        for entry in sorted(entries, key=lambda entry: entry.middle):
            name = f"{entry.name} {entry.version}".strip()
            runs = str(len(entry.seconds))
            table.append([str(task), name, entry.settings, runs, entry.cell()])
    return table


def rate_table(results: Results) -> Rows:
    """What Spreeze and the fastest settings of each other framework do per second."""
    table = [["task", "machine", "framework", "env steps/s", "updates/s", "transitions/s", "CPU, cores", "GPU"]]  # fmt: skip
    for task in HEADLINE:
        where = machine_of(results, task)
        rows = [(SPREEZE, rates_of_spreeze(results, task))]
        rows += [(entry.name, entry.rates) for entry in fastest_of_each(peers(results, task))]
        for name, rates in rows:
            if any(value is not None for value in rates):
                frames = MISSING if rates.frame_hz is None else millions(rates.frame_hz)
                gpu = MISSING if rates.gpu_percent is None else percent(rates.gpu_percent / 100)
                figures = (number(rates.sample_hz), number(rates.update_hz), frames)
                table.append([task.env, where, name, *figures, number(rates.cores), gpu])
    return table
