"""The tables of knobs in the documents say what the knobs say."""

from __future__ import annotations

import importlib
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def knobs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("knobs")


def test_documents_are_current(knobs: ModuleType) -> None:
    assert list(knobs.stale(ROOT)) == [], "run: python docs/knobs.py"


def test_every_table_is_in_a_document(knobs: ModuleType) -> None:
    pages = [page.read_text() for page in (ROOT / "docs").glob("*.md")]
    used = {name for page in pages for _, name, _ in knobs.BLOCK.findall(page)}
    assert used == set(knobs.tables())


def test_cells_are_short_and_every_knob_has_help(knobs: ModuleType) -> None:
    for name, (_, *rows) in knobs.tables().items():
        for row in rows:
            assert row[-1], f"{name}: {row[0]} has no help"
            assert all(len(cell) < 160 for cell in row), f"{name}: {row[0]}"


def test_a_changed_default_or_help_is_noticed(
    knobs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(
        ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("*.p*", "*.svg")
    )
    settings = tmp_path / "docs" / "settings.md"
    text = settings.read_text()
    assert not knobs.stale(tmp_path)
    for other in (
        text.replace("| `--checkpoint.keep` | 3 |", "| `--checkpoint.keep` | 4 |"),
        text.replace("Folder for runs.", "A folder."),
        re.sub(r"\| `--learner.threads`.*\n", "", text),
    ):
        assert other != text
        settings.write_text(other)
        assert list(knobs.stale(tmp_path)) == [settings]


@pytest.mark.parametrize("text", ["<!-- knobs: none -->\n<!-- end -->\n", "<!-- knobs: run -->\n"])
def test_a_wrong_marker_is_refused(knobs: ModuleType, text: str) -> None:
    with pytest.raises(SystemExit, match="table"):
        knobs.rewrite(text)
