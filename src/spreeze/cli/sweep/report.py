"""What a sweep has found: the best trials, the command that repeats the best, and which knobs matter."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spreeze.cli.sweep.study import FAILED, Study, Trial
from spreeze.cli.sweep.trials import Setup
from spreeze.settings.space import as_flags, as_typed, typed
from spreeze.store.rundir import RunDir
from spreeze.text import clock, plain, plural, short

SHOWN = 5
"""Trials in the table."""


def repeat_command(setup: Setup, trial: Trial) -> str:
    """The command line that trains with the values of a trial again."""
    seeds = ",".join(map(str, setup.seeds))
    own = ["--seeds", seeds] if len(setup.seeds) > 1 else ["--seed", seeds]
    return shlex.join(["spreeze", "train", *setup.words, *as_flags(trial.values), *own])


def print_report(setup: Setup, study: Study) -> None:
    """Print what the trials so far have shown."""
    trials, ranked = study.trials(), study.ranked()
    console = Console(highlight=False)
    states = Counter(trial.state for trial in trials)
    counted = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    console.print(Text(f"{plural(len(trials), 'trial')}: {counted}"), soft_wrap=True)
    for trial in [trial for trial in trials if trial.state == FAILED][:SHOWN]:
        console.print(
            Text(f"trial {trial.number} failed: {plain(str(trial.cause))}"), soft_wrap=True
        )
    if not ranked:
        return
    _print_best(console, ranked[:SHOWN], setup.score.name)
    shares = study.importances()
    if shares:
        parts = [f"{as_typed(name)} {share:.0%}" for name, share in shares.items()]
        console.print(Text(f"What explains the scores: {', '.join(parts)}"), soft_wrap=True)
    best = ranked[0]
    run = RunDir(setup.folder / best.runs[0]).short_path
    console.print(Text(f"Best run: {run}"), soft_wrap=True)
    console.print(Text(f"Again:    {repeat_command(setup, best)}"), soft_wrap=True)


def as_json(setup: Setup, study: Study) -> dict[str, Any]:
    """The same as plain data, with all trials."""
    ranked = study.ranked()
    return {
        "folder": str(setup.folder),
        "score": setup.score.name,
        "best": ranked[0].number if ranked else None,
        "command": repeat_command(setup, ranked[0]) if ranked else None,
        "importances": study.importances(),
        **state_json(setup, study),
    }


def state_json(setup: Setup, study: Study) -> dict[str, Any]:
    """The trials as plain data."""
    score = setup.score
    return {
        "score": score.name,
        "direction": score.direction,
        "rows": [
            {
                "number": trial.number,
                "state": trial.state,
                "score": trial.score,
                "values": {as_typed(name): typed(value) for name, value in trial.values.items()},
                "curve": trial.curve,
                "runs": trial.runs,
                "cause": trial.cause,
                "seconds": trial.seconds,
            }
            for trial in study.trials()
        ],
    }


def _print_best(console: Console, best: Sequence[Trial], score: str) -> None:
    """A line for each of the best trials."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("trial", justify="right")
    table.add_column(score, justify="right")
    names = list(dict.fromkeys(name for trial in best for name in trial.values))
    for title in (*map(as_typed, names), "took"):
        table.add_column(title, justify="right", overflow="fold")
    for trial in best:
        values = [typed(trial.values[name]) for name in names]
        table.add_row(str(trial.number), short(trial.score), *values, clock(trial.seconds or 0.0))
    console.print(table)
