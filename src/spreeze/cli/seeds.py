"""`spreeze train ENV --seeds`: a run for each seed, one after another or side by side, and what they show together."""

from __future__ import annotations

import contextlib
import datetime
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spreeze.cli import FAILED, INTERRUPTED, OK, USAGE
from spreeze.cli.commands.plot import DPI, missing_library, plot_runs
from spreeze.cli.comparison import compare, print_comparison
from spreeze.cli.flags import split_flags
from spreeze.cli.screen import Screen
from spreeze.errors import RunFailed, UsageError
from spreeze.machine.facts import detect_machine
from spreeze.run.launch import Begun, launch
from spreeze.run.side_by_side import RunCommand, SideBySide, runs_at_once
from spreeze.settings.build import each_seed
from spreeze.settings.checks import check_config, check_folder
from spreeze.settings.config import Config
from spreeze.store.run_groups import describe_without
from spreeze.store.rundir import RunDir
from spreeze.text import short

if TYPE_CHECKING:
    from spreeze.run.processes.servers import ForkServers

SEED_FLAGS = {"--seeds": True, "--seed": True, "--name": True}
"""Flags that each run has for itself."""


class Ended(NamedTuple):
    """A run that has ended, or could not start."""

    config: Config
    code: int
    """Its exit code."""


def train_seeds(
    config: Config, arguments: Sequence[str], started_s: float, servers: ForkServers | None
) -> int:
    """Train once for each seed; returns the exit code of all together."""
    if problems := [*check_config(config), *check_folder(Path(config.runs))]:
        raise UsageError(problems)
    base = config.name or _default_name(config)
    configs = each_seed(replace(config, name=base))
    folder = Path(config.runs).absolute()
    taken = [str(one.name) for one in configs if (folder / str(one.name)).exists()]
    if taken:
        raise UsageError(
            [f"run {folder / name} exists already. Give another --name." for name in taken]
        )
    at_once, why = runs_at_once(config, len(configs), detect_machine())
    how = f"{at_once} at a time" if at_once > 1 else "one after another"
    _say(f"{len(configs)} runs, {how}: {why}")
    if at_once > 1:
        if servers is not None:
            servers.close()
        ended = _side_by_side(configs, arguments, at_once)
    else:
        ended = _one_after_another(configs, started_s, servers)
    codes = {one.code for one in ended}
    if codes == {USAGE}:  # each has said why
        return USAGE
    _report(base, folder, ended, len(configs))
    if INTERRUPTED in codes:
        return INTERRUPTED
    return FAILED if codes & {FAILED, USAGE} else OK


def _default_name(config: Config) -> str:
    """What the names of all runs start with; the seed follows."""
    short_env = re.sub(r"[^\w.]+", "-", config.env).strip("-")[:60]
    algo = config.algo.rpartition(":")[2].lower()
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return "-".join([short_env, *([algo] if algo != "auto" else []), stamp])


def _one_after_another(
    configs: Sequence[Config], started_s: float, servers: ForkServers | None
) -> list[Ended]:
    """Train in this process. The first run has the fork servers that the command has started."""
    ended: list[Ended] = []
    for config in configs:
        first = not ended
        try:
            with Screen() as screen:
                begun = Begun(started_s, servers) if first else None
                run = launch(config, config.env, screen, screen.announce, begun=begun)
        except UsageError as error:
            if first:
                raise
            _say(f"seed {config.seed}: {' '.join(error.problems)}")
            ended.append(Ended(config, USAGE))
            continue
        except RunFailed as error:
            _say(f"seed {config.seed}: {error}")
            ended.append(Ended(config, FAILED))
            continue
        _say(f"seed {config.seed}: {_outcome(run.summary)}")
        ended.append(Ended(config, INTERRUPTED if run.interrupted else OK))
        if run.summary["state"] == "interrupted":
            break
    return ended


def _outcome(summary: dict[str, Any]) -> str:
    """How a run ended, in a few words."""
    seconds = summary["time_to_target_s"] or summary["wall_s"]
    return f"{summary['reason']} after {seconds:.1f} s, best return {short(summary['best_return'])}"


def _side_by_side(configs: Sequence[Config], arguments: Sequence[str], at_once: int) -> list[Ended]:
    """Train in processes of their own; what they print is shown with the seed before it."""
    rest = split_flags(arguments, SEED_FLAGS).rest
    by_label = {f"seed {config.seed}": config for config in configs}
    commands = iter(
        RunCommand(
            label,
            ["spreeze", "train", *rest, "--seed", str(config.seed), "--name", str(config.name)],
        )
        for label, config in by_label.items()
    )
    runs = SideBySide(
        partial(next, commands, None), at_once, lambda label, line: _say(f"{label}: {line}")
    )
    return [Ended(by_label[ended.command.label], ended.code) for ended in runs.train()]


def _report(base: str, folder: Path, ended: Sequence[Ended], num_runs: int) -> None:
    """Print what the runs that have ended show together, and draw their curves."""
    done = [RunDir(folder / str(one.config.name)) for one in ended if one.code == OK]
    rows, without = compare(done)
    if len(done) < num_runs:
        print(f"{len(done)} of {num_runs} runs are done and counted.")
    if without:
        print(describe_without(without))
    if not rows:
        return
    print_comparison(rows)
    if problems := missing_library():
        print(f"No plot: {problems[0]}")
    else:
        image = folder / f"{base}.png"
        plot_runs([run for run in done if run not in without], "time").savefig(image, dpi=DPI)
        print(f"Plot: {RunDir(image).short_path}")
    print(f"Runs: {RunDir(folder).short_path / base}-*")


def _say(text: str) -> None:
    """Print to standard error, if anyone reads it."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
