"""What the terminal shows of a run: a page, a line, or the settings that were chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from spreeze.run.plan import Plan
from spreeze.run.snapshot import Snapshot
from spreeze.run.wording import describe_bottleneck, describe_decision
from spreeze.settings.config import Config, get_knob
from spreeze.store.rundir import RunDir
from spreeze.text import clock, short

BLOCKS = "▁▂▃▄▅▆▇█"


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
        if name.startswith("limits."):  # nobody needs them until something goes wrong
            continue
        value = get_knob(plan.config, name)
        parts = value if isinstance(value, tuple) else (value,)
        shown = " ".join(f"{part:,}" if type(part) is int else str(part) for part in parts)
        rows.append((f"--{name.replace('_', '-')}", shown, reason.text))
    return rows


def print_choices(console: Console, plan: Plan) -> None:
    """Each setting that was chosen, with its reason, one per line; a terminal cuts long lines."""
    rows = choices(plan)
    names, values = (max(len(row[column]) for row in rows) for column in range(2))
    for name, value, why in rows:
        text = Text.assemble(f"{name:<{names}}  {value:<{values}}  ", (why, "dim"))
        if console.is_terminal:
            text.truncate(console.width, overflow="ellipsis")
        console.print(text, soft_wrap=True)


def line(snap: Snapshot, config: Config) -> str:
    """The run in one line."""
    text, _, _ = (snap.warnings or [""])[-1].partition("\n")
    warning = f"  ! {text}" if text else ""
    tuner = f"  tuner: {describe_decision(snap.decision)}" if snap.decision else ""
    limit = describe_bottleneck(snap.bottleneck, config.device)
    return (
        f"{clock(snap.time_s):>7}  return {short(snap.eval_return)} (best {short(snap.best_return)})  "
        f"steps {short(snap.env_steps)} at {short(snap.sample_hz)}/s  "
        f"updates {short(snap.updates)} at {short(snap.update_hz)}/s  "
        f"frames {short(snap.update_frame_hz)}/s  limit: {limit}{tuner}{warning}"
    )


def page(snap: Snapshot, run: RunDir, config: Config, width: int) -> Panel:
    """The run on one page of at most 24 lines."""
    inner = max(20, min(width, 100) - 4)
    parts: list[Text | Table | ProgressBar] = [
        _curve(snap, config, inner),
        *_goals(snap, config, inner),
        _rates(snap),
    ]
    limit = describe_bottleneck(snap.bottleneck, config.device)
    parts.append(Text.assemble(("limit  ", "dim"), limit, overflow="ellipsis", no_wrap=True))
    if snap.decision:
        tuner = describe_decision(snap.decision)
        parts.append(Text.assemble(("tuner  ", "dim"), tuner, overflow="ellipsis", no_wrap=True))
    if snap.page:
        parts.append(Text.assemble(("page   ", "dim"), snap.page, overflow="fold"))
    for warning in snap.warnings[-3:]:
        text, _, _ = warning.partition("\n")  # a traceback may follow
        parts.append(Text(f"! {text}", style="yellow", overflow="ellipsis", no_wrap=True))
    title = f"[b]{escape(config.env)}[/b]  {config.algo}  seed {config.seed}  {clock(snap.time_s)}"
    return Panel(
        Group(*parts),
        title=title,
        subtitle=f"[dim]{escape(str(run.short_path))}  Ctrl-C stops[/dim]",
        width=min(width, 100),
    )


def _curve(snap: Snapshot, config: Config, width: int) -> Text:
    if not snap.evaluations:
        rollout = (
            f"; episodes so far {short(snap.rollout_return)}"
            if snap.rollout_return is not None
            else ""
        )
        return Text(f"return  waiting for the first evaluation{rollout}", style="dim")
    label = f"return  {short(snap.eval_return)}  best {short(snap.best_return)}  "
    curve = sparkline([value for _, value in snap.evaluations], width - len(label))
    return Text.assemble(
        ("return  ", "dim"),
        (short(snap.eval_return), "bold green"),
        ("  best ", "dim"),
        f"{short(snap.best_return)}  ",
        (curve, "green"),
    )


def _goals(snap: Snapshot, config: Config, width: int) -> list[Table]:
    """A progress bar for each limit that may end the run."""
    goals: list[tuple[str, float, str]] = []
    if config.time_s is not None:
        goals.append(
            ("time", snap.time_s / config.time_s, f"{clock(snap.time_s)} of {clock(config.time_s)}")
        )
    if config.max_steps is not None:
        goals.append(
            (
                "steps",
                snap.env_steps / config.max_steps,
                f"{short(snap.env_steps)} of {short(config.max_steps)}",
            )
        )
    if config.target is not None and snap.evaluations:
        first, best = snap.evaluations[0][1], snap.best_return or snap.evaluations[0][1]
        share = (
            1.0
            if best >= config.target
            else max(0.0, (best - first) / max(config.target - first, 1e-9))
        )
        goals.append(("target", share, f"{short(snap.best_return)} of {short(config.target)}"))
    table = Table.grid(padding=(0, 1))
    for name, share, words in goals:
        table.add_row(
            Text(f"{name:6}", style="dim"),
            ProgressBar(1.0, min(share, 1.0), width=max(8, width - 32)),
            words,
        )
    return [table] if goals else []


def _rates(snap: Snapshot) -> Table:
    table = Table.grid(padding=(0, 2))
    use = "  ".join(f"{role} {percent:.0f} %" for role, percent in snap.cpu_percent.items()) or "-"
    gpu = "" if snap.gpu_percent is None else f"   GPU {snap.gpu_percent:.0f} %"
    rows = [
        (
            "sampling",
            f"{short(snap.sample_hz)} steps/s",
            f"{short(snap.env_steps)} env steps, {short(snap.episodes)} episodes",
        ),
        (
            "updates",
            f"{short(snap.update_hz)}/s",
            f"{short(snap.updates)} updates, {snap.updates / max(snap.env_steps, 1):.3g} per step",
        ),
        (
            "frames",
            f"{short(snap.update_frame_hz)}/s",
            f"replay {short(snap.replay_rows)}, policy lag {snap.policy_lag:.1f} versions",
        ),
    ]
    for name, rate, more in rows:
        table.add_row(
            Text(name, style="dim"),
            Text(rate, style="bold"),
            Text(more, overflow="ellipsis", no_wrap=True),
        )
    table.add_row(
        Text("CPU", style="dim"),
        Text(f"{sum(snap.cpu_percent.values()):.0f} %", style="bold"),
        Text(use + gpu, overflow="ellipsis", no_wrap=True),
    )
    return table
