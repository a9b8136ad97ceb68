"""`spreeze sweep`: trains with different values of knobs, and finds the best ones."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from spreeze.cli import FAILED, INTERRUPTED, OK, USAGE
from spreeze.cli.flags import Given, scan_flags, split_flags
from spreeze.errors import UsageError
from spreeze.knobs import flag, knobs_of
from spreeze.settings.arguments import read_arguments
from spreeze.text import nearest

if TYPE_CHECKING:
    from spreeze.cli.sweep.plan import Plan
    from spreeze.cli.sweep.study import Study, Trial
    from spreeze.cli.sweep.trials import Setup, Trials
    from spreeze.settings.config import Config
    from spreeze.settings.space import Space

SEEDS = {"--seed": True, "--seeds": True}


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Train with different values of knobs and find the best. All flags of `spreeze train` hold for every trial."""

    env: tyro.conf.Positional[str | None] = None
    """Gymnasium id, module:Id, package.module:EnvClass, or path/file.py:EnvClass."""
    space: str | None = None
    """TOML file with the knobs to try: algo.lr = { low = 1e-5, high = 1e-2, log = true }, or a list of values."""
    trials: int | None = None
    """How many sets of values to try, those of an earlier part of the sweep included."""
    score: Literal["best", "final", "time"] = "best"
    """What counts: the best evaluation, the last one, or the seconds to --target (twice its time for a run that misses it)."""
    metric: str = "eval/mean_reward"
    """The number of an evaluation that counts, such as eval/success_rate or eval/info/NAME."""
    pruner: Literal["median", "halving", "hyperband", "none"] = "median"
    """Which trials end early. median: those below the median of the others, from a fifth of their first run on."""
    search: Literal["tpe", "random"] = "tpe"
    """How values are chosen."""
    resume: str | None = None
    """Continue the sweep in this folder. The same command again does so, too."""
    name: str | None = None
    """Name of the sweep's folder. Default: environment and space file."""
    runs: str = "runs"
    """Folder for runs."""
    dashboard: bool = True
    """Show the trials on a live page; its local address is printed."""
    json: str | None = None
    """Write all trials as JSON to this file; - for standard output."""


def own_flags() -> dict[str, bool]:
    """The flags that are not those of `spreeze train`, each with whether a value follows it."""
    found: dict[str, bool] = {}
    for name, knob in knobs_of(Arguments).items():
        is_switch = knob.type is bool
        found[flag(name)] = not is_switch
        if is_switch:
            found[flag(f"no_{name}")] = False
    del found["--env"]
    return found


def main(arguments: list[str], _started_s: float) -> int:
    """Train the trials that are missing, and report."""
    taken, rest = split_flags(arguments, own_flags())
    args = read_arguments(Arguments, ["--help"] if {"-h", "--help"} & set(rest) else taken, "sweep")
    if find_spec("optuna") is None:
        raise UsageError(['sweeps need Optuna. Install it with: pip install "spreeze[sweep]"'])
    _refuse_misspelled(scan_flags(rest))
    if args.resume is not None:
        folder, plan, trials = _resumed(args, taken, rest)
    else:
        folder, plan, trials = _planned(args, rest)
    setup, space = _checked(plan, folder, trials, args.space or str(folder))
    from spreeze.cli.sweep.plan import sweep_folder

    with sweep_folder(folder, plan):
        return _sweep(args, plan, setup, space)


def _resumed(args: Arguments, taken: Sequence[str], rest: Sequence[str]) -> tuple[Path, Plan, int]:
    """The sweep in a folder, with more trials if --trials says so."""
    from spreeze.cli.sweep.plan import Plan

    assert args.resume is not None
    near = Path(args.runs) / args.resume
    folder = near if near.is_dir() and not Path(args.resume).is_dir() else Path(args.resume)
    plan, trials = Plan.read(folder)
    given = {word.partition("=")[0] for word in taken if word.startswith("--")}
    kept = {"--resume", "--trials", "--runs", "--dashboard", "--no-dashboard", "--json"}
    if wrong := [*(given - kept), *rest]:
        raise UsageError(
            [
                f"{' '.join(sorted(wrong))}: a sweep that is continued keeps its environment, flags and space. "
                "Leave that out, or begin another sweep."
            ]
        )
    if word := plan.code_named():
        raise UsageError(
            [
                f"sweep {folder} runs code of yours, {word}, and a stored sweep never chooses code. "
                "Continue it with the command that it was begun with."
            ]
        )
    return folder, plan, args.trials or trials


def _planned(args: Arguments, rest: Sequence[str]) -> tuple[Path, Plan, int]:
    """The sweep that a command line asks for."""
    from spreeze.cli.sweep.plan import Plan

    missing = [name for name in ("space", "trials") if getattr(args, name) is None]
    if missing or not scan_flags(list(rest)).env:
        what = " and ".join([flag(name) for name in missing] or ["the environment"])
        is_or_are = "are" if len(missing) > 1 else "is"
        raise UsageError(
            [
                f"{what} {is_or_are} missing: spreeze sweep Pendulum-v1 --space space.toml --trials 20 --time 1m"
            ]
        )
    path = Path(str(args.space))
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError([f"--space {path}: cannot be read ({why})."]) from None
    plan = Plan(tuple(rest), text, args.score, args.metric, args.pruner, args.search)
    env = re.sub(r"[^\w.]+", "-", scan_flags(list(rest)).env).strip("-")[:60]
    name = args.name or f"{env}-{path.stem}"
    return Path(args.runs) / name, plan, int(args.trials or 0)


def _checked(plan: Plan, folder: Path, num_trials: int, file: str) -> tuple[Setup, Space]:
    """Everything that is wrong is said now, before anything starts."""
    from spreeze.cli.commands.train import parse
    from spreeze.cli.sweep.trials import Setup
    from spreeze.settings.build import each_seed
    from spreeze.settings.checks import check_config, check_folder
    from spreeze.settings.space import as_flags, read_space

    words = split_flags(plan.arguments, SEEDS).rest
    given = scan_flags(list(plan.arguments))
    space = read_space(plan.space, given.env, given.flags, file)
    first = {name: found.ends[0] for name, found in space.items()}
    sample = parse([*plan.arguments, *as_flags(first)])
    problems = [*check_config(sample), *check_folder(folder.parent), *_own_problems(plan, sample)]
    if not 1 <= num_trials <= 100_000:
        problems.append(f"--trials {num_trials}: must be a whole number from 1 to 100,000.")
    if not re.fullmatch(r"[\w+=][\w.+= -]{,99}", folder.name):
        problems.append(
            f"--name {folder.name!r}: it names a folder: up to 100 letters, digits, . _ + = -"
        )
    problems += [] if problems else _extreme_problems(sample, space)
    if problems:
        raise UsageError(list(dict.fromkeys(problems)))
    own = ["--no-dashboard"]
    if "checkpoint.replay_mb" not in given.flags:
        own += ["--checkpoint.replay-mb", "0"]  # nobody resumes a trial
    seeds = [config.seed for config in each_seed(sample)]
    differ = any(name == "algo" or name.startswith("env.") for name in space)
    return Setup(folder, words, own, sample, seeds, plan.scoring, num_trials, differ), space


def _refuse_misspelled(given: Given) -> None:
    """Flags that are almost those of this command; the rest is looked at as in `spreeze train`."""
    from spreeze.settings.config import Config, knob_names

    known = {flag(name) for name in knob_names(Config())}
    near = {flag(name): nearest(flag(name), [*known, *own_flags()]) for name in given.flags}
    problems = [
        f"{name}: there is no such flag. Did you mean {meant}?"
        for name, meant in near.items()
        if name not in known and meant in own_flags()
    ]
    if problems:
        raise UsageError(problems)


def _extreme_problems(sample: Config, space: Space) -> Iterator[str]:
    """What is wrong with a value although it is within the bounds of its knob."""
    from spreeze.settings.checks import check_config
    from spreeze.settings.defaults import config_with

    for name, found in space.items():
        if name == "algo":
            continue
        for value in found.ends:
            yield from check_config(config_with(sample, {name: value}))


def _own_problems(plan: Plan, sample: Config) -> Iterator[str]:
    """What a sweep needs beyond what a run needs."""
    if sample.steps is None and sample.time is None:
        yield "how long may a trial take? Add --steps 100k or --time 2m."
    if plan.score == "time" and sample.target is None:
        yield "--score time: the time to which return? Add --target RETURN."
    if plan.score == "time" and plan.metric != "eval/mean_reward":
        yield "--score time and --metric: times are those to --target; --target-metric says of what."
    if not plan.metric.startswith("eval/"):
        yield f"--metric {plan.metric}: must be a number of evaluations, such as eval/success_rate."


def _sweep(args: Arguments, plan: Plan, setup: Setup, space: Space) -> int:
    """Train and report."""
    from spreeze.cli.sweep import report
    from spreeze.cli.sweep.display import Display
    from spreeze.cli.sweep.page import page_of
    from spreeze.cli.sweep.study import Study
    from spreeze.cli.sweep.trials import Refused, Trials
    from spreeze.machine.facts import detect_machine
    from spreeze.run.side_by_side import runs_at_once
    from spreeze.store.files import write_json

    at_once, why = runs_at_once(setup.sample, setup.num_trials, detect_machine())
    study = Study(setup.folder, plan, space, setup.sample.seed, at_once)
    again = study.recover()
    done = study.num_done()

    def changed(trials: Trials, trial: Trial | None) -> None:
        if trial is not None and trial.number in {one.trial.number for one in trials.live.values()}:
            display.began(trial)
        elif trial is not None:
            display.ended(trial, next(iter(study.ranked()), None))
        plan.write(setup.folder, setup.num_trials, report.state_json(setup, study))
        display.draw(trials)

    plan.write(setup.folder, setup.num_trials, report.state_json(setup, study))
    with Display(setup.num_trials, done) as display, page_of(setup.folder, args.dashboard, display):
        display.say(f"sweep {setup.folder}: {setup.num_trials} trials, {at_once} at a time: {why}")
        if done or again:
            display.say(f"{done} are done, {again} were cut short and begin again")
        trials = Trials(setup, study, at_once, changed)
        try:
            trials.train()
        except Refused as refused:
            display.say(str(refused))
            return USAGE
        finally:
            plan.write(setup.folder, setup.num_trials, report.state_json(setup, study))
    if args.json is not None:
        write_json(report.as_json(setup, study), args.json)
    if args.json != "-":
        report.print_report(setup, study)
        _plot(setup, study, space)
    if trials.signal is not None:
        resume = f"spreeze sweep --resume {shlex.quote(str(setup.folder))}"
        how = "give the same command again" if plan.code_named() else resume
        print(f"To go on: {how}", file=sys.stderr)
    if trials.signal == signal.SIGINT:
        return INTERRUPTED
    return OK if study.ranked() or trials.signal is not None else FAILED


def _plot(setup: Setup, study: Study, space: Space) -> None:
    """Draw all trials, if there is something to draw and to draw with."""
    from spreeze.cli.commands.plot import DPI, missing_library
    from spreeze.store.rundir import RunDir

    if not study.ranked():
        return
    if problems := missing_library():
        print(f"No plot: {problems[0]}")
        return
    from spreeze.cli.sweep.picture import draw

    image = setup.folder / "sweep.png"
    draw(study.trials(), space, setup.score).savefig(image, dpi=DPI)
    print(f"Plot:     {RunDir(image).short_path}")
