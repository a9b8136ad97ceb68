"""What the terminal shows of a run: a page, a line, or the settings that were chosen."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from spreeze.run.cpu_meter import CpuUse
from spreeze.run.plan import Plan
from spreeze.run.snapshot import Snapshot
from spreeze.run.start_up import LONG_START_S, Milestone
from spreeze.run.wording import (
    COMPILING,
    describe_awaited,
    describe_bottleneck,
    describe_decision,
)
from spreeze.settings.auto.reason import Source
from spreeze.settings.config import Config, get_knob, resolved
from spreeze.store.rundir import RunDir
from spreeze.text import clock, short

BLOCKS = "▁▂▃▄▅▆▇█"
LABEL = "sampling "
WIDEST, LONGEST_BAR = 120, 60
ECHO = "^C"
"""What a terminal shows behind the page on Ctrl-C. It must fit there: on a new line, it would move the page."""
LEAST_TEXT = 24
"""Columns in which reasons are wrapped; with fewer, they are cut."""
WIDE, NARROW = 120 - len(ECHO), 80 - len(ECHO)
"""Columns of the page from which a warning has three lines instead of two, and below which other texts are cut."""
LEAST_CORES = 0.05
"""Less is not shown."""


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve in one line of text; each character is the mean of an equal share of the values."""
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return ""
    width = max(1, min(width, len(values)))
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(BLOCKS[round((value - low) / span * (len(BLOCKS) - 1))] for value in means)


def choices(plan: Plan) -> list[tuple[str, str, str]]:
    """Each setting that was chosen: its flag, its value, its reason."""
    rows = []
    for name, reason in plan.reasons.items():
        rarely = name.startswith("limits.") or reason.source is Source.UNUSED
        if rarely and not plan.config.verbose:
            continue  # nobody needs limits until something goes wrong
        value = get_knob(plan.config, name)
        parts = value if isinstance(value, tuple) else (value,)
        shown = " ".join(f"{part:,}" if type(part) is int else str(part) for part in parts)
        rows.append((f"--{name.replace('_', '-')}", shown, reason.text))
    return rows


def print_choices(console: Console, plan: Plan) -> None:
    """The settings that were chosen: the main ones in one line, or each with its reason, one per line."""
    if not plan.listed:
        console.print(_main_choices(plan.config), markup=False, soft_wrap=True)
        return
    rows = choices(plan)
    names, values = (max(len(row[column]) for row in rows) for column in range(2))
    indent = names + values + 4
    room = console.width - indent
    for name, value, why in rows:
        wraps = console.is_terminal and room >= LEAST_TEXT
        lines = textwrap.wrap(why, room) if wraps else [why]
        text = Text.assemble(
            f"{name:<{names}}  {value:<{values}}  ", (f"\n{' ' * indent}".join(lines), "dim")
        )
        if console.is_terminal and not wraps:
            text.truncate(console.width, overflow="ellipsis")
        console.print(text, soft_wrap=True)


def _main_choices(config: Config) -> str:
    samplers, envs = config.sampler.processes, config.sampler.envs_per_process
    return (
        f"{config.algo} on {config.device}, batch {config.learner.batch_size:,}, "
        f"{samplers} sampler{'s' if samplers != 1 else ''} of {envs} envs (--verbose: all)"
    )


def line(snap: Snapshot, config: Config) -> str:
    """The run in one line."""
    text, _, _ = (snap.warnings or [""])[-1].partition("\n")
    warning = f"  ! {text}" if text else ""
    if snap.awaited is not None:
        return f"{clock(snap.time_s):>7}  starting: {describe_start(snap, snap.awaited, config)}{warning}"
    tuner = f"  tuner: {describe_decision(snap.decision)}" if snap.decision else ""
    compiling = f"  {COMPILING}" if snap.compiling else ""
    limit = describe_bottleneck(snap.bottleneck, config.device)
    return (
        f"{clock(snap.time_s):>7}  return {short(snap.eval_return)} (best {short(snap.best_return)})  "
        f"steps {short(snap.env_steps)} at {short(snap.sample_hz)}/s  "
        f"updates {short(snap.updates)} at {short(snap.update_hz)}/s  "
        f"frames {short(snap.update_frame_hz)}/s  limit: {limit}{compiling}{tuner}{warning}"
    )


def page(snap: Snapshot, run: RunDir, config: Config, width: int) -> Panel:
    """The run on one page of at most 24 lines. Nothing is cut where it is wide."""
    width = min(width - len(ECHO), WIDEST)
    rows: list[tuple[str, Text]] = [
        ("return", _curve(snap, config, width - len(LABEL) - 4)),
        *_goals(snap, config, width - len(LABEL) - 4),
        *_rates(snap),
    ]
    if snap.awaited is not None:
        rows.append(("start", Text(describe_start(snap, snap.awaited, config))))
    else:
        rows.append(("limit", Text(describe_bottleneck(snap.bottleneck, config.device))))
    if snap.compiling:
        rows.append(("update", Text(COMPILING)))
    if snap.decision:
        rows.append(("tuner", Text(describe_decision(snap.decision))))
    if snap.page:
        rows.append(("page", Text(snap.page, overflow="fold")))
    table = Table.grid(padding=(0, 1))
    for name, content in rows:
        if width < NARROW and name != "page":
            content.no_wrap, content.overflow = True, "ellipsis"
        table.add_row(Text(f"{name:8}", style="dim", no_wrap=True), content)
    facts = f"  {config.algo}  seed {config.seed}  {clock(snap.time_s)}"
    title = Text.assemble((config.env, "bold"), facts)
    subtitle = Text(f"{run.short_path}  Ctrl-C stops", style="dim")
    for text in (title, subtitle):  # they would make the panel wider
        text.truncate(width - 6, overflow="ellipsis")
    rows_and_warnings = Group(table, *_warnings(snap, width - 4))
    return Panel(rows_and_warnings, title=title, subtitle=subtitle, width=width)


def describe_start(snap: Snapshot, milestone: Milestone, config: Config) -> str:
    """What a run that starts waits for."""
    return describe_awaited(milestone, snap.replay_rows, resolved(config.learner.warmup_rows))


def _warnings(snap: Snapshot, width: int) -> list[Text]:
    """The newest ones."""
    shown = []
    for warning in snap.warnings[-3:]:
        text, _, _ = warning.partition("\n")  # a traceback may follow
        most = 3 if width >= WIDE - 4 else 2
        lines = textwrap.wrap(f"! {text}", width, max_lines=most, placeholder=" …")
        shown.append(Text("\n".join(lines), style="yellow"))
    return shown


def _curve(snap: Snapshot, config: Config, width: int) -> Text:
    if not snap.evaluations:
        rollout = (
            f"; episodes so far {short(snap.rollout_return)}"
            if snap.rollout_return is not None
            else ""
        )
        return Text(f"waiting for the first evaluation{rollout}", style="dim")
    label = f"{short(snap.eval_return)}  best {short(snap.best_return)}  "
    curve = sparkline([value for _, value in snap.evaluations], width - len(label))
    return Text.assemble(
        (short(snap.eval_return), "bold green"),
        ("  best ", "dim"),
        f"{short(snap.best_return)}  ",
        (curve, "green"),
    )


def _goals(snap: Snapshot, config: Config, width: int) -> list[tuple[str, Text]]:
    """A progress bar for each limit that may end the run."""
    goals: list[tuple[str, float, str]] = []
    if config.time_s is not None:
        done = f"{clock(snap.training_s)} of {clock(config.time_s)}"
        before_s = snap.time_s - snap.training_s
        more = f" (start took {clock(before_s)})" if before_s >= LONG_START_S else ""
        goals.append(("time", snap.training_s / config.time_s, done + more))
    if config.max_steps is not None:
        done = f"{short(snap.env_steps)} of {short(config.max_steps)}"
        goals.append(("steps", snap.env_steps / config.max_steps, done))
    if config.target is not None and snap.evaluations:
        first, best = snap.evaluations[0][1], snap.best_return or snap.evaluations[0][1]
        if config.target_metric != Config.target_metric:
            first, best = 0.0, snap.target_value or 0.0
        share = (
            1.0
            if best >= config.target
            else max(0.0, (best - first) / max(config.target - first, 1e-9))
        )
        goals.append(("target", share, f"{short(best)} of {short(config.target)}"))
    longest = max((len(words) for _, _, words in goals), default=0)
    length = min(max(width - longest - 2, 8), LONGEST_BAR)
    return [
        (name, Text.assemble(*bar(share, length), f"  {words}")) for name, share, words in goals
    ]


def bar(share: float, length: int) -> list[tuple[str, str]]:
    """A progress bar whose two parts differ without colour too, each with its style."""
    done = round(min(max(share, 0.0), 1.0) * length)
    return [("█" * done, "green"), ("░" * (length - done), "dim")]


def _rates(snap: Snapshot) -> list[tuple[str, Text]]:
    """What is done per second and in all, and with what."""
    per_step = snap.updates / max(snap.env_steps, 1)
    rows = [
        (
            "sampling",
            f"{short(snap.sample_hz)} steps/s",
            f"{short(snap.env_steps)} env steps, {short(snap.episodes)} episodes",
        ),
        (
            "updates",
            f"{short(snap.update_hz)}/s",
            f"{short(snap.updates)} updates, {per_step:.3g} per step",
        ),
        (
            "frames",
            f"{short(snap.update_frame_hz)}/s",
            f"replay {short(snap.replay_rows)}, policy lag {snap.policy_lag:.1f} versions",
        ),
    ]
    if snap.cpu is not None:
        rows.append(("CPU", f"{snap.cpu.run:.1f} of {snap.cpu.cores} cores", _cpu_use(snap.cpu)))
    if snap.gpu_percent is not None:
        rows.append(("GPU", f"{snap.gpu_percent:.0f} %", ""))
    longest = max(len(rate) for _, rate, _ in rows)
    return [
        (name, Text.assemble((f"{rate:<{longest}}", "bold"), f"  {more}"))
        for name, rate, more in rows
    ]


def _cpu_use(cpu: CpuUse) -> str:
    """Cores by role, and what other programs use."""
    shown = [f"{role} {use:.1f}" for role, use in sorted(cpu.roles.items()) if use >= LEAST_CORES]
    if cpu.others >= LEAST_CORES:
        shown.append(f"other programs {cpu.others:.1f}")
    return ", ".join(shown)
