"""Write docs/timeline.png: one second of a real run of HalfCheetah-v5, from its trace.

Run it from the root of the repository: python docs/make_timeline.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from spreeze.run.launch import launch
from spreeze.settings.defaults import config_with, default_config
from spreeze.store.rundir import RunDir
from spreeze.store.trace import Activity, read_trace

TARGET = Path(__file__).parent / "timeline.png"
COLOURS = {
    Activity.SIMULATE: "#2f6fb2",
    Activity.ACT: "#e6953a",
    Activity.WRITE: "#7d5ba6",
    Activity.FETCH: "#c9528f",
    Activity.DRAIN: "#8c6d4f",
    Activity.UPDATE: "#3d9950",
    Activity.PUBLISH: "#d6453d",
    Activity.EVALUATE: "#33a3a3",
    Activity.OTHER: "#9a9a9a",
    Activity.WAIT: "#ececec",
}
LONG_S, SHORT_S = 1.0, 0.03

Spans = dict[str, list[tuple[float, float, Activity]]]


def record() -> Spans:
    """Train for some seconds, and return what each process did in two of them."""
    with tempfile.TemporaryDirectory() as folder:
        knobs = {"time": "12s", "trace": "2s", "name": "run", "dashboard": False, "runs": folder}
        config = config_with(default_config(env="HalfCheetah-v5"), knobs)
        launch(config, config.env, lambda *_: None)
        return read_trace(RunDir(Path(folder) / "run").trace)


def draw(axes: Axes, spans: Spans, begin_s: float, length_s: float) -> None:
    """A line of bars for each process, the first one at the top."""
    for line, process in enumerate(spans):
        for activity, colour in COLOURS.items():
            bars = [
                (start - begin_s, duration)
                for start, duration, did in spans[process]
                if did is activity and begin_s - duration < start < begin_s + length_s
            ]
            axes.broken_barh(bars, (line - 0.38, 0.76), facecolors=colour, linewidth=0)
    unit, scale = ("s", 1.0) if length_s >= 1 else ("ms", 1000.0)
    axes.set(xlim=(0, length_s), ylim=(len(spans) - 0.5, -0.5), xlabel=unit)
    axes.set_yticks(range(len(spans)), list(spans))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value * scale:g}")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def main() -> None:
    """Record, and draw one second and the first moments of it."""
    spans = record()
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    above, below = figure.subplots(2)
    begin_s = max(lines[0][0] for lines in spans.values()) + 0.2
    draw(above, spans, begin_s, LONG_S)
    draw(below, spans, begin_s, SHORT_S)
    above.set_title("one second of a run", loc="left", fontsize=10)
    below.set_title("its first 30 milliseconds", loc="left", fontsize=10)
    done = {did for lines in spans.values() for _, _, did in lines}
    keys = [Patch(color=c, label=did.value) for did, c in COLOURS.items() if did in done]
    figure.legend(handles=keys, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.savefig(TARGET, dpi=140)


if __name__ == "__main__":
    main()
