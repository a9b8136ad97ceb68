"""The plot of a sweep: scores in the order of the trials, and over the values of each knob."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context

from spreeze.cli.figure import CurveFigure
from spreeze.cli.sweep.score import Score
from spreeze.cli.sweep.study import Trial
from spreeze.settings.space import Choices, Range, Space, as_typed, typed

COLUMNS = 3
INK, BEST = "#0f766e", "#d0562f"


def draw(trials: Sequence[Trial], space: Space, score: Score) -> CurveFigure:
    """A panel for the order of the trials, and one for each knob."""
    done = [trial for trial in trials if trial.score is not None]
    columns = min(COLUMNS, len(space) + 1)
    rows = -(-(len(space) + 1) // columns)
    style: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with rc_context(style):
        figure = CurveFigure(figsize=(4.2 * columns, 3.0 * rows), layout="constrained")
        panels = list(figure.subplots(rows, columns, squeeze=False).flat)
        _draw_order(panels[0], done, score)
        for axes, (name, values) in zip(panels[1:], space.items(), strict=False):
            _draw_knob(axes, done, name, values)
        for axes in panels[len(space) + 1 :]:
            axes.set_axis_off()
    return figure


def _draw_order(axes: Any, done: Sequence[Trial], score: Score) -> None:
    scores = [trial.score for trial in done]
    lower = score.direction == "minimize"
    best = (np.minimum if lower else np.maximum).accumulate(np.array(scores, np.float64))
    numbers = [trial.number for trial in done]
    axes.plot(numbers, scores, "o", color=INK, ms=4)
    axes.step(numbers, best, where="post", color=BEST, lw=1.4, label="best so far")
    axes.set_xlabel("trial")
    axes.set_ylabel(score.name)
    axes.legend(frameon=False)


def _draw_knob(axes: Any, done: Sequence[Trial], name: str, values: Range | Choices) -> None:
    scores = [trial.score for trial in done]
    if isinstance(values, Choices):
        words = [typed(value) for value in values.values]
        axes.plot(
            [words.index(typed(trial.values[name])) for trial in done], scores, "o", color=INK, ms=4
        )
        axes.set_xticks(range(len(words)), words)
        axes.set_xlim(-0.5, len(words) - 0.5)
    else:
        axes.plot([trial.values[name] for trial in done], scores, "o", color=INK, ms=4)
        axes.set_xlim(values.low, values.high)
        if values.log:
            axes.set_xscale("log")
    axes.set_xlabel(as_typed(name))
