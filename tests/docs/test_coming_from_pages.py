"""The tables of names in the pages for users of other libraries agree with what error messages say."""

from __future__ import annotations

import re

import pytest

from pages import DOCS
from spreeze.algos import ALGORITHMS
from spreeze.settings.config import knob_names
from spreeze.settings.defaults import default_config
from spreeze.settings.other_names import OURS

PAGES = sorted(path.name for path in DOCS.glob("coming-from-*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_the_table_names_knobs_that_exist(page: str) -> None:
    known = {name for algo in ALGORITHMS for name in knob_names(default_config(algo, "Mine-v0"))}
    rows = re.findall(
        r"^\| (`\w.*?) \| (`[a-z].*?) \| .*\|$", (DOCS / page).read_text(), re.MULTILINE
    )
    assert len(rows) > 15
    for theirs, ours in (map(re.compile(r"`([\w.]+)`").findall, row) for row in rows):
        assert set(ours) <= known
        assert theirs
        for name in theirs:
            assert set(OURS.get(name, ())) <= set(ours), name
            assert name in OURS or any(knob.endswith(f".{name}") for knob in known), name
