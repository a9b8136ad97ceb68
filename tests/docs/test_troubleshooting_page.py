"""docs/troubleshooting.md quotes what the program says, and leaves no cause and no limit out."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from pages import DOCS, ROOT
from spreeze.run.bottleneck import Bottleneck, Limit
from spreeze.run.diagnosis import Cause, Diagnosis
from spreeze.run.wording import describe_bottleneck, describe_diagnosis

PAGE = (DOCS / "troubleshooting.md").read_text()


def messages(section: str = "") -> list[str]:
    """The messages in the tables of a section; without one, of all."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0] if section else PAGE
    tables = re.findall(r"^\| message \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return re.findall(r"^\| `([^`]+)` \|", "".join(tables), re.MULTILINE)


@cache
def said() -> list[str]:
    """Every text that the sources use, with {} for what is filled in."""
    found = []
    for path in (ROOT / "src" / "spreeze").rglob("*.py"):
        tree = ast.parse(path.read_text())
        alone = {id(x.value) for x in ast.walk(tree) if isinstance(x, ast.Expr)}  # docstrings
        for node in (x for x in ast.walk(tree) if id(x) not in alone):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            if isinstance(node, ast.JoinedStr):
                parts = [x.value if isinstance(x, ast.Constant) else "{}" for x in node.values]
                found.append("".join(map(str, parts)))
    return found


@pytest.mark.parametrize("message", messages())
def test_messages_are_what_the_program_says(message: str) -> None:
    assert any(message in text for text in said())


def test_every_cause_is_named_once() -> None:
    rows = messages("It does not learn")
    for cause in Cause:
        text = describe_diagnosis(Diagnosis(cause, 0.5))
        assert [row for row in rows if row in text] in [[row] for row in rows]
    assert len(rows) == len(Cause)


def test_every_limit_that_can_be_lifted_is_named() -> None:
    rows = messages("It is slow")
    for limit in (Limit.SAMPLERS, Limit.LEARNER, Limit.OTHERS):
        text = describe_bottleneck(Bottleneck(limit, 0.0, 0.0, 2), "cpu")
        assert len([row for row in rows if row in text]) == 1
