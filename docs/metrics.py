"""Writes the tables of docs/metrics.md from the list of metrics in the code.

    python docs/metrics.py            write the tables
    python docs/metrics.py --check    change nothing; exit 1 if a table is not current

A table stands between `<!-- metrics: ROLE -->` and `<!-- end -->`.
"""

from __future__ import annotations

from pathlib import Path

import markers
from markers import Rows

from spreeze.store.metric_names import METRICS

ROOT = Path(__file__).parent.parent


def tables() -> dict[str, Rows]:
    """All tables by role."""
    header = ["name", "unit", "meaning"]
    return {
        role: [header, *([f"`{x.name}`", x.unit, x.meaning] for x in metrics)]
        for role, metrics in METRICS.items()
    }


def rewrite(text: str) -> str:
    """A document with current tables."""
    return markers.rewrite(text, "metrics", tables())


def stale(root: Path) -> dict[Path, str]:
    """The documents whose tables are not current, and what they should say."""
    return markers.stale(root, rewrite)


if __name__ == "__main__":
    markers.write(stale(ROOT), "docs/metrics.py")
