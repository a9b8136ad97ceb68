"""`spreeze tune`: measures what this machine can do with an environment and prints the settings."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.console import Console
from rich.table import Table

from spreeze.cli.drawing import print_choices
from spreeze.errors import UsageError
from spreeze.machine.facts import detect_machine
from spreeze.settings.arguments import read_arguments
from spreeze.settings.build import build_config
from spreeze.settings.config import get_knob, resolved
from spreeze.settings.defaults import config_with
from spreeze.store.files import write_json
from spreeze.text import short

if TYPE_CHECKING:
    from spreeze.run.plan import Plan
    from spreeze.run.processes.pool import Processes

SAMPLING_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure this machine with an environment and an algorithm, and print the settings for it.

    The measurement is kept in the cache folder, where `spreeze train` reads it.
    """

    env: tyro.conf.Positional[str]
    """Gymnasium id, module:Id, package.module:EnvClass, or path/file.py:EnvClass."""
    algo: str = "auto"
    """Algorithm. Auto: the one that `spreeze train` takes."""
    device: str = "auto"
    """Where networks train: auto, cpu, cuda, cuda:0."""
    retune: bool = False
    """Forget earlier measurements and measure again."""
    compile: bool = False
    """Also compile the update, so that even the first run starts with its fastest form. Takes a second, on a GPU up to a minute."""
    plot: str | None = None
    """Plot the rates by processes and batch sizes to this file (extra `plot`)."""
    json: str | None = None
    """Write the result as JSON to this file; - for standard output."""


def main(arguments: list[str], _started_s: float) -> int:
    """Measure, choose, print."""
    args = read_arguments(Arguments, arguments, "tune")
    if args.plot is not None:
        _check_plot(Path(args.plot))
    from spreeze.run.plan import describe_env, make_plan
    from spreeze.run.processes.pool import Processes
    from spreeze.settings.checks import check_config

    knobs = {"algo": args.algo, "device": args.device, "retune": args.retune}
    config = build_config(args.env, knobs)
    began = time.monotonic()
    processes = Processes()
    try:
        spec = describe_env(args.env, config, processes, check_config(config))
        plan = make_plan(config, spec, detect_machine(), processes, _say, measure=True)
        sampling = _measure_sampling(plan, args.env, processes)
    finally:
        processes.close()
    compiled = compile_plan(plan) if args.compile else []
    facts: dict[str, Any] = {
        "command": ["spreeze", "tune", args.env, "--algo", args.algo, "--device", args.device],
        "env": args.env,
        "algo": plan.config.algo,
        "chosen": {name: get_knob(plan.config, name) for name in plan.reasons},
        "reasons": {name: reason.text for name, reason in plan.reasons.items()},
        "probes": {
            "step_us": spec.step_us,
            # There is no probe for algorithms such as ppo, whose batch size learning decides.
            **(plan.measured.to_json() if plan.measured else {}),
            "sample_hz": sampling,
        },
        "seconds": round(time.monotonic() - began, 1),
    }
    if args.plot is not None:
        _plot(facts, Path(args.plot))
    if args.json is not None:
        write_json(facts, args.json)
    if args.json != "-":
        console = Console(highlight=False)
        console.print(_probe_table(facts["probes"]))
        console.print()
        print_choices(console, plan)
        print("\n" + "\n".join(_kept(args, plan, compiled)))
    return 0


def _kept(args: Arguments, plan: Plan, compiled: list[Path]) -> Iterator[str]:
    """What was written, where, and what reads it."""
    flags = [args.env, *(["--algo", args.algo] if args.algo != "auto" else [])]
    flags += ["--device", args.device] if args.device != "auto" else []
    train = f"spreeze train {shlex.join(flags)}"
    if plan.measured is None:
        yield "Kept:  nothing was measured for this algorithm; its settings follow from rules"
    elif plan.measured.file is None:
        yield "Note:  the measurement could not be kept; spreeze doctor says more about the cache folder"
    else:
        yield f"Kept:  {plan.measured.file}"
        yield f"       {train}   reads it and chooses these settings; --retune measures again"
    for path in compiled:
        yield f"Kept:  {path}"
        yield f"       {train}   starts with this compiled update"
    if args.plot is not None:
        yield f"Plot:  {args.plot}"
    if args.json is not None:
        yield f"JSON:  {args.json}"


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def compile_plan(plan: Plan) -> list[Path]:
    """Compile what a run of this plan learns with, unless that was done before; returns the files."""
    from spreeze.learning.compiled.job import compile_and_wait
    from spreeze.roles.learner.compile_key import compile_keys

    batch_size = resolved(plan.config.learner.batch_size)
    _say(f"compiling updates of batch {batch_size} ...")
    keys = compile_keys(plan.config, plan.spec, batch_size)
    try:
        for key in keys:
            compile_and_wait(key)
    except RuntimeError as error:
        raise UsageError([f"the update was not compiled: {str(error).strip()}"]) from None
    return [key.path() for key in keys if key.path().exists()]


def _measure_sampling(plan: Plan, env: str, processes: Processes) -> dict[int, float]:
    """Env steps per second by sampler processes, up to one per core."""
    from spreeze.bench.sampling import measure
    from spreeze.envs.targets import picklable_target
    from spreeze.run.plan import make_plan

    cores, chosen = plan.machine.cores, resolved(plan.config.sampler.processes)
    counts = sorted({1, *(2**i for i in range(10) if 2**i < cores), chosen, cores})
    rates = {}
    for num in counts:
        _say(f"{num} sampler{'s' if num > 1 else ''}, {SAMPLING_S:.0f} s ...")
        config = config_with(plan.config, {"sampler.processes": num, "sampler.random_steps": 0})
        with_num = make_plan(config, plan.spec, plan.machine)
        result = measure(with_num, picklable_target(env), processes, SAMPLING_S)
        rates[num] = round(result["sample_hz"], 1)
    return rates


def _probe_table(probes: dict[str, Any]) -> Table:
    """What was measured, one line each."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    step = "not measured" if probes["step_us"] is None else f"{probes['step_us']:.0f} us"
    table.add_row("one env step", step)
    for title, name in (
        ("forward pass, us by environments", "act_us"),
        ("updates/s by threads", "thread_hz"),
        ("updates/s by batch size, not compiled", "update_hz"),
        ("env steps/s by sampler processes", "sample_hz"),
    ):
        if probes.get(name):
            values = "   ".join(f"{key:,}: {short(value)}" for key, value in probes[name].items())
            table.add_row(title, values)
    if probes.get("too_large"):
        table.add_row("did not fit in memory", f"batch {probes['too_large']:,}")
    if "seconds" in probes:
        table.add_row("the probe took", f"{probes['seconds']:.1f} s")
    return table


def _check_plot(file: Path) -> None:
    """Refuse what cannot be plotted before anything is measured."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise UsageError(["--plot needs matplotlib: pip install 'spreeze[plot]'"]) from None
    mpl.use("Agg")
    if file.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError([f"--plot {file}: the name must end in .png, .svg or .pdf."])
    if not file.absolute().parent.is_dir():
        raise UsageError([f"--plot {file}: there is no folder {file.absolute().parent}."])


def _plot(facts: dict[str, Any], file: Path) -> None:
    """Rates by sampler processes and, if they were measured, by batch sizes."""
    import matplotlib.pyplot as plt

    chosen, probes = facts["chosen"], facts["probes"]
    panels = [(probes["sample_hz"], "sampler.processes", "sampler processes", "env steps/s")]
    if hz := probes.get("update_hz"):
        frames = {batch: rate * batch for batch, rate in hz.items()}
        panels += [
            (frames, "learner.batch_size", "batch size", "frames/s (updates/s x batch size)")
        ]
    size = (4.5 * len(panels), 3.6)
    figure, grid = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    for axes, (rates, name, x_label, y_label) in zip(grid[0], panels, strict=True):
        axes.plot(list(rates), list(rates.values()), "o-", color="#1f6feb")
        if (value := chosen.get(name)) in rates:
            axes.plot([value], [rates[value]], "o", ms=14, mfc="none", mec="#d1632e", mew=2)
            label = f"chosen: {value:,}"
            axes.annotate(label, (value, rates[value]), (8, -16), textcoords="offset points")
        top = 1.15 * max(rates.values())
        axes.set(xlabel=x_label, ylabel=y_label, ylim=(0, top), xscale="log")
        axes.set_xticks(list(rates), [f"{x:,}" for x in rates], fontsize=8)
        axes.minorticks_off()
        axes.grid(alpha=0.2)
    figure.suptitle(f"{facts['env']}, {facts['algo']}, {chosen.get('device', '')}", fontsize=10)
    figure.savefig(file, dpi=150)
    plt.close(figure)
