"""How many tasks are learned without flags: rows of a table from the results of bench/tasks.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scores import MISSING, Facts, Results, Rows, machine, middle, number, seconds

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())
NONE = ["--preset", "none"]


def tasks(results: Results, name: str) -> Rows:
    """Each task without a preset and with it, against 90 % of a published score."""
    facts = results.read(name)
    rows = [["task", "published score", "by", "algorithm", "best, no preset", "90 % after, s",
             "with preset, s", "runs"]]  # fmt: skip
    for env, score, source in PUBLISHED:
        plain, preset = runs_of(facts, env, NONE), runs_of(facts, env, [])
        if not plain:
            continue
        rows.append(
            [
                env,
                number(score),
                source,
                plain[0]["algo"] or MISSING,
                best(plain),
                reached(plain),
                reached(preset) if preset else MISSING,
                str(len(plain)),
            ]
        )
    return rows


def runs_of(facts: Facts, env: str, flags: list[str]) -> list[dict[str, Any]]:
    """The runs of a task with these flags."""
    return [run for run in facts["runs"] if run["env"] == env and run["flags"] == flags]


def best(runs: list[dict[str, Any]]) -> str:
    """The median of the best evaluations."""
    typical = middle([run["best"] for run in runs])
    return MISSING if typical is None else number(round(typical, 1))


def reached(runs: list[dict[str, Any]]) -> str:
    """The median time, or in what time it was not reached."""
    typical = middle([run["seconds"] for run in runs])
    return f"not in {runs[0]['time_s']:.0f}" if typical is None else seconds(typical)


def machine_and_count(results: Results, name: str) -> str:
    """A sentence: where, and how many tasks got there."""
    facts = results.read(name)
    rows = tasks(results, name)[1:]
    learned = sum(not row[5].startswith("not in") for row in rows)
    return f"{machine(facts)}: {learned} of {len(rows)} tasks"
