"""Numbers, durations and stored texts as text for people."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

SECRET = re.compile(r"token|key|secret|passw|credential", re.IGNORECASE)
"""Names whose value nobody else should see."""


def short(value: float | None) -> str:
    """A number with a unit, such as 950, 12.3k or 4.5M; a dash for None."""
    if value is None:
        return "-"
    for limit, scale, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / scale:.1f}{unit}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def plural(number: int, word: str) -> str:
    """A number of things: "1 run", "2 runs"."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def clock(seconds: float) -> str:
    """A duration as 42 s, 3:05 or 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    if minutes == 0:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def plain(text: str) -> str:
    """One line that is safe on a terminal: what is not printable, such as an escape code, is spelled out."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def plain_lines(text: str) -> str:
    """Like `plain`, but keeps the lines of a text."""
    return "\n".join(plain(line) for line in text.expandtabs().split("\n"))


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most like `name`, or None if none is alike enough."""
    if len(name) > 200:  # comparing takes time
        return None
    return next(iter(difflib.get_close_matches(name, list(known), 1, cutoff)), None)


def suggest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A hint to append to a message: the nearest known name, or nothing."""
    found = nearest(name, known, cutoff)
    return f" Did you mean {found}?" if found else ""


def without_secrets(arguments: Iterable[str]) -> list[str]:
    """A command line whose secrets are masked: `--api-key ...`, `--api-key=...`, `api_key=...`."""
    shown: list[str] = []
    hide = False
    for text in arguments:
        name, equals, _ = text.partition("=")
        if hide and not text.startswith("-"):
            shown.append("...")
            hide = False
            continue
        secret = SECRET.search(name) is not None
        shown.append(f"{name}=..." if secret and equals else text)
        hide = secret and text.startswith("-") and not equals
    return shown
