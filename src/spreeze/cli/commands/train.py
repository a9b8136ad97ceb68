"""`spreeze train`: the config from flags, the run, and a few lines about it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import setproctitle
import tyro

from spreeze.errors import UsageError
from spreeze.settings.config import Config, default_config
from spreeze.store.rundir import RunDir

if TYPE_CHECKING:
    from spreeze.run.processes.servers import ForkServers
    from spreeze.run.supervisor import Run


def main(arguments: list[str], started_s: float, servers: ForkServers | None = None) -> int:
    """Train; 0 done, 130 interrupted by Ctrl-C."""
    # Times count from the start of the command, the interpreter's own start included.
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    started_s = min(started_s, time.monotonic() - age_s)
    config = parse(arguments)
    setproctitle.setproctitle(f"spreeze train {config.env}")
    # After the flags: --help and a wrong flag need none of this.
    from rich.console import Console

    from spreeze.cli.screen import Screen
    from spreeze.run.launch import launch

    console = Console(stderr=True, highlight=False)
    with Screen(console) as screen:
        run = launch(config, config.env, screen, started_s, screen.announce, servers)
    print(report(run, config))
    return 130 if run.interrupted else 0


def parse(arguments: list[str]) -> Config:
    """The config from flags; algorithm, preset and resumed run decide the defaults of the rest."""
    if (resumed := _given(arguments, "--resume")) is not None:
        return _resumed(arguments, resumed)
    env = next((word for word in arguments[:1] if not word.startswith("-")), "")
    config = _new(arguments, env)
    # Named behind some flags: only now it is known which preset it has.
    return config if config.env == env else _new(arguments, config.env)


def _new(arguments: list[str], env: str) -> Config:
    asked = _knobs(arguments)
    algo, preset = _given(arguments, "--algo") or "auto", _given(arguments, "--preset")
    device = _given(arguments, "--device") or "auto"
    defaults = default_config(algo, env, preset, asked, device)
    # What is given here is settled there: a path made whole, a preset's algorithm.
    return _from_flags(_without(_without(arguments, "--algo"), "--preset"), defaults)


def _resumed(arguments: list[str], resumed: str) -> Config:
    from spreeze.run.resume import resumed_config

    runs = Path(_given(arguments, "--runs") or "runs")
    defaults = resumed_config(
        resumed, runs, _given(arguments, "--algo"), _given(arguments, "--preset")
    )
    # A stored file must not be able to name code that is then imported.
    if ":" in defaults.env and defaults.env not in arguments:
        raise UsageError(
            [
                f"run {resumed} trained {defaults.env}, which is code of yours. "
                f"Name it again: spreeze train {defaults.env} --resume {resumed}"
            ]
        )
    return _from_flags(_without(_without(arguments, "--resume"), "--algo"), defaults)


def _from_flags(arguments: list[str], defaults: Config) -> Config:
    config: Config = tyro.cli(Config, args=arguments, default=defaults, prog="spreeze train")
    return config


def _knobs(arguments: list[str]) -> list[str]:
    """The knobs of the algorithm that are given."""
    names = [
        word.removeprefix("--algo.").partition("=")[0].replace("-", "_")
        for word in arguments
        if word.startswith("--algo.")
    ]
    return [name.removeprefix("no_") for name in names]  # --algo.no-layer-norm


def report(run: Run, config: Config) -> str:
    """What happened, where the run is, and what to try next if it has come as far as to have a policy."""
    from spreeze.text import short

    summary = run.summary
    best = short(summary["best_return"])
    happened = {
        "target": f"reached its target of {short(config.target)} with {short(summary['final_return'])}",
        "time": f"time is up, best return {best}",
        "steps": f"all steps are done, best return {best}",
        "stopped": f"stopped as asked, best return {best}",
    }[summary["reason"]]
    took_s = summary["time_to_target_s"] or summary["wall_s"]
    short_of = f"Note: {summary['out_of_memory']}\n" if summary["out_of_memory"] else ""
    flags = [] if config.runs == "runs" else ["--runs", config.runs]
    flags += ["--env", config.env] if ":" in config.env else []
    next_line = f"\nNext: {_this_program()} eval {shlex.join([run.path.name, *flags])}"
    has_policy = any((run.path / "checkpoints").iterdir())
    return (
        f"{config.env}: {happened}, after {took_s:.1f} s: {short(summary['env_steps'])} env steps at "
        f"{short(summary['sample_hz'])}/s, {short(summary['updates'])} updates at {short(summary['update_hz'])}/s\n"
        f"{short_of}"
        f"Run:  {RunDir(run.path).short_path}"
        f"{next_line if has_policy else ''}"
        f"{_tip(summary, config)}"
    )


def _tip(summary: dict[str, Any], config: Config) -> str:
    """How to have compiled updates from the start, if this run ended before it had any."""
    from spreeze.algos.base import without_data
    from spreeze.machine.facts import compiler

    ended_before = summary["compiled"] is None and summary["updates"] > 0
    possible = config.learner.compile and not config.serial
    if not ended_before or not possible or (summary["device"] == "cpu" and not compiler()):
        return ""
    usual, own = default_config(config.algo, config.env, device=config.device), ":" in config.algo
    forms = [(without_data(asdict(x.hyper), own), x.learner, x.replay) for x in (config, usual)]
    if forms[0] != forms[1]:
        return ""  # `spreeze tune` knows no such flags: it would compile something else
    flags = [config.env, "--compile"]
    if config.algo not in ("auto", default_config(env=config.env, device=config.device).algo):
        flags += ["--algo", config.algo]
    if config.device != "auto":
        flags += ["--device", config.device]
    return (
        f"\nTip:  {_this_program()} tune {shlex.join(flags)}"
        "\n      makes later runs about twice as fast from their start; this one ended before it was compiled"
    )


def _this_program() -> str:
    """How the user can call us again: by name, or by the path he used."""
    if shutil.which("spreeze"):
        return "spreeze"
    return "python -m spreeze" if sys.argv[0].endswith(".py") else os.path.relpath(sys.argv[0])


def _given(arguments: list[str], flag: str) -> str | None:
    """The value of a flag, the last one if there are several, before the flags are really parsed."""
    value = None
    for word, following in pairwise([*arguments, "--"]):
        if word == flag:
            if following.startswith("--"):
                raise UsageError([f"{flag}: which one? A value is missing behind it."])
            value = following
        elif word.startswith(flag + "="):
            value = word.partition("=")[2]
    return value


def _without(arguments: list[str], flag: str) -> list[str]:
    out: list[str] = []
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word == flag:
            skip = True
        elif not word.startswith(flag + "="):
            out.append(word)
    return out
