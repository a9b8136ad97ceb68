"""`spreeze plot`: draws learning curves over seeds, also against other frameworks."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from spreeze.errors import UsageError
from spreeze.settings.arguments import read_arguments
from spreeze.store.files import write_json
from spreeze.store.rundir import find_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from spreeze.store.curves import Group
    from spreeze.store.rundir import RunDir

FORMATS, DPI = (".png", ".svg", ".pdf"), 200
LABELS = {"time": "wall-clock time [s]", "steps": "env steps", "updates": "updates"}
PANELS_BESIDE = 3
"""Panels in one row."""
COLOURS = ("#0f766e", "#d0562f", "#2f6fd0", "#7c4fc9", "#a3690f", "#b8327f", "#64748b")
STYLES = ("-", "--", ":", "-.")
"""Of lines, once all colours are used."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Draw learning curves, a panel per task. Runs that differ by the seed alone become one line: their middle, with its 95 % interval."""

    runs_given: tyro.conf.Positional[tuple[str, ...]] = ()
    """Runs (paths, or names in the runs folder). Default: the newest run."""
    x: Literal["time", "steps", "updates"] = "time"
    """The horizontal axis."""
    out: str = "curves.png"
    """Image to write: .png, .svg or .pdf."""
    compare: tuple[str, ...] = ()
    """JSON results of `spreeze bench time-to-score` to draw as well."""
    runs: str = "runs"
    """The runs folder."""
    json: str | None = None
    """Write the numbers of the plot as JSON to this file; - for standard output."""


def main(arguments: list[str], _started_s: float) -> int:
    """Read the curves, draw them, and print what was drawn."""
    args = read_arguments(Arguments, arguments, "plot")
    path = Path(args.out)
    check(args, path)
    from spreeze.store.curves import facts, read_comparison

    names = args.runs_given or (None,)
    groups = _groups([find_run(name, Path(args.runs)) for name in names])
    for file in args.compare:
        groups += read_comparison(Path(file))
    if args.x != "time" and any(not group.curves for group in groups):
        raise UsageError(
            [
                f"--x {args.x}: a file given to --compare has no curves, only times. Use --x time, "
                "or a file with curves."
            ]
        )
    drawn = [facts(group, args.x) for group in groups]
    draw(groups, drawn, args.x).savefig(path, dpi=DPI)
    if args.json is not None:
        write_json({"x": args.x, "groups": drawn}, args.json)
    if args.json != "-":
        for group in drawn:
            print(f"{group['task']} {group['label']}: {_seeds(group)}")
        print(f"Image: {args.out}")
    return 0


def check(args: Arguments, path: Path) -> None:
    """Refuse bad arguments before anything is read."""
    problems = []
    if path.suffix.lower() not in FORMATS:
        problems.append(f"--out {args.out}: must end in {', '.join(FORMATS)}.")
    if not path.absolute().parent.is_dir():
        problems.append(f"--out {args.out}: there is no folder {path.parent}.")
    problems += missing_library()
    if problems:
        raise UsageError(problems)


def missing_library() -> list[str]:
    """What to install before anything can be drawn."""
    if find_spec("matplotlib") is not None:
        return []
    return ['plots need matplotlib. Install it with: pip install "spreeze[plot]"']


def plot_runs(runs: list[RunDir], axis: str) -> Figure:
    """The curves of runs in one picture."""
    from spreeze.store.curves import CURVE_AXES, facts

    problems = missing_library()
    if axis not in CURVE_AXES:
        problems.append(f"x={axis}: must be one of {', '.join(CURVE_AXES)}.")
    if problems:
        raise UsageError(problems)
    groups = _groups(runs)
    return draw(groups, [facts(group, axis) for group in groups], axis)


def _groups(runs: list[RunDir]) -> list[Group]:
    """What is drawn. Runs without an evaluation are left out; UsageError if no other is there."""
    from spreeze.store.run_groups import describe_without, group_runs

    groups, without = group_runs(runs)
    if without and not groups:
        raise UsageError([f"nothing to draw: {describe_without(without)}."])
    if without:
        print(f"{describe_without(without)}. Left out.", file=sys.stderr)
    return groups


def draw(groups: list[Group], drawn: list[dict[str, Any]], axis: str) -> Figure:
    """Draw a panel for each task, with a line and a band or a point for each of its groups."""
    from matplotlib import rc_context

    from spreeze.cli.figure import CurveFigure

    tasks = list(dict.fromkeys(group.task for group in groups))
    columns = min(len(tasks), PANELS_BESIDE)
    rows = -(-len(tasks) // columns)
    style: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with rc_context(style):
        figure = CurveFigure(figsize=(5.2 * columns, 3.3 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for task, axes in zip(tasks, panels, strict=False):
            shown = [pair for pair in zip(groups, drawn, strict=True) if pair[0].task == task]
            for i, (group, values) in enumerate(shown):
                line = STYLES[i // len(COLOURS) % len(STYLES)]
                _draw_group(axes, group, values, COLOURS[i % len(COLOURS)], line)
            axes.set_title(task)
            axes.set_xlabel(LABELS[axis])
            axes.set_ylabel("evaluation return")
            axes.grid(axis="y", color="#e3e8e6", lw=0.8)
            axes.set_axisbelow(True)
            axes.legend(frameon=False, loc="best")
        for axes in list(panels):  # the last row may be shorter
            axes.set_axis_off()
    return figure


def _draw_group(axes: Any, group: Group, values: dict[str, Any], colour: str, style: str) -> None:
    """Draw a line with a band for a group with curves, and a point at the target for another."""
    label = f"{group.label}, {_seeds(values)}"
    if group.curves:
        axes.plot(values["x"], values["middle"], color=colour, ls=style, lw=1.8, label=label)
        if len(group.curves) > 1:
            low, high = values["low"], values["high"]
            axes.fill_between(values["x"], low, high, color=colour, alpha=0.18, lw=0)
    elif (reached := values["time_to_target"]) is not None:
        middle, low, high = reached
        bar = [[middle - low], [high - middle]]
        axes.errorbar([middle], [group.target or 0.0], xerr=bar, fmt="o", color=colour, label=label)
    else:
        axes.plot([], [], color=colour, ls=style, label=f"{group.label}: target not reached")


def _seeds(values: dict[str, Any]) -> str:
    """How many seeds there are, and what their middle is."""
    from spreeze.store.curves import describe_number

    number = describe_number(values)
    return number if values["runs"] == 1 else f"{values['statistic']} of {number}"
