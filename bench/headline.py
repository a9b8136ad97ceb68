"""The headline of README.md: a picture of the seconds to a score, and a sentence. bench/tables.py writes both."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, inf

import svg
from contest import (
    FEW,
    HEADLINE,
    SPREEZE,
    Entry,
    best_peer,
    fastest_of_each,
    interval,
    peers,
    spreeze,
)
from scores import Results, Task, machine_of, seconds

ROW, TITLE, GAP, TOP, BOTTOM = 19, 24, 14, 30, 56
"""Heights in the picture."""
COLUMN, LABELS, VALUES = svg.WIDTH / 2, 134, 84
"""Width of a machine's column, and of what stands left and right of the dots."""
LEGEND = (
    "Seconds from the command, on a logarithmic scale. Arrow: not reached in that time.",
    "Dot: median of the runs. Line: its 95 % interval. Hollow: one or two runs.",
)


def by_machine(results: Results) -> dict[str, list[Task]]:
    """The tasks of the headline for each machine."""
    found: dict[str, list[Task]] = {}
    for task in HEADLINE:
        found.setdefault(machine_of(results, task), []).append(task)
    return found


def rows(results: Results, task: Task) -> list[tuple[str, str, Entry]]:
    """Label, colour and runs of everybody at a task."""
    ours = spreeze(results, task)
    kinds = {"first run": "first", "prepared": "prepared"}
    found = [(f"{SPREEZE}, {one.settings}", kinds[one.settings], one) for one in ours]
    return found + [(one.name, "peer", one) for one in fastest_of_each(peers(results, task))]


def draw(results: Results) -> str:
    """A column for each machine, a panel for each task, a row for each framework."""
    columns = by_machine(results)
    panels = {task: rows(results, task) for tasks in columns.values() for task in tasks}
    heights = [
        sum(TITLE + ROW * len(panels[task]) + GAP for task in tasks) for tasks in columns.values()
    ]
    parts = []
    for number_of, (machine, tasks) in enumerate(columns.items()):
        left = number_of * COLUMN
        axis = svg.Seconds.around(
            [time for task in tasks for *_, entry in panels[task] for time in extent(entry)],
            left + LABELS,
            left + COLUMN - VALUES,
        )
        parts.append(svg.text(left, 16, machine, "ink machine"))
        y = float(TOP)
        for task in tasks:
            parts.append(svg.text(left, y + 15, str(task), "ink title"))
            y += TITLE
            parts += axis.grid(y, y + ROW * len(panels[task]))
            for label, kind, entry in panels[task]:
                parts += draw_row(axis, y + ROW / 2, label, kind, entry)
                y += ROW
            y += GAP
        parts += axis.labels(y)
    height = TOP + max(heights) + BOTTOM
    parts += svg.legend(LEGEND, height)
    return svg.picture(height, f"Seconds to a score. {sentence(results)}", parts)


def extent(entry: Entry) -> tuple[float, ...]:
    """The times that a row shows."""
    if entry.middle == inf:
        return (entry.limit_s or inf,)
    return (entry.middle, *(interval(entry.seconds) or ()))


def draw_row(axis: svg.Seconds, y: float, label: str, kind: str, entry: Entry) -> Iterator[str]:
    """A framework: its name, its median with the interval, and the median in digits."""
    yield svg.text(axis.left - 10, y + 4.5, label, f"{'soft' if kind == 'peer' else kind} right")
    if entry.middle == inf:
        at = axis.x(entry.limit_s or inf)
        yield svg.arrow(at - 4, y, kind)
        yield svg.text(at + 12, y + 4.5, f"not in {entry.limit_s:,.0f} s", "soft")
        return
    at = end = axis.x(entry.middle)
    if between := interval(entry.seconds):
        start, end = map(axis.x, between)
        yield svg.line((start, y), (end, y), f"{kind} thick")
    yield svg.dot(at, y, kind if len(entry.seconds) >= FEW else f"{kind} hollow")
    yield svg.text(
        max(at + 4, end) + 8, y + 4.5, seconds(entry.middle), "soft" if kind == "peer" else kind
    )


def sentence(results: Results) -> str:
    """What the picture says, in words."""
    said = []
    for machine, tasks in by_machine(results).items():
        first = [spreeze(results, task)[0].middle for task in tasks]
        others = [best_peer(results, task) for task in tasks]
        ratios = [other / own for own, other in zip(first, others, strict=True) if other]
        words = f"of {len(tasks)} tasks in {span(list(map(seconds, sorted(first))))} s"
        words += f" on {machine.replace(', ', ' with an ')}"
        if ratios:
            names = {one.name for task in tasks for one in fastest_of_each(peers(results, task))}
            ratio = span([times(value) for value in sorted(ratios)])
            words += f", {ratio} times as fast as the fastest of {len(names)} other frameworks"
        said.append(words)
    return f"A first run of Spreeze reaches the target {'; and '.join(said)}."


def span(sorted_words: list[str]) -> str:
    """From the first to the last, if they differ."""
    first, last = sorted_words[0], sorted_words[-1]
    return first if first == last else f"{first} to {last}"


def times(ratio: float) -> str:
    """Not rounded up."""
    return f"{floor(ratio)}" if ratio >= 10 else f"{floor(10 * ratio) / 10:.1f}"
