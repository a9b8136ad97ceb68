"""The words of the page."""

from __future__ import annotations

import re
from pathlib import Path

from spreeze.dashboard.app import STATIC

METRICS = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_what_the_learner_writes_has_words() -> None:
    written = set(re.findall(r"^\| `(train/\w+)`", METRICS.read_text(), re.MULTILINE))
    named = set(re.findall(r'"(train/\w+)":', (STATIC / "words.js").read_text()))
    left_out = set(re.findall(r'"(train/\w+)"', (STATIC / "panels.js").read_text()))
    assert len(written) > 5
    assert written == named | left_out
