"""Where the time goes from the command to the first finished update: the milestones of several runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from spreeze.bench.training import train_for
from spreeze.errors import RunFailed
from spreeze.run.start_up import Milestone


def measure(
    env: str, runs: int, seconds: float, prepared: bool, report: Callable[[str], None]
) -> dict[str, Any]:
    """Start `runs` runs of `seconds` each. The first of prepared runs only prepares: it does not count."""
    with TemporaryDirectory() as folder:
        starts = []
        for i in range(-1 if prepared else 0, runs):
            start = _start(env, seconds, Path(folder), i, f"cache-{0 if prepared else i}")
            if i >= 0:
                starts.append(start)
                report(f"{env}, run {i}: first update done after {start[Milestone.UPDATE.value]} s")
    reached = [name.value for name in Milestone if all(name.value in start for start in starts)]
    return {
        "env": env,
        "prepared": prepared,
        "runs": starts,
        "median_s": {name: round(median(start[name] for start in starts), 3) for name in reached},
    }


def _start(env: str, seconds: float, folder: Path, number: int, cache: str) -> dict[str, float]:
    """The milestones of one run."""
    flags, variables = ("--seed", str(number + 1)), {"XDG_CACHE_HOME": str(folder / cache)}
    run = train_for(seconds, env, folder / f"run-{number}", flags, **variables)
    start: dict[str, float] = run.read("summary")["start_up"]
    if Milestone.UPDATE.value not in start:
        raise RunFailed(f"the run made no update in {seconds:g} s; try a longer --seconds")
    return start
