"""docs/algorithms.md lists what authors of algorithms can import and return."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import spreeze.networks
from spreeze.policy import Head

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()


def table(header: str) -> set[str]:
    """The names in the first column of a table."""
    _, _, rest = PAGE.partition(header)
    rows = rest.split("\n\n")[0].splitlines()[1:]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_the_page_lists_the_networks_that_algorithms_import() -> None:
    assert table("| name | what it is |\n") == set(spreeze.networks.__all__)


def test_the_page_lists_the_heads_of_policies() -> None:
    assert table("| head | action | exploration |\n") == set(get_args(Head))
