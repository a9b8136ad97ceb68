"""A release has one version: the package's. The other files that name it must agree."""

from __future__ import annotations

import re
from pathlib import Path

import spreeze

ROOT = Path(__file__).parents[2]


def test_the_citation_names_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.+)$", text, re.MULTILINE) == [spreeze.__version__]


def test_the_changelog_describes_this_version() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", spreeze.__version__]
