"""What the generated pictures share: colours for light and dark pages, lines, text, a logarithmic axis of seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import inf, log10

WIDTH = 780
LIGHT = {
    "ink": "#1f2933", "soft": "#52606d", "grid": "#dde2e8", "first": "#123f99", "prepared": "#2f74dd",
    "peer": "#7b8794", "p0": "#b4532a", "p1": "#0b7a55", "p2": "#8a5cc2", "p3": "#a87900", "p4": "#c2417c",
    "p5": "#4d7c0f", "p6": "#0e7490", "p7": "#6b7280",
}  # fmt: skip
DARK = {
    "ink": "#e6ebf0", "soft": "#a8b3bf", "grid": "#353d48", "first": "#6aa3ff", "prepared": "#c4dcff",
    "peer": "#96a1ad", "p0": "#f0986b", "p1": "#5fd0a5", "p2": "#c3a1f0", "p3": "#e0b84c", "p4": "#f08fb8",
    "p5": "#a3cf5f", "p6": "#63c5da", "p7": "#a3abb5",
}  # fmt: skip
"""The colours are also the classes of what has them. Peers of which each has its curve are p0 to p7."""
NICE = [digit * 10**power for power in range(-1, 6) for digit in (1, 2, 5)]


def colours(palette: dict[str, str]) -> str:
    """A palette as variables of CSS."""
    return " ".join(f"--{name}: {value};" for name, value in palette.items())


def style() -> str:
    """Styles of a picture: its classes are the names of colours."""
    painted = "".join(
        f".plot .{name} {{ stroke: var(--{name}); fill: var(--{name}); }}\n" for name in LIGHT
    )
    return f"""<style>
.plot {{ {colours(LIGHT)}
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; max-width: 100%; height: auto; }}
@media (prefers-color-scheme: dark) {{ .plot {{ {colours(DARK)} }} }}
{painted}.plot text[class] {{ font-size: 13px; stroke: none; }}
.plot text.title {{ font-weight: 600; }} .plot text.machine[class] {{ font-size: 15px; font-weight: 600; }}
.plot text.small[class] {{ font-size: 11.5px; }} .plot text.right {{ text-anchor: end; }} .plot text.centre {{ text-anchor: middle; }}
.plot line {{ stroke-width: 1; }} .plot line.thick {{ stroke-width: 3; stroke-linecap: round; stroke-opacity: 0.55; }}
.plot polyline[class] {{ fill: none; stroke-width: 2; stroke-linejoin: round; }} .plot polygon.band[class] {{ fill-opacity: 0.15; stroke: none; }}
.plot circle, .plot path {{ stroke-width: 2; }} .plot .hollow {{ fill: none; }}
</style>"""


def picture(height: float, about: str, parts: Iterable[str]) -> str:
    """A whole picture; `about` is read aloud."""
    head = f'<svg class="plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
    return "\n".join([head, f"<title>{escape(about)}</title>", style(), *parts, "</svg>", ""])


def text(x: float, y: float, words: str, kind: str = "ink") -> str:
    """Words on a line."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def legend(lines: Sequence[str], height: float) -> list[str]:
    """What the signs mean, at the bottom."""
    return [
        text(0, height - 15 * (len(lines) - i) + 6, words, "soft small")
        for i, words in enumerate(lines)
    ]


def line(start: tuple[float, float], end: tuple[float, float], kind: str = "grid") -> str:
    """From one point to another."""
    (x1, y1), (x2, y2) = start, end
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def dot(x: float, y: float, kind: str) -> str:
    """A circle."""
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'


def arrow(x: float, y: float, kind: str) -> str:
    """A hollow arrow: it goes on to the right."""
    return f'<path class="{kind} hollow" d="M{x:.1f} {y - 5:.1f} l8 5 l-8 5"/>'


def path(points: Sequence[tuple[float, float]], kind: str) -> str:
    """A curve."""
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def band(points: Sequence[tuple[float, float]], kind: str) -> str:
    """The area within a closed curve."""
    return (
        f'<polygon class="{kind} band" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'
    )


@dataclass(frozen=True)
class Seconds:
    """A logarithmic axis from `left` to `right`."""

    left: float
    right: float
    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float], left: float, right: float) -> Seconds:
        """An axis that has room for these times."""
        known = [value for value in values if 0 < value < inf]
        low = max(nice for nice in NICE if nice <= 0.9 * min(known))
        high = min(nice for nice in NICE if nice >= 1.1 * max(known))
        return cls(left, right, low, high)

    def x(self, seconds: float) -> float:
        """Where a time is."""
        share = log10(seconds / self.low) / log10(self.high / self.low)
        return self.left + min(max(share, 0.0), 1.0) * (self.right - self.left)

    def ticks(self) -> list[float]:
        """Round times, no more than there is room for."""
        found = [nice for nice in NICE if self.low <= nice <= self.high]
        decades = [nice for nice in found if log10(nice) == round(log10(nice))]
        return decades if len(found) > 5 else found

    def grid(self, top: float, bottom: float) -> list[str]:
        """A line for each tick."""
        return [line((self.x(tick), top), (self.x(tick), bottom)) for tick in self.ticks()]

    def labels(self, y: float) -> list[str]:
        """The times of the ticks."""
        return [text(self.x(tick), y, f"{tick:,g} s", "soft small centre") for tick in self.ticks()]
