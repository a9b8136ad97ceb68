"""`spreeze train`: builds the config from flags, trains, and reports in a few lines."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import setproctitle
import tyro

from spreeze.cli.flags import scan_flags
from spreeze.cli.train_help import print_train_help
from spreeze.errors import UsageError
from spreeze.settings.arguments import not_understood
from spreeze.settings.build import STARTING_KNOBS, starting_config
from spreeze.settings.config import Config
from spreeze.settings.defaults import check_flags, default_config
from spreeze.store.rundir import RunDir
from spreeze.text import short

if TYPE_CHECKING:
    from spreeze.run.processes.servers import ForkServers
    from spreeze.run.supervisor import Run


def main(arguments: list[str], started_s: float, servers: ForkServers | None = None) -> int:
    """Train; returns 0 when done, 130 after Ctrl-C."""
    # Times count from the start of the command, including the start of the interpreter.
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    started_s = min(started_s, time.monotonic() - age_s)
    config = parse(arguments)
    setproctitle.setproctitle(f"spreeze train {config.env}")
    if config.seeds is not None:
        from spreeze.cli.seeds import train_seeds

        return train_seeds(config, arguments, started_s, servers)
    # Imported after the flags are parsed: --help and a wrong flag stay fast.
    from spreeze.cli.screen import Screen
    from spreeze.run.launch import Begun, launch

    with Screen() as screen:
        run = launch(config, config.env, screen, screen.announce, begun=Begun(started_s, servers))
    with contextlib.suppress(OSError):  # nobody may read it any more
        print(report(run, config), flush=True)
    return 130 if run.interrupted else 0


def parse(arguments: list[str]) -> Config:
    """The config from flags. Algorithm, preset and resumed run decide the defaults of the rest."""
    given = scan_flags(arguments)
    start = starting_config(given.env, given.flags)
    if {"-h", "--help"} & set(arguments):
        print_train_help(start, given.flags.get("algo", "auto"))
        sys.exit(0)
    check_flags(given.flags, start)
    config: Config
    config, unread = tyro.cli(
        Config, args=arguments, default=start, prog="spreeze train", return_unknown_args=True
    )
    if unread:
        raise UsageError([not_understood(word, "train") for word in unread])
    if config.env != start.env:  # it was taken for the value of an unknown flag
        raise UsageError([f"name the environment first: spreeze train {config.env} ..."])
    return replace(config, **{name: getattr(start, name) for name in STARTING_KNOBS})


def report(run: Run, config: Config) -> str:
    """What happened, where the run is, and what to do next once there is a policy."""
    from spreeze.run.start_up import LONG_START_S

    summary = run.summary
    best = short(summary["best_return"])
    why = summary.get("stop_reason")
    stopped = f"stopped: {why}" if why else "stopped as asked"
    happened = {
        "target": _reached_target(summary, config),
        "time": f"time is up, best return {best}",
        "steps": f"all steps are done, best return {best}",
        "stopped": f"{stopped}, best return {best}",
    }[summary["reason"]]
    if summary["reason"] == "steps" and not summary["updates"]:
        happened = "all steps are done, but there was no update: nothing was learned"
    took_s = summary["time_to_target_s"] or summary["wall_s"]
    before_s = summary["before_training_s"]
    start = f" ({before_s:.1f} s of them to start)" if before_s >= LONG_START_S else ""
    memory_note = f"Note: {summary['out_of_memory']}\n" if summary["out_of_memory"] else ""
    flags = [] if config.runs == "runs" else ["--runs", config.runs]
    flags += ["--env", config.env] if ":" in config.env else []
    has_policy = any((run.path / "checkpoints").iterdir())
    flags += _network_flag(run, config) if has_policy else []
    next_line = f"\nNext: {_this_program()} eval {shlex.join([run.path.name, *flags])}"
    return (
        f"{config.env}: {happened}, after {took_s:.1f} s{start}: {short(summary['env_steps'])} env steps at "
        f"{short(summary['sample_hz'])}/s, {short(summary['updates'])} updates at {short(summary['update_hz'])}/s\n"
        f"{memory_note}"
        f"{_unsaved(run)}"
        f"{_trace_line(run)}"
        f"Run:  {RunDir(run.path).short_path}"
        f"{next_line if has_policy else ''}"
        f"{_compile_note(run, config)}"
    )


def _reached_target(summary: dict[str, Any], config: Config) -> str:
    if config.target_metric == Config.target_metric:
        return f"reached its target of {short(config.target)} with {short(summary['final_return'])}"
    return f"{config.target_metric} reached its target of {short(config.target)}"


def _network_flag(run: Run, config: Config) -> list[str]:
    """What `eval` needs to make a policy that acts through torch."""
    from spreeze.store.manifest import read_checkpoint

    if not config.hyper.has_policy_module:
        return []
    stored = read_checkpoint(RunDir(run.path).checkpoint(), ["config.json"]).data["config"]
    return ["--network", config.algo] if stored["policy"]["module"] else []


def _trace_line(run: Run) -> str:
    """Where the trace is and what shows it, if there is one."""
    if not run.summary.get("trace_percent"):
        return ""
    path = RunDir(RunDir(run.path).short_path).trace
    return f"Trace: {path}; open it at ui.perfetto.dev or in chrome://tracing\n"


def _unsaved(run: Run) -> str:
    if run.summary_problem is None:
        return ""
    return (
        f"Note: summary.json could not be written ({run.summary_problem}). "
        "Make room on the disk; the checkpoints written before are kept.\n"
    )


def _compile_note(run: Run, config: Config) -> str:
    """What becomes of a faster form that this run did not wait for: it is finished, or there is a tip."""
    from spreeze.run import finish_compiling

    summary = run.summary
    if summary["update_form"] != "fused":
        return ""
    stopped = summary["reason"] == "stopped"  # whoever stops a run wants nothing to go on
    may_go_on = not stopped and finish_compiling.background_allowed()
    if not may_go_on or not finish_compiling.start(RunDir(run.path), config.algo):
        return _tip(config)
    return (
        "\nNote: a faster form of the update is still being compiled, in the background and for at most "
        f"{finish_compiling.LIMIT_S // 60} minutes."
        "\n      After that, runs of this task start with it."
    )


def _tip(config: Config) -> str:
    """How to compile the update of this task before its next run."""
    from spreeze.algos.base import update_knobs

    usual, own = default_config(config.algo, config.env), ":" in config.algo
    updates = [
        (update_knobs(type(x.hyper), asdict(x.hyper), own), x.learner, x.replay)
        for x in (config, usual)
    ]
    if updates[0] != updates[1]:
        return ""  # `spreeze tune` lacks these flags and would compile another update
    flags = [config.env, "--compile"]
    if config.algo not in ("auto", default_config(env=config.env).algo):
        flags += ["--algo", config.algo]
    if config.device != "auto":
        flags += ["--device", config.device]
    return (
        f"\nTip:  {_this_program()} tune {shlex.join(flags)}"
        "\n      compiles a faster form of the update, so that later runs start with it"
    )


def _this_program() -> str:
    """How to call this program again: by name, or by the path that was used."""
    if shutil.which("spreeze"):
        return "spreeze"
    return "python -m spreeze" if sys.argv[0].endswith(".py") else os.path.relpath(sys.argv[0])
