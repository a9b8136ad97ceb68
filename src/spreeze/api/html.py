"""Small pieces of HTML for notebooks. Whatever is shown is escaped: names and texts of a run may hold anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from spreeze.text import plain

WIDTH, HEIGHT = 420, 90
CELL = "text-align:left;padding:1px 12px 1px 0;vertical-align:top"


def title(words: str) -> str:
    """A line in bold."""
    return f"<div><b>{text(words)}</b></div>"


def table(rows: Mapping[str, str]) -> str:
    """A name and a value per line."""
    lines = "".join(
        f'<tr><td style="{CELL};opacity:0.65">{text(name)}</td><td style="{CELL}">{text(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table>{lines}</table>"


def curve(points: Sequence[tuple[float, float]]) -> str:
    """A line through the points, as wide and as high as they reach; nothing for fewer than two."""
    if len(points) < 2:
        return ""
    points = [*points[: -1 : len(points) // WIDTH + 1], points[-1]]
    (left, right), (low, high) = ((min(axis), max(axis)) for axis in zip(*points, strict=True))
    across, up = (right - left) or 1.0, (high - low) or 1.0
    line = " ".join(
        f"{(x - left) / across * WIDTH:.1f},{(high - y) / up * HEIGHT:.1f}" for x, y in points
    )
    return (
        f'<svg viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}" width="{WIDTH}" height="{HEIGHT}">'
        f'<polyline points="{line}" fill="none" stroke="#0f766e" stroke-width="1.8"/></svg>'
    )


def lines(texts: Sequence[str]) -> str:
    """Texts below each other."""
    return "".join(f"<div>{text(line)}</div>" for line in texts)


def link(address: str) -> str:
    """An address to click on."""
    target = escape(address, quote=True)
    return f'<div><a href="{target}" target="_blank" rel="noopener noreferrer">{target}</a></div>'


def text(value: str) -> str:
    """One line of text as HTML shows it."""
    return escape(plain(value))
