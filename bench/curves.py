"""Learning curves of Spreeze and of other frameworks, as a picture. bench/tables.py writes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import svg
from contest import FEW, NAMES, Entry
from headline import by_machine, rows
from scores import Results, Task

from spreeze.store.curves import interval, iqm

PANEL, TITLE, GAP, TOP, BOTTOM = 130, 26, 36, 30, 30
"""Heights in the picture."""
COLUMN, SCALE, RIGHT = svg.WIDTH / 2, 48, 124
"""Width of a machine's column, and of what stands left and right of the curves."""
NAME = 14
"""Height of a framework's name."""
COLOURS = {name: f"p{i}" for i, name in enumerate(dict.fromkeys(NAMES.values()))}
POINTS = 100
TIME, RETURN = 0, 3
"""Columns of a curve."""
LEGEND = (
    "Interquartile mean of the runs, and its 95 % interval for three runs or more. Dashed: the target.",
    "A run that has ended keeps its last return.",
)
Numbers = np.ndarray


def draw(results: Results) -> str:
    """A column for each machine, a panel for each task of which curves were recorded."""
    parts, lowest = [], 0.0
    for number, (machine, tasks) in enumerate(by_machine(results).items()):
        left = number * COLUMN
        parts.append(svg.text(left, 16, machine, "ink machine"))
        y = float(TOP)
        for task in tasks:
            drawn = [row for row in rows(results, task) if row[2].curves]
            if drawn:
                parts.append(svg.text(left, y + 15, str(task), "ink title"))
                parts += panel(task, drawn, left, y + TITLE)
                y += TITLE + PANEL + GAP
        lowest = max(lowest, y)
    height = lowest + BOTTOM
    parts += svg.legend(LEGEND, height)
    return svg.picture(
        height, "Return over seconds since the command, by task and framework.", parts
    )


def panel(task: Task, drawn: list[tuple[str, str, Entry]], left: float, top: float) -> list[str]:
    """Curves with the names of their frameworks."""
    lines = {label: middle_of(entry.curves) for label, _, entry in drawn}
    times = np.concatenate([line[0] for line in lines.values()]).tolist()
    axis = svg.Seconds.around(times, left + SCALE, left + COLUMN - RIGHT)
    values = np.concatenate([line[1] for line in lines.values()])
    low, high = float(values.min()), max(float(values.max()), task.target)
    bottom = top + PANEL

    def y(value: float) -> float:
        share = (value - low) / (high - low or 1.0)
        return bottom - min(max(share, 0.0), 1.0) * PANEL

    parts = [*axis.grid(top, bottom), *axis.labels(bottom + 15)]
    target = svg.line((axis.left, y(task.target)), (axis.right, y(task.target)), "soft")
    parts.append(target.replace("/>", ' stroke-dasharray="4 4"/>'))
    for value in sorted({round(low), task.target}):
        parts.append(svg.text(axis.left - 6, y(value) + 4, f"{value:,}", "soft small right"))
    for number, (label, kind, entry) in enumerate(drawn):
        colour = COLOURS.get(entry.name, kind)
        seconds, middle, between = lines[label]
        xs = [axis.x(value) for value in seconds]
        if between is not None:
            low_edge, high_edge = ([*zip(xs, map(y, edge), strict=True)] for edge in between)
            parts.append(svg.band([*low_edge, *reversed(high_edge)], colour))
        parts.append(svg.path([*zip(xs, map(y, middle), strict=True)], colour))
        parts.append(svg.text(axis.right + 10, top + 8 + NAME * number, label, f"{colour} small"))
    return parts


def middle_of(
    curves: Sequence[Sequence[Sequence[float]]],
) -> tuple[Numbers, Numbers, tuple[Numbers, Numbers] | None]:
    """Times, the interquartile mean of the runs there, and its interval if there are enough runs."""
    runs = [np.array(curve, float) for curve in curves if len(curve)]
    first = max(run[0, TIME] for run in runs)
    last = max(first, *(run[-1, TIME] for run in runs))
    seconds = np.geomspace(first, last, POINTS)
    seconds[-1] = last  # it may be rounded below
    held = [
        run[np.searchsorted(run[:, TIME], seconds, "right").clip(1) - 1, RETURN] for run in runs
    ]
    values = np.stack(held)
    return seconds, iqm(values), interval(values) if len(runs) >= FEW else None
